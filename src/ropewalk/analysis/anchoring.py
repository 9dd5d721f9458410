"""How attention in a video decides where things move: kernels of axes, maps of words, heads, and regions that agree.

Weights are (H, L, L) of one sample, tokens row by row and frame after frame; a grid is (frames, rows, columns).

Source of all: Yueyan Li, Haibo Wang, Caixia Yuan, Xiaojie Wang. Why Do Video Diffusion Models Violate Physics? Unveiling the
Flaws in Attention Mechanisms. arXiv 2609.23658, 2026.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, PositionError, ShapeError, check_positive
from ropewalk.frequencies.spectrum import check_rotary_width, geometric

Grid = tuple[int, int, int]
Region = tuple[int, int]
"""(frame, number of the region in it)."""
Regions = Mapping[int, Sequence[Tensor]]
"""Of each frame, its regions: indices of tokens."""

# ---- kernels ---------------------------------------------------------------------------------------------------------


def axis_kernel(width: int, offsets: Tensor, scale: float = 1.0, base: float = 10_000.0) -> Tensor:
    """K_a(δ) = mean over the pairs of an axis of cos(λ δ θ_r): the score of equal contents δ cells apart.

    Args:
        width: channels of the axis.
        offsets: δ, any shape.
        scale: λ.
        base: of the frequencies.
    """
    check_rotary_width(width)
    freq = geometric(width, base).tensor().to(offsets.device)
    return (scale * offsets.double()[..., None] * freq).cos().mean(-1)


def rope_kernel(
    widths: Sequence[int], offsets: Tensor, scales: Sequence[float] | None = None, base: float = 10_000.0
) -> Tensor:
    """Return the mean of the kernels of all axes, weighted by their pairs.

    Args:
        widths: channels of each axis.
        offsets: (..., axes).
        scales: λ of each axis; None: 1.
        base: of the frequencies.
    """
    scales = [1.0] * len(widths) if scales is None else scales
    if offsets.shape[-1] != len(widths) or len(scales) != len(widths):
        raise ShapeError(
            f"{len(widths)} axes, {len(scales)} scales and offsets {tuple(offsets.shape)}; one of each an axis"
        )
    parts = zip(widths, offsets.unbind(-1), scales, strict=True)
    kernels = [width * axis_kernel(width, x, scale, base) for width, x, scale in parts]
    return torch.stack(kernels).sum(0) / sum(widths)


def half_decay(
    width: int, scale: float = 1.0, *, base: float = 10_000.0, level: float = 0.5, limit: int = 1000
) -> int | None:
    """Return the first whole distance at which the kernel of an axis is below a level; None: none up to ``limit``."""
    below = axis_kernel(width, torch.arange(limit + 1), scale, base) < level
    return int(below.nonzero()[0]) if bool(below.any()) else None


# ---- where a word is -------------------------------------------------------------------------------------------------


def word_map(weights: Tensor, grid: Grid) -> Tensor:
    """Return the attention of all tokens of a video to a word, mean over heads, as one distribution (frames, rows, columns).

    Args:
        weights: (H, L) of cross-attention, to the word or summed over its parts.
        grid: of the video.
    """
    _fits(weights.shape[-1], grid)
    mean = weights.double().reshape(-1, *grid).mean(0)
    if not bool(mean.sum() > 0):
        raise ShapeError("no token attends to the word at all")
    return mean / mean.sum()


def map_entropy(probability: Tensor) -> float:
    """H(P) / log(cells): 0 where the word is at one place of one frame, 1 where it is everywhere."""
    if probability.numel() < 2:
        raise ShapeError("the entropy of one cell says nothing")
    return float(torch.special.entr(probability).sum()) / math.log(probability.numel())


def support_quality(probability: Tensor, mask: Tensor) -> float:
    """Σ P · M: how much of a map lies on the object of the finished video.

    Args:
        probability: of `word_map`.
        mask: of the same shape, True on the object; `tube` makes one of a trajectory.
    """
    if mask.shape != probability.shape:
        raise ShapeError(
            f"the mask is {tuple(mask.shape)} and the map {tuple(probability.shape)}; give one of the same grid"
        )
    return float((probability * mask).sum())


def tube(centres: Tensor, grid: Grid, radius: float) -> Tensor:
    """Return the cells within a radius of a trajectory, (frames, rows, columns) boolean.

    Args:
        centres: (frames, 2) of (row, column).
        grid: of the video.
        radius: in cells.
    """
    frames, rows, columns = grid
    if tuple(centres.shape) != (frames, 2):
        raise ShapeError(f"centres are {tuple(centres.shape)}; expected a row and a column for each of {frames} frames")
    cells = torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"), -1).double()
    return (cells - centres.double()[:, None, None]).norm(dim=-1) <= radius


# ---- heads -----------------------------------------------------------------------------------------------------------


def convergence_speed(quality: Tensor, first: int = 10) -> Tensor:
    """Return the mean support quality of each head over the first steps: (steps, ...) → (...)."""
    check_positive(first=first)
    if len(quality) < first:
        raise ShapeError(f"{len(quality)} steps, and the speed is a mean over the first {first}")
    return quality[:first].mean(0)


def guidance_metric(conditional: Tensor, clean_difference: Tensor, mask: Tensor) -> Tensor:
    """L = Σ_p M(p) ⟨u_cond(p), u_cond(p) − u_uncond(p) of the clean run⟩: how much a run still asks for the object.

    Args:
        conditional: (L, channels) of the run, with gradients.
        clean_difference: (L, channels) of the run without intervention; no gradient flows into it.
        mask: (L,).
    """
    if conditional.shape != clean_difference.shape or mask.numel() != conditional.shape[0]:
        raise ShapeError(
            f"{tuple(conditional.shape)}, {tuple(clean_difference.shape)} and a mask of {mask.numel()}: one row a token in each"
        )
    return (mask.reshape(-1, 1) * conditional * clean_difference.detach()).sum()


def head_attribution(metric: Tensor, writes: Tensor) -> Tensor:
    """(0 − U_h) · ∂L/∂U_h: to first order, how the metric changes when what a head writes is taken away, (H,).

    Args:
        metric: L, a number computed from the writes.
        writes: (..., H, L, channels) U, what each head adds, in the graph of the metric.
    """
    (slope,) = torch.autograd.grad(metric, writes, retain_graph=True)
    change = -(writes.detach() * slope).sum((-2, -1))
    return change.reshape(-1, change.shape[-1]).sum(0)


def motion_heads(speed: Tensor, attribution: Tensor, share: float = 0.5) -> Tensor:
    """Return the heads that both settle early and matter: above the quantile ``share`` of speed and of contribution.

    Args:
        speed: of each head (`convergence_speed`).
        attribution: of each head (`head_attribution`); the more negative, the more the head contributes.
        share: below which heads are left out.
    """
    if speed.shape != attribution.shape or not 0 <= share < 1:
        raise ShapeError(
            f"speeds {tuple(speed.shape)}, contributions {tuple(attribution.shape)}, share {share} of [0, 1)"
        )
    matters = -attribution
    return (speed > speed.quantile(share)) & (matters > matters.quantile(share))


# ---- regions ---------------------------------------------------------------------------------------------------------


def candidate_regions(probability: Tensor, level: float = 0.5) -> dict[int, list[Tensor]]:
    """Return where an early map has its peaks: connected cells of a frame above a part of the largest of that frame.

    The clustering of the paper is not known; this is ours. Cells are connected along rows and columns, regions are in order of
    their weight, and their tokens are indices into the whole video.

    Args:
        probability: (frames, rows, columns) of `word_map`.
        level: part of the largest.
    """
    if probability.ndim != 3 or not 0 < level <= 1:
        raise ShapeError(
            f"a map {tuple(probability.shape)} of (frames, rows, columns), and a level in (0, 1]; got {level!r}"
        )
    frames, rows, columns = probability.shape
    found: dict[int, list[Tensor]] = {}
    for f in range(frames):
        frame = probability[f]
        left = (
            {(r, c) for r, c in (frame >= level * frame.max()).nonzero().tolist()} if bool(frame.max() > 0) else set()
        )
        regions = []
        while left:
            grown, edge = [], [left.pop()]
            while edge:
                r, c = edge.pop()
                grown.append(f * rows * columns + r * columns + c)
                near = {(r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)} & left
                left -= near
                edge += near
            regions.append(torch.tensor(sorted(grown)))
        regions.sort(key=lambda region: (-float(probability.flatten()[region].sum()), int(region[0])))
        found[f] = regions
    return found


def region_share(weights: Tensor, query: Tensor, key: Tensor, tokens_per_frame: int) -> Tensor:
    """Return how much of what a region attends to in a frame lies in one region of it, a head, (H,).

    The mean over the query region of the weight on the key region, divided by the same on the whole frame: a ratio of means.
    """
    frame = int(key[0]) // tokens_per_frame
    if bool((key // tokens_per_frame != frame).any()):
        raise PositionError(f"tokens {key.tolist()} are not of one frame of {tokens_per_frame}")
    rows = weights[:, query]
    whole = rows[..., frame * tokens_per_frame : (frame + 1) * tokens_per_frame].sum(-1).mean(-1)
    return rows[..., key].sum(-1).mean(-1) / whole


def mutual_consistency(weights: Tensor, regions: Regions, tokens_per_frame: int) -> dict[Region, dict[Region, float]]:
    """MC(a, b) = C(a → b) · C(b → a), C the mean over heads of `region_share`, for all pairs of regions of different frames.

    Args:
        weights: (H, L, L).
        regions: of each frame; `candidate_regions` finds them.
        tokens_per_frame: rows · columns.
    """
    check_positive(tokens_per_frame=tokens_per_frame)
    if weights.ndim != 3 or weights.shape[1] != weights.shape[2] or weights.shape[1] % tokens_per_frame:
        raise ShapeError(
            f"weights {tuple(weights.shape)} of whole frames of {tokens_per_frame} tokens; expected (H, L, L)"
        )
    named = {(f, n): torch.as_tensor(region) for f, own in regions.items() for n, region in enumerate(own)}
    if len({f for f, _ in named}) < 2:
        raise PositionError("regions of one frame alone: there is no other to agree with")
    shares = {
        (a, b): float(region_share(weights, named[a], named[b], tokens_per_frame).mean())
        for a in named
        for b in named
        if a[0] != b[0]
    }
    return {a: {b: shares[a, b] * shares[b, a] for b in named if b[0] != a[0]} for a in named}


def region_scores(consistency: Mapping[Region, Mapping[Region, float]]) -> dict[Region, float]:
    """Return of each region the mean over the other frames of its best mutual consistency there.

    Frames without a region are left out.
    """
    scores = {}
    for region, others in consistency.items():
        best: dict[int, float] = {}
        for (frame, _), value in others.items():
            best[frame] = max(value, best.get(frame, 0.0))
        scores[region] = sum(best.values()) / len(best)
    return scores


def winner_gap(scores: Mapping[Region, float], frame: int) -> float | None:
    """Return the best less the second score of a frame; None where it has fewer than two regions."""
    own = sorted((value for (f, _), value in scores.items() if f == frame), reverse=True)
    return own[0] - own[1] if len(own) > 1 else None


def anchor_distance(region: Tensor, final: tuple[float, float], grid: Grid) -> float:
    """Return how far the middle of a region is from where the object ends up in that frame, in cells.

    Args:
        region: indices of its tokens.
        final: (row, column).
        grid: of the video.
    """
    _, rows, columns = grid
    place = region % (rows * columns)
    middle = torch.stack([place // columns, place % columns]).double().mean(1)
    return float((middle - torch.tensor(final, dtype=torch.float64)).norm())


def anchoring_index(weights: Tensor, grid: Grid, radius: int = 1, region: Tensor | None = None) -> float:
    """Return the mean weight that a token gives to the cells around its own place in the next frame.

    Args:
        weights: (H, L, L) of the whole video.
        grid: of the video.
        radius: cells within this distance along rows and along columns count.
        region: tokens over which the mean is taken; None: all of them. Those of the last frame have no next one.
    """
    frames, rows, columns = grid
    _fits(weights.shape[-1], grid)
    if frames < 2 or radius < 0:
        raise ConfigError(f"{frames} frames and radius {radius}: give two frames or more, and a radius of 0 or more")
    index = torch.arange(frames * rows * columns, device=weights.device)
    f, r, c = index // (rows * columns), index // columns % rows, index % columns
    near = (
        (f[None] == f[:, None] + 1)
        & ((r[None] - r[:, None]).abs() <= radius)
        & ((c[None] - c[:, None]).abs() <= radius)
    )
    chosen = f < frames - 1
    if region is not None:
        chosen = chosen & torch.isin(index, region.to(index.device))
    if not bool(chosen.any()):
        raise PositionError("the region has no token before the last frame")
    return float((weights * near).sum(-1)[:, chosen].mean())


def _fits(tokens: int, grid: Grid) -> None:
    check_positive(frames=grid[0], rows=grid[1], columns=grid[2])
    if tokens != math.prod(grid):
        raise ShapeError(f"{tokens} tokens and a grid of {grid[0]} x {grid[1]} x {grid[2]} = {math.prod(grid)}")
