"""FIRE (arXiv 2310.04418)."""

from __future__ import annotations

import pytest
import torch
from reference import added, attend, close, decoded, differ, expanded, logits, problem, random, triangle

import ropewalk as rw
from ropewalk.core.errors import NotCausal


def fire(heads=4, seed=3, **options):
    torch.manual_seed(seed)
    return rw.FIRE(heads, **options).double()


def mlp(e, x):
    """f as two linear layers: (...) → (H, ...)."""
    hidden = torch.relu(x[..., None] * e.w_in + e.b_in)
    return (hidden @ e.w_out.t() + e.b_out).movedim(-1, 0)


def formula(e, at):
    """The paper's formula for plain positions."""
    i, j = at.double()[:, None], at.double()[None, :]
    c, threshold = e.log_c.exp(), e.log_threshold.exp()
    x = (c * (i - j).abs() + 1).log() / (c * torch.maximum(i, threshold) + 1).log()
    return mlp(e, x)


POSITIONS = [
    torch.arange(7),
    torch.tensor([0, 1, 5, 9, 40, 600, 601]),
    torch.tensor([0.0, 0.5, 3.25, 3.25, 100.0, 511.5, 1e6], dtype=torch.float64),
]


@pytest.mark.parametrize("at", POSITIONS)
@pytest.mark.parametrize("options", [{}, {"c": 2.0, "threshold": 4.0}, {"hidden": 1, "c": 1e-3}])
def test_formula(at, options):
    e, p = fire(**options), problem(positions=rw.Positions(at))
    close(added(e, p), formula(e, at).expand(2, 4, 7, 7), where=triangle(7))


def test_the_pieces_are_the_layers():
    e = fire()
    with torch.no_grad():
        e.w_in[:3], e.b_in[:3] = 0.0, torch.tensor([0.7, -0.7, 0.0])  # units without a corner
        e.w_in[3], e.b_in[3] = 1e-300, 1.0  # one whose corner is beyond all numbers
        e.w_in[5], e.b_in[5] = e.w_in[4], e.b_in[4]  # two with the same
    corners, slope, intercept = e.pieces()
    assert corners.shape == (32,)
    assert slope.shape == intercept.shape == (4, 33)
    for x in (torch.linspace(-1, 3, 2001, dtype=torch.float64), corners[corners.abs() < 10], torch.tensor([0.0, 50.0])):
        piece = (x[:, None].double() > corners).sum(-1)
        close(slope[:, piece] * x + intercept[:, piece], mlp(e, x.double()), 1e-12)


def test_gradients_are_those_of_the_layers():
    e, p = fire(threshold=3.0), problem()
    weight = random(2, 4, 7, 7, seed=9).masked_fill(~triangle(7), 0.0)
    parameters = list(e.parameters())
    got = torch.autograd.grad((added(e, p) * weight).sum(), parameters)
    want = torch.autograd.grad((formula(e, torch.arange(7)) * weight).sum(), parameters)
    for a, b in zip(got, want, strict=True):
        assert bool(b.any())
        close(a, b, 1e-11)


def test_arguments_stay_between_zero_and_one():
    """The first token of a document longer than L is at 1 for every query, the query itself at 0."""
    e, at = fire(), torch.tensor([0, 100, 520, 521, 2000, 10**6, 10**7])
    bias = added(e, problem(positions=rw.Positions(at)))[0]
    first, here = mlp(e, torch.tensor([1.0, 0.0], dtype=torch.float64)).unbind(-1)
    close(bias[:, 2:, 0], first[:, None].expand(4, 5))
    close(bias.diagonal(dim1=-2, dim2=-1), here[:, None].expand(4, 7))
    assert (bias[:, 1, 0] - first).abs().max() > 1e-3  # below L it is not there yet


def test_short_sequences_see_distances_only():
    e, p = fire(), problem()
    moved = logits(e(p.replace(positions=rw.Positions(torch.arange(7) + 300))))
    close(moved, logits(e(p)))
    far = logits(e(p.replace(positions=rw.Positions(torch.arange(7) + 5000))))
    differ(far, logits(e(p)))


def test_packed_documents_count_from_their_own_start():
    e = fire(threshold=2.0)
    p = problem(s=9)
    ids = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1])
    packed = attend(e, p.replace(positions=rw.Positions.arange(9, document_ids=ids)))
    alone = attend(e, rw.Attention(p.q[:, :, 4:], p.k[:, :, 4:], p.v[:, :, 4:]))
    close(packed[:, :, 4:], alone)


def test_a_long_threshold_and_large_c_ignore_nothing():
    """With f the identity and L far away, the bias is ψ(i − j) / ψ(L)."""
    e = fire(heads=2, hidden=1, threshold=1000.0)
    with torch.no_grad():
        e.w_in.fill_(1.0), e.b_in.zero_(), e.w_out.copy_(torch.tensor([[1.0], [-2.0]])), e.b_out.zero_()
    got = added(e, problem(h=2))
    t = torch.arange(7)
    psi = (1 + e.c * (t[:, None] - t).abs()).log() / (1 + e.c * e.threshold).log()
    close(got, torch.stack([psi, -2 * psi]).expand(2, 2, 7, 7), where=triangle(7))


@pytest.mark.parametrize("sizes", [(), (4,), (2, 3)])
def test_decoding_is_the_full_pass(sizes):
    p, e = problem(kv=2), fire(threshold=3.0)
    close(decoded(e, p, *sizes), attend(e, p))
    close(attend(e, p, "sdpa"), attend(e, p))
    close(attend(e, expanded(p)), attend(e, p))
    both = rw.Sequential(rw.RoPE(8), e)
    close(decoded(both, p, *sizes), attend(both, p))
    differ(attend(e, p), attend(rw.NoPE(), p))


def test_initial_numbers():
    e = rw.FIRE(8)
    assert e.w_in.shape == e.b_in.shape == (32,)
    assert e.w_out.shape == (8, 32)
    close(e.c, torch.tensor(0.1), 1e-7)
    close(e.threshold, torch.tensor(512.0), 1e-6)


def test_bad_input():
    with pytest.raises(NotCausal, match="causal=False"):
        fire()(problem(causal=False))
    with pytest.raises(rw.PositionError, match="plain positions"):
        fire()(problem(positions=rw.Positions(torch.zeros(1, 7, 2))))
    for options in ({"c": 0.0}, {"threshold": -1.0}, {"c": float("nan")}, {"threshold": float("inf")}):
        with pytest.raises(rw.ConfigError, match="positive number"):
            rw.FIRE(4, **options)
    with pytest.raises(rw.ConfigError, match="hidden"):
        rw.FIRE(4, hidden=0)
    with pytest.raises(rw.ShapeError, match="num_heads=4"):
        fire(heads=3)(problem())
