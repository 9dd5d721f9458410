"""Encodings in which some tokens see later ones: the tokens of a block see each other, whatever their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropewalk.coordinates.scheme import Cells
from ropewalk.core.attention import Attention, Problem
from ropewalk.core.encoding import State
from ropewalk.core.errors import CannotCache, NotCausal
from ropewalk.core.positions import Tokens
from ropewalk.rotary.multi_axis import MultiAxisRoPE


class WholeBlocks(MultiAxisRoPE):
    """Replaces causality by a mask of its own, in which tokens of a block may see later ones of the same block.

    A cache has to be given such a block in one piece; a chunk that begins within one is refused.
    """

    why: ClassVar[str] = "its tokens see later ones of it"

    def begins(self, cells: Cells) -> Tensor:
        """Return the position at which what sees itself both ways begins, (b, S); for any other token its own."""
        raise NotImplementedError

    def observe(self, problem: Attention, state: State = None) -> tuple[Problem, State]:
        tokens = problem.where.query
        if state is not None and not is_compiling() and tokens.length and not tokens.position.is_meta:
            self._refuse_cuts(tokens)
        return problem, ()  # there were tokens before

    def _refuse_cuts(self, tokens: Tokens) -> None:
        cells = self.cells(tokens)
        begins, rows = self.begins(cells), cells.position.shape[0]
        valid = tokens.columns.get("valid")
        first = torch.zeros(rows, dtype=torch.long, device=tokens.device)
        if valid is not None:
            first = valid.expand(rows, -1).long().argmax(1)
        at, start = (t.gather(1, first[:, None])[:, 0] for t in (cells.position, begins))
        cut = (start < at).nonzero()[:, 0].tolist()
        if cut:
            raise CannotCache(
                f"this chunk begins inside a block of row {cut[0]} (at its token {int(at[cut[0]] - start[cut[0]])}), and "
                f"{self.why}: give each block to the cache in one chunk"
            )

    def cells(self, tokens: Tokens) -> Cells:
        """Look tokens up."""
        return Cells.of(tokens, tokens.position.double(), self.scheme)

    def both(self, p: Attention, **features: Callable[[Cells], Tensor]) -> Attention:
        """Attach features of the tokens to queries and keys: ``name=function of cells -> (b, S)``."""
        if not p.causal:
            raise NotCausal(
                f"{type(self).__name__} says who sees whom in a causal model; without causality everybody does"
            )

        def of(tokens: Tokens) -> dict[str, Tensor]:
            def make() -> dict[str, Tensor]:
                cells = self.cells(tokens)
                return {name: fn(cells).double()[:, None, :, None] for name, fn in features.items()}

            return tokens.memo(lambda: (type(self).__name__, self.scheme, *features), make)

        k = of(p.where.key)
        return p.with_features(q=k if p.where.is_self else of(p.where.query), k=k)
