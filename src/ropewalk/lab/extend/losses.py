"""The loss of tokens of a long text, without the logits of all of them at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ropewalk.core.errors import ConfigError
from ropewalk.frequencies.buckets import mixed
from ropewalk.integrations.transformers.apply import columns
from ropewalk.lab.batch import IGNORE
from ropewalk.lab.data.tokens import Tokenizer
from ropewalk.lab.errors import TrialError
from ropewalk.lab.extend.copies import Copies
from ropewalk.lab.extend.structure import reads_structure, structure

CHUNK = 1 << 25
"""Logits that are held at once."""


class _Given(nn.Module):
    """Stands where a model's layers were, and returns what they gave."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        self.made = made

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return it."""
        return self.made


def hidden_states(
    model: Any, tokens: Tensor, positions: Tensor | None = None, facts: Mapping[str, Tensor] | None = None
) -> Any:
    """Return what the layers of a causal language model give for tokens (B, S), before its output embeddings.

    Args:
        model: of transformers.
        tokens: (B, S).
        positions: (B, S) where the tokens stand; None: counted from 0.
        facts: columns (B, S) for an applied encoding, by name.
    """
    body = model.base_model
    if body is model:
        raise ConfigError(f"{type(model).__name__} does not keep its layers apart from its output embeddings")
    given = {}
    if positions is not None:
        # Without a mask, ids that do not rise by one would be taken for packed documents that do not see each other.
        given = {"position_ids": positions, "attention_mask": torch.ones_like(tokens)}
    with columns(model, **facts) if facts else contextlib.nullcontext():
        return body(input_ids=tokens, use_cache=False, **given)


def logits_of(model: Any, made: Any, rows: Tensor, places: Tensor) -> Tensor:
    """Return the logits (N, vocab) at N places of what the layers gave, exactly as the model would make them.

    Args:
        model: of transformers, in which a cap or a scale of the logits may follow the output embeddings.
        made: what `hidden_states` returned.
        rows: (N,) of the batch.
        places: (N,) in the sequence.
    """
    hidden = made[0][rows, places][None]
    with _standing_in(model, type(made)(last_hidden_state=hidden)):
        return model(input_ids=torch.zeros_like(places)[None], use_cache=False).logits[0]


@contextlib.contextmanager
def _standing_in(model: Any, made: Any) -> Iterator[None]:
    name, body = model.base_model_prefix, model.base_model
    setattr(model, name, _Given(made))
    try:
        yield
    finally:
        setattr(model, name, body)


@dataclass(frozen=True, eq=False)
class _Read:
    """What a model's layers gave for some tokens: once, or once for each of its copies."""

    model: Any
    made: tuple[Any, ...]

    @classmethod
    def of(
        cls,
        model: Any,
        tokens: Tensor,
        positions: Tensor | None = None,
        facts: Mapping[str, Tensor] | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> _Read:
        """Let a model read."""
        if isinstance(model, Copies):
            inner = model.model
            return cls(inner, tuple(hidden_states(one, tokens.to(inner.device), positions) for one in model.each()))
        if facts is None and tokenizer is not None and reads_structure(model):
            facts = structure(tokenizer, tokens)
        facts = {name: fact.to(model.device) for name, fact in (facts or {}).items()}
        where = None if positions is None else positions.to(model.device)
        return cls(model, (hidden_states(model, tokens.to(model.device), where, facts),))

    def logits(self, rows: Tensor, places: Tensor) -> Tensor:
        """Return the logits (N, vocab) at some places."""
        said = [logits_of(self.model, made, rows, places) for made in self.made]
        return said[0] if len(said) == 1 else mixed(torch.stack(said))


def token_losses(
    model: Any,
    tokens: Tensor,
    targets: Tensor,
    positions: Tensor | None = None,
    facts: Mapping[str, Tensor] | None = None,
    tokenizer: Tokenizer | None = None,
) -> Tensor:
    """Return the loss (N,), float32, in nats, of the targets that count, row by row; gradients flow where they are on.

    Args:
        model: of transformers, or `Copies` of one.
        tokens: (B, S).
        targets: (B, S), the token that follows each; `IGNORE` where nothing is scored.
        positions: as in `hidden_states`.
        facts: as in `hidden_states`.
        tokenizer: for encodings that count functions, which are read from the text.

    Raises:
        TrialError: losses that are not finite.
    """
    read = _Read.of(model, tokens, positions, facts, tokenizer)
    rows, places = (targets != IGNORE).nonzero(as_tuple=True)
    wanted, device = targets[rows, places], read.model.device
    chunk = max(1, CHUNK // read.model.config.get_text_config().vocab_size)

    def losses(rows: Tensor, places: Tensor, wanted: Tensor) -> Tensor:
        return functional.cross_entropy(read.logits(rows, places).float(), wanted, reduction="none")

    found = []
    for start in range(0, len(rows), chunk):
        part = [t[start : start + chunk].to(device) for t in (rows, places, wanted)]
        # In training the logits of a chunk are made again in the backward pass instead of being kept.
        found.append(checkpoint(losses, *part, use_reentrant=False) if torch.is_grad_enabled() else losses(*part))
    out = torch.cat(found) if found else torch.empty(0, device=device)
    if not bool(torch.isfinite(out).all()):
        raise TrialError("the model gives losses that are not finite numbers")
    return out


def predictions(
    model: Any, tokens: Tensor, targets: Tensor, tokenizer: Tokenizer | None = None
) -> tuple[Tensor, Tensor]:
    """Return the losses (N,) of the targets that count, and their margins (N,).

    A margin is how many nats a target is before the likeliest other token: above 0, greedy decoding would write it.
    """
    read = _Read.of(model, tokens, tokenizer=tokenizer)
    rows, places = (targets != IGNORE).nonzero(as_tuple=True)
    logits = read.logits(rows.to(read.model.device), places.to(read.model.device)).float().cpu()
    if not bool(torch.isfinite(logits).all()):
        raise TrialError("the model gives logits that are not finite numbers")
    wanted = targets[rows, places]
    others = logits.scatter(-1, wanted[:, None], -torch.inf).amax(-1)
    margin = logits.gather(-1, wanted[:, None])[:, 0] - others
    return functional.cross_entropy(logits, wanted, reduction="none"), margin
