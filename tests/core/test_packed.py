"""Rotations of packed documents by PyTorch's own operations; the kernel is held against the same in tests/backends."""

from __future__ import annotations

import pytest
import torch

from ropewalk import functional as F
from ropewalk.core.errors import ConfigError, PositionError, ShapeError

LENGTHS = (3, 0, 6, 1)
ENDS = torch.tensor([0, 3, 3, 9, 10], dtype=torch.int32)
PAIRINGS = ("interleaved", "half")


def tables(rows=12, pairs=4, heads=(), dtype=torch.float32):
    torch.manual_seed(1)
    angles = 6 * torch.rand(*heads, rows, pairs, dtype=torch.float64)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def test_positions_begin_anew():
    want = [i for n in LENGTHS for i in range(n)]
    for dtype in (torch.int32, torch.int64):
        got = F.packed_positions(ENDS.to(dtype))
        assert got.tolist() == want and got.dtype == torch.int64
    assert F.packed_positions(ENDS, 10).tolist() == want
    offsets = torch.tensor([0, 4, 2, 9])
    after = [i + int(o) for n, o in zip(LENGTHS, offsets, strict=True) for i in range(n)]
    assert F.packed_positions(ENDS, offsets=offsets).tolist() == after
    assert F.packed_positions(torch.tensor([0, 0])).tolist() == []


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("heads", [(), (1,), (2,)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_equals_each_document_alone(pairing, heads, dtype):
    cos, sin = tables(heads=heads, dtype=torch.promote_types(dtype, torch.float32))
    joint = torch.randn(10, 3, 2, 9, dtype=torch.float64).to(dtype)
    x, before = joint[:, 1], joint.clone()
    y = F.apply_rotary_packed(x, cos, sin, pairing, cu_seqlens=ENDS)
    assert y.shape == x.shape and y.dtype == dtype and torch.equal(joint, before)
    start = 0
    for n in LENGTHS:
        alone = x[start : start + n].transpose(0, 1)[None]
        own = [t[..., :n, :][None] if heads else t[:n] for t in (cos, sin)]
        want = F.apply_rotary(alone, *own, pairing)[0].transpose(0, 1)
        eps = torch.finfo(dtype).eps  # sums may be rounded otherwise where memory is aligned otherwise
        torch.testing.assert_close(y[start : start + n], want, rtol=eps, atol=2 * eps)
        start += n
    positions = F.packed_positions(ENDS).int()
    assert F.apply_rotary_packed_(x, cos, sin, pairing, positions=positions) is x
    assert torch.equal(x, y) and torch.equal(joint[:, ::2], before[:, ::2])


@pytest.mark.parametrize("in_place", [False, True])
def test_gradients(in_place):
    cos, sin = tables(dtype=torch.float64)
    joint = torch.randn(10, 3, 2, 9, dtype=torch.float64, requires_grad=True)

    def turned(joint):
        if not in_place:
            return F.apply_rotary_packed(joint[:, 1], cos, sin, cu_seqlens=ENDS)
        joint = 1 * joint
        F.apply_rotary_packed_(joint[:, 1], cos, sin, cu_seqlens=ENDS)
        return joint

    assert torch.autograd.gradcheck(turned, joint, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda joint: turned(joint) ** 2, joint, fast_mode=True)


def test_gradients_of_tables_that_learn():
    angles = torch.rand(12, 4, dtype=torch.float64, requires_grad=True)
    x = torch.randn(10, 2, 8, dtype=torch.float64)
    turn = lambda a: F.apply_rotary_packed(x, a.cos(), a.sin(), cu_seqlens=ENDS)  # noqa: E731
    assert torch.autograd.gradcheck(turn, angles, fast_mode=True)


@pytest.mark.parametrize("in_place", [False, True])
def test_compiles_to_one_graph_and_refuses_there_too(in_place):
    torch._dynamo.reset()
    cos, sin = tables()
    call = F.apply_rotary_packed_ if in_place else F.apply_rotary_packed

    def step(x, ends):
        return call(2 * x, cos, sin, cu_seqlens=ends)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=True)
    x = torch.randn(10, 2, 8)
    torch.testing.assert_close(compiled(x, ENDS), step(x, ENDS), rtol=0, atol=1e-6)
    y = torch.randn(8, 2, 8)
    torch.testing.assert_close(compiled(y, ENDS[:3] * 8 // 3), step(y, ENDS[:3] * 8 // 3), rtol=0, atol=1e-6)
    with pytest.raises(RuntimeError, match="does not rise"):
        compiled(x, torch.tensor([0, 5, 4, 9, 10]))
    z = torch.randn(13, 2, 8)
    with pytest.raises(RuntimeError, match="rows of the tables"):
        compiled(z, torch.tensor([0, 13]))


@pytest.mark.parametrize(
    ("ends", "match"),
    [
        ([1, 3, 10], "rise from 0"),
        ([0, 7, 3, 10], "rise from 0"),
        ([0, 3, 9], "number of tokens, 10"),
        ([0, 3, 11], "number of tokens, 10"),
        ([0], "1-D, integer"),
        ([[0, 10]], "1-D, integer"),
        ([0.0, 10.0], "1-D, integer"),
        ([False, True], "1-D, integer"),
    ],
)
def test_lengths_that_cannot_be(ends, match):
    cos, sin = tables()
    for call in (F.apply_rotary_packed, F.apply_rotary_packed_):
        with pytest.raises(PositionError, match=match):
            call(torch.zeros(10, 2, 8), cos, sin, cu_seqlens=torch.tensor(ends))
    with pytest.raises(PositionError, match=match):
        F.packed_positions(torch.tensor(ends), 10)


def test_the_last_length_is_the_total_where_none_is_given():
    with pytest.raises(PositionError, match="rise from 0"):
        F.packed_positions(torch.tensor([0, 5, 3]))
    with pytest.raises(PositionError, match="rise from 0"):
        F.packed_positions(torch.tensor([2, 5]))
    for offsets, error, match in (
        (torch.zeros(3, dtype=torch.long), ShapeError, "the 4 documents"),
        (torch.zeros(4), PositionError, "give integers"),
    ):
        with pytest.raises(error, match=match):
            F.packed_positions(ENDS, offsets=offsets)


def test_what_cannot_be():
    cos, sin = tables()
    x, positions = torch.zeros(10, 2, 8), F.packed_positions(ENDS)
    for call in (F.apply_rotary_packed, F.apply_rotary_packed_):
        with pytest.raises(ShapeError, match=r"x\.flatten\(0, 1\)"):
            call(x[None], cos, sin, cu_seqlens=ENDS)
        with pytest.raises(ShapeError, match="max_position"):
            call(x, cos[None].expand(3, -1, -1), sin[None].expand(3, -1, -1), cu_seqlens=ENDS)
        with pytest.raises(ShapeError, match="max_position"):
            call(x, cos, sin[:4], cu_seqlens=ENDS)
        with pytest.raises(ConfigError, match=r"either cu_seqlens or positions$"):
            call(x, cos, sin)
        with pytest.raises(ConfigError, match="not both"):
            call(x, cos, sin, cu_seqlens=ENDS, positions=positions)
        with pytest.raises(PositionError, match="rows of the tables"):
            call(x, cos, sin, positions=positions.double())
        with pytest.raises(ShapeError, match="one a token"):
            call(x, cos, sin, positions=positions[:9])
        with pytest.raises(PositionError, match="from 0 to 5, the tables from 0 to 4"):
            call(x, cos[:5], sin[:5], cu_seqlens=ENDS)
        with pytest.raises(PositionError, match="run from -1"):
            call(x, cos, sin, positions=positions - 1)
        with pytest.raises(ConfigError, match="Did you mean 'half'"):
            call(x, cos, sin, "neox", cu_seqlens=ENDS)
        with pytest.raises(ShapeError, match="P = 5 pairs"):
            call(x, *tables(pairs=5), cu_seqlens=ENDS)
    with pytest.raises(ShapeError, match="share memory"):
        F.apply_rotary_packed_(x[:, :1].expand(10, 2, 8), cos, sin, cu_seqlens=ENDS)
    with pytest.raises(RuntimeError, match="leaf"):
        F.apply_rotary_packed_(x.requires_grad_(), cos, sin, cu_seqlens=ENDS)
