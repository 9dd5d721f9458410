"""What an encoding is: the four thin bases, numbers that must not be cast, keys, `rotate`."""

from __future__ import annotations

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn

import ropewalk as rw
from ropewalk import (
    ALiBi,
    Attention,
    Bias,
    Coordinates,
    Embedding,
    Encoding,
    KVCache,
    Partial,
    PerHead,
    Positions,
    RoPE,
    Rotary,
    Scale,
    Sequential,
    Sinusoidal,
    attend,
)
from ropewalk.core.encoding import full_precision, table_dtype
from ropewalk.core.errors import (
    CannotEdit,
    ConfigError,
    NotRotation,
    PositionError,
    ShapeError,
    UnknownNameError,
)

# ---- four encodings in a few lines each: what a user writes ------------------------------------------------------


class MyRoPE(Rotary):
    def __init__(self, head_dim, pairing="interleaved"):
        super().__init__(pairing)
        self.head_dim = head_dim
        self.derive("inv_freq", self.frequencies)

    def frequencies(self):
        return 10_000.0 ** (-torch.arange(0, self.head_dim, 2, dtype=torch.float64, device="cpu") / self.head_dim)

    def angles(self, position):
        return position[..., None] * self.inv_freq


class MyALiBi(Bias):
    def per_head(self, num_heads):
        return {"slope": 2.0 ** -torch.arange(1.0, num_heads + 1, dtype=torch.float64)}

    def bias(self, i, j, slope):
        return -slope * (i - j)

    def factors(self, i, j, slope):
        return (-slope * i, 1.0), (slope, j)


class MyScale(Coordinates):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def map(self, position):
        return position / self.factor


class MySinusoidal(Embedding):
    def table(self, position):
        return torch.stack([position.sin(), position.cos(), 0 * position], -1)


class Learned(Rotary):
    """Frequencies that are learned."""

    def __init__(self, pairs=4):
        super().__init__()
        self.freq = nn.Parameter(torch.linspace(1.0, 0.1, pairs))

    def angles(self, position):
        return position[..., None] * self.freq.double()


class PerKeyHead(Rotary):
    """(b, H_kv, S, P) angles: key heads turn at rates of their own."""

    def __init__(self, kv_heads=2, pairs=4):
        super().__init__()
        self.rates = tuple(1.0 + h for h in range(kv_heads))
        self.pairs = pairs

    def angles(self, position):
        rates = torch.tensor(self.rates, dtype=torch.float64, device="cpu").to(position.device)[None, :, None, None]
        return position[:, None, :, None] * rates * torch.ones(self.pairs, dtype=torch.float64)


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_three_line_rope(pairing, problem, agree):
    p = problem()
    agree(attend(MyRoPE(8, pairing)(p), "dense"), attend(RoPE(8, pairing=pairing)(p), "dense"))
    assert torch.equal(MyRoPE(8, pairing)(p).k, RoPE(8, pairing=pairing)(p).k)


def test_rotation_by_the_formula(problem, agree):
    p = problem()
    out = MyRoPE(8)(p)
    t = torch.arange(7, dtype=torch.float64)[:, None] * 10_000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    a, b = p.q[..., 0::2], p.q[..., 1::2]
    agree(out.q[..., 0::2], a * t.cos() - b * t.sin())
    agree(out.q[..., 1::2], a * t.sin() + b * t.cos())
    assert out.v is p.v


def test_three_line_alibi(problem, agree):
    p = problem()
    i = torch.arange(7, dtype=torch.float64)
    slope = 2.0 ** -torch.arange(1.0, 5.0, dtype=torch.float64)[:, None, None]
    s = p.q @ p.k.repeat_interleave(2, 1).transpose(-1, -2) / math.sqrt(8) - slope * (i[:, None] - i)
    s = s.masked_fill(i[:, None] < i, -torch.inf)
    want = s.softmax(-1) @ p.v.repeat_interleave(2, 1)
    for backend in ("dense", "sdpa", "auto"):
        agree(attend(MyALiBi()(p), backend), want)
    long = problem(s=33)
    agree(attend(MyALiBi()(long), "sdpa"), attend(MyALiBi()(long), "dense"))


def test_three_line_scale(problem, agree):
    p = problem()
    by_hand = problem(positions=Positions(torch.arange(7) / 4.0))
    for encoding in (RoPE(8), ALiBi(4)):
        agree(attend(Sequential(MyScale(4.0), encoding)(p), "dense"), attend(encoding(by_hand), "dense"))


def test_three_line_sinusoidal(rand):
    x = rand(2, 5, 3)
    t = torch.arange(5, dtype=torch.float64)
    out = MySinusoidal().embed(x)
    assert torch.equal(out, x + torch.stack([t.sin(), t.cos(), 0 * t], -1))
    moved = MySinusoidal().embed(x, Positions.arange(5, offset=100))
    assert torch.equal(moved, x + torch.stack([(t + 100).sin(), (t + 100).cos(), 0 * t], -1))
    low = MySinusoidal().embed(x.bfloat16(), Positions.arange(5, offset=10_000))
    assert low.dtype == torch.bfloat16
    assert torch.equal(low, (x.bfloat16().float() + MySinusoidal().table(t + 10_000).float()).bfloat16())


def test_embeddings_leave_the_problem_alone(problem):
    p = problem().located()
    q = MySinusoidal()(p)
    assert q.q is p.q and q.k is p.k and q.terms == ()


@pytest.mark.parametrize(
    ("x", "positions", "said"),
    [
        (torch.zeros(5, 3), None, "batch, seq, dim"),
        (torch.zeros(2, 5, 3), Positions.arange(4), "4 tokens"),
        (torch.zeros(2, 5, 3), Positions.arange(5, batch=3), "3 x 5"),
    ],
)
def test_wrong_embeddings(x, positions, said):
    with pytest.raises(ShapeError, match=said):
        MySinusoidal().embed(x, positions)


@pytest.mark.parametrize(
    "encoding", [MyRoPE(8), MyALiBi(), Sequential(MyScale(3.0), MyRoPE(8), MyALiBi()), PerKeyHead(), Learned()]
)
def test_the_thin_bases_decode(encoding, problem, in_chunks, agree):
    p = problem()
    want = attend(encoding(p), "dense").detach()
    for cuts in ((1,) * 7, (3, 4), (5, 1, 1)):
        agree(in_chunks(encoding, p, cuts).detach(), want)
        agree(in_chunks(encoding, p, cuts, "auto").detach(), want)


def test_bias_tables(problem, agree):
    class Bucketed(Bias):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4, dtype=torch.float64))
            self.scale = 0.5

        def per_head(self, num_heads):
            return {"table": self.weight.t(), "slope": torch.arange(1.0, num_heads + 1)}

        def bias(self, i, j, table, slope):
            return table((i - j).clamp(0, 2)) - self.scale * slope * (i - j)

    encoding, p = Bucketed(), problem()
    i = torch.arange(7)
    distance = (i[:, None] - i).clamp(0)
    want = encoding.weight.t()[:, distance.clamp(max=2)] - 0.5 * torch.arange(1.0, 5.0)[:, None, None] * distance
    term = encoding(p).terms[0]
    from ropewalk.backends.dense import pointwise

    seen = i[:, None] >= i
    agree(pointwise(encoding(p), term)[0][:, seen].double(), want[:, seen].double(), 1e-6)
    attend(encoding(p), "dense").sum().backward()
    assert encoding.weight.grad.abs().max() > 0


def test_a_bias_that_asks_for_what_is_not_there(problem):
    class Asks(Bias):
        def per_head(self, num_heads):
            return {"slop": torch.ones(num_heads)}

        def bias(self, i, j, slope):
            return slope * (i - j)

    with pytest.raises(UnknownNameError, match="slope"):
        Asks()(problem())


def test_a_bias_made_for_other_heads(problem):
    with pytest.raises(ShapeError, match="4 query heads"):
        ALiBi(8)(problem())


def test_axes(problem):
    plain, axes = problem(), problem(positions=Positions(torch.zeros(1, 7, 2)))
    RoPE(8)(plain)
    for encoding in (RoPE(8), ALiBi(4)):
        with pytest.raises(PositionError, match="2 axes"):
            encoding(axes)
    with pytest.raises(PositionError):
        MySinusoidal().embed(torch.zeros(1, 7, 3), Positions(torch.zeros(1, 7, 2)))


def test_axes_are_those_the_chain_leaves(problem, agree):
    """A map from several axes to one makes plain coordinates for every encoding after it."""

    class FirstAxis(Coordinates):
        def map(self, position):
            return position[..., 0]

    two = torch.stack([torch.arange(7), torch.zeros(7, dtype=torch.int64)], -1)[None]
    for encoding in (RoPE(8), ALiBi(4)):
        got = attend(Sequential(FirstAxis(), encoding)(problem(positions=Positions(two))), "dense")
        agree(got, attend(encoding(problem()), "dense"))


# ---- angles of their own a key head ------------------------------------------------------------------------------


@pytest.mark.parametrize(("h", "hk"), [(2, 2), (4, 2), (6, 2)])
def test_angles_by_key_head(h, hk, problem, agree):
    p = problem(h=h, hk=hk)
    out = PerKeyHead()(p)
    for head in range(h):
        kv = head // (h // hk)

        class One(Rotary):
            rate = 1.0 + kv

            def angles(self, position):
                return position[..., None] * self.rate * torch.ones(4, dtype=torch.float64)

        alone = One()(p.select_heads(head, head + 1))
        agree(out.q[:, head], alone.q[:, 0])
        agree(out.k[:, kv], alone.k[:, 0])


def test_angles_by_key_head_of_another_number(problem):
    with pytest.raises(ShapeError, match="heads"):
        PerKeyHead(3)(problem())


def test_angles_by_key_head_for_some_of_the_heads(problem, agree):
    p = problem(h=8, hk=2)
    whole = attend(PerKeyHead()(p), "dense")
    agree(attend(PerKeyHead()(p.select_heads(4, 8)), "dense"), whole[:, 4:])


# ---- learned frequencies -----------------------------------------------------------------------------------------


def test_learned_frequencies_get_gradients(problem):
    encoding, p = Learned(), problem()
    positions = Positions.arange(7)
    p = p.replace(positions=positions)
    loss = attend(encoding(p), "auto").square().sum()
    (grad,) = torch.autograd.grad(loss, encoding.freq)
    assert grad.abs().min() > 0
    step, want = 1e-3, []
    for i in range(4):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                encoding.freq[i] += sign * step
                values.append(attend(encoding(p), "dense").square().sum())
                encoding.freq[i] -= sign * step
        want.append((values[0] - values[1]) / (2 * step))
    torch.testing.assert_close(grad.double(), torch.stack(want), rtol=1e-3, atol=1e-4)


def test_learned_frequencies_train(problem):
    encoding, p = Learned(), problem()
    optimiser = torch.optim.SGD([encoding.freq], lr=0.05)
    losses = []
    for _ in range(3):  # the same positions each time: nothing learned may be kept on them
        optimiser.zero_grad()
        loss = attend(encoding(p)).square().sum()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[2] < losses[1] < losses[0]


# ---- numbers that must not be cast -------------------------------------------------------------------------------

FAR = torch.tensor([2047, 65_537, 1_000_003])


def angles_at(encoding):
    return encoding.angles(FAR[None].double())


@pytest.mark.parametrize(
    "move",
    [
        lambda m: m.to(torch.bfloat16),
        lambda m: m.half(),
        lambda m: m.half().float(),
        lambda m: m.bfloat16().double().to(torch.float16).float(),
        lambda m: m.to("cpu", torch.bfloat16),
        lambda m: m.to("meta").to_empty(device="cpu"),
        lambda m: m.to("meta").half().to_empty(device="cpu"),
        copy.deepcopy,
        lambda m: pickle.loads(pickle.dumps(m)),
        lambda m: copy.deepcopy(m.half()),
        lambda m: m.share_memory(),
        lambda m: m._apply(lambda t: t.bfloat16() if t.is_floating_point() else t),
    ],
)
@pytest.mark.parametrize("make", [lambda: RoPE(32), lambda: MyRoPE(32)], ids=["RoPE", "MyRoPE"])
def test_derived_numbers_survive(move, make):
    model = nn.Sequential(nn.Linear(2, 2))
    model.add_module("encoding", make())
    want = angles_at(model.encoding)
    moved = move(model)
    assert moved.encoding.inv_freq.dtype == torch.float64
    assert torch.equal(angles_at(moved.encoding), want)
    assert "inv_freq" not in "".join(moved.state_dict())


def test_made_on_meta():
    with torch.device("meta"):
        encoding = RoPE(32)
    assert encoding.inv_freq.is_meta
    encoding = encoding.to_empty(device="cpu")
    assert torch.equal(angles_at(encoding), angles_at(RoPE(32)))


def test_saved_and_loaded_with_a_model():
    model = nn.ModuleList([RoPE(32), Sequential(Scale(2.0), RoPE(16))])
    assert model.state_dict() == {}
    model.load_state_dict({})
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    again = torch.load(buffer, weights_only=False)
    assert torch.equal(angles_at(again[0]), angles_at(model[0]))


def test_loading_does_not_undo_other_frequencies():
    stretched = RoPE(32, base=5e6)
    stretched.load_state_dict(RoPE(32).state_dict())
    assert torch.equal(angles_at(stretched), angles_at(RoPE(32, base=5e6)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_stay_float32(dtype):
    model = nn.Sequential(nn.Linear(3, 3))
    model.add_module("encoding", Sequential(Learned(), Partial(Learned(), 8), PerHead([rw.FoX(1, 3), rw.T5(1)])))
    before = [p.detach().clone() for p in model.encoding.parameters()]
    model.to(dtype)
    assert model[0].weight.dtype == dtype
    assert all(
        torch.equal(a, b) and b.dtype == torch.float32 for a, b in zip(before, model.encoding.parameters(), strict=True)
    )
    model.float()
    assert all(torch.equal(a, b) for a, b in zip(before, model.encoding.parameters(), strict=True))
    assert all(p.requires_grad and p.is_leaf for p in model.parameters())


def test_parameters_follow_to_float64():
    assert Learned().double().freq.dtype == torch.float64


def test_parameters_keep_their_identity():
    """An optimiser built before the cast holds the same objects."""
    encoding = Learned()
    parameter = encoding.freq
    encoding.to(torch.bfloat16)
    assert encoding.freq is parameter


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_result_has_the_dtype_of_the_input(dtype, problem):
    p = problem(dtype=dtype)
    for encoding in (RoPE(8), Sequential(RoPE(8), ALiBi(4)), Learned()):
        out = encoding(p)
        assert out.q.dtype == out.k.dtype == out.v.dtype == dtype
        assert attend(out).dtype == dtype


def test_derived_numbers_are_made_on_the_default_device():
    with torch.device("meta"):
        assert Sinusoidal(8).inv_freq.is_meta
    assert not Sinusoidal(8).inv_freq.is_meta


def test_derived_numbers_cannot_be_assigned():
    """inv_freq set by hand would be forgotten at the next cast, and would not count for the memo."""
    rope = RoPE(8)
    with pytest.raises(ConfigError, match="hyper-parameters"):
        rope.inv_freq = torch.ones(4, dtype=torch.float64)


def test_full_precision_under_autocast(rand):
    a = rand(4, 4, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.bfloat16
        with full_precision(a):
            assert (a @ a).dtype == torch.float32


def test_autocast_changes_no_table(problem):
    p = problem(dtype=torch.float32, positions=Positions.arange(7, offset=1_000_000))
    want = RoPE(8)(p)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = RoPE(8)(p.replace(positions=Positions.arange(7, offset=1_000_000)))
    assert torch.equal(got.q, want.q)


def test_table_dtype():
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    assert [table_dtype(torch.zeros(1, dtype=d)) for d in dtypes] == [torch.float64] + [torch.float32] * 3


# ---- rotate ------------------------------------------------------------------------------------------------------


def test_rotate(problem, agree):
    p = problem()
    q, k = RoPE(8).rotate(p.q, p.k)
    agree(attend(Attention(q, k, p.v), "dense"), attend(RoPE(8)(p), "dense"))
    q5, _ = RoPE(8).rotate(p.q, p.k, torch.arange(5, 12))
    assert torch.equal(q5, RoPE(8)(p.replace(positions=Positions.arange(7, offset=5))).q)
    same = Positions.arange(7, offset=5)
    assert torch.equal(RoPE(8).rotate(p.q, p.k, same)[0], q5)


def test_rotate_one_query_against_all_keys(problem):
    p = problem()
    q, k = RoPE(8).rotate(p.q[:, :, 6:], p.k)
    whole = RoPE(8)(p)
    assert torch.equal(q, whole.q[:, :, 6:])
    assert torch.equal(k, whole.k)


@pytest.mark.parametrize(
    "encoding",
    [
        RoPE(8),
        Sequential(Scale(2.0), RoPE(8)),
        Partial(RoPE(4), 4),
        rw.PoPE(8, num_kv_heads=2),
        rw.NoPE(),
        Learned(),
        PerKeyHead(),
    ],
    ids=lambda e: type(e).__name__,
)
def test_what_is_a_map_of_q_and_k(encoding, problem, agree):
    p = problem()
    q, k = encoding.rotate(p.q, p.k)
    agree(attend(Attention(q, k, p.v, scale=8**-0.5), "dense").detach(), attend(encoding(p), "dense").detach())


class Masks(Encoding):
    def rewrite(self, p):
        from ropewalk.core.attention import CAUSAL

        return p.with_mask(CAUSAL)


class Values(Encoding):
    def rewrite(self, p):
        return p.replace(v=p.v * 2)


class Finishes(Encoding):
    def rewrite(self, p):
        return p.finish_with(lambda o: o * 2)


class Scales(Encoding):
    def rewrite(self, p):
        return p.scaled(0.5, by="Scales")


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        (ALiBi(4), "terms in the logits"),
        (Masks(), "masks"),
        (rw.STRINGShifted(8, 4, 2), "several scores"),
        (rw.STRINGShifted(8, 4, 2, bug_compatible=True), "a product"),
        (rw.LinearAttention(), "linear attention"),
        (Values(), "values"),
        (Finishes(), "a map of the output"),
        (Scales(), "a scale"),
        (PerHead([RoPE(8), rw.NoPE()]), "splits the heads"),
        (Sequential(RoPE(8), ALiBi(4)), "terms"),
    ],
    ids=lambda e: e if isinstance(e, str) else type(e).__name__,
)
def test_what_is_more(encoding, said, problem):
    p = problem()
    with pytest.raises(NotRotation, match=said) as error:
        encoding.rotate(p.q, p.k)
    assert "attend(encoding(problem))" in str(error.value)


# ---- layers, keys, sizes left out --------------------------------------------------------------------------------


def test_layers():
    rope, learned = RoPE(8), Learned()
    assert rope.layer(3) is rope
    other = learned.layer(0)
    assert other is not learned
    assert torch.equal(other.freq, learned.freq)
    assert other.freq is not learned.freq
    nested = Sequential(RoPE(8), Partial(Learned(2), 4), PerHead([rw.NoPE(), Learned()], [1, 3]))
    copies = nested.layer(1)
    assert repr(copies) == repr(nested)
    assert copies[0] is nested[0] if hasattr(nested, "__getitem__") else next(iter(copies)) is next(iter(nested))
    mine, theirs = ({id(p) for p in m.parameters()} for m in (nested, copies))
    assert not mine & theirs
    assert list(copies.state_dict()) == list(nested.state_dict())


def test_keys():
    assert RoPE(8).key() == RoPE(8).key()
    assert hash(RoPE(8).key()) == hash(RoPE(8, base=10_000).key())
    keys = [
        RoPE(8).key(), RoPE(16).key(), RoPE(8, base=5.0).key(), RoPE(8, pairing="half").key(), MyRoPE(8).key(),
        rw.STRINGShifted(8, 4, 2).key(), rw.STRINGShifted(8, 4, 2, attention_factor=1.5).key(),
        RoPE(spectrum=rw.Spectrum((1.0, 0.5, 0.2, 0.1))).key(),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)


def test_what_learns_is_equal_only_to_itself():
    a = Learned()
    assert a.key() == a.key()
    assert a.key() != Learned().key()
    assert a.key() != copy.deepcopy(a).key()
    assert copy.deepcopy(RoPE(8)).key() == RoPE(8).key()


def test_what_holds_lists_tensors_or_modules_is_equal_only_to_itself():
    class Holds(Rotary):
        def __init__(self, thing):
            super().__init__()
            self.thing = thing

    for make in (
        lambda: [1, 2],
        lambda: torch.ones(2),
        lambda: nn.Linear(1, 1),
        lambda: {"a": 1},
        lambda: ([1],),
        lambda: (torch.ones(2),),
    ):
        a, b = Holds(make()), Holds(make())
        assert a.key() == a.key()
        assert a.key() != b.key()
    assert Holds((1, "a")).key() == Holds((1, "a")).key()


def test_a_buffer_of_its_own_is_equal_only_to_itself():
    class Buffered(Rotary):
        def __init__(self):
            super().__init__()
            self.register_buffer("freq", torch.rand(2))

    assert Buffered().key() != Buffered().key()


def test_keys_follow_changes():
    a = MyScale(2.0)
    before = a.key()
    a.factor = 4.0
    assert a.key() != before
    assert a.key() == MyScale(4.0).key()
    a.train(False)
    assert a.key() == MyScale(4.0).key()


def test_keys_count_private_names():
    class Hidden(Coordinates):
        def __init__(self, factor):
            super().__init__()
            self._factor = factor

    assert Hidden(2.0).key() != Hidden(4.0).key()


def test_keys_hold_no_cycle_in_copies():
    a = Learned()
    a.key()
    b = copy.deepcopy(a)
    assert b.key()[-1] is b
    assert pickle.loads(pickle.dumps(a)).key() != a.key()


def test_head_dim_left_out(problem, agree):
    p, rope = problem(), RoPE()
    agree(attend(rope(p), "dense"), attend(RoPE(8)(p), "dense"))
    assert rope.head_dim == 8
    with pytest.raises(ShapeError, match="Partial"):
        rope(problem(d=16))
    rope.half()
    assert torch.equal(angles_at(rope), angles_at(RoPE(8)))
    assert rope.key() == RoPE(8).key()
    with pytest.raises(ConfigError, match="pairs"):
        RoPE()(problem(d=9))
    decoded = KVCache(RoPE())
    agree(attend(decoded.extend(p), "dense"), attend(RoPE(8)(p), "dense"))


def test_num_heads_left_out(problem, agree):
    for h in (4, 6):
        p = problem(h=h)
        agree(attend(ALiBi()(p), "dense"), attend(ALiBi(h)(p), "dense"))


def test_width_left_out(rand):
    x = rand(1, 4, 6)
    s = Sinusoidal()
    assert torch.equal(s.embed(x), Sinusoidal(6).embed(x))
    with pytest.raises(ShapeError, match="width 6"):
        s.embed(rand(1, 4, 8))


@pytest.mark.parametrize("bad", [7, -2, 2.0, True])
def test_odd_widths(bad):
    with pytest.raises(ConfigError, match="even"):
        RoPE(bad)


def test_unknown_pairings():
    with pytest.raises(ConfigError, match=r"interleave.*Did you mean 'interleaved'"):
        RoPE(8, pairing="interleave")


@pytest.mark.parametrize("base", [0, -1.0, float("nan"), float("inf"), "1e4", True])
def test_bases(base):
    with pytest.raises(ConfigError, match="base"):
        RoPE(8, base=base)


def test_reprs():
    assert repr(RoPE(64)) == "RoPE(64, base=10000.0, pairing=interleaved)"
    assert repr(ALiBi(8)) == "ALiBi(8)"
    assert repr(Scale(2)) == "Scale(factor=2.0)"
    assert repr(Sequential(RoPE(64), ALiBi(8))).splitlines() == [
        "Sequential(", "  (0): RoPE(64, base=10000.0, pairing=interleaved)", "  (1): ALiBi(8)", ")",
    ]  # fmt: skip


# ---- the defaults ------------------------------------------------------------------------------------------------


def test_a_bare_encoding_does_nothing(problem, agree, rand):
    p, bare = problem(), Encoding()
    agree(attend(bare(p), "dense"), attend(p, "dense"))
    x = rand(1, 2, 3)
    assert bare.embed(x) is x
    assert bare.why_not_cached() is None
    positions = Positions.arange(3)
    assert bare.draw(positions) is positions
    cache = KVCache(bare)
    cache.extend(p)
    with pytest.raises(CannotEdit, match="Encoding"):
        cache.edit([0, 1], torch.tensor([0, 1]))


def test_why_not_cached_is_asked_of_children():
    inner = rw.STRINGShifted(8, 4, 2, bug_compatible=True)
    for outer in (inner, Sequential(RoPE(8), inner), PerHead([RoPE(8), Sequential(inner)]), Partial(inner, 8)):
        with pytest.raises(rw.Refusal, match="twice"):
            KVCache(outer)


def test_the_problem_is_drawn_once(problem):
    calls = []

    class Draws(Encoding):
        def draw(self, positions, *args, **kwargs):
            if "sample" not in positions.key.sequence:
                calls.append(1)
                positions = positions.map_sides(lambda t: t.with_sequence(sample=torch.zeros(1, 3)))
            return positions

    out = Sequential(Draws(), Draws())(problem())
    assert len(calls) == 1
    assert "sample" in out.where.key.sequence
    cache = KVCache([Draws(), Draws()])
    cache.step(3)
    assert len(calls) == 2
