"""Rotations of q and k on a CUDA device: first right, then how near to a copy of the same bytes. See gpu.sh.

Every figure is time of the candidate / time of ``copy_`` of q and k into memory that is there, taken in turns in one
process (forward and backward: / twice that). 1 / ratio is the share of the copy bandwidth; the target is 85 %.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _timing import Spread, spread
from torch import Tensor

from ropewalk.core import rotation
from ropewalk.core.rotation import Pairing, tables

CASES = Path(__file__).resolve().parents[1] / "tests" / "backends" / "triton_rotary_cases.py"
SHAPES = {"prefill": (4, 8192, 32, 8, 128), "narrow heads": (4, 8192, 32, 32, 64), "decode": (64, 1, 32, 8, 128)}
COLUMNS = ("out of place", "in place", "forward+backward", "eager", "compiled", "transformers", "flash_attn", "liger")
TARGET = 0.85
Candidates = dict[str, Callable[[], Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.3, help="seconds for each row (default 0.3)")
    parser.add_argument("--tiles", action="store_true", help="also try other sizes of tiles than the kernel's own")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print(
            "gpu.py: torch sees no CUDA device here, so nothing was checked or measured. Run benchmarks/gpu.sh where one is."
        )
        return
    if rotation._kernel(torch.device("cuda", torch.cuda.current_device())) is None:
        sys.exit(
            "gpu.py: the Triton kernel does not run on this device (the warning above says why, or triton is missing)"
        )
    print("## Correctness\n", flush=True)
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)], check=True)

    torch.manual_seed(0)
    missing: dict[str, str] = {}
    print(f"\n## Times\n\n{machine()}\n\n| shape | dtype | pairing | copy GB/s | {' | '.join(COLUMNS)} |")
    print("|---" * (4 + len(COLUMNS)) + "|")
    shares = []
    for name, dtype, pairing in itertools.product(SHAPES, (torch.bfloat16, torch.float32), ("half", "interleaved")):
        q, k, cos, sin = case(SHAPES[name], dtype)
        check(q, cos, sin, pairing)
        candidates = ours(q, k, cos, sin, pairing) | peers(q, k, cos, sin, pairing, missing)
        got, copy = measure(candidates, args.seconds, missing)
        moved = 2 * (q.numel() + k.numel()) * q.element_size()
        figures = " | ".join(str(got.get(column, "–")) for column in COLUMNS)
        print(f"| {name} | {str(dtype)[6:]} | {pairing} | {moved / copy / 1e9:.0f} | {figures} |", flush=True)
        if name != "decode":
            shares.append((1 / got["out of place"].median, f"{name}, {str(dtype)[6:]}, {pairing}"))
    least, where = min(shares)
    print(
        f"\nLeast share of the copy bandwidth out of place, decoding apart: {least:.0%} ({where}); target {TARGET:.0%}."
    )
    for peer, reason in missing.items():
        print(f"{peer}: not measured ({reason})")
    if args.tiles:
        tiles(args.seconds)


def machine() -> str:
    """Return a line that says what ran where."""
    import triton

    return (
        f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, torch {torch.__version__}, triton {triton.__version__}, "
        f"Python {platform.python_version()}, {time.strftime('%Y-%m-%d', time.gmtime())}"
    )


def case(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q and k as projections give them: (batch, seq, heads, head_dim) transposed."""
    batch, seq, heads, kv, dim = shape
    q, k = (torch.randn(batch, seq, h, dim, device="cuda").to(dtype).transpose(1, 2) for h in (heads, kv))
    inv_freq = 10000.0 ** (-torch.arange(dim // 2, dtype=torch.float64, device="cuda") * 2 / dim)
    return q, k, *tables(torch.arange(seq, dtype=torch.float64, device="cuda")[:, None] * inv_freq, dtype)


def check(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> None:
    """The first sequence at its full size against the plain formula in float64; an error where they differ."""
    x = x[:1]
    got, want = rotation.rotate(x, cos, sin, pairing).double(), rotation._plain(x.double(), cos, sin, pairing, False)
    # half a unit of the last place, and what float32 arithmetic adds
    bound = 0.51 * torch.finfo(x.dtype).eps * want.abs() + 2e-6
    if not ((got - want).abs() <= bound).all():
        sys.exit(
            f"gpu.py: wrong numbers for {tuple(x.shape)} in {x.dtype}, {pairing}: off by {(got - want).abs().max():.3g}"
        )


def ours(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> Candidates:
    """Ours, PyTorch's own operations in eager mode, and the plain formula compiled."""
    from ropewalk.core import rotation_triton

    into, qg, kg = [(t, torch.empty_like(t)) for t in (q, k)], q.clone().requires_grad_(), k.clone().requires_grad_()
    place = [t.clone() for t in (q, k)]
    turn = lambda t: rotation.rotate(t, cos, sin, pairing)  # noqa: E731
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: (turn(a), turn(b)))
    return {
        "copy": lambda: [out.copy_(t) for t, out in into],
        "out of place": lambda: (turn(q), turn(k)),
        "in place": lambda: [rotation_triton.rotate_(t, cos, sin, pairing) for t in place],
        "forward+backward": lambda: torch.autograd.grad((turn(qg), turn(kg)), (qg, kg), (q, k)),
        "eager": lambda: [rotation._eager(t, cos, sin, pairing, False) for t in (q, k)],
        "compiled": lambda: compiled(q, k),
    }


def peers(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, missing: dict[str, str]) -> Candidates:
    """Other libraries' calls, with the tables they ask for; what cannot be imported is noted."""
    found: Candidates = {}
    if pairing == "half":
        twice = [torch.cat((t, t), -1)[None].to(q.dtype) for t in (cos, sin)]
        try:
            from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

            found["transformers"] = lambda: apply_rotary_pos_emb(q, k, *twice)
        except ImportError as error:
            missing["transformers"] = str(error)
        try:
            from liger_kernel.transformers.rope import liger_rotary_pos_emb

            found["liger"] = lambda: liger_rotary_pos_emb(q, k, *twice)
        except ImportError as error:
            missing["liger"] = str(error)
    try:
        from flash_attn.layers.rotary import apply_rotary_emb

        low = [t.to(q.dtype) for t in (cos, sin)]
        found["flash_attn"] = lambda: [
            apply_rotary_emb(t.transpose(1, 2), *low, pairing == "interleaved") for t in (q, k)
        ]
    except ImportError as error:
        missing["flash_attn"] = str(error)
    return found


def measure(candidates: Candidates, seconds: float, missing: dict[str, str]) -> tuple[dict[str, Spread], float]:
    """Ratios to "copy", and the median seconds of a copy. A peer whose call fails is noted and left out."""
    for name in list(candidates):
        try:
            for _ in range(3):
                candidates[name]()
            torch.cuda.synchronize()
        except Exception as error:
            if name not in ("transformers", "flash_attn", "liger"):
                raise
            missing[name] = f"{type(error).__name__}: {error}"
            del candidates[name]
    took: dict[str, list[float]] = {name: [] for name in candidates}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(took["copy"]) < 15:
        for name, run in candidates.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            stop.record()
            stop.synchronize()
            took[name].append(start.elapsed_time(stop) / 1e3)
    copy = took.pop("copy")
    scale = {"forward+backward": 2.0}
    ratios = {n: spread([t / c / scale.get(n, 1.0) for t, c in zip(ts, copy, strict=True)]) for n, ts in took.items()}
    return ratios, statistics.median(copy)


def tiles(seconds: float) -> None:
    """Try other tiles of the kernel, out of place, to choose `_CHANNELS` and `_HEADS` by."""
    from ropewalk.core import rotation_triton

    own = rotation_triton._CHANNELS, rotation_triton._HEADS
    print(f"\n## Tiles\n\nOut of place, bfloat16, times a copy; the kernel's own are {own}.\n")
    print("| channels | heads | half | interleaved |\n|---|---|---|---|")
    q, k, cos, sin = case(SHAPES["prefill"], torch.bfloat16)
    for rotation_triton._CHANNELS, rotation_triton._HEADS in itertools.product((1024, 2048, 4096, 8192), (1, 2, 4, 8)):
        row = []
        for pairing in ("half", "interleaved"):
            candidates = ours(q, k, cos, sin, pairing)
            row.append(measure({n: candidates[n] for n in ("copy", "out of place")}, seconds, {})[0]["out of place"])
        print(f"| {rotation_triton._CHANNELS} | {rotation_triton._HEADS} | {row[0]} | {row[1]} |", flush=True)
    rotation_triton._CHANNELS, rotation_triton._HEADS = own


if __name__ == "__main__":
    main()
