"""RoPE-Mixed: learned frequency vectors in the plane (arXiv 2403.13298)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import attend, close, differ, logits, problem, random

import ropewalk as rw
from ropewalk.core.errors import ConfigError, PositionError, ShapeError

GRID = rw.grid_positions(2, 3)


def on_grid(**more):
    return problem(**{"s": 6, "positions": GRID, "causal": False, **more})


def test_the_formula():
    """cos and sin of u row + v column, channels 2i and 2i + 1 as one complex number."""
    made = rw.MixedRoPE(8, 4).double()
    p = on_grid()
    row, column = GRID.key.position[0].double().unbind(-1)
    u, v = made.frequencies.detach().unbind(-1)
    angle = u[:, None] * row[:, None] + v[:, None] * column[:, None]
    turn = torch.polar(torch.ones_like(angle), angle)
    q, k = (torch.view_as_real(torch.view_as_complex(t.unflatten(-1, (-1, 2))) * turn).flatten(-2) for t in (p.q, p.k))
    got = made(p)
    close(got.q, q)
    close(got.k, k)
    close(logits(got), q @ k.mT / math.sqrt(8))


def test_the_start():
    made = rw.MixedRoPE(16, 4)
    w = made.frequencies.detach().double()
    assert w.shape == (4, 8, 2)
    size = 10.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    close(w.norm(dim=-1), torch.cat([size, size]).expand(4, -1), 1e-6)
    assert (w[:, :4] * w[:, 4:]).sum(-1).abs().max() < 1e-6  # at right angles
    angle = torch.atan2(w[:, 0, 1], w[:, 0, 0])
    close(torch.atan2(w[:, 1:4, 1], w[:, 1:4, 0]), angle[:, None].expand(-1, 3), 1e-6)
    assert len({round(a.item(), 3) for a in angle}) == 4


def test_untouched_it_is_axial_rope():
    p = on_grid(d=16)
    close(logits(rw.MixedRoPE(16, 4, turned=False)(p)), logits(rw.AxialRoPE(16, base=10.0)(p)), 1e-6)


def test_layers_start_apart_and_keep_what_was_learned():
    made = rw.MixedRoPE(16, 4)
    other = made.layer(1)
    differ(other.frequencies, made.frequencies)
    close(other.frequencies, rw.MixedRoPE(16, 4, layer_index=1).frequencies, 1e-6)
    assert torch.equal(made.layer(0).frequencies, made.frequencies)
    with torch.no_grad():
        made.frequencies.mul_(2)
    close(made.layer(1).frequencies, 2 * other.frequencies, 1e-6)
    plain = rw.MixedRoPE(16, 4, turned=False)
    assert torch.equal(plain.layer(3).frequencies, plain.frequencies)
    assert plain.layer(3).frequencies is not plain.frequencies


def test_only_differences_count_at_any_resolution():
    made = rw.MixedRoPE(8, 4).double()
    p = on_grid()
    close(logits(made(p.replace(positions=rw.Positions(GRID.key.position + 1000.5)))), logits(made(p)), 1e-10)
    wide = on_grid(s=5 * 7, positions=rw.grid_positions(5, 7))
    at = [r * 7 + c for r in range(2) for c in range(3)]  # the corner that the small grid is
    cut = wide.replace(q=wide.q[:, :, at], k=wide.k[:, :, at], v=wide.v[:, :, at], positions=GRID)
    close(logits(made(cut)), logits(made(wide))[:, :, at][..., at])


def test_class_tokens_do_not_turn():
    made = rw.MixedRoPE(8, 4).double()
    p = on_grid(s=7, positions=rw.grid_positions(2, 3, start=1, num_prefix=1))
    assert torch.equal(made(p).k[:, :, 0], p.k[:, :, 0])


def test_it_learns_and_stays_float32():
    made = rw.MixedRoPE(8, 4)
    attend(made, on_grid()).square().sum().backward()
    assert made.frequencies.grad.abs().max() > 0
    kept = made.frequencies.detach().clone()
    half = made.to(torch.bfloat16)
    assert half.frequencies.dtype == torch.float32
    assert torch.equal(half.frequencies, kept)
    assert set(made.state_dict()) == {"frequencies"}


def test_decoding_is_the_full_pass():
    made = rw.MixedRoPE(8, 4).double()
    where = rw.Positions(GRID.key.position, next=torch.zeros(1))
    p = problem(s=6, positions=where)
    cache = rw.KVCache(made)
    out = [
        rw.attend(
            cache[0].extend(rw.Attention(p.q[:, :, a:b], p.k[:, :, a:b], p.v[:, :, a:b], cache.step(where.slice(a, b))))
        )
        for a, b in ((0, 2), (2, 3), (3, 6))
    ]
    close(torch.cat(out, 2), attend(made, p), 1e-10)


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"head_dim": 6}, "multiple of 4"),
        ({"num_heads": None}, "give num_heads"),
        ({"num_heads": 0}, "at least 1"),
        ({"base": 0.0}, "base"),
        ({"layer_index": -1}, "layer_index"),
    ],
)
def test_bad_input(more, match):
    with pytest.raises(ConfigError, match=match):
        rw.MixedRoPE(**{"head_dim": 8, "num_heads": 4, **more})


def test_other_problems():
    made = rw.MixedRoPE(8, 4)
    with pytest.raises(PositionError, match=r"wants positions \(batch, seq, 2\)"):
        made(problem())
    with pytest.raises(ShapeError, match="4 key heads and the layer has 2"):
        made(on_grid(kv=2))
    with pytest.raises(ShapeError, match="made for head_dim 8"):
        made.rotate(random(1, 4, 6, 4), random(1, 4, 6, 4), GRID)
