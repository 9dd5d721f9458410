"""What is tested: the encoding, a layer around it, and the problems it is given.

The problems are small. No two of their sizes agree, so that swapped axes show.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from ropewalk.backends import BACKENDS, attend
from ropewalk.backends.request import Request
from ropewalk.cache import KVCache
from ropewalk.catalog import SHAPE_KEYWORDS, Record, Traits
from ropewalk.core.attention import Attention, Problem, leaves
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import ConfigError
from ropewalk.core.positions import Positions
from ropewalk.testing.compare import ContractError, Excluded

BATCH, HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 3, 4, 2, 16, 24  # 16 channels: what acts on blocks of 8 fits twice
SHAPE = {"head_dim": HEAD_DIM, "num_heads": HEADS, "num_kv_heads": KV_HEADS, "hidden_size": HIDDEN}
MEDIUM, LONG = 13, 37  # below and above the number of queries from which backends fold terms
EITHER = ("dense", "auto")  # the reference backend, and the one that users get

Sample = Callable[[int, int, torch.Generator], Positions]
"""``sample(batch, seq, generator) -> Positions``: tokens of the domain an encoding lives in."""


@dataclass(frozen=True)
class Subject:
    """An encoding under test: how it is made, what it claims, and where its tokens live.

    Attributes:
        name: for messages.
        factory: makes the encoding; it is handed every shape keyword.
        takes: the shape keywords it uses.
        traits: what it claims; None: nothing is known, so claims are not checked.
        sample: positions of its domain.
        seed: of everything random.
    """

    name: str
    factory: Callable[..., Encoding]
    takes: frozenset[str]
    traits: Traits | None
    sample: Sample
    seed: int = 0

    # ---- what it may be given ---------------------------------------------------------------------------------

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
    def ways(self) -> tuple[tuple[bool, str], ...]:
        """Each kind of problem, computed by the reference backend and by the one that users get."""
        return tuple(itertools.product(self.causals, EITHER))

    @property
    def limit(self) -> float:
        """Largest position it may be given."""
        bound = None if self.traits is None else self.traits.max_position
        return math.inf if bound is None else bound

    @property
    def streamable(self) -> bool:
        """Whether it has to decode with a cache."""
        return True in self.causals and (self.traits is None or self.traits.streamable)

    def needs_causal(self) -> None:
        """Leave a check of decoding where there is nothing to decode."""
        if True not in self.causals:
            raise Excluded("traits.causal is 'never': there is nothing to decode")

    def needs_streaming(self) -> None:
        """Leave a check of decoding where it need not decode."""
        self.needs_causal()
        if not self.streamable:
            raise Excluded("traits.streamable is False")

    # ---- what is made for it ----------------------------------------------------------------------------------

    def generator(self, purpose: str, salt: int = 0) -> torch.Generator:
        """Return a generator of its own for a purpose, the same in every run."""
        return torch.Generator().manual_seed(zlib.crc32(f"{purpose} {self.seed} {salt}".encode()))

    def encoding(self, seed: int = 0, dtype: torch.dtype = torch.float64, **sizes: int) -> Encoding:
        """Make it, with parameters disturbed: what starts at zero would hide what it does."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + seed)
            made = self.factory(**{**SHAPE, **sizes})
            if not isinstance(made, Encoding):
                raise ContractError(f"{self.name}: the factory made a {type(made).__name__}, not an Encoding")
            with torch.no_grad():
                for parameter in made.parameters():
                    parameter.add_(0.3 * torch.randn(parameter.shape))
        return made.to(dtype)

    def layer(self, dtype: torch.dtype = torch.float64) -> Layer:
        """Make a layer around it."""
        return self.around(self.encoding(dtype=dtype), dtype)

    def around(self, encoding: Encoding, dtype: torch.dtype = torch.float64) -> Layer:
        """Make a layer around another encoding; its projections are always the same."""
        return Layer(encoding, self.generator("projections")).to(dtype)

    def x(self, length: int, batch: int = BATCH, salt: int = 0) -> Tensor:
        """Return inputs of a layer."""
        return torch.randn(batch, length, HIDDEN, generator=self.generator("x", salt), dtype=torch.float64)

    def positions(self, encoding: Encoding, length: int, batch: int = BATCH, salt: int = 0) -> Positions:
        """Return positions with whatever the encoding draws, each row its own."""
        return self.draw(encoding, self.sample(batch, length, self.generator("positions", salt)))

    def draw(self, encoding: Encoding, positions: Positions, salt: int = 0) -> Positions:
        """Let the encoding draw, reproducibly."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + salt)
            return encoding.draw(positions)

    def problem(
        self, encoding: Encoding, length: int, causal: bool = True, *,
        positions: Positions | None = None, batch: int = BATCH, kv_heads: int = KV_HEADS, **more: Any,
    ) -> Attention:  # fmt: skip
        """Return a problem whose q, k, v and x are independent, not yet encoded."""
        g = self.generator("qkv")
        q, k, v = (
            torch.randn(batch, heads, length, HEAD_DIM, generator=g, dtype=torch.float64)
            for heads in (HEADS, kv_heads, kv_heads)
        )
        where = self.positions(encoding, length) if positions is None else positions
        return Attention(q, k, v, where, causal=causal, x=self.x(length, batch), **more)


class Layer(nn.Module):
    """An attention layer with fixed projections, so that every kind of encoding is seen in the output."""

    def __init__(self, encoding: Encoding, generator: torch.Generator) -> None:
        super().__init__()
        self.encoding = encoding
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            weight = torch.randn(HIDDEN, heads * HEAD_DIM, generator=generator, dtype=torch.float64) / HIDDEN**0.5
            self.register_buffer(f"w{name}", weight)

    def problem(self, x: Tensor, positions: Positions | None, causal: bool = True) -> Attention:
        """Embed, project, and say what is wanted."""
        x = self.encoding.embed(x, positions)

        def heads(w: Tensor) -> Tensor:
            return (x @ w).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)

        q, k, v = (heads(cast("Tensor", w)) for w in (self.wq, self.wk, self.wv))
        return Attention(q, k, v, positions, causal=causal, x=x)

    def forward(self, x: Tensor, positions: Positions | None, causal: bool = True, backend: str = "dense") -> Tensor:
        """Return the output, (B, H, S, D)."""
        return attend(self.encoding(self.problem(x, positions, causal)), backend)

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
        out = []
        for start, stop in spans(chunks):
            now = cache.step(stop - start if positions is None else positions.slice(start, stop))
            out.append(attend(cache[0].extend(self.problem(x[:, start:stop], now)), backend))
        return torch.cat(out, 2)


def spans(chunks: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Where chunks of these lengths start and stop."""
    return itertools.pairwise(itertools.accumulate(chunks, initial=0))


def inputs(p: Attention) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return q, k, v and x of a problem that has an x."""
    return p.q, p.k, p.v, p.hidden


def like(p: Attention, tensors: Iterable[Tensor]) -> Attention:
    """Return the problem with other q, k, v, x."""
    return p.replace(**dict(zip(("q", "k", "v", "x"), tensors, strict=True)))


def in_dtype(p: Attention, dtype: torch.dtype) -> Attention:
    """Return the problem in the dtype of a model; positions are never cast."""
    return like(p, (t.to(dtype) for t in inputs(p)))


def outcome(encoding: Encoding, p: Attention) -> Tensor:
    """Return all that an encoding makes of a problem, its output and its embeddings, as one vector."""
    x = encoding.embed(p.hidden, p.positions)
    return torch.cat([attend(encoding(p), "dense").flatten(), x.flatten()])


def able(problem: Problem) -> list[str]:
    """Names of the backends that take a problem; flex compiles on a CPU, and is checked apart."""
    return [
        b.name
        for b in BACKENDS
        if b.name != "flex" and all(b.why_not(leaf, Request()) is None for leaf in leaves(problem))
    ]


# ---- making a subject ------------------------------------------------------------------------------------------------


def subject(
    factory: Callable[..., Encoding] | Record,
    traits: Traits | None = None,
    *,
    positions: Sample | None = None,
    seed: int = 0,
) -> Subject:
    """Say what is to be checked; see `check_encoding`."""
    record = factory if isinstance(factory, Record) else None
    plain = factory.load() if isinstance(factory, Record) else factory
    # By name only: a **kwargs may be nn.Module's, which takes none.
    takes = frozenset(inspect.signature(plain).parameters) & frozenset(SHAPE_KEYWORDS)
    if record is not None:
        name, make = record.slug, record.build
        traits = record.traits if traits is None else traits
    else:
        name, make = getattr(plain, "__name__", type(plain).__name__), _only(takes, plain)
    if positions is None:
        positions = _sample("sequence" if traits is None else traits.domain)
    return Subject(name, make, takes, traits, positions, seed)


def _only(takes: frozenset[str], factory: Callable[..., Encoding]) -> Callable[..., Encoding]:
    @functools.wraps(factory)
    def make(**sizes: int) -> Encoding:
        return factory(**{name: size for name, size in sizes.items() if name in takes})

    return make


def sample_sequence(batch: int, seq: int, generator: torch.Generator) -> Positions:
    """Tokens that are counted, each row from another start."""
    start = torch.randint(0, 9, (batch, 1), generator=generator)
    return Positions(start + torch.arange(seq))


def _sample(domain: str) -> Sample:
    if domain == "sequence":
        return sample_sequence
    try:
        module = importlib.import_module(f"ropewalk.coordinates.{domain}")
        return cast("Sample", getattr(module, f"sample_{domain}"))
    except (ImportError, AttributeError) as problem:
        raise ConfigError(
            f"no sampler of positions is known for the domain {domain!r}; give positions=callable(batch, seq, generator)"
        ) from problem
