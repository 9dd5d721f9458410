"""The search that finds LongRoPE's factors."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.frequencies.checks import check_factor, check_length
from ropewalk.frequencies.longrope import longrope_attention_factor
from ropewalk.frequencies.ntk import ntk_factors
from ropewalk.frequencies.spectrum import Spectrum

Factors = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class FoundFactors:
    """What a search found.

    Attributes:
        factors: one a plane, never falling from plane to plane.
        score: theirs.
        spectrum: the spectrum that they make.
        history: the best score after the start and after each iteration; it never rises.
        tried: how many different sets of factors were scored.
    """

    factors: Factors
    score: float
    spectrum: Spectrum = field(repr=False)
    history: tuple[float, ...]
    tried: int


def search_factors(
    spectrum: Spectrum,
    factor: float,
    original: float,
    score: Callable[[Spectrum], float],
    *,
    iterations: int = 40,
    population: int = 64,
    mutations: int = 16,
    crossovers: int = 16,
    parents: int = 32,
    probability: float = 0.3,
    widest: float = 1.25,
    step: float = 0.01,
    attention_factor: float | None = None,
    seed: int = 0,
) -> FoundFactors:
    """Search min score(ω_i / λ_i) over 1 ≤ λ_0 ≤ λ_1 ≤ … ≤ 1.25 s by evolution, in steps of 0.01.

    It starts from the factors of position interpolation, NTK-aware scaling and YaRN, and mutations of them. Each iteration
    keeps the best as parents, mutates some (each factor anew with a probability) and crosses others. Where the paper draws
    again until factors do not fall from plane to plane, they are drawn within what their neighbours allow here. It also
    searches how many first tokens are not interpolated; the released models have no such thing, and neither has this.

    Args:
        spectrum: as trained.
        factor: s, new context over the original one.
        original: tokens of the training context.
        score: what to make small, such as the perplexity of a model with this spectrum on a text of the new length. Called
            once for each different set of factors.
        iterations: of the evolution.
        population: at the start.
        mutations: children by mutation, in each iteration.
        crossovers: children of two parents, in each iteration.
        parents: that are kept.
        probability: with which a mutation draws a factor anew.
        widest: largest factor, as a multiple of s.
        step: between values of a factor.
        attention_factor: of the spectra that are scored; None: √(1 + ln s / ln L).
        seed: of the draws. Equal seeds and scores find equal factors.

    Raises:
        ConfigError: a score that is NaN; sizes that are not positive.

    Source: Yiran Ding, Li Lyna Zhang, Chengruidong Zhang, Yuanyuan Xu, Ning Shang, Jiahang Xu, Fan Yang, Mao Yang. LongRoPE:
    Extending LLM Context Window Beyond 2 Million Tokens. arXiv 2402.13753, 2024.
    """
    check_factor(factor)
    check_length("original", original)
    check_positive(population=population, parents=parents)
    if min(iterations, mutations, crossovers) < 0:
        raise ConfigError("iterations, mutations and crossovers are numbers from 0 on")
    if not 0 < probability <= 1 or not widest >= 1 or not 0 < step < math.inf:
        raise ConfigError(
            "probability is above 0 and at most 1, widest at least 1 and step positive; got "
            f"{probability!r}, {widest!r}, {step!r}"
        )
    if attention_factor is None:
        attention_factor = longrope_attention_factor(factor, original)
    draw = random.Random(seed)
    values = _Values(step, factor * widest)
    scores: dict[Factors, float] = {}

    def rate(candidates: list[Factors]) -> None:
        for factors in candidates:
            if factors not in scores:
                scores[factors] = float(score(spectrum.longrope(factors, attention_factor=attention_factor)))
                if math.isnan(scores[factors]):
                    raise ConfigError("the score of a set of factors is NaN; return infinity for what cannot be used")

    def best(count: int) -> list[Factors]:
        return sorted(scores, key=lambda f: (scores[f], f))[:count]

    started = [values.rounded(f) for f in _starts(spectrum, factor, original)]
    rate(started)
    rate([_mutated(draw.choice(started), values, probability, draw) for _ in range(population - len(scores))])
    history = [scores[best(1)[0]]]
    for _ in range(iterations):
        chosen = best(parents)
        children = [_mutated(draw.choice(chosen), values, probability, draw) for _ in range(mutations)]
        children += [_crossed(draw.choice(chosen), draw.choice(chosen), draw) for _ in range(crossovers)]
        rate(children)
        history.append(scores[best(1)[0]])
    found = best(1)[0]
    made = spectrum.longrope(found, attention_factor=attention_factor)
    return FoundFactors(found, scores[found], made, tuple(history), len(scores))


@dataclass(frozen=True, slots=True)
class _Values:
    """The values that a factor may take: 1, 1 + step, … up to ``highest``."""

    step: float
    highest: float

    def rounded(self, factors: tuple[float, ...]) -> Factors:
        """Return the nearest values, made never to fall."""
        rising, made = 1.0, []
        for f in factors:
            rising = max(rising, self._at(round((min(f, self.highest) - 1) / self.step)))
            made.append(rising)
        return tuple(made)

    def between(self, low: float, high: float, draw: random.Random) -> float:
        """Draw a value between two."""
        first, last = (round((f - 1) / self.step) for f in (low, high))
        return self._at(draw.randint(first, last))

    def _at(self, steps: int) -> float:
        return 1.0 + max(min(steps, math.floor((self.highest - 1) / self.step)), 0) * self.step


def _starts(spectrum: Spectrum, factor: float, original: float) -> list[tuple[float, ...]]:
    planes = len(spectrum.inv_freq)
    yarn = spectrum.yarn(factor, original)
    by_yarn = tuple(w / v if v else factor for w, v in zip(spectrum.inv_freq, yarn.inv_freq, strict=True))
    return [(factor,) * planes, ntk_factors(planes, factor), by_yarn]


def _mutated(parent: Factors, values: _Values, probability: float, draw: random.Random) -> Factors:
    """Draw some factors anew, between their neighbours where they stand, so that the order is kept."""
    child = list(parent)
    for i in range(len(child)):
        if draw.random() < probability:
            low = child[i - 1] if i else 1.0
            high = child[i + 1] if i + 1 < len(child) else values.highest
            child[i] = values.between(low, high, draw)
    return tuple(child)


def _crossed(one: Factors, other: Factors, draw: random.Random) -> Factors:
    """Take each factor from either parent; where that would fall, the larger of the one before and this."""
    child: list[float] = []
    for a, b in zip(one, other, strict=True):
        taken = a if draw.random() < 0.5 else b
        child.append(max(taken, child[-1]) if child else taken)
    return tuple(child)
