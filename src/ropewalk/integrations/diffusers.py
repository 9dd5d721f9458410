"""Encodings in the transformers of diffusers: FLUX, Wan and Stable Diffusion 3.

    from ropewalk.integrations import diffusers as rwd

    applied = rwd.apply(pipe.transformer, rw.SpatialRoPEScale(128))
    applied.positions = lambda positions: rw.at_step(positions, step, steps)
    ...
    applied.remove()  # bit by bit the model it was

The model's own processors go on making queries, keys and values; they are given no rotation, and where they ask torch for
attention, the encoding rewrites the problem and `ropewalk.attend` computes it. No weight is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ropewalk.backends import attend
from ropewalk.bias.nope import NoPE
from ropewalk.coordinates.grid import grid_positions
from ropewalk.core.attention import Attention
from ropewalk.core.combinators import PerLayer
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.core.positions import Positions
from ropewalk.rotary.axial import AxialRoPE
from ropewalk.rotary.spatial_scale import wan_widths

NAME = "ropewalk_encodings"
"""Attribute of a model that holds its encodings while they are applied."""


# ---- what is known of each model -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """How a class of transformers is put together.

    Attributes:
        processor: name of the only attention processor that is known.
        place: attribute of the module that places tokens.
        layers: attention modules that look at the image, in order.
        locate: the positions of a call of the place, from the model and its input.
        own: the encoding that is the model's own.
        axes: of its positions.
        text: where text comes in the sequence: with positions of its own, after the image, or never.
    """

    processor: str
    place: str
    layers: Callable[[Any], list[nn.Module]]
    locate: Callable[[Any, Tensor], Positions]
    own: Callable[[Any], Encoding]
    axes: int
    text: str


def _flux_layers(model: Any) -> list[nn.Module]:
    return [block.attn for block in (*model.transformer_blocks, *model.single_transformer_blocks)]


def _flux_place(model: Any, ids: Tensor) -> Positions:
    return Positions(ids[None])


def _flux_own(model: Any) -> Encoding:
    widths = tuple(model.config.axes_dims_rope)
    return AxialRoPE(model.config.attention_head_dim, len(widths), widths=widths, base=model.pos_embed.theta)


def _wan_layers(model: Any) -> list[nn.Module]:
    return [block.attn1 for block in model.blocks]


def _wan_place(model: Any, x: Tensor) -> Positions:
    sizes = [n // p for n, p in zip(x.shape[2:], model.config.patch_size, strict=True)]
    return grid_positions(*sizes, device=x.device)


def _wan_own(model: Any) -> Encoding:
    width = model.config.attention_head_dim
    return AxialRoPE(width, 3, widths=wan_widths(width))


def _sd3_layers(model: Any) -> list[nn.Module]:
    found = []
    for block in model.transformer_blocks:
        found.append(block.attn)
        if getattr(block, "attn2", None) is not None:
            found.append(block.attn2)
    return found


def _sd3_place(model: Any, latent: Tensor) -> Positions:
    return grid_positions(*(n // model.config.patch_size for n in latent.shape[-2:]), device=latent.device)


def _sd3_own(model: Any) -> Encoding:
    return NoPE()  # its positions are added to the latents


FAMILIES: Mapping[str, Family] = {
    "FluxTransformer2DModel": Family(
        "FluxAttnProcessor", "pos_embed", _flux_layers, _flux_place, _flux_own, 3, "with positions"
    ),
    "WanTransformer3DModel": Family("WanAttnProcessor", "rope", _wan_layers, _wan_place, _wan_own, 3, "never"),
    "SD3Transformer2DModel": Family(
        "JointAttnProcessor2_0", "pos_embed", _sd3_layers, _sd3_place, _sd3_own, 2, "after"
    ),
}
"""By the name of the class."""


def native(model: nn.Module) -> Encoding:
    """Return the encoding of this library that does what the model's own rotation does; none (`NoPE`) for SD3."""
    return family_of(model).own(model)


def family_of(model: nn.Module) -> Family:
    """Return what is known of a model, or say which ones are known."""
    for kind in type(model).__mro__:
        if kind.__name__ in FAMILIES and kind.__module__.startswith("diffusers."):
            return FAMILIES[kind.__name__]
    hint = ""
    if getattr(model, "transformer", None) is not None:
        hint = ". Give the transformer of the pipeline: pipe.transformer"
    raise ConfigError(
        f"{type(model).__name__} is none of the models of diffusers that are known: {', '.join(FAMILIES)}{hint}. They come with "
        "pip install 'ropewalk[diffusers]'"
    )


# ---- applying --------------------------------------------------------------------------------------------------------


def apply(
    model: nn.Module,
    encoding: Encoding | Sequence[Encoding] | nn.ModuleList,
    *,
    positions: Callable[[Positions], Positions] | None = None,
    drop_absolute: bool = False,
) -> Applied:
    """Put an encoding in the place of a model's own rotation, in all layers.

    Args:
        model: changed in place, and usable by its pipeline as before.
        encoding: one, of which each layer gets its own where there is something to learn, or one a layer. `native` is the
            model's own, to compose with: ``rw.Sequential(native(model), rw.ReferenceGain(...))``.
        positions: what is to be said of the tokens besides where they are (`ropewalk.at_step`, columns); it is called once in
            each forward pass with (1, S, axes) and may be replaced on what is returned.
        drop_absolute: take the table of SD3, which is added to the latents, away.

    Returns:
        What undoes it; also a context.

    Positions are (0, row, column) for FLUX, its text tokens as it gives them; (frame, row, column) for Wan; (row, column) for
    SD3, whose text tokens come after the image and stand at the origin.

    Raises:
        ConfigError: a model that is not known, one that has an encoding already, processors of another kind, encodings for
            another number of layers, ones that make more heads or act on embeddings.
    """
    family = family_of(model)
    if hasattr(model, NAME):
        raise ConfigError("this model has an encoding of ropewalk already; remove it first")
    layers = family.layers(model)
    for number, layer in enumerate(layers):
        found = type(layer.processor).__name__
        if found != family.processor:
            raise ConfigError(
                f"layer {number} attends by {found}, and {family.processor} is known here; take adapters away, or set it by "
                "model.set_attn_processor"
            )
    if drop_absolute and family.text != "after":
        raise ConfigError(f"{type(model).__name__} adds no table to its latents, so there is none to drop")
    return Applied(model, family, layers, _one_a_layer(encoding, layers), positions, drop_absolute)


def remove(model: nn.Module) -> None:
    """Give a model back its own positions."""
    held = getattr(model, NAME, None)
    if held is None:
        raise ConfigError("this model has no encoding of ropewalk")
    held.applied[0].remove()


class Applied:
    """An encoding in a model, until it is removed; see `apply`.

    Attributes:
        positions: called on the positions of each forward pass; None: they are as the model has them.
    """

    def __init__(
        self,
        model: nn.Module,
        family: Family,
        layers: list[nn.Module],
        encodings: PerLayer,
        positions: Callable[[Positions], Positions] | None,
        drop_absolute: bool,
    ) -> None:
        self.positions = positions
        self._model, self._family, self._layers = model, family, layers
        self._located: Positions | None = None
        self._joint: dict[int, Positions] = {}
        self._processors = [layer.processor for layer in layers]
        place: Any = getattr(model, family.place)
        self._table = place.pos_embed if drop_absolute else None
        if drop_absolute:
            place.pos_embed = None
        held = _Held(encodings, self)
        model.add_module(NAME, held)
        held.to(next(model.parameters()).device)
        for number, layer in enumerate(layers):
            layer.processor = _Processor(self, number, self._processors[number])  # type: ignore[assignment]
        self._hook = place.register_forward_pre_hook(self._locate)

    def remove(self) -> None:
        """Give the model back its own positions."""
        if getattr(self._model, NAME, None) is None:
            raise ConfigError("this encoding was removed already")
        self._hook.remove()
        for layer, processor in zip(self._layers, self._processors, strict=True):
            layer.processor = processor
        if self._table is not None:
            getattr(self._model, self._family.place).pos_embed = self._table
        delattr(self._model, NAME)
        self._located, self._joint = None, {}

    def __enter__(self) -> Applied:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    # ---- in a forward pass ------------------------------------------------------------------------------------

    def _locate(self, place: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._located, self._joint = self._family.locate(self._model, inputs[0]), {}

    def _where(self, text: int) -> Positions:
        """Return the positions of the image, and of so many text tokens that have none of their own."""
        assert self._located is not None
        if text not in self._joint:
            made = self._located
            if text:
                cells = made.query.position
                made = Positions(torch.cat([cells, cells.new_zeros(1, text, cells.shape[2])], 1))
            made = made if self.positions is None else self.positions(made)
            for encoding in self._encodings():
                made = encoding.draw(made)  # what is random is drawn once, for all layers
            self._joint[text] = made
        return self._joint[text]

    def _encodings(self) -> Iterable[Encoding]:
        held: _Held = getattr(self._model, NAME)
        return list(held.layers)  # type: ignore[arg-type]

    def attend(self, number: int, q: Tensor, k: Tensor, v: Tensor, x: Tensor, text: int, scale: float | None) -> Tensor:
        """Compute the attention of a layer."""
        where = self._where(text if self._family.text == "after" else 0)
        held: _Held = getattr(self._model, NAME)
        encoding: Any = held.layers[number]
        return attend(encoding(Attention(q, k, v, where, causal=False, scale=scale, x=x)))


class _Held(nn.Module):
    """The encodings as part of the model, so that they move with it and their parameters are found."""

    def __init__(self, layers: PerLayer, applied: Applied) -> None:
        super().__init__()
        self.layers = layers
        self.applied = [applied]  # in a list: no module


class _Processor:
    """Lets the processor of a layer do all but turn and attend."""

    def __init__(self, applied: Applied, number: int, inner: Any) -> None:
        self.applied, self.number, self.inner = applied, number, inner

    def __call__(
        self,
        attn: nn.Module,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        rotary_emb: Any = None,
        **options: Any,
    ) -> Any:
        text, x = 0, hidden_states
        if encoder_hidden_states is not None:
            text = encoder_hidden_states.shape[1]
            both = (encoder_hidden_states, hidden_states)
            x = torch.cat(both if self.applied._family.text == "with positions" else both[::-1], 1)
        if attention_mask is not None:
            raise ConfigError(
                f"layer {self.number} was given an attention mask; encodings are applied to whole images only"
            )
        with _Attention(self.applied, self.number, x, text) as watch:
            out = self.inner(attn, hidden_states, encoder_hidden_states, None, None, **options)
        if watch.calls != 1:
            raise ConfigError(
                f"layer {self.number} asked torch for attention {watch.calls} times, not once: it has another attention backend. "
                "model.set_attention_backend('native') goes through torch"
            )
        return out


class _Attention(TorchFunctionMode):
    """Computes the encoded problem where torch's attention is asked for."""

    def __init__(self, applied: Applied, number: int, x: Tensor, text: int) -> None:
        super().__init__()
        self.applied, self.number, self.x, self.text = applied, number, x, text
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        self.calls += 1
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if given.get("attn_mask") is not None or given.get("is_causal") or given.get("dropout_p"):
            raise ConfigError(f"layer {self.number} asks for masked attention or dropout, which are not known here")
        q, k, v = (given[name] for name in names[:3])
        if self.x.shape[1] != q.shape[2]:
            raise ShapeError(f"layer {self.number} has {q.shape[2]} queries and an input of {self.x.shape[1]} tokens")
        return self.applied.attend(self.number, q, k, v, self.x, self.text, given.get("scale"))


def _one_a_layer(encoding: Encoding | Sequence[Encoding] | nn.ModuleList, layers: list[nn.Module]) -> PerLayer:
    if isinstance(encoding, Encoding):
        made = PerLayer(encoding, len(layers))
    else:
        if isinstance(encoding, nn.Module) and not isinstance(encoding, nn.ModuleList):
            raise ConfigError(f"a {type(encoding).__name__} is no encoding; give one of ropewalk, such as rw.AxialRoPE")
        made = PerLayer(list(encoding), len(layers))  # type: ignore[arg-type]
    for number, (one, layer) in enumerate(zip(made, layers, strict=True)):
        assert isinstance(one, Encoding)
        for part in one.modules():
            if isinstance(part, Encoding) and not part.combines and type(part).embed is not Encoding.embed:
                raise ConfigError(
                    f"{type(part).__name__} acts on token embeddings, and only the attention of the model is replaced"
                )
        heads: int = layer.heads  # type: ignore[assignment]
        if one.output_heads(heads) != heads:
            raise ConfigError(f"layer {number}: {type(one).__name__} makes {one.output_heads(heads)} heads of {heads}")
    return made
