"""Papers that gave the catalog several systems."""

from __future__ import annotations

from ropewalk.catalog.entry import Kind, Record, Traits


def randomized(slug: str, name: str, summary: str, kind: Kind, traits: Traits, factory: str, **defaults: int) -> Record:
    """Record of a randomised encoding; ``defaults`` besides the range."""
    return Record(
        slug=slug,
        name=name,
        summary=summary,
        paper="Randomized Positional Encodings Boost Length Generalization of Transformers",
        authors="Anian Ruoss, Grégoire Delétang, Tim Genewein, Jordi Grau-Moya, Róbert Csordás, "
        "Mehdi Bennani, Shane Legg, Joel Veness",
        arxiv="2305.16843",
        year=2023,
        kind=kind,
        traits=traits,
        factory=factory,
        defaults={**defaults, "max_length": 512},
        sheet=108,
    )
