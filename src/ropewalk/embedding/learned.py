"""Learned absolute position embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from ropewalk.core.encoding import Embedding
from ropewalk.core.errors import PositionError, ShapeError, check_positive


class LearnedAbsolute(Embedding):
    """x_p ← x_p + E[p],  E ∈ R^{max_length × d} learned.

    Args:
        max_length: number of positions; there is no encoding for any beyond.
        hidden_size: width d of the embeddings.

    Shapes: x (B, S, d); positions (b, S), whole numbers in [0, max_length).

    Raises:
        PositionError: a position outside the table, or a fraction.

    Source: Jonas Gehring, Michael Auli, David Grangier, Denis Yarats, Yann N. Dauphin. Convolutional Sequence to Sequence
    Learning. arXiv 1705.03122, 2017; baseline of arXiv 2305.19466.
    """

    def __init__(self, max_length: int, hidden_size: int) -> None:
        super().__init__()
        check_positive(max_length=max_length, hidden_size=hidden_size)
        self.max_length, self.hidden_size = max_length, hidden_size
        self.weight = nn.Parameter(torch.empty(max_length, hidden_size))
        nn.init.normal_(self.weight, std=0.02)

    def fit(self, dim: int) -> None:
        if dim != self.hidden_size:
            raise ShapeError(
                f"{type(self).__name__} was made for width {self.hidden_size} and the embeddings have {dim}"
            )

    def table(self, position: Tensor) -> Tensor:
        index = position.long()
        inside = (index == position) & (index >= 0) & (index < self.max_length)
        if is_compiling():
            torch._assert_async(inside.all(), f"a position is outside the {self.max_length} learned ones")
        elif not position.is_meta and not bool(inside.all()):
            raise PositionError(
                f"positions reach {position.max().item():g} (least {position.min().item():g}) and whole numbers 0 ... "
                f"{self.max_length - 1} are learned; build it with a larger max_length, or choose an encoding that extrapolates"
            )
        return self.rows(index)

    def rows(self, index: Tensor) -> Tensor:
        """Return rows of the table."""
        return self.weight[index]

    def extra_repr(self) -> str:
        return f"{self.max_length}, {self.hidden_size}"
