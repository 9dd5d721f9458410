"""Hooks that no entry of the catalog uses yet, proved by small encodings that do."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from ropewalk import ALiBi, Attention, Encoding, FoX, KVCache, PerHead, Positions, RoPE, Sequential, attend
from ropewalk.core import rotation
from ropewalk.core.attention import Column, Mask, Order, Parts, Pointwise, Product, Row, ValueTerm, leaves
from ropewalk.core.encoding import full_precision, table_dtype
from ropewalk.core.errors import CannotCrop, CannotEdit, Refusal, RopewalkError

GOLDEN = Path(__file__).parents[1] / "golden"
CUTS = [(1,) * 7, (3, 4), (2, 1, 4), (6, 1)]


def dense(encoding, p):
    return attend(encoding(p), "dense").detach()


def packed(problem, **facts):
    return problem(positions=Positions.arange(7, **{n: torch.tensor(v) for n, v in facts.items()}))


# ---- PaTH (arXiv 2505.16381): a product whose rows are coupled, and cached keys that keep moving -------------------


def path_scores(scale):
    """Logits of new queries against all keys: q_i' H_i ... H_(m+1) k_j, H_t = I - beta_t w_t w_t'.

    ``at_q`` says which key each query is. Keys before the first query come in the frame of the token before it.
    """

    def scores(q, k, at_q, w, beta):
        index = at_q[0, 0, :, 0]
        first = int(index[0])
        out = q.new_full((*q.shape[:3], k.shape[2]), 0.0)
        moved = k.clone()
        for row, t in enumerate(index.tolist()):
            moved = push(moved, w[:, :, t], beta[:, :, t], t, first)
            out[:, :, row] = scale * (moved @ q[:, :, row, :, None])[..., 0]
        return out

    return scores


def push(k, w, beta, t, first):
    """Carry the keys before token t on by H_t; those from ``first`` on are raw until their own token has come."""
    past = torch.arange(k.shape[2], device=k.device)[:, None] < t
    turned = k - beta[:, :, None] * (k @ w[..., None]) * w[:, :, None]
    return torch.where(past, turned, k)


class PaTH(Encoding):
    """w and beta are given by functions of x: linear, no convolution (so there is no running state)."""

    def __init__(self, kv_heads, head_dim, hidden):
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.w = nn.Parameter(torch.randn(kv_heads * head_dim, hidden, generator=generator))
        self.b = nn.Parameter(torch.randn(kv_heads, hidden, generator=generator))
        self.shape = (kv_heads, head_dim)

    def given(self, p):
        x = p.hidden
        with full_precision(x):
            w = linear(x, self.w.to(x.dtype)).unflatten(-1, self.shape).transpose(1, 2)
            beta = 2 * linear(x, self.b.to(x.dtype)).sigmoid().transpose(1, 2)[..., None]
        return w / w.norm(dim=-1, keepdim=True).clamp(min=1e-6), beta

    def observe(self, p, state=None):
        w, beta = self.given(p)
        valid = p.where.query.columns.get("valid")
        if valid is not None:
            w, beta = w * valid[:, None, :, None], beta * valid[:, None, :, None]
        return p.with_features(k={"w": w, "beta": beta}), state

    def rewrite(self, p):
        features = (p.own("w"), p.own("beta"))
        return p.replace(product=Product(path_scores(p.logit_scale), (Order(),), features, rows_coupled=True))

    def settle(self, p):
        w, beta = p.kf[p.name("w")], p.kf[p.name("beta")]
        k, index = p.k, p.where.index()[0].tolist()
        for t in index:
            k = push(k, w[:, :, t], beta[:, :, t], t, index[0])
        return p.replace(k=k)


class GivenPaTH(PaTH):
    """w and beta as tensors, for golden values."""

    def __init__(self, w, beta):
        Encoding.__init__(self)
        self.give = (w, beta)

    def given(self, p):
        return self.give


@pytest.mark.parametrize("case", json.loads((GOLDEN / "011-path.json").read_text())["cases"], ids=lambda c: c["name"])
def test_path_golden(case, agree):
    given = {n: torch.tensor(t, dtype=torch.float64).transpose(1, 2) for n, t in case["inputs"].items()}
    encoding = GivenPaTH(given["w"], given["beta"][..., None])
    p = Attention(
        given["q"], given["k"], given["v"], scale=case["params"]["scale"], x=torch.zeros(1, given["q"].shape[2], 1)
    )
    gates = given["g_log"].cumsum(-1)[..., None]

    class Gate(Encoding):
        def rewrite(self, p):
            p = p.with_features(q={"g": gates}, k={"g": gates})
            return p.add(Pointwise(lambda a, b: p.logit_scale * (a - b), (p.own("g"),), (p.own("g"),)))

    gated = Sequential(encoding, Gate())(p)
    out = attend(gated, "dense")
    agree(out, torch.tensor(case["outputs"]["o"], dtype=torch.float64).transpose(1, 2), 1e-9)
    from ropewalk.backends.dense import allowed, logits

    got, seen = logits(gated, None, torch.float64), allowed(gated).expand_as(logits(gated, None, torch.float64))
    want = torch.tensor(case["outputs"]["scaled_logits"], dtype=torch.float64)
    assert torch.equal(want > -1e29, seen)
    agree(got[seen], want[seen], 1e-9)


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: PaTH(2, 8, 5),
        lambda: Sequential(PaTH(2, 8, 5), FoX(4, 5)),
        lambda: Sequential(ALiBi(4), PaTH(2, 8, 5)),
        lambda: PerHead([PaTH(1, 8, 5), RoPE(8)]),
        lambda: PerHead([RoPE(8), Sequential(PaTH(1, 8, 5), ALiBi())]),
    ],
)
def test_path_decodes(cuts, make, problem, in_chunks, agree):
    p, encoding = problem(), make()
    agree(in_chunks(encoding, p, cuts).detach(), dense(encoding, p))


@pytest.mark.parametrize(
    "facts",
    [
        {"valid": [[0, 0, 1, 1, 1, 1, 1], [1] * 7]},
        {"valid": [[1, 1, 0, 1, 1, 0, 1], [1] * 7]},
        {"document_ids": [[0, 0, 0, 1, 1, 1, 1], [0] * 7]},
    ],
    ids=["left", "middle", "documents"],
)
def test_path_padded_and_packed(facts, problem, in_chunks, agree):
    encoding, p = PaTH(2, 8, 5), packed(problem, **facts)
    whole = dense(encoding, p)
    for row in range(2):
        kept = p.where.query.columns.get("valid", torch.ones(2, 7).bool())[row]
        documents = p.where.query.columns.get("document", torch.zeros(2, 7))[row]
        for d in documents.unique():
            index = torch.nonzero(kept & (documents == d))[:, 0]
            alone = Attention(*(t[row : row + 1, :, index] for t in (p.q, p.k, p.v)), x=p.x[row : row + 1, index])
            agree(dense(encoding, alone), whole[row : row + 1, :, index])
    real = p.where.query.columns.get("valid", torch.ones(2, 7).bool())[:, None, :, None]
    for cuts in CUTS:
        agree(in_chunks(encoding, p, cuts).detach() * real, whole * real)


def test_path_keys_move(problem, part):
    """After each token the cached keys stand in its frame."""
    p, encoding, cache = problem(), PaTH(2, 8, 5), KVCache(PaTH(2, 8, 5))
    encoding.load_state_dict(cache[0].encoding.state_dict())
    cache.extend(part(p, 0, 7))
    w, beta = (t.detach() for t in encoding.given(p))
    want = p.k.clone()
    for t in range(7):
        want = push(want, w[:, :, t], beta[:, :, t], t, 0)
    torch.testing.assert_close(cache[0].stored[0].k.detach(), want)
    assert not torch.allclose(want[:, :, 0], p.k[:, :, 0])


def test_path_refuses_what_would_be_wrong(problem, part):
    p, encoding = problem(), PaTH(2, 8, 5)
    cache = KVCache(encoding)
    cache.extend(part(p, 0, 5))
    with pytest.raises(CannotEdit):
        cache.edit([0, 1, 2], torch.arange(3))
    assert cache.length == 5


def test_keys_that_moved_cannot_be_cropped(problem, part):
    """There is no running state here, yet the kept keys stand in the frame of tokens that are gone."""
    p, cache = problem(), KVCache(PaTH(2, 8, 5))
    cache.extend(part(p, 0, 5))
    with pytest.raises(CannotCrop):
        cache.crop(3)
    assert cache.length == 5


def test_path_queries_cannot_be_cut(problem):
    with pytest.raises(Refusal):
        PaTH(2, 8, 5)(problem()).select_queries(torch.tensor([2]))


def test_path_snapshots(problem, part, agree):
    p, encoding = problem(), PaTH(2, 8, 5)
    cache = KVCache(encoding)
    cache.extend(part(p, 0, 4))
    before = cache.snapshot()
    attend(cache.extend(part(problem(seed=1), 0, 3)), "dense")
    cache.restore(before)
    got = attend(cache.extend(part(p, 4, 7)), "dense").detach()
    agree(got, dense(encoding, p)[:, :, 4:])


class Raw(Encoding):
    """Keys that depend on how many there are: the keys' mean is taken off, anew at every step."""

    stores = "raw"

    def rewrite(self, p):
        count = p.k.shape[2]
        return p.replace(k=p.k * math.log(2 + count), q=p.q * 1.0)


def test_moving_keys_and_raw_keys_do_not_go_together(problem, in_chunks, agree):
    encoding, p = Sequential(PaTH(2, 8, 5), Raw()), problem()
    try:
        got = in_chunks(encoding, p, (3, 1, 3)).detach()
    except Refusal:
        return
    want = []
    for start, stop in ((0, 3), (3, 4), (4, 7)):  # keys are scaled by the count at that step
        head = Attention(p.q[:, :, :stop], p.k[:, :, :stop], p.v[:, :, :stop], x=p.x[:, :stop])
        want.append(dense(encoding, head)[:, :, start:stop])
    agree(got, torch.cat(want, 2))


# ---- a raw cache -------------------------------------------------------------------------------------------------


def test_raw_keys_are_kept_raw(problem, part, agree):
    p, cache = problem(), KVCache(Sequential(RoPE(8), Raw()))
    out = []
    for start, stop in ((0, 3), (3, 4), (4, 7)):
        out.append(attend(cache.extend(part(p, start, stop)), "dense"))
        assert torch.equal(cache[0].stored[0].k, p.k[:, :, :stop])
        head = Attention(p.q[:, :, :stop], p.k[:, :, :stop], p.v[:, :, :stop])
        agree(out[-1], dense(Sequential(RoPE(8), Raw()), head)[:, :, start:stop])


def test_raw_keys_can_be_edited(problem, part, agree):
    """What is rewritten anew at every step needs no `move`."""
    p, keep = problem(), torch.tensor([0, 3, 4])
    encoding = Sequential(RoPE(8), Raw())
    cache, fresh = KVCache(encoding), KVCache(encoding)
    cache.extend(part(p, 0, 6))
    cache.edit(keep, torch.arange(3))
    fresh.extend(Attention(p.q[:, :, keep], p.k[:, :, keep], p.v[:, :, keep]))
    agree(attend(cache.extend(part(p, 6, 7)), "dense"), attend(fresh.extend(part(p, 6, 7)), "dense"))


class Dynamic(Encoding):
    """Dynamic NTK in its honest form: the base follows the keys there are, so keys are cached raw."""

    stores = "raw"

    def rewrite(self, p):
        length = p.where.key.length
        base = 10_000.0 * max(1.0, length / 4)
        freq = base ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)

        def turn(x, tokens):
            cos, sin = rotation.tables((tokens.coordinates(p.at)[..., None] * freq)[:, None], table_dtype(x))
            return rotation.rotate(x, cos, sin, "interleaved")

        return p.replace(q=turn(p.q, p.where.query), k=turn(p.k, p.where.key))


def test_frequencies_that_follow_the_length(problem, part, agree):
    """Keys are never left turned by older frequencies: each step is a full pass over the tokens so far."""
    p, cache, encoding = problem(), KVCache(Dynamic()), Dynamic()
    for start, stop in ((0, 3), (3, 4), (4, 5), (5, 7)):
        got = attend(cache.extend(part(p, start, stop)), "dense")
        head = Attention(p.q[:, :, :stop], p.k[:, :, :stop], p.v[:, :, :stop])
        agree(got, dense(encoding, head)[:, :, start:stop])


# ---- a term on the values: iRPE's relative vectors (102) ----------------------------------------------------------


def relative_values(clip, width):
    def fn(weights, i, table, j):
        index = (i - j.transpose(-1, -2)).clamp(-clip, clip).long() + clip  # (b, 1, Q, K)
        vectors = table[0, :, 0].unflatten(-1, (2 * clip + 1, width)).to(weights.dtype)  # (H, n, D_v)
        heads = torch.arange(weights.shape[1])[None, :, None, None]
        picked = vectors[heads, index.expand(index.shape[0], weights.shape[1], *index.shape[2:])]
        return (weights[..., None] * picked).sum(-2)

    return fn


class RelativeValues(Encoding):
    """o_i = sum_j a_ij (v_j + r_(i-j))."""

    def __init__(self, heads, width, clip=2):
        super().__init__()
        self.table = nn.Parameter(torch.randn(heads, 2 * clip + 1, width, generator=torch.Generator().manual_seed(1)))
        self.clip, self.width = clip, width

    def rewrite(self, p):
        table = p.head_slice(self.table).flatten(1)[None, :, None]
        at = p.coordinate()
        p = p.with_features(q={"table": table})
        return p.add(ValueTerm(relative_values(self.clip, self.width), (at, p.own("table")), (at,)))

    def move(self, p, tokens):
        return p


def test_relative_values(problem, agree):
    p, encoding = problem(), RelativeValues(4, 8)
    out, weights = attend(encoding(p), "dense", return_weights=True)
    i = torch.arange(7)
    index = (i[:, None] - i).clamp(-2, 2) + 2
    r = encoding.table.double()[:, index]  # (H, Q, K, D_v)
    plain, same = attend(p, "dense", return_weights=True)
    agree(weights, same)
    agree(out, plain + torch.einsum("bhqk,hqkd->bhqd", weights, r))
    agree(attend(encoding(p)), out)  # no fused kernel may take it and drop the term
    out.sum().backward()
    assert encoding.table.grad.abs().max() > 0


@pytest.mark.parametrize("cuts", CUTS)
def test_relative_values_decode(cuts, problem, in_chunks, agree):
    p = problem(positions=Positions.arange(7, valid=torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])))
    for encoding in (
        RelativeValues(4, 8),
        Sequential(RoPE(8), RelativeValues(4, 8)),
        PerHead([RelativeValues(1, 8), RoPE(8)], [1, 3]),
    ):
        agree(in_chunks(encoding, p, cuts, "auto").detach(), dense(encoding, p))


# ---- RoPE++ (020): twice the query heads ---------------------------------------------------------------------------


class RoPEPlus(RoPE):
    """The imaginary part of the product as heads of its own: r0, i0, r1, i1, ..."""

    def rewrite(self, p):
        tables = self.tables(p.where.query, p.at, table_dtype(p.q))
        real = self.turn(p.q, tables, p)
        imaginary = self.turn(p.q, (tables[1], -tables[0]), p)  # turned by a further -pi/2, exactly
        k = self.turn(p.k, self.tables(p.where.key, p.at, table_dtype(p.k)), p)
        twice = {n: t if t.shape[1] == 1 else t.repeat_interleave(2, 1) for n, t in p.qf.items()}
        q = torch.stack([real, imaginary], 2).flatten(1, 2)
        return p.replace(q=q, k=k, qf=twice, heads=(2 * p.heads[0], 2 * p.heads[1]))


@pytest.mark.parametrize(("h", "hk"), [(4, 4), (4, 2), (2, 1)])
def test_twice_the_heads(h, hk, problem, agree):
    p = problem(h=h, hk=hk)
    out = dense(RoPEPlus(8), p)
    assert out.shape == (2, 2 * h, 7, 8)
    agree(out[:, 0::2], dense(RoPE(8), p))
    t = torch.arange(7, dtype=torch.float64)[:, None] * RoPE(8).inv_freq
    a, x = [], []
    k = p.k.repeat_interleave(h // hk, 1)
    for c in range(4):
        q0, q1, k0, k1 = p.q[..., 2 * c], p.q[..., 2 * c + 1], k[..., 2 * c], k[..., 2 * c + 1]
        a.append(q0[..., :, None] * k0[..., None, :] + q1[..., :, None] * k1[..., None, :])
        x.append(q0[..., :, None] * k1[..., None, :] - q1[..., :, None] * k0[..., None, :])
    s = sum(a[c] * (t[:, None, c] - t[:, c]).sin() - x[c] * (t[:, None, c] - t[:, c]).cos() for c in range(4)) / 8**0.5
    seen = torch.ones(7, 7).tril().bool()
    want = s.masked_fill(~seen, -torch.inf).softmax(-1) @ p.v.repeat_interleave(h // hk, 1)
    agree(out[:, 1::2], want)
    agree(attend(RoPEPlus(8)(p)), out)


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: RoPEPlus(8),
        lambda: Sequential(RoPEPlus(8), ALiBi(8)),
        lambda: Sequential(ALiBi(4), RoPEPlus(8)),
        lambda: Sequential(FoX(4, 5), RoPEPlus(8)),
        lambda: PerHead([RoPEPlus(8), RoPEPlus(8, base=50.0)]),
    ],
)
def test_twice_the_heads_decode(cuts, make, problem, in_chunks, agree):
    p, encoding = problem(), make()
    want = dense(encoding, p)
    assert want.shape[1] == 8
    agree(in_chunks(encoding, p, cuts).detach(), want)
    agree(in_chunks(encoding, p, cuts, "auto").detach(), want)


# ---- selective rotary (023): a running phase -----------------------------------------------------------------------


class Selective(Encoding):
    """Angles are a running sum of increments that x gives: phase in float64, carried as state."""

    def __init__(self, kv_heads, pairs, hidden):
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.weight = nn.Parameter(torch.randn(kv_heads * pairs, hidden, generator=generator))
        self.shape = (kv_heads, pairs)

    def observe(self, p, state=None):
        x = p.hidden
        with full_precision(x):
            step = linear(x.double(), self.weight.double()).unflatten(-1, self.shape).transpose(1, 2)
        valid = p.where.query.columns.get("valid")
        if valid is not None:
            step = step * valid[:, None, :, None]
        phase = step.cumsum(2) + (0 if state is None else state[:, :, None])
        group = p.num_heads // p.num_kv_heads
        after = phase[:, :, -1] if phase.shape[2] else state
        return p.with_features(q={"phase": phase.repeat_interleave(group, 1)}, k={"phase": phase}), after

    def rewrite(self, p):
        def turn(x, phase):
            cos, sin = rotation.tables(phase, table_dtype(x))
            return rotation.rotate(x, cos, sin, "half")

        return p.replace(q=turn(p.q, p.qf[p.name("phase")]), k=turn(p.k, p.kf[p.name("phase")]))


@pytest.mark.parametrize("cuts", CUTS)
def test_a_running_phase_decodes(cuts, problem, in_chunks, agree):
    encoding = Selective(2, 4, 5)
    p = packed(problem, valid=[[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 1, 1, 1]])
    real = p.where.query.column("valid")[:, None, :, None]
    agree(in_chunks(encoding, p, cuts).detach() * real, dense(encoding, p) * real)
    both = Sequential(FoX(4, 5), encoding, PerHead([FoX(1, 5), RoPE(8)], [1, 3]))
    agree(in_chunks(both, p, cuts).detach() * real, dense(both, p) * real)


def test_the_phase_is_float64_in_a_low_precision_model(problem, part):
    encoding = Selective(2, 4, 5).to(torch.bfloat16)
    cache = KVCache(encoding)
    p = problem(dtype=torch.bfloat16)
    out = attend(cache.extend(part(p, 0, 4)))
    assert out.dtype == torch.bfloat16
    assert cache[0].state.dtype == torch.float64
    assert cache[0].stored[0].k.dtype == torch.bfloat16


def test_a_running_phase_over_many_steps(rand, agree):
    """20 000 increments: the sum token by token is the sum of one pass."""
    x = rand(1, 20_000, 5, dtype=torch.float32)
    encoding, state, parts = Selective(1, 4, 5), None, []
    p = Attention(*(torch.zeros(1, 1, 20_000, 8),) * 3, x=x).located()
    whole = encoding.observe(p)[0].kf["phase"].detach()
    for start in range(0, 20_000, 625):
        piece = Attention(*(torch.zeros(1, 1, 625, 8),) * 3, x=x[:, start : start + 625]).located()
        seen, state = encoding.observe(piece, state)
        parts.append(seen.kf["phase"].detach())
    agree(torch.cat(parts, 2), whole, 1e-9)


def test_state_follows_beams_and_snapshots(problem, part, agree):
    p = problem()
    encoding = Sequential(Selective(2, 4, 5), FoX(4, 5))
    cache = KVCache(encoding)
    cache.extend(part(p, 0, 4))
    rows = torch.tensor([1, 1, 0])
    cache.select(rows)
    beams = p.select_rows(rows)
    agree(attend(cache.extend(part(beams, 4, 7)), "dense").detach(), dense(encoding, beams)[:, :, 4:])


# ---- a mask replaced by name: AnchorAttention (064) ----------------------------------------------------------------


def own_or_anchor(i, j):
    return (i == j) | (j == 0)


class Anchor(Encoding):
    """Documents see themselves and document 0."""

    def rewrite(self, p):
        return p.with_mask(Mask("documents", own_or_anchor, (Column("document"),), (Column("document"),)))


@pytest.mark.parametrize("backend", ["dense", "sdpa", "auto"])
def test_the_anchor_is_seen_by_all(backend, problem, agree):
    documents = torch.tensor([0, 1, 1, 1, 2, 2, 2])
    p = problem(positions=Positions(torch.arange(7), document_ids=documents))
    got = attend(Sequential(RoPE(8), Anchor())(p), backend)
    i = torch.arange(7)
    seen = (documents[:, None] == documents) | (documents == 0)
    want = attend(RoPE(8)(problem(mask=seen & (i[:, None] >= i))), "dense")
    agree(got, want)
    narrow = attend(RoPE(8)(p), backend)
    assert (got - narrow).abs().max() > 1e-3


@pytest.mark.parametrize("cuts", CUTS)
def test_the_anchor_decodes(cuts, problem, in_chunks, agree):
    documents = torch.tensor([[0, 1, 1, 1, 2, 2, 2], [0, 1, 1, 2, 2, 2, 2]])
    valid = torch.tensor([[1] * 7, [1, 1, 1, 1, 0, 1, 1]])
    p = problem(positions=Positions(torch.arange(7), document_ids=documents, valid=valid))
    encoding = Sequential(Anchor(), RoPE(8), ALiBi(4))
    agree(in_chunks(encoding, p, cuts), dense(encoding, p))
    split = PerHead([Anchor(), RoPE(8)])  # other heads keep the narrow mask
    agree(in_chunks(split, p, cuts), dense(split, p))


# ---- two softmaxes: the difference of two attentions ---------------------------------------------------------------


class Difference(Encoding):
    """softmax(q1 k1) v - lam softmax(q2 k2) v over halves of the channels."""

    def __init__(self, lam=0.6):
        super().__init__()
        self.lam = lam

    def rewrite(self, p):
        half, lam = p.q.shape[-1] // 2, self.lam
        first, second = (p.replace(q=p.q[..., s], k=p.k[..., s]) for s in (slice(0, half), slice(half, None)))
        return Parts((first, second), lambda outs: outs[0] - lam * outs[1], owner=p.scope)


def by_halves(p, lam=0.6, inner=None):
    outs = []
    for s in (slice(0, 4), slice(4, None)):
        one = Attention(p.q[..., s], p.k[..., s], p.v, p.positions, scale=8**-0.5, x=p.x)
        outs.append(attend(one if inner is None else inner(one), "dense").detach())
    return outs[0] - lam * outs[1]


def test_two_softmaxes(problem, agree):
    p = problem()
    agree(dense(Difference(), p), by_halves(p))
    agree(attend(Difference()(p)), by_halves(p))
    agree(dense(Sequential(Difference(), ALiBi(4)), p), by_halves(p, inner=ALiBi(4)))
    agree(dense(Sequential(Difference(), RoPE(4)), p), by_halves(p, inner=RoPE(4)))


@pytest.mark.parametrize("cuts", CUTS)
def test_two_softmaxes_decode(cuts, problem, in_chunks, agree):
    p = problem()
    for encoding in (
        Difference(),
        Sequential(RoPE(8), Difference()),
        Sequential(FoX(4, 5), Difference(), ALiBi(4)),
        PerHead([Difference(), RoPE(8)], [3, 1]),
        Sequential(Difference(), Sequential(RoPE(4))),
    ):
        agree(in_chunks(encoding, p, cuts).detach(), dense(encoding, p))


def test_a_gate_seen_by_both_softmaxes(problem, agree):
    p, fox = problem(), FoX(4, 5)
    agree(dense(Sequential(fox, Difference()), p), by_halves(p, inner=fox))


def test_two_softmaxes_then_different_heads(problem, agree):
    """PerHead splits what is observed, before the softmaxes are told apart, and still finds its heads."""
    p = problem()
    encoding = Sequential(Difference(), PerHead([RoPE(4), ALiBi(2)]))
    try:
        got = dense(encoding, p)
    except RopewalkError:
        return
    heads = [
        by_halves(p.select_heads(0, 2).replace(heads=(0, 2)), inner=RoPE(4)),
        by_halves(p.select_heads(2, 4).replace(heads=(0, 2)), inner=ALiBi(2)),
    ]
    agree(got, torch.cat(heads, 1))


def test_parts_of_two_softmaxes(problem, agree):
    p = problem()
    out = Sequential(RoPE(8), Difference())(p)
    whole = attend(out, "dense")
    assert len(leaves(out)) == 2
    rows, index = torch.tensor([1]), torch.tensor([6, 2])
    agree(attend(out.select_rows(rows).select_queries(index), "dense"), whole[rows][:, :, index])
    with pytest.raises(RopewalkError, match="split"):
        attend(out, "dense", return_weights=True)


def test_edits_of_two_softmaxes(problem, part, agree):
    """Stored parts of a split that no combinator made: moved rightly or refused."""
    p, keep, encoding = problem(), torch.tensor([0, 2, 5]), Sequential(RoPE(8), Difference())
    cache = KVCache(encoding)
    cache.extend(part(p, 0, 6))
    with pytest.raises(RopewalkError):
        cache.edit(keep, torch.arange(3))
    assert cache.length == 6


# ---- a whole-row term ----------------------------------------------------------------------------------------------


def take_off_mean(logits, allowed, gate):
    mean = (logits * allowed).sum(-1, keepdim=True) / allowed.sum(-1, keepdim=True).clamp(min=1)
    return logits - gate * mean * (logits > 0)


class RowWise(Encoding):
    def rewrite(self, p):
        p = p.with_features(q={"gate": p.q[..., :1].sigmoid()})
        return p.add(Row(take_off_mean, (p.own("gate"),)))


@pytest.mark.parametrize("cuts", CUTS)
def test_a_row_term_sees_what_was_before_it_only(cuts, problem, in_chunks, agree):
    p = packed(problem, valid=[[0, 1, 1, 1, 1, 1, 1], [1] * 7])
    real = p.where.query.column("valid")[:, None, :, None]
    a, b = Sequential(RowWise(), ALiBi(4)), Sequential(ALiBi(4), RowWise())
    assert (dense(a, p) - dense(b, p)).abs().max() > 1e-3
    for encoding in (a, b, PerHead([RowWise(), ALiBi()], [1, 3])):
        agree(in_chunks(encoding, p, cuts) * real, dense(encoding, p) * real)
        agree(in_chunks(encoding, p, cuts, "auto") * real, dense(encoding, p) * real)
