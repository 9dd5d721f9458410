"""PyPE, pyramid-descent visual position encoding: fewer rings the deeper the layer."""

from __future__ import annotations

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum
from ropewalk.rotary.concentric import ConcentricAttention, RingIds


class PyPE(ConcentricAttention):
    """RoPE in layer ℓ at p = s + min(ring(r, c), L_ℓ − 1),  L_ℓ = max(R − ⌊ℓ/jump⌋, 1),  R = ⌈min(H, W)/2⌉.

    Every ``jump`` layers the innermost rings of concentric attention become one, until all tokens of an image share a
    position. Text after it goes on at s + L_ℓ, so that text too is placed by layer. Inside an image a token sees those at its
    own position and below.

    Args:
        head_dim: width of a head.
        jump: layers from one merging to the next; from the number of layers on it is concentric attention.
        layer_index: which layer this is; ``encoding.layer(i)`` makes one for each.
        base: of the frequencies.
        rotary_dim: channels that turn, the first ones; None: all.
        pairing: "half" as released.
        spectrum: other frequencies.

    Shapes, errors: see `ConcentricAttention`.

    Source: Zhanpeng Chen, Mingxiao Li, Ziyang Chen, Nan Du, Xiaolong Li, Yuexian Zou. Advancing General Multimodal Capability
    of Vision-language Models with Pyramid-descent Visual Position Encoding. arXiv 2501.10967, 2025. Which jump was released is
    not said; grids that are odd or not square, and several images, are this library's extension.
    """

    why = "tokens at one position see each other"

    def __init__(
        self,
        head_dim: int,
        jump: int = 4,
        base: float = 10_000.0,
        *,
        layer_index: int = 0,
        rotary_dim: int | None = None,
        pairing: Pairing = "half",
        spectrum: Spectrum | None = None,
    ) -> None:
        check_positive(jump=jump)
        if isinstance(layer_index, bool) or not isinstance(layer_index, int) or layer_index < 0:
            raise ConfigError(f"layer_index is a whole number from 0; got {layer_index!r}")
        super().__init__(
            head_dim,
            base,
            rotary_dim=rotary_dim,
            pairing=pairing,
            spectrum=spectrum,
        )
        self.scheme = RingIds("rings", layer_index // jump)
        self.jump, self.layer_index = jump, layer_index

    def layer(self, index: int) -> PyPE:
        return PyPE(
            self.head_dim,
            self.jump,
            self.base,
            layer_index=index,
            rotary_dim=2 * self.allocation.pairs,
            pairing=self.pairing,
            spectrum=self.spectrum,
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, jump={self.jump}, layer_index={self.layer_index}"
