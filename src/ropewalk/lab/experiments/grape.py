"""GRAPE: do the additive forms beat rotations?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import FULL_TEXT, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

EXPERIMENT = Experiment(
    name="grape",
    slugs=(
        "grape_ap",
        "grape_a_qk",
        "grape_a_q",
        "grape_a_k",
        "grape_m_nonctx",
        "grape_m_commuting",
        "grape_m_compact",
        "grape_rank2",
        "grape_m_ctx",
        "fox",
        "kv_shift",
    ),
    claim="Language models with the additive forms of GRAPE, the path-integral one above all, are better than with RoPE (53.3 "
    "against 51.7 on average of seven tasks); the multiplicative ones are about equal.",
    source="Yifan Zhang, Zixiang Chen, Yifeng Liu, Zhen Qin, Huizhuo Yuan, Kangping Xu, Yang Yuan, Quanquan Gu, Andrew Chi-Chih "
    "Yao. Group Representational Position Encoding. arXiv 2512.07805, 2025",
    expected="GRAPE-AP and GRAPE-A-QK have a loss no higher than RoPE at the trained length, and a much lower one at four times "
    "that length.",
    settings={**TEXT, "encodings": ("grape_ap", "grape_a_qk", "rope"), "tokens": 400_000},
    contrasts=(
        Contrast("grape_ap", "rope", "lower", (128,)),
        Contrast("grape_a_qk", "rope", "lower", (128,)),
        Contrast("grape_ap", "rope", "lower", (512,), decides=False, because="four times the trained length"),
        Contrast("grape_a_qk", "rope", "lower", (512,), decides=False, because="four times the trained length"),
    ),
    seconds=110,
    full={
        **FULL_TEXT,
        "encodings": ("grape_ap", "grape_a_qk", "rope", "grape_m_nonctx", "grape_m_ctx", "alibi", "fox"),
        "qk_norm": True,
    },
    limits=f"Seen on {SMALL_MODEL}, by loss: tests of knowledge need models that have some.",
)
