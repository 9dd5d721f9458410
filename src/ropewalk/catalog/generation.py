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
        needs=("references",),
        sheet=49,
        evidence="evidence/r_rope.json",
    ),
    Record(
        slug="condition_rope",
        name="Condition-aware 3-D RoPE",
        summary="References of a video at one time, slots without one at another, trajectories where the video is.",
        paper="DreamVideo-Omni: Omni-Motion Controlled Multi-Subject Video Customization with Latent Identity Reinforcement "
        "Learning",
        authors="Yujie Wei, Xinyu Liu, Shiwei Zhang, Hangjie Yuan, Jinbo Xing, Zhekai Chen, Xiang Wang, Haonan Qiu, Rui Zhao, "
        "Yutong Feng, Ruihang Chu, Yingya Zhang, Yike Guo, Xihui Liu, Hongming Shan",
        arxiv="2603.12257",
        year=2026,
        kind="rotary",
        traits=Traits(
            relative=True,
            norm_preserving=True,
            content_dependent=False,
            streamable=False,  # conditions see the noisy video
            linear_attention=False,  # of whole videos, not of causal sums
            causal="never",
            domain="conditions",
        ),
        factory="ropewalk.rotary.condition_rope:ConditionRoPE",
        defaults={"head_dim": 32, "t_ref": 40, "t_invalid": 60},  # the authors' times are not public
        needs=("conditions",),
        sheet=60,
        evidence="evidence/condition_rope.json",
    ),
    Record(
        slug="entity_temporal_rope",
        name="Entity-temporal RoPE",
        summary="Captions stand at times within their events, on one axis, and at their entity on another.",
        paper="CineOrchestra: Unified Entity-Centric Conditioning for Cinematic Video Generation",
        authors="Sharath Girish, Tsai-Shien Chen, Zhikang Dong, Mukesh Singhal, Hao Chen, Sergey Tulyakov, Aliaksandr Siarohin",
        arxiv="2606.13768",
        year=2026,
        kind="rotary",
        traits=Traits(
            relative=True,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
            domain="events",
        ),
        factory="ropewalk.rotary.cross_rope:CrossRoPE2D",
        defaults={"head_dim": 32},
        needs=("events",),
        sheet=119,
        evidence="evidence/entity_temporal_rope.json",
    ),
    Record(
        slug="depth_rope",
        name="Depth-aware RoPE",
        summary="Depth on the axis of frames of an image transformer, whose objects move when their positions do.",
        paper="RoPEMover: Depth-Aware Object Relocation via Positional Embeddings",
        authors="İpek Öztaş, Duygu Ceylan, Aybars Buğra Aksoy, Ayşegül Dündar",
        arxiv="2606.27332",
        year=2026,
        kind="rotary",
        traits=Traits(
            relative=True,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
            domain="depth",
        ),
        factory="ropewalk.rotary.depth_rope:DepthRoPE",
        defaults={"head_dim": 32},
        needs=("depth",),
        sheet=71,
        evidence="evidence/depth_rope.json",
    ),
)
