"""The depth of a picture after one of its objects was moved."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor
from torch.nn import functional

from ropewalk.core.errors import ConfigError, PositionError

_AT_ONCE = 1024  # pixels whose nearest neighbours are looked for together


def synthesize_target_depth(
    depth: Tensor,
    mask: Tensor,
    dy: int = 0,
    dx: int = 0,
    delta: float = 0.0,
    *,
    target_mask: Tensor | None = None,
    margin: int = 3,
    blend: int = 3,
    normalise: bool = True,
) -> Tensor:
    """Return the depth of a picture in which an object was moved, (H, W) float64, in [1, 2] unless ``normalise`` is False.

    Where the object was, and outside of where it is to be, the background shows (`fill_background`). Inside, the object does if
    it is in front of that, D_obj = depth where the pixel came from + δ, faded in over its border: w D_obj + (1 − w) D_bg,
    w = min(distance to the nearest pixel outside / blend, 1). Then 1 + (D − min)/(max − min); 1 for a constant.

    Args:
        depth: (H, W) of the picture as it is, in any unit; what is not finite is as far as the farthest.
        mask: (H, W) bool, where the object is.
        dy: pixels down.
        dx: pixels to the right.
        delta: δ, above 0 away from the camera.
        target_mask: where it is to be; None: the mask, moved, as far as it is inside the picture. Pixels that came from outside
            of the mask have the median depth of the object.
        margin: see `fill_background`.
        blend: pixels over which the object is faded in.
        normalise: bring it to [1, 2].

    Raises:
        PositionError: no finite depth, masks of another size, no background.

    Source: İpek Öztaş, Duygu Ceylan, Aybars Buğra Aksoy, Ayşegül Dündar. RoPEMover: Depth-Aware Object Relocation via Positional
    Embeddings. arXiv 2606.27332, 2026.
    """
    if not math.isfinite(delta):
        raise PositionError(f"delta is a finite depth; got {delta!r}")
    for name, n, least in (("dy", dy, None), ("dx", dx, None), ("blend", blend, 1)):
        if isinstance(n, bool) or not isinstance(n, int) or (least is not None and n < least):
            raise ConfigError(f"{name} is a whole number of pixels{'' if least is None else ', at least 1'}; got {n!r}")
    source = _finite(depth)
    _mask("mask", mask, source)
    target = _moved(mask, dy, dx) if target_mask is None else _mask("target_mask", target_mask, source)
    made = source
    if bool(mask.any()):
        behind = fill_background(source, mask, margin)
        middle = source[mask].quantile(0.5)
        there = torch.where(_moved(mask, dy, dx), _moved(source, dy, dx), middle) + delta
        weight = (_distance_outside(target, blend) / blend).clamp(max=1)
        made = torch.where(target & (there < behind), weight * there + (1 - weight) * behind, behind)
    if not normalise:
        return made
    low, high = made.aminmax()
    return torch.ones_like(made) if bool(low == high) else 1 + (made - low) / (high - low)


def fill_background(depth: Tensor, mask: Tensor, margin: int = 3) -> Tensor:
    """Return the depth of what is behind an object, (H, W) float64: a harmonic function inside the mask.

    Each pixel inside is the mean of its four neighbours, or of those that are in the picture. Before that the pixels at most
    ``margin`` away from the mask, which may show some of the object, get the depth of the nearest pixel beyond; ties go to the
    first in the picture.

    Args:
        depth: (H, W).
        mask: (H, W) bool.
        margin: pixels, 0 for none.

    Raises:
        PositionError: no pixel is left beyond the mask and its margin.
    """
    if isinstance(margin, bool) or not isinstance(margin, int) or margin < 0:
        raise ConfigError(f"margin is a whole number of pixels from 0; got {margin!r}")
    made = _finite(depth).clone()
    _mask("mask", mask, made)
    near = _grown(mask, margin)
    if bool(near.all()):
        raise PositionError(
            f"no background is left: the mask and {margin} pixels around it are the whole picture; lower margin=, or mask less"
        )
    edge = (_grown(near, 1.5) & ~near).nonzero()  # the nearest pixel beyond touches what is not beyond
    width = made.shape[1]
    number = edge[:, 0] * width + edge[:, 1]
    for some in (near & ~mask).nonzero().split(_AT_ONCE):
        distance = (some[:, None] - edge).square().sum(-1)
        first = (distance * made.numel() + number).argmin(1)
        made[some[:, 0], some[:, 1]] = made[edge[first, 0], edge[first, 1]]
    return _harmonic(made, mask) if bool(mask.any()) else made


def _harmonic(known: Tensor, hole: Tensor) -> Tensor:
    """Solve Laplace's equation inside the hole by conjugate gradients, on the rectangle about it."""
    rows, columns = (hole.any(1 - axis).nonzero()[:, 0] for axis in (0, 1))
    window = tuple(slice(max(int(i[0]) - 1, 0), int(i[-1]) + 2) for i in (rows, columns))
    inside, values = hole[window], known[window]
    # The rectangle ends where the picture does, or one pixel beyond the hole: each neighbour of a pixel inside is in it.
    degree = _neighbours(torch.ones_like(values))
    given = torch.where(inside, 0.0, values)

    def laplace(x: Tensor) -> Tensor:
        return torch.where(inside, degree * x - _neighbours(x), 0.0)

    right = torch.where(inside, _neighbours(given), 0.0)
    touching = _neighbours(inside.to(values.dtype)).gt(0) & ~inside
    x = torch.where(inside, values[touching].mean(), 0.0)
    residual = right - laplace(x)
    step, size = residual, residual.square().sum()
    enough = 1e-28 * right.square().sum()
    for _ in range(4 * int(inside.sum()) + 100):  # in exact arithmetic as many as there are pixels
        if bool(size <= enough):
            break
        turned = laplace(step)
        length = size / (step * turned).sum()
        x, residual = x + length * step, residual - length * turned
        before, size = size, residual.square().sum()
        step = residual + size / before * step
    made = known.clone()
    made[window] = torch.where(inside, x, values)
    return made


def _neighbours(x: Tensor) -> Tensor:
    """Return the sum of the four neighbours of each pixel, those outside left out."""
    p = functional.pad(x, (1, 1, 1, 1))
    return p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]


def _moved(x: Tensor, dy: int, dx: int) -> Tensor:
    """Return a picture moved down and to the right; what comes from outside is 0, or False."""
    made = torch.zeros_like(x)
    height, width = x.shape
    if abs(dy) < height and abs(dx) < width:
        made[max(dy, 0) : height + min(dy, 0), max(dx, 0) : width + min(dx, 0)] = x[
            max(-dy, 0) : height - max(dy, 0), max(-dx, 0) : width - max(dx, 0)
        ]
    return made


def _disc(radius: float) -> list[tuple[int, int]]:
    """Return the steps that are at most a radius long."""
    reach = range(-math.floor(radius), math.floor(radius) + 1)
    return [(y, x) for y, x in itertools.product(reach, reach) if y * y + x * x <= radius * radius]


def _grown(mask: Tensor, radius: float) -> Tensor:
    """Return where the mask is at most a radius away."""
    made = mask
    for y, x in _disc(radius):
        made = made | _moved(mask, y, x)
    return made


def _distance_outside(mask: Tensor, most: int) -> Tensor:
    """Return the distance to the nearest pixel outside the mask, or ``most`` if that is nearer."""
    made = torch.full(mask.shape, float(most), dtype=torch.float64, device=mask.device)
    for y, x in _disc(most):
        made = torch.where(_moved(~mask, y, x), made.clamp(max=math.hypot(y, x)), made)
    return made


def _finite(depth: Tensor) -> Tensor:
    if depth.ndim != 2 or not depth.numel():
        raise PositionError(f"depth has shape (height, width); got {tuple(depth.shape)}")
    there = depth.isfinite()
    if not bool(there.any()):
        raise PositionError("depth is finite nowhere; look at where it was estimated")
    return torch.where(there, depth, depth[there].max()).double()


def _mask(name: str, mask: Tensor, depth: Tensor) -> Tensor:
    if mask.shape != depth.shape or mask.dtype != torch.bool:
        raise PositionError(
            f"{name} is bool and has a value for each of {tuple(depth.shape)} pixels of depth; got {mask.dtype} and "
            f"{tuple(mask.shape)}"
        )
    return mask
