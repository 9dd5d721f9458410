"""Ways to compute an attention problem, and the choice between them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ropewalk.backends import blocks, dense, flash, flex, linear, sdpa, two_scores
from ropewalk.backends.request import Backend, Request, Result
from ropewalk.core.attention import Attention, Parts, Problem, check_mask
from ropewalk.core.errors import BackendError, ConfigError, UnknownNameError, suggest

BACKENDS: tuple[Backend, ...] = (
    flash.BACKEND,
    sdpa.BACKEND,
    linear.BACKEND,
    two_scores.BACKEND,
    flex.BACKEND,
    blocks.BACKEND,
    dense.BACKEND,
)
"""In the order in which "auto" asks them."""


def attend(
    problem: Problem,
    backend: str = "auto",
    dropout: float = 0.0,
    return_weights: bool = False,
    return_lse: bool = False,
) -> Any:
    """Compute an attention problem.

    Args:
        problem: an `Attention`, usually as an encoding has rewritten it.
        backend: "auto", or the name of one: "dense", "sdpa", "flex", "triton", "blocks", "linear", "flash".
        dropout: probability of dropping a weight. It is always applied: pass 0 when not training.
        return_weights: also return the weights (B, H, Q, K) before dropout (dense only).
        return_lse: also return the logarithm of what the weights were divided by (B, H, Q), sinks included.

    Returns:
        The output (B, H, Q, D_v) in the dtype of q, or a tuple (output, [weights], [lse]). A query that may see no
        key gets zeros.

    Raises:
        BackendError: the backend asked for cannot run this problem; the message says what rules it out.
    """
    if not 0.0 <= dropout < 1.0:
        raise ConfigError(f"dropout is a probability in [0, 1); got {dropout!r}")
    result = _attend(problem, backend, Request(dropout, return_weights, return_lse))
    extra = [r for r, wanted in ((result.weights, return_weights), (result.lse, return_lse)) if wanted]
    return (result.out, *extra) if extra else result.out


def _attend(problem: Problem, backend: str, request: Request) -> Result:
    if isinstance(problem, Parts):
        if (request.weights or request.lse) and not problem.by_head:
            raise BackendError("weights and log-sum-exps of a problem that was split are not defined")
        results = [_attend(item, backend, request) for item in problem.items]
        return Result(
            problem.combine([r.out for r in results]),
            torch.cat([r.weights for r in results], 1) if request.weights else None,  # type: ignore[misc]
            torch.cat([r.lse for r in results], 1) if request.lse else None,  # type: ignore[misc]
        )
    p = problem.located()
    if p.mask is not None:
        check_mask(p, p.mask)
    kind = p.q.device.type
    if torch.is_autocast_enabled(kind):
        # What torch's own attention does under autocast; the encoding's factors are then split for that dtype.
        low = torch.get_autocast_dtype(kind)
        if p.q.dtype == torch.float32:
            p = p.replace(q=p.q.to(low), k=p.k.to(low), v=p.v.to(low))
        with torch.autocast(kind, enabled=False):
            return _run(p, backend, request)
    return _run(p, backend, request)


def _run(p: Attention, backend: str, request: Request) -> Result:
    result = choose(p, backend, request).run(p, request)
    return result._replace(out=finished(p, result.out))


def finished(p: Attention, out: Tensor) -> Tensor:
    """Apply the finishers of a problem to its output, the last one asked for first."""
    for step in reversed(p.finish):
        out = step.fn(out, *(p.read(ref, "q") for ref in step.q))
    return out.to(p.q.dtype)


def choose(p: Attention, backend: str, request: Request) -> Backend:
    """Return the backend by that name if it can run the problem, or for "auto" the first that can."""
    if backend != "auto":
        chosen = _by_name(backend)
        reason = chosen.why_not(p, request)
        if reason is not None:
            raise BackendError(f"the {backend!r} backend cannot run this problem: {reason}. {_advice(p, request)}")
        return chosen
    able = [b for b in BACKENDS if b.why_not(p, request) is None]
    if not able:
        reasons = "; ".join(f"{b.name}: {b.why_not(p, request)}" for b in BACKENDS)
        raise BackendError(f"no backend can run this problem. {reasons}")
    for b in able:
        if b.prefer_not(p, request) is None:
            return b
    return able[0]


def _by_name(name: str) -> Backend:
    names = [b.name for b in BACKENDS]
    if name not in names:
        raise UnknownNameError(
            f"unknown backend {name!r}; there are 'auto', {', '.join(map(repr, names))}.{suggest(name, names)}"
        )
    return BACKENDS[names.index(name)]


def _advice(p: Attention, request: Request) -> str:
    able = [b.name for b in BACKENDS if b.why_not(p, request) is None]
    return f"Able to: {', '.join(able)}" if able else "No backend is able to"


def explain(problem: Problem, dropout: float = 0.0, return_weights: bool = False, return_lse: bool = False) -> str:
    """Say which backend "auto" takes for a problem, and what rules out each of the faster ones.

    Example:
        >>> import torch, ropewalk as rw
        >>> q = torch.randn(1, 4, 64, 32)
        >>> print(rw.explain(rw.T5(num_heads=4)(rw.Attention(q, q, q))))  # doctest: +SKIP
    """
    request = Request(dropout, return_weights, return_lse)
    if isinstance(problem, Parts):
        lines = [f"split into {len(problem.items)} problems:"]
        for i, item in enumerate(problem.items):
            lines += [
                f"  {i}: {line}" if n == 0 else f"     {line}"
                for n, line in enumerate(explain(item, *request).split("\n"))
            ]
        return "\n".join(lines)
    p = problem.located()
    chosen = choose(p, "auto", request)
    lines = [f"{chosen.name}: {_describe(p)}"]
    for b in BACKENDS:
        if b is chosen:
            continue
        reason = b.why_not(p, request)
        other = b.prefer_not(p, request)
        if reason is not None:
            lines.append(f"  {b.name} cannot: {reason}")
        elif other is not None:
            lines.append(f"  {b.name} could, but {other}")
        else:
            lines.append(f"  {b.name} could")
    return "\n".join(lines)


def _describe(p: Attention) -> str:
    b, h, n, d = p.q.shape
    heads = f"{h}" if h == p.num_kv_heads else f"{h}/{p.num_kv_heads}"
    said = [
        f"{b} x {heads} heads x {n} queries x {p.k.shape[2]} keys, width {d}",
        str(p.q.dtype).removeprefix("torch."),
    ]
    terms = [type(t).__name__.lower() + (" (low-rank)" if getattr(t, "factors", None) else "") for t in p.terms]
    said += [f"terms: {', '.join(terms)}"] if terms else []
    said += [f"{len(p.branches)} scores under one softmax"] if p.branches else []
    masks = [m.name for m in p.all_masks()] + (["user"] if p.mask is not None else [])
    said += [f"masks: {', '.join(masks)}"] if masks else []
    return "; ".join(said)


__all__ = ["BACKENDS", "Backend", "Request", "Result", "attend", "choose", "explain", "finished"]
