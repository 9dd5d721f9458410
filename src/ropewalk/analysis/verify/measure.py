"""From tensors to angles: which channels are turned together, and by how much.

A pair of channels is a complex number z, and a rotation multiplies it by a gain c = a e^{iφ}, the same for all heads of a
token. Everything that is known of a rotation is in these gains, so `verify` first finds the `Structure` under which gains
exist, then reads them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ropewalk.analysis.verify.observation import Side
from ropewalk.core.rotation import Pairing

Kernel = Literal["rotate", "mirror", "mixed", "scale"]
"""rotate: (a cos − b sin, b cos + a sin). mirror: the minus sign is missing. mixed: the tables lie in the order of the other
pairing, so that partners turn by different angles. scale: the pair is multiplied by any complex number."""

FEW, LAST_RESORT = 64, 12
"""Tokens that structures are told apart on: likely ones, and all there are."""

Order = Literal["same", "to_half", "to_interleaved"]
"""Order of the channels that come out: as they went in, or moved from one pairing's order to the other's."""


@dataclass(frozen=True)
class Structure:
    """Which channels meet, and how.

    Args:
        pairing: channels 2i, 2i+1 ("interleaved") or i, i+P ("half") of the turned ones.
        width: how many channels are turned.
        start: the first of them.
        kernel: what is done to a pair.
        order: of the channels that come out.
        swapped: positions run along the heads.
    """

    pairing: Pairing
    width: int
    start: int = 0
    kernel: Kernel = "rotate"
    order: Order = "same"
    swapped: bool = False

    def channels(self) -> tuple[Tensor, Tensor]:
        """Return the first and the second channel of each pair."""
        pairs = torch.arange(self.width // 2)
        if self.pairing == "half":
            return self.start + pairs, self.start + pairs + self.width // 2
        return self.start + 2 * pairs, self.start + 2 * pairs + 1

    def undo_order(self, y: Tensor) -> Tensor:
        """Bring what came out back to the order in which it went in."""
        if self.order == "same":
            return y
        out, turned = y.clone(), y[..., self.start : self.start + self.width]
        half = self.width // 2
        if self.order == "to_half":
            back = torch.stack((turned[..., :half], turned[..., half:]), -1).flatten(-2)
        else:
            back = torch.cat((turned[..., 0::2], turned[..., 1::2]), -1)
        out[..., self.start : self.start + self.width] = back
        return out


@dataclass(frozen=True, eq=False)
class Gains:
    """What the pairs of one side are multiplied by.

    Args:
        value: (batch, seq, P), complex.
        weight: (batch, seq, P), energy of the pair before, as far as it determines the gain.
        residual: root mean square of what the gains leave unexplained, relative to what came out.
        samples: heads that each gain is an average of.
        spread: (batch, seq, P), by how much more than that of a rotation the rounding of the numbers shows in a gain.
        rest: what the channels that are not turned are multiplied by; 1 where there are none.
    """

    value: Tensor
    weight: Tensor
    residual: float
    samples: int
    spread: Tensor
    rest: float = 1.0


def turned(side: Side) -> float:
    """Return how much of a side is changed at all, relative to its length."""
    return float(((side.after - side.before).square().sum() / side.before.square().sum().clamp(min=1e-300)).sqrt())


def read(side: Side, structure: Structure) -> Gains:
    """Return the gains of a side under a structure, and how well they explain it."""
    if structure.swapped:
        side = side.swapped()
    x, y = side.before, structure.undo_order(side.after)
    first, second = structure.channels()
    a, b, c, d = x[..., first], x[..., second], y[..., first], y[..., second]
    left, value, weight = _KERNELS[structure.kernel](a, b, c, d, structure)
    rest = 1.0
    if structure.width < x.shape[-1]:
        others = torch.ones(x.shape[-1], dtype=torch.bool)
        others[torch.cat((first, second))] = False
        u, v = x[..., others], y[..., others]
        rest = float((u * v).sum() / u.square().sum().clamp(min=1e-300))
        left = left + (v - rest * u).square().sum()
    total = y.square().sum().clamp(min=1e-300)
    spread = ((a.square() + b.square()).sum(1) / weight.clamp(min=1e-300)).sqrt().clamp(min=1.0)
    return Gains(value, weight, float((left.clamp(min=0.0) / total).sqrt()), x.shape[1], spread, rest)


def _rotate(a: Tensor, b: Tensor, c: Tensor, d: Tensor, _: Structure) -> tuple[Tensor, Tensor, Tensor]:
    z, w = torch.complex(a, b), torch.complex(c, d)
    across, before = (w * z.conj()).sum(1), z.abs().square().sum(1)
    after = w.abs().square().sum()
    # All gains have one length: with one head that is all there is to tell a right pairing from a wrong one.
    factor = (after / before.sum().clamp(min=1e-300)).sqrt()
    left = after + factor.square() * before.sum() - 2 * factor * across.abs().sum()
    return left, across / before.clamp(min=1e-300), before


def _scale(a: Tensor, b: Tensor, c: Tensor, d: Tensor, _: Structure) -> tuple[Tensor, Tensor, Tensor]:
    z, w = torch.complex(a, b), torch.complex(c, d)
    across, before = (w * z.conj()).sum(1), z.abs().square().sum(1).clamp(min=1e-300)
    return w.abs().square().sum() - (across.abs().square() / before).sum(), across / before, before


def _mirror(a: Tensor, b: Tensor, c: Tensor, d: Tensor, _: Structure) -> tuple[Tensor, Tensor, Tensor]:
    # c = a C + b S and d = b C + a S, so that sum and difference are each multiplied by one number.
    u, v, p, m = a + b, a - b, c + d, c - d
    uu, vv = u.square().sum(1).clamp(min=1e-300), v.square().sum(1).clamp(min=1e-300)
    plus, minus = (p * u).sum(1) / uu, (m * v).sum(1) / vv
    value = torch.complex((plus + minus) / 2, (plus - minus) / 2)
    left = ((p - plus[:, None] * u).square() + (m - minus[:, None] * v).square()).sum() / 2
    weight = torch.minimum(uu, vv)
    return left + _unequal(value, weight), value, weight


def _mixed(a: Tensor, b: Tensor, c: Tensor, d: Tensor, s: Structure) -> tuple[Tensor, Tensor, Tensor]:
    up, left_up, weight_up = _two(a, b, c, -1.0)
    down, left_down, weight_down = _two(b, a, d, 1.0)
    half = a.shape[-1]
    if s.pairing == "half":  # channel o of all 2P takes row o // 2 of the table
        by_channel, weights = torch.cat((up, down), -1), torch.cat((weight_up, weight_down), -1)
        by_channel, weights = by_channel.unflatten(-1, (half, 2)), weights.unflatten(-1, (half, 2))
    else:  # channel o takes row o mod P
        by_channel = torch.stack((up, down), -1).flatten(-2).unflatten(-1, (2, half)).transpose(-1, -2)
        weights = torch.stack((weight_up, weight_down), -1).flatten(-2).unflatten(-1, (2, half)).transpose(-1, -2)
    weight = weights.sum(-1)
    value = (by_channel * weights).sum(-1) / weight.clamp(min=1e-300)
    apart = (weights * (by_channel - value[..., None]).abs().square()).sum()
    return left_up + left_down + apart + _unequal(value, weight), value, 2 * weight


def _two(own: Tensor, partner: Tensor, out: Tensor, sign: float) -> tuple[Tensor, Tensor, Tensor]:
    """Solve out = own · C + sign · partner · S over the heads; return C + iS, what is left, and how well it is determined."""
    xx, yy, xy = own.square().sum(1), partner.square().sum(1), (own * partner).sum(1)
    ox, oy = (own * out).sum(1), (partner * out).sum(1)
    det = xx * yy - xy.square()
    sure = det > 1e-3 * xx * yy
    safe = torch.where(sure, det, torch.ones_like(det))
    cos, sin = (ox * yy - oy * xy) / safe, (oy * xx - ox * xy) / safe
    left = torch.where(sure[:, None], out - cos[:, None] * own - sin[:, None] * partner, torch.zeros_like(out))
    weight = torch.where(sure, det / (xx + yy).clamp(min=1e-300), torch.zeros_like(det))
    return torch.complex(cos, sign * sin), left.square().sum(), weight


def _unequal(value: Tensor, weight: Tensor) -> Tensor:
    length = value.abs()
    mean = (weight * length).sum() / weight.sum().clamp(min=1e-300)
    return (weight * (length - mean).square()).sum()


_KERNELS = {"rotate": _rotate, "scale": _scale, "mirror": _mirror, "mixed": _mixed}


# ---- which structure -----------------------------------------------------------------------------------------------


def structures(wanted: Structure, head_dim: int, heads: int) -> Iterator[list[Structure]]:
    """Yield structures to try: the wanted one, those that differ in one thing, those that differ in two."""
    yield [wanted]
    one = list(_one_apart([wanted], head_dim, heads))
    yield one
    seen = {wanted, *one}
    yield [s for s in dict.fromkeys(_one_apart(one, head_dim, heads)) if s not in seen]


def _one_apart(among: Iterable[Structure], head_dim: int, heads: int) -> Iterator[Structure]:
    for s in among:
        yield replace(s, pairing="half" if s.pairing == "interleaved" else "interleaved")
        if not s.swapped:
            yield replace(s, swapped=True)
        for width, start in _places(s, head_dim):
            yield replace(s, width=width, start=start)
        if s.kernel == "rotate":
            yield replace(s, kernel="mirror")
            if heads >= 3 and s.order == "same":
                yield replace(s, kernel="mixed")
            if heads >= 2:
                yield replace(s, kernel="scale")
        if s.order == "same" and s.kernel == "rotate":
            yield replace(s, order="to_half" if s.pairing == "interleaved" else "to_interleaved")


def _places(s: Structure, head_dim: int) -> Iterator[tuple[int, int]]:
    likely = [
        head_dim,
        s.width,
        s.width // 2,
        s.width * 2,
        head_dim // 2,
        head_dim // 4,
        3 * head_dim // 4,
        s.width - 2,
        s.width + 2,
    ]
    for width in dict.fromkeys(likely):
        if width % 2 or not 2 <= width <= head_dim:
            continue
        for start in dict.fromkeys((s.start, 0, head_dim - width)):
            if (width, start) != (s.width, s.start) and start + width <= head_dim:
                yield width, start


def find_structure(sides: Iterable[Side], wanted: Structure, unit: float) -> tuple[Structure, float]:
    """Return the structure nearest to the wanted one under which the sides have gains, and what it leaves unexplained.

    A structure is accepted if it leaves a hundredth of what was changed, or what rounding leaves. If none does, any
    rotation width is tried, and the best of all is taken. All channels of a token are turned in the same manner, so few
    tokens tell.
    """
    sides = [_thinned(side, FEW) for side in sides]
    head_dim, heads = sides[0].before.shape[-1], min(s.before.shape[1] for s in sides)
    changed = max(turned(s) for s in sides)
    enough = max(4 * unit, 0.01 * changed)
    tried: dict[Structure, float] = {}

    def left(s: Structure) -> float:
        if s not in tried:
            penalty = 1.0 if s.kernel != "scale" else 3.0
            tried[s] = penalty * max(read(side, s).residual for side in sides)
        return tried[s]

    for few in structures(wanted, head_dim, heads):
        best = min(few, key=left, default=wanted)
        if left(best) <= enough:
            found, rest = _nearest([s for s in few if left(s) <= max(1.5 * left(best), 2 * unit)], wanted, tried)
            # What slow planes beyond the width turn is little beside what is turned in all, and no rounding.
            wider = [replace(found, width=w, start=s) for w, s in _places(found, head_dim) if w > found.width]
            better = min(wider, key=left, default=found)
            return (better, left(better)) if rest > 4 * unit and left(better) < 0.25 * rest else (found, rest)
    possible = [
        replace(wanted, pairing=pairing, width=width, start=start)
        for width in range(2, head_dim + 1, 2)
        for start in dict.fromkeys((wanted.start, 0, head_dim - width))
        if start + width <= head_dim
        for pairing in ("interleaved", "half")
    ]
    fewer = [_thinned(side, LAST_RESORT) for side in sides]
    for s in sorted(possible, key=lambda s: max(read(side, s).residual for side in fewer))[:8]:
        left(s)
    best = min(tried, key=left)
    if left(best) <= max(enough, 0.25 * tried[wanted]):
        return _nearest([s for s in tried if left(s) <= max(1.2 * left(best), 2 * unit)], wanted, tried)
    return wanted, tried[wanted]


def _thinned(side: Side, most: int) -> Side:
    """Return a side at so many of its tokens, evenly spread."""
    seq = side.before.shape[2]
    if seq <= most:
        return side
    which = torch.linspace(0, seq - 1, most).long()
    return replace(side, before=side.before[:, :, which], after=side.after[:, :, which])


def _nearest(among: list[Structure], wanted: Structure, left: dict[Structure, float]) -> tuple[Structure, float]:
    def apart(s: Structure) -> tuple[int, int, float]:
        differs = [
            getattr(s, n) != getattr(wanted, n) for n in ("pairing", "width", "start", "kernel", "order", "swapped")
        ]
        return sum(differs), abs(s.width - wanted.width), left[s]

    best = min(among, key=apart)
    return best, left[best]


# ---- frequencies and positions ---------------------------------------------------------------------------------------


def wrap(angle: Tensor) -> Tensor:
    """Return the angle in (−π, π]."""
    return torch.remainder(angle + torch.pi, 2 * torch.pi) - torch.pi


def turn(angle: Tensor) -> Tensor:
    """Return e^{iφ}."""
    return torch.complex(angle.cos(), angle.sin())


def frequencies(value: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find ω with φ = ω p + φ₀ for each pair, whatever multiples of 2π are lost.

    Neighbours show ω to within a turn; tokens ever further apart then refine it.

    Args:
        value: (n, P) gains of n tokens.
        position: (n,) or (n, P).

    Returns:
        (P,) frequencies, (P,) φ₀, and (P,) how well they hold: the length of the mean of e^{i(φ − ωp − φ₀)}.
    """
    planes = value.shape[-1]
    unit = value / value.abs().clamp(min=1e-300)
    where = position if position.ndim == 2 else position[:, None].expand(-1, planes)
    omega = torch.empty(planes, dtype=torch.float64)
    phase, hold = torch.empty_like(omega), torch.empty_like(omega)
    groups: dict[bytes, list[int]] = {}
    for i in range(planes):
        groups.setdefault(where[:, i].contiguous().numpy().tobytes(), []).append(i)
    for pairs in groups.values():
        p, u = where[:, pairs[0]], unit[:, pairs]
        w = _slopes(u, p)
        mean = (u * torch.exp(-1j * w * p[:, None])).mean(0)
        omega[pairs], phase[pairs], hold[pairs] = w, mean.angle(), mean.abs()
    return omega, phase, hold


def _slopes(unit: Tensor, position: Tensor) -> Tensor:
    n = len(position)
    i, j = torch.triu_indices(n, n, 1)
    apart = position[j] - position[i]
    sign = torch.where(apart < 0, -1, 1)
    apart = apart.abs()
    keep = apart > 0
    i, j, apart, sign = i[keep], j[keep], apart[keep], sign[keep]
    if not len(apart):
        return torch.zeros(unit.shape[-1], dtype=torch.float64)
    steps, which = apart.unique(return_inverse=True)
    omega = torch.zeros(unit.shape[-1], dtype=torch.float64)
    alive, last = torch.ones_like(omega, dtype=torch.bool), 0.0
    for number, step in enumerate(steps.tolist()):
        if step < 1.5 * last:
            continue
        chosen = which == number
        turn = unit[j[chosen]] * unit[i[chosen]].conj()
        turn = torch.where(sign[chosen][:, None] < 0, turn.conj(), turn).mean(0)
        refined = omega + wrap(turn.angle() - omega * step) / step
        alive &= turn.abs() > 0.8
        omega = torch.where(alive | (last == 0.0), refined, omega)
        last = step
    return omega


def locate(value: Tensor, inv_freq: Tensor, near: Tensor) -> Tensor:
    """Find for each token the position that its angles stand for, from the slowest pair to the fastest.

    Args:
        value: (n, P) or (trials, n, P) gains.
        inv_freq: (trials, P) frequencies; pairs of frequency 0 say nothing.
        near: (n,) where to look first if the slowest pair turns around within twice the largest of them.

    Returns:
        (trials, n) positions.
    """
    order = inv_freq.abs().argsort(-1)
    omega = inv_freq.gather(-1, order)
    phase = value.angle().expand(len(omega), -1, -1).gather(-1, order[:, None].expand(-1, value.shape[-2], -1))
    slowest = torch.where(omega == 0, math.inf, omega.abs()).amin(-1, keepdim=True)
    position = torch.where(math.pi / slowest > 2 * near.abs().max() + 2, 0.0, near)
    information = torch.zeros_like(slowest)
    for w, seen in zip(omega.split(1, -1), phase.unbind(-1), strict=True):
        information = information + w.square()
        position = position + wrap(seen - w * position) * w / information.clamp(min=1e-300)
    return position
