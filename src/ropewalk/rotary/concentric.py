"""CCA, concentric causal attention: image tokens are counted by rings, from the border to the centre."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ropewalk.coordinates.allocation import Allocation
from ropewalk.coordinates.blocks import Table
from ropewalk.coordinates.scheme import Cells, Scheme
from ropewalk.core.attention import Attention, Mask, Order, Problem
from ropewalk.core.errors import ConfigError, suggest
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum
from ropewalk.rotary.mrope import rotary_pairs
from ropewalk.rotary.whole_blocks import WholeBlocks

Numbering = Literal["rings", "raster", "reverse", "same"]
_FRAMES = 2.0**20  # frames of a block that can be told apart from those of the next one


@dataclass(frozen=True)
class RingIds(Scheme):
    """p = s + ring(r, c),  ring(r, c) = min(r, c, H−1−r, W−1−c);  the cursor moves by ⌈min(H, W)/2⌉ rings.

    Args:
        numbering: "rings"; or, to compare with, "raster": s + r·W + c, "reverse": the same backwards, and "same": s for all;
            these three move the cursor by all tokens.
        merged: innermost rings that are one, in addition to the innermost one itself.
    """

    numbering: Numbering = "rings"
    merged: int = 0

    @property
    def axes(self) -> tuple[str, ...]:
        return ("p",)

    def advance(self, table: Table) -> Tensor:
        return self._ids(table) * table["frames"]

    def place(self, cells: Cells) -> Tensor:
        place = cells.offset - cells.frame * self.tokens(cells)  # within its frame
        last = self.tokens(cells) - 1
        own = {"rings": self.rank, "raster": lambda _: place, "reverse": lambda _: last - place}.get(
            self.numbering, lambda _: torch.zeros_like(place)
        )(cells)
        return (cells.cursor + cells.frame * self._ids(cells) + own)[..., None]

    def rank(self, cells: Cells) -> Tensor:
        """Ring of each token, or what its numbering has instead: a token sees those of its image that do not rank above it."""
        if self.numbering != "rings":
            place = cells.offset - cells.frame * self.tokens(cells)
            return -place if self.numbering == "reverse" else place
        row, column = cells.row, cells.column
        sides = torch.stack([row, column, cells["rows"] - 1 - row, cells["columns"] - 1 - column])
        return torch.minimum(sides.amin(0), self._ids(cells) - 1)

    def tokens(self, block: Table | Cells) -> Tensor:
        """Tokens of a frame."""
        return block["tokens"] / block["frames"].clamp(min=1)

    def _ids(self, block: Table | Cells) -> Tensor:
        """Positions that a frame takes up."""
        if self.numbering != "rings":
            return self.tokens(block)
        rings = (torch.minimum(block["rows"], block["columns"]) / 2).ceil()
        return (rings - self.merged).clamp(min=1)


class ConcentricAttention(WholeBlocks):
    """RoPE at p = s + min(r, c, H−1−r, W−1−c) for image tokens, which see all rings from the border to their own.

    The text after an image goes on behind its centre ring, so that no patch is farther from it than half the grid. Inside an
    image a token sees the tokens of its ring, before or after it, and of all outer rings; elsewhere attention is causal in the
    order of the sequence. Frames of a video are images one after the other.

    Args:
        head_dim: width of a head.
        base: of the frequencies.
        numbering: "rings"; or, to compare with, "raster", "reverse" and "same" (see `RingIds`).
        rotary_dim: channels that turn, the first ones; None: all.
        pairing: "half" as released.
        spectrum: other frequencies.

    Shapes, errors: see `MultiAxisRoPE`; positions of several axes are refused, since the mask needs the grid.

    Raises:
        CannotCache: a chunk that begins within an image.
        NotCausal: a problem that is not causal.

    Source: Yun Xing, Yiheng Li, Ivan Laptev, Shijian Lu. Mitigating Object Hallucination via Concentric Causal Attention. arXiv
    2410.15926, 2024. Grids that are odd or not square, and several images, are this library's extension.
    """

    why = "a ring sees all of itself"
    scheme: RingIds

    def __init__(
        self,
        head_dim: int,
        base: float = 10_000.0,
        *,
        numbering: Numbering = "rings",
        rotary_dim: int | None = None,
        pairing: Pairing = "half",
        spectrum: Spectrum | None = None,
    ) -> None:
        kinds = get_args(Numbering)
        if numbering not in kinds:
            raise ConfigError(f"numbering is one of {', '.join(kinds)}; got {numbering!r}.{suggest(numbering, kinds)}")
        pairs = rotary_pairs(head_dim, rotary_dim)
        super().__init__(
            head_dim,
            Allocation.one(pairs),
            RingIds(numbering),
            base=base,
            pairing=pairing,
            spectrum=spectrum,
        )

    def begins(self, cells: Cells) -> Tensor:
        inside = cells.offset - cells.frame * self.scheme.tokens(cells)
        return torch.where(cells.visual, cells.position - inside, cells.position)

    def rewrite(self, problem: Attention) -> Problem:
        p = super().rewrite(problem)
        assert isinstance(p, Attention)
        if self.scheme.numbering in ("raster", "same"):
            return p
        p = self.both(p, image=_image, rank=self.scheme.rank)
        inputs = (p.own("image"), p.own("rank"), Order())
        return p.with_mask(Mask("causal", _sees, inputs, inputs))


def _image(cells: Cells) -> Tensor:
    """A number for each image, and for each frame of a video; 0 for text."""
    return torch.where(cells.visual, cells.begun * _FRAMES + cells.frame, 0.0)


def _sees(image: Tensor, rank: Tensor, order: Tensor, key_image: Tensor, key_rank: Tensor, key_order: Tensor) -> Tensor:
    together = (image == key_image) & (image > 0)
    return (together & (key_rank <= rank)) | (~together & (key_order <= order))
