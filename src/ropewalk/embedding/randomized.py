"""Sinusoidal and learned embeddings of randomised positions."""

from __future__ import annotations

from ropewalk.coordinates.randomized import RandomizedPositions, Scope
from ropewalk.core.combinators import Sequential
from ropewalk.embedding.learned import LearnedAbsolute
from ropewalk.embedding.sinusoidal import Sinusoidal


def randomized_sinusoidal(
    hidden_size: int | None = None,
    span: int = 2048,
    max_length: int | None = None,
    *,
    base: float = 10_000.0,
    scope: Scope = "per_forward",
    seed: int | None = None,
) -> Sequential:
    """x_p ← x_p + [sin r_pω_i | cos r_pω_i],  r a sorted sample from {0, ..., L − 1},  ω_i = base^(−2i/d).

    Args:
        hidden_size: width d of the embeddings, even; None: taken from the first embeddings.
        span: L of the sample.
        max_length: length that the sample is drawn for; None: the length of the sequence.
        base: of the frequencies.
        scope: "per_forward" as published, or "per_example".
        seed: of the draws; None: torch's global generator.

    Source: Anian Ruoss, Grégoire Delétang, Tim Genewein, Jordi Grau-Moya, Róbert Csordás, Mehdi Bennani, Shane Legg, Joel
    Veness. Randomized Positional Encodings Boost Length Generalization of Transformers. arXiv 2305.16843, 2023.
    """
    positions = RandomizedPositions(span, max_length, scope=scope, seed=seed)
    return Sequential(positions, Sinusoidal(hidden_size, base, layout="halves"))


def randomized_learned(
    hidden_size: int,
    span: int = 2048,
    max_length: int | None = None,
    *,
    scope: Scope = "per_forward",
    seed: int | None = None,
) -> Sequential:
    """x_p ← x_p + E[r_p],  r a sorted sample from {0, ..., L − 1},  E ∈ R^{L × d} learned.

    Args:
        hidden_size: width d of the embeddings.
        span: L, the rows of the table.
        max_length: length that the sample is drawn for; None: the length of the sequence.
        scope: "per_forward" as published, or "per_example".
        seed: of the draws; None: torch's global generator.

    Source: Anian Ruoss, Grégoire Delétang, Tim Genewein, Jordi Grau-Moya, Róbert Csordás, Mehdi Bennani, Shane Legg, Joel
    Veness. Randomized Positional Encodings Boost Length Generalization of Transformers. arXiv 2305.16843, 2023.
    """
    positions = RandomizedPositions(span, max_length, scope=scope, seed=seed)
    return Sequential(positions, LearnedAbsolute(span, hidden_size))
