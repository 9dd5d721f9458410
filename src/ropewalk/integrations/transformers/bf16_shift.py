"""What bfloat16 does to the attention of a trained model when all its positions move."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ropewalk.analysis.bf16_shift import Rounding, bf16_shift_discrepancy
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.integrations.transformers.probe import LayerStates, Probe


class ShiftByHead(NamedTuple):
    """See `ropewalk.analysis.bf16_shift.ShiftDiscrepancy`."""

    total: Tensor
    """(layers, heads) of a row, averaged over rows."""

    first_ratio: Tensor
    """(layers, heads) the column of the first token over the mean of the others."""


def bf16_shift_by_head(
    model: Any,
    ids: Tensor,
    shift: int = 16,
    *,
    rounding: Rounding = "full",
    dtype: torch.dtype = torch.bfloat16,
    start: int = 0,
) -> ShiftByHead:
    """Measure each head of a model: its own q and k before the rotation, turned at p, p + 1, … and at p + Δ, p + Δ + 1, ….

    Args:
        model: a causal RoPE model of transformers, best in float32; it is left as it was.
        ids: (S,) or (B, S) without padding, more than one token.
        shift: Δ.
        rounding: what is rounded.
        dtype: what it is rounded to.
        start: p.

    Raises:
        ConfigError: a layer that turns nothing.
        ShapeError: ids of another shape.

    Source: Haonan Wang, Qian Liu, Chao Du, Tongyao Zhu, Cunxiao Du, Kenji Kawaguchi, Tianyu Pang. When Precision Meets Position:
    BFloat16 Breaks Down RoPE in Long-Context Training. arXiv 2411.13476, 2024.
    """
    rows = ids[None] if ids.ndim == 1 else ids
    if rows.ndim != 2 or rows.shape[1] < 2 or rows.is_floating_point():
        raise ShapeError(
            f"ids have shape {tuple(ids.shape)} and dtype {ids.dtype}; expected integers (batch, S), S at least 2"
        )
    totals: list[Tensor] = []
    ratios: list[Tensor] = []

    def look(states: LayerStates) -> None:
        shape = states.shape
        if shape.spectrum is None:
            raise ConfigError(f"layer {shape.index} turns nothing")
        q, k = states.still()
        q, k = (torch.cat((x, y[..., states.turned :]), -1) for x, y in ((q, states.q), (k, states.k)))
        found = bf16_shift_discrepancy(
            q, k.repeat_interleave(shape.group, 1), shift, spectrum=shape.spectrum, pairing=shape.pairing,
            rounding=rounding, dtype=dtype, start=start, scale=states.scale,
        )  # fmt: skip
        totals.append(found.total.mean(0).cpu())
        ratios.append(found.first_ratio.mean(0).cpu())

    with torch.no_grad(), Probe(model, look=look):
        model(rows.to(model.device), use_cache=False)
    return ShiftByHead(torch.stack(totals), torch.stack(ratios))
