"""How much of a score is position alone: the mean score of unrelated queries and keys by distance."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.core import rotation
from ropewalk.core.encoding import Rotary
from ropewalk.core.errors import ConfigError, ShapeError


def phase_kernel(encoding: Rotary, q: Tensor, k: Tensor, offsets: Tensor, axis: int | None = None) -> Tensor:
    """κ_h(Δ) = mean over tokens i ≠ j of ⟨q̂_i, R_Δ k̂_j⟩,  q̂ and k̂ of norm 1.

    A head that attends by position has a high narrow peak with waves beside it, the same whatever the contents are; one that
    attends by content is flat. The mean is over all pairs of different tokens, not over a sample of them.

    Args:
        encoding: what turns queries and keys; heads that turn differently are refused.
        q: (B, H, N, d) before they are turned.
        k: (B, H_kv, N, d) likewise.
        offsets: (n,) distances Δ along the axis.
        axis: of encodings of several axes, on which tokens are apart; None: positions are plain numbers.

    Returns:
        (H, n) in float64.

    Source: Haoyu Wu, Jingyi Xu, Qiaomu Miao, Dimitris Samaras, Hieu Le. Phase-Aligned RoPE for Mixed-Resolution Diffusion
    Transformer. arXiv 2511.19778, 2025.
    """
    if (
        q.ndim != 4
        or k.ndim != 4
        or q.shape[::2] != k.shape[::2]
        or q.shape[3] != k.shape[3]
        or q.shape[1] % k.shape[1]
    ):
        raise ShapeError(f"q {tuple(q.shape)} and k {tuple(k.shape)}: expected (B, H, N, d) and (B, H_kv, N, d)")
    if (axis is None) != (encoding.axes is None) or (axis is not None and not 0 <= axis < (encoding.axes or 0)):
        raise ConfigError(f"axis {axis} of an encoding of {encoding.axes or 'no'} axes; they are counted from 0")
    tokens = q.shape[0] * q.shape[2]
    if tokens < 2:
        raise ShapeError("one token is not unrelated to any other; give two or more")
    encoding.fit(q.shape[-1])
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    q, k = (
        torch.nn.functional.normalize(t.double(), dim=-1).transpose(0, 1).flatten(1, 2) for t in (q, k)
    )  # (H, T, d)
    place = offsets.double()[None]
    if axis is not None:
        place = torch.stack([place if a == axis else torch.zeros_like(place) for a in range(encoding.axes or 0)], -1)
    angles = encoding.angles(place)
    if angles.ndim != 3:
        raise ConfigError(
            f"the key heads of {type(encoding).__name__} turn differently; look at each as an encoding of its own"
        )
    tables = rotation.tables(angles[0][:, None], torch.float64)

    made = []
    for cos, sin in zip(*tables, strict=True):  # one distance at a time: all of them would be a copy of the keys each
        turned = rotation.rotate(k, cos, sin, encoding.pairing)
        same = (q * turned).sum((-2, -1))
        made.append((q.sum(1) * turned.sum(1)).sum(-1) - same)
    return torch.stack(made, -1) / (tokens * (tokens - 1))


def rope_dominance(kernel: Tensor, offsets: Tensor, reach: float = 12.0) -> Tensor:
    """Standard deviation of κ_h(Δ) over |Δ| ≤ ``reach``, (H,): how much position alone moves the scores of a head.

    The paper calls heads above 0.085 dominated by RoPE, and does not define its score; this is ours.

    Args:
        kernel: (H, n) of `phase_kernel`.
        offsets: (n,) its distances.
        reach: the largest that counts.
    """
    near = offsets.abs() <= reach
    if kernel.shape[-1] != len(offsets) or not bool(near.any()):
        raise ShapeError(
            f"a kernel {tuple(kernel.shape)} and {len(offsets)} distances, {int(near.sum())} of them within {reach}"
        )
    return kernel[..., near].std(-1, correction=0)
