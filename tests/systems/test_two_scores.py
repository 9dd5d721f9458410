"""ReRoPE and SelfExtend: a window as trained, and other distances beyond (bojone/rerope; arXiv 2401.01325)."""

from __future__ import annotations

import pytest
import torch
from reference import attend, close, decoded, differ, logits, problem, triangle

import ropewalk as rw
from ropewalk.core.errors import CannotCompose, NotCausal

N = 23


def half(x, angle):
    z = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones(()).double(), angle)
    return torch.cat([z.real, z.imag], -1)


def pair_loop(p, table, base=10_000.0):
    """Logits with each query turned to each key's distance."""
    n, d = p.q.shape[2], p.q.shape[3]
    w = torch.tensor([base ** (-2 * i / d) for i in range(d // 2)], dtype=torch.float64)
    q = half(p.q[:, :, :, None].expand(-1, -1, n, n, -1), table.double()[..., None] * w)
    k = p.k.repeat_interleave(p.num_heads // p.num_kv_heads, 1)
    return torch.einsum("bhijd,bhjd->bhij", q, k) * p.logit_scale


def distances(n=N):
    return (torch.arange(n)[:, None] - torch.arange(n)).double()


def rerope_table(window, leak, n=N):
    r = distances(n)
    far = torch.full_like(r, window) if leak is None else window + (r - window) / leak
    return torch.where(r < window, r, far)


def self_extend_table(window, group, n=N):
    r, i = distances(n), torch.arange(n)
    far = (i[:, None] // group - i // group + window - window // group).double()
    return torch.where(r < window, r, far)


MADE = [
    (rw.ReRoPE(8, 5), rerope_table(5, None)),
    (rw.ReRoPE(8, 5, leak=4.0), rerope_table(5, 4.0)),
    (rw.ReRoPE(8, 1, leak=2.5), rerope_table(1, 2.5)),
    (rw.SelfExtend(8, 3, 7), self_extend_table(7, 3)),
    (rw.SelfExtend(8, 4, 4), self_extend_table(4, 4)),
    (rw.SelfExtend(8, 5, 2), self_extend_table(2, 5)),
]


@pytest.mark.parametrize("kv", [4, 2])
@pytest.mark.parametrize(("made", "table"), MADE, ids=str)
def test_distances_are_those_of_the_formula(made, table, kv):
    p = problem(s=N, kv=kv)
    close(logits(made(p)), pair_loop(p, table), 1e-12, where=triangle(N))
    differ(logits(made(p)), logits(rw.RoPE(8, pairing="half")(p)))
    for backend in ("dense", "sdpa"):
        want = pair_loop(p, table).masked_fill(~triangle(N), -torch.inf).softmax(-1) @ p.v.repeat_interleave(4 // kv, 1)
        close(attend(made, p, backend), want, 1e-12)


@pytest.mark.parametrize(("made", "table"), MADE, ids=str)
@pytest.mark.parametrize("sizes", [(), (4,), (9, 6), (1, 15)])
def test_decoding_is_the_full_pass(made, table, sizes):
    p = problem(s=N, kv=2)
    close(decoded(made, p, *sizes), attend(made, p))


@pytest.mark.parametrize(
    "made", [rw.ReRoPE(8, 40), rw.ReRoPE(8, 3, leak=1.0), rw.SelfExtend(8, 1, 3), rw.SelfExtend(8, 4, N)]
)
def test_what_reduces_to_rope(made):
    p = problem(s=N)
    close(attend(made, p), attend(rw.RoPE(8, pairing="half"), p), 1e-13)


@pytest.mark.parametrize("made", [rw.ReRoPE(8, 6), rw.ReRoPE(8, 6, leak=3.0), rw.SelfExtend(8, 3, 6)])
def test_up_to_the_window_it_is_rope_bit_by_bit(made):
    p = problem(s=6)
    assert torch.equal(attend(made, p), attend(rw.RoPE(8, pairing="half"), p))


def test_rerope_needs_no_larger_distance_than_its_window():
    assert rerope_table(5, None)[triangle(N)].max() == 5
    p = problem(s=N)
    far = logits(rw.ReRoPE(8, 5)(p))
    swapped = p.replace(positions=rw.Positions(torch.cat([torch.arange(10), 1000 + torch.arange(10, N)])))
    moved = logits(rw.ReRoPE(8, 5)(swapped))
    close(moved[..., 10:, :10], pair_loop(p, torch.full((N, N), 5.0))[..., 10:, :10], 1e-9)
    close(moved[..., 15:, :5], far[..., 15:, :5], 1e-9)


def test_reach_of_self_extend():
    made = rw.SelfExtend(8)
    assert (made.group, made.window, rw.ReRoPE(8).window, rw.HiRoPE(8).window) == (8, 1024, 512, 512)
    assert rw.ReRoPE(8, train_length=256).window == 32 and rw.SelfExtend(8, train_length=3).window == 1
    for length in (200, 256, 257, 448, 449, 1000):
        fitted = rw.SelfExtend(8, train_length=256, length=length)
        assert fitted.reach(256) >= length and (
            fitted.group == 1 or rw.SelfExtend(8, fitted.group - 1, 64).reach(256) < length
        )
    assert made.reach(4096) == (4096 - 1024) * 8 + 1024 == 25_600
    table = self_extend_table(8, 4, (32 - 8) * 4 + 8)
    assert table[triangle(len(table))].max() < 32
    assert rw.SelfExtend(8, 4, 8).reach(5) == 5


def test_cached_keys_move():
    """Evicting tokens and closing the gap gives what the kept tokens alone would give."""
    for made in (rw.ReRoPE(8, 4, leak=2.0), rw.SelfExtend(8, 3, 4), rw.ReRoPE(8, 4)):
        p = problem(s=12, kv=2)
        cache = rw.KVCache(made)
        cache.extend(p)
        keep = torch.tensor([0, 1, 5, 6, 7, 8, 9, 10, 11])
        cache.edit(keep, rw.Positions.arange(len(keep)))
        alone = rw.KVCache(made)
        alone.extend(rw.Attention(*(t[:, :, keep] for t in (p.q, p.k, p.v))))
        new = problem(s=1, kv=2, seed=9)
        close(rw.attend(cache.extend(new), "dense"), rw.attend(alone.extend(new), "dense"), 1e-12)


def test_with_a_temperature():
    p, made = problem(s=N), rw.Sequential(rw.ReRoPE(8, 4), rw.LogLengthScale(6))
    scale = (torch.arange(N) + 1.0).log().div(torch.tensor(6.0).log()).clamp(min=1)
    close(logits(made(p)), pair_loop(p, rerope_table(4, None)) * scale[:, None], 1e-6, where=triangle(N))
    close(decoded(made, p, 5), attend(made, p))


def test_what_cannot_be():
    with pytest.raises(rw.ConfigError, match="window"):
        rw.ReRoPE(8, 0)
    with pytest.raises(rw.ConfigError, match="leak"):
        rw.ReRoPE(8, 4, leak=0.5)
    with pytest.raises(rw.ConfigError, match="leaves nothing"):
        rw.SelfExtend(8, window=64, train_length=64, length=100)
    with pytest.raises(rw.ConfigError, match="group"):
        rw.SelfExtend(8, 0)
    with pytest.raises(NotCausal, match="causal"):
        rw.ReRoPE(8, 4)(problem(causal=False))
    with pytest.raises(CannotCompose, match="two scores"):
        rw.Sequential(rw.ReRoPE(8, 4), rw.SelfExtend(8, 2, 4))(problem())
