"""DoPE on a trained model: heads chosen on calibration text, what is done to them, and what becomes of their sinks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ropewalk.analysis.matrix_entropy import Order, choose_heads, concentration
from ropewalk.core.attention import Attention
from ropewalk.core.errors import ConfigError, ShapeError, suggest
from ropewalk.integrations.transformers.apply import apply
from ropewalk.integrations.transformers.attention import NAME
from ropewalk.integrations.transformers.bridge import bridge_of
from ropewalk.integrations.transformers.probe import LayerShape, LayerStates, Probe, layer_shapes
from ropewalk.rotary.dope import DoPE, Mode

Indicator = Literal["key", "query"]
Stage = Literal["pre_ntk", "post_ntk", "post_rope"]
BLOCK = 256
"""Queries whose attention is held at once."""


@dataclass(frozen=True)
class DopeSelection:
    """Heads of a model to denoise.

    Attributes:
        heads: (layer, key head), both from 0.
        deviation: standard deviations (of q, of k) of each of them after the rotation, for the mode "gaussian".
        scores: (layers, key heads) by which they were chosen: small where few directions hold everything.
    """

    heads: tuple[tuple[int, int], ...]
    deviation: tuple[tuple[float, float], ...]
    scores: Tensor

    def encoding(self, mode: Mode = "zero", seed: int = 0) -> str:
        """Return what `hf.apply` takes, and a saved model remembers."""
        more = f", deviation={[[float(f'{s:.9g}') for s in pair] for pair in self.deviation]}, seed={seed}"
        heads = [list(pair) for pair in self.heads]
        return f"dope(heads={heads}, mode={mode!r}{more if mode == 'gaussian' and self.heads else ''})"


def dope_select(
    model: Any,
    texts: Iterable[Tensor],
    *,
    heads: int = 3,
    r: int | None = 32,
    indicator: Indicator = "key",
    stage: Stage = "post_rope",
    order: Order = "ascending",
) -> DopeSelection:
    """Choose heads by the truncated effective rank of their keys (or queries), averaged over texts.

    The paper chooses on text of the length that is wanted, with the NTK scaling that it builds upon: apply that first,
    ``hf.apply(model, "ntk", factor=4)``.

    Args:
        model: a causal RoPE model of transformers; it is left as it was.
        texts: ids (S,) or (B, S) without padding.
        heads: key heads to choose, of the whole model; a query head is scored by the mean of its group.
        r: eigenvalues that count; 1 ranks by the largest one, None by all.
        indicator: "key" or "query".
        stage: "post_rope": as they are turned; "post_ntk": before they are turned, in the model as it is; "pre_ntk": before
            they are turned, in the model with the frequencies of its configuration. The paper names the stages; what they mean
            for a tensor is our reading.
        order: "ascending" takes the most concentrated.

    Raises:
        ConfigError: nothing to read; more heads than there are; a model that cannot be looked at.
    """
    for name, value, known in (("indicator", indicator, Indicator), ("stage", stage, Stage)):
        if value not in get_args(known):
            raise ConfigError(
                f"{name} is one of {', '.join(get_args(known))}; got {value!r}.{suggest(value, get_args(known))}"
            )
    shapes = layer_shapes(model)
    scores = torch.zeros(len(shapes), shapes[0].num_kv_heads, dtype=torch.float64)
    squares = torch.zeros(2, *scores.shape, dtype=torch.float64)
    count = 0

    def look(states: LayerStates) -> None:
        shape = states.shape
        if shape.spectrum is None:
            raise ConfigError(f"layer {shape.index} turns nothing, so there is no rotation to take out of it")
        q, k = (states.q, states.k) if stage == "post_rope" else states.still()
        seen = k if indicator == "key" else q
        found = concentration(seen, r).unflatten(1, (shape.num_kv_heads, -1)).mean(2)
        scores[shape.index] += found.sum(0).cpu()
        for side, x in enumerate((states.q, states.k)):
            grouped = x.double().unflatten(1, (shape.num_kv_heads, -1)).flatten(2)
            squares[side, shape.index] += grouped.var(2, correction=0).sum(0).cpu()

    with torch.no_grad(), _unscaled(model) if stage == "pre_ntk" else contextlib.nullcontext():
        for ids in texts:
            rows = _rows(ids)
            with Probe(model, look=look):
                model(rows.to(model.device), use_cache=False)
            count += len(rows)
    if not count:
        raise ConfigError("no text to choose heads on; give one or more tensors of ids")
    scores /= count
    deviations = (squares / count).sqrt()
    chosen = tuple(choose_heads(scores, heads, order))
    return DopeSelection(
        chosen, tuple((float(deviations[0, i, h]), float(deviations[1, i, h])) for i, h in chosen), scores
    )


def apply_dope(model: Any, selection: DopeSelection, mode: Mode = "zero", seed: int = 0) -> Any:
    """Denoise the chosen heads of a model, on top of the frequencies it has; `hf.remove` takes it out again."""
    return apply(model, selection.encoding(mode, seed))


def sink_mass_by_head(model: Any, ids: Tensor, selection: DopeSelection | None = None, mode: Mode = "zero") -> Tensor:
    """Share of attention on the first token, (layers, query heads): of a model as it is, or as `apply_dope` would have it.

    Args:
        model: as for `dope_select`; it is left as it was.
        ids: (S,) or (B, S) without padding, more than one token.
        selection: None: the model as it is.
        mode: what is done to the chosen heads.
    """
    shapes = layer_shapes(model)
    found = torch.zeros(len(shapes), shapes[0].num_heads, dtype=torch.float64)
    rows = _rows(ids)
    if rows.shape[1] < 2:
        raise ShapeError("the share of the first token is 1 where it is the only one; give two tokens or more")
    encodings = None if selection is None else [_layer(shape, selection, mode) for shape in shapes]

    def change(states: LayerStates) -> LayerStates:
        assert encodings is not None
        q, k = states.still()
        q, k = (torch.cat((x, y[..., states.turned :]), -1) for x, y in ((q, states.q), (k, states.k)))
        problem = encodings[states.index](Attention(q, k, k))
        assert isinstance(problem, Attention)
        return replace(states, q=problem.q, k=problem.k)

    def look(states: LayerStates) -> None:
        for start in range(1, states.length, BLOCK):  # the first query sees nothing else
            weights = states.weights(start, min(start + BLOCK, states.length))
            found[states.index] += weights[..., 0].double().sum((0, 2)).cpu()

    with torch.no_grad(), Probe(model, change=None if encodings is None else change, look=look):
        model(rows.to(model.device), use_cache=False)
    return found / (len(rows) * (rows.shape[1] - 1))


def _layer(shape: LayerShape, selection: DopeSelection, mode: Mode) -> DoPE:
    whole = DoPE(
        shape.head_dim,
        shape.num_heads,
        shape.num_kv_heads,
        heads=selection.heads,
        deviation=selection.deviation,
        mode=mode,
        pairing=shape.pairing,
        spectrum=shape.spectrum,
    )
    return whole.layer(shape.index)


@contextlib.contextmanager
def _unscaled(model: Any) -> Iterator[None]:
    """Give a model the frequencies of its configuration for a while."""
    bridge = bridge_of(model)
    if bridge is None:
        yield
        return
    record = getattr(model.config, NAME)
    bridge.take_out()
    try:
        yield
    finally:
        bridge.put_in()
        setattr(model.config, NAME, record)


def _rows(ids: Tensor) -> Tensor:
    if ids.ndim not in (1, 2) or ids.is_floating_point():
        raise ShapeError(
            f"ids have shape {tuple(ids.shape)} and dtype {ids.dtype}; expected integers (S,) or (batch, S)"
        )
    return ids[None] if ids.ndim == 1 else ids
