"""Massive values: the few channels of q and k, not of v, that are many times as large as the others.

After Mingyu Jin, Kai Mei, Wujiang Xu, Mingjie Sun, Ruixiang Tang, Mengnan Du, Zirui Liu, Yongfeng Zhang. Massive Values in
Self-Attention Modules are the Key to Contextual Knowledge Understanding. arXiv 2502.01563, 2025. The factor of 5 that makes
a channel massive is the one third parties report; concentration and agreement are our measures, and the probe by 4-bit weights
is ours.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.core.rotation import Pairing, check_pairing

FACTOR = 5.0
"""λ: a channel is massive above λ times the mean of its head."""

Which = Literal["massive", "other"]
Filler = Literal["mean", "zero", "min", "max"]


def channel_norms(x: Tensor) -> Tensor:
    """M_hd = ‖x_hd‖₂ over the tokens: (B, H, D) of turned q or k, or of v, (B, H, S, D)."""
    _check(x)
    return (x if x.dtype == torch.float64 else x.float()).norm(dim=-2)


def massive_mask(norms: Tensor, factor: float = FACTOR) -> Tensor:
    """M_hd > λ mean_d' M_hd': True for massive channels, (..., H, D)."""
    if not (math.isfinite(factor) and factor > 0):
        raise ConfigError(f"factor is a positive number, how many times the mean; got {factor!r}")
    return norms > factor * norms.mean(-1, keepdim=True)


def concentration_score(norms: Tensor, factor: float = FACTOR) -> Tensor:
    """Σ M² over massive channels / Σ M², of all heads of a layer together: (...) for norms (..., H, D), from 0 to 1."""
    energy = norms.square()
    whole = energy.sum((-1, -2))
    return (energy * massive_mask(norms, factor)).sum((-1, -2)) / whole.clamp(min=torch.finfo(energy.dtype).tiny)


def index_agreement(mask: Tensor) -> float:
    """Mean Jaccard index |a ∩ b| / |a ∪ b| of the heads' massive channels, over pairs of heads that have any; 0 without one.

    Args:
        mask: (H, D) of one layer.
    """
    if mask.ndim != 2:
        raise ShapeError(f"the mask of one layer is (H, D); got shape {tuple(mask.shape)}")
    shares = [
        int((a & b).sum()) / int((a | b).sum())
        for a, b in itertools.combinations(mask.bool(), 2)
        if bool((a | b).any())
    ]
    return sum(shares) / len(shares) if shares else 0.0


def pair_of_channel(channel: int, planes: int, pairing: Pairing) -> int:
    """Return the rotary plane of a channel, counted from the fastest; low frequencies lie near P − 1."""
    if not 0 <= channel < 2 * planes:
        raise ConfigError(f"channel {channel} of {2 * planes}; they are counted from 0")
    return channel % planes if check_pairing(pairing) == "half" else channel // 2


def pair_shares(norms: Tensor, pairing: Pairing) -> Tensor:
    """Share of Σ M² in each rotary plane, (..., P) for norms (..., 2P). Turning preserves it."""
    check_pairing(pairing)
    energy = norms.square()
    by_pair = energy.unflatten(-1, (2, -1)).sum(-2) if pairing == "half" else energy.unflatten(-1, (-1, 2)).sum(-1)
    return by_pair / by_pair.sum(-1, keepdim=True).clamp(min=torch.finfo(energy.dtype).tiny)


class Disruption(NamedTuple):
    """Channels of each head and the number that they are to hold, so that it can be done again to the same tokens."""

    channels: Tensor
    """(B, H, k)"""

    value: Tensor
    """(B, H, 1)"""

    def apply(self, x: Tensor) -> Tensor:
        """Return x (B, H, S, D) with the channels filled; the others keep every bit."""
        index = self.channels[..., None, :].expand(-1, -1, x.shape[-2], -1)
        return x.scatter(-1, index, self.value[..., None].to(x.dtype).expand(index.shape))


def disruption(x: Tensor, k: int = 1, which: Which = "massive", filler: Filler = "mean") -> Disruption:
    """Choose the k channels of each head with the largest norm (or smallest), and one number for all of them.

    Args:
        x: (B, H, S, D) turned q or k. Each sample chooses for itself.
        k: channels a head.
        which: "massive" takes the largest, "other" the smallest, as a control. Of equal ones the first.
        filler: "mean", "min" or "max" over the tokens and the chosen channels, or "zero".

    Raises:
        ConfigError: k below 0 or above D, other names.
    """
    _check(x)
    if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= x.shape[-1]:
        raise ConfigError(f"k is a number of channels from 0 to {x.shape[-1]}; got {k!r}")
    if which not in ("massive", "other"):
        raise ConfigError(f"which is 'massive' or 'other'; got {which!r}")
    if filler not in ("mean", "zero", "min", "max"):
        raise ConfigError(f"filler is 'mean', 'zero', 'min' or 'max'; got {filler!r}")
    order = channel_norms(x).argsort(dim=-1, descending=which == "massive", stable=True)[..., :k]
    zero = x.new_zeros((*x.shape[:2], 1))
    if k == 0 or filler == "zero":
        return Disruption(order, zero)
    chosen = x.gather(-1, order[..., None, :].expand(-1, -1, x.shape[-2], -1)).flatten(2)
    if filler == "mean":
        return Disruption(order, chosen.mean(-1, keepdim=True))
    return Disruption(order, chosen.amin(-1, keepdim=True) if filler == "min" else chosen.amax(-1, keepdim=True))


def disrupt(
    q: Tensor, k: Tensor, channels: int = 1, which: Which = "massive", filler: Filler = "mean"
) -> tuple[Tensor, Tensor]:
    """Fill the chosen channels of turned q and of turned k, each with its own channels; see `disruption`.

    What is chosen depends on all tokens given, so a prompt that comes in chunks is another experiment.
    """
    return disruption(q, channels, which, filler).apply(q), disruption(k, channels, which, filler).apply(k)


def quantised(weight: Tensor, keep: Tensor | None = None) -> Tensor:
    """round(w/s) s, s = max|w| / 7 of each row: weights as 4-bit integers would hold them, −8 … 7.

    Args:
        weight: (out, in), of W_q or W_k.
        keep: (out,), True for rows that stay as they are, such as those of massive channels.
    """
    if weight.ndim != 2 or (keep is not None and keep.shape != weight.shape[:1]):
        shape = None if keep is None else tuple(keep.shape)
        raise ShapeError(f"weight {tuple(weight.shape)} and keep {shape}; expected (out, in) and (out,)")
    scale = weight.abs().amax(-1, keepdim=True) / 7
    steps = torch.where(scale > 0, weight / scale.clamp(min=torch.finfo(weight.dtype).tiny), 0.0).round().clamp(-8, 7)
    return steps * scale if keep is None else torch.where(keep[:, None], weight, steps * scale)


@dataclass(frozen=True, slots=True)
class Passkey:
    """A text with a number in it, and where.

    Attributes:
        prompt: the text with the question.
        key: the number, six digits.
        start: character at which the sentence that tells it begins.
        stop: character after it.
    """

    prompt: str
    key: str
    start: int
    stop: int


def passkey(words: int, depth: float, seed: int = 0) -> Passkey:
    """Return words at random with a six-digit number told at a depth, and asked for at the end.

    Args:
        words: of the random text, at least 101.
        depth: 0 the beginning, 1 the end.
        seed: of everything random.
    """
    if isinstance(words, bool) or not isinstance(words, int) or words < 101:
        raise ConfigError(f"words is a whole number, at least 101; got {words!r}")
    if not 0 <= depth <= 1:
        raise ConfigError(f"depth lies between 0 and 1; got {depth!r}")
    generator = torch.Generator().manual_seed(seed)
    vocabulary = [
        "river",
        "stone",
        "paper",
        "garden",
        "window",
        "silver",
        "bread",
        "morning",
        "winter",
        "candle",
        "forest",
        "letter",
        "harbour",
        "copper",
        "music",
        "bridge",
        "summer",
        "table",
        "market",
        "shadow",
        "village",
        "orange",
        "thunder",
        "blanket",
        "engine",
        "pocket",
        "mirror",
        "ladder",
        "island",
        "cotton",
    ]
    text = [vocabulary[i] for i in torch.randint(len(vocabulary), (words,), generator=generator).tolist()]
    key = str(int(torch.randint(100_000, 1_000_000, (1,), generator=generator)))
    at = round(depth * words)
    before, after = " ".join(text[:at]), " ".join(text[at:])
    told = f"The pass key is {key}. Remember it. {key} is the pass key."
    lead = f"{before}. " if before else ""
    prompt = f"{lead}{told} {after}. What is the pass key? The pass key is"
    return Passkey(prompt, key, len(lead), len(lead) + len(told))


def _check(x: Tensor) -> None:
    if x.ndim != 4:
        raise ShapeError(f"states are (B, H, S, D); got shape {tuple(x.shape)}")
    if not bool(x.isfinite().all()):
        raise ConfigError("the states hold NaN or infinity, so their channels have no size")
