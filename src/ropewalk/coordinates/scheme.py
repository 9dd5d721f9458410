"""What a scheme of coordinates is: a rule that turns blocks into coordinates, as a map of positions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable

import torch
from torch import Tensor

from ropewalk.coordinates.blocks import NUMBER, SHARED, SIGNAL, TEXT, Table
from ropewalk.core.errors import NeedsColumn, PositionError
from ropewalk.core.positions import Positions, Tokens

GRID = ("frame", "row", "column", "layer", "seconds", "reference")
"""Names of the numbers that all tokens of images and videos have."""


class Scheme(ABC):
    """Text counts on; a block stands at the cursor and moves it on by `advance`; its tokens lie where `place` says.

    A published scheme is a frozen dataclass with these two methods. It is a map like any other: equal by value, applied to any
    tokens alone, so that decoding, chunks, padding and packing follow. Tokens carry the list of their blocks
    (`ropewalk.coordinates.layout`), and the cursor of a token follows from that list.

    Shapes: positions (b, S) of a layout → (b, S, axes) float64.
    """

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes it makes."""
        return ("t", "h", "w")

    @abstractmethod
    def advance(self, table: Table) -> Tensor:
        """Return by how much each visual block moves the cursor, (b, N)."""

    @abstractmethod
    def place(self, cells: Cells) -> Tensor:
        """Return the coordinates of tokens of visual blocks, (b, S, axes); what is text in ``cells`` is not looked at."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Numbers of tokens that it reads, by name; a scheme that reads none refuses blocks of which nothing else is known."""
        return ()

    # ---- a map of positions -----------------------------------------------------------------------------------

    @property
    def learned(self) -> bool:
        """No scheme has parameters."""
        return False

    @property
    def key(self) -> Hashable:
        """Schemes are equal by value."""
        return self

    def __call__(self, tokens: Tokens, coordinates: Tensor) -> Tensor:
        """Return the coordinates of tokens at counted positions (b, S).

        Raises:
            NeedsColumn: blocks whose tokens have numbers by name, of which the scheme reads none.
        """
        self._knows(tokens)
        return self.at(Cells.of(tokens, coordinates, self))

    def _knows(self, tokens: Tokens) -> None:
        there = [name.removeprefix(NUMBER) for name in tokens.sequence if name.startswith(NUMBER)]
        missing = [name for name in self.reads if name not in there and name not in GRID]
        if there and (missing or not self.reads):
            says = (
                f"no block says {missing[0]!r}" if missing else f"{type(self).__name__} places text, images and videos"
            )
            raise NeedsColumn(
                f"{says}, and blocks of this layout have the numbers {', '.join(there)}: another scheme has to read them, "
                f"such as ColumnIds({tuple(there)!r})"
            )

    def at(self, cells: Cells) -> Tensor:
        """Return the coordinates of tokens that were looked up."""
        text = cells.text[..., None].expand(*cells.text.shape, len(self.axes))
        return torch.where(cells.placed[..., None], self.place(cells), text)

    # ---- for users --------------------------------------------------------------------------------------------

    def coordinates(self, tokens: Tokens) -> Tensor:
        """Return the coordinates of the tokens of a layout, (b, S, axes) float64."""
        return tokens.coordinates((self,))

    def cursor(self, tokens: Tokens) -> Tensor:
        """(b,) the coordinate, the same on every axis, of the token that decoding continues with."""
        return self.coordinates(tokens.continuing(1))[:, 0, 0]

    def follows(self, tokens: Tokens) -> Tensor | None:
        """Return the cursor; None where nothing is decoded after such tokens."""
        return self.cursor(tokens)

    def delta(self, tokens: Tokens) -> Tensor:
        """(b,) cursor − length, padding included: what other libraries call rope_delta."""
        return self.cursor(tokens) - tokens.length

    def positions(self, of: Positions) -> Positions:
        """Return positions that are these coordinates, with what follows them; blocks are no longer known then."""

        def fixed(tokens: Tokens) -> Tokens:
            kept = {n: c for n, c in tokens.columns.items() if n != "block"}
            facts = {
                n: f for n, f in tokens.sequence.items() if n not in ("blocks", "times") and not n.startswith(NUMBER)
            }
            made = Tokens({**kept, "position": self.coordinates(tokens)}, facts)
            return made.with_next(self.follows(tokens))

        return of.map_sides(fixed)


class Cells:
    """Tokens looked up in their blocks: every fact of the block of each token, and which of its cells it is.

    Args:
        table: the blocks, (b, N).
        begun: (b, S) number of the block that has begun last, from 1; 0: none.
        position: (b, S) where the tokens are, counted in their document.
        scheme: whose cursor is wanted; None: only what the blocks say.
    """

    def __init__(self, table: Table, begun: Tensor, position: Tensor, scheme: Scheme | None = None) -> None:
        self.table, self.begun, self.position, self.scheme = table, begun, position, scheme
        self.index = (begun - 1).clamp(0, table.numbers.shape[1] - 1)

    @classmethod
    def of(cls, tokens: Tokens, position: Tensor, scheme: Scheme | None = None) -> Cells:
        """Look the tokens of a layout up.

        Raises:
            NeedsColumn: tokens that do not say what blocks they are of.
        """
        if "block" not in tokens.columns or "blocks" not in tokens.sequence:
            raise NeedsColumn(
                "these positions do not say what blocks their tokens are of (or where decoding stands): make them with "
                "rw.layout([Text(...), Image(...), ...]), and let the cache count on from there"
            )
        if position.ndim != 2:
            raise PositionError(f"a layout counts tokens; its positions have {position.shape[2]} axes")
        numbers, block = tokens.sequence["blocks"], tokens.column("block")
        rows = max(numbers.shape[0], block.shape[0], position.shape[0])
        if numbers.shape[1] == 0:  # no block anywhere: one that is none
            numbers = numbers.new_zeros(numbers.shape[0], 1, numbers.shape[2])
        table = Table(numbers.expand(rows, *numbers.shape[1:]), tokens.sequence)
        return cls(table, block.expand(rows, -1), position.expand(rows, -1), scheme)

    def moved(self, begun: Tensor, position: Tensor) -> Cells:
        """Look other tokens up in the same blocks."""
        return Cells(self.table, begun, position, self.scheme)

    def take(self, per_block: Tensor) -> Tensor:
        """Return the value of each token's block, (b, N) → (b, S)."""
        return per_block.expand(self.index.shape[0], -1).gather(1, self.index)

    def __getitem__(self, name: str) -> Tensor:
        """A field of each token's block."""
        return self.take(self.table[name])

    @property
    def offset(self) -> Tensor:
        """Tokens of its block before it."""
        return self.position - self["start"]

    @property
    def inside(self) -> Tensor:
        """Whether the token is of the block that has begun last, and not of the text after it."""
        return (self.begun > 0) & (self.offset < self["tokens"])

    @property
    def visual(self) -> Tensor:
        """Whether it is of an image or a video."""
        return self.inside & self.take(self.table.visual)

    @property
    def placed(self) -> Tensor:
        """Whether the scheme says where it is: all but text."""
        return self.inside & self.take(self.table.visual | (self.table["kind"] == SIGNAL))

    # ---- cursors ----------------------------------------------------------------------------------------------

    @property
    def own(self) -> Tensor:
        """Tokens that each block has beyond what it moves the cursor by, (b, N)."""
        assert self.scheme is not None
        table = self.table
        advance = torch.where(table["kind"] == SHARED, 0.0, self.scheme.advance(table))
        return torch.where(table["kind"] == TEXT, 0.0, torch.where(table.real, table["tokens"] - advance, 0.0))

    @property
    def saved(self) -> Tensor:
        """The same of each block and all before it in its document, (b, N)."""
        before = self.own.cumsum(-1) - self.own
        return before + self.own - before.gather(1, self.table["first"].long())

    @property
    def stands(self) -> Tensor:
        """Cursor at which each block stands, (b, N)."""
        return self.table["start"] - (self.saved - self.own)

    @property
    def text(self) -> Tensor:
        """Coordinate of the token if it is text."""
        inside = self.inside & (self["kind"] == SHARED)  # a suffix gives back what it took only when it ends
        saved = self.take(self.saved) - torch.where(inside, self.take(self.own), 0.0)
        return self.position - torch.where(self.begun > 0, saved, 0.0)

    @property
    def cursor(self) -> Tensor:
        """Coordinate at which the token's block stands."""
        return self.take(self.stands)

    # ---- cells of a grid --------------------------------------------------------------------------------------

    @property
    def frame(self) -> Tensor:
        """Frame of its video, from 0."""
        return (self.offset / self._cells(3)).floor()

    @property
    def row(self) -> Tensor:
        """Row of its grid, from 0."""
        return (self.offset / self._cells(2)).floor().remainder(self["rows"].clamp(min=1))

    @property
    def column(self) -> Tensor:
        """Column of its grid, from 0."""
        return (self.offset / self._cells(1)).floor().remainder(self["columns"].clamp(min=1))

    @property
    def layer(self) -> Tensor:
        """Cell of the third axis of space, from 0."""
        return self.offset.remainder(self["depth"].clamp(min=1))

    def _cells(self, axes: int) -> Tensor:
        """Tokens of a step along an axis: those of the axes inside it."""
        sizes = [self[name].clamp(min=1) for name in ("depth", "columns", "rows")][:axes]
        made = sizes[0]
        for size in sizes[1:]:
            made = made * size
        return made

    @property
    def seconds(self) -> Tensor:
        """When the frame of the token is shown."""
        return self.table.seconds(self.frame, self["times"])

    # ---- numbers by name --------------------------------------------------------------------------------------

    def named(self, name: str) -> Tensor:
        """Return the number that each token has by a name, (b, S); NaN where it has none.

        Tokens of images and videos have those of `GRID`, the others what their blocks say.
        """
        none = torch.full_like(self.offset, torch.nan)
        made = none
        facts = self.table.facts.get(NUMBER + name)
        if facts is not None and facts.shape[1]:
            rows = max(facts.shape[0], none.shape[0])
            index = (self["numbers"] + self.offset).long().clamp(0, facts.shape[1] - 1)
            found = facts.expand(rows, -1).gather(1, index.expand(rows, -1))
            made = torch.where(self.inside & (self["numbers"] >= 0), found, none)
        if name in GRID:
            own = self["reference"] if name == "reference" else getattr(self, name)
            made = torch.where(self.visual, own, made)
        return made
