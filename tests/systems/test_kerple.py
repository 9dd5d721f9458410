"""KERPLE (arXiv 2205.09921)."""

from __future__ import annotations

import pytest
import torch
from reference import added, attend, close, decoded, differ, expanded, logits, problem

import ropewalk as rw

R1, R2 = (0.7, 1.3, 0.2, 2.5), (0.4, 1.0, 1.7, 0.05)
BOTH = pytest.mark.parametrize("cls", [rw.KERPLELog, rw.KERPLEPower])


def made(cls, r1=R1, r2=R2, heads=4):
    return cls(heads, r1=r1, r2=r2).double()


def formula(cls, distance):
    """The paper's formula in plain numbers, (H, ...)."""
    shape = (-1, *(1,) * distance.ndim)
    r1, r2 = (torch.tensor(r, dtype=torch.float64).reshape(shape) for r in (R1, R2))
    return -r1 * (1 + r2 * distance).log() if cls is rw.KERPLELog else -r1 * distance**r2


def gaps(at):
    return (at[:, None] - at[None, :]).abs().double()


@BOTH
@pytest.mark.parametrize("causal", [True, False])
def test_formula(cls, causal):
    at = torch.tensor([0.0, 1.0, 2.5, 7.0, 40.0, 41.0, 900.0], dtype=torch.float64)
    p = problem(causal=causal, positions=rw.Positions(at))
    # r1 and r2 are learned, and start as float32 numbers
    close(added(made(cls), p), formula(cls, gaps(at)).expand(2, 4, 7, 7), 1e-6)


@BOTH
def test_distance_only_and_never_a_reward(cls):
    p, e = problem(), made(cls)
    bias = added(e, p)
    assert not bias.diagonal(dim1=-2, dim2=-1).abs().max() > 1e-12
    assert bool((bias.tril(-1) <= 0).all())
    assert bool((bias[..., -1, :].diff(dim=-1) > 0).all())  # nearer keys are discounted less
    close(bias, bias.transpose(-1, -2))
    close(logits(e(p.replace(positions=rw.Positions(torch.arange(7) + 10**6)))), logits(e(p)), 1e-10)


def test_power_of_exponent_one_is_alibi():
    slopes = (0.5, 0.125, 0.25, 2.0)
    p = problem()
    power = made(rw.KERPLEPower, slopes, 1.0)
    close(attend(power, p), attend(rw.ALiBi(slopes=slopes), p), 1e-8)  # ln r1 starts as a float32 number


def test_power_two_is_a_gaussian_window():
    e, p = made(rw.KERPLEPower, R1, 2.0), problem()
    at = torch.arange(7)
    want = -torch.tensor(R1, dtype=torch.float64)[:, None, None] * gaps(at).square()
    close(added(e, p), want.expand(2, 4, 7, 7), 1e-5)
    assert bool((e.r2 < 2).all())
    attend(e, p).square().sum().backward()
    assert bool((e.logit_r2.grad != 0).all())  # the end of the range is no trap


def test_weights_of_the_logarithm_fall_as_a_power():
    q = torch.zeros(1, 4, 64, 8, dtype=torch.float64)
    e = made(rw.KERPLELog)
    weights = logits(e(rw.Attention(q, q, q)))[0, :, -1].exp()
    t = torch.arange(63, -1, -1, dtype=torch.float64)
    r1, r2 = e.r1[:, None], e.r2[:, None]
    close(weights, (1 + r2 * t) ** -r1)


@BOTH
def test_kernels_are_conditionally_positive_definite(cls):
    e = made(cls)
    i = torch.arange(20, dtype=torch.float64)
    kernel = e.bias(i[:, None], i, e.r1[:, None, None], e.r2[:, None, None]).detach()
    centre = torch.eye(20, dtype=torch.float64) - 1 / 20
    assert torch.linalg.eigvalsh(centre @ kernel @ centre).min() > -1e-9


def test_initial_numbers_are_those_published():
    torch.manual_seed(0)
    log, power = rw.KERPLELog(4000), rw.KERPLEPower(4000)
    for value, top in ((log.r1, 2), (log.r2, 1), (power.r1, 1), (power.r2, 2)):
        assert value.shape == (4000,)
        assert 0 < value.min() < 0.01
        assert 0.99 * top < value.max() < top
        assert abs(value.mean() - top / 2) < 0.03


@BOTH
def test_stays_in_range_whatever_the_optimiser_does(cls):
    e, p = made(cls), problem()
    for step in (50.0, -50.0, -50.0):
        loss = attend(e, p).square().sum()
        for parameter, grad in zip(e.parameters(), torch.autograd.grad(loss, list(e.parameters())), strict=True):
            parameter.data -= step * grad
        assert bool((e.r1 >= 0).all())
        assert bool((e.r2 >= 0).all())
        if cls is rw.KERPLEPower:
            assert bool((e.r2 <= 2).all())
        assert bool(attend(e, p).isfinite().all())


@BOTH
def test_gradients_at_distance_zero(cls):
    e = made(cls, R1, (0.3, 0.5, 0.9, 1.0))
    at = torch.tensor([[0.0, 0.0, 1.0, 3.0]], dtype=torch.float64, requires_grad=True)
    p = problem(s=4, positions=rw.Positions(at))
    attend(e, p).square().sum().backward()
    for grad in (at.grad, *(t.grad for t in e.parameters())):
        assert bool(grad.isfinite().all())
        assert bool(grad.any())


@BOTH
@pytest.mark.parametrize("sizes", [(), (4,), (2, 3)])
def test_decoding_is_the_full_pass(cls, sizes):
    p, e = problem(kv=2), made(cls)
    close(decoded(e, p, *sizes), attend(e, p))
    close(attend(e, p, "sdpa"), attend(e, p))
    close(attend(e, expanded(p)), attend(e, p))
    differ(attend(e, p), attend(rw.NoPE(), p))


@BOTH
def test_bad_input(cls):
    for options in ({"r1": 0.0}, {"r2": -1.0}, {"r1": float("nan")}, {"r2": (1.0, 1.0)}):
        with pytest.raises(rw.ConfigError, match=r"positive number, or one for each of num_heads=4"):
            cls(4, **options)
    with pytest.raises(rw.ConfigError, match="num_heads"):
        cls(0)
    with pytest.raises(rw.ShapeError, match="num_heads=4"):
        made(cls, 1.0, 1.0, heads=3)(problem())


def test_exponents_above_two_are_no_kernel():
    with pytest.raises(rw.ConfigError, match=r"\(0, 2\]"):
        rw.KERPLEPower(4, r2=2.1)
