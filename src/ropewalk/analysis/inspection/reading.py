"""The ladders of frequencies that a configuration holds: one a part (text_config, ...) and layer type, read or refused."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.analysis.inspection.findings import Finding
from ropewalk.core.errors import ConfigError
from ropewalk.frequencies import Spectrum, read_rope_config, rope_layer_types
from ropewalk.frequencies.rope_config import ORIGINAL, RopeConfig
from ropewalk.frequencies.rope_parameters import ELSEWHERE, OWN, IncompleteConfig

ALL = "all"
"""The layer type of models whose layers do not differ."""

AXIAL = ("axial", "mllama4")
"""Types whose positions have several axes: rows and columns of an image."""

GRIDS = ("efficientloftr",)
"""Model types that turn the channels of image features by rows and columns and call it "default"."""

ALL_SLIDE = ("mistral", "mixtral", "phi3", "starcoder2")
"""Model types of transformers in which every layer slides where there is a sliding_window."""

EXACT = 1 << 53
"""Whole numbers up to here are exact in float64, in which positions are computed."""

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_num_hidden_layers")


@dataclass(frozen=True)
class Ladder:
    """The frequencies of the layers of one type.

    Attributes:
        name: for people: "full_attention", "text_config, full_attention"; empty for the only one.
        layer_type: `ALL`, or as the configuration calls it.
        read: what was understood.
        layers: how many layers the model has; None where it is not said.
        window: how far its queries see; None without a limit.
    """

    name: str
    layer_type: str
    read: RopeConfig
    layers: int | None
    window: int | None

    @property
    def claimed(self) -> int | None:
        """The context that the configuration is for: the longest that any of its keys speaks of.

        Raises:
            ConfigError: more than positions can count.
        """
        p, length = self.read.parameters, float(self.read.max_length or 0)
        factor = p.get("factor")
        if isinstance(factor, int | float) and self.read.rope_type in ("yarn", "dynamic"):
            original = p[ORIGINAL] if self.read.rope_type == "yarn" else length
            length = max(length, original * factor)
        if length > EXACT:
            raise ConfigError(
                f"a context of {length:g} tokens is more than the {EXACT} that positions can count. Correct it"
            )
        return int(length) if length >= 1 else None

    def reach(self, context: int) -> int:
        """Return the largest distance between a query and a key in a context of so many tokens, plus 1."""
        return context if self.window is None else min(context, self.window)

    def spectrum(self, length: int) -> Spectrum:
        """Return the frequencies for a context of so many tokens."""
        return self.read.spectrum(length)

    @property
    def unrotated(self) -> int:
        """Pairs of a head that are not turned."""
        return (self.read.head_dim - self.read.dim) // 2


@dataclass(frozen=True)
class Part:
    """A configuration, or one inside it.

    Attributes:
        name: "" for the configuration itself, else the key, such as "text_config".
        values: what it holds.
        ladders: what was understood.
        findings: what was not, and what is unusual.
    """

    name: str
    values: Mapping[str, Any]
    ladders: tuple[Ladder, ...]
    findings: tuple[Finding, ...]


def read_parts(config: Any) -> tuple[Part, ...]:
    """Return the parts of a configuration that say something about rotary frequencies, read.

    Args:
        config: what a config.json holds, or a configuration of transformers.

    Raises:
        ConfigError: neither of those.
    """
    values = config if isinstance(config, Mapping) else getattr(config, "to_dict", dict)()
    if not values:
        raise ConfigError(f"expected a configuration or a dictionary with keys; got {type(config).__name__}")
    return tuple(_read(name, part) for name, part in _within(values))


def _within(values: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    inner = [(key, v) for key, v in values.items() if isinstance(v, Mapping) and key.endswith(("_config", "_cfg"))]
    if any(_rotary(key) for key, value in values.items() if value is not None) or (not name and not inner):
        yield name, values
    for key, part in inner:
        yield from _within(part, f"{name}.{key}" if name else key)


def _rotary(key: str) -> bool:
    """Whether a key speaks of rotary frequencies, if misspelt."""
    return key in OWN or (key not in ELSEWHERE and bool(difflib.get_close_matches(key, OWN, n=1, cutoff=0.9)))


def _read(name: str, values: Mapping[str, Any]) -> Part:
    ladders: list[Ladder] = []
    findings: list[Finding] = []
    prefix = f"{name}: " if name else ""
    if not any(_rotary(key) for key, value in values.items() if value is not None):
        return Part(name, values, (), ())
    if (why := _elsewhere(values)) is not None:
        return Part(name, values, (), (Finding("note", f"{prefix}not inspected: {why}", None, "", ""),))
    try:
        _check_size(values)
        types: tuple[str | None, ...] = rope_layer_types(values) or (None,)
    except ConfigError as problem:
        return Part(name, values, (), (_refused(prefix, problem),))
    entries = values.get("rope_parameters") or {}
    for layer_type in types:
        if layer_type is not None and layer_type in entries and entries[layer_type] is None:
            text = f"{prefix}layers of type {layer_type} have no rotary encoding"
            findings.append(Finding("note", text, None, f"rope_parameters[{layer_type!r}] is null", ""))
            continue
        where = prefix if layer_type is None else f"{prefix}{layer_type}: "
        try:
            read = read_rope_config(values, layer_type=layer_type)
            made = Ladder(
                ", ".join(part for part in (name, layer_type) if part),
                layer_type or ALL,
                read,
                next((values[key] for key in LAYERS if _count(values.get(key))), None),
                _window(values, layer_type),
            )
            made.spectrum(made.claimed or 1)
        except IncompleteConfig as problem:
            findings.append(Finding("note", f"{where}not inspected: {problem}", None, "", ""))
            continue
        except ConfigError as problem:
            # The same refusal for every layer type is one mistake.
            if (refused := _refused(prefix, problem)) not in findings:
                findings.append(refused)
            continue
        ladders.append(made)
        for remark in read.findings:
            title, fix = _split(str(remark))
            finding = Finding(remark.severity, f"{prefix}{title}", remark.number, _evidence(read), fix)
            if finding not in findings:
                findings.append(finding)
    return Part(name, values, tuple(ladders), tuple(findings))


def _check_size(value: Any, name: str = "") -> None:
    """Check that no number is too large to compute with: JSON has no limit."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_size(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_size(inner, name)
    elif isinstance(value, int) and abs(value) > EXACT:
        raise ConfigError(f"{name} has {value.bit_length()} bits, and whole numbers up to 2^53 are exact. Correct it")


def _elsewhere(values: Mapping[str, Any]) -> str | None:
    entry = values.get("rope_parameters") or values.get("rope_scaling") or {}
    kinds = (entry.get("rope_type"), entry.get("type")) if isinstance(entry, Mapping) else ()
    if any(kind in AXIAL for kind in kinds):
        return "its positions have two axes, the rows and columns of an image"
    if values.get("model_type") in GRIDS:
        return f"{values['model_type']} turns image features by rows and columns"
    return None


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _window(values: Mapping[str, Any], layer_type: str | None) -> int | None:
    window: Any = values.get("sliding_window")
    if not _count(window) or values.get("use_sliding_window") is False:
        return None
    if layer_type is not None:
        return window if layer_type == "sliding_attention" else None
    kinds = set(values.get("layer_types") or ())
    if kinds:
        return window if kinds == {"sliding_attention"} else None
    return window if values.get("model_type") in ALL_SLIDE else None


def _refused(prefix: str, problem: ConfigError) -> Finding:
    title, fix = _split(str(problem))
    return Finding("error", f"{prefix}{title}", None, "the configuration cannot mean one thing", fix)


def _split(message: str) -> tuple[str, str]:
    """Return a message of ropewalk as what is wrong and what to do: the advice is its last clause."""
    for mark in ("; keep", "; give", "; say", ". Did you mean", ". Correct", ". Say so", ". Leave", "; use"):
        at = message.rfind(mark)
        if at > 0:
            return message[:at], message[at + 2 :].strip()
    return message, "correct the configuration"


def _evidence(read: RopeConfig) -> str:
    said = ", ".join(
        f"{key} {value!r}" for key, value in read.parameters.items() if not isinstance(value, list | tuple)
    )
    return f"rope type {read.rope_type}, base {read.base:g}{f', {said}' if said else ''}"
