"""What an encoding is: a module that rewrites attention problems.

Most encodings subclass one of the four thin bases at the end (`Rotary`, `Bias`, `Coordinates`, `Embedding`) and write
maths only. The hooks of `Encoding` exist for the few that need them.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ropewalk.core import rotation
from ropewalk.core.attention import Attention, Pair, Parts, Pointwise, Problem, leaves
from ropewalk.core.errors import CannotEdit, ConfigError, NotRotation, PositionError, ShapeError, UnknownNameError
from ropewalk.core.positions import Chain, Positions, Tokens

State = Any
"""A value that mirrors the module tree: a tensor or a tuple, batch first, or None where nothing runs.

An empty tuple says that there were tokens before, and nothing more.
"""


class Encoding(nn.Module):
    """A rewrite of attention problems, ``encoding(problem) -> problem``.

    Authors override what they need of:

    - `observe`: look at the *new* tokens only, before anything is rewritten; leave features, carry running state.
    - `rewrite`: a pure function of the problem, valid for any pair of query tokens and key tokens.
    - `embed`: change token embeddings instead.
    - `settle`: what is stored of the joined keys, for encodings whose cached keys keep moving.
    - `move`: bring cached keys to other positions.
    - `draw`: add to positions what is random, once, before anybody reads it.

    Parameters of an encoding are positional numbers: they stay float32 when a model is cast to a lower precision, and
    what `derive` makes is recomputed from hyper-parameters whenever the module is cast, moved or materialised.
    """

    stores: ClassVar[Literal["encoded", "raw"]] = "encoded"
    """What a cache keeps: keys as rewritten, or the layer's own, rewritten anew at every step."""

    structure: ClassVar[Literal["leaf", "chain", "split"]] = "leaf"
    """How a combinator relates to problems that were split: it hands them on whole, or is the one that splits."""

    combines: ClassVar[bool] = False
    """Whether it only hands hooks on to encodings it is made of."""

    # ---- the hooks --------------------------------------------------------------------------------------------

    def observe(self, problem: Attention, state: State = None) -> tuple[Problem, State]:
        """Read the new tokens; return the problem with features, and the running state after the last token."""
        return problem, state

    def rewrite(self, problem: Attention) -> Problem:
        """Rewrite the problem, purely."""
        return problem

    def settle(self, problem: Attention) -> Attention:
        """Return the problem whose joined k, v and key features are to be stored."""
        return problem

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        """Bring the stored keys of ``problem`` to the coordinates of ``tokens``, or refuse."""
        raise CannotEdit(
            f"{type(self).__name__} does not say how its cached keys move to other positions; "
            "encode the edited sequence anew"
        )

    def draw(self, positions: Positions, generator: torch.Generator | None = None) -> Positions:
        """Add random facts that the positions do not carry yet."""
        for child in self.children():
            if isinstance(child, Encoding):
                positions = child.draw(positions, generator)
        return positions

    def embed(self, x: Tensor, positions: Positions | None = None, at: Chain = ()) -> Tensor:
        """Return token embeddings with positions in them; the identity unless the encoding acts there.

        ``at`` is the chain of maps that earlier encodings of a `Sequential` put on the positions.
        """
        return x

    def chained(self, at: Chain) -> Chain:
        """Return the chain of maps that encodings after this one see."""
        return at

    def output_heads(self, num_heads: int) -> int:
        """Return how many heads the output has for ``num_heads`` query heads; as many, unless more are made of them."""
        return num_heads

    def why_not_cached(self) -> str | None:
        """Say why decoding would not equal the full pass; None where it does."""
        children = [c for c in self.children() if isinstance(c, Encoding)]
        return next((why for c in children if (why := c.why_not_cached()) is not None), None)

    def why_not_split(self) -> str | None:
        """Say why tokens dealt out to several processes could not be encoded apart; None where they can.

        What a cache asks of a token is what a split asks of it, so the reasons are the same unless an encoding says otherwise.
        """
        if not self.combines:
            return self.why_not_cached()
        children = [c for c in self.children() if isinstance(c, Encoding)]
        return next((why for c in children if (why := c.why_not_split()) is not None), None)

    # ---- for users --------------------------------------------------------------------------------------------

    def forward(self, problem: Problem) -> Problem:
        """Rewrite a whole problem at once."""
        if isinstance(problem, Attention):
            problem = problem.located()
            drawn = self.draw(problem.where)
            if drawn is not problem.positions:
                problem = problem.replace(positions=drawn)
        scope = problem.scope
        used = sum(len(p.qf) + len(p.kf) for p in leaves(problem))
        if used:  # a problem that was encoded before: its features keep their names, ours get others
            problem = problem.enter(f"+{used}")
        return rewrite(self, observe(self, problem)[0]).leave(scope)

    def rotate(self, q: Tensor, k: Tensor, positions: Positions | Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return q and k as encoded, for one's own attention call; refused by what is more than a map of q and k."""
        if isinstance(positions, Tensor):
            positions = Positions(positions)
        before = Attention(q, k, k, positions, causal=q.shape[2] <= k.shape[2])
        after = self(before)
        if isinstance(after, Parts):
            raise NotRotation(f"{self} splits the heads into several problems; use attend(encoding(problem))")
        extra = [
            what
            for what, there in (
                ("terms in the logits", after.terms),
                ("masks", after.masks),
                ("several scores", after.branches),
                ("a product of its own", after.product),
                ("linear attention", after.kernel),
                ("values", after.v is not before.v),
                ("a map of the output", after.finish),
                ("a scale of the logits", after.own_scale),
            )
            if there
        ]
        if extra:
            raise NotRotation(
                f"{type(self).__name__} is more than a map of q and k (it also has {', '.join(extra)}); "
                "use attend(encoding(problem))"
            )
        return after.q, after.k

    def layer(self, index: int) -> Encoding:
        """Return this encoding for layer ``index``: itself, or a copy where it has parameters to learn."""
        return copy.deepcopy(self) if any(True for _ in self.parameters()) else self

    # ---- numbers that must not be cast ------------------------------------------------------------------------

    def derive(self, name: str, make: Callable[[], Tensor]) -> None:
        """Keep a tensor that follows from hyper-parameters: never in the state dict, never cast, remade after a move.

        ``make`` returns it on the CPU, by name (``device="cpu"``), whatever the default device is.
        """
        if "_derived" not in self.__dict__:
            self._derived: dict[str, Callable[[], Tensor]] = {}
        self._derived[name] = make
        self.register_buffer(name, make().to(torch.empty(0).device), persistent=False)

    def exact(self, name: str, device: torch.device) -> Tensor:
        """Return a derived tensor in full precision, even where a wrapper cast buffers behind the module's back."""
        tensor: Tensor = getattr(self, name)
        if tensor.dtype in (torch.float16, torch.bfloat16, torch.float32):
            tensor = self._derived[name]()
        return tensor.to(device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Encoding:
        def keep(tensor: Tensor) -> Tensor:
            made = fn(tensor)
            low = made.dtype in (torch.float16, torch.bfloat16) and tensor.is_floating_point()
            return tensor.to(made.device) if low else made

        super()._apply(keep, recurse)
        for name, make in self.__dict__.get("_derived", {}).items():
            self._buffers[name] = make().to(getattr(self, name).device)
        return self

    # ---- the value by which tables are shared -----------------------------------------------------------------

    def key(self) -> Hashable:
        """Value of the hyper-parameters: encodings with equal keys make equal tables, so layers share them.

        What has learned parameters or buffers of its own is equal only to itself.
        """
        if "_key" not in self.__dict__:
            plain = []
            alone = any(True for _ in self.parameters()) or bool(self.__dict__.get("_modules"))
            derived = self.__dict__.get("_derived", {})
            alone = alone or any(name not in derived for name, _ in self.named_buffers())
            for name, value in vars(self).items():
                if name in _MODULE_ATTRIBUTES:
                    continue
                if _is_value(value):
                    plain.append((name, value))
                else:
                    alone = True
            self.__dict__["_key"] = (type(self), *plain, *((self,) if alone else ()))
        key: Hashable = self.__dict__["_key"]
        return key

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_derived", {}):
            raise ConfigError(f"{name} follows from hyper-parameters; build a new {type(self).__name__} instead")
        self.__dict__.pop("_key", None)
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state.pop("_key", None)
        return state


_MODULE_ATTRIBUTES = frozenset(vars(nn.Module())) | {"_derived", "_key"}


def _is_value(value: Any) -> bool:
    """Whether equality of the object is equality of what it says, for good."""
    if isinstance(value, tuple | frozenset):
        return all(_is_value(v) for v in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and value.__hash__ is not None:
        return all(_is_value(getattr(value, field.name)) for field in dataclasses.fields(value))
    return isinstance(value, int | float | str | torch.dtype | type(None))


# ---- applying hooks to problems that may have been split -----------------------------------------------------------


# A leaf does not look at a split: it treats the items alike. A combinator gets the split whole.


def observe(encoding: Encoding, problem: Problem, state: State = None) -> tuple[Problem, State]:
    """Apply `Encoding.observe` to a problem or to each item of a split one."""
    if isinstance(problem, Parts) and encoding.structure == "leaf":
        states = state if state is not None else (None,) * len(problem.items)
        pairs = [observe(encoding, p, s) for p, s in zip(problem.items, states, strict=True)]
        after = tuple(s for _, s in pairs)
        return problem.with_items([p for p, _ in pairs]), None if all(s is None for s in after) else after
    return encoding.observe(problem, state)  # type: ignore[arg-type]


def rewrite(encoding: Encoding, problem: Problem) -> Problem:
    """Apply `Encoding.rewrite` likewise."""
    if isinstance(problem, Parts) and encoding.structure == "leaf":
        return problem.map(lambda p: rewrite(encoding, p))
    return encoding.rewrite(problem)  # type: ignore[arg-type]


def settle(encoding: Encoding, problem: Problem) -> Problem:
    """Apply `Encoding.settle` likewise."""
    if isinstance(problem, Parts) and encoding.structure == "leaf":
        return problem.map(lambda p: settle(encoding, p))
    return encoding.settle(problem)  # type: ignore[arg-type]


def move(encoding: Encoding, problem: Problem, tokens: Tokens) -> Problem:
    """Apply `Encoding.move` likewise."""
    if isinstance(problem, Parts) and encoding.structure == "leaf":
        return problem.map(lambda p: move(encoding, p, tokens))
    return encoding.move(problem, tokens)  # type: ignore[arg-type]


@contextlib.contextmanager
def full_precision(tensor: Tensor) -> Iterator[None]:
    """Switch autocast off around matrix products of a hook: positions do not survive bfloat16."""
    with torch.autocast(tensor.device.type, enabled=False):
        yield


def table_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which x is turned: float64 for itself, float32 for the rest."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


# ---- the four thin bases -------------------------------------------------------------------------------------------


class Rotary(Encoding):
    """Turns pairs of channels of q and k by angles that depend on the position.

    Write ``angles(position) -> (..., P)``: float64 coordinates (b, S) in, float64 angles (b, S, P) out, or
    (b, H_kv, S, P) where key heads turn differently. The first 2P channels are turned, the rest pass through.

    Args:
        pairing: "interleaved" (channels 2i, 2i+1) or "half" (i, i+P).
    """

    axes: ClassVar[int | None] = None
    """Axes of a position this encoding wants; None: plain numbers."""

    def __init__(self, pairing: rotation.Pairing = "interleaved") -> None:
        super().__init__()
        self.pairing: rotation.Pairing = rotation.check_pairing(pairing)
        self.magnitude = 1.0

    def angles(self, position: Tensor) -> Tensor:
        """Return the angle of each pair at each position."""
        raise NotImplementedError

    def cos_sin(self, position: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos and sin of the angles, (b, 1 or H_kv, S, P): what `tables` makes, where it was not made before."""
        angles = self.angles(position)
        angles = angles[:, None] if angles.ndim == 3 else angles
        return rotation.tables(angles, dtype, self.magnitude, self.pairing)

    def fit(self, head_dim: int) -> None:
        """Learn the width from the first problem, where it was left out; an error where it does not fit."""

    def coordinates(self, tokens: Tokens, chain: Chain) -> Tensor:
        """Return the coordinates to turn by, for encodings that place tokens in a way of their own."""
        return tokens.coordinates(chain)

    def tables(self, tokens: Tokens, chain: Chain, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos and sin, (b, 1 or H_kv, S, P), made once per forward for all layers with equal keys."""

        def make() -> tuple[Tensor, Tensor]:
            position = self.coordinates(tokens, chain)
            check_axes(self, position, self.axes)
            return self.cos_sin(position, dtype)

        if any(m.learned for m in chain) or any(True for _ in self.parameters()):
            return make()
        return tokens.memo(lambda: ("rotary", self.key(), tuple(m.key for m in chain), dtype), make)

    def turn(self, x: Tensor, tables: tuple[Tensor, Tensor], p: Attention) -> Tensor:
        """Turn the query side or the key side of ``p`` by tables that may be per key head."""
        cos, sin = tables
        if cos.shape[1] != 1:
            cos, sin = p.kv_head_slice(cos, 1), p.kv_head_slice(sin, 1)
            if x.shape[1] != cos.shape[1]:
                group = x.shape[1] // cos.shape[1]
                cos, sin = cos.repeat_interleave(group, 1), sin.repeat_interleave(group, 1)
        return rotation.rotate(x, cos, sin, self.pairing)

    def rewrite(self, problem: Attention) -> Problem:
        """Turn every query and every key."""
        p = problem
        self.fit(p.q.shape[-1])
        dtype = table_dtype(p.q)
        at_q = self.tables(p.where.query, p.at, dtype)
        at_k = at_q if p.where.is_self else self.tables(p.where.key, p.at, dtype)
        if not p.branches:
            return p.replace(q=self.turn(p.q, at_q, p), k=self.turn(p.k, at_k, p))
        p = p.map_queries(lambda q: self.turn(q, at_q, p))
        return p.map_keys(lambda k: self.turn(k, at_k, p))

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        """Turn the stored keys on by the difference of the angles."""
        p = problem
        there, here = self.coordinates(tokens, p.at), self.coordinates(p.where.key, p.at)
        check_axes(self, there, self.axes)
        now, was = self.angles(there), self.angles(here)
        angles = now - was
        tables = rotation.tables(angles[:, None] if angles.ndim == 3 else angles, table_dtype(p.k))
        return p.map_keys(lambda k: self.turn(k, tables, p))


class Bias(Encoding):
    """Adds a number to each logit that depends on the two coordinates.

    Write ``bias(i, j, ...)``, elementwise: the coordinates of a query and of a key (float64, broadcastable), then by
    name whatever `per_head` gives: a tensor (H,) arrives as a number a head, a tensor (H, n) as a function
    ``lookup(index)``. Where the bias is a sum of products, write ``factors(i, j, ...)`` too, returning pairs (query
    part, key part); fused kernels then need no S x S bias. Python constants of ``self`` may be used, tensors may not:
    they go through `per_head`.
    """

    shift_invariant: ClassVar[bool] = True
    """Whether only differences of coordinates matter."""

    axes: ClassVar[int | None] = None
    _inputs: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._inputs = tuple(inspect.signature(cls.bias).parameters)[3:]

    if TYPE_CHECKING:  # the arguments after i and j are the subclass's own
        bias: Callable[..., Tensor]
        factors: Callable[..., Sequence[Pair]]
    else:

        def bias(self, i: Tensor, j: Tensor) -> Tensor:
            """Return what is added to the logit of query coordinate i and key coordinate j."""
            raise NotImplementedError

        def factors(self, i: Tensor, j: Tensor) -> Sequence[Pair]:
            """Return the same as a sum of products (query part, key part)."""
            raise NotImplementedError

    @property
    def factored(self) -> bool:
        """Whether the bias is a sum of products."""
        return type(self).factors is not Bias.factors

    def per_head(self, num_heads: int) -> dict[str, Tensor]:
        """Return what differs by query head, for a layer of ``num_heads``: (H,) or (H, n) each."""
        return {}

    def rewrite(self, problem: Attention) -> Problem:
        """Add one pointwise term."""
        p = problem
        check_axes(self, p.where.query.coordinates(p.at), self.axes)
        scalars: list[str] = []
        table = None
        given = self.per_head(p.heads[1])
        for name in self._inputs:
            if name not in given:
                raise UnknownNameError(f"{type(self).__name__}.bias asks for {name!r}; per_head gives {sorted(given)}")
            value = p.head_slice(given[name].to(p.q.device))
            if value.ndim == 1:
                scalars.append(name)
                value = value[:, None]
            elif table is None:
                table = name
            else:
                raise ConfigError(
                    f"{type(self).__name__}.bias asks for two tables, {table!r} and {name!r}; a term reads one"
                )
            p = p.with_features(q={name: value[None, :, None]})
        i = p.coordinate(self.shift_invariant)
        order = [n for n in self._inputs if n in scalars]
        return p.add(
            Pointwise(
                _reorder(self.bias, order, self._inputs, table),
                (i, *(p.own(n) for n in order)),
                (i,),
                None if table is None else p.own(table),
                factors=_reorder(self.factors, order, self._inputs, None) if self.factored else None,
            )
        )

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        """Change nothing: coordinates are read when attention is computed."""
        return problem


def _reorder(
    fn: Callable[..., Any], scalars: list[str], inputs: tuple[str, ...], table: str | None
) -> Callable[..., Any]:
    """Call ``fn(i, j, ...)`` with what a term hands over: query scalars, key scalars, lookup."""

    def call(i: Tensor, *rest: Any) -> Any:
        values = dict(zip(scalars, rest, strict=False))
        if table is not None:
            values[table] = rest[-1]
        return fn(i, rest[len(scalars)], *(values[name] for name in inputs))

    return call


class Coordinates(Encoding):
    """Moves the coordinates that later encodings see.

    Write ``map(position)``, float64 in and out. Hyper-parameters are plain Python values on ``self``; maps of equal
    class and values are equal, so that layers share tables.
    """

    def map(self, position: Tensor) -> Tensor:
        """Return the new coordinates."""
        raise NotImplementedError

    def remap(self, tokens: Tokens, position: Tensor) -> Tensor:
        """Return the new coordinates, for maps that read more of the tokens than their position."""
        return self.map(position)

    def chained(self, at: Chain) -> Chain:
        """Extend the chain of maps."""
        return (*at, ModuleMap(self))

    def rewrite(self, problem: Attention) -> Problem:
        """Extend the chain of maps."""
        return problem.replace(at=self.chained(problem.at))

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        """Extend the chain, so that encodings after this one move by mapped differences."""
        return problem.replace(at=self.chained(problem.at))


class ModuleMap:
    """A `Coordinates` encoding as a frozen map, equal by the value of its hyper-parameters."""

    __slots__ = ("module",)

    def __init__(self, module: Coordinates) -> None:
        self.module = module

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModuleMap) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def learned(self) -> bool:
        """Whether the map has parameters."""
        return any(True for _ in self.module.parameters())

    @property
    def key(self) -> Hashable:
        """Value of the hyper-parameters."""
        return self.module.key()

    def __call__(self, tokens: Tokens, coordinates: Tensor) -> Tensor:
        """Map the coordinates."""
        return self.module.remap(tokens, coordinates)


class Embedding(Encoding):
    """Adds a vector to each token embedding.

    Write ``table(position) -> (..., dim)``: float64 positions (b, S) in; the result is cast to the embeddings' dtype
    last. The attention problem is left alone.
    """

    axes: ClassVar[int | None] = None

    def table(self, position: Tensor) -> Tensor:
        """Return what is added at each position."""
        raise NotImplementedError

    def fit(self, dim: int) -> None:
        """Learn the width from the first embeddings, where it was left out; an error where it does not fit."""

    def embed(self, x: Tensor, positions: Positions | None = None, at: Chain = ()) -> Tensor:
        """Add the table's rows, at the positions of the (query) tokens."""
        if x.ndim != 3:
            raise ShapeError(f"embeddings have shape {tuple(x.shape)}; expected (batch, seq, dim)")
        if positions is None:
            positions = Positions.arange(x.shape[1], device=x.device)
        tokens = self.draw(positions).query
        if tokens.length != x.shape[1] or tokens.batch not in (1, x.shape[0]):
            raise ShapeError(
                f"positions say {tokens.batch} x {tokens.length} tokens and the embeddings have shape {tuple(x.shape)}"
            )
        self.fit(x.shape[-1])
        position = tokens.coordinates(at)
        check_axes(self, position, self.axes)
        added = self.table(position)
        dtype = x.dtype if x.dtype == torch.float64 else torch.float32
        return (x + added.to(dtype)).to(x.dtype)

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        """Refuse: what was added to the embeddings went through the whole network."""
        raise CannotEdit(
            f"{type(self).__name__} is added to the embeddings, so cached keys hold their position for good; "
            "encode the edited sequence anew"
        )


def check_axes(encoding: Encoding, position: Tensor, axes: int | None) -> None:
    """Check that positions have the axes an encoding wants."""
    have = position.shape[2] if position.ndim == 3 else None
    if have != axes:
        wants = "plain positions (batch, seq)" if axes is None else f"positions (batch, seq, {axes})"
        got = "plain positions" if have is None else f"{have} axes"
        fix = (
            ""
            if axes is None
            else f": rw.grid_positions makes them from {axes} sizes, rw.Positions(tensor) from a tensor"
        )
        raise PositionError(f"{type(encoding).__name__} wants {wants}, and these have {got}{fix}")
