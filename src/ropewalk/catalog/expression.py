"""Encodings by name, with arguments and composition in the name.

    rope
    rope(base=500000, pairing=half)
    rope + alibi                              one after the other: Sequential
    partial(rope, dims=16)                    the first channels of a head: Partial
    per_head(rope, nope)                      equal groups of heads: PerHead

Parsing needs no torch, and an unknown name fails there, before anything is built.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ropewalk.catalog.entry import Record, normalise
from ropewalk.core.errors import ConfigError

if TYPE_CHECKING:
    from ropewalk.core.encoding import Encoding

COMBINATORS = ("partial", "per_head")

_NAME = re.compile(r"[^\W\d][\w-]*(?:[ ]+[^\W\d][\w-]*)*")
_KEYWORD = re.compile(r"\s*([^\W\d]\w*)\s*=(?!=)")
_PAIRS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class Named:
    """One encoding of the catalog with its arguments."""

    record: Record
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.record.slug}({given})" if given else self.record.slug

    def records(self) -> Iterator[Record]:
        """Every record that is named."""
        yield self.record

    def build(self, **shape: Any) -> Encoding:
        """Make the encoding; its own arguments win over the shape of the model."""
        return self.record.build(**{**shape, **self.arguments})


@dataclass(frozen=True, slots=True)
class Sum:
    """Encodings that act one after the other."""

    terms: tuple[Named | Combined, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.terms))

    def records(self) -> Iterator[Record]:
        """Every record that is named."""
        for term in self.terms:
            yield from term.records()

    def build(self, **shape: Any) -> Encoding:
        """Make a `Sequential` of all."""
        from ropewalk.core.combinators import Sequential

        return Sequential(*(term.build(**shape) for term in self.terms))


@dataclass(frozen=True, slots=True)
class Combined:
    """A combinator around other expressions."""

    combinator: str
    parts: tuple[Expression, ...]
    dims: int | None = None

    def __str__(self) -> str:
        inside = ", ".join(map(str, self.parts))
        return f"{self.combinator}({inside}{'' if self.dims is None else f', dims={self.dims}'})"

    def records(self) -> Iterator[Record]:
        """Every record that is named."""
        for part in self.parts:
            yield from part.records()

    def build(self, **shape: Any) -> Encoding:
        """Make the combinator; its parts are built for the channels or the heads that they get."""
        from ropewalk.core.combinators import Partial, PerHead

        if self.dims is not None:
            return Partial(self.parts[0].build(**{**shape, "head_dim": self.dims}), self.dims)
        share = dict(shape)
        for name in ("num_heads", "num_kv_heads"):
            if share.get(name) is not None:
                share[name], rest = divmod(shape[name], len(self.parts))
                if rest:
                    raise ConfigError(f"{self}: {name}={shape[name]} is not shared out evenly over {len(self.parts)}")
        return PerHead([part.build(**share) for part in self.parts])


Expression = Named | Sum | Combined


def parse(text: str) -> Expression:
    """Read an encoding with arguments and composition.

    Raises:
        UnknownNameError: a name that is not in the catalog, or that several methods share.
        ConfigError: something that does not read as an encoding; the message says where.
    """
    terms = [_term(part.strip(), text) for part in _split(text, "+")]
    return terms[0] if len(terms) == 1 else Sum(tuple(terms))


def parse_layers(text: str) -> tuple[tuple[Expression, int], ...]:
    """Read a pattern of layers: ``"rope:3,nope:1"`` is three layers of RoPE, then one without, over and over.

    Without ``:count`` an encoding has one layer of the pattern.
    """
    pattern = []
    for part in _split(text, ","):
        name, *counts = _split(part, ":")
        count = counts[0] if counts else "1"
        if len(counts) > 1 or not count.strip().isdecimal() or int(count) < 1:
            raise ConfigError(f"{text!r}: after ':' comes a number of layers, at least 1; got {part.strip()!r}")
        pattern.append((parse(name), int(count)))
    return tuple(pattern)


def split_list(text: str) -> list[str]:
    """Split at commas that stand outside brackets and quotes."""
    return [part.strip() for part in _split(text, ",")]


def read_call(text: str) -> tuple[str, list[str], dict[str, str]]:
    """Read ``name(a, key=b)`` into its name, and the texts of its arguments."""
    match = _NAME.match(text)
    if match is None:
        raise ConfigError(f"expected a name{f' and found {text!r}' if text else ''}")
    name, rest = match[0], text[match.end() :].strip()
    positional: list[str] = []
    keywords: dict[str, str] = {}
    if rest:
        if not (rest.startswith("(") and rest.endswith(")")):
            raise ConfigError(f"{rest!r} after {name!r}: arguments go in ()")
        for argument in _split(rest[1:-1], ",") if rest[1:-1].strip() else ():
            if keyword := _KEYWORD.match(argument):
                if keyword[1] in keywords:
                    raise ConfigError(f"{keyword[1]} is given twice")
                keywords[keyword[1]] = argument[keyword.end() :].strip()
            else:
                positional.append(argument.strip())
    return name, positional, keywords


def read_value(text: str) -> Any:
    """Return a Python literal; what is none is a word, so that ``pairing=half`` needs no quotes."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        if not re.fullmatch(r"[^\W\d][\w./-]*", text):
            raise ConfigError(f"{text!r} is no number, word or list; quote text that holds other signs") from None
        return text


def _term(text: str, whole: str) -> Named | Combined:
    try:
        name, positional, keywords = read_call(text)
    except ConfigError as problem:
        raise ConfigError(
            f"{whole!r} does not read as an encoding: {problem}; write rope, rope(base=500000) or rope + alibi"
        ) from None
    if normalise(name) in COMBINATORS:
        return _combined(normalise(name), positional, keywords, whole)
    if positional:
        raise ConfigError(f"{whole!r}: give the arguments of {name} by name, as in rope(base=500000)")
    from ropewalk.catalog import record

    return Named(record(name), {key: read_value(value) for key, value in keywords.items()})


def _combined(name: str, positional: list[str], keywords: dict[str, str], whole: str) -> Combined:
    parts = tuple(parse(part) for part in positional)
    if name == "per_head":
        if keywords or not parts:
            raise ConfigError(f"{whole!r}: per_head takes encodings, one for each group of heads: per_head(rope, nope)")
        return Combined(name, parts)
    dims = read_value(keywords.pop("dims", "None"))
    if len(parts) != 1 or keywords or isinstance(dims, bool) or not isinstance(dims, int) or dims < 1:
        raise ConfigError(f"{whole!r}: partial takes one encoding and its channels: partial(rope, dims=16)")
    return Combined(name, parts, dims)


def _split(text: str, separator: str) -> list[str]:
    """Split at a sign that stands outside brackets and quotes."""
    parts, start, open_, quote = [], 0, [], ""
    for i, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in _PAIRS:
            open_.append(_PAIRS[sign])
        elif open_ and sign == open_[-1]:
            open_.pop()
        elif sign in _PAIRS.values():
            raise ConfigError(f"{text!r}: {sign!r} closes nothing")
        elif sign == separator and not open_:
            parts.append(text[start:i])
            start = i + 1
    if open_ or quote:
        raise ConfigError(f"{text!r}: {open_[-1] if open_ else quote!r} is missing")
    return [*parts, text[start:]]
