"""HARPE (arXiv 2412.07171)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import FULL, attend, close, decoded, differ, golden, logits, problem

import ropewalk as rw
from ropewalk.frequencies import extrema, geometric, per_head_bases, search_bases, waveform
from ropewalk.frequencies.per_head import PUBLISHED

CASES = golden("048")


# ---- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(CASES))
def test_golden(name):
    case = CASES[name]
    made = rw.HARPE(case.params["head_dim"], bases=case.params["bases"])
    q, k = case.inputs["q"], case.inputs["k"]
    at = torch.arange(q.shape[-2]) + case.params["position_offset"]
    close(made.inv_freq, case.outputs["inv_freq"], FULL)
    got_q, got_k = made.rotate(q, k, at)
    close(got_q, case.outputs["q_rot"], FULL)
    close(got_k, case.outputs["k_rot"], FULL)
    p = rw.Attention(q, k, k, rw.Positions(at), scale=1.0)
    close(logits(made(p)), case.outputs["scores_unscaled"], FULL)


# ---- what it does ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_equal_bases_are_rope(pairing):
    p, rope = problem(), rw.RoPE(8, 3e6, pairing)
    made = rw.HARPE(8, bases=[3e6] * 4, pairing=pairing)
    for got, want in zip(made.rotate(p.q, p.k), rope.rotate(p.q, p.k), strict=True):
        close(got, want, 1e-15)


def test_each_head_is_a_rope_of_its_own():
    p, bases = problem(), [1e2, 1e4, 3e6, 50.0]
    made = rw.HARPE(8, bases=bases)
    for h, base in enumerate(bases):
        want = rw.RoPE(8, base, "half").rotate(p.q[:, h : h + 1], p.k[:, h : h + 1])
        got = [x[:, h : h + 1] for x in made.rotate(p.q, p.k)]
        close(got[0], want[0])
        close(got[1], want[1])
    per_head = rw.PerHead([rw.RoPE(8, base, "half") for base in bases])
    close(attend(made, p), attend(per_head, p))


def test_heads_and_bases_permute_together():
    p, order, bases = problem(), torch.tensor([2, 0, 3, 1]), [1e2, 1e4, 3e6, 50.0]
    swapped = rw.Attention(p.q[:, order], p.k[:, order], p.v[:, order])
    made, other = rw.HARPE(8, bases=bases), rw.HARPE(8, bases=[bases[i] for i in order])
    close(attend(other, swapped), attend(made, p)[:, order])
    differ(attend(made, swapped), attend(made, p)[:, order])


def test_groups_share_the_base_of_their_key_head():
    p, bases = problem(h=6, kv=2), [1e2, 3e6]
    q, k = rw.HARPE(8, 6, num_kv_heads=2, bases=bases).rotate(p.q, p.k)
    for h in range(6):
        close(q[:, h], rw.RoPE(8, bases[h // 3], "half").rotate(p.q, p.k)[0][:, h])
    for h in range(2):
        close(k[:, h], rw.RoPE(8, bases[h], "half").rotate(p.q, p.k)[1][:, h])


def test_relative_and_norms():
    p, made = problem(), rw.HARPE(8, 4, lowest=10.0, highest=1e4)
    at = torch.tensor([0, 3, 3, 11, 5, 40, 2])
    want = logits(made(p.replace(positions=rw.Positions(at))))
    close(logits(made(p.replace(positions=rw.Positions(at + 977)))), want, 1e-11)
    q, k = made.rotate(p.q, p.k, at)
    close(q.norm(dim=-1), p.q.norm(dim=-1))
    close(k.norm(dim=-1), p.k.norm(dim=-1))


def test_huge_bases_turn_the_first_pair_only():
    p = problem()
    q, _ = rw.HARPE(8, bases=[1e300] * 4).rotate(p.q, p.k)
    rest = [1, 2, 3, 5, 6, 7]
    assert torch.equal(q[..., rest], p.q[..., rest])
    close(q[..., [0, 4]], rw.RoPE(2, pairing="half").rotate(p.q[..., [0, 4]], p.q[..., [0, 4]])[0])


@pytest.mark.parametrize("sizes", [(), (4, 2)])
def test_decoding_is_the_full_pass(sizes):
    p, made = problem(kv=2), rw.HARPE(8, 4, num_kv_heads=2, lowest=10.0, highest=1e4)
    close(decoded(made, p, *sizes), attend(made, p))


def test_takes_the_place_of_a_rope():
    p, rope = problem(kv=2), rw.RoPE(8, 1e4, "half")
    close(attend(rw.HARPE.from_rope(rope, 2, [rope.base] * 2), p), attend(rope, p), 1e-15)
    made = rw.HARPE.from_rope(rw.RoPE(8), 2, lowest=1e4, highest=2e4)
    assert made.bases == (1e4, 2e4)
    assert made.pairing == "interleaved"
    with pytest.raises(rw.ConfigError, match="head_dim"):
        rw.HARPE.from_rope(rw.RoPE(), 2)
    with pytest.raises(rw.ConfigError, match="other frequencies"):
        rw.HARPE.from_rope(rw.RoPE(8, spectrum=rw.Spectrum((0.1,) * 4)), 2)


def test_numbers_survive_casts():
    made = rw.HARPE(64, 3).to(torch.bfloat16)
    close(made.inv_freq[2], geometric(64, 5e6).tensor(), 1e-15)
    assert made.state_dict() == {}


# ---- bases -----------------------------------------------------------------------------------------------------------


def test_uniform_bases():
    assert per_head_bases(5) == (1e6, 2e6, 3e6, 4e6, 5e6)
    assert per_head_bases(5, descending=True) == (5e6, 4e6, 3e6, 2e6, 1e6)
    assert per_head_bases(1) == (1e6,)
    assert per_head_bases(2, lowest=10, highest=20) == (10.0, 20.0)


def test_published_bases():
    assert per_head_bases(32, "preset") == PUBLISHED == tuple(sorted(PUBLISHED))
    assert PUBLISHED[:5] == (1_000_000, 1_150_000, 1_300_000, 1_450_000, 2_170_000)
    assert PUBLISHED[-1] == 4_540_000
    assert all(round((b - 1e6) / 3e4) * 3e4 == b - 1e6 for b in PUBLISHED)  # on the grid of the stride
    assert rw.HARPE(8, 32, bases="preset").inv_freq[4, 1].item() == pytest.approx(2.17e6 ** (-2 / 8), rel=1e-14)


def slow_search(n, d, lowest, highest, stride, length):
    """The greedy search, with sets and loops."""
    grid = [lowest + j * stride for j in range(math.floor((highest - lowest) / stride + 1e-9) + 1)]
    found = {}
    for base in grid:
        w = [sum(math.cos(m * base ** (-2 * i / d)) for i in range(d // 2)) for m in range(length)]
        peaks = {m for m in range(1, length - 1) if w[m - 1] < w[m] > w[m + 1]}
        valleys = {m for m in range(1, length - 1) if w[m - 1] > w[m] < w[m + 1]}
        found[base] = peaks, valleys
    chosen = [grid[0]]
    while len(chosen) < n:
        peaks = set().union(*(found[b][0] for b in chosen))
        valleys = set().union(*(found[b][1] for b in chosen))
        costs = {}
        for base in grid:
            if base not in chosen:
                costs[base] = sum(min(abs(p - v) for v in valleys) for p in found[base][0])
                costs[base] += sum(min(abs(v - p) for p in peaks) for v in found[base][1])
        chosen.append(min(costs, key=lambda b: (costs[b], b)))
    return tuple(sorted(chosen))


@pytest.mark.parametrize(("n", "d", "length"), [(4, 8, 60), (5, 16, 90), (6, 8, 40)])
def test_search_against_loops(n, d, length):
    options = {"lowest": 100.0, "highest": 3000.0, "stride": 290.0, "length": length}
    got = search_bases(n, d, **options)
    assert got == slow_search(n, d, 100.0, 3000.0, 290.0, length)
    assert got == search_bases(n, d, **options)
    assert len(set(got)) == n
    assert got == tuple(sorted(got))
    assert got[0] == 100.0
    assert all((b - 100.0) / 290.0 == int((b - 100.0) / 290.0) for b in got)
    assert per_head_bases(n, "search", head_dim=d, **options) == got


def test_search_uses_every_candidate_if_it_must():
    everything = search_bases(11, 8, lowest=1.0, highest=2.0, stride=0.1, length=40)  # (2 − 1) / 0.1 in floating point
    assert everything == pytest.approx([1 + j / 10 for j in range(11)])
    with pytest.raises(rw.ConfigError, match="11 bases"):
        search_bases(12, 8, lowest=1.0, highest=2.0, stride=0.1, length=40)
    with pytest.raises(rw.ConfigError, match="134 bases"):
        per_head_bases(135, "search")


def test_waveform_and_its_extrema():
    wave = waveform(geometric(8, 50.0), torch.arange(100))
    assert wave[0] == 4
    peaks, valleys = extrema(wave)
    assert 0 not in peaks
    for m in peaks.tolist():
        assert wave[m - 1] < wave[m] > wave[m + 1]
    for m in valleys.tolist():
        assert wave[m - 1] > wave[m] < wave[m + 1]
    flat = torch.tensor([0.0, 1.0, 1.0, 0.0, 2.0, 0.0, 3.0])
    assert [x.tolist() for x in extrema(flat)] == [[4], [3, 5]]  # a plateau is no strict maximum, an end none inside
    with pytest.raises(rw.ShapeError, match="curve"):
        extrema(flat[None])


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "num_kv_heads"),
        ({"num_heads": 4, "bases": "best"}, "'best'"),
        ({"num_heads": 4, "bases": [1e4, 1e5]}, "2 bases for 4"),
        ({"bases": [1e4, -1.0]}, "-1"),
        ({"bases": [1e4, 1e5], "descending": True}, "own order"),
        ({"bases": [1e4, math.nan]}, "nan"),
        ({"num_heads": 4, "bases": "preset"}, "32 key heads"),
        ({"num_heads": 0}, "at least 1"),
        ({"num_heads": 4, "lowest": 2e4, "highest": 1e4}, "above the highest"),
        ({"head_dim": 7, "num_heads": 4}, "even"),
        ({"num_heads": 4, "pairing": "llama"}, "pairing"),
    ],
)
def test_errors(options, message):
    with pytest.raises(rw.ConfigError, match=message):
        rw.HARPE(**{"head_dim": 8, **options})


def test_search_errors():
    with pytest.raises(rw.ConfigError, match="no peak or no valley"):
        search_bases(2, 128, length=3)
    with pytest.raises(rw.ConfigError, match="stride"):
        search_bases(2, stride=0.0)


def test_wrong_problems_are_errors():
    with pytest.raises(rw.ShapeError, match="num_kv_heads=4"):
        rw.HARPE(8, 2)(problem())
    with pytest.raises(rw.ShapeError, match="16"):
        rw.HARPE(16, 4)(problem())
