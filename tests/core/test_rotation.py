"""One rotation, many ways to compute it: all of them are compared with a loop over single numbers in float64."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from ropewalk.core import rotation
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.core.rotation import rotate, tables

PAIRINGS = ("interleaved", "half")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def _channels(pairing, i, pairs):
    return (2 * i, 2 * i + 1) if pairing == "interleaved" else (i, i + pairs)


def _by_loop(x, angles, pairing):
    """Every pair of every token on its own, with Python's cosines."""
    angles = angles.expand(*x.shape[:-1], angles.shape[-1])
    out = x.double().clone()
    for *where, i in itertools.product(*map(range, angles.shape)):
        a, b = ((*where, c) for c in _channels(pairing, i, angles.shape[-1]))
        phi, u, v = float(angles[(*where, i)]), float(x[a]), float(x[b])
        out[a] = u * math.cos(phi) - v * math.sin(phi)
        out[b] = u * math.sin(phi) + v * math.cos(phi)
    return out


def _reference(x, cos, sin, pairing, inverse=False):
    """The same for all pairs at once, in float64 (itself held against the loop)."""
    pairs = cos.shape[-1]
    x, cos, sin = x.double(), cos.double(), -sin.double() if inverse else sin.double()
    first, second = zip(*(_channels(pairing, i, pairs) for i in range(pairs)), strict=True)
    x = x.expand(torch.broadcast_shapes(x.shape[:-1], cos.shape[:-1]) + x.shape[-1:])
    a, b, out = x[..., list(first)], x[..., list(second)], x.clone()
    out[..., list(first)] = a * cos - b * sin
    out[..., list(second)] = a * sin + b * cos
    return out


def _angles(*shape, seed=0):
    return 20 * torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 10


def _tables(*shape, seed=0, dtype=torch.float64, **hint):
    return tables(_angles(*shape, seed=seed), dtype, **hint)


def _close(y, want):
    """As near as the dtype of y allows after one rounding."""
    assert y.shape == want.shape
    if y.dtype in (torch.bfloat16, torch.float16):
        eps = torch.finfo(y.dtype).eps
        assert ((y.double() - want).abs() <= 0.51 * eps * want.abs() + 1e-6).all()
    else:
        torch.testing.assert_close(y.double(), want, rtol=0, atol=1e-13 if y.dtype == torch.float64 else 2e-6)


@pytest.fixture(params=["at once", "in blocks"])
def blocks(request, monkeypatch):
    """Small tensors in one piece, and again in blocks as large ones are."""
    if request.param == "in blocks":
        monkeypatch.setattr(rotation, "_BLOCK", 16)


# ---- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dim", [6, 7, 10])
@pytest.mark.parametrize("shape", [(5, 3), (2, 1, 5, 3), (1, 4, 5, 3), (2, 4, 5, 3), (2, 1, 1, 3)])
def test_equals_the_loop(pairing, dim, shape, blocks):
    x, angles = torch.randn(2, 4, 5, dim, dtype=torch.float64), _angles(*shape)
    want = _by_loop(x, angles, pairing)
    _close(rotate(x, *tables(angles, x.dtype), pairing), want)
    _close(rotate(x, *tables(-angles, x.dtype), pairing, inverse=True), want)
    _close(_reference(x, angles.cos(), angles.sin(), pairing), want)


def _of_layout(layout, dtype, b=2, h=3, s=9, d=8):
    if layout == "contiguous":
        return torch.randn(b, h, s, d).to(dtype)
    if layout == "transposed":
        return torch.randn(b, s, h, d).to(dtype).transpose(1, 2)
    if layout == "slice of qkv":
        return torch.randn(b, s, 3, h, d).to(dtype)[:, :, 1].transpose(1, 2)
    if layout == "expanded heads":
        return torch.randn(b, 1, s, d).to(dtype).expand(b, h, s, d)
    if layout == "expanded everywhere":
        return torch.randn(1).to(dtype).expand(b, h, s, d)
    if layout == "channels not last in memory":
        return torch.randn(b, h, d, s).to(dtype).transpose(2, 3)
    if layout == "every other channel":
        return torch.randn(b, h, s, 2 * d).to(dtype)[..., ::2]
    if layout == "odd offset":
        return torch.randn(b * h * s * d + 1).to(dtype)[1:].view(b, h, s, d)
    if layout == "odd row length":
        return torch.randn(b, h, s, d + 1).to(dtype)[..., :d]
    if layout == "overlapping rows":
        return torch.randn(b * h * s + d).to(dtype).as_strided((b, h, s, d), (h * s, s, 1, 1))
    if layout == "one token, odd strides":
        return torch.randn(b, h, d, 1).to(dtype).transpose(2, 3)
    raise AssertionError(layout)


LAYOUTS = (
    "contiguous",
    "transposed",
    "slice of qkv",
    "expanded heads",
    "expanded everywhere",
    "channels not last in memory",
    "every other channel",
    "odd offset",
    "odd row length",
    "overlapping rows",
    "one token, odd strides",
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_every_layout_and_dtype(layout, dtype, pairing, blocks):
    x = _of_layout(layout, dtype)
    before = x.clone()
    b, h, s, d = x.shape
    for pairs, inverse in itertools.product((d // 2, 1), (False, True)):
        for lead in ((), (1, 1), (b, 1), (1, h), (b, h)):
            cos, sin = _tables(*lead, s, pairs, dtype=dtype)
            y = rotate(x, cos, sin, pairing, inverse=inverse)
            assert y.dtype == dtype
            _close(y, _reference(x, cos, sin, pairing, inverse))
            assert torch.equal(y[..., 2 * pairs :], x[..., 2 * pairs :])
    assert torch.equal(x, before)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "slice of qkv"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("hint", [None, "interleaved"])
def test_large_tensors(layout, dtype, pairing, hint):
    x = _of_layout(layout, dtype, b=2, h=8, s=701, d=64)
    for lead, pairs in (((1, 1), 32), ((2, 8), 32), ((1, 1), 12)):
        cos, sin = _tables(*lead, 701, pairs, dtype=dtype, pairing=hint)
        for inverse in (False, True):
            want = _reference(x, cos, sin, pairing, inverse)
            _close(rotate(x, cos, sin, pairing, inverse=inverse), want)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_one_token_is_a_row_of_many(pairing, blocks):
    """Decoding and prefill agree, to the last bit in float32."""
    x = torch.randn(2, 3, 40, 16)
    cos, sin = _tables(40, 8, dtype=x.dtype)
    whole = rotate(x, cos, sin, pairing)
    for t in (0, 17, 39):
        row = slice(t, t + 1)
        assert torch.equal(whole[:, :, row], rotate(x[:, :, row], cos[row], sin[row], pairing))


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_and_narrow(pairing, dtype):
    cos, sin = _tables(5, 4, dtype=dtype)
    for shape in ((0, 3, 5, 8), (2, 0, 5, 8), (5, 8)):
        assert rotate(torch.randn(shape).to(dtype), cos, sin, pairing).shape == shape
    assert rotate(torch.ones(2, 3, 0, 8, dtype=dtype), cos[:0], sin[:0], pairing).shape == (2, 3, 0, 8)
    x = torch.randn(8).to(dtype)
    _close(rotate(x, cos[0], sin[0], pairing), _reference(x, cos[0], sin[0], pairing))
    x = torch.randn(2, 3, 5, 8).to(dtype)
    y = rotate(x, cos[:, :0], sin[:, :0], pairing)
    assert torch.equal(y, x) and y.data_ptr() != x.data_ptr()


def test_dtype_of_the_arithmetic():
    x = torch.randn(1, 2, 5, 8, dtype=torch.float64)
    cos, sin = _tables(5, 4, dtype=torch.float32)
    assert cos.dtype == torch.float32
    for pairing in PAIRINGS:
        _close(rotate(x, cos, sin, pairing), _reference(x, cos, sin, pairing))  # float64 maths, float32 tables
        _close(rotate(x.float(), cos.double(), sin.double(), pairing), _reference(x.float(), cos, sin, pairing))
        rough = (t.bfloat16() for t in (cos, sin))
        _close(rotate(x, *rough, pairing), _reference(x, cos.bfloat16(), sin.bfloat16(), pairing))


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_autocast_changes_nothing(pairing, dtype, blocks):
    x, (cos, sin) = torch.randn(2, 3, 9, 8).to(dtype), _tables(9, 4, dtype=dtype)
    learned = cos.clone().requires_grad_()
    want, want_plain = rotate(x, cos, sin, pairing), rotate(x, learned, sin, pairing)
    for low in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=low):
            assert torch.equal(rotate(x, cos, sin, pairing), want)
            assert torch.equal(rotate(x, learned, sin, pairing), want_plain)


@settings(deadline=None, max_examples=40)
@given(data=st.data(), pairing=st.sampled_from(PAIRINGS))
def test_group_laws(data, pairing):
    number = st.integers
    lead = data.draw(st.lists(number(1, 3), max_size=2))
    seq, pairs, rest = data.draw(number(1, 6)), data.draw(number(1, 5)), data.draw(number(0, 3))
    x = torch.randn(*lead, seq, 2 * pairs + rest, dtype=torch.float64)
    big = data.draw(st.sampled_from([1.0, 1e3, 1e6]))
    a, b = big * _angles(seq, pairs, seed=1), big * _angles(seq, pairs, seed=2)

    def turn(x, angle, **how):
        return rotate(x, *tables(angle, x.dtype), pairing, **how)

    near = {"rtol": 0, "atol": 1e-12 + 1e-14 * big}  # the angles themselves are rounded
    y = turn(x, a)
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1), **near)
    torch.testing.assert_close(turn(y, b), turn(x, a + b), **near)
    torch.testing.assert_close(turn(y, a, inverse=True), x, **near)
    torch.testing.assert_close(turn(x, -a), turn(x, a, inverse=True), **near)


@settings(deadline=None, max_examples=30)
@given(pairs=st.integers(1, 6), rest=st.integers(0, 3), seed=st.integers(0, 1000))
def test_pairings_differ_by_a_permutation(pairs, rest, seed):
    x, (cos, sin) = torch.randn(2, 4, 2 * pairs + rest, dtype=torch.float64), _tables(4, pairs, seed=seed)
    order = [c for i in range(pairs) for c in _channels("half", i, pairs)] + list(range(2 * pairs, 2 * pairs + rest))
    torch.testing.assert_close(
        rotate(x[..., order], cos, sin, "interleaved"), rotate(x, cos, sin, "half")[..., order], rtol=0, atol=1e-14
    )


# ---- gradients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("pairs, lead", [(3, ()), (2, (2, 1)), (3, (2, 2))])
def test_gradient_of_x(pairing, inverse, pairs, lead, blocks):
    x = torch.randn(2, 2, 4, 6, dtype=torch.float64, requires_grad=True)
    cos, sin = _tables(*lead, 4, pairs)

    def turn(x):
        return rotate(x, cos, sin, pairing, inverse=inverse)

    assert torch.autograd.gradcheck(turn, x)
    assert torch.autograd.gradgradcheck(lambda x: turn(x) ** 2, x)
    assert torch.autograd.gradcheck(lambda x: turn(x.transpose(1, 2).contiguous().transpose(1, 2)[..., :6]), x)


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("lead", [(), (1, 1), (2, 1), (1, 2), (2, 2)])
def test_gradient_of_tables(pairing, lead):
    """Also where the tables are broadcast, and where x needs none."""
    x = torch.randn(2, 2, 3, 6, dtype=torch.float64, requires_grad=True)
    angles = _angles(*lead, 3, 2).requires_grad_()
    cos, sin = (t.requires_grad_() for t in _tables(*lead, 3, 2))
    assert torch.autograd.gradcheck(lambda *t: rotate(*t, pairing), (x, cos, sin))
    assert torch.autograd.gradgradcheck(lambda *t: rotate(*t, pairing), (x, cos, sin))
    for hint in (None, pairing):
        turn = lambda a: rotate(x.detach(), *tables(a, x.dtype, 1.5, hint), pairing, inverse=True)  # noqa: B023, E731
        assert torch.autograd.gradcheck(turn, angles)


def test_learned_frequencies_of_a_low_precision_model():
    x = torch.randn(2, 2, 5, 8, dtype=torch.bfloat16, requires_grad=True)
    inv_freq = torch.rand(4, requires_grad=True)
    angles = torch.arange(5, dtype=torch.float64)[:, None] * inv_freq
    rotate(x, *tables(angles, x.dtype), "half").float().pow(3).sum().backward()
    assert inv_freq.grad is not None and inv_freq.grad.abs().min() > 0 and inv_freq.grad.dtype == torch.float32
    assert x.grad is not None and x.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_backward_is_the_rotation_back(pairing, dtype, blocks):
    x, (cos, sin) = torch.randn(2, 3, 9, 8).to(dtype).requires_grad_(), _tables(9, 3, dtype=dtype)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        y = rotate(x, cos, sin, pairing)
    assert kept == [cos.shape, sin.shape]  # x itself is not kept alive
    up = torch.randn_like(y)
    (got,) = torch.autograd.grad(y, x, up, retain_graph=True)
    assert torch.equal(got, rotate(up, cos, sin, pairing, inverse=True))
    (got,) = torch.autograd.grad(y.sum(), x)  # the gradient of a sum has stride 0
    _close(got, _reference(torch.ones_like(x), cos, sin, pairing, inverse=True))


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_result_may_be_changed_in_place(pairing):
    x, (cos, sin) = torch.randn(1, 2, 5, 8, requires_grad=True), _tables(5, 4, dtype=torch.float32)
    rotate(x, cos, sin, pairing).mul_(2).sum().backward()
    torch.testing.assert_close(x.grad, 2 * rotate(torch.ones(1, 2, 5, 8), cos, sin, pairing, inverse=True))
    with torch.inference_mode():
        rotate(x, cos, sin, pairing).mul_(2)


# ---- what looks at the operations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles_to_one_graph(pairing, backend):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, cos, sin: rotate(x, cos, sin, pairing, inverse=True), backend=backend, fullgraph=True
    )
    for seq, dtype in ((4, torch.float32), (9, torch.float32), (9, torch.bfloat16)):
        x, (cos, sin) = torch.randn(2, 3, seq, 10).to(dtype).requires_grad_(), _tables(seq, 4, dtype=dtype)
        y = compiled(x, cos, sin)
        _close(y, _reference(x, cos, sin, pairing, inverse=True))
        up = torch.randn_like(y)
        (got,) = torch.autograd.grad(y, x, up)
        _close(got, _reference(up, cos, sin, pairing))


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_compiled_tables_learn(pairing):
    torch._dynamo.reset()

    def loss(x, angles):
        return rotate(x, *tables(angles, x.dtype, 2.0, pairing), pairing).pow(3).sum()

    x, angles = torch.randn(2, 3, 4, 8), _angles(4, 4).requires_grad_()
    want = torch.autograd.grad(loss(x, angles), angles)
    got = torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(x, angles), angles)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_exports_with_any_length(pairing):
    class Turn(torch.nn.Module):
        def forward(self, x, angles):
            return rotate(x, *tables(angles, x.dtype), pairing)

    seq = torch.export.Dim("seq", min=2, max=64)
    args = (torch.randn(1, 2, 6, 8), _angles(6, 3))
    program = torch.export.export(Turn(), args, dynamic_shapes=({2: seq}, {0: seq}))
    x, angles = torch.randn(1, 2, 11, 8), _angles(11, 3)
    _close(program.module()(x, angles), _reference(x, angles.cos(), angles.sin(), pairing))


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_function_transforms(pairing):
    x, (cos, sin) = torch.randn(5, 2, 4, 8, dtype=torch.float64), _tables(4, 3)
    want = _reference(x, cos, sin, pairing)
    turn = lambda x, cos=cos, sin=sin: rotate(x, cos, sin, pairing)  # noqa: E731

    _close(torch.func.vmap(turn)(x), want)
    _close(torch.func.vmap(turn, in_dims=1, out_dims=1)(x), want)
    many_cos, many_sin = _tables(5, 1, 4, 3)
    _close(torch.func.vmap(turn)(x, many_cos, many_sin), _reference(x, many_cos, many_sin, pairing))
    _close(torch.func.vmap(turn, (None, 0, 0))(x[0], many_cos, many_sin), _reference(x[0], many_cos, many_sin, pairing))

    def loss(x):
        return turn(x).pow(3).sum()

    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(x), gradient)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(x), gradient)  # per sample

    tangent = torch.randn_like(x)
    want = _reference(tangent, cos, sin, pairing)
    _close(torch.func.jvp(turn, (x,), (tangent,))[1], want)
    with torch.autograd.forward_ad.dual_level():
        dual = turn(torch.autograd.forward_ad.make_dual(x, tangent))
        _close(torch.autograd.forward_ad.unpack_dual(dual).tangent, want)
    (batched,) = torch.autograd.grad(turn(leaf), leaf, torch.stack([tangent, x]), is_grads_batched=True)
    _close(batched, _reference(torch.stack([tangent, x]), cos, sin, pairing, inverse=True))


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_without_storage(pairing):
    from torch._subclasses.fake_tensor import FakeTensorMode

    for mode in (torch.device("meta"), FakeTensorMode()):
        with mode:
            x = torch.empty(2, 3, 5, 10, dtype=torch.bfloat16, requires_grad=True)
            cos, sin = tables(torch.empty(5, 4, dtype=torch.float64), x.dtype, pairing=pairing)
            y = rotate(x, cos, sin, pairing)
            assert y.shape == x.shape and y.dtype == x.dtype and y.device == x.device
            y.sum().backward()


# ---- into given memory ----------------------------------------------------------------------------------------------


def _fused(x):
    """Return x as a part of a fused projection: strided, and at an odd offset where the width is odd."""
    fused = torch.zeros(*x.shape[:-1], 3 * x.shape[-1], dtype=x.dtype)
    part = fused[..., x.shape[-1] : 2 * x.shape[-1]]
    return part.copy_(x), fused


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [8, 11])
@pytest.mark.parametrize("lead", [(1, 1), (2, 3)])
def test_in_place_and_out(lead, dim, dtype, pairing, inverse, blocks):
    x = torch.randn(2, 3, 9, dim).to(dtype)
    cos, sin = _tables(*lead, 9, 4, pairing=pairing, dtype=dtype)
    want = _reference(x, cos, sin, pairing, inverse)
    for out in (torch.full_like(x, torch.nan), torch.full_like(x, torch.nan).mT.contiguous().mT, _fused(x)[0]):
        before = x.clone()
        assert rotate(x, cos, sin, pairing, inverse=inverse, out=out) is out
        _close(out, want)
        assert torch.equal(x, before)
    part, fused = _fused(x)
    for y in (x.clone(), x.transpose(1, 2).contiguous().transpose(1, 2), part):
        where = y.data_ptr()
        assert rotate(y, cos, sin, pairing, inverse=inverse, out=y) is y
        assert y.data_ptr() == where
        _close(y, want)
    assert not fused[..., :dim].any() and not fused[..., 2 * dim :].any()  # the neighbours were not touched


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_in_place_needs_no_memory_that_grows(pairing, monkeypatch):
    monkeypatch.setattr(rotation, "_BLOCK", 1024)
    largest = []

    class Largest(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.untyped_storage().data_ptr() not in known:
                largest.append(out.untyped_storage().nbytes())
            return out

    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(1, 4, 4096, 16).to(dtype)
        cos, sin = _tables(4096, 8, dtype=dtype, pairing=pairing)
        known = {t.untyped_storage().data_ptr() for t in (x, cos, sin)}
        with Largest():
            rotate(x, cos, sin, pairing, out=x)
    assert max(largest, default=0) <= 4 * 4 * 1024 * torch.get_num_threads()


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_in_place_under_transforms_and_without_storage(pairing):
    x = torch.randn(2, 3, 5, 8)
    cos, sin = _tables(5, 4, dtype=torch.float32, pairing=pairing)
    want = rotate(x, cos, sin, pairing)
    compiled = torch.compile(lambda t: rotate(t, cos, sin, pairing, out=t), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x.clone()), want)
    mapped = torch.func.vmap(lambda t: rotate(t, cos, sin, pairing, out=t))(x.clone())
    torch.testing.assert_close(mapped, want)
    meta = [t.to("meta") for t in (x, cos, sin)]
    assert rotate(*meta, pairing, out=meta[0]) is meta[0]


def test_in_place_refuses():
    cos, sin = _tables(5, 4, dtype=torch.float32)
    x = torch.randn(2, 3, 5, 8)
    with pytest.raises(ConfigError, match="x requires grad"):
        rotate(x.clone().requires_grad_(), cos, sin, "half", out=torch.empty_like(x))
    learned = x.clone().requires_grad_()
    with pytest.raises(ConfigError, match="no_grad"):
        rotate(learned, cos, sin, "half", out=learned)
    with pytest.raises(ConfigError, match="out requires grad"):
        rotate(x, cos, sin, "half", out=learned)
    with pytest.raises(ConfigError, match="cos or sin requires grad"):
        rotate(x, cos.clone().requires_grad_(), sin, "half", out=x)
    with torch.no_grad():
        want = rotate(learned, cos, sin, "half")
        torch.testing.assert_close(rotate(learned, cos, sin, "half", out=learned).detach(), want)
    for shared in (
        x[:, :1].expand(2, 3, 5, 8),
        torch.randn(5, 8).expand(2, 3, 5, 8),
        torch.randn(2, 3, 12).unfold(2, 8, 1),
    ):
        with pytest.raises(ShapeError, match="share memory"):
            rotate(shared, cos, sin, "half", out=shared)
    with pytest.raises(ShapeError, match="alike"):
        rotate(x, cos, sin, "half", out=torch.empty(2, 3, 5, 9))
    with pytest.raises(ShapeError, match="alike"):
        rotate(x, cos, sin, "half", out=torch.empty(2, 3, 5, 8, dtype=torch.float64))
    both = torch.randn(3, 3, 5, 8)
    with pytest.raises(ShapeError, match="one stretch of memory"):
        rotate(both[:2], cos, sin, "half", out=both[1:])
    rotate(both[:1], cos, sin, "half", out=both[2:])  # in one storage, but apart


# ---- tables ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 10**6, 10**7 - 512])
@pytest.mark.parametrize("hint", [None, *PAIRINGS])
def test_tables_are_exact_far_out(start, hint):
    inv_freq = 10000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    angles = torch.arange(start, start + 512, dtype=torch.float64)[:, None] * inv_freq
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        cos, sin = tables(angles, dtype, pairing=hint)
        assert cos.dtype == sin.dtype == torch.float32
        assert (cos - angles.cos()).abs().max() <= 1e-7 and (sin - angles.sin()).abs().max() <= 1e-7
    cos, sin = tables(angles, torch.float64, pairing=hint)
    assert torch.equal(cos, angles.cos()) and torch.equal(sin, angles.sin())


@pytest.fixture
def added(monkeypatch):
    """Make tables of a few positions in the way of many, and count how often that way is taken."""
    monkeypatch.setattr(rotation, "_MANY_ANGLES", 1)
    monkeypatch.setattr(rotation, "_ADDED_BLOCK", 64)
    taken = []
    progression = rotation._progression

    def counted(*args):
        taken.append(args[:3])
        return progression(*args)

    monkeypatch.setattr(rotation, "_progression", counted)
    return taken


_IN_STEPS = {
    "counted": (torch.arange(100), (0, 1, 100)),
    "continued": (torch.arange(100)[None] + 999_950, (999_950, 1, 100)),
    "backwards": (50 - 3 * torch.arange(100), (50, -3, 100)),
    "interpolated": (torch.arange(100, dtype=torch.float64) / 3, (0, 1 / 3, 100)),
    "two rows": (torch.arange(40).expand(2, 40), (0, 1, 40)),
    "packed": (torch.cat([torch.arange(30), torch.arange(50), torch.arange(20)]), (0, 1, 50)),
    "padded": ((torch.arange(90) - 30).clamp(min=0)[None], (0, 1, 60)),
}


@pytest.mark.parametrize("hint", ["interleaved", "half", None])
@pytest.mark.parametrize("name", _IN_STEPS)
def test_tables_by_addition_are_those_of_the_angles(name, hint, added):
    position, (start, step, count) = _IN_STEPS[name]
    inv_freq = 10000.0 ** (-torch.arange(8, dtype=torch.float64) / 8)
    made = rotation.product_tables(position, inv_freq, torch.bfloat16, 1.25, hint)
    angles = position.double()[..., None] * inv_freq
    for table, exact in zip(made, (angles.cos(), angles.sin()), strict=True):
        assert table.dtype == torch.float32 and table.shape == (*position.shape, 8)
        assert (table.double() - 1.25 * exact).abs().max() < 1e-7
    assert added == [(start, pytest.approx(step), count)]
    if hint == "interleaved":
        assert made[1].data_ptr() - made[0].data_ptr() == 4


@pytest.mark.parametrize(
    "position, dtype",
    [
        (torch.arange(100), torch.float64),  # float64 problems are exact to their last bits
        (torch.arange(100) + 2**40, torch.float32),  # the angle itself is not known well enough to be split
        (torch.arange(100) ** 2, torch.float32),
        (torch.arange(100, dtype=torch.float64) + 0.3 * (torch.arange(100) % 2), torch.float32),
        (torch.zeros(100), torch.float32),
        (torch.full((100,), torch.nan), torch.float32),
        (torch.tensor([0.0] * 99 + [torch.inf]), torch.float32),
    ],
)
def test_other_positions_are_evaluated_one_by_one(position, dtype, added):
    inv_freq = 10000.0 ** (-torch.arange(8, dtype=torch.float64) / 8)
    made = rotation.product_tables(position, inv_freq, dtype)
    for table, exact in zip(made, tables(position.double()[:, None] * inv_freq, dtype), strict=True):
        torch.testing.assert_close(table, exact, rtol=0, atol=0, equal_nan=True)
    assert not added


def test_tables_by_addition_leave_gradients_and_graphs_alone(added):
    inv_freq = torch.linspace(0.1, 1, 8, dtype=torch.float64, requires_grad=True)
    cos, _ = rotation.product_tables(torch.arange(100), inv_freq, torch.float32)
    assert cos.requires_grad
    position = torch.arange(100, dtype=torch.float64, requires_grad=True)
    assert rotation.product_tables(position, inv_freq.detach(), torch.float32)[0].requires_grad
    compiled = torch.compile(rotation.product_tables, fullgraph=True, backend="eager")
    compiled(torch.arange(100), inv_freq.detach(), torch.float32)
    rotation.product_tables(torch.arange(100, device="meta"), inv_freq.detach().to("meta"), torch.float32)
    assert not added


def test_scale():
    angles = _angles(2, 3, 4)
    scale = torch.rand(2, 1, 1, dtype=torch.float64)
    for by in (1.25, scale, scale.float()):
        cos, sin = tables(angles, torch.float64, by)
        torch.testing.assert_close(torch.stack((cos, sin)), torch.stack((angles.cos(), angles.sin())) * by)


@pytest.mark.parametrize("lead", [(), (1, 1), (2, 3)])
def test_tables_side_by_side_are_one_complex_table(lead):
    cos, sin = _tables(*lead, 2048, 4, dtype=torch.float32, pairing="interleaved")
    plain = _tables(*lead, 2048, 4, dtype=torch.float32)
    assert torch.equal(cos, plain[0]) and torch.equal(sin, plain[1])
    for c, s in ((cos, sin), (cos[..., 3:, :], sin[..., 3:, :]), (cos[..., 1:], sin[..., 1:])):
        joined = rotation._cis(c, s)
        assert joined.data_ptr() == c.data_ptr()  # a view
        assert torch.equal(joined.real, c) and torch.equal(joined.imag, s)
    # what only looks alike is joined anew
    one = torch.randn(2 * 4096 + 4)
    shifted = one[1:-1].view(-1, 2).unbind(-1)
    for c, s in ((sin, cos), (cos, sin.clone()), plain, shifted):
        assert torch.equal(rotation._cis(c, s), torch.complex(c, s))


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given_name, meant",
    [
        ("half_split", "half"),
        ("half-split", "half"),
        ("neox", "half"),
        ("NeoX", "half"),
        ("halff", "half"),
        ("gptj", "interleaved"),
        ("interleave", "interleaved"),
        ("intrleaved", "interleaved"),
    ],
)
def test_unknown_pairing(given_name, meant):
    with pytest.raises(ConfigError, match=f"{given_name}.*interleaved.*half.*Did you mean '{meant}'"):
        rotate(torch.randn(1, 2, 3, 4), *_tables(3, 2), given_name)
    with pytest.raises(ConfigError, match="Did you mean"):
        rotation.check_pairing(given_name)


@pytest.mark.parametrize(
    "x, cos, sin, match",
    [
        ((1, 2, 3, 7), (3, 4), (3, 4), "2P = 8 channels, x has 7"),
        ((1, 2, 3, 8), (3, 8), (3, 8), "not tables repeated"),
        ((1, 2, 3, 8), (3, 4), (3, 3), "one shape"),
        ((1, 2, 3, 8), (5, 4), (5, 4), "broadcast"),
        ((1, 3, 2, 8), (3, 4), (3, 4), r"transpose\(1, 2\)"),
        ((2, 4, 3, 8), (2, 3, 4), (2, 3, 4), r"cos\[:, None\]"),
        ((1, 2, 3, 8), (2, 1, 3, 4), (2, 1, 3, 4), "broadcast"),
        ((3, 8), (1, 3, 4), (1, 3, 4), "broadcast"),
        ((), (3, 4), (3, 4), "channels, x has 0"),
        ((1, 2, 3, 8), (), (), "P = 0"),
    ],
)
def test_shapes_that_do_not_fit(x, cos, sin, match):
    with pytest.raises(ShapeError, match=match):
        rotate(torch.randn(x), torch.randn(cos), torch.randn(sin), "half")


def test_dtypes_that_do_not_fit():
    with pytest.raises(ShapeError, match="int64"):
        rotate(torch.ones(2, 3, 4, dtype=torch.int64), *_tables(3, 2), "half")
    with pytest.raises(ShapeError, match="complex64"):
        rotate(torch.ones(2, 3, 4, dtype=torch.complex64), *_tables(3, 2), "half")
    with pytest.raises(ShapeError, match=r"bfloat16.*float64"):
        tables(torch.ones(3, 2, dtype=torch.bfloat16), torch.float32)
