"""The flash-attn package, where it is installed: plain dot products on a CUDA device in half precision."""

from __future__ import annotations

import importlib.util

import torch

from ropewalk.backends.request import Backend, Request, Result
from ropewalk.core.attention import Attention


def run(p: Attention, request: Request) -> Result:
    """Compute the problem by ``flash_attn_func``, whose layout is (batch, seq, heads, head_dim)."""
    from flash_attn import flash_attn_func  # type: ignore[import-not-found]

    far = -1 if p.window is None else p.window - 1  # flash-attn counts the keys beside the query's own
    out = flash_attn_func(
        *(t.transpose(1, 2) for t in (p.q, p.k, p.v)),
        dropout_p=request.dropout,
        softmax_scale=p.logit_scale,
        causal=p.causal,
        window_size=(far, 0 if p.causal else far),
        softcap=0.0 if p.softcap is None else p.softcap,
    )
    return Result(out.transpose(1, 2))


def why_not(p: Attention, request: Request) -> str | None:
    """Say what rules the package out."""
    if importlib.util.find_spec("flash_attn") is None:
        return "the flash-attn package is not installed"
    if p.q.device.type != "cuda":
        return f"it runs on CUDA devices, not {p.q.device.type}"
    if p.q.dtype not in (torch.float16, torch.bfloat16):
        return f"it takes float16 and bfloat16, not {p.q.dtype}"
    if p.kernel is not None or p.product is not None or p.branches or p.terms or p.sinks is not None:
        return "it takes one plain dot product without terms or sinks"
    if p.q.shape[-1] != p.v.shape[-1] or p.q.shape[-1] > 256 or p.q.shape[-1] % 8:
        return "it takes q, k and v of one width, a multiple of 8 up to 256"
    masks = [m.name for m in p.all_masks() if m in p.masks or m.name not in ("causal", "window")]
    if masks or p.mask is not None:
        return f"it knows causality and windows, and there is another mask ({', '.join(masks) or 'user'})"
    if p.where.order is not None:
        return "the queries are not the last keys"
    if request.weights or request.lse:
        return "weights or log-sum-exp were asked for"
    if p.softcap is not None and request.dropout:
        return "it has no soft cap under dropout"
    if p.q.shape[2] == 0 or p.k.shape[2] == 0:
        return "an empty problem"
    return None


BACKEND = Backend("flash", run, why_not)
