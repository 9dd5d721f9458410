"""RoPE++: do imaginary heads help?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lab.experiments.desk import FULL_TEXT, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

if TYPE_CHECKING:
    from ropewalk.lab.model import Decoder
    from ropewalk.lab.workloads import Workload

_ROPE = "rope(pairing=half)"
_REAL, _IMAGINARY = "rope_pp, noise on real heads", "rope_pp, noise on imaginary heads"

EXPERIMENT = Experiment(
    name="rope_pp",
    slugs=("rope_pp",),
    claim="The imaginary part of the rotary product as further heads on the same keys and values makes language models better, "
    "the more so in long contexts, with the same cache.",
    source="Xiaoran Liu, Yuerong Song, Zhigeng Liu, Zengfeng Huang, Qipeng Guo, Zhaoxiang Liu, Shiguo Lian, Ziwei He, Xipeng "
    "Qiu. Beyond Real: Imaginary Extension of Rotary Position Embeddings for Long-Context LLMs. arXiv 2512.07525, 2025",
    expected="With as large a cache RoPE++ has a lower loss than RoPE at the trained length, and the gap does not close at "
    "twice that length; noise on the queries of imaginary heads does more harm there than on those of real ones.",
    settings={**TEXT, "encodings": ("rope_pp", _ROPE), "eval_lengths": (128, 256)},
    contrasts=(
        Contrast("rope_pp", _ROPE, "lower", (128,)),
        Contrast("rope_pp", _ROPE, "lower", (256,), decides=False, because="twice the trained length"),
        Contrast(_IMAGINARY, _REAL, "higher", (256,), decides=False, because="which heads long contexts need"),
    ),
    altered={
        _REAL: ("rope_pp", f"{__name__}:noise_on_real_heads"),
        _IMAGINARY: ("rope_pp", f"{__name__}:noise_on_imaginary_heads"),
    },
    seconds=150,
    full=FULL_TEXT,
    limits=f"Seen on {SMALL_MODEL}. RoPE++ has twice the heads and a wider output projection, so part of a gain may be its size, "
    "here as in the paper. Tests at 32,000 tokens are not tried.",
)


def noise_on_real_heads(model: Decoder, workload: Workload) -> None:
    """Add noise to the queries of the real heads."""
    _disturb(model, 0)


def noise_on_imaginary_heads(model: Decoder, workload: Workload) -> None:
    """Add noise to the queries of the imaginary heads."""
    _disturb(model, 1)


def _disturb(model: Decoder, part: int, size: float = 0.5) -> None:
    """Add normal noise to every second head from ``part`` on, as large as ``size`` of the queries' own spread."""
    import torch
    from torch import Tensor, nn

    from ropewalk.core.attention import Attention

    def disturbed(q: Tensor) -> Tensor:
        noise = torch.zeros_like(q)
        noise[:, part::2] = torch.randn_like(q[:, part::2])
        return q + size * q.std() * noise

    def hook(module: nn.Module, given: object, made: Attention) -> Attention:
        return made.map_queries(disturbed)

    for encoding in {id(encoding): encoding for encoding in model.encodings}.values():  # layers may share one
        encoding.register_forward_hook(hook)
