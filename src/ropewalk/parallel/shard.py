"""Which tokens of a sequence a process holds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ropewalk.core.errors import ConfigError, PositionError, ShapeError
from ropewalk.core.positions import ORDER, Positions, Tokens
from ropewalk.parallel.exchange import join

Span = tuple[int, int]


class Shard:
    """The stretches of a sequence that each process of a group holds, and where all of its tokens are.

    Make one for each batch from the positions of the whole sequence, the same on every process, and use it in all layers:
    tables are then computed once. What an encoding draws at random is drawn into the positions before.

    Args:
        positions: of the whole sequence, in self-attention.
        spans: for each process, in the order of the group, the stretches (start, stop) it holds; together they hold each
            token once.
        group: the processes; None: all of them.

    Raises:
        ConfigError: no process group, or spans that leave out a token, hold one twice or leave a process without any.
        PositionError: positions with two sides.

    Example:
        >>> import ropewalk as rw
        >>> shard = rw.parallel.Shard.zigzag(rw.Positions.arange(8))  # doctest: +SKIP
        >>> shard.spans  # of two processes  # doctest: +SKIP
        (((0, 2), (6, 8)), ((2, 4), (4, 6)))
    """

    positions: Positions
    """Of this process's tokens."""
    whole: Positions
    """Of all tokens."""

    def __init__(
        self, positions: Positions, spans: Sequence[Sequence[Span]], group: dist.ProcessGroup | None = None
    ) -> None:
        self.rank, self.size = place(group)
        if not positions.is_self or positions.order is not None:
            raise PositionError("a sequence is dealt out with the positions of self-attention: one side, in its order")
        self.group, self.whole, self.length = group, positions, positions.key.length
        self.spans = tuple(tuple((int(start), int(stop)) for start, stop in own) for own in spans)
        self._check()
        device = positions.device
        held = [torch.cat([torch.arange(*span, device=device) for span in own]) for own in self.spans]
        self.lengths = tuple(len(index) for index in held)
        self.index = held[self.rank]
        """(n,) which tokens of the sequence this process holds, in its order."""
        self.back = torch.cat(held).argsort()
        """(S,) where each token of the sequence is when what the processes hold is laid side by side."""
        self.positions = Positions(positions.key.take(self.index))
        self.among_all = Positions.pair(self.positions.query, positions.key, self.index[None])
        """This process's queries among the keys of all."""
        self._pairs: dict[tuple[Span, Span], Positions] = {}  # of all layers, which so share what is memoised on them
        self._among: dict[Span, Positions] = {}

    @classmethod
    def contiguous(cls, positions: Positions, group: dist.ProcessGroup | None = None) -> Shard:
        """Deal out one stretch each, as equal as can be."""
        size = place(group)[1]
        spans = _cut(positions.key.length, size)
        return cls(positions, [[s] if s[0] < s[1] else [] for s in spans], group)

    @classmethod
    def zigzag(cls, positions: Positions, group: dist.ProcessGroup | None = None) -> Shard:
        """Deal out two stretches each, the r-th from the start and the r-th from the end: equal work under causality."""
        size = place(group)[1]
        spans = _cut(positions.key.length, 2 * size)
        return cls(positions, [[s for s in (spans[r], spans[-1 - r]) if s[0] < s[1]] for r in range(size)], group)

    def take(self, x: Tensor, dim: int = 1) -> Tensor:
        """Return this process's tokens of something of the whole sequence."""
        if x.shape[dim] != self.length:
            raise ShapeError(
                f"axis {dim} of shape {tuple(x.shape)} is not the whole sequence of {self.length} tokens; name the axis of "
                "the tokens by dim="
            )
        return x.index_select(dim, self.index)

    def join(self, x: Tensor, dim: int = 1) -> Tensor:
        """Return something of the whole sequence from every process's own; gradients go back to where the tokens are."""
        if x.shape[dim] != len(self.index):
            raise ShapeError(
                f"axis {dim} of shape {tuple(x.shape)} is not the {len(self.index)} tokens this process holds; name the axis "
                "of the tokens by dim="
            )
        (whole,) = join(self, [x], dim)
        return whole

    def pair(self, queries: Span, keys: Span) -> Positions:
        """Return the positions of a stretch of queries and one of keys, which know their places in the sequence."""
        made = self._pairs.get((queries, keys))
        if made is None:
            side = self.whole.key.slice(*queries)
            if queries == keys:
                made = Positions(_placed(side, queries))
            else:
                order = torch.arange(*queries, device=self.whole.device)[None]
                made = Positions.pair(side, _placed(self.whole.key.slice(*keys), keys), order)
            self._pairs[queries, keys] = made
        return made

    def among(self, keys: Span) -> Positions:
        """Return the positions of all this process's queries and a stretch of keys."""
        if keys not in self._among:
            key = _placed(self.whole.key.slice(*keys), keys)
            self._among[keys] = Positions.pair(self.positions.query, key, self.index[None])
        return self._among[keys]

    def _check(self) -> None:
        if len(self.spans) != self.size:
            raise ConfigError(
                f"spans of {len(self.spans)} processes, and the group has {self.size}; give one list for each"
            )
        end = 0
        for start, stop in sorted(span for own in self.spans for span in own):
            if start != end or stop <= start:
                raise ConfigError(
                    f"spans {self.spans} do not hold each of the {self.length} tokens once: after token {end} comes "
                    f"({start}, {stop})"
                )
            end = stop
        if end != self.length or not all(self.spans):
            raise ConfigError(
                f"spans {self.spans} hold {end} of {self.length} tokens, and each of the {self.size} processes needs one or "
                "more; pad the sequence, or use a smaller group"
            )


def place(group: dist.ProcessGroup | None) -> tuple[int, int]:
    """Return (rank, size): which process of the group this one is, and of how many."""
    if not dist.is_available() or not dist.is_initialized():
        raise ConfigError("there are no processes to deal out to: call torch.distributed.init_process_group first")
    rank = dist.get_rank(group)
    if rank < 0:
        raise ConfigError("this process is not in the group it was asked to share a sequence with")
    return rank, dist.get_world_size(group)


def _cut(length: int, parts: int) -> list[Span]:
    return [(length * i // parts, length * (i + 1) // parts) for i in range(parts)]


def _placed(tokens: Tokens, span: Span) -> Tokens:
    return tokens.with_columns(**{ORDER: torch.arange(*span, device=tokens.device)[None]})
