"""PMA: distances in the steps of the query's own grid (arXiv 2511.19778)."""

from __future__ import annotations

import pytest
import torch
from reference import DOUBLE, attend, close, differ, golden, logits, problem, random

import ropewalk as rw
from ropewalk.analysis.phase_kernel import phase_kernel, rope_dominance
from ropewalk.backends import dense
from ropewalk.coordinates.mixed_resolution import OnOneGrid, exchange_boundary, resolution_maps
from ropewalk.core.errors import CannotCompose, ConfigError, NeedsColumn, PositionError, ShapeError

CASES = golden("065")
MASK = torch.tensor([[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0]], dtype=torch.bool)
MIXED = rw.mixed_resolution_positions(MASK, 2)
N = MIXED.query.length  # 8 coarse tokens and 16 fine ones


def of(case):
    inputs, params = case.inputs, case.params
    scale = inputs["scale"].double()
    where = rw.Positions((inputs["pos"] / scale[:, None])[None], columns={"resolution": scale[None]})
    widths = params["axes_dim"]
    made = rw.PhaseAlignedRoPE(
        sum(widths),
        len(widths),
        widths=widths,
        base=params["base"],
        subsample=params["subsample_fine_keys_for_coarse_queries"],
    )
    return made, rw.Attention(inputs["q"], inputs["k"], inputs["v"], where, causal=False)


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    case = CASES[name]
    made, p = of(case)
    for backend in ("dense", "sdpa"):
        close(attend(made, p, backend), case.outputs["out"], DOUBLE)
    close(rw.phase_aligned_attention(made, p), case.outputs["out"], DOUBLE)
    seen = dense.allowed(made(p).located())
    scale = case.inputs["scale"]
    for s, kept in case.outputs["keys_kept_per_query_scale"].items():
        rows = torch.ones(len(scale), len(scale), dtype=torch.bool) if seen is None else seen[0, 0]
        assert (rows[scale == int(s)].long() == torch.as_tensor(kept)).all()


# ---- positions -------------------------------------------------------------------------------------------------------


def test_positions_of_the_page():
    where = rw.mixed_resolution_positions(torch.tensor([[0, 0, 0, 1, 1, 0, 0, 0, 0]], dtype=torch.bool), 2)
    column = where.query.position[0, :, 1]
    assert column[:7].tolist() == [0, 1, 2, 5, 6, 7, 8]
    assert sorted(set(column[7:].tolist())) == [3, 3.5, 4, 4.5]
    assert where.query.column("resolution")[0].tolist() == [1] * 7 + [2] * 8


def test_positions_follow_the_maps():
    maps = resolution_maps(MASK, 2)
    assert {f: there.shape for f, there in maps.items()} == {1: (3, 4), 2: (6, 8)}
    fine = maps[2].nonzero() / 2
    assert torch.equal(MIXED.query.position[0, 8:], fine.double())


def test_video_and_text_and_three_resolutions():
    levels = torch.ones(2, 2, 3, dtype=torch.long)
    levels[0, 0, 0], levels[1, 1, 1] = 4, 2
    where = rw.mixed_resolution_positions(levels, num_text=3).query
    assert where.length == 3 + 10 + 4 + 16
    assert where.position.shape[2] == 3
    assert where.column("resolution")[0, :3].tolist() == [0, 0, 0]
    assert where.position[0, -1].tolist() == [0, 0.75, 0.75]


def test_an_overlap_reaches_into_the_other_resolution():
    where = rw.mixed_resolution_positions(MASK, 2, pad=1)
    maps, own = resolution_maps(MASK, 2, pad=1), resolution_maps(MASK, 2)
    assert int(maps[1].sum()) == 12  # each fine cell touches a coarse one
    assert int(maps[2].sum()) == 5 * 6  # the mask ends at the last row
    context = where.query.column("context")[0]
    assert int(context.sum()) == sum(int((maps[f] & ~own[f]).sum()) for f in maps)
    assert not where.query.column("context")[0, :4].any()


# ---- properties of the sheet -----------------------------------------------------------------------------------------


def one_resolution(r, **more):
    cells = torch.stack(torch.meshgrid(torch.arange(3), torch.arange(4), indexing="ij"), -1).reshape(1, 12, 2)
    return rw.Positions(cells / r, columns={"resolution": torch.full((1, 12), r)}), rw.Positions(cells)


@pytest.mark.parametrize("r", [1, 2])
def test_one_resolution_is_plain_rope_bit_by_bit(r):
    mixed, plain = one_resolution(r)
    p = problem(s=12, positions=mixed, causal=False)
    want = attend(rw.AxialRoPE(8), p.replace(positions=plain))
    assert torch.equal(attend(rw.PhaseAlignedRoPE(8), p), want)
    assert torch.equal(rw.phase_aligned_attention(rw.PhaseAlignedRoPE(8), p, backend="dense"), want)


def test_the_same_distance_is_the_same_phase_for_all_keys_of_a_query():
    made, tokens = rw.PhaseAlignedRoPE(8), MIXED.query
    x, own = tokens.position[0], tokens.column("resolution")[0]
    at_q = made.place(tokens, ())[0]
    for r in (1.0, 2.0):
        at_k, rows = made.place(tokens, (), r)[0], own == r
        close((at_q[rows, None] - at_k)[..., 0], r * (x[rows, None] - x)[..., 0])


def test_the_baselines_are_right_for_one_resolution_each():
    """PI-HR for fine queries, PI-LR for coarse ones when they see no fractions of a step."""
    p = problem(s=N, positions=MIXED, causal=False)
    fine = MIXED.query.column("resolution")[0] == 2
    ours = logits(rw.PhaseAlignedRoPE(8, subsample=False)(p))
    for r, rows in ((1, ~fine), (2, fine)):
        baseline = logits(rw.Sequential(OnOneGrid(r), rw.AxialRoPE(8))(p))
        close(ours[:, :, rows], baseline[:, :, rows])
        differ(ours[:, :, ~rows], baseline[:, :, ~rows], 1e-2)
    whole = attend(rw.PhaseAlignedRoPE(8), p)
    close(whole[:, :, fine], attend(rw.Sequential(OnOneGrid(2), rw.AxialRoPE(8)), p)[:, :, fine])


def test_coarse_queries_see_a_coarse_grid():
    """Where the fine tokens they keep hold what coarse ones would, all is as in ordinary attention."""
    cells = torch.stack(torch.meshgrid(torch.arange(3), torch.arange(4), indexing="ij"), -1).reshape(12, 2).double()
    plain = problem(s=12, positions=rw.Positions(cells[None]), causal=False)
    tokens = MIXED.query
    x, coarse = tokens.position[0], tokens.column("resolution")[0] == 1
    whole = (x == x.round()).all(-1)
    source = (4 * x[:, 0].floor() + x[:, 1].floor()).long()
    q, k, v = (t[:, :, source] for t in (plain.q, plain.k, plain.v))
    k, v = (torch.where(whole[:, None], t, random(*t.shape, seed=9)) for t in (k, v))
    got = attend(rw.PhaseAlignedRoPE(8), rw.Attention(q, k, v, MIXED, causal=False))
    want = attend(rw.AxialRoPE(8), plain)
    close(got[:, :, coarse], want[:, :, source[coarse]])


def test_moving_by_coarse_cells_changes_nothing():
    p = problem(s=N, positions=MIXED, causal=False)
    there = MIXED.map_sides(lambda t: t.with_columns(position=t.position + torch.tensor([3.0, 5.0])))
    close(attend(rw.PhaseAlignedRoPE(8), p.replace(positions=there)), attend(rw.PhaseAlignedRoPE(8), p), 1e-11)


def test_factors_that_are_not_whole():
    cells = torch.arange(6).double()
    where = rw.Positions(
        torch.cat([cells, 6 + torch.arange(6).double() / 1.5])[None, :, None],
        columns={"resolution": torch.tensor([[1.0] * 6 + [1.5] * 6])},
    )
    made = rw.PhaseAlignedRoPE(8, 1, (1, 1.5), subsample=False)
    close(made.place(where.query, ())[0, 6:, 0], 9 + torch.arange(6).double())
    p = problem(s=12, positions=where, causal=False)
    close(rw.phase_aligned_attention(made, p), attend(made, p))
    seen = dense.allowed(rw.PhaseAlignedRoPE(8, 1, (1, 1.5))(p).located())[0, 0]
    assert seen[0].tolist() == [True] * 6 + [True, False, False] * 2  # 6, 6 2/3, 7 1/3, 8, ...


def test_time_is_not_divided_and_text_stays():
    levels = torch.ones(2, 2, 2, dtype=torch.long)
    levels[1] = 2
    where = rw.mixed_resolution_positions(levels, num_text=2)
    made = rw.PhaseAlignedRoPE(12, 3)
    at = made.place(where.query, (), 2.0)[0]
    assert torch.equal(at[:, 0], where.query.position[0, :, 0])
    text = where.query.with_columns(
        position=torch.where(where.query.column("resolution")[..., None] == 0, 5.0, where.query.position)
    )
    for r in (1.0, 2.0):
        assert (made.place(text, (), r)[0, :2] == 5).all()
    p = problem(s=where.query.length, d=12, positions=where, causal=False)
    seen = dense.allowed(made(p).located())[0, 0]
    assert seen[:, :2].all()  # by everybody
    coarse = where.query.column("resolution")[0] == 1
    assert torch.equal(seen[0], seen[coarse][0])  # and it sees what coarse tokens see
    close(rw.phase_aligned_attention(made, p), attend(made, p))


def test_every_way_to_compute_it_agrees():
    levels = torch.tensor([[1, 2, 4], [1, 1, 2]])
    where = rw.mixed_resolution_positions(levels, num_text=1)
    p = problem(h=4, kv=2, s=where.query.length, positions=where, causal=False)
    for subsample in (True, False):
        for centred in (True, False):
            made = rw.PhaseAlignedRoPE(8, resolutions=(1, 2, 4), subsample=subsample, centred=centred)
            close(rw.phase_aligned_attention(made, p), attend(made, p))
            close(attend(made, p, "sdpa"), attend(made, p))


def test_means_of_finer_tokens():
    """Where finer tokens of a cell are alike, their mean is the first of them."""
    p = problem(s=N, positions=MIXED, causal=False)
    x = MIXED.query.position[0]
    same = torch.tensor([int((x.floor() == row.floor()).all(-1).nonzero()[0]) for row in x])
    alike = p.replace(k=p.k[:, :, same], v=p.v[:, :, same])
    made = rw.PhaseAlignedRoPE(8)
    close(rw.phase_aligned_attention(made, alike, pool=True), rw.phase_aligned_attention(made, alike))
    differ(rw.phase_aligned_attention(made, p, pool=True), rw.phase_aligned_attention(made, p))


def test_tokens_in_the_middle_of_their_part():
    made, tokens = rw.PhaseAlignedRoPE(8, centred=True), MIXED.query
    at, own = made.place(tokens, (), 1.0)[0], tokens.column("resolution")[0]
    close(at[own == 1], tokens.position[0, own == 1])
    close(at[own == 2], tokens.position[0, own == 2] - 0.25)


def test_chunks_are_one_pass():
    made, p = rw.PhaseAlignedRoPE(8), problem(b=1, s=N, positions=MIXED)
    cache, out = rw.KVCache(made), []
    for a, b in ((0, 5), (5, 6), (6, 20), (20, N)):
        part = rw.Attention(p.q[:, :, a:b], p.k[:, :, a:b], p.v[:, :, a:b], MIXED.slice(a, b))
        out.append(rw.attend(cache.extend(part), "dense"))
    close(torch.cat(out, 2), attend(made, p))


def test_a_head_that_copies_its_neighbour_goes_on_copying_it():
    """A head whose scores peak one step to the left, tried on mixed tokens without any training."""
    d = 64
    where = rw.mixed_resolution_positions(torch.tensor([[0, 0, 0, 1, 1, 1, 0, 0]], dtype=torch.bool), 2)
    tokens = where.query
    top = tokens.position[0, :, 0] == 0
    where = rw.Positions(tokens.position[:, top, 1:], columns={"resolution": tokens.column("resolution")[:, top]})
    x, own = where.query.position[0, :, 0], where.query.column("resolution")[0]
    n = len(x)
    plain = rw.AxialRoPE(d, 1)
    left, _ = plain.rotate(torch.ones(1, 1, 1, d).double(), torch.ones(1, 1, 1, d).double(), rw.Positions([[[-1.0]]]))
    q = 16 * left.expand(1, 1, n, d)
    k = torch.ones(1, 1, n, d).double()
    v = torch.nn.functional.one_hot(torch.arange(n)).double()[None, None]
    p = rw.Attention(q, k, v, where, causal=False)

    def wrong(encoding):
        weights = attend(encoding, p)[0, 0]
        target = [int((x - (x[i] - 1 / own[i])).abs().argmin()) for i in range(1, n)]
        there = (x[target] - (x[1:] - 1 / own[1:])).abs() < 1e-6  # fine tokens whose neighbour is coarse have none
        return 1 - weights[torch.arange(1, n), target][there].mean()

    ours = wrong(rw.PhaseAlignedRoPE(d, 1))
    interpolated = [wrong(rw.Sequential(OnOneGrid(r), rw.AxialRoPE(d, 1))) for r in (1, 2)]
    assert ours < 0.2
    assert all(other > ours + 0.2 for other in interpolated), (ours, interpolated)


# ---- along the boundary ----------------------------------------------------------------------------------------------


def test_what_is_exchanged_along_a_boundary():
    latents = {1: random(1, 2, 3, 4), 2: random(1, 2, 6, 8, seed=1)}
    made = exchange_boundary(latents, MASK, 2, pad=1)
    maps, own = resolution_maps(MASK, 2, pad=1), resolution_maps(MASK, 2)
    for f in (1, 2):
        band = maps[f] & ~own[f]
        assert torch.equal(made[f][..., ~band], latents[f][..., ~band])
        other = torch.nn.functional.interpolate(latents[1], (6, 8), mode="bilinear") if f == 2 else None
        want = torch.nn.functional.avg_pool2d(latents[2], 2) if other is None else other
        close(made[f][..., band], want[..., band])
    noisy = exchange_boundary(latents, MASK, 2, pad=1, renoise=lambda x: 0 * x + 7)
    assert (noisy[2][..., maps[2] & ~own[2]] == 7).all()
    called = exchange_boundary(latents, MASK, 2, resize=lambda x, size: x.new_full((*x.shape[:2], *size), 3.0))
    assert (called[1][..., MASK] == 3).all()


def test_frames_are_exchanged_one_by_one():
    mask = torch.stack([MASK, ~MASK])
    latents = {1: random(1, 2, 2, 3, 4), 2: random(1, 2, 2, 6, 8, seed=1)}
    made = exchange_boundary(latents, mask, 2, pad=1)
    for t in range(2):
        alone = exchange_boundary({f: x[:, :, t] for f, x in latents.items()}, mask[t], 2, pad=1)
        for f in (1, 2):
            close(made[f][:, :, t], alone[f])


# ---- analysis --------------------------------------------------------------------------------------------------------


def test_the_kernel_is_the_mean_over_pairs():
    q, k = random(1, 2, 5, 8), random(1, 2, 5, 8, seed=1)
    offsets = torch.tensor([-2.0, 0.0, 3.0])
    made = rw.AxialRoPE(8)
    got = phase_kernel(made, q, k, offsets, axis=1)
    assert got.shape == (2, 3)
    unit_q, unit_k = (torch.nn.functional.normalize(t, dim=-1) for t in (q, k))
    for n, offset in enumerate(offsets):
        where = rw.Positions(torch.tensor([0.0, float(offset)]).expand(1, 5, 2))
        turned = made.rotate(unit_k, unit_k, where)[1]
        pairs = (unit_q @ turned.mT)[0]
        off = ~torch.eye(5, dtype=torch.bool)
        close(got[:, n], pairs[:, off].mean(-1))


def test_heads_of_position_are_told_from_heads_of_content():
    offsets = torch.arange(-12, 13).double()
    mean = torch.ones(1, 1, 1, 16).double()
    q = torch.cat([mean + 0.1 * random(1, 1, 40, 16), random(1, 1, 40, 16, seed=1)], 1)
    k = torch.cat([mean + 0.1 * random(1, 1, 40, 16, seed=2), random(1, 1, 40, 16, seed=3)], 1)
    kernel = phase_kernel(rw.AxialRoPE(16), q, k, offsets, axis=0)
    position, content = rope_dominance(kernel, offsets)
    assert kernel[0].argmax() == 12  # the peak at distance 0
    assert position > 0.085 > content
    with pytest.raises(ConfigError, match="axis None"):
        phase_kernel(rw.AxialRoPE(16), q, k, offsets)
    with pytest.raises(ShapeError, match="one token"):
        phase_kernel(rw.RoPE(16), q[:, :, :1], k[:, :, :1], offsets)


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_masks_of_another_kind():
    with pytest.raises(PositionError, match="factor="):
        rw.mixed_resolution_positions(MASK)
    with pytest.raises(PositionError, match="leave factor out"):
        rw.mixed_resolution_positions(MASK.long() + 1, 2)
    with pytest.raises(PositionError, match="at least 1 token; got 0"):
        rw.mixed_resolution_positions(MASK.long())
    with pytest.raises(PositionError, match=r"mask has shape \(4,\)"):
        rw.mixed_resolution_positions(MASK[0], 2)
    with pytest.raises(ShapeError, match="the mask asks for"):
        exchange_boundary({1: random(1, 2, 3, 5), 2: random(1, 2, 6, 8)}, MASK, 2)
    with pytest.raises(ShapeError, match=r"resolutions \[1\] and the mask has \[1, 2\]"):
        exchange_boundary({1: random(1, 2, 3, 4)}, MASK, 2)


def test_tokens_that_do_not_fit():
    p = problem(s=N, positions=MIXED, causal=False)
    with pytest.raises(PositionError, match="give resolutions="):
        rw.PhaseAlignedRoPE(8, resolutions=(1, 4))(p)
    with pytest.raises(NeedsColumn, match="'resolution'"):
        rw.PhaseAlignedRoPE(8)(p.replace(positions=rw.Positions(MIXED.query.position)))
    with pytest.raises(NeedsColumn, match="'resolution'"):
        rw.PhaseAlignedRoPE(8)(p.replace(positions=None))
    with pytest.raises(PositionError, match="wants positions"):
        rw.PhaseAlignedRoPE(12, 3)(problem(s=N, d=12, positions=MIXED, causal=False))
    with pytest.raises(CannotCompose, match="bidirectional"):
        rw.phase_aligned_attention(rw.PhaseAlignedRoPE(8), p.replace(causal=True))
    with pytest.raises(ConfigError, match="different positive numbers"):
        rw.PhaseAlignedRoPE(8, resolutions=(1, 1))
    with pytest.raises(ConfigError, match="divided axes"):
        rw.PhaseAlignedRoPE(8, divided=(2,))
