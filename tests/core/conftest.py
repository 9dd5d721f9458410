"""Small problems, and the two ways to compute them: at once, and with a cache in chunks."""

from __future__ import annotations

import pytest
import torch

from ropewalk import Attention, KVCache, attend

torch.set_num_threads(1)


def _rand(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1000 * seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def _problem(b=2, h=4, hk=2, s=7, d=8, hidden=5, seed=0, dtype=torch.float64, **fields):
    """Heads, lengths and widths all differ, so that a swapped axis shows."""
    q, k, v = (_rand(b, n, s, d, seed=3 * seed + i, dtype=dtype) for i, n in enumerate((h, hk, hk)))
    return Attention(q, k, v, x=_rand(b, s, hidden, seed=seed, dtype=dtype), **fields)


def _part(p, start, stop, **fields):
    """The tokens ``start:stop`` of a problem, as a layer would hand them to the cache."""
    where = None if p.positions is None else p.positions.slice(start, stop)
    cut = (t[:, :, start:stop] for t in (p.q, p.k, p.v))
    given = {"window": p.window, "softcap": p.softcap, "sinks": p.sinks, "scale": p.scale, "causal": p.causal}
    return Attention(*cut, where, x=None if p.x is None else p.x[:, start:stop], **{**given, **fields})


def _in_chunks(encoding, p, cuts, backend="dense"):
    """The output of the cache over chunks of these sizes; positions are given where the problem gives them."""
    assert sum(cuts) == p.q.shape[2]
    cache, done, out = KVCache(encoding), 0, []
    for n in cuts:
        out.append(attend(cache.extend(_part(p, done, done + n)), backend))
        done += n
    return torch.cat(out, 2)


def _agree(got, want, tolerance=1e-12):
    assert got.shape == want.shape
    assert torch.isfinite(got).all()
    error = (got - want).abs().max().item() if got.numel() else 0.0
    assert error < tolerance, f"differs by {error:.3g}"


@pytest.fixture
def rand():
    return _rand


@pytest.fixture
def problem():
    return _problem


@pytest.fixture
def part():
    return _part


@pytest.fixture
def in_chunks():
    return _in_chunks


@pytest.fixture
def agree():
    return _agree
