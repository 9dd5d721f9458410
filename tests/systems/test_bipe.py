"""BiPE (arXiv 2401.16421), segments and single axes of positions."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, added, attend, close, differ, golden, logits, problem, random, triangle

import ropewalk as rw
from ropewalk.coordinates.segments import FixedLength, newline_ids, segment_positions
from ropewalk.core.errors import CannotCompose, CannotEdit
from ropewalk.embedding.bipe import IntraSegment, LogScale, bipe_alibi, bipe_rope

CASES = golden("056")
WIDTH = 6


def pairs(positions):
    """(n, l) of positions, as two tensors."""
    return positions.query.position.unbind(-1)


def by_loop(ids, separators, document=None, valid=None):
    """Segments and places by plain counting."""
    out = []
    for row, line in enumerate(ids.tolist()):
        n = l = 0
        seen = None
        made = []
        for i, token in enumerate(line):
            if valid is not None and not valid[row, i]:
                made.append(None)
                continue
            if document is not None and seen is not None and int(document[row, i]) != seen:
                n = l = 0
            seen = None if document is None else int(document[row, i])
            made.append((n, l))
            n, l = (n + 1, 0) if token in separators else (n, l + 1)
        out.append(made)
    return out


def text(b=3, s=23, seed=0):
    return torch.randint(0, 5, (b, s), generator=torch.Generator().manual_seed(seed))


# ---- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(CASES))
def test_golden_positions(name):
    case = CASES[name]
    ids, separators = case.inputs["token_ids"], case.params["separator_ids"]
    positions, _ = segment_positions(ids, separators, case.params["train_scale"])
    segment, intra = pairs(positions)
    assert segment.tolist() == case.outputs["segment"].tolist()
    assert intra.tolist() == case.outputs["intra_pos"].tolist()


@pytest.mark.parametrize("name", list(CASES))
def test_golden_rope(name):
    case = CASES[name]
    positions, _ = segment_positions(case.inputs["token_ids"], case.params["separator_ids"])
    q, k = case.inputs["q"], case.inputs["k"]
    e = bipe_rope(WIDTH, base=case.params["base"], max_intra=case.params["train_scale"])
    got_q, got_k = e.rotate(q, k, positions)
    close(got_q, case.outputs["q_rot"], DOUBLE)
    close(got_k, case.outputs["k_rot"], DOUBLE)
    p = rw.Attention(q, k, k, positions, causal=False, scale=1.0)
    close(logits(e(p)), case.outputs["scores_unscaled"], DOUBLE)


@pytest.mark.parametrize("name", list(CASES))
def test_golden_alibi(name):
    case = CASES[name]
    positions, _ = segment_positions(case.inputs["token_ids"], case.params["separator_ids"])
    heads = case.params["heads"]
    e = bipe_alibi(WIDTH, heads)
    (alibi,) = (m for m in e.modules() if isinstance(m, rw.ALiBi))
    close(alibi.slope, case.outputs["alibi_slopes_x96"], DOUBLE)
    q, k = case.inputs["q"], case.inputs["k"]
    p = rw.Attention(q, k, k, positions)
    n = q.shape[2]
    close(added(e, p), case.outputs["alibi_relative_bias"], DOUBLE)
    # The released form is one number a key: the same softmax.
    weights = (logits(p) + case.outputs["alibi_key_bias"]).masked_fill(~triangle(n), -torch.inf).softmax(-1)
    for backend in ("dense", "sdpa"):
        close(attend(e, p, backend), weights @ k)


@pytest.mark.parametrize("name", list(CASES))
def test_golden_places_are_clamped_on_reading(name):
    case = CASES[name]
    scale = case.params["train_scale"]
    positions, _ = segment_positions(case.inputs["token_ids"], case.params["separator_ids"])
    e = rw.BiPE(rw.NoPE(), WIDTH, max_intra=scale).double()
    x = random(*case.inputs["token_ids"].shape, WIDTH)
    (table,) = e.parameters()
    close(e.embed(x, positions), x + table[case.outputs["intra_pos"]])


# ---- segments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_counting(seed):
    ids, g = text(seed=seed), torch.Generator().manual_seed(seed)
    valid = torch.rand(ids.shape, generator=g) < 0.7
    document = (torch.rand(ids.shape, generator=g) < 0.15).long().cumsum(-1)
    for options in ({}, {"valid": valid}, {"document_ids": document}, {"valid": valid, "document_ids": document}):
        positions, _ = segment_positions(ids, {0, 3}, **options)
        want = by_loop(ids, {0, 3}, options.get("document_ids"), options.get("valid"))
        for got, line in zip(positions.query.position.tolist(), want, strict=True):
            assert all(w is None or tuple(g) == w for g, w in zip(got, line, strict=True))
        assert positions.query.position.min() >= 0


def test_ends_of_the_range():
    ids = text()
    segment, intra = pairs(segment_positions(ids, ())[0])
    assert not segment.any()
    assert intra.tolist() == torch.arange(23).expand(3, 23).tolist()
    segment, intra = pairs(segment_positions(ids, range(5))[0])
    assert segment.tolist() == torch.arange(23).expand(3, 23).tolist()
    assert not intra.any()


@pytest.mark.parametrize("separators", [{0}, torch.tensor([0, 3]), FixedLength(4)])
@pytest.mark.parametrize("packed", [False, True])
def test_pieces_are_the_whole(separators, packed):
    ids = text()
    document = torch.tensor([3, 9, 17])[:, None] <= torch.arange(23) if packed else None
    valid = torch.arange(23) >= torch.tensor([[0], [2], [5]])
    document = None if document is None else document.long()
    whole, end = segment_positions(ids, separators, document_ids=document, valid=valid)
    for sizes in ([23], [1] * 23, [9, 0, 1, 8, 5]):
        state, parts, start = None, [], 0
        for size in sizes:
            cut = slice(start, start + size)
            part, state = segment_positions(
                ids[:, cut],
                separators,
                state=state,
                document_ids=None if document is None else document[:, cut],
                valid=valid[:, cut],
            )
            parts.append(part.query.position)
            start += size
        assert torch.cat(parts, 1).tolist() == whole.query.position.tolist()
        assert [t.tolist() for t in state[:2]] == [t.tolist() for t in end[:2]]


def test_the_state_is_not_clamped():
    ids = torch.ones(1, 10, dtype=torch.long)
    positions, state = segment_positions(ids, {0}, 4)
    assert pairs(positions)[1].tolist() == [[0, 1, 2, 3, 3, 3, 3, 3, 3, 3]]
    assert state.intra.tolist() == [10]
    assert state.select(torch.tensor([0, 0])).intra.tolist() == [10, 10]


def test_segments_of_fixed_length():
    segment, intra = pairs(segment_positions(text(), FixedLength(4))[0])
    t = torch.arange(23).expand(3, 23)
    assert segment.tolist() == (t // 4).tolist()
    assert intra.tolist() == (t % 4).tolist()


def test_line_breaks():
    vocabulary = {"a": 0, "\n": 1, "Ċ": 2, "ĊĊ": 3, "<0x0A>": 4, "b\n": 5, "n": 6, "<0x0B>": 7}
    assert newline_ids(vocabulary) == {1, 2, 3, 4, 5}
    with pytest.raises(rw.ConfigError, match="line break"):
        newline_ids({"a": 0})


def test_one_row_needs_no_batch():
    positions, _ = segment_positions(torch.tensor([5, 6, 13, 7]), {13})
    assert positions.query.position.tolist() == [[[0, 0], [0, 1], [0, 2], [1, 0]]]


# ---- the encoding ----------------------------------------------------------------------------------------------------


def bipe(inter=None, max_intra=4, **options):
    torch.manual_seed(1)
    return rw.BiPE(
        rw.RoPE(8, pairing="half") if inter is None else inter, WIDTH, max_intra=max_intra, **options
    ).double()


def segmented(ids=None, separators=(0,), **options):
    ids = text(2, 12) if ids is None else ids
    positions, _ = segment_positions(ids, separators)
    return problem(s=ids.shape[1], positions=positions, **options)


def test_no_separators_leave_the_embedding_alone():
    p = segmented(separators=())
    for e in (bipe(), bipe_alibi(WIDTH, 4)):
        close(attend(e, p), attend(rw.NoPE(), p))
    x = random(2, 12, WIDTH)
    e = bipe(max_intra=16)
    close(e.embed(x, p.positions), x + next(e.parameters())[:12])


def test_only_separators_are_the_encoding_between_segments():
    p, plain = segmented(separators=range(5)), problem(s=12)
    close(attend(bipe(), p), attend(rw.RoPE(8, pairing="half"), plain))
    slopes = [96 * 2.0 ** (-2 * h) for h in (1, 2, 3, 4)]
    close(attend(bipe_alibi(WIDTH, 4), p), attend(rw.ALiBi(slopes=slopes), plain))
    x, e = random(2, 12, WIDTH), bipe()
    close(e.embed(x, p.positions), x + next(e.parameters())[0])


def test_tokens_of_a_segment_are_turned_alike():
    p = segmented()
    q = torch.ones(2, 4, 12, 8, dtype=torch.float64)
    turned, _ = bipe().rotate(q, q, p.positions)
    segment, _ = pairs(p.positions)
    for row in range(2):
        for i in range(12):
            for j in range(12):
                same = torch.equal(turned[row, :, i], turned[row, :, j])
                assert same == bool(segment[row, i] == segment[row, j])


@pytest.mark.parametrize("e", [bipe_rope(WIDTH, 8), bipe_alibi(WIDTH, 4)])
def test_only_differences_of_segments_count(e):
    p = segmented()
    later = p.positions.query.position + torch.tensor([1000, 0])
    close(logits(e(p.replace(positions=rw.Positions(later)))), logits(e(p)), 1e-10)


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12])
def test_slopes(heads):
    (alibi,) = (m for m in bipe_alibi(WIDTH, heads).modules() if isinstance(m, rw.ALiBi))
    assert alibi.slope.shape == (heads,)
    if heads == 8:
        close(alibi.slope, torch.tensor([96 * 2.0**-h for h in range(1, 9)], dtype=torch.float64))


def test_rows_are_independent():
    p, e = segmented(), bipe()
    whole = attend(e, p)
    for row in range(2):
        index = torch.tensor([row])
        close(attend(e, p.select_rows(index)), whole[index])


def test_the_segment_index_can_be_interpolated():
    p = segmented()
    scaled = bipe(rw.Sequential(rw.Scale(4), rw.RoPE(8, pairing="half")))
    at = p.positions.query.position.double()
    quarter = rw.Positions(torch.stack([at[..., 0] / 4, at[..., 1]], -1))
    close(attend(scaled, p), attend(bipe(), p.replace(positions=quarter)))
    x = random(2, 12, WIDTH)
    close(scaled.embed(x, p.positions), bipe().embed(x, p.positions))


@pytest.mark.parametrize("sizes", [[1] * 12, [5, 1, 6]])
@pytest.mark.parametrize(
    "make", [lambda: bipe_rope(WIDTH, 8), lambda: bipe_alibi(WIDTH, 4), lambda: bipe(rw.PaPE(5, 4, axes=None))]
)
def test_decoding_with_a_carried_state(sizes, make):
    e, ids = make().double(), text(2, 12)
    p, x = segmented(ids, x=random(2, 12, 5)), random(2, 12, WIDTH)
    cache, state, start, out, embedded = rw.KVCache(e), None, 0, [], []
    for size in sizes:
        cut = slice(start, start + size)
        positions, state = segment_positions(ids[:, cut], {0}, state=state)
        now = cache.step(positions)
        embedded.append(e.embed(x[:, cut], now))
        new = rw.Attention(p.q[:, :, cut], p.k[:, :, cut], p.v[:, :, cut], now, x=p.x[:, cut])
        out.append(rw.attend(cache[0].extend(new), backend="dense"))
        start += size
    close(torch.cat(out, 2), attend(e, p))
    close(torch.cat(embedded, 1), e.embed(x, p.positions))


def test_it_cannot_guess_the_next_segment():
    p = segmented()
    cache = rw.KVCache(bipe())
    cache.extend(p)
    with pytest.raises(rw.PositionError, match="give the positions of the new tokens"):
        cache.step(1)
    with pytest.raises(CannotEdit, match="embeddings"):
        cache.edit([0, 1], rw.Positions(torch.zeros(1, 2, 2)))


def test_the_released_table_never_learns_its_last_row():
    p, x = segmented(separators=()), random(2, 12, WIDTH)
    for quirk in (True, False):
        e = bipe(bug_compatible=quirk)
        (table,) = e.parameters()
        e.embed(x, p.positions).square().sum().backward()
        assert bool(table.grad[:3].any(-1).all())
        assert bool(table.grad[3].any()) != quirk
        assert bool(table[3].any()) != quirk
        close(e.embed(x, p.positions)[:, 5:], (x + table[3])[:, 5:])


def test_initial_table():
    torch.manual_seed(0)
    table = IntraSegment(1024, 64).weight
    assert table.shape == (1024, 64)
    assert abs(table.std() - 0.02) < 5e-4


def test_log_scale():
    at = torch.tensor([0, 1, 7, 8, 63, 1000, 4])
    p = problem(positions=rw.Positions(at))
    want = torch.tensor([max(1.0, math.log(n + 1) / math.log(8)) for n in at.tolist()], dtype=torch.float64)
    close(logits(LogScale(8)(p)), logits(p) * want[:, None])
    assert want[4] == 2.0
    p = segmented(separators=range(5))
    scaled = bipe_rope(WIDTH, 8, max_intra=4, log_scale=True)
    close(
        logits(scaled(p)), logits(bipe()(p)) * (torch.arange(1, 13).double().log() / math.log(4)).clamp(min=1)[:, None]
    )
    with pytest.raises(rw.ConfigError, match="train_length"):
        LogScale(1)


# ---- one axis of several ---------------------------------------------------------------------------------------------


def test_an_axis_is_seen_by_what_is_inside_only():
    at = torch.stack([torch.arange(7), torch.arange(7) ** 2, torch.arange(7) % 2], -1)[None]
    p = problem(positions=rw.Positions(at))
    on = rw.OnAxis(rw.RoPE(8), 1)
    close(attend(on, p), attend(rw.RoPE(8), p.replace(positions=rw.Positions(torch.arange(7) ** 2))))
    kerple = rw.KERPLELog(4).double()
    both = rw.Sequential(rw.OnAxis(rw.ALiBi(4), 0), rw.OnAxis(kerple, 2))
    first, last = (p.replace(positions=rw.Positions(at[..., axis])) for axis in (0, 2))
    close(added(both, p), added(rw.ALiBi(4), first) + added(kerple, last))
    differ(attend(on, p), attend(rw.OnAxis(rw.RoPE(8), 0), p))


def test_an_axis_moves_cached_keys():
    at = torch.stack([torch.arange(7), torch.zeros(7)], -1)[None]
    p, e = problem(positions=rw.Positions(at)), rw.OnAxis(rw.RoPE(8), 0)
    cache = rw.KVCache(e)
    cache.extend(p)
    cache.edit([2, 3], rw.Positions(at[:, :2]))
    _, want = e.rotate(p.q[:, :, 2:4], p.k[:, :, 2:4], rw.Positions(at[:, :2]))
    close(cache[0].stored[0].k, want)


def test_bad_input():
    with pytest.raises(rw.ConfigError, match="axis"):
        rw.OnAxis(rw.RoPE(8), -1)
    with pytest.raises(rw.ConfigError, match="holds an encoding"):
        rw.OnAxis("rope", 0)
    with pytest.raises(rw.PositionError, match="no axes"):
        rw.OnAxis(rw.RoPE(8), 0)(problem())
    with pytest.raises(rw.PositionError, match="2 axes"):
        rw.OnAxis(rw.RoPE(8), 2)(segmented())
    with pytest.raises(CannotCompose, match="inside"):
        rw.OnAxis(rw.PerHead([rw.RoPE(8), rw.RoPE(8)]), 0)(segmented())
    with pytest.raises(rw.PositionError, match="learned"):
        bipe().embed(random(1, 2, WIDTH), rw.Positions(torch.tensor([[[0, -1], [0, 0]]])))
    with pytest.raises(rw.ShapeError, match="width 6"):
        bipe().embed(random(2, 12, 7), segmented().positions)
    with pytest.raises(rw.ShapeError, match="ids"):
        segment_positions(torch.zeros(2, 3), {0})
    with pytest.raises(rw.PositionError, match="valid"):
        segment_positions(text(), {0}, valid=torch.ones(3, 22, dtype=torch.bool))
    with pytest.raises(rw.ShapeError, match="rows"):
        segment_positions(text(2), {0}, state=segment_positions(text(3), {0})[1])
    for bad in (lambda: FixedLength(0), lambda: segment_positions(text(), {0}, 0), lambda: bipe_alibi(WIDTH, 0)):
        with pytest.raises(rw.ConfigError):
            bad()
    for slope in (0.0, float("nan")):
        with pytest.raises(rw.ConfigError, match="slope"):
            bipe_alibi(WIDTH, 4, slope=slope)
