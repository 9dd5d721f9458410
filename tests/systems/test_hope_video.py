"""HoPE, the hybrid for video: idle pairs and drawn scales of time (arXiv 2505.20444)."""

from __future__ import annotations

import pytest
import torch
from frames import axes_first, blocks_of
from reference import DOUBLE, attend, close, differ, golden, problem

import ropewalk as rw
from ropewalk.core.errors import ConfigError
from ropewalk.rotary.hope_video import TRAINED
from ropewalk.rotary.videorope import SCALES

CASES = golden("059")
CLIP = [rw.Text(3), rw.Video(3, 2, 5), rw.Text(1), rw.Image(3, 2), rw.Text(2)]


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    case = CASES[name]
    p = case.params
    made = rw.HybridVideoRoPE(p["head_dim"], p["mrope_section"], p["base"], p["temporal_scale"])
    where = rw.layout(blocks_of(case.inputs["layout"]))
    close(axes_first(where, made.scheme), case.outputs["positions_thw"])
    delta = case.outputs["next_text_position_minus_length(rope_delta)"]
    assert made.scheme.delta(where.key).tolist() == delta[0].tolist()
    q, k = made.rotate(case.inputs["q"], case.inputs["k"], where)
    close(q, case.outputs["q_rot"], DOUBLE)
    close(k, case.outputs["k_rot"], DOUBLE)


def test_idle_pairs_do_not_turn_and_the_others_are_videorope():
    where = rw.layout([CLIP])
    p = problem(b=1, s=where.query.length, d=16, positions=where)
    made, other = rw.HybridVideoRoPE(16, base=1e4), rw.VideoRoPE(16, base=1e4, scale=1.0)
    idle = torch.tensor([6, 7, 14, 15])
    moving = torch.tensor([i for i in range(16) if i not in (6, 7, 14, 15)])
    for mine, theirs, plain in zip(
        made.rotate(p.q, p.k, where), other.rotate(p.q, p.k, where), (p.q, p.k), strict=True
    ):
        assert torch.equal(mine[..., idle], plain[..., idle])
        close(mine[..., moving], theirs[..., moving])
        differ(theirs[..., idle], plain[..., idle])
    assert str(made.allocation) == "h w h w h w · ·"


def test_text_is_partial_rope():
    p = problem(d=16, positions=rw.layout([[rw.Text(7)]] * 2))
    spectrum = rw.Spectrum([*rw.geometric(16, 1e4).inv_freq[:6], 0.0, 0.0])
    close(
        attend(rw.HybridVideoRoPE(16, base=1e4), p),
        attend(rw.RoPE(spectrum=spectrum, pairing="half"), p.replace(positions=None)),
    )


def test_idle_pairs_keep_the_semantic_preference():
    """Σ cos over all pairs at an offset in time: never less than with time pairs that turn, and ≥ 0 if they are half of all."""
    shift = torch.arange(0, 50_000, 7, dtype=torch.float64)

    def preference(made):
        turn = shift[:, None] * made.inv_freq[0]  # in the diagonal layout time moves h and w alike
        return turn.cos().sum(-1)

    sections = (16, 24, 24)
    hybrid, video = rw.HybridVideoRoPE(128, sections), rw.VideoRoPE(128, sections)
    assert bool((preference(hybrid) >= preference(video)).all())
    assert preference(rw.HybridVideoRoPE(128, (32, 16, 16))).min() >= 0


# ---- scales that are drawn -------------------------------------------------------------------------------------------


def test_each_block_draws_its_own_scale_in_training():
    made = rw.HybridVideoRoPE(16, scale=None)
    where = rw.layout([CLIP] * 40)
    drawn = made.draw(where, torch.Generator().manual_seed(1))
    again = made.draw(where, torch.Generator().manual_seed(1))
    scales = drawn.key.sequence[SCALES]
    assert torch.equal(scales, again.key.sequence[SCALES])
    assert set(scales.flatten().tolist()) == set(TRAINED)
    assert bool((scales[:, 0] != scales[:, 1]).any())
    assert made.draw(drawn) is drawn
    c = made.scheme.coordinates(drawn.query)
    close(c[:, 13, 0] - c[:, 3, 0], scales[:, 0])


def test_evaluation_needs_a_scale():
    made = rw.HybridVideoRoPE(16, scale=None).eval()
    where = rw.layout([CLIP])
    with pytest.raises(ConfigError, match="scale of time is not set"):
        made(problem(b=1, s=where.query.length, d=16, positions=where))


@pytest.mark.parametrize("bad", [(), (0.5, 0.0), (float("nan"),)])
def test_scales_that_are_none(bad):
    with pytest.raises(ConfigError, match="scale"):
        rw.HybridVideoRoPE(16, scale=None, scales=bad)


def test_decoding_goes_on_from_the_cursor():
    """The released inference forgets it."""
    made = rw.HybridVideoRoPE(16, base=100.0, scale=1.5)
    where = rw.layout([[*CLIP, rw.Text(4)]])
    n = where.query.length
    p = problem(b=1, s=n, d=16, positions=where)
    cache = rw.KVCache(made)
    part = p.replace(q=p.q[:, :, : n - 4], k=p.k[:, :, : n - 4], v=p.v[:, :, : n - 4], positions=where.slice(0, n - 4))
    out = [rw.attend(cache.extend(part), "dense")]
    for i in range(n - 4, n):
        out.append(
            rw.attend(
                cache.extend(rw.Attention(p.q[:, :, i : i + 1], p.k[:, :, i : i + 1], p.v[:, :, i : i + 1])), "dense"
            )
        )
    close(torch.cat(out, 2), attend(made, p))
