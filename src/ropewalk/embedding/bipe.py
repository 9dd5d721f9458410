"""BiPE, bilevel positional encoding."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn.functional import embedding

from ropewalk.bias.alibi import ALiBi
from ropewalk.bias.slopes import alibi_slopes
from ropewalk.coordinates.axis import OnAxis
from ropewalk.core.attention import Attention, Problem
from ropewalk.core.combinators import Sequential
from ropewalk.core.encoding import Encoding, table_dtype
from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.core.positions import Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.embedding.learned import LearnedAbsolute
from ropewalk.rotary.rope import RoPE


class IntraSegment(LearnedAbsolute):
    """x_i ← x_i + E[min(l_i, L − 1)],  l_i the place of the token inside its segment,  E ∈ R^{L × d} learned.

    Args:
        max_length: L; the places from L − 1 on share the last vector.
        hidden_size: width d of the embeddings.
        bug_compatible: the released model hands padding_idx = −1 to its table: the last vector is zero and never learns.

    Raises:
        PositionError: a place that is negative, or a fraction.

    Source: see `BiPE`.
    """

    def __init__(self, max_length: int, hidden_size: int, *, bug_compatible: bool = False) -> None:
        super().__init__(max_length, hidden_size)
        self.bug_compatible = bug_compatible
        if bug_compatible:
            nn.init.zeros_(self.weight[-1])

    def rows(self, index: Tensor) -> Tensor:
        return embedding(index, self.weight, padding_idx=-1) if self.bug_compatible else super().rows(index)

    def table(self, position: Tensor) -> Tensor:
        return super().table(position.clamp(max=self.max_length - 1))


class LogScale(Encoding):
    """q_i ← q_i max(1, ln(p_i + 1) / ln T): sharper attention for queries beyond the training length T.

    It depends on the query's position and not on the length of the sequence, so that decoding equals the full pass.

    Args:
        train_length: T, above 1.

    Source: see `BiPE`.
    """

    def __init__(self, train_length: int) -> None:
        super().__init__()
        check_positive(train_length=train_length)
        if train_length < 2:
            raise ConfigError(f"train_length is above 1, since its logarithm divides; got {train_length}")
        self.train_length = train_length

    def rewrite(self, problem: Attention) -> Problem:
        position = problem.where.query.coordinates(problem.at)
        size = (position.clamp(min=0) + 1).log() / math.log(self.train_length)
        factor = size.clamp(min=1)[:, None, :, None].to(table_dtype(problem.q))
        return problem.map_queries(lambda q: (q * factor).to(q.dtype))

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        return problem

    def extra_repr(self) -> str:
        return f"train_length={self.train_length}"


class BiPE(Sequential):
    """x_i ← x_i + E[l_i], and between segments any encoding of the segment index n_i.

    Text is cut into segments (sentences, lines). However long it is, places l inside a segment stay in their trained range, and
    only the number n of the segment, much smaller than that of the token, has to extrapolate. Positions are pairs (n, l): make
    them by `segment_positions`, for the new tokens of a decoding step too (it carries a state).

        BiPE(RoPE(64, pairing="half"), hidden_size=768)                  # BiPE-RoPE
        BiPE(Sequential(Scale(8), RoPE(64, pairing="half")), 768)        # its segment index interpolated

    Args:
        inter: encoding between segments, of plain positions.
        hidden_size: width of the embeddings.
        max_intra: learned places inside a segment; what lies beyond shares the last.
        bug_compatible: see `IntraSegment`.

    Shapes: x (B, S, hidden_size); positions (b, S, 2).

    Source: Zhenyu He, Guhao Feng, Shengjie Luo, Kai Yang, Liwei Wang, Jingjing Xu, Zhi Zhang, Hongxia Yang, Di He. Two Stones
    Hit One Bird: Bilevel Positional Encoding for Better Length Extrapolation. arXiv 2401.16421, 2024.
    """

    def __init__(
        self, inter: Encoding, hidden_size: int, *, max_intra: int = 1024, bug_compatible: bool = False
    ) -> None:
        intra = IntraSegment(max_intra, hidden_size, bug_compatible=bug_compatible)
        super().__init__(OnAxis(intra, 1), OnAxis(inter, 0))


def bipe_rope(
    hidden_size: int,
    head_dim: int | None = None,
    *,
    max_intra: int = 1024,
    base: float = 10_000.0,
    pairing: Pairing = "half",
    log_scale: bool = False,
    bug_compatible: bool = False,
) -> BiPE:
    """x_i ← x_i + E[l_i];  (a, b) turned by n_i ω_c,  ω_c = base^(−2c/d): RoPE of the segment index.

    Inside a segment all tokens are turned alike, and the embedding alone orders them.

    Args:
        hidden_size: width of the embeddings.
        head_dim: width d of a head, even; None: taken from the first problem.
        max_intra: learned places inside a segment; what lies beyond shares the last.
        base: of the frequencies.
        pairing: "half", as in the released models, or "interleaved".
        log_scale: multiply queries by max(1, ln(n_i + 1) / ln max_intra); the released code counts segments here, not tokens.
        bug_compatible: see `IntraSegment`.

    Source: Zhenyu He, Guhao Feng, Shengjie Luo, Kai Yang, Liwei Wang, Jingjing Xu, Zhi Zhang, Hongxia Yang, Di He. Two Stones
    Hit One Bird: Bilevel Positional Encoding for Better Length Extrapolation. arXiv 2401.16421, 2024.
    """
    rope: Encoding = RoPE(head_dim, base, pairing)
    inter = Sequential(rope, LogScale(max_intra)) if log_scale else rope
    return BiPE(inter, hidden_size, max_intra=max_intra, bug_compatible=bug_compatible)


SLOPE = 96.0
"""The released ALiBi model multiplies slopes by this: segments are so much fewer than tokens."""


def bipe_alibi(
    hidden_size: int, num_heads: int, *, max_intra: int = 1024, slope: float = SLOPE, bug_compatible: bool = False
) -> BiPE:
    """x_i ← x_i + E[l_i];  s_ij = q_i·k_j / √d − 96 m_h (n_i − n_j): ALiBi of the segment index.

    Args:
        hidden_size: width of the embeddings.
        num_heads: query heads H of the layer.
        max_intra: learned places inside a segment; what lies beyond shares the last.
        slope: the 96 that ALiBi's slopes m are multiplied by.
        bug_compatible: see `IntraSegment`.

    Source: Zhenyu He, Guhao Feng, Shengjie Luo, Kai Yang, Liwei Wang, Jingjing Xu, Zhi Zhang, Hongxia Yang, Di He. Two Stones
    Hit One Bird: Bilevel Positional Encoding for Better Length Extrapolation. arXiv 2401.16421, 2024.
    """
    check_positive(num_heads=num_heads)
    if not 0 < slope < math.inf:
        raise ConfigError(f"slope is a positive number; got {slope!r}")
    slopes = (slope * alibi_slopes(num_heads)).tolist()
    return BiPE(ALiBi(slopes=slopes), hidden_size, max_intra=max_intra, bug_compatible=bug_compatible)
