"""Comparisons that take a second: a runner in this process, and small settings."""

from __future__ import annotations

from ropewalk.lab.data import Corpus
from ropewalk.lab.jobs import events
from ropewalk.lab.place import Alone
from ropewalk.lab.settings import Settings
from ropewalk.lab.workloads import make_workload, resolved

TIMED = {"speed"}  # kinds of records that are never twice the same


def settings(**changes):
    given = {
        "encodings": ("rope", "alibi"),
        "task": "needle",
        "train_length": 12,
        "eval_lengths": (8, 24),
        "shape": {"hidden_size": 16, "num_layers": 2, "num_heads": 2},
        "tokens": 16 * 8 * 30,
        "batch_size": 8,
        "seeds": 1,
        "windows": 8,
        "checkpoint_every": 10,
    }
    return Settings(**{**given, **changes})


def texts(folder, documents=40, words=300):
    """Write a folder of small documents."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(documents):
        text = " ".join(f"w{(i * j) % 97} is {(i + j) % 13}" for j in range(words))
        (folder / f"{i:03}.txt").write_text(text)
    return str(folder)


class Here:
    """Runs trials in this process, and can be told to stop after some events as if it were killed."""

    def __init__(self, folder, given, stop_after=None):
        self.folder, self.settings, self.left = folder, resolved(given), stop_after

    def run(self, jobs):
        corpus = Corpus.load(self.folder / "corpus.safetensors") if self.settings.task == "text" else None
        workload = make_workload(self.settings, corpus)
        for job in jobs:
            for event in events(job, workload, Alone("cpu")):
                if self.left is not None:
                    if self.left == 0:
                        raise KeyboardInterrupt
                    self.left -= 1
                yield job.spec, event


def comparable(records):
    """Records without what differs between two runs of the same thing: times, and where it ran."""
    plain = []
    for record in records:
        if record["kind"] not in TIMED:
            plain.append({k: v for k, v in record.items() if k not in ("time", "context", "attempt")})
    return sorted(plain, key=str)
