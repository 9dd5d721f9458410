"""PSC (arXiv 2505.12423)."""

from __future__ import annotations

import pytest
import torch
from reference import DOUBLE, attend, close, cut, decoded, differ, golden, logits, problem, random
from torch import nn

import ropewalk as rw
from ropewalk.core.errors import CannotEdit, ConfigError, ShapeError
from ropewalk.frequencies import geometric
from ropewalk.rotary.psc import Calibration, psc, train_only

CASE = golden("021")["basic"]


def filled(amount=0.3, seed=0, **options):
    """Return one that has learned something."""
    made = psc(8, 4, 2, **options)
    with torch.no_grad():
        for i, weight in enumerate(made.parameters()):
            weight.copy_(amount * random(*weight.shape, seed=seed + i))
    return made


def calibration(encoding):
    return next(e for e in encoding if isinstance(e, Calibration))


def attend_of(p):
    return rw.attend(p, backend="dense")


def test_golden():
    c = CASE.params
    made = psc(c["D"], c["H"], c["Hkv"], spectrum=geometric(c["D"]).linear(c["pi_scale"])).double()
    inner = calibration(made)
    n = torch.arange(c["H"] * c["D"] ** 2, dtype=torch.float64).reshape(c["H"], c["D"], c["D"])
    given = {
        "q_phase_up": (0.37 * n + 0.1).sin(),
        "q_phase_down": (0.53 * n + 0.7).sin(),
        "k_phase_up": (0.29 * n + 0.4).sin(),
        "k_phase_down": (0.61 * n + 0.2).sin(),
    }
    for name, value in given.items():
        setattr(inner, name, nn.Parameter(c["amp"] * value))
    size = torch.arange(c["B"] * c["H"] * c["T"] * c["D"], dtype=torch.float64)
    shape = (c["B"], c["H"], c["T"], c["D"])
    q, k = (0.1 * size).sin().reshape(shape), (0.07 * size + 0.5).sin().reshape(shape)
    for encoding, names in ((inner, ("q_calibrated", "k_calibrated")), (made, ("q_rot", "k_rot"))):
        for got, name in zip(encoding.rotate(q, k, torch.tensor(c["positions"])), names, strict=True):
            close(got, CASE.outputs[name], DOUBLE)


@pytest.mark.parametrize("place", ["pre", "post", "rotation"])
def test_nothing_changes_at_the_start(place):
    p = problem(kv=2)
    made = psc(8, 4, 2, place=place, spectrum=geometric(8).yarn(4.0, 64))
    plain = rw.RoPE(pairing="half", spectrum=geometric(8).yarn(4.0, 64))
    assert torch.equal(attend(made, p), attend(plain, p))
    differ(attend(filled(place=place, spectrum=geometric(8).yarn(4.0, 64)), p), attend(plain, p))


def test_gain_is_bounded():
    inner = calibration(filled(5.0))
    p = problem(kv=2)
    for now, before in zip(inner.rotate(p.q, p.k), (p.q, p.k), strict=True):
        gain = now.detach() / before
        assert 0.5 - 1e-12 <= float(gain.min()) < 0.9
        assert 1.1 < float(gain.max()) <= 1.5 + 1e-12


def test_only_differences_of_positions_matter_but_after_the_rotation():
    p = problem(kv=2)
    moved = p.replace(positions=rw.Positions(torch.arange(7) + 100))
    for place in ("pre", "rotation"):
        close(logits(filled(place=place)(moved)), logits(filled(place=place)(p)), 1e-11)
    differ(logits(filled(place="post")(moved)), logits(filled(place="post")(p)))


def test_rotation_keeps_norms():
    inner = calibration(filled(place="rotation"))
    p = problem(kv=2)
    turned, _ = inner.rotate(p.q, p.k)
    close(turned.norm(dim=-1), p.q.norm(dim=-1), 1e-6)
    differ(turned, p.q)


def test_first_step_of_training():
    made = psc(8, 4, 2)
    inner = calibration(made)
    p = problem(kv=2)
    attend(made, p).square().sum().backward()
    assert float(inner.q_phase_down.grad.abs().max()) == 0  # behind a silu that gives 0
    assert float(inner.q_phase_up.grad.abs().max()) > 0
    assert float(inner.k_phase_up.grad.abs().max()) > 0
    with torch.no_grad():
        for weight in made.parameters():
            weight -= 0.1 * weight.grad
            weight.grad = None
    attend(made, p).square().sum().backward()
    assert float(inner.q_phase_down.grad.abs().max()) > 0


def test_start_of_the_weights():
    inner = Calibration(16, 3, 1)
    assert float(inner.q_phase_up.detach().abs().max()) == 0
    assert 0.9 / 16 < float(inner.q_phase_down.detach().abs().max()) <= 1 / 16


@pytest.mark.parametrize(
    "spectrum",
    [
        geometric(8).linear(4.0),
        geometric(8).ntk(4.0),
        geometric(8).yarn(4.0, 64),
        geometric(8).longrope([1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_any_schedule(spectrum):
    p, made = problem(kv=2), filled(spectrum=spectrum)
    q, k = calibration(made).rotate(p.q, p.k)
    close(logits(made(p)), logits(rw.RoPE(pairing="half", spectrum=spectrum)(p.replace(q=q, k=k))), 1e-12)


@pytest.mark.parametrize("place", ["pre", "post", "rotation"])
def test_decoding(place):
    p, made = problem(kv=2, s=9), filled(place=place)
    close(decoded(made, p, 4), attend(made, p), 1e-12)


@pytest.mark.parametrize("place", ["pre", "rotation", "post"])
def test_moving_cached_keys(place):
    p, made = problem(kv=2), filled(place=place)
    cache = rw.KVCache(made)
    cache.extend(cut(p, 0, 6))
    if place == "post":
        with pytest.raises(CannotEdit):
            cache.edit([0, 3, 4, 5], torch.arange(4))
        return
    cache.edit([0, 3, 4, 5], torch.arange(4))
    got = attend_of(cache.extend(cut(p, 6, 7)))
    kept = [0, 3, 4, 5, 6]
    alone = rw.Attention(p.q[:, :, kept], p.k[:, :, kept], p.v[:, :, kept])
    close(got, attend(made, alone)[:, :, -1:], 1e-12)


def test_heads_are_checked():
    with pytest.raises(ShapeError, match="num_kv_heads"):
        attend(filled(), problem(kv=4))
    with pytest.raises(ShapeError, match="head_dim 8"):
        attend(filled(), problem(kv=2, d=10))
    with pytest.raises(ConfigError, match="Did you mean 'post'"):
        psc(8, 4, place="posts")
    with pytest.raises(ConfigError):
        psc(7, 4)


def test_weights_stay_float32():
    made = psc(8, 4, 2).to(torch.bfloat16)
    assert {w.dtype for w in made.parameters()} == {torch.float32}
    p = problem(kv=2)
    q = p.q.to(torch.bfloat16)
    assert calibration(made).rotate(q, q[:, :2])[0].dtype == torch.bfloat16


def test_train_only():
    model = nn.ModuleDict({"attention": filled(), "lora_a": nn.Linear(2, 2), "mlp": nn.Linear(2, 2)})
    names = train_only(model)
    assert len(names) == 6
    assert all(w.requires_grad is ("phase" in n or "lora" in n) for n, w in model.named_parameters())
    assert train_only(model, "mlp") == ["mlp.weight", "mlp.bias"]
    with pytest.raises(ConfigError, match="'gate'"):
        train_only(model, "gate")
