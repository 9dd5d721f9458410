"""ropewalk in vision transformers of timm: another encoding in the place of the model's own positions.

    import timm
    from ropewalk.integrations import timm as rt

    model = timm.create_model("vit_small_patch16_224")
    rt.apply(model, "mixed_rope")                # by name, built for the model
    rt.apply(model, rw.AxialRoPE(64, base=100))  # or as an object
    model(images)                                # of any size that patches divide
    rt.remove(model)

Needs the extra ``ropewalk[timm]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ropewalk.backends import attend
from ropewalk.bias.nope import NoPE
from ropewalk.catalog import build
from ropewalk.coordinates.blocks import Block, Image, Text
from ropewalk.coordinates.grid import grid_positions
from ropewalk.coordinates.layout import layout
from ropewalk.core.attention import Attention as Problem
from ropewalk.core.encoding import Embedding, Encoding
from ropewalk.core.errors import ConfigError, ShapeError, suggest
from ropewalk.core.positions import Positions
from ropewalk.rotary.multi_axis import MultiAxisRoPE

try:
    from timm.layers.attention import Attention, AttentionRope
    from timm.models.eva import Eva, EvaAttention
    from timm.models.vision_transformer import VisionTransformer
except ImportError as problem:
    raise ConfigError(f"ropewalk.integrations.timm needs timm ({problem}): pip install 'ropewalk[timm]'") from problem

Placing = Literal["grid", "layout", "sequence"]
"""What an encoding sees: (row, column) of patches, images of a layout, or patches counted row by row."""


def apply(
    model: Any,
    what: str | Encoding | Sequence[str | Encoding] | nn.ModuleList,
    *,
    keep_absolute: bool = False,
    placing: Placing | None = None,
    **arguments: Any,
) -> Any:
    """Give a `VisionTransformer` or an `Eva` of timm another encoding, in place of its own.

    The rotation of the model and its position embeddings are set aside until `remove`. Weights and their names stay; what the
    encodings learn joins them, as ``blocks.N.attn.encoding``. Class and register tokens are at the origin, where nothing
    turns. Without position embeddings the model takes images of any size that its patches divide, also one made for a single
    size; each forward pass places the patches of the images that it is given.

    Args:
        model: changed in place. An encoding that was applied before is replaced.
        what: the name of an encoding, as for `ropewalk.build`, or an encoding, for all layers; or one a layer.
        keep_absolute: leave the position embeddings in, for encodings that go on top of them.
        placing: what the encoding sees; None: (row, column) where it wants several axes, a layout where it reads one, and
            otherwise patches counted row by row, from 1 where there are class or register tokens.
        arguments: of the encoding that is named.

    Returns:
        The model.

    Raises:
        ConfigError: another model; layers whose attention is not known; patches that are dropped in training; encodings that do
            not fit.
        UnknownNameError: a name that is not in the catalog.

    Source: the models are those of timm, Ross Wightman. PyTorch Image Models. 2019.
    """
    _is_model(model)
    attentions = _attentions(model)
    layers = _layers(model, attentions, what, arguments)
    if placing is None:
        placing = _placing(layers)
    elif placing not in get_args(Placing):
        known = get_args(Placing)
        raise ConfigError(f"placing is one of {', '.join(known)}; got {placing!r}.{suggest(placing, known)}")
    dropped = getattr(model.patch_drop, "prob", 0.0)
    if dropped:
        raise ConfigError(
            f"the model drops {dropped:g} of its patches in training, and does not say which: build it with patch_drop_rate=0"
        )
    remove(model)
    places = Places(placing, _axes(layers), model.num_prefix_tokens)
    _set_aside(model, keep_absolute)
    model.patch_embed.register_forward_hook(places)
    if _embeds(layers[0]):
        model.norm_pre.register_forward_pre_hook(places.embed)
        places.embedding = layers[0]
    example = next(model.parameters())
    for attention, encoding in zip(attentions, layers, strict=True):
        attention.__class__ = _ENCODED[type(attention)]
        attention.encoding = encoding.to(example.device)
        attention.places = places
    return model


def remove(model: Any) -> Any:
    """Take out of a model what `apply` put in, exactly; a model without it is returned as it is."""
    _is_model(model)
    aside: _Aside | None = model.__dict__.pop("_ropewalk", None)
    if aside is None:
        return model
    for block in model.blocks:
        attention = block.attn
        del attention.encoding, attention.places
        attention.__class__ = _PLAIN[type(attention)]
    for hooks in (model.patch_embed._forward_hooks, model.norm_pre._forward_pre_hooks):
        for key in [k for k, hook in hooks.items() if isinstance(getattr(hook, "__self__", hook), Places)]:
            del hooks[key]
    example = model.patch_embed.proj.weight
    if aside.pos_embed is not None:
        aside.pos_embed.data = aside.pos_embed.data.to(example.device, example.dtype)
        model.pos_embed = aside.pos_embed
    if aside.rope is not None:
        model.rope = aside.rope.to(example.device)
    if aside.strict is not None:
        model.patch_embed.strict_img_size = aside.strict
    return model


def encodings(model: Any) -> list[Encoding]:
    """Return the encoding of each layer.

    Raises:
        ConfigError: a model to which none was applied.
    """
    _is_model(model)
    if "_ropewalk" not in model.__dict__:
        raise ConfigError("no encoding was applied to this model: rt.apply(model, encoding) first")
    return [block.attn.encoding for block in model.blocks]


# ---- inside the model ------------------------------------------------------------------------------------------------


class Places:
    """Where the patches of the images are that the model is looking at, shared by its layers.

    Args:
        placing: what encodings see.
        axes: of their positions, 2 or more for "grid".
        num_prefix: class and register tokens.
    """

    def __init__(self, placing: Placing, axes: int, num_prefix: int) -> None:
        self.placing, self.axes, self.num_prefix = placing, axes, num_prefix
        self.size: tuple[int, int, torch.device] | None = None
        self.positions: Positions | None = None
        self.embedding: Encoding | None = None

    def __call__(self, patch_embed: Any, args: tuple[Any, ...], output: Tensor) -> None:
        """Place the patches, before the blocks see them: a forward hook of the patch embedding."""
        rows, columns = patch_embed.dynamic_feat_size(tuple(args[0].shape[-2:]))
        size = (rows, columns, output.device)
        if size != self.size:  # images of one size share positions, and with them tables
            self.size, self.positions = size, self._place(rows, columns, output.device)

    def _place(self, rows: int, columns: int, device: torch.device) -> Positions:
        if self.placing == "layout":
            blocks: list[Block] = [Text(self.num_prefix)] if self.num_prefix else []
            return layout([*blocks, Image(rows, columns)], device=device)
        if self.placing == "grid":
            ones = (1,) * (self.axes - 2)
            return grid_positions(*ones, rows, columns, num_prefix=self.num_prefix, device=device)
        start = 1 if self.num_prefix else 0
        line = grid_positions(rows * columns, start=start, num_prefix=self.num_prefix, device=device)
        return Positions(line.key.position[..., 0])

    def of(self, length: int) -> Positions:
        """Return the positions of as many tokens."""
        if self.positions is None or self.positions.query.length != length:
            have = "none were placed" if self.positions is None else f"{self.positions.query.length} were placed"
            raise ShapeError(
                f"attention sees {length} tokens and {have}: call the model with images, not its blocks with tokens"
            )
        return self.positions

    def embed(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor]:
        """Change the embeddings, for encodings that act there: a forward pre-hook of what follows them."""
        assert self.embedding is not None
        return (self.embedding.embed(args[0], self.of(args[0].shape[1])),)


class _Encoded(nn.Module):
    """An attention layer of timm whose forward pass is ropewalk's."""

    encoding: Encoding
    places: Places

    def forward(
        self, x: Tensor, *, rope: Tensor | None = None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend: projections, norms, gate and dropout are those of the layer."""
        layer: Any = self
        if rope is not None:
            raise ConfigError("the layer has an encoding of ropewalk and was given a rotation of timm beside it")
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            raise ConfigError(
                f"attn_mask has dtype {attn_mask.dtype}; give a boolean one, True where attention is allowed: turn an additive "
                "mask into it by `mask == 0`"
            )
        gate = layer.gate(x).sigmoid() if getattr(layer, "gate", None) is not None else None
        q, k, v = _project(layer, x)
        problem = Problem(
            layer.q_norm(q).to(v.dtype),
            layer.k_norm(k).to(v.dtype),
            v,
            self.places.of(x.shape[1]),
            causal=is_causal,
            scale=None if layer.scale == layer.head_dim**-0.5 else layer.scale,
            x=x,
            mask=attn_mask,
        )
        out = attend(self.encoding(problem), dropout=layer.attn_drop.p if self.training else 0.0)
        out = layer.norm(out.transpose(1, 2).flatten(2))
        return layer.proj_drop(layer.proj(out if gate is None else out * gate))


class EncodedAttention(_Encoded, Attention):  # type: ignore[misc]
    """`timm.layers.Attention` with an encoding."""


class EncodedAttentionRope(_Encoded, AttentionRope):  # type: ignore[misc]
    """`timm.layers.AttentionRope` with an encoding."""


class EncodedEvaAttention(_Encoded, EvaAttention):  # type: ignore[misc]
    """`timm.models.eva.EvaAttention` with an encoding."""


_ENCODED: dict[type, type] = {
    Attention: EncodedAttention,
    AttentionRope: EncodedAttentionRope,
    EvaAttention: EncodedEvaAttention,
}
_PLAIN = {made: plain for plain, made in _ENCODED.items()}


def _project(layer: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k, v of a layer, (B, heads, N, head_dim)."""
    if layer.qkv is not None:
        made = layer.qkv(x)
        if getattr(layer, "q_bias", None) is not None:  # EVA has no bias of keys
            made = made + torch.cat([layer.q_bias, layer.k_bias, layer.v_bias])
        parts = made.chunk(3, -1)
    else:
        parts = tuple(project(x) for project in (layer.q_proj, layer.k_proj, layer.v_proj))
    q, k, v = (part.unflatten(-1, (-1, layer.head_dim)).transpose(1, 2) for part in parts)
    return q, k, v


# ---- what was set aside ----------------------------------------------------------------------------------------------


class _Aside:
    """What a model had: position embeddings, its rotation, and whether it insisted on one size."""

    def __init__(self, pos_embed: nn.Parameter | None, rope: nn.Module | None, strict: bool | None) -> None:
        self.pos_embed, self.rope, self.strict = pos_embed, rope, strict


def _set_aside(model: Any, keep_absolute: bool) -> None:
    rope = getattr(model, "rope", None)
    pos_embed = None if keep_absolute else model.pos_embed
    any_size = model.pos_embed is None or not keep_absolute
    strict = getattr(model.patch_embed, "strict_img_size", None) if any_size else None
    model._ropewalk = _Aside(pos_embed, rope, strict)
    if rope is not None:
        model.rope = None
    if pos_embed is not None:
        model.pos_embed = None
    if strict is not None:
        model.patch_embed.strict_img_size = False


# ---- what was meant --------------------------------------------------------------------------------------------------


def _is_model(model: Any) -> None:
    if type(model) not in (VisionTransformer, Eva):  # subclasses place tokens in ways of their own
        raise ConfigError(
            f"expected a VisionTransformer or an Eva of timm; got {type(model).__name__}. Of a wrapper, give the model inside"
        )


def _attentions(model: Any) -> list[Any]:
    """Return the attention of each block, before or after `apply`."""
    made = []
    for i, block in enumerate(model.blocks):
        attention = getattr(block, "attn", None)
        known = isinstance(attention, _Encoded) or type(attention) in _ENCODED
        if not known:
            what = type(block).__name__ if attention is None else type(attention).__name__
            raise ConfigError(
                f"blocks.{i} attends by {what}, which is not known; known are {', '.join(c.__name__ for c in _ENCODED)}"
            )
        made.append(attention)
    return made


def _layers(model: Any, attentions: Sequence[Any], what: Any, arguments: dict[str, Any]) -> list[Encoding]:
    """Build an encoding for each layer."""
    single = isinstance(what, str | Encoding)
    if not single and not isinstance(what, Sequence | nn.ModuleList):
        raise ConfigError(f"cannot apply a {type(what).__name__}; give an encoding or its name, or one a layer")
    items = [what] * len(attentions) if single else list(what)
    if len(items) != len(attentions):
        raise ConfigError(
            f"{len(items)} encodings for a model of {len(attentions)} layers; give one a layer, or one for all"
        )
    built: dict[Any, Encoding] = {}
    made: list[Encoding] = []
    for i, (item, attention) in enumerate(zip(items, attentions, strict=True)):
        if not isinstance(item, str | Encoding):
            raise ConfigError(f"layer {i} was given a {type(item).__name__}; expected an Encoding, or the name of one")
        if isinstance(item, Encoding) and arguments:
            raise ConfigError(f"{', '.join(arguments)} beside an encoding that is built: give them to its constructor")
        kv_heads = getattr(attention, "num_kv_heads", attention.num_heads)
        key = (item if isinstance(item, str) else id(item), attention.num_heads, kv_heads, attention.head_dim)
        if key not in built:
            built[key] = (
                item
                if isinstance(item, Encoding)
                else build(
                    item,
                    head_dim=attention.head_dim,
                    num_heads=attention.num_heads,
                    num_kv_heads=kv_heads,
                    hidden_size=model.embed_dim,
                    max_length=model.patch_embed.num_patches + model.num_prefix_tokens,
                    **arguments,
                )
            )
        encoding = built[key].layer(i) if single or isinstance(item, str) else built[key]
        if single and isinstance(encoding, Embedding):  # acts once, before the first layer
            encoding = encoding if i == 0 else NoPE()
        heads = encoding.output_heads(attention.num_heads)
        if heads != attention.num_heads:
            raise ConfigError(
                f"{type(encoding).__name__} makes {heads} heads of {attention.num_heads}, and the layer projects "
                f"{attention.num_heads}"
            )
        made.append(encoding)
    return made


def _placing(layers: Sequence[Encoding]) -> Placing:
    """Return what the encodings see."""
    modules = [m for layer in layers for m in layer.modules()]
    if any(isinstance(m, MultiAxisRoPE) for m in modules):
        return "layout"
    return "grid" if any((getattr(m, "axes", None) or 0) > 1 for m in modules) else "sequence"


def _axes(layers: Sequence[Encoding]) -> int:
    """Return how many axes their positions have."""
    wanted = {axes for layer in layers for m in layer.modules() if (axes := getattr(m, "axes", None) or 0) > 1}
    multi = any(isinstance(m, MultiAxisRoPE) for layer in layers for m in layer.modules())
    if len(wanted) > 1 and not multi:
        raise ConfigError(f"the encodings want positions of {sorted(wanted)} axes; a patch has one position")
    return max(wanted, default=2)


def _embeds(encoding: Encoding) -> bool:
    """Whether an encoding acts on embeddings."""
    parts = [m for m in encoding.modules() if isinstance(m, Encoding) and not m.combines]
    return any(type(m).embed is not Encoding.embed for m in parts)
