"""`hf.apply`, `hf.remove`, `hf.spectrum`, `hf.encodings`, `hf.columns`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import ConfigError, PositionError, suggest
from ropewalk.frequencies import RopeConfigWarning, Spectrum, rope_layer_types, spectrum_from_config
from ropewalk.integrations.transformers import parts
from ropewalk.integrations.transformers.attention import NAME
from ropewalk.integrations.transformers.bridge import Bridge, bridge_of
from ropewalk.integrations.transformers.cache import EncodedCache
from ropewalk.integrations.transformers.changes import Schedule, layers_of, schedule_of
from ropewalk.integrations.transformers.parts import RotaryPlace
from ropewalk.integrations.transformers.rotary import ALL, LAYOUTS
from ropewalk.rotary.rope import RoPE

Change = str | Spectrum | Mapping[str, Spectrum] | Encoding | nn.ModuleList | list[str] | list[Encoding]


def apply(model: Any, what: Change, **arguments: Any) -> Any:
    """Give a model of transformers other frequencies or another encoding.

        hf.apply(model, "yarn", factor=4)                  # a schedule, from the frequencies the model has
        hf.apply(model, geometric(64).clipped(8))          # frequencies
        hf.apply(model, {"full_attention": spectrum})      # of one layer type, the others stay
        hf.apply(model, "rope(base=500000) + alibi")       # encodings of the catalog, built for the model
        hf.apply(model, rw.PerLayer([...]))                # one a layer

    Other frequencies replace the rotary modules and nothing else: every cache, every attention implementation and every
    compiled graph of transformers goes on working. Another encoding takes the place of the model's own in all layers (also
    in layers that have none): the rotary modules stand still, the attention function of this model becomes ropewalk's, and
    `generate` makes a cache of its kind (`EncodedCache`).

    A schedule starts from the frequencies that the model has now. ``original`` is its ``max_position_embeddings`` unless
    given. Encodings that are named get the pairing, the frequencies and the context of the model unless told otherwise, so that
    "rope + alibi" is the model's own rotation and a bias.

    Args:
        model: changed in place.
        what: see above.
        arguments: of the schedule or the encoding.

    Returns:
        The model.

    Raises:
        ConfigError: a model without rotary positions; a configuration that is contradictory or that the class does not obey;
            arguments that do not fit.
        UnknownNameError: a name that is neither a schedule nor in the catalog.
    """
    _is_model(model)
    bridge = bridge_of(model)
    if bridge is None and hasattr(model.config, NAME):
        raise ConfigError(
            "the configuration says that ropewalk changed this model, and it was loaded without that: use hf.load(path)"
        )
    places = list(bridge.places) if bridge is not None else parts.rotary_places(model)
    what = _frequencies(what, places) if isinstance(what, Encoding) and not arguments else what
    schedule = schedule_of(what, arguments) if isinstance(what, str) else None
    spectra = None if bridge is None else bridge.spectra
    texts = None
    if schedule is not None or isinstance(what, (Spectrum, Mapping)):
        if schedule is None and arguments:
            raise ConfigError(
                f"{', '.join(arguments)} beside frequencies that are given: apply a schedule to them first"
            )
        spectra = _spectra(model, places, schedule or what, bridge)  # type: ignore[arg-type]
        made = Bridge(model, places, spectra)
    else:
        own = None if spectra is None else spectra[places[0].name]
        layers = layers_of(what, arguments, parts.fits(model, places[0], own))
        made, texts = Bridge(model, places, spectra, layers.encodings), layers.texts
    made.check()
    if bridge is not None:
        bridge.take_out()
    made.put_in()
    setattr(model.config, NAME, made.record(texts))
    return model


def remove(model: Any) -> Any:
    """Take out of a model what `apply` put in, exactly; a model without it is returned as it is."""
    _is_model(model)
    bridge = bridge_of(model)
    if bridge is not None:
        bridge.take_out()
    return model


def spectrum(model_or_config: Any, *, length: float | None = None) -> dict[str, Spectrum]:
    """Return the frequencies a model turns by, layer type by layer type ("all" where they do not differ).

    Of a model it is what its rotary modules hold. Where that is not what the configuration asks for, a warning says so.
    Layers that turn nothing are not in it: see `encodings`.

    Args:
        model_or_config: a model, its configuration, or what its config.json holds.
        length: tokens of the context, for rope types that depend on it.

    Raises:
        ConfigError: a configuration that is contradictory, misspelt or unknown; a model that has another encoding.
    """
    if not isinstance(model_or_config, nn.Module):
        recorded = _recorded(model_or_config)
        if recorded is not None:
            return recorded
        types = rope_layer_types(model_or_config)
        return {
            t: spectrum_from_config(model_or_config, length=length, layer_type=None if t == ALL else t)
            for t in types or (ALL,)
        }
    _is_model(model_or_config)
    bridge = bridge_of(model_or_config)
    if bridge is not None:
        if bridge.encodings is not None or bridge.spectra is None:
            raise ConfigError("this model has another encoding, which no spectrum describes; see hf.encodings(model)")
        of = next(iter(bridge.spectra.values()))
        return dict(of)
    if hasattr(model_or_config.config, NAME):
        warnings.warn(
            "the configuration says that ropewalk changed this model, and it was loaded without that: use hf.load(path)",
            RopeConfigWarning,
            stacklevel=2,
        )
    place = parts.rotary_places(model_or_config)[0]
    live = model_or_config.get_submodule(place.name)
    made = {}
    for t in place.layer_types:
        made[t] = place.declared(t, length)
        if (finding := parts.found(place, live, t)) is not None:
            warnings.warn(finding.text, RopeConfigWarning, stacklevel=2)
            inv_freq, factor = parts.buffers(live, t)
            made[t] = Spectrum(tuple(inv_freq.double().tolist()), factor, f"found in {place.name}")
    return made


def encodings(model: Any) -> list[Encoding]:
    """Return what each layer of a model does with positions, as encodings: its own, or those applied to it.

    Of models with latent keys (DeepSeek) the encodings see the channels that are turned first.

    Raises:
        ConfigError: a model type whose layers are not known.
    """
    _is_model(model)
    bridge = bridge_of(model)
    if bridge is not None and bridge.encodings is not None:
        return list(bridge.encodings)  # type: ignore[arg-type]
    place = bridge.places[0] if bridge is not None else parts.rotary_places(model)[0]
    return parts.own_encodings(model, place, spectrum(model))


def new_cache(model: Any) -> EncodedCache:
    """Return an empty cache for a model to which an encoding was applied; `generate` makes one by itself.

    Raises:
        ConfigError: a model without one, which takes the caches of transformers.
        CannotCache: an encoding with which decoding would not equal the full pass.
    """
    bridge = bridge_of(model)
    if bridge is None or bridge.encodings is None:
        raise ConfigError("this model takes the caches of transformers: only an applied encoding needs another")
    return bridge.new_cache()


@contextlib.contextmanager
def columns(model: Any, **facts: Tensor) -> Iterator[None]:
    """Tell an applied encoding facts about the tokens of a text, for the time of a ``with``.

        hf.apply(model, "hirope")
        with hf.columns(model, segment=code_segments(source, offsets)):
            model.generate(ids)

    Args:
        model: with an encoding applied.
        facts: by the name of the column, (S,) or (B, S, ...) from the first token of the text on; "document" says which packed
            document a token is of.

    Raises:
        ConfigError: a model without an applied encoding, which would not read them.
        PositionError: something that is no tensor (S,) or (B, S, ...).
    """
    bridge = bridge_of(model)
    if bridge is None or bridge.encodings is None:
        raise ConfigError("facts about tokens are for encodings: hf.apply(model, encoding) first")
    for name, fact in facts.items():
        if not isinstance(fact, Tensor) or fact.ndim < 1:
            raise PositionError(f"the column {name!r} is a tensor (S,) or (batch, S, ...); got {type(fact).__name__}")
    before = bridge.columns
    bridge.columns = {**before, **{name: fact[None] if fact.ndim == 1 else fact for name, fact in facts.items()}}
    try:
        yield
    finally:
        bridge.columns = before


# ---- what was meant ----------------------------------------------------------------------------------------------


def _is_model(model: Any) -> None:
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise ConfigError(f"expected a model of transformers; got {type(model).__name__}")


def _recorded(config: Any) -> dict[str, Spectrum] | None:
    """Return the frequencies that a configuration says the model was given."""
    record = config.get(NAME) if isinstance(config, Mapping) else getattr(config, NAME, None)
    if record is None:
        return None
    if "encodings" in record:
        raise ConfigError(f"this model has another encoding ({record['encodings']}), which no spectrum describes")
    (first, *_) = record["spectra"].values()
    return {t: Spectrum(**of) for t, of in first.items()}


def _frequencies(encoding: Encoding, places: list[RotaryPlace]) -> Spectrum | Encoding:
    """Return the spectrum of a plain RoPE that fits the rotary modules; they need nothing else."""
    planes = {len(inv_freq) for place in places for inv_freq, _ in place.inv_freq.values()}
    if type(encoding) is not RoPE or {LAYOUTS[p.layout][1] for p in places} != {encoding.pairing} or len(planes) != 1:
        return encoding
    if places[0].sections is not None:  # what is RoPE is not what turns by several axes
        return encoding
    own = encoding.spectrum or encoding.frequencies(encoding.head_dim or 2 * max(planes))
    return own if len(own.inv_freq) in planes else encoding


def _spectra(
    model: Any, places: list[RotaryPlace], what: Schedule | Spectrum | Mapping[str, Spectrum], bridge: Bridge | None
) -> dict[str, dict[str, Spectrum]]:
    given = what if isinstance(what, Mapping) else {}
    if isinstance(what, Mapping):
        types = {t for place in places for t in place.layer_types}
        for name, value in what.items():
            if name not in types:
                raise ConfigError(
                    f"no layer type {name!r} turns anything here; there are {', '.join(sorted(types))}.{suggest(name, types)}"
                )
            if not isinstance(value, Spectrum):
                raise ConfigError(f"layer type {name!r} was given a {type(value).__name__}; expected a Spectrum")
    context = parts.decoder_config(model).max_position_embeddings
    made: dict[str, dict[str, Spectrum]] = {}
    for place in places:
        made[place.name] = {}
        for t in place.layer_types:
            if isinstance(what, Spectrum) or t in given:
                new = what if isinstance(what, Spectrum) else given[t]
                planes = len(place.inv_freq[t][0])
                if len(new.inv_freq) != planes:
                    raise ConfigError(
                        f"a spectrum of {len(new.inv_freq)} planes for rotary modules of {planes} ({place.name}, layer type "
                        f"{t!r}); planes that are not to turn get frequency 0 (Spectrum.keep, Spectrum.padded)"
                    )
            else:
                new = _current(model, place, t, bridge)
                new = what(new, context) if isinstance(what, Schedule) else new
            made[place.name][t] = new
    return made


def _current(model: Any, place: RotaryPlace, layer_type: str, bridge: Bridge | None) -> Spectrum:
    if bridge is not None and bridge.spectra is not None:
        return bridge.spectra[place.name][layer_type]
    declared = place.declared(layer_type)
    if bridge is None:
        finding = parts.found(place, model.get_submodule(place.name), layer_type)
        if finding is not None and not finding.cast:  # a cast is mended: the declared ones are in float64
            raise ConfigError(f"{finding.text}. Give the frequencies that are to be changed: hf.apply(model, spectrum)")
    return declared
