"""Is an observed rotation the reference's, and if not, what is it?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ropewalk.analysis.verify import rounding
from ropewalk.analysis.verify.candidates import wanted_places
from ropewalk.analysis.verify.explain import (
    ENOUGH,
    ROUNDED,
    SENSES,
    Evidence,
    Guess,
    Search,
    ladder_base,
    read_sides,
    tokens_of,
)
from ropewalk.analysis.verify.measure import Structure, find_structure, frequencies, read, turned
from ropewalk.analysis.verify.observation import Observation, Side
from ropewalk.analysis.verify.reference import Reference
from ropewalk.analysis.verify.tables import NAMES, Precision
from ropewalk.analysis.verify.verdict import Finding, Measured, Severity, Verdict
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.frequencies import yarn_attention_factor

AXES = "batch, heads, seq, head_dim"
OPEN = ("positions", "frequencies", "unexplained")
"""Causes that say what differs and not why: those that name a fault come first."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """How far one side is from the reference.

    Args:
        side: which.
        error: (batch, heads, seq) largest error of a token, in lengths of the pair it is in.
        over: likewise, as a multiple of what rounding explains.
        drift: how much the mean gain of a plane is off, as a multiple of what rounding explains.
    """

    side: Side
    error: Tensor
    over: Tensor
    drift: float

    @property
    def same(self) -> bool:
        return bool((self.over <= 1).all()) and self.drift <= 1

    def wrong_heads(self) -> list[int]:
        """Return the heads that differ."""
        return (self.over.amax((0, 2)) > 1).nonzero().flatten().tolist()


def diagnose(observation: Observation, reference: Reference) -> Verdict:
    """Compare an observation with its reference, and explain what differs."""
    _check_widths(observation, reference)
    if observation.head_dim != reference.head_dim:  # the turned channels were saved alone
        reference = replace(reference, head_dim=observation.head_dim, start=0)
    compared = [compare(side, observation, reference) for side in observation.sides]
    findings = [*_dtypes(observation), *_not_finite(observation)]
    worst = max(float(c.error.max()) for c in compared)
    dtype = str(observation.dtype).removeprefix("torch.")
    if any(f.cause == "not-finite" for f in findings):
        return Verdict(False, tuple(findings), Measured(), reference.name, math.inf, dtype)
    wrong = [c for c in compared if not c.same]
    measured = Measured()
    if wrong:
        explained, measured = _Diagnosis(observation, reference, compared).run()
        findings = [*explained, *findings]
    else:
        measured = _as_wanted(observation, reference)
        findings += _notes(observation, reference, compared)
    findings += [Finding("configuration", text, severity="note") for text in reference.findings]
    errors = [f for f in findings if f.severity == "error"]
    notes = [f for f in findings if f.severity != "error"]
    return Verdict(not errors, (*errors, *notes), measured, reference.name, worst, dtype)


# ---- comparing -------------------------------------------------------------------------------------------------------


def wanted_structure(reference: Reference) -> Structure:
    """Return the structure of the reference."""
    return Structure(reference.pairing, reference.width, reference.start)


def compare(side: Side, observation: Observation, reference: Reference) -> Comparison:
    """Compare one side with the reference, token by token and in the mean."""
    x, y, unit = side.before, side.after, observation.unit
    structure, omega = wanted_structure(reference), reference.inv_freq()
    at = reference.coordinates(observation.positions)
    wanted = torch.polar(torch.full((1,), reference.spectrum.attention_factor, dtype=torch.float64), at * omega)
    first, second = structure.channels()
    z, w = torch.complex(x[..., first], x[..., second]), torch.complex(y[..., first], y[..., second])
    length = z.abs() * max(reference.spectrum.attention_factor, 1.0)
    angle = rounding.float32_angles(at, omega)[:, None]
    tiny = torch.finfo(observation.dtype).smallest_normal * (2.0**-10 if observation.dtype == torch.float16 else 1.0)
    off = (w - z * wanted[:, None]).abs()
    allowed = (math.sqrt(2) * rounding.ELEMENT * unit + angle) * length + 2 * tiny
    error, over = (off / length.clamp(min=1e-300)).amax(-1), (off / allowed).amax(-1)
    rest = torch.ones(x.shape[-1], dtype=torch.bool)
    rest[torch.cat((first, second))] = False
    if bool(rest.any()):
        change = (y - x)[..., rest].abs()
        over = torch.maximum(over, (change / (rounding.ELEMENT * unit * x[..., rest].abs() + 2 * tiny)).amax(-1))
        error = torch.maximum(error, (change / x[..., rest].abs().clamp(min=1e-300)).amax(-1))
    count = x.shape[0] * x.shape[1] * x.shape[2]
    drift = 0.0
    if count >= 16:
        across = (w * (z * wanted[:, None]).conj()).sum((0, 1, 2)) / (
            z.abs().square() * wanted.abs().square()[:, None]
        ).sum((0, 1, 2)).clamp(min=1e-300)
        systematic = rounding.systematic(unit, observation.dtype, reference.spectrum.attention_factor, count)
        drift = float(((across - 1).abs() / (systematic + angle.mean((0, 1, 2)))).max())
    return Comparison(side, error, over.nan_to_num(nan=math.inf), drift)


def _check_widths(observation: Observation, reference: Reference) -> None:
    if observation.head_dim != reference.head_dim and observation.head_dim != reference.width:
        raise ShapeError(
            f"heads have {observation.head_dim} channels and the reference {reference.head_dim}; is "
            "this the configuration of the "
            "same model, and are heads split? Give (batch, heads, seq, head_dim)"
        )
    if observation.head_dim < reference.start + reference.width and observation.head_dim != reference.width:
        raise ConfigError(
            f"the reference turns channels up to {reference.start + reference.width} of {observation.head_dim}"
        )


def _dtypes(observation: Observation) -> list[Finding]:
    found = []
    for side in observation.sides:
        before, after = (str(d).removeprefix("torch.") for d in side.given)
        if before != after:
            found.append(
                Finding(
                    "dtype",
                    f"{side.name} goes in as {before} and comes out as {after}",
                    fix=f"cast the result back: {side.name}_rot.to({side.name}.dtype)",
                    side=side.name,
                )
            )
    return found


def _not_finite(observation: Observation) -> list[Finding]:
    found = []
    for side in observation.sides:
        bad = ~torch.isfinite(side.after)
        if bool(bad.any()):
            row, head, token, channel = bad.nonzero()[0].tolist()
            found.append(
                Finding(
                    "not-finite",
                    f"{side.name}_rot holds NaN or infinity",
                    f"{int(bad.sum())} numbers, first at row {observation.rows[row]}, head {head}, "
                    f"token {int(observation.index[token])}, channel {channel}; "
                    f"its position is {observation.positions[row, token].tolist()}",
                    "look for angles in fp16, which end at 65504, and for uninitialised frequencies",
                    side=side.name,
                )
            )
    return found


def _as_wanted(observation: Observation, reference: Reference) -> Measured:
    gains = {side.name: read(side, wanted_structure(reference)) for side in observation.sides}
    lengths = {name: float(g.value.abs()[g.weight > 0].median()) for name, g in gains.items()}
    return Measured(
        reference.pairing,
        reference.width,
        reference.start,
        1,
        reference.spectrum.inv_freq,
        ladder_base(reference.inv_freq()),
        reference.spectrum.origin or None,
        lengths.get("q"),
        lengths.get("k"),
        1.0,
        0.0,
        "as precise as the numbers show",
    )


def _notes(observation: Observation, reference: Reference, compared: Sequence[Comparison]) -> list[Finding]:
    """Say where float32 angles show, as they do in every engine."""
    if observation.dtype not in (torch.float32, torch.float64):
        return []
    worst = max(compared, key=lambda c: float(c.error.max()))
    error = float(worst.error.max())
    if error <= 8 * rounding.UNITS[observation.dtype]:
        return []
    row, _, token = (worst.error == worst.error.max()).nonzero()[0].tolist()
    where = observation.positions[row, token].tolist()
    return [
        Finding(
            "float32-tables",
            "angles or tables are made in float32, as in most engines",
            f"largest difference {error:.2g} of a pair's length, at position {', '.join(f'{p:g}' for p in where)}",
            "multiply positions and frequencies in float64 if positions grow beyond 1e5",
            "note",
        )
    ]


# ---- explaining ------------------------------------------------------------------------------------------------------


class _Diagnosis:
    def __init__(self, observation: Observation, reference: Reference, compared: Sequence[Comparison]) -> None:
        self.o, self.reference, self.compared = observation, reference, list(compared)
        self.wrong = [c for c in compared if not c.same]
        self.findings: list[Finding] = []
        self.measured = Measured()
        positions = observation.positions
        self.length = float(max(positions.max().item() + 1, int(observation.index.max()) + 1, 1))

    def run(self) -> tuple[list[Finding], Measured]:
        whole = [c.side for c in self.wrong]
        swapped = replace(wanted_structure(self.reference), swapped=True)
        # Where positions run along the heads, the first head may be right by chance.
        along = self.o.index.numel() > 1 and all(
            s.before.shape[1] > 1 and read(s, swapped).residual <= self._enough(whole) for s in whole
        )
        sides = whole if along else [self._heads(c) for c in self.wrong]
        unturned = [s for s in sides if self._still(s)]
        self.findings += self._not_rotated(unturned)
        sides = [s for s in sides if all(s is not u for u in unturned)]
        if sides:
            structure, left = find_structure(sides, wanted_structure(self.reference), self.o.unit)
            groups = [(sides, structure, left)]
            if len(sides) > 1 and left > self._enough(sides):
                groups = [([s], *find_structure([s], wanted_structure(self.reference), self.o.unit)) for s in sides]
            for group, found, remains in groups:
                self._group(group, found, remains)
        self._merge()
        self.findings.sort(key=lambda f: f.cause in OPEN)
        if not self.findings:
            worst = max(self.wrong, key=lambda c: max(c.drift, float(c.over.max())))
            self.findings.append(
                Finding(
                    "unexplained",
                    "the rotation differs, and no known cause fits",
                    f"largest difference {float(worst.error.max()):.3g} of a pair's length in {worst.side.name}",
                    "compare the frequencies and attention factors in the verdict one by one",
                )
            )
        return self.findings, self.measured

    def _enough(self, sides: Sequence[Side]) -> float:
        return max(4 * self.o.unit, 0.01 * max(turned(s) for s in sides))

    # ---- where -------------------------------------------------------------------------------------------------------

    def _heads(self, c: Comparison) -> Side:
        """Return the wrong heads of a side, if others are right."""
        wrong, count = c.wrong_heads(), c.side.before.shape[1]
        if not wrong:
            return c.side
        if len(wrong) == count:
            return self._turned_heads(c.side)
        part = c.side.heads(wrong)
        right = float(c.over[:, [h for h in range(count) if h not in wrong]].max())
        if float(c.over[:, wrong].max()) < 4 * max(
            right, 1.0
        ):  # a difference so small that it shows in some heads by chance
            return c.side
        words = "is not rotated" if self._still(part) else "is rotated otherwise"
        many = len(wrong) > 1
        self.findings.append(
            Finding(
                "heads",
                f"head{'s' if many else ''} {', '.join(map(str, wrong))} of {c.side.name} "
                f"{words.replace('is', 'are') if many else words}; the others are right",
                f"{count - len(wrong)} of {count} heads agree with the reference",
                "rotate every head alike; look for a slice or a broadcast over heads",
                side=c.side.name,
            )
        )
        return part

    def _turned_heads(self, side: Side) -> Side:
        """Return the heads of a side that turn, if others do not: what else is wrong shows in these alone."""
        count = side.before.shape[1]
        still = [h for h in range(count) if self._still(side.heads([h]))]
        # The first head alone is still where positions run along the heads, and that is another fault.
        if not still or len(still) == count or still == [0]:
            return side
        many = len(still) > 1
        self.findings.append(
            Finding(
                "heads",
                f"head{'s' if many else ''} {', '.join(map(str, still))} of {side.name} {'are' if many else 'is'} not rotated, "
                "and the others are",
                f"{len(still)} of {count} heads come out as they went in",
                "rotate every head alike; look for a slice or a broadcast over heads",
                side=side.name,
            )
        )
        return side.heads([h for h in range(count) if h not in still])

    def _still(self, side: Side) -> bool:
        """Whether a side comes out as it went in though it should turn."""
        length = side.after.square().sum() / side.before.square().sum().clamp(min=1e-300)
        factor = length.sqrt()
        apart = (side.after - factor * side.before).square().sum() / side.after.square().sum().clamp(min=1e-300)
        return float(apart.sqrt()) <= 2 * self.o.unit and float(self._wanted_turn()) > 8 * self.o.unit

    def _wanted_turn(self) -> Tensor:
        at = self.reference.coordinates(self.o.positions)
        return (at * self.reference.inv_freq()).abs().amax()

    def _not_rotated(self, sides: Sequence[Side]) -> list[Finding]:
        if not sides or any(f.cause == "heads" for f in self.findings):
            return []
        names = " and ".join(s.name for s in sides)
        whole = len(sides) == len(self.o.sides)
        lonely = all(s.before.shape[1] == 1 for s in sides)
        same = ["all positions are 0"]
        if self.o.index.numel() == 1:
            same.append("positions are ignored: one token alone is counted 0")
        if lonely:
            same.append("sequence and heads are swapped, and there is one head")
        return [
            Finding(
                "not-rotated",
                f"{names} {'are' if len(sides) > 1 else 'is'} not rotated at all",
                "what comes out is what went in",
                "apply the rotation" + ("" if whole else " to both q and k"),
                same_as=tuple(same),
                separate="more than one head" if lonely else "",
                side=names,
            )
        ]

    # ---- why ---------------------------------------------------------------------------------------------------------

    def _group(self, sides: Sequence[Side], structure: Structure, left: float) -> None:
        where = " and ".join(s.name for s in sides)
        self._structure(structure, left, where, sides)
        tokens = tokens_of(self.o, swapped=structure.swapped, heads=min(s.before.shape[1] for s in sides))
        if structure.swapped:
            sides = [
                replace(
                    s,
                    before=s.before[:, : len(tokens.index) // tokens.row.unique().numel()],
                    after=s.after[:, : len(tokens.index) // tokens.row.unique().numel()],
                )
                for s in sides
            ]
        evidence = read_sides(sides, structure, self.o.dtype)
        planes = structure.width // 2
        search = Search(self.reference, tokens, evidence, planes, self.length, self.o.dtype)
        apart = search.apart if len(evidence) > 1 else 0.0
        # What is alike in q and k is one search; what is not can have no one explanation.
        best = search.run() if apart <= 2 * (1 - ROUNDED) else None
        if best is None or (not best.explains and apart > 2 * (1 - ENOUGH)):
            for side, one in zip(sides, evidence, strict=True):
                alone = Search(self.reference, tokens, [one], planes, self.length, self.o.dtype)
                found = alone.run()
                self._explain(alone, found, [one], side.name, structure)
        else:
            self._explain(search, best, evidence, where, structure)

    def _structure(self, s: Structure, left: float, where: str, sides: Sequence[Side]) -> None:
        r = self.reference
        share = f"under this reading all but {left:.2g} of the output's length is explained"
        other = {"half": "channels i and i + P", "interleaved": "channels 2i and 2i + 1"}

        def add(
            cause: str,
            sentence: str,
            fix: str,
            severity: Severity = "error",
            same_as: tuple[str, ...] = (),
            separate: str = "",
        ) -> None:
            self.findings.append(Finding(cause, sentence, share, fix, severity, same_as, (), separate, where))

        if s.swapped:
            add(
                "axes",
                "sequence and head axes are swapped: the angle follows the head, and is the same for all tokens",
                "transpose(1, 2) before or after the rotation, or say which axis is the sequence",
            )
        if s.pairing != r.pairing and s.kernel != "mixed":
            add(
                "pairing",
                f"pairs are {s.pairing} ({other[s.pairing]}), the reference uses {r.pairing}",
                f"rotate {r.pairing} pairs, or permute the rows of the q and k weights (ropewalk.convert_pairing)",
            )
        if s.kernel == "mixed":
            add(
                "table-order",
                f"partners turn by different angles: {s.pairing} pairs with tables in the order of the other pairing",
                "lay the tables out for the pairing in use: cat((f, f)) for half, repeat_interleave(2) for interleaved",
            )
        if s.kernel == "mirror":
            add(
                "mirror",
                "the minus sign of rotate_half is missing: (a cos + b sin, b cos + a sin) is no rotation",
                "rotate_half(x) is cat((-x2, x1))",
            )
        if s.order != "same":
            name = "half" if s.order == "to_half" else "interleaved"
            add(
                "channel-order",
                f"channels come out in {name} order; logits are the same where q and k both do",
                "none is needed unless something else reads q or k, such as a cache that is shared with another engine",
                "note",
            )
        if s.width != r.width:
            what = "more" if s.width > r.width else "fewer"
            add(
                "width",
                f"{s.width} channels of {self.o.head_dim} are turned, {what} than the {r.width} wanted",
                "read the turned width once: head_dim · partial_rotary_factor, or rotary_dim",
            )
        elif s.start != r.start:
            add(
                "start",
                f"the turned channels begin at {s.start} and not at {r.start}",
                "turn the channels the model was trained with",
            )

    def _explain(
        self, search: Search, best: Guess, evidence: Sequence[Evidence], where: str, structure: Structure
    ) -> None:
        rivals = search.rivals(best) if best.explains else []
        met = (
            f"{100 * best.met:.3g} % of the measured angles agree"
            if best.explains
            else (
                f"{100 * best.met:.3g} % of the measured angles agree, so there is more to it; root "
                f"mean square left {math.sqrt(best.left):.2g}"
            )
        )
        found: list[Finding] = []
        or_else = tuple(" and ".join(_sentences(g)) for g in rivals)
        needs = dict.fromkeys(
            n
            for g in rivals
            for n in (g.places.needs if g.places.cause else "", g.frequencies.needs if g.frequencies.cause else "")
            if n
        )
        separate = "; ".join(needs) if rivals else ""
        extra = (or_else, separate)
        if best.sense:
            sentence, fix = SENSES[best.sense]
            found.append(
                Finding(
                    best.sense,
                    sentence,
                    met,
                    fix,
                    "error",
                    ("positions are negative",) if best.sense == "sign" else (),
                    *extra,
                    where,
                )
            )
        p, f = best.places, best.frequencies
        if p.cause:
            found.append(Finding(p.cause, p.sentence, met, p.fix, "error", p.same_as, *extra, where))
        if f.cause:
            sentence = f.sentence or self._odd(f.inv_freq)
            if f.cause == "frequencies":
                found.append(Finding("frequencies", sentence, met, f.fix, "error", (), *extra, where))
            else:
                found.append(Finding(f.cause, sentence, met, f.fix, "error", f.same_as, *extra, where))
        if best.precision is not None:
            found.append(self._precision(best.precision, search, best, where, extra))
        if not best.explains and not found:
            found.append(
                Finding(
                    "unexplained",
                    "the angles fit no rotation that is known here",
                    met,
                    "compare the frequencies in the verdict one by one",
                    side=where,
                )
            )
        self.findings += found
        self._lengths(best, search, structure)
        self._measure(search, best, structure)

    def _odd(self, inv_freq: Tensor) -> str:
        own = self.reference.inv_freq()
        count = min(len(own), len(inv_freq))
        ratio = inv_freq[:count] / own[:count].clamp(min=1e-300)
        odd = ((ratio - 1).abs() > 1e-3).nonzero().flatten().tolist()
        first = ", ".join(f"plane {i} × {float(ratio[i]):.4g}" for i in odd[:4])
        return f"{len(odd)} of {count} frequencies differ: {first}{', ...' if len(odd) > 4 else ''}"

    def _precision(
        self, precision: Precision, search: Search, best: Guess, where: str, extra: tuple[tuple[str, ...], str]
    ) -> Finding:
        exact = replace(best, precision=None)
        off = (best.gains() - exact.gains()).abs().amax(-1)
        worst = int(off.argmax())
        at = search.tokens.positions[worst].tolist()
        near = float(off[search.tokens.positions.abs().amax(-1).argmin()])
        grows = (
            "the error grows with position"
            if float(off[worst]) > 4 * max(near, 1e-9) and precision.parts != ("cos and sin",)
            else "the error is alike at all positions"
        )
        name = NAMES[precision.dtype]
        return Finding(
            "precision",
            f"{_computed(precision)}: {grows}, {float(off[worst]):.2g} at position {', '.join(f'{p:g}' for p in at)}",
            f"rounding {' and '.join(precision.parts)} to {name} gives {100 * best.met:.3g} % of the measured angles",
            "keep positions and frequencies out of the model's casts and of autocast; make cos and "
            "sin in float32 or wider, and cast last",
            "error",
            (),
            *extra,
            where,
        )

    # ---- lengths -----------------------------------------------------------------------------------------------------

    def _lengths(self, best: Guess, search: Search, structure: Structure) -> None:
        if not best.explains and best.sense in ("no-sin", "no-cos"):
            return  # what is left of the pairs has no length of its own
        made = best.gains()
        wanted = self.reference.spectrum.attention_factor
        for e in search.evidence:
            sure = e.sure & torch.isfinite(made.real)
            if not bool(sure.any()):
                continue  # a side without a measurable gain has no length
            across = (e.value * made.conj()).real[sure].sum() / made.abs().square().expand_as(e.value)[
                sure
            ].sum().clamp(min=1e-300)
            length = float(across) if best.explains else float(e.length)
            if e.side == "q":
                self.measured = replace(self.measured, attention_factor_q=length)
            else:
                self.measured = replace(self.measured, attention_factor_k=length)
            ratio = length / wanted
            allowed = max(rounding.systematic(self.o.unit, self.o.dtype, wanted, int(e.sure.sum())), 1e-5)
            if abs(ratio - 1) > allowed and (best.explains or abs(ratio - 1) > 0.05):
                self.findings.append(self._factor(length, wanted, e.side))
            elif abs(e.rest - 1) > max(rounding.SYSTEMATIC * self.o.unit, 1e-5) and structure.width < self.o.head_dim:
                self.findings.append(
                    Finding(
                        "rest-scaled",
                        f"the channels of {e.side} that are not turned are multiplied by {e.rest:.4g}",
                        "their length before and after",
                        "multiply cos and sin by the attention factor, not the whole head",
                        same_as=("they are turned as well, by angles of 0",)
                        if not bool(self.o.positions.any())
                        else (),
                        side=e.side,
                    )
                )

    def _factor(self, length: float, wanted: float, side: str) -> Finding:
        config, dim = self.reference.config, self.o.head_dim
        kind = config.rope_type if config is not None else ""
        factor = float(config.parameters.get("factor") or 1.0) if config is not None else 1.0
        usual = yarn_attention_factor(max(factor, 1.0))

        def near(value: float) -> bool:
            return abs(length / value - 1) < max(3 * self.o.unit, 1e-4)

        meant = (
            f"{kind} with factor {factor:g} wants {wanted:.4g}"
            if kind not in ("", "default") and wanted != 1
            else f"the reference wants {wanted:.4g}"
        )
        sentence, fix = (
            f"attention factor {length:.4g}, {meant}",
            "multiply cos and sin by the attention factor of the configuration",
        )
        cause = "attention-factor"
        if near(dim**-0.5 * wanted) or near(dim**-0.25 * wanted):
            cause = "softmax-scale"
            scale = "1/√d" if near(dim**-0.5 * wanted) else "d^(-1/4)"
            sentence = f"{side} is multiplied by {length:.4g}: the scale of the softmax, {scale}, is in it"
            fix = "save q and k before the scale is applied, or leave the scale to the softmax"
        elif wanted != 1 and near(1.0):
            sentence += ": it is lost"
        elif near(wanted * wanted):
            sentence += ": it is applied twice"
        elif near(1 / wanted):
            sentence += ": it is divided by"
        elif near(usual):
            sentence += f": 0.1 ln {factor:g} + 1, though the configuration says otherwise"
            fix = "let attention_factor, or mscale with mscale_all_dim, replace the formula"
        return Finding(cause, sentence, f"the lengths of the pairs of {side} before and after", fix, side=side)

    # ---- what was measured -------------------------------------------------------------------------------------------

    def _measure(self, search: Search, best: Guess, structure: Structure) -> None:
        if self.measured.pairing is not None:
            return
        given = wanted_places(self.reference, search.tokens.positions, search.planes).at
        at = best.places.at
        value = torch.stack(search.scaled).mean(0)
        omega, _, hold = frequencies(value, at)
        sure = bool((hold > 0.5).all())
        scale = offset = None
        if at.ndim == 1 and given.ndim == 1 and bool((given != given[0]).any()):
            g, a = given - given.mean(), at - at.mean()
            scale = float((g * a).sum() / g.square().sum())
            offset = float(at.mean() - scale * given.mean())
        # The last planes may stand still, which is a narrower rotation.
        width = (
            2 * int((best.frequencies.inv_freq != 0).sum()) if best.frequencies.cause == "width" else structure.width
        )
        self.measured = replace(
            self.measured,
            pairing=structure.pairing,
            width=width,
            start=structure.start,
            sign=-1 if best.sense == "sign" else 1,
            inv_freq=tuple(omega.abs().tolist()) if sure else None,
            base=ladder_base(best.frequencies.inv_freq),
            scaling=best.frequencies.cause or self.reference.spectrum.origin or None,
            position_scale=scale,
            position_offset=offset,
            tables=str(best.precision) if best.precision is not None else "as precise as the numbers show",
            axes="batch, seq, heads, head_dim" if structure.swapped else AXES,
        )

    def _merge(self) -> None:
        """Say once what holds for q and k, and where it holds for one of them."""
        merged: list[Finding] = []
        for f in self.findings:
            twin = next(
                (
                    i
                    for i, m in enumerate(merged)
                    if m.cause == f.cause and m.sentence == f.sentence and m.side != f.side
                ),
                None,
            )
            if twin is None:
                merged.append(f)
            else:
                merged[twin] = replace(merged[twin], side="q and k")
        alone = len(self.o.sides) > 1
        self.findings = [
            replace(f, sentence=f"in {f.side} only: {f.sentence}")
            if alone
            and f.side in ("q", "k")
            and f.cause not in ("heads", "not-rotated", "rest-scaled", "softmax-scale")
            else f
            for f in merged
        ]


def _computed(precision: Precision) -> str:
    if len(precision.parts) == 4:
        return f"everything up to cos and sin looks computed in {NAMES[precision.dtype]}"
    *most, last = precision.parts
    return f"{', '.join(most)}{' and ' if most else ''}{last} look computed in {NAMES[precision.dtype]}"


def _sentences(g: Guess) -> list[str]:
    words = [
        SENSES[g.sense][0],
        g.places.sentence,
        g.frequencies.sentence,
        str(g.precision) if g.precision is not None else "",
    ]
    return [w for w in words if w] or ["other frequencies"]
