"""HoPE, the hybrid of position embedding for video: pairs that would be time's do not turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from ropewalk.coordinates.allocation import Allocation, check_sections, share_out
from ropewalk.core.errors import ConfigError
from ropewalk.core.positions import Positions
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum
from ropewalk.rotary.mrope import rotary_pairs
from ropewalk.rotary.multi_axis import MultiAxisRoPE
from ropewalk.rotary.videorope import SCALES, DiagonalIds, check_scale, with_time_scales

TRAINED = (0.5, 0.75, 1.0, 1.25, 1.5)


class HybridVideoRoPE(MultiAxisRoPE):
    """Pair i turns by h ω_i (i even) or w ω_i (i odd) for i < s_h + s_w; the s_t slowest pairs do not turn at all.

    Coordinates are VideoRoPE's with frames γ apart. Time acts through h and w, which are laid out around it. Idle pairs are
    content: no distance makes them prefer another key. Text is partial RoPE.

    Args:
        head_dim: width of a head.
        sections: pairs (s_t, s_h, s_w), of h and w the sum alone; None: (16, 24, 24) in 64, and so on.
        base: of the frequencies.
        scale: γ; None: in training each block draws one of ``scales`` (`draw`), and in evaluation it has to be set.
        scales: what is drawn from.
        centre: see `VideoRoPE`.
        rotary_dim: channels that are dealt out; None: all.
        pairing: "half" as released.
        spectrum: other frequencies.

    Shapes, errors: see `MultiAxisRoPE`.

    Raises:
        ConfigError: evaluation without a scale.

    Source: Haoran Li, Yingjie Qin, Baoyuan Ou, Lai Xu, Ruiwen Xu. HoPE: Hybrid of Position Embedding for Long Context
    Vision-Language Models. arXiv 2505.20444, 2025. Its released decoding forgets the cursor; this one does not.
    """

    def __init__(
        self,
        head_dim: int,
        sections: Sequence[int] | None = None,
        base: float = 1e6,
        scale: float | None = 1.0,
        *,
        scales: Sequence[float] = TRAINED,
        centre: Literal["code", "paper"] = "code",
        rotary_dim: int | None = None,
        pairing: Pairing = "half",
        spectrum: Spectrum | None = None,
    ) -> None:
        pairs = rotary_pairs(head_dim, rotary_dim)
        sections = check_sections(share_out(pairs) if sections is None else sections, 3, pairs)
        if not scales:
            raise ConfigError("scales are drawn from a list of at least one")
        for one in scales:
            check_scale(one)
        super().__init__(
            head_dim,
            Allocation.time_last(sections, rotate_time=False),
            DiagonalIds(scale, centre),
            base=base,
            pairing=pairing,
            spectrum=spectrum,
        )
        self.scale, self.scales = scale, tuple(float(s) for s in scales)

    def draw(self, positions: Positions, generator: torch.Generator | None = None) -> Positions:
        """Draw a scale for each block in training, unless it is set or drawn already."""
        blocks = positions.key.sequence.get("blocks")
        known = SCALES in positions.key.sequence and SCALES in positions.query.sequence
        if self.scale is not None or not self.training or blocks is None or known:
            return positions
        chosen = torch.randint(len(self.scales), blocks.shape[:2], generator=generator)
        return with_time_scales(positions, torch.tensor(self.scales, dtype=torch.float64)[chosen])
