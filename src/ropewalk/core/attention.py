"""The attention problem that encodings rewrite.

    s_ij = scale * <q_i, k_j> + terms_ij          masked, softmax over j
    o_i  = finish_i( sum_j a_ij v_j )

`Attention` says what a layer wants to compute; it computes nothing. Everything an encoding adds is a *pure function
of declared inputs*: `Feature`s that travel with q and k, or references to the coordinates and columns of the
tokens. Nothing is captured, so caching, selecting rows, repeating heads and folding need not know any encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from ropewalk.core.errors import CannotCompose, ConfigError, NeedsHiddenStates, ShapeError, UnknownNameError, suggest
from ropewalk.core.positions import Chain, Positions, Tokens

# ---- references: what terms, masks and finishers may read --------------------------------------------------------


@dataclass(frozen=True)
class Feature:
    """A named tensor (B|1, H|1, S|1, r) that travels with the queries or the keys.

    ``centred``: only differences between the query's and the key's value matter, so a backend may subtract a
    common number from both before it leaves float64.
    """

    name: str
    centred: bool = False


@dataclass(frozen=True)
class Coordinate:
    """The coordinates of the tokens after a chain of maps (the chain its reader saw)."""

    chain: Chain = ()
    centred: bool = False


@dataclass(frozen=True)
class Column:
    """A column of the tokens as it stands."""

    name: str


@dataclass(frozen=True)
class Order:
    """The index of the token among the keys."""


Ref = Feature | Coordinate | Column | Order

# ---- terms -----------------------------------------------------------------------------------------------------

Pair = tuple[Tensor | float, Tensor | float]


@dataclass(frozen=True, eq=False)
class Pointwise:
    """A term made of one scalar per query and one per key: a single definition serves every backend.

    ``fn(*q, *k)`` is elementwise and returns the bias; with ``additive=False`` it is ``fn(score, *q, *k)`` and
    returns the new score. ``table`` names a query feature of width n that is handed over as a last argument
    ``lookup(index) -> value``. ``factors(*q, *k)`` states the same bias as a sum of products, one pair (query
    part, key part) a product, and lets fused kernels take it.
    """

    fn: Callable[..., Tensor]
    q: tuple[Ref, ...] = ()
    k: tuple[Ref, ...] = ()
    table: Feature | None = None
    additive: bool = True
    factors: Callable[..., Sequence[Pair]] | None = None


def low_rank(factors: Callable[..., Sequence[Pair]], q: tuple[Ref, ...], k: tuple[Ref, ...]) -> Pointwise:
    """Make a term given by its factors alone."""

    def fn(*inputs: Tensor) -> Tensor:
        return cast("Tensor", sum(a * b for a, b in factors(*inputs)))

    return Pointwise(fn, q, k, factors=factors)


@dataclass(frozen=True, eq=False)
class Row:
    """A term that needs the whole row: ``fn(logits, allowed, *q, *k) -> logits``.

    ``logits`` is (B, H, Q, K), ``allowed`` broadcasts to it; inputs are whole features (B|1, H, S, r).
    """

    fn: Callable[..., Tensor]
    q: tuple[Ref, ...] = ()
    k: tuple[Ref, ...] = ()


@dataclass(frozen=True, eq=False)
class ValueTerm:
    """Something added to the output from the weights: ``fn(weights, *q, *k) -> (B, H, Q, D_v)``."""

    fn: Callable[..., Tensor]
    q: tuple[Ref, ...] = ()
    k: tuple[Ref, ...] = ()


Term = Pointwise | Row | ValueTerm


@dataclass(frozen=True, eq=False)
class Mask:
    """A named predicate, elementwise over query and key scalars; True = may attend. The same name replaces."""

    name: str
    fn: Callable[..., Tensor]
    q: tuple[Ref, ...] = ()
    k: tuple[Ref, ...] = ()


@dataclass(frozen=True)
class AtLeast:
    """The predicate i − j ≥ distance, for a `Mask`: a value, so that a backend can tell what it says."""

    distance: float

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        """Say which pairs are that far apart."""
        return i - j >= self.distance


@dataclass(frozen=True, eq=False)
class Branch:
    """One of several scores under a single softmax: the pairs ``where`` holds use other queries or keys.

    ``q`` and ``k`` name features; None is the problem's own. The first branch has ``where=None`` and takes every
    pair that no other branch takes, so that no key is counted twice or lost.
    """

    q: str | None = None
    k: str | None = None
    where: Mask | None = None


@dataclass(frozen=True, eq=False)
class Product:
    """Scores that are no dot product: ``fn(q, k, *q inputs, *k inputs) -> (B, H, Q, K)``, already scaled.

    ``rows_coupled``: the rows cannot be computed apart, so the problem cannot be cut along its queries.
    """

    fn: Callable[..., Tensor]
    q: tuple[Ref, ...] = ()
    k: tuple[Ref, ...] = ()
    rows_coupled: bool = False


@dataclass(frozen=True)
class Linear:
    """Linear attention: weights <q_i, k_j> without a softmax, divided by the sum of <n_i, n_j> ≥ 0 of this feature."""

    normaliser: str


@dataclass(frozen=True, eq=False)
class Finish:
    """Something done to the output of each query: ``fn(out, *inputs) -> out``."""

    fn: Callable[..., Tensor]
    q: tuple[Ref, ...] = ()


# ---- the problem -------------------------------------------------------------------------------------------------

Features = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Attention:
    """What an attention layer wants to compute.

    Args:
        q: (B, H, Q, D).
        k: (B, H_kv, K, D) with H a multiple of H_kv.
        v: (B, H_kv, K, D_v).
        positions: where the tokens are; None: 0, 1, 2, ... (or where the cache stands).
        causal: whether a query sees only keys up to itself, in the order of the sequence (not of position ids).
        scale: of the logits; None: 1 / sqrt(D) with this D, even after an encoding has widened q and k.
        x: (B, Q, hidden) the layer's input, for encodings that read it.
        mask: (Q, K) or (B | 1, H | 1, Q, K) boolean, True = may attend; on top of causality, padding and documents.
        x_kv: (B, K, hidden) the key side's input in cross-attention; None: ``x``.
        window: a query sees the keys at distance 0 ... window - 1 in the order of the sequence.
        softcap: the scaled scores become ``softcap * tanh(score / softcap)``.
        sinks: (H,) logits of an extra key without value, one a head.
        heads: (first, total) where this process holds only some of a layer's query heads, those from ``first`` on: slopes
            and parameters of an encoding made for ``total`` heads follow. Left out: these are all.
        kv_total: key heads of that layer; left out: in proportion where each query head has its own.

    Everything below ``kv_total`` belongs to encodings.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    positions: Positions | None = None
    causal: bool = True
    scale: float | None = None
    x: Tensor | None = None
    mask: Tensor | None = None
    x_kv: Tensor | None = field(default=None, kw_only=True)
    window: int | None = field(default=None, kw_only=True)
    softcap: float | None = field(default=None, kw_only=True)
    sinks: Tensor | None = field(default=None, kw_only=True)

    heads: tuple[int, int] = field(default=(0, 0), kw_only=True)
    kv_total: int = field(default=0, kw_only=True)

    head_dim: int = field(default=0, kw_only=True)
    own_scale: float | None = field(default=None, kw_only=True)  # fixed by an encoding
    at: Chain = field(default=(), kw_only=True)
    scope: str = field(default="", kw_only=True)
    qf: Features = field(default_factory=dict, kw_only=True)
    kf: Features = field(default_factory=dict, kw_only=True)
    terms: tuple[Term, ...] = field(default=(), kw_only=True)
    masks: tuple[Mask, ...] = field(default=(), kw_only=True)
    branches: tuple[Branch, ...] = field(default=(), kw_only=True)
    product: Product | None = field(default=None, kw_only=True)
    kernel: Linear | None = field(default=None, kw_only=True)  # None: softmax
    finish: tuple[Finish, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if self.head_dim == 0:  # a user's problem; rewrites keep what was checked
            _check(self)
            object.__setattr__(self, "head_dim", self.q.shape[-1])
            heads, kv_total = _whole_layer(self)
            object.__setattr__(self, "heads", heads)
            object.__setattr__(self, "kv_total", kv_total)

    # ---- reading ----------------------------------------------------------------------------------------------

    @property
    def num_heads(self) -> int:
        """Query heads of this problem."""
        return self.q.shape[1]

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads of this problem."""
        return self.k.shape[1]

    @property
    def where(self) -> Positions:
        """The positions, which an encoding always finds filled in."""
        assert self.positions is not None
        return self.positions

    @property
    def logit_scale(self) -> float:
        """The number the scores are multiplied by."""
        if self.own_scale is not None:
            return self.own_scale
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def hidden(self) -> Tensor:
        """The layer's input on the query side, or a clear refusal."""
        if self.x is None:
            raise NeedsHiddenStates(
                "this encoding reads the layer's input, and the problem carries none: "
                "give Attention(q, k, v, x=hidden_states)"
            )
        return self.x

    @property
    def hidden_kv(self) -> Tensor:
        """The layer's input on the key side."""
        return self.hidden if self.x_kv is None else self.x_kv

    def head_slice(self, per_head: Tensor, dim: int = 0) -> Tensor:
        """Cut these query heads out of something that is per head of the whole layer."""
        first, total = self.heads
        return _cut(per_head, dim, first, self.num_heads, total, "query heads")

    def kv_head_slice(self, per_head: Tensor, dim: int = 0) -> Tensor:
        """Cut these key heads out of something that is per key head of the whole layer."""
        first, total = self.heads
        if per_head.shape[dim] != self.kv_total:
            raise ShapeError(
                f"the encoding was made for {per_head.shape[dim]} key heads and the layer has {self.kv_total}; build it "
                f"with num_kv_heads={self.kv_total}"
            )
        if self.num_heads == total and self.num_kv_heads == self.kv_total:
            return per_head
        # Which key head of the layer each key head of this problem is; groups that were cut hold a head more than once.
        group, own = total // self.kv_total, self.num_heads // self.num_kv_heads
        index = [(first + j * own) // group for j in range(self.num_kv_heads)]
        return per_head.index_select(dim, torch.tensor(index, device=per_head.device))

    def coordinate(self, centred: bool = False) -> Coordinate:
        """Refer to the coordinates as they are for whoever asks now."""
        return Coordinate(self.at, centred)

    def name(self, name: str) -> str:
        """Full name of a feature of the encoding that is being applied."""
        return self.scope + name

    def own(self, name: str, centred: bool = False) -> Feature:
        """Refer to a feature of the encoding that is being applied."""
        full = self.scope + name
        if full not in self.qf and full not in self.kf:
            raise UnknownNameError(
                f"no feature {full!r} on this problem; it has {sorted({*self.qf, *self.kf})}."
                f"{suggest(full, {*self.qf, *self.kf})} An encoding's `observe` has to run before its `rewrite`"
            )
        return Feature(full, centred)

    # ---- rewriting --------------------------------------------------------------------------------------------

    def replace(self, **changes: Any) -> Attention:
        """Return the problem with some fields changed."""
        return replace(self, **changes)

    def located(self) -> Attention:
        """Fill in the default positions: counted from 0, with the queries last."""
        if self.positions is not None:
            return self
        q, k = self.q.shape[2], self.k.shape[2]
        keys = Tokens.arange(k, device=self.q.device)
        if q == k:
            return self.replace(positions=Positions(keys))
        if not self.causal:
            queries = Tokens.arange(q, device=self.q.device)
        elif q < k:
            queries = keys.slice(k - q)
        else:
            raise ShapeError(
                f"{q} queries and {k} keys: causal attention needs a key for each query. Give causal=False for "
                "cross-attention, or positions with order="
            )
        return self.replace(positions=Positions.pair(queries, keys))

    def with_features(self, q: Features | None = None, k: Features | None = None) -> Attention:
        """Attach features of the encoding that is being applied, by its own names; (B|1, H|1, S|1, r) each."""
        qf = {**self.qf, **{self.scope + name: t for name, t in (q or {}).items()}}
        kf = dict(self.kf)
        for name, t in (k or {}).items():  # a cache joins tokens: what is the same for all keys is written out
            kf[self.scope + name] = t.expand(-1, -1, self.k.shape[2], -1) if t.shape[2] == 1 else t
        return self.replace(qf=qf, kf=kf)

    def add(self, *terms: Term) -> Attention:
        """Add terms, after those that are there."""
        return self.replace(terms=self.terms + terms)

    def with_mask(self, mask: Mask) -> Attention:
        """Narrow the problem by a mask, or replace the mask of that name (also a built-in one)."""
        return self.replace(masks=(*(m for m in self.masks if m.name != mask.name), mask))

    def finish_with(self, fn: Callable[..., Tensor], *inputs: Ref) -> Attention:
        """Do something to the output; what was asked for last is done first."""
        return self.replace(finish=(*self.finish, Finish(fn, inputs)))

    def scaled(self, scale: float, by: str) -> Attention:
        """Let an encoding fix the scale of the logits; a scale given by the user beside it is an error."""
        if self.scale is not None and self.own_scale is None:
            raise ConfigError(f"{by} fixes the scale of the logits; leave scale=None (got {self.scale})")
        return self.replace(own_scale=scale)

    def map_queries(self, fn: Callable[[Tensor], Tensor]) -> Attention:
        """Map the queries, those of the branches too."""
        names = {b.q for b in self.branches if b.q is not None}
        qf = {n: fn(t) if n in names else t for n, t in self.qf.items()} if names else self.qf
        return self.replace(q=fn(self.q), qf=qf)

    def multiply_queries(self, times: int, fn: Callable[[Tensor], Tensor]) -> Attention:
        """Make ``times`` queries of each, as heads next to each other: ``fn`` maps (B, H, Q, D) to (B, times · H, Q, D).

        Those of the branches too; what else is per query head (features, a mask, sinks) is repeated.
        """
        names = {b.q for b in self.branches if b.q is not None}

        def repeat(t: Tensor) -> Tensor:
            return t if t.shape[1] == 1 else t.repeat_interleave(times, 1)

        return self.replace(
            q=fn(self.q),
            qf={n: fn(t) if n in names else repeat(t) for n, t in self.qf.items()},
            mask=self.mask if self.mask is None or self.mask.ndim == 2 else repeat(self.mask),
            sinks=None if self.sinks is None else self.sinks.repeat_interleave(times),
            heads=(times * self.heads[0], times * self.heads[1]),
        )

    def map_keys(self, fn: Callable[[Tensor], Tensor]) -> Attention:
        """Map the keys, those of the branches too."""
        names = {b.k for b in self.branches if b.k is not None}
        kf = {n: fn(t) if n in names else t for n, t in self.kf.items()} if names else self.kf
        return self.replace(k=fn(self.k), kf=kf)

    def enter(self, part: str) -> Attention:
        """Name the features of a child encoding apart from its siblings'."""
        return self.replace(scope=f"{self.scope}{part}.")

    def leave(self, scope: str) -> Attention:
        """Return to a parent's scope."""
        return self.replace(scope=scope)

    # ---- taking parts -----------------------------------------------------------------------------------------

    def select_rows(self, rows: Tensor) -> Attention:
        """Return other rows of the batch."""

        def pick(t: Tensor | None) -> Tensor | None:
            return t if t is None or t.shape[0] == 1 else t[rows]

        return self.replace(
            q=self.q[rows],
            k=self.k[rows],
            v=self.v[rows],
            x=None if self.x is None else self.x[rows],
            x_kv=None if self.x_kv is None else self.x_kv[rows],
            mask=pick(self.mask) if self.mask is not None and self.mask.ndim == 4 else self.mask,
            positions=None if self.positions is None else self.positions.select(rows),
            qf={n: pick(t) for n, t in self.qf.items()},
            kf={n: pick(t) for n, t in self.kf.items()},
        )

    def select_queries(self, index: Tensor) -> Attention:
        """Return some of the queries only (1-D index); every key stays."""
        p = self.located()
        if p.product is not None and p.product.rows_coupled:
            raise CannotCompose("the scores of this problem couple its rows, so some of them cannot be computed apart")
        return p.replace(
            q=p.q[:, :, index],
            x=None if p.x is None else p.x[:, index],
            x_kv=p.x if p.x_kv is None and p.x is not None else p.x_kv,
            mask=None if p.mask is None else p.mask[..., index, :],
            positions=p.where.take_queries(index),
            qf={n: t if t.shape[2] == 1 else t[:, :, index] for n, t in p.qf.items()},
        )

    def select_heads(self, start: int, stop: int) -> Attention:
        """Return the query heads ``start:stop`` with the key heads they use."""
        total, kv = self.num_heads, self.num_kv_heads
        group = total // kv
        first, last = start // group, -(-stop // group)
        n, keys = stop - start, last - first
        k, v = self.k[:, first:last], self.v[:, first:last]
        shared = n % keys == 0 and (keys == 1 or (start % group == 0 and stop % group == 0))

        def key_heads(t: Tensor) -> Tensor:
            """Cut a key-side tensor; one head for each query head where the groups are cut through."""
            if t.shape[1] == 1 and kv != 1:
                return t
            if t.shape[1] != kv:  # one a query head, or one a head of before the heads were multiplied
                return t.repeat_interleave(total // t.shape[1], 1)[:, start:stop]
            t = t[:, first:last]
            return t if shared else t.repeat_interleave(group, 1)[:, start - first * group :][:, :n]

        return self.replace(
            q=self.q[:, start:stop],
            k=k if shared else key_heads(self.k),
            v=v if shared else key_heads(self.v),
            mask=self.mask
            if self.mask is None or self.mask.ndim == 2 or self.mask.shape[1] == 1
            else self.mask[:, start:stop],
            sinks=None if self.sinks is None else self.sinks[start:stop],
            heads=(self.heads[0] + start, self.heads[1]),
            qf={name: t if t.shape[1] == 1 else t[:, start:stop] for name, t in self.qf.items()},
            kf={name: key_heads(t) for name, t in self.kf.items()},
        )

    # ---- what backends ask ------------------------------------------------------------------------------------

    def all_masks(self) -> tuple[Mask, ...]:
        """The built-in masks that apply here (unless replaced by name), then the encodings'."""
        built_in = []
        q, k = self.where.query.columns, self.where.key.columns
        if self.causal:
            built_in.append(CAUSAL)
        if self.window is not None:
            built_in.append(_window(self.window))
        if "document" in q and "document" in k:
            built_in.append(DOCUMENTS)
        if "valid" in k:
            built_in.append(VALID)
        names = {m.name for m in self.masks}
        return (*(m for m in built_in if m.name not in names), *self.masks)

    def read(self, ref: Ref, side: str, centre: bool = False) -> Tensor:
        """Return what a reference stands for on one side, (B|1, h, S|1, r).

        ``centre``: subtract from references whose common offset is immaterial the middle of the keys', in
        float64, so that what is left survives a cast to float32.
        """
        if isinstance(ref, Feature):
            value = (self.qf if side == "q" else self.kf)[ref.name]
        elif isinstance(ref, Order):
            index = self.where.index() if side == "q" else self.where.key_index()
            return index[:, None, :, None]
        else:
            tokens = self.where.query if side == "q" else self.where.key
            if isinstance(ref, Column):
                value = tokens.column(ref.name)[:, None]
                return value if value.ndim == 4 else value[..., None]
            value = tokens.coordinates(ref.chain)[:, None]
            value = value if value.ndim == 4 else value[..., None]
        if centre and ref.centred and self.k.shape[2]:
            value = value - self._centre(ref)
        return value

    def _centre(self, ref: Feature | Coordinate) -> Tensor:
        keys = self.read(ref, "k").detach().double()
        valid = None if self.positions is None else self.positions.key.columns.get("valid")
        low = high = keys
        if valid is not None:  # padding is often given position 0, wherever the sequence is
            real = valid[:, None, :, None]
            low, high = keys.masked_fill(~real, torch.inf), keys.masked_fill(~real, -torch.inf)
        middle = (low.amin(2, keepdim=True) + high.amax(2, keepdim=True)) / 2
        middle = middle.nan_to_num(0.0) if valid is not None else middle  # a row of padding alone
        if middle.shape[1] not in (1, self.num_heads) and isinstance(ref, Feature):
            middle = middle.mean(1, keepdim=True)
        return middle


@dataclass(frozen=True, eq=False)
class Parts:
    """Several problems and how their outputs become one; what several softmaxes, or mixtures over heads, rewrite to.

    ``owner`` is the scope of the combinator that split the problem: only it tells the items apart, every other
    encoding acts on each of them alike.
    """

    items: tuple[Problem, ...]
    combine: Callable[[list[Tensor]], Tensor]
    owner: str
    by_head: bool = False  # the items are consecutive heads, so weights and log-sum-exps are joined like outputs

    def map(self, fn: Callable[[Problem], Problem]) -> Parts:
        """Apply ``fn`` to each item."""
        return self.with_items([fn(item) for item in self.items])

    def with_items(self, items: Sequence[Problem]) -> Parts:
        """Return the same split with other items."""
        return Parts(tuple(items), self.combine, self.owner, self.by_head)

    def enter(self, part: str) -> Parts:
        """See `Attention.enter`."""
        return self.map(lambda p: p.enter(part))

    def leave(self, scope: str) -> Parts:
        """See `Attention.leave`."""
        return self.map(lambda p: p.leave(scope))

    @property
    def scope(self) -> str:
        """Scope of the encoding being applied, the same in all items."""
        return self.items[0].scope

    @property
    def at(self) -> Chain:
        """Chain of maps, the same in all items unless an encoding of some heads moved them."""
        return self.items[0].at

    def select_rows(self, rows: Tensor) -> Parts:
        """Return other rows of the batch."""
        return self.map(lambda p: p.select_rows(rows))

    def select_queries(self, index: Tensor) -> Parts:
        """Return some of the queries only."""
        return self.map(lambda p: p.select_queries(index))

    def add(self, *terms: Term) -> Parts:
        """Add terms to every item."""
        return self.map(lambda p: p.add(*terms))


Problem = Attention | Parts


def leaves(problem: Problem) -> list[Attention]:
    """The attention problems inside a problem, in order."""
    if isinstance(problem, Attention):
        return [problem]
    return [leaf for item in problem.items for leaf in leaves(item)]


def map_leaves(problem: Problem, fn: Callable[[Attention], Attention]) -> Problem:
    """Apply ``fn`` to each attention problem inside a problem."""
    return fn(problem) if isinstance(problem, Attention) else problem.map(lambda item: map_leaves(item, fn))


# ---- built-in masks: module-level, so that equal problems hold equal functions -------------------------------------


def _not_later(i: Tensor, j: Tensor) -> Tensor:
    return j <= i


def _equal(i: Tensor, j: Tensor) -> Tensor:
    return i == j


def _is_true(j: Tensor) -> Tensor:
    return j


CAUSAL = Mask("causal", _not_later, (Order(),), (Order(),))
DOCUMENTS = Mask("documents", _equal, (Column("document"),), (Column("document"),))
VALID = Mask("valid", _is_true, (), (Column("valid"),))


def _window(size: int) -> Mask:
    def near(i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() < size

    return Mask("window", near, (Order(),), (Order(),))


# ---- checks --------------------------------------------------------------------------------------------------------


def _cut(per_head: Tensor, dim: int, first: int, count: int, total: int, what: str) -> Tensor:
    have = per_head.shape[dim]
    if have != total:
        raise ShapeError(
            f"the encoding was made for {have} heads and the problem has {total} {what}; "
            f"build it with num_heads={total}"
        )
    return per_head if count == total else per_head.narrow(dim, first, count)


def _check(p: Attention) -> None:
    for name, t in (("q", p.q), ("k", p.k), ("v", p.v)):
        if t.ndim != 4 or not t.is_floating_point():
            raise ShapeError(
                f"{name} has shape {tuple(t.shape)} and dtype {t.dtype}; expected floating (batch, heads, seq, head_dim)"
            )
    b, h, n, d = p.q.shape
    _, hk, m, dk = p.k.shape
    if p.k.shape[0] != b or p.v.shape[:3] != p.k.shape[:3]:
        raise ShapeError(
            f"q {tuple(p.q.shape)}, k {tuple(p.k.shape)}, v {tuple(p.v.shape)} do not fit: the batch is common to "
            "all, heads and length are common to k and v. The layout is (batch, heads, seq, head_dim)"
        )
    if dk != d:
        raise ShapeError(f"q has head_dim {d} and k has {dk}; they must be equal")
    if hk == 0 or h % hk:
        raise ShapeError(
            f"{h} query heads cannot be shared out over {hk} key heads; the first must be a multiple of the second. "
            "If heads and sequence are swapped, transpose: the layout is (batch, heads, seq, head_dim)"
        )
    if not (p.q.dtype == p.k.dtype == p.v.dtype):
        raise ShapeError(f"q, k, v have dtypes {p.q.dtype}, {p.k.dtype}, {p.v.dtype}; cast them to one")
    if not (p.q.device == p.k.device == p.v.device):
        raise ShapeError(f"q, k, v are on {p.q.device}, {p.k.device}, {p.v.device}; move them to one device")
    if p.positions is not None:
        if not isinstance(p.positions, Positions):
            raise ShapeError(f"positions is a {type(p.positions).__name__}; wrap it: positions=Positions(tensor)")
        check_positions(p, p.positions)
    for name, x, length in (("x", p.x, n), ("x_kv", p.x_kv, m)):
        if x is not None and (x.ndim != 3 or x.shape[0] != b or x.shape[1] != length):
            raise ShapeError(f"{name} has shape {tuple(x.shape)}; expected ({b}, {length}, hidden)")
    if p.mask is not None:
        check_mask(p, p.mask, exact=False)
    if p.window is not None and (isinstance(p.window, bool) or not isinstance(p.window, int) or p.window < 1):
        raise ConfigError(f"window is the number of keys a query sees, at least 1; got {p.window!r}")
    if p.softcap is not None and not p.softcap > 0:
        raise ConfigError(f"softcap is positive; got {p.softcap!r}")
    if p.sinks is not None and tuple(p.sinks.shape) != (h,):
        raise ShapeError(f"sinks has shape {tuple(p.sinks.shape)}; expected one logit for each of the {h} heads")


def _whole_layer(p: Attention) -> tuple[tuple[int, int], int]:
    """Return which query heads of how many a user's problem holds, and the key heads of their layer."""
    h, hk = p.q.shape[1], p.k.shape[1]
    if p.heads == (0, 0) and p.kv_total in (0, hk):
        return (0, h), hk
    first, total = p.heads if _is_pair(p.heads) else (-1, 0)
    if not 0 <= first <= first + h <= total:
        raise ShapeError(
            f"heads={p.heads} and q has {h} of them; give (first, total), the number of q's first head in the layer and how "
            f"many query heads the layer has, with first + {h} <= total"
        )
    kv = p.kv_total if p.kv_total or h != hk else total
    if kv < hk or total % kv:
        raise ShapeError(
            f"kv_total={p.kv_total}, and k has {hk} heads for {h} of the {total} query heads; give the number of key heads of "
            "the whole layer, which divides that of its query heads"
        )
    group, own = total // kv, h // hk
    if any((first + i) // group != (first + i // own * own) // group for i in range(h)):
        raise ShapeError(
            f"query heads {first} to {first + h - 1} of {total} with {hk} key heads: a layer of {kv} key heads gives "
            f"{group} query heads one key head, and here heads of two groups share one; give each process whole groups, or heads "
            "of one group"
        )
    return (first, total), kv


def _is_pair(heads: object) -> bool:
    return isinstance(heads, tuple) and len(heads) == 2 and all(type(n) is int for n in heads)


def check_positions(p: Attention, positions: Positions) -> None:
    """Check that positions fit the tensors of a problem."""
    for side, name, length in ((positions.query, "q", p.q.shape[2]), (positions.key, "k", p.k.shape[2])):
        if side.length != length:
            raise ShapeError(
                f"positions say {side.length} tokens and {name} has {length}, laid out as (batch, heads, seq, head_dim): "
                f"{tuple((p.q if name == 'q' else p.k).shape)}"
            )
        if side.batch not in (1, p.q.shape[0]):
            raise ShapeError(f"positions have {side.batch} rows and the batch is {p.q.shape[0]}; give 1 row or all")
        if side.device != p.q.device:
            raise ShapeError(
                f"positions are on {side.device} and q is on {p.q.device}; make them there, or use positions.to(q.device)"
            )


def check_mask(p: Attention, mask: Tensor, exact: bool = True) -> None:
    """Check a user's mask against the tensors of a problem; for new tokens of a cache it covers the older keys too."""
    (b, h, n, _), m = p.q.shape, p.k.shape[2]
    fits = mask.ndim in (2, 4) and mask.shape[-2] == n and (mask.shape[-1] == m if exact else mask.shape[-1] >= m)
    fits = fits and (mask.ndim == 2 or (mask.shape[0] in (1, b) and mask.shape[1] in (1, h)))
    if not fits or mask.dtype != torch.bool:
        raise ShapeError(
            f"mask has shape {tuple(mask.shape)} and dtype {mask.dtype}; expected boolean (True = may attend), ({n}, {m}) "
            f"or ({b} or 1, {h} or 1, {n}, {m}). For padding give Positions(..., valid=); turn an additive mask into "
            "a boolean one by `mask == 0`"
        )
