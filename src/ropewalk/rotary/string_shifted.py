"""STRING, shifted rotary positions."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.core.attention import Attention, Problem, Product
from ropewalk.core.errors import ConfigError
from ropewalk.core.positions import Chain, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum
from ropewalk.rotary.rope import RoPE
from ropewalk.rotary.two_scores import Side, TwoScores


class STRINGShifted(TwoScores):
    """s_ij = ⟨R(P(i,j)) q_i, k_j⟩ / √d,  P = r for r = i − j < S,  P = r − S + W for r ≥ S.

    RoPE, but far keys reuse the small relative positions that training covered well: the far part of the distance matrix
    is shifted by S towards the diagonal, then set W apart. Two scores under one softmax; keys are cached as RoPE's.

    Args:
        head_dim: width d of a head, even; None: taken from the first problem.
        shift: S, one third of the *trained* context in the paper; 0 is plain RoPE.
        local: W, 128 in the paper; 1 ≤ W ≤ S. W = S is plain RoPE at any length.
        base: of the frequencies.
        pairing: "half" as released (Llama layout), or "interleaved".
        spectrum: other frequencies than the geometric ones, as in `RoPE`.
        attention_factor: cos and sin are multiplied by it; the released Hugging Face path has 0.1 ln 2 + 1.
        bug_compatible: count the key at distance exactly S twice, as the released prefill does. Its decoding does not, so
            this form refuses a cache.

    Raises:
        ConfigError: local outside 1 ... shift.
        NotCausal: the problem is not causal.

    Source: Chenxin An, Jun Zhang, Ming Zhong, Lei Li, Shansan Gong, Yao Luo, Jingjing Xu, Lingpeng Kong. Why Does the
    Effective Context Length of LLMs Fall Short? arXiv 2410.18745, 2024.
    """

    def __init__(
        self,
        head_dim: int | None = None,
        shift: int = 2730,
        local: int = 128,
        base: float = 10_000.0,
        pairing: Pairing = "half",
        *,
        spectrum: Spectrum | None = None,
        attention_factor: float = 1.0,
        bug_compatible: bool = False,
    ) -> None:
        if shift != 0 and not 1 <= local <= shift:
            raise ConfigError(f"local={local} must lie between 1 and shift={shift} (shift=0 switches the shift off)")
        super().__init__(head_dim, max(shift, 1), base, pairing, spectrum=spectrum)
        self.shift, self.local = shift, local
        self.magnitude *= attention_factor
        self.bug_compatible = bug_compatible

    @classmethod
    def for_context(cls, length: int, head_dim: int | None = None, local: int = 128, **kwargs: object) -> STRINGShifted:
        """Make the published setting for a model trained at ``length``: S = length // 3."""
        return cls(head_dim, length // 3, local, **kwargs)  # type: ignore[arg-type]

    def why_not_cached(self) -> str | None:
        if self.bug_compatible:
            return "the released prefill counts one key twice and its decoding does not"
        return None

    def far(self, tokens: Tokens, at: Chain, side: Side) -> Tensor | None:
        return self.angles(tokens.coordinates(at) + (self.local - self.shift)) if side == "query" else None

    def rewrite(self, problem: Attention) -> Problem:
        if self.shift == 0:
            return RoPE.rewrite(self, problem)
        p = super().rewrite(problem)
        assert isinstance(p, Attention)
        return p.replace(branches=(), product=_counted_twice(p, self.shift)) if self.bug_compatible else p

    def extra_repr(self) -> str:
        return f"{RoPE.extra_repr(self)}, shift={self.shift}, local={self.local}"


def _counted_twice(p: Attention, shift: int) -> Product:
    scale = p.logit_scale

    def scores(q: Tensor, k: Tensor, far: Tensor, i: Tensor, j: Tensor) -> Tensor:
        s_near = scale * (q @ k.transpose(-1, -2))
        s_far = scale * (far.to(q.dtype) @ k.transpose(-1, -2))
        r = i - j.transpose(-1, -2)
        both = torch.logaddexp(s_near, s_far)
        return torch.where(r < shift, s_near, torch.where(r == shift, both, s_far))

    place = p.coordinate()
    return Product(scores, (p.own("far"), place), (place,))


def string_distance_matrix(length: int, shift: int, local: int) -> Tensor:
    """Return P(i, j), (length, length) whole numbers; above the diagonal the (masked) negative distances."""
    if not 1 <= local <= shift:
        raise ConfigError(f"local={local} must lie between 1 and shift={shift}")
    i = torch.arange(length)
    r = i[:, None] - i
    return torch.where(r >= shift, r - shift + local, r)
