"""A watch: it sees the states of every layer, keeps sums of a few numbers a head, and makes a section of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.analysis.inspection.findings import Heat, Section
from ropewalk.frequencies import Spectrum
from ropewalk.integrations.transformers.probe import LayerShape, LayerStates

SAMPLED = 32
"""Queries of a text for what would be too much for all of them."""


@dataclass(frozen=True)
class Window:
    """One text, or a piece of one.

    Attributes:
        ids: (1, S) tokens.
        number: counted from 0.
        paragraphs: (S,) paragraph of each token; None where the text is not known.
        control: (S,) as many paragraphs with borders at random.
    """

    ids: Tensor
    number: int
    paragraphs: Tensor | None = None
    control: Tensor | None = None


class Watch:
    """Something to watch. It is given every layer's states, and all its attention in blocks of queries."""

    def __init__(self, shapes: Sequence[LayerShape], seed: int = 0) -> None:
        self.shapes, self.seed = list(shapes), seed
        self.windows = 0

    def states(self, states: LayerStates, window: Window) -> None:
        """See one layer's states of one text."""

    def rows(self, states: LayerStates, weights: Tensor, start: int, window: Window) -> None:
        """See attention (H, n, K) of some queries of one layer."""

    def section(self) -> Section | None:
        """Return what was seen; None where it does not apply to the model."""
        return None

    @property
    def spectrum(self) -> Spectrum | None:
        """Frequencies of the first layer that turns."""
        return next((s.spectrum for s in self.shapes if s.spectrum is not None), None)

    def heads(self, keys: bool = False) -> Tensor:
        """Return zeros for each (layer, head)."""
        count = self.shapes[0].num_kv_heads if keys else self.shapes[0].num_heads
        return torch.zeros(len(self.shapes), count, dtype=torch.float64)


def heat(
    title: str, values: Tensor, unit: str, note: str = "", columns: str = "head", layers: Iterable[int] | None = None
) -> Heat:
    """Return a heat map of (layers, heads); where rows are some of the layers, their numbers are given."""
    numbers = range(len(values)) if layers is None else layers
    names = [f"{columns} {i}" for i in range(values.shape[1])]
    return Heat(title, [f"layer {i}" for i in numbers], names, values.tolist(), unit, note)


def named(heads: Iterable[tuple[int, int]]) -> str:
    """Say which heads, for people."""
    return ", ".join(f"{layer}.{head}" for layer, head in heads) or "none"


def planes_of(shapes: Sequence[LayerShape]) -> list[str]:
    """Return names of the planes of the layers that turn, with their wavelengths where these are the same in all of them."""
    spectra = [s.spectrum for s in shapes if s.spectrum is not None]
    if not spectra:
        return []
    if any(s != spectra[0] for s in spectra):
        return [str(i) for i in range(len(spectra[0].inv_freq))]
    return [f"{i} (λ {w:.0f})" if w < 1e7 else f"{i} (λ {w:.1g})" for i, w in enumerate(spectra[0].wavelengths())]
