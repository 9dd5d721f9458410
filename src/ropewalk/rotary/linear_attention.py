"""Linear attention, which rotary encodings can enter."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import elu

from ropewalk.core.attention import Attention, Linear, Problem
from ropewalk.core.combinators import Sequential
from ropewalk.core.encoding import Encoding, table_dtype
from ropewalk.core.errors import CannotCompose
from ropewalk.core.positions import Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.rotary.rope import RoPE


class LinearAttention(Encoding):
    """o_m = Σ_n φ(q_m)·φ(k_n) v_n / Σ_n φ(q_m)·φ(k_n),  φ(x) = elu(x) + 1.

    A rewrite of the kernel, not of positions. An encoding after it turns the numerator only, so that the denominator
    stays positive: ``Sequential(LinearAttention(), RoPE(d))`` is RoFormer's linear attention. There is no scale.

    Source: Angelos Katharopoulos, Apoorv Vyas, Nikolaos Pappas, François Fleuret. Transformers are RNNs: Fast
    Autoregressive Transformers with Linear Attention. arXiv 2006.16236, 2020; with RoPE arXiv 2104.09864, section 3.3.
    """

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        if p.terms or p.branches or p.product is not None:
            raise CannotCompose("linear attention comes first: terms in the logits act on a softmax")
        dtype = table_dtype(p.q)

        def positive(x: Tensor) -> Tensor:
            return (elu(x.to(dtype)) + 1).to(x.dtype)

        p = p.replace(q=positive(p.q), k=positive(p.k))
        p = p.with_features(q={"norm": p.q}, k={"norm": p.k})
        return p.replace(kernel=Linear(p.name("norm")))

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        return problem


def linear_rope(head_dim: int | None = None, base: float = 10_000.0, pairing: Pairing = "interleaved") -> Sequential:
    """o_m = Σ_n (R_m φ(q_m))·(R_n φ(k_n)) v_n / Σ_n φ(q_m)·φ(k_n),  φ(x) = elu(x) + 1.

    RoFormer's linear attention: the numerator is turned, the denominator is not.

    Args:
        head_dim: width of a head, even; None: taken from the first problem.
        base: of the frequencies.
        pairing: "interleaved" as in the paper, or "half".

    Source: Jianlin Su, Yu Lu, Shengfeng Pan, Ahmed Murtadha, Bo Wen, Yunfeng Liu. RoFormer: Enhanced Transformer with
    Rotary Position Embedding. arXiv 2104.09864, 2021.
    """
    return Sequential(LinearAttention(), RoPE(head_dim, base, pairing))
