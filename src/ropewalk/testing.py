"""The contract of an encoding, as checks that can be run on any of them.

    import ropewalk as rw

    rw.testing.check_encoding(MyEncoding, rw.catalog.Traits(relative=True, ...))

One call runs every check and raises `ContractError` at the first that fails, saying which, in what case, what was
expected and what was measured. With pytest, one test a check reads better:

    @pytest.mark.parametrize("check", rw.testing.checks())
    def test_contract(check):
        for name, why in rw.testing.check_encoding(MyEncoding, TRAITS, checks=[check]).items():
            pytest.skip(why)

The problems are small: ``BATCH`` rows, ``HEADS`` query heads that share ``KV_HEADS`` key heads, width ``HEAD_DIM``, a
layer's input of width ``HIDDEN``. A factory gets those of the keywords ``head_dim``, ``num_heads``, ``num_kv_heads`` and
``hidden_size`` that it takes; one that takes none must make an encoding of these sizes. Parameters are disturbed after
construction, so that what starts at zero is seen too.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import inspect
import io
import math
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from ropewalk.backends import BACKENDS, attend, dense
from ropewalk.backends.request import Request
from ropewalk.cache import KVCache
from ropewalk.catalog import SHAPE_KEYWORDS, Record, Traits
from ropewalk.core.attention import Attention, Feature, Pointwise, Problem, Row, leaves
from ropewalk.core.combinators import Partial, PerHead, Sequential
from ropewalk.core.encoding import Encoding, Rotary
from ropewalk.core.errors import (
    CacheError,
    CannotCompose,
    CannotCrop,
    ConfigError,
    NotRotation,
    PositionError,
    Refusal,
    RopewalkError,
)
from ropewalk.core.positions import EXACT, Positions, Tokens

__all__ = [
    "ContractError",
    "Excluded",
    "Sample",
    "Subject",
    "check_encoding",
    "checks",
    "subject",
]

# Sizes no two of which agree, so that swapped axes show. 16 channels: what acts on blocks of 8 fits twice.
BATCH, HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 3, 4, 2, 16, 24
SHORT, MEDIUM, LONG = 7, 13, 37  # below and above the number of queries from which backends fold terms

# Tolerances, all absolute: values are O(1).
SAME = 1e-10  # float64, the same sums in another order: 6 digits of slack over their rounding
SHIFTED = 1e-9  # float64 at moved coordinates: angles of size 1e3 round at 1e-13, times slopes and widths
SINGLE = 3e-5  # float32 against float64: 2^-24 on logits of size 10, through a softmax over 37 keys
LOW = {torch.float32: SINGLE, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""Outputs of a model dtype against float64: q' and k' round once at 2^-11 (2^-8), logits of size 4 carry that on."""
TABLE = 1e-7  # cos and sin in float32 against float64: one rounding at 2^-24 = 6e-8
DIFFERENT = 1e-6  # what two results have to differ by to be called different

GIVEN = {"position", "valid", "document", "extrinsics"}  # columns that users give; others were drawn

Sample = Callable[[int, int, torch.Generator], Positions]
"""``sample(batch, seq, generator) -> Positions``: tokens of the domain an encoding lives in."""


class ContractError(AssertionError):
    """An encoding breaks the contract; the message names the check, the case, what was expected and what came."""


class Excluded(Exception):
    """A check does not apply to an encoding, for the reason given."""


# ---- the subject -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """An encoding under test: how it is made, what it claims, and where its tokens live.

    Attributes:
        name: for messages.
        factory: makes the encoding from the shape keywords it takes.
        traits: what it claims; None: nothing is known, so claims are not checked.
        sample: positions of its domain.
        seed: of everything random.
    """

    name: str
    factory: Callable[..., Encoding]
    traits: Traits | None
    sample: Sample
    seed: int = 0

    @property
    def sequence(self) -> bool:
        """Whether positions count tokens."""
        return self.sample is sample_sequence

    @property
    def causals(self) -> tuple[bool, ...]:
        """The kinds of problem it may be given."""
        kind = "any" if self.traits is None else self.traits.causal
        return {"any": (True, False), "only": (True,), "never": (False,)}[kind]

    @property
    def limit(self) -> float:
        """Largest position it may be given."""
        bound = None if self.traits is None else self.traits.max_position
        return math.inf if bound is None else bound

    def generator(self, *salt: int) -> torch.Generator:
        """Return a generator of its own for a purpose."""
        return torch.Generator().manual_seed(hash((self.seed, *salt)) & 0x7FFFFFFF)

    def encoding(self, seed: int = 0, dtype: torch.dtype = torch.float64, **sizes: int) -> Encoding:
        """Make it, with parameters that are not at their initial values."""
        shape = {"head_dim": HEAD_DIM, "num_heads": HEADS, "num_kv_heads": KV_HEADS, "hidden_size": HIDDEN, **sizes}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + seed)
            made = self.factory(**shape)
            if not isinstance(made, Encoding):
                raise ContractError(f"{self.name}: the factory made a {type(made).__name__}, not an Encoding")
            with torch.no_grad():
                for parameter in made.parameters():
                    parameter.add_(0.3 * torch.randn(parameter.shape))
        return made.to(dtype)

    def layer(self, dtype: torch.dtype = torch.float64, kv_heads: int = KV_HEADS) -> Layer:
        """Make a layer around it."""
        return Layer(self.encoding(dtype=dtype, num_kv_heads=kv_heads), self.generator(1), kv_heads).to(dtype)

    def x(self, length: int, batch: int = BATCH, salt: int = 0) -> Tensor:
        """Return inputs of a layer."""
        made = torch.randn(batch, length, HIDDEN, generator=self.generator(2, salt), dtype=torch.float64)
        return made

    def qkv(
        self, length: int, kv_heads: int = KV_HEADS, salt: int = 0, batch: int = BATCH
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k, v."""
        g = self.generator(3, salt)

        def normal(heads: int) -> Tensor:
            return torch.randn(batch, heads, length, HEAD_DIM, generator=g, dtype=torch.float64)

        return normal(HEADS), normal(kv_heads), normal(kv_heads)

    def positions(self, encoding: Encoding, length: int, batch: int = BATCH, salt: int = 0) -> Positions:
        """Return positions with whatever the encoding draws, each row its own."""
        return self.draw(encoding, self.sample(batch, length, self.generator(4, salt)))

    def draw(self, encoding: Encoding, positions: Positions, salt: int = 0) -> Positions:
        """Let the encoding draw, reproducibly."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + salt)
            return encoding.draw(positions)

    def problem(
        self, encoding: Encoding, length: int, causal: bool = True, kv_heads: int = KV_HEADS, salt: int = 0, **more: Any
    ) -> Attention:
        """Return a problem as a layer would make it, not yet encoded."""
        q, k, v = self.qkv(length, kv_heads, salt)
        positions = more.pop("positions", None)
        if positions is None:
            positions = self.positions(encoding, length)
        return Attention(q, k, v, positions, causal=causal, x=self.x(length, salt=salt), **more)

    def streams(self) -> None:
        """Leave a check of decoding where there is nothing to decode."""
        if True not in self.causals:
            raise Excluded("traits.causal is 'never': there is nothing to decode")
        if self.traits is not None and not self.traits.streamable:
            raise Excluded("traits.streamable is False")


class Layer(nn.Module):
    """An attention layer with fixed projections, so that every kind of encoding is seen in the output."""

    def __init__(self, encoding: Encoding, generator: torch.Generator, kv_heads: int) -> None:
        super().__init__()
        self.encoding = encoding
        self.kv_heads = kv_heads
        for name, heads in (("q", HEADS), ("k", kv_heads), ("v", kv_heads)):
            weight = torch.randn(HIDDEN, heads * HEAD_DIM, generator=generator, dtype=torch.float64) / HIDDEN**0.5
            self.register_buffer(f"w{name}", weight)

    def problem(self, x: Tensor, positions: Positions | None, causal: bool = True, **more: Any) -> Attention:
        """Embed, project, and say what is wanted."""
        x = self.encoding.embed(x, positions)

        def heads(w: Tensor) -> Tensor:
            return (x @ w).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)

        q, k, v = (heads(cast("Tensor", w)) for w in (self.wq, self.wk, self.wv))
        return Attention(q, k, v, positions, causal=causal, x=x, **more)

    def forward(
        self, x: Tensor, positions: Positions | None, causal: bool = True, backend: str = "dense", **more: Any
    ) -> Tensor:
        """Return the output, (B, H, S, D)."""
        return attend(self.encoding(self.problem(x, positions, causal, **more)), backend)

    def stream(
        self,
        x: Tensor,
        positions: Positions | None,
        chunks: Sequence[int],
        cache: KVCache | None = None,
        backend: str = "dense",
    ) -> Tensor:
        """Return the output, a chunk at a time through a cache; positions None: counted by the cache."""
        cache = KVCache(self.encoding) if cache is None else cache
        out, at = [], 0
        for n in chunks:
            now = cache.step(n if positions is None else positions.slice(at, at + n))
            out.append(attend(cache[0].extend(self.problem(x[:, at : at + n], now)), backend))
            at += n
        return torch.cat(out, 2)


def sample_sequence(batch: int, seq: int, generator: torch.Generator) -> Positions:
    """Tokens that are counted, each row from another start."""
    start = torch.randint(0, 9, (batch, 1), generator=generator)
    return Positions(start + torch.arange(seq))


def subject(
    factory: Callable[..., Encoding] | Record,
    traits: Traits | None = None,
    *,
    positions: Sample | None = None,
    seed: int = 0,
) -> Subject:
    """Say what is to be checked; see `check_encoding`."""
    if isinstance(factory, Record):
        name, make = factory.slug, factory.build
        traits = factory.traits if traits is None else traits
    else:
        name, make = getattr(factory, "__name__", type(factory).__name__), _only_what_it_takes(factory)
    domain = "sequence" if traits is None else traits.domain
    if positions is None:
        positions = _domain(domain)
    return Subject(name, make, traits, positions, seed)


def _domain(name: str) -> Sample:
    if name == "sequence":
        return sample_sequence
    try:
        module = importlib.import_module(f"ropewalk.coordinates.{name}")
        return cast("Sample", getattr(module, f"sample_{name}"))
    except (ImportError, AttributeError) as problem:
        raise ConfigError(
            f"no sampler of positions is known for the domain {name!r}; give positions=callable(batch, seq, generator)"
        ) from problem


def _only_what_it_takes(factory: Callable[..., Encoding]) -> Callable[..., Encoding]:
    parameters = inspect.signature(factory).parameters  # **kwargs may be nn.Module's, which takes none

    @functools.wraps(factory)
    def make(**sizes: int) -> Encoding:
        return factory(**{n: v for n, v in sizes.items() if n in parameters and n in SHAPE_KEYWORDS})

    return make


# ---- running ---------------------------------------------------------------------------------------------------------

Check = Callable[[Subject], None]
CHECKS: dict[str, Check] = {}
SLOW: set[str] = set()


def check(fn: Check) -> Check:
    """Enter a check, under its name without ``check_``."""
    CHECKS[fn.__name__.removeprefix("check_")] = fn
    return fn


def slow(fn: Check) -> Check:
    """Enter a check that takes seconds; it runs only when asked for."""
    SLOW.add(fn.__name__.removeprefix("check_"))
    return check(fn)


def checks(slow: bool = False) -> tuple[str, ...]:
    """Names of the checks, in order; with ``slow`` also those that call compilers for minutes."""
    return tuple(name for name in CHECKS if slow or name not in SLOW)


def check_encoding(
    factory: Callable[..., Encoding] | Record,
    traits: Traits | None = None,
    *,
    checks: Sequence[str] | None = None,
    positions: Sample | None = None,
    seed: int = 0,
) -> dict[str, str]:
    """Run the contract on an encoding.

    Args:
        factory: makes it; a class, a function, or a record of the catalog. It gets the shape keywords it takes.
        traits: what it claims; a record brings its own. None: claims are not checked.
        checks: names from `checks`; None: all that are quick.
        positions: ``sample(batch, seq, generator) -> Positions``, for encodings of other domains than those known.
        seed: of everything random.

    Returns:
        The checks that do not apply, each with the reason.

    Raises:
        ContractError: at the first check that fails.
    """
    tested = subject(factory, traits, positions=positions, seed=seed)
    out = {}
    for name in CHECKS if checks is None else checks:
        if name not in CHECKS:
            raise ConfigError(f"no check is called {name!r}; there are {', '.join(CHECKS)}")
        if checks is None and name in SLOW:
            continue
        try:
            CHECKS[name](tested)
        except Excluded as reason:
            out[name] = str(reason)
        except ContractError as failure:
            raise ContractError(f"{tested.name} breaks {name!r}: {failure}") from failure
        except Exception as problem:
            raise ContractError(f"{tested.name} breaks {name!r}: {_said(problem)}") from problem
    return out


def _said(problem: BaseException) -> str:
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text[:500]}"


def require(true: bool, case: str, expected: str, got: object) -> None:
    """Fail unless true."""
    if not true:
        raise ContractError(f"{case}: expected {expected}; got {got}")


def error_of(got: Tensor, want: Tensor) -> float:
    """Largest absolute difference; infinite for another shape or where one is not finite."""
    if got.shape != want.shape:
        return math.inf
    if got.numel() == 0:
        return 0.0
    difference = (got.detach().double() - want.detach().double()).abs()
    return math.inf if bool(difference.isnan().any()) else float(difference.max())


def agree(got: Tensor, want: Tensor, tolerance: float, case: str, expected: str) -> None:
    """Fail unless two tensors agree."""
    error = error_of(got, want)
    shapes = "" if got.shape == want.shape else f" (shapes {tuple(got.shape)} and {tuple(want.shape)})"
    require(error <= tolerance, case, f"{expected} to within {tolerance:.0e}", f"a difference of {error:.3g}{shapes}")


def identical(got: Tensor, want: Tensor, case: str, expected: str) -> None:
    """Fail unless two tensors are equal bit for bit."""
    require(
        got.dtype == want.dtype and torch.equal(got, want), case, f"{expected}, bit for bit",
        f"{got.dtype} against {want.dtype}, a difference of {error_of(got, want):.3g}",
    )  # fmt: skip


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the warnings of compilers to themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def only(positions: Positions, row: int, index: Tensor) -> Positions:
    """Return some tokens of one row as a sequence of their own, without padding or documents."""
    tokens = positions.key.select(torch.tensor([row])).take(index)
    columns = {n: c for n, c in tokens.columns.items() if n not in ("valid", "document")}
    return Positions(Tokens(columns, tokens.sequence))


@contextlib.contextmanager
def _as_failure(case: str, expected: str) -> Iterator[None]:
    """Report whatever a tool of torch raises as what came of a case."""
    try:
        yield
    except Exception as problem:
        raise ContractError(f"{case}: expected {expected}; got {_said(problem)}") from problem


def at(positions: Positions, position: Tensor) -> Positions:
    """Return the same tokens elsewhere."""
    return positions.map_sides(lambda t: Tokens({**t.columns, "position": position.expand_as(t.position)}, t.sequence))


def shifted(positions: Positions, by: float) -> Positions:
    """Return the same tokens, all moved by the same distance on every axis, in a world that is turned and moved."""
    world = torch.eye(4, dtype=torch.float64)
    world[:2, :2] = torch.tensor([[math.cos(by), -math.sin(by)], [math.sin(by), math.cos(by)]])
    world[:3, 3] = torch.tensor([0.3, -0.7, 0.1])

    def move(t: Tokens) -> Tokens:
        columns = {**t.columns, "position": t.position + by}
        if "extrinsics" in columns:  # world to camera
            columns["extrinsics"] = columns["extrinsics"] @ world
        return Tokens(columns, t.sequence)

    return positions.map_sides(move)


# ---- the contract: one and the same problem --------------------------------------------------------------------------


@check
def check_backends(s: Subject) -> None:
    """Every backend that takes a problem gives what the dense one gives in float64."""
    for causal in s.causals:
        for length in (MEDIUM, LONG):
            layer = s.layer()
            x, positions = s.x(length), s.positions(layer.encoding, length)
            want = layer(x, positions, causal)
            _backends(layer.encoding(layer.problem(x, positions, causal)), want, SAME, f"float64, {causal=}, {length=}")
            single = copy.deepcopy(layer).float()
            problem = single.encoding(single.problem(x.float(), positions, causal))
            _backends(problem, want, SINGLE, f"float32, {causal=}, {length=}", dense_too=True)


def _backends(problem: Problem, want: Tensor, tolerance: float, case: str, dense_too: bool = False) -> None:
    for name in ("auto", *_able(problem)):
        if name != "dense" or dense_too:
            agree(attend(problem, name), want, tolerance, f"backend {name}, {case}", "the dense result in float64")


def _able(problem: Problem) -> list[str]:
    """Names of the backends that take a problem; flex compiles on a CPU, and is checked apart."""
    return [
        b.name
        for b in BACKENDS
        if b.name != "flex" and all(b.why_not(leaf, Request()) is None for leaf in leaves(problem))
    ]


@slow
def check_flex(s: Subject) -> None:
    """The flex backend, where it takes the problem."""
    layer = s.layer(torch.float32)
    length, causal = LONG, s.causals[0]
    x, positions = s.x(length), s.positions(layer.encoding, length)
    problem = layer.encoding(layer.problem(x.float(), positions, causal))
    flex = next(b for b in BACKENDS if b.name == "flex")
    for leaf in leaves(problem):
        if (why := flex.why_not(leaf, Request())) is not None:
            raise Excluded(f"flex cannot run it: {why}")
    with quiet():
        got = attend(problem, "flex")
    agree(got, attend(problem, "dense"), SINGLE, "flex, float32", "the dense result")


@check
def check_result(s: Subject) -> None:
    """Outputs have the dtype, device and shape of q; inputs are left as they were; a second run gives the same."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        layer = s.layer(dtype)
        for causal in s.causals:
            p = s.problem(layer.encoding, MEDIUM, causal)
            p = p.replace(q=p.q.to(dtype), k=p.k.to(dtype), v=p.v.to(dtype), x=None if p.x is None else p.x.to(dtype))
            before = [t.clone() for t in (p.q, p.k, p.v, p.x, p.where.key.position)]  # type: ignore[union-attr]
            encoded = layer.encoding(p)
            for leaf in leaves(encoded):
                kinds = {leaf.q.dtype, leaf.k.dtype, leaf.v.dtype}
                require(kinds == {dtype}, f"{dtype}", "encoded q, k and v in the dtype that came in", kinds)
            out = attend(encoded)
            require(out.dtype == dtype, f"{dtype}", "an output in the dtype of q", out.dtype)
            require(out.shape == p.q.shape, f"{dtype}", f"an output of shape {tuple(p.q.shape)}", tuple(out.shape))
            require(bool(out.isfinite().all()), f"{dtype}", "finite outputs", "NaN or infinity")
            for old, new in zip(before, (p.q, p.k, p.v, p.x, p.where.key.position), strict=True):
                require(
                    torch.equal(old, cast("Tensor", new)), f"{dtype}", "inputs left as they were", "a change in place"
                )
            identical(attend(layer.encoding(p)), out, f"{dtype}, second run", "the same result")


@check
def check_memory(s: Subject) -> None:
    """A result depends on the request alone: not on longer ones before it, nor on who used the positions first."""
    layer = s.layer()
    causal = s.causals[0]
    x, positions = s.x(MEDIUM), s.positions(layer.encoding, MEDIUM)
    want = layer(x, positions, causal)
    layer(s.x(LONG), s.positions(layer.encoding, LONG, salt=1), causal)
    identical(layer(x, positions, causal), want, "short, long, short again", "the result of the first short one")
    fresh = s.positions(layer.encoding, MEDIUM)
    with torch.inference_mode():
        layer(x, fresh, causal)
    low = copy.deepcopy(layer).bfloat16()
    low(x.bfloat16(), fresh, causal)
    leaf = x.clone().requires_grad_()
    out = layer(leaf, fresh, causal)
    identical(out.detach(), want, "positions used in inference mode and in bfloat16 before", "the same result")
    out.sum().backward()
    require(leaf.grad is not None, "positions used in inference mode before", "gradients", "none")


@check
def check_nothing_captured(s: Subject) -> None:
    """Terms, masks, products and finishers hold no tensors: what they read, they declare."""
    encoding = s.encoding()
    for causal in s.causals:
        for leaf in leaves(encoding(s.problem(encoding, MEDIUM, causal))):
            parts: list[Any] = [*leaf.terms, *leaf.masks, *leaf.finish]
            parts += [b.where for b in leaf.branches if b.where is not None]
            parts += [leaf.product] if leaf.product is not None else []
            for part in parts:
                for fn in (part.fn, getattr(part, "factors", None)):
                    held = _held(fn)
                    require(
                        held is None, f"{type(part).__name__} {getattr(fn, '__qualname__', fn)}",
                        "a pure function of its declared inputs", f"a tensor captured as {held!r}",
                    )  # fmt: skip


def _held(fn: Any, depth: int = 4) -> str | None:
    """Name of a tensor that a function holds through its closure, defaults or partial arguments."""
    if fn is None or depth == 0:
        return None
    found: list[tuple[str, Any]] = []
    if isinstance(fn, functools.partial):
        found += [(f"argument {i}", a) for i, a in enumerate(fn.args)] + list(fn.keywords.items()) + [("func", fn.func)]
    plain = getattr(fn, "__func__", fn)
    if inspect.isfunction(plain):
        names = plain.__code__.co_freevars
        for name, cell in zip(names, plain.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty cell
                found.append((name, cell.cell_contents))
        found += [(f"default {i}", d) for i, d in enumerate(plain.__defaults__ or ())]
    for name, value in found:
        values = value if isinstance(value, tuple | list) else value.values() if isinstance(value, dict) else [value]
        for one in values:
            if isinstance(one, Tensor):
                return name
            if (callable(one) and not isinstance(one, type | nn.Module)) and (deeper := _held(one, depth - 1)):
                return f"{name}.{deeper}"
    return None


@check
def check_grouped_heads(s: Subject) -> None:
    """Key heads shared by query heads give what repeated key heads give."""
    shared = s.encoding()
    for causal in s.causals:
        p = s.problem(shared, LONG, causal)
        want = attend(shared(p), "dense")
        for backend in _able(shared(p)):
            agree(attend(shared(p), backend), want, SAME, f"{backend}, {causal=}", "the dense result")
        if "num_kv_heads" in _takes(s):
            continue  # made for a number of key heads: the repeated problem is another encoding's
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (p.k, p.v))
        for backend in ("dense", "auto"):
            got = attend(shared(Attention(p.q, k, v, p.positions, causal=causal, x=p.x)), backend)
            agree(got, want, SAME, f"key heads repeated, {backend}, {causal=}", "the result of shared ones")


def _takes(s: Subject) -> set[str]:
    """Shape keywords the factory takes."""
    record = getattr(s.factory, "__self__", None)
    factory = record.load() if isinstance(record, Record) else inspect.unwrap(s.factory)
    return {p for p in inspect.signature(factory).parameters if p in SHAPE_KEYWORDS}


@check
def check_strides(s: Subject) -> None:
    """Transposed, sliced and expanded inputs give what contiguous ones give."""
    encoding = s.encoding()
    for causal in s.causals:
        p = s.problem(encoding, MEDIUM, causal)
        one = p.replace(k=p.k[:, :1].expand_as(p.k), v=p.v[:, :1].expand_as(p.v))
        for case, change in (
            ("laid out as (batch, seq, heads, head_dim)", lambda t: t.transpose(1, 2).contiguous().transpose(1, 2)),
            ("every other channel of a wider tensor", lambda t: t.repeat_interleave(2, -1)[..., ::2]),
        ):
            strided = p.replace(q=change(p.q), k=change(p.k), v=change(p.v))
            for backend in ("dense", "auto"):
                got = attend(encoding(strided), backend)
                agree(got, attend(encoding(p), "dense"), SAME, f"{case}, {backend}", "the result of contiguous inputs")
        solid = one.replace(k=one.k.contiguous(), v=one.v.contiguous())
        agree(attend(encoding(one)), attend(encoding(solid), "dense"), SAME, "expanded heads", "the result of copies")


@check
def check_short(s: Subject) -> None:
    """A single token and an empty sequence are problems like others."""
    layer = s.layer()
    for causal in s.causals:
        positions = s.positions(layer.encoding, MEDIUM)
        for backend in ("dense", "auto"):
            one = layer(s.x(MEDIUM)[:, :1], positions.slice(0, 1), causal, backend)
            require(bool(one.isfinite().all()), f"one token, {backend}", "finite outputs", "NaN or infinity")
            if causal:
                whole = layer(s.x(MEDIUM), positions, causal, backend)
                agree(one, whole[:, :, :1], SAME, f"one token, {backend}", "the first of many")
            none = layer(s.x(MEDIUM)[:, :0], positions.slice(0, 0), causal, backend)
            shape = (BATCH, HEADS, 0, HEAD_DIM)
            require(none.shape == shape, f"no token, {backend}", f"an output of shape {shape}", tuple(none.shape))


# ---- rows, padding, documents ----------------------------------------------------------------------------------------


@check
def check_batch(s: Subject) -> None:
    """Rows of a batch are independent: each alone, and in another order."""
    layer = s.layer()
    for causal in s.causals:
        for backend in ("dense", "auto"):
            x, positions = s.x(LONG), s.positions(layer.encoding, LONG)
            together = layer(x, positions, causal, backend)
            for row in range(BATCH):
                pick = torch.tensor([row])
                got = layer(x[pick], positions.select(pick), causal, backend)
                agree(got, together[pick], SAME, f"row {row} alone, {causal=}, {backend}", "its result in the batch")
            order = torch.tensor([2, 0, 1])
            got = layer(x[order], positions.select(order), causal, backend)
            agree(got, together[order], SAME, f"rows in another order, {causal=}, {backend}", "the same, reordered")
            common = positions.select(torch.tensor([0]))
            got = layer(x, common, causal, backend)
            first = layer(x[:1], common, causal, backend)
            agree(got[:1], first, SAME, f"positions of one row for all, {causal=}, {backend}", "each row at them")
            expanded = positions.map_sides(lambda t: _repeated(t.select(torch.tensor([0]))))
            want = layer(x, expanded, causal, backend)
            agree(got, want, SAME, f"positions of one row for all, {causal=}, {backend}", "the same as repeated ones")


def _repeated(t: Tokens) -> Tokens:
    columns = {n: c.expand(BATCH, *c.shape[1:]) for n, c in t.columns.items()}
    return Tokens(columns, t.sequence)


@check
def check_padding(s: Subject) -> None:
    """A row with padding on the left, the right or in the middle gives what its real tokens give alone."""
    layer = s.layer()
    for causal in s.causals:
        for backend in ("dense", "auto"):
            valid = torch.ones(BATCH, LONG, dtype=torch.bool)
            valid[0, :11] = False
            valid[1, 30:] = False
            valid[2, 5:9] = valid[2, 20:31] = False
            positions = _with_padding(s, layer.encoding, valid)
            out = layer(s.x(LONG), positions, causal, backend)
            require(bool(out.isfinite().all()), f"padded, {backend}", "finite outputs", "NaN or infinity")
            for row, where in enumerate(("left", "right", "middle")):
                index = valid[row].nonzero()[:, 0]
                alone = only(positions, row, index)
                _counted(s, alone, f"padding on the {where}")
                want = layer(s.x(LONG)[row : row + 1, index], alone, causal, backend)
                case = f"padding on the {where}, {causal=}, {backend}"
                agree(out[row : row + 1, :, index], want, SAME, case, "what the tokens give alone")


def _with_padding(s: Subject, encoding: Encoding, valid: Tensor) -> Positions:
    if s.sequence:
        return s.draw(encoding, Positions.arange(valid.shape[1], valid=valid))
    positions = s.sample(valid.shape[0], valid.shape[1], s.generator(5))
    return s.draw(encoding, positions.map_sides(lambda t: t.with_columns(valid=valid)))


def _counted(s: Subject, positions: Positions, case: str) -> None:
    if s.sequence:
        there = positions.key.position[0]
        require(torch.equal(there, torch.arange(len(there))), case, "positions counted from 0", there.tolist())


@check
def check_packing(s: Subject) -> None:
    """Documents packed into one row give what each gives alone."""
    layer = s.layer()
    ids, positions = _packed(s, layer.encoding)
    for causal in s.causals:
        for backend in ("dense", "auto"):
            out = layer(s.x(LONG), positions, causal, backend)
            for row in range(BATCH):
                for document in ids[row].unique().tolist():
                    index = (ids[row] == document).nonzero()[:, 0]
                    alone = only(positions, row, index)
                    _counted(s, alone, f"document {document}")
                    want = layer(s.x(LONG)[row : row + 1, index], alone, causal, backend)
                    case = f"document {document} of row {row}, {causal=}, {backend}"
                    agree(out[row : row + 1, :, index], want, SAME, case, "what the document gives alone")


def _packed(s: Subject, encoding: Encoding) -> tuple[Tensor, Positions]:
    ids = torch.zeros(BATCH, LONG, dtype=torch.long)
    for row, cuts in enumerate(((10, 15), (1, 30), (18, 36))):
        for cut in cuts:
            ids[row, cut:] += 1
    if s.sequence:
        return ids, s.draw(encoding, Positions.arange(LONG, document_ids=ids))
    positions = s.sample(BATCH, LONG, s.generator(5))
    return ids, s.draw(encoding, positions.map_sides(lambda t: t.with_columns(document=ids)))


# ---- decoding --------------------------------------------------------------------------------------------------------


@check
def check_decoding(s: Subject) -> None:
    """Through a cache, a token at a time or in ragged chunks: the full pass."""
    if True not in s.causals:
        raise Excluded("traits.causal is 'never': there is nothing to decode")
    claimed = s.traits is None or s.traits.streamable
    layer = s.layer()
    x, positions = s.x(LONG), s.positions(layer.encoding, LONG)
    for backend in ("dense", "auto"):
        want = layer(x, positions, backend=backend)
        for case, chunks in (
            ("a token at a time", [1] * LONG),
            ("ragged chunks", [5, 1, 19, 2, 10]),
            ("prefill, then tokens", [LONG - 6, *[1] * 6]),
        ):
            try:
                got = layer.stream(x, positions, chunks, backend=backend)
            except (Refusal, CacheError) as why:
                if claimed:
                    raise
                raise Excluded(f"it refuses to stream: {why}") from None
            agree(got, want, SAME, f"{case}, {backend}", "the full pass")


@check
def check_decoding_counted(s: Subject) -> None:
    """A cache that counts by itself continues where the tokens ended, past padding and inside the last document."""
    s.streams()
    if not s.sequence:
        raise Excluded("positions of this domain do not follow from those before")
    layer = s.layer()
    x, first = s.x(LONG), LONG - 7
    chunks = [first, 1, 1, 3, 2]
    cache = KVCache(layer.encoding)
    got = layer.stream(x, None, chunks, cache)
    seen = Positions(cast("Tokens", cache.tokens))
    identical(seen.key.position, torch.arange(LONG).expand_as(seen.key.position), "counted", "positions 0, 1, 2, ...")
    agree(got, layer(x, seen), SAME, "counted from 0", "the full pass")

    valid = torch.ones(BATCH, first, dtype=torch.bool)
    valid[0, :11] = valid[1, 17:] = valid[2, 3:8] = False
    cache = KVCache(layer.encoding)
    prefill = layer.stream(x[:, :first], s.draw(layer.encoding, Positions.arange(first, valid=valid)), [first], cache)
    rest = layer.stream(x[:, first:], None, chunks[1:], cache)
    seen = Positions(cast("Tokens", cache.tokens))
    for row, where in enumerate(("left", "right", "middle")):
        index = seen.key.column("valid").expand(BATCH, -1)[row].nonzero()[:, 0]
        alone = only(seen, row, index)
        _counted(s, alone, f"padding on the {where}")
        want = layer(x[row : row + 1, index], alone)
        got = torch.cat([prefill, rest], 2)[row : row + 1, :, index]
        agree(got, want, SAME, f"padding on the {where}, then tokens", "the row alone")

    ids, packed = _packed(s, layer.encoding)
    cache = KVCache(layer.encoding)
    layer.stream(x, packed, [12, LONG - 12], cache)
    more = s.x(3, salt=9)
    got = layer.stream(more, None, [1, 2], cache)
    seen = Positions(cast("Tokens", cache.tokens))
    for row in range(BATCH):
        last = (ids[row] == ids[row, -1]).nonzero()[:, 0]
        alone = only(seen, row, torch.cat([last, torch.arange(LONG, LONG + 3)]))
        _counted(s, alone, "the last document goes on")
        want = layer(torch.cat([x[row : row + 1, last], more[row : row + 1]], 1), alone)[:, :, -3:]
        agree(got[row : row + 1], want, SAME, f"row {row}: tokens after packed documents", "the last document alone")


@check
def check_decoding_padded(s: Subject) -> None:
    """Padding and documents given chunk by chunk."""
    s.streams()
    layer = s.layer()
    valid = torch.ones(BATCH, LONG, dtype=torch.bool)
    valid[0, :11] = valid[1, 14:22] = False
    padded = _with_padding(s, layer.encoding, valid)
    packed = _packed(s, layer.encoding)[1]
    for case, positions in (("padding", padded), ("documents", packed)):
        got = layer.stream(s.x(LONG), positions, [6, 14, 1, 1, 15])
        real = valid if case == "padding" else torch.ones_like(valid)
        want = layer(s.x(LONG), positions)
        mask = real[:, None, :, None]
        agree(got * mask, want * mask, SAME, f"{case} in chunks", "the full pass")


@check
def check_layers(s: Subject) -> None:
    """Two layers over one cache: each decodes as it computes."""
    s.streams()
    one = s.layer()
    encodings = [one.encoding.layer(i) for i in range(2)]
    layers = []
    for encoding in encodings:
        other = copy.copy(one)
        other._modules = {**one._modules, "encoding": encoding}
        layers.append(other)
    x, positions = s.x(LONG), s.sample(BATCH, LONG, s.generator(4, 0))
    for encoding in encodings:
        positions = s.draw(encoding, positions)
    cache = KVCache(encodings)
    out: list[list[Tensor]] = [[], []]
    done = 0
    for n in (9, 1, LONG - 10):
        now = cache.step(positions.slice(done, done + n))
        for i, other in enumerate(layers):
            out[i].append(attend(cache[i].extend(other.problem(x[:, done : done + n], now)), "auto"))
        done += n
    for i, other in enumerate(layers):
        agree(torch.cat(out[i], 2), other(x, positions), SAME, f"layer {i} of 2", "the full pass")


@check
def check_stored(s: Subject) -> None:
    """What a cache keeps does not depend on how the tokens were cut into chunks."""
    s.streams()
    layer = s.layer()
    x, positions = s.x(LONG), s.positions(layer.encoding, LONG)
    whole, parts = KVCache(layer.encoding), KVCache(layer.encoding)
    layer.stream(x, positions, [LONG], whole)
    layer.stream(x, positions, [3, 20, 1, 13], parts)
    for a, b in zip(whole[0].stored, parts[0].stored, strict=True):
        agree(b.k, a.k, SAME, "keys", "those of one pass")
        agree(b.v, a.v, SAME, "values", "those of one pass")
        require(a.features.keys() == b.features.keys(), "features", str(sorted(a.features)), sorted(b.features))
        for name in a.features:
            agree(
                b.features[name].expand_as(a.features[name]),
                a.features[name],
                SAME,
                f"feature {name}",
                "that of one pass",
            )


@check
def check_snapshot(s: Subject) -> None:
    """Back to a snapshot, and on with other tokens: as if the first had never come."""
    s.streams()
    layer = s.layer()
    x, other, positions = s.x(LONG), s.x(LONG, salt=5), s.positions(layer.encoding, LONG)
    cut = 20
    cache = KVCache(layer.encoding)
    layer.stream(x[:, :cut], positions.slice(0, cut), [cut], cache)
    kept = cache.snapshot()
    tail = positions.slice(cut)
    layer.stream(other[:, cut:], tail, [9, LONG - cut - 9], cache)
    cache.restore(kept)
    got = layer.stream(x[:, cut:], tail, [4, LONG - cut - 4], cache)
    agree(got, layer(x, positions)[:, :, cut:], SAME, "snapshot, draft, restore", "the full pass")


@check
def check_beams(s: Subject) -> None:
    """Rows of a cache chosen, repeated and reordered go on as those rows would."""
    s.streams()
    layer = s.layer()
    positions = s.positions(layer.encoding, LONG)
    x, cut = s.x(LONG), 20
    for rows in ([1, 1, 0, 2], [2], [0, 1]):
        pick = torch.tensor(rows)
        cache = KVCache(layer.encoding)
        layer.stream(x[:, :cut], positions.slice(0, cut), [cut], cache)
        cache.select(rows)
        after = positions.select(pick)
        got = layer.stream(x[pick, cut:], after.slice(cut), [1, LONG - cut - 1], cache)
        agree(got, layer(x[pick], after)[:, :, cut:], SAME, f"rows {rows}", "a fresh run of these rows")


@check
def check_crop(s: Subject) -> None:
    """A cache cropped to its first tokens goes on as if the others had never come, or refuses."""
    s.streams()
    layer = s.layer()
    x, positions = s.x(LONG), s.positions(layer.encoding, LONG)
    cache = KVCache(layer.encoding)
    layer.stream(s.x(LONG, salt=5), positions, [LONG], cache)
    cache.crop(0)
    agree(layer.stream(x, positions, [LONG], cache), layer(x, positions), SAME, "crop(0)", "a fresh run")
    cut = 20
    try:
        cache.crop(cut)
    except (CannotCrop, CacheError) as why:
        require(len(str(why)) > 20, "crop", "a refusal that says why", repr(str(why)))
        return
    got = layer.stream(x[:, cut:], positions.slice(cut), [1, LONG - cut - 1], cache)
    agree(got, layer(x, positions)[:, :, cut:], SAME, f"crop({cut})", "the full pass")


@check
def check_edit(s: Subject) -> None:
    """Tokens dropped from a cache, and the others moved: a fresh cache of what is left, or a refusal."""
    s.streams()
    layer = s.layer()
    x, positions = s.x(LONG), s.positions(layer.encoding, LONG)
    keep = torch.tensor([0, 1, 2, 3, *range(11, 30)])
    moved = at(positions.slice(0, len(keep)), positions.key.position[:, : len(keep)])
    if not s.sequence:
        moved = s.positions(layer.encoding, len(keep), salt=1)
    first, tail = 30, positions.slice(30)
    refused = []
    for case, new in (("tokens dropped", None), ("tokens dropped and the others moved", moved)):
        cache = KVCache(layer.encoding)
        layer.stream(x[:, :first], positions.slice(0, first), [first], cache)
        try:
            cache.edit(keep, new)
        except (Refusal, CacheError) as why:
            require(len(str(why)) > 20, case, "a refusal that says why", repr(str(why)))
            refused.append(str(why))
            continue
        got = layer.stream(x[:, first:], tail, [1, LONG - first - 1], cache)
        fresh = KVCache(layer.encoding)
        start = Positions(positions.key.take(keep)) if new is None else new
        layer.stream(x[:, keep], start, [len(keep)], fresh)
        want = layer.stream(x[:, first:], tail, [1, LONG - first - 1], fresh)
        agree(got, want, SHIFTED, case, "a fresh cache of the kept tokens")
    if len(refused) == 2:
        raise Excluded(f"it refuses to edit: {refused[0]}")


# ---- rewriting commutes with taking parts ----------------------------------------------------------------------------


@check
def check_parts(s: Subject) -> None:
    """Taking rows or queries of the encoded problem takes them of the result."""
    encoding = s.encoding()
    rows, queries = torch.tensor([2, 0, 0]), torch.tensor([0, 3, 4, 12, 36])
    for causal in s.causals:
        for length in (LONG, MEDIUM):
            index = queries[queries < length]
            encoded = encoding(s.problem(encoding, length, causal))
            whole = attend(encoded, "dense")
            coupled = any(leaf.product is not None and leaf.product.rows_coupled for leaf in leaves(encoded))
            picked = encoded.select_rows(rows)
            for backend in ("dense", "auto"):
                case = f"{causal=}, {length=}, {backend}"
                agree(attend(picked, backend), whole[rows], SAME, f"rows, {case}", "those rows of the result")
                if not coupled:
                    got = attend(encoded.select_queries(index), backend)
                    agree(got, whole[:, :, index], SAME, f"queries, {case}", "those queries of the result")
                    got = attend(picked.select_queries(index), backend)
                    agree(got, whole[rows][:, :, index], SAME, f"rows and queries, {case}", "the same of the result")


@check
def check_queries_apart(s: Subject) -> None:
    """Some queries against all keys, as a problem of its own: those rows of the whole, or a refusal."""
    encoding = s.encoding()
    refused = ""
    for causal in s.causals:
        p = s.problem(encoding, LONG, causal)
        whole = attend(encoding(p), "dense")
        for case, index in (
            ("the last queries", torch.arange(LONG - 5, LONG)),
            ("some", torch.tensor([3, 11, 12, 30])),
        ):
            where = p.where.take_queries(index)
            x = cast("Tensor", p.x)
            part = Attention(p.q[:, :, index], p.k, p.v, where, causal=causal, x=x[:, index], x_kv=x)
            try:
                encoded = encoding(part)
            except RopewalkError as why:
                refused = str(why)
                continue
            for backend in ("dense", "auto"):
                agree(
                    attend(encoded, backend), whole[:, :, index], SAME, f"{case}, {causal=}, {backend}", "those of all"
                )
    if refused:
        raise Excluded(f"it refuses queries without all keys: {refused}")


@check
def check_heads_permuted(s: Subject) -> None:
    """Where all heads are treated alike, heads in another order give outputs in that order."""
    encoding = s.encoding(num_kv_heads=HEADS)
    order = torch.tensor([2, 0, 3, 1])
    for causal in s.causals:
        p = s.problem(encoding, MEDIUM, causal, kv_heads=HEADS)
        alike = p.replace(q=p.q[:, :1].expand_as(p.q), k=p.k[:, :1].expand_as(p.k), v=p.v[:, :1].expand_as(p.v))
        out = attend(encoding(alike), "dense")
        if error_of(out, out[:, :1].expand_as(out)) > SAME:
            raise Excluded("heads differ by design: equal heads give different outputs")
        got = attend(encoding(p.replace(q=p.q[:, order], k=p.k[:, order], v=p.v[:, order])), "dense")
        agree(got, attend(encoding(p), "dense")[:, order], SAME, f"{causal=}", "outputs in the same other order")


@check
def check_masks(s: Subject) -> None:
    """Rows that may see nothing give zeros and finite gradients; windows, soft caps and sinks are right or refused."""
    encoding = s.encoding()
    for causal in s.causals:
        length = LONG
        mask = torch.rand(length, length, generator=s.generator(6)) < 0.6
        mask[0] = mask[5] = mask[-1] = False
        heads = torch.rand(BATCH, HEADS, length, length, generator=s.generator(7)) < 0.6
        heads[1, 2] = False
        for case, given in (("a mask", mask), ("a mask a head", heads)):
            p = s.problem(encoding, length, causal, mask=given)
            seen = given & torch.ones(length, length, dtype=torch.bool).tril() if causal else given
            blank = ~seen.any(-1).expand(BATCH, HEADS, length)
            q, k, v, x = (cast("Tensor", t).clone().requires_grad_() for t in (p.q, p.k, p.v, p.x))
            p = p.replace(q=q, k=k, v=v, x=x)
            encoded = encoding(p)
            want = attend(encoded, "dense")
            for backend in ("dense", *_able(encoded)):
                out = attend(encoded, backend)
                require(
                    bool((out[blank] == 0).all()), f"{case}, {backend}, {causal=}", "zeros where nothing may be seen",
                    f"values up to {float(out[blank].detach().abs().max()):.3g}",
                )  # fmt: skip
                agree(out, want, SAME, f"{case}, {backend}, {causal=}", "the dense result")
                grads = torch.autograd.grad(out.square().sum(), (q, k, v, x), retain_graph=True, allow_unused=True)
                finite = all(bool(g.isfinite().all()) for g in grads if g is not None)
                require(finite, f"{case}, {backend}, {causal=}", "finite gradients", "NaN or infinity")
        _options(s, encoding, causal)


def _options(s: Subject, encoding: Encoding, causal: bool) -> None:
    length = LONG
    gap = torch.arange(length)[:, None] - torch.arange(length)
    sinks = torch.randn(HEADS, generator=s.generator(8), dtype=torch.float64)
    plain = attend(encoding(s.problem(encoding, length, causal)), "dense")
    cases: tuple[tuple[str, dict[str, Any], dict[str, Any] | None], ...] = (
        ("window=5", {"window": 5}, {"mask": gap.abs() < 5}),
        ("softcap=2", {"softcap": 2.0}, None),
        ("softcap=1e9", {"softcap": 1e9}, {}),
        ("sinks", {"sinks": sinks}, None),
        ("sinks of -1e4", {"sinks": torch.full_like(sinks, -1e4)}, {}),
    )
    for case, options, same in cases:
        case = f"{case}, {causal=}"
        try:
            encoded = encoding(s.problem(encoding, length, causal, **options))
            out = attend(encoded, "dense")
        except RopewalkError:
            continue
        require(bool(out.isfinite().all()), case, "finite outputs", "NaN or infinity")
        for backend in ("auto", *_able(encoded)):
            agree(attend(encoded, backend), out, SAME, f"{case}, {backend}", "the dense result")
        if same is not None:
            again = s.problem(encoding, length, causal, **same)
            agree(out, attend(encoding(again), "dense"), SHIFTED, case, f"the result with {sorted(same) or 'nothing'}")
        else:
            require(error_of(out, plain) > DIFFERENT, case, "another result than without", "the same")


# ---- numbers ---------------------------------------------------------------------------------------------------------


@check
def check_low_precision(s: Subject) -> None:
    """In a model's dtype, results are near those of float64 from the same rounded inputs, at any position."""
    starts = [n for n in (0, 10**6, 10**7) if n + LONG <= s.limit]
    strides = [n for n in (1, 4099, 270_001) if n * LONG <= s.limit]
    cases = [(f"positions from {n}", n, 1) for n in starts] + [(f"{n} apart", 0, n) for n in strides[1:]]
    for dtype, tolerance in LOW.items():
        exact, encoding = s.encoding(), s.encoding(dtype=torch.float32).to(dtype)
        for causal in s.causals:
            for case, start, stride in cases if s.sequence else [("sampled", 0, 0)]:
                p = s.problem(encoding, LONG, causal)
                if s.sequence:
                    p = p.replace(positions=s.draw(encoding, Positions(start + stride * torch.arange(LONG))))
                low = [cast("Tensor", t).to(dtype) for t in (p.q, p.k, p.v, p.x)]
                try:
                    want = attend(exact(_like(p, [t.double() for t in low])), "dense")
                except PositionError:  # a bound on distances is no bound on positions
                    if stride <= 1:
                        raise
                    continue
                for backend in ("dense", "auto"):
                    got = attend(encoding(_like(p, low)), backend)
                    agree(got, want, tolerance, f"{dtype}, {case}, {causal=}, {backend}", "the float64 result")
                got = encoding.embed(low[3], p.positions)
                want = exact.embed(low[3].double(), p.positions)
                bound = (want.abs() * torch.finfo(dtype).eps + 1e-6).max().item()
                agree(got, want, bound, f"embed, {dtype}, {case}", "the float64 embedding, rounded once")


def _like(p: Attention, given: Sequence[Tensor]) -> Attention:
    q, k, v, x = given
    return p.replace(q=q, k=k, v=v, x=x)


@check
def check_casts(s: Subject) -> None:
    """A module cast to a lower or higher dtype and back gives what it gave, bit for bit; the lower one the same."""
    plain = s.encoding(dtype=torch.float32)
    causal = s.causals[0]
    positions = s.positions(plain, MEDIUM)
    if s.sequence and s.limit > 40_000:
        far = at(positions, positions.key.position * 1009)
        with contextlib.suppress(PositionError):  # a bound on distances
            plain(s.problem(plain, MEDIUM, causal, positions=far))
            positions = far

    def run(encoding: Encoding) -> list[Tensor]:
        p = s.problem(encoding, MEDIUM, causal, positions=positions)
        p = _like(p, [cast("Tensor", t).float() for t in (p.q, p.k, p.v, p.x)])
        encoded = leaves(encoding(p))
        sides = [t for leaf in encoded for t in (leaf.q, leaf.k, leaf.v, *leaf.qf.values(), *leaf.kf.values())]
        return [*sides, attend(encoding(p), "dense"), encoding.embed(cast("Tensor", p.x), positions)]

    want = run(plain)
    for case, cast_ in (
        (".to(bfloat16)", lambda m: m.to(torch.bfloat16)),
        (".half()", lambda m: m.half()),
        (".bfloat16().float()", lambda m: m.bfloat16().float()),
        (".double().float()", lambda m: m.double().float()),
        (".half().double().float()", lambda m: m.half().double().float()),
    ):
        holder = nn.ModuleList([copy.deepcopy(plain)])
        fresh = cast("Encoding", cast_(holder)[0])
        for got, kept in zip(run(fresh), want, strict=True):
            identical(got, kept, case, "the results of the float32 module")


@check
def check_autocast(s: Subject) -> None:
    """Autocast changes how attention is computed and nothing of how it is encoded."""
    encoding = s.encoding(dtype=torch.float32)
    for causal in s.causals:
        p = s.problem(encoding, MEDIUM, causal)
        p = _like(p, [cast("Tensor", t).float() for t in (p.q, p.k, p.v, p.x)])
        plain = leaves(encoding(p))
        with torch.autocast("cpu", torch.bfloat16):
            cast_ = encoding(p)
            attend(cast_)
            embedded = encoding.embed(cast("Tensor", p.x), p.positions)
        identical(embedded, encoding.embed(cast("Tensor", p.x), p.positions), "embed", "the same as without autocast")
        for a, b in zip(plain, leaves(cast_), strict=True):
            for name, old, new in (("q", a.q, b.q), ("k", a.k, b.k), ("v", a.v, b.v)):
                identical(new, old, f"{name}, {causal=}", "the same as without autocast")
            for side, old_f, new_f in (("query", a.qf, b.qf), ("key", a.kf, b.kf)):
                for name in old_f:
                    identical(new_f[name], old_f[name], f"{side} feature {name}", "the same as without autocast")


@check
def check_precision(s: Subject) -> None:
    """Rotary tables hold at positions up to 1e7, whatever the module was cast to; ids are told apart up to 2^53."""
    ids = torch.tensor([EXACT - 2, EXACT - 1])
    coordinates = Positions(ids).query.coordinates()
    require(bool(coordinates[0, 0] != coordinates[0, 1]), "ids 2^53 - 2 and 2^53 - 1", "two coordinates", "one")
    exact = s.encoding()
    found = False
    for name, module in exact.named_modules():
        if not isinstance(module, Rotary) or type(module).tables is not Rotary.tables or module.axes is not None:
            continue
        found = True
        module.fit(HEAD_DIM)
        for buffer, tensor in module.named_buffers():
            if tensor.is_floating_point() and buffer in module.__dict__.get("_derived", {}):
                require(tensor.dtype == torch.float64, f"{name}.{buffer}", "float64", tensor.dtype)
        top = int(min(s.limit, 10**7))
        spread = torch.randint(0, top + 1, (1, 200), generator=s.generator(9))
        tokens = Tokens.of(torch.cat([spread, torch.tensor([[0, 1, top - 1, top]])], 1))
        angles = module.angles(tokens.coordinates())
        require(angles.dtype == torch.float64, f"{name}.angles", "float64", angles.dtype)
        rounded = bool(angles.any()) and torch.equal(angles.float().double(), angles)
        require(
            not rounded, f"{name}.angles", "float64 products of position and frequency", "numbers rounded to float32"
        )
        angles = angles[:, None] if angles.ndim == 3 else angles
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            low = copy.deepcopy(module).float().to(dtype)
            kept = copy.deepcopy(module).float().double()
            reference = kept.angles(tokens.coordinates())
            reference = reference[:, None] if reference.ndim == 3 else reference
            cos, sin = low.tables(Tokens.of(tokens.position), (), torch.float32)
            for what, got, want in (("cos", cos, reference.cos()), ("sin", sin, reference.sin())):
                bound = TABLE * max(1.0, abs(module.magnitude))
                agree(got, want * module.magnitude, bound, f"{what} of a module in {dtype}", "float64 values")
    if not found:
        raise Excluded("no rotary tables; what there is was checked at large positions in 'low_precision'")


# ---- modules ---------------------------------------------------------------------------------------------------------


@check
def check_copies(s: Subject) -> None:
    """Copies, pickles and loaded state dicts are the same encoding; what can be derived is not in the state."""
    encoding = s.encoding()
    causal = s.causals[0]
    p = s.problem(encoding, MEDIUM, causal)

    def run(e: Encoding) -> Tensor:
        x = e.embed(cast("Tensor", p.x), p.positions)
        return torch.cat([attend(e(p), "dense").flatten(), x.flatten()])

    want = run(encoding)
    identical(run(copy.deepcopy(encoding)), want, "deepcopy", "the same result")
    identical(run(pickle.loads(pickle.dumps(encoding))), want, "pickle", "the same result")
    saved = io.BytesIO()
    torch.save(encoding.state_dict(), saved)
    saved.seek(0)
    state = torch.load(saved, weights_only=True)
    other = s.encoding(seed=1)
    other.load_state_dict(state, strict=True)
    identical(run(other), want, "state dict loaded into another", "the same result")
    for name, module in encoding.named_modules():
        derived = set(module.__dict__.get("_derived", {}))
        kept = set(module.state_dict()) & derived
        require(not kept, f"state dict of {name or 'the encoding'}", "nothing that is derived", sorted(kept))
        loose = module._non_persistent_buffers_set - derived
        require(
            not loose,
            f"buffers of {name or 'the encoding'}",
            "each in the state dict or made by `derive`",
            sorted(loose),
        )
    layers = [encoding.layer(i) for i in range(2)]
    mine, others = ({id(t) for t in one.parameters()} for one in layers)
    require(not mine & others, "layer(0) and layer(1)", "parameters of their own", "shared ones")
    if not _drawn(p.where):  # what is drawn may differ by layer
        for one in layers:
            identical(run(one), want, "layer(i)", "the same result")


@check
def check_meta(s: Subject) -> None:
    """Made on the meta device, brought to memory and loaded, it is the same encoding."""
    want, state = s.encoding(dtype=torch.float32), s.encoding(dtype=torch.float32).state_dict()
    shape = {"head_dim": HEAD_DIM, "num_heads": HEADS, "num_kv_heads": KV_HEADS, "hidden_size": HIDDEN}
    with torch.device("meta"):
        made = s.factory(**shape)
    kinds = {t.device.type for t in (*made.parameters(), *made.buffers())}
    require(kinds <= {"meta"}, "made under torch.device('meta')", "parameters and buffers there", sorted(kinds))
    strict = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(True)  # fills what nobody initialises with NaN
        made = made.to_empty(device="cpu")
    finally:
        torch.use_deterministic_algorithms(strict)
    made.load_state_dict(state)
    for causal in s.causals:
        p = s.problem(want, MEDIUM, causal)
        p = _like(p, [cast("Tensor", t).float() for t in (p.q, p.k, p.v, p.x)])
        identical(attend(made(p), "dense"), attend(want(p), "dense"), "to_empty, load_state_dict", "the same result")
        identical(
            made.embed(cast("Tensor", p.x), p.positions), want.embed(cast("Tensor", p.x), p.positions),
            "to_empty, load_state_dict: embed", "the same result",
        )  # fmt: skip


@check
def check_compile(s: Subject) -> None:
    """Compiles without breaks, in at most three graphs for five lengths."""
    layer = s.layer()
    graphs = 0

    def count(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        return graph.forward

    causal = s.causals[0]
    torch._dynamo.reset()
    try:
        with quiet():
            compiled = torch.compile(layer, fullgraph=True, backend=count)
            for length in (11, 17, 23, 31, 37):
                x, positions = s.x(length), s.positions(layer.encoding, length)
                with _as_failure(f"{length} tokens", "a graph without breaks"):
                    got = compiled(x, s.positions(layer.encoding, length), causal)
                agree(got, layer(x, positions, causal), SAME, f"{length} tokens", "the eager result")
    finally:
        torch._dynamo.reset()
    require(graphs <= 3, "lengths 11, 17, 23, 31, 37", "at most 3 graphs", graphs)


@slow
def check_inductor(s: Subject) -> None:
    """Compiled for real, with gradients."""
    layer = s.layer(torch.float32)
    causal = s.causals[0]
    torch._dynamo.reset()
    try:
        with quiet():
            compiled = torch.compile(layer, fullgraph=True)
            for length in (17, LONG):
                x = s.x(length).float().requires_grad_()
                got = compiled(x, s.positions(layer.encoding, length), causal)
                want = layer(x, s.positions(layer.encoding, length), causal)
                agree(got, want, SINGLE, f"{length} tokens", "the eager result")
                (a,), (b,) = (torch.autograd.grad(t.square().sum(), x) for t in (got, want))
                agree(a, b, SINGLE * max(1.0, float(b.abs().max())), f"{length} tokens, gradients", "the eager ones")
    finally:
        torch._dynamo.reset()


class _Exported(nn.Module):
    def __init__(self, layer: Layer, causal: bool) -> None:
        super().__init__()
        self.layer, self.causal = layer, causal

    def forward(self, x: Tensor) -> Tensor:
        """Count the tokens and run the layer."""
        positions = Positions.arange(x.shape[1], device=x.device)
        return self.layer(x, positions, self.causal)


@check
def check_export(s: Subject) -> None:
    """Exports with a dynamic length."""
    if not s.sequence:
        raise Excluded("positions of this domain are no function of the length")
    layer = s.layer()
    before = Positions.arange(MEDIUM)
    if _drawn(s.draw(layer.encoding, before)):
        raise Excluded("it draws at random")
    module = _Exported(layer, s.causals[0])
    length = torch.export.Dim("length", min=2, max=256)
    with quiet(), torch.no_grad():
        with _as_failure("a dynamic length", "a program"):
            program = torch.export.export(module, (s.x(MEDIUM),), dynamic_shapes=({1: length},))
        for n in (MEDIUM, LONG):
            agree(program.module()(s.x(n)), module(s.x(n)), SAME, f"exported, {n} tokens", "the eager result")


# ---- gradients -------------------------------------------------------------------------------------------------------


@check
def check_gradients(s: Subject) -> None:
    """Gradients are right for q, k, v, x and the parameters, and the same through every backend."""
    layer = s.layer()
    encoding = layer.encoding
    names = [n for n, _ in encoding.named_parameters()]
    parameters = list(encoding.parameters())
    for causal in s.causals:
        p = s.problem(encoding, 5, causal)
        positions = p.where
        given = [cast("Tensor", t)[:1].clone().requires_grad_() for t in (p.q, p.k, p.v, p.x)]
        one = positions.select(torch.tensor([0]))

        def run(*inputs: Tensor, one: Positions = one, causal: bool = causal) -> Tensor:
            q, k, v, x = inputs[:4]
            x = encoding.embed(x, one)
            out = attend(encoding(Attention(q, k, v, one, causal=causal, x=x)), "dense")
            return torch.cat([out.flatten(), x.flatten()])

        with _as_failure(f"gradcheck, {causal=}", "analytical gradients equal to numerical ones"):
            torch.autograd.gradcheck(run, (*given, *parameters), fast_mode=True, atol=1e-6, rtol=1e-4)

        x, longer = s.x(LONG).requires_grad_(), s.positions(encoding, LONG)
        weight = torch.randn(BATCH, HEADS, LONG, HEAD_DIM, generator=s.generator(10), dtype=torch.float64)
        grads = {}
        for backend in _able(encoding(layer.problem(x, longer, causal))):
            out = (layer(x, longer, causal, backend) * weight).sum()
            grads[backend] = torch.autograd.grad(out, [x, *parameters], allow_unused=True)
        for backend, got in grads.items():
            for name, g, want in zip(["x", *names], got, grads["dense"], strict=True):
                case = f"{name} through {backend}, {causal=}"
                require(g is not None and want is not None, case, "a gradient", "none")
                require(bool((g != 0).any()), case, "a gradient", "zeros")
                agree(g, want, 1e-8 * max(1.0, float(want.abs().max())), case, "the dense one")


# ---- combinators -----------------------------------------------------------------------------------------------------


@check
def check_combinators(s: Subject) -> None:
    """Alone in a Sequential, over all channels in a Partial, or dealt out to heads, it is what it was."""
    layer = s.layer()
    encoding = layer.encoding
    x, positions = s.x(LONG), s.positions(encoding, LONG)

    def around(outer: Encoding) -> Layer:
        other = copy.copy(layer)
        other._modules = {**layer._modules, "encoding": outer}
        return other

    for causal in s.causals:
        want = layer(x, positions, causal)
        for case, make in (
            ("Sequential(e)", lambda: Sequential(encoding)),
            ("Sequential(Sequential(e))", lambda: Sequential(Sequential(encoding))),
            ("Partial(e, head_dim)", lambda: Partial(encoding, HEAD_DIM)),
        ):
            try:
                outer = around(make())
                got = outer(x, positions, causal)
                agree(got, want, SAME, f"{case}, {causal=}", "what it gives by itself")
                if causal and (s.traits is None or s.traits.streamable):
                    got = outer.stream(x, positions, [9, 1, LONG - 10])
                    agree(got, want, SAME, f"{case}, in chunks", "what it gives by itself")
            except CannotCompose:
                require(case.startswith("Partial"), case, "no refusal", "CannotCompose")


@check
def check_per_head(s: Subject) -> None:
    """Dealt out to two groups of heads, each group gets what its encoding gives it alone, decoding too."""
    sizes: dict[str, Any] = {"num_heads": HEADS // 2, "num_kv_heads": KV_HEADS // 2}
    a, b = (s.encoding(seed=i, **sizes) for i in (0, 1))
    x = s.x(LONG)
    positions = s.positions(a, LONG)
    if error_of(a.embed(x, positions), x) > 0:
        try:
            outer = PerHead([a, b])
            got = outer.embed(x, positions)
        except RopewalkError:
            return
        require(
            error_of(got, x) > 0, "PerHead of embeddings", "a refusal, or embeddings", "embed does nothing, silently"
        )
        return
    outer = PerHead([a, b])
    half, kv = HEADS // 2, KV_HEADS // 2
    for causal in s.causals:
        p = s.problem(a, LONG, causal, positions=positions)
        apart = [
            attend(e(Attention(p.q[:, h], p.k[:, g], p.v[:, g], positions, causal=causal, x=p.x)), "dense")
            for e, h, g in ((a, slice(0, half), slice(0, kv)), (b, slice(half, None), slice(kv, None)))
        ]
        want = torch.cat(apart, 1)
        for backend in ("dense", "auto"):
            agree(attend(outer(p), backend), want, SAME, f"{causal=}, {backend}", "the two run apart")
        if causal and (s.traits is None or s.traits.streamable):
            cache, out, done = KVCache(outer), [], 0
            for n in (9, 1, LONG - 10):
                part = slice(done, done + n)
                now = cache.step(positions.slice(done, done + n))
                chunk = Attention(
                    p.q[:, :, part], p.k[:, :, part], p.v[:, :, part], now, x=cast("Tensor", p.x)[:, part]
                )
                out.append(attend(cache[0].extend(chunk), "dense"))
                done += n
            agree(torch.cat(out, 2), want, SAME, "in chunks", "the two run apart")


@check
def check_after_rope(s: Subject) -> None:
    """Composed with a rotation, before it or after it, it decodes as it computes, or refuses."""
    from ropewalk.rotary.rope import RoPE

    s.streams()
    layer = s.layer()
    x, positions = s.x(LONG), s.positions(layer.encoding, LONG)
    refused = []
    for case, outer in (
        ("Sequential(RoPE, e)", Sequential(RoPE(HEAD_DIM), layer.encoding)),
        ("Sequential(e, RoPE)", Sequential(layer.encoding, RoPE())),
    ):
        other = copy.copy(layer)
        other._modules = {**layer._modules, "encoding": outer}
        try:
            want = other(x, positions)
        except RopewalkError as why:
            refused.append(str(why))
            continue
        for backend in ("dense", "auto"):
            got = other.stream(x, positions, [9, 1, LONG - 10], backend=backend)
            agree(got, want, SAME, f"{case}, {backend}", "the full pass")
    if len(refused) == 2:
        raise Excluded(f"it refuses to be composed with RoPE: {refused[0]}")


# ---- claims ----------------------------------------------------------------------------------------------------------


def _claims(s: Subject) -> Traits:
    if s.traits is None:
        raise Excluded("nothing is claimed")
    return s.traits


def _claim(name: str, claimed: bool, errors: Mapping[str, float], tolerance: float, what: str) -> None:
    """Fail a claim that does not hold, and a property that holds everywhere and is not claimed."""
    case, worst = max(errors.items(), key=lambda item: item[1])
    if claimed:
        require(
            worst <= tolerance, f"traits.{name} is True; {case}", f"{what} to within {tolerance:.0e}",
            f"a difference of {worst:.3g}",
        )  # fmt: skip
    else:
        require(
            worst > tolerance,
            f"traits.{name} is False",
            f"a case where not: {what}",
            f"at most {worst:.3g} in {len(errors)}",
        )


@check
def check_relative(s: Subject) -> None:
    """Claim: all positions moved by the same distance change nothing."""
    traits = _claims(s)
    layer = s.layer()
    errors = {}
    for by in (1, 17, 1000.5):
        if (by != int(by) and not traits.real_positions) or by + LONG + 9 > s.limit:
            continue
        for causal in s.causals:
            for salt in range(2):
                x, positions = s.x(LONG, salt=salt), s.positions(layer.encoding, LONG, salt=salt)
                here, there = (layer(x, at_, causal) for at_ in (positions, shifted(positions, by)))
                errors[f"moved by {by}, {causal=}"] = error_of(here, there)
    _claim("relative", traits.relative, errors, SHIFTED, "the same outputs at moved positions")


@check
def check_norm_preserving(s: Subject) -> None:
    """Claim: encoding leaves the norms of q and k, their width, and v, as they are."""
    traits = _claims(s)
    encoding = s.encoding()
    errors = {}
    for causal in s.causals:
        p = s.problem(encoding, LONG, causal)
        encoded = leaves(encoding(p))
        if len(encoded) > 1:
            errors[f"{causal=}"] = math.inf
            continue
        (e,) = encoded
        for name, old, new in (("q", p.q, e.q), ("k", p.k, e.k)):
            same = old.shape == new.shape
            errors[f"{name}, {causal=}"] = error_of(new.norm(dim=-1), old.norm(dim=-1)) if same else math.inf
        errors[f"v, {causal=}"] = error_of(e.v, p.v)
    _claim("norm_preserving", traits.norm_preserving, errors, SAME, "the norms that came in, and v")


@check
def check_content_dependent(s: Subject) -> None:
    """Claim: what is done to a token depends on content.

    Measured: other tokens and x change nothing of q' and k' of a token; its q' and k' at two positions are related by
    one linear map for all contents (so that a feature map of q and k does not count); and the bias of a pair is the
    same for all contents.
    """
    traits = _claims(s)
    encoding = s.encoding()
    errors: dict[str, float] = {}
    rows, length = 120, 5
    for causal in s.causals:
        q, k, v = s.qkv(length, batch=rows)
        x = s.x(length, batch=rows)
        one = s.positions(encoding, length, batch=1)
        here = Attention(q, k, v, one, causal=causal, x=x)
        home = here.replace(positions=Positions(one.key.take(torch.zeros(length, dtype=torch.long))))
        q2, k2, v2 = (torch.cat([t.roll(1, 0)[:, :, :-1], t[:, :, -1:]], 2) for t in (q, k, v))
        other = here.replace(q=q2, k=k2, v=v2, x=x.roll(1, 0))
        encoded = [leaves(encoding(p)) for p in (here, home, other)]
        for e, at_home, others in zip(*encoded, strict=True):
            for name in ("q", "k"):
                now, then = getattr(e, name), getattr(at_home, name)
                errors[f"other tokens, {name}"] = error_of(now[:, :, -1], getattr(others, name)[:, :, -1])
                errors[f"map of {name}"] = _not_linear(then, now)
            for term in e.terms:
                errors[f"{type(term).__name__} term"] = _varies(e, term)
            if e.product is not None:
                raise Excluded("a product of its own: what depends on content in it cannot be told apart")
    _claim("content_dependent", not traits.content_dependent, errors, 1e-7, "the same done to all contents")


def _not_linear(then: Tensor, now: Tensor) -> float:
    """How far what was done to the rows between two positions is from one linear map a head and token."""
    if torch.equal(then, now):
        return 0.0
    half = then.shape[0] // 2
    a, b = (t.movedim(0, -2) for t in (then, now))  # (h, S, rows, width)
    found = torch.linalg.lstsq(a[..., :half, :], b[..., :half, :], driver="gelsd").solution
    return error_of(a[..., half:, :] @ found, b[..., half:, :])


def _varies(p: Attention, term: object) -> float:
    if not isinstance(term, Pointwise):
        return math.inf if isinstance(term, Row) else 0.0
    if not term.additive:
        return 0.0 if all(not isinstance(r, Feature) for r in (*term.q, *term.k)) else math.inf
    bias = dense.pointwise(p, term)
    bias = torch.where(torch.isfinite(bias), bias, 0.0)
    return error_of(bias, bias[:1].expand_as(bias))


@check
def check_linear_attention(s: Subject) -> None:
    """Claim: the encoding is a map of q and k alone, usable in linear attention."""
    traits = _claims(s)
    encoding = s.encoding()
    p = s.problem(encoding, LONG, s.causals[0])
    encoded = leaves(encoding(p))
    if any(e.kernel is not None for e in encoded):
        linear = next(b for b in BACKENDS if b.name == "linear")
        reasons = [why for e in encoded if (why := linear.why_not(e, Request())) is not None]
        require(traits.linear_attention, "traits.linear_attention is False", "no linear attention", "a linear kernel")
        require(not reasons, "traits.linear_attention is True", "a problem for the linear backend", reasons)
        return
    try:
        q, k = encoding.rotate(p.q, p.k, p.positions)
    except NotRotation as why:
        require(not traits.linear_attention, "traits.linear_attention is True", "a map of q and k", why)
        return
    except Refusal as why:
        require(not traits.linear_attention, "traits.linear_attention is True", "a map of q and k", why)
        return
    require(traits.linear_attention, "traits.linear_attention is False", "more than a map of q and k", "rotate() works")
    scale = HEAD_DIM**-0.5
    got = attend(Attention(q, k, p.v, p.positions, causal=s.causals[0], scale=scale), "dense")
    agree(got, attend(encoding(p), "dense"), SAME, "rotate, then plain attention", "the result of the encoding")


@check
def check_max_position(s: Subject) -> None:
    """Claim: it is defined up to the largest position, and says so beyond."""
    traits = _claims(s)
    if traits.max_position is None:
        raise Excluded("no bound is claimed")
    layer = s.layer()
    top = traits.max_position
    for causal in s.causals:
        inside = s.draw(layer.encoding, Positions(torch.arange(top - MEDIUM + 1, top + 1)))
        out = layer(s.x(MEDIUM), inside, causal)
        require(bool(out.isfinite().all()), f"positions up to {top}", "finite outputs", "NaN or infinity")
        for case, position in (
            (f"position {top + 1}", torch.arange(top - MEDIUM + 2, top + 2)),
            ("position -1", torch.arange(-1, MEDIUM - 1)),
        ):
            try:
                layer(s.x(MEDIUM), s.draw(layer.encoding, Positions(position)), causal)
            except PositionError:
                continue
            require(case.startswith("position -") and traits.relative, case, "a PositionError", "a result")


@check
def check_real_positions(s: Subject) -> None:
    """Claim: real positions are taken as they are; where they are not allowed they are refused, never truncated."""
    traits = _claims(s)
    if not s.sequence:
        raise Excluded("positions of this domain are its own")
    layer = s.layer()
    whole = torch.arange(MEDIUM)
    real = whole + torch.rand(MEDIUM, generator=s.generator(11), dtype=torch.float64) * 0.9
    causal = s.causals[0]

    def run(position: Tensor) -> Tensor:
        return layer(s.x(MEDIUM), s.draw(layer.encoding, Positions(position)), causal)

    try:
        out = run(real)
    except RopewalkError as why:
        require(not traits.real_positions, "traits.real_positions is True", "a result at real positions", _said(why))
        return
    require(traits.real_positions, "traits.real_positions is False", "an error at real positions", "a result")
    require(bool(out.isfinite().all()), "real positions", "finite outputs", "NaN or infinity")
    if error_of(run(whole), run(whole * 3)) > DIFFERENT:  # positions are read at all
        for case, rounded in (("rounded down", real.floor()), ("rounded", real.round())):
            differs = error_of(out, run(rounded)) > DIFFERENT
            require(differs, f"real positions, {case}", "another result than at whole ones", "the same")


@check
def check_causal(s: Subject) -> None:
    """Claim: problems it is not defined for are refused."""
    traits = _claims(s)
    encoding = s.encoding()
    if traits.causal == "any":
        raise Excluded("both kinds are allowed")
    try:
        encoding(s.problem(encoding, MEDIUM, traits.causal == "never"))
    except Refusal as why:
        require(len(str(why)) > 20, "refusal", "one that says why", repr(str(why)))
        return
    raise ContractError(f"traits.causal is {traits.causal!r}: expected a Refusal of the other kind; got a result")


# ---- errors ----------------------------------------------------------------------------------------------------------


@check
def check_errors(s: Subject) -> None:
    """What cannot be is refused by an error of this library that says why, never by one from inside torch."""
    encoding = s.encoding()
    causal = s.causals[0]
    good = s.problem(encoding, MEDIUM, causal)
    q, k, v, x, positions = good.q, good.k, good.v, cast("Tensor", good.x), good.where
    where = positions.key.position

    def build(**change: Any) -> Callable[[], object]:
        given = {"q": q, "k": k, "v": v, "positions": positions, "causal": causal, "x": x, **change}

        def run() -> object:
            made = {n: t() if callable(t) else t for n, t in given.items()}
            problem = Attention(**made)
            return attend(encoding(problem), "dense")

        return run

    extra = torch.zeros(1, MEDIUM, 3, dtype=torch.float64) if where.ndim == 2 else where[..., 0]
    cases: dict[str, tuple[Callable[[], object], bool]] = {
        # name: (what is tried, whether it has to be refused)
        "6 heads": (build(q=torch.cat([q, q[:, :2]], 1), k=k, v=v), False),
        "heads and sequence swapped": (
            build(q=q.transpose(1, 2), k=k.transpose(1, 2), v=v.transpose(1, 2)), True,
        ),
        "a width that is odd": (build(q=q[..., :-1], k=k[..., :-1]), False),
        "another width": (build(q=torch.cat([q, q], -1), k=torch.cat([k, k], -1)), False),
        "widths of q and k that differ": (build(q=q[..., :-2]), True),
        "x of another width": (build(x=x[..., :-1]), False),
        "no x": (build(x=None), False),
        "one position too many": (build(positions=lambda: s.positions(encoding, MEDIUM + 1)), True),
        "positions of another batch": (build(positions=lambda: s.positions(encoding, MEDIUM, batch=2)), True),
        "positions on another device": (build(positions=lambda: positions.to("meta")), True),
        "positions of another kind": (
            build(positions=lambda: Positions(extra, columns=_other_columns(positions))), False,
        ),
        "positions that are NaN": (
            build(positions=lambda: Positions(torch.full_like(where, math.nan, dtype=torch.float64))), True,
        ),
        "positions in bfloat16": (build(positions=lambda: Positions(where.to(torch.bfloat16))), True),
        "q and k of two dtypes": (build(k=k.float()), True),
        "keys of another length": (build(k=k[:, :, :-1], v=v[:, :, :-1]), True),
        "embeddings of another width": (lambda: encoding.embed(x[..., :-1], positions), False),
        "embeddings without a sequence": (lambda: encoding.embed(x[:, 0], positions), False),
        "embeddings of another length": (lambda: encoding.embed(x[:, :-1], positions), False),
    }  # fmt: skip
    for case, (run, must) in cases.items():
        try:
            run()
        except RopewalkError as why:
            require(len(str(why)) > 15, case, "an error that says why", repr(str(why)))
        except Exception as problem:
            raise ContractError(f"{case}: expected an error of ropewalk; got {_said(problem)}") from problem
        else:
            require(not must, case, "an error of ropewalk", "a result")


def _other_columns(positions: Positions) -> dict[str, Tensor]:
    return {n: c for n, c in positions.key.columns.items() if n != "position"}


@check
def check_sizes(s: Subject) -> None:
    """Sizes that cannot be are refused at construction, or at the first problem, by an error that says why."""
    wrong = (("head_dim", 15), ("head_dim", -2), ("num_heads", 0), ("num_heads", -1), ("hidden_size", 0))
    for name, value in wrong:
        case = f"{name}={value}"
        if name not in _takes(s):
            continue
        try:
            s.encoding(**cast("dict[str, Any]", {name: value}))
        except RopewalkError as why:
            require(len(str(why)) > 15, case, "an error that says why", repr(str(why)))
        except Exception as problem:
            raise ContractError(f"{case}: expected an error of ropewalk; got {_said(problem)}") from problem
        else:
            require(value > 0, case, "an error at construction", "an encoding")


def _drawn(positions: Positions) -> bool:
    return bool(positions.key.sequence) or not positions.key.columns.keys() <= GIVEN


@check
def check_draws(s: Subject) -> None:
    """What is random is drawn once: drawing again changes nothing, and every layer sees the same."""
    encoding, other = s.encoding(), s.encoding(seed=1)
    positions = s.positions(encoding, MEDIUM)
    if not _drawn(positions):
        raise Excluded("it draws nothing")
    for drawer in (encoding, other):
        again = s.draw(drawer, positions, salt=1)
        for old, new in ((positions.key.columns, again.key.columns), (positions.key.sequence, again.key.sequence)):
            require(old.keys() == new.keys(), "drawn again", str(sorted(old)), sorted(new))
            for name in old:
                identical(new[name], old[name], f"{name}, drawn again", "what was drawn first")
