"""What ports of rotary embeddings are known to compute instead: other frequencies, other positions.

Each candidate is a guess with a sentence. Whether it is true is for `explain` to measure.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ropewalk.analysis.verify.reference import Reference, axes_of_planes
from ropewalk.core.errors import ConfigError
from ropewalk.frequencies import Spectrum, geometric
from ropewalk.frequencies.rope_config import ORIGINAL


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Frequencies that may have been used.

    Args:
        cause: as in `Finding`; empty for the wanted ones.
        sentence: as there.
        fix: as there.
        inv_freq: (P,), float64.
        cost: how far-fetched it is; a usual fault costs 1.
        same_as: other names of it.
        needs: input that sets it apart.
    """

    cause: str
    sentence: str
    fix: str
    inv_freq: Tensor
    cost: float = 1.0
    same_as: tuple[str, ...] = ()
    needs: str = "tokens at larger positions"


@dataclass(frozen=True, eq=False)
class Places:
    """Positions that may have been used: (n,) or, where planes read different axes, (n, P). Otherwise as `Frequencies`."""

    cause: str
    sentence: str
    fix: str
    at: Tensor
    cost: float = 1.0
    same_as: tuple[str, ...] = ()
    needs: str = "other positions than 0, 1, 2, ..."

    @property
    def wide(self) -> Tensor:
        """Positions as (n, 1) or (n, P)."""
        return self.at if self.at.ndim == 2 else self.at[:, None]


USUAL = tuple(n * 10.0**e for e in range(3, 9) for n in (1, 2, 5))
"""Bases that models are made with."""


# ---- frequencies -----------------------------------------------------------------------------------------------------


def wanted_frequencies(reference: Reference, planes: int, length: float) -> list[Frequencies]:
    """Return what a rotation of so many planes would use if nothing but its width were wrong, the likeliest first."""
    own = reference.inv_freq()
    if planes == len(own):
        return [Frequencies("", "", "", own, 0.0)]
    made = [_fitted(own, planes)]
    with contextlib.suppress(ConfigError):
        if reference.config is not None:
            made.append(replace(reference.config, dim=2 * planes).spectrum(length).tensor())
    base = _base(reference)
    if base is not None:
        made.append(geometric(2 * planes, base).tensor())
        made.append(_fitted(geometric(reference.head_dim, base).tensor(), planes))
    return [Frequencies("", "", "", values, 0.0) for values in made if len(values) == planes]


def _fitted(values: Tensor, planes: int) -> Tensor:
    return torch.cat((values[:planes], torch.zeros(max(planes - len(values), 0), dtype=torch.float64)))


def _base(reference: Reference) -> float | None:
    return reference.config.base if reference.config is not None else reference.spectrum.base


def other_frequencies(reference: Reference, planes: int, length: float) -> Iterator[Frequencies]:
    """Yield frequencies that faulty ports are known to use."""
    dim, own = 2 * planes, _fitted(reference.inv_freq(), planes)
    base, config = _base(reference), reference.config

    def offer(
        cause: str,
        sentence: str,
        fix: str,
        make: Callable[[], Spectrum],
        cost: float = 1.0,
        same_as: tuple[str, ...] = (),
    ) -> Iterator[Frequencies]:
        with contextlib.suppress(ConfigError):  # such as a ramp that needs another order of its ends
            values = make().tensor()
            if len(values) == planes and bool((values != own).any()):
                yield Frequencies(cause, sentence, fix, values, cost, same_as)

    if base is not None and config is not None and config.rope_type != "default":
        ladder, kind = geometric(dim, base), config.rope_type
        factor = float(config.parameters.get("factor") or 1.0)
        original = float(config.parameters.get(ORIGINAL) or config.max_length or length)
        what = f"{kind} with factor {factor:g}"
        apply = f"apply the {kind} scaling of the configuration to the frequencies"
        yield from offer(
            "scaling-ignored",
            f"the frequencies are not scaled: {what} is in the configuration and not applied",
            apply,
            lambda: ladder,
            same_as=(f"positions {_times(factor)}",) if kind == "linear" else (),
        )
        others: dict[str, Callable[[], Spectrum]] = {
            "linear": lambda: ladder.linear(factor),
            "NTK-aware": lambda: ladder.ntk(factor),
            "yarn": lambda: ladder.yarn(factor, original),
            "yarn with the ramp of the paper": lambda: ladder.yarn(factor, original, ramp="paper"),
            "yarn without truncation": lambda: ladder.yarn(factor, original, truncate=False),
            "llama3": lambda: ladder.llama3(factor, original),
            "NTK by parts": lambda: ladder.ntk_by_parts(factor, original),
            "dynamic NTK at this length": lambda: ladder.dynamic_ntk(length, original, factor=factor),
        }
        for name, make in others.items():
            yield from offer(
                "scaling-type", f"the frequencies are scaled by {name}, and {what} is wanted", apply, make, 1.1
            )
        if config.max_length and config.max_length != original:
            long = replace(config, parameters={**config.parameters, ORIGINAL: config.max_length})
            yield from offer(
                "original-length",
                f"the scaling counts turns in {config.max_length} tokens (max_position_embeddings) and "
                f"not in {original:g} ({ORIGINAL})",
                f"read {ORIGINAL}, the length before extension",
                lambda: replace(long, dim=dim).spectrum(length),
            )
        for key, low, high in (
            ("low_freq_factor", "low_freq_factor", "high_freq_factor"),
            ("beta_slow", "beta_slow", "beta_fast"),
        ):
            given = config.parameters.get(low), config.parameters.get(high)
            if key in config.parameters and None not in given and given != ((1, 4) if kind == "llama3" else (1, 32)):
                usual = {low: 1.0, high: 4.0 if kind == "llama3" else 32.0}
                odd = replace(config, dim=dim, parameters={**config.parameters, **usual})
                yield from offer(
                    "ramp",
                    f"the ramp runs over the usual turns, and the configuration has {low} {given[0]} "
                    f"and {high} {given[1]}",
                    f"read {low} and {high}",
                    lambda odd=odd: odd.spectrum(length),  # type: ignore[misc]
                )
        for times in (2.0, 0.5):
            odd = replace(config, dim=dim, parameters={**config.parameters, "factor": max(factor * times, 1.0)})
            yield from offer(
                "factor",
                f"the factor of the scaling looks like {factor * times:g}, and {factor:g} is wanted",
                "read factor from the configuration",
                lambda odd=odd: odd.spectrum(length),  # type: ignore[misc]
                1.2,
            )
        squared = replace(config, dim=dim, parameters={**config.parameters, "factor": factor * factor})
        yield from offer(
            "factor",
            f"the scaling is applied twice: the frequencies are those of factor {factor * factor:g}",
            "scale once: either the frequencies or the positions",
            lambda: squared.spectrum(length),
            1.1,
        )
        for key in ("short_factor", "long_factor"):
            if key in config.parameters:
                factors = config.parameters[key]
                yield from offer(
                    "longrope-factors",
                    f"the {key} of longrope is used, and this context wants the other one",
                    f"choose by the length against {ORIGINAL}",
                    lambda factors=factors: ladder.longrope(factors),  # type: ignore[misc]
                )
        for wrong in (10_000.0, 500_000.0, 1_000_000.0):
            if wrong != base:
                yield from offer(
                    "base",
                    f"the base is {wrong:g}, scaled as the configuration says, and {base:g} is wanted",
                    "read the base (rope_theta, wherever it stands) before scaling",
                    lambda wrong=wrong: replace(config, dim=dim, base=wrong).spectrum(length),  # type: ignore[misc]
                    1.05,
                )
        yield Frequencies(
            "scaling-inverted",
            "the scaling goes the wrong way: frequencies are multiplied by what they should be divided by",
            "divide by the factor",
            ladder.tensor().square() / own.clamp(min=1e-300),
            1.3,
        )
        if factor > 1:
            yield Frequencies(
                "ramp",
                "the ramp is reversed: fast planes are interpolated and slow ones kept",
                "keep the planes that turn often in the original context, interpolate the slow ones",
                ladder.tensor() * (1 + 1 / factor) - own,
                1.2,
            )
    if base is not None and (config is None or config.rope_type == "default"):
        named: dict[float, tuple[str, ...]] = {}
        for value, text in _bases(base, planes, reference):
            named[value] = (*named.get(value, ()), text)
        for value, texts in named.items():
            yield _of_base(value, base, planes, texts)
        for value in USUAL:
            if value != base and value not in named:
                yield _of_base(value, base, planes)
    for kind, spectrum in (reference.others or {}).items():
        yield from offer(
            "layer-type",
            f"the frequencies are those of layers of type {kind!r}",
            "choose the entry by the type of the layer",
            lambda spectrum=spectrum: spectrum,  # type: ignore[misc]
        )
    yield Frequencies(
        "frequency-order",
        "the frequencies come in reverse order, slowest first",
        "order them base^(-2i/d), i = 0, 1, ...",
        own.flip(0),
        1.0,
    )
    twice = torch.arange(planes) // 2
    yield Frequencies(
        "frequency-order",
        "each frequency serves two neighbouring pairs: the tables are in interleaved order (0, 0, 1, "
        "1, ...) and read as halves",
        "lay the tables out for the pairing in use: cat((f, f)) for half, repeat_interleave(2) for interleaved",
        own[twice],
        1.0,
    )
    yield Frequencies(
        "frequency-order",
        "every second frequency is used: the tables are in order of halves and read as interleaved",
        "lay the tables out for the pairing in use: cat((f, f)) for half, repeat_interleave(2) for interleaved",
        own[(2 * torch.arange(planes)) % planes],
        1.0,
    )
    yield Frequencies(
        "frequency-inverted",
        "the wavelengths are used as frequencies: base^(+2i/d)",
        "take base^(-2i/d)",
        1 / own.clamp(min=1e-300),
        1.4,
    )


def fitted_frequencies(reference: Reference, measured: Tensor, own: Tensor, length: float) -> Iterator[Frequencies]:
    """Yield simple laws that measured frequencies follow, then the frequencies themselves."""
    planes, base = len(measured), _base(reference)
    turning = own.abs() > 0
    slow = turning & (own * 4 < torch.pi)
    slow = slow if bool(slow.any()) else turning
    if bool(slow.any()):
        ratios = [
            float((measured.abs() / own.clamp(min=1e-300))[slow].median()),
            float((measured.abs() * own)[slow].sum() / own[slow].square().sum()),
        ]
        yield from _scaled(own, ratios)
    positive = measured.abs() > 0
    if planes >= 2 and int(positive.sum()) >= 2:
        i = torch.arange(planes, dtype=torch.float64)
        yield from _ladders(planes, base, reference, measured.abs(), i)
    moving = (measured.abs() >= 1e-3 * own.abs()) & turning
    count = int(moving.nonzero().max()) + 1 if bool(moving.any()) else 0
    if 0 < count < planes:
        for law in wanted_frequencies(reference, count, length):
            yield Frequencies(
                "width",
                f"{2 * count} channels are turned, fewer than the {2 * planes} wanted",
                "read the turned width once: head_dim · partial_rotary_factor, or rotary_dim",
                _fitted(law.inv_freq, planes),
                1.05,
            )
    still = (measured.abs() < 1e-3 * own.abs()) & turning
    if bool(still.any()) and not bool(still.all()):
        which = still.nonzero().flatten().tolist()
        kept = torch.where(still, torch.zeros_like(own), own)
        yield Frequencies(
            "still-planes",
            f"planes {_short(which)} are not turned",
            "turn every plane, or say in the configuration that these stay",
            kept,
            1.1,
        )
    same = torch.isclose(measured.abs().sort().values, own.abs().sort().values, rtol=1e-3, atol=1e-12)
    if planes > 1 and bool(same.all()):
        nearest = (measured.abs()[:, None].log() - own.abs()[None].log()).abs().argmin(-1)
        if bool((nearest != torch.arange(planes)).any()) and len(nearest.unique()) == planes:
            yield Frequencies(
                "frequency-order",
                "the frequencies are the reference's in another order: plane i has that of plane "
                f"{_short(nearest.tolist())}",
                "order them base^(-2i/d), i = 0, 1, ...",
                own[nearest],
                1.1,
            )
    yield Frequencies("frequencies", "", "compare the frequencies one by one: they are in the verdict", measured, 2.6)


def _scaled(own: Tensor, ratios: list[float]) -> Iterator[Frequencies]:
    likely = [(value, 1.0 if _plain(value) else 1.4) for value in map(nice, ratios)]
    for value, cost in (*likely, *((value, 1.6) for value in ratios)):
        if value > 0 and abs(value - 1) > 1e-9:
            yield Frequencies(
                "position-scale",
                f"positions are {_times(value)}",
                "scale positions once, or not at all: look for a linear factor applied both here and in the frequencies",
                own * value,
                cost,
                (
                    f"frequencies {_times(value)}",
                    f"linear scaling by {1 / value:g}",
                    *(("each rotation is applied twice",) if value == 2 else ()),
                ),
            )


def _ladders(
    planes: int, base: float | None, reference: Reference, measured: Tensor, i: Tensor
) -> Iterator[Frequencies]:
    """Yield geometric ladders through measured frequencies, weighted to the fast ones, which are known best."""
    keep = (measured > 0) & (i > 0)
    if not bool(keep.any()):
        return
    logs = measured.clamp(min=1e-300).log()
    # ln ω_i = −(i/P) ln b: each plane gives a base; the error of ω is alike for all, so that of ln ω grows as 1/ω.
    weight = (measured * i)[keep].square()
    fitted = math.exp(min(float(-(weight * (logs * planes / i.clamp(min=1))[keep]).sum() / weight.sum()), 600.0))
    slow = math.exp(min(float((-(logs * planes / i.clamp(min=1)))[keep].median()), 600.0))
    named = list(_bases(base, planes, reference)) if base is not None else []
    for value in (*dict(named), *USUAL, nice(fitted, 3), nice(slow, 3), slow, fitted):
        if 1 < value < 1e15 and (base is None or abs(value / base - 1) > 1e-6):
            close = [text for b, text in named if abs(b / value - 1) < 1e-6]
            yield _of_base(value, base, planes, tuple(close))
    if int(keep.sum()) >= 3:
        step = logs[1:] - logs[:-1]
        slope, first = float(step.median()), float((logs - i * step.median()).median())
        if abs(first) > 1e-6:
            shift = first / slope if slope else 0.0
            moved = (
                f": plane i has the frequency of plane i + {nice(shift):g}"
                if base and abs(slope * planes / math.log(base) + 1) < 1e-3
                else ""
            )
            yield Frequencies(
                "ladder",
                f"the frequencies are {math.exp(first):.6g} · {math.exp(-slope * planes):.6g}^(-i/P){moved}",
                "start the ladder at frequency 1",
                (first + i * slope).exp(),
                2.25,
            )
    if base is not None:
        for start in (1, 2):
            yield Frequencies(
                "ladder",
                f"the ladder starts {start} too late: plane i has the frequency of plane i + {start}",
                "count planes from 0",
                base ** (-(i + start) / planes),
                1.1,
            )


def _of_base(value: float, base: float | None, planes: int, close: tuple[str, ...] = ()) -> Frequencies:
    wants = "" if base is None else f", and {base:g} is wanted"
    also = f"; that is what {close[0]} makes" if close else ""
    return Frequencies(
        "base",
        f"the frequencies are those of base {value:g}{wants}{also}",
        "read the base from the configuration (rope_theta, or inside rope_parameters), and use "
        "base^(-2i/d) with d the turned width",
        value ** (-torch.arange(planes, dtype=torch.float64) / planes),
        1.0 if close or value in USUAL else 1.15,
        close,
    )


def _bases(base: float, planes: int, reference: Reference) -> Iterator[tuple[float, str]]:
    yield base**0.5, "the exponent i/d in place of 2i/d"
    yield base**2, "the exponent 4i/d in place of 2i/d"
    yield base**2, f"{planes} turned channels, where slower planes hardly turn"
    if planes > 1:
        law = base ** (planes / (planes - 1))
        yield law, "division by P − 1 in place of P"
        yield law, f"{2 * planes - 2} turned channels, where the last plane hardly turns"
    width = 2 * planes
    if reference.head_dim != width:
        yield (
            base ** (width / reference.head_dim),
            f"the exponent 2i/{reference.head_dim} (head_dim) in place of 2i/{width} (the turned width)",
        )
    if reference.config is not None:
        factor = float(reference.config.parameters.get("factor") or 0)
        if factor > 1 and planes > 1:
            yield base * factor ** (planes / (planes - 1)), f"NTK-aware scaling by {factor:g}"


# ---- positions -------------------------------------------------------------------------------------------------------


def wanted_places(reference: Reference, positions: Tensor, planes: int) -> Places:
    """Return the positions as the reference reads them: (n, axes) → (n,) or (n, P)."""
    if positions.shape[-1] == 1:
        return Places("", "", "", positions[:, 0], 0.0)
    at = reference.coordinates(positions)
    if planes > at.shape[-1]:
        at = torch.cat((at, positions[:, :1].expand(-1, planes - at.shape[-1])), -1)
    return Places("", "", "", at[:, :planes], 0.0)


def other_places(
    reference: Reference, positions: Tensor, index: Tensor, row: Tensor, planes: int, first_row: Tensor
) -> Iterator[Places]:
    """Yield positions that faulty ports are known to use.

    Args:
        reference: the wanted rotation.
        positions: (n, axes) as given.
        index: (n,) place of each token in its sequence.
        row: (n,) row of the batch.
        planes: P.
        first_row: (n, axes) what the first row has at the same places.
    """
    wanted = wanted_places(reference, positions, planes).at
    count = index.double()

    def unlike(
        cause: str,
        sentence: str,
        fix: str,
        at: Tensor,
        cost: float = 1.0,
        needs: str = "",
        same_as: tuple[str, ...] = (),
    ) -> Iterator[Places]:
        if bool((at != wanted if at.shape == wanted.shape else at[:, None] != wanted).any()):
            yield Places(cause, sentence, fix, at, cost, same_as, needs or "other positions than 0, 1, 2, ...")

    for offset in (1, -1):
        word = "too large" if offset > 0 else "too small"
        yield from unlike(
            "position-offset",
            f"positions are {abs(offset)} {word}",
            "count tokens from 0; in decoding the new token's position is the number of tokens before it",
            wanted + offset,
        )
    yield from unlike(
        "positions-ignored",
        "the given positions are ignored: tokens are counted 0, 1, 2, ...",
        "index the tables with the positions",
        count,
        needs="positions that differ from 0, 1, 2, ...",
    )
    yield from unlike(
        "positions-ignored",
        "the given positions are ignored: tokens are counted 1, 2, 3, ...",
        "index the tables with the positions",
        count + 1,
        1.2,
    )
    yield from unlike(
        "position-zero",
        "all tokens are at position 0",
        "hand the positions on",
        torch.zeros_like(count),
        1.0,
        "tokens at several positions",
    )
    if positions.shape[-1] == 1 and bool((index == index.max()).any()) and int(index.max()) > 0:
        yield from unlike(
            "decode-position",
            "the last token is at position 0",
            "advance the position of each new token",
            torch.where(index == index.max(), torch.zeros_like(count), wanted),
            1.02,
        )
    if positions.shape[-1] == 1:
        yield from unlike(
            "rows",
            "every row of the batch has the positions of the first row",
            "gather the tables for each row: cos[position_ids], not cos[position_ids[0]]",
            first_row[:, 0],
            0.9,
            "rows with different positions",
            ("the given positions are ignored: tokens are counted 0, 1, 2, ...",)
            if bool((first_row[:, 0] == count).all())
            else (),
        )
        given = Places("", "", "", wanted)
        spread = float(wanted.max() - wanted.min())
        if spread > 0:
            last = torch.stack([wanted[row == r].max() for r in range(int(row.max()) + 1)])
            yield reversed_places(given, last[row])
            for scale in (2.0, 0.5, 4.0, 0.25):
                yield scaled_places(given, scale)
            yield from grouped_places(given)
        yield from unlike(
            "fraction-lost", "fractions of positions are lost", "keep real positions real", positions[:, 0].floor(), 1.1
        )
        return
    axes = positions.shape[-1]
    names = ("t", "row", "column") if axes == 3 else tuple(f"axis {a}" for a in range(axes))
    for a in range(axes):
        yield from unlike(
            "sections-ignored",
            f"M-RoPE sections are ignored: text is fine, images are wrong; all planes read {names[a]}",
            "give each plane the coordinate of its section (mrope_section)",
            positions[:, a],
            1.0,
            "tokens whose axes differ",
        )
    for where in ("mean", "sum"):
        yield from unlike(
            "sections-ignored",
            f"all planes read the {where} of the axes",
            "give each plane the coordinate of its section (mrope_section)",
            getattr(positions, where)(-1),
            1.3,
            "tokens whose axes differ",
        )
    yield from unlike(
        "rows",
        "every row of the batch has the positions of the first row",
        "gather the tables for each row",
        reference.coordinates(first_row)[:, :planes],
        0.9,
        "rows with different positions",
    )
    if reference.axis is None or planes != len(reference.axis):
        return
    for order in torch.cartesian_prod(*[torch.arange(axes)] * axes).tolist() if axes <= 3 else ():
        if sorted(order) == list(range(axes)) and order != list(range(axes)):
            read = ", ".join(names[o] for o in order)
            yield from unlike(
                "axis-order",
                f"the axes come in another order: where {', '.join(names)} are wanted, {read} are read",
                "order positions (time, row, column)",
                positions[:, [order[a] for a in reference.axis]],
                1.0,
                "tokens whose axes differ",
            )
    if reference.sections is None:
        return
    for interleaved in (True, False):
        dealt = "in turns" if interleaved else "in runs"
        for order in (1, -1):
            sections = reference.sections[::order]
            axis = axes_of_planes(sections, interleaved=interleaved)
            shape = f"{list(sections)}, {dealt}" if order > 0 else f"{list(sections)} (reversed), {dealt}"
            yield from unlike(
                "sections",
                f"planes are dealt out to the axes another way: {shape}",
                "deal them out as the model was trained (mrope_section, mrope_interleaved)",
                positions[:, list(axis)],
                1.0 + 0.1 * (order < 0),
                "tokens whose axes differ",
            )


def shifted_places(given: Places, offset: float) -> Places:
    """Return the given positions, all of them shifted."""
    word, first = "too large" if offset > 0 else "too small", float(given.at.flatten()[0])
    alone = first != 0 and bool((given.at == first).all())
    return Places(
        "position-offset",
        f"positions are {abs(offset):g} {word}",
        "count tokens from 0; left padding and earlier tokens shift nothing, or all alike",
        given.at + offset,
        1.05,
        (f"positions {_times((first + offset) / first)}",) if alone else (),
        "tokens at several positions" if alone else "other positions than 0, 1, 2, ...",
    )


def scaled_places(given: Places, scale: float) -> Places:
    """Return the given positions, all of them scaled."""
    return Places(
        "position-scale",
        f"positions are {_times(scale)}",
        "scale positions once, or not at all: look for a linear factor applied both here and in the frequencies",
        given.at * scale,
        1.05 if _plain(scale) else 1.4,
        (f"frequencies {_times(scale)}", *(("each rotation is applied twice",) if scale == 2 else ())),
    )


def reversed_places(given: Places, last: float | Tensor) -> Places:
    """Return the given positions, counted down from the last, which is one number or one a token."""
    end = f"{last:g}" if isinstance(last, float) else "the last of the row"
    return Places(
        "position-reversed",
        f"positions run backwards: p is read as {end} − p",
        "hand the positions on in order",
        last - given.at,
        1.1,
        (f"the rotation runs the other way, and positions are {end} too small",),
    )


def grouped_places(given: Places) -> Iterator[Places]:
    """Yield the given positions, divided by whole numbers and cut off."""
    for k in (2, 3, 4, 8, 16, 32):
        yield Places(
            "position-grouped",
            f"{k} tokens share a position: p is read as p // {k}",
            "divide no positions",
            torch.floor(given.at / k),
            1.2,
        )


def described_places(found: Tensor, wanted: Tensor, index: Tensor, row: Tensor, sure: Tensor) -> Iterator[Places]:
    """Yield laws that located positions follow: (n,) all of them.

    Args:
        found: positions that the angles stand for.
        wanted: as given.
        index: place in the sequence.
        row: of the batch.
        sure: which of the located ones are to be relied on.
    """
    if int(sure.sum()) < 2:
        if len(found) == 1 and bool(sure.all()):
            for where, cost in ((nice(float(found[0])), 1.07), (float(found[0]), 1.1)):
                yield Places(
                    "position-offset",
                    f"the token given position {float(wanted[0]):g} is turned as if at {where:g}",
                    "hand the position of the new token on",
                    torch.full_like(wanted, where),
                    cost,
                    (f"positions multiplied by {where / float(wanted[0]):g}",) if float(wanted[0]) else (),
                    "tokens at several positions",
                )
        return
    f, w, s = found[sure], wanted[sure], index[sure]
    off = f - w
    given = Places("", "", "", wanted)
    middle = nice(float(off.median()))
    if middle:
        yield shifted_places(given, middle)
    spread = float(w.max() - w.min())
    if spread > 0:
        slope, start = _line(w, f)
        if abs(start) < 0.05 and slope > 0 and abs(slope - 1) > 1e-6:
            yield scaled_places(given, nice(slope))
        if slope > 0:  # positions that fall are a rotation the other way, and are found as one
            yield Places(
                "position-scale" if abs(slope - 1) > 1e-6 else "position-offset",
                f"positions p are turned as {nice(slope):g} p {'+' if start >= 0 else '−'} {abs(nice(start)):g}",
                "hand the positions on as they are",
                nice(slope) * wanted + nice(start),
                1.4,
            )
        most = float(f.max())
        yield Places(
            "position-clamped",
            f"positions end at {nice(most):g}: later tokens share it",
            "make the tables longer",
            wanted.clamp(max=nice(most)),
            1.04,
        )
        last = nice(float((f + w).median()))
        if last > float(w.max()) - 0.5:
            yield reversed_places(given, last)
    yield Places(
        "position-constant",
        f"all tokens are at position {nice(float(f.median())):g}",
        "hand the positions on",
        torch.full_like(wanted, nice(float(f.median()))),
        1.1,
    )
    yield from _restarts(f, w, s, wanted, index)
    yield from _jump(f, w, s, wanted, index)
    yield from _restarts_by_row(found, wanted, index, row, sure)
    yield Places(
        "positions",
        _listed(w, f),
        "compare the positions that reach the rotation with the given ones",
        torch.where(sure, found, wanted),
        2.6,
    )


def _jump(f: Tensor, w: Tensor, s: Tensor, wanted: Tensor, index: Tensor) -> Iterator[Places]:
    """Yield the law that from one token on, positions are shifted by one number, even if others are a little off as well."""
    off = f - w
    begins = s.unique()[1:]
    if not len(begins):
        return
    late = s >= begins[:, None]
    shift = torch.where(late, off, math.nan).nanmedian(-1).values.round()
    apart = (off - torch.where(late, shift[:, None], 0.0)).abs().clamp(max=2.0).sum(-1)
    best = int(apart.argmin())
    by, begin = float(shift[best]), int(begins[best])
    if by:
        yield Places(
            "position-jump",
            f"tokens from number {begin} on are turned as if {abs(by):g} {'later' if by > 0 else 'earlier'}",
            "pass the number of cached tokens as the offset of what follows",
            torch.where(index >= begin, wanted + by, wanted),
            1.2,
            needs="tokens on both sides of the jump",
        )


def _restarts(f: Tensor, w: Tensor, s: Tensor, wanted: Tensor, index: Tensor) -> Iterator[Places]:
    off = (w - f).round()
    values, counts = off.unique(return_counts=True)
    jumps = [float(v) for v in values[counts.argsort(descending=True)] if v != 0][:3]
    for jump in jumps:
        inside = off == jump
        first = float(w[inside].min())
        before = w[(w < first) & ~inside]
        if len(before) and float(before.max()) < jump < first:  # no token in between was looked at
            first = jump
        at = torch.where(wanted >= first, wanted - jump, wanted)
        lost = abs(first - jump) < 1
        what = (
            f"position restarts at 0 after {first:g} tokens: decode offset lost"
            if lost
            else (
                f"from position {first:g} on, tokens are turned as if {abs(jump):g} {'earlier' if jump > 0 else 'later'}"
            )
        )
        yield Places(
            "position-restart" if lost else "position-jump",
            what,
            "pass the number of cached tokens as the offset of what follows",
            at,
            1.1,
            needs="tokens on both sides of the jump",
        )
        if jump > 0 and lost:
            yield Places(
                "position-restart",
                f"positions restart every {jump:g} tokens",
                "pass the number of cached tokens as the offset of what follows",
                torch.remainder(wanted, jump),
                1.15,
            )
        last = index >= s[inside].min()
        yield Places(
            "position-jump",
            f"tokens from number {int(s[inside].min())} on are turned as if {abs(jump):g} "
            f"{'earlier' if jump > 0 else 'later'}",
            "pass the number of cached tokens as the offset of what follows",
            torch.where(last, wanted - jump, wanted),
            1.2,
        )
    late = off != 0
    if bool(late.any()):
        begin = s[late].min()
        if bool((f[s >= begin] - f[s >= begin][0]).abs().max() < 0.5):
            constant = nice(float(f[s >= begin].median()))
            yield Places(
                "decode-position",
                f"every token from number {int(begin)} on is at position {constant:g}",
                "advance the position of each new token",
                torch.where(index >= begin, torch.full_like(wanted, constant), wanted),
                1.05,
            )


def _restarts_by_row(found: Tensor, wanted: Tensor, index: Tensor, row: Tensor, sure: Tensor) -> Iterator[Places]:
    """Yield the law that from one token on the positions of each row are shifted by a number of its own."""
    wrong = sure & ((wanted - found).abs() > 0.5)
    rows = row.unique().tolist()
    if not bool(wrong.any()) or len(rows) < 2:
        return
    begin = index[wrong].min()
    late, at = index >= begin, wanted.clone()
    starts = []
    for r in rows:
        here = late & (row == r)
        known = here & sure
        if not bool(known.any()):
            return
        at[here] = wanted[here] - (wanted - found)[known].median().round()
        starts.append(float(at[here][0]))
    anew = all(abs(s) < 1 for s in starts)
    what = "position restarts at 0" if anew else "positions jump, in each row by another number,"
    yield Places(
        "position-restart" if anew else "position-jump",
        f"{what} after {int(begin)} tokens: decode offset lost",
        "pass the number of cached tokens as the offset of what follows",
        at,
        1.15,
        needs="tokens on both sides of the jump",
    )


def _line(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return slope and start of the line through most points."""
    order = x.argsort()
    x, y = x[order], y[order]
    half = len(x) // 2 or 1
    apart = x[half:] - x[: len(x) - half]
    keep = apart > 0
    if not bool(keep.any()):
        return 1.0, float((y - x).median())
    slope = float(((y[half:] - y[: len(x) - half])[keep] / apart[keep]).median())
    slope = nice(slope)
    return slope, float((y - slope * x).median())


def _listed(wanted: Tensor, found: Tensor) -> str:
    wrong = ((found - wanted).abs() > 0.5).nonzero().flatten()[:4].tolist() or [0]
    pairs = ", ".join(f"{float(wanted[i]):g} as {float(found[i]):.4g}" for i in wrong)
    return f"positions are not the given ones: {pairs}"


# ---- words -------------------------------------------------------------------------------------------------------------


def nice(value: float, digits: int = 4) -> float:
    """Return the whole number, the reciprocal of one, or the short number that a measured one stands for."""
    if value == 0 or not math.isfinite(value):
        return 0.0
    if abs(value) >= 0.75 and abs(value - round(value)) < 0.02 * max(1.0, min(abs(value) * 1e-3, 10.0)):
        return float(round(value))
    if abs(value) < 1 and abs(1 / value - round(1 / value)) < 0.01 * abs(1 / value) ** 0.5 and abs(value) > 1e-4:
        return 1.0 / round(1 / value)
    if abs(value) < 0.02:
        return 0.0
    return float(f"{value:.{digits}g}")


def _plain(scale: float) -> bool:
    """Whether a scale is a whole number or the reciprocal of one."""
    return scale > 0 and min(abs(s - round(s)) for s in (scale, 1 / scale)) < 1e-6


def _times(value: float) -> str:
    return (
        f"divided by {1 / value:g}"
        if 0 < value < 1 and abs(1 / value - round(1 / value)) < 1e-6
        else f"multiplied by {value:.6g}"
    )


def _short(numbers: list[int]) -> str:
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
