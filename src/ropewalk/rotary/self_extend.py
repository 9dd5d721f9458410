"""SelfExtend, grouped positions beyond a window."""

from __future__ import annotations

import math

from torch import Tensor

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.core.positions import Chain, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum
from ropewalk.rotary.two_scores import Side, TwoScores


class SelfExtend(TwoScores):
    """s_ij = ⟨R(P(i,j)) q_i, k_j⟩ / √d,  P = i − j if that is below w,  ⌊i/G⌋ − ⌊j/G⌋ + w − ⌊w/G⌋ otherwise.

    RoPE up to a window. Beyond it, positions are counted in groups of G tokens, so that distances stay below those of the
    trained context L up to (L − w) G + w tokens (`reach`).

    Args:
        head_dim: width d of a head, even; None: taken from the first problem.
        group: G; 1 is RoPE. None: 8, or the smallest that reaches ``length``.
        window: w, below the trained context; None: a quarter of it.
        base: of the frequencies.
        pairing: "half" as in Llama, or "interleaved".
        train_length: L, tokens of the trained context.
        length: tokens of the wanted one.
        spectrum: other frequencies than the geometric ones, as in `RoPE`.

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); positions (b, S), in tokens, counted from 0: groups begin at multiples of G,
    so scores are not the same after a shift. A cache holds every key twice.

    Raises:
        ConfigError: a group or a window that is no positive whole number.
        NotCausal: the problem is not causal.

    Source: Hongye Jin, Xiaotian Han, Jingfeng Yang, Zhimeng Jiang, Zirui Liu, Chia-Yuan Chang, Huiyuan Chen, Xia Hu. LLM Maybe
    LongLM: Self-Extend LLM Context Window Without Tuning. arXiv 2401.01325, 2024.
    """

    share = 4

    def __init__(
        self,
        head_dim: int | None = None,
        group: int | None = None,
        window: int | None = None,
        base: float = 10_000.0,
        pairing: Pairing = "half",
        *,
        train_length: int = 4096,
        length: int | None = None,
        spectrum: Spectrum | None = None,
    ) -> None:
        super().__init__(head_dim, window, base, pairing, train_length=train_length, spectrum=spectrum)
        check_positive(group=group, length=length)
        if group is None:
            group = 8 if length is None else self._group(train_length, length)
        self.group = group

    def _group(self, train_length: int, length: int) -> int:
        """Return the smallest group whose `reach` is the wanted length."""
        if length <= train_length:
            return 1
        if self.window >= train_length:
            raise ConfigError(
                f"window={self.window} leaves nothing of the trained {train_length} tokens to groups; give a smaller one"
            )
        return math.ceil((length - self.window) / (train_length - self.window))

    def far(self, tokens: Tokens, at: Chain, side: Side) -> Tensor | None:
        position = (tokens.coordinates(at) / self.group).floor()
        return self.angles(position + (self.window - self.window // self.group) if side == "query" else position)

    def reach(self, train_length: int) -> int:
        """Return (L − w) G + w: the longest text whose distances all were trained."""
        return max(train_length - self.window, 0) * self.group + min(self.window, train_length)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, group={self.group}"
