"""No backend may pass over anything: each field of a problem is honoured as the reference does, or refused.

The lists below name every field there is. A new one fails these tests until it is listed, with a problem that shows
whether a backend reads it.
"""

from dataclasses import dataclass, fields
from typing import get_args

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import ropewalk as rw
from ropewalk.backends import BACKENDS, Request, blocks, flex
from ropewalk.core import attention as a
from ropewalk.core.attention import Attention, Branch, Feature, Linear, Mask, Order, Pointwise, Product, Row, ValueTerm

B, H, KV, S, D = 2, 4, 2, 24, 8


def rand(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def bare(**fields_):
    made = {"q": rand(B, H, S, D), "k": rand(B, KV, S, D, seed=1), "v": rand(B, KV, S, D, seed=2)}
    return Attention(**{**made, **fields_}).located()


def base(**fields_):
    """A problem with features for terms, masks and branches to read."""
    p = bare(**fields_)
    return p.with_features(
        q={
            "row": rand(B, H, S, 1, seed=3),
            "head": rand(1, H, 1, 1, seed=4),
            "table": rand(1, H, 1, S, seed=5),
            "q": rand(B, H, S, D, seed=6),
        },
        k={
            "kv": rand(B, KV, S, 1, seed=7),
            "every": rand(1, H, S, 1, seed=8),
            "k": rand(B, KV, S, D, seed=9),
            "pos": rand(B, KV, S, D, seed=10).exp(),
        },
    )


ROW, HEAD, KV_HEAD, EVERY = Feature("row"), Feature("head"), Feature("kv"), Feature("every")
COORDINATE = a.Coordinate()
ALIBI = Pointwise(
    lambda i, m, j: -m.abs() * (i - j),
    (COORDINATE, HEAD),
    (COORDINATE,),
    factors=lambda i, m, j: ((-m.abs() * i, 1.0), (m.abs(), j)),
)
TERMS = {
    "pointwise": Pointwise(lambda x, m, y: torch.sin(x * y) * m, (ROW, HEAD), (KV_HEAD,)),
    "low rank": Pointwise(lambda x, y: x * y, (ROW,), (KV_HEAD,), factors=lambda x, y: ((x, y),)),
    "low rank by query head": a.low_rank(lambda x, y: ((x, 1.0), (1.0, y)), (ROW,), (EVERY,)),
    "key row": ALIBI,
    "table": Pointwise(lambda i, j, look: look((i - j).abs()), (Order(),), (Order(),), table=Feature("table")),
    "not additive": Pointwise(lambda s, x: s * x, (ROW,), additive=False),
    "row": Row(lambda s, seen, y: s + s.masked_fill(~seen, 0.0).cumsum(-1) * y.mT, (), (KV_HEAD,)),
    "value": ValueTerm(lambda w, y: w @ y, (), (KV_HEAD,)),
}
NEAR = Mask("near", lambda i, j: (i - j).abs() < 5, (Order(),), (Order(),))
MASKS = {
    "positions": NEAR,
    "features by row": Mask("some", lambda x, y: x + y > -1, (ROW,), (KV_HEAD,)),
    "another causality": Mask("causal", lambda i, j: (j <= i) | (j < 6), (Order(),), (Order(),)),
    "no causality": Mask("causal", lambda j: j >= 0, (), (Order(),)),
    "another padding": Mask("valid", lambda j: j > 2, (), (Order(),)),
}
PAD = torch.ones(B, S, dtype=torch.bool)
PAD[1, :5] = False
DOCUMENTS = torch.arange(S) // 7


def positions(**kwargs):
    return rw.Positions.arange(S, **kwargs)


def softmax_like(p):
    """Make a linear attention of p: positive q, k and normalisers."""
    p = p.replace(q=p.q.exp(), k=p.k.exp(), qf={**p.qf, "pos": p.qf["q"].exp()})
    return p.replace(kernel=Linear("pos"))


# field -> problems that set it; a problem that differs from the plain one in its output unless listed in SILENT
FIELDS = {
    "q": {
        "other": lambda: base(q=rand(B, H, S, D, seed=20)),
        "shorter": lambda: bare(q=rand(B, H, 3, D)),
    },
    "k": {"longer": lambda: bare(k=rand(B, KV, 30, D), v=rand(B, KV, 30, D))},
    "v": {"narrower": lambda: base(v=rand(B, KV, S, 5)), "wider": lambda: base(v=rand(B, KV, S, 11))},
    "positions": {
        "documents": lambda: base(positions=positions(document_ids=DOCUMENTS)),
        "padding": lambda: base(positions=positions(valid=PAD)),
        "both": lambda: base(positions=positions(valid=PAD, document_ids=DOCUMENTS)),
        "order": lambda: base(positions=rw.Positions(torch.arange(S), order=torch.arange(S).flip(0))),
        "order by row": lambda: base(
            positions=rw.Positions(torch.arange(S), order=torch.stack([torch.arange(S), torch.arange(S).flip(0)]))
        ),
    },
    "causal": {
        "false": lambda: base(causal=False),
        "false, padded": lambda: base(causal=False, positions=positions(valid=PAD)),
    },
    "scale": {"given": lambda: base(scale=0.7)},
    "x": {"given": lambda: base(x=rand(B, S, 6))},
    "mask": {
        "shared": lambda: base(mask=rand(S, S) > 0),
        "by row": lambda: base(mask=rand(B, 1, S, S) > 0),
        "by head": lambda: base(mask=rand(1, H, S, S) > 0, causal=False),
    },
    "x_kv": {"given": lambda: base(x=rand(B, S, 6), x_kv=rand(B, S, 6))},
    "window": {"causal": lambda: base(window=4), "both sides": lambda: base(window=4, causal=False)},
    "softcap": {"given": lambda: base(softcap=0.5), "before terms": lambda: base(softcap=0.5).add(TERMS["pointwise"])},
    "sinks": {"given": lambda: base(sinks=rand(H)), "with a term": lambda: base(sinks=rand(H)).add(ALIBI)},
    "head_dim": {"of a widened problem": lambda: base().replace(head_dim=2)},
    "heads": {"some of the layer": lambda: base().replace(heads=(4, 12))},
    "kv_total": {"some of the layer": lambda: base().replace(kv_total=6)},
    "own_scale": {"fixed": lambda: base().replace(own_scale=0.9)},
    "at": {"moved": lambda: rw.Scale(2.0)(base())},
    "scope": {"inside": lambda: base().enter("part")},
    "qf": {"given": base},
    "kf": {"given": base},
    "terms": {
        **{name: (lambda t=t: base().add(t)) for name, t in TERMS.items()},
        "several": lambda: base(window=9).add(TERMS["low rank"], ALIBI, TERMS["pointwise"]),
    },
    "masks": {name: (lambda m=m: base(positions=positions(valid=PAD)).with_mask(m)) for name, m in MASKS.items()},
    "branches": {
        "two": lambda: base().replace(branches=(Branch(), Branch(q="q", where=NEAR))),
        "three that overlap": lambda: (
            base()
            .add(ALIBI)
            .replace(
                branches=(
                    Branch(q="q"),
                    Branch(k="k", where=NEAR),
                    Branch(q="q", k="k", where=MASKS["features by row"]),
                )
            )
        ),
    },
    "product": {"cosine": lambda: base().replace(product=Product(lambda q, k, x: torch.cos(q @ k.mT) * x, (ROW,)))},
    "kernel": {"linear": lambda: softmax_like(base()), "both ways": lambda: softmax_like(base(causal=False))},
    "finish": {"map": lambda: base().finish_with(lambda out, x: out.cumsum(-1) * x, ROW)},
}
SILENT = {"x", "x_kv", "heads", "kv_total", "at", "scope", "qf", "kf"}
PROBLEMS = [(field, name) for field, problems in FIELDS.items() for name in problems]


@pytest.fixture(autouse=True)
def _flex_without_compiling(monkeypatch):
    monkeypatch.setattr(flex, "_compiled", lambda device: flex_attention)


@pytest.fixture(autouse=True)
def _several_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 1)
    monkeypatch.setattr(blocks, "FEWEST", 5)


def test_every_field_is_listed():
    assert set(FIELDS) == {f.name for f in fields(Attention)}


def test_every_part_of_a_field_is_listed():
    assert set(get_args(a.Term)) == {Pointwise, Row, ValueTerm}
    assert set(get_args(a.Ref)) == {Feature, a.Coordinate, a.Column, Order}
    known = {
        Pointwise: {"fn", "q", "k", "table", "additive", "factors"},
        Row: {"fn", "q", "k"},
        ValueTerm: {"fn", "q", "k"},
        Mask: {"name", "fn", "q", "k"},
        Branch: {"q", "k", "where"},
        Product: {"fn", "q", "k", "rows_coupled"},
        Linear: {"normaliser"},
    }
    for part, names in known.items():
        assert {f.name for f in fields(part)} == names, part
    assert set(Request._fields) == {"dropout", "weights", "lse"}


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("backend", [b for b in BACKENDS if b.name != "dense"], ids=lambda b: b.name)
@pytest.mark.parametrize(("field", "name"), PROBLEMS)
@torch.no_grad()
def test_a_field_is_honoured_or_refused(backend, field, name):
    p = FIELDS[field][name]()
    if backend.why_not(p.located(), Request()) is not None:
        return
    torch.testing.assert_close(rw.attend(p, backend.name), rw.attend(p, "dense"), atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize(("field", "name"), [pair for pair in PROBLEMS if pair[0] not in SILENT])
@torch.no_grad()
def test_the_problems_show_their_field(field, name):
    """Otherwise a backend could ignore it unseen."""
    out, plain = rw.attend(FIELDS[field][name](), "dense"), rw.attend(base(), "dense")
    assert out.shape != plain.shape or not torch.allclose(out, plain, atol=1e-3)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
@torch.no_grad()
def test_requests_are_honoured_or_refused(backend):
    for p in (base(), base(sinks=rand(H)), base(softcap=1.0), softmax_like(base())):
        if backend.why_not(p, Request(lse=True)) is None:
            got, want = (rw.attend(p, b, return_lse=True) for b in (backend.name, "dense"))
            torch.testing.assert_close(got, want, atol=3e-6, rtol=1e-5)
        if backend.why_not(p, Request(weights=True)) is None:
            assert backend.name == "dense"
        if backend.why_not(p, Request(dropout=0.5)) is None:
            torch.manual_seed(0)
            assert not torch.allclose(rw.attend(p, backend.name, dropout=0.5), rw.attend(p, backend.name))


@dataclass(frozen=True, eq=False)
class Strange:
    """A term or kernel of a later version."""

    normaliser: str = "pos"


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
@pytest.mark.parametrize(
    "p", [base().add(Strange()), softmax_like(base()).replace(kernel=Strange())], ids=["term", "kernel"]
)
def test_what_no_backend_knows_is_refused(backend, p):
    assert backend.why_not(p, Request()) is not None
    with pytest.raises(rw.BackendError):
        rw.attend(p)
