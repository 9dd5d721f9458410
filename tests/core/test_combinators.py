"""Encodings made of encodings: order, nesting, heads of different kinds, decoding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ropewalk as rw
from ropewalk import (
    ALiBi,
    Attention,
    Encoding,
    FoX,
    KVCache,
    NoPE,
    Partial,
    PerHead,
    PerLayer,
    PoPE,
    RoPE,
    Scale,
    Sequential,
    Sinusoidal,
    STRINGShifted,
    attend,
)
from ropewalk.core.attention import Pointwise, leaves
from ropewalk.core.errors import CannotCompose, CannotEdit, ConfigError, RopewalkError, ShapeError

CUTS = [(1,) * 7, (3, 4), (5, 1, 1)]


def dense(encoding, p):
    return attend(encoding(p), "dense").detach()


def heads_of(p, chosen):
    """Outputs of each query head under an encoding of its own, as if it were alone in the layer."""
    return torch.cat([dense(e, p.select_heads(h, h + 1).replace(heads=(0, 1))) for h, e in enumerate(chosen)], 1)


# ---- Sequential --------------------------------------------------------------------------------------------------


def test_sequential_of_nothing(problem, agree):
    agree(dense(Sequential(), problem()), dense(NoPE(), problem()))


def test_sequential_is_composition(problem, agree):
    p = problem()
    agree(dense(Sequential(RoPE(8), ALiBi(4)), p), attend(ALiBi(4)(RoPE(8)(p)), "dense"))


def test_nesting_changes_nothing(problem, agree, in_chunks):
    a, b, c, d = Scale(3.0), RoPE(8), FoX(4, 5), ALiBi(4)
    p = problem()
    want = dense(Sequential(a, b, c, d), p)
    for nested in (
        Sequential(Sequential(a, b), Sequential(c, d)),
        Sequential(a, Sequential(b, Sequential(c, d))),
        Sequential(Sequential(Sequential(a, b, c)), d),
    ):
        agree(dense(nested, p), want)
        agree(in_chunks(nested, p, (2, 1, 4)).detach(), want)


@pytest.mark.parametrize("cuts", [None, *CUTS])
def test_a_term_remembers_the_coordinates_it_saw(cuts, problem, in_chunks, agree):
    p = problem()

    def run(encoding):
        return dense(encoding, p) if cuts is None else in_chunks(encoding, p, cuts)

    after = run(Sequential(Scale(4.0), ALiBi(4)))
    before = run(Sequential(ALiBi(4), Scale(4.0)))
    agree(before, dense(ALiBi(4), p))
    agree(after, dense(ALiBi(slopes=[s / 4 for s in (0.25, 0.0625, 0.015625, 0.00390625)]), p))
    assert (after - before).abs().max() > 1e-3
    middle = run(Sequential(ALiBi(4), Scale(4.0), RoPE(8)))
    by_hand = dense(Sequential(RoPE(spectrum=rw.Spectrum(tuple(f / 4 for f in rw.geometric(8).inv_freq))), ALiBi(4)), p)
    agree(middle, by_hand)


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize(
    "encoding",
    [
        Sequential(Scale(2.0), RoPE(8), Scale(3.0), ALiBi(4)),
        Sequential(RoPE(8), PoPE(8, num_kv_heads=2), FoX(4, 5)),
        Sequential(FoX(4, 5), FoX(4, 5), STRINGShifted(8, 3, 1)),
        Sequential(STRINGShifted(8, 3, 1), ALiBi(4), Scale(2.0)),
        Sequential(FoX(4, 5), rw.ContextualCoPE(8, 4), ALiBi(4)),
        Partial(RoPE(4), 4),
        Sequential(Partial(PoPE(2, num_kv_heads=2), 2), RoPE(10), ALiBi()),
        Sequential(Partial(Sequential(Scale(2.0), RoPE(6)), 6), rw.T5(4)),
    ],
    ids=lambda e: type(e).__name__ if isinstance(e, Encoding) else str(e),
)
def test_compositions_decode(encoding, cuts, problem, in_chunks, agree):
    p = problem()
    agree(in_chunks(encoding, p, cuts).detach(), dense(encoding, p))


def test_all_observe_before_any_rewrites(problem):
    seen = []

    class Looks(Encoding):
        def observe(self, p, state=None):
            seen.append(p.q)
            return p, state

    p = problem()
    Sequential(RoPE(8), Looks())(p)
    assert seen[0] is p.q


def test_sequential_embeds_in_order(rand):
    x = rand(1, 5, 8)
    scaled = Sequential(Scale(2.0), Sinusoidal(8))
    want = x + Sinusoidal(8).table(torch.arange(5, dtype=torch.float64)[None] / 2)
    torch.testing.assert_close(scaled.embed(x), want)
    torch.testing.assert_close(Sequential(Sinusoidal(8), Scale(2.0)).embed(x), Sinusoidal(8).embed(x))
    torch.testing.assert_close(Sequential(Sequential(Scale(2.0)), Partial(Sinusoidal(8), 4)).embed(x), want)


def test_sequential_holds_encodings_only():
    with pytest.raises(ConfigError, match="argument 1 of Sequential is a Linear"):
        Sequential(RoPE(8), nn.Linear(1, 1))
    with pytest.raises(ConfigError, match="list"):
        Sequential([RoPE(8)])


def test_sequential_iterates():
    s = Sequential(RoPE(8), ALiBi(4))
    assert len(s) == 2
    assert [type(e).__name__ for e in s] == ["RoPE", "ALiBi"]


# ---- Partial -----------------------------------------------------------------------------------------------------


def test_partial_is_a_sum_of_two_products(problem, agree):
    p = problem()
    part = Partial(RoPE(6), 6)
    q, k = RoPE(6).rotate(p.q[..., :6], p.k[..., :6])
    q, k = torch.cat([q, p.q[..., 6:]], -1), torch.cat([k, p.k[..., 6:]], -1)
    agree(dense(part, p), attend(Attention(q, k, p.v), "dense"))
    assert part(p).logit_scale == 8**-0.5


@pytest.mark.parametrize("dims", [0, 8])
def test_partial_of_nothing_and_of_all(dims, problem, agree):
    agree(dense(Partial(RoPE(dims), dims), problem()), dense(RoPE(8) if dims else NoPE(), problem()))


def test_partial_of_a_wider_encoding_keeps_the_scale(problem, agree):
    p = problem()
    out = Partial(PoPE(4, phase="none"), 4)(p)
    assert out.q.shape[-1] == 12
    assert out.logit_scale == 8**-0.5


@pytest.mark.parametrize("inner", [STRINGShifted(4, 3, 1), rw.LinearAttention()], ids=lambda e: type(e).__name__)
def test_partial_refuses_what_is_no_dot_product(inner, problem):
    with pytest.raises(CannotCompose):
        Partial(inner, 4)(problem())


def test_partial_refuses_splits_and_branches(problem):
    with pytest.raises(CannotCompose, match="Partial inside"):
        Partial(PerHead([RoPE(4), NoPE()]), 4)(problem())
    with pytest.raises(CannotCompose, match="no dot product"):
        Sequential(STRINGShifted(8, 3, 1), Partial(RoPE(4), 4))(problem())


@pytest.mark.parametrize("dims", [-1, 2.0, True])
def test_partial_sizes(dims):
    with pytest.raises(ConfigError, match="dims"):
        Partial(RoPE(2), dims)


def test_partial_of_more_than_there_is(problem):
    with pytest.raises(ShapeError, match="10 channels of a head of 8"):
        Partial(RoPE(10), 10)(problem())


def test_partial_sees_features_and_hidden_states(problem, in_chunks, agree):
    p, encoding = problem(), Partial(Sequential(FoX(4, 5), RoPE(4)), 4)
    want = dense(encoding, p)
    q, k = Partial(RoPE(4), 4).rotate(p.q, p.k)
    agree(want, dense(next(iter(encoding.encoding)), p.replace(q=q, k=k)))
    for cuts in CUTS:
        agree(in_chunks(encoding, p, cuts).detach(), want)


class Settles(Encoding):
    """Counts which hooks reach it."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def observe(self, p, state=None):
        self.calls.append("observe")
        return p, state

    def rewrite(self, p):
        self.calls.append("rewrite")
        return p

    def settle(self, p):
        self.calls.append("settle")
        return p

    def move(self, p, tokens):
        self.calls.append("move")
        return p


@pytest.mark.parametrize(
    "wrap",
    [
        lambda e: Sequential(e),
        lambda e: Sequential(RoPE(8), Sequential(e)),
        lambda e: Partial(e, 4),
        lambda e: PerHead([e, RoPE(8)]),
        lambda e: PerHead([RoPE(8), Sequential(ALiBi(), e)], [1, 3]),
        lambda e: Sequential(PerHead([RoPE(8), NoPE()]), e),
        lambda e: PerHead([NoPE(), PerHead([e, NoPE()])]),
    ],
)
def test_combinators_forward_every_hook(wrap, problem):
    inner = Settles()
    encoding = wrap(inner)
    cache = KVCache(encoding)
    attend(cache.extend(problem()), "dense")
    assert {"observe", "rewrite", "settle"} <= set(inner.calls)
    cache.edit([0, 2, 3], torch.arange(3))
    assert "move" in inner.calls


# ---- PerHead -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("h", "hk"), [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("sizes", [None, (2, 2), (1, 3), (3, 1)])
def test_each_head_has_its_own(h, hk, sizes, problem, in_chunks, agree):
    p = problem(h=h, hk=hk)
    encoding = PerHead([RoPE(8), Sequential(Scale(2.0), RoPE(8, base=50.0))], sizes)
    first = (sizes or (2, 2))[0]
    want = heads_of(p, [encoding.get_submodule("0" if i < first else "1") for i in range(h)])
    agree(dense(encoding, p), want)
    agree(attend(encoding(p)), want)
    for cuts in CUTS:
        agree(in_chunks(encoding, p, cuts), want)


def test_heads_count_from_nought_inside_and_globally_outside(problem, agree):
    p = problem()
    inside = PerHead([NoPE(), ALiBi(2)])
    got = attend(inside(p), "dense")
    agree(got[:, 2:], dense(ALiBi(2), p.select_heads(2, 4).replace(heads=(0, 2))))
    after = Sequential(PerHead([RoPE(8), NoPE()]), ALiBi(4))
    q, k = RoPE(8).rotate(p.q, p.k)
    want = torch.cat([dense(ALiBi(4), p.replace(q=q, k=k))[:, :2], dense(ALiBi(4), p)[:, 2:]], 1)
    agree(dense(after, p), want)
    before = Sequential(ALiBi(4), PerHead([RoPE(8), NoPE()]))
    agree(dense(before, p), want)


@pytest.mark.parametrize("sizes", [None, (1, 3), (3, 1)])
def test_per_head_and_gates_of_the_whole_layer(sizes, problem, in_chunks, agree):
    p, fox = problem(), FoX(4, 5)
    q, k = RoPE(8).rotate(p.q, p.k)
    n = (sizes or (2, 2))[0]
    want = torch.cat([dense(fox, p.replace(q=q, k=k))[:, :n], dense(fox, p)[:, n:]], 1)
    for encoding in (
        Sequential(PerHead([RoPE(8), NoPE()], sizes), fox),
        Sequential(fox, PerHead([RoPE(8), NoPE()], sizes)),
    ):
        agree(dense(encoding, p), want)
        for cuts in CUTS:
            agree(in_chunks(encoding, p, cuts).detach(), want)


def test_nested_per_heads(problem, in_chunks, agree):
    p = problem(h=8, hk=2)
    encoding = Sequential(
        Scale(2.0),
        PerHead(
            [
                Sequential(PerHead([RoPE(8), NoPE()]), ALiBi(4)),
                Sequential(FoX(4, 5), PerHead([RoPE(8, base=9.0), PerHead([NoPE(), ALiBi(1)])])),
            ]
        ),
        ALiBi(8),
    )
    out = encoding(p)
    assert [leaf.heads for leaf in leaves(out)] == [(0, 8), (2, 8), (4, 8), (6, 8), (7, 8)]
    want = dense(encoding, p)
    for leaf in leaves(out):
        stop = leaf.heads[0] + leaf.num_heads
        agree(attend(leaf, "dense").detach(), want[:, leaf.heads[0] : stop])
    for cuts in CUTS:
        agree(in_chunks(encoding, p, cuts).detach(), want)
    for cut in ((torch.tensor([1, 0]), torch.tensor([5, 2])), (torch.tensor([0]), torch.tensor([6]))):
        agree(attend(out.select_rows(cut[0]).select_queries(cut[1]), "dense").detach(), want[cut[0]][:, :, cut[1]])


def test_two_per_heads_one_after_the_other(problem, agree):
    """Sequential(a, b) = b after a: the second deals out the heads of the *layer*, or refuses."""
    p = problem()
    both = Sequential(PerHead([RoPE(8), NoPE()]), PerHead([ALiBi(), NoPE()]))
    try:
        got = dense(both, p)
    except RopewalkError:
        return
    agree(got, dense(PerHead([Sequential(RoPE(8), ALiBi(2)), NoPE()]), p))


def test_a_per_head_of_an_encoded_problem(problem, agree):
    p = problem()
    try:
        got = attend(PerHead([ALiBi(), NoPE()])(PerHead([RoPE(8), NoPE()])(p)), "dense")
    except RopewalkError:
        return
    agree(got, dense(PerHead([Sequential(RoPE(8), ALiBi(2)), NoPE()]), p))


@pytest.mark.parametrize("sizes", [None, (1, 3)])
def test_per_head_of_branches(sizes, problem, in_chunks, agree):
    p = problem()
    encoding = PerHead([STRINGShifted(8, 3, 1), STRINGShifted(8, 2, 2)], sizes)
    n = (sizes or (2, 2))[0]
    string = STRINGShifted(8, 3, 1), STRINGShifted(8, 2, 2)
    want = torch.cat([dense(string[0], p)[:, :n], dense(string[1], p)[:, n:]], 1)
    agree(dense(encoding, p), want)
    agree(attend(encoding(p)), want)
    for cuts in CUTS:
        agree(in_chunks(encoding, p, cuts), want)


def test_per_head_with_phases_by_key_head(problem, agree):
    p = problem(h=8, hk=2)
    pope = PoPE(8, num_kv_heads=2, phase="uniform")
    whole = dense(pope, p)
    agree(dense(Sequential(PerHead([NoPE(), NoPE()]), pope), p), whole)


@pytest.mark.parametrize("sizes", [(2, 2, 2, 2), (1, 7), (3, 5), (6, 2)])
def test_phases_by_key_head_after_groups_were_cut(sizes, problem, agree):
    p = problem(h=8, hk=2)
    pope = PoPE(8, num_kv_heads=2, phase="uniform")
    agree(dense(Sequential(PerHead([NoPE() for _ in sizes], sizes), pope), p), dense(pope, p))


def test_per_head_keeps_masks_windows_and_sinks(problem, agree):
    mask = torch.rand(2, 4, 7, 7, generator=torch.Generator().manual_seed(0)) < 0.7
    p = problem(mask=mask, window=4, softcap=2.0, sinks=torch.arange(4.0, dtype=torch.float64))
    for sizes in (None, (1, 3), (3, 1)):
        agree(dense(PerHead([RoPE(8), RoPE(8)], sizes), p), dense(RoPE(8), p))


def test_per_head_weights_and_lse(problem, agree):
    p = problem()
    split, whole = PerHead([RoPE(8), RoPE(8)], [1, 3])(p), RoPE(8)(p)
    for got, want in zip(
        attend(split, "dense", return_weights=True, return_lse=True),
        attend(whole, "dense", return_weights=True, return_lse=True),
        strict=True,
    ):
        agree(got, want)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: PerHead([]), ConfigError, "at least one"),
        (lambda: PerHead([RoPE(8), 3]), ConfigError, "encoding 1"),
        (lambda: PerHead([RoPE(8)], [2, 2]), ConfigError, "1 encodings"),
        (lambda: PerHead([RoPE(8), NoPE()], [4, 0]), ConfigError, "positive"),
    ],
)
def test_wrong_per_heads(make, error, said):
    with pytest.raises(error, match=said):
        make()


@pytest.mark.parametrize(("encodings", "sizes"), [(3, None), (2, (1, 2)), (2, (4, 4)), (5, None)])
def test_heads_that_cannot_be_dealt_out(encodings, sizes, problem):
    with pytest.raises(ShapeError, match="4 query heads"):
        PerHead([NoPE() for _ in range(encodings)], sizes)(problem())


def test_per_head_does_not_lose_an_embedding(rand):
    """An encoding of some heads that acts on the embeddings cannot do so for its heads alone: no silence."""
    x = rand(1, 5, 8)
    try:
        out = PerHead([Sequential(Sinusoidal(8), RoPE(8)), RoPE(8)]).embed(x)
    except RopewalkError:
        return
    assert not torch.equal(out, x)


def test_per_head_of_what_splits_without_dealing_out_heads(problem, agree):
    """A child that makes two softmaxes of the same heads counts them once for whoever comes after."""
    from ropewalk.core.attention import Parts

    class Difference(Encoding):
        def rewrite(self, p):
            return Parts((p, p.replace(q=-p.q)), lambda o: o[0] - 0.5 * o[1], owner=p.scope)

    p = problem()
    got = dense(Sequential(PerHead([Difference(), RoPE(8)]), ALiBi(4)), p)
    inner = attend(ALiBi(4)(p), "dense") - 0.5 * attend(ALiBi(4)(p.replace(q=-p.q)), "dense")
    want = torch.cat([inner[:, :2], dense(Sequential(RoPE(8), ALiBi(4)), p)[:, 2:]], 1)
    agree(got, want)


class Doubles(Encoding):
    """Makes two query heads of each, the second turned by the sign: what RoPE++ does to the head count."""

    def rewrite(self, p):
        n = p.num_heads
        q = torch.stack([p.q, -p.q], 2).flatten(1, 2)
        qf = {name: t if t.shape[1] == 1 else t.repeat_interleave(2, 1) for name, t in p.qf.items()}
        return p.replace(q=q, qf=qf, heads=(2 * p.heads[0], 2 * p.heads[1])) if n else p


@pytest.mark.parametrize(("h", "hk"), [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("s", [7, 20])
@pytest.mark.parametrize("backend", ["dense", "sdpa", "auto"])
def test_key_features_by_query_head_survive_a_doubling(h, hk, s, backend, problem, agree):
    """FoX's sums are one a query head: after doubling they divide the head count, they do not equal it."""
    p, fox = problem(h=h, hk=hk, s=s), FoX(h, 5)
    got = attend(Sequential(fox, Doubles())(p), backend).detach()
    agree(got[:, 0::2], dense(fox, p))
    agree(got[:, 1::2], dense(fox, p.replace(q=-p.q)))


@pytest.mark.parametrize(("start", "stop"), [(0, 4), (4, 8), (2, 6), (1, 3), (5, 8)])
def test_cutting_heads_after_a_doubling(start, stop, problem, agree):
    p = Sequential(FoX(4, 5), Doubles())(problem())
    agree(attend(p.select_heads(start, stop), "dense").detach(), attend(p, "dense").detach()[:, start:stop])


@pytest.mark.parametrize("cuts", CUTS)
def test_doubled_heads_decode(cuts, problem, in_chunks, agree):
    p, encoding = problem(), Sequential(RoPE(8), FoX(4, 5), Doubles(), ALiBi(8))
    agree(in_chunks(encoding, p, cuts).detach(), dense(encoding, p))


# ---- edits through combinators -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "encoding",
    [
        Partial(RoPE(4), 4),
        Partial(PoPE(4, num_kv_heads=2), 4),
        Partial(Sequential(Scale(2.0), RoPE(4)), 4),
        Sequential(RoPE(8), RoPE(8, pairing="half")),
        Sequential(RoPE(8), PoPE(8, num_kv_heads=2)),
        Sequential(PoPE(8, num_kv_heads=2), RoPE(16, pairing="half")),
        Sequential(Scale(2.0), Partial(RoPE(4), 4), ALiBi(4)),
        PerHead([RoPE(8), Sequential(Scale(2.0), RoPE(8))], [1, 3]),
        PerHead([PoPE(8, num_kv_heads=1), Partial(PoPE(2, phase="none"), 2)]),
        Sequential(PerHead([RoPE(8), NoPE()]), ALiBi(4)),
        Sequential(Scale(3.0), PerHead([RoPE(8), NoPE()], [3, 1])),
        PerHead([RoPE(8), PerHead([NoPE(), RoPE(8, base=7.0)])]),
    ],
    ids=lambda e: repr(e).replace("\n", " ")[:60],
)
def test_an_edit_equals_a_fresh_cache_or_is_refused(encoding, problem, part, agree):
    p, keep = problem(), torch.tensor([0, 2, 3, 5])
    cache, fresh = KVCache(encoding), KVCache(encoding)
    cache.extend(part(p, 0, 6))
    fresh.extend(Attention(p.q[:, :, keep], p.k[:, :, keep], p.v[:, :, keep]))
    try:
        cache.edit(keep, torch.arange(4))
    except CannotEdit:
        assert cache.length == 6
        return
    new = part(p, 6, 7)
    agree(attend(cache.extend(new), "dense").detach(), attend(fresh.extend(new), "dense").detach())


# ---- PerLayer and names ------------------------------------------------------------------------------------------


def test_per_layer():
    layers = PerLayer(RoPE(8), 3)
    assert len(layers) == 3
    assert layers[0] is layers[2]
    learned = PerLayer(FoX(4, 5), 3)
    assert learned[0].weight is not learned[1].weight
    assert len(list(learned.parameters())) == 6
    assert len(KVCache(learned)) == 3
    mixed = PerLayer([RoPE(8), ALiBi(4)], 2)
    assert [type(e).__name__ for e in mixed] == ["RoPE", "ALiBi"]
    assert not isinstance(mixed, Encoding)


def test_wrong_per_layers():
    with pytest.raises(ConfigError, match="num_layers"):
        PerLayer(RoPE(8))
    with pytest.raises(ConfigError, match="2 encodings for 3"):
        PerLayer([RoPE(8), NoPE()], 3)
    with pytest.raises(ConfigError, match="layer 0"):
        PerLayer([nn.Linear(1, 1)])


def test_state_dict_names():
    encoding = Sequential(RoPE(8), PerHead([Partial(FoX(2, 5), 4), Sequential(rw.T5(2))]))
    assert sorted(encoding.state_dict()) == ["1.0.encoding.bias", "1.0.encoding.weight", "1.1.0.weight"]
    assert sorted(PerLayer(rw.T5(4), 2).state_dict()) == ["0.weight", "1.weight"]
    assert Sequential(RoPE(8), ALiBi(4)).state_dict() == {}
    other = Sequential(RoPE(8), PerHead([Partial(FoX(2, 5), 4), Sequential(rw.T5(2))]))
    other.load_state_dict(encoding.state_dict())
    assert torch.equal(next(other.parameters()), next(encoding.parameters()))


def test_prints():
    shown = repr(Sequential(Partial(RoPE(4), 4), PerHead([NoPE(), ALiBi(3)], [1, 3])))
    assert "Partial(" in shown and "dims=4" in shown
    assert "sizes=[1, 3]" in shown
    assert "ALiBi(3)" in shown


def test_raw_is_catching():
    class Raw(Encoding):
        stores = "raw"

    for outer in (Sequential(RoPE(8), Raw()), Partial(Raw(), 4), PerHead([RoPE(8), Sequential(Raw())])):
        assert outer.stores == "raw"
    assert Sequential(RoPE(8)).stores == PerHead([RoPE(8)]).stores == Partial(RoPE(4), 4).stores == "encoded"


@pytest.mark.parametrize("cuts", CUTS)
def test_raw_and_encoded_side_by_side(cuts, problem, in_chunks, agree):
    class LengthAware(Encoding):
        """Keys scaled by how many there are: only right when rewritten anew at every step."""

        stores = "raw"

        def rewrite(self, p):
            i = p.coordinate()
            p = p.with_features(k={"size": p.k.norm(dim=-1, keepdim=True)})
            return p.replace(k=p.k * 2).add(Pointwise(lambda a, b, n: (b - a) * n, (i,), (i, p.own("size"))))

    p = problem()
    for encoding in (
        Sequential(RoPE(8), LengthAware(), FoX(4, 5)),
        PerHead([LengthAware(), RoPE(8)], [1, 3]),
        Partial(Sequential(LengthAware(), RoPE(4)), 4),
        Sequential(PerHead([RoPE(8), Sequential(Scale(2.0), LengthAware())]), ALiBi(4)),
    ):
        agree(in_chunks(encoding, p, cuts).detach(), dense(encoding, p))
