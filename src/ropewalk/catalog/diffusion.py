"""Encodings of diffusion transformers: tokens of several resolutions, at a step of denoising, of a reference image."""

from __future__ import annotations

from ropewalk.catalog.entry import Record, Traits

RECORDS: tuple[Record, ...] = (
    Record(
        slug="pma",
        name="PMA",
        summary="Each query counts distances in the steps of its own grid, and sees no finer tokens between its points.",
        paper="Phase-Aligned RoPE for Mixed-Resolution Diffusion Transformer",
        authors="Haoyu Wu, Jingyi Xu, Qiaomu Miao, Dimitris Samaras, Hieu Le",
        arxiv="2511.19778",
        year=2025,
        kind="rotary",
        traits=Traits(
            relative=True,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=False,  # a score for each resolution
            domain="mixed_resolution",
            training="drop-in",
        ),
        factory="ropewalk.rotary.pma:PhaseAlignedRoPE",
        defaults={"head_dim": 32},
        needs=("mixed_resolution",),
        sheet=65,
        evidence="evidence/pma.json",
    ),
    Record(
        slug="spatial_rope_scale",
        name="Spatial RoPE scaling",
        summary="Height and width turn more slowly in the first steps of denoising a video, and time never does.",
        paper="Why Do Video Diffusion Models Violate Physics? Unveiling the Flaws in Attention Mechanisms",
        authors="Yueyan Li, Haibo Wang, Caixia Yuan, Xiaojie Wang",
        arxiv="2609.23658",
        year=2026,
        kind="rotary",
        traits=Traits(
            relative=True,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
            domain="denoising",
            training="drop-in",
        ),
        factory="ropewalk.rotary.spatial_scale:SpatialRoPEScale",
        defaults={"head_dim": 32},
        needs=("denoising",),
        sheet=98,
    ),
    Record(
        slug="untwisting_rope",
        name="Untwisting RoPE",
        summary="Keys of a reference image are weaker in pairs that turn fast and stronger in pairs that turn slowly.",
        paper="Untwisting RoPE: Frequency Control for Shared Attention in DiTs",
        authors="Aryan Mikaeili, Or Patashnik, Andrea Tagliasacchi, Daniel Cohen-Or, Ali Mahdavi-Amiri",
        arxiv="2602.05013",
        year=2026,
        kind="operator",
        traits=Traits(
            relative=True,
            norm_preserving=False,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
            domain="shared_grid",
            training="drop-in",
        ),
        factory="ropewalk.rotary.untwisting:UntwistingRoPE",
        defaults={"head_dim": 32, "high": 0.5, "low": 1.2},
        needs=("shared_grid",),
        sheet=47,
        evidence="evidence/untwisting_rope.json",
    ),
)
