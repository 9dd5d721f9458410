"""What the processes run: a problem whose sequence is dealt out against the same problem in one piece."""

from __future__ import annotations

import torch

import ropewalk as rw
from ropewalk import testing
from ropewalk.core.errors import CannotSplit
from ropewalk.parallel import Shard, gathered, ring, sum_gradients
from ropewalk.testing.subjects import subject

LENGTH = 13  # no multiple of anything
AXES = {"q": 2, "k": 2, "v": 2, "x": 1}  # of the tokens
TOLERANCE = 1e-9

DEALS = {
    "contiguous": Shard.contiguous,
    "zigzag": Shard.zigzag,
    "unequal": lambda positions, group: Shard(positions, UNEQUAL[torch.distributed.get_world_size(group)], group),
}
UNEQUAL = {
    1: [[(0, 13)]],
    2: [[(0, 1), (4, 11)], [(1, 4), (11, 13)]],
    3: [[(5, 6)], [(0, 5), (9, 13)], [(6, 9)]],
    4: [[(12, 13)], [(1, 2), (3, 10)], [(0, 1), (10, 12)], [(2, 3)]],
}


def of_catalog(slug):
    """The encoding of a record, disturbed, in float64, and how problems for it are made."""
    made = subject(rw.catalog.record(slug))
    return made, made.encoding()


def weights(shape, seed):
    """What the output is multiplied by before it is summed, so that every number of it counts."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_gradients(encoding, p, attended, own=lambda t, axis: t):
    """Output and embeddings of a problem, and the gradients to what went in; ``own`` cuts a whole tensor."""
    made = {name: getattr(p, name).detach().clone().requires_grad_() for name in AXES}
    problem = rw.Attention(
        made["q"], made["k"], made["v"], p.positions, p.causal, x=made["x"], mask=p.mask, window=p.window, sinks=p.sinks
    )
    out = attended(problem)
    embedded = encoding.embed(made["x"], p.positions)
    whole = (*out.shape[:2], LENGTH, out.shape[3])
    loss = (out * own(weights(whole, 1), 2)).sum() + (embedded * own(weights((len(p.q), LENGTH, p.x.shape[2]), 2), 1)).sum()
    loss.backward()
    return {"output": (out.detach(), 2), "embeddings": (embedded.detach(), 1)} | {
        f"gradient of {name}": (torch.zeros_like(t) if t.grad is None else t.grad, AXES[name]) for name, t in made.items()
    }


def taken_gradients(encoding):
    """The gradients of the parameters, which are forgotten."""
    found = {n: torch.zeros_like(t) if t.grad is None else t.grad for n, t in encoding.named_parameters()}
    encoding.zero_grad()
    return found


def close(got, want, what, tolerance=TOLERANCE):
    error = testing.compare.error_of(got, want)
    assert error <= tolerance * max(1.0, float(want.abs().max()) if want.numel() else 0.0), f"{what} differs by {error:.3g}"


def agree_with_whole(group, encoding, p, ways):
    """Deal a problem out in each of the ways, and compare outputs and gradients with those of the problem in one piece."""
    want = with_gradients(encoding, p, lambda problem: rw.attend(encoding(problem), "dense"))
    learned = taken_gradients(encoding)
    for deal, how in ways:
        shard = DEALS[deal](p.positions, group)
        mine = p.replace(
            **{name: shard.take(getattr(p, name), axis) for name, axis in AXES.items()},
            positions=shard.positions,
            mask=None if p.mask is None else p.mask[..., shard.index, :],
        )
        run = {
            "ring": lambda problem, shard=shard: ring(encoding, problem, shard),
            "gathered": lambda problem, shard=shard: rw.attend(gathered(encoding, problem, shard)),
        }[how]
        got = with_gradients(encoding, mine, run, shard.take)
        for name, (value, axis) in got.items():
            close(value, shard.take(want[name][0], axis), f"{deal}, {how}: {name}")
        sum_gradients(encoding, group)
        for name, value in taken_gradients(encoding).items():
            close(value, learned[name], f"{deal}, {how}: gradient of {name}")


def catalog_entry(group, slug, ways):
    """Whatever kinds of problem an entry is made for, it gives what one process gives; or its words of refusal."""
    made, encoding = of_catalog(slug)
    for causal in made.causals:
        p = made.problem(encoding, LENGTH, causal)
        try:
            agree_with_whole(group, encoding, p, ways)
        except CannotSplit as refusal:
            return str(refusal)
    return None
