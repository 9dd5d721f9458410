"""A made-up run: records as a trial writes them, with known differences between the encodings."""

import itertools
import json
import math
import shlex

import torch

CONTEXT = {
    "versions": {"ropewalk": "0.0", "torch": "2.9", "python": "3.11"},
    "hardware": {"device": "cpu", "cores": 2},
    "data": "sha256:00ff",
}
# Loss at the trained length, and what each doubling beyond it adds.
TEXT = {
    "rope": (1.52, 0.35),
    "alibi": (1.55, -0.01),
    "nope": (1.61, 0.12),
    "rope(base=500000)": (1.521, 0.2),
    "t5": (1.54, 0.02),
    "fox": (1.50, -0.02),
    "learned": (1.58, 0.9),
    "sinusoidal": (1.59, 1.4),
    "pope": (1.51, 0.05),
}


def text_run(
    encodings=("rope", "alibi", "nope"), seeds=3, lengths=(64, 128, 256), trained=64, documents=24, sweep=True
):
    """Records and settings of a run on text."""
    records = []
    for name in encodings:
        level, slope = TEXT.get(name, (1.57, 0.1))
        for seed in range(seeds):
            records += _text_trial(name, seed, level, slope, lengths, trained, documents)
    if sweep:
        for name in encodings:
            for lr in (3e-4, 1e-3, 3e-3, 1e-2):
                record = {"kind": "sweep", "lr": lr, "trial": f"{name}-lr{lr:g}"}
                record["validation_loss"] = 1.6 + 0.1 * math.log10(lr / 3e-3) ** 2 + len(name) / 1000
                records.append(_record(name, 0, "text", record))
    return records, settings(encodings, seeds, task="text", train_length=trained, eval_lengths=list(lengths))


def task_run(encodings=("rope", "alibi", "nope"), seeds=3, sizes=(4, 8, 16), trained=8, items=40):
    """Records and settings of a run on a generated task."""
    records = []
    for n, name in enumerate(encodings):
        for seed in range(seeds):
            generator = torch.Generator().manual_seed(1000 * n + seed)
            for size in sizes:
                chance = 0.97 if size <= trained else (0.2, 0.8, 0.5)[n % 3]
                right = (torch.rand(items, generator=generator) < chance).long().tolist()
                record = {"kind": "exact", "size": size, "trained": size <= trained, "items": right}
                record |= {"exact": sum(right) / items, "token": min(1.0, sum(right) / items + 0.1)}
                records.append(_record(name, seed, "copy", record))
            records.append(_record(name, seed, "copy", _curve(2.0 - n / 10, generator)))
    made = settings(encodings, seeds, task="copy", train_length=trained)
    return records, {
        **made,
        "workload": {"task": "copy", "size_name": "symbols", "examples": ["a b → a b", "c a b → c a b"]},
    }


def settings(encodings, seeds, **asked):
    return {
        "settings": {"encodings": list(encodings), "seeds": seeds, "first_seed": 0, "lr": 3e-3, **asked},
        "command": shlex.join(["ropewalk", "compare", *encodings, "--seeds", str(seeds)]),
        "workload": {"documents": {"train": 400, "validation": 50, "test": 50}, "tokenizer": "bytes"},
        "hardware": CONTEXT["hardware"],
        "versions": CONTEXT["versions"],
    }


def write(folder, records, settings):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "settings.json").write_text(json.dumps(settings))
    return folder


def _record(encoding, seed, task, values):
    base = {"trial": f"{encoding}-s{seed}", "encoding": encoding, "task": task, "seed": seed, "lr": 3e-3}
    return {**base, "attempt": 0, "context": CONTEXT, **values}


def _curve(level, generator):
    steps = list(range(10, 401, 10))
    noise = 0.02 * torch.randn(len(steps), generator=generator)
    loss = [level + 3 * math.exp(-s / 60) + float(e) for s, e in zip(steps, noise, strict=True)]
    return {
        **{"kind": "curve", "step": steps, "tokens": [1024 * s for s in steps], "loss": loss},
        **{"validation_step": steps[9::10], "validation_loss": [value + 0.03 for value in loss[9::10]]},
    }


def _text_trial(name, seed, level, slope, lengths, trained, documents):
    generator = torch.Generator().manual_seed(100 * sum(map(ord, name)) + seed)
    shared = torch.Generator().manual_seed(99)
    hard = 0.3 * torch.randn(documents, generator=shared)
    luck = 0.002 * float(torch.randn(1, generator=generator)) * (1 + len(name) % 3)

    def record(**values):
        return _record(name, seed, "text", values)

    yield record(
        kind="model", parameters=400_000, extra_parameters=64 if name in ("t5", "fox") else 0, encodings=[name] * 2
    )
    yield record(**_curve(level, generator))
    for length in lengths:
        extra = slope * max(0.0, math.log2(length / trained))
        values = level + extra + luck + hard + 0.01 * torch.randn(documents, generator=generator)
        scored = {f"doc {i}.txt": [float(v), 32.0] for i, v in enumerate(values)}
        yield record(kind="loss", split="test", length=length, last=32, mean=float(values.mean()), documents=scored)
        edges = [round(length * i / 16) for i in range(17)]
        middles = [(a + b) / 2 for a, b in itertools.pairwise(edges)]
        bend = [level + 1.2 / (1 + m / 6) + slope * max(0.0, math.log2(max(m, 1) / trained)) for m in middles]
        yield record(kind="positions", length=length, edges=edges, loss=bend)
        for depth in (0.0, 0.25, 0.5, 0.75, 1.0):
            gained = max(0.0, 2.5 - 3 * slope * length / trained - (1 - depth) * length / 400)
            yield record(kind="retrieval", length=length, depth=depth, metric="nats gained", value=gained, count=20)
    for what, rate in (("train", 9e4), ("prefill", 3e5), ("decode", 900.0)):
        speed = rate * (1 - 0.03 * (len(name) % 5)) * (1 + 0.01 * seed)
        for length in lengths[:: len(lengths) - 1]:
            quartiles = {"tokens_per_second": speed, "low": 0.97 * speed, "high": 1.02 * speed}
            yield record(kind="speed", what=what, length=length, **quartiles)
    for what in ("saved for backward", "cache"):
        yield record(kind="memory", what=what, length=trained, bytes=(5 + len(name) % 4) * 2**20)
    if name.startswith(("rope", "pope")):
        frequencies = [10000 ** (-i / 16) for i in range(16)]
        yield record(kind="fixed", name="layers.0.encoding.inv_freq", shape=[16], values=frequencies)
        yield record(kind="fixed", name="layers.1.encoding.inv_freq", shape=[16], values=frequencies)
    if name in ("t5", "fox"):
        before, after = [0.0] * 32, [math.sin(i / 5) + 0.1 * seed for i in range(32)]
        for layer in range(2):
            learned = {"shape": [32], "before": before, "after": [a + layer for a in after]}
            yield record(kind="learned", name=f"layers.{layer}.encoding.weight", **learned)
        yield record(kind="learned", name="layers.0.encoding.gate", shape=[], before=[0.0], after=[0.31])
