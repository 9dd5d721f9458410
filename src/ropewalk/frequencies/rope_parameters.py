"""What a configuration of transformers says about its rotary frequencies, read without transformers.

Two styles are understood: ``rope_theta`` with ``rope_scaling``, and ``rope_parameters``, flat or one dictionary a layer type.
What is contradictory, misspelt or unknown is an error. What is unusual but has a published reading is a finding: a
sentence that says what was taken. Nothing is chosen silently.
"""

from __future__ import annotations

import contextlib
import difflib
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from ropewalk.core.errors import ConfigError, check_positive, suggest
from ropewalk.frequencies.checks import check_base, check_length, check_rotary_width
from ropewalk.frequencies.fraction import pairs_of_fraction
from ropewalk.frequencies.longrope import check_factors
from ropewalk.frequencies.rope_config import COMMON, KEYS, ORIGINAL, RENAMED, Remark, RopeConfig
from ropewalk.frequencies.spectrum import Spectrum

# Spellings that were met in the wild and that no release of transformers reads.
MEANT = {
    "original_max_seq_len": ORIGINAL,
    "original_context_length": ORIGINAL,
    "original_length": ORIGINAL,
    "old_context_len": ORIGINAL,
    "scale": "factor",
    "scaling_factor": "factor",
    "scale_factor": "factor",
    "base": "rope_theta",
    "rope_base": "rope_theta",
    "theta": "rope_theta",
    "rotary_pct": "partial_rotary_factor",
}

# What is read of a configuration itself, and its older names.
BASES = ("rope_theta", "rotary_emb_base")
FRACTIONS = ("partial_rotary_factor", "rotary_pct")
OWN = (
    "rope_scaling", "rope_parameters", "rope_local_base_freq", "global_rope_theta", "local_rope_theta", "rotary_dim",
    *BASES, *FRACTIONS, ORIGINAL,
)  # fmt: skip
READ = (*OWN, "max_position_embeddings")
# Names with "rope" or "rotary" in them that say nothing about frequencies.
ELSEWHERE = (
    "rope_interleave", "rope_interleaved", "rope_type", "qk_rope_head_dim", "qk_nope_head_dim", "no_rope_layers",
    "no_rope_layer_interval",
)  # fmt: skip


WIDEST = 1 << 16
"""Channels of a head from which a width is a mistake: frequencies are made one by one."""


class IncompleteConfig(ConfigError):
    """A configuration that does not say how wide a head is: nothing is wrong with it, and nothing can be told of it."""


class RopeConfigWarning(UserWarning):
    """A finding about a configuration."""


def spectrum_from_config(config: Any, *, length: float | None = None, layer_type: str | None = None) -> Spectrum:
    """Return the frequencies that a model with this configuration turns by; findings are warned of.

    Args:
        config: a configuration of transformers, or what its config.json holds.
        length: tokens of the context, for the types that depend on it ("dynamic", "longrope").
        layer_type: such as "full_attention", where layers differ.

    Raises:
        ConfigError: what is contradictory, misspelt, unknown or missing.
    """
    read = read_rope_config(config, layer_type=layer_type)
    for finding in read.findings:
        warnings.warn(finding, RopeConfigWarning, stacklevel=2)
    return read.spectrum(length)


def read_rope_config(config: Any, *, layer_type: str | None = None) -> RopeConfig:
    """Return the rotary part of a configuration, with findings. Arguments and errors as in `spectrum_from_config`."""
    values = _plain(config, layer_type)
    _check_kinds(values)
    findings = _check_names(values)
    entry = dict(_entry(values, layer_type, findings))
    rope_type = _type(entry)
    _check_keys(rope_type, entry, findings)

    base = entry.get("rope_theta")
    if base is None:
        base = 10_000.0
        # Where no key begins with "rope" (GPT-J), the model has none for the base either.
        findings.append(
            Remark(
                "no base of the frequencies is given (rope_theta); 10000 is taken, and some models have another default",
                "warning" if any(name.startswith("rope") for name in values) else "note",
                10_000.0,
            )
        )
    check_base(base)
    head_dim, dim = _widths(values, entry, rope_type)

    parameters = {k: v for k, v in entry.items() if v is not None and k not in ("type", "rope_type", "rope_theta")}
    max_length = values.get("max_position_embeddings")
    if max_length is not None:
        check_length("max_position_embeddings", max_length)
    if ORIGINAL in KEYS[rope_type]:
        _find_original(values, parameters, rope_type, max_length, findings)
    if rope_type == "longrope":
        for key in ("short_factor", "long_factor"):
            if key not in parameters:
                raise ConfigError(f"rope type 'longrope' needs {key!r}, and the configuration does not give it")
            check_factors(key, parameters[key], dim // 2)
    if "mrope_section" in parameters:
        findings.append(
            Remark(
                "mrope_section splits the planes among axes of the positions; these are the frequencies of one axis, and the "
                "split is for the encoding to make",
                "note",
            )
        )
    return RopeConfig(rope_type, head_dim, dim, float(base), parameters, max_length, tuple(findings))


def rope_layer_types(config: Any) -> tuple[str, ...]:
    """Return the layer types that have frequencies of their own; empty where all layers have the same."""
    values = _plain(config)
    _check_kinds(values)
    by_layer = _by_layer(values, _parameters(values)[0])
    return tuple(by_layer) if by_layer else ()


# ---- finding the dictionary ----------------------------------------------------------------------------------------


def _plain(config: Any, layer_type: str | None = None) -> dict[str, Any]:
    """Return a configuration as a dictionary of what is given, that of one layer type where widths differ too."""
    by_layer = None if isinstance(config, Mapping) else getattr(config, "per_layer_config", None)
    if layer_type is not None and by_layer is not None:
        with contextlib.suppress(ValueError, KeyError):  # the layer types differ in other things only
            config = by_layer[layer_type]
    if isinstance(config, Mapping):
        values = dict(config)
    elif hasattr(config, "to_dict"):
        values = dict(config.to_dict())
        for name in ("head_dim", "hidden_size", "num_attention_heads", *READ):
            # Properties and renamed attributes of a configuration are not in its dictionary.
            with contextlib.suppress(RuntimeError):  # layers differ in it, and none was chosen
                values.setdefault(name, getattr(config, name, None))
    else:
        try:
            values = dict(vars(config))
        except TypeError:
            raise ConfigError(f"expected a configuration or a dictionary; got {type(config).__name__}") from None
    return {name: value for name, value in values.items() if value is not None}


def _check_kinds(values: Mapping[str, Any]) -> None:
    types = values.get("layer_types", ())
    if not isinstance(types, list | tuple) or not all(isinstance(t, str) for t in types):
        raise ConfigError(f"layer_types is a list of names, one a layer; got {types!r}")
    for name in ("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim"):
        width = values.get(name, 0)
        if isinstance(width, bool) or not isinstance(width, int) or width < 0:
            raise ConfigError(f"{name} is a whole number of channels; got {width!r}")


def _check_names(values: Mapping[str, Any]) -> list[Remark]:
    known = {*READ, *ELSEWHERE}
    findings: list[Remark] = []
    for name in values:
        if name in known:
            continue
        near = difflib.get_close_matches(name, OWN, n=1, cutoff=0.9)
        if near:
            raise ConfigError(f"the configuration has {name!r}, which nothing reads. Did you mean {near[0]!r}?")
        if "rope" in name or "rotary" in name:
            findings.append(
                Remark(f"the configuration has {name!r} (given as {values[name]!r}), which is not read", "note")
            )
    if "text_config" in values and not any(name in values for name in OWN):
        raise ConfigError("this configuration has its language model in text_config: give config['text_config']")
    return findings


def _parameters(values: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return the dictionary of either style, and whether it is the older one."""
    old, new = values.get("rope_scaling"), values.get("rope_parameters")
    for name, given in (("rope_scaling", old), ("rope_parameters", new)):
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(f"{name} is a dictionary; got {given!r}")
    if old and new and _comparable(old) != _comparable(new):
        raise ConfigError(
            f"rope_scaling {dict(old)!r} and rope_parameters {dict(new)!r} are both given and say different things; keep one"
        )
    return (new, False) if new else (old or {}, True)


def _comparable(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an entry says, whatever the style: the base stands elsewhere in the older one."""
    said = {("rope_type" if k == "type" else k): v for k, v in entry.items() if v is not None and k != "rope_theta"}
    return said if any(isinstance(v, Mapping) for v in said.values()) else {"rope_type": "default", **said}


def _by_layer(values: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Mapping[str, Any] | None]:
    """Return the entries by layer type; empty where they do not differ."""
    declared = values.get("layer_types") or ()
    nested = {k: v for k, v in entry.items() if isinstance(v, Mapping) or (v is None and k in declared)}
    if nested:
        flat = [k for k in entry if k not in nested]
        if flat:
            raise ConfigError(
                f"rope_parameters mixes layer types {list(nested)} with plain keys {flat}; give one or the other"
            )
        return nested
    full = {"rope_theta": values["rope_theta"]} if "rope_theta" in values else {}
    if "rope_local_base_freq" in values:  # Gemma 3 as first released: only the full layers are scaled
        return {
            "full_attention": {**entry, **full},
            "sliding_attention": {"rope_type": "default", "rope_theta": values["rope_local_base_freq"]},
        }
    if "global_rope_theta" in values:  # ModernBERT
        sliding = values.get("local_rope_theta", values["global_rope_theta"])
        return {
            "full_attention": {**entry, "rope_theta": values["global_rope_theta"]},
            "sliding_attention": {**entry, "rope_theta": sliding},
        }
    if values.get("model_type") == "olmo3" and values.get("rope_scaling"):
        return {"full_attention": {**entry, **full}, "sliding_attention": {"rope_type": "default", **full}}
    return {}


def _entry(values: Mapping[str, Any], layer_type: str | None, findings: list[Remark]) -> Mapping[str, Any]:
    """Return one flat dictionary with base and fraction in it."""
    entry, older = _parameters(values)
    by_layer = _by_layer(values, entry)
    if by_layer:
        if layer_type not in by_layer:
            given = "" if layer_type is None else f"; got {layer_type!r}.{suggest(layer_type, by_layer)}"
            raise ConfigError(f"the layers differ: give layer_type, one of {', '.join(map(repr, by_layer))}{given}")
        chosen = by_layer[layer_type]
        if chosen is None:
            raise ConfigError(f"layers of type {layer_type!r} have no rotary encoding; use NoPE()")
        # What stands beside entries by layer is for those that do not say.
        return {
            **_said(values, {}, BASES, "rope_theta"),
            **_said(values, {}, FRACTIONS, "partial_rotary_factor"),
            **chosen,
        }
    kinds = set(values.get("layer_types") or ())
    if layer_type is not None and layer_type not in kinds:
        raise ConfigError(
            f"all layers have the same frequencies, and no layer type {layer_type!r} is declared; leave it out"
        )
    if older and len(kinds) > 1 and entry:
        findings.append(
            Remark(
                f"one rope_scaling for layers of types {', '.join(sorted(kinds))}: it is taken for all of them, and some models "
                "scale one type only; rope_parameters can say so by type"
            )
        )
    return {
        **entry,
        **_said(values, entry, BASES, "rope_theta"),
        **_said(values, entry, FRACTIONS, "partial_rotary_factor"),
    }


def _said(values: Mapping[str, Any], entry: Mapping[str, Any], names: Iterable[str], key: str) -> dict[str, Any]:
    """Return what all places agree on, or raise."""
    said = {name: values[name] for name in names if name in values}
    if entry.get(key) is not None:
        said[f"{key} of the rope dictionary"] = entry[key]
    first = next(iter(said.values()), None)
    if any(value is not first and value != first for value in said.values()):  # NaN is another mistake
        places = ", ".join(f"{name} {value!r}" for name, value in said.items())
        raise ConfigError(f"the configuration says different things: {places}; keep one")
    return {key: first} if said else {}


# ---- what it says --------------------------------------------------------------------------------------------------


def _type(entry: Mapping[str, Any]) -> str:
    names = {key: entry[key] for key in ("rope_type", "type") if entry.get(key) is not None}
    for key, name in names.items():
        if not isinstance(name, str):
            raise ConfigError(f"{key} is a name; got {name!r}")
    meant = {RENAMED.get(name, name) for name in names.values()}
    if len(meant) > 1:
        raise ConfigError(f"rope_type {entry['rope_type']!r} and type {entry['type']!r} are both given; keep one")
    if not meant:
        extra = [k for k in entry if k not in COMMON and entry[k] is not None]
        if extra:
            raise ConfigError(
                f"the rope dictionary has {', '.join(map(repr, extra))} and no 'rope_type'; say which is meant"
            )
        return "default"
    rope_type = meant.pop()
    if rope_type not in KEYS:
        raise ConfigError(
            f"rope type {rope_type!r} is unknown; known are {', '.join(map(repr, [*KEYS, *RENAMED]))}.{suggest(rope_type, KEYS)}"
        )
    return rope_type


def _check_keys(rope_type: str, entry: Mapping[str, Any], findings: list[Remark]) -> None:
    allowed = (*KEYS[rope_type], *COMMON)
    every = {key for keys in KEYS.values() for key in keys}
    for key in entry:
        if key in allowed:
            continue
        if key in every:
            if entry[key] is not None:
                findings.append(
                    Remark(
                        f"rope type {rope_type!r} does not use {key!r} (given as {entry[key]!r}), so it changes nothing"
                    )
                )
            continue
        near = [MEANT[key]] if key in MEANT else difflib.get_close_matches(key, allowed, n=1, cutoff=0.75)
        if near:
            raise ConfigError(f"the rope dictionary has {key!r}, which nothing reads. Did you mean {near[0]!r}?")
        findings.append(Remark(f"the rope dictionary has {key!r}, which nothing reads", "note"))


def _widths(values: Mapping[str, Any], entry: Mapping[str, Any], rope_type: str) -> tuple[int, int]:
    """Return the width of a head and how much of it is turned."""
    head_dim, fraction = _head_dim(values), entry.get("partial_rotary_factor")
    said = {name: values[name] for name in ("rotary_dim", "qk_rope_head_dim") if name in values}
    if fraction is not None and rope_type != "proportional":
        said["partial_rotary_factor"] = 2 * pairs_of_fraction(head_dim, fraction)
        if said["partial_rotary_factor"] != int(head_dim * fraction):
            raise ConfigError(
                f"partial_rotary_factor {fraction!r} of head_dim {head_dim} is {int(head_dim * fraction)} channels, an odd "
                "number, and channels are turned in pairs; give rotary_dim"
            )
    if not said:
        return head_dim, head_dim
    dim = next(iter(said.values()))
    if any(value != dim for value in said.values()):
        widths = ", ".join(f"{value} by {name}" for name, value in said.items())
        raise ConfigError(f"it is unclear how much of head_dim {head_dim} is turned: {widths}; keep one")
    check_rotary_width(dim)
    if dim > head_dim:
        raise ConfigError(f"{dim} channels are to be turned ({next(iter(said))}), and a head has {head_dim}")
    return head_dim, dim


def _head_dim(values: Mapping[str, Any]) -> int:
    """Return the width of a head, given or found."""
    head_dim = values.get("head_dim")
    if head_dim is None and "qk_rope_head_dim" in values:
        head_dim = values["qk_rope_head_dim"] + values.get("qk_nope_head_dim", 0)
    if head_dim is None:
        hidden = next((values[name] for name in ("hidden_size", "n_embd", "d_model") if name in values), None)
        heads = next((values[name] for name in ("num_attention_heads", "n_head", "n_heads") if name in values), None)
        if hidden is None or heads is None:
            raise IncompleteConfig(
                "the width of a head is not given: the configuration needs head_dim, or hidden_size and num_attention_heads"
            )
        check_positive(hidden_size=hidden, num_attention_heads=heads)
        head_dim = hidden // heads
    check_positive(head_dim=head_dim)
    if head_dim > WIDEST:
        raise ConfigError(f"a head has at most {WIDEST} channels; got {head_dim}. Correct its width")
    return int(head_dim)


def _find_original(
    values: Mapping[str, Any],
    parameters: dict[str, Any],
    rope_type: str,
    max_length: int | None,
    findings: list[Remark],
) -> None:
    """Settle the original length, which stands in one of two places, and see whether the factor agrees with it."""
    parameters.update(_said(values, parameters, (ORIGINAL,), ORIGINAL))
    if ORIGINAL not in parameters:
        if max_length is None:
            raise ConfigError(f"rope type {rope_type!r} needs {ORIGINAL!r}, and the configuration does not give it")
        parameters[ORIGINAL] = max_length
        findings.append(
            Remark(
                f"{ORIGINAL} is not given; max_position_embeddings, {max_length}, is taken for the length of the training. Say "
                "so if that is the extended one",
                number=max_length,
            )
        )
        return
    check_length(ORIGINAL, parameters[ORIGINAL])
    factor = parameters.get("factor")
    if factor is None or max_length is None or rope_type == "llama3":  # whose published factor is no ratio of lengths
        return
    ratio = max_length / parameters[ORIGINAL]
    if ratio not in (1, factor):
        findings.append(
            Remark(
                f"factor is {factor!r} and max_position_embeddings / {ORIGINAL} is {max_length} / {parameters[ORIGINAL]} = "
                f"{ratio:g}; the factor is taken. Correct whichever is wrong",
                number=ratio,
            )
        )
