"""What went wrong elsewhere (shared/field-reports.md), with the smallest input of each class.

Rows that belong to other places: schedules and configurations (YaRN's magnitude, factor and original length, parsed then
unused, base defaulting to 10 000, wrong layers scaled, partial factor applied twice, dynamic that is static,
checkpoint names), weight conversion (half or interleaved: tests of `functional`), kernels and their speed (S x S bias,
unequal widths, subnormals: tests/backends), and 3-D ids built from images (multimodal systems).
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import ropewalk as rw
from ropewalk import (
    ALiBi,
    Attention,
    FoX,
    KVCache,
    Partial,
    PoPE,
    Positions,
    RoPE,
    Scale,
    Sequential,
    Sinusoidal,
    attend,
)
from ropewalk.coordinates.views import view_positions
from ropewalk.core.errors import ConfigError, PositionError, RopewalkError, ShapeError

LOW = [torch.bfloat16, torch.float16]


def dense(encoding, p):
    return attend(encoding(p), "dense").detach()


def exact_angles(position, dim=32, base=10_000.0):
    """float64 by Python's own arithmetic, one number at a time."""
    return torch.tensor([[p * base ** (-2 * i / dim) for i in range(dim // 2)] for p in position], dtype=torch.float64)


@pytest.mark.parametrize("dtype", LOW)
def test_tables_built_in_the_dtype_of_the_model(dtype):
    """cos off by 0.78 at position 1857 (gpt-neox#1003); 2047 in transformers."""
    encoding = RoPE(32).to(dtype)
    positions = Positions(torch.tensor([1857, 2047]))
    cos, sin = encoding.tables(positions.key, (), torch.float32)
    want = exact_angles([1857, 2047])
    assert (cos[0, 0] - want.cos()).abs().max() < 1e-7
    assert (sin[0, 0] - want.sin()).abs().max() < 1e-7
    q = torch.randn(1, 1, 2, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    low, high = encoding(Attention(q, q, q, positions)).q, RoPE(32)(Attention(*(q.double(),) * 3, positions)).q
    assert (low.double() - high).abs().max() <= high.abs().max() * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", LOW)
def test_casting_back_and_forth(dtype):
    model = nn.ModuleList([RoPE(32), PoPE(8, phase="none"), Sinusoidal(8)])
    before = [b.clone() for b in model.buffers()]
    model.to(dtype).float().double().to(dtype).float()
    assert all(torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))


@pytest.mark.parametrize("dtype", LOW)
def test_ids_in_low_precision(dtype):
    """256 and 257 coincide in bfloat16 (OneTrainer#1177)."""
    with pytest.raises(PositionError, match="coincide"):
        Positions(torch.tensor([256, 257]).to(dtype))
    p = Positions(torch.tensor([2**53 - 1, 2**53]))
    assert (p.key.coordinates()[0, 1] - p.key.coordinates()[0, 0]).item() == 1.0


@pytest.mark.parametrize("where", [10**6, 10**7, 123_456_789])
def test_positions_far_out(where):
    """cos error 0.058 at 1e6 and 0.65 at 1e7 where position times frequency is float32."""
    cos, _ = RoPE(32).tables(Positions(torch.tensor([where])).key, (), torch.float32)
    want = torch.tensor([math.cos(where * 10_000.0 ** (-2 * i / 32)) for i in range(16)], dtype=torch.float64)
    assert (cos[0, 0, 0] - want).abs().max() < 1e-7


@pytest.mark.parametrize("dtype", [*LOW, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "encoding",
    [RoPE(8), RoPE(8, pairing="half"), PoPE(8, num_kv_heads=2), Partial(RoPE(4), 4)],
    ids=lambda e: type(e).__name__,
)
def test_the_dtype_of_the_result(dtype, encoding, problem):
    """bfloat16 q comes back float32, or k only (pytorch-image-models#2794, rotary-embedding-torch#9)."""
    out = encoding(problem(dtype=dtype))
    assert out.q.dtype == out.k.dtype == dtype


def test_a_cache_key_that_forgets_the_offset(problem):
    """Same length, offset 0 then 5 (rotary-embedding-torch#11)."""
    rope, p = RoPE(8), problem()
    first = rope(p.replace(positions=Positions.arange(7))).q
    second = rope(p.replace(positions=Positions.arange(7, offset=5))).q
    assert not torch.allclose(first, second)
    assert torch.equal(second, RoPE(8)(p.replace(positions=Positions.arange(7, offset=5))).q)


def test_a_cache_key_that_forgets_the_dtype(problem):
    """bfloat16 first, float32 after, float64 last: on one and the same positions object."""
    rope, positions = RoPE(8), Positions.arange(7, offset=1000)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        p = problem(dtype=dtype, positions=positions)
        assert torch.equal(rope(p).q, RoPE(8)(p.replace(positions=Positions.arange(7, offset=1000))).q)


def test_a_table_on_the_old_device(problem):
    """rotary-embedding-torch#48: nothing but the positions holds tables, and other positions hold none."""
    positions = Positions.arange(7)
    rope = RoPE(8)
    rope(problem(positions=positions))
    assert not positions.to("meta").key._memo
    q = torch.zeros(1, 1, 7, 8, device="meta")
    assert copy.deepcopy(rope).to("meta")(Attention(q, q, q, positions.to("meta"))).q.is_meta
    assert {n for n, _ in rope.named_buffers()} == {"inv_freq"}


def test_a_long_request_leaves_nothing_behind(problem):
    """Short, long, short again (transformers#25306)."""
    encoding = Sequential(Scale(2.0), RoPE(8), ALiBi(4))
    short, long = problem(s=5), problem(s=200)
    before = dense(encoding, short)
    dense(encoding, long)
    assert torch.equal(before, dense(encoding, short))
    assert not any("cache" in name for name in vars(next(iter(encoding))))


def test_a_neighbour_in_the_batch(problem, agree):
    """A short row beside a longer one."""
    valid = torch.tensor([[1, 1, 1, 0, 0, 0, 0], [1] * 7])
    p = problem(positions=Positions.arange(7, valid=valid))
    for encoding in (RoPE(8), ALiBi(4), Sequential(RoPE(8), FoX(4, 5)), PoPE(8, num_kv_heads=2)):
        alone = Attention(p.q[:1, :, :3], p.k[:1, :, :3], p.v[:1, :, :3], x=p.x[:1, :3])
        agree(dense(encoding, p)[:1, :, :3], dense(encoding, alone))


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_partners_turn_by_the_same_angle(pairing):
    """Tables in one order, rotation in the other (transformers#47403): pair i must turn as one."""
    x = torch.zeros(4, 1, 2, 8, dtype=torch.float64)
    for pair in range(4):
        x[pair, ..., 2 * pair if pairing == "interleaved" else pair] = 1.0
    out = RoPE(8, pairing=pairing)(Attention(x, x, x)).q[:, 0, 1]
    for pair in range(4):
        w = 10_000.0 ** (-2 * pair / 8)
        a, b = (2 * pair, 2 * pair + 1) if pairing == "interleaved" else (pair, pair + 4)
        want = torch.zeros(8, dtype=torch.float64)
        want[a], want[b] = math.cos(w), math.sin(w)
        torch.testing.assert_close(out[pair], want)
    with pytest.raises(ConfigError, match="half"):
        RoPE(8, pairing="halves")


def test_sequence_and_heads_swapped():
    """(B, S, H, D) given as (B, H, S, D) (LLMs-from-scratch#411)."""
    q, k = torch.zeros(2, 7, 4, 8), torch.zeros(2, 7, 2, 8)
    with pytest.raises(ShapeError, match="batch, heads, seq, head_dim"):
        Attention(q, k, k, Positions.arange(7))
    with pytest.raises(ShapeError):
        Attention(q, k, k).located()  # causal, more queries than keys
    with pytest.raises(ShapeError, match=r"swapped|transpose|layout"):
        Attention(torch.zeros(2, 6, 4, 8), torch.zeros(2, 4, 4, 8), torch.zeros(2, 4, 4, 8))


def test_odd_and_small_widths(problem):
    """head_dim 65; 0.75 of 4; dim 2, a division by zero elsewhere."""
    with pytest.raises(ConfigError, match="even"):
        RoPE(65)
    with pytest.raises(ConfigError, match="even"):
        Partial(RoPE(int(0.75 * 4)), 3)
    p = problem(d=2)
    assert torch.isfinite(dense(RoPE(2), p)).all()
    assert RoPE(2).inv_freq.tolist() == [1.0]
    assert torch.isfinite(dense(Partial(RoPE(2), 2), problem(d=4))).all()
    with pytest.raises(ConfigError):
        Sinusoidal(3)


@pytest.mark.parametrize("cuts", [(1,) * 7, (4, 3), (3, 1, 3)])
@pytest.mark.parametrize(
    "encoding",
    [RoPE(8), Sequential(Scale(2.0), ALiBi(4)), rw.STRINGShifted(8, 3, 1), PoPE(8, num_kv_heads=2)],
    ids=lambda e: type(e).__name__,
)
def test_keys_of_older_frequencies(encoding, cuts, problem, in_chunks, agree):
    """Decoding, or prefill in chunks, across any threshold is the one pass."""
    agree(in_chunks(encoding, problem(), cuts).detach(), dense(encoding, problem()))


def test_the_position_of_a_new_token(problem, part):
    """Every new token at position 0; or one too many from layer 2 on (flash-linear-attention#766)."""
    p, cache = problem(), KVCache([RoPE(8)] * 3)
    for start, stop in ((0, 4), (4, 5), (5, 6)):
        now = cache.step(stop - start)
        for i in range(3):
            out = cache[i].extend(part(p, start, stop))
            assert out.where.query.position.tolist() == [list(range(start, stop))]
            assert out.where.key.position.tolist() == [list(range(stop))]
        assert now.key.position.tolist() == [list(range(start, stop))]


def test_a_gate_that_sees_only_the_newest_token(problem, in_chunks, agree):
    """29 % off in a current release."""
    encoding = FoX(4, 5)
    agree(in_chunks(encoding, problem(), (4, 1, 1, 1)).detach(), dense(encoding, problem()))


def test_eviction(problem, part, agree):
    """Positions are explicit: a sink, a gap, and the stream goes on where it was."""
    p, cache = problem(), KVCache(RoPE(8))
    cache.extend(part(p, 0, 6))
    cache.edit([0, 4, 5])
    assert cache.step(1).query.position.tolist() == [[6]]
    got = attend(cache.extend(part(p, 6, 7)), "dense")
    mask = torch.zeros(7, 7, dtype=torch.bool)
    mask[:, [0, 4, 5, 6]] = True
    agree(got, dense(RoPE(8), p.replace(mask=mask))[:, :, 6:])


def test_keys_taken_out_and_later_keys_shifted(problem, part, agree):
    p, cache = problem(), KVCache(RoPE(8))
    cache.extend(part(p, 0, 6))
    cache.edit([0, 4, 5], torch.arange(3))
    assert cache.step(1).query.position.tolist() == [[3]]
    got = attend(cache.extend(part(p, 6, 7)), "dense")
    index = torch.tensor([0, 4, 5, 6])
    agree(got, dense(RoPE(8), Attention(p.q[:, :, index], p.k[:, :, index], p.v[:, :, index]))[:, :, 3:])


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_shifts_positions(side, problem, rand, agree):
    """transformers#22161."""
    valid = torch.ones(2, 7, dtype=torch.bool)
    kept = slice(3, None) if side == "left" else slice(0, 4)
    valid[0] = False
    valid[0, kept] = True
    positions = Positions.arange(7, valid=valid)
    p = problem(positions=positions)
    for encoding in (RoPE(8), ALiBi(4), Sequential(RoPE(8), FoX(4, 5))):
        alone = Attention(*(t[:1, :, kept] for t in (p.q, p.k, p.v)), x=p.x[:1, kept])
        agree(dense(encoding, p)[:1, :, kept], dense(encoding, alone))
    x = rand(2, 7, 6)
    for encoding in (Sinusoidal(6), Sinusoidal(6, start=3), Sequential(Scale(2.0), Sinusoidal(6, start=1))):
        agree(encoding.embed(x, positions)[:1, kept], encoding.embed(x[:1, kept]))


def test_packing(problem, agree):
    """Positions reset but attention crosses documents; or ids ignored (Megatron-LM#453)."""
    p = problem(positions=Positions.arange(7, cu_seqlens=torch.tensor([0, 3, 7])))
    for encoding in (RoPE(8), ALiBi(4), Sequential(RoPE(8), FoX(4, 5)), rw.ContextualCoPE(8, 5)):
        whole = dense(encoding, p)
        for s in (slice(0, 3), slice(3, 7)):
            alone = Attention(p.q[:, :, s], p.k[:, :, s], p.v[:, :, s], x=p.x[:, s])
            agree(whole[:, :, s], dense(encoding, alone))
            agree(attend(encoding(p)).detach()[:, :, s], dense(encoding, alone))


def test_several_axes_are_never_made_up(problem):
    """Plain 1-D ids silently used where 3-D ones were meant (Liger-Kernel#276), and the other way round."""

    class Axes(rw.Rotary):
        axes = 3

        def angles(self, position):
            return position.sum(-1, keepdim=True) * torch.ones(4, dtype=torch.float64)

    with pytest.raises(PositionError, match="3"):
        Axes()(problem())
    with pytest.raises(PositionError, match="3 axes"):
        RoPE(8)(problem(positions=Positions(torch.zeros(2, 7, 3))))
    with pytest.raises(RopewalkError):  # (3, batch, seq), as elsewhere
        Axes()(problem(positions=Positions(torch.zeros(3, 2, 7, dtype=torch.int64))))


def test_fractions_are_not_cut_off():
    """Fractional seconds truncated to 0."""
    p = Positions(torch.tensor([0.0, 0.5, 0.75]))
    assert p.key.coordinates().tolist() == [[0.0, 0.5, 0.75]]
    cos, _ = RoPE(2).tables(p.key, (), torch.float64)
    assert cos[0, 0, 1, 0].item() == math.cos(0.5)


def test_a_text_row_beside_an_image_row(problem, part):
    """mlx-vlm#1095: what follows is a row's own."""
    position = torch.tensor([[0, 1, 2, 3], [0, 40, 41, 42]])
    cache = KVCache(RoPE(8))
    cache.extend(part(problem(), 0, 4).replace(positions=Positions(position)))
    assert cache.step(1).key.position.tolist() == [[4], [43]]


def test_a_checkpoint_that_undoes_the_extension():
    """`load_state_dict` of the original into a module built with another base."""
    stretched, original = Sequential(Scale(2.0), RoPE(8, base=1e6)), Sequential(Scale(1.0), RoPE(8))
    stretched.load_state_dict(original.state_dict())
    assert torch.equal(stretched.get_submodule("1").inv_freq, RoPE(8, base=1e6).inv_freq)
    assert original.state_dict() == {}


def test_meta_device():
    """`to_empty`, load: frequencies are uninitialised memory (transformers#45902)."""
    with torch.device("meta"):
        model = nn.ModuleList([Sequential(RoPE(8), Partial(RoPE(4), 4)), PoPE(8, num_kv_heads=2), Sinusoidal(6)])
    torch.full((4096,), 7.7e7)  # something for uninitialised memory to hold
    model = model.to_empty(device="cpu")
    fresh = nn.ModuleList([Sequential(RoPE(8), Partial(RoPE(4), 4)), PoPE(8, num_kv_heads=2), Sinusoidal(6)])
    model.load_state_dict(fresh.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), fresh.buffers(), strict=True))


def test_meta_device_on_first_use(problem, agree):
    """The width is left out, so the frequencies are made at the first problem."""
    with torch.device("meta"):
        rope = RoPE()
    rope = rope.to_empty(device="cpu")
    agree(dense(rope, problem()), dense(RoPE(8), problem()))


@pytest.mark.parametrize("dtype", LOW)
def test_a_bias_in_low_precision(dtype):
    """ALiBi in a bfloat16 model at 4096: most neighbouring keys share a value."""
    q = torch.zeros(1, 8, 1, 8, dtype=dtype)
    k = torch.zeros(1, 8, 4097, 8, dtype=dtype)
    p = ALiBi(8)(Attention(q, k, k))
    weights = attend(p.replace(q=p.q.float(), k=p.k.float(), v=p.v.float()), "dense", return_weights=True)[1]
    steps = weights[0, 7, 0, 1:].log() - weights[0, 7, 0, :-1].log()
    assert (steps - 2.0**-8).abs().max() < 1e-4
    v = torch.zeros(1, 8, 4097, 8, dtype=dtype)
    v[:, :, -2] = 1
    for backend in ("dense", "sdpa"):
        out = attend(ALiBi(8)(Attention(q, k, v)), backend)
        slope = 2.0 ** -torch.arange(1.0, 9.0, dtype=torch.float64)
        want = (-slope).exp() * (1 - (-slope).exp()) / (1 - (-slope * 4097).exp())
        assert (out[0, :, 0, 0].double() - want).abs().max() < torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", LOW)
def test_a_content_dependent_bias_in_low_precision(dtype, problem):
    """Raises elsewhere: the gates are float32, the model is not."""
    encoding = Sequential(RoPE(8), FoX(4, 5)).to(dtype)
    p = problem(dtype=dtype, s=20)
    want = dense(encoding, p.replace(q=p.q.double(), k=p.k.double(), v=p.v.double()))
    for backend in ("dense", "auto"):
        out = attend(encoding(p), backend)
        assert out.dtype == dtype
        assert (out.double() - want).abs().max() < 2e-2


def test_zigzag_shards(problem, agree):
    """Megatron-LM#560: a rank holds tokens 0, 1 and 5, 6; its positions and its order travel with it."""
    p = problem()
    shard = torch.tensor([0, 1, 5, 6])
    for encoding in (RoPE(8), ALiBi(4), rw.STRINGShifted(8, 3, 1)):
        whole = dense(encoding, p)
        where = Positions(q=Positions.arange(7).key.take(shard), k=torch.arange(7), order=shard)
        part = Attention(p.q[:, :, shard], p.k, p.v, where)
        for backend in ("dense", "auto"):
            agree(attend(encoding(part), backend), whole[:, :, shard])


def test_what_was_rotated():
    """'What exactly was rotated?' is answered by the print."""
    assert repr(Partial(RoPE(16, base=5e5, pairing="half"), 16)).splitlines() == [
        "Partial(", "  dims=16", "  (encoding): RoPE(16, base=500000.0, pairing=half)", ")",
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [lambda: rw.RoPE(8), lambda: rw.PoPE(8, 2), lambda: rw.ALiBi(2)])
def test_gradients_reach_learned_positions(make, dtype):
    """No memo cuts them off, whatever layer asks first."""
    q = torch.randn(1, 2, 6, 8, dtype=torch.float64)
    position = torch.arange(6, dtype=dtype).requires_grad_()
    where, encoding = rw.Positions(position), make()
    for _ in range(2):
        out = rw.attend(encoding(rw.Attention(q, q, q.flip(2), where)), "dense")
        (grad,) = torch.autograd.grad(out.square().sum(), position, retain_graph=True)
        assert grad.abs().max() > 0


def test_gradients_reach_learned_cameras():
    pose = torch.eye(4, dtype=torch.float64).repeat(1, 2, 1, 1).requires_grad_()
    q = torch.randn(1, 2, 6, 16, dtype=torch.float64)
    where = view_positions(torch.rand(1, 6, 2, dtype=torch.float64), pose)
    for encoding in (rw.GTA({"se3": 16}), rw.GTA({"se3": 16}, learn_scale=False)):
        out = rw.attend(encoding(rw.Attention(q, q, q, where)), "dense")
        assert torch.autograd.grad(out.square().sum(), pose, retain_graph=True)[0].abs().max() > 0


def test_explain_of_a_split_problem_knows_what_was_asked():
    q = torch.randn(1, 2, 6, 8)
    parts = rw.PerHead([rw.RoPE(8), rw.NoPE()])(rw.Attention(q, q, q))
    assert rw.explain(parts, return_weights=True).count("dense: ") == 2
