"""A spectrum as an entry for the configurations of transformers."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

from ropewalk.core.errors import ConfigError
from ropewalk.frequencies.fraction import p_rope
from ropewalk.frequencies.rope_config import ORIGINAL, STILL
from ropewalk.frequencies.rope_parameters import read_rope_config
from ropewalk.frequencies.spectrum import Spectrum, geometric

Step = tuple[str, list[Any], dict[str, Any]]

_SCHEDULES: dict[str, Callable[..., Spectrum]] = {
    **{name: getattr(Spectrum, name) for name in ("linear", "ntk", "abf", "dynamic_ntk", "yarn", "llama3")},
    "p_rope": p_rope,
}


def to_rope_parameters(
    spectrum: Spectrum, *, head_dim: int | None = None, original: int | None = None
) -> dict[str, Any]:
    """Return the ``rope_parameters`` with which transformers makes these frequencies.

    A native type where there is one ("default", "linear", "yarn", "llama3", "proportional"), else "longrope" with a factor
    for each plane, the same for short and long contexts. Planes that stand still get an endless wavelength there. What is
    returned has been read back and gives the same numbers.

    Args:
        spectrum: P planes.
        head_dim: width of a head, where not all of it is turned.
        original: tokens of the training context, for the entry that is not of a native type; transformers wants it there
            and these factors do not depend on it.

    Raises:
        ConfigError: a head narrower than the planes.
    """
    planes = len(spectrum.inv_freq)
    width = 2 * planes if head_dim is None else head_dim
    if width < 2 * planes or not planes:
        raise ConfigError(f"{planes} planes do not fit head_dim {width}")
    for entry in _candidates(spectrum, width, original):
        if planes * 2 != width and entry["rope_type"] != "proportional":
            # Half a pair more survives the rounding down of whoever multiplies.
            exact = 2 * planes / width
            entry["partial_rotary_factor"] = exact if int(width * exact) == 2 * planes else (2 * planes + 0.5) / width
        if _reads_back(entry, spectrum, width):
            return entry
    raise ConfigError(f"no entry of transformers makes these frequencies: {spectrum.origin or spectrum.inv_freq}")


def _candidates(spectrum: Spectrum, head_dim: int, original: int | None) -> Iterator[dict[str, Any]]:
    steps = _steps(spectrum.origin)
    if spectrum.base is not None:
        yield {"rope_type": "default", "rope_theta": spectrum.base}
    if steps and (native := _native(steps, spectrum.attention_factor)) is not None:
        yield native
    base = spectrum.base or _first_base(steps) or 10_000.0
    planes = len(spectrum.inv_freq)
    ladder = geometric(2 * planes, base)
    factors = [a / w if w else STILL for a, w in zip(ladder.inv_freq, spectrum.inv_freq, strict=True)]
    entry = {
        "rope_type": "longrope",
        "rope_theta": base,
        "factor": 1.0,
        "short_factor": factors,
        "long_factor": list(factors),
        "attention_factor": spectrum.attention_factor,
    }
    yield entry if original is None else {**entry, ORIGINAL: original}


def _native(steps: list[Step], attention_factor: float) -> dict[str, Any] | None:
    """Return the entry of a ladder with one known schedule after it."""
    *before, (name, given, options) = steps
    ladder = _replay(before)
    if ladder is None or ladder.base is None or name not in ("linear", "yarn", "llama3", "p_rope"):
        return None
    try:
        bound = inspect.signature(_SCHEDULES[name]).bind(ladder, *given, **options)
    except TypeError:
        return None
    bound.apply_defaults()
    a, entry = bound.arguments, {"rope_type": name, "rope_theta": ladder.base}
    if name == "p_rope":
        return {**entry, "rope_type": "proportional", "partial_rotary_factor": a["p"]}
    entry["factor"] = a["factor"]
    if name == "linear":
        return entry
    entry[ORIGINAL] = a["original"]
    if name == "llama3":
        return {**entry, "low_freq_factor": a["slow"], "high_freq_factor": a["fast"]}
    entry |= {"beta_slow": a["slow"], "beta_fast": a["fast"], "attention_factor": attention_factor}
    return entry if a["truncate"] else {**entry, "truncate": False}


def _reads_back(entry: dict[str, Any], spectrum: Spectrum, head_dim: int) -> bool:
    config = {"head_dim": head_dim, "rope_parameters": entry, "max_position_embeddings": entry.get(ORIGINAL, 1)}
    try:
        made = read_rope_config(config).spectrum()
    except ConfigError:
        return False
    return (
        len(made.inv_freq) == len(spectrum.inv_freq)
        and math.isclose(made.attention_factor, spectrum.attention_factor, rel_tol=1e-12)
        and all(math.isclose(a, b, rel_tol=1e-12) for a, b in zip(made.inv_freq, spectrum.inv_freq, strict=True))
    )


# ---- the origin of a spectrum, read ---------------------------------------------------------------------------------


def _steps(origin: str) -> list[Step] | None:
    """Return the calls of ``geometric(...).a(...).b(...)``; None where the text is something else."""
    try:
        node: ast.expr = ast.parse(origin, mode="eval").body
        steps: list[Step] = []
        while isinstance(node, ast.Call):
            values = [ast.literal_eval(argument) for argument in node.args]
            options = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
            if isinstance(node.func, ast.Name):
                steps.append((node.func.id, values, options))
                return steps[::-1] if node.func.id == "geometric" else None
            if not isinstance(node.func, ast.Attribute):
                return None
            steps.append((node.func.attr, values, options))
            node = node.func.value
    except (SyntaxError, ValueError):
        pass
    return None


def _replay(steps: list[Step]) -> Spectrum | None:
    """Make the spectrum that some first steps make; None for steps that are not known here, or make none."""
    if not steps:
        return None
    try:
        made = geometric(*steps[0][1], **steps[0][2])
        for name, given, options in steps[1:]:
            made = _SCHEDULES[name](made, *given, **options)
    except (ConfigError, TypeError, KeyError):
        return None
    return made


def _first_base(steps: list[Step] | None) -> float | None:
    ladder = _replay(steps[:1]) if steps else None
    return ladder.base if ladder is not None else None
