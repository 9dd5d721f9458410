"""Where the tokens are.

`Tokens` holds the facts about one side of an attention problem as named columns; `Positions` pairs a query
side with a key side. Both are plain immutable objects and deliberately not dataclasses: sharding wrappers walk
dataclasses and cast the floating tensors they find, which would turn real positions into bfloat16.

An encoding that moves coordinates makes no new positions. It extends a *chain* of frozen `Map`s, and whoever reads
coordinates says which chain it saw; so caches, edits and layers agree by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropewalk.core.errors import NeedsColumn, PositionError, ShapeError

T = TypeVar("T")

EXACT = 2**53  # float64 holds every integer up to here
CARRIED = ("document", "block")
"""Columns in which tokens that follow are like the last real one: of the same document, after the same block."""

ORDER = "order"
"""Column of keys that are a stretch of a sequence: the index of each in the whole, rising. Causality goes by it."""

_ALLOWED = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.float64, torch.float32)
HELD = ("segment",)
"""Columns in which a token that follows is like the last real one before it, unless its positions say otherwise."""

_HELD = {torch.float16: 2**11, torch.bfloat16: 2**8, torch.float32: 2**24}


class Map(Protocol):
    """A frozen change of coordinates: ``map(tokens, coordinates) -> coordinates``, equal by its ``key``.

    ``learned`` maps carry gradients and are therefore never memoised.
    """

    @property
    def learned(self) -> bool:
        """Whether it has parameters."""

    @property
    def key(self) -> Hashable:
        """Value by which two maps are the same map."""

    def __call__(self, tokens: Tokens, coordinates: Tensor) -> Tensor:
        """Map ``coordinates`` (b, S[, axes]) of ``tokens``; float64 in, float64 out."""


Chain = tuple[Map, ...]


class Tokens:
    """Facts about the tokens of one side, shared by all layers. Immutable.

    Args:
        columns: named tensors whose first two axes are (b, S), b = 1 or the batch. ``position`` is required:
            (b, S) or (b, S, axes), int64 or float64. ``document`` and ``valid`` are known to the library; any
            other name is for the encodings that read it (``camera``, ``segment``, ...).
        sequence: facts about the whole sequence rather than a token, such as samples drawn for it: (b, ...).
        next: (b,) position that decoding continues with. ``None``: taken from the last token where that is plain
            arithmetic, and an error where it would be a guess.
    """

    __slots__ = ("_memo", "_next", "columns", "sequence")

    columns: Mapping[str, Tensor]
    sequence: Mapping[str, Tensor]

    def __init__(
        self,
        columns: Mapping[str, Tensor],
        sequence: Mapping[str, Tensor] | None = None,
        next: Tensor | None = None,
    ) -> None:
        self.columns = columns
        self.sequence = {} if sequence is None else sequence
        self._next = next
        self._memo: dict[Hashable, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokens, (self.columns, self.sequence, self._next)  # tables are made anew where they are needed

    # ---- building -------------------------------------------------------------------------------------------

    @classmethod
    def arange(
        cls,
        n: int,
        *,
        offset: int = 0,
        batch: int = 1,
        document_ids: Tensor | None = None,
        valid: Tensor | None = None,
        device: torch.device | str | None = None,
    ) -> Tokens:
        """Count the real tokens of each document from ``offset``: padding shifts nothing, documents start anew."""
        _whole("number of tokens", n, 0)
        _whole("offset", offset, 0)
        if document_ids is None and valid is None:
            position = torch.arange(offset, offset + n, device=device).expand(batch, n)
            return cls({"position": position}, next=position.new_full((batch,), offset + n))
        given = document_ids if document_ids is not None else valid
        assert given is not None
        document = None if document_ids is None else _documents(document_ids, n)
        real = _valid(valid, n) if valid is not None else torch.ones_like(_rows(given, n), dtype=torch.bool)
        count = real.long().cumsum(-1)
        start = torch.zeros_like(count)
        if document is not None:
            fresh = torch.ones_like(document, dtype=torch.bool)
            fresh[:, 1:] = document[:, 1:] != document[:, :-1]
            start = torch.where(fresh, count - real.long(), 0).cummax(-1).values if n else start
        position = (count - 1 - start).clamp(min=0) + offset
        columns = {"position": position}
        if document is not None:
            columns["document"] = document
        if valid is not None:
            columns["valid"] = real
        return cls(columns)

    @classmethod
    def of(
        cls,
        position: Tensor,
        *,
        document_ids: Tensor | None = None,
        valid: Tensor | None = None,
        columns: Mapping[str, Tensor] | None = None,
        next: Tensor | None = None,
    ) -> Tokens:
        """Take positions as they are given, checked: (S,), (b, S) or (b, S, axes); integer or real."""
        position = _position(position)
        n, rows = position.shape[1], position.shape[0]
        made = {"position": position}
        if document_ids is not None:
            made["document"] = _documents(document_ids, n)
        if valid is not None:
            made["valid"] = _valid(valid, n)
        for name, column in (columns or {}).items():
            if column.ndim < 2 or column.shape[1] != n:
                raise PositionError(
                    f"column {name!r} has shape {tuple(column.shape)}; columns start with (batch or 1, {n})"
                )
            made[name] = _plain_tensor(column)
        for name, column in made.items():
            if 1 not in (rows, column.shape[0]) and column.shape[0] != rows:
                raise PositionError(
                    f"positions have {rows} rows and {name!r} has {column.shape[0]}; give 1 row or as many"
                )
        if next is not None:
            next = torch.as_tensor(next, device=position.device).reshape(-1)
        return cls(made, next=next)

    # ---- reading --------------------------------------------------------------------------------------------

    @property
    def position(self) -> Tensor:
        """The positions as given: (b, S) or (b, S, axes)."""
        return self.columns["position"]

    @property
    def length(self) -> int:
        """Number of tokens, padding included."""
        return self.position.shape[1]

    @property
    def batch(self) -> int:
        """Rows that differ: 1 when all rows of the batch share these facts."""
        return max(c.shape[0] for c in self.columns.values())

    @property
    def axes(self) -> int | None:
        """Number of axes of a position, or None when positions are plain numbers."""
        return self.position.shape[2] if self.position.ndim == 3 else None

    @property
    def device(self) -> torch.device:
        """Where the columns live."""
        return self.position.device

    def column(self, name: str, made_by: str | None = None) -> Tensor:
        """Return a column, or say clearly that these tokens do not carry it.

        Args:
            name: of the column.
            made_by: the call that makes positions with it, for that message.
        """
        if name not in self.columns:
            give = f"Give it as Positions(..., columns={{{name!r}: tensor}})"
            if made_by is not None:
                give = f"Make them with {made_by}"
            raise NeedsColumn(
                f"the encoding reads the column {name!r}, but these positions carry {sorted(self.columns)}. "
                f"{give}, for the new tokens of a decoding step too"
            )
        return self.columns[name]

    def coordinates(self, chain: Chain = ()) -> Tensor:
        """Float64 coordinates after a chain of maps, computed once for all who ask."""
        if not chain:
            return self.memo(lambda: "coordinates", self.position.double)

        def make() -> Tensor:
            return chain[-1](self, self.coordinates(chain[:-1]))

        if any(m.learned for m in chain):
            return make()
        return self.memo(lambda: ("coordinates", *(m.key for m in chain)), make)

    def memo(self, key: Callable[[], Hashable], make: Callable[[], T]) -> T:
        """Return what was made under this key, or make it. Never for anything that needs gradients.

        In a compiled graph the memo is read, never written, and the key is not even computed while the memo is
        empty: keys hold hyper-parameters, and guards on those would compile every layer anew.
        """
        if any(t.requires_grad for facts in (self.columns, self.sequence) for t in facts.values()):
            return make()  # learned positions, camera poses, ...: the memo would cut their gradients off
        return _memoised(self._memo, key, make)

    @property
    def next(self) -> Tensor:
        """(b,) position of the token that decoding continues with."""
        if self._next is not None:
            return self._next
        position, n = self.position, self.length
        advice = "give the positions of the new tokens, or next= when making these positions"
        if self.axes is not None or position.is_floating_point():
            what = f"{self.axes}-axis" if self.axes is not None else "real-valued"
            raise PositionError(f"what follows {what} positions is not known; {advice}")
        if n == 0:
            raise PositionError(f"nothing follows from zero tokens; {advice}")
        valid = self.columns.get("valid")
        if valid is None:
            valid = torch.ones_like(position, dtype=torch.bool)
        document = self.columns.get("document", torch.zeros_like(position))
        rows = max(position.shape[0], valid.shape[0], document.shape[0])
        position, valid, document = (t.expand(rows, n) for t in (position, valid, document))
        index = torch.arange(n, device=position.device)
        last = torch.where(valid, index, -1).amax(-1)
        # Each real token has to lie beyond the real token before it, where both are of one document.
        before = torch.where(valid, index, -1).cummax(-1).values.roll(1, -1)
        before[:, 0] = -1
        there = before.clamp(min=0)
        beyond = (position > position.gather(1, there)) | (document != document.gather(1, there))
        sure = (beyond | ~valid | (before < 0)).all() & (last >= 0).all()
        message = f"what follows positions that do not rise from token to token would be a guess; {advice}"
        if is_compiling():
            torch._assert_async(sure, message)
        elif not sure:
            raise PositionError(message)
        return position.gather(1, last.clamp(min=0)[:, None])[:, 0] + 1

    # ---- making others --------------------------------------------------------------------------------------

    def continuing(self, n: int) -> Tokens:
        """Return the ``n`` tokens that follow these: next positions on every axis, `CARRIED` columns of the last real one."""
        _whole("number of tokens", n, 0)
        step = torch.arange(n, device=self.device)
        following = self.next.to(self.position.dtype)
        position = following[:, None] + step
        if self.axes is not None:
            position = position[..., None].expand(*position.shape, self.axes)
        columns = {"position": position}
        carried = {name: self.columns[name] for name in CARRIED if name in self.columns}
        if carried:
            rows = max(position.shape[0], *(column.shape[0] for column in carried.values()))
            last = torch.full((rows,), self.length - 1, device=self.device)
            if "valid" in self.columns:
                index = torch.arange(self.length, device=self.device)
                last = torch.where(self.columns["valid"], index, 0).amax(-1).expand(rows)
            for name, column in carried.items():
                columns[name] = column.expand(rows, -1).gather(1, last[:, None]).expand(rows, n)
        return Tokens(columns, self.sequence, next=following + n)

    def cat(self, other: Tokens) -> Tokens:
        """Join two stretches of the same sequences."""
        if self.axes != other.axes:
            raise PositionError(
                f"positions with {self.axes or 'no'} axes cannot continue with {other.axes or 'no'} axes; "
                "give all tokens of a sequence the same kind of position"
            )
        if ("document" in self.columns) != ("document" in other.columns):
            raise PositionError(
                "some tokens have document_ids and the ones they are joined with have none; give document_ids to both"
            )
        columns = {}
        for name in self.columns.keys() | other.columns.keys():
            pair = [t.columns.get(name) for t in (self, other)]
            if name == "valid":
                pair = [
                    torch.ones_like(t.position[..., 0] if t.axes else t.position, dtype=torch.bool) if c is None else c
                    for t, c in zip((self, other), pair, strict=True)
                ]
            if pair[0] is None or pair[1] is None:
                continue  # known of some tokens only: whoever reads it is told so
            columns[name] = _join(pair[0], pair[1], name)
        # What newer tokens say of the whole sequence takes the place of what older ones said: a new image in a conversation.
        return Tokens(columns, {**self.sequence, **other.sequence}, next=other._next)

    def holding(self, before: Tokens) -> Tokens:
        """Return the same tokens, which follow ``before``, with what stays as it was where they do not say it (`HELD`)."""
        missing = [n for n in HELD if n in before.columns and n not in self.columns]
        if not missing or before.length == 0:
            return self
        held = {}
        for name in missing:
            column = before.columns[name]
            valid = before.columns.get("valid")
            if valid is None:
                held[name] = column[:, -1:].expand(-1, self.length, *column.shape[2:])
                continue
            rows = max(column.shape[0], valid.shape[0])
            index = torch.arange(before.length, device=column.device)
            last = torch.where(valid, index, 0).amax(-1).expand(rows)
            found = column.expand(rows, *column.shape[1:])[torch.arange(rows, device=column.device), last]
            held[name] = found[:, None].expand(-1, self.length, *column.shape[2:])
        return self.with_columns(**held)

    def slice(self, start: int, stop: int | None = None) -> Tokens:
        """Return the tokens ``start:stop``."""
        ends = stop is None or stop >= self.length
        columns = {name: c[:, start:stop] for name, c in self.columns.items()}
        return Tokens(columns, self.sequence, next=self._next if ends else None)

    def take(self, index: Tensor) -> Tokens:
        """Return the tokens at ``index`` (1-D, the same for every row), in that order."""
        return Tokens({name: c[:, index] for name, c in self.columns.items()}, self.sequence)

    def select(self, rows: Tensor) -> Tokens:
        """Return other rows of the batch, in the order given."""

        def pick(c: Tensor) -> Tensor:
            return c if c.shape[0] == 1 else c[rows]

        return Tokens(
            {name: pick(c) for name, c in self.columns.items()},
            {name: pick(c) for name, c in self.sequence.items()},
            None if self._next is None else pick(self._next),
        )

    def with_next(self, next: Tensor | None) -> Tokens:
        """Return the same tokens, with what follows them said (or, by None, left to be found)."""
        return Tokens(self.columns, self.sequence, next)

    def with_columns(self, **columns: Tensor) -> Tokens:
        """Return the same tokens with further (or other) columns."""
        return Tokens({**self.columns, **columns}, self.sequence, self._next)

    def with_sequence(self, **facts: Tensor) -> Tokens:
        """Return the same tokens with further facts about their whole sequence."""
        return Tokens(self.columns, {**self.sequence, **facts}, self._next)

    def to(self, device: torch.device | str) -> Tokens:
        """Return the same tokens on another device."""
        return Tokens(
            {name: c.to(device) for name, c in self.columns.items()},
            {name: c.to(device) for name, c in self.sequence.items()},
            None if self._next is None else self._next.to(device),
        )

    def __repr__(self) -> str:
        return f"Tokens({', '.join(f'{n}={tuple(c.shape)}' for n, c in self.columns.items())})"


class Positions:
    """Where the queries and the keys are. Immutable.

    ``Positions(tensor)`` takes positions as they are; ``Positions.arange(n)`` counts; ``Positions(q=..., k=...)``
    gives the two sides of cross-attention (tensors, `Tokens` or `Positions`). Make one per forward pass and hand it
    to every layer: tables are then computed once.

    Args:
        position: (S,), (batch or 1, S) or (batch or 1, S, axes), integer or real. Integers are exact up to 2**53.
        q: query side, with ``k``, instead of ``position``.
        k: key side.
        document_ids: (S,) or (batch, S) integers; tokens see their own document only.
        cu_seqlens: (documents + 1,) cumulative lengths of the packed documents of a batch of one, as another
            spelling of ``document_ids``.
        valid: (S,) or (batch, S), True for real tokens and False for padding, which nobody attends to.
        columns: further facts about the tokens, (batch or 1, S, ...) each.
        next: (batch,) position of the token that decoding continues with.
        order: (batch or 1, Q) which key each query is. Causality goes by this alone. None: the last Q keys.

    Raises:
        PositionError: NaN, infinite or inexact positions, wrong shapes or lengths.
    """

    __slots__ = ("_memo", "key", "order", "query")

    query: Tokens
    key: Tokens
    order: Tensor | None

    def __init__(
        self,
        position: Tensor | Tokens | Sequence[float] | None = None,
        *,
        q: Tensor | Tokens | Positions | None = None,
        k: Tensor | Tokens | Positions | None = None,
        document_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        valid: Tensor | None = None,
        columns: Mapping[str, Tensor] | None = None,
        next: Tensor | None = None,
        order: Tensor | None = None,
    ) -> None:
        if (position is None) == (q is None and k is None) or (q is None) != (k is None):
            raise PositionError("give either one tensor of positions, or both q= and k=")
        if position is not None:
            if isinstance(position, Tokens):
                _nothing_else("Tokens carry their own facts", document_ids, cu_seqlens, valid, columns, next)
                side = position
            else:
                tensor = position if isinstance(position, Tensor) else _from_list(position)
                _check_shape(tensor)
                ids = _from_cu_seqlens(cu_seqlens, tensor.shape[0 if tensor.ndim < 2 else 1], document_ids)
                side = Tokens.of(tensor, document_ids=ids, valid=valid, columns=columns, next=next)
            self.query = self.key = side
        else:
            _nothing_else(
                "each side carries its own facts: give q= and k= as Positions(...) with them",
                document_ids, cu_seqlens, valid, columns, next,
            )  # fmt: skip
            self.query, self.key = _side(q, "query"), _side(k, "key")
            if ("document" in self.query.columns) != ("document" in self.key.columns):
                raise PositionError(
                    "one side has document_ids and the other has none, so who sees whom is not said; give them to both sides, or "
                    "to neither"
                )
        if order is not None:
            order = torch.as_tensor(order, device=self.query.device)
            order = order[None] if order.ndim == 1 else order
            if order.ndim != 2 or order.shape[1] != self.query.length or order.is_floating_point():
                raise PositionError(
                    f"order has shape {tuple(order.shape)} and dtype {order.dtype}; it holds one key index "
                    f"(integer) for each of the {self.query.length} queries"
                )
        self.order = order
        self._memo: dict[Hashable, Any] = {}

    @classmethod
    def arange(
        cls,
        n: int,
        *,
        offset: int = 0,
        batch: int = 1,
        document_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        valid: Tensor | None = None,
        device: torch.device | str | None = None,
    ) -> Positions:
        """Count from ``offset``: over the real tokens only, and anew in each packed document."""
        ids = _from_cu_seqlens(cu_seqlens, n, document_ids)
        return cls(Tokens.arange(n, offset=offset, batch=batch, document_ids=ids, valid=valid, device=device))

    def __reduce__(self) -> tuple[Any, ...]:
        return Positions.pair, (self.query, self.key, self.order)

    @property
    def is_self(self) -> bool:
        """Whether queries and keys are the same tokens."""
        return self.query is self.key

    @property
    def device(self) -> torch.device:
        """Where the positions live."""
        return self.query.device

    def index(self) -> Tensor:
        """(b, Q) index of each query among the keys."""
        if self.order is not None:
            return self.order
        q, k = self.query.length, self.key.length
        if ORDER in self.key.columns:
            return self.key.columns[ORDER][:, k - q :]
        return torch.arange(k - q, k, device=self.device)[None]

    def key_index(self) -> Tensor:
        """(b, K) index of each key: counted from 0, unless the keys are a stretch of a sequence and say where it lies."""
        if ORDER in self.key.columns:
            return self.key.columns[ORDER]
        return torch.arange(self.key.length, device=self.device)[None]

    def memo(self, key: Callable[[], Hashable], make: Callable[[], T]) -> T:
        """Memo for what depends on both sides (masks); same rules as `Tokens.memo`."""
        return _memoised(self._memo, key, make)

    def slice(self, start: int, stop: int | None = None) -> Positions:
        """Return the tokens ``start:stop`` of self-attention positions, as a chunk of their own."""
        if not self.is_self:
            raise PositionError("only the positions of self-attention can be sliced on both sides at once")
        return Positions(self.query.slice(start, stop))

    def select(self, rows: Tensor) -> Positions:
        """Return other rows of the batch."""
        query = self.query.select(rows)
        key = query if self.is_self else self.key.select(rows)
        order = self.order if self.order is None or self.order.shape[0] == 1 else self.order[rows]
        return Positions.pair(query, key, order)

    def take_queries(self, index: Tensor) -> Positions:
        """Keep the queries at ``index`` only (1-D); the keys stay."""
        return Positions.pair(self.query.take(index), self.key, self.index()[:, index])

    def map_sides(self, fn: Callable[[Tokens], Tokens]) -> Positions:
        """Apply ``fn`` to both sides (once, when they are the same)."""
        query = fn(self.query)
        return Positions.pair(query, query if self.is_self else fn(self.key), self.order)

    def to(self, device: torch.device | str) -> Positions:
        """Return the same positions on another device."""
        moved = self.map_sides(lambda t: t.to(device))
        return moved if self.order is None else Positions.pair(moved.query, moved.key, self.order.to(device))

    @classmethod
    def pair(cls, query: Tokens, key: Tokens, order: Tensor | None = None) -> Positions:
        """Pair two sides without further checks."""
        made = cls.__new__(cls)
        made.query, made.key, made.order, made._memo = query, key, order, {}
        return made

    def __repr__(self) -> str:
        return f"Positions({self.query})" if self.is_self else f"Positions(q={self.query}, k={self.key})"


def _memoised(memo: dict[Hashable, Any], key: Callable[[], Hashable], make: Callable[[], T]) -> T:
    if is_compiling():
        return memo[key()] if memo and key() in memo else make()
    name = key()
    if name not in memo:
        # A table made in inference mode could never be used in a later training step.
        with torch.inference_mode(False), torch.no_grad():
            memo[name] = make()
    return memo[name]


# ---- checks ---------------------------------------------------------------------------------------------------


def _side(side: Tensor | Tokens | Positions | None, name: str) -> Tokens:
    if isinstance(side, Positions):
        return side.query if name == "query" else side.key
    if isinstance(side, Tokens):
        return side
    assert side is not None
    return Tokens.of(side if isinstance(side, Tensor) else _from_list(side))


def _position(position: Tensor) -> Tensor:
    """Check positions and bring them to (b, S[, axes]) int64 or float64."""
    _check_shape(position)
    check_position(position)
    if position.ndim == 1:
        position = position[None]
    return _plain_tensor(position.double() if position.is_floating_point() else position.long())


def _check_shape(position: Tensor) -> None:
    if position.ndim not in (1, 2, 3):
        raise PositionError(
            f"positions of shape {tuple(position.shape)}; allowed are (S,), (batch, S) and (batch, S, axes)"
        )


def check_position(position: Tensor) -> None:
    """Check that numbers can be positions: finite, and in a dtype that holds them exactly."""
    if position.dtype in (torch.float16, torch.bfloat16):
        raise PositionError(
            f"positions in {position.dtype} are exact only up to {_HELD[position.dtype]}: neighbouring ids would "
            "coincide. Keep positions in int64 (or float64), also in a low-precision model"
        )
    if position.dtype not in _ALLOWED:
        raise PositionError(f"positions are integers or real numbers in one of {_ALLOWED}; got {position.dtype}")
    real = position.is_floating_point()
    if is_compiling():
        if real:
            torch._assert_async(position.isfinite().all(), "positions are NaN or infinite")
    elif position.numel() and not position.is_meta:
        if real and not bool(position.isfinite().all()):
            raise PositionError("positions are NaN or infinite; look at where they were computed")
        limit = _HELD.get(position.dtype, EXACT)
        wide = position if real else position.long()
        if bool(((wide > limit) | (wide < -limit)).any()):
            raise PositionError(
                f"positions from {wide.min().item():.17g} to {wide.max().item():.17g} do not fit {position.dtype} exactly "
                f"(limit {limit}); use int64 or float64"
            )


def _from_list(position: Sequence[float]) -> Tensor:
    tensor = torch.as_tensor(position)
    return torch.as_tensor(position, dtype=torch.float64) if tensor.is_floating_point() else tensor


def _nothing_else(why: str, *facts: object) -> None:
    if any(fact is not None for fact in facts):
        raise PositionError(f"document_ids, cu_seqlens, valid, columns and next go with a tensor of positions; {why}")


def _plain_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor that training may use later, even when made under inference mode."""
    if not is_compiling() and tensor.is_inference():
        with torch.inference_mode(False):
            return tensor.clone()
    return tensor


def _rows(column: Tensor, n: int) -> Tensor:
    return column[None] if column.ndim == 1 else column


def _valid(valid: Tensor, n: int) -> Tensor:
    valid = _rows(torch.as_tensor(valid), n)
    if valid.ndim != 2 or valid.shape[1] != n or valid.is_floating_point():
        raise PositionError(
            f"valid has shape {tuple(valid.shape)} and dtype {valid.dtype}; it is (S,) or (batch, S) with S = {n}, "
            "boolean, True for real tokens (an integer 0/1 attention mask is fine)"
        )
    return _plain_tensor(valid.bool())


def _documents(document_ids: Tensor, n: int) -> Tensor:
    ids = _rows(torch.as_tensor(document_ids), n)
    if ids.ndim != 2 or ids.shape[1] != n or ids.is_floating_point() or ids.dtype == torch.bool:
        raise PositionError(
            f"document_ids have shape {tuple(ids.shape)} and dtype {ids.dtype}; they are integers, (S,) or (batch, S) "
            f"with S = {n}"
        )
    return _plain_tensor(ids.long())


def _from_cu_seqlens(cu_seqlens: Tensor | None, n: int, document_ids: Tensor | None) -> Tensor | None:
    if cu_seqlens is None:
        return document_ids
    if document_ids is not None:
        raise PositionError("give document_ids or cu_seqlens, not both: they say the same")
    return packed_documents(torch.as_tensor(cu_seqlens), n)


def packed_documents(cu: Tensor, n: int) -> Tensor:
    """Return the document of each of ``n`` packed tokens, (n,), from the places where documents begin; checks these."""
    if cu.ndim != 1 or cu.is_floating_point() or cu.dtype == torch.bool or len(cu) < 2:
        raise PositionError(
            f"cu_seqlens has shape {tuple(cu.shape)} and dtype {cu.dtype}; it is 1-D, integer, from 0 to the total length"
        )
    if is_compiling():
        rises = (cu[0] == 0) & (cu[-1] == n) & (cu[1:] >= cu[:-1]).all()
        torch._assert_async(rises, "cu_seqlens does not rise from 0 to the number of tokens")
    elif not cu.is_meta:
        steps = cu[1:] - cu[:-1]
        if int(cu[0]) != 0 or int(cu[-1]) != n or bool((steps < 0).any()):
            raise PositionError(f"cu_seqlens runs {cu.tolist()}; it must rise from 0 to the number of tokens, {n}")
    return torch.searchsorted(cu[1:].contiguous(), torch.arange(n, device=cu.device), right=True)


def _whole(what: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt) or value < least:
        raise PositionError(f"{what} is a whole number from {least}, got {value!r}")


def _join(a: Tensor, b: Tensor, name: str) -> Tensor:
    rows = max(a.shape[0], b.shape[0])
    if min(a.shape[0], b.shape[0]) not in (1, rows) or a.shape[2:] != b.shape[2:]:
        raise ShapeError(f"column {name!r} of shape {tuple(a.shape)} cannot be joined with {tuple(b.shape)}")
    if a.dtype != b.dtype:
        b = b.to(torch.promote_types(a.dtype, b.dtype))
        a = a.to(b.dtype)
    return torch.cat([a.expand(rows, *a.shape[1:]), b.expand(rows, *b.shape[1:])], dim=1)
