"""RoPE."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.core import rotation
from ropewalk.core.encoding import Rotary
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum, check_base, check_rotary_width, geometric


class RoPE(Rotary):
    """(a, b) → (a cos pω_i − b sin pω_i, a sin pω_i + b cos pω_i),  ω_i = base^(−2i/d).

    Each pair of channels of q and k at position p is turned by the angle pω_i. The product of a turned query and a
    turned key depends on the difference of their positions alone.

    Args:
        head_dim: width d of a head, even; None: taken from the first problem.
        base: of the frequencies; 10000 in the paper.
        pairing: "interleaved" (channels 2i, 2i+1: the paper, GPT-J) or "half" (i, i+d/2: GPT-NeoX, Llama and most of
            Hugging Face). A checkpoint depends on it; `ropewalk.convert_pairing` converts weights.
        spectrum: other frequencies than the geometric ones.

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); positions (b, S), integer or real, in tokens.
    Numbers: angles in float64, cos and sin in float32 (float64 for float64 inputs), turned in float32 or wider.

    Raises:
        ConfigError: an odd width, a base that is not positive, an unknown pairing.
        ShapeError: heads of another width.

    Source: Jianlin Su, Yu Lu, Shengfeng Pan, Ahmed Murtadha, Bo Wen, Yunfeng Liu. RoFormer: Enhanced Transformer with
    Rotary Position Embedding. arXiv 2104.09864, 2021.
    """

    inv_freq: Tensor

    def __init__(
        self,
        head_dim: int | None = None,
        base: float = 10_000.0,
        pairing: Pairing = "interleaved",
        *,
        spectrum: Spectrum | None = None,
    ) -> None:
        super().__init__(pairing)
        check_base(base)
        if spectrum is not None:
            width = 2 * len(spectrum.inv_freq)
            if head_dim is None:
                head_dim = width
            if width > head_dim:
                raise ConfigError(f"a spectrum of {len(spectrum.inv_freq)} pairs does not fit head_dim {head_dim}")
            self.magnitude = spectrum.attention_factor
        self.head_dim: int | None = None
        self.base = float(base)
        self.spectrum = spectrum
        if head_dim is not None:
            check_rotary_width(head_dim)
            self.fit(head_dim)

    def fit(self, head_dim: int) -> None:
        if self.head_dim is None:
            check_rotary_width(head_dim)
            self.head_dim = head_dim
            self.derive("inv_freq", self._inverse_frequencies)
        elif self.head_dim != head_dim:
            raise ShapeError(
                f"{type(self).__name__} was made for head_dim {self.head_dim} and the problem has {head_dim}. To turn the "
                f"first channels only, use Partial({type(self).__name__}(n), n)"
            )

    def frequencies(self, head_dim: int) -> Spectrum:
        """Return the frequencies for a width."""
        return self.spectrum if self.spectrum is not None else geometric(head_dim, self.base)

    def _inverse_frequencies(self) -> Tensor:
        assert self.head_dim is not None
        return self.frequencies(self.head_dim).tensor()

    def angles(self, position: Tensor) -> Tensor:
        return position[..., None] * self.exact("inv_freq", position.device)

    def cos_sin(self, position: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if type(self).angles is not RoPE.angles:  # a subclass turns by other angles than these products
            return super().cos_sin(position, dtype)
        inv_freq = self.exact("inv_freq", position.device)
        cos, sin = rotation.product_tables(position, inv_freq, dtype, self.magnitude, self.pairing)
        return cos[:, None], sin[:, None]

    def extra_repr(self) -> str:
        numbers = f"base={self.base}" if self.spectrum is None else f"spectrum={self.spectrum.origin or 'given'}"
        return f"{self.head_dim}, {numbers}, pairing={self.pairing}"
