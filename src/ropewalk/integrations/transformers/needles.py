"""Needle tests with models of transformers: which heads find the passphrase, and what the answer is worth without them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache

from ropewalk.analysis.retrieval_heads import Needle, argmax_hits, copy_hits, needle, token_span
from ropewalk.core.errors import ConfigError
from ropewalk.integrations.transformers.bridge import CACHES
from ropewalk.integrations.transformers.probe import LayerShape, LayerStates, Probe, layer_shapes

NEW_TOKENS = 20
"""Tokens in which the answer has to appear."""


@dataclass(frozen=True)
class TokenNeedle:
    """A needle in tokens.

    Attributes:
        text: the needle.
        ids: (1, P) the prompt.
        span: tokens [a, b) of the sentence that tells the passphrase.
        answer: (n,) tokens of the answer.
        sources: where each of them stands in the needle; empty where the tokenizer cuts it differently there.
    """

    text: Needle
    ids: Tensor
    span: tuple[int, int]
    answer: Tensor
    sources: tuple[int, ...]


def token_needles(
    tokenizer: Any, words: int, count: int, *, seed: int = 0, device: torch.device | str = "cpu"
) -> list[TokenNeedle]:
    """Return needles at depths spread over the text; those whose sentence cannot be found in the tokens are left out.

    Args:
        tokenizer: a fast tokenizer, which knows the characters of its tokens.
        words: of the filler.
        count: needles.
        seed: of the first; the others count on.
        device: of the model.

    Raises:
        ConfigError: a tokenizer without offsets, or needles of which none is left.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(
            f"{type(tokenizer).__name__} does not say which characters its tokens stand for; needle tests need a fast tokenizer"
        )
    made = []
    for i in range(count):
        text = needle(words, (i + 0.5) / count, seed + i)
        encoded = tokenizer(text.prompt, return_offsets_mapping=True)
        offsets = encoded["offset_mapping"]
        span, source = token_span(offsets, text.start, text.stop), token_span(offsets, *text.source)
        answer = tokenizer(f" {text.answer}", add_special_tokens=False)["input_ids"]
        if span is None or source is None:
            continue
        ids = encoded["input_ids"]
        told = ids[slice(*source)]
        sources = tuple(range(*source)) if told == answer else ()
        made.append(
            TokenNeedle(text, torch.tensor([ids], device=device), span, torch.tensor(answer, device=device), sources)
        )
    if not made:
        raise ConfigError("no needle was found again in the tokens of its prompt; is this the model's own tokenizer?")
    return made


class NeedleScores(NamedTuple):
    """Shares of the needles, or of the answer's tokens, that a head points at: (layers, heads)."""

    argmax: Tensor
    """The last token of the prompt attends most to a token of the needle."""

    copy: Tensor | None
    """The token before each token of the answer attends most to where that stands; None where no needle could be copied."""

    needles: int
    events: int
    """Tokens of answers."""


@torch.no_grad()
def needle_scores(
    model: Any, needles: Sequence[TokenNeedle], shapes: Sequence[LayerShape] | None = None
) -> NeedleScores:
    """Run a model over needles and their answers, and see where its heads look."""
    known = list(layer_shapes(model) if shapes is None else shapes)
    hits = torch.zeros(len(known), known[0].num_heads, dtype=torch.float64)
    copies, events = torch.zeros_like(hits), 0
    for one in needles:
        prompt = one.ids.shape[1]
        told, sources, n = one.span, one.sources, len(one.answer)

        def look(states: LayerStates, first: int = prompt - 1, told: tuple[int, int] = told, n: int = n,
                 sources: tuple[int, ...] = sources) -> None:  # fmt: skip
            rows = states.weights(first, first + n)[0].cpu()
            hits[states.index] += argmax_hits(rows[:, 0, : first + 1], told).double()
            if sources:
                copies[states.index] += copy_hits(rows, sources).double().sum(-1)

        events += n if sources else 0
        with Probe(model, look=look, shapes=known):
            model.base_model(torch.cat([one.ids, one.answer[None, :-1]], 1), use_cache=False)
    return NeedleScores(hits / len(needles), copies / events if events else None, len(needles), events)


class Recall(NamedTuple):
    """What became of each needle."""

    found: tuple[bool, ...]
    """The answer appears in the tokens that follow."""

    nats: tuple[float, ...]
    """What a token of the answer costs, given those before it."""

    @property
    def rate(self) -> float:
        """Share of the needles found."""
        return sum(self.found) / len(self.found)

    @property
    def mean_nats(self) -> float:
        """Mean cost of a token."""
        return sum(self.nats) / len(self.nats)

    def rise(self, other: Recall) -> tuple[float, float | None]:
        """Return by how much a token costs more than in another run of the same needles, and the standard error (None of one)."""
        differences = torch.tensor(self.nats, dtype=torch.float64) - torch.tensor(other.nats, dtype=torch.float64)
        error = None if len(differences) < 2 else float(differences.std() / len(differences) ** 0.5)
        return float(differences.mean()), error


@torch.no_grad()
def recall(model: Any, tokenizer: Any, needles: Sequence[TokenNeedle], new_tokens: int = NEW_TOKENS) -> Recall:
    """Let a model answer greedily, and price the true answer. Probes that are in the model act on both.

    Args:
        model: a causal model of transformers.
        tokenizer: its.
        needles: what to find.
        new_tokens: in which the answer has to appear.
    """
    found, nats = [], []
    for one in needles:
        cache = DynamicCache(config=model.config)
        first = _step(model, one.ids, cache)[-1:]
        forced = copy.deepcopy(cache)  # the greedy answer goes on from the prompt too
        rest = [_step(model, one.answer[None, :-1], forced)] if len(one.answer) > 1 else []
        logits = torch.cat([first, *rest])
        nats.append(float(functional.cross_entropy(logits, one.answer)))
        # A greedy answer that begins with the true one is known already.
        found.append(
            bool((logits.argmax(-1) == one.answer).all()) or _answers(model, tokenizer, one, first, cache, new_tokens)
        )
    return Recall(tuple(found), tuple(nats))


def _answers(
    model: Any, tokenizer: Any, one: TokenNeedle, logits: Tensor, cache: DynamicCache, new_tokens: int
) -> bool:
    said: list[int] = []
    for _ in range(new_tokens):
        if said:
            logits = _step(model, torch.tensor([said[-1:]], device=one.ids.device), cache)
        said.append(int(logits[-1].argmax()))
        if one.text.answer in tokenizer.decode(said):
            return True
    return False


def _step(model: Any, ids: Tensor, cache: DynamicCache) -> Tensor:
    """Return the logits of new tokens (n, vocabulary), of a prompt those of its last token at least."""
    names = inspect.signature(model.forward).parameters
    name = next(n for n in CACHES if n in names)
    keep = {"logits_to_keep": 1} if cache.get_seq_length() == 0 and "logits_to_keep" in names else {}
    out: Tensor = model(ids, use_cache=True, **{name: cache}, **keep).logits
    return out[0].float()
