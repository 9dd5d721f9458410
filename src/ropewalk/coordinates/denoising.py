"""At which step of denoising the tokens are: a fact of their whole sequence, the same for all layers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropewalk.coordinates.clip import sample_clip
from ropewalk.core.errors import ConfigError, NeedsColumn, PositionError, check_positive
from ropewalk.core.positions import Positions, Tokens

PROGRESS = "progress"
"""Fact: (b,) the part n/N of denoising that is done before this step, from 0 to below 1."""

CALLS = "calls"
"""Fact: (b,) the same over calls of the denoiser, n/(N − 1): 0 in the first, 1 in the last; 0 in an only one."""


def at_step(positions: Positions, step: int, steps: int) -> Positions:
    """Return the positions at step n of N, counted from 0.

    A cache then has to be told of every step: what it stores unencoded (`Encoding.stores`) is encoded for the newest one.

    Args:
        positions: of the tokens, the same at all steps.
        step: n; both branches of classifier-free guidance have the same.
        steps: N, actual calls of the denoiser: a last noise level of zero is no step.
    """
    check_positive(steps=steps)
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < steps:
        raise ConfigError(f"step {step!r} of {steps}: a whole number, counted from 0")
    facts = {PROGRESS: step / steps, CALLS: step / max(steps - 1, 1)}
    made = {name: torch.tensor([value], dtype=torch.float64, device=positions.device) for name, value in facts.items()}
    return positions.map_sides(lambda t: t.with_sequence(**made))


def at_progress(positions: Positions, progress: Tensor) -> Positions:
    """Return the positions where each row has done a part of denoising, as in training.

    Args:
        positions: of the tokens.
        progress: (b,) from 0 to below 1.
    """
    if progress.ndim != 1 or not progress.is_floating_point():
        raise PositionError(
            f"progress has shape {tuple(progress.shape)} and dtype {progress.dtype}; expected real numbers (b,)"
        )
    if not is_compiling() and not progress.is_meta and not bool(((progress >= 0) & (progress < 1)).all()):
        raise PositionError(f"progress lies in [0, 1); got {progress.min().item():g} … {progress.max().item():g}")
    known = progress.double().to(positions.device)
    return positions.map_sides(lambda t: t.with_sequence(**{PROGRESS: known}))


def progress_of(tokens: Tokens) -> Tensor:
    """Return the part of denoising that is done, (b,)."""
    return _fact(tokens, PROGRESS)


def calls_of(tokens: Tokens) -> Tensor:
    """Return the part of the calls of the denoiser that came before, (b,)."""
    return _fact(tokens, CALLS)


def _fact(tokens: Tokens, name: str) -> Tensor:
    if name not in tokens.sequence:
        raise NeedsColumn(
            "the encoding depends on the step of denoising, and these positions do not say at which they are: give "
            "rw.at_step(positions, step, steps)"
        )
    return tokens.sequence[name]


# ---- which steps a model is trained at -------------------------------------------------------------------------------


def early_biased_progress(
    count: int, p_early: float = 0.9, early: float = 0.1, generator: torch.Generator | None = None
) -> Tensor:
    """Draw the progress of training samples: in [0, early) with probability ``p_early``, else in [early, 1), (count,).

    Source: Yueyan Li, Haibo Wang, Caixia Yuan, Xiaojie Wang. Why Do Video Diffusion Models Violate Physics? Unveiling the Flaws
    in Attention Mechanisms. arXiv 2609.23658, 2026; that both parts are uniform is our reading.
    """
    check_positive(count=count)
    if not 0 <= p_early <= 1 or not 0 < early < 1:
        raise ConfigError(f"p_early is a probability and early lies between 0 and 1; got {p_early!r} and {early!r}")
    chosen, place = torch.rand(2, count, dtype=torch.float64, generator=generator)
    return torch.where(chosen < p_early, place * early, early + place * (1 - early))


def flow_sigma(progress: Tensor, shift: float = 5.0) -> Tensor:
    """σ = s u / (1 + (s − 1) u),  u = 1 − progress: the noise level of flow schedulers.

    Args:
        progress: any shape.
        shift: s; 5 in Wan.
    """
    if not shift > 0:
        raise ConfigError(f"shift is a positive number; got {shift!r}")
    u = 1 - progress
    return shift * u / (1 + (shift - 1) * u)


def sample_denoising(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw tokens of clips, each row at another step; some of them early ones."""
    progress = torch.rand(batch, dtype=torch.float64, generator=generator)
    early = torch.arange(batch) % 2 == 0
    return at_progress(sample_clip(batch, seq, generator), torch.where(early, 0.1 * progress, 0.2 + 0.7 * progress))
