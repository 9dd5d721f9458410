"""RoPE-DHR and the memory path of CoMemo: tiles stand where their cells stand in the thumbnail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.backends import attend
from ropewalk.coordinates.allocation import Allocation
from ropewalk.coordinates.blocks import Table
from ropewalk.coordinates.layout import visual_tokens
from ropewalk.coordinates.scheme import Cells, Scheme
from ropewalk.core.attention import Attention
from ropewalk.core.errors import ConfigError, ShapeError, check_positive
from ropewalk.core.positions import Positions, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum
from ropewalk.rotary.mrope import rotary_pairs
from ropewalk.rotary.multi_axis import MultiAxisRoPE

SHORT = 1e-6  # by which the released code falls short of the next cell


@dataclass(frozen=True)
class ThumbnailIds(Scheme):
    """p = s + W⌊y⌋ + ⌊x⌋ for a token of a tile, (x, y) its place in the thumbnail of H × W; the cursor moves by H·W.

    Args:
        mapping: "authors": x runs in W even steps, both ends included, from i(W/X − 1e-6) to (i+1)(W/X − 1e-6) in tile column
            i of X. "centre": x = (i + (c + ½)/W) · W/X, the centre of the patch.
        tile_order: "row": tiles follow row by row, as image splitters emit them. "column": the released ids, which go column by
            column and so give tile k the place of another one where there are several rows and columns.
    """

    mapping: Literal["authors", "centre"] = "authors"
    tile_order: Literal["row", "column"] = "row"

    def __post_init__(self) -> None:
        if self.mapping not in ("authors", "centre"):
            raise ConfigError(f"mapping is 'authors' or 'centre'; got {self.mapping!r}")
        if self.tile_order not in ("row", "column"):
            raise ConfigError(f"tile_order is 'row' or 'column'; got {self.tile_order!r}")

    @property
    def axes(self) -> tuple[str, ...]:
        return ("p",)

    def advance(self, table: Table) -> Tensor:
        return torch.where(table["across"] > 0, 0.0, table["tokens"])

    def place(self, cells: Cells) -> Tensor:
        rows, columns = cells["rows"], cells["columns"]
        down, across, tile = cells["down"].clamp(min=1), cells["across"].clamp(min=1), cells["tile"]
        if self.tile_order == "row":
            i, j = tile.remainder(across), (tile / across).floor()
        else:
            i, j = (tile / down).floor(), tile.remainder(down)
        x, y = self._along(i, cells.column, columns, across), self._along(j, cells.row, rows, down)
        return (cells.cursor + torch.where(cells["across"] > 0, columns * y + x, cells.offset))[..., None]

    def _along(self, tile: Tensor, cell: Tensor, cells: Tensor, tiles: Tensor) -> Tensor:
        if (
            self.mapping == "centre"
        ):  # (tile + (cell + 1/2) / cells) * cells / tiles, without a rounding error at the border
            return ((2 * (tile * cells + cell) + 1) / (2 * tiles)).floor()
        step = cells / tiles - SHORT
        return (tile * step + cell * step / (cells - 1).clamp(min=1)).floor()


class RoPEDHR(MultiAxisRoPE):
    """RoPE at p = s + W⌊y⌋ + ⌊x⌋ for tokens of tiles, where (x, y) is their place in the thumbnail, H × W tokens.

    An image moves the position on by H·W however many tiles it is cut into (`ropewalk.coordinates.blocks.Tiles`), and tokens
    that show the same place have the same position. Images without tiles, videos and text are counted token by token.

    Args:
        head_dim: width of a head.
        base: of the frequencies.
        mapping: "authors" or "centre", see `ThumbnailIds`.
        tile_order: "row" or "column", see `ThumbnailIds`.
        rotary_dim: channels that turn, the first ones; None: all.
        pairing: "half" as released.
        spectrum: other frequencies.

    Shapes, errors: see `MultiAxisRoPE`.

    Source: Shi Liu, Weijie Su, Xizhou Zhu, Wenhai Wang, Jifeng Dai. CoMemo: LVLMs Need Image Context with Image Memory. arXiv
    2506.06279, 2025.
    """

    def __init__(
        self,
        head_dim: int,
        base: float = 1e6,
        *,
        mapping: Literal["authors", "centre"] = "authors",
        tile_order: Literal["row", "column"] = "row",
        rotary_dim: int | None = None,
        pairing: Pairing = "half",
        spectrum: Spectrum | None = None,
    ) -> None:
        pairs = rotary_pairs(head_dim, rotary_dim)
        scheme = ThumbnailIds(mapping, tile_order)
        super().__init__(head_dim, Allocation.one(pairs), scheme, base=base, pairing=pairing, spectrum=spectrum)


# ---- the memory path -------------------------------------------------------------------------------------------------


def media_positions(positions: Positions) -> tuple[Tensor, Tokens]:
    """Return which tokens of a layout are visual, as indices (b, M) and as tokens: the key side of the memory path.

    Rows with fewer of them are filled up, and what fills up is not valid.
    """
    tokens = positions.key
    there = visual_tokens(tokens)
    valid = tokens.columns.get("valid")
    if valid is not None:
        there = there & valid
    most = int(there.sum(1).max()) if there.numel() else 0
    index = (~there).long().argsort(dim=1, stable=True)[:, :most]
    rows = there.shape[0]

    def pick(column: Tensor) -> Tensor:
        column = column.expand(rows, *column.shape[1:])
        return column.gather(1, index.reshape(rows, most, *(1,) * (column.ndim - 2)).expand(-1, -1, *column.shape[2:]))

    columns = {name: pick(column) for name, column in tokens.columns.items()}
    columns["valid"] = there.gather(1, index)
    return index, Tokens(columns, tokens.sequence)


class GatedCrossAttention(nn.Module):
    """x ← x + tanh(g_a) · CA(RMS x, RMS m),  x ← x + tanh(g_f) · SwiGLU(RMS' x):  the memory path before a decoder block.

    Queries are all tokens, at their positions; keys are the visual tokens m, at theirs, and all of them are seen, however the
    sequence is ordered. Documents see their own images. With g_a = g_f = 0, where both start, nothing is changed.

    Args:
        hidden_size: D.
        encoding: turns queries and keys; `RoPEDHR` as published.
        num_heads: heads, as many key heads.
        head_dim: width of a head.
        inner: width of the SwiGLU; None: 4 D (it is not published).
        eps: of the norms.

    Source: see `RoPEDHR`.
    """

    def __init__(
        self,
        hidden_size: int,
        encoding: MultiAxisRoPE,
        num_heads: int = 16,
        head_dim: int = 128,
        inner: int | None = None,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        check_positive(hidden_size=hidden_size, num_heads=num_heads, head_dim=head_dim, inner=inner)
        self.num_heads, self.head_dim, self.eps = num_heads, head_dim, eps
        width, inner = num_heads * head_dim, 4 * hidden_size if inner is None else inner
        self.encoding = encoding
        self.q = nn.Linear(hidden_size, width, bias=False)
        self.kv = nn.Linear(hidden_size, 2 * width, bias=False)
        self.out = nn.Linear(width, hidden_size, bias=False)
        self.gate, self.up = (nn.Linear(hidden_size, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, hidden_size, bias=False)
        self.norm, self.norm_inner = (nn.Parameter(torch.ones(hidden_size)) for _ in range(2))
        self.attention_gate, self.feed_forward_gate = (nn.Parameter(torch.zeros(())) for _ in range(2))

    def forward(
        self, x: Tensor, media: Tensor, positions: Positions, media_tokens: Tokens, sees: Tensor | None = None
    ) -> Tensor:
        """Return x with what the visual tokens say.

        Args:
            x: (B, N, D), at ``positions``; in decoding the new tokens alone, whose positions go on from the last one (those of
                the released decoding go on from the number of tokens stored).
            media: (B, M, D) visual tokens, projected; they do not change in decoding.
            positions: of x.
            media_tokens: of the media, from `media_positions`.
            sees: (B, N) False where the result of attention is to be dropped, such as before the first image.
        """
        if media.ndim != 3 or media.shape[::2] != x.shape[::2] or media_tokens.length != media.shape[1]:
            raise ShapeError(
                f"x {tuple(x.shape)}, media {tuple(media.shape)} and {media_tokens.length} media tokens do not fit"
            )
        if not media.shape[1]:
            return x  # a batch without media
        h, m = (functional.rms_norm(t, self.norm.shape, self.norm.to(t.dtype), self.eps) for t in (x, media))
        q = self.q(h).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
        k, v = self.kv(m).unflatten(-1, (2, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        where = Positions.pair(positions.query, media_tokens)
        found = attend(self.encoding(Attention(q, k, v, where, causal=False))).transpose(1, 2).flatten(2)
        there = media_tokens.column("valid").any(1)[:, None, None]
        found = self.out(found)
        if sees is not None:
            found = found * sees[..., None]
        made = x + self.attention_gate.tanh() * found
        h = functional.rms_norm(made, self.norm_inner.shape, self.norm_inner.to(x.dtype), self.eps)
        made = made + self.feed_forward_gate.tanh() * self.down(functional.silu(self.gate(h)) * self.up(h))
        return torch.where(there, made, x)  # a sample without media skips the block


def trains_in_stage(stage: int, layers: nn.ModuleList, host: nn.Module, projector: nn.Module) -> Iterator[nn.Parameter]:
    """Freeze what does not train in a stage of CoMemo, and yield what does.

    Stage 1: projector and memory layers; 2: the same without the gates; 3: everything.
    """
    if stage not in (1, 2, 3):
        raise ConfigError(f"CoMemo is trained in stages 1, 2 and 3; got {stage!r}")
    memory = [layer for layer in layers if isinstance(layer, GatedCrossAttention)]
    if len(memory) != len(layers):
        raise ConfigError("layers holds the GatedCrossAttention modules and nothing else")
    gates = {id(g) for layer in memory for g in (layer.attention_gate, layer.feed_forward_gate)}
    own = {id(p) for module in (*memory, projector) for p in module.parameters()}
    seen: set[int] = set()
    for module in (projector, *memory, host):
        for p in module.parameters():
            if id(p) in seen:
                continue
            seen.add(id(p))
            p.requires_grad_(stage == 3 or (id(p) in own and not (stage == 2 and id(p) in gates)))
            if p.requires_grad:
                yield p
