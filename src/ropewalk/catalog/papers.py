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
        evidence="evidence/randomized.json",
    )


def orthogonal(slug: str, name: str, summary: str, factory: str, *, streamable: bool = True, **defaults: int) -> Record:
    """Record of an embedding of orthogonal functions; ``defaults`` besides the width."""
    return Record(
        slug=slug,
        name=name,
        summary=summary,
        paper="Theoretical Analysis of Positional Encodings in Transformer Models: Impact on Expressiveness and "
        "Generalization",
        authors="Yin Li",
        arxiv="2506.06398",
        year=2025,
        kind="embedding",
        traits=Traits(
            relative=False,
            norm_preserving=True,
            content_dependent=False,
            streamable=streamable,
            linear_attention=True,
        ),
        factory=f"ropewalk.embedding.orthogonal_functions:{factory}",
        defaults={"hidden_size": 128, **defaults},
        sheet=50,
        evidence="evidence/orthogonal.json",
    )


def bilevel(slug: str, name: str, summary: str, factory: str, *, linear_attention: bool, **defaults: int) -> Record:
    """Record of a bilevel encoding; ``defaults`` besides the width and the places inside a segment."""
    return Record(
        slug=slug,
        name=name,
        summary=summary,
        paper="Two Stones Hit One Bird: Bilevel Positional Encoding for Better Length Extrapolation",
        authors="Zhenyu He, Guhao Feng, Shengjie Luo, Kai Yang, Liwei Wang, Jingjing Xu, Zhi Zhang, Hongxia Yang, Di He",
        arxiv="2401.16421",
        year=2024,
        kind="embedding",
        traits=Traits(
            relative=False,  # places inside a segment are absolute
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=linear_attention,
            domain="segments",
            real_positions=False,
        ),
        factory=f"ropewalk.embedding.bipe:{factory}",
        defaults={"hidden_size": 128, "max_intra": 8, **defaults},
        needs=("segments",),
        sheet=56,
        evidence="evidence/bipe.json",
    )


def parabolic(slug: str, name: str, summary: str, factory: str, **defaults: int) -> Record:
    """Record of a parabolic encoding; ``defaults`` besides the sizes."""
    return Record(
        slug=slug,
        name=name,
        summary=summary,
        paper="Parabolic Position Encoding: Vision-Centric, Principled, Extrapolatable, General",
        authors="Christoffer Koo Øhrstrøm, Rafael I. Cabral Muchacho, Yifei Dong, Filippos Moumtzidellis, "
        "Ronja Güldenring, Florian T. Pokorny, Lazaros Nalpantidis",
        arxiv="2602.01418",
        year=2026,
        kind="bias",
        traits=Traits(
            relative=True,
            norm_preserving=True,
            content_dependent=True,
            streamable=True,
            linear_attention=False,
            domain="grid",
        ),
        factory=f"ropewalk.bias.pape:{factory}",
        defaults={"hidden_size": 128, "num_heads": 4, **defaults},
        needs=("x", "grid"),
        sheet=53,
        evidence="evidence/pape.json",
    )


def grape(
    slug: str,
    name: str,
    summary: str,
    kind: Kind,
    traits: Traits,
    factory: str,
    needs: tuple[str, ...] = (),
    **defaults: int | str | bool,
) -> Record:
    """Record of a form of GRAPE."""
    return Record(
        slug=slug,
        name=name,
        summary=summary,
        paper="Group Representational Position Encoding",
        authors="Yifan Zhang, Zixiang Chen, Yifeng Liu, Zhen Qin, Huizhuo Yuan, Kangping Xu, Yang Yuan, Quanquan Gu, "
        "Andrew Chi-Chih Yao",
        arxiv="2512.07805",
        year=2025,
        kind=kind,
        traits=traits,
        factory=factory,
        defaults=defaults,
        needs=needs,
        sheet=85,
        evidence="evidence/grape.json",
    )
