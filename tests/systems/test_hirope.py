"""HiRoPE: slow pairs count functions far away (arXiv 2403.19115)."""

from __future__ import annotations

import pytest
import torch
from reference import DOUBLE, attend, close, decoded, differ, golden, logits, problem, triangle

import ropewalk as rw
from ropewalk.core.errors import NeedsColumn, NotCausal
from ropewalk.rotary.hirope import split_from_pretrain_length

(CASE,) = golden("015").values()
N = 19
SEGMENT = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4])


def at(segment=SEGMENT, start=0, **columns):
    return rw.Positions(torch.arange(start, start + len(segment)), columns={"segment": segment[None], **columns})


def turned(p, angles_q, angles_k):
    """Logits of interleaved pairs turned by angles (n, d/2)."""

    def turn(x, angle):
        z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones(()).double(), angle)
        return torch.view_as_real(z).flatten(-2)

    k = p.k.repeat_interleave(p.num_heads // p.num_kv_heads, 1)
    return turn(p.q, angles_q) @ turn(k, angles_k).mT * p.logit_scale


def pair_loop(p, segment, split, window, base=10_000.0):
    n, d = p.q.shape[2], p.q.shape[3]
    w = torch.tensor([base ** (-2 * i / d) for i in range(d // 2)], dtype=torch.float64)
    token, coarse = torch.arange(n).double()[:, None] * w, segment.double()[:, None] * w
    low = torch.arange(d // 2) < split // 2
    near = turned(p, token, token)
    far = turned(p, torch.where(low, token, coarse + (window - 1) * w), torch.where(low, token, coarse))
    r = torch.arange(n)[:, None] - torch.arange(n)
    return torch.where(r < window, near, far)


# ---- golden values ---------------------------------------------------------------------------------------------------


def golden_problem():
    p = CASE.params
    made = rw.HiRoPE(p["head_dim"], p["d_s"], p["window"], p["base"], "interleaved")
    return made, rw.Attention(*(CASE.inputs[n] for n in "qkv"), at(CASE.inputs["segment_index"]))


def test_golden():
    made, p = golden_problem()
    close(logits(made(p)) * 8**0.5, CASE.outputs["scores_merged"], DOUBLE)
    _, weights = rw.attend(made(p), "dense", return_weights=True)
    close(weights, CASE.outputs["attn"], DOUBLE)
    for backend in ("dense", "sdpa"):
        close(attend(made, p, backend), CASE.outputs["out"], DOUBLE)
    close(logits(rw.RoPE(8)(p)) * 8**0.5, CASE.outputs["scores_rope"], DOUBLE)
    differ(CASE.outputs["scores_rope"], CASE.outputs["scores_merged"])


# ---- the formula -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv", [4, 2])
@pytest.mark.parametrize(("split", "window"), [(4, 3), (2, 5), (6, 1), (0, 4), (8, 4)])
def test_logits_are_those_of_the_pair_loop(split, window, kv):
    p = problem(s=N, kv=kv, positions=at())
    made = rw.HiRoPE(8, split, window, pairing="interleaved")
    close(logits(made(p)), pair_loop(p, SEGMENT, split, window), where=triangle(N))
    close(attend(made, p, "sdpa"), attend(made, p))


def test_low_means_low_pair_index_in_both_pairings():
    p = problem(s=N, positions=at())
    reorder = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])  # pair i of "half" is channels (i, i + 4)
    q = p.replace(q=p.q[..., reorder], k=p.k[..., reorder])
    close(logits(rw.HiRoPE(8, 4, 3)(p)), logits(rw.HiRoPE(8, 4, 3, pairing="interleaved")(q)))


def test_up_to_the_window_it_is_rope_bit_by_bit():
    p = problem(s=7, positions=at(SEGMENT[:7]))
    assert torch.equal(attend(rw.HiRoPE(8, 4, 7), p), attend(rw.RoPE(8, pairing="half"), p))


def test_split_of_all_channels_is_rope_and_reads_no_segments():
    p = problem(s=N)
    close(attend(rw.HiRoPE(8, 8, 3), p), attend(rw.RoPE(8, pairing="half"), p), 1e-13)


def test_default_split_is_half():
    p = problem(s=N, positions=at())
    assert torch.equal(attend(rw.HiRoPE(8, None, 3), p), attend(rw.HiRoPE(8, 4, 3), p))
    assert rw.HiRoPE(6, None, 3).widths == (2, 4)


def test_far_slow_pairs_do_not_see_the_token_distance():
    """Split 0: every far pair of the same two segments has the same relation, and its angle is bounded."""
    p = problem(s=N, positions=at())
    p = p.replace(q=p.q[:, :, :1].expand_as(p.q), k=p.k[:, :, :1].expand_as(p.k))
    got = logits(rw.HiRoPE(8, 0, 3)(p))
    close(got[..., 13:, 3:8], got[..., 13:14, 3:4].expand_as(got[..., 13:, 3:8]))


def test_it_is_continuous_at_the_window():
    """One segment: the last near pair and every far one see W − 1 in the slow pairs."""
    p = problem(s=N, positions=at(torch.zeros(N, dtype=torch.long)))
    p = p.replace(q=p.q[:, :, :1].expand_as(p.q), k=p.k[:, :, :1].expand_as(p.k))
    got = logits(rw.HiRoPE(8, 0, 4)(p))
    close(got[..., 10, 2:8], got[..., 10, 7:8].expand_as(got[..., 10, 2:8]))


@pytest.mark.parametrize("by", [3, 50_000])
def test_scores_depend_on_differences(by):
    p, made = problem(s=N, positions=at()), rw.HiRoPE(8, 4, 3)
    moved = p.replace(positions=at(SEGMENT + 7, by))
    close(logits(made(moved)), logits(made(p)), 1e-9, where=triangle(N))


def test_three_levels():
    """The offset of the window is on every level above the tokens."""
    fine, coarse = SEGMENT, SEGMENT // 2
    p = problem(s=N, d=12, positions=at(torch.stack([fine, coarse], -1)))
    got = logits(rw.HiRoPE(12, (4, 6, 2), 4, pairing="interleaved")(p))
    w = torch.tensor([10_000.0 ** (-2 * i / 12) for i in range(6)], dtype=torch.float64)
    levels = torch.stack([torch.arange(N), fine, coarse]).double()
    far = levels[torch.tensor([0, 0, 1, 1, 1, 2])].T
    apart = torch.tensor([0, 0, 3, 3, 3, 3])
    near = torch.arange(N).double()[:, None] * w
    r = torch.arange(N)[:, None] - torch.arange(N)
    want = torch.where(r < 4, turned(p, near, near), turned(p, (far + apart) * w, far * w))
    close(got, want, where=triangle(N))


def test_plain_text_has_segments_of_equal_length():
    p = problem(s=N)
    made = rw.HiRoPE(8, 4, 3, segment_length=5)
    close(logits(made(p)), logits(rw.HiRoPE(8, 4, 3)(p.replace(positions=at(torch.arange(N) // 5)))))
    close(decoded(made, p, 6), attend(made, p))


def test_tokens_counted_inside_segments():
    p = problem(s=N, positions=at(torch.arange(N) // 5, intra=(torch.arange(N) % 5)[None]))
    got = logits(rw.HiRoPE(8, 4, 3, token_index="segment")(p))
    close(got, logits(rw.HiRoPE(8, 4, 3, token_index="segment", segment_length=5)(problem(s=N))))
    differ(got, logits(rw.HiRoPE(8, 4, 3)(p)))
    r = torch.arange(N)[:, None] - torch.arange(N)
    close(got, logits(rw.RoPE(8, pairing="half")(p)), where=(r < 3) & (r >= 0))


# ---- caches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(), (5,), (7, 4, 3)])
def test_decoding_with_given_segments(sizes):
    p, made = problem(s=N, kv=2, positions=at()), rw.HiRoPE(8, 4, 3)
    cache, outputs, start = rw.KVCache(made), [], 0
    for size in [*sizes, *[1] * (N - sum(sizes))]:
        part = slice(start, start + size)
        step = rw.Attention(*(t[:, :, part] for t in (p.q, p.k, p.v)), p.positions.slice(start, start + size))
        outputs.append(rw.attend(cache.extend(step), "dense"))
        start += size
    close(torch.cat(outputs, 2), attend(made, p))


@pytest.mark.parametrize("pad", [False, True])
def test_a_generated_token_is_in_the_last_segment(pad):
    p, made, n = problem(s=N, kv=2), rw.HiRoPE(8, 4, 3), 12
    valid = torch.ones(2, n, dtype=torch.bool)
    if pad:
        valid[1, 9:] = False  # on the right: its last real token is in segment 3 as well
    prompt = rw.Positions(torch.arange(n), valid=valid, columns={"segment": SEGMENT[None, :n]})
    cache = rw.KVCache(made)
    cache.extend(rw.Attention(*(t[:, :, :n] for t in (p.q, p.k, p.v)), prompt))
    for i in range(n, N):
        cache.extend(rw.Attention(*(t[:, :, i : i + 1] for t in (p.q, p.k, p.v))))
    held = cache.tokens.column("segment")
    assert held[0, n:].tolist() == [3] * (N - n)
    assert held[-1, n:].tolist() == [SEGMENT[8] if pad else 3] * (N - n)


def test_cached_keys_move():
    p, made = problem(s=12, kv=2, positions=at(SEGMENT[:12])), rw.HiRoPE(8, 4, 3)
    keep = torch.tensor([0, 1, 5, 6, 7, 8, 9, 10, 11])
    cache, alone = rw.KVCache(made), rw.KVCache(made)
    cache.extend(p)
    after = at(SEGMENT[keep])
    cache.edit(keep, after)
    alone.extend(rw.Attention(*(t[:, :, keep] for t in (p.q, p.k, p.v)), after))
    new = problem(s=1, kv=2, seed=9)
    close(rw.attend(cache.extend(new), "dense"), rw.attend(alone.extend(new), "dense"))


# ---- settings and errors ---------------------------------------------------------------------------------------------


def test_published_splits():
    assert [split_from_pretrain_length(n, d) for n, d in ((4096, 128), (2048, 128), (2048, 64))] == [90, 80, 40]
    assert split_from_pretrain_length(3, 128) == 0
    assert split_from_pretrain_length(1e12, 128) == 128


@pytest.mark.parametrize("split", [3, -2, 10, (4, 2), (3, 5), (8,), 2.0])
def test_splits_that_cannot_be(split):
    with pytest.raises(rw.ConfigError, match="split"):
        rw.HiRoPE(8, split)


def test_errors():
    with pytest.raises(rw.ConfigError, match="window"):
        rw.HiRoPE(8, 4, 0)
    with pytest.raises(rw.ConfigError, match="Did you mean 'segment'"):
        rw.HiRoPE(8, token_index="segments")
    with pytest.raises(NeedsColumn, match="segment"):
        rw.HiRoPE(8, 4, 3)(problem(s=N))
    with pytest.raises(rw.PositionError, match="falls"):
        rw.HiRoPE(8, 4, 3)(problem(s=3, positions=at(torch.tensor([0, 2, 1]))))
    with pytest.raises(rw.PositionError, match="levels above"):
        rw.HiRoPE(8, (4, 2, 2), 3)(problem(s=N, positions=at()))
    with pytest.raises(rw.PositionError, match="column 'segment'"):
        rw.Positions(torch.arange(N), columns={"segment": SEGMENT[None, :5]})
    with pytest.raises(NotCausal):
        rw.HiRoPE(8, 4, 3)(problem(s=N, positions=at(), causal=False))
    with pytest.raises(rw.ConfigError, match="one level"):
        rw.HiRoPE(8, (4, 2, 2), 3, segment_length=4)


def test_a_new_document_may_number_its_segments_anew():
    ids = torch.tensor([0] * 9 + [1] * 10)
    segment = torch.where(ids == 0, SEGMENT, SEGMENT - SEGMENT[9])
    positions = rw.Positions(torch.arange(N), document_ids=ids, columns={"segment": segment[None]})
    rw.HiRoPE(8, 4, 3)(problem(s=N, positions=positions))
