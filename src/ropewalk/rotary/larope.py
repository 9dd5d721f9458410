"""LARoPE: positions as parts of their own sequence, so that speech and text go side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ropewalk.backends import attend
from ropewalk.coordinates.documents import lengths
from ropewalk.core.attention import Attention, Problem, map_leaves
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import ConfigError, PositionError, ShapeError, check_positive
from ropewalk.core.positions import Chain, Positions, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.rotary.rope import RoPE

LENGTH = "length"
"""Column of tokens that are not all of their sequence: how many it has."""


class LARoPE(RoPE):
    """s_mn = ⟨R(γ (n/L_k − m/L_q) ω) q_m, k_n⟩ / √d,  L the length of each side's own sequence,  ω_i = base^(−2i/d).

    The same progress in both sequences is distance 0, whatever their lengths, so that the decay of RoPE becomes a preference
    for the diagonal. Made for cross-attention of speech to text. With L_q = L_k = γ it is RoPE.

    A length is the number of real tokens of the sequence (of the document, where they are packed); the positions are counted
    from 0 by `ropewalk.Positions.arange`, one side each in ``Positions(q=..., k=...)``.

    Args:
        head_dim: width d of a head, even; None: taken from the first problem.
        gamma: γ, the distance from one end to the other. More is a sharper diagonal.
        base: of the frequencies.
        pairing: "half" as released, or "interleaved".

    Shapes: q (B, H, L_q, d), k (B, H_kv, L_k, d); positions (b, L) of each side, integer or real, in tokens.

    Raises:
        ConfigError: γ that is not positive.
        PositionError: a sequence of padding alone.
        CannotCache: a cache, since all positions move when a sequence grows. Where the whole length is known beforehand, RoPE at
            `length_aware_positions` is the same and can be cached.

    Source: Hyeongju Kim, Juheon Lee, Jinhyeok Yang, Jacob Morton. Length-Aware Rotary Position Embedding for Text-Speech
    Alignment. arXiv 2509.11084, 2025.
    """

    def __init__(
        self, head_dim: int | None = None, gamma: float = 10.0, base: float = 10_000.0, pairing: Pairing = "half"
    ) -> None:
        super().__init__(head_dim, base, pairing)
        self.gamma = _gamma(gamma)

    def coordinates(self, tokens: Tokens, chain: Chain) -> Tensor:
        whole = tokens.columns[LENGTH] if LENGTH in tokens.columns else lengths(tokens).clamp(min=1)
        return self.gamma * tokens.coordinates(chain) / whole

    def rewrite(self, problem: Attention) -> Problem:
        where = problem.where
        if where.is_self or where.order is None:
            return super().rewrite(problem)
        # Some queries of the sequence of the keys, which is as long as ever.
        b = max(where.key.batch, len(where.order))
        whole = lengths(where.key).expand(b, where.key.length).gather(1, where.order.expand(b, -1))
        query = where.query.with_columns(**{LENGTH: whole})
        done = super().rewrite(problem.replace(positions=Positions.pair(query, where.key, where.order)))
        return map_leaves(done, lambda p: p.replace(positions=where))

    def why_not_cached(self) -> str | None:
        return (
            "positions are divided by the length, so every earlier token moves when one is added; if the whole length is known, "
            "use RoPE at length_aware_positions(lengths)"
        )

    def extra_repr(self) -> str:
        return f"{self.head_dim}, gamma={self.gamma}, base={self.base}, pairing={self.pairing}"


def length_aware_positions(
    lengths: Tensor | Sequence[int],
    gamma: float = 10.0,
    *,
    size: int | None = None,
    device: torch.device | str | None = None,
) -> Positions:
    """Return the positions γ·n/L of several sequences, and which of them are padding, (b, size).

    Args:
        lengths: L of each sequence, in tokens.
        gamma: γ of `LARoPE`.
        size: tokens of a row with its padding; None: the longest sequence.
        device: where the positions live.

    Raises:
        PositionError: a length of 0, or one beyond the size.

    Example:
        >>> length_aware_positions([2, 4]).query.position.tolist()
        [[0.0, 5.0, 10.0, 15.0], [0.0, 2.5, 5.0, 7.5]]
    """
    count = torch.as_tensor(lengths, device=device)
    if count.ndim != 1 or not len(count) or count.is_floating_point():
        raise PositionError(f"lengths are whole numbers, one a sequence; got shape {tuple(count.shape)}, {count.dtype}")
    longest = int(count.max())
    size = longest if size is None else size
    if int(count.min()) < 1:
        raise PositionError(
            f"lengths {count.tolist()}: a sequence has a token or more, since positions are divided by its length"
        )
    if longest > size:
        raise PositionError(f"lengths {count.tolist()} of rows of {size} tokens; each is from 1 to {size}")
    index = torch.arange(size, device=count.device)
    return Positions(_gamma(gamma) * index.double() / count[:, None], valid=index < count[:, None])


class CrossAttention(nn.Module):
    """Attention of one sequence to another, (B, L_q, D) and (B, L_k, D_c) → (B, L_q, D), with any encoding or none.

    Args:
        hidden_size: D.
        num_heads: heads.
        encoding: `LARoPE`, `ropewalk.RoPE`, ...; None: no positions.
        context_size: D_c; None: D.
    """

    def __init__(
        self, hidden_size: int, num_heads: int, encoding: Encoding | None = None, context_size: int | None = None
    ) -> None:
        super().__init__()
        check_positive(hidden_size=hidden_size, num_heads=num_heads, context_size=context_size)
        if hidden_size % num_heads:
            raise ConfigError(f"hidden_size {hidden_size} is not shared out evenly over {num_heads} heads")
        self.num_heads, self.encoding = num_heads, encoding
        context = hidden_size if context_size is None else context_size
        self.q, self.out = nn.Linear(hidden_size, hidden_size), nn.Linear(hidden_size, hidden_size)
        self.k, self.v = nn.Linear(context, hidden_size), nn.Linear(context, hidden_size)

    def forward(
        self, x: Tensor, context: Tensor, valid: Tensor | None = None, context_valid: Tensor | None = None
    ) -> Tensor:
        """Attend.

        Args:
            x: (B, L_q, D).
            context: (B, L_k, D_c).
            valid: (B, L_q), False for padding, of which the output means nothing.
            context_valid: (B, L_k), False for padding, which nobody attends to.
        """
        if x.ndim != 3 or context.ndim != 3:
            raise ShapeError(
                f"x {tuple(x.shape)} and context {tuple(context.shape)}; expected (batch, seq, width) of both"
            )
        where = Positions(
            q=Positions.arange(x.shape[1], valid=valid, device=x.device),
            k=Positions.arange(context.shape[1], valid=context_valid, device=x.device),
        )
        sides = ((self.q, x), (self.k, context), (self.v, context))
        q, k, v = (w(t).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for w, t in sides)
        p = Attention(q, k, v, where, causal=False)
        out = attend(p if self.encoding is None else self.encoding(p))
        return self.out(out.transpose(1, 2).flatten(2))


def _gamma(gamma: float) -> float:
    if isinstance(gamma, bool) or not isinstance(gamma, int | float) or not 0 < gamma < math.inf:
        raise ConfigError(f"gamma is a positive number; got {gamma!r}")
    return float(gamma)
