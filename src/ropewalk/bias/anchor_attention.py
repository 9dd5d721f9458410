"""AnchorAttention: documents of a packed row share its first token and nothing else."""

from __future__ import annotations

from torch import Tensor

from ropewalk.core.attention import Attention, Column, Mask, Order, Problem
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import NotCausal
from ropewalk.core.positions import Tokens


class AnchorAttention(Encoding):
    """visible(q, k) = q ≥ k ∧ (doc(q) = doc(k) ∨ doc(k) = 0): besides its own document, a token sees the anchor.

    The anchor is the first token of a packed row (document 0, see `ropewalk.coordinates.packed.packed_positions`), at position
    0 for all documents; positions count on across documents. In bfloat16 RoPE depends on more than relative positions, most
    of all for the first token, which is therefore to be met under one position only. It is for training, in front of or
    behind any encoding: ``Sequential(RoPE(64, pairing="half"), AnchorAttention())``. A text without documents is one
    document, and stays as it is; with a sliding window its first token stays visible.

    Raises:
        NotCausal: the problem is not causal.

    Source: Haonan Wang, Qian Liu, Chao Du, Tongyao Zhu, Cunxiao Du, Kenji Kawaguchi, Tianyu Pang. When Precision Meets
    Position: BFloat16 Breaks Down RoPE in Long-Context Training. arXiv 2411.13476, 2024.
    """

    def rewrite(self, problem: Attention) -> Problem:
        """Widen the mask of the documents, and that of a window."""
        p = problem
        if not p.causal:
            raise NotCausal("the anchor is the first token of causal attention")
        documents = "document" in p.where.key.columns
        if documents:
            document = Column("document")
            p = p.with_mask(Mask("documents", _own_or_anchor, (document,), (document,)))
        if p.window is None:
            return p
        size = p.window

        def near_or_anchor(i: Tensor, j: Tensor, anchor: Tensor) -> Tensor:
            return ((i - j).abs() < size) | (anchor == 0)

        anchor = Column("document") if documents else Order()
        return p.with_mask(Mask("window", near_or_anchor, (Order(),), (Order(), anchor)))

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        """Change nothing: masks are read when attention is computed."""
        return problem


def _own_or_anchor(q: Tensor, k: Tensor) -> Tensor:
    return (q == k) | (k == 0)
