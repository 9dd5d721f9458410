"""LongRoPE with its two sets of factors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.longrope import longrope_attention_factor
from ropewalk.frequencies.ntk import ntk_factors
from ropewalk.frequencies.spectrum import Spectrum, geometric
from ropewalk.rotary.follows_length import FollowsLength


class LongRoPE(FollowsLength):
    """s_ij = c² q_i · R((j − i) ω(n_i)) k_j / √d,  ω_p(n) = ω_p / λ_p for n ≤ L, ω_p / Λ_p beyond,  n_i = i + 1.

    A factor for each plane, one set for short contexts and one for long ones. A query uses the set of the length it can see,
    see `FollowsLength`: the usual form changes all cached keys' frequencies when the context crosses L, and mixes them in
    what was cached. For contexts known to be short or long, `Spectrum.longrope` with `RoPE` is cheaper.

    Args:
        head_dim: width d of a head, even.
        original: L, tokens of the training context.
        factor: s, new context over the original one.
        short: λ, one a plane; None: 1.
        long: Λ, one a plane, as `ropewalk.frequencies.search_factors` finds them; None: those of NTK-aware scaling by s, from
            which that search starts.
        attention_factor: c; None: √(1 + ln s / ln L).
        base: of the frequencies.
        pairing: "half" as in Phi-3, or "interleaved".
        spectrum: other frequencies before scaling than the geometric ones.

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); positions (b, S), integer or real, in tokens.

    Raises:
        ConfigError: factors that are not positive, or not one a plane.
        CannotCompose: after an encoding whose scores are not one dot product.

    Source: Yiran Ding, Li Lyna Zhang, Chengruidong Zhang, Yuanyuan Xu, Ning Shang, Jiahang Xu, Fan Yang, Mao Yang. LongRoPE:
    Extending LLM Context Window Beyond 2 Million Tokens. arXiv 2402.13753, 2024.
    """

    long_inv_freq: Tensor

    def __init__(
        self,
        head_dim: int,
        original: float = 4096,
        factor: float = 4.0,
        *,
        short: Sequence[float] | None = None,
        long: Sequence[float] | None = None,
        attention_factor: float | None = None,
        base: float = 10_000.0,
        pairing: Pairing = "half",
        spectrum: Spectrum | None = None,
    ) -> None:
        ladder = geometric(head_dim, base) if spectrum is None else spectrum
        if attention_factor is None:
            attention_factor = longrope_attention_factor(factor, original)
        near = (1.0,) * len(ladder.inv_freq) if short is None else short
        far = ntk_factors(len(ladder.inv_freq), factor) if long is None else long
        super().__init__(ladder.longrope(near, attention_factor=attention_factor), original, head_dim, pairing)
        self.beyond = ladder.longrope(far, attention_factor=attention_factor)
        self.derive("long_inv_freq", self.beyond.tensor)

    def frequencies(self, length: Tensor) -> Tensor:
        short, long = (self.exact(name, length.device) for name in ("inv_freq", "long_inv_freq"))
        return torch.where(length[..., None] > self.original, long, short)
