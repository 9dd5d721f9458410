"""The Triton kernels on a CUDA device: first right, then rotations beside a copy, two scores beside one. See gpu.sh.

Every figure of a rotation is time of the candidate / time of ``copy_`` of q and k into memory that is there, taken in
turns in one process (forward and backward: / twice that). 1 / ratio is the share of the copy bandwidth; the target is 85 %.
Attention with two scores is measured in times of torch's own causal attention with one.
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

import ropewalk as rw
from ropewalk.core import rotation
from ropewalk.core.packed import apply_rotary_packed, apply_rotary_packed_, packed_positions
from ropewalk.core.rotation import Pairing, tables

TESTS = Path(__file__).resolve().parents[1] / "tests" / "backends"
CASES = [str(TESTS / name) for name in ("triton_rotary_cases.py", "triton_two_scores_cases.py")]
SHAPES = {"prefill": (4, 8192, 32, 8, 128), "narrow heads": (4, 8192, 32, 32, 64), "decode": (64, 1, 32, 8, 128)}
COLUMNS = ("out of place", "in place", "forward+backward", "eager", "compiled", "transformers", "flash_attn", "liger")
# Each case of two scores compiles a kernel of its own; all of them by pytest on the file itself.
CHOSEN = "triton_rotary_cases or test_encodings or test_fields or test_keys_in_stretches or test_decoding_equals"
PACKED = (32768, 32, 128)  # tokens, heads, head_dim
PACKED_COLUMNS = ("out of place", "in place", "rows gathered", "flash_attn")
LENGTHS = {"4096": (4096, 4096), "32768": (32768, 32768), "decode 1 of 32768": (1, 32768)}
TWO_SCORES = {
    "STRING": lambda: rw.STRINGShifted(128, shift=2048, local=128),
    "ReRoPE": lambda: rw.ReRoPE(128, window=1024),
}
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
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", CHOSEN, *CASES], check=True)

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
    packed(args.seconds, missing)
    two_scores(args.seconds, missing)
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


def packed(seconds: float, missing: dict[str, str]) -> None:
    """Documents of lengths between 1 and 4096, one after the other, turned by rows of one table."""
    total, _, dim = PACKED
    lengths = torch.randint(1, 4097, (total,), device="cuda")
    ends = torch.cat((lengths.new_zeros(1), lengths.cumsum(0).clamp(max=total).unique()))
    positions = packed_positions(ends, total)
    inv_freq = 10000.0 ** (-torch.arange(dim // 2, dtype=torch.float64, device="cuda") * 2 / dim)
    angles = torch.arange(4096, dtype=torch.float64, device="cuda")[:, None] * inv_freq
    print(f"\n## Packed documents\n\n{PACKED}, {len(ends) - 1} documents\n")
    print(f"| dtype | pairing | copy GB/s | {' | '.join(PACKED_COLUMNS)} |")
    print("|---" * (3 + len(PACKED_COLUMNS)) + "|")
    pairings: tuple[Pairing, ...] = ("half", "interleaved")
    for dtype, pairing in itertools.product((torch.bfloat16, torch.float32), pairings):
        x, (cos, sin) = torch.randn(PACKED, device="cuda").to(dtype), tables(angles, dtype)
        want = rotation._plain(x.transpose(0, 1).double(), cos[positions], sin[positions], pairing, False).transpose(
            0, 1
        )
        for got in (
            apply_rotary_packed(x, cos, sin, pairing, positions=positions),
            apply_rotary_packed_(x.clone(), cos, sin, pairing, positions=positions),
        ):
            off = (got.double() - want).abs()
            if not (off <= 0.51 * torch.finfo(dtype).eps * want.abs() + 2e-6).all():
                sys.exit(f"gpu.py: wrong numbers of packed documents in {dtype}, {pairing}: off by {off.max():.3g}")
        candidates = packed_candidates(x, cos, sin, pairing, ends, positions, missing)
        got_, copy = measure(candidates, seconds, missing)
        rate = 2 * x.numel() * x.element_size() / copy / 1e9
        figures = " | ".join(str(got_.get(column, "–")) for column in PACKED_COLUMNS)
        print(f"| {str(dtype)[6:]} | {pairing} | {rate:.0f} | {figures} |", flush=True)


def packed_candidates(
    x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, ends: Tensor, positions: Tensor, missing: dict[str, str]
) -> Candidates:
    """Ours by row of the tables, ours with the rows gathered at each call, and flash-attention's by lengths."""
    into, place = torch.empty_like(x), x.clone()
    turned = x.transpose(0, 1)
    found: Candidates = {
        "copy": lambda: into.copy_(x),
        "out of place": lambda: apply_rotary_packed(x, cos, sin, pairing, positions=positions),
        "in place": lambda: apply_rotary_packed_(place, cos, sin, pairing, positions=positions),
        "rows gathered": lambda: rotation.rotate(turned, cos[positions], sin[positions], pairing),
    }
    try:
        from flash_attn.layers.rotary import apply_rotary_emb

        low, ends32, longest = [t.to(x.dtype) for t in (cos, sin)], ends.int(), int(ends.diff().max())
        found["flash_attn"] = lambda: apply_rotary_emb(
            x, *low, pairing == "interleaved", cu_seqlens=ends32, max_seqlen=longest
        )
    except ImportError as error:
        missing["flash_attn"] = str(error)
    return found


def two_scores(seconds: float, missing: dict[str, str]) -> None:
    """Attention under one softmax with two scores, in times of torch's own with one; 32 query heads, 8 key heads, bf16."""
    print(
        "\n## Two scores\n\n(1, 32 and 8 heads, queries of keys, 128), bfloat16, times scaled_dot_product_attention\n"
    )
    print("| queries | ms of one score | " + " | ".join(TWO_SCORES) + " |\n|---" + "|---" * (1 + len(TWO_SCORES)) + "|")
    for name, (n, m) in LENGTHS.items():
        q, k, v = (torch.randn(1, h, s, 128, device="cuda").bfloat16() for h, s in ((32, n), (8, m), (8, m)))
        keys = rw.Tokens.arange(m, device="cuda")
        where = rw.Positions(keys) if n == m else rw.Positions.pair(keys.slice(m - n), keys)
        candidates: Candidates = {
            "one score": lambda q=q, k=k, v=v, n=n: torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=n > 1, enable_gqa=True
            )
        }
        with torch.no_grad():
            for encoding, make in TWO_SCORES.items():
                p = make().to("cuda")(rw.Attention(q, k, v, positions=where))
                check_two_scores(p, f"{encoding}, {name}")
                candidates[encoding] = lambda p=p: rw.attend(p, "triton")
            got, one = measure(candidates, seconds, missing, "one score")
        print(f"| {name} | {one * 1e3:.3g} | " + " | ".join(str(got[e]) for e in TWO_SCORES) + " |", flush=True)


def check_two_scores(p: Any, name: str) -> None:
    """Some of the queries at full length against the reference in float32; an error where they differ."""
    some = torch.linspace(0, p.q.shape[2] - 1, 16, device="cuda").long().unique()
    got = rw.attend(p, "triton")[:, :, some].float()
    few = p.select_queries(some)
    few = few.replace(
        q=few.q.float(), k=few.k.float(), v=few.v.float(),
        qf={n: t.float() for n, t in few.qf.items()}, kf={n: t.float() for n, t in few.kf.items()},
    )  # fmt: skip
    off = (got - rw.attend(few, "dense")).abs()
    if not (off <= 2e-2).all():
        sys.exit(f"gpu.py: wrong numbers of two scores, {name}: off by {off.max():.3g}")


def measure(
    candidates: Candidates, seconds: float, missing: dict[str, str], base: str = "copy"
) -> tuple[dict[str, Spread], float]:
    """Ratios to ``base``, and its median seconds. A peer whose call fails is noted and left out."""
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
    while time.perf_counter() < end or len(took[base]) < 15:
        for name, run in candidates.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            stop.record()
            stop.synchronize()
            took[name].append(start.elapsed_time(stop) / 1e3)
    copy = took.pop(base)
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
