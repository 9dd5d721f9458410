"""Golden cases whose q and k are given as formulas over a shape that the parameters complete."""

from __future__ import annotations

import math

import torch
from reference import DOUBLE, Case, close, logits
from torch import Tensor

import ropewalk as rw


def sines(case: Case) -> tuple[Tensor, Tensor]:
    """Return q = sin(0.1 n) and k = sin(0.07 n + 0.5), (1, 2, T, D)."""
    for name, formula in (("q", "sin(0.1 n)"), ("k", "sin(0.07 n+0.5)")):
        assert case.inputs[name].startswith(formula)
    shape = (1, 2, len(case.params["positions"]), case.params.get("D", case.params.get("head_dim")))
    n = torch.arange(math.prod(shape), dtype=torch.float64)
    return (0.1 * n).sin().reshape(shape), (0.07 * n + 0.5).sin().reshape(shape)


def check_rotation(case: Case, encoding: rw.Encoding) -> None:
    """Compare turned q and k, and the logits."""
    (q, k), at = sines(case), torch.tensor(case.params["positions"], dtype=torch.float64)
    got_q, got_k = encoding.rotate(q, k, at)
    close(got_q, case.outputs["q_rot"], DOUBLE)
    close(got_k, case.outputs["k_rot"], DOUBLE)
    close(logits(encoding(rw.Attention(q, k, k, rw.Positions(at)))), case.outputs["logits"], DOUBLE)
