"""The Triton kernel of rotations against the pure path: on a GPU, or through Triton's interpreter (TRITON_INTERPRET=1).

Run by test_triton_rotary.py in a process of its own, because Triton decides when it is imported how kernels run.
"""

from __future__ import annotations

import os

import pytest
import torch

from ropewalk.core import packed, rotation, rotation_triton
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.core.rotation import tables
from ropewalk.core.rotation_triton import rotate, rotate_

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
PAIRINGS = ("interleaved", "half")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def normal(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=torch.float64, device=DEVICE).to(dtype)


def made(*shape, dtype=torch.float32, **hint):
    return tables(20 * torch.rand(shape, dtype=torch.float64, device=DEVICE) - 10, dtype, **hint)


def wanted(x, cos, sin, pairing, inverse=False):
    """The textbook formula in the dtype of the arithmetic, before the result is rounded to the dtype of x."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return rotation._plain(x.to(wide), cos.to(wide), sin.to(wide), pairing, inverse)


def agrees(got, want):
    """One rounding to the dtype of the result; the interpreter rounds to bfloat16 towards zero, devices to the nearest."""
    assert got.shape == want.shape
    if got.dtype == torch.bfloat16 and INTERPRETED:
        cut = (want.view(torch.int32) & -65536).view(torch.float32)
        # channels that pass through were numbers of bfloat16 and stay what they were
        assert torch.equal(got.float(), cut)
    elif got.dtype in (torch.bfloat16, torch.float16):
        eps = torch.finfo(got.dtype).eps
        assert ((got.float() - want).abs() <= 0.51 * eps * want.abs() + 1e-6).all()
    else:
        torch.testing.assert_close(got, want, rtol=0, atol=1e-13 if got.dtype == torch.float64 else 2e-6)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


# ---- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize(("pairs", "dim"), [(4, 8), (3, 6), (3, 9), (1, 7)])
def test_values(pairing, dtype, inverse, pairs, dim):
    x, (cos, sin) = normal(2, 3, 5, dim, dtype=dtype), made(5, pairs, dtype=dtype)
    kept = x.clone()
    y = rotate(x, cos, sin, pairing, inverse=inverse)
    agrees(y, wanted(x, cos, sin, pairing, inverse))
    assert y.dtype == dtype and torch.equal(x, kept)
    assert torch.equal(y[..., 2 * pairs :], x[..., 2 * pairs :])
    z = rotate_(x, cos, sin, pairing, inverse=inverse)
    assert z is x and torch.equal(x, y)


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize(
    "lead", [(), (1, 1), (2, 1), (1, 6), (2, 6)], ids=["shared", "ones", "per batch", "per head", "per both"]
)
@pytest.mark.parametrize("hint", [None, "interleaved"])
def test_tables_of_every_shape(pairing, lead, hint):
    x = normal(2, 6, 5, 8)
    cos, sin = made(*lead, 5, 3, pairing=hint)
    agrees(rotate(x, cos, sin, pairing), wanted(x, cos, sin, pairing))
    one = (cos[..., :1, :], sin[..., :1, :])  # one row for all tokens
    agrees(rotate(x, *one, pairing), wanted(x, *one, pairing))


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("shape", [(8,), (5, 8), (3, 5, 8), (1, 1, 1, 8), (4, 9, 1, 8), (1, 33, 1, 8), (3, 1, 70, 8)])
def test_sizes(pairing, shape, monkeypatch):
    monkeypatch.setattr(rotation_triton, "_CHANNELS", 128)  # several programs along the tokens
    x = normal(*shape)
    cos, sin = made(4) if len(shape) == 1 else made(shape[-2], 4)
    agrees(rotate(x, cos, sin, pairing), wanted(x, cos, sin, pairing))


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize(("pairs", "dim"), [(64, 128), (48, 96), (32, 128), (128, 256), (20, 100)])
def test_widths_of_models(pairing, pairs, dim):
    x, (cos, sin) = normal(1, 5, 19, dim, dtype=torch.bfloat16), made(19, pairs)
    agrees(rotate(x, cos, sin, pairing), wanted(x, cos, sin, pairing))


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_strides(pairing):
    b, h, s, d = 2, 3, 5, 8
    cos, sin = made(s, 4)
    layouts = {
        "transposed": normal(b, s, h, d).transpose(1, 2),
        "sequence first": normal(s, b, h, d).permute(1, 2, 0, 3),
        "part of a joint projection": normal(b, s, 3, h, d)[:, :, 1].transpose(1, 2),
        "every other channel": normal(b, h, s, 2 * d)[..., ::2],
        "channels before others": normal(b, h, d, s).transpose(2, 3),
        "odd offset": normal(b * h * s * d + 1)[1:].view(b, h, s, d),
    }
    for name, x in layouts.items():
        want = wanted(x, cos, sin, pairing)
        y = rotate(x, cos, sin, pairing)
        agrees(y, want)
        assert y.stride() == torch.empty_like(x).stride(), name
        assert torch.equal(rotate_(x, cos, sin, pairing), y), name
    expanded = normal(1, 1, s, d).expand(b, h, s, d)
    agrees(rotate(expanded, cos, sin, pairing), wanted(expanded, cos, sin, pairing))
    other = sin.t().contiguous().t()  # cos and sin with different strides
    x = normal(b, h, s, d)
    agrees(rotate(x, cos, other, pairing), wanted(x, cos, sin, pairing))


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_in_place_leaves_the_neighbours_alone(pairing):
    whole, (cos, sin) = normal(2, 3, 7, 12), made(5, 3)
    before = whole.clone()
    part = whole[:, :, 1:6, 2:10]
    want = wanted(part, cos, sin, pairing)
    rotate_(part, cos, sin, pairing)
    agrees(whole[:, :, 1:6, 2:10], want)
    whole[:, :, 1:6, 2:8] = before[:, :, 1:6, 2:8]
    assert torch.equal(whole, before)


def test_dtypes_of_tables():
    x, (cos, sin) = normal(1, 2, 5, 8), made(5, 4, dtype=torch.float64)
    agrees(rotate(x, cos.bfloat16(), sin.half(), "half"), wanted(x, cos.bfloat16(), sin.half(), "half"))
    x = x.double()
    agrees(rotate(x, cos.float(), sin.float(), "half"), wanted(x, cos.float(), sin.float(), "half"))


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_nothing_to_turn(pairing):
    cos, sin = made(5, 4)
    for shape in ((0, 3, 5, 8), (2, 0, 5, 8)):
        assert rotate(normal(*shape), cos, sin, pairing).shape == shape
        assert rotate_(normal(*shape), cos, sin, pairing).shape == shape
    x = normal(2, 3, 5, 8)
    y = rotate(x, cos[:, :0], sin[:, :0], pairing)
    assert torch.equal(y, x) and y.data_ptr() != x.data_ptr()


@pytest.mark.skipif(INTERPRETED, reason="the kernel is taken for CUDA tensors, and the interpreter has none")
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_cuda_tensors_take_the_kernel(pairing, monkeypatch):
    taken = []
    monkeypatch.setattr(rotation_triton, "rotate", lambda *args, **how: taken.append(args) or rotate(*args, **how))
    x, (cos, sin) = normal(2, 3, 5, 8).requires_grad_(), made(5, 3)
    agrees(rotation.rotate(x, cos, sin, pairing), wanted(x, cos, sin, pairing))
    assert len(taken) == 1
    learned = cos.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(rotation.rotate(x, learned, sin, pairing).sum(), learned)
    assert gradient.abs().max() > 0 and len(taken) == 1  # tables that learn do not


# ---- rows by index --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("lead", [(), (2, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("batch", [None, 1, 2])
def test_rows_by_index(pairing, dtype, lead, batch):
    x, (cos, sin) = normal(2, 3, 5, 9), made(*lead, 11, 4)
    index = torch.randint(0, 11, (5,) if batch is None else (batch, 5), device=DEVICE, dtype=dtype)
    rows = index.long().expand(2, 5)
    each = [
        torch.stack([t.expand(2, 3, 11, 4)[b][:, rows[b]] for b in range(2)]) for t in (cos, sin)
    ]  # gathered one sequence at a time
    agrees(rotate(x, cos, sin, pairing, index=index), wanted(x, *each, pairing))
    want = wanted(x, *each, pairing)
    agrees(rotate_(x, cos, sin, pairing, index=index), want)


@pytest.fixture
def kernel(monkeypatch):
    """The kernel for packed documents wherever they lie, and a note of what it was called with."""
    called = []

    class Kernel:
        @staticmethod
        def rotate(x, *args, **how):
            called.append(how["index"])
            return rotate(x, *args, **how)

        @staticmethod
        def rotate_(x, *args, **how):
            called.append(how["index"])
            return rotate_(x, *args, **how)

    monkeypatch.setattr(packed, "_kernel", lambda *args: Kernel)
    return called


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("lead", [(), (1,), (2,)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_documents(pairing, lead, dtype, kernel):
    """(tokens, heads, head_dim) with documents of several lengths, one empty, equals each document alone."""
    lengths, offsets = [3, 0, 6, 1], [0, 4, 2, 9]
    ends = torch.tensor([0, 3, 3, 9, 10], dtype=torch.int32, device=DEVICE)
    joint, (cos, sin) = normal(10, 3, 2, 9, dtype=dtype), made(*lead, 12, 4, dtype=dtype)
    x, before = joint[:, 1], joint.clone()
    for shift in (None, torch.tensor(offsets, device=DEVICE)):
        positions = packed.packed_positions(ends, offsets=shift)
        y = packed.apply_rotary_packed(x, cos, sin, pairing, positions=positions)
        assert kernel[-1].shape == (10,) and torch.equal(joint, before)
        start = 0
        for length, offset in zip(lengths, offsets, strict=True):
            at = slice(0, length) if shift is None else slice(offset, offset + length)
            alone = x[start : start + length].transpose(0, 1)
            want = wanted(alone, cos[..., at, :], sin[..., at, :], pairing)
            agrees(y[start : start + length].transpose(0, 1), want)
            start += length
    short = packed.apply_rotary_packed(x, cos, sin, pairing, cu_seqlens=ends)
    assert packed.apply_rotary_packed_(x, cos, sin, pairing, cu_seqlens=ends) is x
    assert torch.equal(x, short) and torch.equal(joint[:, ::2], before[:, ::2])


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.usefixtures("kernel")
def test_gradients_of_packed_documents(in_place):
    ends = torch.tensor([0, 3, 4], device=DEVICE)
    cos, sin = made(3, 2, dtype=torch.float64)
    joint = normal(4, 3, 2, 5, dtype=torch.float64).requires_grad_()

    def turned(joint):
        if not in_place:
            return packed.apply_rotary_packed(joint[:, 1], cos, sin, cu_seqlens=ends)
        joint = 1 * joint
        packed.apply_rotary_packed_(joint[:, 1], cos, sin, cu_seqlens=ends)
        return joint

    assert torch.autograd.gradcheck(turned, joint, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda joint: turned(joint) ** 2, joint, fast_mode=True)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_rows_that_do_not_exist_become_nan(pairing):
    x, (cos, sin) = normal(1, 2, 4, 8), made(3, 3)
    y = rotate(x, cos, sin, pairing, index=torch.tensor([0, 3, 2, -1], device=DEVICE))
    assert y[:, :, [1, 3], :6].isnan().all() and not y[:, :, [0, 2]].isnan().any()
    assert torch.equal(y[..., 6:], x[..., 6:])


# ---- gradients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("lead", [(), (1, 2)])
def test_gradients(pairing, inverse, lead):
    x = normal(1, 2, 2, 5, dtype=torch.float64).requires_grad_()
    cos, sin = made(*lead, 2, 2, dtype=torch.float64)
    for turn in (rotate, lambda x, *rest, **how: rotate_(x.clone(), *rest, **how)):
        apply = lambda x: turn(x, cos, sin, pairing, inverse=inverse)  # noqa: B023, E731
        # along random directions: each call is slow in the interpreter
        assert torch.autograd.gradcheck(apply, x, fast_mode=True)
        assert torch.autograd.gradgradcheck(lambda x: apply(x) ** 2, x, fast_mode=True)  # noqa: B023


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_gradient_by_index_and_what_is_kept(pairing):
    x, (cos, sin) = normal(2, 3, 5, 8, dtype=torch.float16).requires_grad_(), made(9, 3)
    index, kept = torch.tensor([3, 3, 0, 8, 1], device=DEVICE), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        y = rotate(x, cos, sin, pairing, index=index)
    assert sorted(kept) == sorted([cos.shape, sin.shape, (1, 5)])  # x is not kept alive, nor any gathered table
    up = torch.randn_like(y)
    (got,) = torch.autograd.grad(y, x, up, retain_graph=True)
    assert torch.equal(got, rotate(up, cos, sin, pairing, index=index, inverse=True))
    (got,) = torch.autograd.grad(y.sum(), x)  # the gradient of a sum has stride 0
    agrees(got, wanted(torch.ones_like(x), cos[index], sin[index], pairing, inverse=True))


# ---- what looks at the operations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rotate", "rotate_"])
def test_operators_keep_their_promises(name):
    op = getattr(torch.ops.ropewalk, name).default
    cos, sin = made(5, 3)
    for x in (normal(2, 3, 5, 8), normal(2, 5, 3, 8).transpose(1, 2).requires_grad_(name == "rotate")):
        tests = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(op, (x, cos, sin, None, True, False), test_utils=tests)


@pytest.mark.parametrize("in_place", [False, True])
def test_compiles_to_one_graph(in_place):
    torch._dynamo.reset()

    def step(x, cos, sin):
        y = x * 2
        return (rotate_ if in_place else rotate)(y, cos, sin, "interleaved") + 1

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for seq in (4, 9):
        x, (cos, sin) = normal(2, 3, seq, 10).requires_grad_(), made(seq, 4)
        y = compiled(x, cos, sin)
        agrees(y, wanted(2 * x, cos, sin, "interleaved") + 1)
        up = torch.randn_like(y)
        (got,) = torch.autograd.grad(y, x, up)
        agrees(got, 2 * wanted(up, cos, sin, "interleaved", inverse=True))
        with torch.no_grad():
            agrees(compiled(x, cos, sin), wanted(2 * x, cos, sin, "interleaved") + 1)


def test_exports_with_any_length():
    class Turn(torch.nn.Module):
        def forward(self, x, cos, sin):
            return rotate(x, cos, sin, "half")

    seq = torch.export.Dim("seq", min=2, max=64)
    program = torch.export.export(
        Turn(), (normal(1, 2, 6, 8), *made(6, 3)), dynamic_shapes=({2: seq}, {0: seq}, {0: seq})
    )
    assert any(node.target is torch.ops.ropewalk.rotate.default for node in program.graph.nodes)
    x, (cos, sin) = normal(1, 2, 11, 8), made(11, 3)
    agrees(program.module()(x, cos, sin), wanted(x, cos, sin, "half"))


# ---- errors ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be():
    x, (cos, sin) = normal(2, 3, 5, 8), made(5, 4)
    for turn in (rotate, rotate_):
        with pytest.raises(ConfigError, match=r"neox.*Did you mean 'half'"):
            turn(x, cos, sin, "neox")
        with pytest.raises(ShapeError, match="broadcast"):
            turn(x, cos[:4], sin[:4], "half")
        with pytest.raises(ShapeError, match=r"\(1, 2, 3, 5, 8\).*Flatten"):
            turn(x[None], cos, sin, "half")
        with pytest.raises(ConfigError, match=r"rotation\.rotate.*detach"):
            turn(x, cos.clone().requires_grad_(), sin, "half")
        with pytest.raises(ShapeError, match=r"\(4,\) in torch.int64.*one row"):
            turn(x, cos, sin, "half", index=torch.arange(4, device=DEVICE))
        with pytest.raises(ShapeError, match=r"float32.*int32 and int64"):
            turn(x, cos, sin, "half", index=torch.ones(5, device=DEVICE))
        with pytest.raises(ShapeError, match=r"\(3, 5\)"):
            turn(x, cos, sin, "half", index=torch.zeros(3, 5, dtype=torch.int32, device=DEVICE))
        with pytest.raises(ShapeError, match=r"cos\[None\]"):
            turn(x, cos[0], sin[0], "half", index=torch.arange(5, device=DEVICE))
        with pytest.raises(ShapeError, match="same positions"):
            turn(x, cos, sin[:3], "half", index=torch.arange(5, device=DEVICE))
    with pytest.raises(ShapeError, match="share memory"):
        rotate_(x[:1].expand(2, 3, 5, 8), cos, sin, "half")
    with pytest.raises(RuntimeError, match="leaf"):
        rotate_(x.requires_grad_(), cos, sin, "half")
