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
    loss = (out * own(weights(whole, 1), 2)).sum() + (
        embedded * own(weights((len(p.q), LENGTH, p.x.shape[2]), 2), 1)
    ).sum()
    loss.backward()
    return {"output": (out.detach(), 2), "embeddings": (embedded.detach(), 1)} | {
        f"gradient of {name}": (torch.zeros_like(t) if t.grad is None else t.grad, AXES[name])
        for name, t in made.items()
    }


def taken_gradients(encoding):
    """The gradients of the parameters, which are forgotten."""
    found = {n: torch.zeros_like(t) if t.grad is None else t.grad for n, t in encoding.named_parameters()}
    encoding.zero_grad()
    return found


def close(got, want, what, tolerance=TOLERANCE):
    error = testing.compare.error_of(got, want)
    assert error <= tolerance * max(1.0, float(want.abs().max()) if want.numel() else 0.0), (
        f"{what} differs by {error:.3g}"
    )


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
        ways = ways if causal is made.causals[0] else ways[:1]
        p = made.problem(encoding, LENGTH, causal)
        try:
            agree_with_whole(group, encoding, p, ways)
        except CannotSplit as refusal:
            return str(refusal)
    return None


# ---- kinds of problems -----------------------------------------------------------------------------------------------


def rows(*numbers):
    return torch.tensor(numbers)


PACKED = rows([0] * 3 + [1] * 9 + [2], [0] * 8 + [1] * 5, [0] * 13)
LEFT, RIGHT = (torch.ones(3, LENGTH, dtype=torch.bool) for _ in range(2))
LEFT[1, :6], RIGHT[2, 4:] = False, False

PROBLEMS = {
    "counted": lambda: {},
    "both directions": lambda: {"causal": False},
    "packed": lambda: {"positions": rw.Positions.arange(LENGTH, document_ids=PACKED)},
    "packed, numbered on": lambda: {"positions": rw.Positions(torch.arange(LENGTH), document_ids=PACKED)},
    "padded on the left": lambda: {"positions": rw.Positions.arange(LENGTH, valid=LEFT)},
    "padded on the right": lambda: {"positions": rw.Positions.arange(LENGTH, valid=RIGHT), "causal": False},
    "positions that fall": lambda: {"positions": rw.Positions(torch.arange(LENGTH).flip(0))},
    "real positions": lambda: {"positions": rw.Positions(torch.arange(LENGTH) * 0.75 + weights((3, 1), 5).abs())},
    "a window": lambda: {"window": 3},
    "a window in both directions": lambda: {"window": 3, "causal": False},
    "a mask": lambda: {"mask": weights((3, 4, LENGTH, LENGTH), 6) > 0},
    "sinks": lambda: {"sinks": weights((4,), 7)},
}


def built(text):
    torch.manual_seed(0)  # the same numbers on every process, whatever it ran before
    return rw.build(text, head_dim=16, num_heads=4, num_kv_heads=2, hidden_size=24).double()


def kind_of_problem(group, text, kind, ways):
    encoding = built(text)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.add_(weights(parameter.shape, 8))
    fields = {"positions": rw.Positions.arange(LENGTH), **PROBLEMS[kind]()}
    agree_with_whole(group, encoding, subject(rw.catalog.record("rope")).problem(encoding, LENGTH, **fields), ways)


def two_layers(group):
    """The first process sees nothing of what it was handed last, in either layer; no exchange may wait for it."""
    first, second = built("rope"), built("t5(num_heads=4)")
    p = subject(rw.catalog.record("rope")).problem(first, LENGTH, positions=rw.Positions.arange(LENGTH))
    shard = Shard.contiguous(p.positions, group)

    def run(attended, own):
        made = {name: own(getattr(p, name), 2).detach().clone().requires_grad_() for name in ("q", "k", "v")}
        middle = attended(first, rw.Attention(*made.values()))
        keys = middle[:, ::2]
        out = attended(second, rw.Attention(middle, keys, keys))
        (out * own(weights(p.q.shape, 1), 2)).sum().backward()
        return [out.detach(), *(t.grad for t in made.values())]

    want = run(lambda encoding, problem: rw.attend(encoding(problem), "dense"), lambda t, axis: t)
    got = run(lambda encoding, problem: ring(encoding, problem, shard), shard.take)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        close(a, shard.take(b, 2), f"tensor {i}")


def inference(group, dtype):
    """The fused kernels' own log-sum-exps, which have no gradients; in bfloat16 each part is rounded once more."""
    for text in ENCODINGS_OF_SDPA:
        encoding = built(text)
        p = subject(rw.catalog.record("rope")).problem(encoding, LENGTH, positions=rw.Positions.arange(LENGTH))
        want = rw.attend(encoding(p), "dense")
        shard = Shard.zigzag(p.positions, group)
        q, k, v = (shard.take(t, 2).to(dtype) for t in (p.q, p.k, p.v))
        with torch.no_grad():
            got = ring(encoding, rw.Attention(q, k, v), shard, backend="sdpa")
        assert got.dtype == dtype
        close(got, shard.take(want, 2), text, testing.compare.LOW[dtype])


ENCODINGS_OF_SDPA = ("rope", "alibi(num_heads=4)", "string_shifted(local=2, shift=5)")


def autocast(group):
    """The output has the dtype that one process gives."""
    encoding = rw.RoPE(16)
    p = subject(rw.catalog.record("rope")).problem(encoding, LENGTH, positions=rw.Positions.arange(LENGTH))
    shard = Shard.zigzag(p.positions, group)
    q, k, v = (t.float() for t in (p.q, p.k, p.v))
    with torch.autocast("cpu", torch.bfloat16):
        want = rw.attend(encoding(rw.Attention(q, k, v)))
        got = ring(encoding, rw.Attention(*(shard.take(t, 2) for t in (q, k, v))), shard)
    assert got.dtype == want.dtype == torch.bfloat16
    close(got, shard.take(want, 2), "output", testing.compare.LOW[torch.bfloat16])


# ---- errors ----------------------------------------------------------------------------------------------------------


def positions():
    return rw.Positions.arange(8)


def problem(length=4, **fields):
    q = torch.zeros(1, 2, length, 8)
    return rw.Attention(q, q, q, **fields)


ERRORS = {
    "fewer spans": (
        "ConfigError",
        "spans of 1 processes, and the group has 2",
        lambda g: Shard(positions(), [[(0, 8)]], g),
    ),
    "a gap": ("ConfigError", r"after token 3 comes \(4, 8\)", lambda g: Shard(positions(), [[(0, 3)], [(4, 8)]], g)),
    "twice": ("ConfigError", r"after token 5 comes \(4, 8\)", lambda g: Shard(positions(), [[(0, 5)], [(4, 8)]], g)),
    "too few": ("ConfigError", "hold 7 of 8 tokens", lambda g: Shard(positions(), [[(0, 3)], [(3, 7)]], g)),
    "too many": ("ConfigError", "hold 9 of 8 tokens", lambda g: Shard(positions(), [[(0, 3)], [(3, 9)]], g)),
    "an empty span": (
        "ConfigError",
        r"after token 8 comes \(3, 3\)",
        lambda g: Shard(positions(), [[(0, 8), (3, 3)], []], g),
    ),
    "nothing for one": ("ConfigError", "needs one or more", lambda g: Shard(positions(), [[(0, 8)], []], g)),
    "one token for two": ("ConfigError", "use a smaller group", lambda g: Shard.contiguous(rw.Positions.arange(1), g)),
    "one token, zigzag": ("ConfigError", "use a smaller group", lambda g: Shard.zigzag(rw.Positions.arange(1), g)),
    "two sides": (
        "PositionError",
        "positions of self-attention",
        lambda g: Shard.zigzag(rw.Positions(q=torch.arange(8), k=torch.arange(8)), g),
    ),
    "an order": (
        "PositionError",
        "positions of self-attention",
        lambda g: Shard.zigzag(rw.Positions(torch.arange(8), order=torch.arange(8)), g),
    ),
    "all tokens": (
        "ShapeError",
        "positions say 4 tokens and q has 8",
        lambda g: ring(rw.RoPE(8), problem(8), Shard.zigzag(positions(), g)),
    ),
    "positions of others": (
        "PositionError",
        "not those of the shard",
        lambda g: ring(rw.RoPE(8), problem(positions=rw.Positions.arange(4)), Shard.zigzag(positions(), g)),
    ),
    "a mask of the own keys": (
        "ShapeError",
        r"expected boolean .*\(4, 8\)",
        lambda g: gathered(rw.RoPE(8), problem(mask=torch.ones(4, 4, dtype=torch.bool)), Shard.zigzag(positions(), g)),
    ),
    "random draws": (
        "CannotSplit",
        "draw before dealing out",
        lambda g: ring(rw.build("randomized_rope", head_dim=8), problem(), Shard.zigzag(positions(), g)),
    ),
    "a chain with one that needs the prefix": (
        "CannotSplit",
        "Sequential sums up all tokens before",
        lambda g: ring(
            rw.Sequential(rw.RoPE(8), rw.FoX(2, 3)), problem(x=torch.zeros(1, 4, 3)), Shard.zigzag(positions(), g)
        ),
    ),
    "take from the own": (
        "ShapeError",
        "is not the whole sequence of 8 tokens",
        lambda g: Shard.zigzag(positions(), g).take(torch.zeros(1, 4, 3)),
    ),
    "join the whole": (
        "ShapeError",
        "is not the 4 tokens this process holds",
        lambda g: Shard.zigzag(positions(), g).join(torch.zeros(1, 8, 3)),
    ),
}


def error(group, name):
    """Name and words of the error, before anything was sent: the next case finds all processes in step."""
    try:
        ERRORS[name][2](group)
    except rw.RopewalkError as found:
        return type(found).__name__, str(found)
    return "nothing", ""


def outside(group):
    alone = torch.distributed.new_group([0])
    try:
        return str(Shard.contiguous(rw.Positions.arange(3), alone).spans[0][0])
    except rw.ConfigError as found:
        return str(found)
