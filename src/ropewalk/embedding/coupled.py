"""Learned tables for coupled positions."""

from __future__ import annotations

from torch import Tensor

from ropewalk.coordinates.axis import OnAxis
from ropewalk.core.combinators import Sequential
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import ConfigError, NeedsColumn, check_positive
from ropewalk.core.positions import Chain, Positions
from ropewalk.embedding.learned import LearnedAbsolute


class CoupledTable(LearnedAbsolute):
    """`LearnedAbsolute` that counts nothing by itself: what part a token plays is for the task to say.

    Args: see `LearnedAbsolute`.

    Raises:
        NeedsColumn: no positions.
    """

    def embed(self, x: Tensor, positions: Positions | None = None, at: Chain = ()) -> Tensor:
        if positions is None:
            raise NeedsColumn(
                "position coupling reads what part each token plays, and there are no positions: make them with "
                "rw.coupled_positions([rw.couple(task, ...)])"
            )
        return super().embed(x, positions, at)


def position_coupling(
    hidden_size: int, max_position: int = 202, dimensions: int = 1, *, share: bool = False
) -> Encoding:
    """x_t ← x_t + Σ_c E_c[p_tc],  E_c ∈ R^{(P + 1) × d} learned,  p_t the coupled position of the token, 0 at edges.

    Digits of equal significance, or an input cell and its answer, are at one position, so that what was learned of short examples
    holds for long ones. A random start in training makes every position up to P a trained one.

    Args:
        hidden_size: width d of the embeddings.
        max_position: P, the largest position.
        dimensions: of a position, one for text and two for boards.
        share: one table for all dimensions.

    Shapes: x (B, S, d); positions (b, S), or (b, S, dimensions) where there are several: `ropewalk.couple` writes examples and
    `ropewalk.coupled_positions` places them.

    Raises:
        PositionError: a position beyond P, or a fraction.

    Source: Hanseul Cho, Jaeyoung Cha, Pranjal Awasthi, Srinadh Bhojanapalli, Anupam Gupta, Chulhee Yun. Position Coupling:
    Improving Length Generalization of Arithmetic Transformers Using Task Structure. arXiv 2405.20671, 2024. That tables
    start from N(0, 0.02²) is our choice.
    """
    check_positive(hidden_size=hidden_size, max_position=max_position, dimensions=dimensions)
    if share and dimensions == 1:
        raise ConfigError("share is of several dimensions; one has a table of its own")
    tables = [CoupledTable(max_position + 1, hidden_size) for _ in range(1 if share else dimensions)]
    if dimensions == 1:
        return tables[0]
    return Sequential(*(OnAxis(tables[0 if share else axis], axis) for axis in range(dimensions)))
