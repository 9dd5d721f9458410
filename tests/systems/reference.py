"""Golden values of published code, and small problems to compare with explicit formulas.

`tests/golden` holds one JSON file a system: ``{"source": ..., "cases": [{"name", "params", "inputs", "outputs", "notes"}]}``.
What float32 code made is good to `SINGLE` of the scale of the array, the rest to `DOUBLE`: most files hold nine significant
digits, so that half a unit in the last place is up to 5e-9; `FULL` is for the file with twelve.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.backends import dense

FOLDER = Path(__file__).resolve().parent.parent / "golden"
SINGLE = 1e-5
DOUBLE = 1e-8
FULL = 1e-10
FORMULA = re.compile(r"\s*(sin|cos)\(\s*([\d.eE+-]+)\s*n\s*(?:([+-])\s*([\d.eE]+)\s*)?\)\s*\(([\d,\s]+)\)\s*")


@dataclass(frozen=True)
class Case:
    """One case of a golden file; arrays are tensors, float64 or int64."""

    name: str
    params: dict[str, Any]
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    notes: str


def parse(value: Any) -> Any:
    """Turn arrays into tensors, "-inf" into numbers and formulas such as "sin(0.1 n) (2,3)" into what they stand for."""
    if isinstance(value, str):
        if (match := FORMULA.fullmatch(value)) is None:
            return value
        name, step, sign, offset, shape = match.groups()
        sizes = [int(s) for s in shape.split(",")]
        n = torch.arange(torch.Size(sizes).numel(), dtype=torch.float64)
        start = 0.0 if offset is None else float(sign + offset)
        return getattr(torch, name)(float(step) * n + start).reshape(sizes)
    if not isinstance(value, list):
        return value
    numbers = _floats(value)
    try:
        tensor = torch.tensor(numbers)
    except (TypeError, ValueError, RuntimeError):  # ragged lists, lists of objects
        return value
    return tensor.double() if tensor.is_floating_point() else tensor


def _floats(value: Any) -> Any:
    if isinstance(value, list):
        return [_floats(v) for v in value]
    return float(value) if value in ("-inf", "inf", "nan") else value


def _exact(numbers: Any) -> Any:
    """Parse JSON numbers without a stop in float32."""
    torch_default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return parse(numbers)
    finally:
        torch.set_default_dtype(torch_default)


@cache
def golden(stem: str) -> dict[str, Case]:
    """Return the cases of a golden file, by name."""
    (path,) = FOLDER.glob(f"{stem}*.json")
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return {
        c["name"]: Case(
            c["name"],
            c["params"],
            {k: _exact(v) for k, v in c["inputs"].items()},
            {k: _exact(v) for k, v in c["outputs"].items()},
            c.get("notes", ""),
        )
        for c in cases
    }


def heads_first(x: Tensor) -> Tensor:
    """(B, T, H, D) → (B, H, T, D)."""
    return x.transpose(1, 2).contiguous()


def close(got: Tensor, want: Tensor, tolerance: float = 1e-12, where: Tensor | None = None) -> None:
    """Compare by the largest error over the largest wanted number, after masking."""
    assert got.shape[-want.ndim :] == want.shape[-got.ndim :], (got.shape, want.shape)
    got, want = torch.broadcast_tensors(got.detach().double(), want.detach().double())
    if where is not None:
        keep = where.expand(want.shape)
        got, want = got[keep], want[keep]
    assert got.numel()
    assert bool(got.isfinite().all())
    assert bool(want.isfinite().all())
    error = ((got - want).abs().max() / want.abs().max().clamp(min=1e-300)).item()
    assert error <= tolerance, f"{error:.3g} of the scale, {tolerance:g} is allowed"


def differ(a: Tensor, b: Tensor, by: float = 1e-3) -> None:
    """Check that a comparison could have failed."""
    assert (a - b).abs().max() > by


def triangle(n: int) -> Tensor:
    """Return the pairs that causal attention sees."""
    return torch.ones(n, n, dtype=torch.bool).tril()


def random(*shape: int, seed: int = 0) -> Tensor:
    """Return standard normal numbers, float64."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def problem(
    *,
    b: int = 2,
    h: int = 4,
    kv: int | None = None,
    s: int = 7,
    d: int = 8,
    dv: int | None = None,
    seed: int = 0,
    **fields: Any,
) -> rw.Attention:
    """Return a random float64 problem of no square shape."""
    kv = h if kv is None else kv
    q, k, v = (
        random(b, h, s, d, seed=seed),
        random(b, kv, s, d, seed=seed + 1),
        random(b, kv, s, dv or d, seed=seed + 2),
    )
    return rw.Attention(q, k, v, **fields)


def logits(p: rw.Attention) -> Tensor:
    """Return the logits, scaled and with terms, not masked."""
    p = p.located()
    return dense.logits(p, dense.allowed(p), torch.float64)


def added(encoding: rw.Encoding, p: rw.Attention) -> Tensor:
    """Return what an encoding adds to the logits."""
    return logits(encoding(p)) - logits(p)


def attend(encoding: rw.Encoding, p: rw.Attention, backend: str = "dense") -> Tensor:
    """Return the output of the encoded problem."""
    return rw.attend(encoding(p), backend=backend)


def expanded(p: rw.Attention) -> rw.Attention:
    """Return the same problem with one key head for each query head."""
    group = p.num_heads // p.num_kv_heads
    return rw.Attention(
        p.q, p.k.repeat_interleave(group, 1), p.v.repeat_interleave(group, 1), p.positions, p.causal, p.scale, p.x
    )


def cut(p: rw.Attention, start: int, stop: int) -> rw.Attention:
    """Return the tokens start ... stop − 1 as a problem of new tokens."""
    part = slice(start, stop)
    x = None if p.x is None else p.x[:, part]
    return rw.Attention(p.q[:, :, part], p.k[:, :, part], p.v[:, :, part], causal=p.causal, scale=p.scale, x=x)


def decoded(encoding: rw.Encoding, p: rw.Attention, *sizes: int) -> Tensor:
    """Return the output of the problem fed to a cache in pieces; the rest of the tokens follow one by one."""
    cache_ = rw.KVCache(encoding)
    outputs, start, n = [], 0, p.q.shape[2]
    for size in [*sizes, *[1] * (n - sum(sizes))]:
        outputs.append(rw.attend(cache_.extend(cut(p, start, start + size)), backend="dense"))
        start += size
    return torch.cat(outputs, 2)
