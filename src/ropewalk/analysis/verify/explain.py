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
    other_frequencies,
    other_places,
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
        omega = self.frequencies.inv_freq
        made = (
            torch.polar(torch.ones(1, dtype=torch.float64), at * omega)
            if self.precision is None
            else self.precision.gains(at, omega, self.factor)
        )
        return _sensed(made, self.sense)


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
        explaining = [g for g in self.guesses if g.explains]
        if explaining:
            cheapest = min(g.cost for g in explaining)
            return min((g for g in explaining if g.cost <= cheapest + 1e-9), key=lambda g: (-round(g.met, 3), g.left))
        return min(self.guesses, key=lambda g: (g.left + 1e-12) * (1 + 0.2 * g.cost))

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
        reach, factor = self._reach(), self.reference.spectrum.attention_factor
        for f in freqs:
            off = [(e.noise + rounding.float32_angles(reach, f.inv_freq)).clamp(max=0.2) for e in self.evidence]
            for p in places:
                made = Guess(f, p, "", precision, factor=factor).gains()
                for sense in senses:
                    # Where gains have no one length, it is what fits best.
                    fitted = precision is not None or sense in ("no-sin", "no-cos")
                    met, left = self._score(_sensed(made, sense), off, fitted)
                    self.guesses.append(Guess(f, p, sense, precision, met, left, factor))

    def _reach(self) -> Tensor:
        return torch.maximum(self.tokens.positions.abs().amax(-1), self.tokens.index.double())[:, None] + 1

    def _score(self, made: Tensor, off: Sequence[Tensor], fitted: bool) -> tuple[float, float]:
        met, left = [], []
        for e, scaled, allowed in zip(self.evidence, self.scaled, off, strict=True):
            if fitted:
                length = (e.value * made.conj()).real[e.sure].sum() / made.abs().square().expand_as(e.value)[
                    e.sure
                ].sum().clamp(min=1e-300)
                scaled = torch.where(e.sure, e.value / length.clamp(min=1e-12), torch.zeros_like(e.value))
            error = (scaled - made).abs()
            error = torch.where(torch.isfinite(error), error, torch.full_like(error, 2.0))
            count = e.sure.sum().clamp(min=1)
            good = ((error <= allowed) | ~e.sure).double()
            share = float((good * e.sure).sum() / count)
            # A few numbers may lie at the border of rounding; a token or a plane that is wrong as a whole does not.
            if float(good.mean(-1).min()) < 0.5 or float(good.mean(0).min()) < 0.5:
                share = min(share, ROUNDED - 0.01)
            met.append(share)
            left.append(float((error.clamp(max=2.0).square() * e.sure).sum() / count))
        return min(met), max(left)

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
            omega, phase, hold = frequencies(value, place.at)
            sense = self._sense_of(omega, wanted.inv_freq)
            free = list(fitted_frequencies(self.reference, omega.abs(), wanted.inv_freq, self.length))
            laws += free
            self._try(free, [place], ("", "sign", "swapped"))
            # An offset shifts all angles of a plane alike: what is left over after the slopes are known.
            shifted = self._offset(omega, phase, hold, place)
            if shifted is not None:
                self._try([wanted, *known[1:8], *free], [shifted], (sense,))
        few = self._best_few(3, ("", "sign"))
        trials = _distinct(
            [
                wanted,
                *(f for f in known if f.cause in ("scaling-ignored", "base")),
                *(g.frequencies for g in few),
                *self._lawful(laws),
            ]
        )
        for sense in ("", "sign"):
            turned = value if sense == "" else value.conj()
            for f in trials:
                if f.cause == "frequencies":
                    continue
                self._locate(f, turned, sense)

    def _lawful(self, laws: list[Frequencies]) -> list[Frequencies]:
        """Return the fitted laws that some guess does best with."""
        ids = {id(f) for f in laws}
        ranked = sorted(
            (g for g in self.guesses if id(g.frequencies) in ids and g.frequencies.cause != "frequencies"),
            key=lambda g: g.left,
        )
        return [g.frequencies for g in ranked[:4]]

    def _locate(self, f: Frequencies, value: Tensor, sense: str) -> None:
        t = self.tokens
        positions = t.positions
        wanted = wanted_places(self.reference, positions, self.planes).at
        if wanted.ndim == 2:
            self._assign(f, value, sense)
            near = positions.amax(-1)
        else:
            near = wanted
        found = locate(value, f.inv_freq, near)
        off = (value - torch.polar(torch.ones(1, dtype=torch.float64), found[:, None] * f.inv_freq)).abs()
        noise = max(e.noise for e in self.evidence)
        allowed = (4 * noise + rounding.float32_angles(self._reach(), f.inv_freq)).clamp(min=1e-3, max=0.3)
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

    def _sense_of(self, omega: Tensor, wanted: Tensor) -> str:
        weight = wanted.abs()
        return "sign" if float((omega.sign() * weight).sum()) < 0 else ""

    def _offset(self, omega: Tensor, phase: Tensor, hold: Tensor, place: Places) -> Places | None:
        if place.at.ndim == 2 or place.cost > 0 or not bool((hold > 0.9).any()):
            return None
        slow = (omega.abs() > 0) & (hold > 0.9)
        if not bool(slow.any()):
            return None
        found = locate(
            torch.polar(torch.ones_like(phase), phase)[None, slow], omega[slow], torch.zeros(1, dtype=torch.float64)
        )
        offset = round(float(found[0])) if abs(float(found[0]) - round(float(found[0]))) < 0.05 else float(found[0])
        if offset == 0:
            return None
        word = "too large" if offset > 0 else "too small"
        return Places(
            "position-offset",
            f"positions are {abs(offset):g} {word}",
            "count tokens from 0; in decoding the new token's position is the number of tokens before it",
            place.at + offset,
            1.05,
        )

    def _round(self, wanted: Frequencies, given: Places) -> None:
        # "frequencies" may be any number a plane: rounding on top of that would explain everything.
        few = [
            g
            for g in self._best_few(8, ("", "sign", "swapped"))
            if g.frequencies.cause != "frequencies" and g.places.cause != "positions"
        ]
        bases = [Guess(wanted, given), Guess(wanted, given, "sign"), *few]
        for precision in precisions(self.data):
            for g in bases:
                self._try([g.frequencies], [g.places], (g.sense,), precision)


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
