"""Linear attention by running sums against its whole matrix of weights."""

import pytest
import torch

import ropewalk as rw
from ropewalk.backends import linear
from ropewalk.core.attention import Attention, Linear, Mask, Order

TINY = 1e-12


def problem(n=300, m=None, kv=2, dtype=torch.float64, **fields):
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(2, h, length, w, dtype=torch.float64).to(dtype)
        for h, length, w in ((4, n, 8), (kv, m or n, 8), (kv, m or n, 5))
    )
    p = Attention(q, k, v, **fields).located()
    p = p.with_features(q={"sum": q.exp()[..., :6]}, k={"sum": k.exp()[..., :6]})
    return p.replace(kernel=Linear("sum"))


@pytest.mark.parametrize("n", [1, 127, 128, 129, 300])
@pytest.mark.parametrize("kv", [1, 2, 4])
@pytest.mark.parametrize("causal", [True, False])
def test_equals_the_reference(n, kv, causal):
    p = problem(n, kv=kv, causal=causal)
    torch.testing.assert_close(rw.attend(p, "linear"), rw.attend(p, "dense"), atol=TINY, rtol=1e-10)
    assert rw.explain(p).startswith("linear:")


def test_cross_attention_and_gradients():
    p = problem(30, 70, causal=False)
    q, k, v = (t.clone().requires_grad_() for t in (p.q, p.k, p.v))
    p = p.replace(q=q, k=k, v=v)
    grads = [torch.autograd.grad(rw.attend(p, b).sin().sum(), (q, k, v)) for b in ("linear", "dense")]
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want, atol=TINY, rtol=1e-9)


def test_low_precision_is_summed_in_float32():
    p, low = problem(), problem(dtype=torch.bfloat16)
    out = rw.attend(low, "linear")
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, rw.attend(low, "dense"), atol=2e-2, rtol=2e-2)
    assert (out.double() - rw.attend(p, "dense")).abs().max() < 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"window": 5}, "window"),
        ({"mask": torch.ones(300, 300, dtype=torch.bool)}, "user"),
        ({"positions": rw.Positions.arange(300, document_ids=torch.arange(300) // 9)}, "documents"),
        ({"positions": rw.Positions.arange(300, valid=torch.ones(300, dtype=torch.bool))}, "valid"),
        ({"positions": rw.Positions(torch.arange(300), order=torch.arange(300))}, "in order"),
    ],
)
def test_what_running_sums_cannot_see_is_left_to_the_reference(change, reason):
    p = problem(**change)
    with pytest.raises(rw.BackendError, match=reason):
        rw.attend(p, "linear")
    torch.testing.assert_close(rw.attend(p), rw.attend(p, "dense"))


def test_a_mask_that_replaces_causality_is_not_taken_for_it():
    p = problem().with_mask(Mask("causal", lambda i, j: j <= i + 3, (Order(),), (Order(),)))
    assert "causal" in str(linear.why_not(p, rw.backends.Request()))


@pytest.mark.parametrize("change", [{"scale": 0.5}, {"softcap": 1.0}, {"sinks": torch.zeros(4)}])
def test_what_acts_on_logits_is_refused(change):
    with pytest.raises(rw.BackendError):
        rw.attend(problem(**change))
