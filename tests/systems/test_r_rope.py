"""R-RoPE: reference images beyond the video (arXiv 2510.18573)."""

from __future__ import annotations

import pytest
import torch
from reference import SINGLE, attend, close, differ, golden, logits, problem, random

import ropewalk as rw
from ropewalk.coordinates.references import ReferenceIds, reference_layout
from ropewalk.core.errors import CannotCache, ConfigError, NotCausal, PositionError
from ropewalk.rotary.video_axes import video_widths

CASES = golden("049")


def plain(head_dim):
    return rw.AxialRoPE(head_dim, 3, widths=video_widths(head_dim))


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    case = CASES[name]
    p = case.params
    after = p["end_concat"]
    time = "after" if after else "index"
    where = rw.reference_coords(p["video_thw"], p["refs_hw"], p["max_h"], p["max_w"], time)
    assert torch.equal(where.query.position[0], case.outputs["coords_thw"])
    assert where.query.position.dtype == torch.int64
    made = rw.ReferenceRoPE(p["head_dim"], p["max_h"], p["max_w"], time, base=p["theta"])
    blocks = rw.layout(reference_layout(p["video_thw"], p["refs_hw"], first=not after))
    q, k = case.inputs["q"], case.inputs["k"]
    for positions in (where, blocks):
        turned = made(rw.Attention(q, k, k, positions, causal=False))
        close(turned.q, case.outputs["q_rot"], SINGLE)
        close(turned.k, case.outputs["k_rot"], SINGLE)


# ---- properties of the sheet -----------------------------------------------------------------------------------------


def test_widths_of_axes():
    assert [video_widths(d) for d in (128, 16, 12, 6)] == [(44, 42, 42), (8, 4, 4), (4, 4, 4), (2, 2, 2)]
    assert str(rw.ReferenceRoPE(16).allocation) == "t t t t h h w w"


def test_without_references_it_is_plain():
    p = problem(b=1, s=12, d=16, causal=False)
    a = attend(rw.ReferenceRoPE(16), p.replace(positions=rw.layout([rw.Video(2, 2, 3)])))
    close(a, attend(plain(16), p.replace(positions=rw.grid_positions(2, 2, 3))))


def test_any_encoding_of_three_axes_takes_the_coordinates():
    where = rw.reference_coords((2, 2, 3), [(1, 2), (2, 1)])
    p = problem(b=1, s=16, d=16, positions=where, causal=False)
    close(attend(plain(16), p), attend(rw.ReferenceRoPE(16), p))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_shift_of_one_axis_changes_nothing(axis):
    where = rw.reference_coords((2, 2, 3), [(1, 2), (2, 1)])
    moved = where.query.position.clone()
    moved[..., axis] += 37
    p = problem(b=1, s=16, d=16, positions=where, causal=False)
    made = rw.ReferenceRoPE(16)
    close(logits(made(p.replace(positions=rw.Positions(moved)))), logits(made(p)), 1e-11)


@pytest.mark.parametrize("most", [(3, 4), (None, None), (5, None)])
def test_no_row_and_no_column_is_shared_up_to_the_limit(most):
    for h in range(1, 4):
        for w in range(1, 5):
            where = rw.reference_coords((2, h, w), [(2, 3), (4, 1)], *most).query
            video = where.column("reference") == 0
            assert video.sum() == 2 * h * w
            for axis in (1, 2):
                mine, theirs = (set(where.position[..., axis][m].tolist()) for m in (video, ~video))
                assert not mine & theirs
            refs = [tuple(c) for c in where.position[~video].tolist()]
            assert len(set(refs)) == len(refs) == 10


def test_a_scheme_gives_positions_that_nothing_follows():
    scheme, where = ReferenceIds(), rw.layout(reference_layout((2, 2, 3), [(1, 2)]))
    fixed = scheme.positions(where)
    assert torch.equal(fixed.query.position, rw.reference_coords((2, 2, 3), [(1, 2)]).query.position.double())
    for ask in (scheme.cursor, scheme.delta):
        with pytest.raises(PositionError, match="no token follows"):
            ask(where.query)


def test_the_end_moves_time_alone():
    sizes = (2, 2, 3), [(1, 2), (2, 2)]
    before = rw.reference_coords(*sizes).query
    after = rw.reference_coords(*sizes, time="after").query
    order = torch.cat([torch.arange(6, 18), torch.arange(6)])
    kinds = after.column("reference")[0]
    assert torch.equal(before.column("reference")[0, order], kinds)
    there, here = before.position[0, order], after.position[0]
    assert torch.equal(there[:, 1:], here[:, 1:])
    assert torch.equal(here[:, 0] - there[:, 0], torch.where(kinds > 0, 2, 0))
    # A reference at the end with the times of one at the beginning is the same attention, permuted.
    mixed = rw.reference_coords(*sizes, first=False)
    p = problem(b=1, s=18, d=16, positions=rw.Positions(before.position), causal=False)
    made = rw.ReferenceRoPE(16)
    q, k, v = (t[:, :, order] for t in (p.q, p.k, p.v))
    close(attend(made, rw.Attention(q, k, v, mixed, causal=False)), attend(made, p)[:, :, order])


def test_further_frames():
    where = rw.reference_coords((2, 2, 3), [(2, 3), (2, 3)], time="after", shift=(False, False))
    assert torch.equal(where.query.position, rw.grid_positions(4, 2, 3).query.position)


def test_a_staircase_and_times():
    scheme = ReferenceIds(4, 5, time=-1, stack_space=True)
    where = rw.layout(reference_layout((1, 1, 1), [(1, 2), (2, 1)]))
    assert scheme.coordinates(where.query)[0].tolist() == [[-1, 4, 5], [-1, 4, 6], [-1, 8, 10], [-1, 9, 10], [0, 0, 0]]
    halved = rw.reference_coords((1, 1, 1), [(1, 1)], time=0.5).query.position
    assert halved.tolist() == [[[0.5, 80, 80], [0, 0, 0]]]


def test_references_that_do_not_turn():
    where = rw.layout(reference_layout((2, 2, 2), [(1, 2)]))
    p = problem(b=1, s=10, d=16, positions=where, causal=False)
    turned = rw.ReferenceRoPE(16, rotate_refs=False)(p)
    assert torch.equal(turned.q[:, :, :2], p.q[:, :, :2])
    differ(turned.q[:, :, 3:], p.q[:, :, 3:])


def test_the_order_of_references_shows_unless_their_numbers_go_with_them():
    q, k = random(1, 1, 6, 16), random(1, 1, 6, 16, seed=1)
    made = rw.ReferenceRoPE(16)

    def scores(first, second):
        blocks = [rw.Image(1, 2, reference=first), rw.Image(1, 2, reference=second), rw.Video(1, 1, 2)]
        return logits(made(rw.Attention(q, k, k, rw.layout(blocks), causal=False)))

    here, swapped = scores(1, 2), scores(2, 1)
    differ(here, swapped)
    order = torch.tensor([2, 3, 0, 1, 4, 5])
    blocks = [rw.Image(1, 2, reference=2), rw.Image(1, 2, reference=1), rw.Video(1, 1, 2)]
    p = rw.Attention(q[:, :, order], k[:, :, order], k, rw.layout(blocks), causal=False)
    close(logits(made(p))[..., order, :][..., order], here)


def test_samples_of_a_batch_have_their_own_references():
    rows = [reference_layout((2, 2, 2), [(1, 2)]), reference_layout((1, 2, 3), [(2, 2), (1, 1)])]
    both = rw.layout(rows)
    p = problem(s=11, d=16, positions=both, causal=False)
    made = rw.ReferenceRoPE(16, None, None)
    out = attend(made, p)
    for row, (blocks, n) in enumerate(zip(rows, (10, 11), strict=True)):
        pick = (slice(row, row + 1), slice(None), slice(0, n))
        alone = rw.Attention(p.q[pick], p.k[pick], p.v[pick], rw.layout(blocks), causal=False)
        close(out[pick], attend(made, alone))
    documents = rw.packed_layout([rows])
    ids = ReferenceIds(None, None, time="after").coordinates(documents.query)[0]
    for blocks, part in zip(rows, (ids[:10], ids[10:]), strict=True):
        assert torch.equal(part, ReferenceIds(None, None, time="after").coordinates(rw.layout(blocks).query)[0])


def test_compiled_with_its_checks():
    made = rw.ReferenceRoPE(16)
    q = random(1, 2, 10, 16)
    where = rw.layout(reference_layout((2, 2, 2), [(1, 2)]))

    def run(q, where):
        return made(rw.Attention(q, q, q, where, causal=False)).q

    want = run(q, where)
    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="eager")
    fresh = rw.layout(reference_layout((2, 2, 2), [(1, 2)]))
    close(compiled(q, fresh), want)
    with pytest.raises(RuntimeError, match="one number"):
        compiled(q, rw.layout([rw.Image(1, 1, reference=1), rw.Image(1, 1, reference=1), rw.Video(2, 2, 2)]))


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "match"),
    [
        ([rw.Image(1, 2, reference=1)], "exactly one Video"),
        ([rw.Video(1, 2, 2), rw.Video(1, 2, 2)], "exactly one Video"),
        ([rw.Image(1, 2), rw.Video(1, 2, 2)], "without a number"),
        ([rw.Image(1, 2, reference=2), rw.Image(1, 2, reference=2), rw.Video(1, 2, 2)], "have one number"),
        ([rw.Image(1, 2, reference=4), rw.Video(1, 2, 2)], "from 1 to 3; raise max_refs"),
        ([rw.Video(1, 81, 2)], "more than 80 rows.*raise max_h"),
        ([rw.Video(1, 2, 81)], "more than 80 columns.*raise max_w"),
        ([rw.Text(2), rw.Video(1, 2, 2)], "text by cross-attention"),
        ([rw.Video(1, 2, 2), rw.Text(2)], "text by cross-attention"),
        ([rw.Tiles(1, 2, 1, 2), rw.Video(1, 2, 2)], "instead of Tiles"),
        ([rw.Video(1, 2, 2, depth=2)], "depth 1"),
    ],
)
def test_samples_that_cannot_be(blocks, match):
    where = rw.layout(blocks)
    p = problem(b=1, s=where.query.length, d=16, positions=where, causal=False)
    with pytest.raises(PositionError, match=match):
        rw.ReferenceRoPE(16)(p)


def test_bad_input():
    with pytest.raises(ConfigError, match="at least 6"):
        rw.ReferenceRoPE(4)
    with pytest.raises(ConfigError, match="time of references is"):
        rw.ReferenceRoPE(16, time="before")
    with pytest.raises(ConfigError, match="max_h is a whole number"):
        rw.ReferenceRoPE(16, 0)
    with pytest.raises(ConfigError, match="of height and of width"):
        rw.ReferenceRoPE(16, shift=(True,))
    with pytest.raises(PositionError, match="three sizes"):
        rw.reference_coords((2, 2), [(1, 2)])
    with pytest.raises(PositionError, match="reference image two"):
        rw.reference_coords((2, 2, 2), [(1, 2, 2)])
    p = problem(b=1, s=4, d=16, causal=False)
    with pytest.raises(PositionError, match="these positions are plain"):
        rw.ReferenceRoPE(16)(p)


def test_no_decoding():
    with pytest.raises(NotCausal, match="causal=False"):
        rw.ReferenceRoPE(16)(problem(b=1, s=8, d=16, positions=rw.layout([rw.Video(2, 2, 2)])))
    with pytest.raises(CannotCache, match="each step of denoising"):
        rw.KVCache(rw.ReferenceRoPE(16))


def test_pictures_of_videos_and_conditions():
    from ropewalk.analysis.layout_picture import draw_layout, layout_picture

    placed = layout_picture(rw.record("r_rope"))
    assert placed.cursor is None
    assert placed.coordinates[:3].tolist() == [[0, 80, 80], [0, 80, 81], [1, 80, 80]]
    text = "\n".join(str(line) for line in draw_layout(placed))
    assert "each axis from the fastest" in text
    assert "decoding" not in text
    assert [name for name, _ in layout_picture(rw.record("condition_rope")).kinds] == [
        "video",
        "ref",
        "empty",
        "trajectory",
    ]
