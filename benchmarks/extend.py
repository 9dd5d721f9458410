"""Train a small Llama at 256 tokens, extend it, and print what every method does: no download, minutes on two cores.

    python benchmarks/extend.py [--steps 400] [--tune 30] [--to 4x 8x] [--threads 2] [--out runs/extend-bench]

The model is transformers' LlamaForCausalLM over bytes. It learns from modules of Python's standard library; other modules are
what it is extended with. Everything after the training is `ropewalk extend`, and goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from ropewalk.lab.data import Corpus, JsonTokenizer, read_corpus
from ropewalk.lab.data.sources import find
from ropewalk.lab.data.splits import split_of
from ropewalk.lab.extend import Extension, extend
from ropewalk.lab.extend.report import write_report
from ropewalk.lab.extend.summary import Row, headlines, percent, summarise, written
from ropewalk.lab.runs import read_results, read_settings

LENGTH = 256
METHODS = (
    "pi", "ntk", "ntk_by_parts", "yarn", "dynamic_ntk", "clipped_cope", "ntk > clipped", "dprope", "entropy_abf",
    "string_shifted", "rerope", "self_extend", "attention_temperature",
)  # fmt: skip
TUNED = ("pi", "yarn")


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    files = [file for file in find(())[0] if file.size]
    kept = tuple(str(file.path) for file in files if split_of(file.key) != 0)
    checkpoint = args.out / f"llama-{args.steps}"
    if not (checkpoint / "config.json").exists():
        train(tuple(str(file.path) for file in files if split_of(file.key) == 0), checkpoint, args.steps)
    common: dict[str, Any] = {"data": kept, "windows": args.windows}
    asked = {"needles": 2, "depths": (0.0, 0.5, 1.0), "definitions": 8}
    for to in args.to:
        show(run(args.out / f"plain-{to}", Extension(str(checkpoint), to, METHODS, **common, **asked)))
    if args.tune:
        tuned = {"tune": args.tune, "lr": 1e-3, "full": True, "batch_size": 8, "needles": 0, "definitions": 0}
        for recipe in ("endprompt", "pose", "full"):
            settings = Extension(str(checkpoint), args.to[0], TUNED, recipe=recipe, **common, **tuned)
            show(run(args.out / f"{recipe}-{args.to[0]}", settings))


def run(folder: Path, settings: Extension) -> Path:
    """Measure what was not measured yet."""
    began = time.perf_counter()
    extend(settings, folder, device="cpu", say=lambda line: None, write=False)
    write_report(folder)
    print(f"\n## {folder.name} ({time.perf_counter() - began:.0f} s)\n", flush=True)
    return folder


def show(folder: Path) -> None:
    """Print a run as a table for a page of text."""
    summary = summarise(read_results(folder), read_settings(folder))
    trained, wanted = summary.trained, summary.wanted
    columns: list[tuple[str, Callable[[Row], str]]] = [("method", lambda row: row.name)]
    columns += [(f"loss at {n}", lambda row, n=n: written(row.losses.get(n))) for n in summary.lengths]
    columns += [
        (f"at {n} against unchanged", lambda row, n=n: written(row.gaps.get(n), signed=True)) for n in (trained, wanted)
    ]
    for what, of in (("sentences", "needles"), ("definitions", "definitions")):
        if any(getattr(row, of) for row in summary.rows):
            columns += [
                (
                    f"{what} at {n}",
                    lambda row, n=n, of=of: percent(found[n]) if n in (found := getattr(row, of)) else "–",
                )
                for n in (trained, wanted)
            ]
    print("| " + " | ".join(title for title, _ in columns) + " |")
    print("|---" * len(columns) + "|")
    for row in summary.rows:
        print(
            "| "
            + " | ".join([f"{row.name}: {row.failed}"] if row.failed else [cell(row) for _, cell in columns])
            + " |"
        )
    print()
    for line in headlines(summary):
        print(line)


def train(files: tuple[str, ...], folder: Path, steps: int) -> None:
    """Train a model on whole modules, and write it."""
    tokenizer = byte_tokenizer()
    corpus: Corpus = read_corpus(files, tokenizer=JsonTokenizer(tokenizer.backend_tokenizer.to_str()))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH, bos_token_id=256, eos_token_id=256, tie_word_embeddings=True,
        use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    began, since = time.perf_counter(), []
    for step in range(steps):
        warm = min(1.0, (step + 1) / 50)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * warm * (0.1 + 0.45 * (1 + math.cos(math.pi * step / steps)))
        batch = corpus.batch(step, batch_size=16, length=LENGTH, seed=0)
        logits = model(batch.tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        since.append(loss.item())
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} of {steps}: loss {sum(since[-50:]) / 50:.3f}", flush=True)
    last = sum(since[-50:]) / len(since[-50:])
    print(f"trained {steps} steps in {time.perf_counter() - began:.0f} s, training loss {last:.3f}", flush=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte, and one that ends a text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|endoftext|>")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--tune", type=int, default=30)
    parser.add_argument("--windows", type=int, default=12)
    parser.add_argument("--to", nargs="+", default=["4x", "8x"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/extend-bench"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
