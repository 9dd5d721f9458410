"""The first forms of GridPE: sums of three plane waves (arXiv 2406.07049, first versions)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import attend, close, differ, logits, problem, random

import ropewalk as rw
from ropewalk import testing
from ropewalk.catalog.entry import Traits
from ropewalk.coordinates.grid import sample_grid
from ropewalk.core.errors import ConfigError, PositionError, ShapeError
from ropewalk.rotary.gridpe_waves import GridWaveEmbedding, GridWaves, wave_mixture, wave_sums, wave_vectors

FORMS = ("rotate", "complex", "vector")
AT = torch.tensor([[[0.0, 0.0], [1.0, 2.0], [3.5, -1.0], [2.0, 2.0]]], dtype=torch.float64)


def scores(encoding, q, k, at=AT):
    """Logits of an encoded problem, not masked."""
    return logits(encoding(rw.Attention(q, k, k, rw.Positions(at), causal=False)))


def by_hand(position, d, n, seed=0):
    """g_k(x) from the definition, with cosines and sines and no complex numbers."""
    vectors, m = wave_vectors(n, d, seed), wave_mixture(seed)
    rows = []
    for x in position[0]:
        row = []
        for k in range(n):
            angle = [float(w @ x) for w in vectors[k]]
            re = sum(float(a.real) * math.cos(t) - float(a.imag) * math.sin(t) for a, t in zip(m, angle, strict=True))
            im = sum(float(a.real) * math.sin(t) + float(a.imag) * math.cos(t) for a, t in zip(m, angle, strict=True))
            row.append(complex(re, im))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.complex128)


def test_three_waves_at_120_degrees():
    w = wave_vectors(6, 12)
    torch.testing.assert_close(w.sum(1), torch.zeros(6, 2).double(), atol=1e-12, rtol=0)
    length = w.norm(dim=-1)
    torch.testing.assert_close(length, (200.0 ** (torch.arange(6).double() / 12))[:, None].expand(-1, 3))
    gram = w @ w.mT / length.square()[:, :1, None]
    torch.testing.assert_close(gram[:, 0, 1:], torch.full((6, 2), -0.5).double())
    assert (wave_vectors(6, 12, seed=1) - w).abs().max() > 0.1
    torch.testing.assert_close(wave_vectors(3, 12), w[:3])


def test_the_mixture_is_of_a_unitary_matrix():
    m = wave_mixture(3)
    assert float(m.abs().square().sum()) == pytest.approx(3.0)  # |Qᵀ 1|² = 3
    assert not torch.equal(m, wave_mixture(4))
    torch.testing.assert_close(wave_sums(AT, wave_vectors(4, 8, 3), m)[0], by_hand(AT, 8, 4, 3))


def test_rotate_multiplies_pairs_by_the_sum():
    q, k = random(1, 2, 4, 8), random(1, 2, 4, 8)
    g = by_hand(AT, 8, 4)
    turned = [torch.complex(x[..., :4], x[..., 4:]) * g for x in (q, k)]
    want = (turned[0][:, :, :, None] * turned[1][:, :, None].conj()).real.sum(-1) / 8**0.5
    close(scores(GridWaves(8), q, k), want)


def test_complex_scores_are_not_conjugated():
    q, k = random(1, 2, 4, 8), random(1, 2, 4, 8)
    g = by_hand(AT, 8, 8)
    want = ((q * g)[:, :, :, None] * (k * g)[:, :, None]).real.sum(-1) / 8**0.5
    close(scores(GridWaves(8, "complex"), q, k), want)


def test_vectors_are_relative_and_the_others_are_not():
    q, k = random(1, 2, 4, 8), random(1, 2, 4, 8)
    for form in FORMS:
        here, there = (scores(GridWaves(8, form), q, k, x) for x in (AT, AT + 2.5))
        (close if form == "vector" else differ)(here, there)
    w = wave_vectors(4, 8)
    phase = (w * (AT[0, :, None] - AT[0])[:, :, None, None]).sum(-1)  # (x, y, k, j)
    pair = (
        torch.complex(q[..., :4], q[..., 4:])[:, :, :, None] * torch.complex(k[..., :4], k[..., 4:]).conj()[:, :, None]
    )
    want = (pair * torch.polar(torch.ones_like(phase), phase).mean(-1)).real.sum(-1) / 8**0.5
    close(scores(GridWaves(8, "vector"), q, k), want)


def test_merging_adds_both_parts():
    x = random(1, 4, 6)
    g = by_hand(AT, 6, 6)
    close(GridWaveEmbedding(6).embed(x, rw.Positions(AT)), x + g.real + g.imag)
    with pytest.raises(ShapeError, match="made for width 6"):
        GridWaveEmbedding(6).embed(random(1, 4, 8), rw.Positions(AT))


def test_the_seed_says_it_all():
    assert not GridWaves(8).state_dict()
    q = random(1, 2, 4, 8)
    first, again, other = (scores(GridWaves(8, seed=s), q, q) for s in (0, 0, 1))
    assert torch.equal(first, again)
    differ(first, other)


@pytest.mark.parametrize("form", FORMS)
def test_contract(form):
    traits = Traits(
        relative=form == "vector",
        norm_preserving=False,  # the vector keeps norms, but in three times as many channels
        content_dependent=False,
        streamable=True,
        linear_attention=True,
        domain="grid",
    )

    def made(head_dim):
        return GridWaves(head_dim, form)

    testing.check_encoding(made, traits)


def test_contract_of_the_embedding():
    traits = Traits(
        relative=False,
        norm_preserving=True,
        content_dependent=False,
        streamable=True,
        linear_attention=True,
        domain="grid",
    )
    testing.check_encoding(GridWaveEmbedding, traits)


def test_bad_input():
    with pytest.raises(ConfigError, match="Did you mean 'rotate'"):
        GridWaves(8, "rotates")
    with pytest.raises(ConfigError, match="even"):
        GridWaves(7)
    with pytest.raises(ShapeError, match="made for head_dim 8"):
        attend(GridWaves(8), problem(d=12, positions=rw.Positions(random(1, 7, 2))))
    for encoding in (GridWaves(8),):
        with pytest.raises(PositionError, match=r"rw\.grid_positions"):
            encoding(rw.Attention(*(random(1, 2, 4, 8) for _ in range(3))))
    assert sample_grid(1, 4).query.axes == 2
