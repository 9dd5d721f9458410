"""Which backend is taken, what is said about it, and what is said when there is none."""

import pytest
import torch

import ropewalk as rw
from ropewalk.backends import BACKENDS, Request, choose
from ropewalk.core.attention import Attention, Row


def problem(n=32, m=None, **fields):
    torch.manual_seed(0)
    m = m or n
    return Attention(torch.randn(1, 4, n, 8), torch.randn(1, 2, m, 8), torch.randn(1, 2, m, 8), **fields).located()


def chosen(p, **request):
    return choose(p, "auto", Request(**request)).name


def row(p):
    return p.add(Row(lambda logits, allowed: logits.cumsum(-1)))


def test_the_fastest_able_one_is_taken():
    assert chosen(problem()) == "sdpa"
    assert chosen(rw.ALiBi(4)(problem())) == "sdpa"
    with torch.no_grad():
        assert chosen(rw.T5(4)(problem())) == "dense"  # the bias would be held either way, and flex compiles
        assert chosen(rw.T5(4)(problem(1, 32))) == "sdpa"
    assert chosen(row(problem())) == "dense"
    assert chosen(problem(softcap=5.0)) == "dense"
    assert chosen(problem(), weights=True) == "dense"


def test_a_held_bias_learns_whichever_backend():
    encoding = rw.T5(4)
    grads = [
        torch.autograd.grad(rw.attend(encoding(problem()), b).square().sum(), encoding.weight)[0]
        for b in ("sdpa", "dense")
    ]
    torch.testing.assert_close(*grads, atol=1e-5, rtol=1e-4)


def test_explain_names_the_backend_and_the_reasons():
    said = rw.explain(row(problem(softcap=5.0, window=4)))
    assert said.startswith("dense: 1 x 4/2 heads x 32 queries x 32 keys, width 8; float32")
    assert "terms: row" in said
    assert "masks: causal, window" in said
    for b in BACKENDS[:-2]:
        assert f"  {b.name} cannot: " in said
    assert "blocks could, but the whole matrix is no larger than a block" in said
    assert "sdpa cannot: the soft cap" in said
    assert "flex cannot: a Row term" in said
    held = rw.explain(rw.T5(4)(problem()))
    assert "sdpa could, but a bias without factors" in held
    assert "low-rank" in rw.explain(rw.ALiBi(4)(problem()))
    assert "linear cannot: the problem is a softmax" in held


def test_explain_of_a_split_problem_explains_each():
    split = rw.PerHead([rw.RoPE(8), rw.ALiBi()])(problem())
    said = rw.explain(split)
    assert said.startswith("split into 2 problems:")
    assert said.count("sdpa: ") == 2


@pytest.mark.parametrize(
    ("name", "meant"), [("sdap", "sdpa"), ("Dense", "dense"), ("flashh", "flash"), ("flexx", "flex")]
)
def test_an_unknown_name_suggests_the_nearest(name, meant):
    with pytest.raises(rw.UnknownNameError, match=f"Did you mean '{meant}'"):
        rw.attend(problem(), name)


def test_who_was_asked_for_and_cannot_says_why_and_who_can():
    with pytest.raises(rw.BackendError) as caught:
        rw.attend(row(problem()), "sdpa")
    said = str(caught.value)
    assert "'sdpa'" in said
    assert "a Row term needs the whole row" in said
    assert said.endswith("Able to: blocks, dense")
    with pytest.raises(rw.BackendError, match=r"weights were asked for.*Able to: dense"):
        rw.attend(problem(), "sdpa", return_weights=True)


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 2])
def test_dropout_is_a_probability(dropout):
    with pytest.raises(rw.ConfigError, match=r"probability in \[0, 1\)"):
        rw.attend(problem(), dropout=dropout)


@torch.no_grad()
def test_what_is_returned():
    out, weights, lse = rw.attend(problem(), return_weights=True, return_lse=True)
    assert (out.shape, weights.shape, lse.shape) == ((1, 4, 32, 8), (1, 4, 32, 32), (1, 4, 32))
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 4, 32))
    assert weights.triu(1).abs().max() == 0
    kept = rw.attend(problem(), dropout=0.5, return_weights=True)[1]
    torch.testing.assert_close(kept, weights)  # as they are before dropout


@torch.no_grad()
def test_a_softcap_bounds_the_scores():
    p = problem(softcap=0.5, causal=False, scale=100.0)
    weights = rw.attend(p, return_weights=True)[1]
    assert (weights.amax(-1) / weights.amin(-1)).max() <= torch.e * (1 + 1e-5)


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (0, 0), (3, 0)])
@torch.no_grad()
def test_empty_problems(queries, keys):
    q, k = torch.randn(2, 4, queries, 8), torch.randn(2, 2, keys, 8)
    out = rw.attend(Attention(q, k, k, causal=False))
    assert out.shape == q.shape
    assert (out == 0).all()
