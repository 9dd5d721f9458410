"""Position coupling: do sums reach longer numbers?"""

from __future__ import annotations

from ropewalk.lab.experiments.experiment import Contrast, Experiment

_COUPLED, _NONE = "position_coupling(max_position=12)", "nope"

EXPERIMENT = Experiment(
    name="position_coupling",
    slugs=("position_coupling",),
    claim="Learned positions that digits of equal significance share let models that were trained on sums of up to 30 digits add "
    "numbers of 200.",
    source="Hanseul Cho, Jaeyoung Cha, Pranjal Awasthi, Srinadh Bhojanapalli, Anupam Gupta, Chulhee Yun. Position Coupling: "
    "Improving Length Generalization of Arithmetic Transformers Using Task Structure. arXiv 2405.20671, 2024",
    expected="Trained on sums of up to 5 digits, models with coupled positions are right about longer ones more often than "
    "models without positions.",
    settings={
        "task": "addition_coupled(max_position=12)",
        "encodings": (_COUPLED, _NONE),
        "train_length": 5,
        "eval_lengths": (5, 6, 7),
        "shape": {"hidden_size": 64, "num_layers": 1, "num_heads": 4},
        "tokens": 1_600_000,
        "batch_size": 64,
        "lr": 5e-3,
        "windows": 256,
    },
    contrasts=(
        Contrast(_COUPLED, _NONE, "higher", (6, 7)),
        Contrast(_COUPLED, _NONE, "higher", (5,), decides=False, because="sums as long as those of training"),
    ),
    seconds=180,
    full={"tokens": 20_000_000, "seeds": 5, "shape": {"hidden_size": 128, "num_layers": 2, "num_heads": 4}, "lr": 1e-3},
    limits="Sums of a few digits by models of one layer and 55,000 parameters, trained for minutes. Plain positions with a "
    "random start, the other baseline of the paper, are not measured: this task gives every encoding the coupled ones.",
)
