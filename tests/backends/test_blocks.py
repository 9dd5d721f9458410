"""Some queries at a time: the same numbers and gradients as the whole matrix, in memory that does not grow with it."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import ropewalk as rw
from ropewalk.backends import Request, blocks, choose
from ropewalk.core.attention import Attention, Pointwise, Product, Row

S, D = 40, 8


@pytest.fixture(autouse=True)
def _several_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 1)
    monkeypatch.setattr(blocks, "FEWEST", 7)


def problem(n=S, m=None, dtype=torch.float64, grad=False, **fields):
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, n, D), (2, 2, m or n, D), (2, 2, m or n, D))
    q, k, v = (torch.randn(s, generator=generator, dtype=dtype).requires_grad_(grad) for s in shapes)
    return Attention(q, k, v, **fields)


def encodings():
    torch.manual_seed(0)
    cope = rw.build("contextual_cope(head_dim=8, npos_max=12)")
    torch.nn.init.normal_(cope.weight)
    return {"t5": rw.T5(4), "fire": rw.build("fire(num_heads=4)"), "cope": cope, "alibi": rw.ALiBi(4)}


WHERE = {
    "counted": lambda: rw.Positions.arange(S),
    "far out": lambda: rw.Positions.arange(S, offset=1000),
    "packed": lambda: rw.Positions.arange(S, document_ids=torch.arange(S) // 15),
    "padded": lambda: rw.Positions.arange(S, valid=torch.arange(S) > torch.tensor([[-1], [9]])),
    "by row": lambda: rw.Positions(torch.arange(S) + torch.tensor([[0], [5]])),
    "real": lambda: rw.Positions(torch.arange(S) * 1.5),
    "no order": lambda: rw.Positions(torch.arange(S) ** 2 % 37, next=torch.tensor([0])),
}


@pytest.mark.parametrize("rows", [7, 19])  # of more than 16 queries distances are found
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", ["t5", "fire", "cope", "alibi"])
@torch.no_grad()
def test_equals_the_whole_matrix(name, where, rows, monkeypatch):
    monkeypatch.setattr(blocks, "FEWEST", rows)
    encoding = encodings()[name]
    for window in (None, 11):
        p = encoding(problem(positions=WHERE[where](), window=window))
        got = rw.attend(p, "blocks", return_lse=True)
        torch.testing.assert_close(got, rw.attend(p, "dense", return_lse=True), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["t5", "fire", "cope", "alibi"])
def test_gradients(name):
    encoding = encodings()[name].double()
    grads = []
    for backend in ("blocks", "dense"):
        p = problem(grad=True, sinks=torch.linspace(0, 1, 4, dtype=torch.float64).requires_grad_())
        inputs = [p.q, p.k, p.v, p.sinks, *encoding.parameters()]
        out = rw.attend(encoding(p), backend)
        grads.append(torch.autograd.grad(out.square().sum(), inputs, allow_unused=True))
    for got, want in zip(*grads, strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-9)


@torch.no_grad()
def test_fewer_queries_than_keys_and_bidirectional():
    t5 = rw.T5(4, bidirectional=True)
    for fields in ({"n": 17, "m": S}, {"causal": False}, {"causal": False, "window": 6}):
        p = t5(problem(**fields))
        torch.testing.assert_close(rw.attend(p, "blocks"), rw.attend(p, "dense"), rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_block_holds_the_keys_it_sees_and_no_others():
    seen = []

    def look(logits, allowed):
        seen.append(tuple(logits.shape[2:]))
        return logits

    def bias(i, j):
        seen.append((i.shape[-2], j.shape[-1]))
        return (i - j).sin()

    rw.attend(problem().located().add(Row(look)), "blocks")
    assert seen == [(7, 7), (7, 14), (7, 21), (7, 28), (7, 35), (5, 40)]
    seen.clear()
    p = problem(window=4).located()
    where = p.coordinate()
    rw.attend(p.add(Pointwise(bias, (where,), (where,))), "blocks")
    assert seen == [(7, 7), (7, 10), (7, 10), (7, 10), (7, 10), (5, 8)]


def test_memory_is_that_of_a_block(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 1 << 14)
    largest = []

    class Largest(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            largest.extend(t.untyped_storage().nbytes() for t in tree_leaves(out) if isinstance(t, torch.Tensor))
            return out

    for name, encoding in encodings().items():
        p = problem(1024, dtype=torch.float32, grad=True)
        with Largest():
            rw.attend(encoding(p), "blocks").sum().backward()
        assert max(largest) <= 8 * 8 * 16 * 1024, (
            name
        )  # sixteen queries, float64; the matrix in float32 is 32 times as much
        largest.clear()


def test_when_it_is_chosen(monkeypatch):
    monkeypatch.undo()
    t5, request = rw.T5(4), Request()
    small, large = t5(problem(64, dtype=torch.float32)), t5(problem(1024, dtype=torch.float32))
    assert choose(small, "auto", request).name == "dense"
    assert choose(large, "auto", request).name == "blocks"
    assert choose(large, "auto", Request(weights=True)).name == "dense"
    assert choose(rw.ALiBi(4)(problem(1024, dtype=torch.float32)), "auto", request).name == "sdpa"
    said = rw.explain(large)
    assert said.startswith("blocks: ") and "dense could" in said
    coupled = large.replace(product=Product(lambda q, k: q @ k.mT, rows_coupled=True))
    assert "couple the rows" in str(blocks.BACKEND.why_not(coupled, request))


@pytest.mark.parametrize(
    ("where", "once"), [("counted", True), ("far out", True), ("packed", False), ("by row", False)]
)
@torch.no_grad()
def test_distances_are_evaluated_once_where_tokens_follow_each_other(where, once, monkeypatch):
    monkeypatch.setattr(blocks, "FEWEST", 20)
    t5, sizes, bucket = rw.T5(4), [], rw.T5.bucket

    def counted(self, distance):
        sizes.append(distance.numel())
        return bucket(self, distance)

    monkeypatch.setattr(rw.T5, "bucket", counted)
    p = t5(problem(positions=WHERE[where](), dtype=torch.float32))
    got = rw.attend(p, "blocks")
    assert sizes == ([20 + 20 - 1, 20 + 40 - 1] if once else [len(p.where.key.position) * 20 * n for n in (20, 40)])
    torch.testing.assert_close(got, rw.attend(p, "dense"), rtol=1e-5, atol=2e-6)
