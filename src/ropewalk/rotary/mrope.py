"""M-RoPE (Qwen2-VL), MRoPE-Interleave and Multi-Head RoPE: time, height and width on pairs or heads of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ropewalk.coordinates.allocation import Allocation, check_sections, share_out
from ropewalk.coordinates.blocks import VIDEO, Table
from ropewalk.coordinates.scheme import Cells, Scheme
from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum, check_rotary_width
from ropewalk.rotary.multi_axis import MultiAxisRoPE

BARELY = 1e-6  # a product such as 0.1 · 30 that falls short of a whole number by rounding is that number


@dataclass(frozen=True)
class MRoPEIds(Scheme):
    """(t, h, w) = (s + τ·stride, s + r, s + c),  s the cursor, which then stands one beyond the largest of them.

    Args:
        stride: t of a frame.
        spatial_reset: h and w begin at 0 in every block instead of at s; text stays where it is.
        tokens_per_second: t = s + ⌊seconds · tokens_per_second⌋ for videos (Qwen2.5-VL), where frames without times are a
            second apart. Still images are at s.
    """

    stride: float = 1.0
    spatial_reset: bool = False
    tokens_per_second: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.stride < math.inf:
            raise ConfigError(f"stride is a positive number; got {self.stride!r}")
        if self.tokens_per_second is not None and not 0 < self.tokens_per_second < math.inf:
            raise ConfigError(f"tokens_per_second is a positive number; got {self.tokens_per_second!r}")

    def advance(self, table: Table) -> Tensor:
        last = self._time(table["frames"] - 1, table, table["times"], table["kind"])
        return torch.maximum(last, torch.maximum(table["rows"], table["columns"]) - 1) + 1

    def place(self, cells: Cells) -> Tensor:
        time = cells.cursor + self._time(cells.frame, cells.table, cells["times"], cells["kind"])
        corner = torch.zeros_like(time) if self.spatial_reset else cells.cursor
        return torch.stack([time, corner + cells.row, corner + cells.column], -1)

    def _time(self, frame: Tensor, table: Table, offset: Tensor, kind: Tensor) -> Tensor:
        if self.tokens_per_second is None:
            return frame * self.stride
        seconds = table.seconds(frame, offset)
        scaled = (seconds * self.tokens_per_second + BARELY).floor()
        return torch.where(kind == VIDEO, scaled, 0.0) * self.stride


class MRoPE(MultiAxisRoPE):
    """Pair i turns by t ω_i, h ω_i or w ω_i,  ω_i = base^(−2i/d):  s_t pairs for t, then s_h for h, then s_w for w.

    Text has t = h = w, so that it is RoPE's. An image has one t and its rows and columns; a video one t a frame; what follows a
    block begins one beyond its largest coordinate. Time owns the fastest pairs.

    Args:
        head_dim: width of a head.
        sections: pairs (s_t, s_h, s_w); None: the published proportion, (16, 24, 24) for 128 channels.
        base: of the frequencies; 1e6 in Qwen2-VL.
        layout: "blocked", or "interleaved" for the pairs of MRoPE-Interleave.
        tokens_per_second: for time in seconds (Qwen2.5-VL: 2).
        stride: t of a frame.
        spatial_reset: h and w begin at 0 in each block.
        rotary_dim: channels that turn, the first ones; None: all.
        pairing: "half" as released.
        spectrum: other frequencies.

    Shapes, errors: see `MultiAxisRoPE`. Units: tokens; cells of the merged grid.

    Raises:
        ConfigError: sections that do not add up to rotary_dim / 2.

    Source: Peng Wang, Shuai Bai, Sinan Tan, Shijie Wang, et al. Qwen2-VL: Enhancing Vision-Language Model's Perception of the
    World at Any Resolution. arXiv 2409.12191, 2024.
    """

    def __init__(
        self,
        head_dim: int,
        sections: Sequence[int] | None = None,
        base: float = 1e6,
        layout: Literal["blocked", "interleaved"] = "blocked",
        *,
        tokens_per_second: float | None = None,
        stride: float = 1.0,
        spatial_reset: bool = False,
        rotary_dim: int | None = None,
        pairing: Pairing = "half",
        spectrum: Spectrum | None = None,
    ) -> None:
        pairs = rotary_pairs(head_dim, rotary_dim)
        if layout not in ("blocked", "interleaved"):
            raise ConfigError(f"layout is 'blocked' or 'interleaved'; got {layout!r}")
        blocked = layout == "blocked"
        if sections is None:
            sections = share_out(pairs) if blocked else share_out(pairs, eighths=(2.5, 2.5))
        sections = check_sections(sections, 3, pairs)
        dealt = Allocation.contiguous(sections) if blocked else Allocation.interleaved(sections)
        ids = MRoPEIds(stride, spatial_reset, tokens_per_second)
        super().__init__(head_dim, dealt, ids, base=base, pairing=pairing, spectrum=spectrum)


class MRoPEInterleaved(MRoPE):
    """Pair i turns by h ω_i if i ≡ 1 (mod 3) and i < 3 s_h, by w ω_i if i ≡ 2 and i < 3 s_w, else by t ω_i.

    Each axis has frequencies from the fastest to the slowest. Text is RoPE's.

    Args:
        head_dim: width of a head.
        sections: pairs (s_t, s_h, s_w); None: the published proportion, (24, 20, 20) for 128 channels.
        base: of the frequencies; 5e6 in Qwen3-VL.
        spatial_reset: h and w begin at 0 in each block, as in the paper; without it as in Qwen3-VL.
        stride: t of a frame.
        rotary_dim: channels that turn, the first ones; None: all.
        pairing: "half" as released.
        spectrum: other frequencies.

    Shapes, errors: see `MRoPE`.

    Source: Jie Huang, Xuejing Liu, Sibo Song, Ruibing Hou, Hong Chang, Junyang Lin, Shuai Bai. Revisiting Multimodal Positional
    Encoding in Vision-Language Models. arXiv 2510.23095, 2025.
    """

    def __init__(
        self,
        head_dim: int,
        sections: Sequence[int] | None = None,
        base: float = 5e6,
        *,
        spatial_reset: bool = False,
        stride: float = 1.0,
        rotary_dim: int | None = None,
        pairing: Pairing = "half",
        spectrum: Spectrum | None = None,
    ) -> None:
        super().__init__(
            head_dim,
            sections,
            base,
            "interleaved",
            stride=stride,
            spatial_reset=spatial_reset,
            rotary_dim=rotary_dim,
            pairing=pairing,
            spectrum=spectrum,
        )


class MultiHeadRoPE(MultiAxisRoPE):
    """Key head g turns all its pairs by one axis, c_{a(g)} ω_i;  a: first heads t, then h, then w, the rest stand still.

    Query heads turn as their key head does. Each axis has the whole ladder of frequencies.

    Args:
        head_dim: width of a head.
        num_kv_heads: key heads.
        heads: key heads of (t, h, w), together not more than there are; None: three eighths each for h and w, the rest for t.
            Two key heads serve h and w, and nothing tells frames apart then; one serves t.
        base: of the frequencies.
        spatial_reset: h and w begin at 0 in each block, as in the paper.
        stride: t of a frame.
        rotary_dim: channels that turn, the first ones; None: all.
        pairing: "half" as released.
        spectrum: other frequencies.

    Shapes, errors: see `MultiAxisRoPE`.

    Source: Jie Huang, Xuejing Liu, Sibo Song, Ruibing Hou, Hong Chang, Junyang Lin, Shuai Bai. Revisiting Multimodal Positional
    Encoding in Vision-Language Models. arXiv 2510.23095, 2025.
    """

    def __init__(
        self,
        head_dim: int,
        num_kv_heads: int,
        heads: Sequence[int] | None = None,
        base: float = 5e6,
        *,
        spatial_reset: bool = False,
        stride: float = 1.0,
        rotary_dim: int | None = None,
        pairing: Pairing = "half",
        spectrum: Spectrum | None = None,
    ) -> None:
        pairs = rotary_pairs(head_dim, rotary_dim)
        check_positive(num_kv_heads=num_kv_heads)
        if heads is None:
            few = {1: (1, 0, 0), 2: (0, 1, 1)}
            heads = few[num_kv_heads] if num_kv_heads in few else share_out(num_kv_heads)
        dealt, ids = Allocation.by_head(heads, pairs, num_kv_heads), MRoPEIds(stride, spatial_reset)
        super().__init__(head_dim, dealt, ids, base=base, pairing=pairing, spectrum=spectrum)


def rotary_pairs(head_dim: int, rotary_dim: int | None) -> int:
    """Return the pairs of channels that turn."""
    check_rotary_width(head_dim)
    width = head_dim if rotary_dim is None else rotary_dim
    check_rotary_width(width)
    if width > head_dim:
        raise ConfigError(f"rotary_dim {width} of a head of {head_dim} channels")
    return width // 2
