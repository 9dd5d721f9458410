"""The parts of a model of transformers that positions go through: its rotary modules and its attention layers."""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.bias.nope import NoPE
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import ConfigError, suggest
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies import RopeConfig, RopeConfigWarning, Spectrum, read_rope_config
from ropewalk.integrations.transformers.attention import NAME
from ropewalk.integrations.transformers.rotary import ALL, LAYOUTS, layout_of
from ropewalk.integrations.transformers.vision import family_of
from ropewalk.rotary.mrope import MRoPE
from ropewalk.rotary.rope import RoPE

TRIED = (
    "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "gpt_neox", "stablelm", "olmo2", "smollm3",
    "cohere", "deepseek_v2", "deepseek_v3", "gpt_oss", "modernbert",
)  # fmt: skip
"""Model types whose own encoding is known layer by layer: tests compare it with what the model computes."""

ADDED = ("wpe", "position_embeddings", "embed_positions", "pos_emb", "position_embedding", "embed_position")
"""Names under which models keep learned positions that are added to the embeddings."""


@dataclass(frozen=True)
class RotaryPlace:
    """A rotary module of a model, and what is known of it.

    Args:
        name: where it is, such as "model.rotary_emb".
        config: the configuration it was made from.
        kind: its class.
        layer_types: those it tells apart; `ALL` alone where it does not.
        layout: how it hands out cos and sin.
        inv_freq: what its class makes of the configuration, by layer type.
    """

    name: str
    config: Any
    kind: type[nn.Module]
    layer_types: tuple[str, ...]
    layout: str
    inv_freq: Mapping[str, tuple[Tensor, float]]

    def fresh(self, config: Any = None) -> nn.Module:
        """Return a new module of its class, on the CPU."""
        return _make(self.kind, self.config if config is None else config, self.name)

    @property
    def sections(self) -> tuple[int, ...] | None:
        """Pairs of each axis, where positions have several; None: they are plain."""
        found: Any = getattr(self.fresh(), "mrope_section", None)
        return None if found is None else tuple(found)

    def read(self, layer_type: str) -> RopeConfig:
        """Return what the configuration says of a layer type."""
        return read_rope_config(self.config, layer_type=None if layer_type == ALL else layer_type)

    def declared(self, layer_type: str, length: float | None = None) -> Spectrum:
        """Return the frequencies the configuration asks for, in float64, once it is sure that the class obeys it.

        Raises:
            ConfigError: the class does something else; a type that depends on the length, and none was given.
        """
        read = self.read(layer_type)
        for finding in read.findings:
            if finding.startswith("mrope_section"):
                continue  # how the axes share the frequencies is known here
            warnings.warn(finding, RopeConfigWarning, stacklevel=4)
        spectrum = read.spectrum(length)
        made, factor = self.inv_freq[layer_type]
        where = self.kind.__name__ if layer_type == ALL else f"{self.kind.__name__} for {layer_type!r}"
        if len(made) != len(spectrum.inv_freq):
            raise ConfigError(
                f"the configuration asks for {len(spectrum.inv_freq)} turning pairs of channels and {where} turns {len(made)}: "
                "partial_rotary_factor is read by one of them only. Leave it out, or take a model class that knows it"
            )
        if not read.follows_length and not agree(made, spectrum.tensor(), factor, spectrum.attention_factor):
            raise ConfigError(
                f"the configuration asks for other frequencies than {where} makes of it, up to "
                f"{_distance(made, spectrum.tensor()):.2g} apart (relative) and attention factors "
                f"{spectrum.attention_factor:g} and {factor:g}; something in rope_parameters {self._entry()} is not read"
            )
        return spectrum

    def _entry(self) -> Any:
        return getattr(self.config, "rope_parameters", None)


def rotary_places(model: nn.Module) -> list[RotaryPlace]:
    """Find the rotary modules of a model.

    Raises:
        ConfigError: there is none; the message says what the model does instead, where that can be seen.
    """
    found = [
        (name, module)
        for name, module in model.named_modules()
        if "Rotary" in type(module).__name__ and "position_ids" in inspect.signature(module.forward).parameters
    ]
    if family_of(getattr(model, "config", None)) is not None:  # the tower that sees patches keeps its own
        text = decoder_config(model).model_type
        found = [(name, module) for name, module in found if module.config.model_type == text]
    if not found:
        added = [n for n, m in model.named_modules() if isinstance(m, nn.Embedding) and n.rpartition(".")[2] in ADDED]
        if added:
            raise ConfigError(
                f"{type(model).__name__} adds learned absolute positions to its embeddings ({', '.join(added)}): it has no "
                "rotary frequencies, and other encodings would come on top of those positions"
            )
        raise ConfigError(
            f"{type(model).__name__} is no rotary model: it has no rotary module that is called with position_ids"
        )
    places = [_place(name, module) for name, module in found]
    if len(places) == 1:
        check_widths(model, places[0])
    return places


def _place(name: str, module: nn.Module) -> RotaryPlace:
    # As it is without what ropewalk writes into it.
    config, kind = copy.deepcopy(getattr(module, "config", None)), type(module)
    if hasattr(config, NAME):
        delattr(config, NAME)
    fresh = _make(kind, config, name)
    types = tuple(getattr(module, "layer_types", ()) or ())
    types = tuple(t for t in types if hasattr(fresh, f"{t}_inv_freq")) if types else (ALL,)
    made = {t: buffers(fresh, t) for t in types}
    positions = torch.arange(5, device="cpu")[None]
    x = torch.zeros(1, 5, 1, device="cpu", dtype=torch.float32)
    layouts = set()
    for t in types:
        inv_freq, factor = made[t]
        try:
            out = fresh(x, positions) if t == ALL else fresh(x, positions, t)
        except (RuntimeError, IndexError, TypeError) as problem:
            raise ConfigError(
                f"{name} is a {kind.__name__}, which is not called with positions (batch, seq) alone ({problem}); positions with "
                "several axes are not known here"
            ) from problem
        layouts.add(layout_of(out, inv_freq, positions, factor, kind.__name__))
    if len(layouts) != 1:
        raise ConfigError(
            f"{kind.__name__} lays its tables out differently by layer type: {', '.join(sorted(layouts))}"
        )
    return RotaryPlace(name, config, kind, types, layouts.pop(), made)


def check_widths(model: nn.Module, place: RotaryPlace) -> None:
    """Check that attention takes tables as narrow as the rotary module makes them.

    Raises:
        ConfigError: the rotary module reads a partial_rotary_factor and the attention does not.
    """
    layer = next((m for m in model.modules() if _is_attention(m)), None)
    if layer is None:
        return
    width = _head_dim(model, layer)
    rotate = vars(sys.modules[type(layer).__module__]).get("apply_rotary_pos_emb")
    if rotate is None or hasattr(layer, "rotary_ndims") or hasattr(layer, "qk_rope_head_dim"):
        return  # it cuts the heads itself
    for layer_type, (inv_freq, _) in place.inv_freq.items():
        q = torch.zeros(1, 1, 1, width, device="cpu")
        still = torch.zeros(1, 1, len(inv_freq), device="cpu")
        cos, sin = LAYOUTS[place.layout][0](still, still, q.dtype)
        try:
            rotate(q, q, cos, sin)
        except RuntimeError:
            raise ConfigError(
                f"{place.kind.__name__} makes tables for {2 * len(inv_freq)} of {width} channels (layer type {layer_type!r}), "
                f"and {type(layer).__name__} turns all of them: it does not know partial_rotary_factor. Leave it out, or take a "
                "model class that knows it"
            ) from None


def _make(kind: type[nn.Module], config: Any, name: str) -> nn.Module:
    try:
        with torch.device("cpu"):
            return kind(config=config)
    except (TypeError, KeyError, AttributeError) as problem:
        raise ConfigError(
            f"{name} is a {kind.__name__}, which cannot be made from a configuration alone ({problem})"
        ) from problem


def buffers(module: nn.Module, layer_type: str) -> tuple[Tensor, float]:
    """Return inverse frequencies and attention factor of a model's own rotary module as they are."""
    prefix = "" if layer_type == ALL else f"{layer_type}_"
    return getattr(module, f"{prefix}inv_freq"), float(getattr(module, f"{prefix}attention_scaling"))


@dataclass(frozen=True)
class Finding:
    """What is wrong with a live rotary module; ``cast``: only that it was cast to a low precision."""

    text: str
    cast: bool


def found(place: RotaryPlace, module: nn.Module, layer_type: str) -> Finding | None:
    """Say how a live module differs from what its class makes of its configuration; None: it does not."""
    inv_freq, factor = buffers(module, layer_type)
    made, wanted = place.inv_freq[layer_type]
    if inv_freq.is_meta or place.read(layer_type).follows_length:  # not there yet, or those of the last length
        return None
    inv_freq = inv_freq.detach().cpu()
    if len(inv_freq) == len(made) and agree(inv_freq, made, factor, wanted):
        return None
    if inv_freq.dtype != made.dtype and torch.equal(inv_freq, made.to(inv_freq.dtype)):
        off = f"{_distance(inv_freq, made):.2g} off (relative)"
        return Finding(f"the frequencies of {place.name} were cast to {inv_freq.dtype}, {off}", True)
    return Finding(
        f"the frequencies of {place.name} are not those of its configuration: uninitialised memory, another rope type that "
        "was never computed, or a patch",
        False,
    )


def agree(a: Tensor, b: Tensor, factor: float, wanted: float) -> bool:
    """Whether two sets of frequencies and attention factors are the same but for the rounding of float32."""
    # transformers works in float32, where a power of the base is off by some units in the last place.
    return abs(factor / wanted - 1) < 1e-6 and _distance(a, b) < 1e-5


def _distance(a: Tensor, b: Tensor) -> float:
    a, b = a.double(), b.double()
    scale = torch.where(b == 0, 1.0, b.abs())
    # What transformers calls an endless wavelength is a tiny frequency, not 0.
    return float(torch.where((b == 0) & (a.abs() < 1e-20), 0.0, (a - b).abs() / scale).max()) if len(a) else 0.0


# ---- layers --------------------------------------------------------------------------------------------------------


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """Return the self-attention modules of a model, one a layer, in order."""
    layers = [m for m in model.modules() if _is_attention(m)]
    layers.sort(key=lambda m: int(m.layer_idx))  # type: ignore[arg-type]
    if not layers or [m.layer_idx for m in layers] != list(range(len(layers))):
        raise ConfigError(
            f"{type(model).__name__} does not have one self-attention module a layer; found {[m.layer_idx for m in layers]}"
        )
    return layers


def _is_attention(module: nn.Module) -> bool:
    return isinstance(getattr(module, "layer_idx", None), int) and hasattr(module, "is_causal")


def decoder_config(model: nn.Module) -> Any:
    """Return the configuration of the part of a model that has the layers."""
    return model.config.get_text_config()  # type: ignore[union-attr, operator]


@dataclass(frozen=True)
class Fit:
    """What an encoding of one layer is built for."""

    head_dim: int
    num_heads: int
    num_kv_heads: int
    hidden_size: int
    context: int
    pairing: Pairing
    base: float
    spectrum: Spectrum | None
    turns: bool
    sections: tuple[int, ...] | None = None  # of models whose positions have several axes
    tokens_per_second: float | None = None

    @property
    def rotary_dim(self) -> int | None:
        """Channels that turn, where they are not all."""
        turned = None if self.spectrum is None else 2 * len(self.spectrum.inv_freq)
        return None if turned == self.head_dim else turned

    def keywords(self) -> dict[str, int]:
        """Return the keywords of `ropewalk.build`."""
        return {
            "head_dim": self.head_dim,
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "hidden_size": self.hidden_size,
            "max_length": self.context,
        }


def fits(model: nn.Module, place: RotaryPlace, spectra: Mapping[str, Spectrum] | None = None) -> list[Fit]:
    """Return the shape of each layer as its attention function sees it, and the frequencies it turns by.

    Args:
        model: it.
        place: its rotary module.
        spectra: frequencies other than the configuration's, by layer type.
    """
    config, layers = decoder_config(model), attention_layers(model)
    heads = config.num_attention_heads
    latent = hasattr(layers[0], "qk_rope_head_dim")  # keys and values are expanded to all heads before attention
    width = _head_dim(model, layers[0])
    kv_heads = heads if latent else getattr(config, "num_key_value_heads", None) or heads
    by_type = {}
    for t in place.layer_types:
        read = place.read(t)
        own = spectra[t] if spectra is not None else None if read.follows_length else place.declared(t)
        by_type[t] = (read.base, own)
    sections = tokens_per_second = None
    if family_of(getattr(model, "config", None)) is not None:
        sections = place.sections
        tokens_per_second = getattr(model.config.vision_config, "tokens_per_second", None)  # type: ignore[union-attr]
    made = []
    for i, layer in enumerate(layers):
        base, spectrum = by_type[ALL] if ALL in by_type else by_type.get(config.layer_types[i], (10_000.0, None))
        made.append(
            Fit(
                width, heads, kv_heads, config.hidden_size, config.max_position_embeddings,
                LAYOUTS[place.layout][1], base, spectrum, bool(getattr(layer, "use_rope", True)),
                sections, tokens_per_second,
            )
        )  # fmt: skip
    return made


def _head_dim(model: nn.Module, layer: nn.Module) -> int:
    """Return the width of a query head as attention functions see it."""
    config = decoder_config(model)
    if hasattr(layer, "qk_rope_head_dim"):
        return int(layer.qk_head_dim)  # type: ignore[arg-type]
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def own_encodings(model: nn.Module, place: RotaryPlace, spectra: Mapping[str, Spectrum]) -> list[Encoding]:
    """Return what a model itself does with positions, as encodings, one a layer.

    Raises:
        ConfigError: a model type whose layers are not known.
    """
    kind, family = decoder_config(model).model_type, family_of(getattr(model, "config", None))
    if family is None and kind not in TRIED:
        raise ConfigError(
            f"which layers of a {kind!r} model turn what is not known; known are {', '.join(TRIED)}.{suggest(kind, TRIED)}"
        )
    made: dict[Fit, Encoding] = {}
    for fit in (own := fits(model, place, spectra)):
        if fit not in made and family is not None:
            made[fit] = MRoPE(
                fit.head_dim, fit.sections, fit.base, family.layout, tokens_per_second=fit.tokens_per_second,
                rotary_dim=fit.rotary_dim, pairing=fit.pairing, spectrum=fit.spectrum,
            )  # fmt: skip
        elif fit not in made:
            made[fit] = RoPE(fit.head_dim, pairing=fit.pairing, spectrum=fit.spectrum) if fit.turns else NoPE()
    return [made[fit] for fit in own]


def still(place: RotaryPlace) -> dict[str, Spectrum]:
    """Return frequencies that turn nothing, for layers whose encoding is applied elsewhere."""
    return {t: Spectrum((0.0,) * len(inv_freq)) for t, (inv_freq, _) in place.inv_freq.items()}
