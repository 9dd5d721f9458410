"""What is handed to the flash-attn package, against a stand-in for it."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

import ropewalk as rw
from ropewalk.backends import Request, flash
from ropewalk.core.attention import Attention, Mask, Order


class OnDevice:
    """A tensor that says it is on a CUDA device; everything else is the tensor's."""

    def __init__(self, tensor):
        self._tensor = tensor

    def __getattr__(self, name):
        return torch.device("cuda") if name == "device" else getattr(self._tensor, name)


@pytest.fixture
def calls(monkeypatch):
    made = []

    def flash_attn_func(q, k, v, **options):
        made.append((q.shape, k.shape, options))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(
            q, k, v, scale=options["softmax_scale"], is_causal=options["causal"], enable_gqa=True
        )
        return out.transpose(1, 2)

    module = ModuleType("flash_attn")
    module.__spec__ = ModuleSpec("flash_attn", None)
    module.flash_attn_func = flash_attn_func
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    return made


def problem(n=20, h=4, kv=2, d=16, dtype=torch.bfloat16, dv=None, **fields):
    torch.manual_seed(0)
    return Attention(
        torch.randn(2, h, n, d).to(dtype),
        torch.randn(2, kv, 20, d).to(dtype),
        torch.randn(2, kv, 20, dv or d).to(dtype),
        **fields,
    ).located()


def why_not(p, **request):
    fake = p.replace()
    object.__setattr__(fake, "q", OnDevice(p.q))
    return flash.why_not(fake, Request(**request))


def test_layout_and_defaults(calls):
    p = problem(scale=0.3)
    out = flash.run(p, Request()).out
    ((q, k, options),) = calls
    assert q == (2, 20, 4, 16)
    assert k == (2, 20, 2, 16)
    assert options == {"dropout_p": 0.0, "softmax_scale": 0.3, "causal": True, "window_size": (-1, 0), "softcap": 0.0}
    torch.testing.assert_close(out, rw.attend(p, "dense"), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"window": 5}, {"window_size": (4, 0), "causal": True}),
        ({"window": 5, "causal": False}, {"window_size": (4, 4), "causal": False}),
        ({"causal": False}, {"window_size": (-1, -1), "causal": False}),
        ({"softcap": 30.0}, {"softcap": 30.0}),
    ],
)
def test_options(calls, fields, options):
    flash.run(problem(**fields), Request())
    assert options.items() <= calls[0][2].items()


def test_dropout_is_handed_on(calls):
    flash.run(problem(), Request(dropout=0.25))
    assert calls[0][2]["dropout_p"] == 0.25


@pytest.mark.usefixtures("calls")
def test_able():
    assert why_not(problem()) is None
    assert why_not(problem(n=1)) is None
    assert why_not(problem(window=3, softcap=2.0, dtype=torch.float16)) is None
    assert why_not(rw.RoPE(16)(problem())) is None


REFUSED = {
    "float16 and bfloat16": lambda: problem(dtype=torch.float32),
    "terms or sinks": lambda: rw.ALiBi(4)(problem()),
    "sinks": lambda: problem(sinks=torch.zeros(4)),
    "one width": lambda: problem(dv=8),
    "multiple of 8": lambda: problem(d=12),
    "up to 256": lambda: problem(d=264),
    "user": lambda: problem(mask=torch.ones(20, 20, dtype=torch.bool)),
    "documents": lambda: problem(positions=rw.Positions.arange(20, document_ids=torch.zeros(20, dtype=torch.long))),
    "valid": lambda: problem(positions=rw.Positions.arange(20, valid=torch.ones(20, dtype=torch.bool))),
    "another mask .causal": lambda: problem().with_mask(
        Mask("causal", lambda i, j: j <= i + 1, (Order(),), (Order(),))
    ),
    "another mask .window": lambda: problem(window=3).with_mask(
        Mask("window", lambda i, j: j > i - 3, (Order(),), (Order(),))
    ),
    "not the last keys": lambda: problem(positions=rw.Positions(torch.arange(20), order=torch.arange(20))),
}


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("reason", REFUSED)
def test_refusals(reason):
    import re

    assert re.search(reason, why_not(REFUSED[reason]()) or "")


@pytest.mark.usefixtures("calls")
def test_requests():
    assert why_not(problem(), dropout=0.1) is None
    assert "under dropout" in why_not(problem(softcap=2.0), dropout=0.1)
    assert why_not(problem(), weights=True) is not None
    assert why_not(problem(), lse=True) is not None
    assert "not cpu" in flash.why_not(problem(), Request())


def test_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    monkeypatch.setattr(flash.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(rw.BackendError, match="not installed"):
        rw.attend(problem(), "flash")
