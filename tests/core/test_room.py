"""Appending without copying, and never under the feet of whoever holds what was there."""

import pytest
import torch

import ropewalk as rw
from ropewalk.cache.room import LEAST, Rooms


def chunk(n, seed=0, **kwargs):
    return torch.randn(2, 3, n, 4, generator=torch.Generator().manual_seed(seed), **kwargs)


@torch.no_grad()
def test_a_step_writes_its_own_keys_only():
    rooms, held, want = Rooms(), chunk(10), chunk(10)
    places = set()
    for i in range(LEAST):
        new = chunk(1, i)
        held, want = rooms.cat("k", held, new), torch.cat([want, new], 2)
        assert torch.equal(held, want)
        places.add(held.data_ptr())
    assert len(places) == 1
    held = rooms.cat("k", held, chunk(LEAST))  # full: a larger room
    assert torch.equal(held, torch.cat([want, chunk(LEAST)], 2)) and held.data_ptr() not in places


@torch.no_grad()
def test_two_continuations_of_one_beginning():
    rooms = Rooms()
    base = rooms.cat("k", chunk(5), chunk(1, 1))
    kept = base.clone()
    one = rooms.cat("k", base, chunk(2, 2))
    other = rooms.cat("k", base, chunk(2, 3))
    again = rooms.cat("k", one, chunk(1, 4))
    for got, parts in (
        (base, [kept]),
        (one, [kept, chunk(2, 2)]),
        (other, [kept, chunk(2, 3)]),
        (again, [kept, chunk(2, 2), chunk(1, 4)]),
    ):
        assert torch.equal(got, torch.cat(parts, 2))


def test_gradients_and_other_kinds_of_tensors_are_joined_as_usual():
    rooms = Rooms()
    old = chunk(3).requires_grad_()
    joined = rooms.cat("k", old, chunk(1))
    assert torch.equal(torch.autograd.grad(joined.sum(), old)[0], torch.ones_like(old))
    with torch.no_grad():
        shared = rooms.cat("f", torch.ones(1, 1, 3, 4), chunk(1))
        assert shared.shape == (2, 3, 4, 4) and torch.equal(shared[:, :, 3:], chunk(1))
    with torch.inference_mode():
        held = rooms.cat("k", chunk(3), chunk(1))
    with torch.no_grad():
        more = rooms.cat("k", held, chunk(2))  # memory of inference mode cannot be written to here
        assert torch.equal(more, torch.cat([chunk(3), chunk(1), chunk(2)], 2)) and not more.is_inference()


MADE = {
    "rope": lambda: rw.RoPE(8),
    "fox": lambda: rw.FoX(4, 8),
    "per head": lambda: rw.PerHead([rw.RoPE(8), rw.ALiBi()]),
}


@pytest.mark.parametrize("name", MADE)
@torch.no_grad()
def test_decoding_with_snapshots_and_beams(name):
    encoding = MADE[name]()
    q, k, v = (torch.randn(2, 4, 30, 8) for _ in range(3))
    x = torch.randn(2, 30, 8)

    def step(cache, start, stop, rows=slice(None)):
        part = [t[rows, :, start:stop] for t in (q, k, v)]
        return rw.attend(cache.extend(rw.Attention(*part, x=x[rows, start:stop])))

    want = rw.attend(encoding(rw.Attention(q, k, v, x=x)), "dense")
    cache = rw.KVCache(encoding)
    got = [step(cache, 0, 12)] + [step(cache, i, i + 1) for i in range(12, 20)]
    kept = cache.snapshot()
    draft = [step(cache, i, i + 1) for i in range(20, 30)]
    cache.restore(kept)
    again = [step(cache, i, i + 1) for i in range(20, 30)]
    torch.testing.assert_close(torch.cat(got + draft, 2), want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat(got + again, 2), want, rtol=1e-4, atol=1e-5)
    cache.restore(kept)
    cache.select([1])
    beam = [step(cache, i, i + 1, slice(1, 2)) for i in range(20, 30)]
    torch.testing.assert_close(torch.cat(beam, 2), want[1:, :, 20:], rtol=1e-4, atol=1e-5)
    if name == "rope":
        place = cache[0].stored[0].k.data_ptr()
        cache.restore(kept)
        step(cache, 20, 21)
        first = cache[0].stored[0].k.data_ptr()
        step(cache, 21, 22)
        assert cache[0].stored[0].k.data_ptr() == first != place
