"""DoPE: are the heads with the most concentrated keys the ones to denoise?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lab.experiments.desk import FULL_NEEDLE, SHAPE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ropewalk.lab.model import Decoder

_ROPE, _SCALED = "rope(pairing=half)", "ntk(factor=2)"
_CHOSEN, _RANDOM = "dope, the most concentrated head", "dope, another head"

EXPERIMENT = Experiment(
    name="dope",
    slugs=("dope",),
    claim="Taking the rotary code out of the few heads whose keys have the lowest truncated matrix entropy makes a model that "
    "was stretched by NTK find more at its new length, without training (75.4 to 84.4 % at 24,000 tokens); other heads do not.",
    source="Jing Xiong, Liyang Fan, Hui Shen, Zunhai Su, Min Yang, Lingpeng Kong, Ngai Wong. DoPE: Denoising Rotary Position "
    "Embedding. arXiv 2511.09146, 2025",
    expected="In models trained on haystacks up to 64 and stretched by NTK, denoising the chosen head finds at least as many "
    "needles in haystacks of 128 as denoising another.",
    settings={
        "task": "needle",
        "encodings": (_ROPE,),
        "train_length": 64,
        "eval_lengths": (64, 96, 128),
        "shape": SHAPE,
        "tokens": 500_000,
        "batch_size": 32,
        "lr": 3e-3,
        "seeds": 5,
        "windows": 512,
    },
    drop_in={_SCALED: _ROPE},
    altered={_CHOSEN: (_SCALED, f"{__name__}:denoise_chosen"), _RANDOM: (_SCALED, f"{__name__}:denoise_another")},
    contrasts=(
        Contrast(_CHOSEN, _RANDOM, "higher", (128,)),
        Contrast(_CHOSEN, _SCALED, "higher", (128,), decides=False, because="against doing nothing"),
        Contrast(_SCALED, _ROPE, "higher", (128,), decides=False, because="what the stretching does"),
    ),
    seconds=200,
    full=FULL_NEEDLE,
    limits="Two layers of two heads: one head of four is a quarter of the model, where the paper treats one to thirty of a "
    "thousand. Heads are denoised by leaving q and k unrotated.",
)


def denoise_chosen(model: Decoder) -> None:
    """Take the rotation out of the head whose keys have the lowest truncated effective rank on needles at twice the length."""
    _denoise(model, lambda scores: int(scores.argmin()))


def denoise_another(model: Decoder) -> None:
    """Do the same to the head whose keys have the highest."""
    _denoise(model, lambda scores: int(scores.argmax()))


def _denoise(model: Decoder, choose: Callable[[Tensor], int], length: int = 128, rank: int = 8) -> None:
    import torch

    from ropewalk.analysis.matrix_entropy import concentration
    from ropewalk.core.attention import Attention
    from ropewalk.core.encoding import Encoding
    from ropewalk.lab.tasks import task
    from ropewalk.rotary.dope import DoPE
    from ropewalk.rotary.rope import RoPE

    own = [encoding for encoding in model.encodings if isinstance(encoding, RoPE)]
    scores: list[Tensor] = []

    def put(encodings: list[Encoding]) -> None:
        for block, encoding in zip(model.blocks, encodings, strict=True):
            block.attention.encoding = encoding  # type: ignore[union-attr]

    class Watched(Encoding):
        """The model's own rotation, with its keys looked at."""

        def rewrite(self, problem: Attention) -> Attention:
            turned = own[len(scores)](problem)
            assert isinstance(turned, Attention)
            scores.append(concentration(turned.k, rank).mean(0))
            return turned

    batch = task("needle").eval_batch(length, 64, seed=1)
    put([Watched() for _ in own])
    with torch.no_grad():
        model(batch.tokens, batch.where())
    heads = model.config.kv_heads
    chosen = divmod(choose(torch.stack(scores).flatten()), heads)
    whole = DoPE(
        model.config.width, model.config.num_heads, heads, heads=[chosen], mode="nope",
        pairing=own[0].pairing, spectrum=own[0].frequencies(model.config.width),
    )  # fmt: skip
    put([whole.layer(i) for i in range(len(own))])
