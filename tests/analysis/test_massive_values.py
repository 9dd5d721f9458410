"""Massive values in q and k (arXiv 2502.01563)."""

import pytest
import torch
from reference import DOUBLE, close, golden, heads_first, random

from ropewalk.analysis.massive_values import (
    channel_norms,
    concentration_score,
    disrupt,
    disruption,
    index_agreement,
    massive_mask,
    pair_of_channel,
    pair_shares,
    passkey,
    quantised,
)
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.core.rotation import rotate, tables
from ropewalk.frequencies import geometric

CASE = golden("083")["mv_k1"]


def planted(amplitude=10.0):
    x = random(2, 4, 30, 16)
    x[:, :, :, 13] *= amplitude
    return x


def test_golden():
    x = heads_first(CASE.inputs["x"])
    norms = channel_norms(x)
    close(norms[0], CASE.outputs["norm_matrix"], DOUBLE)
    assert torch.equal(massive_mask(norms, CASE.params["lam"])[0].long(), CASE.outputs["massive_mask"])
    for which, name in (("massive", "perturb_massive"), ("other", "perturb_other")):
        close(disruption(x, CASE.params["k"], which).apply(x), heads_first(CASE.outputs[name]), DOUBLE)


def test_planted_channel_is_found_whatever_the_scale_and_the_order():
    x = planted()
    mask = massive_mask(channel_norms(x))
    assert torch.nonzero(mask)[:, 2].unique().tolist() == [13]
    assert bool(mask.any(-1).all())
    assert torch.equal(massive_mask(channel_norms(1000 * x)), mask)
    close(channel_norms(x[:, :, torch.randperm(30)]), channel_norms(x))
    assert float(concentration_score(channel_norms(x)).min()) > 0.8
    assert float(concentration_score(channel_norms(planted(1.0))).max()) == 0
    assert index_agreement(mask[0]) == 1.0


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_rotation_keeps_pairs(pairing):
    x = planted()
    angles = torch.arange(30, dtype=torch.float64)[:, None] * geometric(16).tensor()
    turned = rotate(x, *tables(angles, x.dtype), pairing)
    close(pair_shares(channel_norms(turned), pairing), pair_shares(channel_norms(x), pairing))
    assert not torch.allclose(channel_norms(turned), channel_norms(x), rtol=0.1)


def test_pair_of_channel():
    assert [pair_of_channel(c, 4, "half") for c in range(8)] == [0, 1, 2, 3] * 2
    assert [pair_of_channel(c, 4, "interleaved") for c in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    with pytest.raises(ConfigError, match="channel 8"):
        pair_of_channel(8, 4, "half")


@pytest.mark.parametrize("which", ["massive", "other"])
@pytest.mark.parametrize("filler", ["mean", "zero", "min", "max"])
def test_disruption_leaves_the_other_channels_alone(which, filler):
    x = planted()
    done = disruption(x, 3, which, filler)
    made = done.apply(x)
    touched = torch.zeros(2, 4, 16, dtype=torch.bool).scatter(-1, done.channels, True)
    assert torch.equal(made.mT[~touched], x.mT[~touched])
    assert not torch.equal(made, x)
    assert torch.equal(done.apply(made), made)  # filling again with the same channels
    filled = made.mT[touched].view(2, 4, 3, 30)
    assert bool((filled == filled[..., :1, :1]).all())
    assert bool((touched[..., 13] == (which == "massive")).all())


def test_samples_choose_for_themselves():
    x = planted()
    both = disruption(x, 2).apply(x)
    for i in range(2):
        assert torch.equal(disruption(x[i : i + 1], 2).apply(x[i : i + 1]), both[i : i + 1])


def test_nothing_and_everything():
    x = planted()
    assert torch.equal(disruption(x, 0).apply(x), x)
    flat = disruption(x, 16).apply(x)
    assert bool((flat == flat[..., :1, :1]).all())
    q, k = disrupt(x, 2 * x, 1)
    close(k, 2 * q)
    for bad in (-1, 17, 1.5, True):
        with pytest.raises(ConfigError, match="0 to 16"):
            disruption(x, bad)
    with pytest.raises(ConfigError, match="'massive' or 'other'"):
        disruption(x, 1, "all")
    with pytest.raises(ConfigError, match="filler"):
        disruption(x, 1, filler="median")
    with pytest.raises(ConfigError, match="NaN"):
        channel_norms(x * torch.nan)
    with pytest.raises(ShapeError, match="B, H, S, D"):
        channel_norms(x[0])


def test_ties_go_to_the_lower_channel():
    x = torch.ones(1, 1, 4, 6)
    assert disruption(x, 2).channels.tolist() == [[[0, 1]]]
    assert disruption(x, 2, "other").channels.tolist() == [[[0, 1]]]


def test_agreement():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)
    assert index_agreement(mask) == pytest.approx((0.5 + 0 + 0) / 3)
    assert index_agreement(torch.zeros(3, 3)) == 0.0


def test_quantised():
    w = random(6, 40)
    keep = torch.arange(6) == 2
    made = quantised(w, keep)
    assert torch.equal(made[2], w[2])
    steps = made[0] / (w[0].abs().max() / 7)
    close(steps, steps.round())
    assert float((made - w).abs().max()) <= float(w.abs().max()) / 14 * 1.01
    assert torch.equal(quantised(torch.zeros(2, 3)), torch.zeros(2, 3))
    with pytest.raises(ShapeError):
        quantised(w, keep[:3])


def test_passkey():
    one = passkey(150, 0.5, seed=3)
    assert one == passkey(150, 0.5, seed=3)
    assert one.key != passkey(150, 0.5, seed=4).key
    assert one.prompt[one.start : one.stop].count(one.key) == 2
    assert 0.3 < one.start / len(one.prompt) < 0.7
    assert passkey(150, 0.0).start == 0
    with pytest.raises(ConfigError, match="at least 101"):
        passkey(100, 0.5)
    with pytest.raises(ConfigError, match="depth"):
        passkey(150, 1.5)
