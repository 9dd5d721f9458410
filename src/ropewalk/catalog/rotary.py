"""Encodings that turn q and k."""

from __future__ import annotations

from ropewalk.catalog.entry import Record, Traits
from ropewalk.catalog.papers import randomized

# In the order in which they were added. Encodings that leave q and k alone keep their norm.
RECORDS: tuple[Record, ...] = (
    Record(
        slug="rope",
        name="RoPE",
        summary="Turn each channel pair of q and k by an angle proportional to position.",
        paper="RoFormer: Enhanced Transformer with Rotary Position Embedding",
        authors="Jianlin Su, Yu Lu, Shengfeng Pan, Ahmed Murtadha, Bo Wen, Yunfeng Liu",
        arxiv="2104.09864",
        year=2021,
        kind="rotary",
        traits=Traits(
            relative=True,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
            reduces_to=("nope when every frequency is zero",),
        ),
        factory="ropewalk.rotary.rope:RoPE",
        defaults={"head_dim": 32},
        sheet=66,
    ),
    Record(
        slug="pope",
        name="PoPE",
        summary="Polar coordinates: content sets the magnitude of each channel, position alone its angle.",
        paper='Decoupling the "What" and "Where" With Polar Coordinate Positional Embeddings',
        authors="Anand Gopalakrishnan, Róbert Csordás, Jürgen Schmidhuber, Michael C. Mozer",
        arxiv="2509.10534",
        year=2025,
        kind="rotary",
        traits=Traits(
            relative=True,
            norm_preserving=False,  # magnitudes are softplus of the channels
            content_dependent=False,
            streamable=True,
            linear_attention=True,
        ),
        factory="ropewalk.rotary.pope:PoPE",
        defaults={"head_dim": 32, "num_heads": 4},
        sheet=61,
    ),
    randomized(
        "randomized_rope",
        "Randomized RoPE",
        "RoPE at positions drawn in order from a range much longer than the sequence.",
        "rotary",
        Traits(
            relative=False,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
            max_position=511,
            real_positions=False,
            reduces_to=("rope when the range is as long as the sequence",),
        ),
        "ropewalk.rotary.randomized_rope:randomized_rope",
        head_dim=32,
    ),
    Record(
        slug="string_shifted",
        name="STRING (shifted)",
        summary="Far keys of a trained RoPE model are seen at shorter, well-trained distances.",
        paper="Why Does the Effective Context Length of LLMs Fall Short?",
        authors="Chenxin An, Jun Zhang, Ming Zhong, Lei Li, Shansan Gong, Yao Luo, Jingjing Xu, Lingpeng Kong",
        arxiv="2410.18745",
        year=2024,
        kind="rotary",
        traits=Traits(
            relative=True,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=False,
            causal="only",
            training="drop-in",
            reduces_to=("rope when local == shift", "rope up to shift tokens"),
        ),
        factory="ropewalk.rotary.string_shifted:STRINGShifted",
        defaults={"head_dim": 32, "shift": 8, "local": 3},
        sheet=116,
    ),
    Record(
        slug="gta",
        name="GTA",
        summary="Relative camera and patch transforms bring each key and value into the query's frame.",
        paper="GTA: A Geometry-Aware Attention Mechanism for Multi-View Transformers",
        authors="Takeru Miyato, Bernhard Jaeger, Max Welling, Andreas Geiger",
        arxiv="2310.10375",
        year=2023,
        kind="rotary",
        traits=Traits(
            relative=True,
            norm_preserving=False,  # camera transforms translate
            content_dependent=False,
            streamable=True,
            linear_attention=False,  # it acts on values and on the output too
            domain="views",
        ),
        factory="ropewalk.rotary.gta:GTA",
        defaults={"head_dim": 32},
        needs=("cameras",),
        sheet=121,
    ),
)
