"""LARoPE: positions divided by the length of their sequence (arXiv 2509.11084)."""

from __future__ import annotations

import pytest
import torch
from reference import DOUBLE, attend, close, differ, golden, logits, problem, random

import ropewalk as rw
from ropewalk.analysis.diagonality import diagonality
from ropewalk.core.errors import CannotCache, ConfigError, PositionError, ShapeError
from ropewalk.rotary.larope import CrossAttention

CASES = golden("088")


def cross(queries, keys, valid_queries=None, valid_keys=None):
    """Return positions of two sequences of one row."""
    sides = []
    for n, real in ((queries, valid_queries), (keys, valid_keys)):
        sides.append(rw.Positions(torch.arange(n), valid=None if real is None else torch.arange(n) < real))
    return rw.Positions(q=sides[0], k=sides[1])


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("name", CASES)
def test_golden(name, pairing):
    case = CASES[name]
    p = case.params
    where = cross(p["Lq"], p["Lk"], p["valid_q"], p["valid_k"])
    made = rw.LARoPE(p["head_dim"], p["gamma"], p["base"], pairing)
    close(made.coordinates(where.query, ())[0], case.outputs["pos_q"], DOUBLE)
    close(made.coordinates(where.key, ())[0], case.outputs["pos_k"], DOUBLE)
    q, k = case.inputs["q"], case.inputs["k"]
    done = made(rw.Attention(q, k, k, where, causal=False))
    close(done.q, case.outputs[f"q_{pairing}"], DOUBLE)
    close(done.k, case.outputs[f"k_{pairing}"], DOUBLE)
    if pairing == "half":
        close(logits(done), case.outputs["logits_half"], DOUBLE)


@pytest.mark.parametrize("name", CASES)
def test_golden_positions(name):
    case = CASES[name]
    p = case.params
    for side in "qk":
        where = rw.length_aware_positions([p[f"valid_{side}"]], p["gamma"], size=p[f"L{side}"])
        close(where.query.position[0], case.outputs[f"pos_{side}"], DOUBLE)
        assert int(where.query.column("valid").sum()) == p[f"valid_{side}"]


# ---- properties of the sheet -----------------------------------------------------------------------------------------


def two(queries, keys, d=8, **more):
    q, k = random(1, 2, queries, d), random(1, 2, keys, d, seed=1)
    return rw.Attention(q, k, k, cross(queries, keys, **more), causal=False)


def test_lengths_of_gamma_are_rope():
    p = two(10, 10)
    close(logits(rw.LARoPE(8, 10.0)(p)), logits(rw.RoPE(8, pairing="half")(p)))
    differ(logits(rw.LARoPE(8, 10.0)(two(9, 9))), logits(rw.RoPE(8, pairing="half")(two(9, 9))))


def test_pairings_differ_by_an_order_of_channels():
    p = two(6, 4)
    order = torch.arange(8).view(2, 4).mT.flatten()  # half's pairs (i, i+4) next to each other
    turned = rw.LARoPE(8, pairing="interleaved")(p.replace(q=p.q[..., order], k=p.k[..., order]))
    close(logits(turned), logits(rw.LARoPE(8)(p)))


def test_twice_the_index_of_twice_the_length():
    q = random(1, 1, 10, 8)
    twice = torch.zeros(1, 1, 20, 8, dtype=torch.float64)
    twice[:, :, ::2] = q
    long, short = (rw.LARoPE(8)(rw.Attention(t, t, t, causal=False)).q for t in (twice, q))
    close(long[:, :, ::2], short)


def ones(d=64, queries=40, keys=15):
    q, k = (torch.ones(1, 1, n, d, dtype=torch.float64) for n in (queries, keys))
    return rw.Attention(q, k, k, cross(queries, keys), causal=False)


def test_a_constant_prefers_the_diagonal():
    made = logits(rw.LARoPE(64)(ones()))[0, 0]
    apart = (torch.arange(15).double() / 15 - torch.arange(40).double()[:, None] / 40).abs()
    nearest = apart.amin(-1)
    found = apart.gather(1, made.argmax(-1)[:, None])[:, 0]
    close(found, nearest)


def test_more_gamma_is_a_sharper_diagonal():
    entropies = []
    for gamma in (1.0, 5.0, 10.0, 20.0):
        a = logits(rw.LARoPE(64, gamma)(ones())).softmax(-1)
        entropies.append(-(a * a.log()).sum(-1).mean().item())
    assert entropies == sorted(entropies, reverse=True)
    assert entropies[0] > entropies[-1] + 0.1


def test_padding_changes_nothing():
    p = two(6, 4)
    more = random(1, 2, 3, 8, seed=9)
    padded = rw.Attention(
        p.q, torch.cat([p.k, more], 2), torch.cat([p.v, more], 2), cross(6, 7, valid_keys=4), causal=False
    )
    close(attend(rw.LARoPE(8), padded), attend(rw.LARoPE(8), p))


def test_rows_have_lengths_of_their_own():
    where = rw.length_aware_positions(torch.tensor([3, 5]))
    made = rw.LARoPE(8)
    counted = rw.Positions.arange(5, valid=torch.arange(5) < torch.tensor([[3], [5]]))
    place = made.coordinates(counted.query, ())
    close(place[0, :3], where.query.position[0, :3])
    close(place[1], where.query.position[1])


def test_norms_and_gradients():
    p = two(6, 4)
    q, k = p.q.clone().requires_grad_(), p.k.clone().requires_grad_()
    done = rw.LARoPE(8)(p.replace(q=q, k=k))
    close(done.q.norm(dim=-1), p.q.norm(dim=-1))
    close(done.k.norm(dim=-1), p.k.norm(dim=-1))
    rw.attend(done, "dense").sum().backward()
    assert bool(q.grad.abs().sum() > 0)
    assert bool(k.grad.abs().sum() > 0)


def test_a_known_length_can_be_decoded():
    """RoPE at the positions of a length that is known is the same and has a cache; LARoPE, which measures it, has none."""
    with pytest.raises(CannotCache, match="length_aware_positions"):
        rw.KVCache(rw.LARoPE(8))
    where = rw.length_aware_positions([7, 7], 10.0)
    p = problem(h=2, positions=where)
    rope = rw.RoPE(8, pairing="half")
    cache, out = rw.KVCache(rope), []
    for a, b in ((0, 3), (3, 4), (4, 7)):
        part = rw.Attention(p.q[:, :, a:b], p.k[:, :, a:b], p.v[:, :, a:b], where.slice(a, b))
        out.append(rw.attend(cache.extend(part), "dense"))
    close(torch.cat(out, 2), attend(rope, p))
    close(attend(rope, p), attend(rw.LARoPE(8), p.replace(positions=rw.Positions.arange(7))))


# ---- the module and the measure --------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", [rw.LARoPE(8), rw.RoPE(8, pairing="half"), None], ids=["larope", "rope", "none"])
def test_cross_attention(encoding):
    torch.manual_seed(0)
    layer = CrossAttention(16, 2, encoding, context_size=12).double()
    x, context = random(2, 6, 16), random(2, 5, 12)
    valid = torch.arange(5) < torch.tensor([[3], [5]])
    out = layer(x, context, context_valid=valid)
    assert out.shape == (2, 6, 16)
    close(out[0], layer(x[:1], context[:1, :3])[0])


def test_diagonality():
    diagonal = torch.zeros(1, 2, 6, 3)
    for m in range(6):
        diagonal[..., m, m // 2] = 1
    close(diagonality(diagonal), torch.full((1, 2), 1 / 12, dtype=torch.float64))
    assert diagonality(torch.ones(1, 4, 2)).item() == pytest.approx((0 + 0.25 + 0.5 + 0.75) / 4)  # ties: the first key
    padded = torch.cat([torch.eye(4), 9 * torch.ones(4, 2)], 1)[None]
    assert diagonality(padded, torch.tensor([4]), torch.tensor([4])).item() == 0
    with pytest.raises(ShapeError, match="from 1 to 2"):
        diagonality(torch.ones(1, 4, 2), key_lengths=torch.tensor([3]))


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_sequences_of_nothing():
    with pytest.raises(PositionError, match="a sequence has a token or more"):
        rw.length_aware_positions([0, 4])
    with pytest.raises(PositionError, match="each is from 1 to 4"):
        rw.length_aware_positions([5], size=4)
    with pytest.raises(PositionError, match="padding alone"):
        rw.LARoPE(8)(two(6, 4, valid_keys=0))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), "10"])
def test_bad_input(bad):
    with pytest.raises(ConfigError, match="gamma is a positive number"):
        rw.LARoPE(8, bad)
    with pytest.raises(ConfigError, match="gamma is a positive number"):
        rw.length_aware_positions([3], bad)
