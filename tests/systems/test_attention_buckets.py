"""Attention Buckets: waves of bases, and bases that complement each other (arXiv 2312.04455)."""

from __future__ import annotations

import itertools

import pytest
import torch
from reference import DOUBLE, close, golden

import ropewalk as rw
from ropewalk.frequencies import attention_waveform, complementary_bases, extrema, find_extrema, smoothed, wave_coverage

(CASE,) = golden("041").values()
D = CASE.params["head_dim"]


@pytest.mark.parametrize("base", CASE.params["bases"])
def test_golden_waves(base):
    waves, at = CASE.outputs["waves"][str(base)], torch.arange(CASE.params["n_distances"])
    for kind in ("mean_cos", "bound"):
        want = torch.tensor(waves[kind], dtype=torch.float64)
        close(attention_waveform(base, D, at, kind), want, DOUBLE)
    peaks, troughs = find_extrema(attention_waveform(base, D, at, "bound"))
    assert peaks.tolist() == waves["bound_peaks"] and troughs.tolist() == waves["bound_troughs"]


def test_waves_are_largest_at_no_distance():
    at = torch.arange(5000)
    for kind, top in (("mean_cos", 1.0), ("bound", (D / 2 + 1) / 2)):
        wave = attention_waveform(10_000, D, at, kind)
        assert abs(float(wave[0]) - top) < 1e-12 and float(wave[1:].max()) < top


def test_smoothing():
    flat = torch.full((50,), 3.0).double()
    close(smoothed(flat, 7.0), flat)
    wave = attention_waveform(10_000, 128, torch.arange(4096))
    assert torch.equal(smoothed(wave, 0.0), wave)
    peaks, _ = find_extrema(wave, sigma=50.0)
    assert 8 <= len(peaks) <= 16  # about twelve, as the reconstruction was described
    assert not len(find_extrema(wave, sigma=200.0)[0])
    scipy = pytest.importorskip("scipy.ndimage")
    close(smoothed(wave[:300], 20.0), torch.from_numpy(scipy.gaussian_filter1d(wave[:300].numpy(), 20.0)), 1e-12)


def test_raw_extrema_hardly_depend_on_the_base():
    first = [
        find_extrema(attention_waveform(b, 128, torch.arange(32), "bound"))[1][:4].tolist() for b in (5000, 100_000)
    ]
    assert all(abs(a - b) <= 1 for a, b in zip(*first, strict=True))


def test_prominence():
    wave = torch.tensor([0.0, 3.0, 2.5, 2.8, 0.0, 1.0, 0.5, 5.0, 0.0])
    assert extrema(wave)[0].tolist() == [1, 3, 5, 7]
    assert find_extrema(wave, prominence=0.4)[0].tolist() == [1, 5, 7]
    assert find_extrema(wave, prominence=0.6)[0].tolist() == [1, 7]
    assert find_extrema(-wave, prominence=0.6)[1].tolist() == [1, 7]


def test_search_is_the_greedy_rule():
    bases = complementary_bases(4, 128, stride=4000.0)
    assert bases[0] == 10_000 and len(set(bases)) == 4 and set(bases) <= {10_000 + 4000.0 * j for j in range(6)}
    at = torch.arange(4096)

    def scaled(base):
        wave = smoothed(attention_waveform(base, 128, at), 50.0)
        return (wave - wave.min()) / (wave.max() - wave.min())

    for n in range(1, 4):
        troughs = extrema(torch.stack([scaled(b) for b in bases[:n]]).amax(0))[1]
        cost = {}
        for j in range(6):
            candidate = 10_000 + 4000.0 * j
            if candidate not in bases[:n]:
                peaks = extrema(scaled(candidate))[0]
                cost[candidate] = sum(min(abs(int(t) - int(p)) for p in peaks) for t in troughs) / len(troughs)
        assert cost[bases[n]] == min(cost.values())


def test_a_base_more_never_covers_less():
    bases = complementary_bases(5, 128, stride=4000.0)
    covers = [wave_coverage(bases[:n], 128) for n in range(1, 6)]
    assert all(a <= b for a, b in itertools.pairwise(covers)) and covers[-1] > covers[0]


def test_what_cannot_be():
    with pytest.raises(rw.ConfigError, match="candidates"):
        complementary_bases(9, 128, stride=4000.0)
    with pytest.raises(rw.ConfigError, match="trough"):
        complementary_bases(2, 128, sigma=400.0)
    with pytest.raises(rw.ConfigError, match="kind"):
        attention_waveform(1e4, 64, torch.arange(9), "cos")
    with pytest.raises(rw.ConfigError, match="sigma"):
        smoothed(torch.ones(5), -1.0)
    with pytest.raises(rw.ShapeError, match="curve"):
        smoothed(torch.ones(5, 5), 1.0)
