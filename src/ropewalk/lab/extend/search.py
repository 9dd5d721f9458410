"""LongRoPE's search for a factor a plane, by the loss on the user's own text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ropewalk.core.errors import ConfigError
from ropewalk.frequencies import FoundFactors, Spectrum, search_factors
from ropewalk.integrations.transformers.apply import apply, remove
from ropewalk.lab.batch import IGNORE
from ropewalk.lab.data import Corpus
from ropewalk.lab.extend.checkpoint import Checkpoint
from ropewalk.lab.extend.losses import token_losses
from ropewalk.lab.extend.settings import Extension
from ropewalk.lab.extend.text import sliding

Keep = Callable[[str, float], None]


def search_longrope(
    settings: Extension,
    checkpoint: Checkpoint,
    model: Any,
    corpus: Corpus,
    wanted: int,
    scored: int,
    known: Mapping[str, float],
    keep: Keep,
) -> FoundFactors:
    """Search factors that make the loss at the wanted length small, on windows that nothing else is measured on.

    Args:
        settings: of the search.
        checkpoint: what the model is.
        model: as it is; it is the same afterwards.
        corpus: its "validation" documents are read.
        wanted: tokens of the wanted context.
        scored: last tokens of a window that count.
        known: losses that were found before an interruption, by `key_of` the factors.
        keep: told of every new one.

    Raises:
        ConfigError: layers with frequencies of several kinds.
    """
    if checkpoint.is_changed:
        raise ConfigError("a search starts from the model's own frequencies, and this one was changed before")
    if len(checkpoint.rope) > 1:
        raise ConfigError(
            f"the layers differ in their frequencies ({', '.join(checkpoint.rope)}), and the search is for one set of them"
        )
    windows = sliding(corpus, "validation", wanted, scored, settings.search_windows)
    tokens = windows.tokens[:, :-1]
    targets = windows.tokens[:, 1:].clone()
    targets[:, :-scored] = IGNORE

    def score(spectrum: Spectrum) -> float:
        key = key_of(spectrum)
        if key in known:
            return known[key]
        apply(model, spectrum)
        try:
            with torch.no_grad():
                rows = zip(tokens, targets, strict=True)
                losses = [token_losses(model, t[None], want[None]).double().mean() for t, want in rows]
        finally:
            remove(model)
        loss = float(torch.stack(losses).mean())
        keep(key, loss)
        return loss

    half = max(1, settings.search_population // 2)
    return search_factors(
        checkpoint.spectrum,
        wanted / checkpoint.trained,
        checkpoint.trained,
        score,
        iterations=settings.search_iterations,
        population=settings.search_population,
        mutations=half,
        crossovers=half,
        parents=half,
        seed=settings.seed,
    )


def key_of(spectrum: Spectrum) -> str:
    """Return a short name for a set of frequencies."""
    return hashlib.sha256(json.dumps([spectrum.inv_freq, spectrum.attention_factor]).encode()).hexdigest()[:16]
