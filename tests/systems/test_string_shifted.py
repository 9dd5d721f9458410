"""STRING, shifted rotary positions (arXiv 2410.18745)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, SINGLE, attend, close, decoded, differ, expanded, golden, logits, problem, triangle

import ropewalk as rw
from ropewalk.core.errors import CannotCache
from ropewalk.rotary.string_shifted import string_distance_matrix

CASES = golden("116")
NAMES = list(CASES)


def of_case(case, **options):
    p = case.params
    return rw.STRINGShifted(p["head_dim"], p["S"], p["W"], p["base"], attention_factor=p["attention_factor"], **options)


def half(x, position, base=10_000.0):
    """RoPE in the half pairing, by complex numbers."""
    d = x.shape[-1]
    w = torch.tensor([base ** (-2 * i / d) for i in range(d // 2)], dtype=torch.float64)
    z = torch.complex(x[..., : d // 2], x[..., d // 2 :]) * torch.polar(
        torch.ones(()).double(), position.double()[..., None] * w
    )
    return torch.cat([z.real, z.imag], -1)


def distances(n, shift, local):
    r = torch.arange(n)[:, None] - torch.arange(n)
    return torch.where(r < shift, r, r - shift + local)


def pair_loop(p, shift, local, factor=1.0):
    """Logits with each query turned to each key's distance."""
    n = p.q.shape[2]
    table = distances(n, shift, local)
    k = p.k.repeat_interleave(p.num_heads // p.num_kv_heads, 1)
    q = half(p.q[:, :, :, None].expand(-1, -1, n, n, -1), table)
    return torch.einsum("bhijd,bhjd->bhij", q, k) * p.logit_scale * factor**2


# ---- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_golden_distances(name):
    case = CASES[name]
    got = string_distance_matrix(case.params["L"], case.params["S"], case.params["W"])
    assert torch.equal(got.double(), case.outputs["position_matrix_paper"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("output", "bug"), [("out_dense_paper", False), ("out_author_flash", True)])
def test_golden_output(name, output, bug):
    case = CASES[name]
    p = rw.Attention(*(case.inputs[n] for n in "qkv"))
    # The authors' merge was run in float32; the test of its formula below is exact.
    close(attend(of_case(case, bug_compatible=bug), p), case.outputs[output], SINGLE if bug else DOUBLE)
    differ(case.outputs["out_dense_paper"], case.outputs["out_author_flash"])


# ---- the formula -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv", [4, 2])
@pytest.mark.parametrize(("shift", "local"), [(3, 1), (4, 2), (5, 5), (7, 3), (1, 1)])
def test_logits_use_the_shifted_distances(shift, local, kv):
    p = problem(s=11, kv=kv, d=6)
    made = rw.STRINGShifted(6, shift, local)
    close(logits(made(p)), pair_loop(p, shift, local), where=triangle(11))


@pytest.mark.parametrize("length", [1, 2, 6, 7])
def test_short_sequences_are_rope(length):
    p = problem(s=length)
    close(attend(rw.STRINGShifted(8, 7, 2), p), attend(rw.RoPE(8, pairing="half"), p), 1e-14)
    close(attend(rw.STRINGShifted(8, 7, 2), p, "sdpa"), attend(rw.RoPE(8, pairing="half"), p))


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_local_as_large_as_the_shift_is_rope(pairing):
    p = problem(s=30)
    close(attend(rw.STRINGShifted(8, 5, 5, pairing=pairing), p), attend(rw.RoPE(8, pairing=pairing), p))


def test_shift_of_zero_is_off():
    p = problem(s=30)
    assert torch.equal(attend(rw.STRINGShifted(8, 0), p), attend(rw.RoPE(8, pairing="half"), p))


@pytest.mark.parametrize(("shift", "local"), [(4, 5), (4, 0), (4, -1), (-3, 1)])
def test_what_cannot_be(shift, local):
    with pytest.raises(rw.ConfigError, match="local"):
        rw.STRINGShifted(8, shift, local)
    with pytest.raises(rw.ConfigError, match="local"):
        string_distance_matrix(9, shift, local)


@pytest.mark.parametrize(("length", "shift", "local"), [(12, 4, 1), (31, 10, 3), (9, 8, 8), (30, 7, 7)])
def test_set_of_distances(length, shift, local):
    got = string_distance_matrix(length, shift, local)
    used = set(got[triangle(length)].tolist())
    assert used == set(range(shift)) | set(range(local, length - shift + local))
    assert max(used) < length
    assert torch.equal(got, distances(length, shift, local))


# ---- two branches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_branches_merge_to_the_dense_form(dtype):
    """o = o1 σ(l1 − l2) + o2 σ(l2 − l1), each branch an attention of its own."""
    p, shift, local = problem(s=23, kv=2), 6, 2
    p = rw.Attention(*(t.to(dtype) for t in (p.q, p.k, p.v)))
    i = torch.arange(23)
    rope, far = rw.RoPE(8, pairing="half"), (i[:, None] - i) >= shift
    near_out, near = rw.attend(rope(p.replace(mask=~far)), backend="dense", return_lse=True)
    shifted = rw.Positions(q=i + local - shift, k=i, order=i)
    far_out, lse = rw.attend(rope(p.replace(positions=shifted, mask=far)), backend="dense", return_lse=True)
    share = torch.where(lse.isinf(), 0.0, (lse - near).sigmoid())[..., None]
    merged = near_out * (1 - share) + far_out * share
    made = rw.STRINGShifted(8, shift, local)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    close(attend(made, p), merged, tolerance)
    close(attend(made, p, "sdpa"), merged, tolerance)


@pytest.mark.parametrize("shape", [{"s": 40}, {"s": 40, "kv": 1}, {"s": 7}])
def test_sdpa_is_the_dense_form(shape):
    p, made = problem(**shape), rw.STRINGShifted(8, 6, 2)
    close(attend(made, p, "sdpa"), attend(made, p))
    single = rw.Attention(*(t.float() for t in (p.q, p.k, p.v)))
    close(attend(made, single, "sdpa"), attend(made, p), 2e-6)


def test_rows_sum_to_one():
    p, made = problem(s=15), rw.STRINGShifted(8, 6, 2)
    _, weights = rw.attend(made(p), return_weights=True)
    close(weights.sum(-1), torch.ones(2, 4, 15, dtype=torch.float64), 1e-13)
    want = pair_loop(p, 6, 2).masked_fill(~triangle(15), -torch.inf).softmax(-1)
    close(weights, want)
    _, twice = rw.attend(rw.STRINGShifted(8, 6, 2, bug_compatible=True)(p), return_weights=True)
    differ(weights, twice)  # the key at distance S counts twice there


def test_author_form_counts_the_key_at_the_shift_twice():
    p, shift, local = problem(s=9), 4, 2
    s = pair_loop(p, shift, local)
    near = pair_loop(p, 100, 100)
    r = torch.arange(9)[:, None] - torch.arange(9)
    s = torch.where(r == shift, torch.logaddexp(s, near), s).masked_fill(r < 0, -torch.inf)
    close(attend(rw.STRINGShifted(8, shift, local, bug_compatible=True), p), s.softmax(-1) @ p.v)


# ---- caches, shifts, padding -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(), (3,), (9, 5), (1, 12)])
@pytest.mark.parametrize("kv", [4, 2])
def test_decoding_is_the_full_pass(sizes, kv):
    p, made = problem(s=15, kv=kv), rw.STRINGShifted(8, 5, 2)
    close(decoded(made, p, *sizes), attend(made, p))


def test_the_cache_holds_the_keys_of_rope():
    p = problem(s=9)
    stored = []
    for made in (rw.STRINGShifted(8, 5, 2), rw.RoPE(8, pairing="half")):
        cache = rw.KVCache(made)
        cache.extend(p)
        (kept,) = cache[0].stored
        assert not kept.features
        stored.append(kept.k)
    assert torch.equal(*stored)


def test_author_form_refuses_a_cache():
    with pytest.raises(CannotCache, match="prefill"):
        rw.KVCache(rw.STRINGShifted(8, 5, 2, bug_compatible=True))
    with pytest.raises(CannotCache):
        rw.KVCache(rw.Sequential(rw.STRINGShifted(8, 5, 2, bug_compatible=True)))


@pytest.mark.parametrize("offset", [1, 500, 100_000])
def test_scores_are_translation_invariant(offset):
    p, made = problem(s=15), rw.STRINGShifted(8, 5, 2)
    moved = p.replace(positions=rw.Positions.arange(15, offset=offset))
    close(logits(made(moved)), logits(made(p)), 1e-9, where=triangle(15))


def test_left_padding_and_packing():
    p, made = problem(s=15), rw.STRINGShifted(8, 4, 2)
    valid = torch.ones(2, 15, dtype=torch.bool)
    valid[1, :5] = False
    got = attend(made, p.replace(positions=rw.Positions.arange(15, valid=valid)))
    alone = rw.Attention(*(t[1:, :, 5:] for t in (p.q, p.k, p.v)))
    close(got[1:, :, 5:], attend(made, alone))
    packed = p.replace(positions=rw.Positions.arange(15, document_ids=torch.tensor([0] * 5 + [1] * 10)))
    tail = rw.Attention(*(t[:, :, 5:] for t in (p.q, p.k, p.v)))
    close(attend(made, packed)[:, :, 5:], attend(made, tail))


def test_distances_are_of_position_ids():
    p, made = problem(s=6), rw.STRINGShifted(8, 4, 2)
    at = torch.tensor([0, 3, 4, 7, 20, 23])
    r = at[:, None] - at
    table = torch.where(r < 4, r, r - 2)
    q = half(p.q[:, :, :, None].expand(-1, -1, 6, 6, -1), table)
    want = torch.einsum("bhijd,bhjd->bhij", q, p.k) * 8**-0.5
    close(logits(made(p.replace(positions=rw.Positions(at)))), want, where=triangle(6))


def test_grouped_heads_equal_repeated_ones():
    p, made = problem(h=6, kv=2, s=15), rw.STRINGShifted(8, 4, 2)
    close(attend(made, p), attend(made, expanded(p)))


# ---- settings --------------------------------------------------------------------------------------------------------


def test_published_setting():
    made = rw.STRINGShifted.for_context(131_072, 128)
    assert (made.shift, made.local, made.head_dim, made.pairing) == (43_690, 128, 128, "half")
    assert rw.STRINGShifted.for_context(4096, local=256).local == 256


def test_attention_factor_sharpens_both_branches():
    p, factor = problem(s=15), 0.1 * math.log(2) + 1
    made = rw.STRINGShifted(8, 5, 2, attention_factor=factor)
    close(logits(made(p)), logits(rw.STRINGShifted(8, 5, 2)(p)) * factor**2, where=triangle(15))
    close(logits(made(p)), pair_loop(p, 5, 2, factor), where=triangle(15))
    close(decoded(made, p, 4), attend(made, p))


def test_other_frequencies():
    p, spectrum = problem(s=15), rw.Spectrum((0.7, 0.3, 0.05, 0.0), attention_factor=1.1)
    made = rw.STRINGShifted(8, 5, 5, spectrum=spectrum)
    close(attend(made, p), attend(rw.RoPE(8, pairing="half", spectrum=spectrum), p))
    differ(attend(rw.STRINGShifted(8, 5, 1, spectrum=spectrum), p), attend(made, p))
