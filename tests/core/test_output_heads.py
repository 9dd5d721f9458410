"""Encodings that make several heads of each: everything that is per query head follows."""

from __future__ import annotations

import pytest
import torch

import ropewalk as rw
from ropewalk.core.attention import Column, Pointwise


class Twice(rw.Encoding):
    """Each query, and its negative."""

    def output_heads(self, num_heads):
        return 2 * num_heads

    def rewrite(self, p):
        return p.multiply_queries(2, lambda q: torch.stack([q, -q], 2).flatten(1, 2))


class Offset(rw.Encoding):
    """A number for each query head, on every other key."""

    def rewrite(self, p):
        p = p.with_features(q={"size": p.head_slice(torch.arange(1.0, 1.0 + p.heads[1]))[None, :, None, None].double()})
        return p.add(Pointwise(lambda a, j: a * (j % 2), (p.own("size"),), (Column("position"),)))


def test_what_is_per_head_is_repeated(problem, rand, agree):
    mask, sinks = rand(2, 4, 7, 7) > -0.5, rand(4)
    p = problem(mask=mask, sinks=sinks)
    for backend in ("dense", "auto"):
        got = rw.attend(rw.Sequential(Offset(), Twice())(p), backend)
        agree(got[:, 0::2], rw.attend(Offset()(p), "dense"))
        agree(got[:, 1::2], rw.attend(Offset()(p.replace(q=-p.q)), "dense"))
    assert Twice()(p).heads == (0, 8)
    assert Twice()(p).kv_total == p.kv_total


def test_queries_of_branches_too(problem, agree):
    string, p = rw.STRINGShifted(8, 3, 1), problem()
    got = rw.attend(rw.Sequential(string, Twice())(p), "dense")
    agree(got[:, 0::2], rw.attend(string(p), "dense"))
    agree(got[:, 1::2], rw.attend(string(p.replace(q=-p.q)), "dense"))


@pytest.mark.parametrize(
    ("make", "heads"),
    [
        (Twice, 8),
        (lambda: rw.Sequential(rw.RoPE(8), Twice(), Twice()), 16),
        (lambda: rw.Partial(Twice(), 6), 8),
        (lambda: rw.PerHead([Twice(), rw.RoPE(8)], [3, 1]), 7),
        (lambda: rw.RoPE(8), 4),
    ],
)
def test_how_many_there_are(make, heads, problem):
    assert make().output_heads(4) == heads
    assert rw.attend(make()(problem()), "dense").shape[1] == heads


def test_heads_dealt_out_are_counted_anew(problem, agree):
    """What comes after a child that makes heads numbers them all, in order."""
    p = problem()
    got = rw.attend(rw.Sequential(rw.PerHead([Twice(), rw.NoPE()], [1, 3]), Offset())(p), "dense")
    wide = p.replace(q=torch.cat([p.q[:, :1], -p.q[:, :1], p.q[:, 1:]], 1))
    kv = torch.tensor([0, 0, 0, 1, 1])
    flat = rw.Attention(wide.q, p.k[:, kv], p.v[:, kv])
    agree(got, rw.attend(Offset()(flat), "dense"))


def test_a_mask_a_head_in_a_cache(problem, part, rand, agree):
    mask, p = rand(2, 4, 7, 7) > -0.5, problem()
    for encoding in (Twice(), rw.PerHead([Twice(), rw.RoPE(8)]), rw.PerHead([rw.NoPE(), rw.NoPE()], [3, 1])):
        want = rw.attend(encoding(p.replace(mask=mask)), "dense")
        cache, out = rw.KVCache(encoding), []
        for start, stop in ((0, 3), (3, 4), (4, 7)):
            new = part(p, start, stop).replace(mask=mask[:, :, start:stop, :stop])
            out.append(rw.attend(cache.extend(new), "dense"))
        agree(torch.cat(out, 2), want)


def test_the_channels_left_over_go_to_each(problem, agree):
    p = problem()
    q = rw.Partial(Twice(), 6)(p).q
    agree(q[:, 0::2], p.q)
    agree(q[:, 1::2], torch.cat([-p.q[..., :6], p.q[..., 6:]], -1))
