"""Randomised positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropewalk.core.encoding import Coordinates
from ropewalk.core.errors import ConfigError, PositionError
from ropewalk.core.positions import Positions, Tokens

Scope = Literal["per_forward", "per_layer", "per_example"]


class OrderedSample:
    """A sorted sample without replacement, drawn once into the facts of a sequence.

    One sample holds the values for a sequence of ``max_length`` tokens; a shorter sequence uses its first entries, in a
    full pass and step by step alike. ``None``: as many as the positions hold when it is drawn, as in the paper; then
    nothing can be decoded beyond.
    """

    def __init__(self, low: int, span: int, max_length: int | None, scope: Scope, seed: int | None, name: str) -> None:
        count = span - low
        if span < 1 or (max_length is not None and not 1 <= max_length <= count):
            raise ConfigError(
                f"max_length={max_length} positions cannot be drawn without repetition from {low} ... {span - 1}; span must be "
                "larger than any length"
            )
        if scope not in ("per_forward", "per_layer", "per_example"):
            raise ConfigError(f"scope is 'per_forward', 'per_layer' or 'per_example'; got {scope!r}")
        self.low, self.span, self.max_length, self.scope, self.seed, self.name = (
            low,
            span,
            max_length,
            scope,
            seed,
            name,
        )
        self.layer = 0

    @property
    def fact(self) -> str:
        """Name under which the sample travels: layers share it unless each draws its own."""
        return f"{self.name}.{self.layer}" if self.scope == "per_layer" else self.name

    def draw(self, positions: Positions, generator: torch.Generator | None, tables: int = 1) -> Positions:
        """Add the sample (or several tables) to the facts of both sides, which share it, unless it is there."""
        facts = {}
        for number in range(tables):
            fact = f"{self.fact}.{number}" if number else self.fact
            known = [t.sequence[fact] for t in (positions.key, positions.query) if fact in t.sequence]
            facts[fact] = known[0] if known else self._sample(positions, generator, number)
        if all(fact in t.sequence for t in (positions.key, positions.query) for fact in facts):
            return positions
        return positions.map_sides(lambda t: t.with_sequence(**facts))

    def _sample(self, positions: Positions, generator: torch.Generator | None, number: int) -> Tensor:
        n = self.max_length
        if n is None:
            longest = max(_longest(positions.key), _longest(positions.query))
            n = max(longest - self.low, 0)
            if n > self.span - self.low:
                raise PositionError(
                    f"a sequence of {longest} tokens cannot have different positions below span={self.span}; give a larger span"
                )
        rows = max(positions.key.batch, positions.query.batch) if self.scope == "per_example" else 1
        if generator is None and self.seed is not None:
            layer = self.layer if self.scope == "per_layer" else 0
            generator = torch.Generator().manual_seed(1_000_003 * self.seed + 1_009 * layer + number)
        keys = torch.rand(rows, self.span - self.low, generator=generator, dtype=torch.float64)
        sample = keys.argsort(-1)[:, :n].sort(-1).values + self.low
        return sample.to(positions.device)


def _longest(tokens: Tokens) -> int:
    """Number of positions a sample has to hold, as far as it can be read."""
    if is_compiling() or tokens.position.is_meta or not tokens.position.numel():
        return tokens.length
    return int(tokens.position.max()) + 1


class RandomizedPositions(Coordinates):
    """p → r_p with r_0 < r_1 < ... a sorted sample without replacement from {0, ..., L − 1}.

    Order is kept and every position up to L, far beyond the training length, gets trained. Compose it with any encoding of
    1-D positions: ``Sequential(RandomizedPositions(), RoPE(64))``. Positions that carry no sample get a fresh one at each
    forward, in training and in evaluation, as published; ``positions = encoding.draw(positions)`` draws once, for all layers
    and for decoding.

    Args:
        span: L, larger than any test length.
        max_length: length N that a sample is drawn for; shorter sequences use its first entries. None: the length of the
            sequence, as published; then a cache cannot go beyond the first chunk.
        scope: "per_forward" (one sample for all layers), "per_layer" (each layer of ``encoding.layer(i)`` its own), or
            "per_example" (each row of ``Positions.arange(n, batch=B)`` its own).
        seed: of the draws; None: torch's global generator, or the one given to `draw`.
        fixed: given positions instead of a sample, rising, or "even": round(linspace(0, L − 1, max_length)).

    Raises:
        PositionError: more tokens than the sample holds, real positions.

    Source: Anian Ruoss, Grégoire Delétang, Tim Genewein, Jordi Grau-Moya, Róbert Csordás, Mehdi Bennani, Shane Legg, Joel
    Veness. Randomized Positional Encodings Boost Length Generalization of Transformers. arXiv 2305.16843, 2023.
    """

    def __init__(
        self,
        span: int = 2048,
        max_length: int | None = None,
        *,
        scope: Scope = "per_forward",
        seed: int | None = None,
        fixed: Sequence[int] | Literal["even"] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(fixed, str) and fixed != "even":
            raise ConfigError(f"fixed is 'even' or a rising list of positions; got {fixed!r}")
        if fixed == "even":
            if max_length is None:
                raise ConfigError("fixed='even' spreads max_length positions over the span: give max_length")
            steps = torch.linspace(0, span - 1, max_length, dtype=torch.float64, device="cpu").round()
            self.fixed: tuple[int, ...] | None = tuple(int(s) for s in steps)
        else:
            self.fixed = None if fixed is None else tuple(int(f) for f in fixed)
        if self.fixed is not None and any(b <= a for a, b in zip(self.fixed, self.fixed[1:], strict=False)):
            raise ConfigError("fixed positions must rise strictly: tokens would share a position otherwise")
        self.span, self.max_length, self.scope, self.seed = span, max_length, scope, seed
        self.index = 0
        self._sample = OrderedSample(0, span, max_length, scope, seed, "randomized")

    def draw(self, positions: Positions, generator: torch.Generator | None = None) -> Positions:
        """Draw the sample into the positions, unless they carry one."""
        return positions if self.fixed is not None else self._sample.draw(positions, generator)

    def layer(self, index: int) -> RandomizedPositions:
        if self.scope != "per_layer":
            return self
        made = RandomizedPositions(self.span, self.max_length, scope=self.scope, seed=self.seed, fixed=self.fixed)
        made.index = made._sample.layer = index
        return made

    def remap(self, tokens: Tokens, position: Tensor) -> Tensor:
        if self.fixed is not None:
            sample = torch.tensor([self.fixed], device=position.device)
        else:
            sample = tokens.sequence[self._sample.fact]
        return take_sample(sample, position, self.max_length)

    def extra_repr(self) -> str:
        return f"span={self.span}, max_length={self.max_length}, scope={self.scope}"


def take_sample(sample: Tensor, position: Tensor, max_length: int | None) -> Tensor:
    """Return the entries of a sample (b, N) at whole-number positions (b, S), float64."""
    if position.ndim != 2:
        raise PositionError(f"randomised positions are 1-D; got positions with {position.shape[2]} axes")
    index = position.long()
    if not is_compiling() and not position.is_meta and position.numel():
        if bool((index != position).any()):
            raise PositionError("randomised positions number the tokens; fractions have no sample")
        if bool((index < 0).any()) or int(index.max()) >= sample.shape[1]:
            advice = "" if max_length is not None else "; give max_length to draw for longer sequences"
            raise PositionError(
                f"positions reach {int(index.max())} and the sample was drawn for {sample.shape[1]} tokens{advice}"
            )
    rows = max(sample.shape[0], index.shape[0])
    return sample.expand(rows, -1).gather(1, index.expand(rows, -1)).double()
