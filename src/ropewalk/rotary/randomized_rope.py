"""RoPE on randomised positions."""

from __future__ import annotations

from ropewalk.coordinates.randomized import RandomizedPositions, Scope
from ropewalk.core.combinators import Sequential
from ropewalk.core.rotation import Pairing
from ropewalk.rotary.rope import RoPE


def randomized_rope(
    head_dim: int | None = None,
    span: int = 2048,
    max_length: int | None = None,
    *,
    base: float = 10_000.0,
    pairing: Pairing = "interleaved",
    scope: Scope = "per_layer",
    seed: int | None = None,
) -> Sequential:
    """(a, b) → (a cos r_pω_i − b sin r_pω_i, a sin r_pω_i + b cos r_pω_i),  r a sorted sample from {0, ..., L − 1}.

    RoPE whose positions are `RandomizedPositions`: queries and keys share one sample.

    Args:
        head_dim: width of a head, even; None: taken from the first problem.
        span: L of the sample.
        max_length: length that the sample is drawn for; None: the length of the sequence.
        base: of the frequencies.
        pairing: "interleaved" as published, or "half".
        scope: "per_layer" as published, "per_forward" or "per_example".
        seed: of the draws; None: torch's global generator.

    Source: Anian Ruoss, Grégoire Delétang, Tim Genewein, Jordi Grau-Moya, Róbert Csordás, Mehdi Bennani, Shane Legg, Joel
    Veness. Randomized Positional Encodings Boost Length Generalization of Transformers. arXiv 2305.16843, 2023.
    """
    return Sequential(RandomizedPositions(span, max_length, scope=scope, seed=seed), RoPE(head_dim, base, pairing))
