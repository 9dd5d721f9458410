"""AnchorAttention and what bfloat16 does to RoPE (arXiv 2411.13476)."""

from __future__ import annotations

import pytest
import torch
from reference import DOUBLE, attend, close, differ, golden, problem, random, triangle
from torch import nn

import ropewalk as rw
from ropewalk.analysis.bf16_shift import bf16_shift_discrepancy, offset_loss_difference
from ropewalk.backends import BACKENDS
from ropewalk.backends.request import Request
from ropewalk.bias.anchor_attention import AnchorAttention
from ropewalk.coordinates.packed import document_mask, packed_positions
from ropewalk.core.errors import NotCausal
from ropewalk.lab.tuning.anchor import interleave_chunks, pack_documents

CASES = golden("064")
LENGTHS = [3, 2, 4]


def made(d=8, base=10_000.0):
    return rw.Sequential(rw.RoPE(d, base, pairing="half"), AnchorAttention())


# ---- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(CASES))
def test_golden(name):
    case = CASES[name]
    lengths = case.params["doc_lengths_without_anchor"]
    positions = packed_positions(lengths)
    assert torch.equal(positions.query.column("document")[0], case.inputs["document_id"])
    assert torch.equal(positions.query.position[0], case.inputs["position_ids"])
    for mode, output in (("anchor", "anchor_mask"), ("intra", "intra_doc_mask")):
        assert torch.equal(document_mask(case.inputs["document_id"], mode).mask[0, 0].long(), case.outputs[output])
    p = rw.Attention(*(case.inputs[n] for n in "qkv"), positions)
    encoding = made(case.params["head_dim"], case.params["rope_base"])
    for backend in ("dense", "sdpa"):
        close(attend(encoding, p, backend), case.outputs["out_anchor"], DOUBLE)
    copies = packed_positions(lengths, "anchor_copies", copy_ids="packed")
    assert torch.equal(copies.query.position[0], case.outputs["varlen_rotary_ids"])


# ---- who sees whom ---------------------------------------------------------------------------------------------------


def test_masks_nest():
    documents = packed_positions(LENGTHS).query.column("document")
    full, intra, anchor = (document_mask(documents, mode).mask[0, 0] for mode in ("full", "intra", "anchor"))
    assert torch.equal(full, triangle(10))
    assert bool((intra <= anchor).all()) and bool((anchor <= full).all())
    inside = torch.tensor([0, *range(1, 4), *range(1, 3), *range(1, 5)])
    assert torch.equal(anchor.sum(-1), inside + 1)
    assert document_mask(documents, "anchor").pairs == int(anchor.sum())


def test_one_document_is_causal_attention():
    p = problem(s=10, positions=packed_positions([9]))
    close(attend(made(), p), attend(rw.RoPE(8, pairing="half"), problem(s=10)))
    assert torch.equal(attend(made(), problem(s=10)), attend(rw.RoPE(8, pairing="half"), problem(s=10)))


def test_shared_anchor_is_a_copy_of_it_for_each_document():
    p = problem(s=10, kv=2, positions=packed_positions(LENGTHS))
    index = torch.tensor([0, 1, 2, 3, 0, 4, 5, 0, 6, 7, 8, 9])
    spread = [t[:, :, index] for t in (p.q, p.k, p.v)]
    copies = rw.Attention(*spread, packed_positions(LENGTHS, "anchor_copies"))
    rope = rw.RoPE(8, pairing="half")
    close(attend(made(), p)[:, :, index], attend(rope, copies))
    other = rw.Attention(*spread, packed_positions(LENGTHS, "anchor_copies", copy_ids="packed"))
    differ(attend(rope, other), attend(rope, copies))


def test_documents_do_not_move_when_their_anchor_is_hidden():
    p = problem(s=9, positions=packed_positions(LENGTHS, "intra"))
    reset = p.replace(positions=packed_positions(LENGTHS, "intra_reset"))
    rope = rw.RoPE(8, pairing="half")
    close(attend(rope, p), attend(rope, reset))
    assert packed_positions(LENGTHS, "full").query.columns.keys() == {"position"}


def test_the_three_ways_agree():
    p = problem(s=10, positions=packed_positions(LENGTHS))
    mask = document_mask(p.positions.query.column("document"))
    by_mask = rw.RoPE(8, pairing="half")(problem(s=10, mask=mask.mask))
    close(attend(made(), p), rw.attend(by_mask, "dense"))
    index = torch.arange(10)
    mod = mask.mask_mod(torch.tensor(0), torch.tensor(0), index[:, None], index)
    assert torch.equal(mod, mask.mask[0, 0])


def test_flex_takes_the_same_mask(monkeypatch):
    monkeypatch.setattr("ropewalk.backends.flex.CPU_HOLDS", True)  # nothing is computed here
    p = problem(s=10, positions=packed_positions(LENGTHS))
    p = rw.Attention(*(t.float() for t in (p.q, p.k, p.v)), p.positions)
    flex = next(b for b in BACKENDS if b.name == "flex")
    with torch.no_grad():
        assert flex.why_not(made()(p), Request()) is None


@pytest.mark.parametrize("documents", [True, False])
def test_a_window_keeps_the_anchor(documents):
    positions = packed_positions([9]) if documents else None
    p = problem(s=10, positions=positions, window=3)
    _, weights = rw.attend(made()(p), "dense", return_weights=True)
    r = torch.arange(10)[:, None] - torch.arange(10)
    assert torch.equal(weights[0, 0] > 0, triangle(10) & ((r < 3) | (torch.arange(10) == 0)))


def test_decoding_after_packing_needs_no_anchor():
    cache = rw.KVCache(made())
    p = problem(s=10, positions=packed_positions(LENGTHS))
    close(rw.attend(cache.extend(p), "dense"), attend(made(), p))
    new = cache.extend(problem(s=1, seed=5))
    _, weights = rw.attend(new, "dense", return_weights=True)
    assert (weights[0, 0, 0] > 0).tolist() == [True, *[False] * 5, *[True] * 5]


def test_what_cannot_be():
    with pytest.raises(NotCausal):
        made()(problem(causal=False))
    with pytest.raises(rw.ConfigError, match="Did you mean 'intra'"):
        document_mask(torch.zeros(3, dtype=torch.long), "intr")
    with pytest.raises(rw.ConfigError, match="mode"):
        packed_positions([3], "anchors")
    with pytest.raises(rw.ConfigError, match="length of document 1"):
        packed_positions([3, 0])
    with pytest.raises(rw.ConfigError, match="no documents"):
        packed_positions([])
    with pytest.raises(rw.ShapeError, match="documents"):
        document_mask(torch.zeros(3))


# ---- packing ---------------------------------------------------------------------------------------------------------


def test_rows():
    documents = [[1, 10, 11, 12], [20, 21], [1, 30, 31, 32, 33, 34], [1, 40, 41, 42]]
    rows = pack_documents(documents, 8, anchor=1)
    assert [r.tokens.tolist() for r in rows] == [[1, 10, 11, 12, 30, 31, 32, 33], [1, 40, 41, 42]]
    assert rows[0].targets.tolist() == [10, 11, 12, 30, 31, 32, 33, -100]
    assert rows[0].positions.query.column("document").tolist() == [[0, 1, 1, 1, 2, 2, 2, 2]]
    copies = pack_documents(documents, 9, anchor=1, mode="anchor_copies")
    assert copies[0].tokens.tolist() == [1, 10, 11, 12, 1, 30, 31, 32, 33]
    assert copies[0].targets.tolist() == [10, 11, 12, -100, 30, 31, 32, 33, -100]
    assert copies[0].positions.query.position.tolist() == [[0, 1, 2, 3, 0, 4, 5, 6, 7]]
    plain = pack_documents(documents, 8, anchor=1, mode="intra_reset")
    assert plain[0].tokens.tolist() == [1, 10, 11, 12, 1, 30, 31, 32]
    assert all(len(r.tokens) <= 8 for r in plain)


@pytest.mark.parametrize("mode", ["anchor", "anchor_copies", "intra", "full"])
def test_no_row_is_too_long_and_no_token_lost(mode):
    draw = torch.Generator().manual_seed(0)
    documents = [torch.randint(5, 99, (int(n),), generator=draw) for n in torch.randint(1, 40, (30,), generator=draw)]
    rows = pack_documents(documents, 16, anchor=1, mode=mode)
    assert max(len(r.tokens) for r in rows) == 16
    kept = sum(int((r.tokens > 1).sum()) for r in rows)
    total = sum(len(d) for d in documents)
    assert total - 2 * (len(documents) + len(rows)) <= kept <= total  # pieces of one or two tokens are left out


def test_chunks_keep_the_order_within_documents():
    documents = [torch.arange(100, 112), torch.arange(200, 207), torch.arange(300, 301)]
    mixed = interleave_chunks(documents, 4, torch.Generator().manual_seed(1))
    assert len(mixed) == 4 + 4 + 1
    for n, document in enumerate(documents):
        assert torch.equal(torch.cat([ids for m, ids in mixed if m == n]), document)
    assert [n for n, _ in mixed] != sorted(n for n, _ in mixed)


def test_nothing_to_pack():
    with pytest.raises(rw.ConfigError, match="3 tokens"):
        pack_documents([[1, 2]], 8, anchor=1)
    with pytest.raises(rw.ConfigError, match="at least"):
        pack_documents([[1, 2, 3]], 3, anchor=1)


# ---- bfloat16 --------------------------------------------------------------------------------------------------------


def discrepancy(n, **options):
    q, k = (random(8, n, 64, seed=s) for s in (n, n + 1))
    return bf16_shift_discrepancy(q, k, **options)


@pytest.mark.parametrize(("n", "full", "result"), [(128, 0.48, 0.33), (512, 2.1, 1.3), (1024, 4.2, 2.7)])
def test_what_bfloat16_does(n, full, result):
    for rounding, want in (("full", full), ("result", result)):
        got = discrepancy(n, rounding=rounding)
        assert abs(float(got.total.mean()) / want - 1) < 0.15
    assert float(discrepancy(n, dtype=torch.float32).total.max()) < 0.02
    assert 2.5 < float(discrepancy(n).first_ratio.mean()) < 8


def test_shapes_and_pairings():
    q, k = random(2, 3, 20, 16), random(2, 3, 20, 16, seed=1)
    got = bf16_shift_discrepancy(q, k, 7, spectrum=rw.geometric(8), pairing="interleaved", start=100)
    assert got.total.shape == (2, 3) and got.columns.shape == (2, 3, 20)
    close(got.columns.sum(-1), got.total)
    assert float(bf16_shift_discrepancy(q, k, 0).total.max()) == 0
    with pytest.raises(rw.ShapeError):
        bf16_shift_discrepancy(q, k[..., :8])
    with pytest.raises(rw.ConfigError, match="rounding"):
        bf16_shift_discrepancy(q, k, rounding="all")


class Tiny(nn.Module):
    """One layer of attention in some precision."""

    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(50, 32)
        self.dtype = dtype

    def forward(self, ids, at):
        x = self.embedding(ids)
        heads = x.unflatten(-1, (2, 16)).transpose(1, 2)
        z = at[0, :, None].double() * rw.geometric(16).tensor()
        cos, sin = (t.to(self.dtype) for t in (z.cos(), z.sin()))
        a, b = heads.to(self.dtype).chunk(2, -1)
        turned = torch.cat([a * cos - b * sin, a * sin + b * cos], -1).float()
        out = rw.attend(rw.Attention(turned, turned, heads).located())
        return (x + out.transpose(1, 2).flatten(2)) @ self.embedding.weight.T


def test_losses_at_two_offsets():
    ids = torch.randint(0, 50, (2, 60), generator=torch.Generator().manual_seed(0))
    single, half = (offset_loss_difference(Tiny(dtype), ids, 64) for dtype in (torch.float32, torch.bfloat16))
    assert abs(single[0] - single[1]) < 1e-4 < abs(half[0] - half[1])
    with pytest.raises(rw.ShapeError):
        offset_loss_difference(Tiny(torch.float32), ids[:, :1], 3)
