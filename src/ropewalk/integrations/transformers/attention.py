"""The attention function that models with an encoding of ropewalk's call, and the positions it is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from ropewalk.backends import attend
from ropewalk.core.attention import Attention
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import ConfigError, PositionError, ShapeError
from ropewalk.core.positions import Positions
from ropewalk.integrations.transformers.cache import EncodedCache

NAME = "ropewalk"
"""Of the attention function, and of the keyword by which a step travels from the model to its layers."""


@dataclass(frozen=True)
class Step:
    """What all layers of one forward pass share."""

    positions: Positions
    cache: EncodedCache | None


@dataclass(frozen=True)
class LayerStep:
    """A step as one layer sees it."""

    step: Step
    index: int
    encoding: Encoding
    x: Tensor


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    ropewalk: LayerStep | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers asks its attention functions to: (b, S, heads, width) and no weights."""
    if ropewalk is None:
        raise ConfigError(
            f"{type(module).__name__} calls the attention function of ropewalk without having been prepared by hf.apply; if the "
            "attention implementation was set by hand, set it back and use hf.apply"
        )
    types = getattr(module.config, "layer_types", None)
    if types and types[ropewalk.index] == "sliding_attention" and sliding_window is None:
        raise ConfigError(
            f"{type(module).__name__} has a sliding window and does not say which: only its frequencies can be changed"
        )
    q, k = (_turned_first(module, t) for t in (query, key))
    problem = Attention(
        q,
        k,
        value,
        None if ropewalk.step.cache is not None else ropewalk.step.positions,
        bool(module.is_causal),
        None if scaling == q.shape[-1] ** -0.5 else scaling,
        ropewalk.x,
        None if attention_mask is None else _boolean(attention_mask),
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    cache = ropewalk.step.cache
    encoded = ropewalk.encoding(problem) if cache is None else cache.kv[ropewalk.index].extend(problem)
    return attend(encoded, dropout=dropout).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attention)


def _turned_first(module: nn.Module, x: Tensor) -> Tensor:
    """Bring the channels that a model with latent keys turns to the front, where encodings look for them."""
    turned = getattr(module, "qk_rope_head_dim", None)
    return x if turned is None else torch.cat((x[..., -turned:], x[..., :-turned]), -1)


def _boolean(mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return mask
    allowed, least = mask == 0, torch.finfo(mask.dtype).min if mask.is_floating_point() else None
    if least is None or not bool((allowed | (mask <= least)).all()):
        raise ShapeError(
            "the 4-D attention mask is neither boolean nor 0 and -inf: numbers that are added to the logits belong into an "
            "encoding"
        )
    return allowed


def positions_of(
    given: dict[str, Any], length: int, batch: int, device: torch.device, cache: EncodedCache | None
) -> Positions:
    """Return where the new tokens of a forward pass are.

    Padding shifts nothing: without ``position_ids`` the real tokens are counted. Ids that start anew without a mask are
    packed documents, which do not see each other.
    """
    mask, ids = given.get("attention_mask"), given.get("position_ids")
    past = 0 if cache is None else cache.kv.length
    valid = None
    if isinstance(mask, dict):
        raise ShapeError(
            "attention_mask is a dictionary by layer type; give the (batch, length) mask, True for real tokens"
        )
    if mask is not None and mask.ndim == 2:
        if mask.shape[1] != past + length:
            raise ShapeError(
                f"attention_mask covers {mask.shape[1]} tokens; there are {past} in the cache and {length} new ones"
            )
        new = mask[:, past:].bool()
        if torch.compiler.is_compiling() or not bool(new.all()):
            valid = new
    if ids is None:
        held = None if cache is None else cache.kv.tokens
        if held is None:
            return Positions.arange(length, batch=1 if valid is None else batch, valid=valid, device=device)
        if valid is None:
            return Positions(held.continuing(length))
        ids = held.next[:, None] + (valid.long().cumsum(-1) - 1).clamp(min=0)
        return Positions(ids, valid=valid)
    if ids.ndim != 2 or ids.shape[1] != length or ids.shape[0] not in (1, batch):
        raise PositionError(
            f"position_ids have shape {tuple(ids.shape)}; expected ({batch} or 1, {length}). Ids with several axes are for "
            "encodings of grids, which this bridge does not feed"
        )
    documents = None
    if mask is None and past == 0:
        restarts = (ids.diff(dim=-1, prepend=ids[:, :1] - 1) != 1).cumsum(-1)
        documents = restarts if torch.compiler.is_compiling() or bool(restarts.any()) else None
    return Positions(ids, valid=valid, document_ids=documents)


def with_columns(positions: Positions, columns: Mapping[str, Tensor], past: int, batch: int) -> Positions:
    """Return the positions of new tokens with facts about the tokens of the whole text, ``past`` of which came before.

    Tokens beyond what is known get no such column: what stays as it was is held by the cache, and the rest is asked for.

    Raises:
        PositionError: facts about another batch; facts that end among the new tokens.
    """
    length, found = positions.query.length, {}
    for name, column in columns.items():
        if column.shape[1] <= past:
            continue
        here = column[:, past : past + length]
        if here.shape[1] != length:
            raise PositionError(
                f"the column {name!r} tells of {column.shape[1]} tokens, and the new ones are {past} to {past + length - 1}: "
                "give it for the whole prompt"
            )
        if here.shape[0] not in (1, batch):
            if batch % here.shape[0]:
                raise PositionError(
                    f"the column {name!r} has {here.shape[0]} rows and the batch {batch}; give 1 row or all"
                )
            here = here.repeat_interleave(batch // here.shape[0], 0)  # beams of a row stand next to each other
        found[name] = here.to(positions.device)
    return positions.map_sides(lambda t: t.with_columns(**found)) if found else positions
