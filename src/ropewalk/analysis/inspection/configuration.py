"""What a configuration alone says about its positions: `inspect_config`.

    inspection = inspect_config("what config.json holds", context=131072)
    for finding in inspection.findings: ...

No weights are read, and no position is computed beyond a few thousand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ropewalk.analysis.inspection.engines import engines
from ropewalk.analysis.inspection.findings import Finding, Section, Table
from ropewalk.analysis.inspection.reading import EXACT, Ladder, Part, read_parts
from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.frequencies import Spectrum
from ropewalk.frequencies.base_bounds import fitted_base
from ropewalk.frequencies.feasibility import longest_context, phase_budget, rope_base_bounds
from ropewalk.frequencies.rope_config import KEYS, ORIGINAL
from ropewalk.frequencies.waveform import waveform

ORDER = {"error": 0, "warning": 1, "note": 2}

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

LOST = 0.01
"""Turns of phase error from which a table counts as wrong at a position: scores of a plane are then off by up to 6 %."""

LOOKED_AT = 1 << 14
"""Distances at which the sum of cosines is looked at."""

LAST = 256
"""Positions before the end of the context at which tables are compared."""


@dataclass(frozen=True)
class Inspection:
    """What was found.

    Attributes:
        subject: what was inspected, for people.
        context: tokens it was inspected for; None where nothing says.
        dtype: the precision that was asked about.
        sections: subjects, in the order of a report.
    """

    subject: str
    context: int | None
    dtype: str
    sections: tuple[Section, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, the gravest first."""
        every = [finding for section in self.sections for finding in section.findings]
        return tuple(sorted(every, key=lambda finding: ORDER[finding.severity]))

    @property
    def errors(self) -> int:
        """How many findings are errors."""
        return sum(finding.severity == "error" for finding in self.findings)

    def with_sections(self, sections: Iterable[Section]) -> Inspection:
        """Return the inspection with more sections at its end."""
        return replace(self, sections=(*self.sections, *sections))

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON; numbers that are not finite become null."""
        counts = {kind: sum(f.severity == kind for f in self.findings) for kind in ORDER}
        made = {
            "subject": self.subject,
            "context": self.context,
            "dtype": self.dtype,
            "counts": counts,
            "findings": [asdict(f) for f in self.findings],
            "sections": [asdict(s) for s in self.sections],
        }
        plain: dict[str, Any] = _finite(made)
        return plain


def inspect_config(
    config: Any,
    *,
    context: int | None = None,
    dtype: torch.dtype = torch.float32,
    subject: str = "configuration",
    compare_engines: bool = True,
) -> Inspection:
    """Return what can be said of a configuration without its weights.

    Args:
        config: what a config.json holds, or a configuration of transformers.
        context: tokens wanted; None: what the configuration is for.
        dtype: in which cos and sin, or the angles, are feared to be computed.
        subject: its name, for people.
        compare_engines: whether other engines will read it; not so for a file that was made for one.

    Raises:
        ConfigError: no configuration. What is wrong inside one is a finding.
    """
    check_positive(context=context)
    if context is not None and context > EXACT:
        raise ConfigError(f"context is at most {EXACT} tokens, as many as positions can count; got {context}")
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(f"dtype is one of {', '.join(DTYPES)}; got {name}")
    sections: list[Section] = []
    reached = context
    for part in read_parts(config):
        title = f" ({part.name})" if part.name else ""
        made = list(_inspect(part, context, dtype, compare_engines))
        sections += [replace(section, name=f"{section.name}{title}") for section in made]
        claimed = [ladder.claimed for ladder in part.ladders if ladder.claimed is not None]
        reached = reached or max(claimed, default=None)
    return Inspection(subject, reached, name, tuple(sections))


def parse_dtype(text: str) -> torch.dtype:
    """Return the dtype that a name or its short form means.

    Raises:
        ConfigError: another name.
    """
    full = SHORT.get(text.lower(), text.lower().removeprefix("torch."))
    if full not in DTYPES:
        raise ConfigError(f"dtype is one of {', '.join([*SHORT, *DTYPES])}; got {text!r}")
    return DTYPES[full]


# ---- sections ------------------------------------------------------------------------------------------------------


def _inspect(part: Part, context: int | None, dtype: torch.dtype, compare: bool) -> Iterator[Section]:
    yield _said(part)
    for ladder in part.ladders:
        length = context or ladder.claimed
        if length is None or not ladder.read.dim:
            continue
        title = f", {ladder.layer_type} layers" if ladder.layer_type != "all" else ""
        sections = (_frequencies(ladder, length), _bounds(ladder, length), _precision(ladder, length, dtype))
        for section in sections:
            yield replace(section, name=f"{section.name}{title}")
    if part.ladders and compare:
        yield engines({ladder.layer_type: ladder.read for ladder in part.ladders}, part.values)


def _said(part: Part) -> Section:
    rows = []
    findings = list(part.findings)
    for ladder in part.ladders:
        read = ladder.read
        original = read.parameters.get(ORIGINAL) if ORIGINAL in KEYS[read.rope_type] else None
        rows.append(
            (
                ladder.layer_type,
                read.rope_type,
                f"{read.base:g}",
                f"{read.dim} of {read.head_dim}",
                "-" if original is None else _tokens(original),
                "-" if ladder.claimed is None else _tokens(ladder.claimed),
                "-" if ladder.window is None else _tokens(ladder.window),
            )
        )
    if not part.ladders and not findings:
        findings.append(
            Finding(
                "note",
                "this configuration says nothing about rotary frequencies",
                None,
                "none of rope_theta, rope_parameters, rope_scaling and their older names is there; rotary models take the base "
                "of their class then, often 10000",
                "if the model is a rotary one, write down its base",
            )
        )
    if part.ladders and all(ladder.claimed is None for ladder in part.ladders):
        findings.append(
            Finding(
                "note",
                "max_position_embeddings is not given: what follows needs a context",
                None,
                "no key says for how many tokens the model is",
                "give --context, or max_position_embeddings",
            )
        )
    header = ("layers", "type", "base", "channels turned", "original", "context", "window")
    tables = (Table("Understood", header, rows),) if rows else ()
    return Section(
        "Configuration",
        "ropewalk's reading of the keys that transformers knows",
        "What the keys about rotary frequencies say, and where they contradict each other.",
        tuple(sorted(findings, key=lambda finding: ORDER[finding.severity])),
        tables,
    )


def _frequencies(ladder: Ladder, length: int) -> Section:
    """Return the table of planes, against the context that the configuration is for and the one that is wanted."""
    claimed = ladder.claimed or length
    before, after = ladder.spectrum(claimed), ladder.spectrum(length)
    near, far = ladder.reach(claimed), ladder.reach(length)
    turned, wanted = before.turns(near), after.turns(far)
    kinds = [_kind(w, a, b) for w, a, b in zip(after.inv_freq, turned, wanted, strict=True)]
    short = [i for i, kind in enumerate(kinds) if kind in ("partial", "new")]
    new = [i for i, kind in enumerate(kinds) if kind == "new"]
    findings = []
    extended = far > near
    if new:
        most = max(new, key=lambda i: wanted[i] / turned[i])
        findings.append(
            Finding(
                "warning",
                f"{len(new)} of {len(kinds)} planes meet angles beyond those of {near} tokens, which they never completed a "
                "turn in",
                float(len(new)),
                f"plane {most} turns {turned[most]:.3g} times in {near} tokens and {wanted[most]:.3g} times in {far}",
                f"scale these frequencies for {far} tokens, as yarn with factor {far / near:.4g} does, or train at that length",
            )
        )
    elif short and not extended:
        findings.append(
            Finding(
                "note",
                f"{len(short)} of {len(kinds)} planes do not complete a turn in {near} tokens",
                float(len(short)),
                f"plane {short[0]} is the fastest of them, with a wavelength of {_tokens(after.wavelengths()[short[0]])} tokens",
                "nothing, at this length; in a longer context these are the ones that meet new angles",
            )
        )
    many = [i for i, turns in enumerate(wanted) if abs(turns) >= 1]
    if many and len(many) == len(after.turning()):
        findings.append(
            Finding(
                "note",
                f"every plane comes around within {far} tokens: no plane tells near from far by its angle alone",
                wanted[many[-1]],
                f"the slowest one turns {wanted[many[-1]]:.3g} times",
                "a larger base, or a few planes that stand still (partial_rotary_factor)",
            )
        )
    rows = [
        (
            str(i),
            f"{w:.4g}",
            _tokens(after.wavelengths()[i]),
            f"{turned[i]:.3g}",
            f"{wanted[i]:.3g}",
            {"many": "comes around", "partial": "part of a turn", "new": "new angles", "still": "stands still"}[
                kinds[i]
            ],
        )
        for i, w in enumerate(after.inv_freq)
    ]
    header = ("plane", "radians a token", "wavelength", f"turns in {near}", f"turns in {far}", "within that")
    remark = f"cos and sin are multiplied by {after.attention_factor:.6g}." if after.attention_factor != 1 else ""
    if ladder.window is not None and ladder.window < length:
        remark = f"These layers see {ladder.window} tokens. {remark}".strip()
    return Section(
        "Frequencies",
        "Su et al., arXiv 2104.09864; new angles: Chen et al., arXiv 2306.15595, and Peng et al., arXiv 2309.00071",
        "How far each plane turns in the context that the configuration is for, and in the one that is wanted.",
        tuple(findings),
        (Table("Planes", header, rows, remark),),
    )


def _kind(frequency: float, before: float, after: float) -> str:
    if frequency == 0:
        return "still"
    if abs(before) < 1 and abs(after) > abs(before) * (1 + 1e-9):
        return "new"
    return "many" if abs(after) >= 1 else "partial"


def _bounds(ladder: Ladder, length: int) -> Section:
    """Return where the slowest plane stands against the bounds of 2602.10959, and the sum of cosines of 2405.14591."""
    far, layers, dim = ladder.reach(length), ladder.layers or 1, ladder.read.dim
    spectrum = ladder.spectrum(length)
    beyond = far > ladder.reach(ladder.claimed or length)
    whole = len(spectrum.turning()) == len(spectrum.inv_freq) and ladder.unrotated == 0
    findings: list[Finding] = []
    rows: list[tuple[str, str, str]] = []
    if spectrum.turning():
        budget = phase_budget(spectrum, far, layers)
        if budget.coherence < 0 or budget.phase > math.pi / 2:
            findings.append(
                Finding(
                    "warning" if whole else "note",
                    f"the slowest plane turns by {budget.phase:.3g} radians in {far} tokens, past a quarter turn: it no longer "
                    "keeps a far key together with the query",
                    budget.phase,
                    f"cos {budget.coherence:.3g}; the models known to work stay below 0.5 radians. It stays within a quarter "
                    f"turn for {_tokens(longest_context(spectrum, tau=1e-9))} tokens",
                    "a larger base, or a factor, before training at this length",
                )
            )
        rows += [
            ("phase of the slowest plane", f"{budget.phase:.4g} rad", "below 0.5 in models known to work"),
            ("its coherence, cos", f"{budget.coherence:.4g}", "the drift bound asks for 0.5"),
            (
                f"over {layers} layers, cos^N",
                f"{budget.depth_coherence:.4g}",
                "to compare models by, not to pass or fail",
            ),
        ]
        for name, dtype in DTYPES.items():
            ulps = budget.slowest / torch.finfo(dtype).eps
            rows.append(
                (
                    f"steps of {name} a token",
                    f"{ulps:.4g}",
                    "below 1 neighbours fall together" if ulps < 1 else "1 or more",
                )
            )
        if budget.ulps < 1:
            findings.append(
                Finding(
                    "note",
                    "the slowest plane turns by less than a step of float32 from token to token",
                    budget.ulps,
                    f"{budget.slowest:.3g} radians a token, and float32 resolves {torch.finfo(torch.float32).eps:.3g} near 1",
                    "a smaller base; in float64 angles, which ropewalk uses, it is no limit",
                )
            )
    if spectrum.base is not None and dim > 2:
        bounds = rope_base_bounds(far, dim, layers)
        rows += [
            ("smallest base, aliasing", f"{bounds.aliasing:.4g}", f"has {spectrum.base:.4g}"),
            ("smallest base, drift", f"{bounds.drift:.4g}", f"has {spectrum.base:.4g}"),
            (f"smallest base, drift over {layers} layers", f"{bounds.depth:.4g}", f"has {spectrum.base:.4g}"),
            ("largest base, float32", f"{bounds.precision:.4g}", f"has {spectrum.base:.4g}"),
        ]
    at, looked = _negative(spectrum, far, ladder.unrotated)
    rows.append(("smallest base by the published fit", f"{fitted_base(far):.4g}", "for heads of 128 channels"))
    if at is not None:
        findings.append(
            Finding(
                "warning" if beyond else "note",
                f"at a distance of {at} tokens a key like the query can score less than a random one",
                float(at),
                f"the sum of cosines over the planes is negative there; a base of about {fitted_base(far):.2g} is the smallest "
                f"by the published fit for {far} tokens. Many models work beyond this bound, on fewer distances than they claim",
                f"for the exact base: ropewalk.frequencies.min_base({far}, {dim})",
            )
        )
    else:
        rows.append(("negative sums of cosines", "none", f"at {looked} distances up to {far}"))
    return Section(
        "Bounds",
        "Feilong Liu, arXiv 2602.10959, 2026; Men et al., arXiv 2405.14591, 2024",
        f"Whether these frequencies reach {far} tokens.",
        tuple(findings),
        (Table("Numbers", ("what", "value", "read it so"), rows),),
    )


def _negative(spectrum: Spectrum, length: int, unrotated: int) -> tuple[int | None, int]:
    """Return the first distance looked at whose sum of cosines is negative, and how many were looked at."""
    if not spectrum.turning():
        return None, 0
    step = max(1, math.ceil(length / LOOKED_AT))
    distances = torch.arange(0, length, step, dtype=torch.float64, device="cpu")
    negative = torch.nonzero(waveform(spectrum, distances) + unrotated < 0)[:, 0]
    return (int(distances[negative[0]]) if len(negative) else None), len(distances)


@dataclass(frozen=True)
class TableError:
    """How tables in a low precision differ from exact ones.

    Attributes:
        phase: largest error of a plane's angle, turns.
        score: largest mean over the planes of what it does to a score, relative to the length of q times that of k.
        plane: the worst.
    """

    phase: float
    score: float
    plane: int


def table_error(spectrum: Spectrum, length: int, dtype: torch.dtype, *, angles: bool) -> TableError:
    """Compare tables at the last positions of a context with exact ones.

    Args:
        spectrum: P frequencies.
        length: tokens of the context.
        dtype: of the tables.
        angles: whether frequencies, positions and their product are of that dtype too, as in a module that was cast; else
            cos and sin are rounded from exact angles.
    """
    positions = torch.arange(max(0, length - LAST), length, dtype=torch.float64, device="cpu")
    exact = positions[:, None] * spectrum.tensor()
    if angles:
        formed = (positions.to(dtype)[:, None] * spectrum.tensor().to(dtype)).double()
        off = (formed - exact).abs()
        # Half a turn is as wrong as it gets, and float16 holds no position beyond 65504.
        off = off.nan_to_num(nan=math.pi).clamp(max=math.pi)
        score = (2 * (off / 2).sin()).mean(-1)
    else:
        cos, sin = exact.cos().to(dtype).double(), exact.sin().to(dtype).double()
        off = _between(cos, sin, exact)
        score = ((cos - exact.cos()) ** 2 + (sin - exact.sin()) ** 2).sqrt().mean(-1)
    worst = off.amax(0)
    return TableError(float(worst.max()) / (2 * math.pi), float(score.max()), int(worst.argmax()))


def _between(cos: Tensor, sin: Tensor, angles: Tensor) -> Tensor:
    """Return the angle between (cos, sin) and the direction of some angles, 0 … π."""
    return torch.atan2(sin * angles.cos() - cos * angles.sin(), cos * angles.cos() + sin * angles.sin()).abs()


def _precision(ladder: Ladder, length: int, asked: torch.dtype) -> Section:
    spectrum = ladder.spectrum(length)
    rows, findings = [], []
    for name, dtype in DTYPES.items():
        for angles, how in ((True, "frequencies and angles"), (False, "cos and sin alone")):
            error = table_error(spectrum, length, dtype, angles=angles)
            rows.append((name, how, f"{error.phase:.2g}", f"{error.score:.2g}", str(error.plane)))
            if angles and dtype is asked and error.phase > LOST:
                does = "turned by anything" if error.phase > 0.25 else "off"
                findings.append(
                    Finding(
                        "warning",
                        f"in {name}, angles at position {length - 1} are wrong by up to {error.phase:.2g} turns",
                        error.phase,
                        f"plane {error.plane} is {does}; scores change by up to {error.score:.2g} of |q||k|",
                        "keep frequencies, positions and their product in float32 or better, and cast cos and sin last; "
                        "model.to(bfloat16) must not cast them"
                        if dtype is not torch.float32
                        else "compute angles in float64 and cast cos and sin last, as ropewalk does",
                    )
                )
    return Section(
        "Precision",
        "measured here, against float64",
        f"What tables in a low precision are worth at the end of {length} tokens.",
        tuple(findings),
        (
            Table(
                f"Largest errors at positions {max(0, length - LAST)} to {length - 1}",
                ("dtype", "what is rounded", "turns", "score", "plane"),
                rows,
                "The error of a score is relative to |q||k|, where all planes weigh alike. Half a turn is as wrong as it gets.",
            ),
        ),
    )


# ---- numbers for people ---------------------------------------------------------------------------------------------


def _tokens(value: float) -> str:
    if math.isinf(value):
        return "endless"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
