"""The plain functions, held against loops over single numbers and against published formulas."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk import functional as F
from ropewalk.core.errors import ConfigError, PositionError, ShapeError

PAIRINGS = ("interleaved", "half")


def _by_loop(x, positions, pairing, base=10000.0, width=None):
    """RoPE as written in the paper, one pair at a time."""
    out, width = x.double().clone(), width or x.shape[-1]
    for n, h, t, i in itertools.product(*map(range, (*x.shape[:3], width // 2))):
        a, b = (2 * i, 2 * i + 1) if pairing == "interleaved" else (i, i + width // 2)
        phi = float(positions[n, t]) * base ** (-2 * i / width)
        u, v = float(x[n, h, t, a]), float(x[n, h, t, b])
        out[n, h, t, a] = u * math.cos(phi) - v * math.sin(phi)
        out[n, h, t, b] = u * math.sin(phi) + v * math.cos(phi)
    return out


# ---- frequencies and tables -----------------------------------------------------------------------------------------


def test_inverse_frequencies():
    got = F.inverse_frequencies(8, 500000.0)
    assert got.dtype == torch.float64
    assert got.tolist() == pytest.approx([500000.0 ** (-2 * i / 8) for i in range(4)], rel=1e-15)
    assert F.inverse_frequencies(2).tolist() == [1.0]
    with torch.device("meta"):
        assert F.inverse_frequencies(8).device.type == "cpu"  # numbers, also where a model is built without storage


@pytest.mark.parametrize("head_dim, base, match", [(7, 1e4, "even"), (0, 1e4, "even"), (-2, 1e4, "even")])
def test_inverse_frequencies_refuse_widths(head_dim, base, match):
    with pytest.raises(ConfigError, match=match):
        F.inverse_frequencies(head_dim, base)


@pytest.mark.parametrize("base", [0.0, -1.0, float("nan")])
def test_inverse_frequencies_refuse_bases(base):
    with pytest.raises(ConfigError, match="positive"):
        F.inverse_frequencies(8, base)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8, torch.float64, torch.float32])
def test_positions_of_every_dtype_and_shape(dtype):
    for shape in ((), (5,), (2, 5), (2, 3, 5), (0,)):
        positions = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
        cos, sin = F.rotary_tables(positions, head_dim=6)
        assert cos.shape == sin.shape == (*shape, 3) and cos.dtype == torch.float32
        angles = positions.double()[..., None] * F.inverse_frequencies(6)
        torch.testing.assert_close(cos.double(), angles.cos(), rtol=0, atol=1e-7)
        torch.testing.assert_close(sin.double(), angles.sin(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("pairing", [None, *PAIRINGS])
def test_tables_are_exact_far_out(dtype, pairing):
    ids = torch.tensor([0, 1, 256, 257, 10**6, 10**6 + 1, 10**7 - 1, 10**7])
    cos, sin = F.rotary_tables(ids, head_dim=64, dtype=dtype, pairing=pairing)
    assert cos.dtype == sin.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for row, t in enumerate(ids.tolist()):
        for i in (0, 1, 7, 31):
            phi = t * 10000.0 ** (-2 * i / 64)
            # beyond 2**-53 of phi itself Python's product of doubles knows no more than ours
            assert abs(float(cos[row, i]) - math.cos(phi)) <= 1e-7 and abs(float(sin[row, i]) - math.sin(phi)) <= 1e-7


def test_integer_ids_are_exact_up_to_2_to_the_53():
    ids = torch.tensor([2**53 - 1, 2**53])
    cos, _ = F.rotary_tables(ids, inv_freq=torch.ones(1, dtype=torch.float64), dtype=torch.float64)
    assert cos[:, 0].tolist() == pytest.approx([math.cos(2**53 - 1), math.cos(2**53)], abs=1e-12)


def test_own_frequencies_scale_and_gradients():
    positions, inv_freq = torch.arange(5), torch.rand(3, dtype=torch.float64)
    cos, sin = F.rotary_tables(positions, inv_freq=inv_freq, scale=1.5, dtype=torch.float64)
    angles = positions[:, None] * inv_freq
    torch.testing.assert_close(cos, 1.5 * angles.cos())
    torch.testing.assert_close(sin, 1.5 * angles.sin())
    # one ladder a head
    ladders = torch.rand(4, 1, 3, dtype=torch.float64)
    cos, _ = F.rotary_tables(positions.expand(2, 1, 5), inv_freq=ladders, dtype=torch.float64)
    assert cos.shape == (2, 4, 5, 3)
    torch.testing.assert_close(cos[1, 2], (positions[:, None] * ladders[2]).cos())
    # gradients, also through the rotation and also for real positions
    x = torch.randn(1, 2, 5, 6, dtype=torch.float64)
    where = torch.rand(5, dtype=torch.float64)

    def loss(inv_freq, where):
        return F.apply_rotary(x, *F.rotary_tables(where, inv_freq=inv_freq, dtype=x.dtype))

    assert torch.autograd.gradcheck(loss, (inv_freq.requires_grad_(), where.requires_grad_()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.complex64])
def test_positions_that_cannot_hold_ids(dtype):
    with pytest.raises(PositionError, match=str(dtype)):
        F.rotary_tables(torch.ones(5).to(dtype), head_dim=8)


def test_frequencies_are_given_once():
    ids, inv_freq = torch.arange(3), torch.ones(2)
    with pytest.raises(ConfigError, match="either head_dim"):
        F.rotary_tables(ids)
    with pytest.raises(ConfigError, match="not both"):
        F.rotary_tables(ids, head_dim=4, inv_freq=inv_freq)
    with pytest.raises(ConfigError, match=r"bfloat16.*float64"):
        F.rotary_tables(ids, inv_freq=inv_freq.bfloat16())
    with pytest.raises(ConfigError, match="even"):
        F.rotary_tables(ids, head_dim=5)


# ---- apply_rotary ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("width", [8, 4, 2])
def test_apply_rotary_equals_the_paper(pairing, width):
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    positions = torch.randint(0, 100_000, (2, 5))
    cos, sin = F.rotary_tables(positions, head_dim=width, dtype=x.dtype)
    want = _by_loop(x, positions, pairing, width=width)
    torch.testing.assert_close(F.apply_rotary(x, cos, sin, pairing), want, rtol=0, atol=1e-9)
    for shape in ((2, 1), (2, 3)):
        four = (t[:, None].expand(*shape, 5, width // 2) for t in (cos, sin))
        torch.testing.assert_close(F.apply_rotary(x, *four, pairing), want, rtol=0, atol=1e-9)
    same = positions[:1].expand(2, 5)
    two = (t[0] for t in (cos, sin))
    torch.testing.assert_close(
        F.apply_rotary(x, *two, pairing), _by_loop(x, same, pairing, width=width), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_apply_rotary_into_given_memory(pairing):
    x = torch.randn(2, 3, 5, 10)
    cos, sin = F.rotary_tables(torch.arange(10).view(2, 5), head_dim=8, pairing=pairing)
    want, out = F.apply_rotary(x, cos, sin, pairing), torch.empty_like(x)
    assert F.apply_rotary(x, cos, sin, pairing, out=out) is out
    torch.testing.assert_close(out, want)
    assert F.apply_rotary_(x, cos, sin, pairing) is x
    torch.testing.assert_close(x, want)
    with pytest.raises(ConfigError, match="requires grad"):
        F.apply_rotary_(x.requires_grad_(), cos, sin, pairing)
    with pytest.raises(ShapeError, match="share memory"):
        F.apply_rotary_(torch.randn(2, 1, 5, 10).expand(2, 3, 5, 10), cos, sin, pairing)


def test_default_pairing_is_interleaved():
    x, (cos, sin) = torch.randn(1, 2, 3, 4), F.rotary_tables(torch.arange(3), head_dim=4)
    assert torch.equal(F.apply_rotary(x, cos, sin), F.apply_rotary(x, cos, sin, "interleaved"))
    assert not torch.equal(F.apply_rotary(x, cos, sin), F.apply_rotary(x, cos, sin, "half"))


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_scores_depend_on_distances_alone(pairing):
    q, k = torch.randn(2, 1, 2, 6, 8, dtype=torch.float64).unbind(0)

    def scores(shift):
        cos, sin = F.rotary_tables(torch.arange(6) + shift, head_dim=8, dtype=q.dtype)
        return F.apply_rotary(q, cos, sin, pairing) @ F.apply_rotary(k, cos, sin, pairing).mT

    torch.testing.assert_close(scores(0), scores(100_000), rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_dtype_and_autocast(dtype):
    x, (cos, sin) = torch.randn(1, 2, 3, 4).to(dtype), F.rotary_tables(torch.arange(3), head_dim=4, dtype=dtype)
    y = F.apply_rotary(x, cos, sin)
    assert y.dtype == dtype
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(F.apply_rotary(x, *F.rotary_tables(torch.arange(3), head_dim=4, dtype=dtype)), y)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles_whole(backend):
    torch._dynamo.reset()

    def both(x, ids):
        cos, sin = F.rotary_tables(ids, head_dim=8)
        return F.apply_rotary(x, cos, sin) + F.rotary_embedding(x, cos, sin)

    compiled = torch.compile(both, backend=backend, fullgraph=True)
    for seq in (4, 7):
        x, ids = torch.randn(1, 2, seq, 8), torch.arange(seq)
        torch.testing.assert_close(compiled(x, ids), both(x, ids))


def test_vmap():
    x, (cos, sin) = torch.randn(3, 1, 2, 5, 8), F.rotary_tables(torch.arange(5), head_dim=8)
    for name in ("apply_rotary", "rotary_embedding"):
        turn = getattr(F, name)
        want = torch.stack([turn(each, cos, sin) for each in x])
        torch.testing.assert_close(torch.func.vmap(turn, (0, None, None))(x, cos, sin), want)
    ids = torch.randint(0, 5, (3, 1, 5))
    want = torch.stack([F.rotary_embedding(each, cos, sin, i) for each, i in zip(x, ids, strict=True)])
    got = torch.func.vmap(F.rotary_embedding, (0, None, None, 0))(x, cos, sin, ids)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "x, table, match",
    [
        ((2, 5, 8), (5, 4), r"x is \(2, 5, 8\).*unflatten"),
        ((1, 2, 5, 8), (6, 4), "seq = 5.*start"),
        ((1, 5, 2, 8), (5, 4), r"transpose\(1, 2\)"),
        ((1, 2, 5, 8), (4,), r"cos is \(4,\)"),
        ((2, 3, 5, 8), (3, 5, 4), "broadcast"),
        ((2, 3, 5, 8), (2, 2, 5, 4), "broadcast"),
        ((1, 2, 5, 8), (5, 8), "not tables repeated"),
        ((1, 2, 5, 8), (1, 1, 1, 5, 4), "allowed are"),
    ],
)
def test_apply_rotary_refuses(x, table, match):
    with pytest.raises(ShapeError, match=match):
        F.apply_rotary(torch.randn(x), torch.randn(table), torch.randn(table))


def test_apply_rotary_refuses_unequal_tables_and_unknown_pairings():
    x, (cos, sin) = torch.randn(1, 2, 5, 8), F.rotary_tables(torch.arange(5), head_dim=8)
    with pytest.raises(ShapeError, match="sin is"):
        F.apply_rotary(x, cos, sin[:4])
    with pytest.raises(ShapeError, match="one shape"):
        F.apply_rotary(x, cos, sin[:, :3])
    with pytest.raises(ConfigError, match="Did you mean 'half'"):
        F.apply_rotary(x, cos, sin, "neox")


# ---- the spelling proposed for torch --------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved, pairing", [(False, "half"), (True, "interleaved")])
@pytest.mark.parametrize("dim", [None, 4])
def test_rotary_embedding(interleaved, pairing, dim):
    x, ids = torch.randn(2, 3, 5, 8, dtype=torch.float64), torch.tensor([[4, 0, 9, 9, 1], [0, 1, 2, 3, 4]])
    caches = F.rotary_tables(torch.arange(10), head_dim=dim or 8, dtype=x.dtype)
    want = _by_loop(x, ids, pairing, width=dim or 8)
    near = {"rtol": 0, "atol": 1e-12}
    torch.testing.assert_close(F.rotary_embedding(x, *caches, ids, interleaved, dim), want, **near)
    torch.testing.assert_close(
        F.rotary_embedding(x, *caches, position_ids=ids.int(), interleaved=interleaved, dim=dim), want, **near
    )
    gathered = [t[ids] for t in caches]
    for tables in (gathered, [t[:, None] for t in gathered]):
        torch.testing.assert_close(F.rotary_embedding(x, *tables, interleaved=interleaved, dim=dim), want, **near)
    want = _by_loop(x, ids[:1].expand(2, 5), pairing, width=dim or 8)
    torch.testing.assert_close(F.rotary_embedding(x, *caches, ids[0], interleaved, dim), want, **near)
    for tables in ([t[0] for t in gathered], [t[:1] for t in gathered]):
        torch.testing.assert_close(F.rotary_embedding(x, *tables, interleaved=interleaved, dim=dim), want, **near)


def test_rotary_embedding_by_default_turns_halves():
    """The formula of Hugging Face, which torch proposes as default."""
    x, (cos, sin) = torch.randn(2, 3, 5, 8), F.rotary_tables(torch.arange(5), head_dim=8)
    a, b = x.chunk(2, -1)
    twice = [torch.cat((t, t), -1) for t in (cos, sin)]
    want = x * twice[0] + torch.cat((-b, a), -1) * twice[1]
    torch.testing.assert_close(F.rotary_embedding(x, cos, sin), want)


@pytest.mark.parametrize(
    "x, cos, ids, dim, error, match",
    [
        ((2, 5, 24), (5, 4), None, None, ShapeError, r"input is \(2, 5, 24\)"),
        ((2, 3, 5, 8), (5, 8), None, None, ShapeError, "repeated to the full width"),
        ((2, 3, 5, 8), (5, 2), None, None, ShapeError, "dim=2P"),
        ((2, 3, 5, 8), (), None, None, ShapeError, "turns 0 channels"),
        ((2, 3, 5, 7), (5, 3), None, None, ConfigError, "giving dim"),
        ((2, 3, 5, 8), (5, 2), None, 5, ConfigError, "even widths"),
        ((2, 3, 5, 8), (5, 5), None, 10, ConfigError, "to head_dim 8"),
        ((2, 3, 5, 8), (3, 5, 4), None, None, ShapeError, r"cos\[None\]"),
        ((2, 3, 5, 8), (2, 5, 4), [[0, 1, 2, 3, 4]] * 2, None, ShapeError, "must be caches"),
        ((2, 3, 5, 8), (9, 4), [[0, 1, 2, 3]] * 2, None, ShapeError, "seq = 5"),
        ((2, 3, 5, 8), (9, 4), [[0.0, 1, 2, 3, 4]] * 2, None, PositionError, "indexed by integers"),
        ((2, 3, 5, 8), (9, 4), [[0, 1, 2, 3, 9]] * 2, None, PositionError, "from 0 to 9.*0 to 8"),
        ((2, 3, 5, 8), (9, 4), [[-1, 1, 2, 3, 4]] * 2, None, PositionError, "from -1"),
        ((2, 3, 5, 8), (9, 4), [[0, 1, 2, 3, 4]] * 3, None, ShapeError, "broadcast"),
    ],
)
def test_rotary_embedding_refuses(x, cos, ids, dim, error, match):
    table = torch.randn(cos)
    with pytest.raises(error, match=match):
        F.rotary_embedding(torch.randn(x), table, table, None if ids is None else torch.tensor(ids), dim=dim)


# ---- convert_pairing ------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    heads=st.integers(1, 4),
    pairs=st.integers(1, 5),
    rest=st.integers(0, 3),
    columns=st.sampled_from([(), (3,), (2, 2)]),
    seed=st.integers(0, 1000),
)
def test_convert_pairing_moves_rows_as_documented(heads, pairs, rest, columns, seed):
    head_dim = 2 * pairs + rest
    rotary_dim = 2 * pairs if rest or seed % 2 else None
    weight = torch.randn(heads * head_dim, *columns, generator=torch.Generator().manual_seed(seed))
    half = F.convert_pairing(weight, heads, "interleaved", "half", rotary_dim=rotary_dim)
    for h in range(heads):
        old, new = (w[h * head_dim : (h + 1) * head_dim] for w in (weight, half))
        for i in range(pairs):
            assert torch.equal(new[i], old[2 * i]) and torch.equal(new[i + pairs], old[2 * i + 1])
        assert torch.equal(new[2 * pairs :], old[2 * pairs :])
    assert torch.equal(F.convert_pairing(half, heads, "half", "interleaved", rotary_dim=rotary_dim), weight)
    there = F.convert_pairing(weight, heads, "half", "interleaved", rotary_dim=rotary_dim)
    assert torch.equal(F.convert_pairing(there, heads, "interleaved", "half", rotary_dim=rotary_dim), weight)


@pytest.mark.parametrize("frm, to", list(itertools.product(PAIRINGS, PAIRINGS)))
@pytest.mark.parametrize("rotary_dim", [None, 4])
def test_converted_weights_give_the_same_logits(frm, to, rotary_dim):
    """Grouped heads, weights and biases; rotated q and k are the same numbers in another order."""
    heads, kv_heads, head_dim, hidden = 4, 2, 8, 12
    x, ids = torch.randn(2, 5, hidden, dtype=torch.float64), torch.arange(5) * 1000
    tables = F.rotary_tables(ids, head_dim=rotary_dim or head_dim, dtype=x.dtype)

    def logits(pairing, convert):
        torch.manual_seed(1)
        sides = []
        for n in (heads, kv_heads):
            weight = torch.randn(n * head_dim, hidden, dtype=torch.float64)
            bias = torch.randn(n * head_dim, dtype=torch.float64)
            if convert:
                weight, bias = (F.convert_pairing(w, n, frm, to, rotary_dim=rotary_dim) for w in (weight, bias))
            y = torch.nn.functional.linear(x, weight, bias).unflatten(-1, (n, head_dim)).transpose(1, 2)
            sides.append(F.apply_rotary(y, *tables, pairing).repeat_interleave(heads // n, 1))
        return sides[0] @ sides[1].mT

    torch.testing.assert_close(logits(to, convert=True), logits(frm, convert=False), rtol=0, atol=1e-12)


def test_convert_pairing_copies():
    weight = torch.randn(8, 3)
    for to in PAIRINGS:
        out = F.convert_pairing(weight, 2, "half", to)
        assert out.data_ptr() != weight.data_ptr() and out.is_contiguous() and out.shape == weight.shape


@pytest.mark.parametrize(
    "shape, heads, frm, rotary_dim, error, match",
    [
        ((10, 3), 4, "half", None, ShapeError, "key heads"),
        ((), 4, "half", None, ShapeError, "key heads"),
        ((8, 3), 0, "half", None, ShapeError, "num_heads = 0"),
        ((6, 3), 2, "half", None, ConfigError, "give rotary_dim"),
        ((8, 3), 2, "half", 3, ConfigError, "even widths from 2 to 4"),
        ((8, 3), 2, "half", 6, ConfigError, "even widths"),
        ((8, 3), 2, "neox", None, ConfigError, "Did you mean 'half'"),
    ],
)
def test_convert_pairing_refuses(shape, heads, frm, rotary_dim, error, match):
    with pytest.raises(error, match=match):
        F.convert_pairing(torch.randn(shape), heads, frm, "interleaved", rotary_dim=rotary_dim)
