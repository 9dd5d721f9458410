"""Positional heads (arXiv 2410.08703)."""

import pytest
import torch
from reference import DOUBLE, close, golden, random, triangle

from ropewalk.analysis.positional_heads import (
    Correlation,
    attended_pairs,
    correlation,
    distance_correlation,
    expected_plane,
    first_unturned_plane,
    matched_heads,
    plane_contributions,
    plane_correlations,
    plane_scores,
    positional_heads,
    random_pairs,
    ranks,
    reach,
    slow_allocation,
)
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.core.rotation import rotate, tables
from ropewalk.frequencies import geometric

CASE = golden("068")["N8_d8"]


def turned(x, spectrum, pairing="half", first=0):
    angles = torch.arange(first, first + x.shape[-2], dtype=torch.float64)[:, None] * spectrum.tensor()
    return rotate(x, *tables(angles, x.dtype), pairing)


def weights(q, k):
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~triangle(q.shape[-2]), -torch.inf).softmax(-1)


def test_golden():
    q, k = (turned(CASE.inputs[n], geometric(8)) for n in "qk")
    scores = plane_scores(q[:, :, None], k[:, None], "half")
    close(expected_plane(scores), CASE.outputs["expected_dim"], DOUBLE)
    close(weights(q, k), CASE.outputs["attn"], DOUBLE)
    close(distance_correlation(q, k, "half", count=3), CASE.outputs["correlation_per_head"], 1e-7)


def test_contributions_sum_to_the_logit_whatever_the_pairing():
    q, k = random(3, 6, 8), random(3, 6, 8, seed=1)
    scores = plane_scores(q, k, "half")
    close(scores.sum(-1), (q * k).sum(-1) / 8**0.5)
    mixed = torch.arange(8).view(2, 4).mT.flatten()  # half to interleaved
    close(plane_scores(q[..., mixed], k[..., mixed], "interleaved"), scores)
    close(scores.softmax(-1).sum(-1), torch.ones(3, 6).double())
    close(expected_plane(scores + 5), expected_plane(scores))


def test_a_shift_of_all_positions_changes_no_contribution():
    q, k = random(2, 6, 8), random(2, 6, 8, seed=1)
    a, b = (
        plane_scores(
            *(turned(x, geometric(8), first=n)[:, :, None].movedim(2, 1 + i) for i, x in enumerate((q, k))), "half"
        )
        for n in (0, 1000)
    )
    close(a, b, 1e-10)


def test_block_by_block_is_the_same():
    q, k = random(4, 50, 8), random(2, 50, 8, seed=1)
    whole = distance_correlation(q, k, "half")
    for block in (1, 7, 50):
        close(distance_correlation(q, k, "half", block=block), whole, 1e-9)
    assert whole.shape == (4,)


def test_head_that_hands_over_to_slow_planes():
    # Energy on plane min(distance / 2, 7), so that the dominant plane follows the distance.
    n, planes = 16, 8
    sums = Correlation()
    pairs = random_pairs(n, 500)
    far = (pairs.query - pairs.key).clamp(max=n - 1)
    scores = torch.zeros(len(far), planes, dtype=torch.float64)
    scores[torch.arange(len(far)), far // 2] = 30.0
    sums.add(far, expected_plane(scores))
    assert float(sums.value()) > 0.98


def test_constant_dominant_plane_has_no_correlation():
    q = torch.zeros(1, 12, 8, dtype=torch.float64)
    assert distance_correlation(q, q, "half").tolist() == [0.0]
    assert correlation(torch.ones(5), torch.arange(5.0)) == 0.0
    assert correlation(torch.zeros(0), torch.zeros(0)) is None
    assert Correlation().value() is None


def test_correlation_in_pieces():
    x, y = random(100), random(3, 100, seed=1) + random(100)
    sums = Correlation()
    sums.add(x[:30], y[:, :30])
    sums.add(x[30:], y[:, 30:])
    close(sums.value(), torch.corrcoef(torch.cat([x[None], y]))[0, 1:], 1e-10)


def test_ranks_share_ties():
    assert ranks(torch.tensor([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]
    x = random(50)
    assert correlation(x, x.exp(), "spearman") == pytest.approx(1)
    assert correlation(x, x.exp()) < 0.95
    with pytest.raises(ConfigError, match="spearman"):
        correlation(x, x, "kendall")


def test_attended_pairs():
    w = torch.tensor([[[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.5, 0.3]]])
    (pairs,) = attended_pairs(w, 2)
    assert list(zip(pairs.query.tolist(), pairs.key.tolist(), strict=True)) == [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2)]
    (pairs,) = attended_pairs(w, None, mass=0.5)
    assert list(zip(pairs.query.tolist(), pairs.key.tolist(), strict=True)) == [(0, 0), (1, 0), (2, 1)]
    (pairs,) = attended_pairs(w, None, mass=0.9)
    assert list(zip(pairs.query.tolist(), pairs.key.tolist(), strict=True))[-3:] == [(2, 1), (2, 2), (2, 0)]
    (pairs,) = attended_pairs(w, 2, skip_first=True)
    assert list(zip(pairs.query.tolist(), pairs.key.tolist(), strict=True)) == [(1, 1), (2, 1), (2, 2)]
    (pairs,) = attended_pairs(w[:, 2:], 1, start=2)
    assert pairs.query.tolist() == [2]
    with pytest.raises(ConfigError, match="one of count and mass"):
        attended_pairs(w, 2, mass=0.5)


def test_random_pairs():
    pairs = random_pairs(20)
    assert len(pairs.key) == 2000
    assert bool((pairs.query >= pairs.key).all())
    assert int(pairs.query.max()) == 19
    assert int(pairs.key.min()) == 0
    assert torch.equal(random_pairs(20).key, pairs.key)
    assert not torch.equal(random_pairs(20, seed=1).key, pairs.key)


def test_map_of_one_layer():
    q, k = random(3, 40, 8), random(3, 40, 8, seed=1)
    pairs = random_pairs(40, 300)
    c = plane_scores(q[:, pairs.query], k[:, pairs.key], "half").softmax(-1)
    want = torch.tensor(
        [[correlation(pairs.query - pairs.key + 0.0, c[h, :, i]) for i in range(4)] for h in range(3)],
        dtype=torch.float64,
    )
    close(plane_correlations(q, k, pairs, "half"), want, 1e-9)
    close(plane_contributions(q, k, pairs, "half").sum(-1), (q[:, pairs.query] * k[:, pairs.key]).sum((-1, -2)), 1e-9)


def test_choice_of_heads():
    found = torch.zeros(4, 5)
    found[1, 2], found[3, 0], found[0, 4] = 0.9, 0.6, 0.4
    heads = positional_heads(found)
    assert heads.top_tenth == [(1, 2), (3, 0)]
    assert heads.top_twentieth == [(1, 2)]
    assert heads.above_half == [(1, 2), (3, 0)]
    assert heads.overlap == 1
    assert positional_heads(torch.zeros(1, 3)).top_tenth == [(0, 0)]
    with pytest.raises(ConfigError, match="NaN"):
        positional_heads(found * torch.nan)


def test_reach():
    w = torch.eye(8)[None]
    assert [float(x) for x in reach(w)] == [0.0, 0.0]
    first = torch.zeros(1, 8, 8)
    first[..., 0] = 1
    assert [float(x) for x in reach(first)] == [3.5, 3 / 8]
    assert [float(x) for x in reach(first[:, 4:])] == [5.5, 3 / 4]
    assert [float(x) for x in reach(first[:, 4:], 4, 8)] == [5.5, 3 / 4]


def test_slow_allocation():
    spectrum = geometric(8)
    assert first_unturned_plane(spectrum, 100) == 2
    assert first_unturned_plane(spectrum, 1e9) == 0
    q, k = random(2, 9, 8), random(2, 9, 8, seed=1)
    w = weights(q, k)
    c = plane_scores(q[:, :, None], k[:, None], "half").softmax(-1)
    want = (c[..., 2:].sum(-1) * w).sum(-1).mean(-1)
    close(slow_allocation(q, k, w, 2, "half"), want)
    close(slow_allocation(q, k, w, 0, "half"), torch.ones(2).double())
    with pytest.raises(ShapeError):
        slow_allocation(q, k, w[:, 1:], 2, "half")


def test_matched_heads_come_from_the_same_layers():
    heads = [(0, 1), (2, 0), (2, 3)]
    other = matched_heads(heads, 6)
    assert [layer for layer, _ in other] == [0, 2, 2]
    assert not set(other) & set(heads)
    assert other == matched_heads(heads, 6)
    assert matched_heads([(0, h) for h in range(4)], 4) == []


def test_bad_shapes():
    with pytest.raises(ShapeError, match="one text"):
        distance_correlation(random(3, 5, 8), random(2, 5, 8), "half")
    with pytest.raises(ShapeError, match="channels"):
        plane_scores(random(8), random(6), "half")
