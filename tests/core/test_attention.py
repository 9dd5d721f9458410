"""The problem: checks, defaults, parts, features, masks."""

from __future__ import annotations

import pytest
import torch

from ropewalk import ALiBi, Attention, FoX, KVCache, PerHead, Positions, RoPE, Sequential, attend
from ropewalk.core.attention import (
    CAUSAL,
    Branch,
    Column,
    Coordinate,
    Feature,
    Linear,
    Mask,
    Order,
    Parts,
    Pointwise,
    Product,
    Row,
    ValueTerm,
    leaves,
    low_rank,
    map_leaves,
)
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import ConfigError, NeedsHiddenStates, Refusal, RopewalkError, ShapeError, UnknownNameError

# ---- checks ------------------------------------------------------------------------------------------------------


def zeros(*shape, dtype=torch.float64, device=None):
    return torch.zeros(shape, dtype=dtype, device=device)


GOOD = {"q": zeros(2, 4, 5, 8), "k": zeros(2, 2, 5, 8), "v": zeros(2, 2, 5, 6)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"q": zeros(4, 5, 8)}, "q has shape"),
        ({"k": zeros(2, 2, 5, 8).long()}, "k has shape"),
        ({"v": zeros(2, 2, 5)}, "v has shape"),
        ({"q": zeros(3, 4, 5, 8)}, "batch is common"),
        ({"v": zeros(2, 2, 6, 6)}, "length are common"),
        ({"v": zeros(2, 4, 5, 6)}, "heads and length"),
        ({"q": zeros(2, 4, 5, 6)}, "head_dim 6 and k has 8"),
        ({"q": zeros(2, 3, 5, 8)}, "3 query heads cannot be shared out over 2"),
        ({"q": zeros(2, 5, 4, 8), "k": zeros(2, 3, 4, 8), "v": zeros(2, 3, 4, 8)}, "swapped"),
        ({"k": zeros(2, 0, 5, 8), "v": zeros(2, 0, 5, 8)}, "0 key heads"),
        ({"k": zeros(2, 2, 5, 8, dtype=torch.float32)}, "cast them to one"),
        ({"v": zeros(2, 2, 5, 6, device="meta")}, "one device"),
        ({"positions": torch.arange(5)}, "wrap it"),
        ({"positions": Positions.arange(4)}, "4 tokens and q has 5"),
        ({"positions": Positions(q=torch.arange(5), k=torch.arange(6))}, "6 tokens and k has 5"),
        ({"positions": Positions.arange(5, batch=3)}, "3 rows and the batch is 2"),
        ({"positions": Positions.arange(5).to("meta")}, r"positions.to\(q.device\)"),
        ({"x": zeros(2, 4, 3)}, "x has shape"),
        ({"x": zeros(2, 5)}, "x has shape"),
        ({"x": zeros(1, 5, 3)}, "x has shape"),
        ({"x_kv": zeros(2, 4, 3)}, "x_kv has shape"),
        ({"mask": torch.zeros(5, 4, dtype=torch.bool)}, "mask has shape"),
        ({"mask": torch.zeros(5, 5)}, "mask == 0"),
        ({"mask": torch.zeros(2, 5, 5, dtype=torch.bool)}, "mask has shape"),
        ({"mask": torch.zeros(3, 1, 5, 5, dtype=torch.bool)}, "mask has shape"),
        ({"mask": torch.zeros(1, 3, 5, 5, dtype=torch.bool)}, "mask has shape"),
        ({"sinks": zeros(2)}, "sinks has shape"),
        ({"sinks": zeros(1, 4)}, "sinks has shape"),
    ],
)
def test_shapes(change, said):
    with pytest.raises(ShapeError, match=said):
        Attention(**{**GOOD, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"window": 0},
        {"window": True},
        {"window": -3},
        {"window": 2.5},
        {"softcap": 0.0},
        {"softcap": -1.0},
        {"softcap": float("nan")},
    ],
)
def test_numbers(change):
    with pytest.raises(ConfigError, match=next(iter(change))):
        Attention(**GOOD, **change)


@pytest.mark.parametrize("mask", [(5, 5), (1, 1, 5, 5), (2, 1, 5, 5), (1, 4, 5, 5), (2, 4, 5, 5)], ids=str)
def test_good_masks(mask):
    p = Attention(**GOOD, mask=torch.ones(mask, dtype=torch.bool))
    assert attend(p, "dense").shape == (2, 4, 5, 6)


def test_messages_say_what_came_and_the_layout():
    with pytest.raises(ShapeError) as error:
        Attention(zeros(2, 5, 4, 8), zeros(2, 5, 2, 8), zeros(2, 5, 2, 8), Positions.arange(5))
    assert "batch, heads, seq, head_dim" in str(error.value)
    assert "5 tokens and q has 4" in str(error.value)


# ---- defaults ----------------------------------------------------------------------------------------------------


def test_what_a_problem_knows(problem):
    p = problem()
    assert (p.num_heads, p.num_kv_heads, p.head_dim, p.heads) == (4, 2, 8, (0, 4))
    assert p.logit_scale == 8**-0.5
    wider = p.replace(q=zeros(2, 4, 7, 20), k=zeros(2, 2, 7, 20))
    assert wider.logit_scale == 8**-0.5
    assert problem(scale=0.3).logit_scale == 0.3
    assert problem(scale=0.0).logit_scale == 0.0


def test_a_scale_fixed_twice(problem):
    assert problem().scaled(0.5, by="X").logit_scale == 0.5
    assert problem().scaled(0.5, by="X").scaled(0.25, by="Y").logit_scale == 0.25
    with pytest.raises(ConfigError, match="X fixes the scale"):
        problem(scale=8**-0.5).scaled(0.5, by="X")


def test_default_positions():
    q, k = zeros(1, 2, 3, 4), zeros(1, 2, 5, 4)
    same = Attention(k, k, k).located().where
    assert same.is_self
    assert same.key.position.tolist() == [[0, 1, 2, 3, 4]]
    last = Attention(q, k, k).located().where
    assert last.query.position.tolist() == [[2, 3, 4]]
    assert last.index().tolist() == [[2, 3, 4]]
    cross = Attention(q, k, k, causal=False).located().where
    assert cross.query.position.tolist() == [[0, 1, 2]]
    assert Attention(k, q, q, causal=False).located().where.query.length == 5
    with pytest.raises(ShapeError, match="causal=False"):
        Attention(k, q, q).located()
    given = Positions.arange(5, offset=3)
    assert Attention(k, k, k, given).located().positions is given


def test_the_last_queries_see_what_they_see_in_the_whole(problem, agree):
    p = problem()
    for encoding in (RoPE(8), ALiBi(4)):
        whole = attend(encoding(p), "dense")
        part = Attention(p.q[:, :, 4:], p.k, p.v)
        agree(attend(encoding(part), "dense"), whole[:, :, 4:])


def test_cross_attention(rand, agree):
    q, k, v = rand(2, 4, 3, 8), rand(2, 2, 6, 8, seed=1), rand(2, 2, 6, 8, seed=2)
    p = Attention(q, k, v, Positions(q=torch.tensor([7, 9, 4]), k=torch.arange(6)), causal=False)
    out = attend(RoPE(8)(p), "dense")
    each = [
        attend(
            RoPE(8)(Attention(q[:, :, i : i + 1], k, v, p.where.take_queries(torch.tensor([i])), causal=False)), "dense"
        )
        for i in range(3)
    ]
    agree(torch.cat(each, 2), out)
    agree(attend(RoPE(8)(p), "sdpa"), out)


@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 4), (3, 0)])
@pytest.mark.parametrize(
    "encoding", [RoPE(8), ALiBi(4), Sequential(RoPE(8), FoX(4, 5)), PerHead([RoPE(8), ALiBi()])], ids=str
)
def test_empty(n, m, encoding):
    q, k = zeros(2, 4, n, 8), zeros(2, 2, m, 8)
    fox = isinstance(encoding, Sequential)
    if fox and n != m:
        pytest.skip("one stream")
    p = Attention(q, k, k, causal=n == m or fox, x=zeros(2, n, 5) if fox else None)
    out = attend(encoding(p))
    assert out.shape == (2, 4, n, 8)
    assert bool((out == 0).all())


def test_a_batch_of_none(rand):
    q = zeros(0, 2, 3, 8)
    assert attend(RoPE(8)(Attention(q, q, q)), "dense").shape == (0, 2, 3, 8)


def test_hidden_states_are_asked_for(problem):
    p = problem().replace(x=None)
    with pytest.raises(NeedsHiddenStates, match="x=hidden_states"):
        _ = p.hidden
    with pytest.raises(Refusal):
        FoX(4, 5)(p)
    assert problem().hidden_kv is not None
    other = problem(x_kv=zeros(2, 7, 9))
    assert other.hidden_kv.shape == (2, 7, 9)


def test_windows(problem, agree):
    p = problem()
    i = torch.arange(7)
    near = (i[:, None] - i).abs() < 3
    want = attend(problem(mask=near), "dense")
    agree(attend(problem(window=3), "dense"), want)
    both = attend(problem(window=3, causal=False), "dense")
    agree(both, attend(problem(mask=near, causal=False), "dense"))
    agree(attend(problem(window=99), "dense"), attend(p, "dense"))


# ---- features and names ------------------------------------------------------------------------------------------


def test_features_are_named_by_scope(problem):
    p = problem().enter("0").enter("1")
    assert p.scope == "0.1."
    p = p.with_features(q={"a": zeros(1, 1, 7, 1)}, k={"a": zeros(1, 1, 7, 1), "b": zeros(1, 1, 7, 1)})
    assert set(p.qf) == {"0.1.a"}
    assert set(p.kf) == {"0.1.a", "0.1.b"}
    assert p.own("b", centred=True) == Feature("0.1.b", True)
    assert p.name("x") == "0.1.x"
    assert p.leave("").scope == ""
    with pytest.raises(UnknownNameError, match="observe"):
        p.leave("").own("a")
    with pytest.raises(UnknownNameError, match=r"Did you mean '0.1.a'"):
        p.own("aa")


def test_siblings_keep_their_features_apart(problem):
    p = Sequential(FoX(4, 5), FoX(4, 5), ALiBi(4), ALiBi(4))(problem())
    assert set(p.qf) == {"0.sum", "1.sum", "2.slope", "3.slope"}
    assert len(p.terms) == 4


@pytest.mark.parametrize(
    "pair",
    [
        (ALiBi(slopes=[1.0, 2.0, 3.0, 4.0]), ALiBi(slopes=[0.1, 0.2, 0.3, 0.4])),
        (FoX(4, 5), FoX(4, 5)),
        (Sequential(FoX(4, 5)), Sequential(FoX(4, 5), RoPE(8))),
    ],
    ids=["alibi", "fox", "sequential"],
)
def test_an_encoding_of_an_encoded_problem(pair, problem, agree):
    """b(a(p)) is Sequential(a, b)(p), or is refused; never b's numbers in a's term."""
    a, b = pair
    try:
        got = attend(b(a(problem())), "dense")
    except RopewalkError:
        return
    agree(got, attend(Sequential(a, b)(problem()), "dense"))


def test_problems_are_values(problem):
    p = problem()
    changed = RoPE(8)(p).with_mask(CAUSAL).add(Pointwise(lambda i: i)).enter("0")
    assert p.terms == () and p.masks == () and p.scope == ""
    assert changed.q is not p.q
    with pytest.raises(AttributeError):
        p.q = zeros(1)
    assert p != problem()  # no elementwise comparison of tensors


def test_masks_replace_by_name(problem):
    p = problem(
        positions=Positions.arange(7, document_ids=torch.tensor([0, 0, 0, 1, 1, 1, 1]), valid=torch.ones(7).bool())
    )
    assert [m.name for m in p.all_masks()] == ["causal", "documents", "valid"]
    wide = Mask("documents", lambda i, j: (i == j) | (j == 0), (Column("document"),), (Column("document"),))
    q = p.with_mask(wide)
    assert [m.name for m in q.all_masks()] == ["causal", "valid", "documents"]
    assert q.with_mask(wide).masks == (wide,)
    assert [m.name for m in problem(window=2).located().all_masks()] == ["causal", "window"]
    assert problem(causal=False).located().all_masks() == ()


def test_finishers_run_backwards(problem, agree):
    p = problem()
    plain = attend(p, "dense")
    q = p.finish_with(lambda o: o + 1).finish_with(lambda o: o * 2)
    agree(attend(q, "dense"), plain * 2 + 1)


def test_terms_run_in_order(problem, agree):
    p = problem()
    double = Pointwise(lambda s: 2 * s, additive=False)
    shift = Pointwise(lambda i, j: j - i, (Coordinate(),), (Coordinate(),))
    a, b = p.add(shift).add(double), p.add(double).add(shift)
    half = p.add(Pointwise(lambda i, j: 2 * (j - i), (Coordinate(),), (Coordinate(),)))
    assert not torch.allclose(attend(a.located(), "dense"), attend(b.located(), "dense"))
    agree(attend(a, "dense"), attend(half.replace(scale=2 * 8**-0.5), "dense"))


def test_factors_alone(problem, agree):
    term = low_rank(lambda i, j: ((-i, 1.0), (1.0, j)), (Coordinate(),), (Coordinate(),))
    plain = Pointwise(lambda i, j: j - i, (Coordinate(),), (Coordinate(),))
    agree(attend(problem().add(term), "dense"), attend(problem().add(plain), "dense"))


# ---- taking parts ------------------------------------------------------------------------------------------------


def fat(problem):
    """A problem with something in every field that rows, queries or heads cut."""
    positions = Positions(
        torch.tensor([[0, 1, 2, 3, 4, 5, 6], [0, 0, 1, 2, 3, 4, 5]]),
        valid=torch.tensor([[1] * 7, [0, *[1] * 6]]),
        document_ids=torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0] * 7]),
    )
    mask = torch.rand(2, 4, 7, 7, generator=torch.Generator().manual_seed(5)) < 0.8
    p = problem(positions=positions, mask=mask, window=5, softcap=3.0, sinks=torch.arange(4.0, dtype=torch.float64))
    p = Sequential(RoPE(8), ALiBi(4), FoX(4, 5))(p)
    p = p.with_features(q={"out": p.q[..., :1]})
    p = p.finish_with(lambda o, g: o * g.sigmoid(), p.own("out"))
    weigh = ValueTerm(
        lambda w, j: w @ j.transpose(-1, -2).transpose(-1, -2).to(w.dtype).expand(*w.shape[:2], -1, 1),
        (),
        (Coordinate(),),
    )
    row = Row(lambda s, seen, z: s + z * seen, (p.own("out"),))
    return p.add(weigh, row)


def test_rows_and_queries_commute_with_attend(problem, agree):
    p = fat(problem)
    whole = attend(p, "dense").detach()
    for rows in (torch.tensor([1, 0]), torch.tensor([1]), torch.tensor([0, 1, 1])):
        agree(attend(p.select_rows(rows), "dense").detach(), whole[rows])
        for index in (torch.tensor([6, 1, 3]), torch.tensor([0]), torch.tensor([2, 2])):
            got = attend(p.select_rows(rows).select_queries(index), "dense").detach()
            agree(got, whole[rows][:, :, index])
            agree(attend(p.select_queries(index).select_rows(rows), "dense").detach(), whole[rows][:, :, index])
    twice = p.select_queries(torch.tensor([1, 3, 5])).select_queries(torch.tensor([2, 0]))
    agree(attend(twice, "dense").detach(), whole[:, :, [5, 1]])


@pytest.mark.parametrize(("start", "stop"), [(0, 4), (0, 2), (2, 4), (0, 1), (1, 2), (3, 4), (1, 3), (0, 3), (1, 4)])
def test_heads_commute_with_attend(start, stop, problem, agree):
    p = fat(problem)
    got = attend(p.select_heads(start, stop), "dense").detach()
    agree(got, attend(p, "dense").detach()[:, start:stop])
    again = p.select_heads(start, stop)
    if stop - start > 1:
        agree(attend(again.select_heads(1, stop - start), "dense").detach(), got[:, 1:])


@pytest.mark.parametrize("sizes", [(6, 2), (1, 7), (3, 5), (2, 2, 4), (5, 3)])
def test_heads_of_groups_of_four(sizes, problem, agree):
    p = Sequential(ALiBi(8), FoX(8, 5))(problem(h=8, hk=2))
    whole, start = attend(p, "dense").detach(), 0
    for n in sizes:
        cut = p.select_heads(start, start + n)
        assert cut.num_heads % cut.num_kv_heads == 0
        assert cut.heads == (start, 8)
        agree(attend(cut, "dense").detach(), whole[:, start : start + n])
        start += n


def test_parts_of_default_positions(problem, agree):
    p = problem()
    agree(attend(p.select_queries(torch.tensor([2])), "dense"), attend(p, "dense")[:, :, 2:3])
    agree(attend(p.select_rows(torch.tensor([1])), "dense"), attend(p, "dense")[1:])


def test_the_key_side_keeps_its_input(problem):
    p = problem().select_queries(torch.tensor([2, 5]))
    assert p.x.shape == (2, 2, 5)
    assert p.hidden_kv.shape == (2, 7, 5)


def test_coupled_rows_cannot_be_cut(problem):
    """A product whose rows depend on each other gives wrong numbers when its queries are cut: refuse."""
    product = Product(lambda q, k: (q @ k.transpose(-1, -2)).cumsum(2), rows_coupled=True)
    p = problem().replace(product=product)
    assert attend(p, "dense").shape == (2, 4, 7, 8)
    with pytest.raises(Refusal):
        p.select_queries(torch.tensor([3]))
    apart = problem().replace(product=Product(lambda q, k: q @ k.transpose(-1, -2)))
    assert apart.select_queries(torch.tensor([3])).q.shape[2] == 1


def test_per_head_numbers_are_cut(problem):
    p = problem(h=8, hk=4)
    slopes, phases = torch.arange(8.0), torch.arange(4.0)
    part = p.select_heads(2, 6)
    assert part.head_slice(slopes).tolist() == [2, 3, 4, 5]
    assert part.kv_head_slice(phases).tolist() == [1, 2]
    assert part.head_slice(slopes[None], 1).tolist() == [[2, 3, 4, 5]]
    with pytest.raises(ShapeError, match="num_heads=8"):
        part.head_slice(torch.zeros(4))


@pytest.mark.parametrize(("start", "stop"), [(0, 2), (2, 4), (4, 8), (1, 3), (0, 6), (3, 5)])
def test_per_key_head_numbers_are_cut_with_the_groups(start, stop, problem):
    """Key heads of the layer keep their numbers, however a split cuts their groups."""
    p = problem(h=8, hk=2)
    p = p.replace(k=torch.arange(2.0, dtype=torch.float64)[None, :, None, None].expand(2, 2, 7, 8), v=p.v)
    part = p.select_heads(start, stop)
    mine = part.kv_head_slice(torch.arange(2.0, dtype=torch.float64))
    assert mine.tolist() == part.k[0, :, 0, 0].tolist()


# ---- references --------------------------------------------------------------------------------------------------


def test_reading(problem):
    p = problem(positions=Positions(torch.arange(7) * 2, columns={"camera": torch.arange(21).view(1, 7, 3)}))
    assert p.read(Coordinate(), "k").shape == (1, 1, 7, 1)
    assert p.read(Column("camera"), "q").shape == (1, 1, 7, 3)
    assert p.read(Order(), "q")[0, 0, :, 0].tolist() == list(range(7))
    centred = p.read(Coordinate(centred=True), "k", centre=True)
    assert centred[0, 0, :, 0].tolist() == [-6, -4, -2, 0, 2, 4, 6]
    assert p.read(Coordinate(), "k", centre=True)[0, 0, 0].item() == 0
    assert p.select_queries(torch.tensor([5])).read(Order(), "q").flatten().tolist() == [5]


def test_centring_subtracts_the_same_from_both_sides(problem):
    p = problem().with_features(
        q={"u": torch.arange(7.0).view(1, 1, 7, 1)}, k={"u": torch.arange(7.0).view(1, 1, 7, 1)}
    )
    u = p.located().own("u", centred=True)
    q, k = p.read(u, "q", True), p.read(u, "k", True)
    assert torch.equal(q.flatten() - k.flatten(), torch.zeros(7))


# ---- several problems --------------------------------------------------------------------------------------------


def test_parts(problem, agree):
    a, b = problem(), problem(seed=1)
    both = Parts((a, b), lambda outs: outs[0] - 0.5 * outs[1], owner="")
    want = attend(a, "dense") - 0.5 * attend(b, "dense")
    agree(attend(both, "dense"), want)
    agree(attend(both.select_rows(torch.tensor([1])), "dense"), want[1:])
    agree(attend(both.select_queries(torch.tensor([4, 2])), "dense"), want[:, :, [4, 2]])
    assert len(leaves(Parts((both, a), lambda o: o[0], ""))) == 3
    assert all(leaf.scale == 2.0 for leaf in leaves(map_leaves(both, lambda p: p.replace(scale=2.0))))
    assert both.enter("3").scope == "3."
    assert both.enter("3").leave("").scope == ""
    assert [len(p.terms) for p in both.add(Pointwise(lambda: 0)).items] == [1, 1]


def test_the_first_branch_may_have_its_own_queries(problem, agree):
    p = problem().located()
    p = p.with_features(q={"a": p.q * 2, "b": p.q * 3})
    at = p.coordinate()
    far = Mask("far", lambda i, j: i - j >= 2, (at,), (at,))
    p = p.replace(branches=(Branch(q="a"), Branch(q="b", where=far)))
    i = torch.arange(7)
    size = torch.where(i[:, None] - i >= 2, 3.0, 2.0).double()
    want = attend(problem().add(Pointwise(lambda s: s * size, additive=False)), "dense")
    agree(attend(p, "dense"), want)
    agree(attend(p, "sdpa"), want)


def test_maps_of_queries_and_keys_reach_the_branches(problem):
    p = problem().with_features(q={"far": zeros(2, 4, 7, 8)}, k={"own": zeros(2, 2, 7, 8), "gate": zeros(2, 1, 7, 1)})
    p = p.replace(branches=(Branch(), Branch(q="far", k="own", where=CAUSAL)))
    mapped = p.map_queries(lambda t: t + 1).map_keys(lambda t: t + 2)
    assert bool((mapped.qf["far"] == 1).all() and (mapped.kf["own"] == 2).all() and (mapped.kf["gate"] == 0).all())


class Constant(Encoding):
    """A key feature that is one number a head, (1, H, 1, 1): allowed by `with_features`."""

    def rewrite(self, p):
        p = p.with_features(k={"c": torch.arange(1.0, 3.0, dtype=torch.float64).view(1, 2, 1, 1)})
        return p.add(Pointwise(lambda i, j, c: -c * (i - j), (p.coordinate(),), (p.coordinate(), p.own("c"))))


@pytest.mark.parametrize("cuts", [(7,), (4, 3), (1,) * 7, (1, 5, 1)])
def test_a_constant_key_feature_is_cached(cuts, problem, in_chunks, agree):
    p = problem()
    agree(in_chunks(Constant(), p, cuts), attend(Constant()(p), "dense"))


def test_linear_needs_its_normaliser(problem):
    p = problem().with_features(q={"n": problem().q.abs()}, k={"n": problem().k.abs()}).replace(kernel=Linear("n"))
    assert torch.isfinite(attend(p, "dense")).all()
    assert isinstance(KVCache(RoPE(8)), KVCache)


# ---- some heads of a layer -------------------------------------------------------------------------------------------


def of_heads(h, hk, **fields):
    return Attention(zeros(1, h, 3, 8), zeros(1, hk, 3, 8), zeros(1, hk, 3, 8), **fields)


@pytest.mark.parametrize(
    ("h", "hk", "heads", "kv_total", "said"),
    [
        (2, 1, (3, 4), 2, r"heads=\(3, 4\) and q has 2 of them"),
        (2, 1, (-1, 4), 2, r"first \+ 2 <= total"),
        (2, 2, 2, 0, "give \\(first, total\\)"),
        (2, 2, (0, 4, 8), 0, "give \\(first, total\\)"),
        (2, 2, (0.0, 4.0), 0, "give \\(first, total\\)"),
        (4, 2, (0, 0), 4, "q has 4 of them"),  # key heads of a layer whose query heads are not said
        (2, 1, (0, 4), 0, "kv_total=0, and k has 1 heads for 2 of the 4"),
        (2, 2, (0, 4), 1, "kv_total=1, and k has 2 heads"),
        (2, 1, (0, 8), 3, "divides that of its query heads"),
        (2, 1, (1, 4), 2, "heads of two groups share one"),
        (4, 1, (0, 8), 4, "heads of two groups share one"),
    ],
)
def test_heads_that_do_not_fit_their_layer(h, hk, heads, kv_total, said):
    with pytest.raises(ShapeError, match=said):
        of_heads(h, hk, heads=heads, kv_total=kv_total)


@pytest.mark.parametrize(
    ("h", "hk", "heads", "kv_total", "query", "key"),
    [
        (4, 2, (0, 0), 0, [0, 1, 2, 3], [0, 1]),
        (2, 1, (2, 4), 2, [2, 3], [1]),
        (1, 1, (1, 4), 2, [1], [0]),
        (2, 2, (2, 4), 0, [2, 3], [2, 3]),
        (2, 2, (1, 4), 2, [1, 2], [0, 1]),  # of two groups, with a key head each
        (4, 2, (4, 16), 8, [4, 5, 6, 7], [2, 3]),
    ],
)
def test_what_is_per_head_is_cut(h, hk, heads, kv_total, query, key):
    p = of_heads(h, hk, heads=heads, kv_total=kv_total)
    assert p.head_slice(torch.arange(p.heads[1])).tolist() == query
    assert p.kv_head_slice(torch.arange(p.kv_total)).tolist() == key


def test_heads_survive_caches_and_rewrites():
    p = of_heads(2, 1, heads=(2, 4), kv_total=2)
    for made in (Sequential(RoPE(8), ALiBi(4))(p), KVCache(ALiBi(4)).extend(p)):
        assert (made.heads, made.kv_total) == ((2, 4), 2)
