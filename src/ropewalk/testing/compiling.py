"""Compilers: the same results, from few graphs, without breaks."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.backends import BACKENDS, attend
from ropewalk.backends.request import Request
from ropewalk.core.attention import leaves
from ropewalk.core.positions import Positions
from ropewalk.testing.compare import SAME, SINGLE, Excluded, agree, failing_as, require
from ropewalk.testing.subjects import LONG, MEDIUM, Layer, Subject
from ropewalk.testing.tokens import drawn


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Start from nothing compiled, leave nothing compiled, and keep the warnings of compilers to themselves."""
    torch._dynamo.reset()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch._dynamo.reset()


def check_compile(s: Subject) -> None:
    """Five lengths compile to at most three graphs. Finds: ``torch.compile`` that breaks, or compiles at every length."""
    layer, causal = s.layer(), s.causals[0]
    graphs = 0

    def count(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        return graph.forward

    with _compiling():
        compiled = torch.compile(layer, fullgraph=True, backend=count)
        for length in (11, 17, 23, 31, 37):
            x, positions = s.x(length), s.positions(layer.encoding, length)
            with failing_as(f"{length} tokens", "a graph without breaks"):
                got = compiled(x, positions, causal)
            agree(got, layer(x, positions, causal), SAME, f"{length} tokens", "the eager result")
    require(graphs <= 3, "lengths 11, 17, 23, 31, 37", "at most 3 graphs", graphs)


def check_inductor(s: Subject) -> None:
    """Compiled for real, with gradients. Finds: training that goes astray only when compiled."""
    layer, causal = s.layer(torch.float32), s.causals[0]
    with _compiling():
        compiled = torch.compile(layer, fullgraph=True)
        for length in (17, LONG):
            x = s.x(length).float().requires_grad_()
            got, want = (m(x, s.positions(layer.encoding, length), causal) for m in (compiled, layer))
            agree(got, want, SINGLE, f"{length} tokens", "the eager result")
            (a,), (b,) = (torch.autograd.grad(t.square().sum(), x) for t in (got, want))
            agree(a, b, SINGLE * max(1.0, float(b.abs().max())), f"{length} tokens, gradients", "the eager ones")


def check_flex(s: Subject) -> None:
    """The flex backend, where it takes the problem. Finds: a score function that flex compiles to something else."""
    layer, causal = s.layer(torch.float32), s.causals[0]
    problem = layer.encoding(layer.problem(s.x(LONG).float(), s.positions(layer.encoding, LONG), causal))
    flex = next(b for b in BACKENDS if b.name == "flex")
    for leaf in leaves(problem):
        if (why := flex.why_not(leaf, Request())) is not None:
            raise Excluded(f"flex cannot run it: {why}")
    with _compiling():
        got = attend(problem, "flex")
    agree(got, attend(problem, "dense"), SINGLE, "flex, float32", "the dense result")


class _Counting(nn.Module):
    """A layer that counts its tokens itself, as a model to be exported would."""

    def __init__(self, layer: Layer, causal: bool) -> None:
        super().__init__()
        self.layer, self.causal = layer, causal

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, Positions.arange(x.shape[1], device=x.device), self.causal)


def check_export(s: Subject) -> None:
    """Exports with a dynamic length. Finds: a deployed program that holds for the length it was traced with only."""
    if not s.sequence:
        raise Excluded("positions of this domain are no function of the length")
    layer = s.layer()
    if drawn(s.draw(layer.encoding, Positions.arange(MEDIUM))):
        raise Excluded("it draws at random")
    module = _Counting(layer, s.causals[0])
    length = torch.export.Dim("length", min=2, max=256)
    with _compiling(), torch.no_grad():
        with failing_as("a dynamic length", "a program"):
            program = torch.export.export(module, (s.x(MEDIUM),), dynamic_shapes=({1: length},))
        for n in (MEDIUM, LONG):
            agree(program.module()(s.x(n)), module(s.x(n)), SAME, f"exported, {n} tokens", "the eager result")
