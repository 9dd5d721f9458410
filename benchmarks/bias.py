"""Attention with encodings, as a ratio to plain causal ``scaled_dot_product_attention`` of the same q, k and v.

    python benchmarks/bias.py [--json] [--lengths 1024,2048,4096] [--seconds 10] [--threads 1] [--no-decode]

"forward" runs under ``no_grad``, "forward+backward" with gradients for q, k, v and whatever the encoding learns. The
bias held as an attn_mask is built before the clock starts, which flatters it. "largest" is the largest tensor that a
forward pass makes: it grows with S where a bias is folded, and with S² where it is held.

Weights far from the query underflow to denormal numbers, on which CPUs are slow. The times are taken with denormals
flushed to zero (said at process start, before torch's threads exist) and again, in a process of its own, without.

One thread is the default: two that wait for each other are at the mercy of whoever else uses the machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from _timing import header, prepare, quiet, rounds, spread
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import ropewalk as rw

HEADS, WIDTH, HIDDEN = 8, 64, 512
TARGET = 1.45
HELD_TO_TARGET = ("ALiBi", "FoX")

Call = Callable[[Tensor, Tensor, Tensor], Tensor]


class LargestTensor(TorchDispatchMode):
    """Notes the largest tensor with memory of its own that an operator returned, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [t.untyped_storage().nbytes() for t in tree_leaves(out) if isinstance(t, Tensor)]
        self.bytes = max([self.bytes, *sizes])
        return out


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def encodings() -> dict[str, rw.Encoding]:
    return {
        "NoPE": rw.NoPE(),
        "RoPE": rw.RoPE(WIDTH),
        "ALiBi": rw.ALiBi(HEADS),
        "FoX": rw.FoX(HEADS, HIDDEN),
    }


def cases(length: int) -> dict[str, tuple[Call, list[nn.Parameter]]]:
    """Return what is timed, with the parameters that get gradients beside q, k and v."""
    x = torch.randn(1, length, HIDDEN)
    positions = rw.Positions.arange(length)
    made: dict[str, tuple[Call, list[nn.Parameter]]] = {"plain": (plain, [])}
    for name, encoding in encodings().items():

        def call(q: Tensor, k: Tensor, v: Tensor, encoding: rw.Encoding = encoding) -> Tensor:
            return rw.attend(encoding(rw.Attention(q, k, v, positions, x=x)), backend="sdpa")

        made[name] = call, list(encoding.parameters())
    i = torch.arange(length)
    slopes = 2.0 ** -torch.arange(1.0, HEADS + 1)
    bias = (-slopes[:, None, None] * (i[:, None] - i)).masked_fill(i > i[:, None], -torch.inf)[None]

    def held(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, bias)

    made["ALiBi held"] = held, []
    return made


def forward(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], object]:
    def run() -> None:
        with torch.no_grad():
            call(q, k, v)

    return run


def forward_backward(
    call: Call, q: Tensor, k: Tensor, v: Tensor, parameters: list[nn.Parameter]
) -> Callable[[], object]:
    def run() -> None:
        inputs = [t.detach().requires_grad_() for t in (q, k, v)]
        out = call(*inputs)
        torch.autograd.grad(out, [*inputs, *parameters], out)

    return run


def measure(length: int, seconds: float) -> dict[str, Any]:
    """Return times, ratios and largest tensors for one length."""
    q, k, v = (torch.randn(1, HEADS, length, WIDTH) for _ in range(3))
    todo = cases(length)
    calls = {
        "forward": {n: forward(c, q, k, v) for n, (c, _) in todo.items()},
        "forward+backward": {n: forward_backward(c, q, k, v, ps) for n, (c, ps) in todo.items()},
    }
    took = {mode: rounds(each, seconds, at_least=7) for mode, each in calls.items()}
    largest = {}
    for name, (call, _) in todo.items():
        with LargestTensor() as seen:
            forward(call, q, k, v)()
        held = 4 * HEADS * length * length if name == "ALiBi held" else 0
        largest[name] = max(seen.bytes, held) / 2**20
    return {
        "length": length,
        "milliseconds": {mode: {n: spread(s).median * 1e3 for n, s in t.items()} for mode, t in took.items()},
        "ratio": {
            mode: {n: spread([a / b for a, b in zip(s, t["plain"], strict=True)]).median for n, s in t.items()}
            for mode, t in took.items()
        },
        "largest_mib": largest,
    }


# ---- decoding --------------------------------------------------------------------------------------------------------


def decode(past: int, seconds: float) -> dict[str, dict[str, float]]:
    """Return microseconds of one decoding step against ``past`` keys: with `KVCache`, and written by hand."""
    old = [torch.randn(1, HEADS, past, WIDTH) for _ in range(2)]
    new = [torch.randn(1, HEADS, 1, WIDTH) for _ in range(3)]
    xs = torch.randn(1, past, HIDDEN), torch.randn(1, 1, HIDDEN)
    steps: dict[str, Callable[[], object]] = {}
    for name, encoding in encodings().items():
        cache = rw.KVCache(encoding)
        with torch.no_grad():
            cache.extend(rw.Attention(old[0], old[0], old[1], x=xs[0]))
        before = cache.snapshot()

        def library(
            cache: rw.KVCache = cache, before: Any = before
        ) -> None:  # the restore belongs to the benchmark; it is two assignments
            cache.restore(before)
            with torch.no_grad():
                rw.attend(cache.extend(rw.Attention(*new, x=xs[1])))

        steps[f"{name} library"] = library
        steps[f"{name} by hand"] = by_hand(name, encoding, old, new, xs)
    took = {name: spread(times).median * 1e6 for name, times in rounds(steps, seconds).items()}
    return {name: {way: took[f"{name} {way}"] for way in ("library", "by hand")} for name in encodings()}


def by_hand(
    name: str, encoding: rw.Encoding, old: list[Tensor], new: list[Tensor], xs: tuple[Tensor, Tensor]
) -> Callable[[], object]:
    """Return the step as one would write it for this encoding alone, growing the cache alike."""
    past = old[0].shape[2]
    slopes = (2.0 ** -torch.arange(1.0, HEADS + 1))[None, :, None, None]
    frequencies = 10_000.0 ** -(torch.arange(0, WIDTH, 2) / WIDTH)
    gates = torch.zeros(1, HEADS, past)

    @torch.no_grad()
    def step() -> None:
        q, k, v = new
        bias = None
        if name == "RoPE":
            angles = past * frequencies
            turn = torch.polar(torch.ones_like(angles), angles)
            q, k = (
                torch.view_as_real(torch.view_as_complex(t.unflatten(-1, (-1, 2))) * turn).flatten(-2) for t in (q, k)
            )
        elif name == "ALiBi":
            bias = slopes * torch.arange(-past, 1)
        elif name == "FoX":
            assert isinstance(encoding, rw.FoX)
            gate = F.logsigmoid(F.linear(xs[1], encoding.weight, encoding.bias)).transpose(1, 2)
            bias = -torch.cat([gates, gates[..., -1:] + gate], -1)[:, :, None]
        keys, values = torch.cat([old[0], k], 2), torch.cat([old[1], v], 2)
        F.scaled_dot_product_attention(q, keys, values, bias)

    return step


# ---- the report ------------------------------------------------------------------------------------------------------


def table(results: list[dict[str, Any]]) -> str:
    lines = []
    names = list(results[0]["largest_mib"])
    for mode in ("forward", "forward+backward"):
        lines.append(f"{mode:18}" + "".join(f"{n:>12}" for n in names))
        for r in results:
            ms = r["milliseconds"][mode]["plain"]
            ratio = "".join(f"{r['ratio'][mode][n]:12.2f}" for n in names)
            lines.append(f"  S={r['length']:<14}{ratio}   (plain {ms:.1f} ms)")
    lines.append(f"{'largest, MiB':18}" + "".join(f"{n:>12}" for n in names))
    for r in results:
        lines.append(f"  S={r['length']:<14}" + "".join(f"{r['largest_mib'][n]:12.1f}" for n in names))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--lengths", default="1024,2048,4096")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each comparison")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-decode", action="store_true")
    parser.add_argument("--unflushed-only", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.unflushed_only:
        prepare()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    lengths = [int(n) for n in args.lengths.split(",")]
    if not quiet():
        print("the machine is not quiet", file=sys.stderr)
    results = [measure(n, args.seconds) for n in lengths]
    if args.unflushed_only:
        print(json.dumps(results))
        return 0
    again = [sys.executable, __file__, "--unflushed-only", "--lengths", args.lengths, "--seconds", str(args.seconds)]
    again += ["--threads", str(torch.get_num_threads())]
    unflushed = json.loads(subprocess.run(again, check=True, stdout=subprocess.PIPE, text=True).stdout)
    steps = {} if args.no_decode else decode(2048, args.seconds)
    missed = [
        f"{name} {mode} S={r['length']}: {r['ratio'][mode][name]:.2f}"
        for r in results
        for mode in ("forward", "forward+backward")
        for name in HELD_TO_TARGET
        if r["ratio"][mode][name] > TARGET
    ]
    if args.json:
        report = {"header": header(), "target": TARGET, "flushed": results, "unflushed": unflushed}
        print(json.dumps({**report, "decode_us": steps, "missed": missed}, indent=2))
        return 1 if missed else 0
    print(header())
    print(f"\n(1, {HEADS}, S, {WIDTH}) float32, ratio to plain causal SDPA, denormals flushed\n")
    print(table(results))
    print("\nthe same, denormals not flushed\n")
    print(table(unflushed))
    if steps:
        print("\none decoding step against 2048 keys, microseconds\n")
        for name, t in steps.items():
            print(
                f"  {name:8} library {t['library']:7.0f}   by hand {t['by hand']:7.0f}   x {t['library'] / t['by hand']:.2f}"
            )
    print(f"\ntarget {TARGET} for {' and '.join(HELD_TO_TARGET)}: " + ("met" if not missed else "; ".join(missed)))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
