"""Backends, masks and gradients: one problem has one answer, and one gradient."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from ropewalk.backends import attend, dense
from ropewalk.core.attention import Attention, Problem, leaves
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import RopewalkError
from ropewalk.testing.compare import (
    DIFFERENT,
    SAME,
    SHIFTED,
    SINGLE,
    ContractError,
    agree,
    attempt,
    error_of,
    failing_as,
    finite,
    identical,
    require,
)
from ropewalk.testing.subjects import (
    BATCH,
    HEAD_DIM,
    HEADS,
    LONG,
    MEDIUM,
    Layer,
    Subject,
    able,
    in_dtype,
    inputs,
    like,
    outcome,
)


def check_backends(s: Subject) -> None:
    """Every backend gives what the dense one gives in float64. Finds: a fused kernel fed with wrong factors."""
    layer = s.layer()
    single = copy.deepcopy(layer).float()
    for causal in s.causals:
        for length in (MEDIUM, LONG):
            x, positions = s.x(length), s.positions(layer.encoding, length)
            want = layer(x, positions, causal)
            for model, dtype, tolerance in ((layer, torch.float64, SAME), (single, torch.float32, SINGLE)):
                problem = model.encoding(model.problem(x.to(dtype), positions, causal))
                for backend in ("auto", *able(problem)):
                    case = f"backend {backend}, {dtype}, {causal=}, {length=}"
                    agree(attend(problem, backend), want, tolerance, case, "the dense result in float64")


def check_result(s: Subject) -> None:
    """The output has q's dtype and shape, and nothing else changed. Finds: a model upcast, or its inputs overwritten."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        encoding = s.encoding(dtype=dtype)
        for causal in s.causals:
            case = f"{dtype}, {causal=}"
            p = in_dtype(s.problem(encoding, MEDIUM, causal), dtype)
            before = [t.clone() for t in (*inputs(p), p.where.key.position)]
            encoded = encoding(p)
            kinds = {t.dtype for leaf in leaves(encoded) for t in (leaf.q, leaf.k, leaf.v)}
            require(kinds == {dtype}, case, "encoded q, k and v in the dtype that came in", kinds)
            out = attend(encoded)
            require(out.dtype == dtype, case, "an output in the dtype of q", out.dtype)
            shape = (BATCH, encoding.output_heads(HEADS), MEDIUM, HEAD_DIM)
            require(out.shape == shape, case, f"an output of shape {shape}", tuple(out.shape))
            finite(case, out)
            for old, new in zip(before, (*inputs(p), p.where.key.position), strict=True):
                require(torch.equal(old, new), case, "inputs left as they were", "a change in place")
            identical(attend(encoding(p)), out, f"{case}, second run", "the same result")


# ---- masks and options -----------------------------------------------------------------------------------------------


def check_masks(s: Subject) -> None:
    """Rows that see nothing give zeros; windows, soft caps and sinks are right or refused. Finds: NaN in training."""
    encoding = s.encoding()
    for causal in s.causals:
        one = torch.rand(LONG, LONG, generator=s.generator("mask")) < 0.6
        one[0] = one[5] = one[-1] = False
        many = torch.rand(BATCH, HEADS, LONG, LONG, generator=s.generator("mask a head")) < 0.6
        many[1, 2] = False
        for case, mask in (("a mask", one), ("a mask a head", many)):
            _masked(s, encoding, causal, mask, f"{case}, {causal=}")
        _options(s, encoding, causal)


def _masked(s: Subject, encoding: Encoding, causal: bool, mask: Tensor, case: str) -> None:
    p = s.problem(encoding, LONG, causal, mask=mask)
    leaf = [t.clone().requires_grad_() for t in inputs(p)]
    encoded = encoding(like(p, leaf))
    seen = mask & _visible(s, encoding, causal)
    made = encoding.output_heads(HEADS) // HEADS
    blank = ~seen.any(-1).expand(BATCH, HEADS, LONG).repeat_interleave(made, 1)
    want = attend(encoded, "dense")
    for backend in ("dense", *able(encoded)):
        out = attend(encoded, backend)
        top = float(out[blank].detach().abs().max())
        require(top == 0, f"{case}, {backend}", "zeros where nothing may be seen", f"values up to {top:.3g}")
        agree(out, want, SAME, f"{case}, {backend}", "the dense result")
        grads = torch.autograd.grad(out.square().sum(), leaf, retain_graph=True, allow_unused=True)
        finite(f"{case}, {backend}", *(g for g in grads if g is not None), what="gradients")


def _visible(s: Subject, encoding: Encoding, causal: bool) -> Tensor:
    """Return which keys a query may see: those up to itself, unless the encoding says who sees whom in place of causality."""
    encoded = encoding(s.problem(encoding, LONG, causal))
    if isinstance(encoded, Attention) and any(m.name == "causal" for m in encoded.masks):
        made = dense.allowed(encoded)
        assert made is not None
        return made
    every = torch.ones(LONG, LONG, dtype=torch.bool)
    return every.tril() if causal else every


def _options(s: Subject, encoding: Encoding, causal: bool) -> None:
    def run(**options: Any) -> tuple[Problem, Tensor]:
        encoded = encoding(s.problem(encoding, LONG, causal, **options))
        return encoded, attend(encoded, "dense")

    i = torch.arange(LONG)
    sinks = torch.randn(HEADS, generator=s.generator("sinks"), dtype=torch.float64)
    # what is asked for, and other words for it; None: there are none, and the result has to change
    cases: tuple[tuple[str, dict[str, Any], dict[str, Any] | None], ...] = (
        ("window=5", {"window": 5}, {"mask": (i[:, None] - i).abs() < 5}),
        ("softcap=2", {"softcap": 2.0}, None),
        ("softcap=1e9", {"softcap": 1e9}, {}),
        ("sinks", {"sinks": sinks}, None),
        ("sinks of -1e4", {"sinks": torch.full_like(sinks, -1e4)}, {}),
    )
    for name, options, same in cases:
        case = f"{name}, {causal=}"
        result = attempt(case, run, **options)
        if isinstance(result, RopewalkError):
            continue
        encoded, out = result
        finite(case, out)
        for backend in ("auto", *able(encoded)):
            agree(attend(encoded, backend), out, SAME, f"{case}, {backend}", "the dense result")
        if same is None:
            require(error_of(out, run()[1]) > DIFFERENT, case, "another result than without", "the same")
        else:
            agree(out, run(**same)[1], SHIFTED, case, f"the result with {sorted(same) or 'nothing'}")


# ---- gradients -------------------------------------------------------------------------------------------------------


def check_gradients(s: Subject) -> None:
    """Gradients are right, through every backend. Finds: a parameter that never learns, or learns another thing."""
    layer = s.layer()
    for causal in s.causals:
        _numerical(s, layer.encoding, causal)
        _by_backend(s, layer, causal)


def _numerical(s: Subject, encoding: Encoding, causal: bool) -> None:
    p = s.problem(encoding, 5, causal).select_rows(torch.tensor([0]))
    leaf = [t.clone().requires_grad_() for t in inputs(p)]

    def run(*tensors: Tensor) -> Tensor:  # the parameters follow q, k, v, x: gradcheck disturbs them in place
        return outcome(encoding, like(p, tensors[:4]))

    with failing_as(f"gradcheck, {causal=}", "analytical gradients equal to numerical ones"):
        torch.autograd.gradcheck(run, (*leaf, *encoding.parameters()), fast_mode=True, atol=1e-6, rtol=1e-4)


def _by_backend(s: Subject, layer: Layer, causal: bool) -> None:
    x, positions = s.x(LONG).requires_grad_(), s.positions(layer.encoding, LONG)
    shape = (BATCH, layer.encoding.output_heads(HEADS), LONG, HEAD_DIM)
    weight = torch.randn(shape, generator=s.generator("weight"), dtype=torch.float64)
    wanted = {"x": x, **dict(layer.encoding.named_parameters())}

    def gradients(backend: str) -> tuple[Tensor | None, ...]:
        out = (layer(x, positions, causal, backend) * weight).sum()
        return torch.autograd.grad(out, list(wanted.values()), allow_unused=True)

    found = {backend: gradients(backend) for backend in able(layer.encoding(layer.problem(x, positions, causal)))}
    for backend, grads in found.items():
        for name, got, want in zip(wanted, grads, found["dense"], strict=True):
            case = f"{name} through {backend}, {causal=}"
            if got is None or want is None:
                raise ContractError(f"{case}: expected a gradient; got none")
            require(bool((got != 0).any()), case, "a gradient", "zeros")
            agree(got, want, 1e-8 * max(1.0, float(want.abs().max())), case, "the dense one")
