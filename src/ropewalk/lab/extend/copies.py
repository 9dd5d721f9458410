"""A model read under several bases (Attention Buckets), one after the other, as far as its losses go.

`ropewalk.hf.MultiBaseDecoder` holds the logits of all copies, which for a long text do not fit; here each copy leaves what its
layers gave, and the copies are joined where logits are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ropewalk.core.errors import ConfigError
from ropewalk.frequencies import TOOL_BASES, Spectrum
from ropewalk.integrations.transformers.apply import apply, remove, spectrum
from ropewalk.integrations.transformers.buckets import MultiBaseDecoder

BUCKETS = "attention_buckets"
"""The name of the method."""


@dataclass(frozen=True)
class Copies:
    """A model and the frequencies of its copies; what they say together is `ropewalk.hf.MultiBaseDecoder`'s.

    Attributes:
        model: of transformers.
        spectra: one a copy.
    """

    model: Any
    spectra: tuple[Spectrum, ...]

    def each(self) -> Iterator[Any]:
        """Yield the model with the frequencies of each copy; afterwards it is as it was."""
        for frequencies in self.spectra:
            apply(self.model, frequencies)
            try:
                yield self.model
            finally:
                remove(self.model)


def copies_of(model: Any) -> Copies:
    """Return the paper's six copies of a model, their bases in the same proportions to its own.

    Raises:
        ConfigError: frequencies that are not those of a base, or that differ from layer to layer.

    Source: Yuhan Chen, Ang Lv, Ting-En Lin, Changyu Chen, Yuchuan Wu, Fei Huang, Yongbin Li, Rui Yan. Fortify the Shortest
    Stave in Attention: Enhancing Context Awareness of Large Language Models for Effective Tool Use. arXiv 2312.04455, 2023.
    """
    own = next(iter(spectrum(model).values()))
    if own.base is None:
        raise ConfigError(f"copies differ in their base, and {own.origin or 'these frequencies'} have none")
    bases = [own.base * base / TOOL_BASES[0] for base in TOOL_BASES]
    return Copies(model, MultiBaseDecoder(model, bases).spectra)
