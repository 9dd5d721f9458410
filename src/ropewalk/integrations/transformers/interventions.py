"""Changes to a model of transformers that last as long as a probe is in it: heads silenced or levelled, channels blanked.

with mask_heads(model, [(3, 1)]):
    model(ids)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ropewalk.analysis.massive_values import Disruption, Filler, Which, disruption
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.core.rotation import Pairing
from ropewalk.integrations.transformers.probe import LayerShape, LayerStates, Probe, layer_shapes, turn

Heads = Iterable[tuple[int, int]]
"""(layer, head), both counted from 0."""


def mask_heads(model: Any, heads: Heads, shapes: Sequence[LayerShape] | None = None) -> Probe:
    """Return a probe under which the output of some heads is zero; all heads of a layer leave its residual alone."""
    by_layer = _by_layer(model, heads, shapes)

    def output(layer: int, out: Tensor) -> Tensor:
        chosen = by_layer.get(layer)
        if not chosen:
            return out
        return out.index_fill(2, torch.tensor(chosen, device=out.device), 0.0)

    return Probe(model, output=output, shapes=shapes)


def level_heads(model: Any, heads: Heads, shapes: Sequence[LayerShape] | None = None) -> Probe:
    """Return a probe under which some heads attend to all they see alike, themselves included."""
    by_layer = _by_layer(model, heads, shapes)

    def change(states: LayerStates) -> LayerStates:
        chosen = by_layer.get(states.index)
        if not chosen:
            return states
        # Queries of zero make all logits equal, which leaves the other heads of a group alone.
        return replace(states, q=states.q.index_fill(1, torch.tensor(chosen, device=states.q.device), 0.0))

    return Probe(model, change=change, shapes=shapes)


def zero_channels(
    model: Any,
    channels: Mapping[tuple[int, int], Sequence[int]],
    *,
    target: str = "qk",
    shapes: Sequence[LayerShape] | None = None,
) -> Probe:
    """Return a probe under which channels of some heads are zero before they are turned.

    Both channels of a pair take exactly its term off the logits. Zeroing q does it alone; "qk" also zeroes the key head,
    which the other queries of its group share.

    Args:
        model: a causal model of transformers.
        channels: by (layer, query head).
        target: "qk", as published, or "q".
        shapes: of the layers, if they are known.
    """
    if target not in ("qk", "q"):
        raise ConfigError(f"target is 'qk' or 'q'; got {target!r}")
    known = list(layer_shapes(model) if shapes is None else shapes)
    by_layer = _by_layer(model, channels, known)
    for (layer, head), chosen in channels.items():
        width = known[layer].head_dim
        if any(not 0 <= c < width for c in chosen):
            raise ConfigError(f"channels {list(chosen)} of head {head} in layer {layer}, which has {width}")

    def change(states: LayerStates) -> LayerStates:
        heads = by_layer.get(states.index)
        if not heads:
            return states
        shape = states.shape
        keep_q = states.q.new_ones(shape.num_heads, shape.head_dim)
        keep_k = states.q.new_ones(shape.num_kv_heads, shape.head_dim)
        for head in heads:
            at = list(channels[states.index, head])
            keep_q[head, at] = 0.0
            keep_k[head // shape.group, at] = 0.0
        q = _masked(states.q, keep_q, states, first=states.length - states.q.shape[2])
        return replace(states, q=q, k=_masked(states.k, keep_k, states, first=0) if target == "qk" else states.k)

    return Probe(model, change=change, shapes=known)


def zero_states(
    model: Any, masks: Mapping[tuple[str, int], Tensor], *, shapes: Sequence[LayerShape] | None = None
) -> Probe:
    """Return a probe under which channels of q, k or v are zero as the layer attends with them, after the rotation.

    Args:
        model: a causal model of transformers.
        masks: by ("q", "k" or "v", layer), True (heads, channels) for those that are zeroed; k and v have KV heads.
        shapes: of the layers, if they are known.
    """
    known = list(layer_shapes(model) if shapes is None else shapes)
    for name, layer in masks:
        if name not in ("q", "k", "v") or not 0 <= layer < len(known):
            raise ConfigError(
                f"({name!r}, {layer!r}) names no states of {len(known)} layers; expected ('q', 'k' or 'v', layer)"
            )

    def change(states: LayerStates) -> LayerStates:
        changed = {}
        for name in ("q", "k", "v"):
            mask, x = masks.get((name, states.index)), getattr(states, name)
            if mask is None:
                continue
            if mask.dtype != torch.bool or mask.shape != (x.shape[1], x.shape[3]):
                raise ShapeError(
                    f"mask {tuple(mask.shape)} of {mask.dtype} for {name} of layer {states.index}; expected truth values "
                    f"{(x.shape[1], x.shape[3])}"
                )
            changed[name] = x.masked_fill(mask[:, None].to(x.device), 0.0)
        return replace(states, **changed)

    return Probe(model, change=change, shapes=known)


def _masked(x: Tensor, keep: Tensor, states: LayerStates, first: int) -> Tensor:
    """Multiply states (B, H, S, d) by a mask (H, d) that acts before the rotation."""
    shape, turned = states.shape, states.turned
    mask = keep[:, None]
    if shape.spectrum is None or _symmetric(keep[:, :turned], shape.pairing):
        return x * mask
    still = turn(x[..., :turned], shape, first=first, inverse=True) * mask[..., :turned]
    return torch.cat((turn(still, shape, first=first), x[..., turned:] * mask[..., turned:]), -1)


def _symmetric(keep: Tensor, pairing: Pairing) -> bool:
    """Whether both channels of each pair fare alike, so that the mask commutes with the rotation."""
    a, b = keep.chunk(2, -1) if pairing == "half" else (keep[..., 0::2], keep[..., 1::2])
    return bool(torch.equal(a, b))


def _by_layer(model: Any, heads: Heads, shapes: Sequence[LayerShape] | None) -> dict[int, list[int]]:
    known = layer_shapes(model) if shapes is None else shapes
    found: dict[int, list[int]] = {}
    for layer, head in heads:
        if not 0 <= layer < len(known) or not 0 <= head < known[layer].num_heads:
            raise ConfigError(
                f"head {head} of layer {layer} in a model of {len(known)} layers of {known[0].num_heads} heads; both are "
                "counted from 0"
            )
        found.setdefault(layer, []).append(head)
    return {layer: sorted(set(of)) for layer, of in found.items()}


def disrupt_channels(
    model: Any,
    count: int = 1,
    which: Which = "massive",
    filler: Filler = "mean",
    shapes: Sequence[LayerShape] | None = None,
) -> Probe:
    """Return a probe under which the largest channels of q and k (or the smallest) hold one number in every token of a prompt.

    Channels and numbers are chosen from the first tokens of a text, all at once. What was changed in their keys stays changed
    for the tokens generated after them, which themselves are left alone. See `ropewalk.analysis.massive_values`.

    Args:
        model: a causal model of transformers.
        count: channels a head, in q and in k each.
        which: "massive" or "other".
        filler: "mean", "zero", "min" or "max".
        shapes: of the layers, if they are known.
    """
    prompts: dict[int, tuple[Disruption, int]] = {}

    def change(states: LayerStates) -> LayerStates:
        if states.prefill:
            done = disruption(states.k, count, which, filler)
            prompts[states.index] = done, states.length
            return replace(states, q=disruption(states.q, count, which, filler).apply(states.q), k=done.apply(states.k))
        if states.index not in prompts:
            return states
        done, length = prompts[states.index]
        k = torch.cat((done.apply(states.k[:, :, :length]), states.k[:, :, length:]), 2)
        return replace(states, k=k)

    return Probe(model, change=change, shapes=shapes)
