"""FlexAttention against the reference. Compiled ones are slow; the same modifications also run uncompiled."""

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import ropewalk as rw
from ropewalk.backends import flex
from ropewalk.core.attention import Attention, Feature, Mask, Pointwise

B, H, KV, S, D, HIDDEN = 2, 4, 2, 40, 16, 12


def rand(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def problem(n=S, kv=KV, **fields):
    x = rand(B, S, HIDDEN, seed=3) if n == S else None
    return Attention(rand(B, H, n, D), rand(B, kv, S, D, seed=1), rand(B, kv, S, D, seed=2), x=x, **fields)


def t5():
    torch.manual_seed(0)
    encoding = rw.T5(H, num_buckets=8, max_distance=20)
    torch.nn.init.normal_(encoding.weight)
    return encoding


def features(p):
    """A term and a mask by row and head, on both sides, on the key side by key head."""
    p = p.located().with_features(
        q={"row": rand(B, H, S, 1, seed=4), "head": rand(1, H, 1, 1, seed=5)}, k={"kv": rand(B, KV, S, 1, seed=6)}
    )
    row, head, kv = Feature("row"), Feature("head"), Feature("kv")
    p = p.add(Pointwise(lambda score, x, m, y: score * x + m * y, (row, head), (kv,), additive=False))
    return p.with_mask(Mask("some", lambda x, y: x + y > -1, (row,), (kv,)))


VALID = torch.ones(B, S, dtype=torch.bool)
VALID[1, :7] = False
BLANK = rand(B, H, S, S) > 0
BLANK[:, :, 3] = False
CASES = {
    "plain": problem,
    "a table, padded": lambda: t5()(problem(positions=rw.Positions.arange(S, valid=VALID))),
    "a table, documents": lambda: t5()(problem(positions=rw.Positions.arange(S, document_ids=torch.arange(S) // 13))),
    "terms of a lower rank": lambda: rw.Sequential(rw.FoX(H, HIDDEN), rw.ALiBi(H))(problem()),
    "both directions": lambda: rw.ALiBi(H, bidirectional=True)(problem(causal=False, window=9)),
    "features by row and head": lambda: features(problem()),
    "soft cap before a term": lambda: rw.ALiBi(H)(problem(softcap=0.7)),
    "user mask with blank rows": lambda: problem(mask=BLANK),
    "fewer queries": lambda: t5()(problem(n=20)),
    "one query": lambda: t5()(problem(n=1)),
    "order by row": lambda: problem(
        positions=rw.Positions(torch.arange(S), order=torch.stack([torch.arange(S), torch.arange(S).flip(0)]))
    ),
    "far away": lambda: rw.ALiBi(H)(problem(positions=rw.Positions.arange(S, offset=10**7))),
}


holds = pytest.mark.skipif(not flex.CPU_HOLDS, reason="torch compiles FlexAttention wrongly for this processor")


def same(p):
    got, want = rw.attend(p, "flex"), rw.attend(p, "dense")
    torch.testing.assert_close(got, want, atol=5e-6, rtol=1e-5)


@pytest.fixture
def _uncompiled(monkeypatch):
    monkeypatch.setattr(flex, "_compiled", lambda device: flex_attention)
    monkeypatch.setattr(flex, "CPU_HOLDS", True)


@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_modifications(name):
    same(CASES[name]())


@holds
@torch.no_grad()
def test_compiled():
    torch._dynamo.reset()
    same(CASES["a table, padded"]())


@holds
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_compiled_all(name):
    torch._dynamo.reset()  # beyond some eight problems torch stops compiling anew
    same(CASES[name]())


@holds
@pytest.mark.slow
@torch.no_grad()
def test_compiled_bfloat16():
    torch._dynamo.reset()
    p = problem()
    low = rw.ALiBi(H)(p.replace(q=p.q.bfloat16(), k=p.k.bfloat16(), v=p.v.bfloat16()))
    error = (rw.attend(low, "flex").float() - rw.attend(rw.ALiBi(H)(p), "dense")).abs().max()
    assert error < 0.05


def test_a_processor_on_which_it_computes_wrong_numbers(monkeypatch):
    monkeypatch.setattr(flex, "CPU_HOLDS", False)
    with pytest.raises(rw.BackendError, match="without AVX-512"):
        rw.attend(problem(), "flex")


def test_refusals():
    p = problem()
    for made, reason in (
        (p.replace(q=p.q.double(), k=p.k.double(), v=p.v.double()), "float32 and below"),
        (p.replace(q=p.q.half(), k=p.k.half(), v=p.v.half()), "float32 and bfloat16"),
        (p.replace(q=p.q.clone().requires_grad_()), "no backward"),
        (p.replace(sinks=torch.zeros(H)), "sinks"),
    ):
        with pytest.raises(rw.BackendError, match=reason):
            rw.attend(made, "flex")
    with pytest.raises(rw.BackendError, match="dropout"):
        rw.attend(p, "flex", dropout=0.1)
