"""NoPE."""

from __future__ import annotations

from ropewalk.core.attention import Attention
from ropewalk.core.encoding import Encoding
from ropewalk.core.positions import Tokens


class NoPE(Encoding):
    """s_ij = q_i·k_j / √d: no positional encoding.

    A causal decoder can still tell where it is, because a query sees exactly the keys up to itself.

    Source: Amirhossein Kazemnejad, Inkit Padhi, Karthikeyan Natesan Ramamurthy, Payel Das, Siva Reddy. The Impact of
    Positional Encoding on Length Generalization in Transformers. arXiv 2305.19466, 2023.
    """

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        return problem
