"""The fused backend against the reference: folded terms, exactness in low precision, merged softmaxes."""

import pytest
import torch
import torch.nn.functional as F

import ropewalk as rw
from ropewalk.backends import sdpa
from ropewalk.core.attention import Attention, Branch, Feature, Mask, Order, Pointwise
from ropewalk.core.encoding import Encoding

HIDDEN = 12


def rand(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def problem(n=40, m=None, b=2, h=4, kv=2, d=8, dv=None, seed=0, dtype=torch.float64, **fields):
    m, dv = m or n, dv or d
    made = rand(b, h, n, d, seed=seed), rand(b, kv, m, d, seed=seed + 1), rand(b, kv, m, dv, seed=seed + 2)
    x = rand(b, n, HIDDEN, seed=seed + 3) if n == m else None
    return Attention(*(t.to(dtype) for t in made), x=x, **fields)


class HeldALiBi(rw.ALiBi):
    """Without factors: a bias that is held."""

    factored = False


class TwoScores(Encoding):
    """Near keys are met by other queries."""

    def rewrite(self, p):
        near = Mask("near", lambda i, j: (i - j).abs() < 6, (Order(),), (Order(),))
        p = p.with_features(q={"near": p.q.flip(-1)})
        return p.replace(branches=(Branch(), Branch(q=p.name("near"), where=near)))


class Gains(Encoding):
    """A product of two features, one of them by key head."""

    def rewrite(self, p):
        p = p.with_features(q={"gain": p.q[..., :1]}, k={"gain": p.k[..., :1]})
        gain = p.own("gain")
        return p.add(Pointwise(lambda x, y: x * y, (gain,), (gain,), factors=lambda x, y: ((x, y),)))


ENCODINGS = {
    "nope": rw.NoPE,
    "alibi": lambda: rw.ALiBi(4),
    "alibi, held": lambda: HeldALiBi(4),
    "fox": lambda: rw.FoX(4, HIDDEN).double(),
    "gains": Gains,
    "several": lambda: rw.Sequential(rw.RoPE(8), rw.FoX(4, HIDDEN).double(), rw.ALiBi(4), Gains(), rw.T5(4).double()),
    "two scores": TwoScores,
    "two scores with terms": lambda: rw.Sequential(rw.ALiBi(4), TwoScores()),
}
PAD = torch.ones(2, 40, dtype=torch.bool)
PAD[1, :9] = False
MIDDLE = torch.ones(2, 40, dtype=torch.bool)
MIDDLE[0, 11:17] = False
PROBLEMS = {
    "grouped": problem,
    "one key head": lambda: problem(kv=1),
    "a key head each": lambda: problem(kv=4),
    "narrow values": lambda: problem(kv=4, dv=5),
    "wide values": lambda: problem(dv=19),
    "left padding": lambda: problem(positions=rw.Positions.arange(40, valid=PAD)),
    "middle padding": lambda: problem(positions=rw.Positions.arange(40, valid=MIDDLE)),
    "documents": lambda: problem(positions=rw.Positions.arange(40, document_ids=torch.arange(40) // 11)),
    "window": lambda: problem(window=7),
    "user mask": lambda: problem(mask=rand(2, 4, 40, 40) > 0),
    "few": lambda: problem(n=5),
    "far away": lambda: problem(positions=rw.Positions.arange(40, offset=10**7)),
    "real positions": lambda: problem(positions=rw.Positions(1e6 + rand(2, 40).cumsum(-1))),
}


def same(p, **tolerances):
    got, want = (rw.attend(p, name) for name in ("sdpa", "dense"))
    torch.testing.assert_close(got, want, **{"atol": 1e-10, "rtol": 1e-10, **tolerances})


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", PROBLEMS)
@torch.no_grad()
def test_equals_the_reference(encoding, name):
    torch.manual_seed(0)
    # Centred or not, coordinates near 1e7 differ in the last bits of float64.
    same(ENCODINGS[encoding]()(PROBLEMS[name]()), atol=1e-7 if name in ("far away", "real positions") else 1e-10)


@pytest.mark.parametrize("queries", [1, 3, 16, 17, 30])
@pytest.mark.parametrize("encoding", [rw.NoPE(), rw.ALiBi(4), rw.T5(4), TwoScores()], ids=str)
@torch.no_grad()
def test_chunks_see_the_keys_before_them(encoding, queries):
    same(encoding(problem(n=queries, m=40)))


@torch.no_grad()
def test_decoding_equals_the_whole():
    torch.manual_seed(0)
    encoding = rw.Sequential(rw.RoPE(8), rw.FoX(4, HIDDEN).double(), rw.ALiBi(4))
    p = problem(n=40)
    cache, outs, start = rw.KVCache(encoding), [], 0
    for size in (23, 1, 1, 9, 6):
        part = slice(start, start + size)
        step = Attention(p.q[:, :, part], p.k[:, :, part], p.v[:, :, part], x=p.x[:, part])
        outs.append(rw.attend(cache.extend(step), "sdpa"))
        start += size
    torch.testing.assert_close(torch.cat(outs, 2), rw.attend(encoding(p), "dense"), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("encoding", [n for n in ENCODINGS if "two" not in n])
@pytest.mark.parametrize("name", ["grouped", "a key head each", "left padding", "few"])
def test_gradients_equal_the_reference(encoding, name):
    torch.manual_seed(0)
    encoding = ENCODINGS[encoding]()
    p, grads = PROBLEMS[name](), []
    for backend in ("sdpa", "dense"):
        inputs = [t.clone().requires_grad_() for t in (p.q, p.k, p.v)]
        out = rw.attend(encoding(p.replace(q=inputs[0], k=inputs[1], v=inputs[2])), backend)
        wanted = [*inputs, *encoding.parameters()]
        grads.append(torch.autograd.grad((out * out.detach().cos()).sum(), wanted))
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want, atol=1e-8, rtol=1e-8)


def largest_error(encoding, p, dtype):
    exact = rw.attend(encoding(p), "dense")
    low = p.replace(q=p.q.to(dtype), k=p.k.to(dtype), v=p.v.to(dtype))
    return (rw.attend(encoding(low), "sdpa").double() - exact).abs().max().item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kv", [4, 2], ids=["added by the kernel", "folded"])
@pytest.mark.parametrize("name", ["alibi", "fox"])
@torch.no_grad()
def test_low_precision_is_as_exact_as_plain_attention(name, kv, dtype):
    torch.manual_seed(0)
    p = problem(n=1024, b=1, kv=kv, d=32, positions=rw.Positions.arange(1024, offset=10**6))
    p = p.replace(q=p.q.to(dtype).double(), k=p.k.to(dtype).double(), v=p.v.to(dtype).double())
    plain = largest_error(rw.NoPE(), p, dtype)
    # Forgetting leaves few keys with large weights, whose rounding shows more in the finer of the two dtypes.
    assert largest_error(ENCODINGS[name](), p, dtype) < (2 if dtype == torch.bfloat16 else 4) * plain


@pytest.mark.parametrize("start", [0, 10**6, 10**7])
@torch.no_grad()
def test_float32_does_not_lose_far_positions(start):
    p = problem(n=256, kv=2, d=16, positions=rw.Positions.arange(256, offset=start))
    assert largest_error(rw.ALiBi(4), p, torch.float32) < 1e-5


@torch.no_grad()
def test_autocast_keeps_positions():
    p = problem(n=512, b=1, d=32, dtype=torch.float32)
    exact = rw.attend(rw.ALiBi(4)(problem(n=512, b=1, d=32)), "dense")
    for backend in ("sdpa", "dense"):
        with torch.autocast("cpu", torch.bfloat16):
            out = rw.attend(rw.ALiBi(4)(p), backend)
        assert out.dtype == torch.bfloat16
        assert (out.double() - exact).abs().max() < 0.05


# ---- several scores, sinks, log-sum-exp ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("encoding", ["nope", "alibi", "alibi, held", "fox", "two scores with terms"])
@torch.no_grad()
def test_sinks_and_lse(encoding, name):
    torch.manual_seed(0)
    for sinks in (None, rand(4)):
        p = ENCODINGS[encoding]()(PROBLEMS[name]().replace(sinks=sinks))
        got, want = (rw.attend(p, backend, return_lse=True) for backend in ("sdpa", "dense"))
        tolerance = 1e-7 if name in ("far away", "real positions") else 1e-10
        torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@torch.no_grad()
def test_merging_in_other_dtypes(dtype):
    p = TwoScores()(problem(dtype=dtype, window=9, sinks=rand(4)))
    got, want = (rw.attend(p, backend).float() for backend in ("sdpa", "dense"))
    torch.testing.assert_close(got, want, atol=1e-5 if dtype == torch.float32 else 0.05, rtol=0.0)


def test_merging_has_no_gradient_and_says_so():
    p = problem()
    p = TwoScores()(p.replace(q=p.q.requires_grad_()))
    with pytest.raises(rw.BackendError, match="has no gradient"):
        rw.attend(p, "sdpa")
    rw.attend(p).sum().backward()


# ---- rows that see nothing, dropout, memory, compiling ---------------------------------------------------------------


@pytest.mark.parametrize("backend", ["sdpa", "dense"])
@pytest.mark.parametrize("name", ["nope", "alibi", "alibi, held", "fox"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rows_that_see_nothing_are_zero(backend, name, dtype):
    torch.manual_seed(0)
    mask = torch.ones(40, 40, dtype=torch.bool)
    mask[[0, 13, 39]] = False
    for kv in (2, 4):
        p = problem(mask=mask, kv=kv, dtype=dtype)
        inputs = [t.requires_grad_() for t in (p.q, p.k, p.v)]
        out = rw.attend(ENCODINGS[name]()(p), backend)
        assert (out[:, :, [0, 13, 39]] == 0).all()
        assert out.isfinite().all()
        assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), inputs))


def test_the_reference_has_a_gradient_of_the_lse_of_nothing():
    p = problem(mask=torch.zeros(40, 40, dtype=torch.bool))
    q = p.q.requires_grad_()
    out, lse = rw.attend(p, "dense", return_lse=True)
    assert (lse == -torch.inf).all()
    (grad,) = torch.autograd.grad(out.sum() + lse.masked_fill(lse == -torch.inf, 0).sum(), q)
    assert grad.isfinite().all()


@pytest.mark.parametrize("backend", ["sdpa", "dense"])
@pytest.mark.parametrize("name", ["nope", "alibi", "alibi, held"])
@torch.no_grad()
def test_dropout_keeps_the_mean(backend, name):
    torch.manual_seed(0)
    p = ENCODINGS[name]()(problem(b=1, n=32, kv=4))
    p = p.replace(v=torch.ones_like(p.v))
    rate, n = 0.25, 400
    outs = torch.stack([rw.attend(p, backend, dropout=rate) for _ in range(n)])
    weights = rw.attend(p, "dense", return_weights=True)[1]
    spread = (weights.square().sum(-1, keepdim=True) * rate / (1 - rate)).expand_as(outs[0])
    assert ((outs.mean(0) - 1).abs() < 6 * (spread / n).sqrt()).all()
    torch.testing.assert_close(outs.var(0), spread, rtol=0.6, atol=1e-6)


def test_what_learns_gets_its_gradient_though_the_kernel_has_none_for_a_row():
    fox = rw.FoX(4, HIDDEN).double()
    p = fox(problem(kv=4))
    assert sdpa._key_row(p, sdpa._factors(p, list(p.terms), all_of_them=False)) is None
    with torch.no_grad():
        p = fox(problem(kv=4))
        assert sdpa._key_row(p, sdpa._factors(p, list(p.terms), all_of_them=False)) is not None


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("name", ["alibi", "fox"])
def test_memory_is_linear(name, learns, monkeypatch):
    """No tensor of Q x K elements is made."""
    torch.manual_seed(0)
    n, largest = 512, []
    p = problem(n=n, b=1, d=8, kv=4)
    encoding = ENCODINGS[name]()

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for t in torch.utils._pytree.tree_leaves(out):
                if isinstance(t, torch.Tensor):
                    largest.append(t.untyped_storage().nbytes() // t.element_size())
            return out

    with torch.set_grad_enabled(learns), Watch():
        rw.attend(encoding(p), "sdpa")
    assert max(largest) < n * n // 4


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("shape", ["grouped", "a key head each", "left padding", "few"])
@torch.no_grad()
def test_traces_whole(name, shape):
    torch._dynamo.reset()
    torch.manual_seed(0)
    encoding, p = ENCODINGS[name](), PROBLEMS[shape]()

    @torch.compile(fullgraph=True, backend="eager")
    def compiled(p):
        return rw.attend(encoding(p), "sdpa")

    torch.testing.assert_close(compiled(p), rw.attend(encoding(p), "dense"), atol=1e-10, rtol=1e-10)


# ---- what torch's kernel does, on which the backend builds -----------------------------------------------------------


def test_the_kernel_as_we_call_it():
    """Causality beside a row, equal to one mask of both; and the fused path for grouped heads."""
    q, k, v = (rand(2, 4, 300, 16, seed=i, dtype=torch.float32) for i in range(3))
    row = rand(2, 4, 1, 300, dtype=torch.float32)
    causal = torch.ones(300, 300, dtype=torch.bool).tril()
    out, lse = sdpa._kernel(q, k, v, True, row, 0.3)
    want = F.scaled_dot_product_attention(
        q, k, v, row.expand(2, 4, 300, 300).masked_fill(~causal, -torch.inf), scale=0.3
    )
    torch.testing.assert_close(out, want)
    logits = (q @ k.mT * 0.3 + row).masked_fill(~causal, -torch.inf)
    torch.testing.assert_close(lse, logits.logsumexp(-1))


def test_no_feature_of_another_width_is_swapped_in():
    p = problem()
    p = p.located().with_features(q={"wide": rand(2, 4, 40, 9)}, k={"wide": rand(2, 2, 40, 9)})
    assert Feature("wide").name in p.qf
    p = p.replace(branches=(Branch(), Branch("wide", "wide", Mask("m", lambda i: i > 3, (Order(),)))))
    with torch.no_grad(), pytest.raises(rw.BackendError, match="different widths"):
        rw.attend(p, "sdpa")
    rw.attend(p, "dense")
