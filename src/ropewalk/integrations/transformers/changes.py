"""What can be applied: schedules by name, spectra, encodings by expression or as objects."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ropewalk.catalog.entry import normalise
from ropewalk.catalog.expression import Combined, Expression, Named, Sum, parse, read_call, read_value
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import ConfigError, UnknownNameError, suggest
from ropewalk.frequencies import (
    Spectrum,
    abf,
    clipped,
    dprope,
    high_frequency,
    linear,
    llama3,
    longrope,
    ntk,
    ntk_by_parts,
    p_rope,
    yarn,
)
from ropewalk.integrations.transformers.parts import Fit

SCHEDULES: dict[str, Callable[..., Spectrum]] = {
    schedule.__name__: schedule
    for schedule in (
        linear, ntk, ntk_by_parts, yarn, llama3, longrope, abf, dprope, clipped, p_rope, high_frequency,
    )
}  # fmt: skip
"""Changes of frequencies by name. What is called dynamic follows the length, and is an encoding of the catalog."""

SYNONYMS = {"pi": "linear", "ntk_aware": "ntk", "clipped_cope": "clipped"}
TRAINED = ("original", "train_length")
"""Arguments of schedules that mean the context the frequencies are for; by default the model's."""


@dataclass(frozen=True)
class Schedule:
    """A change of frequencies by name."""

    name: str
    arguments: Mapping[str, Any]

    def __call__(self, spectrum: Spectrum, context: int) -> Spectrum:
        """Apply it to frequencies that are for a context of so many tokens."""
        schedule = SCHEDULES[self.name]
        takes = list(inspect.signature(schedule).parameters)[1:]
        for name in self.arguments:
            if name not in takes:
                raise ConfigError(f"{self.name} takes {', '.join(takes)} and no {name!r}.{suggest(name, takes)}")
        context_of = {n: context for n in TRAINED if n in takes and n not in self.arguments}
        missing = [
            p.name
            for p in list(inspect.signature(schedule).parameters.values())[1:]
            if p.default is p.empty and p.name not in {**context_of, **self.arguments}
        ]
        if missing:
            raise ConfigError(
                f"{self.name} needs {', '.join(missing)}: hf.apply(model, {self.name!r}, {missing[0]}=...)"
            )
        return schedule(spectrum, **context_of, **self.arguments)


def schedule_of(text: str, arguments: Mapping[str, Any]) -> Schedule | None:
    """Read the name of a schedule, with its arguments in the text or beside it; None: it is something else."""
    try:
        name, positional, keywords = read_call(text.strip())
    except ConfigError:
        return None  # a sum, or nothing: the parser of encodings says what is wrong with it
    name = SYNONYMS.get(normalise(name), normalise(name))
    if name not in SCHEDULES:
        return None
    if positional:
        raise ConfigError(f"{text!r}: give the arguments of {name} by name, as in {name}(factor=4)")
    twice = sorted(set(keywords) & set(arguments))
    if twice:
        raise ConfigError(f"{', '.join(twice)} of {name} is given twice")
    given = {**{key: read_value(value) for key, value in keywords.items()}, **arguments}
    if name == "longrope" and "factors" not in given:
        return None  # short and long factors: the encoding that follows the length
    return Schedule(name, given)


@dataclass(frozen=True)
class Layers:
    """An encoding for each layer, with the text it came from; None where it came as an object."""

    encodings: tuple[Encoding, ...]
    texts: tuple[str | None, ...]


def layers_of(what: object, arguments: Mapping[str, Any], fits: Sequence[Fit]) -> Layers:
    """Build the encodings of all layers from one of them, or from one a layer.

    Raises:
        ConfigError: another number of them; something that is no encoding.
        UnknownNameError: a name that is neither a schedule nor in the catalog.
    """
    if isinstance(what, (str, Encoding)):
        items: list[object] = [what] * len(fits)
    elif isinstance(what, (nn.ModuleList, list, tuple)):
        items = list(what)
        if len(items) != len(fits):
            raise ConfigError(
                f"{len(items)} encodings for a model of {len(fits)} layers; give one a layer, or one for all"
            )
    else:
        raise ConfigError(
            f"cannot apply a {type(what).__name__}; give the name of a schedule or an encoding, a Spectrum (or one a layer "
            "type), an Encoding, or one a layer"
        )
    built: dict[tuple[object, Fit], tuple[Encoding, str | None]] = {}
    encodings, texts = [], []
    for i, (item, fit) in enumerate(zip(items, fits, strict=True)):
        key = (item if isinstance(item, str) else id(item), fit)
        if key not in built:
            built[key] = _build(item, arguments, fit)
        encoding, text = built[key]
        # What is named, or given once for all, is an encoding a layer where it learns; given one a layer, it is what it is.
        encodings.append(encoding.layer(i) if isinstance(item, str) or isinstance(what, Encoding) else encoding)
        texts.append(text)
    return Layers(tuple(encodings), tuple(texts))


def _build(item: object, arguments: Mapping[str, Any], fit: Fit) -> tuple[Encoding, str | None]:
    if isinstance(item, Encoding):
        if arguments:
            raise ConfigError(f"{', '.join(arguments)} beside an encoding that is built: give them to its constructor")
        return item, None
    if not isinstance(item, str):
        raise ConfigError(f"a layer was given a {type(item).__name__}; expected an Encoding, or the name of one")
    try:
        expression = parse(item)
    except UnknownNameError as problem:
        near = suggest(normalise(item.partition("(")[0]), [*SCHEDULES, *SYNONYMS])
        raise UnknownNameError(f"{problem} Schedules of frequencies are {', '.join(SCHEDULES)}.{near}") from None
    if arguments and isinstance(expression, Named):
        expression = replace(expression, arguments={**expression.arguments, **arguments})
    elif arguments:
        raise ConfigError(
            f"{', '.join(arguments)}: whose? In {item!r} several encodings are named; write it beside its own"
        )
    return _fitted(expression, fit, fit.head_dim).build(**fit.keywords()), str(expression)


def _fitted(expression: Expression, fit: Fit, width: int) -> Expression:
    """Let encodings have the model's pairing, frequencies and context, unless told otherwise."""
    if isinstance(expression, Sum):
        return Sum(tuple(_fitted(term, fit, width) for term in expression.terms))  # type: ignore[misc]
    if isinstance(expression, Combined):
        width = width if expression.dims is None else expression.dims
        return replace(expression, parts=tuple(_fitted(part, fit, width) for part in expression.parts))
    takes = inspect.signature(expression.record.load()).parameters
    own: dict[str, Any] = {"pairing": fit.pairing, "base": fit.base, **dict.fromkeys(TRAINED, fit.context)}
    if fit.sections is not None:  # of several axes: what the model's own scheme says of them
        of_axes = {n: getattr(fit, n) for n in ("sections", "rotary_dim", "tokens_per_second")}
        own |= {n: value for n, value in of_axes.items() if value is not None}
    if "spectrum" in takes and "base" not in expression.arguments:
        if fit.spectrum is None or 2 * len(fit.spectrum.inv_freq) > width:
            raise ConfigError(
                f"the frequencies of the model do not fit {width} channels, or depend on the length: say which {expression} is "
                f"to have, as in {expression.record.slug}(base=500000)"
            )
        own["spectrum"] = fit.spectrum
    return replace(expression, arguments={**{k: v for k, v in own.items() if k in takes}, **expression.arguments})
