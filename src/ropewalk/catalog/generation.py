"""Encodings of models that generate pictures and videos: references, conditions, events, objects that are moved."""

from __future__ import annotations

from ropewalk.catalog.entry import Record, Traits

RECORDS: tuple[Record, ...] = (
    Record(
        slug="r_rope",
        name="R-RoPE",
        summary="Reference images stand beyond the largest video, in height and in width.",
        paper="Kaleido: Open-Sourced Multi-Subject Reference Video Generation Model",
        authors="Zhenxing Zhang, Jiayan Teng, Zhuoyi Yang, Tiankun Cao, Cheng Wang, Xiaotao Gu, Jie Tang, Dan Guo, Meng Wang",
        arxiv="2510.18573",
        year=2025,
        kind="rotary",
        traits=Traits(
            relative=True,
            norm_preserving=True,
            content_dependent=False,
            streamable=False,  # references see the noisy video
            linear_attention=False,  # of whole videos, not of causal sums
            causal="never",
            domain="references",
        ),
        factory="ropewalk.rotary.r_rope:ReferenceRoPE",
        defaults={"head_dim": 32},
        needs=("layout",),
        sheet=49,
    ),
)
