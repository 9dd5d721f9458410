"""Condition-aware 3-D RoPE (DreamVideo-Omni): references at one time, empty slots at another, trajectories on the video."""

from __future__ import annotations

from ropewalk.coordinates.conditions import ConditionIds
from ropewalk.core.rotation import Pairing
from ropewalk.rotary.video_axes import VideoAxesRoPE


class ConditionRoPE(VideoAxesRoPE):
    """Pair j of axis a turns by c_a · base^(−2j/d_a),  c = (f, y, x) for video and trajectories, (T_ref, y, x), (T_inv, y, x).

    A trajectory is turned as the cell of the video that it moves. References share one time, so that they are no frames, and
    nothing but what `ropewalk.embedding.conditions.ConditionEmbedding` adds tells them apart. Slots without a reference are at a
    time of their own. Attention goes both ways over all tokens.

    Args:
        head_dim: width d of a head, even, at least 6: d_h = d_w = 2⌊d/6⌋, d_t the rest.
        t_ref: T_ref, a time that no frame has; the authors' value is not public.
        t_invalid: T_inv, another one.
        special: without (an ablation), slots are at the times after the frames, and trajectories are refused.
        base: of the frequencies of each axis.
        pairing: "interleaved" as released, or "half" over the whole head.

    Shapes: q (B, H, S, d), k (B, H_kv, S, d). Positions of a layout of the blocks of
    `ropewalk.coordinates.conditions.condition_blocks`, or (b, S, 3) that are coordinates already (`ropewalk.condition_coords`).
    Units: cells of the grid of patches.

    Raises:
        ConfigError: a width that three axes cannot share, times that are equal.
        PositionError: what `ropewalk.coordinates.conditions.ConditionIds` refuses, text, plain positions.
        NotCausal: a causal problem.
        CannotCache: a cache, since conditions change with the noisy video that they see.

    Source: Yujie Wei, Xinyu Liu, Shiwei Zhang, Hangjie Yuan, Jinbo Xing, Zhekai Chen, Xiang Wang, Haonan Qiu, Rui Zhao, Yutong
    Feng, Ruihang Chu, Yingya Zhang, Yike Guo, Xihui Liu, Hongming Shan. DreamVideo-Omni: Omni-Motion Controlled Multi-Subject
    Video Customization with Latent Identity Reinforcement Learning. arXiv 2603.12257, 2026.
    """

    made_by = "rw.condition_coords(video_thw, n_ref, max_ref, t_ref, t_invalid)"

    def __init__(
        self,
        head_dim: int,
        t_ref: float,
        t_invalid: float,
        *,
        special: bool = True,
        base: float = 10_000.0,
        pairing: Pairing = "interleaved",
    ) -> None:
        super().__init__(head_dim, ConditionIds(t_ref, t_invalid, special), base=base, pairing=pairing)
