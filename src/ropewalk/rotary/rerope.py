"""ReRoPE, rectified rotary positions, and its leaky form."""

from __future__ import annotations

import math

from torch import Tensor

from ropewalk.core.errors import ConfigError
from ropewalk.core.positions import Chain, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum
from ropewalk.rotary.two_scores import Side, TwoScores


class ReRoPE(TwoScores):
    """s_ij = ⟨R(P(i,j)) q_i, k_j⟩ / √d,  P = r for r = i − j < w,  P = w + (r − w)/κ for r ≥ w;  κ = ∞: P = w.

    RoPE up to a window, and one and the same distance to everything beyond: no text is too long. The leaky form (finite κ)
    goes on in steps of 1/κ, and reaches a trained context L at κ (L − w) + w tokens. The author's recipe for models
    that were not trained with it also scales queries by the logarithm of their position: ``rerope + log_length_scale``.

    Args:
        head_dim: width d of a head, even; None: taken from the first problem.
        window: w, below the *trained* context, 512 to 1024 of 4096 as published; None: an eighth of it.
        leak: κ, at least 1; None: ∞. 1 is RoPE.
        base: of the frequencies.
        pairing: "half" as in Llama, or "interleaved".
        train_length: tokens of the trained context.
        spectrum: other frequencies than the geometric ones, as in `RoPE`.

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); positions (b, S), integer or real, in tokens. A cache holds every key twice.

    Raises:
        ConfigError: a window that is no positive number, a leak below 1.
        NotCausal: the problem is not causal.

    Source: Jianlin Su. Rectified Rotary Position Embeddings, 2023 (bojone/rerope; kexue.fm/archives/9708).
    """

    def __init__(
        self,
        head_dim: int | None = None,
        window: int | None = None,
        leak: float | None = None,
        base: float = 10_000.0,
        pairing: Pairing = "half",
        *,
        train_length: int = 4096,
        spectrum: Spectrum | None = None,
    ) -> None:
        super().__init__(head_dim, window, base, pairing, train_length=train_length, spectrum=spectrum)
        if leak is not None and not 1 <= leak < math.inf:
            raise ConfigError(f"leak is how much slower far distances grow, at least 1, or None; got {leak!r}")
        self.leak = leak

    def far(self, tokens: Tokens, at: Chain, side: Side) -> Tensor | None:
        slope = 0.0 if self.leak is None else 1 / self.leak
        position = slope * tokens.coordinates(at)
        return self.angles(position + self.window * (1 - slope) if side == "query" else position)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, leak={self.leak}"
