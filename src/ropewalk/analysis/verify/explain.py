"""From gains to causes: the fewest and most usual faults that together give what was measured.

A guess is frequencies, positions, a sense and a precision, each the wanted one or a candidate. Its gains are computed and
compared with the measured ones; among the guesses that leave nothing but rounding, the one with the smallest cost wins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
from ropewalk.analysis.verify.measure import Gains, Structure, frequencies, locate, read
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
    """Gains of one side at some tokens, their length taken out, and how sure they are."""

    side: str
    value: Tensor
    sure: Tensor
    noise: float
    rest: float

    @property
    def length(self) -> Tensor:
        """What all gains are multiplied by."""
        return self.value.abs()[self.sure].median()

    def take(self, which: Tensor) -> Evidence:
        return replace(self, value=self.value[which], sure=self.sure[which])


@dataclass(frozen=True, eq=False)
class Guess:
    """One explanation, and how well it does."""

    frequencies: Frequencies
    places: Places
    sense: str = ""
    precision: Precision | None = None
    met: float = 0.0
    left: float = math.inf
    factor: float = 1.0

    @property
    def cost(self) -> float:
        """How far-fetched it is."""
        rounded = 0.0 if self.precision is None else 0.9 + 0.1 * len(self.precision.parts)
        return self.frequencies.cost + self.places.cost + (self.sense != "") + rounded

    @property
    def explains(self) -> bool:
        """Whether it leaves nothing but rounding."""
        return self.met >= (ENOUGH if self.precision is None else ROUNDED)

    @property
    def causes(self) -> tuple[str, ...]:
        """What it is made of."""
        rounded = "" if self.precision is None else "precision"
        return tuple(c for c in (self.sense, self.places.cause, self.frequencies.cause, rounded) if c)

    def gains(self) -> Tensor:
        """Return what pairs are multiplied by, (n, P)."""
        at = self.places.at if self.places.at.ndim == 2 else self.places.at[:, None]
        return _sensed(_gains(at, self.frequencies.inv_freq, self.precision, self.factor), self.sense)


def _gains(at: Tensor, inv_freq: Tensor, precision: Precision | None, factor: float) -> Tensor:
    if precision is not None:
        return precision.gains(at, inv_freq, factor)
    return torch.polar(torch.ones(1, dtype=torch.float64), at * inv_freq)


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


def evidence_of(side: Side, gains: Gains, unit: float) -> Evidence:
    """Return the gains of a side, flat."""
    value, weight = gains.value.flatten(0, 1), gains.weight.flatten(0, 1)
    sure = (weight > 1e-3 * weight.median()) & torch.isfinite(value.real) & torch.isfinite(value.imag)
    return Evidence(side.name, value, sure, unit * (2 + 4 / math.sqrt(gains.samples)), gains.rest)


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
        self.scaled = [
            torch.where(e.sure, e.value / e.length.clamp(min=1e-300), torch.zeros_like(e.value)) for e in self.evidence
        ]
        n = len(chosen)
        every = torch.arange(n)
        self.every = every
        self.few = torch.linspace(0, n - 1, SCREEN).long() if n > 2 * SCREEN else every
        self.no_sine = all(map(_real, self.evidence))
        self.guesses: list[Guess] = []

    def run(self) -> Guess:
        """Return the best guess."""
        wanted = wanted_frequencies(self.reference, self.planes, self.length)
        given = wanted_places(self.reference, self.tokens.positions, self.planes)
        known = [*wanted, *other_frequencies(self.reference, self.planes, self.length)]
        places = [given]
        t = self.tokens
        places += other_places(self.reference, t.positions, t.index, t.row, self.planes, t.first)
        self._try(known, places, tuple(SENSES))
        if not self._settled(1.06):
            self._fit(known, places)
        if not self._settled(1.06):
            self._round(wanted[0], given)
        return self.best()

    def _settled(self, cost: float) -> bool:
        return any(g.explains and g.cost <= cost for g in self.guesses)

    def best(self) -> Guess:
        """Return the cheapest guess that explains all, or the one that leaves least."""
        # Where no gain has an imaginary part there is no sine, whatever else is wrong.
        guesses = [g for g in self.guesses if g.sense == "no-sin" or not self.no_sine]
        explaining = [g for g in guesses if g.explains]
        if explaining:
            cheapest = min(g.cost for g in explaining)
            return min((g for g in explaining if g.cost <= cheapest + 1e-9), key=lambda g: (-round(g.met, 3), g.left))
        return min(guesses, key=lambda g: (g.left + 1e-12) * (1 + 0.2 * g.cost))

    def rivals(self, best: Guess) -> list[Guess]:
        """Return guesses of about the same cost that explain as much by other causes."""
        found: dict[tuple[str, ...], Guess] = {}
        for g in sorted(self.guesses, key=lambda g: g.cost):
            if g.explains and g.cost <= best.cost + 0.3 and g.causes != best.causes and g.causes:
                found.setdefault(g.causes, g)
        return list(found.values())[:3]

    # ---- trying ------------------------------------------------------------------------------------------------------

    def _try(
        self,
        freqs: Iterable[Frequencies],
        places: Sequence[Places],
        senses: Sequence[str],
        precision: Precision | None = None,
    ) -> None:
        if not places:
            return
        reach, factor = self._reach(), self.reference.spectrum.attention_factor
        wide = any(p.at.ndim == 2 for p in places)
        at = torch.stack([_wide(p.at, self.planes if wide else 1) for p in places])
        # Where gains have no one length, it is what fits best.
        free = ("no-sin", "no-cos") if precision is None else senses
        for f in freqs:
            off = [(e.noise + rounding.float32_angles(reach, f.inv_freq)).clamp(max=0.2) for e in self.evidence]
            made = _gains(at[:, self.few], f.inv_freq, precision, factor)
            for sense in senses:
                met, left = self._score(_sensed(made, sense), off, self.few, sense in free)
                if len(self.few) < len(self.every):
                    some = ((met >= PROMISING) | (left <= NEAR)).nonzero().flatten()
                    if len(some):
                        full = _sensed(_gains(at[some], f.inv_freq, precision, factor), sense)
                        met[some], left[some] = self._score(full, off, self.every, sense in free)
                self.guesses += [
                    Guess(f, p, sense, precision, m, rest, factor)
                    for p, m, rest in zip(places, met.tolist(), left.tolist(), strict=True)
                ]

    def _reach(self) -> Tensor:
        return torch.maximum(self.tokens.positions.abs().amax(-1), self.tokens.index.double())[:, None] + 1

    def _score(self, made: Tensor, off: Sequence[Tensor], which: Tensor, fitted: bool) -> tuple[Tensor, Tensor]:
        """Return the share of gains that guesses meet, and the mean square that they leave: (guesses, tokens, P) → (guesses,)."""
        met, left = [], []
        for e, given, allowed in zip(self.evidence, self.scaled, off, strict=True):
            value, sure, scaled = e.value[which], e.sure[which], given[which]
            if fitted:
                own = (value * made.conj()).real.masked_fill(~sure, 0.0).sum((1, 2))
                length = own / made.abs().square().masked_fill(~sure, 0.0).sum((1, 2)).clamp(min=1e-300)
                scaled = (value / length.clamp(min=1e-12)[:, None, None]).masked_fill(~sure, 0.0)
            error = (scaled - made).abs().nan_to_num(nan=2.0, posinf=2.0).masked_fill(~sure, 0.0)
            count = sure.sum().clamp(min=1)
            good = error <= allowed[which]
            share = (good & sure).sum((1, 2)) / count
            # A few numbers may lie at the border of rounding; a token or a plane that is wrong as a whole does not.
            good = good.double()
            whole = (good.mean(2).amin(1) >= 0.5) & (good.mean(1).amin(1) >= 0.5)
            met.append(torch.where(whole, share, share.clamp(max=ROUNDED - 0.01)).double())
            left.append(error.clamp(max=2.0).square().sum((1, 2)) / count)
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
            self._try(free, [place], ("", "sign", "swapped"))
            if place is given:
                self._rescale(known, omega, hold, given)
        if self._settled(1.06):
            return
        trials = _distinct([*known, *(g.frequencies for g in self._best_few(3, ("", "sign"))), *self._lawful(laws)])
        trials = [f for f in trials if f.cause != "frequencies"]
        turned = {"": value, "sign": value.conj()}
        for f in trials:
            for sense, gains in turned.items():
                self._shift(f, gains, sense, given)
        for least in LEAST:
            for sense, gains in turned.items():
                for f in trials:
                    self._locate(f, gains, sense, least)
            if self._settled(2.4) or 4 * max(e.noise for e in self.evidence) >= LEAST[-1]:
                return

    def _rescale(self, known: Sequence[Frequencies], omega: Tensor, hold: Tensor, given: Places) -> None:
        """Try known frequencies together with a scale on positions."""
        span = float(given.at.max() - given.at.min())
        noise = max(e.noise for e in self.evidence)
        for f in known:
            own = f.inv_freq.abs()
            # Fast planes may have lost turns, and slow ones show nothing.
            seen = (hold > 0.9) & (own * 4 < torch.pi) & (own * span > 20 * noise) & (omega.abs() > 0)
            if int(seen.sum()) < 2:
                continue
            ratios = (omega.abs() / own)[seen]
            scale = nice(float(ratios.median()))
            if scale <= 0 or abs(scale - 1) < 1e-9 or float(((ratios / scale - 1).abs() < 0.02).double().mean()) < 0.8:
                continue
            self._try([f], [scaled_places(given, scale)], ("", "sign"))

    def _lawful(self, laws: list[Frequencies]) -> list[Frequencies]:
        """Return the fitted laws that some guess does best with."""
        ids = {id(f) for f in laws}
        ranked = sorted(
            (g for g in self.guesses if id(g.frequencies) in ids and g.frequencies.cause != "frequencies"),
            key=lambda g: g.left,
        )
        return [g.frequencies for g in ranked[:4]]

    def _locate(self, f: Frequencies, value: Tensor, sense: str, least: float) -> None:
        t = self.tokens
        positions = t.positions
        wanted = wanted_places(self.reference, positions, self.planes).at
        if wanted.ndim == 2:
            if least == LEAST[0]:
                self._assign(f, value, sense)
            near = positions.amax(-1)
        else:
            near = wanted
        found = locate(value, f.inv_freq, near)
        off = (value - torch.polar(torch.ones(1, dtype=torch.float64), found[:, None] * f.inv_freq)).abs()
        noise = max(e.noise for e in self.evidence)
        allowed = (4 * noise + rounding.float32_angles(self._reach(), f.inv_freq)).clamp(min=least, max=0.3)
        sure = ((off <= allowed).double().mean(-1)) > 0.9
        if int(sure.sum()) < max(1, 0.3 * len(sure)):
            return
        # Rounding of the gains moves a located position by much less than a step, if the planes are fast enough.
        snapped = torch.where((found - found.round()).abs() < 0.1, found.round(), found)
        laws = list(described_places(snapped, near, t.index, t.row, sure))
        self._try([f], laws, (sense,))

    def _assign(self, f: Frequencies, value: Tensor, sense: str) -> None:
        """Find for each plane the axis that it reads."""
        t = self.tokens
        names = [
            *(
                ("t", "row", "column")
                if t.positions.shape[-1] == 3
                else (f"axis {a}" for a in range(t.positions.shape[-1]))
            ),
            "the token's number",
        ]
        columns = [*t.positions.unbind(-1), t.index.double()]
        off = torch.stack(
            [
                (value - torch.polar(torch.ones(1, dtype=torch.float64), c[:, None] * f.inv_freq))
                .abs()
                .square()
                .mean(0)
                for c in columns
            ]
        )
        best = off.argmin(0)
        wanted = self.reference.axis or ()
        at = torch.stack([columns[int(a)][:] for a in best], -1)
        runs, i = [], 0
        while i < len(best):
            j = i
            while j < len(best) and best[j] == best[i]:
                j += 1
            runs.append(f"planes {i} to {j - 1} read {names[int(best[i])]}")
            i = j
        if tuple(best.tolist()) != tuple(wanted):
            self._try(
                [f],
                [
                    Places(
                        "sections",
                        "planes read other axes than the configuration says: " + "; ".join(runs[:6]),
                        "deal the planes out by mrope_section",
                        at,
                        1.3,
                        needs="tokens whose axes differ",
                    )
                ],
                (sense,),
            )

    def _shift(self, f: Frequencies, value: Tensor, sense: str, given: Places) -> None:
        """Try an offset of all positions: what is left over, alike for all tokens, when the given ones are taken out."""
        at = _wide(given.at, self.planes)
        rest = (value * _gains(at, f.inv_freq, None, 1.0).conj()).mean(0)
        held = (f.inv_freq > 0) & (rest.abs() > 0.9)
        if int(held.sum()) < max(1, 0.5 * int((f.inv_freq > 0).sum())):
            return
        phase = torch.polar(torch.ones(1, dtype=torch.float64), rest.angle())
        found = float(locate(phase[None, held], f.inv_freq[held], torch.zeros(1, dtype=torch.float64))[0])
        if not abs(found) < FARTHEST:
            return
        offset = float(round(found)) if abs(found - round(found)) < 0.05 else found
        if sense == "sign" and -offset > float(given.at.max()) - 0.5 and float(given.at.max()) > float(given.at.min()):
            self._try([f], [reversed_places(given, -offset)], ("",))
        elif offset:
            self._try([f], [shifted_places(given, offset)], (sense,))

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
        for precision in precisions(self.data):
            for g in bases:
                self._try([g.frequencies], [g.places], (g.sense,), precision)


def _wide(at: Tensor, planes: int) -> Tensor:
    return at if at.ndim == 2 else at[:, None].expand(-1, planes)


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


def read_sides(sides: Iterable[Side], structure: Structure, unit: float) -> list[Evidence]:
    """Return the evidence of several sides under one structure."""
    return [evidence_of(side, read(side, structure), unit) for side in sides]


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
