"""V2PE: tokens of images take smaller steps than tokens of text."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ropewalk.coordinates.allocation import Allocation
from ropewalk.coordinates.blocks import Table
from ropewalk.coordinates.scheme import Cells, Scheme
from ropewalk.core.errors import ConfigError
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum
from ropewalk.rotary.mrope import rotary_pairs
from ropewalk.rotary.multi_axis import MultiAxisRoPE


@dataclass(frozen=True)
class StepIds(Scheme):
    """p = s + iδ for token i of an image or a video of n tokens at cursor s;  the cursor moves by nδ.

    Args:
        step: δ, from above 0 to 1.
    """

    step: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.step <= 1:
            raise ConfigError(f"the step of visual tokens is more than 0 and at most 1; got {self.step!r}")

    @property
    def axes(self) -> tuple[str, ...]:
        return ("p",)

    def advance(self, table: Table) -> Tensor:
        return table["tokens"] * self.step

    def place(self, cells: Cells) -> Tensor:
        return (cells.cursor + cells.offset * self.step)[..., None]


class V2PE(MultiAxisRoPE):
    """RoPE at p_i = p_{i−1} + 1 after a token of text, p_{i−1} + δ after a token of an image or a video.

    An image of n tokens takes up nδ positions, so that long sequences of images stay within those of training. With δ = 1 it is
    RoPE. Positions are real.

    Args:
        head_dim: width of a head.
        step: δ, from above 0 to 1; powers of 1/2 in the paper.
        base: of the frequencies.
        rotary_dim: channels that turn, the first ones; None: all.
        pairing: "half" as in the language models it was made for.
        spectrum: other frequencies.

    Shapes, errors: see `MultiAxisRoPE`.

    Raises:
        ConfigError: a step that is not above 0 and at most 1.

    Source: Junqi Ge, Ziyi Chen, Jintao Lin, Jinguo Zhu, Xihui Liu, Jifeng Dai, Xizhou Zhu. V2PE: Improving Multimodal
    Long-Context Capability of Vision-Language Models with Variable Visual Position Encoding. arXiv 2412.09616, 2024. The step is
    fixed here; the paper varies it in training.
    """

    def __init__(
        self,
        head_dim: int,
        step: float = 0.25,
        base: float = 10_000.0,
        *,
        rotary_dim: int | None = None,
        pairing: Pairing = "half",
        spectrum: Spectrum | None = None,
    ) -> None:
        pairs = rotary_pairs(head_dim, rotary_dim)
        super().__init__(head_dim, Allocation.one(pairs), StepIds(step), base=base, pairing=pairing, spectrum=spectrum)
