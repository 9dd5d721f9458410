"""Attention to parts of the keys, merged, is attention to all of them."""

from __future__ import annotations

import pytest
import torch

import ropewalk as rw
from ropewalk.backends.merge import merge
from ropewalk.core.attention import Linear


def rand(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def problem(**fields):
    return rw.Attention(rand(2, 4, 5, 8), rand(2, 4, 9, 8, seed=1), rand(2, 4, 9, 6, seed=2), causal=False, **fields)


def over(p, start, stop):
    """The problem over some of the keys, without its sinks."""
    mask = None if p.mask is None else p.mask[..., start:stop]
    kf = {name: t[:, :, start:stop] for name, t in p.kf.items()}
    return p.replace(k=p.k[:, :, start:stop], v=p.v[:, :, start:stop], mask=mask, kf=kf, sinks=None, positions=None)


def in_parts(p, cuts=((0, 2), (2, 3), (3, 9))):
    return merge([rw.attend(over(p, *cut), "dense", return_lse=True) for cut in cuts], p.sinks)


def same(got, want):
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sinks", [None, rand(4, seed=3)])
def test_parts_of_a_softmax(sinks):
    p = problem(sinks=sinks)
    same(in_parts(p), rw.attend(p, "dense", return_lse=True))


def test_rows_that_see_nothing_of_a_part_or_of_any():
    mask = torch.ones(5, 9, dtype=torch.bool)
    mask[1, :3], mask[2] = False, False
    p = problem(mask=mask)
    inputs = [t.requires_grad_() for t in (p.q, p.k, p.v)]
    out, lse = in_parts(p)
    want, of_all = rw.attend(p, "dense", return_lse=True)
    same((out, lse), (want, of_all))
    assert (out[:, :, 2] == 0).all() and (lse[:, :, 2] == -torch.inf).all()
    for got, whole in zip(*(torch.autograd.grad(o.sin().sum(), inputs) for o in (out, want)), strict=True):
        same(got, whole)


def linear(p, zero=()):
    """Linear attention whose sums are zero for these keys."""
    n_k = rand(2, 4, 9, 6, seed=5).exp()
    n_k[:, :, list(zero)] = 0.0
    p = p.located().with_features(q={"sum": rand(2, 4, 5, 6, seed=4).exp()}, k={"sum": n_k})
    return p.replace(kernel=Linear("sum"))


@pytest.mark.parametrize("zero", [(), (2,)])
def test_parts_of_linear_attention(zero):
    p = linear(problem(), zero)
    q = p.q.requires_grad_()
    cuts = ((0, 2), (2, 3), (3, 9)) if not zero else ((0, 3), (3, 9))
    (out, lse), (want, of_all) = in_parts(p, cuts), rw.attend(p, "dense", return_lse=True)
    same((out, lse), (want, of_all))
    sums = (p.qf["sum"] @ p.kf["sum"].transpose(-1, -2)).sum(-1)
    same(lse, sums.log())
    same(*(torch.autograd.grad(o.sin().sum(), q)[0] for o in (out, want)))


@pytest.mark.parametrize("causal", [True, False])
def test_running_sums_give_the_same_logarithm(causal):
    q, k, v = (rand(2, 4, 300, n, seed=n) for n in (8, 8, 5))
    p = rw.Attention(q, k, v, causal=causal).located()
    p = p.with_features(q={"sum": q.exp()}, k={"sum": k.exp()}).replace(kernel=Linear("sum"))
    same(*(rw.attend(p, backend, return_lse=True) for backend in ("linear", "dense")))


def test_sums_of_nothing_have_the_logarithm_of_nothing():
    p = linear(problem(mask=torch.zeros(5, 9, dtype=torch.bool)))
    q = p.q.requires_grad_()
    out, lse = rw.attend(p, "dense", return_lse=True)
    assert (out == 0).all() and (lse == -torch.inf).all()
    merged, _ = in_parts(p)
    assert (merged == 0).all()
    assert torch.autograd.grad(merged.sum(), q)[0].isfinite().all()
