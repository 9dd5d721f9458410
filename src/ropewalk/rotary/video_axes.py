"""Three axes as transformers that denoise videos deal them out, for samples of a video and its conditions."""

from __future__ import annotations

from ropewalk.coordinates.allocation import Allocation
from ropewalk.coordinates.whole_video import WholeVideo
from ropewalk.core.attention import Attention, Problem
from ropewalk.core.errors import ConfigError, NotCausal
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import check_rotary_width
from ropewalk.rotary.multi_axis import MultiAxisRoPE


def video_widths(head_dim: int) -> tuple[int, int, int]:
    """Return the channels of (t, h, w): 2⌊d/6⌋ each for h and w, and the rest for t; (44, 42, 42) of 128."""
    check_rotary_width(head_dim)
    if head_dim < 6:
        raise ConfigError(
            f"three axes (t, h, w) and only {head_dim} channels; each needs a pair, so head_dim is at least 6"
        )
    side = 2 * (head_dim // 6)
    return head_dim - 2 * side, side, side


class VideoAxesRoPE(MultiAxisRoPE):
    """Pair j of axis a turns by c_a · base^(−2j/d_a), the axes t, h, w in runs: what video diffusion transformers (Wan) do.

    All tokens see each other and change at each step of denoising, so a causal problem, and with it a cache, is refused.

    Args:
        head_dim: width d of a head; `video_widths` says how it is shared out.
        scheme: coordinates of a video and its conditions.
        base: of the frequencies.
        pairing: "interleaved" as released; "half" pairs channels of the two halves of the whole head.
    """

    def __init__(
        self, head_dim: int, scheme: WholeVideo, *, base: float = 10_000.0, pairing: Pairing = "interleaved"
    ) -> None:
        pairs = [width // 2 for width in video_widths(head_dim)]
        super().__init__(head_dim, Allocation.contiguous(pairs, ladder="own"), scheme, base=base, pairing=pairing)

    def rewrite(self, problem: Attention) -> Problem:
        if problem.causal:
            raise NotCausal(
                f"{type(self).__name__} is of a transformer that denoises a whole video at once: give causal=False"
            )
        return super().rewrite(problem)

    def why_not_cached(self) -> str | None:
        return "all tokens see each other and the video changes at each step of denoising, so no key stays what it was"

    def why_not_split(self) -> str | None:
        return None  # within one step a key is what its own coordinates say
