"""From gains to causes: the fewest and most usual faults that together give what was measured.

A guess is frequencies, positions, a sense and a precision, each the wanted one or a candidate. Its gains are computed and
compared with the measured ones; among the guesses that leave nothing but rounding, the one with the smallest cost wins.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from ropewalk.analysis.verify import rounding
from ropewalk.analysis.verify.candidates import (
    Frequencies,
    Places,
    described_places,
    fitted_frequencies,
    nice,
    other_frequencies,
    other_places,
    reversed_places,
    scaled_places,
    shifted_places,
    wanted_frequencies,
    wanted_places,
)
from ropewalk.analysis.verify.measure import Gains, Structure, frequencies, locate, read, turn
from ropewalk.analysis.verify.observation import Observation, Side
from ropewalk.analysis.verify.reference import Reference
from ropewalk.analysis.verify.tables import Precision, precisions

Item = TypeVar("Item")

ITEMS = 96
"""Tokens on which guesses are compared. Whether anything differs at all is decided on every token before."""

SCREEN, PROMISING, NEAR = 16, 0.5, 0.1
"""Tokens on which a guess is looked at first: unless it meets half of the gains there, or leaves a tenth, that is all."""

LEAST = (1e-3, 0.02)
"""How far the gains of a located position may be off: as exact tables make them, then as rounded ones do."""

RIVAL = 0.3
"""How much more than the best guess another may cost that is told of."""

BATCH = 2**16
"""Gains that are compared at once."""

FARTHEST = 1e9
"""No position is looked for beyond."""

ENOUGH, ROUNDED = 0.9995, 0.97
"""Share of the gains that a guess must meet. With rounded tables some lie at the border between two rounded numbers."""

SENSES: dict[str, tuple[str, str]] = {
    "": ("", ""),
    "sign": ("the rotation runs the other way: angles are negative", "turn (a, b) to (a cos − b sin, b cos + a sin)"),
    "swapped": ("cos and sin are exchanged", "hand cos and sin over in their order"),
    "no-sin": ("the sine part is missing: pairs are multiplied by cos alone", "add rotate_half(x) · sin"),
    "no-cos": ("the cosine part is missing: pairs are multiplied by sin alone", "add x · cos"),
}


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of an observation in one row: positions (n, axes), place (n,), row (n,), what the first row has (n, axes)."""

    positions: Tensor
    index: Tensor
    row: Tensor
    first: Tensor

    def take(self, which: Tensor) -> Tokens:
        return Tokens(self.positions[which], self.index[which], self.row[which], self.first[which])


@dataclass(frozen=True, eq=False)
class Evidence:
    """Gains of one side at some tokens, which of them are sure (the others are 0), and how far off rounding leaves them."""

    side: str
    value: Tensor
    sure: Tensor
    spread: Tensor
    noise: float
    rest: float

    @property
    def length(self) -> Tensor:
        """What all gains are multiplied by."""
        return self.value.abs()[self.sure].median()

    def take(self, which: Tensor) -> Evidence:
        return replace(self, value=self.value[which], sure=self.sure[which], spread=self.spread[which])


@dataclass(frozen=True, eq=False)
class Guess:
    """One explanation, and how well it does: ``met``, and ``exact`` where nothing is rounded, are shares of the gains."""

    frequencies: Frequencies
    places: Places
    sense: str = ""
    precision: Precision | None = None
    met: float = 0.0
    left: float = math.inf
    factor: float = 1.0
    exact: float = 0.0

    @property
    def cost(self) -> float:
        """How far-fetched it is."""
        rounded = 0.0 if self.precision is None else 0.9 + 0.1 * len(self.precision.parts)
        return self.frequencies.cost + self.places.cost + (self.sense != "") + rounded

    @property
    def explains(self) -> bool:
        """Whether it leaves nothing but rounding; tables that are rounded must explain half of what exact ones do not."""
        if self.precision is None:
            return self.met >= ENOUGH
        return self.met >= ROUNDED and 1 - self.met <= (1 - self.exact) / 2

    @property
    def causes(self) -> tuple[str, ...]:
        """What it is made of."""
        rounded = "" if self.precision is None else "precision"
        return tuple(c for c in (self.sense, self.places.cause, self.frequencies.cause, rounded) if c)

    def gains(self) -> Tensor:
        """Return what pairs are multiplied by, (n, P)."""
        return _sensed(_gains(self.places.wide, self.frequencies.inv_freq, self.precision, self.factor), self.sense)


def _gains(at: Tensor, inv_freq: Tensor, precision: Precision | None, factor: float) -> Tensor:
    return turn(at * inv_freq) if precision is None else precision.gains(at, inv_freq, factor)


def _sensed(made: Tensor, sense: str) -> Tensor:
    match sense:
        case "sign":
            return made.conj()
        case "swapped":
            return 1j * made.conj()
        case "no-sin":
            return made.real + 0j
        case "no-cos":
            return 1j * made.imag
        case _:
            return made


def tokens_of(observation: Observation, *, swapped: bool = False, heads: int = 0) -> Tokens:
    """Return the tokens in one row; the heads, where positions run along them."""
    positions, index = observation.positions, observation.index
    rows = positions.shape[0]
    if swapped:
        count = torch.arange(heads)
        index = count
        wide = (
            positions[:, :heads]
            if positions.shape[1] >= heads
            else count.double()[None, :, None].expand(rows, heads, positions.shape[2])
        )
        positions = wide
    seq = positions.shape[1]
    return Tokens(
        positions.reshape(rows * seq, -1),
        index.repeat(rows),
        torch.arange(rows).repeat_interleave(seq),
        positions[:1].expand_as(positions).reshape(rows * seq, -1),
    )


def evidence_of(side: Side, gains: Gains, dtype: torch.dtype) -> Evidence:
    """Return the gains of a side, flat."""
    value, weight, spread = (t.flatten(0, 1) for t in (gains.value, gains.weight, gains.spread))
    sure = (weight > 1e-3 * weight.median()) & torch.isfinite(value.real) & torch.isfinite(value.imag)
    found = Evidence(side.name, value.where(sure, 0.0), sure, spread, 0.0, gains.rest)
    unit, length = rounding.unit(dtype), float(found.length)
    tables = rounding.of_tables(unit, dtype, length) if 1e-6 < length < 1e6 else unit
    return replace(found, noise=2 * tables + 4 * unit / math.sqrt(gains.samples))


def choose(tokens: Tokens, most: int = ITEMS) -> Tensor:
    """Return the tokens to compare guesses on: of each row the first, the last, and neighbours in between."""
    rows = tokens.row.unique().tolist()
    each = max(most // len(rows), 8)
    chosen = []
    for r in rows:
        here = (tokens.row == r).nonzero().flatten()
        n = len(here)
        if n <= each:
            chosen.append(here)
            continue
        begin, end = each // 3, each // 6
        pairs = torch.linspace(begin, n - end - 2, (each - begin - end) // 2).long()
        local = torch.cat((torch.arange(begin), pairs, pairs + 1, torch.arange(n - end, n))).unique()
        chosen.append(here[local])
    return torch.cat(chosen)


class Search:
    """All that is tried for one group of sides with one structure.

    Args:
        reference: the wanted rotation.
        tokens: the tokens that the gains belong to.
        evidence: one a side.
        planes: P of the structure.
        length: of the context.
        data: dtype of the numbers.
    """

    def __init__(
        self,
        reference: Reference,
        tokens: Tokens,
        evidence: Sequence[Evidence],
        planes: int,
        length: float,
        data: torch.dtype,
    ) -> None:
        chosen = choose(tokens)
        self.reference, self.planes, self.length, self.data = reference, planes, length, data
        self.tokens, self.evidence = tokens.take(chosen), [e.take(chosen) for e in evidence]
        self.scaled = [e.value / e.length.clamp(min=1e-300) for e in self.evidence]
        n = len(chosen)
        every = torch.arange(n)
        self.every = every
        self.few = torch.linspace(0, n - 1, SCREEN).long() if n > 2 * SCREEN else every
        self.noise = max(e.noise for e in self.evidence)
        self.reach = torch.maximum(self.tokens.positions.abs().amax(-1), self.tokens.index.double())[:, None] + 1
        self.no_sine = all(map(_real, self.evidence))
        wanted, length = reference.spectrum.attention_factor, float(self.evidence[0].length)
        # What was on cos and sin when they were rounded: the factor that is wanted, or what it is mistaken for.
        self.factor = min((wanted, 1.0, wanted**2, 1 / wanted), key=lambda f: abs(f - length))
        self.guesses: list[Guess] = []
        self.explaining: list[Guess] = []
        self.exact: dict[tuple[Frequencies, Places, str], float] = {}

    @property
    def apart(self) -> float:
        """Share of the gains in which two sides differ by more than rounding: no guess meets more of both than the rest."""
        one, two = self.evidence
        both = one.sure & two.sure
        ratio = (_dot(one.value, two.value) * both).sum() / (two.value.abs().square() * both).sum().clamp(min=1e-300)
        angle = rounding.float32_angles(self.reach, torch.ones(1, dtype=torch.float64))
        allowed = one.noise * one.spread + two.noise * two.spread + 2 * angle.clamp(max=0.2)
        off = (one.value - ratio.clamp(min=0.0) * two.value).abs() / one.length.clamp(min=1e-300)
        return float(((off > allowed) & both).sum() / both.sum().clamp(min=1))

    def run(self) -> Guess:
        """Return the best guess."""
        wanted = wanted_frequencies(self.reference, self.planes, self.length)
        given = wanted_places(self.reference, self.tokens.positions, self.planes)
        known = [*wanted, *other_frequencies(self.reference, self.planes, self.length)]
        places = [given]
        t = self.tokens
        places += other_places(self.reference, t.positions, t.index, t.row, self.planes, t.first)
        # One fault first: where one explains all, two are not heard of.
        alone = [(f, p) for f, p in itertools.product(known, places) if not (f.cause and p.cause)]
        self._try(alone, tuple(SENSES))
        self._try([(f, p) for f, p in itertools.product(known, places) if f.cause and p.cause], tuple(SENSES))
        if not self._settled(1.06):
            self._fit(known, places)
        if not self._settled(1.06):
            self._round(wanted[0], given)
        return self.best()

    def _settled(self, cost: float) -> bool:
        return any(g.cost <= cost for g in self.explaining)

    def best(self) -> Guess:
        """Return the cheapest guess that explains all, or the one that leaves least."""
        if explaining := self._possible(self.explaining):
            cheapest = min(g.cost for g in explaining)
            return min((g for g in explaining if g.cost <= cheapest + 1e-9), key=lambda g: (-round(g.met, 3), g.left))
        return min(self._possible(self.guesses), key=lambda g: (g.left + 1e-12) * (1 + 0.2 * g.cost))

    def _possible(self, guesses: Sequence[Guess]) -> list[Guess]:
        """Leave out what is not: where no gain has an imaginary part there is no sine, whatever else is wrong."""
        return [g for g in guesses if g.sense == "no-sin" or not self.no_sine]

    def rivals(self, best: Guess) -> list[Guess]:
        """Return guesses of about the same cost that explain as much by other causes."""
        found: dict[tuple[str, ...], Guess] = {}
        for g in sorted(self.explaining, key=lambda g: g.cost):
            if g.cost <= best.cost + RIVAL and g.causes != best.causes and g.causes:
                found.setdefault(g.causes, g)
        return list(found.values())[:3]

    # ---- trying ------------------------------------------------------------------------------------------------------

    def _try(
        self,
        pairs: Sequence[tuple[Frequencies, Places]],
        senses: Sequence[str],
        precision: Precision | None = None,
        *,
        fitted: bool = False,
    ) -> None:
        factor = self.factor
        # Where gains have no one length, it is what fits best.
        free = senses if fitted else ("no-sin", "no-cos")
        # What costs more than a rival of the best that explains all is never heard of.
        dearest = min((g.cost for g in self._possible(self.explaining)), default=math.inf) + RIVAL
        if dearest < math.inf:
            pairs = [some for some in pairs if any(Guess(*some, s, precision).cost <= dearest for s in senses)]
        # Many guesses at once, as far as the numbers of one step stay near the processor.
        step = max(BATCH // (len(self.few) * self.planes), 1)
        for some in (pairs[i : i + step] for i in range(0, len(pairs), step)):
            omega = torch.stack([f.inv_freq for f, _ in some])[:, None]
            planes = max(p.wide.shape[-1] for _, p in some)
            at = torch.stack([p.wide.expand(-1, planes) for _, p in some])
            made = _gains(at[:, self.few], omega, precision, factor)
            for sense in senses:
                met, left = self._score(_sensed(made, sense), at, omega, self.few, sense in free)
                more = ((met >= PROMISING) | (left <= NEAR)).nonzero().flatten()
                if len(self.few) < len(self.every) and len(more):
                    full = _sensed(_gains(at[more], omega[more], precision, factor), sense)
                    met[more], left[more] = self._score(full, at[more], omega[more], self.every, sense in free)
                scored = [
                    Guess(f, p, sense, precision, m, rest, factor, self.exact.get((f, p, sense), 0.0))
                    for (f, p), m, rest in zip(some, met.tolist(), left.tolist(), strict=True)
                ]
                if precision is None:
                    self.exact |= {(g.frequencies, g.places, sense): g.met for g in scored}  # fitted ones come last
                self.guesses += scored
                self.explaining += [g for g in scored if g.explains]

    def _score(self, made: Tensor, at: Tensor, omega: Tensor, which: Tensor, fitted: bool) -> tuple[Tensor, Tensor]:
        """Return the share of gains that guesses meet, and the mean square that they leave: (guesses, tokens, P) → (guesses,)."""
        met, left = [], []
        # Angles are made of the guessed positions; only, one beyond all the given ones allows itself no more than those do.
        reach = torch.maximum(at[:, which].abs().clamp(max=float(self.reach.max())), self.reach[which])
        angle = rounding.float32_angles(reach, omega)
        for e, given in zip(self.evidence, self.scaled, strict=True):
            value, sure, scaled, noise = e.value[which], e.sure[which], given[which], e.noise * e.spread[which]
            if fitted:
                length = _dot(value, made).sum((1, 2)) / (_dot(made, made) * sure).sum((1, 2)).clamp(min=1e-300)
                scaled = value * (1 / length.clamp(min=1e-12))[:, None, None]
            off = scaled - made
            error = _dot(off, off).nan_to_num_(nan=4.0).clamp_(max=4.0).mul_(sure)
            good = (error <= (noise + angle).clamp_(max=0.2).square_()).float()
            count = sure.sum().clamp(min=1)
            share = 1 - (sure.numel() - good.sum((1, 2)).double()) / count
            # A few numbers may lie at the border of rounding; a token or a plane that is wrong as a whole does not.
            whole = (good.mean(2).amin(1) >= 0.5) & (good.mean(1).amin(1) >= 0.5)
            met.append(torch.where(whole, share, share.clamp(max=ROUNDED - 0.01)))
            left.append(error.sum((1, 2)) / count)
        return torch.stack(met).amin(0), torch.stack(left).amax(0)

    def _best_few(self, count: int, senses: Iterable[str]) -> list[Guess]:
        allowed, few = set(senses), []
        seen: set[tuple[int, int, str]] = set()
        for g in sorted(self.guesses, key=lambda g: g.left * (1 + 0.1 * g.cost)):
            key = (id(g.frequencies), id(g.places), g.sense)
            if g.sense in allowed and g.precision is None and key not in seen:
                seen.add(key)
                few.append(g)
            if len(few) == count:
                break
        return few

    def _fit(self, known: Sequence[Frequencies], places: Sequence[Places]) -> None:
        wanted, given = known[0], places[0]
        value = torch.stack(self.scaled).mean(0)
        likely = [given, *(g.places for g in self._best_few(2, SENSES))]
        by_index = [p for p in places if p.cause == "positions-ignored"][:1]
        laws: list[Frequencies] = []
        for place in _distinct([*likely, *by_index]):
            omega, _, hold = frequencies(value, place.at)
            free = list(fitted_frequencies(self.reference, omega.abs(), wanted.inv_freq, self.length))
            laws += free
            self._try([(f, place) for f in free], ("", "sign", "swapped"))
            if place is given:
                self._try(list(self._rescaled(known, omega, hold, given)), ("", "sign"))
        if self._settled(1.06):
            return
        trials = _distinct([*known, *(g.frequencies for g in self._best_few(3, ("", "sign"))), *self._lawful(laws)])
        trials = [f for f in trials if f.cause != "frequencies"]
        turned = {"": value, "sign": value.conj()}
        for sense, gains in turned.items():
            self._shift(trials, gains, sense, given)
        near = given.at if given.at.ndim == 1 else self.tokens.positions.amax(-1)
        located = {sense: self._located(trials, gains, near) for sense, gains in turned.items()}
        for least in LEAST:
            for sense, found in located.items():
                axes = [] if given.at.ndim == 1 or least != LEAST[0] else self._assigned(trials, turned[sense])
                self._try([*axes, *self._described(trials, *found, near, least)], (sense,))
            if self._settled(2.4) or 4 * self.noise >= LEAST[-1]:
                return

    def _rescaled(
        self, known: Sequence[Frequencies], omega: Tensor, hold: Tensor, given: Places
    ) -> Iterator[tuple[Frequencies, Places]]:
        """Yield known frequencies together with a scale on positions."""
        span = float(given.at.max() - given.at.min())
        for f in known:
            own = f.inv_freq.abs()
            # Fast planes may have lost turns, and slow ones show nothing.
            seen = (hold > 0.9) & (own * 4 < torch.pi) & (own * span > 20 * self.noise) & (omega.abs() > 0)
            if int(seen.sum()) < 2:
                continue
            ratios = (omega.abs() / own)[seen]
            scale = nice(float(ratios.median()))
            if scale <= 0 or abs(scale - 1) < 1e-9 or float(((ratios / scale - 1).abs() < 0.02).double().mean()) < 0.8:
                continue
            yield f, scaled_places(given, scale)

    def _lawful(self, laws: list[Frequencies]) -> list[Frequencies]:
        """Return the fitted laws that some guess does best with."""
        ids = {id(f) for f in laws}
        ranked = sorted(
            (g for g in self.guesses if id(g.frequencies) in ids and g.frequencies.cause != "frequencies"),
            key=lambda g: g.left,
        )
        return [g.frequencies for g in ranked[:4]]

    def _located(self, trials: Sequence[Frequencies], value: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions that the angles stand for, (trials, n), and how far gains are off there, (trials, n, P)."""
        omega = torch.stack([f.inv_freq for f in trials])
        found = locate(value, omega, near)
        return found, (value - turn(found[..., None] * omega[:, None])).abs()

    def _described(
        self, trials: Sequence[Frequencies], found: Tensor, off: Tensor, near: Tensor, least: float
    ) -> Iterator[tuple[Frequencies, Places]]:
        """Yield laws that located positions follow."""
        t = self.tokens
        for f, where, here in zip(trials, found, off, strict=True):
            allowed = (4 * self.noise + rounding.float32_angles(self.reach, f.inv_freq)).clamp(min=least, max=0.3)
            sure = (here <= allowed).double().mean(-1) > 0.9
            if int(sure.sum()) < max(1, 0.3 * len(sure)):
                continue
            # Rounding of the gains moves a located position by much less than a step, if the planes are fast enough.
            snapped = torch.where((where - where.round()).abs() < 0.1, where.round(), where)
            for law in described_places(snapped, near, t.index, t.row, sure):
                yield f, law

    def _assigned(self, trials: Sequence[Frequencies], value: Tensor) -> Iterator[tuple[Frequencies, Places]]:
        """Yield for each plane the axis that it reads."""
        t = self.tokens
        axes = t.positions.shape[-1]
        names = [*(("t", "row", "column") if axes == 3 else (f"axis {a}" for a in range(axes))), "the token's number"]
        columns = torch.cat((t.positions, t.index[:, None].double()), -1)
        for f in trials:
            best = (value[:, None] - turn(columns[..., None] * f.inv_freq)).abs().square().mean(0).argmin(0)
            if tuple(best.tolist()) == (self.reference.axis or ()):
                continue
            runs, first = [], 0
            for axis, run in itertools.groupby(best.tolist()):
                last = first + len(list(run)) - 1
                runs.append(f"planes {first} to {last} read {names[axis]}")
                first = last + 1
            yield (
                f,
                Places(
                    "sections",
                    "planes read other axes than the configuration says: " + "; ".join(runs[:6]),
                    "deal the planes out by mrope_section",
                    columns[:, best],
                    1.3,
                    needs="tokens whose axes differ",
                ),
            )

    def _shift(self, trials: Sequence[Frequencies], value: Tensor, sense: str, given: Places) -> None:
        """Try an offset of all positions: what is left over, alike for all tokens, when the given ones are taken out."""
        omega = torch.stack([f.inv_freq for f in trials])
        rest = (value * turn(given.wide * omega[:, None]).conj()).mean(1)
        held = (omega > 0) & (rest.abs() > 0.9)
        far = locate(rest[:, None], torch.where(held, omega, 0.0), torch.zeros(1, dtype=torch.float64))[:, 0]
        enough = (held.sum(-1) >= (0.5 * (omega > 0).sum(-1)).clamp(min=1)) & (far.abs() < FARTHEST)
        kept, backwards = [], []
        for f, found in ((trials[i], float(far[i])) for i in enough.nonzero().flatten().tolist()):
            offset = float(round(found)) if abs(found - round(found)) < 0.05 else found
            if (
                sense == "sign"
                and -offset > float(given.at.max()) - 0.5
                and float(given.at.max()) > float(given.at.min())
            ):
                backwards.append((f, reversed_places(given, -offset)))
            elif offset:
                kept.append((f, shifted_places(given, offset)))
        self._try(kept, (sense,))
        self._try(backwards, ("",))

    def _round(self, wanted: Frequencies, given: Places) -> None:
        # "frequencies" may be any number a plane: rounding on top of that would explain everything.
        few = [
            g for g in self._best_few(200, ("", "sign", "swapped")) if not {"frequencies", "positions"} & {*g.causes}
        ]
        kinds: dict[tuple[str, ...], int] = {}
        bases = [Guess(wanted, given), Guess(wanted, given, "sign")]
        for g in few:  # the best two of each kind, so that many bases do not crowd out all else
            kinds[g.causes] = kinds.get(g.causes, 0) + 1
            if kinds[g.causes] <= 2 and len(bases) < 12:
                bases.append(g)
        # Tables that are rounded have no one length; that alone must not speak for them, so exact ones are fitted as well.
        for precision in (None, *precisions(self.data)):
            for sense in dict.fromkeys(g.sense for g in bases):
                some = [(g.frequencies, g.places) for g in bases if g.sense == sense]
                self._try(some, (sense,), precision, fitted=True)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Return Re(a b̄)."""
    return a.real * b.real + a.imag * b.imag


def _real(e: Evidence) -> bool:
    """Whether gains have no imaginary part, and are not all alike."""
    if not bool(e.sure.any()):
        return False
    value = e.value[e.sure]
    flat = float((value.imag.abs() <= e.noise).double().mean()) >= ENOUGH
    return flat and float(((value.real - value.real.median()).abs() > 8 * e.noise).double().mean()) > 0.05


def _distinct(items: Iterable[Item]) -> list[Item]:
    seen: dict[int, Item] = {}
    for item in items:
        seen.setdefault(id(item), item)
    return list(seen.values())


def read_sides(sides: Iterable[Side], structure: Structure, dtype: torch.dtype) -> list[Evidence]:
    """Return the evidence of several sides under one structure."""
    return [evidence_of(side, read(side, structure), dtype) for side in sides]


def ladder_base(inv_freq: Tensor) -> float | None:
    """Return the base of which these are the frequencies, if they are of one to a thousandth."""
    planes = len(inv_freq)
    if planes < 2 or not bool((inv_freq > 0).all()) or abs(float(inv_freq[0]) - 1) > 1e-3:
        return None
    i = torch.arange(1, planes, dtype=torch.float64)
    bases = (-inv_freq[1:].log() * planes / i).exp()
    middle = float(bases.median())
    fits = (middle ** (-i / planes) / inv_freq[1:] - 1).abs() < 1e-2
    return middle if float(fits.double().mean()) > 0.9 else None
