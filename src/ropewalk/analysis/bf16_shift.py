"""How far bfloat16 takes RoPE from depending on relative positions alone.

After Haonan Wang and others, When Precision Meets Position: BFloat16 Breaks Down RoPE in Long-Context Training, arXiv
2411.13476, 2024.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ropewalk.core import rotation
from ropewalk.core.errors import ConfigError, ShapeError, suggest
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum, geometric

Rounding = Literal["full", "result"]
"""What is rounded: everything (q, k, cos, sin, each product, their sum: as common stacks do), or the turned q and k alone."""


class ShiftDiscrepancy(NamedTuple):
    """What moving all positions changed in causal attention."""

    total: Tensor
    """(...) Σ_{i ≥ j} |a_ij(p) − a_ij(p + Δ)| of each head."""

    columns: Tensor
    """(..., K) the same for each key."""

    @property
    def first_ratio(self) -> Tensor:
        """(...) the column of the first token over the mean of the others."""
        rest = self.columns[..., 1:].mean(-1)
        return self.columns[..., 0] / rest.clamp(min=torch.finfo(rest.dtype).tiny)


def bf16_shift_discrepancy(
    q: Tensor,
    k: Tensor,
    shift: int = 16,
    *,
    spectrum: Spectrum | None = None,
    pairing: Pairing = "half",
    rounding: Rounding = "full",
    dtype: torch.dtype = torch.bfloat16,
    start: int = 0,
    scale: float | None = None,
) -> ShiftDiscrepancy:
    """Turn q and k at positions p, p + 1, … and at p + Δ, p + Δ + 1, …, and compare the attention.

    Exact arithmetic would find no difference. Logits are accumulated in float32.

    Args:
        q: (..., S, d) before the rotation.
        k: (..., S, d) likewise.
        shift: Δ.
        spectrum: frequencies; None: RoPE's of base 10000.
        pairing: of the channels.
        rounding: see `Rounding`.
        dtype: what is rounded to; float32 for comparison.
        start: p.
        scale: of the logits; None: 1/√d.

    Raises:
        ShapeError: q and k of different shapes.
    """
    if q.shape != k.shape or q.ndim < 2:
        raise ShapeError(f"q {tuple(q.shape)} and k {tuple(k.shape)}; expected (..., S, d) of one shape")
    if rounding not in get_args(Rounding):
        raise ConfigError(f"rounding is 'full' or 'result'; got {rounding!r}.{suggest(rounding, get_args(Rounding))}")
    own = geometric(q.shape[-1]) if spectrum is None else spectrum
    here, there = (_attention(q, k, start + by, own, pairing, rounding, dtype, scale) for by in (0, shift))
    difference = (here - there).abs().double()
    columns = difference.sum(-2)
    return ShiftDiscrepancy(columns.sum(-1), columns)


def offset_loss_difference(
    forward: Callable[[Tensor, Tensor], Tensor], ids: Tensor, offset: int, start: int = 0
) -> tuple[float, float]:
    """Return the mean loss at positions p, p + 1, … and at p + Δ, p + Δ + 1, … of any model: equal but for rounding.

    Args:
        forward: from ids and positions (B, S) to logits (B, S, V); of transformers
            ``lambda ids, at: model(ids, position_ids=at).logits``.
        ids: (B, S), two tokens or more.
        offset: Δ.
        start: p.
    """
    if ids.ndim != 2 or ids.shape[1] < 2 or ids.is_floating_point():
        raise ShapeError(
            f"ids have shape {tuple(ids.shape)} and dtype {ids.dtype}; expected integers (batch, S), S at least 2"
        )
    losses = []
    with torch.no_grad():
        for first in (start, start + offset):
            at = torch.arange(first, first + ids.shape[1], device=ids.device).expand_as(ids)
            logits = forward(ids, at)[:, :-1].float()
            losses.append(float(cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())))
    return losses[0], losses[1]


def _attention(
    q: Tensor,
    k: Tensor,
    start: int,
    spectrum: Spectrum,
    pairing: Pairing,
    rounding: Rounding,
    dtype: torch.dtype,
    scale: float | None,
) -> Tensor:
    n = q.shape[-2]
    at = torch.arange(start, start + n, dtype=torch.float64, device=q.device)
    angles = at[:, None] * spectrum.tensor().to(q.device)
    cos, sin = rotation.tables(angles, torch.float32, spectrum.attention_factor)
    q, k = (rounded_rotation(x, cos, sin, pairing, rounding, dtype).float() for x in (q, k))
    logits = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    seen = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
    return logits.masked_fill(~seen, -torch.inf).softmax(-1)


def rounded_rotation(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    pairing: Pairing,
    rounding: Rounding = "full",
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Turn x (..., d) by tables (..., P) as common stacks do in half precision.

    Args:
        x: of q or k.
        cos: in float32 or float64.
        sin: likewise.
        pairing: of the channels.
        rounding: see `Rounding`.
        dtype: what is rounded to, and of the result.
    """
    if rounding == "result":
        return rotation.rotate(x.to(dtype).float(), cos, sin, pairing).to(dtype)
    planes = cos.shape[-1]
    x, cos, sin = x.to(dtype), cos.to(dtype), sin.to(dtype)
    turned = x[..., : 2 * planes]
    a, b = turned.chunk(2, -1) if pairing == "half" else (turned[..., 0::2], turned[..., 1::2])
    pair = (a * cos - b * sin, a * sin + b * cos)
    out = torch.cat(pair, -1) if pairing == "half" else torch.stack(pair, -1).flatten(-2)
    return torch.cat([out, x[..., 2 * planes :]], -1)
