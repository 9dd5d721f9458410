"""TS-RoPE: are turns of a speaker found by counting them?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import SHAPE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_FULL, _ROPE = "time_speaker_rope(base=100)", "rope(base=100, pairing=half)"
_NO_TURNS, _SILENT = "time_speaker_rope(base=100, turns=False)", "time_speaker_rope(base=100, activity=False)"

EXPERIMENT = Experiment(
    name="time_speaker_rope",
    slugs=("time_speaker_rope",),
    claim="Axes of each speaker's turns and activity beside time help a model to tell who speaks when; without the count of "
    "turns, and more so without activity, errors grow.",
    source="Yifan Hu, Peiji Yang, Zhisheng Wang, Yicheng Zhong, Rui Liu. TellWhisper: Tell Whisper Who Speaks When. arXiv "
    "2601.03712, 2026",
    expected="Models with TS-RoPE name the first word of a speaker's last turn more often than models with RoPE.",
    settings={
        "task": "last_turn(words=4)",
        "encodings": (_FULL, _ROPE, _NO_TURNS, _SILENT),
        "encoder": True,
        "train_length": 8,
        "eval_lengths": (8, 12),
        "shape": SHAPE,
        "tokens": 300_000,
        "batch_size": 64,
        "lr": 3e-3,
        "windows": 256,
    },
    contrasts=(
        Contrast(_FULL, _ROPE, "higher", (8,)),
        Contrast(_FULL, _ROPE, "higher", (12,), decides=False, because="conversations longer than those of training"),
        Contrast(_FULL, _NO_TURNS, "higher", (8,), decides=False, because="the count of turns"),
        Contrast(_FULL, _SILENT, "higher", (8,), decides=False, because="activity"),
    ),
    seconds=200,
    full={"task": "last_turn", "train_length": 16, "eval_lengths": (8, 12, 16), "tokens": 6_000_000, "seeds": 5},
    limits="Made-up conversations of a dozen frames, in which one speaker talks at a time and activities are known; no speech, "
    "no overlap, no diarisation, no pretrained Whisper. The bias of queries, whose "
    "ablation the paper has as well, is in all of them.",
)
