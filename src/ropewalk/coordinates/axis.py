"""One axis of positions that have several."""

from __future__ import annotations

from torch import Tensor

from ropewalk.core.attention import Attention, Parts, Problem, map_leaves
from ropewalk.core.encoding import Coordinates, Encoding, State, move, observe, rewrite, settle
from ropewalk.core.errors import CannotCompose, ConfigError, PositionError
from ropewalk.core.positions import Chain, Positions, Tokens


class Axis(Coordinates):
    """(p_0, p_1, ...) → p_axis: what comes after sees plain positions, those of one axis.

    Args:
        axis: which one, counted from 0.
    """

    def __init__(self, axis: int) -> None:
        super().__init__()
        if isinstance(axis, bool) or not isinstance(axis, int) or axis < 0:
            raise ConfigError(f"axis is a whole number, counted from 0; got {axis!r}")
        self.axis = axis

    def map(self, position: Tensor) -> Tensor:
        if position.ndim != 3 or position.shape[2] <= self.axis:
            have = "no axes" if position.ndim != 3 else f"{position.shape[2]} axes"
            raise PositionError(f"axis {self.axis} of positions that have {have}; give positions (batch, seq, axes)")
        return position[..., self.axis]

    def extra_repr(self) -> str:
        return f"{self.axis}"


class OnAxis(Encoding):
    """The encoding sees one axis of the positions; encodings after it see all axes again.

    Args:
        encoding: an encoding of plain positions.
        axis: which one, counted from 0.

    Raises:
        CannotCompose: the encoding splits the heads; put OnAxis inside it.
    """

    combines = True

    def __init__(self, encoding: Encoding, axis: int) -> None:
        super().__init__()
        if not isinstance(encoding, Encoding):
            raise ConfigError(f"OnAxis holds an encoding, and this is a {type(encoding).__name__}")
        self.encoding, self.pick = encoding, Axis(axis)

    @property
    def stores(self) -> str:  # type: ignore[override]
        return self.encoding.stores

    def _picked(self, p: Attention) -> Attention:
        return p.replace(at=self.pick.chained(p.at))

    def observe(self, problem: Attention, state: State = None) -> tuple[Problem, State]:
        seen, state = observe(self.encoding, self._picked(problem), state)
        if isinstance(seen, Parts):
            raise CannotCompose("OnAxis cannot hold a combinator that splits the heads; put OnAxis inside it")
        return seen.replace(at=problem.at), state

    def rewrite(self, problem: Attention) -> Problem:
        return map_leaves(rewrite(self.encoding, self._picked(problem)), lambda p: p.replace(at=problem.at))

    def settle(self, problem: Attention) -> Attention:
        return _back(settle(self.encoding, self._picked(problem)), problem)

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        return _back(move(self.encoding, self._picked(problem), tokens), problem)

    def embed(self, x: Tensor, positions: Positions | None = None, at: Chain = ()) -> Tensor:
        return self.encoding.embed(x, positions, self.pick.chained(at))

    def output_heads(self, num_heads: int) -> int:
        return self.encoding.output_heads(num_heads)

    def layer(self, index: int) -> OnAxis:
        return OnAxis(self.encoding.layer(index), self.pick.axis)


def _back(problem: Problem, before: Attention) -> Attention:
    assert isinstance(problem, Attention)
    return problem.replace(at=before.at)
