"""Encodings are rewrites: they commute with taking parts of a problem, and with combinators."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.backends import attend
from ropewalk.core.attention import Attention, leaves
from ropewalk.core.combinators import Partial, PerHead, Sequential
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import CannotCompose, RopewalkError
from ropewalk.core.positions import Positions
from ropewalk.rotary.rope import RoPE
from ropewalk.testing.compare import SAME, Excluded, agree, attempt, error_of, require
from ropewalk.testing.subjects import EITHER, HEAD_DIM, HEADS, KV_HEADS, LONG, MEDIUM, Subject

CHUNKS = [9, 1, LONG - 10]


# ---- taking parts ----------------------------------------------------------------------------------------------------


def check_nothing_captured(s: Subject) -> None:
    """What a problem holds reads declared inputs only. Finds: a bias of all rows that is added to rows picked later."""
    encoding = s.encoding()
    for causal in s.causals:
        for leaf in leaves(encoding(s.problem(encoding, MEDIUM, causal))):
            parts: list[Any] = [*leaf.terms, *leaf.masks, *leaf.finish]
            parts += [b.where for b in leaf.branches if b.where is not None]
            parts += [leaf.product] if leaf.product is not None else []
            for part in parts:
                for fn in (part.fn, getattr(part, "factors", None)):
                    held = _captured(fn)
                    case = f"{type(part).__name__} {getattr(fn, '__qualname__', fn)}"
                    expected = "a pure function of its declared inputs"
                    require(held is None, case, expected, f"a tensor captured as {held!r}")


def _captured(value: Any, name: str = "", depth: int = 6) -> str | None:
    """Name of a tensor that a function can reach through closures, defaults, bound arguments and containers."""
    if isinstance(value, Tensor):
        return name
    if depth == 0 or isinstance(value, type | nn.Module):  # modules hold parameters; calling them is no capture
        return None
    for inner, held in _reached(value):
        found = _captured(held, f"{name}.{inner}" if name else inner, depth - 1)
        if found is not None:
            return found
    return None


def _reached(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value holds by itself, with names."""
    if isinstance(value, dict):
        yield from ((str(name), held) for name, held in value.items())
    elif isinstance(value, list | tuple):
        yield from ((str(i), held) for i, held in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif dataclasses.is_dataclass(value):
        yield from ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
    function = getattr(value, "__func__", value)
    if inspect.isfunction(function):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty cell
                yield name, cell.cell_contents
        yield "defaults", function.__defaults__


def check_parts(s: Subject) -> None:
    """Rows or queries of an encoded problem give those of the result. Finds: a cache or a sharded batch gone wrong."""
    encoding = s.encoding()
    rows, some = torch.tensor([2, 0, 0]), torch.tensor([0, 3, 4, 12, 36])
    for length in (LONG, MEDIUM):
        queries = some[some < length]
        for causal, backend in s.ways:
            case = f"{causal=}, {length=}, {backend}"
            encoded = encoding(s.problem(encoding, length, causal))
            whole = attend(encoded, "dense")
            picked = encoded.select_rows(rows)
            agree(attend(picked, backend), whole[rows], SAME, f"rows, {case}", "those rows of the result")
            if any(leaf.product is not None and leaf.product.rows_coupled for leaf in leaves(encoded)):
                continue  # declared to need all queries at once
            got = attend(encoded.select_queries(queries), backend)
            agree(got, whole[:, :, queries], SAME, f"queries, {case}", "those queries of the result")
            got = attend(picked.select_queries(queries), backend)
            agree(got, whole[rows][:, :, queries], SAME, f"rows and queries, {case}", "the same of the result")


def check_queries_apart(s: Subject) -> None:
    """Some queries against all keys, encoded by themselves, or a refusal. Finds: row numbers taken for positions."""
    encoding = s.encoding()
    refused = ""
    last, some = torch.arange(LONG - 5, LONG), torch.tensor([3, 11, 12, 30])
    for causal, backend in s.ways:
        p = s.problem(encoding, LONG, causal)
        whole = attend(encoding(p), "dense")
        for which, index in (("the last queries", last), ("some queries", some)):
            where = p.where.take_queries(index)
            part = Attention(p.q[:, :, index], p.k, p.v, where, causal=causal, x=p.hidden[:, index], x_kv=p.x)
            case = f"{which}, {causal=}, {backend}"
            encoded = attempt(case, encoding, part)
            if isinstance(encoded, RopewalkError):
                refused = str(encoded)
            else:
                agree(attend(encoded, backend), whole[:, :, index], SAME, case, "those of all")
    if refused:
        raise Excluded(f"it refuses queries without all keys: {refused}")


# ---- combinators -----------------------------------------------------------------------------------------------------


def check_combinators(s: Subject) -> None:
    """Wrapped in a combinator that changes nothing, it is what it was. Finds: features lost once it is not alone."""
    layer = s.layer()
    encoding = layer.encoding
    x, positions = s.x(LONG), s.positions(encoding, LONG)
    wraps: dict[str, Callable[[], Encoding]] = {
        "Sequential(e)": lambda: Sequential(encoding),
        "Sequential(Sequential(e))": lambda: Sequential(Sequential(encoding)),
        "Partial(e, head_dim)": lambda: Partial(encoding, HEAD_DIM),
    }
    for causal in s.causals:
        want = layer(x, positions, causal)
        for case, wrap in wraps.items():
            try:
                outer = s.around(wrap())
                got = outer(x, positions, causal)
            except CannotCompose:
                require(case.startswith("Partial"), case, "no refusal", "CannotCompose")
                continue
            agree(got, want, SAME, f"{case}, {causal=}", "what it gives by itself")
            if causal and s.streamable:
                got = outer.stream(x, positions, CHUNKS)
                agree(got, want, SAME, f"{case}, in chunks", "what it gives by itself")


def check_per_head(s: Subject) -> None:
    """Dealt out to heads, each group gets what its encoding gives it alone. Finds: parameters of the wrong heads."""
    half, kv = HEADS // 2, KV_HEADS // 2
    a, b = (s.encoding(seed=i, num_heads=half, num_kv_heads=kv) for i in (0, 1))
    x, positions = s.x(LONG), s.positions(a, LONG)
    if error_of(a.embed(x, positions), x) > 0:
        _embeddings_per_head(a, b, x, positions)
        return
    layer = s.around(PerHead([a, b]))
    for causal in s.causals:
        p = layer.problem(x, positions, causal)
        apart = [
            attend(e(Attention(p.q[:, h], p.k[:, g], p.v[:, g], positions, causal=causal, x=x)), "dense")
            for e, h, g in ((a, slice(0, half), slice(0, kv)), (b, slice(half, None), slice(kv, None)))
        ]
        want = torch.cat(apart, 1)
        for backend in EITHER:
            got = layer(x, positions, causal, backend)
            agree(got, want, SAME, f"{causal=}, {backend}", "the two run apart")
        if causal and s.streamable:
            agree(layer.stream(x, positions, CHUNKS), want, SAME, "in chunks", "the two run apart")


def _embeddings_per_head(a: Encoding, b: Encoding, x: Tensor, positions: Positions) -> None:
    """Embeddings have no heads: a `PerHead` of them may refuse, or embed, but not drop them silently."""
    got = attempt("PerHead of embeddings", lambda: PerHead([a, b]).embed(x, positions))
    if isinstance(got, Tensor):
        require(error_of(got, x) > 0, "PerHead of embeddings", "a refusal, or embeddings", "x as it was")


def check_after_rope(s: Subject) -> None:
    """Composed with a rotation, it decodes as it computes, or refuses. Finds: keys rotated twice, or not at all."""
    s.needs_streaming()
    encoding = s.encoding()
    x, positions = s.x(LONG), s.positions(encoding, LONG)
    refused = []
    for case, outer in (
        ("Sequential(RoPE, e)", Sequential(RoPE(HEAD_DIM), encoding)),
        ("Sequential(e, RoPE)", Sequential(encoding, RoPE())),
    ):
        layer = s.around(outer)
        want = attempt(case, layer, x, positions)
        if isinstance(want, RopewalkError):
            refused.append(str(want))
            continue
        for backend in EITHER:
            got = layer.stream(x, positions, CHUNKS, backend=backend)
            agree(got, want, SAME, f"{case}, {backend}", "the full pass")
    if len(refused) == 2:
        raise Excluded(f"it refuses to be composed with RoPE: {refused[0]}")
