"""Dynamic NTK."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.checks import check_factor
from ropewalk.frequencies.spectrum import Spectrum, geometric
from ropewalk.rotary.follows_length import FollowsLength


class DynamicNTK(FollowsLength):
    """s_ij = q_i · R((j − i) ω(n_i)) k_j / √d,  ω_p(n) = ω_p (a n/L − (a − 1))^(−p/(P−1)) for n > L,  n_i = i + 1.

    RoPE up to the training context, and NTK-aware scaling that grows with the length beyond. The last token of a sequence has
    the published logits; earlier ones have those of when they were last, see `FollowsLength`. For one length that is known
    before, `Spectrum.dynamic_ntk` with `RoPE` is cheaper.

    Args:
        head_dim: width d of a head, even.
        original: L, tokens of the training context ("max_position_embeddings").
        factor: a ("factor" of a configuration); 1 is NTK-aware scaling by n/L.
        base: of the frequencies.
        pairing: "half" as in Llama, or "interleaved".
        spectrum: other frequencies up to L than the geometric ones.

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); positions (b, S), integer or real, in tokens.

    Raises:
        ConfigError: a factor below 1, a length that is not positive.
        CannotCompose: after an encoding whose scores are not one dot product.

    Source: emozilla, Dynamically Scaled RoPE, 2023; in Bowen Peng, Jeffrey Quesnelle, Honglu Fan, Enrico Shippole. YaRN:
    Efficient Context Window Extension of Large Language Models. arXiv 2309.00071, 2023.
    """

    def __init__(
        self,
        head_dim: int,
        original: float = 2048,
        factor: float = 1.0,
        base: float = 10_000.0,
        pairing: Pairing = "half",
        *,
        spectrum: Spectrum | None = None,
    ) -> None:
        check_factor(factor)
        super().__init__(geometric(head_dim, base) if spectrum is None else spectrum, original, head_dim, pairing)
        self.factor = float(factor)

    def frequencies(self, length: Tensor) -> Tensor:
        inv_freq = self.exact("inv_freq", length.device)
        place = torch.arange(len(inv_freq), dtype=torch.float64, device=length.device)
        scale = self.factor * length / self.original - (self.factor - 1)
        return inv_freq * scale[..., None] ** (-place / max(len(inv_freq) - 1, 1))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, factor={self.factor}"
