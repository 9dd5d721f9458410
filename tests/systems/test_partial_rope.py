"""Partial RoPE (arXiv 2603.11611)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, attend, close, decoded, differ, golden, logits, problem, random
from sine_cases import check_rotation

import ropewalk as rw
from ropewalk.analysis.instability import InstabilityMonitor, grad_norm, max_logit
from ropewalk.frequencies import geometric, p_rope, pairs_of_fraction, partial
from ropewalk.frequencies.fraction import rotary_table_bytes
from ropewalk.rotary.partial_rope import slice_to_proportional

CASES = golden("027")


@pytest.mark.parametrize("name", list(CASES))
def test_golden(name):
    case = CASES[name]
    c = case.params
    made = rw.PartialRoPE(c["head_dim"], c["rotary_pct"], c["base"])
    close(made.inv_freq, case.outputs["inv_freq"], DOUBLE)
    assert 2 * len(made.inv_freq) == c["rotary_dims"]
    check_rotation(case, made)
    got = rotary_table_bytes(c["head_dim"], c["rotary_pct"], 1000)
    assert got == case.outputs["cos_sin_cache_bytes_fp32_per_1000_pos"]


@pytest.mark.parametrize(
    ("width", "fraction", "turned"), [(64, 0.1, 6), (64, 0.04, 2), (256, 0.01, 2), (128, 0.1, 12), (16, 0.25, 4)]
)
def test_odd_widths_lose_a_channel(width, fraction, turned):
    assert 2 * len(partial(width, fraction).inv_freq) == turned
    assert 2 * len(rw.PartialRoPE(width, fraction).inv_freq) == turned


def test_defaults_are_those_published():
    made = rw.PartialRoPE(64)
    assert (made.fraction, made.base, made.pairing, made.layout, made.ladder) == (
        0.25,
        10_000.0,
        "half",
        "slice",
        "rescaled",
    )
    assert made.frequencies(64).inv_freq == geometric(16).inv_freq


def test_memory():
    whole = rotary_table_bytes(128, 1.0, 4096)
    assert whole == 2 * 4096 * 128 * 4
    assert rotary_table_bytes(128, 0.1, 4096) / whole == 12 / 128
    assert rotary_table_bytes(128, 1.0, 4096, itemsize=2, full_width=False) == whole / 4
    made = rw.PartialRoPE(64, 0.25)
    cos, sin = made.tables(rw.Tokens.arange(10), (), torch.float32)
    assert cos.nbytes + sin.nbytes == rotary_table_bytes(64, 0.25, 10, full_width=False)


# ---- layouts and ladders ---------------------------------------------------------------------------------------------


def by_hand(x, at, pairs, frequencies):
    """Turn some pairs of channels, one after the other."""
    y = x.clone()
    for (a, b), w in zip(pairs, frequencies, strict=True):
        cos, sin = (at * w).cos(), (at * w).sin()
        y[..., a], y[..., b] = x[..., a] * cos - x[..., b] * sin, x[..., a] * sin + x[..., b] * cos
    return y


@pytest.mark.parametrize("ladder", ["rescaled", "truncated"])
@pytest.mark.parametrize("layout", ["slice", "proportional"])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_four_combinations(layout, ladder, pairing):
    p, at = problem(d=16), torch.arange(7, dtype=torch.float64)
    made = rw.PartialRoPE(16, 0.4, pairing=pairing, layout=layout, ladder=ladder)  # 6 channels, 3 pairs
    partner = 3 if layout == "slice" else 8
    pairs = [(i, i + partner) if pairing == "half" else (2 * i, 2 * i + 1) for i in range(3)]
    width = 6 if ladder == "rescaled" else 16
    q, k = made.rotate(p.q, p.k)
    frequencies = [10_000 ** (-2 * i / width) for i in range(3)]
    close(q, by_hand(p.q, at, pairs, frequencies))
    close(k, by_hand(p.k, at, pairs, frequencies))
    passed = [c for c in range(16) if c not in {c for pair in pairs for c in pair}]
    assert torch.equal(q[..., passed], p.q[..., passed])


@pytest.mark.parametrize("layout", ["slice", "proportional"])
@pytest.mark.parametrize("ladder", ["rescaled", "truncated"])
def test_ends_are_rope_and_nope(layout, ladder):
    p = problem(d=16)
    whole, none = (rw.PartialRoPE(16, f, layout=layout, ladder=ladder) for f in (1.0, 0.0))
    for got, want in zip(whole.rotate(p.q, p.k), rw.RoPE(16, pairing="half").rotate(p.q, p.k), strict=True):
        assert torch.equal(got, want)
    assert all(torch.equal(a, b) for a, b in zip(none.rotate(p.q, p.k), (p.q, p.k), strict=True))


@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_is_p_rope_only_at_the_ends(fraction):
    p = problem(d=16)
    ours, theirs = (e.rotate(p.q, p.k)[0] for e in (rw.PartialRoPE(16, fraction), rw.PRoPEFraction(16, fraction)))
    assert torch.equal(ours, theirs) == (fraction in (0.0, 1.0))
    same = rw.PartialRoPE(16, fraction, layout="proportional", ladder="truncated")
    assert torch.equal(same.rotate(p.q, p.k)[0], theirs)
    assert (
        partial(16, fraction, layout="proportional", ladder="truncated").inv_freq
        == p_rope(geometric(16), fraction).inv_freq
    )


def test_is_a_narrow_rope():
    p = problem(d=16)
    want = rw.Partial(rw.RoPE(4, pairing="half"), 4).rotate(p.q, p.k)
    for got, w in zip(rw.PartialRoPE(fraction=0.25).rotate(p.q, p.k), want, strict=True):
        close(got, w, 1e-15)
    other = rw.RoPE(16, pairing="half", spectrum=geometric(2 * pairs_of_fraction(16, 0.25)))
    assert torch.equal(other.rotate(p.q, p.k)[0], rw.PartialRoPE(16, 0.25).rotate(p.q, p.k)[0])


def test_logits_depend_on_differences():
    p, made = problem(d=16), rw.PartialRoPE()
    at = torch.tensor([0, 3, 3, 11, 5, 40, 2])
    want = logits(made(p.replace(positions=rw.Positions(at))))
    close(logits(made(p.replace(positions=rw.Positions(at - 999)))), want, 1e-11)
    differ(want, logits(made(p)))
    close(decoded(made, p, 3), attend(made, p))


# ---- converting checkpoints ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rotary_dim", [0, 4, 12, 16])
@pytest.mark.parametrize("ladder", ["rescaled", "truncated"])
def test_conversion_keeps_the_logits(rotary_dim, ladder):
    x = random(2, 7, 24)
    w_q, w_k = random(4 * 16, 24, seed=1), random(2 * 16, 24, seed=2)

    def scores(q, k, layout):
        q, k = ((x @ w.T).unflatten(-1, (-1, 16)).transpose(1, 2) for w in (q, k))
        return logits(rw.PartialRoPE(16, rotary_dim / 16, layout=layout, ladder=ladder)(rw.Attention(q, k, k)))

    new_q, new_k = slice_to_proportional(w_q, 4, rotary_dim), slice_to_proportional(w_k, 2, rotary_dim)
    close(scores(new_q, new_k, "proportional"), scores(w_q, w_k, "slice"))
    if rotary_dim not in (0, 16):
        differ(scores(w_q, w_k, "proportional"), scores(w_q, w_k, "slice"))
    assert torch.equal(slice_to_proportional(new_q, 4, rotary_dim, inverse=True), w_q)
    assert torch.equal(slice_to_proportional(w_q[:, 0], 4, rotary_dim), new_q[:, 0])


def test_conversion_of_one_head():
    rows = slice_to_proportional(torch.arange(10.0), 1, 4)
    assert rows.tolist() == [0, 1, 4, 5, 6, 2, 3, 7, 8, 9]


@pytest.mark.parametrize(
    ("rows", "heads", "rotary", "error"),
    [
        (10, 3, 2, rw.ShapeError),
        (10, 0, 2, rw.ShapeError),
        (10, 1, 3, rw.ConfigError),
        (10, 1, 12, rw.ConfigError),
        (9, 1, 2, rw.ConfigError),
    ],
)
def test_conversion_errors(rows, heads, rotary, error):
    with pytest.raises(error, match="head"):
        slice_to_proportional(torch.zeros(rows, 2), heads, rotary)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fraction": 1.5}, "between 0 and 1"),
        ({"fraction": math.nan}, "nan"),
        ({"head_dim": 16, "fraction": 0.1}, "less than one pair"),
        ({"head_dim": 15}, "even"),
        ({"layout": "full"}, "proportional"),
        ({"ladder": "short"}, "rescaled"),
    ],
)
def test_errors(options, message):
    with pytest.raises(rw.ConfigError, match=message):
        rw.PartialRoPE(**options)


def test_less_than_a_pair_is_an_error_at_first_use():
    with pytest.raises(rw.ConfigError, match=r"at least 0\.25"):
        rw.PartialRoPE(fraction=0.1)(problem(d=8))


# ---- normalised queries and keys, and alarms -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_qk_norm(kind):
    p, made = problem(d=8, kv=2), rw.QKNorm(8, kind).double()
    made.q_gain.data, made.k_gain.data = random(8, seed=5), random(8, seed=6)
    after = made(p)
    for x, got, gain in ((p.q, after.q, made.q_gain), (p.k, after.k, made.k_gain)):
        if kind == "layer":
            want = torch.nn.functional.layer_norm(x, (8,), gain, torch.zeros(8, dtype=torch.float64), 1e-6)
        else:
            want = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain
        close(got, want)
    assert after.v is p.v
    scaled = made(p.replace(q=1e3 * p.q, k=1e3 * p.k))
    close(scaled.q, after.q, 1e-4)  # the size of the vectors does not matter
    chain = rw.Sequential(made, rw.PartialRoPE(8))
    close(decoded(chain, p, 3), attend(chain, p))
    low = rw.QKNorm(8, kind)(p.replace(q=p.q.bfloat16(), k=p.k.bfloat16(), v=p.v.bfloat16()))
    assert low.q.dtype == torch.bfloat16


def test_qk_norm_errors():
    with pytest.raises(rw.ShapeError, match="16"):
        rw.QKNorm(16)(problem(d=8))
    with pytest.raises(rw.ConfigError, match="rms"):
        rw.QKNorm(16, "l2")
    with pytest.raises(rw.ConfigError, match="eps"):
        rw.QKNorm(16, eps=0.0)


def test_monitor_sees_spikes():
    monitor = InstabilityMonitor(k=8, window=50, warm_up=10)
    g = torch.Generator().manual_seed(0)
    noise = (0.02 * torch.randn(200, generator=g)).tolist()
    for step in range(200):
        loss = 5 * math.exp(-step / 80) + 2 + noise[step] + (3.0 if step == 150 else 0.0)
        found = monitor.update(loss=loss, grad_norm=1.0 if step != 180 else 50.0)
        assert found == (["loss"] if step == 150 else ["grad_norm"] if step == 180 else [])
    assert [(step, name) for step, name, _ in monitor.alarms] == [(150, "loss"), (180, "grad_norm")]
    assert monitor.update(loss=math.nan) == ["loss"]
    assert monitor.update(loss=math.inf, grad_norm=1.0) == ["loss"]
    assert monitor.update(loss=2.0) == []  # NaN was not remembered
    with pytest.raises(rw.ConfigError, match="warm_up"):
        InstabilityMonitor(window=5)


def test_what_the_monitor_watches():
    p = problem(d=8)
    encoded = rw.PartialRoPE(8)(p)
    seen = logits(encoded).abs().tril()
    assert max_logit(encoded) == pytest.approx(float(seen.max()), rel=1e-12)
    a, b = (torch.nn.Parameter(random(3, 2, seed=i)) for i in range(2))
    assert grad_norm([a]) == 0.0
    (2 * a.sum() + (b * b).sum()).backward()
    assert grad_norm([a, b]) == pytest.approx(float((24 + (2 * b.detach()).square().sum()).sqrt()))
    a.grad[0, 0] = math.nan
    assert math.isnan(grad_norm([a, b]))
