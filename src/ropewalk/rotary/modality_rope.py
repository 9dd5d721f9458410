"""Modality-aware ids (Lance): kinds of visual tokens on temporal bands of their own, a target where its source is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ropewalk.coordinates.allocation import Allocation, check_sections, share_out
from ropewalk.coordinates.blocks import Block, Entry, Table, Text, Video
from ropewalk.coordinates.scheme import Cells
from ropewalk.core.attention import Attention, Mask, Order, Problem
from ropewalk.core.errors import ConfigError, suggest
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum
from ropewalk.rotary.mrope import MRoPEIds, rotary_pairs
from ropewalk.rotary.whole_blocks import WholeBlocks

MODALITIES = {"system_prompt": -1, "text": 0, "noise": 1, "ref_source": 2, "ref_image": 3, "ref_vit": 4}
"""Numbers of the kinds: the target that is denoised, the clean latent to edit, clean latents of subjects, semantic tokens."""

NOISE, SOURCE = MODALITIES["noise"], MODALITIES["ref_source"]


@dataclass(frozen=True)
class Segment(Block):
    """A grid of visual tokens between two markers, which are of its kind too.

    Args:
        kind: a visual one of `MODALITIES`.
        frames: of the grid, after any merging.
        rows: of the grid.
        columns: of the grid.
        seconds: between frames, or the time of each; None: a second apart.
    """

    kind: str
    frames: int
    rows: int
    columns: int
    seconds: float | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if _modality(self.kind) <= 0:
            raise ConfigError(f"{self.kind} has no grid: write prose({self.kind!r}, tokens)")
        self.grid()  # says what is wrong with its sizes and times

    def grid(self) -> Video:
        """Return the grid without its markers."""
        return Video(self.frames, self.rows, self.columns, self.seconds, _modality(self.kind), -1)

    @property
    def length(self) -> int:
        return self.grid().length + 2

    def entries(self) -> Iterator[tuple[Entry, Sequence[float] | None]]:
        for block in (marker := Text(1, _modality(self.kind), -1), self.grid(), marker):
            yield from block.entries()


def prose(kind: str, tokens: int) -> Text:
    """Return text of a kind: "text" or "system_prompt"."""
    if _modality(kind) > 0:
        raise ConfigError(f"{kind} is a grid between markers: write Segment({kind!r}, frames, rows, columns)")
    return Text(tokens, _modality(kind))


def _moved(kind: str, band: float) -> int:
    """Return the number of a kind whose first t is to lie at ``band``."""
    if _modality(kind) <= 0:
        kinds = ", ".join(name for name, number in MODALITIES.items() if number > 0)
        raise ConfigError(f"{kind} is text and is not moved; offsets are of {kinds}")
    if not math.isfinite(band):
        raise ConfigError(f"offsets are finite numbers; got {band!r} for {kind}")
    return _modality(kind)


def _modality(kind: str) -> int:
    if kind not in MODALITIES:
        raise ConfigError(f"kinds of tokens are {', '.join(MODALITIES)}; got {kind!r}.{suggest(kind, MODALITIES)}")
    return MODALITIES[kind]


@dataclass(frozen=True)
class ModalityIds(MRoPEIds):
    """M-RoPE's coordinates, and then, where a sample has visual blocks other than noise, markers included:

    t of ref_vit += 1000 − t of the first of them;  t of ref_image += 2000 − t of the first of them;  (t, h, w) of the n-th noise
    token is that of the n-th ref_source token, if there are as many of both. The text is not moved.

    Args:
        offsets: (modality, where its first t comes to lie).
        tied: whether noise takes the place of its source; without it noise stays where M-RoPE has it.
    """

    tokens_per_second: float | None = 2.0
    offsets: tuple[tuple[int, float], ...] = ((MODALITIES["ref_vit"], 1000.0), (MODALITIES["ref_image"], 2000.0))
    tied: bool = True

    def at(self, cells: Cells) -> Tensor:
        table, modality = cells.table, cells["modality"]
        plain = super().at(cells)
        same = table["first"][..., :, None] == table["first"][..., None, :]  # (b, N, N): blocks of one document
        same = same & table.real[..., :, None] & table.real[..., None, :]
        full = (same & (table.visual & (table["modality"] != NOISE))[..., None, :]).any(-1)
        moves = cells.inside & cells.take(full)

        time, rest = plain[..., :1], plain[..., 1:]
        for kind, band in self.offsets:
            mine = same & (table["modality"] == kind)[..., None, :]
            first = mine.long().argmax(-1)  # of each block's document, the first block of this kind
            shift = band - cells.take(cells.stands.gather(1, first))
            time = time + torch.where(moves & (modality == kind), shift, 0.0)[..., None]
        shifted = torch.cat([time, rest], -1)
        return self._tied(cells, shifted, same, moves) if self.tied else shifted

    def _tied(self, cells: Cells, shifted: Tensor, same: Tensor, moves: Tensor) -> Tensor:
        """Put noise where its source is; ``same``: blocks of one document, ``moves``: tokens of documents with conditions."""
        table, modality = cells.table, cells["modality"]
        tokens = torch.where(table.real, table["tokens"], 0.0)
        of_noise, of_source = (same & (table["modality"] == kind)[..., None, :] for kind in (NOISE, SOURCE))
        noise, source = ((mine * tokens[..., None, :]).sum(-1) for mine in (of_noise, of_source))
        index = torch.arange(tokens.shape[-1], device=tokens.device)
        before = index[:, None] > index
        rank = cells.take((of_noise & before).double().mul(tokens[..., None, :]).sum(-1)) + cells.offset
        # The block of the source that holds the token of this rank, and where it begins among the tokens of the source.
        starts = (of_source & before).double().mul(tokens[..., None, :]).sum(-1)
        mine = of_source.gather(1, cells.index[..., None].expand(-1, -1, tokens.shape[-1]))  # (b, S, N)
        holds = mine & (starts[:, None] <= rank[..., None]) & (rank[..., None] < (starts + tokens)[:, None])
        block = holds.long().argmax(-1)
        position = table["start"].gather(1, block) + rank - starts.gather(1, block)
        tied = super().at(cells.moved(block + 1, position))
        ties = moves & (modality == NOISE) & cells.take((noise == source) & (noise > 0))
        return torch.where(ties[..., None], tied, shifted)


class ModalityRoPE(WholeBlocks):
    """M-RoPE at (t + 1000 − t_first, h, w) for semantic tokens, 2000 for clean latents of subjects, and for the n-th token of a
    target at the place of the n-th token of its source.

    Blocks are `Segment` and `prose`, which know the kinds. A token sees all before it, and in a visual segment those after it
    too; nobody outside a noise segment sees it.

    Args:
        head_dim: width of a head.
        sections: pairs (s_t, s_h, s_w); None: the published proportion, (16, 24, 24) for 128 channels.
        base: of the frequencies.
        tokens_per_second: of frames that are a second apart unless the blocks say otherwise.
        offsets: where the first t of a kind comes to lie, by kind; None: 1000 for ref_vit, 2000 for ref_image. {}: nowhere else.
        tied: whether a target takes the place of its source.
        rotary_dim: channels that turn, the first ones; None: all.
        pairing: "half" as released.
        spectrum: other frequencies.

    Shapes, errors: see `MultiAxisRoPE`.

    Raises:
        CannotCache: a chunk that begins within a visual segment.
        NotCausal: a problem that is not causal.

    Source: Fengyi Fu, Mengqi Huang, Shaojin Wu, Yunsheng Jiang, Yufei Huo, Hao Li, Yinghang Song, Fei Ding, Jianzhu Guo, Qian
    He, Zheren Fu, Zhendong Mao, Yongdong Zhang. Lance: Unified Multimodal Modeling by Multi-Task Synergy. arXiv 2605.18678,
    2026. The rule is that of its released code. Its two streams of weights are `ropewalk.lab.dual_stream.DualStreamLayer`.
    """

    why = "a visual segment sees all of itself"

    def __init__(
        self,
        head_dim: int,
        sections: Sequence[int] | None = None,
        base: float = 1e6,
        *,
        tokens_per_second: float = 2.0,
        offsets: Mapping[str, float] | None = None,
        tied: bool = True,
        rotary_dim: int | None = None,
        pairing: Pairing = "half",
        spectrum: Spectrum | None = None,
    ) -> None:
        pairs = rotary_pairs(head_dim, rotary_dim)
        sections = check_sections(share_out(pairs) if sections is None else sections, 3, pairs)
        ids = ModalityIds(tokens_per_second=tokens_per_second, tied=tied)
        if offsets is not None:
            ids = replace(ids, offsets=tuple((_moved(kind, band), float(band)) for kind, band in offsets.items()))
        super().__init__(head_dim, Allocation.contiguous(sections), ids, base=base, pairing=pairing, spectrum=spectrum)

    def begins(self, cells: Cells) -> Tensor:
        table = cells.table
        start = torch.where(_segments(table) > 0, _first_of_segment(table), table["start"])
        return torch.where(_segment(cells) > 0, cells.take(start), cells.position)

    def rewrite(self, problem: Attention) -> Problem:
        p = super().rewrite(problem)
        assert isinstance(p, Attention)
        p = self.both(p, segment=_segment, noise=_noise)
        own = p.own("segment")
        return p.with_mask(Mask("causal", _sees, (own, Order()), (own, p.own("noise"), Order())))


def _segments(table: Table) -> Tensor:
    """A number for each segment that sees all of itself, that of its first block; 0 for text."""
    group, two_way = table["group"], table.real & (table["modality"] > 0)
    same = (group[..., :, None] == group[..., None, :]) & (table["first"][..., :, None] == table["first"][..., None, :])
    first = (same & two_way[..., None, :]).long().argmax(-1) + 1
    own = torch.arange(1, group.shape[-1] + 1, device=group.device)
    return torch.where(two_way, torch.where(group != 0, first, own), 0).double()


def _first_of_segment(table: Table) -> Tensor:
    """(b, N) position at which the segment of each block begins."""
    number = _segments(table).long().clamp(min=1)
    return table["start"].gather(1, number - 1)


def _segment(cells: Cells) -> Tensor:
    return torch.where(cells.inside, cells.take(_segments(cells.table)), 0.0)


def _noise(cells: Cells) -> Tensor:
    return (cells.inside & (cells["modality"] == NOISE)).double()


def _sees(segment: Tensor, order: Tensor, key_segment: Tensor, key_noise: Tensor, key_order: Tensor) -> Tensor:
    together = (segment == key_segment) & (segment > 0)
    return together | ((key_order <= order) & (key_noise == 0))


def latent_table(frames: int, size: int, dim: int) -> Tensor:
    """Return the 3-D sinusoids added to latent tokens, (frames · size², dim), index t·S² + y·S + x.

    (d, d, dim − 2d) channels for (t, y, x), d the largest even number up to dim/3; each [sin pω | cos pω] with
    ω_k = 10000^(−2k/width).
    The order within is the usual one; it was not seen in the released code.
    """
    each = dim // 3 // 2 * 2
    if each < 2 or dim % 2:
        raise ConfigError(f"dim is an even number from 6; got {dim!r}")
    grid = torch.cartesian_prod(*(torch.arange(n, dtype=torch.float64) for n in (frames, size, size)))
    parts = []
    for axis, width in enumerate((each, each, dim - 2 * each)):
        omega = 10_000.0 ** (-torch.arange(width // 2, dtype=torch.float64) / (width / 2))
        angles = grid[:, axis, None] * omega
        parts += [angles.sin(), angles.cos()]
    return torch.cat(parts, 1)
