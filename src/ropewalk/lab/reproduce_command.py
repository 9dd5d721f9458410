"""``ropewalk reproduce`` and ``ropewalk evidence``. Nothing here imports torch before there is work for it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ropewalk.core.errors import ConfigError, RopewalkError
from ropewalk.lab.command import make_console
from ropewalk.lab.experiments import Experiment, experiment, experiments
from ropewalk.lab.experiments.evidence import FOLDER, Evidence, EvidenceError, answers, read_all
from ropewalk.lab.experiments.experiment import LEAST_SEEDS, Contrast

if TYPE_CHECKING:
    from ropewalk.lab.compare import Runner, Watcher
    from ropewalk.lab.settings import Settings

_UNITS = {"s": 1, "m": 60, "h": 3600}

RUNNING = "Running"


@dataclass(frozen=True, slots=True)
class Request:
    """How experiments are to be run."""

    full: bool
    seeds: int | None
    tokens: int | None
    model: Path | None
    out: Path
    device: str | None
    ray: str | None
    at_once: int | None
    evidence: Path
    quiet: bool

    @property
    def as_written(self) -> bool:
        """Whether the experiment runs as it stands, so that it gives evidence."""
        return self.tokens is None and self.model is None and (self.seeds is None or self.seeds >= LEAST_SEEDS)

    def folder(self, one: Experiment) -> Path:
        """Return the folder of a run: another one for everything that makes it another run."""
        parts = [f"reproduce-{one.name}", *(["full"] if self.full else [])]
        parts += [f"{letter}{n}" for letter, n in (("s", self.seeds), ("t", self.tokens)) if n is not None]
        if self.model is not None:
            parts.append(f"model-{re.sub(r'[^A-Za-z0-9.]+', '_', self.model.resolve().name)}")
        return self.out / "-".join(parts)


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Experiments, or encodings that one is about. --list names them.")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List experiments: claim, expected direction, time, last verdict.")
    ] = False,
    all_: Annotated[bool, typer.Option("--all", help="Run every experiment that has no evidence yet.")] = False,
    again: Annotated[bool, typer.Option("--again", help="With --all: those that have evidence too.")] = False,
    budget: Annotated[
        str | None, typer.Option(help="Begin nothing that is expected to end later than this: 3h, 90m, 600s.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="The longer form of the experiment.")] = False,
    seeds: Annotated[int | None, typer.Option(help="Another number of seeds; fewer than 3 give no evidence.")] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Another budget of training, to try an experiment out; gives no evidence.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Folder of a trained model to measure instead of training some, as `compare` leaves them."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs.", rich_help_panel=RUNNING)] = Path("runs"),
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1. Default: a GPU where there is one.", rich_help_panel=RUNNING)
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Run trials on a Ray cluster: its address, auto, or local for this machine.", rich_help_panel=RUNNING
        ),
    ] = None,
    at_once: Annotated[
        int | None,
        typer.Option(
            help="Trials at the same time on this machine. Default: one a core, up to 8; one on a GPU.",
            rich_help_panel=RUNNING,
        ),
    ] = None,
    evidence: Annotated[
        Path, typer.Option("--evidence", help="Folder of the evidence.", rich_help_panel=RUNNING)
    ] = FOLDER,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress, only verdicts.", rich_help_panel=RUNNING)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was found as JSON and nothing else.", rich_help_panel=RUNNING)
    ] = False,
) -> None:
    """Put claims of papers to the test, in small experiments with the expected direction written beforehand.

    The same command goes on with a run that was interrupted. Exit status: 0 whatever the verdict, 1 if a trial failed, 2 for
    bad input.
    """
    if list_:
        _print_list(evidence, as_json)
        return
    if bool(names) == all_:
        raise ConfigError("name experiments, or ask for --all; `ropewalk reproduce --list` names them")
    if (again or budget is not None) and not all_:
        raise ConfigError("--again and --budget go with --all")
    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds is a whole number, at least 1; got {seeds}")
    if ray is not None and at_once is not None:
        raise ConfigError("--at-once is for this machine; Ray places trials itself")
    request = Request(full, seeds, tokens, model, out, device, ray, at_once, evidence, quiet or as_json)
    queue = list(_waiting(evidence, again)) if all_ else [experiment(name) for name in names or ()]
    found, failed, left = _run(queue, request, None if budget is None else seconds_of(budget), as_json)
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    if left and not as_json:
        make_console().print(f"\nno time left for {', '.join(left)}; the same command goes on", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def evidence(
    folder: Annotated[Path, typer.Option("--evidence", help="Folder of the evidence.")] = FOLDER,
    as_json: Annotated[bool, typer.Option("--json", help="Print the evidence as JSON and nothing else.")] = False,
) -> None:
    """Print what has been measured, by version: a row an experiment."""
    found = read_all(folder)
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    rows = []
    for one in experiments():
        if one.name not in found:
            rows.append((one.name, "–", "–", "not measured", "–"))
            continue
        what = found[one.name]
        said = "; ".join(sentence(c, what["metric"]) for c in what["contrasts"] if c["decides"])
        stale = answers(what, one)
        note = f" (asked differently since: {', '.join(stale)})" if stale else ""
        rows.append((one.name, what["versions"]["ropewalk"], str(len(what["seeds"])), what["verdict"] + note, said))
    _print_table(("experiment", "version", "seeds", "verdict", "difference, with a 95 % interval"), rows)


def sentence(contrast: Mapping[str, Any], metric: str) -> str:
    """Write a difference with its interval and its seeds."""
    unit, factor = ("points", 100.0) if metric == "exact" else ("nats", 1.0)
    digits = 1 if metric == "exact" else 3

    def number(value: float | None) -> str:
        return "?" if value is None else f"{value * factor:+.{digits}f}".replace("-", "−")

    at = ", ".join(map(str, contrast["sizes"]))
    seeds = ", ".join(number(v) for v in contrast["by_seed"])
    return (
        f"{contrast['ours']} − {contrast['other']} at {at}: {number(contrast['mean'])} {unit} "
        f"[{number(contrast['low'])}, {number(contrast['high'])}], by seed {seeds}"
    )


def expectation(contrast: Contrast) -> str:
    """Write what a contrast expects."""
    at = ", ".join(map(str, contrast.sizes))
    side = f"within ±{contrast.margin:g} of" if contrast.want == "within" else f"{contrast.want} than"
    return f"{contrast.ours} {side} {contrast.other} at {at}"


def seconds_of(text: str) -> float:
    """Read a duration: 3h, 90m, 1h30m, 600s, 600."""
    parts = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", text.strip())
    if parts is None or not any(parts.groups()):
        raise ConfigError(f"a duration is written as 3h, 90m, 1h30m or 600s; got {text!r}")
    return sum(float(n) * _UNITS[unit] for n, unit in zip(parts.groups(), "hms", strict=True) if n is not None)


def _run(
    queue: Sequence[Experiment], request: Request, budget: float | None, as_json: bool
) -> tuple[list[Evidence], bool, list[str]]:
    """Run experiments one after the other; return what was found, whether a trial failed, and what there was no time for."""
    found: list[Evidence] = []
    failed, left = False, []
    clock = time.perf_counter()
    for one in queue:
        if budget is not None and time.perf_counter() - clock + one.seconds > budget:
            left.append(one.name)
            continue
        try:
            what = _reproduce(one, request)
        except RopewalkError as problem:
            if len(queue) == 1:
                raise
            print(f"ropewalk: {one.name}: {problem}", file=sys.stderr)  # the others of a queue still run
            what = None
        if what is None:
            failed = True
            continue
        found.append(what)
        if not as_json:
            _print_verdict(one, what, request)
    return found, failed, left


def _reproduce(one: Experiment, request: Request) -> Evidence | None:
    """Run an experiment and write down what it shows; None if a trial failed."""
    from ropewalk.lab.experiments import evidence as written
    from ropewalk.lab.experiments.perform import conclude, perform
    from ropewalk.lab.measured import Results
    from ropewalk.lab.progress import Bars, Several
    from ropewalk.lab.report import write_report

    def runner(folder: Path, settings: Settings) -> Runner:
        if request.ray is not None:
            from ropewalk.lab.on_ray import RayRunner

            return RayRunner(folder, settings, request.ray)
        from ropewalk.lab.local import LocalRunner
        from ropewalk.lab.place import pick_device

        found = pick_device(request.device)  # a device that is not there is no matter of a trial
        return LocalRunner(folder, settings, request.device, at_once=_at_once(request.at_once, found.type))

    watchers: list[Watcher] = [] if request.quiet else [Bars()]
    command = one.command(full=request.full, seeds=request.seeds)
    with Several(watchers) as watcher:
        done = perform(
            one,
            request.folder(one),
            full=request.full,
            seeds=request.seeds,
            tokens=request.tokens,
            model=request.model,
            runner=runner,
            watcher=watcher,
            command=command,
        )
    for trial, reason in done.failed.items():
        print(f"ropewalk: {one.name}: {trial} failed: {reason}", file=sys.stderr)
    if done.failed:
        return None
    results = Results.read(done.folder)
    what = written.gather(one, results, command=command, commit=_commit(), seconds=done.seconds, at_once=done.at_once)
    if request.as_written:
        written.write(what, request.evidence)
    said = [f"{sentence(c, what['metric'])}: {c['judgement']}" for c in what["contrasts"]]
    conclude(done, {"verdict": what["verdict"], "measured": said, "limits": one.limits})
    write_report(done.folder)
    return what


def _at_once(asked: int | None, device: str) -> int:
    """Return how many trials run at the same time: models of a desk leave most of a second core idle."""
    if asked is not None:
        return asked
    return min(os.cpu_count() or 1, 8) if device == "cpu" else 1


def _waiting(folder: Path, again: bool) -> Iterable[Experiment]:
    """Yield the experiments without evidence, or with evidence for what they asked before."""
    found = {} if again else read_all(folder)
    return [one for one in experiments() if one.name not in found or answers(found[one.name], one)]


def _print_verdict(one: Experiment, what: Evidence, request: Request) -> None:
    console = make_console()
    console.print(f"\n{one.name}: {what['verdict']}", style="bold", soft_wrap=True)
    console.print(f"claim     {one.claim}\nexpected  {one.expected}", soft_wrap=True)
    for contrast in what["contrasts"]:
        role = contrast["judgement"] if contrast["decides"] else f"beside it: {contrast['judgement']}"
        console.print(f"measured  {sentence(contrast, what['metric'])} ({role})", soft_wrap=True)
    console.print(f"limits    {one.limits}", soft_wrap=True)
    if one.out_of_reach:
        console.print(f"          {one.out_of_reach}", soft_wrap=True)
    if not request.as_written:
        console.print("no evidence was written: the experiment did not run as it is defined", soft_wrap=True)
    console.print(f"report    {request.folder(one) / 'report.html'}", soft_wrap=True)


def _print_list(folder: Path, as_json: bool) -> None:
    try:
        found = read_all(folder)
    except EvidenceError as problem:  # the list is still worth printing
        print(f"ropewalk: {problem}", file=sys.stderr)
        found = {}
    if as_json:
        plain = [
            {
                "name": one.name,
                "encodings": one.slugs,
                "claim": one.claim,
                "source": one.source,
                "expected": one.expected,
                "contrasts": [expectation(c) for c in one.contrasts if c.decides],
                "seconds": one.seconds,
                "limits": one.limits,
                "verdict": found[one.name]["verdict"] if one.name in found else None,
            }
            for one in experiments()
        ]
        print(json.dumps(plain, indent=2, ensure_ascii=False))
        return
    rows = [
        (
            one.name,
            one.claim,
            "; ".join(expectation(c) for c in one.contrasts if c.decides),
            f"{one.seconds} s",
            found[one.name]["verdict"] if one.name in found else "–",
        )
        for one in experiments()
    ]
    _print_table(("experiment", "claim", "expected", "time", "last verdict"), rows)


def _print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 1, 0), pad_edge=False)
    for i, title in enumerate(titles):
        table.add_column(title, overflow="fold", no_wrap=i == 0, style="bold" if i == 0 else None)
    for row in rows:
        table.add_row(*map(Text, row))
    make_console().print(table)


def _commit() -> str | None:
    """Return the commit of the library's own source, with a + if it was changed since; None where it is in no repository."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # an environment may lie in somebody else's repository
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", "..") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
