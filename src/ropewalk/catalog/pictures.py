"""Encodings of pictures: grids of patches, points in space, panoramas."""

from __future__ import annotations

from ropewalk.catalog.entry import Record, Traits

RECORDS: tuple[Record, ...] = (
    Record(
        slug="gridpe",
        name="GridPE",
        summary="Channel pairs turn by plane waves in the directions of a simplex, as grid cells fire: three in the plane.",
        paper="GridPE: A Grid Cell-Inspired Unified Position Embedding for Arbitrary-Dimensional Spaces",
        authors="Boyang Li, Yulin Wu, Nuoxian Huang, Wenjia Zhang",
        arxiv="2406.07049",
        year=2024,
        kind="rotary",
        traits=Traits(
            relative=True,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
            domain="grid",
            reduces_to=("rope on one axis",),
        ),
        factory="ropewalk.rotary.gridpe:GridPE",
        # Three waves of a pair each fill 6 channels, and heads are rarely a multiple of that wide.
        defaults={"head_dim": 32, "num_heads": 4, "pass_rest": True},
        needs=("grid",),
        sheet=34,
    ),
    Record(
        slug="mixed_rope",
        name="RoPE-Mixed",
        summary="Channel pairs turn along learned directions of the plane, at learned frequencies.",
        paper="Rotary Position Embedding for Vision Transformer",
        authors="Byeongho Heo, Song Park, Dongyoon Han, Sangdoo Yun",
        arxiv="2403.13298",
        year=2024,
        kind="rotary",
        traits=Traits(
            relative=True,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
            domain="grid",
            reduces_to=("axial_rope at the start when turned == False",),
        ),
        factory="ropewalk.rotary.mixed_rope:MixedRoPE",
        defaults={"head_dim": 32, "num_heads": 4},
        needs=("grid",),
    ),
    Record(
        slug="position_interpolated_rope",
        name="Position-interpolated RoPE (Dens3R)",
        summary="Axial RoPE on grids that are drawn together to the size of the trained one.",
        paper="Dens3R: A Foundation Model for 3D Geometry Prediction",
        authors="Xianze Fang, Jingnan Gao, Zhe Wang, Zhuo Chen, Xingyu Ren, Jiangjing Lyu, Qiaomu Ren, Zhonglei Yang, "
        "Xiaokang Yang, Yichao Yan, Chengfei Lyu",
        arxiv="2507.16290",
        year=2025,
        kind="rotary",
        traits=Traits(
            relative=True,  # within an image
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
            domain="layout",
            training="drop-in",
            reduces_to=("axial_rope up to the trained grid",),
        ),
        factory="ropewalk.rotary.position_interpolated_rope:PositionInterpolatedRoPE",
        defaults={"head_dim": 32},
        needs=("layout",),
        sheet=55,
    ),
)
