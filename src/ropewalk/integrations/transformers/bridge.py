"""What `hf.apply` puts into a model, and how it is taken out again. Nothing outside the model given is touched."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import GenerationMixin, PreTrainedConfig

from ropewalk import __version__
from ropewalk.coordinates.allocation import Allocation
from ropewalk.core.combinators import PerLayer
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import CacheError, CannotCache, ConfigError, PositionError
from ropewalk.core.positions import Positions
from ropewalk.frequencies import RopeConfigWarning, Spectrum
from ropewalk.integrations.transformers import parts
from ropewalk.integrations.transformers.attention import NAME, LayerStep, Step, positions_of, with_columns
from ropewalk.integrations.transformers.cache import EncodedCache
from ropewalk.integrations.transformers.parts import RotaryPlace
from ropewalk.integrations.transformers.rotary import RotaryTables
from ropewalk.integrations.transformers.vision import FAMILIES, VisionPlaces, family_of

CACHES = ("cache", "past_key_values", "layer_past")
"""Names under which models and their layers take a cache."""

SILENT = ("stablelm",)
"""Model types whose blocks do not hand keywords on to their attention module."""

MASKED = (None, "full_attention", "sliding_attention")
"""Layer types whose visibility follows from causality, padding, documents and a window."""


@dataclass
class Undo:
    """What has to be put back. Not a module, so that the model does not see its parts twice."""

    model: Any
    rotary: dict[str, nn.Module] = field(default_factory=dict)
    implementation: str | None = None
    handles: list[RemovableHandle] = field(default_factory=list)


class Carrying(tuple[Tensor, Tensor]):
    """Tables that carry the step of a forward pass."""

    step: Step


class Bridge(nn.Module):
    """The change made to a model, as a submodule ``model.ropewalk``.

    Only its `encodings` have parameters, so that a change of frequencies adds nothing to the model's state.

    Args:
        model: a model of transformers without a bridge.
        places: its rotary modules.
        spectra: by place and layer type, other than the configuration's.
        encodings: one a layer, where the change is more than one of frequencies.
    """

    def __init__(
        self,
        model: Any,
        places: Sequence[RotaryPlace],
        spectra: Mapping[str, Mapping[str, Spectrum]] | None = None,
        encodings: Sequence[Encoding] | None = None,
    ) -> None:
        super().__init__()
        self.places = tuple(places)
        self.spectra = None if spectra is None else {name: dict(of) for name, of in spectra.items()}
        self.encodings = None if encodings is None else PerLayer(encodings)
        self.undo = Undo(model)
        self.columns: dict[str, Tensor] = {}
        family = family_of(model.config)
        self.vision = None if family is None else VisionPlaces(model.config, family)

    # ---- putting in and taking out ----------------------------------------------------------------------------

    def put_in(self) -> None:
        """Replace the rotary modules; with encodings, also the attention function of this model."""
        model, undo = self.undo.model, self.undo
        for place in self.places:
            elsewhere = self.encodings is not None or self.spectra is None
            spectra = parts.still(place) if elsewhere else self.spectra[place.name]  # type: ignore[index]
            made = RotaryTables(spectra, place.layout, self._allocation(place))
            undo.rotary[place.name] = model.get_submodule(place.name)
            model.set_submodule(place.name, made.to(model.device))
        model.ropewalk = self
        _own_config(model)
        if self.encodings is None:
            return
        base = self._base()
        undo.handles.append(base.register_forward_pre_hook(self.enter, with_kwargs=True))
        config = parts.decoder_config(model)
        for layer, encoding in zip(parts.attention_layers(model), self._layers(), strict=True):
            encoding.to(next(layer.parameters()).device)
            undo.handles.append(layer.register_forward_pre_hook(self.enter_layer, with_kwargs=True))
            if config.model_type in SILENT:
                block = next(m for m in model.modules() if any(child is layer for child in m.children()))
                undo.handles.append(block.register_forward_pre_hook(self.enter_block, with_kwargs=True))
        undo.implementation = config._attn_implementation
        config._attn_implementation = NAME
        if hasattr(model, "_prepare_cache_for_generation"):
            model._prepare_cache_for_generation = self.prepare_cache
        if self.vision is not None:
            whole = model.get_submodule(self.places[0].name.rpartition(".")[0].rpartition(".")[0])
            undo.handles.append(whole.register_forward_pre_hook(self.enter_whole, with_kwargs=True))
            if hasattr(model, "_prepare_position_ids_for_generation"):
                model._prepare_position_ids_for_generation = self.prepare_positions

    def take_out(self) -> None:
        """Put everything back."""
        model, undo = self.undo.model, self.undo
        for place in self.places:
            own = undo.rotary[place.name]
            if any(buffer.is_meta for buffer in own.buffers()):  # the model was materialised in the meantime
                own = place.fresh()
            model.set_submodule(place.name, own.to(model.device))
        for handle in undo.handles:
            handle.remove()
        if self.encodings is not None:
            parts.decoder_config(model)._attn_implementation = undo.implementation
            for name in ("_prepare_cache_for_generation", "_prepare_position_ids_for_generation"):
                model.__dict__.pop(name, None)
        del model.ropewalk
        if hasattr(model.config, NAME):
            delattr(model.config, NAME)

    def record(self, texts: Sequence[str | None] | None = None) -> dict[str, Any]:
        """Return what the configuration keeps of the change, as plain JSON: all that `hf.load` needs.

        Encodings are kept as the texts they were built from; None where they came as objects.
        """
        said: dict[str, Any] = {"version": __version__}
        if self.spectra is not None:
            said["spectra"] = {
                name: {t: {**asdict(s), "inv_freq": list(s.inv_freq)} for t, s in of.items()}
                for name, of in self.spectra.items()
            }
        if self.encodings is not None:
            said |= {"encodings": list(texts or ()), "kinds": [type(e).__name__ for e in self.encodings]}
        return said

    def _allocation(self, place: RotaryPlace) -> Allocation | None:
        """Return which pair turns by which axis, where positions have several."""
        return None if self.vision is None or place.sections is None else self.vision.family.allocation(place.sections)

    def _base(self) -> nn.Module:
        base: nn.Module = self.undo.model.get_submodule(self.places[0].name.rpartition(".")[0])
        return base

    def check(self) -> None:
        """Check that the model can have the change, before anything is touched.

        Raises:
            ConfigError: it cannot have other encodings, or not these.
        """
        if self.vision is None and any(place.sections is not None for place in self.places):
            raise ConfigError(
                f"{type(self.undo.model).__name__} turns by several axes, and which pairs of channels turn by which is not known "
                f"here; known are {', '.join(FAMILIES)}"
            )
        if self.encodings is None:
            return
        model, config = self.undo.model, parts.decoder_config(self.undo.model)
        layers = parts.attention_layers(model)
        if len(self.encodings) != len(layers):
            raise ConfigError(f"{len(self.encodings)} encodings for a model of {len(layers)} layers; give one a layer")
        if len(self.places) != 1:
            raise ConfigError(
                f"{type(model).__name__} has {len(self.places)} rotary modules ({', '.join(p.name for p in self.places)}); an "
                "encoding of its own can be given to models with one"
            )
        if not model._can_set_attn_implementation():
            raise ConfigError(
                f"{type(model).__name__} does not let its attention function be chosen; only its frequencies can be changed"
            )
        if config is not model.config and self.vision is None:
            raise ConfigError(
                f"{type(model).__name__} reads more than text, and who sees whom in it is more than causality: only its "
                "frequencies can be changed"
            )
        if config.model_type not in parts.TRIED and self.vision is None:
            warnings.warn(
                f"encodings in {config.model_type!r} models were not tried (tried: {', '.join(parts.TRIED)}): compare the "
                "logits with those before, with an encoding that is the model's own",
                RopeConfigWarning,
                stacklevel=4,
            )
        strange = sorted({t for t in getattr(config, "layer_types", None) or () if t not in MASKED})
        if strange or config.is_encoder_decoder:
            what = ", ".join(strange) or "cross-attention"
            raise ConfigError(f"{type(model).__name__} has {what}, where only its frequencies can be changed")
        heads = config.num_attention_heads
        for i, encoding in enumerate(self.encodings):
            if isinstance(encoding, Encoding) and encoding.output_heads(heads) != heads:
                raise ConfigError(
                    f"layer {i}: {type(encoding).__name__} makes {encoding.output_heads(heads)} heads of {heads}, and the output "
                    "projection of a trained model takes as many as it has"
                )

    # ---- a forward pass ---------------------------------------------------------------------------------------

    def new_cache(self) -> EncodedCache:
        """Return an empty cache for this model."""
        return EncodedCache(self._layers())

    def _layers(self) -> list[Encoding]:
        assert self.encodings is not None
        return list(self.encodings)  # type: ignore[arg-type]

    def enter(self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
        """Begin a forward pass of the model: find the positions, take the step in the cache, embed."""
        bound = inspect.signature(base.forward).bind_partial(*args, **kwargs)
        given = dict(bound.arguments)
        given |= given.pop("kwargs", {})
        name = next((n for n in CACHES if n in inspect.signature(base.forward).parameters), None)
        held = next((given.pop(n) for n in CACHES if given.get(n) is not None), None)
        cache = self._cache(held, given) if name is not None else None
        x, ids = given.get("inputs_embeds"), given.get("input_ids")
        if (x is None) == (ids is None):
            raise ConfigError("give one of input_ids and inputs_embeds")
        tokens: Tensor = ids if x is None else x  # type: ignore[assignment]
        if self.vision is None:
            positions = positions_of(given, tokens.shape[1], tokens.shape[0], tokens.device, cache)
        elif isinstance(given.get(NAME), Positions):
            positions = given[NAME]
        else:
            raise PositionError(
                f"{type(base).__name__} was called by itself, which does not say what images its tokens are of: call the "
                "whole model"
            )
        if self.columns:
            past = 0 if cache is None else cache.kv.length
            positions = with_columns(positions, self.columns, past, tokens.shape[0])
        layers = self._layers()
        if cache is not None:
            positions = cache.kv.step(positions)
        else:
            for encoding in layers:
                positions = encoding.draw(positions)
        if _embeds(layers[0]):
            x = base.get_input_embeddings()(ids) if x is None else x  # type: ignore[operator]
            given["inputs_embeds"] = layers[0].embed(x, positions)
            given["input_ids"] = None
        given[NAME] = Step(positions, cache)
        if name is not None:
            given |= {name: cache, "use_cache": cache is not None}
        return (), given

    def enter_whole(
        self, whole: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[()], dict[str, Any]]:
        """Find out, before images become embeddings, where the tokens are; what the model would find turns nothing any more."""
        assert self.vision is not None
        bound = inspect.signature(whole.forward).bind_partial(*args, **kwargs)
        given = dict(bound.arguments)
        given |= given.pop("kwargs", {})
        x = given.get("input_ids") if given.get("inputs_embeds") is None else given["inputs_embeds"]
        if x is None:
            raise ConfigError("give one of input_ids and inputs_embeds")
        cache = next((given[n] for n in CACHES if given.get(n) is not None), None)
        held = cache.kv.tokens if isinstance(cache, EncodedCache) else None
        positions = self.vision.step({**given, **self.columns}, held, given.get(NAME))
        none = torch.zeros(3, *x.shape[:2], dtype=torch.long, device=x.device)
        return (), {**given, NAME: positions, "position_ids": none}

    def prepare_positions(self, inputs_tensor: Tensor, model_kwargs: dict[str, Any]) -> Tensor:
        """Place the whole prompt that `generate` was given, while the grids are still there, and count its tokens."""
        assert self.vision is not None
        given = dict(model_kwargs)
        if given.get("input_ids") is None or not given["input_ids"].shape[1]:
            given["input_ids"] = None if inputs_tensor.is_floating_point() else inputs_tensor
        model_kwargs[NAME] = self.vision.whole({**given, **self.columns})
        counted: Tensor = GenerationMixin._prepare_position_ids_for_generation(
            self.undo.model, inputs_tensor, model_kwargs
        )
        return counted

    def _cache(self, held: Any, given: Mapping[str, Any]) -> EncodedCache | None:
        wanted = given.get("use_cache")
        if held is None:
            if (wanted is None and not parts.decoder_config(self.undo.model).use_cache) or wanted is False:
                return None
            try:
                return self.new_cache()
            except CannotCache:
                if wanted:
                    raise
                return None  # nobody asked for one
        if not isinstance(held, EncodedCache):
            raise CacheError(
                f"{type(held).__name__} holds keys and values only; a model with another encoding keeps more. Leave the cache "
                "out, or give hf.new_cache(model)"
            )
        if [held.kv[i].encoding for i in range(len(held.kv))] != self._layers():
            raise CacheError("this EncodedCache was made for other encodings; give hf.new_cache(model)")
        return held

    def enter_layer(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Hand the layer's input to its attention function, and take the cache out of its own hands."""
        index = int(layer.layer_idx)  # type: ignore[arg-type]
        step = kwargs.get(NAME, getattr(kwargs.get("position_embeddings"), "step", None))
        if not isinstance(step, Step):
            raise ConfigError(
                f"{type(layer).__name__} was called without the keyword that its model was given: only its frequencies can be "
                "changed"
            )
        x: Tensor = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        taken = {name: None for name in CACHES if name in kwargs}
        return args, {**kwargs, **taken, NAME: LayerStep(step, index, self._layers()[index], x)}

    def enter_block(
        self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Let the tables, which a silent block does hand on, carry the step."""
        carried = Carrying(kwargs["position_embeddings"])
        carried.step = kwargs[NAME]
        return args, {**kwargs, "position_embeddings": carried}

    def prepare_cache(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Make the cache that `generate` goes on with; its own would not hold enough."""
        given = next((model_kwargs[n] for n in CACHES if model_kwargs.get(n) is not None), None)
        kind = generation_config.cache_implementation
        if kind is not None and kind != "dynamic":
            raise CacheError(
                f"cache_implementation={kind!r} holds keys and values only; a model with another encoding keeps more. Leave "
                "it out"
            )
        if given is None and generation_config.use_cache is not False:
            names = inspect.signature(self.undo.model.forward).parameters
            model_kwargs[next(n for n in CACHES if n in names)] = self.new_cache()


def _own_config(model: Any) -> None:
    """Give a model a configuration of its own: others may have been built from the same object."""
    shared = model.config
    own = copy.deepcopy(shared)
    twins = {id(part): getattr(own, name) for name, part in vars(shared).items() if isinstance(part, PreTrainedConfig)}
    twins[id(shared)] = own
    for module in model.modules():
        if (twin := twins.get(id(vars(module).get("config")))) is not None:
            module.config = twin


def _embeds(encoding: Encoding) -> bool:
    """Whether an encoding acts on token embeddings."""
    leaves = (e for e in encoding.modules() if isinstance(e, Encoding) and not e.combines)
    return any(type(e).embed is not Encoding.embed for e in leaves)


def bridge_of(model: Any) -> Bridge | None:
    """Return what was applied to a model."""
    bridge = getattr(model, NAME, None)
    return bridge if isinstance(bridge, Bridge) else None
