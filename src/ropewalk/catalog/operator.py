"""Attention of another form, with positions in it."""

from __future__ import annotations

from ropewalk.catalog.entry import Record, Traits
from ropewalk.catalog.papers import grape

# In the order in which they were added. Encodings that leave q and k alone keep their norm.
RECORDS: tuple[Record, ...] = (
    Record(
        slug="linear_rope",
        name="Linear RoPE",
        summary="Linear attention whose numerator sees rotated feature maps and whose denominator does not.",
        paper="RoFormer: Enhanced Transformer with Rotary Position Embedding",
        authors="Jianlin Su, Yu Lu, Shengfeng Pan, Ahmed Murtadha, Bo Wen, Yunfeng Liu",
        arxiv="2104.09864",
        year=2021,
        kind="operator",
        traits=Traits(
            relative=True,
            norm_preserving=False,  # the feature map comes first
            content_dependent=False,
            streamable=True,
            linear_attention=True,
        ),
        factory="ropewalk.rotary.linear_attention:linear_rope",
        defaults={"head_dim": 32},
        sheet=66,
        evidence="evidence/rope.json",
    ),
    Record(
        slug="log_length_scale",
        name="Log-length scale",
        summary="Queries grow with the logarithm of their position beyond the training length: attention stays as sharp.",
        paper="Extending LLMs' Context Window with 100 Samples",
        authors="Yikai Zhang, Junlong Li, Pengfei Liu",
        arxiv="2401.07004",
        year=2024,
        kind="operator",
        traits=Traits(
            relative=False,
            norm_preserving=False,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
            training="drop-in",
            reduces_to=("nope within train_length",),
        ),
        factory="ropewalk.rotary.entropy_abf:LogLengthScale",
        defaults={"train_length": 8},
        sheet=81,
    ),
    grape(
        "kv_shift",
        "KV-shift",
        "Keys and values are mixed with those of the token before, by a gate on each token.",
        "operator",
        Traits(
            relative=True,  # only the order of tokens counts
            norm_preserving=False,
            content_dependent=True,
            streamable=True,
            linear_attention=False,  # it changes values too
        ),
        "ropewalk.rotary.kv_shift:KVShift",
        needs=("x",),
        hidden_size=128,
        num_heads=4,
    ),
)
