"""HoPE, high-frequency rotary position encoding."""

from __future__ import annotations

from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.high_frequency import check_train_length, high_frequency
from ropewalk.frequencies.spectrum import Spectrum, geometric
from ropewalk.rotary.rope import RoPE


class HoPEHighFrequency(RoPE):
    """RoPE in which pair i turns by pω_i = p base^(−2i/d) only where ω_i ≥ 2π / L, with the training length L.

    Pairs that do not complete a turn during training are left to content, so that no angle of a pair is new at longer
    contexts and far keys are not damped on average: Σ_i cos(m ω_i) falls near by and then varies around d/2 − r, r the number
    of turning pairs. It is p-RoPE with p tied to L.

    For other frequencies than the geometric ones use the schedule, ``RoPE(spectrum=high_frequency(spectrum, L))``.

    Args:
        head_dim: width d of a head, even; None: taken from the first problem.
        train_length: L in tokens, the length of the training; it stays the same at inference.
        base: of the frequencies.
        pairing: "half" as in Llama, or "interleaved".
        keep_one: turn pair 0 even where L < 2π leaves none.

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); positions (b, S), integer or real, in tokens.

    Raises:
        ConfigError: a training length that is not positive, an odd width.
        ShapeError: heads of another width.

    Source: Yuhan Chen, Ang Lv, Jian Luan, Bin Wang, Wei Liu. HoPE: A Novel Positional Encoding Without Long-Term Decay for
    Enhanced Context Awareness and Extrapolation. arXiv 2410.21216, 2024. Two other papers call their encoding HoPE.
    """

    def __init__(
        self,
        head_dim: int | None = None,
        *,
        train_length: float,
        base: float = 10_000.0,
        pairing: Pairing = "half",
        keep_one: bool = True,
    ) -> None:
        super().__init__(None, base, pairing)
        check_train_length(train_length)
        self.train_length, self.keep_one = train_length, keep_one
        if head_dim is not None:
            self.fit(head_dim)

    def frequencies(self, head_dim: int) -> Spectrum:
        kept = high_frequency(geometric(head_dim, self.base), self.train_length, keep_one=self.keep_one)
        return kept.trimmed(self.pairing)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, train_length={self.train_length}"
