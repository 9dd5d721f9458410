"""The KV cache: what a model keeps of the tokens it has seen.

The tokens are joined once per forward for the whole model; k, v and features are kept a layer. State is a value, never on
a module, so snapshots, beams and rejected drafts come for free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from ropewalk.cache.room import Rooms
from ropewalk.core.attention import (
    Attention,
    Parts,
    Problem,
    check_mask,
    check_positions,
    leaves,
    map_leaves,
)
from ropewalk.core.encoding import Encoding, State, move, observe, rewrite, settle
from ropewalk.core.errors import (
    CacheError,
    CannotCache,
    CannotCompose,
    CannotCrop,
    CannotEdit,
    ConfigError,
    PositionError,
)
from ropewalk.core.positions import Positions, Tokens


@dataclass(frozen=True)
class Stored:
    """What is kept of the keys of one attention problem: k, v and the key features, (B, H_kv, K, ...) each."""

    k: Tensor
    v: Tensor
    features: Mapping[str, Tensor]

    @classmethod
    def of(cls, p: Attention) -> Stored:
        """Take the key side of a problem."""
        return cls(p.k, p.v, p.kf)

    def cat(self, new: Stored, rooms: Rooms, part: int) -> Stored:
        """Append newer keys."""
        if self._kind() != new._kind():
            raise CacheError(
                f"the cache holds {self} and the new tokens bring {new}; a cache belongs to one batch, one "
                "layer and one encoding"
            )
        return Stored(
            rooms.cat((part, "k"), self.k, new.k),
            rooms.cat((part, "v"), self.v, new.v),
            {n: rooms.cat((part, "feature", n), t, new.features[n]) for n, t in self.features.items()},
        )

    def _kind(self) -> tuple[Any, ...]:
        rows, heads, _, width = self.k.shape
        return (rows, heads, width, self.v.shape[-1], self.k.dtype, self.v.dtype, self.features.keys())

    def __str__(self) -> str:
        rows, heads, width, v_width, dtype, _, features = self._kind()
        return f"{rows} rows, {heads} key heads, widths {width} and {v_width}, {dtype}, features {sorted(features)}"

    def index(self, dim: int, index: Tensor | slice) -> Stored:
        """Take rows (dim 0) or tokens (dim 2)."""

        def pick(t: Tensor) -> Tensor:
            if dim == 0:
                return t if t.shape[0] == 1 != self.k.shape[0] else t[index]
            return t[:, :, index]

        return Stored(pick(self.k), pick(self.v), {n: pick(t) for n, t in self.features.items()})

    def problem(self, like: Attention) -> Attention:
        """Return a problem over the stored keys."""
        return like.replace(k=self.k, v=self.v, kf=self.features)


@dataclass(frozen=True)
class Snapshot:
    """Everything a cache held at one moment."""

    tokens: Tokens | None
    layers: tuple[tuple[tuple[Stored, ...], State], ...]


class LayerCache:
    """The part of a cache that belongs to one layer."""

    def __init__(self, owner: KVCache, encoding: Encoding, index: int) -> None:
        self._owner = owner
        self.encoding = encoding
        self.index = index
        self.stored: tuple[Stored, ...] = ()
        self.state: State = None
        self._rooms = Rooms()
        self.shape: tuple[tuple[int, int, tuple[int, int], int], ...] = ()  # query heads, head_dim, heads, kv_total

    def extend(self, problem: Attention) -> Problem:
        """Encode the new tokens of a problem, keep their keys, and return the problem over all keys so far.

        The problem holds the *new* tokens only. Its positions may be left out: they are those of the step.
        """
        now, every = self._owner._current(self, problem)
        p = problem.replace(positions=now)  # a mask covers all keys already; splits cut its heads
        seen, state = observe(self.encoding, p, self.state)
        fresh = seen if self.encoding.stores == "raw" else rewrite(self.encoding, seen)
        parts = leaves(fresh)
        stored = tuple(Stored.of(leaf) for leaf in parts)
        self.shape = tuple((leaf.num_heads, leaf.head_dim, leaf.heads, leaf.kv_total) for leaf in parts)
        if self.stored:
            if len(stored) != len(self.stored):
                raise CacheError(f"the cache holds {len(self.stored)} parts and the encoding made {len(stored)}")
            pairs = enumerate(zip(self.stored, stored, strict=True))
            stored = tuple(old.cat(new, self._rooms, i) for i, (old, new) in pairs)
        if problem.mask is not None:
            check_mask(stored[0].problem(problem), problem.mask)
        queue: Iterator[Stored] = iter(stored)

        out = map_leaves(fresh, lambda leaf: next(queue).problem(leaf).replace(positions=every))
        if self.encoding.stores == "raw":
            out = rewrite(self.encoding, out)
        else:
            settled = settle(self.encoding, out)
            stored = tuple(Stored.of(leaf) for leaf in leaves(settled))
        self.stored, self.state = stored, state
        self._owner._waiting.discard(self.index)
        return out


class KVCache:
    """Keys, values and running state of a model (or a single layer), for decoding and chunked prefill.

        cache = KVCache([layer.encoding for layer in model.layers])
        positions = cache.step(S)                                   # once per forward
        out = attend(cache[i].extend(Attention(q, k, v, x=x)))      # in layer i

    With one encoding, ``cache.extend(problem)`` also takes the step, unless ``step`` was just called.

    Args:
        encodings: one a layer, or a single one.
        device: where counted positions live; None: where the encodings' own numbers are.
    """

    def __init__(
        self,
        encodings: Encoding | Sequence[Encoding] | nn.ModuleList,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        many = cast("list[Encoding]", [encodings] if isinstance(encodings, Encoding) else list(encodings))
        for i, encoding in enumerate(many):
            if not isinstance(encoding, Encoding):
                raise ConfigError(f"encoding {i} of the cache is a {type(encoding).__name__}, not an Encoding")
            if (why := encoding.why_not_cached()) is not None:
                raise CannotCache(f"{type(encoding).__name__} cannot be decoded with a cache: {why}")
            if encoding.stores == "raw" and overrides(encoding, "settle"):
                raise CannotCompose(
                    f"layer {i} needs raw keys at every step, and one of its encodings stores keys that it has moved on"
                )
        if not many:
            raise ConfigError("a cache needs at least one encoding")
        self._layers = [LayerCache(self, e, i) for i, e in enumerate(many)]
        self._device = device
        self._tokens: Tokens | None = None
        self._now: Positions | None = None  # of the new tokens, in the current step
        self._every: Positions | None = None  # of the new queries among all keys
        self._waiting: set[int] = set()  # layers that have not extended in the current step

    # ---- going on ---------------------------------------------------------------------------------------------

    @property
    def length(self) -> int:
        """Number of cached keys, padding included."""
        return 0 if self._tokens is None else self._tokens.length

    @property
    def nbytes(self) -> int:
        """Bytes of the cached keys, values and features."""
        held = (stored for layer in self._layers for stored in layer.stored)
        return sum(t.numel() * t.element_size() for s in held for t in (s.k, s.v, *s.features.values()))

    @property
    def tokens(self) -> Tokens | None:
        """The cached tokens."""
        return self._tokens

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, layer: int) -> LayerCache:
        return self._layers[layer]

    def step(self, new: int | Positions) -> Positions:
        """Begin a forward pass over new tokens: the next ones by number, or tokens given by their positions.

        Their ``order``, if given, says which of the *new* keys each query is.
        """
        before = self._tokens
        if self._waiting:
            raise CacheError(
                f"layers {sorted(self._waiting)} did not extend the cache in the last step; each must, once a step"
            )
        if isinstance(new, Positions):
            now = new
        elif before is None:
            now = Positions.arange(new, device=self._where())
        else:
            now = Positions(before.continuing(new))
        if before is not None:
            facts = {n: f for n, f in before.sequence.items() if n not in now.query.sequence}
            now = now.map_sides(lambda t: t.with_sequence(**facts)) if facts else now
            now = now.map_sides(lambda t: t.holding(before)) if now.is_self else now
        for layer in self._layers:
            now = layer.encoding.draw(now)
        self._tokens = now.key if before is None else before.cat(now.key)
        self._now = now
        if before is None:
            self._every = now
        else:
            order = None if now.order is None else now.order + before.length
            self._every = Positions.pair(now.query, self._tokens, order)
        self._waiting = set(range(len(self._layers)))
        return now

    def extend(self, problem: Attention) -> Problem:
        """Single layer: take the step if it was not taken, and extend the layer."""
        if len(self._layers) != 1:
            raise CacheError(f"this cache has {len(self._layers)} layers: use cache[i].extend(problem)")
        (layer,) = self._layers
        if not self._waiting:
            before = self.snapshot()
            try:
                self.step(problem.positions if problem.positions is not None else self._infer(problem))
                return layer.extend(problem)
            except Exception:
                self.restore(before)
                raise
        return layer.extend(problem)

    def _infer(self, problem: Attention) -> int | Positions:
        n, m = problem.q.shape[2], problem.k.shape[2]
        if n != m:
            raise CacheError(
                f"{n} new queries and {m} new keys: give positions=Positions(q=..., k=...) for cross-attention"
            )
        if self._tokens is None and self._device is None:
            return Positions.arange(n, device=problem.q.device)
        return n

    def _current(self, layer: LayerCache, problem: Attention) -> tuple[Positions, Positions]:
        """Return the positions of this step, among the new keys and among all."""
        now, every = self._now, self._every
        if now is None or every is None or layer.index not in self._waiting:
            raise CacheError(
                f"layer {layer.index} extends once a step: call cache.step(S) once per forward, before the layers"
            )
        if problem.positions is not None and problem.positions is not now and not _same(problem.positions, now):
            raise CacheError(
                "the problem's positions are not those of the step; give them to cache.step(positions) once and leave the "
                "layers' out"
            )
        check_positions(problem, now)
        return now, every

    def _where(self) -> torch.device | str | None:
        if self._device is not None:
            return self._device
        for layer in self._layers:
            for tensor in (*layer.encoding.buffers(), *layer.encoding.parameters()):
                return tensor.device
        return None

    # ---- going back and aside ---------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return everything the cache holds, as a value; nothing is copied, since what was handed out never changes."""
        self._between_steps("snapshot")
        return Snapshot(self._tokens, tuple((layer.stored, layer.state) for layer in self._layers))

    def restore(self, snapshot: Snapshot) -> None:
        """Return to a snapshot of this cache."""
        if len(snapshot.layers) != len(self._layers):
            raise CacheError(f"the snapshot has {len(snapshot.layers)} layers and this cache has {len(self._layers)}")
        self._replace(snapshot.tokens)
        for layer, (stored, state) in zip(self._layers, snapshot.layers, strict=True):
            layer.stored, layer.state = stored, state

    def _replace(self, tokens: Tokens | None) -> None:
        self._tokens, self._now, self._every, self._waiting = tokens, None, None, set()

    def select(self, rows: Tensor | Sequence[int]) -> None:
        """Keep these rows of the batch, in this order; rows may repeat (beams) or be left out."""
        self._between_steps("select")
        index = torch.as_tensor(rows)
        if index.ndim != 1 or index.is_floating_point():
            raise CacheError(
                f"rows have shape {tuple(index.shape)} and dtype {index.dtype}; give a list of row numbers"
            )
        if self._tokens is None:
            return
        index = index.to(self._tokens.device)
        batch = max([1, *(s.k.shape[0] for layer in self._layers for s in layer.stored)])
        if index.dtype == torch.bool:
            index = index.nonzero()[:, 0]
        if index.numel() and not -batch <= int(index.min()) <= int(index.max()) < batch:
            raise CacheError(f"rows {index.tolist()} of a cache of {batch} rows")
        self._replace(self._tokens.select(index))
        for layer in self._layers:
            layer.stored = tuple(s.index(0, index) for s in layer.stored)
            layer.state = _map_state(layer.state, lambda t: t if t.shape[0] == 1 != batch else t[index])

    def crop(self, n: int) -> None:
        """Keep the first n tokens. Refused where running state cannot be taken back: use `snapshot` there."""
        self._between_steps("crop")
        if not 0 <= n <= self.length:
            raise CacheError(f"crop({n}) of a cache of {self.length} tokens")
        if n == self.length:
            return
        if n == 0:
            self.restore(Snapshot(None, tuple(((), None) for _ in self._layers)))
            return
        for i, layer in enumerate(self._layers):
            if overrides(layer.encoding, "settle"):
                raise CannotCrop(
                    f"layer {i} ({type(layer.encoding).__name__}) moved the kept keys on when later tokens came"
                )
        self._refuse_state(
            CannotCrop,
            "the state after the last kept token is gone; take cache.snapshot() before the draft and restore it",
        )
        assert self._tokens is not None
        self._replace(self._tokens.slice(0, n))
        for layer in self._layers:
            layer.stored = tuple(s.index(2, slice(0, n)) for s in layer.stored)

    def edit(self, keep: Tensor | Sequence[int], positions: Positions | Tensor | None = None) -> None:
        """Keep some tokens and bring them to new positions, or refuse: eviction, shifting, virtual positions.

        Args:
            keep: indices of the tokens to keep, in order.
            positions: where the kept tokens are now; None: where they were.
        """
        self._between_steps("edit")
        if self._tokens is None:
            raise CacheError("edit of an empty cache")
        index = torch.as_tensor(keep, device=self._tokens.device)
        if index.ndim != 1 or index.dtype == torch.bool or index.is_floating_point():
            raise CacheError("keep is a list of token indices, the same for every row")
        if index.numel() and not -self.length <= int(index.min()) <= int(index.max()) < self.length:
            raise CacheError(f"keep asks for tokens {index.tolist()} of {self.length}")
        self._refuse_state(CannotEdit, "it depends on the tokens that would go")
        kept = self._tokens.take(index)
        if positions is None:
            after = kept.with_next(self._following())  # what is evicted does not turn back time
        else:
            moved = positions if isinstance(positions, Positions) else Positions(positions)
            if moved.key.length != kept.length:
                raise CacheError(f"{kept.length} tokens are kept and positions say {moved.key.length}")
            columns = {n: c for n, c in kept.columns.items() if n != "position" and n not in moved.key.columns}
            facts = {n: f for n, f in kept.sequence.items() if n not in moved.key.sequence}
            after = moved.key.with_columns(**columns).with_sequence(**facts)
        layers = []
        for layer in self._layers:
            stored = tuple(s.index(2, index) for s in layer.stored)
            if positions is not None:
                stored = self._moved(layer, stored, kept, after)
            layers.append(stored)
        # Nothing is changed until every layer has agreed.
        self._replace(after)
        for layer, stored in zip(self._layers, layers, strict=True):
            layer.stored = stored

    def _following(self) -> Tensor | None:
        assert self._tokens is not None
        try:
            return self._tokens.next
        except PositionError:
            return None

    def _moved(self, layer: LayerCache, stored: tuple[Stored, ...], kept: Tokens, after: Tokens) -> tuple[Stored, ...]:
        if layer.encoding.stores == "raw":
            return stored  # rewritten at every step from where the tokens are then
        empty = Positions.pair(kept.slice(0, 0), kept)
        problems = []
        for s, (num_heads, head_dim, heads, kv_total) in zip(stored, layer.shape, strict=True):
            none = s.k.new_empty(s.k.shape[0], num_heads, 0, s.k.shape[-1])  # heads count as in the problem
            p = Attention(none, s.k, s.k, empty, causal=False)
            problems.append(p.replace(v=s.v, kf=s.features, head_dim=head_dim, heads=heads, kv_total=kv_total))
        whole = problems[0] if len(problems) == 1 else _resplit(layer.encoding, problems)
        return tuple(Stored.of(leaf) for leaf in leaves(move(layer.encoding, whole, after)))

    def _refuse_state(self, error: type[Exception], why: str) -> None:
        for i, layer in enumerate(self._layers):
            if layer.state is not None:
                raise error(f"layer {i} ({type(layer.encoding).__name__}) carries running state: {why}")

    def _between_steps(self, what: str) -> None:
        if self._waiting:
            raise CacheError(f"{what} in the middle of a step; every layer extends first")


def _resplit(encoding: Encoding, problems: list[Attention]) -> Problem:
    """Split stored keys as `PerHead` split the problem they came from."""
    queue = iter(problems)

    def build(e: Encoding, scope: str) -> Problem | None:
        children = [(n, c) for n, c in e.named_children() if isinstance(c, Encoding)]
        if e.structure == "split":
            items: list[Problem] = []
            for name, child in children:
                items.append(build(child, f"{scope}{name}.") or next(queue))
            return Parts(tuple(items), lambda outs: torch.cat(outs, 1), scope, by_head=True)
        for name, child in children:
            made = build(child, f"{scope}{name}.")
            if made is not None:
                return made
        return None

    made = build(encoding, "")
    if made is None or next(queue, None) is not None:
        raise CannotEdit("keys of an encoding that splits problems in another way than by head cannot be moved")
    return made


def overrides(encoding: Encoding, hook: str) -> bool:
    """Whether an encoding that is no combinator implements a hook."""
    return any(
        isinstance(e, Encoding) and not e.combines and getattr(type(e), hook) is not getattr(Encoding, hook)
        for e in encoding.modules()
    )


def _same(given: Positions, here: Positions) -> bool:
    """Whether two positions say the same; compiled graphs compare shapes only."""
    if given.is_self != here.is_self or (given.order is None) != (here.order is None):
        return False
    pairs = [(given.order, here.order)] if given.order is not None else []
    for a, b in ((given.query, here.query), (given.key, here.key)):
        if a.columns.keys() != b.columns.keys():
            return False
        pairs += [(a.columns[name], b.columns[name]) for name in a.columns]
    for one, other in pairs:
        assert one is not None and other is not None
        if one.shape[1:] != other.shape[1:] or (1 not in (one.shape[0], other.shape[0]) and one.shape != other.shape):
            return False
        if not torch.compiler.is_compiling() and not bool((one == other).all()):
            return False
    return True


def _map_state(state: State, fn: Callable[[Tensor], Tensor]) -> State:
    if state is None:
        return None
    if isinstance(state, Tensor):
        return fn(state)
    return tuple(_map_state(s, fn) for s in state)
