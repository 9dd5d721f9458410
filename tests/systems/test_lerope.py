"""LeRoPE (arXiv 2607.10134)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, FULL, attend, close, decoded, differ, golden, logits, problem, random
from torch import nn

import ropewalk as rw
from ropewalk.analysis.bands import band_norms, leave_one_band_out, positional_band, without_bands
from ropewalk.analysis.pairs import pair_norms
from ropewalk.analysis.scaling import PowerLaw, compute_multiplier
from ropewalk.frequencies import yarn
from ropewalk.frequencies.lerope import interpolate_band, lerope_published_profile
from ropewalk.rotary.lerope import LearnedRoPE, parameter_groups

CASES = golden("014")
AT = torch.tensor([0, 3, 4, 10, 11, 40, 2])


def learned(alpha, head_dim=8, **options):
    made = LearnedRoPE(head_dim, **options).double()
    made.alpha.data = torch.as_tensor(alpha, dtype=torch.float64).expand(made.alpha.shape).clone()
    return made


# ---- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["learned-freq-n6-hd8", "learned-freq-n5-hd6"])
def test_golden(name):
    case = CASES[name]
    q, k, v = (case.inputs[n] for n in "qkv")
    pairing = case.params["layout"]
    made = learned(case.inputs["theta"], q.shape[-1], pairing=pairing, parameterisation="direct")
    for got, want in zip(made.rotate(q, k), ("q_rot", "k_rot"), strict=True):
        close(got, case.outputs[want], DOUBLE)
    out = attend(made, rw.Attention(q, k, v))
    close(out, case.outputs["out"], DOUBLE)
    loss = out.square().sum()
    close(loss, torch.tensor(case.outputs["loss_sum_sq"], dtype=torch.float64), DOUBLE)
    loss.backward()
    close(made.alpha.grad, case.outputs["grad_theta"], DOUBLE)
    close(pair_norms(q, pairing)[0], case.outputs["mean_pair_norm_q"], DOUBLE)


def test_golden_shared():
    case = CASES["log-scale-shared"]
    layers, heads, n, d = (case.params[name] for name in ("layers", "heads", "tokens", "head_dim"))
    count = layers * 3 * heads * n * d
    qkv = torch.sin(0.11 * torch.arange(count, dtype=torch.float64)).reshape(layers, 3, 1, heads, n, d)
    made = learned(case.inputs["alpha"], d, base=case.params["base"], pairing=case.params["layout"])
    close(made.inverse_frequencies(), case.outputs["theta"], DOUBLE)
    model = rw.PerLayer(made, layers)
    outs = [attend(encoding, rw.Attention(*layer)) for encoding, layer in zip(model, qkv, strict=True)]
    close(outs[0][0, 0], case.outputs["out_layer0_head0"], DOUBLE)
    loss = sum(out.square().sum() for out in outs)
    close(loss, torch.tensor(case.outputs["loss_sum_sq"], dtype=torch.float64), FULL)
    loss.backward()
    close(made.alpha.grad, case.outputs["grad_alpha"], DOUBLE)


def test_golden_profile():
    case = CASES["published-profile"]
    length = case.params["train_length"]
    profile = lerope_published_profile()
    close(profile.tensor(), case.inputs["theta"], 1e-15)
    made = LearnedRoPE.from_profile(profile, base=case.params["base"])
    assert made.head_dim == case.params["head_dim"]
    close(made.alpha, case.outputs["alpha"], 1e-6)  # a float32 parameter
    exact = made.double()
    exact.import_inv_freq(profile.tensor())
    close(exact.alpha, case.outputs["alpha"], DOUBLE)
    close(2 * math.pi / profile.tensor(), case.outputs["wavelength"], DOUBLE)
    close(torch.tensor(profile.turns(length), dtype=torch.float64), case.outputs["turns_in_training"], DOUBLE)


def test_the_published_profile_as_it_is_read():
    theta = lerope_published_profile().tensor()
    alpha = (theta / rw.geometric(64).tensor()).log()
    assert alpha[0] == pytest.approx(0.64, abs=0.01)
    assert alpha[3:6].abs().max() < 0.1
    assert (theta.diff() > 0).any()  # not monotone at the slow end
    assert (2 * math.pi / theta[16] / 2048).item() == pytest.approx(2.05, abs=0.01)
    assert (2 * math.pi / theta[17] / 2048).item() == pytest.approx(2.79, abs=0.01)
    assert (2 * math.pi / theta[18:]).min() > 6e4
    half = lerope_published_profile(4096).tensor()
    close(half, theta / 2, 1e-15)
    for bad in (0, -1.0, float("nan"), float("inf"), True):
        with pytest.raises(rw.ConfigError):
            lerope_published_profile(bad)


# ---- RoPE at the start -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("parameterisation", ["log", "scale"])
@pytest.mark.parametrize("sharing", ["model", "layer", "head"])
def test_at_the_start_it_is_rope(pairing, parameterisation, sharing):
    p = problem(kv=2, positions=rw.Positions(AT))
    made = LearnedRoPE(8, pairing=pairing, parameterisation=parameterisation, sharing=sharing, num_kv_heads=2)
    assert torch.equal(made.inverse_frequencies(), rw.RoPE(8).inv_freq.expand(made.alpha.shape))
    with torch.no_grad():
        assert torch.equal(attend(made, p), attend(rw.RoPE(8, pairing=pairing), p))


def test_directly_learned_frequencies_start_there_to_float32():
    made = LearnedRoPE(64, parameterisation="direct")
    close(made.inverse_frequencies(), rw.RoPE(64).inv_freq, 1e-7)
    close(made.double().inverse_frequencies(), rw.RoPE(64).inv_freq, 1e-7)


def test_other_frequencies_at_the_start():
    spectrum = rw.Spectrum((1.0, 0.3, 0.2, 0.0), attention_factor=1.3)
    p = problem(positions=rw.Positions(AT))
    for parameterisation in ("log", "scale"):
        made = LearnedRoPE(8, spectrum=spectrum, parameterisation=parameterisation)
        close(attend(made, p), attend(rw.RoPE(spectrum=spectrum, pairing="half"), p), 1e-15)
        assert made.alpha.isfinite().all()
    with pytest.raises(rw.ConfigError, match="planes"):
        LearnedRoPE(6, spectrum=spectrum)


def test_frozen_it_is_a_fixed_table():
    made = learned([0.3, -0.2, 0.5, -1.0])
    made.requires_grad_(False)
    p = problem(kv=2, positions=rw.Positions(AT))
    fixed = rw.RoPE(spectrum=made.spectrum(), pairing="half")
    close(attend(made, p), attend(fixed, p), 1e-15)
    close(fixed.inv_freq, made.export_inv_freq(), 1e-15)


@pytest.mark.parametrize("parameterisation", ["log", "scale", "direct"])
@pytest.mark.parametrize("sharing", ["model", "head"])
def test_out_and_in_again(parameterisation, sharing):
    options = {"parameterisation": parameterisation, "sharing": sharing, "num_kv_heads": 3}
    made = learned([0.3, 0.2, 0.5, 1.1], **options)
    out = made.export_inv_freq()
    assert not out.requires_grad
    again = LearnedRoPE(8, **options).double()
    again.import_inv_freq(out)
    close(again.inverse_frequencies(), out, 1e-14)
    close(again.alpha, made.alpha, 1e-14)
    for bad in (out[..., :-1], out[None, None], torch.ones(5, 4), out * float("nan")):
        with pytest.raises(rw.RopewalkError):
            again.import_inv_freq(bad)
    close(again.alpha, made.alpha, 1e-14)
    if parameterisation == "log":
        with pytest.raises(rw.ConfigError, match="above 0"):
            again.import_inv_freq(out * 0)


def test_planes_that_do_not_turn_at_the_start():
    still = rw.Spectrum((1.0, 0.3, 0.0, 0.0))
    for parameterisation in ("log", "scale"):
        made = LearnedRoPE(8, spectrum=still, parameterisation=parameterisation).double()
        made.import_inv_freq(torch.tensor([0.5, 0.2, 0.0, 0.0]))
        close(made.export_inv_freq(), torch.tensor([0.5, 0.2, 0.0, 0.0]), 1e-7)
        with pytest.raises(rw.ConfigError, match="direct"):
            made.import_inv_freq(torch.tensor([0.5, 0.2, 0.1, 0.0]))
    made = LearnedRoPE(8, spectrum=still, parameterisation="direct")
    made.import_inv_freq(torch.tensor([0.5, 0.2, 0.1, 0.0]))
    close(made.export_inv_freq(), torch.tensor([0.5, 0.2, 0.1, 0.0]), 1e-7)


def test_profiles_may_be_learned_on():
    profile = lerope_published_profile()
    p = problem(d=64, positions=rw.Positions(AT))
    close(attend(LearnedRoPE.from_profile(profile), p), attend(rw.RoPE(spectrum=profile, pairing="half"), p), 1e-4)
    made = LearnedRoPE.from_profile([0.5, 0.25], pairing="interleaved")
    assert (made.head_dim, made.pairing) == (4, "interleaved")
    close(made.export_inv_freq(), torch.tensor([0.5, 0.25]), 1e-7)
    hot = rw.Spectrum((1.0, 0.5, 0.25, 0.125), attention_factor=1.3)
    for e in (LearnedRoPE.from_profile(hot), LearnedRoPE(8, spectrum=hot)):  # the factor of a schedule goes with it
        close(attend(e, problem()), attend(rw.RoPE(spectrum=hot, pairing="half"), problem()), 1e-6)
        assert e.spectrum().attention_factor == 1.3


# ---- gradients -------------------------------------------------------------------------------------------------------


def test_gradient_of_one_pair_in_closed_form():
    alpha, pairs = torch.tensor([0.2], dtype=torch.float64), random(3, 2, 2)
    for q, k in pairs:
        for at_q, at_k in ((5, 2), (9, 0), (4, 4)):
            made = learned(alpha, 2, pairing="interleaved")
            where = rw.Positions(q=[at_q], k=[at_k])
            p = rw.Attention(q[None, None, None], k[None, None, None], k[None, None, None], where, scale=1.0)
            score = logits(made(p)).squeeze()
            score.backward()
            theta, gap = alpha.exp().item(), at_k - at_q
            c, e = (q * k).sum().item(), (q[0] * k[1] - q[1] * k[0]).item()  # conj(q) k
            assert score.item() == pytest.approx(c * math.cos(gap * theta) - e * math.sin(gap * theta))
            want = -gap * (c * math.sin(gap * theta) + e * math.cos(gap * theta)) * theta
            assert made.alpha.grad.item() == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("parameterisation", ["log", "scale", "direct"])
@pytest.mark.parametrize("sharing", ["model", "head"])
def test_gradients_are_those_of_finite_differences(parameterisation, sharing):
    p = problem(b=1, kv=2, s=4, d=4)
    made = learned([0.4, 0.3], 4, parameterisation=parameterisation, sharing=sharing, num_kv_heads=2)

    def run(alpha):
        after = torch.func.functional_call(made, {"alpha": alpha}, (rw.Attention(p.q, p.k, p.v),))
        return rw.attend(after, backend="dense")

    assert torch.autograd.gradcheck(run, made.alpha.detach().clone().requires_grad_())


def test_the_gradient_is_the_sum_over_layers_and_heads():
    shared = learned([0.3, -0.2, 0.5, -1.0])
    each = learned(shared.alpha.detach(), sharing="head", num_kv_heads=4)
    parts = [problem(seed=3 * i) for i in range(2)]
    sum(attend(shared, p).square().sum() for p in parts).backward()
    sum(attend(each, p).square().sum() for p in parts).backward()
    close(shared.alpha.grad, each.alpha.grad.sum(0))


# ---- sharing ---------------------------------------------------------------------------------------------------------


def test_one_set_of_frequencies_for_a_model():
    made = LearnedRoPE(8)
    layers = rw.PerLayer(made, 3)
    assert all(layer is made for layer in layers)
    assert sum(t.numel() for t in layers.parameters()) == 4
    chains = rw.PerLayer(rw.Sequential(made, rw.ALiBi(4)), 3)
    assert len({id(t) for t in chains.parameters()}) == 1
    assert sum(t.numel() for t in rw.PerLayer(LearnedRoPE(8, sharing="layer"), 3).parameters()) == 12
    assert sum(t.numel() for t in rw.PerLayer(LearnedRoPE(8, sharing="head", num_kv_heads=2), 3).parameters()) == 24


def test_query_groups_follow_their_key_head():
    made = learned([[0.3, -0.2, 0.5, -1.0], [0.1, 0.0, -0.7, 0.2]], sharing="head", num_kv_heads=2)
    p = problem(kv=2, positions=rw.Positions(AT))
    got = attend(made, p)
    for head in range(2):
        part = rw.Attention(
            p.q[:, 2 * head : 2 * head + 2], p.k[:, head : head + 1], p.v[:, head : head + 1], p.positions
        )
        close(got[:, 2 * head : 2 * head + 2], attend(learned(made.alpha[head].detach()), part))
    with pytest.raises(rw.ConfigError, match="export_inv_freq"):
        made.spectrum()
    with pytest.raises(rw.ShapeError, match="key heads"):
        made(problem(kv=1))


@pytest.mark.parametrize("check", ["decoding", "edit", "per_head", "grouped_heads", "casts", "meta", "gradients"])
def test_frequencies_by_head_keep_the_contract(check):
    def make(head_dim, num_kv_heads):
        return LearnedRoPE(head_dim, sharing="head", num_kv_heads=num_kv_heads)

    assert rw.testing.check_encoding(make, rw.record("lerope").traits, checks=[check]) == {}


@pytest.mark.parametrize(
    "make",
    [
        lambda: LearnedRoPE(7),
        lambda: LearnedRoPE(8, base=-1),
        lambda: LearnedRoPE(8, sharing="all"),
        lambda: LearnedRoPE(8, sharing="head"),
        lambda: LearnedRoPE(8, parameterisation="exp"),
        lambda: LearnedRoPE(8, pairing="halves"),
        lambda: LearnedRoPE.from_profile([0.5, 0.0]),
        lambda: LearnedRoPE.from_profile([0.5, -0.1]),
    ],
)
def test_what_cannot_be_is_refused(make):
    with pytest.raises(rw.ConfigError):
        make()


def test_another_width_is_refused():
    with pytest.raises(rw.ShapeError, match="Partial"):
        LearnedRoPE(6)(problem())


# ---- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16])
def test_frequencies_stay_float32(cast):
    model = nn.ModuleList([nn.Linear(3, 3), learned([0.3, -0.2, 0.5, -1.0]).float()])
    want = model[1].export_inv_freq()
    model.to(cast)
    assert model[0].weight.dtype == cast
    assert model[1].alpha.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model[1].export_inv_freq(), want)
        low = problem().replace(q=problem().q.to(cast), k=problem().k.to(cast), v=problem().v.to(cast))
        model[1](low)
    with torch.device("meta"):
        empty = LearnedRoPE(8)
    empty = empty.to_empty(device="cpu")
    empty.load_state_dict(model[1].state_dict())
    assert torch.equal(empty.export_inv_freq(), want)


def test_logits_depend_on_differences_whatever_was_learned():
    p, made = problem(positions=rw.Positions(AT)), learned([0.7, -3.0, 2.0, -9.0])
    want = logits(made(p))
    for shift in (1, -7, 1000):
        close(logits(made(p.replace(positions=rw.Positions(AT + shift)))), want, 1e-11)
    still = LearnedRoPE(8, parameterisation="scale").double()
    still.alpha.data = torch.zeros(4, dtype=torch.float64)
    close(logits(still(p)), logits(p), 1e-15)  # planes that stand still compare contents
    close(decoded(made, problem(), 3), attend(made, problem()))


# ---- training --------------------------------------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self, encoding=None):
        super().__init__()
        self.encoding = LearnedRoPE(8) if encoding is None else encoding
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.again = self.encoding


def test_groups_of_an_optimiser():
    model = Model()
    groups = parameter_groups(model, lr=1e-3, weight_decay=0.1, frequency_lr=2**-3.5)
    assert [len(g["params"]) for g in groups] == [1, 4]
    assert groups[0]["params"][0] is model.encoding.alpha
    assert (groups[0]["lr"], groups[0]["weight_decay"]) == (2**-3.5, 0.0)
    assert (groups[1]["lr"], groups[1]["weight_decay"]) == (1e-3, 0.1)
    assert parameter_groups(model, lr=1e-3, weight_decay=0.1)[0]["lr"] == 1e-3
    optimiser = torch.optim.AdamW(groups)
    with torch.no_grad():
        model.encoding.alpha.fill_(0.5)
    before = model.layers[0].weight.clone()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimiser.step()
    assert (model.encoding.alpha == 0.5).all()  # no decay
    differ(model.layers[0].weight, before, 1e-6)
    model.encoding.requires_grad_(False)
    with pytest.raises(rw.ConfigError):
        parameter_groups(model, lr=1e-3, weight_decay=0.1)


def test_training_finds_the_frequency_of_a_lag():
    """Of one plane with fixed content, the best frequency puts its only peak at the right distance."""
    torch.manual_seed(0)
    made = LearnedRoPE(2, base=1.0, pairing="interleaved", parameterisation="direct")
    made.alpha.data.fill_(0.37)
    lag, n = 7, 16
    q = torch.ones(1, 1, n, 2) * 3
    turned = rw.RoPE(2, spectrum=rw.Spectrum((-2 * math.pi / n,))).rotate(q, q, torch.full((n,), float(lag)))[0]
    step = torch.optim.Adam([made.alpha], lr=0.01)
    for _ in range(150):
        _, weights = rw.attend(made(rw.Attention(turned, q, q)), "dense", return_weights=True)
        loss = -weights[0, 0].diagonal(-lag).clamp(min=1e-9).log().mean()
        step.zero_grad()
        loss.backward()
        step.step()
    angle = (lag * made.alpha - lag * 2 * math.pi / n).item()
    assert abs(math.remainder(angle, 2 * math.pi)) < 0.15


# ---- longer contexts -------------------------------------------------------------------------------------------------


def test_yarn_of_a_geometric_table_has_the_ramp_of_the_paper():
    base, d, length, s = 10_000.0, 64, 2048, 8.0
    got = yarn(rw.geometric(d, base), s, length, ramp="paper")
    for i, w in enumerate(got.inv_freq):
        plain = base ** (-2 * i / d)
        wavelength = 2 * math.pi / plain
        gamma = min(max((length / wavelength - 1) / 31, 0), 1)
        assert w == pytest.approx((1 - gamma) * plain / s + gamma * plain, rel=1e-12)
    assert got.attention_factor == pytest.approx(0.1 * math.log(s) + 1)
    close(yarn(rw.geometric(d), 1.0, length, ramp="paper").tensor(), rw.geometric(d).tensor(), 1e-15)


def test_yarn_treats_every_plane_by_its_own_turns():
    profile = lerope_published_profile()
    got = yarn(profile, 4, 2048)
    order = list(range(31, -1, -1))
    mixed = rw.Spectrum(tuple(profile.inv_freq[i] for i in order))
    close(yarn(mixed, 4, 2048).tensor(), got.tensor()[order], 1e-15)
    r = torch.tensor(profile.turns(2048))
    assert torch.equal(got.tensor()[r >= 32], profile.tensor()[r >= 32])
    close(got.tensor()[r <= 1], profile.tensor()[r <= 1] / 4, 1e-15)
    still = yarn(rw.Spectrum((1.0, 0.0)), 4, 2048)
    assert still.inv_freq[1] == 0.0


def test_only_the_band_that_matters_is_stretched():
    table = lerope_published_profile()
    one = interpolate_band(table, 16, 4.0)
    assert one.inv_freq[16] == table.inv_freq[16] / 4
    assert one.inv_freq[:16] + one.inv_freq[17:] == table.inv_freq[:16] + table.inv_freq[17:]
    for bad in (
        lambda: interpolate_band(table, 32, 2.0),
        lambda: interpolate_band(table, -1, 2.0),
        lambda: interpolate_band(table, 1, 0.0),
        lambda: interpolate_band(table, 1, float("nan")),
    ):
        with pytest.raises(rw.ConfigError):
            bad()


def test_what_was_learned_is_extended():
    made = learned([0.3, -0.2, 0.5, -1.0], pairing="half")
    p = problem(positions=rw.Positions(AT))
    longer = yarn(made.spectrum(), 4, 32)
    assert longer.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    r = torch.tensor(made.spectrum().turns(32), dtype=torch.float64)
    g = ((r - 1) / 31).clamp(0, 1)
    close(longer.tensor(), (1 - g) * made.export_inv_freq() / 4 + g * made.export_inv_freq())
    differ(attend(rw.RoPE(spectrum=longer, pairing="half"), p), attend(made, p))


# ---- which plane -----------------------------------------------------------------------------------------------------


def amplified(plane, pairing, by=5.0, **sizes):
    p = problem(**sizes)
    d = p.q.shape[-1]
    channels = [plane, plane + d // 2] if pairing == "half" else [2 * plane, 2 * plane + 1]
    for x in (p.q, p.k):
        x[..., channels] *= by
    return p


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_the_amplified_plane_is_found(pairing):
    p, quiet = amplified(2, pairing, kv=2, d=12), problem(kv=2, d=12)
    norms = band_norms(p.q, p.k, pairing)
    assert norms.shape == (4, 6)
    assert (norms.argmax(-1) == 2).all()
    spectrum = rw.geometric(12, 100.0)
    assert positional_band(p.q, p.k, spectrum, 64, pairing=pairing) == 2
    assert positional_band([quiet.q, p.q], [quiet.k, p.k], spectrum, 64, pairing=pairing) == 2
    still = rw.Spectrum((*spectrum.inv_freq[:2], 1e-5, *spectrum.inv_freq[3:]))
    assert positional_band(p.q, p.k, still, 64, pairing=pairing) != 2  # content, not position
    with pytest.raises(rw.ConfigError, match="positional"):
        positional_band(p.q, p.k, rw.Spectrum((1e-5,) * 6), 64, pairing=pairing)
    with pytest.raises(rw.ShapeError):
        positional_band(p.q, p.k, rw.geometric(8), 64, pairing=pairing)
    with pytest.raises(rw.ShapeError):
        band_norms(p.q, p.k[:, :, 1:], pairing)


@pytest.mark.parametrize("make", [lambda: rw.RoPE(8), lambda: learned([0.1, 0.2, 0.0, -1.0], pairing="interleaved")])
def test_planes_left_out(make):
    p, made = problem(positions=rw.Positions(AT)), make()
    model = Model(made)
    theta = made.inv_freq if isinstance(made, rw.RoPE) else made.export_inv_freq()
    want = attend(made, p)
    with without_bands(model, [1]):
        held = rw.Spectrum(tuple(w if i != 1 else 0.0 for i, w in enumerate(theta.tolist())))
        close(attend(made, p), attend(rw.RoPE(spectrum=held), p))
    with without_bands(model, [1], "drop"):
        gone = p.replace(q=p.q.clone())
        gone.q[..., 2:4] = 0
        got = attend(made, p)
    close(got, attend(made, gone))
    differ(got, want)
    assert torch.equal(attend(made, p), want)
    assert made.key() == (make().key() if isinstance(made, rw.RoPE) else made.key())


def test_the_plane_that_matters_costs_most():
    p, made = amplified(1, "half", by=3.0, positions=rw.Positions(AT)), LearnedRoPE(8)
    target = attend(made, p).detach()
    rises = leave_one_band_out(Model(made), lambda: (attend(made, p) - target).square().sum())
    assert list(rises) == [0, 1, 2, 3]
    assert max(rises, key=rises.get) == 1
    assert min(rises.values()) >= 0
    dropped = leave_one_band_out(Model(made), lambda: (attend(made, p) - target).square().sum(), [0, 3], "drop")
    assert list(dropped) == [0, 3]
    for bad in (
        lambda: leave_one_band_out(Model(rw.ALiBi(4)), lambda: 0.0),
        lambda: leave_one_band_out(Model(), dict, [9]),
    ):
        with pytest.raises((rw.ConfigError, TypeError)):
            bad()


# ---- compute ---------------------------------------------------------------------------------------------------------


def test_power_laws():
    compute = [1e15, 1e16, 3e17, 1e19]
    law = PowerLaw.fit(compute, [20 * c**-0.05 for c in compute])
    assert law.a == pytest.approx(20)
    assert law.b == pytest.approx(0.05)
    assert law.compute(law.loss(1e18)) == pytest.approx(1e18)
    better = law.loss(1.034e18)  # what the baseline reaches with 3.4 % more
    assert compute_multiplier(law, 1e18, better) == pytest.approx(1.034)
    for bad in (
        lambda: PowerLaw.fit([1.0], [2.0]),
        lambda: PowerLaw.fit([1.0, 1.0], [2.0, 3.0]),
        lambda: PowerLaw.fit([1.0, 2.0], [2.0]),
        lambda: PowerLaw.fit([1.0, 2.0], [2.0, float("nan")]),
        lambda: PowerLaw(3.0, 0.0).compute(2.0),
        lambda: PowerLaw(3.0, 0.1).compute(-2.0),
    ):
        with pytest.raises(rw.ConfigError):
            bad()
