"""How many answers are right.

Models are scored teacher forced: one pass over the prompt and the right answer. That is exactly greedy decoding as far as
whole answers go. While all tokens so far are right, both read the same prefix and choose the same next token; at the first
wrong one both have failed, whatever comes after. The fraction of right tokens can differ, since decoding goes on from its
own mistakes and teacher forcing does not.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ropewalk.core.errors import ShapeError
from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.errors import TrialError


class Score(NamedTuple):
    """Right answers of a batch.

    Attributes:
        exact: (B,) bool, rows whose every scored token is right.
        token: fraction of the scored tokens that are right.
    """

    exact: Tensor
    token: float


def score(output: Tensor, batch: Batch) -> Score:
    """Compare what a model says with the targets of a batch.

    Args:
        output: (B, S, vocab) logits, of which the largest is taken (of equal ones the first), or (B, S) tokens.
        batch: what the model read.

    Raises:
        TrialError: NaN among the logits: there is no largest of them.
        ShapeError: shapes that do not fit, or a row without a target.
    """
    targets = batch.targets.to(output.device)
    if output.shape[:2] != targets.shape or output.ndim != (3 if output.is_floating_point() else 2):
        raise ShapeError(
            f"to score targets of shape {tuple(targets.shape)} give real logits {(*targets.shape, 'vocab')} or whole "
            f"tokens {tuple(targets.shape)}; got {output.dtype} of shape {tuple(output.shape)}"
        )
    if output.is_floating_point():
        if output.isnan().any():
            rows = output.isnan().flatten(1).any(1).nonzero()[:, 0].tolist()
            raise TrialError(
                f"the logits of rows {rows} contain NaN; the model has diverged, and a lower learning rate may help"
            )
        output = output.argmax(-1)
    counts = targets != IGNORE
    scored = counts.sum(1)
    if not scored.all():
        raise ShapeError(f"rows {(scored == 0).nonzero()[:, 0].tolist()} have no target that is scored")
    right = ((output == targets) & counts).sum(1)
    return Score(right == scored, float(right.sum() / scored.sum()))
