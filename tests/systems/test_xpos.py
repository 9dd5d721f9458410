"""xPos (arXiv 2212.10554)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import attend, close, cut, decoded, differ, logits, problem, random, triangle

import ropewalk as rw
from ropewalk.core.errors import NotCausal


def zetas(d, gamma=0.4):
    return torch.tensor([(2 * i / d + gamma) / (1 + gamma) for i in range(d // 2)], dtype=torch.float64)


def by_formula(q, k, n, m, *, base=10_000.0, gamma=0.4, scale_base=512.0, pairing="interleaved"):
    """(1/√d) Re Σ_i q_i k̄_i e^{i(n−m)ω_i} ζ_i^((n−m)/s), pair by pair: no centre, so nothing can overflow for n ≥ m."""
    d = q.shape[-1]

    def planes(x):
        a, b = (x[..., 0::2], x[..., 1::2]) if pairing == "interleaved" else x.chunk(2, -1)
        return torch.complex(a, b)

    gap = (n[:, None] - m).double()[..., None]  # (Q, K, 1)
    w = torch.tensor([base ** (-2 * i / d) for i in range(d // 2)], dtype=torch.float64)
    factor = torch.polar(zetas(d, gamma) ** (gap.clamp(min=0) / scale_base), gap * w)
    return torch.einsum("bhnp,bhmp,nmp->bhnm", planes(q), planes(k).conj(), factor).real * d**-0.5


def far_apart(d=64, queries=3, step=1000, last=100_000, seed=0):
    """A few queries at the end of a long context, at keys that are spread over it."""
    m = torch.arange(0, last + 1, step)
    k, v = random(1, 2, len(m), d, seed=seed), random(1, 2, len(m), d, seed=seed + 1)
    q = random(1, 2, queries, d, seed=seed + 2)
    return q, k, v, m[-queries:], m


# ---- the formula -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize(("gamma", "scale_base"), [(0.4, 512.0), (0.1, 7.0)])
def test_logits_are_the_formula(pairing, gamma, scale_base):
    p, at = problem(d=10), torch.tensor([0, 3, 4, 11, 15, 40, 41])
    made = rw.XPos(10, 500.0, pairing, gamma=gamma, scale_base=scale_base)
    options = {"base": 500.0, "gamma": gamma, "scale_base": scale_base, "pairing": pairing}
    want = by_formula(p.q, p.k, at, at, **options)
    p = p.replace(positions=rw.Positions(at))
    close(logits(made(p)), want, where=triangle(7))
    differ(logits(rw.RoPE(10, 500.0, pairing)(p)).tril(), want.tril())
    for backend in ("dense", "sdpa"):
        weights = want.masked_fill(~triangle(7), -torch.inf).softmax(-1)
        close(attend(made, p, backend), weights @ p.v)


@pytest.mark.parametrize("centre", [None, 0.0, -3.5, 100.0])
def test_the_centre_cancels(centre):
    p = problem(kv=2)
    close(logits(rw.XPos(8, centre=centre)(p)), logits(rw.XPos(8)(p)))


def test_published_numbers():
    made = rw.XPos(64)
    assert made.stretch(torch.float32) == pytest.approx(2 * 48 * math.log(2) * 512 / math.log(1.4 / 0.4))
    close((made.log_zeta * 512).exp(), zetas(64), 1e-14)
    assert zetas(64)[0] == pytest.approx(0.4 / 1.4)
    assert (made.log_zeta < 0).all()
    p = problem(d=64)
    turned, plain = made.about(0.0).rotate(p.q, p.k), rw.RoPE(64).rotate(p.q, p.k)
    for got, want, sign in zip(turned, plain, (1, -1), strict=True):
        sizes = [x.unflatten(-1, (32, 2)).norm(dim=-1) for x in (got, want)]
        close(sizes[0], sizes[1] * zetas(64) ** (sign * torch.arange(7.0)[:, None] / 512))


def test_infinite_scale_is_rope():
    p, made = problem(), rw.XPos(8, scale_base=math.inf)
    for got, want in zip(made.rotate(p.q, p.k), rw.RoPE(8).rotate(p.q, p.k), strict=True):
        assert torch.equal(got, want)
    close(attend(made, p), attend(rw.RoPE(8), p))
    assert made.stretch(torch.float16) == math.inf
    far = p.replace(positions=rw.Positions(torch.arange(7) * 10**6))
    close(attend(made, far), attend(rw.RoPE(8), far))


def test_logits_depend_on_differences():
    p, made = problem(), rw.XPos(8)
    at = torch.tensor([0, 3, 3, 11, 5, 40, 2])
    want = logits(made(p.replace(positions=rw.Positions(at))))
    for shift in (1, -7, 1_000_000):
        close(logits(made(p.replace(positions=rw.Positions(at + shift)))), want, 1e-8 if shift > 100 else 1e-12)


def test_equal_vectors_fade():
    q = torch.ones(1, 1, 2000, 64, dtype=torch.float64)
    last = logits(rw.XPos(64)(rw.Attention(q[:, :, -1:], q, q)))[0, 0, 0].flip(0)
    rope = logits(rw.RoPE(64)(rw.Attention(q[:, :, -1:], q, q)))[0, 0, 0].flip(0)
    assert last[1500:].abs().max() < rope[1500:].abs().max() / 2
    for pair in range(32):  # the fast pairs fade first
        assert rw.XPos(64).log_zeta[pair] == rw.XPos(64).log_zeta.sort().values[pair]


# ---- decoding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("centre", [None, 0.0, 30.0])
@pytest.mark.parametrize("sizes", [(), (4,), (2, 3)])
def test_decoding_is_the_full_pass(centre, sizes):
    p, made = problem(kv=2, s=9), rw.XPos(8, centre=centre, scale_base=5.0)
    close(decoded(made, p, *sizes), attend(made, p))


def test_one_centre_for_a_query_and_all_its_keys():
    """A centre at half the length so far, with the keys left as they were cached, is what goes wrong elsewhere."""
    p, made = problem(s=9), rw.XPos(8, scale_base=5.0)
    want = attend(made, p)[:, :, -1]
    stale = [made.about(i / 2).rotate(p.q[:, :, i : i + 1], p.k[:, :, i : i + 1], torch.tensor([i])) for i in range(9)]
    wrong = rw.Attention(stale[-1][0], torch.cat([k for _, k in stale], 2), p.v)
    differ(rw.attend(wrong)[:, :, 0], want, 1e-2)
    fresh = [made.rotate(p.q[:, :, i : i + 1], p.k[:, :, i : i + 1], torch.tensor([i])) for i in range(9)]
    right = rw.Attention(fresh[-1][0], torch.cat([k for _, k in fresh], 2), p.v)
    close(rw.attend(right)[:, :, 0], want)  # `rotate` has a centre of its own, the same in every call


@pytest.mark.parametrize("centre", [None, 4.0])
def test_cached_keys_can_be_moved(centre):
    p, made = problem(kv=2, s=9), rw.XPos(8, centre=centre, scale_base=5.0)
    keep, later = torch.tensor([0, 1, 5, 6]), torch.tensor([3.0, 4.5, 6.0, 7.0], dtype=torch.float64)
    cache = rw.KVCache(made)
    cache.extend(cut(p, 0, 7))
    cache.edit(keep, rw.Positions(later))
    got = rw.attend(cache.extend(cut(p, 7, 9).replace(positions=rw.Positions(torch.tensor([8, 9])))), backend="dense")
    index = torch.cat([keep, torch.tensor([7, 8])])
    where = rw.Positions(torch.cat([later, torch.tensor([8.0, 9.0], dtype=torch.float64)]))
    want = attend(made, rw.Attention(p.q[:, :, index], p.k[:, :, index], p.v[:, :, index], where))
    close(got, want[:, :, -2:])


def test_what_a_cache_keeps():
    assert rw.XPos(8).stores == "raw"
    assert rw.XPos(8, centre=0.0).stores == "encoded"
    assert rw.Sequential(rw.XPos(8), rw.ALiBi(4)).stores == "raw"


# ---- long contexts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_hundred_thousand_tokens(dtype):
    q, k, v, n, m = (t.to(dtype) if t.is_floating_point() else t for t in far_apart())
    q, k = 3 * q, 3 * k
    made = rw.XPos(64)
    where = rw.Positions.pair(rw.Tokens.of(n), rw.Tokens.of(m))
    p = rw.Attention(q, k, v, where)
    scores = by_formula(q.double(), k.double(), n, m)
    seen = n[:, None] >= m
    want = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v.double()
    assert scores[..., : len(m) // 2].abs().max() > 1e-3  # slow pairs still see what is far
    close(
        rw.attend(made(p)),
        want,
        {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype],
    )
    for t in (made(p).q, made(p).k):
        assert t.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["dense", "sdpa"])
def test_the_longest_stretch_is_finite_with_gradients(dtype, backend):
    """Masked pairs see both factors at once; at the limit their product is the largest there is."""
    made, s = rw.XPos(8), 41
    top = made.stretch(dtype)
    at = torch.linspace(0, top, s, dtype=torch.float64)
    q, k, v = (torch.randn(1, 2, s, 8, generator=torch.Generator().manual_seed(i)).to(dtype) for i in range(3))
    leaves = [t.requires_grad_() for t in (q, k, v)]
    encoded = made(rw.Attention(q, k, v, rw.Positions(at)))
    out = rw.attend(encoded, backend=backend)
    scores = by_formula(*(t.detach().double() for t in (q, k)), at, at)
    want = scores.masked_fill(~triangle(s), -torch.inf).softmax(-1) @ v.detach().double()
    close(out, want, {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype])
    grads = torch.autograd.grad(out.float().square().sum(), leaves)
    assert all(g.isfinite().all() and g.abs().max() > 0 for g in grads)


def test_too_long_a_stretch_is_an_error():
    p, made = problem(), rw.XPos(8)
    with pytest.raises(rw.PositionError, match=r"27196.*KVCache in chunks"):
        made(p.replace(positions=rw.Positions(torch.arange(7) * 5000)))
    made(p.replace(positions=rw.Positions(torch.arange(7) * 4000)))
    half = p.replace(q=p.q.half(), k=p.k.half(), v=p.v.half(), positions=rw.Positions(torch.arange(7) * 1000))
    with pytest.raises(rw.PositionError, match=r"float16 holds the factors of 3399"):
        made(half)
    with pytest.raises(rw.PositionError, match=r"20000 tokens from the centre 0\.0"):
        made.rotate(p.q, p.k, torch.arange(7) + 20_000 - 6)
    made.about(20_000.0).rotate(p.q, p.k, torch.arange(7) + 20_000 - 6)
    with pytest.raises(rw.PositionError, match="centre"):
        fixed = made.about(0.0)
        cache = rw.KVCache(fixed)
        cache.extend(cut(p, 0, 7))
        cache.edit(torch.arange(3), rw.Positions(torch.arange(3) + 50_000))


def test_chunks_go_where_one_problem_cannot():
    at, made = torch.arange(9) * 12_000, rw.XPos(8)
    p = problem(s=9)
    cache, outputs = rw.KVCache(made), []
    for start in range(0, 9, 2):
        part = cut(p, start, min(start + 2, 9))
        where = rw.Positions(at[start : start + 2])
        outputs.append(rw.attend(cache.extend(part.replace(positions=where)), backend="dense"))
    scores = by_formula(p.q, p.k, at, at).masked_fill(~triangle(9), -torch.inf)
    close(torch.cat(outputs, 2), scores.softmax(-1) @ p.v, 1e-11)


def test_padding_may_be_anywhere():
    p, made = problem(b=2), rw.XPos(8)
    valid = torch.ones(2, 7, dtype=torch.bool)
    valid[0, :3] = False
    valid[1] = False
    at = torch.arange(7).repeat(2, 1) + 1_000_000
    at[~valid] = 0
    padded = rw.Positions(at, valid=valid)
    for backend in ("dense", "sdpa"):
        out = attend(made, p.replace(positions=padded), backend)
        assert out.isfinite().all()
        alone = rw.Attention(p.q[:1, :, 3:], p.k[:1, :, 3:], p.v[:1, :, 3:])
        close(out[:1, :, 3:], attend(made, alone), 1e-8)
    assert made(p.replace(positions=padded)).k.isfinite().all()


def test_positions_that_run_backwards_grow():
    p, at = problem(), torch.tensor([60, 50, 40, 30, 20, 10, 0])
    gap = (at[:, None] - at).double()[..., None]
    close(logits(rw.XPos(8)(p.replace(positions=rw.Positions(at)))), _growing(p, gap))


def _growing(p, gap):
    z = [torch.complex(x[..., 0::2], x[..., 1::2]) for x in (p.q, p.k)]
    w = torch.tensor([10_000.0 ** (-2 * i / 8) for i in range(4)], dtype=torch.float64)
    factor = torch.polar(zetas(8) ** (gap / 512), gap * w)
    return torch.einsum("bhnp,bhmp,nmp->bhnm", z[0], z[1].conj(), factor).real * 8**-0.5


@pytest.mark.slow
def test_compiled_too_long_a_stretch_is_an_error():
    made, p = rw.XPos(8), problem()

    def run(q, at):
        return made(rw.Attention(q, p.k, p.v, rw.Positions(at))).q

    torch._dynamo.reset()
    compiled = torch.compile(run, backend="eager")
    close(compiled(p.q, torch.arange(7)), run(p.q, torch.arange(7)))
    with pytest.raises(RuntimeError, match="stretch"):
        compiled(p.q, torch.arange(7) * 50_000)
    torch._dynamo.reset()


# ---- company ---------------------------------------------------------------------------------------------------------


def test_moved_coordinates_are_read():
    p = problem()
    nearer = rw.Sequential(rw.Scale(4.0), rw.XPos(8))
    want = rw.XPos(8)(p.replace(positions=rw.Positions(torch.arange(7) / 4)))
    close(logits(nearer(p)), logits(want))
    close(decoded(nearer, p, 3), attend(nearer, p))


def test_linear_attention_fades_too():
    p = problem()
    chain = rw.Sequential(rw.LinearAttention(), rw.XPos(8, scale_base=5.0))
    close(attend(chain, p, "linear"), attend(chain, p, "dense"), 1e-10)
    differ(attend(chain, p, "dense"), attend(rw.Sequential(rw.LinearAttention(), rw.RoPE(8)), p, "dense"))


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_causal_only():
    with pytest.raises(NotCausal, match="causal"):
        rw.XPos(8)(problem(causal=False))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 0.0}, "gamma"),
        ({"gamma": math.nan}, "gamma"),
        ({"gamma": math.inf}, "gamma"),
        ({"scale_base": 0.0}, "scale_base"),
        ({"scale_base": math.nan}, "scale_base"),
        ({"centre": math.inf}, "centre"),
        ({"head_dim": 7}, "even"),
        ({"base": -1.0}, "base"),
    ],
)
def test_errors(options, message):
    with pytest.raises(rw.ConfigError, match=message):
        rw.XPos(**options)


def test_other_widths_and_axes_are_errors():
    with pytest.raises(rw.ShapeError, match="16"):
        rw.XPos(16)(problem())
    with pytest.raises(rw.PositionError, match="axes"):
        rw.XPos(8)(problem(positions=rw.Positions(torch.zeros(1, 7, 2))))
