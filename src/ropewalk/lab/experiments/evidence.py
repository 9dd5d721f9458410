"""What an experiment measured, as one small JSON file: written by the command alone, and checked against its own numbers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.core.errors import RopewalkError
from ropewalk.lab.experiments.experiment import LEAST_SEEDS, Contrast, Experiment
from ropewalk.lab.experiments.verdict import judge, verdict
from ropewalk.lab.student import LEVEL, student_quantile

if TYPE_CHECKING:
    from ropewalk.lab.measured import Results

Evidence = dict[str, Any]

FOLDER = Path("evidence")
_NUMBERS = (float, int)
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "experiment": str,
    "encodings": list,
    "claim": str,
    "source": str,
    "expected": str,
    "limits": str,
    "out_of_reach": str,
    "command": str,
    "commit": (str, type(None)),
    "versions": dict,
    "hardware": dict,
    "data": (str, type(None)),
    "settings": dict,
    "metric": str,
    "seeds": list,
    "measurements": list,
    "contrasts": list,
    "verdict": str,
    "seconds": _NUMBERS,
}
_CONTRAST: dict[str, type | tuple[type, ...]] = {
    "ours": str,
    "other": str,
    "want": str,
    "sizes": list,
    "margin": _NUMBERS,
    "decides": bool,
    "because": str,
    "mean": _NUMBERS,
    "low": (*_NUMBERS, type(None)),
    "high": (*_NUMBERS, type(None)),
    "seeds": int,
    "documents": int,
    "note": str,
    "by_seed": list,
    "judgement": str,
}


class EvidenceError(RopewalkError, ValueError):
    """A file of evidence that does not say what its numbers say, or a run that gives none."""


def gather(
    experiment: Experiment,
    results: Results,
    *,
    command: str,
    commit: str | None,
    seconds: float,
    at_once: int | None = None,
) -> Evidence:
    """Compare what a run measured, and let the rule say what it shows.

    Raises:
        EvidenceError: trials are missing or have failed.
    """
    if results.failures or results.missing:
        said = [f"{f['trial']}: {f['reason']}" for f in results.failures] + results.missing
        raise EvidenceError(f"{experiment.name} is not complete, and gives no evidence: {'; '.join(said)}")
    contrasts = [_measure(contrast, results) for contrast in experiment.contrasts]
    decided = [c["judgement"] for c in contrasts if c["decides"]]
    return {
        "experiment": experiment.name,
        "encodings": list(experiment.slugs),
        "claim": experiment.claim,
        "source": experiment.source,
        "expected": experiment.expected,
        "limits": experiment.limits,
        "out_of_reach": experiment.out_of_reach,
        "command": command,
        "commit": commit,
        "versions": dict(results.settings["versions"]),
        "hardware": {**results.settings["hardware"], "trials_at_once": at_once},
        "data": results.settings["workload"].get("digest"),
        "settings": dict(results.asked),
        "metric": results.metric,
        "seeds": sorted({r["seed"] for r in results.scores()}),
        "measurements": [
            {"encoding": r["encoding"], "seed": r["seed"], "size": r[_size(r)], "value": _value(r)}
            for r in sorted(results.scores(), key=lambda r: (r["encoding"], r[_size(r)], r["seed"]))
        ],
        "contrasts": contrasts,
        "verdict": verdict(decided, experiment.out_of_reach),
        "seconds": round(seconds, 1),
    }


def check(found: Mapping[str, Any]) -> None:
    """Check that a file is whole, and that its verdict follows from its numbers.

    Raises:
        EvidenceError: it is not, or it does not.
    """
    name = found.get("experiment", "?")
    _typed(found, _FIELDS, f"evidence of {name}")
    if len(found["seeds"]) < LEAST_SEEDS:
        raise EvidenceError(f"evidence of {name} has {len(found['seeds'])} seeds; at least {LEAST_SEEDS} make evidence")
    values: dict[tuple[str, int, int], float] = {}
    for row in found["measurements"]:
        _typed(row, {"encoding": str, "seed": int, "size": int, "value": _NUMBERS}, f"a measurement of {name}")
        values[row["encoding"], row["size"], row["seed"]] = row["value"]
    for contrast in found["contrasts"]:
        _check_contrast(contrast, values, found["seeds"], name)
    follows = verdict([c["judgement"] for c in found["contrasts"] if c["decides"]], found["out_of_reach"])
    if found["verdict"] != follows:
        raise EvidenceError(f"evidence of {name} says {found['verdict']!r}; by its numbers it is {follows!r}")


def answers(found: Mapping[str, Any], experiment: Experiment) -> list[str]:
    """Say where a file answers another question than the experiment asks now; an empty list where it does not."""
    same = ("claim", "source", "expected", "limits", "out_of_reach")
    changed = [field for field in same if found[field] != getattr(experiment, field)]
    if found["encodings"] != list(experiment.slugs):
        changed.append("encodings")
    if [_asked(c) for c in found["contrasts"]] != [_plain(c) for c in experiment.contrasts]:
        changed.append("contrasts")
    return changed


def disagreements(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Say where two runs of an experiment do not agree: differences whose intervals have nothing in common."""
    said = []
    for a, b in zip(old["contrasts"], new["contrasts"], strict=True):
        if max(a["low"], b["low"]) > min(a["high"], b["high"]) + 1e-9:
            said.append(
                f"{a['ours']} − {a['other']} at {a['sizes']}: [{a['low']:.4g}, {a['high']:.4g}] then, "
                f"[{b['low']:.4g}, {b['high']:.4g}] now"
            )
    return said


def read(file: Path) -> Evidence:
    """Read and check one file."""
    try:
        found: Evidence = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as problem:
        raise EvidenceError(f"{file} cannot be read: {problem}") from None
    check(found)
    return found


def read_all(folder: Path = FOLDER) -> dict[str, Evidence]:
    """Read every file of a folder, by experiment; a folder that is not there has none."""
    return {file.stem: read(file) for file in sorted(folder.glob("*.json"))}


def write(found: Evidence, folder: Path = FOLDER) -> Path:
    """Check and write ``NAME.json``."""
    from ropewalk.lab.files import write_bytes

    check(found)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{found['experiment']}.json"
    write_bytes(file, _laid_out(found).encode())
    return file


def _measure(contrast: Contrast, results: Results) -> dict[str, Any]:
    from ropewalk.lab.statistics import difference

    ours, other = (_scores(results, name, contrast.sizes) for name in (contrast.ours, contrast.other))
    interval = difference(ours, other)
    if interval is None:
        raise EvidenceError(f"{contrast.ours} and {contrast.other} have no seed in common at {contrast.sizes}")
    plain = interval.as_dict()
    seeds = sorted({r["seed"] for r in ours} & {r["seed"] for r in other})
    values = {(r["encoding"], r[_size(r)], r["seed"]): _value(r) for r in (*ours, *other)}
    return {
        **_plain(contrast),
        **plain,
        "by_seed": _by_seed(values, contrast.ours, contrast.other, contrast.sizes, seeds),
        "judgement": judge(contrast.want, plain["low"], plain["high"], interval.seeds, contrast.margin),  # type: ignore[arg-type]
    }


def _check_contrast(
    contrast: Mapping[str, Any], values: Mapping[tuple[str, int, int], float], seeds: Sequence[int], name: str
) -> None:
    where = f"evidence of {name}, {contrast.get('ours')} − {contrast.get('other')}"
    _typed(contrast, _CONTRAST, where)
    try:
        by_seed = _by_seed(values, contrast["ours"], contrast["other"], contrast["sizes"], seeds)
    except KeyError as missing:
        raise EvidenceError(f"{where}: {missing} was not measured") from None
    if contrast["seeds"] != len(seeds) or not _close(by_seed, contrast["by_seed"]):
        raise EvidenceError(
            f"{where}: the seeds say {by_seed} by their measurements, and {contrast['by_seed']} is written"
        )
    mean = math.fsum(by_seed) / len(by_seed)
    if not _close([mean], [contrast["mean"]]):
        raise EvidenceError(f"{where}: the mean over seeds is {mean}, and {contrast['mean']} is written")
    low, high = contrast["low"], contrast["high"]
    if low is not None and high is not None:
        spread = math.sqrt(math.fsum((v - mean) ** 2 for v in by_seed) / (len(by_seed) - 1))
        least = student_quantile((1 + LEVEL) / 2, len(by_seed) - 1) * spread / math.sqrt(len(by_seed))
        if not _close([mean], [(low + high) / 2]) or (high - low) / 2 < least * (1 - 1e-6) - 1e-9:
            raise EvidenceError(f"{where}: [{low}, {high}] is no interval of seeds whose spread alone is ±{least}")
    says = judge(contrast["want"], low, high, contrast["seeds"], contrast["margin"])
    if contrast["judgement"] != says:
        raise EvidenceError(f"{where}: {contrast['judgement']!r} is written; by the rule it is {says!r}")


def _by_seed(
    values: Mapping[tuple[str, int, int], float], ours: str, other: str, sizes: Iterable[int], seeds: Iterable[int]
) -> list[float]:
    """Return each seed's difference, averaged over sizes."""
    sizes = list(sizes)
    return [math.fsum(values[ours, n, s] - values[other, n, s] for n in sizes) / len(sizes) for s in seeds]


def _scores(results: Results, encoding: str, sizes: Sequence[int]) -> list[dict[str, Any]]:
    return [record for size in sizes for record in results.scores(encoding, size)]


def _size(record: Mapping[str, Any]) -> str:
    return "size" if record["kind"] == "exact" else "length"


def _value(record: Mapping[str, Any]) -> float:
    return float(record["exact" if record["kind"] == "exact" else "mean"])


def _plain(contrast: Contrast) -> dict[str, Any]:
    return {name: _list(getattr(contrast, name)) for name in Contrast.__dataclass_fields__}


def _asked(contrast: Mapping[str, Any]) -> dict[str, Any]:
    return {name: contrast[name] for name in Contrast.__dataclass_fields__}


def _list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _close(a: Sequence[float], b: Sequence[float]) -> bool:
    return len(a) == len(b) and all(math.isclose(x, y, rel_tol=1e-6, abs_tol=1e-6) for x, y in zip(a, b, strict=True))


def _typed(values: Mapping[str, Any], types: Mapping[str, type | tuple[type, ...]], where: str) -> None:
    if values.keys() != types.keys():
        odd = sorted(values.keys() ^ types.keys())
        raise EvidenceError(f"{where}: the fields {', '.join(odd)} are missing, or are none of its own")
    for name, kind in types.items():
        value = values[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise EvidenceError(f"{where}: {name} is {value!r}, which has the wrong type")
        if isinstance(value, float) and not math.isfinite(value):
            raise EvidenceError(f"{where}: {name} is {value!r}, which is no number to conclude from")


def _laid_out(found: Evidence) -> str:
    """Return JSON with a measurement a line: small, and fit to be compared line by line."""
    text = json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False)
    inner = re.compile(r"\{\n\s+\"encoding\":[^{}]*\}|\[[^\[\]{}\"]*\]")
    return inner.sub(lambda m: re.sub(r"\s*\n\s*", " ", m[0]).replace("[ ", "[").replace(" ]", "]"), text) + "\n"
