"""R-RoPE (Kaleido): reference images stand beyond the largest video, in height and in width."""

from __future__ import annotations

from ropewalk.coordinates.references import ReferenceIds, Time
from ropewalk.core.rotation import Pairing
from ropewalk.rotary.video_axes import VideoAxesRoPE


class ReferenceRoPE(VideoAxesRoPE):
    """Pair j of axis a turns by c_a · base^(−2j/d_a),  c = (f, y, x) for the video and (i, o_h + y, o_w + x) for reference i.

    No token of a reference shares a row or a column with the video, so that subjects are mixed up neither with frames nor with
    each other. Attention goes both ways over all tokens.

    Args:
        head_dim: width d of a head, even, at least 6: d_h = d_w = 2⌊d/6⌋, d_t the rest.
        max_h: o_h, at least the rows of any video; None: the rows of this one.
        max_w: o_w, at least the columns of any video; None: the columns of this one.
        time: t of reference i: "index" (i, as released), "after" (T + i), or a number for all of them.
        stack_space: reference i lies (i + 1) offsets away; else they differ in time alone, as released.
        shift: whether height, and width, are shifted at all.
        rotate_refs: without, references do not turn.
        max_refs: reference images that a sample may have; None: any number.
        base: of the frequencies of each axis.
        pairing: "interleaved" as released, or "half" over the whole head.

    Shapes: q (B, H, S, d), k (B, H_kv, S, d). Positions of a layout of one `ropewalk.Video` and of images with
    ``reference=1``, 2, … in any order, or (b, S, 3) that are coordinates already (`ropewalk.reference_coords`). Units: cells of
    the grid of patches.

    Raises:
        ConfigError: a width that three axes cannot share.
        PositionError: what `ropewalk.coordinates.references.ReferenceIds` refuses, text, plain positions.
        NotCausal: a causal problem.
        CannotCache: a cache, since references change with the noisy video that they see.

    Source: Kaleido: Open-Sourced Multi-Subject Reference Video Generation Model. arXiv 2510.18573, 2025. The rule is that of its
    released code, where times of references are those of the first frames and space alone keeps them apart.
    """

    made_by = "rw.reference_coords(video_thw, refs_hw)"

    def __init__(
        self,
        head_dim: int,
        max_h: int | None = 80,
        max_w: int | None = 80,
        time: Time = "index",
        *,
        stack_space: bool = False,
        shift: tuple[bool, bool] = (True, True),
        rotate_refs: bool = True,
        max_refs: int | None = 3,
        base: float = 10_000.0,
        pairing: Pairing = "interleaved",
    ) -> None:
        scheme = ReferenceIds(max_h, max_w, time, stack_space, shift, rotate_refs, max_refs)
        super().__init__(head_dim, scheme, base=base, pairing=pairing)
