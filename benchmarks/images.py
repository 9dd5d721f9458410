"""Which encoding reads pictures of another resolution than that of training? A table and a picture of the answer.

    python benchmarks/images.py [--out runs/images] [--jobs 2] [--seeds 3] [--only decoder shapes digits] [--write]

Three times the same question: the small encoder of `ropewalk compare --task images` on generated shapes, cells as tokens; and
a vision transformer of timm on shapes and on scikit-learn's digits, pixels as patches, trained at 8 x 8. A larger picture is
the same scene in more pixels. All models start from the same numbers and see the same pictures in the same order;
they differ in how they are told where a patch is.

Every trial is written down when it is over: the same command goes on after it was killed. `--write` puts what there is into
docs/images.md and docs/images/resolution.svg. About half an hour on two cores, so `make bench` leaves it out.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "integrations" / "timm"))

from stand_in import import_timm  # noqa: E402

import_timm()

from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed  # noqa: E402
from timm.models.vision_transformer import VisionTransformer  # noqa: E402

from ropewalk.integrations import timm as rt  # noqa: E402
from ropewalk.lab.compare import compare  # noqa: E402
from ropewalk.lab.files import write_json  # noqa: E402
from ropewalk.lab.local import LocalRunner  # noqa: E402
from ropewalk.lab.measured import Results  # noqa: E402
from ropewalk.lab.model import seed_of  # noqa: E402
from ropewalk.lab.progress import Bars, Several  # noqa: E402
from ropewalk.lab.settings import Settings  # noqa: E402
from ropewalk.lab.tasks.pictures import pictures  # noqa: E402
from ropewalk.lab.tasks.task import stream  # noqa: E402

TRAINED, SIZES = 8, (6, 8, 12, 16)
PATCH = 1  # pixel: in a patch of 2 × 2 most of the direction of a bar can be seen, wherever it is
SHAPE: dict[str, Any] = {"embed_dim": 48, "depth": 2, "num_heads": 2}
BATCH, TESTED = 32, 512
START = 0.02  # how large embeddings are at first, of pixels and of places alike

Numbers = dict[str, dict[int, list[float]]]
"""Shares of pictures that were named right: by encoding, patches a side, seed."""


@dataclass(frozen=True)
class Part:
    """One of the tables.

    Attributes:
        title: of its column of the picture.
        what: it is measured on, for the page.
        data: pictures.
        steps: of training.
        lr: peak learning rate.
    """

    title: str
    what: str
    data: str
    steps: int
    lr: float


PARTS = {
    "decoder": Part(
        "encoder of compare, shapes",
        "`ropewalk compare --task images`: shapes, cells as tokens, trained on 6 to 8 cells a side",
        "shapes",
        732,
        6e-3,
    ),
    "shapes": Part("timm ViT, shapes", "ViT of timm: shapes, pixels as patches, trained on 8 × 8", "shapes", 900, 4e-3),
    "digits": Part(
        "timm ViT, digits",
        "ViT of timm: scikit-learn's digits, pixels as patches, trained on 8 × 8",
        "digits",
        900,
        4e-3,
    ),
}

LEARNED, SINES = "learned", "sines"
NAMES: dict[str, tuple[str, str | None]] = {
    "PaPE": ("pape(axes=2)", "pape(axes=2)"),
    "axial RoPE": ("axial_rope(base=100)", "axial_rope(base=100)"),
    "axial RoPE, drawn together": (
        "position_interpolated_rope(trained_grid=8, base=100)",
        "position_interpolated_rope(trained_grid=8, base=100)",
    ),
    "RoPE-Mixed": ("mixed_rope", "mixed_rope"),
    "GridPE": ("gridpe(base=100)", "gridpe(base=100)"),
    "absolute, learned": ("learned", LEARNED),
    "absolute, sines": ("sinusoidal", SINES),
    "none": ("nope", "nope"),
}
"""What rows are called, and the encoding of each in `ropewalk compare` and in the ViT."""


def main() -> None:
    args = arguments()
    found: dict[str, Numbers] = {}
    for name in args.only:
        part = PARTS[name]
        found[name] = compared(part, args) if name == "decoder" else trained(name, part, args)
    text = page(found, args.seeds)
    print(text)
    if args.write:
        write(text, found)


# ---- `ropewalk compare` ----------------------------------------------------------------------------------------------


def settings(part: Part, seeds: int) -> Settings:
    """Return what `ropewalk compare` is asked; docs/images.md has the command."""
    return Settings(
        encodings=tuple(name for name, _ in NAMES.values()),
        task="images(colours=1)",
        encoder=True,
        shape=(("hidden_size", 64), ("num_heads", 2), ("num_layers", 2)),
        train_length=TRAINED,
        eval_lengths=SIZES,
        tokens=1_500_000,
        batch_size=BATCH,
        lr=part.lr,
        seeds=seeds,
        windows=TESTED,
    )


def compared(part: Part, args: argparse.Namespace) -> Numbers:
    """Run the comparison, or what is left of it."""
    asked, folder = settings(part, args.seeds), args.out / f"compare-{args.seeds}"
    with Several([Bars()]) as watcher:
        done = compare(asked, folder, runner=LocalRunner(folder, asked, at_once=args.jobs), watcher=watcher)
    if done.failed:
        raise SystemExit(f"{', '.join(done.failed)} failed: {'; '.join(done.failed.values())}")
    results = Results.read(folder)
    return {
        label: {size: [float(r["exact"]) for r in results.scores(name, size)] for size in SIZES}
        for label, (name, _) in NAMES.items()
    }


# ---- vision transformers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """One model of one seed."""

    part: str
    label: str
    seed: int

    def asked(self) -> dict[str, Any]:
        """Return everything that decides its numbers."""
        part = PARTS[self.part]
        training = {"steps": part.steps, "lr": part.lr, "batch": BATCH, "tested": TESTED, "trained": TRAINED}
        return {"data": part.data, "encoding": NAMES[self.label][1], "seed": self.seed, **SHAPE, **training}

    def file(self, folder: Path) -> Path:
        """Return where its numbers are kept."""
        return folder / f"{self.part}-{self.label.replace(', ', '-').replace(' ', '_')}-s{self.seed}.json"


def trained(name: str, part: Part, args: argparse.Namespace) -> Numbers:
    """Train and measure what was not measured yet, and say how far it is."""
    trials = [Trial(name, label, seed) for seed in range(args.seeds) for label in NAMES]
    known = {trial: numbers for trial in trials if (numbers := read(trial, args.out)) is not None}
    began, left = time.perf_counter(), [trial for trial in trials if trial not in known]
    print(f"{part.title}: {len(known)} of {len(trials)} trials are there", flush=True)
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(measure, trial): trial for trial in left}
        for n, done in enumerate(as_completed(waiting), 1):
            trial, (numbers, losses) = waiting[done], done.result()
            write_json(trial.file(args.out), {"asked": trial.asked(), "exact": numbers, "losses": losses})
            known[trial] = numbers
            rest = (time.perf_counter() - began) / n * (len(left) - n)
            said = ", ".join(f"{numbers[size]:.0%} at {size}" for size in SIZES)
            print(
                f"  {len(known)}/{len(trials)} {trial.label}, seed {trial.seed}: {said}; {rest:.0f} s left", flush=True
            )
    return {
        label: {size: [known[Trial(name, label, seed)][size] for seed in range(args.seeds)] for size in SIZES}
        for label in NAMES
    }


def read(trial: Trial, folder: Path) -> dict[int, float] | None:
    """Return what a trial measured, if it was asked the same."""
    if not trial.file(folder).exists():
        return None
    kept = json.loads(trial.file(folder).read_text(encoding="utf-8"))
    return {int(size): share for size, share in kept["exact"].items()} if kept["asked"] == trial.asked() else None


def measure(trial: Trial) -> tuple[dict[int, float], list[float]]:
    """Train one model at one resolution; return the shares that it names right at each, and losses on the way."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    part = PARTS[trial.part]
    model = VisionTransformerAt(trial.label, trial.seed, len(pictures(part.data).classes))
    optimizer = torch.optim.AdamW(groups(model), lr=part.lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, part.steps))
    losses: list[float] = []
    model.train()
    for step in range(part.steps):
        drawn, labels = examples(part.data, stream("train", part.data, trial.seed, step), BATCH, TRAINED)
        loss = nn.functional.cross_entropy(model(drawn), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 50 == 0 or step + 1 == part.steps:
            losses.append(loss.item())
    model.eval()
    return {size: named(model, part.data, size) for size in SIZES}, losses


def examples(data: str, generator: torch.Generator, count: int, size: int, test: bool = False) -> tuple[Tensor, Tensor]:
    """Draw pictures (count, 1, pixels, pixels) around 0, and their labels."""
    source = pictures(data)
    scenes = source.scenes(generator, count, test=test)
    return 2 * source.render(scenes, size * PATCH).float()[:, None] - 1, source.labels(scenes)


@torch.no_grad()
def named(model: nn.Module, data: str, size: int) -> float:
    """Return the share of the same scenes, never trained on, that is named right at a resolution."""
    drawn, labels = examples(data, stream("test", data), TESTED, size, test=True)
    right = [(model(x).argmax(-1) == y).double() for x, y in zip(drawn.split(64), labels.split(64), strict=True)]
    return float(torch.cat(right).mean())


class VisionTransformerAt(nn.Module):
    """A vision transformer of timm that is told places in one of the ways of `NAMES`, at any size.

    Its own embeddings, learned, are resampled by timm for other sizes than that of training; sines are computed for each.
    """

    def __init__(self, label: str, seed: int, classes: int) -> None:
        super().__init__()
        torch.manual_seed(seed)  # for what encodings draw
        self.how = NAMES[label][1]
        self.vit = VisionTransformer(
            img_size=TRAINED * PATCH, patch_size=PATCH, in_chans=1, num_classes=classes, dynamic_img_size=True, **SHAPE
        )
        with torch.no_grad():
            for name, parameter in self.vit.named_parameters():
                if name.endswith("bias"):
                    parameter.zero_()
                elif parameter.ndim > 1:  # the same start for every encoding, whatever was drawn before
                    generator = torch.Generator().manual_seed(seed_of(seed, name))
                    std = START if "embed" in name or "token" in name else parameter[0].numel() ** -0.5
                    parameter.copy_(torch.empty(parameter.shape).normal_(0, std, generator=generator))
        if self.how not in (LEARNED, SINES):
            rt.apply(self.vit, self.how)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of pictures (B, 1, H, W)."""
        if self.how == SINES:
            size = images.shape[-1] // PATCH
            self.vit.pos_embed, self.vit.patch_embed.grid_size = self.sines(size), (size, size)  # nothing to resample
        logits: Tensor = self.vit(images)
        return logits

    def sines(self, size: int) -> nn.Parameter:
        """Return sines of row and column, half of the channels each, and nothing for the class token."""
        table = 2**0.5 * START * build_sincos2d_pos_embed([size, size], SHAPE["embed_dim"], temperature=100.0)
        return nn.Parameter(torch.cat([torch.zeros_like(table[:1]), table])[None], requires_grad=False)


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Decay matrices; neither norms nor what encodings and embeddings of positions learn."""
    kept = [p for n, p in model.named_parameters() if p.ndim < 2 or "encoding." in n or "pos_embed" in n]
    rest = [p for p in model.parameters() if not any(p is one for one in kept)]
    return [{"params": kept, "weight_decay": 0.0}, {"params": rest, "weight_decay": 0.1}]


def rate(step: int, steps: int) -> float:
    """Warm up over a twentieth, and fall as a cosine to a tenth."""
    return min(1.0, 20 * (step + 1) / steps) * (0.55 + 0.45 * math.cos(math.pi * step / steps))


# ---- what is said of it ----------------------------------------------------------------------------------------------


def page(found: dict[str, Numbers], seeds: int) -> str:
    """Return the tables with a line on each."""
    return "\n\n".join(text for name, numbers in found.items() for text in tables(PARTS[name], numbers, seeds))


def tables(part: Part, numbers: Numbers, seeds: int) -> Iterator[str]:
    """Yield a heading, a table and who comes first beyond training."""
    yield f"**{part.what}**"
    head = ["named right, %", *(f"{n} × {n}" + (", trained" if n == TRAINED else "") for n in SIZES)]
    rows = [
        [label, *(cell(by_size[n]) for n in SIZES)]
        for label, by_size in sorted(numbers.items(), key=lambda r: -beyond(r[1]))
    ]
    yield "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
    ranked = sorted(numbers, key=lambda label: -beyond(numbers[label]))
    said = ", ".join(f"{label} {100 * beyond(numbers[label]):.0f}" for label in ranked)
    yield f"Mean of the larger sizes: {said}. {seeds} seeds; in brackets, their range."


def beyond(by_size: dict[int, list[float]]) -> float:
    """Return the mean over sizes above the trained one."""
    values = [v for size, seeds in by_size.items() if size > TRAINED for v in seeds]
    return sum(values) / len(values)


def cell(values: Sequence[float]) -> str:
    """Write a mean and its range over seeds."""
    percent = [100 * v for v in values]
    return f"{sum(percent) / len(percent):.0f} ({min(percent):.0f}–{max(percent):.0f})"


def write(text: str, found: dict[str, Numbers], docs: Path = ROOT / "docs") -> None:
    """Put the picture and the tables into the page."""
    draw(found, docs / "images" / "resolution.svg")
    shown = f"![Named right against cells or patches a side, for each encoding](images/resolution.svg)\n\n{text}"
    file = docs / "images.md"
    head, _, rest = file.read_text(encoding="utf-8").partition("<!-- table -->\n")
    _, _, tail = rest.partition("<!-- end of table -->")
    file.write_text(f"{head}<!-- table -->\n{shown}\n<!-- end of table -->{tail}", encoding="utf-8")


def draw(found: dict[str, Numbers], file: Path) -> None:
    """Draw shares against resolution, a panel for each table."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "images", "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(3.1 * len(found), 3.3), layout="constrained")
        panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
        for axes, (name, numbers) in zip(panels, found.items(), strict=True):
            axes.axvline(TRAINED, color="#9ca3af", linewidth=0.8, linestyle=":")
            for n, (label, by_size) in enumerate(numbers.items()):
                style = {"color": f"C{n}", "marker": "osD^vPX<"[n], "markersize": 4, "linewidth": 1.3}
                axes.plot(SIZES, [100 * sum(by_size[s]) / len(by_size[s]) for s in SIZES], label=label, **style)
                for size in SIZES:
                    axes.vlines(size, *(100 * f(by_size[size]) for f in (min, max)), color=f"C{n}", linewidth=0.8)
            axes.set_xticks(SIZES)
            axes.set_title(PARTS[name].title, fontsize=9)
            axes.set_xlabel("cells a side" if name == "decoder" else "patches a side")
            axes.set_ylim(0, 103)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
        panels[0].set_ylabel("named right, %")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/images"), help="where trials are kept")
    parser.add_argument("--jobs", type=int, default=2, help="trials at once, one thread each")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="some of the tables")
    parser.add_argument("--write", action="store_true", help="put tables and picture into docs/")
    return parser.parse_args()


if __name__ == "__main__":
    main()
