"""One decoding step of one layer: the new token's q, k and v, `cache.extend`, `attend`. "Into a buffer" is the step written by
hand for this encoding alone, with keys and values written into memory that was kept for them; "joined" the same with
`torch.cat`, as caches do that do not know how long they will get. All caches grow side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

import ropewalk as rw

from .._memory import memory
from .._question import Bench, Question, Row
from ._attention import HIDDEN, WIDTH

HEADS = 8
TARGETS = {"NoPE": 1.15, "RoPE": 1.15, "ALiBi": 1.5, "FoX": 1.5}
ROOM = 1 << 16
"""Tokens for which the buffer has room; pages that are never written cost nothing."""

Step = Callable[[], object]


ENCODINGS: dict[str, Callable[[], rw.Encoding]] = {
    "NoPE": rw.NoPE,
    "RoPE": lambda: rw.RoPE(WIDTH),
    "ALiBi": lambda: rw.ALiBi(HEADS),
    "FoX": lambda: rw.FoX(HEADS, HIDDEN),
}


def rows(bench: Bench) -> Iterator[Row]:
    few, past, many = bench.pick((512, 8192, 32768), (16, 64, 96))
    for name, target in TARGETS.items():
        yield from step_of(bench, name, past, "into a buffer", target)
        yield from step_of(bench, name, past, "joined")
    for length in (few, many):
        yield from step_of(bench, "RoPE", length, "into a buffer")
    for name in ("NoPE", "RoPE"):
        blocks = [memory(library(ENCODINGS[name](), keys_and_values(n), token())).largest for n in (past, few)]
        yield Row(f"{name}: largest block a step takes, {past} to {few} keys", blocks[0] / blocks[1], target=1.1)


def step_of(bench: Bench, name: str, past: int, way: str, target: float | None = None) -> Iterator[Row]:
    encoding, old, new = ENCODINGS[name](), keys_and_values(past), token()
    hand = by_hand(name, encoding, old, new, joined=way == "joined")
    return bench.against(hand, {f"{name}, {past} keys, by hand {way}": library(encoding, old, new)}, target)


def keys_and_values(past: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw what the cache holds: keys, values, and the input they came from."""
    return torch.randn(1, HEADS, past, WIDTH), torch.randn(1, HEADS, past, WIDTH), torch.randn(1, past, HIDDEN)


def token() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw q, k, v and the input of a new token."""
    q, k, v = (torch.randn(1, HEADS, 1, WIDTH) for _ in range(3))
    return q, k, v, torch.randn(1, 1, HIDDEN)


def library(mine: rw.Encoding, old: tuple[Tensor, ...], new: tuple[Tensor, ...]) -> Step:
    keys, values, xs = old
    q, k, v, x = new
    cache = rw.KVCache(mine)
    with torch.no_grad():
        cache.extend(rw.Attention(keys, keys, values, x=xs))
    problem = rw.Attention(q, k, v, x=x)

    @torch.no_grad()
    def step() -> Tensor:
        return rw.attend(cache.extend(problem))

    step()  # a cache that makes room in advance makes it here
    return step


def by_hand(name: str, mine: rw.Encoding, old: tuple[Tensor, ...], new: tuple[Tensor, ...], joined: bool) -> Step:
    """Return the step as one would write it for this encoding alone."""
    past = old[0].shape[2]
    held = [t.clone() if joined else with_room(t) for t in old[:2]]
    turned = 10_000.0 ** -(torch.arange(0, WIDTH, 2) / WIDTH)
    slopes = (2.0 ** -torch.arange(1.0, HEADS + 1))[None, :, None, None]
    gates = torch.zeros(1, HEADS, past)
    count = past

    def turn(x: Tensor, position: int) -> Tensor:
        angles = position * turned
        by = torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * by).flatten(-2)

    def keep(which: int, t: Tensor) -> Tensor:
        if joined:
            held[which] = torch.cat((held[which], t), 2)
            return held[which]
        held[which][:, :, count : count + 1] = t
        return held[which][:, :, : count + 1]

    @torch.no_grad()
    def step() -> Tensor:
        nonlocal count, gates
        q, k, v, x = new
        bias = None
        if name == "RoPE":
            q, k = turn(q, count), turn(k, count)
        elif name == "ALiBi":
            bias = slopes * torch.arange(-count, 1)
        elif name == "FoX":
            assert isinstance(mine, rw.FoX)
            gate = F.logsigmoid(F.linear(x, mine.weight, mine.bias)).transpose(1, 2)
            gates = torch.cat((gates, gates[..., -1:] + gate), -1)
            bias = (gates[..., -1:] - gates)[:, :, None]
        keys, values = keep(0, k), keep(1, v)
        count += 1
        return F.scaled_dot_product_attention(q, keys, values, bias)

    step()
    return step


def with_room(held: Tensor) -> Tensor:
    """Copy keys or values into the front of a buffer."""
    buffer = held.new_empty(*held.shape[:2], held.shape[2] + ROOM, held.shape[3])
    buffer[:, :, : held.shape[2]] = held
    return buffer


QUESTION = Question(
    title="One decoding step",
    text=__doc__,
    yardstick="the step by hand",
    rows=rows,
    why="""
    What a step costs beside the attention, some 100 µs of Python for the tokens, the problem and the choice of a backend,
    does not grow with S. A bias row of S numbers is made for each head, and FoX's from its running sums. The yardstick writes
    into a buffer of the final size; the cache appends to spare room that it renews now and then. Second rows: beside a step that
    joins by `torch.cat`.
    """,
)
