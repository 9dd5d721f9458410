"""Retrieval by models that were trained on text: what is it worth to have read the answer, at a depth and a length?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.data import Corpus
from ropewalk.lab.place import Forward
from ropewalk.lab.results import Record

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Retrieval:
    """A sentence "# the code of NAME is WORD" lies at a depth of a window of test text; its beginning is repeated at the end.

    Small models seldom repeat the word exactly, so the measure is finer: the nats an answer token costs less than it does
    with the sentence about another word in the same place. Zero: nothing was retrieved.

    Args:
        corpus: test windows are taken from it.
        lengths: of whole windows, in tokens.
        count: windows a depth.
    """

    def __init__(self, corpus: Corpus, lengths: Sequence[int], count: int = 16) -> None:
        self.corpus, self.count = corpus, count
        self.text = corpus.windows("test", max(lengths), count=count, seed=1)

    def run(self, forward: Forward, length: int) -> list[Record]:
        """Return a record for each depth; none where the sentences do not fit into the length."""
        records = []
        for depth in DEPTHS:
            batch = self.batch(length, depth)
            if batch is None:
                return []
            logits = forward(batch)
            losses = functional.cross_entropy(
                logits.flatten(0, 1).float(),
                batch.targets.to(logits.device).flatten(),
                ignore_index=IGNORE,
                reduction="none",
            )
            losses = losses.view(batch.targets.shape).double().cpu()
            mean = losses.sum(1) / (batch.targets != IGNORE).sum(1)
            told, other = mean.chunk(2)
            records.append(
                {
                    "kind": "retrieval",
                    "length": length,
                    "depth": depth,
                    "metric": "nats gained",
                    "value": float((other - told).mean()),
                    "count": len(told),
                }
            )
        return records

    def batch(self, length: int, depth: float) -> Batch | None:
        """Rows with the answer in the text, then the same rows with another answer there."""
        told: list[tuple[Tensor, int]] = []
        other: list[tuple[Tensor, int]] = []
        for i, text in enumerate(self.text.tokens):
            name, word, wrong = (_word(i, kind) for kind in range(3))
            question = self._encode(f"\n# the code of {name} is ")
            answer = self._encode(word)
            room = length + 1 - len(question) - len(answer)
            rows = []
            for shown in (word, wrong):
                needle = self._encode(f"\n# the code of {name} is {shown}\n")
                free = room - len(needle)
                if free < 1:
                    return None
                # depth 0: at the beginning, the farthest from the question
                at = round(depth * free)
                filler = text[len(text) - free :]
                rows.append(torch.cat([filler[:at], needle, filler[at:], question, answer]))
            if len(rows[0]) != len(rows[1]):
                continue  # two words of different numbers of tokens: not the same task
            for kind, row in zip((told, other), rows, strict=True):
                kind.append((row, len(answer)))
        if not told:
            return None
        rows_, answers = zip(*told, *other, strict=True)
        tokens = torch.stack(rows_)
        targets = tokens[:, 1:].clone()
        for row, answered in zip(targets, answers, strict=True):
            row[: len(row) - answered] = IGNORE
        return Batch(tokens[:, :-1], targets)

    def _encode(self, text: str) -> Tensor:
        return torch.as_tensor(self.corpus.tokenizer.encode(text), dtype=torch.int64)


def _word(row: int, kind: int) -> str:
    generator = torch.Generator().manual_seed(7919 * row + kind)
    return "".join(LETTERS[i] for i in torch.randint(26, (5,), generator=generator).tolist())
