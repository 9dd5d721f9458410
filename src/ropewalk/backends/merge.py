"""Attention to several sets of keys under one softmax, from the attention to each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor


def merge(parts: Sequence[tuple[Tensor, Tensor]], sinks: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """o = Σ_n exp(l_n − l) o_n with l = log Σ_n exp(l_n).

    Args:
        parts: (output, log-sum-exp) of each set of keys, (B, H, Q, D_v) and (B, H, Q); −inf where a query sees none of it.
        sinks: (H,) logits of a further key without value, one a head.

    Returns:
        The output in the dtype of the log-sum-exps, zero where a query sees no key at all, and the whole log-sum-exp.
    """
    lses = [lse for _, lse in parts]
    if sinks is not None:
        lses.append(sinks[None, :, None].to(lses[0].dtype).expand_as(lses[0]))
    stacked = torch.stack(lses)
    # Of a row that sees nothing neither the logarithm nor its gradient is a number: compute another row in its place.
    blank = (stacked == -torch.inf).all(0)
    total = stacked.masked_fill(blank, 0.0).logsumexp(0)
    out = sum(out.to(total.dtype) * (lse - total).exp()[..., None] for out, lse in parts)
    return cast("Tensor", out), total.masked_fill(blank, -torch.inf)
