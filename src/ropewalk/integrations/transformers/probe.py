"""Looking at q, k, v and the attention of each layer while a model of transformers runs, and changing them for a while.

    with Probe(model, look=print):
        model(ids)

The attention function of the model is replaced while a probe is in it, and put back after; no weight is touched. A layer's
states are handed over when the layer runs and dropped after it, so that memory does not grow with the number of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ropewalk.core import rotation
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies import Spectrum
from ropewalk.integrations.transformers import parts
from ropewalk.integrations.transformers.bridge import bridge_of
from ropewalk.integrations.transformers.rotary import ALL, LAYOUTS

NAME = "ropewalk_probe"
"""Of the attention function."""

PROBES = "ropewalk_probes"
"""Attribute of an attention module that holds the probes in it."""


@dataclass(frozen=True)
class LayerShape:
    """What is fixed about a layer's attention.

    Attributes:
        index: of the layer, from 0.
        num_heads: of queries.
        num_kv_heads: of keys and values.
        head_dim: of queries and keys.
        pairing: of the channels that are turned.
        spectrum: their frequencies; None where nothing is turned. Turned channels come first.
    """

    index: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    pairing: Pairing
    spectrum: Spectrum | None

    @property
    def group(self) -> int:
        """Query heads of a key head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True)
class LayerStates:
    """What one layer attends with, in one forward pass.

    Attributes:
        shape: what is fixed.
        q: (B, H, Q, d) turned, turned channels first.
        k: (B, H_kv, K, d) turned, likewise.
        v: (B, H_kv, K, d_v).
        scale: of the logits.
        mask: (B or 1, 1, Q, K), True where attention may go; None: causal.
        softcap: c of c tanh(s/c), which Gemma 2 puts on logits.
        sinks: (H,) logits that take attention and give nothing, of gpt-oss.
    """

    shape: LayerShape
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    mask: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def index(self) -> int:
        """Of the layer."""
        return self.shape.index

    @property
    def length(self) -> int:
        """Keys."""
        return self.k.shape[2]

    @property
    def prefill(self) -> bool:
        """Whether these are the first tokens: queries and keys are the same."""
        return self.q.shape[2] == self.k.shape[2]

    @cached_property
    def keys(self) -> Tensor:
        """Keys repeated for their query heads, (B, H, K, d)."""
        return self.k.repeat_interleave(self.shape.group, 1)

    def logits(self, start: int, stop: int) -> Tensor:
        """Return the logits of some queries, (B, H, stop − start, K), −∞ where attention may not go; float32 or better."""
        q, k = (t if t.dtype == torch.float64 else t.float() for t in (self.q[:, :, start:stop], self.keys))
        logits = q @ k.mT * self.scale
        if self.softcap is not None:
            logits = self.softcap * (logits / self.softcap).tanh()
        if self.mask is None:
            first = self.length - self.q.shape[2]
            query = torch.arange(first + start, first + min(stop, self.q.shape[2]), device=q.device)
            allowed = torch.arange(self.length, device=q.device) <= query[:, None]
        else:
            allowed = self.mask[:, :, start:stop, : self.length]
        return logits.masked_fill(~allowed, -torch.inf)

    def weights(self, start: int, stop: int) -> Tensor:
        """Return the attention of some queries, (B, H, stop − start, K); with sinks a row sums to less than 1."""
        logits = self.logits(start, stop)
        if self.sinks is None:
            return logits.softmax(-1).nan_to_num(0.0)  # a row of padding sees nothing
        sink = self.sinks.to(logits)[None, :, None, None].expand(*logits.shape[:-1], 1)
        return torch.cat([logits, sink], -1).softmax(-1)[..., :-1]

    @property
    def turned(self) -> int:
        """Channels that are turned."""
        return 0 if self.shape.spectrum is None else 2 * len(self.shape.spectrum.inv_freq)

    def still(self) -> tuple[Tensor, Tensor]:
        """Return the turned channels of q and k as they were before the rotation, (B, H, S, 2P) each, for tokens 0 … S − 1."""
        if self.shape.spectrum is None:
            raise ConfigError(f"layer {self.index} turns nothing")
        if not self.prefill:
            raise ShapeError("the rotation is undone for whole texts only; this pass goes on with a cache")
        q, k = (turn(x[..., : self.turned], self.shape, inverse=True) for x in (self.q, self.k))
        return q, k


def turn(x: Tensor, shape: LayerShape, *, first: int = 0, inverse: bool = False) -> Tensor:
    """Turn channels (..., S, ≥ 2P) of tokens ``first`` … as a layer does, or back again, in the dtype given."""
    assert shape.spectrum is not None
    at = torch.arange(first, first + x.shape[-2], dtype=torch.float64, device=x.device)
    factor = shape.spectrum.attention_factor
    angles = at[:, None] * shape.spectrum.tensor().to(x.device)
    cos, sin = rotation.tables(angles, x.dtype, 1 / factor if inverse else factor)
    return rotation.rotate(x, cos, sin, shape.pairing, inverse=inverse)


def layer_shapes(model: Any, length: int | None = None) -> list[LayerShape]:
    """Return the shape of each layer's attention.

    Args:
        model: a causal model of transformers.
        length: tokens of the context, for rope types that depend on it.

    Raises:
        ConfigError: a model that is not causal, that chooses its attention function itself, or whose frequencies are not
            those of its configuration.
    """
    layers = parts.attention_layers(model)
    if not all(bool(getattr(layer, "is_causal", False)) for layer in layers):
        raise ConfigError(f"{type(model).__name__} is not causal; what is measured here is causal attention")
    if not model._can_set_attn_implementation():
        raise ConfigError(
            f"{type(model).__name__} does not let its attention function be chosen, so it cannot be looked at"
        )
    bridge = bridge_of(model)
    if bridge is not None and bridge.encodings is not None:
        raise ConfigError(
            "this model has an encoding of ropewalk's; its own rotation is what is measured: hf.remove(model)"
        )
    try:
        places = bridge.places if bridge is not None else parts.rotary_places(model)
    except ConfigError:
        config = parts.decoder_config(model)
        heads = int(config.num_attention_heads)
        width = config.hidden_size // heads
        return [LayerShape(i, heads, heads, width, "half", None) for i in range(len(layers))]
    place = places[0]
    changed = None if bridge is None or bridge.spectra is None else bridge.spectra[place.name]
    shapes = []
    for i, fit in enumerate(parts.fits(model, place, changed)):
        spectrum = fit.spectrum
        if spectrum is None and fit.turns and length is not None:
            of = ALL if place.layer_types == (ALL,) else str(parts.decoder_config(model).layer_types[i])
            spectrum = place.declared(of, length)
        shapes.append(
            LayerShape(
                i,
                fit.num_heads,
                fit.num_kv_heads,
                fit.head_dim,
                LAYOUTS[place.layout][1],
                spectrum if fit.turns else None,
            )
        )
    return shapes


class Probe:
    """Hands over the states of each layer while a model runs, and may change them and the output of its heads.

    Probes may be nested: the outer one changes first, and an inner one sees what it changed.

    Args:
        model: a causal model of transformers.
        look: is given the states of each layer.
        change: returns the states that the layer is to attend with.
        output: is given a layer's index and the output of its heads, (B, S, H, d_v) before the output projection, and returns
            what is to take its place.
        shapes: of the layers, if they are known (`layer_shapes`).
    """

    def __init__(
        self,
        model: Any,
        *,
        look: Callable[[LayerStates], None] | None = None,
        change: Callable[[LayerStates], LayerStates] | None = None,
        output: Callable[[int, Tensor], Tensor] | None = None,
        shapes: Sequence[LayerShape] | None = None,
    ) -> None:
        self.model = model
        self.look, self.change, self.output = look, change, output
        self.shapes = list(layer_shapes(model) if shapes is None else shapes)
        self._before: str | None = None

    def __enter__(self) -> Probe:
        config = parts.decoder_config(self.model)
        layers = parts.attention_layers(self.model)
        self._before = config._attn_implementation
        for layer in layers:
            vars(layer).setdefault(PROBES, []).append(self)
        config._attn_implementation = NAME
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        parts.decoder_config(self.model)._attn_implementation = self._before
        for layer in parts.attention_layers(self.model):
            probes = vars(layer)[PROBES]
            probes.remove(self)
            if not probes:
                del vars(layer)[PROBES]


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers asks its attention functions to, and let the probes in the module look."""
    if position_bias is not None:
        raise ConfigError(f"{type(module).__name__} adds a bias of its own to the logits, which is not measured here")
    probes: list[Probe] = vars(module)[PROBES]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k = (_first(module, x) for x in (query, key))
    shape = probes[0].shapes[int(module.layer_idx)]  # type: ignore[arg-type]
    states = LayerStates(shape, q, k, value, scale, attention_mask, softcap, s_aux)
    for probe in probes:
        if probe.change is not None:
            states = probe.change(states)
        if probe.look is not None:
            probe.look(states)
    if softcap is None and s_aux is None:
        q, k = (_back(module, x) for x in (states.q, states.k))
        out, _ = sdpa_attention_forward(module, q, k, states.v, attention_mask, dropout=dropout, scaling=scale)
    else:
        values = states.v.repeat_interleave(shape.group, 1)
        out = (states.weights(0, q.shape[2]).to(values.dtype) @ values).transpose(1, 2).contiguous()
    for probe in probes:
        if probe.output is not None:
            out = probe.output(shape.index, out)
    return out, None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def _first(module: nn.Module, x: Tensor) -> Tensor:
    """Bring the channels that a model with latent keys turns to the front."""
    turned = getattr(module, "qk_rope_head_dim", None)
    return x if turned is None else torch.cat((x[..., -turned:], x[..., :-turned]), -1)


def _back(module: nn.Module, x: Tensor) -> Tensor:
    turned = getattr(module, "qk_rope_head_dim", None)
    return x if turned is None else torch.cat((x[..., turned:], x[..., :turned]), -1)
