"""ALiBi with randomised distances."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropewalk.bias.slopes import alibi_slopes
from ropewalk.coordinates.randomized import OrderedSample, Scope
from ropewalk.core.attention import Attention, Pointwise, Problem
from ropewalk.core.encoding import Encoding, check_axes
from ropewalk.core.errors import PositionError, check_positive
from ropewalk.core.positions import Positions, Tokens


class RandomizedALiBi(Encoding):
    """s_ij − m_h (r_|i−j| − ½ [j < i]),  r_1 < r_2 < ... a sorted sample without replacement from {1, ..., L − 1}, r_0 = 0.

    The bias depends on |i − j| through the sampled table, not on sampled positions. The ½ lets a head tell left from right.

    Args:
        num_heads: query heads H of the layer; None: as many as the problem has.
        span: L.
        max_length: length N that the table is drawn for (N − 1 distances); None: the length of the sequence.
        scope: "per_layer" as published, "per_forward" or "per_example".
        both_sides: a table of its own for keys after the query.
        past_discount: the ½ of the formula.
        seed: of the draws; None: torch's global generator.

    Source: Anian Ruoss, Grégoire Delétang, Tim Genewein, Jordi Grau-Moya, Róbert Csordás, Mehdi Bennani, Shane Legg, Joel
    Veness. Randomized Positional Encodings Boost Length Generalization of Transformers. arXiv 2305.16843, 2023.
    """

    def __init__(
        self,
        num_heads: int | None = None,
        span: int = 2048,
        max_length: int | None = None,
        *,
        scope: Scope = "per_layer",
        both_sides: bool = False,
        past_discount: float = 0.5,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        check_positive(num_heads=num_heads)
        self.num_heads, self.span, self.max_length, self.scope, self.seed = num_heads, span, max_length, scope, seed
        self.both_sides, self.past_discount = both_sides, float(past_discount)
        self._sample = OrderedSample(
            1, span, None if max_length is None else max(max_length - 1, 1), scope, seed, "distances"
        )

    def draw(self, positions: Positions, generator: torch.Generator | None = None) -> Positions:
        return self._sample.draw(positions, generator, 2 if self.both_sides else 1)

    def layer(self, index: int) -> RandomizedALiBi:
        if self.scope != "per_layer":
            return self
        made = RandomizedALiBi(
            self.num_heads,
            self.span,
            self.max_length,
            scope=self.scope,
            both_sides=self.both_sides,
            past_discount=self.past_discount,
            seed=self.seed,
        )
        made._sample.layer = index
        return made

    def tables(self, tokens: Tokens) -> Tensor:
        """Return the distances by offset j − i, (b, 2N − 1): the past first, 0 in the middle, discounts included."""
        past = tokens.sequence[self._sample.fact].double()
        future = tokens.sequence[self._sample.fact + ".1"].double() if self.both_sides else past
        zero = past.new_zeros(past.shape[0], 1)
        return torch.cat([(past - self.past_discount).flip(-1), zero, future], -1)

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        check_axes(self, p.where.query.position, None)
        table = self.tables(p.where.query)
        middle = table.shape[-1] // 2
        check_reach(p, middle)
        slope = p.head_slice(alibi_slopes(self.num_heads or p.heads[1]).to(p.q.device))
        p = p.with_features(q={"table": table[:, None, None], "slope": slope[None, :, None, None]})

        def bias(i: Tensor, slope: Tensor, j: Tensor, lookup: Callable[[Tensor], Tensor]) -> Tensor:
            return -slope * lookup((j - i).clamp(-middle, middle) + middle)

        place = p.coordinate(centred=True)
        return p.add(Pointwise(bias, (place, p.own("slope")), (place,), p.own("table")))

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        return problem

    def extra_repr(self) -> str:
        return f"span={self.span}, max_length={self.max_length}, scope={self.scope}"


def check_reach(p: Attention, reach: int) -> None:
    """Check that a table of distances reaches from the first token to the last."""
    key = p.where.key.position
    if is_compiling() or key.is_meta or not key.numel():
        return
    longest = p.where.key.memo(lambda: "reach", lambda: int(key.max()) - int(key.min()))
    if key.is_floating_point() or longest > reach:
        raise PositionError(
            f"distances up to {longest} and a sample of {reach}: they are whole numbers, and max_length has to cover the "
            "longest sequence"
        )
