"""The Triton kernel of two scores against the reference: on a GPU, or through Triton's interpreter (TRITON_INTERPRET=1).

Run by test_triton_two_scores.py in a process of its own, because Triton decides when it is imported how kernels run.
"""

from __future__ import annotations

import os

import pytest
import torch
from test_whitelist import FIELDS, NEAR, PROBLEMS, base

import ropewalk as rw
from ropewalk.backends import Request, choose, two_scores, two_scores_triton
from ropewalk.core.attention import AtLeast, Attention, Branch, Column, Coordinate, Mask, Order

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
ENCODINGS = {
    "ReRoPE": lambda d: rw.ReRoPE(d, window=5),
    "leaky ReRoPE": lambda d: rw.ReRoPE(d, window=3, leak=4.0),
    "SelfExtend": lambda d: rw.SelfExtend(d, group=3, window=7),
    "STRING": lambda d: rw.STRINGShifted(d, shift=20, local=4),
    "HiRoPE": lambda d: rw.HiRoPE(d, window=9, segment_length=8),
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several tiles and blocks at lengths that the interpreter can run, and no gradients."""
    torch.manual_seed(0)
    monkeypatch.setattr(two_scores_triton, "_ROWS", 16)
    monkeypatch.setattr(two_scores_triton, "_COLUMNS", 16)
    monkeypatch.setattr(two_scores_triton, "_SCAN", 2)
    if INTERPRETED:
        monkeypatch.setattr(two_scores, "runs_on", lambda device: True)
    with torch.no_grad():
        yield


def problem(n=45, m=None, b=2, h=4, kv=2, d=16, dv=None, dtype=torch.float32, **fields):
    m = m or n
    made = (torch.randn(b, *size, device=DEVICE).to(dtype) for size in ((h, n, d), (kv, m, d), (kv, m, dv or d)))
    return Attention(*made, **fields)


def holds(p, matters=True):
    """Take the kernel by "auto", and agree with the reference in output and log-sum-exp."""
    p = p.located()
    assert choose(p, "auto" if not INTERPRETED else "triton", Request(lse=True)).name == "triton"
    dtype, wide = p.q.dtype, p
    if dtype != torch.float32:  # the same rounded numbers, computed in float32
        wide = p.replace(
            q=p.q.float(), k=p.k.float(), v=p.v.float(),
            qf={n: t.float() for n, t in p.qf.items()}, kf={n: t.float() for n, t in p.kf.items()},
        )  # fmt: skip
    got, lse = rw.attend(p, "triton", return_lse=True)
    want, want_lse = rw.attend(wide, "dense", return_lse=True)
    assert got.dtype == dtype and lse.dtype == torch.float32
    bound = TOLERANCE[dtype]
    torch.testing.assert_close(got.float(), want, rtol=bound, atol=bound)
    torch.testing.assert_close(lse, want_lse, rtol=2e-6, atol=5e-6)
    near = rw.attend(wide.replace(branches=wide.branches[:1]), "dense")
    assert (near - want).abs().max() > 1e-3 or not matters


# ---- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_encodings(name, dtype):
    holds(ENCODINGS[name](16)(problem(dtype=dtype)))


@pytest.mark.parametrize("name", ["ReRoPE", "STRING"])
@pytest.mark.parametrize(("h", "kv"), [(1, 1), (3, 3), (3, 1), (5, 1), (12, 2), (20, 1), (40, 2)])
def test_heads(name, h, kv):
    holds(ENCODINGS[name](8)(problem(37, b=1, h=h, kv=kv, d=8)))


@pytest.mark.parametrize(("d", "dv"), [(2, 3), (16, 24), (24, 16), (64, 64), (40, 80), (128, 8)])
def test_widths(d, dv):
    holds(rw.ReRoPE(d, window=5)(problem(33, b=1, d=d, dv=dv)))


@pytest.mark.parametrize("n", [1, 15, 16, 17, 64])
@pytest.mark.parametrize("window", [1, 16, 30])
def test_lengths(n, window):
    holds(rw.ReRoPE(16, window=window)(problem(n, b=1)), matters=n > window + 1)


FIELDS_OF_USERS = {
    "softcap": {"softcap": 0.5},
    "window": {"window": 12},
    "scale": {"scale": 0.7},
    "documents": {"positions": lambda: rw.Positions.arange(45, document_ids=torch.arange(45) // 20)},
    "real positions": {"positions": lambda: rw.Positions(torch.arange(45) * 0.7 + 1e6)},
    "falling positions": {"positions": lambda: rw.Positions((torch.arange(45) - 30).abs())},
    "positions by row": {"positions": lambda: rw.Positions(torch.randint(0, 60, (2, 45)))},
    "order": {"positions": lambda: rw.Positions(torch.arange(45), order=torch.randint(5, 45, (2, 45)))},
}
LEFT, MIDDLE, NONE = (torch.ones(2, 45, dtype=torch.bool) for _ in range(3))
LEFT[1, :20], MIDDLE[0, 10:30], NONE[1] = False, False, False
for name, valid in (("left", LEFT), ("middle", MIDDLE), ("nothing else in a row", NONE)):
    FIELDS_OF_USERS[f"padding, {name}"] = {"positions": lambda v=valid: rw.Positions.arange(45, valid=v)}


@pytest.mark.parametrize("name", FIELDS_OF_USERS)
def test_fields(name):
    fields = {n: f().to(DEVICE) if callable(f) else f for n, f in FIELDS_OF_USERS[name].items()}
    holds(rw.ReRoPE(16, window=5)(problem(**fields)))


def test_sinks():
    holds(rw.SelfExtend(16, group=3, window=7)(problem(sinks=torch.randn(4, device=DEVICE))))


def test_without_causality():
    """No encoding asks for it, and nothing in the kernel needs it."""
    for fields, distance in (({}, 3), ({"window": 9}, 0), ({"n": 20, "m": 38}, -4.5)):
        p = problem(**{"n": 38, "b": 1, **fields}, causal=False)
        p = p.located().with_features(q={"far": torch.randn_like(p.q)}, k={"far": torch.randn_like(p.k)})
        where = Mask("far", AtLeast(distance), (p.coordinate(),), (p.coordinate(),))
        holds(p.replace(branches=(Branch(), Branch(q="far", k="far", where=where))))
        holds(p.replace(branches=(Branch(k="far"), Branch(q="far", where=where))))


def test_strides():
    joint = torch.randn(2, 45, 8, 3, 16, device=DEVICE).transpose(1, 2)
    p = Attention(joint[:, :4, :, 0], joint[:, 4:6, :, 1], joint[:, 6:, :, 2]).located()
    p = p.with_features(q={"far": torch.randn(1, 1, 45, 16, device=DEVICE)})
    where = Mask("far", AtLeast(6), (p.coordinate(),), (p.coordinate(),))
    holds(p.replace(branches=(Branch(), Branch(q="far", where=where))))


@pytest.mark.parametrize("apart", [torch.nextafter(torch.tensor(0.3).double(), torch.tensor(1.0).double()), 0.3])
def test_the_border_is_that_of_float64(apart):
    """0.3 in float32 is more than in float64; the last bit of a distance decides."""
    position = torch.tensor([0.0, float(apart)], dtype=torch.float64, device=DEVICE)
    for distance, is_far in ((float(apart), True), (float(apart) * (1 + 2**-51), False)):
        p = (
            problem(2, b=1, positions=rw.Positions(position))
            .located()
            .with_features(q={"far": torch.randn(1, 4, 2, 16).to(DEVICE)})
        )
        where = Mask("far", AtLeast(distance), (p.coordinate(),), (p.coordinate(),))
        p = p.replace(branches=(Branch(), Branch(q="far", where=where)))
        torch.testing.assert_close(rw.attend(p, "triton"), rw.attend(p, "dense"), rtol=2e-6, atol=2e-6)
        first = rw.attend(p.replace(branches=()), "dense")
        assert torch.equal(first[:, :, 1], rw.attend(p, "dense")[:, :, 1]) is not is_far


# ---- what is made of tiles ------------------------------------------------------------------------------------------


def test_one_product_where_one_is_enough():
    """Garbage in the queries of the other score is never read: all tiles but those at the border take one product."""
    p = rw.ReRoPE(16, window=40)(problem(64, b=1, h=2)).located()
    want = rw.attend(p, "triton")
    far = p.branches[1].q
    for blank, rows in ((p.qf[far], slice(0, 32)), (p.q, slice(0, 0))):
        broken = blank.clone()
        broken[:, :, rows] = torch.nan
        broken = p.replace(qf={**p.qf, far: broken}) if blank is p.qf[far] else p.replace(q=broken)
        torch.testing.assert_close(rw.attend(broken, "triton"), want, rtol=0, atol=0)
    # of 64 queries at a window of 8 the last 16 see the first 32 keys far only
    p = rw.ReRoPE(16, window=8)(problem(64, b=1, h=2)).located()
    k = p.k.clone()
    k[:, :, :32] = torch.nan
    got = rw.attend(p.replace(k=k), "triton")[:, :, 48:]
    torch.testing.assert_close(got, rw.attend(p, "triton")[:, :, 48:], rtol=0, atol=0)


def test_tiles_that_nobody_sees_are_passed_over():
    ids = torch.arange(64) // 32
    p = rw.ReRoPE(16, window=5)(
        problem(64, b=1, positions=rw.Positions.arange(64, document_ids=ids).to(DEVICE))
    ).located()
    want, v = rw.attend(p, "triton"), p.v.clone()
    v[:, :, :32] = torch.nan
    assert torch.equal(rw.attend(p.replace(v=v), "triton")[:, :, 32:], want[:, :, 32:])
    v = p.v.clone()
    v[:, :, 16:] = torch.nan
    assert torch.equal(rw.attend(p.replace(v=v), "triton")[:, :, :16], want[:, :, :16])


@pytest.mark.parametrize(("n", "splits"), [(1, 2), (1, 7), (3, 3), (20, 4)])
def test_keys_in_stretches(n, splits, monkeypatch):
    monkeypatch.setattr(two_scores_triton, "_splits", lambda *args: splits)
    cut = problem(
        n, 90, positions=rw.Positions.pair(rw.Tokens.arange(90).slice(90 - n), rw.Tokens.arange(90)).to(DEVICE)
    )
    holds(rw.ReRoPE(16, window=20)(cut))
    holds(rw.STRINGShifted(16, shift=20, local=4)(cut.replace(sinks=torch.randn(4, device=DEVICE))))


def test_nan_is_not_lost():
    p = rw.ReRoPE(16, window=5)(problem(40, b=1)).located()
    for name in ("q", "k", "v"):
        t = getattr(p, name).clone()
        t[0, 0, 33] = torch.nan
        got, want = (rw.attend(p.replace(**{name: t}), b) for b in ("triton", "dense"))
        assert want[:, :2, 33].isnan().any() and torch.equal(got[:, :, 33].isnan(), want[:, :, 33].isnan())
        assert not (got.isnan() & ~want.isnan()).any()  # the reference also has 0 · NaN of keys that nobody sees


# ---- caches, compiling, autocast -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENCODINGS)
def test_decoding_equals_the_full_pass(name):
    encoding, p = ENCODINGS[name](16), problem(40)
    want = rw.attend(encoding(p), "dense")
    cache, out, start = rw.KVCache([encoding], device=DEVICE), [], 0
    for n in (21, 1, 1, 5, 12):
        cache.step(n)
        part = slice(start, start + n)
        chunk = Attention(p.q[:, :, part], p.k[:, :, part], p.v[:, :, part])
        out.append(rw.attend(cache[0].extend(chunk), "triton"))
        start += n
    torch.testing.assert_close(torch.cat(out, 2), want, rtol=2e-6, atol=3e-6)


def test_compiles_to_one_graph():
    torch._dynamo.reset()
    encoding = rw.ReRoPE(16, window=5).to(DEVICE)

    def step(q, k, v):
        return rw.attend(encoding(Attention(q, k, v)), "triton") * 2

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for n in (20, 33):
        p = problem(n)
        torch.testing.assert_close(compiled(p.q, p.k, p.v), step(p.q, p.k, p.v), rtol=1e-6, atol=1e-6)


def test_operator_keeps_its_promises():
    seen = []
    p = rw.ReRoPE(16, window=5)(problem(20)).located()
    real = two_scores_triton.two_scores
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(two_scores_triton, "two_scores", lambda *args: seen.append(args) or real(*args))
        rw.attend(p, "triton")
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.ropewalk.two_scores.default, seen[0], test_utils=tests)


def test_under_autocast():
    p = rw.ReRoPE(16, window=5)(problem())
    with torch.autocast(DEVICE, torch.bfloat16):
        got = rw.attend(p, "triton")
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), rw.attend(p, "dense"), rtol=3e-2, atol=3e-2)


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("field", "name"), PROBLEMS)
def test_a_field_is_honoured_or_refused(field, name):
    """Every problem of the whitelist, with two scores where it has none."""
    p = FIELDS[field][name]().located()
    if p.q.shape[2] != p.k.shape[2] and not p.causal:
        pytest.skip("lengths of the features do not fit")
    if not p.branches and p.product is None and p.kernel is None:
        where = Mask("far", AtLeast(6), (p.coordinate(),), (p.coordinate(),))
        p = p.replace(scope="").with_features(q={"two": torch.randn(p.q.shape)}, k={"two": torch.randn(p.k.shape)})
        p = p.replace(branches=(Branch(), Branch(q="two", k="two", where=where)))
    p = there(p)
    if two_scores.why_not(p, Request()) is None:
        torch.testing.assert_close(rw.attend(p, "triton"), rw.attend(p, "dense"), atol=3e-6, rtol=1e-5)
    else:
        assert field in ("masks", "mask", "branches", "product", "kernel") or p.terms


def there(p):
    """The same problem on the device of the tests."""
    moved = {name: getattr(p, name).to(DEVICE) for name in ("q", "k", "v", "positions")}
    features = {side: {n: t.to(DEVICE) for n, t in getattr(p, side).items()} for side in ("qf", "kf")}
    given = {n: getattr(p, n).to(DEVICE) for n in ("mask", "sinks") if getattr(p, n) is not None}
    return p.replace(**moved, **features, **given)


def two(p, **branch):
    p = p.located()
    p = p.with_features(q={"far": p.q}, k={"far": p.k})
    own = {"q": "far", "k": "far", "where": Mask("far", AtLeast(3), (p.coordinate(),), (p.coordinate(),))}
    return p.replace(branches=(Branch(), Branch(**{**own, **branch})))


REFUSALS = {
    "two scores under one softmax": lambda: problem().located(),
    "chosen by AtLeast": lambda: two(problem(), where=NEAR),
    "one of coordinates": lambda: two(problem(), where=Mask("far", AtLeast(3), (Order(),), (Order(),))),
    "not one of coordinates": lambda: two(
        problem(), where=Mask("far", AtLeast(3), (Column("position"),), (Column("position"),))
    ),
    "several axes": lambda: two(problem(positions=rw.Positions(torch.zeros(1, 45, 2)).to(DEVICE))),
    "further terms": lambda: rw.ALiBi(4)(two(problem())),
    "user": lambda: two(problem(mask=torch.ones(45, 45, dtype=torch.bool, device=DEVICE))),
    "another mask .causal": lambda: two(problem()).with_mask(Mask("causal", lambda j: j >= 0, (), (Order(),))),
    "float32 and below": lambda: two(problem(dtype=torch.float64)),
    "wider than 256": lambda: two(problem(d=260)),
    "wider than 256, in float32 128": lambda: two(problem(d=132)),
    r"share a key head \(130\)": lambda: two(problem(h=130, kv=1)),
    r"share a key head \(40\)": lambda: two(problem(h=40, kv=1, d=128)),
    "an empty problem": lambda: two(problem(b=0)),
    "one for each query head": lambda: two(
        problem().located().with_features(k={"each": torch.randn(2, 4, 45, 16)}), k="each"
    ),
    "different widths": lambda: two(problem().located().with_features(q={"wide": torch.randn(2, 4, 45, 20)}), q="wide"),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals(reason):
    import re

    said = two_scores.why_not(REFUSALS[reason](), Request())
    assert said is not None and re.search(reason, said), said


def test_requests_and_gradients():
    p = two(problem())
    assert two_scores.why_not(p, Request()) is None
    for request in (Request(weights=True), Request(dropout=0.1)):
        assert "never holds the weights" in two_scores.why_not(p, request)
    for name in ("q", "k", "v"):
        learned = p.replace(**{name: getattr(p, name).clone().requires_grad_()})
        assert two_scores.why_not(learned, Request()) is None
        with torch.enable_grad():
            assert "no backward" in two_scores.why_not(learned, Request())
    with torch.enable_grad():
        sinks = torch.zeros(4, device=DEVICE, requires_grad=True)
        assert "no backward" in two_scores.why_not(p.replace(sinks=sinks), Request())
        learned = p.replace(qf={"far": p.qf["far"].clone().requires_grad_()})
        assert "no backward" in two_scores.why_not(learned, Request())


def test_base_has_what_the_fields_need():
    assert base().q.shape[1] == 2 * base().k.shape[1] and Coordinate() == base().coordinate()
