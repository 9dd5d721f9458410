"""Encodings of signals other than text and pictures: road users, speech, spectra, formulas, structured and mixed texts."""

from __future__ import annotations

from ropewalk.catalog.entry import Record, Traits

RECORDS: tuple[Record, ...] = (
    Record(
        slug="drope_directional",
        name="DRoPE (directional)",
        summary="Places turn channel pairs as in RoPE, and a heading turns all of its pairs by itself.",
        paper="DRoPE: Directional Rotary Position Embedding for Efficient Agent Interaction Modeling",
        authors="Jianbo Zhao, Taiyu Ban, Zhihao Liu, Hangning Zhou, Xiyang Wang, Qibin Zhou, Hailong Qin, Mu Yang, Lei Liu, "
        "Bin Li",
        arxiv="2503.15029",
        year=2025,
        kind="rotary",
        traits=Traits(
            relative=True,  # to shifts of place and heading, not to turns of the scene
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
            domain="headings",
        ),
        factory="ropewalk.rotary.drope_directional:DirectionalRoPE",
        defaults={"head_dim": 32},
        needs=("headings",),
        sheet=54,
    ),
    Record(
        slug="larope",
        name="LARoPE",
        summary="RoPE at positions that are divided by the length of their own sequence.",
        paper="Length-Aware Rotary Position Embedding for Text-Speech Alignment",
        authors="Hyeongju Kim, Juheon Lee, Jinhyeok Yang, Jacob Morton",
        arxiv="2509.11084",
        year=2025,
        kind="rotary",
        traits=Traits(
            relative=True,  # within one sequence; in cross-attention each side has its own length
            norm_preserving=True,
            content_dependent=False,
            streamable=False,  # a longer sequence has other positions
            linear_attention=True,
            reduces_to=("rope when the length == gamma",),
        ),
        factory="ropewalk.rotary.larope:LARoPE",
        defaults={"head_dim": 32},
        sheet=88,
    ),
    Record(
        slug="time_speaker_rope",
        name="TS-RoPE",
        summary="Frames turn half of the channel pairs, and the turns and activity of each speaker pairs of their own.",
        paper="TellWhisper: Tell Whisper Who Speaks When",
        authors="Yifan Hu, Peiji Yang, Zhisheng Wang, Yicheng Zhong, Rui Liu",
        arxiv="2601.03712",
        year=2026,
        kind="rotary",
        traits=Traits(
            relative=True,  # in time
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
            domain="turns",
            training="drop-in",
        ),
        factory="ropewalk.rotary.time_speaker_rope:TimeSpeakerRoPE",
        defaults={"head_dim": 32},
        needs=("speakers",),
        sheet=89,
    ),
    Record(
        slug="wavelength_rope",
        name="Log-wavelength RoPE",
        summary="RoPE at the logarithm of a wavelength, so that attention does not see a redshift.",
        paper="OmniSpectra, a wavelength-native foundation model for spectral representation learning",
        authors="not known",
        arxiv=None,
        year=2026,
        kind="rotary",
        traits=Traits(
            relative=True,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
            domain="spectra",
        ),
        factory="ropewalk.rotary.wavelength_rope:WavelengthRoPE",
        defaults={"head_dim": 32},
        needs=("spectra",),
        sheet=40,
    ),
    Record(
        slug="position_forest",
        name="Position forest",
        summary="Tokens of formulas are embedded by the scripts, fractions and roots that they are in.",
        paper="PosFormer: Recognizing Complex Handwritten Mathematical Expression with Position Forest Transformer",
        authors="Tongkun Guan, Chengyu Lin, Wei Shen, Xiaokang Yang",
        arxiv="2407.07764",
        year=2024,
        kind="embedding",
        traits=Traits(
            relative=False,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
            domain="formulas",
        ),
        factory="ropewalk.embedding.position_forest:PositionForestEmbedding",
        defaults={"hidden_size": 128},
        needs=("formulas",),
        sheet=105,
    ),
)
