"""`verify`: is a rotation what it claims to be?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ropewalk.analysis.verify.calling import Probe, observe_call
from ropewalk.analysis.verify.diagnose import diagnose
from ropewalk.analysis.verify.dump import read_dump
from ropewalk.analysis.verify.observation import Observation, observe
from ropewalk.analysis.verify.reference import Reference, follows_length, read_reference
from ropewalk.analysis.verify.verdict import Finding, Measured, Verdict

__all__ = ["Finding", "Measured", "Reference", "Verdict", "read_dump", "verify"]


def verify(
    fn_or_tensors: Callable[..., Any] | Mapping[str, Any] | str | Path,
    reference: Any,
    *,
    call: str | None = None,
    layout: str | None = None,
    dtype: torch.dtype = torch.float32,
    pairing: str | None = None,
    layer_type: str | None = None,
    length: float | None = None,
    seed: int = 0,
) -> Verdict:
    """φ_i(t) = arg Σ_h z'_i z̄_i, z a pair of channels before, z' after: compare a rotation with its reference.

    From what goes in and what comes out it reads the angle by which each pair is turned at each position, and from the angles
    pairing, direction, frequencies, attention factor, width, positions and precision. What differs is named, most likely first.

    Args:
        fn_or_tensors: a function, which is called with random tensors; or tensors by name: q, q_rot, k, k_rot, positions;
            or the path of a .safetensors or .npz file that holds them.
        reference: a configuration of transformers (object, dictionary, path), a `Spectrum`, or RoPE or AxialRoPE.
        call: of a function: which arguments it takes, in order, such as "q,k,positions"; None: found out.
        layout: "bhsd" (batch, heads, seq, head_dim) or "bshd"; None: found out where shapes tell.
        dtype: of the tensors that a function is called with.
        pairing: "half" or "interleaved", where the reference does not know.
        layer_type: where layers differ, such as "full_attention".
        length: tokens of the context, where frequencies depend on it; None: the largest position and one.
        seed: of the random tensors.

    Shapes: q (B, H, S, d), k (B, H_kv, S, d); positions (S,), (B, S), (B, S, axes) or (axes, B, S), in tokens.
    Numbers: all comparisons in float64. Allowed is what rounding explains: six units of the dtype, and angles made in float32.

    Returns:
        A `Verdict`: ``same``, and ``findings``.

    Raises:
        ConfigError: a reference that cannot be read, a function that cannot be called.
        ShapeError: tensors that do not fit each other or the reference.
        PositionError: positions that cannot be.

    Example:
        >>> import ropewalk as rw
        >>> q, k = torch.randn(1, 2, 8, 16), torch.randn(1, 2, 8, 16)
        >>> cos, sin = rw.functional.rotary_tables(torch.arange(8), head_dim=16)
        >>> turned = [rw.functional.apply_rotary(x, cos, sin, "interleaved") for x in (q, k)]
        >>> tensors = {"q": q, "k": k, "q_rot": turned[0], "k_rot": turned[1], "positions": torch.arange(8)}
        >>> rw.verify(tensors, reference=rw.RoPE(16, pairing="half")).findings[0].cause
        'pairing'
    """
    if isinstance(fn_or_tensors, (str, Path)):
        fn_or_tensors = read_dump(fn_or_tensors)
    options = {"layer_type": layer_type, "pairing": pairing}
    if isinstance(fn_or_tensors, Mapping):
        seen = observe(fn_or_tensors, layout)
        return diagnose(seen, _reference(reference, seen, length, options))
    if not callable(fn_or_tensors):
        raise TypeError(f"give a function, tensors by name, or a path; got {type(fn_or_tensors).__name__}")
    probe = Probe(_reference(reference, None, length, options), dtype, layout, call, seed)
    seen = observe_call(fn_or_tensors, probe)
    return diagnose(seen, _reference(reference, seen, length, options))


def _reference(what: Any, seen: Observation | None, length: float | None, options: Mapping[str, Any]) -> Reference:
    if length is None and follows_length(what, options["layer_type"]):
        length = 1.0 if seen is None else float(seen.positions.max()) + 1
    head_dim = None if seen is None else seen.head_dim
    return read_reference(what, length=length, head_dim=head_dim, **options)
