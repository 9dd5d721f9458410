"""Calling somebody's function that rotates, whatever it is called with."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.analysis.verify.diagnose import compare
from ropewalk.analysis.verify.observation import Observation, observe
from ropewalk.analysis.verify.reference import Reference
from ropewalk.core.errors import ConfigError, RopewalkError, suggest

BATCH, HEADS, KV_HEADS, SEQ = 3, 4, 2, 40
"""No two alike, so that a wrong axis is an error or shows."""

REACH = 4096
"""Largest position that a function is asked for, if its configuration allows as much."""

ROLES: dict[str, tuple[str, ...]] = {
    "q": ("q", "query", "queries", "xq", "query_states", "query_layer", "q_embed"),
    "k": ("k", "key", "keys", "xk", "key_states", "key_layer", "k_embed"),
    "x": ("x", "t", "input", "inputs", "tensor", "hidden", "hidden_states", "states", "xs"),
    "cos": ("cos", "cosine", "freqs_cos", "cos_cached", "cos_table"),
    "sin": ("sin", "sine", "freqs_sin", "sin_cached", "sin_table"),
    "positions": (
        "positions",
        "position_ids",
        "pos",
        "input_pos",
        "pos_ids",
        "position",
        "ids",
        "indices",
        "position_id",
    ),
    "freqs_cis": ("freqs_cis", "freqs_complex", "cis", "freq_cis"),
    "freqs": ("freqs", "angles", "rotary_emb", "rotary_pos_emb", "rope", "pos_emb"),
    "inv_freq": ("inv_freq", "inv_freqs", "inverse_frequencies"),
    "offset": ("offset", "start_pos", "start", "past_length", "seq_offset", "cache_position_start"),
    "seq_len": ("seq_len", "seqlen", "length", "max_seq_len"),
    "head_dim": ("head_dim", "dim", "rotary_dim", "d"),
    "base": ("base", "theta", "rope_theta", "rope_base"),
}
"""What arguments are called."""

CONVENTIONAL = (
    "q,k,cos,sin",
    "q,k,positions",
    "positions,q,k",
    "q,k,freqs_cis",
    "x,cos,sin",
    "x,positions",
    "x,freqs_cis",
    "q,k",
    "x",
)
"""Tried in turn where names say nothing."""

OFFSET = 5


@dataclass(frozen=True)
class Probe:
    """How to call a function.

    Args:
        reference: decides widths, and the tables where the function takes some.
        dtype: of the tensors.
        layout: "bhsd", "bshd", or None to find out.
        call: the arguments, or None to find out.
        seed: of the random tensors.
    """

    reference: Reference
    dtype: torch.dtype
    layout: str | None = None
    call: str | None = None
    seed: int = 0


@dataclass(frozen=True)
class Argument:
    """One argument: what stands for it, and its name if it goes by name."""

    role: str
    name: str | None = None
    value: Any = None


def load_function(text: str) -> Callable[..., Any]:
    """Return what ``module:name`` or ``path/to/file.py:name`` means; names may have dots.

    Raises:
        ConfigError: no such module, no such name, or what is there cannot be called.
    """
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name:
        raise ConfigError(f"{text!r} names no function; write module:function, or file.py:function")
    try:
        module = _import(where)
    except Exception as problem:
        raise ConfigError(f"{where} cannot be imported: {type(problem).__name__}: {problem}") from None
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(
                f"{where} has no {name!r}.{suggest(part, [n for n in dir(found) if not n.startswith('_')])}"
            )
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{text} is a {type(found).__name__}, which cannot be called")
    return found


def _import(where: str) -> Any:
    if where.endswith(".py"):
        path = Path(where)
        if not path.is_file():
            raise ConfigError(f"there is no file {path}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    before = list(sys.path)
    sys.path.insert(0, "")
    try:
        return importlib.import_module(where)
    finally:
        sys.path[:] = before


def observe_call(fn: Callable[..., Any], probe: Probe) -> Observation:
    """Call a function and return what it did.

    Where names of arguments say what is wanted, they decide; else the conventional ways are tried. The first call that
    returns tensors of the right shape counts; of several signatures, one under which the result is the reference's.

    Raises:
        ConfigError: every way raised; the message has the first reasons.
    """
    problems: list[str] = []
    first: Observation | None = None
    for arguments in _signatures(fn, probe.call):
        seen = _first_that_works(fn, arguments, probe, problems)
        if seen is None:
            continue
        if all(compare(side, seen, probe.reference).same for side in seen.sides):
            return seen
        first = first or seen
    if first is None:
        shown = "; ".join(dict.fromkeys(problems)) or "its arguments are not known here"
        raise ConfigError(
            f"{getattr(fn, '__name__', type(fn).__name__)} could not be called ({shown[:1500]}). Say "
            "what it takes, in order: "
            f"--call with some of {', '.join(ROLES)}, or name=value, such as 'q,k,positions' or "
            "'x,cos,sin,unsqueeze_dim=1'"
        )
    return first


# ---- signatures ------------------------------------------------------------------------------------------------------


def _signatures(fn: Callable[..., Any], call: str | None) -> Iterator[list[Argument]]:
    if call is not None:
        yield _parse(call)
        return
    parameters = _parameters(fn)
    named = _by_name(parameters)
    if named is not None:
        yield named
        return
    required = [
        p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    anything = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    for text in CONVENTIONAL:
        arguments = _parse(text)
        if anything or len(arguments) == len(required):
            yield arguments


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    target = fn.forward if isinstance(fn, nn.Module) else fn
    try:
        return list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):  # built in
        return [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]


def _by_name(parameters: Sequence[inspect.Parameter]) -> list[Argument] | None:
    arguments = []
    roles = {alias: role for role, aliases in ROLES.items() for alias in aliases}
    for p in parameters:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        role = roles.get(p.name.lower().strip("_"))
        if role is None and p.default is p.empty:
            return None
        useful = role in ("positions", "cos", "sin", "q", "k", "x", "freqs_cis", "freqs", "offset")
        if role is not None and (p.default is p.empty or (useful and p.default is None) or role == "offset"):
            arguments.append(Argument(role, p.name if p.kind is p.KEYWORD_ONLY or p.default is not p.empty else None))
    found = {a.role for a in arguments}
    if not found & {"q", "x"}:
        return None
    if (
        "cos" in found
        and "positions" in found
        and any(p.default is None and p.name == "position_ids" for p in parameters)
    ):
        # The older function of transformers keeps an argument that it does not read.
        arguments = [a for a in arguments if a.role != "positions"]
    return arguments


def _parse(call: str) -> list[Argument]:
    arguments = []
    for part in (p.strip() for p in call.split(",")):
        name, equals, text = part.partition("=")
        role = (text if equals else part).strip()
        if role in ROLES:
            arguments.append(Argument(role, name.strip() if equals else None))
            continue
        if not equals:
            raise ConfigError(
                f"--call: {part!r} is no argument known here; allowed are {', '.join(ROLES)}, and "
                f"name=value.{suggest(part, ROLES)}"
            )
        try:
            value = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            raise ConfigError(
                f"--call: {text.strip()!r} in {part!r} is neither a value nor one of {', '.join(ROLES)}"
            ) from None
        arguments.append(Argument("", name.strip(), value))
    if not {a.role for a in arguments} & {"q", "x"}:
        raise ConfigError(f"--call {call!r} hands over nothing to rotate; q (and k) or x must be in it")
    return arguments


# ---- forms -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """One way to lay out what is handed over."""

    layout: str
    positions: str
    table: str
    wide: bool
    kv_heads: int


def _forms(arguments: Sequence[Argument], probe: Probe) -> Iterator[Form]:
    roles = {a.role for a in arguments}
    layouts = ["bshd", "bhsd"] if "freqs_cis" in roles else ["bhsd", "bshd"]
    if probe.layout is not None:
        layouts = [probe.layout]
    axes = 1 if probe.reference.axis is None else max(probe.reference.axis) + 1
    positions = ["bs", "s"] if axes == 1 else ["abs", "bsa"]
    table = {"cos", "freqs_cis", "freqs"} & roles
    tables = ["bs", "s", "11s", "b1s", "1s1"] if table else [""]
    wides = [True, False] if "cos" in roles else [False]
    if "positions" not in roles:
        positions = ["bs"]
    if table and "positions" in roles:  # whole caches, indexed by the function
        tables = ["cache", *tables]
    for kv_heads, layout, where, wide, shape in itertools.product((KV_HEADS, HEADS), layouts, positions, wides, tables):
        yield Form(layout, where, shape, wide, kv_heads)


def _first_that_works(
    fn: Callable[..., Any], arguments: Sequence[Argument], probe: Probe, problems: list[str]
) -> Observation | None:
    roles = ",".join(a.role or f"{a.name}=" for a in arguments)
    for reach in (_reach(probe.reference), SEQ + 16, None):
        for form in _forms(arguments, probe):
            try:
                return _call(fn, arguments, probe, form, reach)
            except RopewalkError as problem:
                problems.append(f"({roles}): {problem}")
            except Exception as problem:
                text = " ".join(str(problem).split())[:160]
                problems.append(f"({roles}): {type(problem).__name__}: {text}")
    return None


def _reach(reference: Reference) -> int:
    known = reference.config.max_length if reference.config is not None else None
    return min(known or REACH, REACH)


def _call(
    fn: Callable[..., Any], arguments: Sequence[Argument], probe: Probe, form: Form, reach: int | None
) -> Observation:
    r, roles = probe.reference, {a.role for a in arguments}
    generator = torch.Generator().manual_seed(probe.seed)

    def draw(heads: int) -> Tensor:
        x = torch.randn(BATCH, heads, SEQ, r.head_dim, generator=generator, dtype=torch.float64).to(probe.dtype)
        return x if form.layout == "bhsd" else x.transpose(1, 2).contiguous()

    positions = _positions(r, roles, form, reach)
    given: dict[str, Any] = {
        "offset": OFFSET,
        "seq_len": SEQ,
        "head_dim": r.width,
        "base": r.config.base if r.config else r.spectrum.base,
    }
    names = ["q", "k"] if "q" in roles and "k" in roles else ["x"] if "x" in roles else ["q"]
    given |= {name: draw(form.kv_heads if name == "k" else HEADS) for name in names}
    before = {name: given[name].clone() for name in names}
    given["inv_freq"] = r.inv_freq().float()
    if "positions" in roles:
        given["positions"] = _shaped_positions(positions, form)
    given |= _tables(r, positions, form, probe.dtype)
    handed = [a for a in arguments if a.name is None]
    by_name = {a.name: (given[a.role] if a.role else a.value) for a in arguments if a.name is not None}
    with torch.no_grad():
        out = fn(*(given[a.role] for a in handed), **by_name)
    after = _results(out, names, given, before, r, form)
    tensors: dict[str, Any] = {"positions": positions}
    for name, key in zip(names, ("q", "k"), strict=False):
        tensors |= {key: before[name], f"{key}_rot": after[name]}
    return observe(tensors, form.layout)


def _positions(r: Reference, roles: set[str], form: Form, reach: int | None) -> Tensor:
    """Return positions (batch, seq) or (batch, seq, axes): small ones, runs at larger ones, and another start in each row."""
    count = torch.arange(SEQ)
    if "offset" in roles and "positions" not in roles:
        return (count + OFFSET).expand(BATCH, SEQ)
    if not roles & {"positions", "cos", "freqs_cis", "freqs"} or reach is None:
        return count.expand(BATCH, SEQ)
    near = torch.arange(SEQ // 2)
    last = max(reach - 1, SEQ + 8)
    far = torch.linspace(SEQ // 2 + 4, last - 4, SEQ // 4).long()
    line = torch.cat((near, torch.stack((far, far + 1), -1).flatten()))[:SEQ].sort().values
    shared = form.positions == "s" or (
        roles & {"cos", "freqs_cis", "freqs"} and form.table in ("s", "11s", "1s1") and "positions" not in roles
    )
    starts = torch.zeros(BATCH, dtype=torch.long) if shared else torch.tensor([0, 2, 3])[:BATCH]
    rows = (line[None] + starts[:, None]).clamp(max=last)
    axes = 1 if r.axis is None else max(r.axis) + 1
    if axes == 1:
        return rows
    image = slice(SEQ // 4, SEQ // 4 + 12)
    out = rows[..., None].repeat(1, 1, axes)
    begin = rows[:, image.start, None]
    cell = torch.arange(12)
    out[:, image, 0] = begin
    for a, offset in zip(range(1, axes), (cell // 4, cell % 4, cell % 3), strict=False):
        out[:, image, a] = begin + offset
    return out


def _shaped_positions(positions: Tensor, form: Form) -> Tensor:
    if form.positions == "s":
        return positions[0].clone()
    if form.positions == "abs":
        return positions.permute(2, 0, 1).contiguous()
    return positions.clone()


def _tables(r: Reference, positions: Tensor, form: Form, dtype: torch.dtype) -> dict[str, Tensor]:
    if not form.table:
        return {}
    if form.table == "cache":
        count = torch.arange(int(positions.max()) + 1)
        angles = r.coordinates(count[:, None].double()) * r.inv_freq()
    else:
        where = positions if positions.ndim == 3 else positions[..., None]
        angles = r.coordinates(where.double()) * r.inv_freq()
        angles = {
            "bs": angles,
            "s": angles[0],
            "11s": angles[0][None, None],
            "b1s": angles[:, None],
            "1s1": angles[0][None, :, None],
        }[form.table]
    factor, work = r.spectrum.attention_factor, torch.float64 if dtype == torch.float64 else torch.float32
    cis = torch.polar(torch.full_like(angles, factor), angles).to(
        torch.complex128 if work == torch.float64 else torch.complex64
    )
    cos, sin = factor * angles.cos(), factor * angles.sin()
    if form.wide:
        cos, sin = (torch.cat((t, t), -1) if r.pairing == "half" else t.repeat_interleave(2, -1) for t in (cos, sin))
    return {"cos": cos.to(dtype), "sin": sin.to(dtype), "freqs_cis": cis, "freqs": angles.to(work)}


def _results(
    out: Any, names: Sequence[str], given: dict[str, Any], before: dict[str, Tensor], r: Reference, form: Form
) -> dict[str, Tensor]:
    if out is None:  # in place
        out = tuple(given[name] for name in names)
    if isinstance(out, dict):
        out = tuple(out.values())
    results = list(out) if isinstance(out, (tuple, list)) else [out]
    results = [t for t in results if isinstance(t, Tensor)]
    if len(results) >= len(names) and all(t.shape == before[n].shape for t, n in zip(results, names, strict=False)):
        return {n: t.detach() for n, t in zip(names, results, strict=False)}
    if (
        names == ["x"]
        and len(results) == 2
        and results[0].shape == results[1].shape
        and results[0].shape[-1] in (r.width, r.width // 2)
    ):
        return {"x": _apply(before["x"], results[0], results[1], r, form)}
    shapes = ", ".join(str(tuple(t.shape)) for t in results) or type(out).__name__
    raise ConfigError(f"it returned {shapes} for {', '.join(str(tuple(before[n].shape)) for n in names)}")


def _apply(x: Tensor, cos: Tensor, sin: Tensor, r: Reference, form: Form) -> Tensor:
    """Turn x by the tables that a function returned, as a model with the reference's pairing would."""
    while cos.ndim < 4:
        cos, sin = (t.unsqueeze(-3 if t.ndim >= 3 or form.layout == "bhsd" else 0) for t in (cos, sin))
    if form.layout == "bshd":
        cos, sin = cos.transpose(1, 2), sin.transpose(1, 2)
    wide, y = cos.shape[-1] == r.width, x.double().clone()
    first, second = _channels(r)
    a, b = y[..., first].clone(), y[..., second].clone()
    up = (first - r.start) if wide else torch.arange(len(first))
    down = (second - r.start) if wide else up
    cos, sin = cos.double(), sin.double()
    y[..., first] = a * cos[..., up] - b * sin[..., up]
    y[..., second] = b * cos[..., down] + a * sin[..., down]
    return y.to(x.dtype)


def _channels(r: Reference) -> tuple[Tensor, Tensor]:
    from ropewalk.analysis.verify.diagnose import wanted_structure

    return wanted_structure(replace(r)).channels()
