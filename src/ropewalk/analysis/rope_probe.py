"""Which layers attend by position: the keys of one layer are turned in another way, and the output is compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ropewalk.analysis.encoding_layers import AroundEncoding, ReplacedEncodings, encoding_slots
from ropewalk.core.attention import Attention, Parts, Problem
from ropewalk.core.encoding import Encoding, rewrite
from ropewalk.core.errors import CannotCompose, ConfigError, PositionError, ShapeError
from ropewalk.core.positions import Positions, Tokens

Mode = tuple[float, ...] | None
"""How far keys are moved along the last axes; None: they are not turned at all."""

MODES: tuple[Mode, ...] = (None, (10, 10), (0, 20), (64, 0))
"""Those of the paper, in cells along rows and columns; 64 is the height of its grid, so that keys leave the image."""

CAP = 100.0
"""Decibels that identical images count as in a mean."""


class ProbedKeys(AroundEncoding):
    """q_i → R(p_i) q_i as before, and k_j → R(p_j + s) k_j, or k_j as it is: what keys would be elsewhere, or nowhere.

    Args:
        encoding: a rotation of q and k.
        mode: s along the last axes; None: keys do not turn.
        num_text: tokens at the beginning that stay where they are; without a rotation they have none either.

    Raises:
        CannotCompose: an encoding that is more than a map of q and k.
        CannotCache: a cache; a probe is about whole passes.
        PositionError: positions of fewer axes than the shift.

    Source: see `RopeProbe`.
    """

    def __init__(self, encoding: Encoding, mode: Mode, num_text: int = 0) -> None:
        super().__init__(encoding)
        if isinstance(num_text, bool) or not isinstance(num_text, int) or num_text < 0:
            raise ConfigError(f"num_text is a whole number, 0 or more; got {num_text!r}")
        if mode is not None and (not mode or not all(math.isfinite(s) for s in mode)):
            raise ConfigError(f"mode is None, or how far keys are moved along the last axes; got {mode!r}")
        self.mode: Mode = None if mode is None else tuple(float(s) for s in mode)
        self.num_text = num_text

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        turned = _rotation(rewrite(self.encoding, p), p)
        if self.mode is None:
            return turned.replace(k=p.k)
        moved = Positions.pair(p.where.query, self._moved(p.where.key), p.where.order)
        elsewhere = _rotation(rewrite(self.encoding, p.replace(positions=moved)), p)
        return turned.replace(k=elsewhere.k)

    def why_not_cached(self) -> str | None:
        return "a probe changes the keys of whole passes; keys that a cache holds were made without it"

    def _moved(self, tokens: Tokens) -> Tokens:
        assert self.mode is not None
        axes, n = tokens.axes or 1, len(self.mode)
        if n > axes:
            raise PositionError(f"keys are to be moved along {n} axes, and positions have {axes}; give a shorter mode")
        shift = torch.tensor((0.0,) * (axes - n) + self.mode, dtype=torch.float64, device=tokens.device)
        shift = shift if tokens.axes else shift[0]
        image = torch.arange(tokens.length, device=tokens.device) >= self.num_text
        image = image[:, None] if tokens.axes else image
        return tokens.with_columns(position=tokens.position + image * shift)

    def extra_repr(self) -> str:
        return f"mode={self.mode}, num_text={self.num_text}"


class RopeProbe(ReplacedEncodings):
    """Within this context the keys of some layers are turned in another way; queries and all other layers are as they were.

        with RopeProbe(model, [3], (10, 10), num_text=512):
            image = sample(model)

    Where the image changes much, the layer attends by position; where it does not, by content.

    Args:
        model: holds one encoding for each attention layer, in order.
        layers: numbers of layers, counted from 0.
        mode: see `ProbedKeys`; `MODES` has the published ones.
        num_text: likewise.

    Raises:
        ConfigError: layers that do not exist, or a model without encodings.

    Source: Tianyi Wei, Yifan Zhou, Dongdong Chen, Xingang Pan. FreeFlux: Understanding and Exploiting Layer-Specific Roles in
    RoPE-Based MMDiT for Versatile Image Editing. arXiv 2503.16153, 2025.
    """

    def __init__(self, model: nn.Module, layers: Sequence[int], mode: Mode, *, num_text: int = 0) -> None:
        ProbedKeys(Encoding(), mode, num_text)  # what cannot be is refused before the model is touched
        super().__init__(model, layers, lambda encoding: ProbedKeys(encoding, mode, num_text))


def layer_scores(
    model: nn.Module,
    run: Callable[[], Tensor],
    *,
    layers: Sequence[int] | None = None,
    modes: Sequence[Mode] = MODES,
    num_text: int = 0,
    measure: Callable[[Tensor, Tensor], float] | None = None,
) -> dict[int, float]:
    """Return for each layer the mean over modes of how alike the output of a model is with and without a probe in that layer.

    With PSNR, layers of a low score attend by position and those of a high one by content: ``sorted(scores, key=scores.get)``.

    Args:
        model: see `RopeProbe`.
        run: computes the output, the same each time, such as images (N, ...) of several prompts and seeds.
        layers: numbers of layers; None: all.
        modes: probes to try.
        num_text: see `RopeProbe`.
        measure: of two outputs; None: `psnr` of images from 0 to 1. `mse` rises where it falls.
    """
    if not modes:
        raise ConfigError("modes are the probes to try; got none")
    measure = psnr if measure is None else measure
    chosen = range(len(encoding_slots(model))) if layers is None else layers
    with torch.no_grad():
        reference = run()
        scores = {}
        for layer in chosen:
            found = []
            for mode in modes:
                with RopeProbe(model, [layer], mode, num_text=num_text):
                    found.append(measure(run(), reference))
            scores[layer] = sum(found) / len(found)
    return scores


def psnr(image: Tensor, reference: Tensor, peak: float = 1.0) -> float:
    """10 log10(peak² / MSE) in decibels, the mean over images (N, ...), each of at most `CAP`.

    Args:
        image: (N, ...).
        reference: likewise.
        peak: the largest value, 1 or 255.
    """
    _alike(image, reference)
    error = (image.double() - reference.double()).square().flatten(1).mean(1)
    decibels = 10 * (peak**2 / error).log10()  # infinite where they are identical
    return float(decibels.clamp(max=CAP).mean())


def mse(image: Tensor, reference: Tensor) -> float:
    """Return the mean squared difference."""
    _alike(image, reference)
    return float((image.double() - reference.double()).square().mean())


def _alike(image: Tensor, reference: Tensor) -> None:
    if image.shape != reference.shape or image.ndim < 2 or image.numel() == 0:
        raise ShapeError(f"images {tuple(image.shape)} and {tuple(reference.shape)}: expected the same (N, ...)")


def _rotation(after: Problem, before: Attention) -> Attention:
    plain = isinstance(after, Attention) and not (after.branches or after.product or after.kernel)
    if not plain or after.terms != before.terms or after.k.shape != before.k.shape:  # type: ignore[union-attr]
        split = "splits heads" if isinstance(after, Parts) else "is more than a map of q and k"
        raise CannotCompose(f"the encoding {split}, so its keys alone cannot be turned otherwise; probe a rotation")
    assert isinstance(after, Attention)
    return after
