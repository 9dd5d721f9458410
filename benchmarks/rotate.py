"""What turning pairs of channels costs, as a multiple of ``x.clone()``: ``python benchmarks/rotate.py [--json FILE]``.

``plain`` is the textbook formula (four products, two sums, cat or stack) on the same tables, ``by head`` the best eager form
known before for bf16 (a float32 scratch of one head, turned there, copied back), ``hf`` the function of transformers if that
is installed (it rounds the tables to the dtype of x). bf16 is turned in float32.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import time
from functools import partial
from typing import Any

import torch
from _timing import Spread, fresh, header, prepare, ratios, rounds, spread, undisturbed
from torch import Tensor

from ropewalk.core.rotation import Pairing, _plain, rotate, tables

SHAPES = ((1, 8, 4096, 64), (1, 32, 2048, 128))
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PAIRINGS: tuple[Pairing, ...] = ("interleaved", "half")


def case(shape: tuple[int, ...], dtype: torch.dtype, layout: str, pairing: Pairing) -> tuple[Tensor, Tensor, Tensor]:
    *_, seq, dim = shape
    x = torch.randn(shape)
    if layout == "transposed":  # what a projection gives
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    inv_freq = 10000.0 ** (-torch.arange(dim // 2, dtype=torch.float64) * 2 / dim)
    angles = torch.arange(seq, dtype=torch.float64)[None, None, :, None] * inv_freq
    return x.to(dtype), *tables(angles, dtype, pairing=pairing)


def measure(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, seconds: float) -> dict[str, Spread]:
    leaf, up = x.detach().clone().requires_grad_(), torch.randn_like(x)
    ours = {
        "clone": x.clone,
        "forward": lambda: rotate(x, cos, sin, pairing),
        "forward+backward": lambda: torch.autograd.grad(rotate(leaf, cos, sin, pairing), leaf, up),
    }
    if x.dtype == torch.bfloat16:  # in turns with ours: the two are close
        ours["by head"] = partial(by_head, x, cos, sin, pairing)
    theirs = {"clone": x.clone, "plain": lambda: _plain(x, cos, sin, pairing, False)}
    if pairing == "half":
        with contextlib.suppress(ImportError):
            from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

            twice = [torch.cat((t, t), -1)[:, 0].to(x.dtype) for t in (cos, sin)]
            # it turns q and k together: no heads of k keep this to one tensor
            theirs["hf"] = lambda: apply_rotary_pos_emb(x, x[:, :0], *twice)
    # Apart, because the temporary tensors of the others leave the allocator in another state.
    got = {}
    for candidates in (ours, theirs):
        fresh()
        got |= ratios(candidates, "clone", seconds)
    return got


def by_head(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> Tensor:
    """Turn one head after the other in a float32 scratch."""
    out, pairs = torch.empty_like(x), cos.shape[-1]
    wide = torch.empty(x.shape[-2:], dtype=torch.float32)
    turned, cos, sin = torch.empty_like(wide), cos[0, 0], sin[0, 0]
    cis, doubled = torch.complex(cos, sin), torch.cat((cos, cos), -1)
    for b, h in itertools.product(range(x.shape[0]), range(x.shape[1])):
        wide.copy_(x[b, h])
        if pairing == "interleaved":
            wide.view(torch.complex64).mul_(cis)
            out[b, h].copy_(wide)
        else:
            torch.mul(wide, doubled, out=turned)
            turned[:, :pairs].addcmul_(wide[:, pairs:], sin, value=-1)
            turned[:, pairs:].addcmul_(wide[:, :pairs], sin)
            out[b, h].copy_(turned)
    return out


def one_token(dtype: torch.dtype, seconds: float) -> dict[str, Spread]:
    """Microseconds for one token of eight heads."""
    x = torch.randn(1, 8, 1, 64).to(dtype)
    cos, sin = tables(torch.randn(1, 1, 1, 32, dtype=torch.float64), dtype)

    def many(run: Any) -> Any:
        return lambda: [run() for _ in range(100)]

    took = rounds(
        {
            "clone": many(x.clone),
            "interleaved": many(lambda: rotate(x, cos, sin, "interleaved")),
            "half": many(lambda: rotate(x, cos, sin, "half")),
            "plain half": many(lambda: _plain(x, cos, sin, "half", False)),
        },
        seconds,
    )
    return {name: spread([t * 1e4 for t in times]) for name, times in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds a measurement (default 1.5)")
    parser.add_argument("--wait", type=float, default=20.0, help="seconds to try for an undisturbed row (default 20)")
    args = parser.parse_args()

    prepare()
    torch.manual_seed(0)
    print(header())
    print("times x.clone(): median (quartiles); rows marked * were disturbed by other processes\n")
    columns = ("forward", "forward+backward", "plain", "by head", "hf")
    print(f"{'shape':<18}{'layout':<12}{'dtype':<6}{'pairing':<13}" + "".join(f"{c:<19}" for c in columns).rstrip())
    rows = []
    for shape, layout, dtype, pairing in itertools.product(SHAPES, ("contiguous", "transposed"), DTYPES, PAIRINGS):
        x, cos, sin = case(shape, DTYPES[dtype], layout, pairing)
        got, alone = undisturbed(partial(measure, x, cos, sin, pairing, args.seconds), args.wait)
        figures = "".join(f"{got.get(c, '-')!s:<19}" for c in columns).rstrip()
        print(
            f"{'x'.join(map(str, shape)):<18}{layout:<12}{dtype:<6}{pairing:<13}{figures}{'' if alone else ' *'}",
            flush=True,
        )
        rows.append(
            {"shape": shape, "layout": layout, "dtype": dtype, "pairing": pairing, "undisturbed": alone}
            | {name: value._asdict() for name, value in got.items()}
        )
    print("\none token, 8 heads of 64, in microseconds")
    tokens = {}
    for dtype in DTYPES:
        with torch.no_grad():
            tokens[dtype], _ = undisturbed(partial(one_token, DTYPES[dtype], args.seconds), args.wait)
        print(f"{dtype}  " + "   ".join(f"{name} {value}" for name, value in tokens[dtype].items()))
    if args.json:
        figures = {
            "machine": header(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "ratio_to_clone": rows,
            "one_token_microseconds": {d: {n: v._asdict() for n, v in t.items()} for d, t in tokens.items()},
        }
        with open(args.json, "w") as file:
            json.dump(figures, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
