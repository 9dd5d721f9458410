"""Heads of a layer dealt out to several processes: parameters, slopes and tables that are per head follow them.

An encoding exchanges nothing for that, so most of it is seen in one process.
"""

from __future__ import annotations

import pytest
import torch

import ropewalk as rw
from ropewalk import catalog, testing
from ropewalk.core.errors import CannotSplit, ShapeError
from ropewalk.testing.subjects import HEADS, subject

RECORDS = catalog.catalog()
LENGTH = 9
TOLERANCE = 1e-10

# query heads (start, stop) and key heads (start, stop) of each process
DEALS = {
    "groups": (2, [((0, 2), (0, 1)), ((2, 3), (1, 2)), ((3, 4), (1, 2))]),  # a whole one, and one that is cut
    "a key head each": (4, [((0, 3), (0, 3)), ((3, 4), (3, 4))]),
}


def outputs(encoding, p, weights):
    """Output of a problem, and the gradients of the parameters for these weights of its numbers."""
    out = rw.attend(encoding(p), "dense")
    learned = list(encoding.parameters())
    if not out.requires_grad:  # nothing is learned, or it is added to the embeddings
        return out.detach(), [torch.zeros_like(t) for t in learned]
    grads = torch.autograd.grad((out * weights(out)).sum(), learned, allow_unused=True, materialize_grads=True)
    return out.detach(), list(grads)


def part_of(p, queries, keys, kv):
    """The problem of a process that holds some heads, as its layer would state it."""
    q, k, v = p.q[:, slice(*queries)], p.k[:, slice(*keys)], p.v[:, slice(*keys)]
    return rw.Attention(q, k, v, p.positions, p.causal, x=p.x, heads=(queries[0], HEADS), kv_total=kv)


def agree_with_whole(encoding, p, kv, deal):
    whole = torch.randn(
        *(p.q.shape[0], encoding.output_heads(HEADS), *p.q.shape[2:]),
        generator=torch.Generator().manual_seed(0),
        dtype=torch.float64,
    )
    want, learned = outputs(encoding, p, lambda out: whole)
    times = want.shape[1] // HEADS
    total = [torch.zeros_like(t) for t in learned]
    for queries, keys in deal:
        own = slice(times * queries[0], times * queries[1])
        got, grads = outputs(encoding, part_of(p, queries, keys, kv), lambda out, own=own: whole[:, own])
        testing.compare.agree(got, want[:, own], TOLERANCE, f"query heads {queries}", "the heads of the whole layer")
        total = [t + g for t, g in zip(total, grads, strict=True)]
    for i, (got, want_of) in enumerate(zip(total, learned, strict=True)):
        size = max(1.0, float(want_of.abs().max()))
        testing.compare.agree(
            got / size, want_of / size, TOLERANCE, f"parameter {i}", "the gradient of the whole layer"
        )


@pytest.mark.parametrize("deal", DEALS)
@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.slug)
def test_heads_of_every_entry(record, deal):
    kv, parts = DEALS[deal]
    made = subject(record)
    encoding = made.encoding(num_kv_heads=kv)
    agree_with_whole(encoding, made.problem(encoding, LENGTH, made.causals[0], kv_heads=kv), kv, parts)


def test_combinators():
    made = subject(catalog.record("rope"))
    for text in ("rope + alibi(num_heads=4)", "partial(rope, dims=8) + t5(num_heads=4)", "rope_pp + fox"):
        encoding = rw.build(text, head_dim=16, num_heads=4, num_kv_heads=2, hidden_size=24).double()
        agree_with_whole(encoding, made.problem(encoding, LENGTH), *DEALS["groups"])


def test_an_encoding_made_for_the_heads_of_one_process_is_told_so():
    made = subject(catalog.record("alibi"))
    p = part_of(made.problem(rw.NoPE(), LENGTH), (0, 2), (0, 1), 2)
    with pytest.raises(ShapeError, match="made for 2 heads and the problem has 4"):
        rw.ALiBi(2)(p)


def test_groups_of_encodings_are_those_of_a_whole_layer():
    made = subject(catalog.record("rope"))
    encoding = rw.PerHead([rw.RoPE(16), rw.NoPE()])
    p = part_of(made.problem(encoding, LENGTH), (0, 2), (0, 1), 2)
    with pytest.raises(CannotSplit, match="4 heads of a layer, and this problem holds 2"):
        encoding(p)
