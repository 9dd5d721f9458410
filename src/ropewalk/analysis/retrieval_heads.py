"""Retrieval heads: heads whose attention lands on what has to be copied, and the rotary channels they do it with.

After Cengizhan Bayram. Does RoPE Prevent or Degrade Retrieval Heads? A Mechanistic Analysis Across Model Families. arXiv
2606.21249, 2026. Texts, the option to zero queries alone, and what a window of the spectrum is summarised by are ours.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ropewalk.analysis.group_tests import centre_of_mass
from ropewalk.core.errors import ConfigError, ShapeError, check_positive
from ropewalk.core.rotation import Pairing, check_pairing
from ropewalk.frequencies.spectrum import Spectrum

THRESHOLD = 0.1
"""A head is a retrieval head from this score on."""

Band = Literal["low_freq", "high_freq", "random"]

_SUBJECTS = ("The keeper", "A neighbour", "The old captain", "Her brother", "The gardener", "A stranger", "The baker")
_VERBS = ("walked past", "looked at", "talked about", "remembered", "painted", "described", "forgot")
_OBJECTS = ("the harbour", "a wooden bridge", "the market", "the narrow street", "a field of barley", "the tower")
_WHEN = ("before breakfast", "on a quiet evening", "in early spring", "after the storm", "every second week", "at noon")


@dataclass(frozen=True, slots=True)
class Needle:
    """A prompt that tells a passphrase among other sentences and asks for it.

    Attributes:
        prompt: ends before the answer.
        answer: five letters and digits, after a space.
        start: character at which the sentence that tells it begins.
        stop: character after it.
        depth: of the sentence, 0 at the beginning.
    """

    prompt: str
    answer: str
    start: int
    stop: int
    depth: float

    @property
    def source(self) -> tuple[int, int]:
        """Characters of the passphrase itself within the prompt."""
        at = self.prompt.index(self.answer, self.start)
        return at, at + len(self.answer)


def needle(words: int, depth: float, seed: int = 0) -> Needle:
    """Return a prompt of about so many words; the same seed gives the same text for every model and condition.

    Args:
        words: of the filler.
        depth: where the needle lies, as a share of the words.
        seed: of filler and passphrase.
    """
    check_positive(words=words)
    if not 0 <= depth <= 1:
        raise ConfigError(f"depth lies between 0 and 1; got {depth!r}")
    generator = torch.Generator().manual_seed(seed)

    def one(choices: Sequence[str]) -> str:
        return choices[int(torch.randint(len(choices), (1,), generator=generator))]

    sentences: list[str] = []
    count = 0
    while count < words:
        sentences.append(f"{one(_SUBJECTS)} {one(_VERBS)} {one(_OBJECTS)} {one(_WHEN)}.")
        count += sentences[-1].count(" ") + 1
    answer = "".join(one(string.ascii_uppercase + string.digits) for _ in range(5))
    # The needle goes between two sentences, at the one nearest to the share of the words.
    at = round(depth * len(sentences))
    lead = "".join(f"{s} " for s in sentences[:at])
    told = f"The secret passphrase is {answer}."
    rest = "".join(f" {s}" for s in sentences[at:])
    prompt = f"{lead}{told}{rest}\nQuestion: What is the secret passphrase?\nAnswer: The secret passphrase is"
    return Needle(prompt, answer, len(lead), len(lead) + len(told), depth)


def token_span(offsets: Sequence[tuple[int, int]], start: int, stop: int) -> tuple[int, int] | None:
    """Return the tokens [a, b) that hold the characters start … stop − 1; None where there are none.

    Args:
        offsets: characters of each token, as tokenizers give them; empty ones are special tokens.
        start: first character.
        stop: character after the last.
    """
    inside = [i for i, (a, b) in enumerate(offsets) if a < b and a < stop and b > start]
    return (inside[0], inside[-1] + 1) if inside else None


# ---- detectors --------------------------------------------------------------------------------------------------------------


def argmax_hits(row: Tensor, span: tuple[int, int]) -> Tensor:
    """Whether the strongest key of the last token lies in the needle, (...) for attention (..., K); of equal ones the first."""
    a, b = span
    if not 0 <= a < b <= row.shape[-1]:
        raise ShapeError(f"span {span} of {row.shape[-1]} keys")
    strongest = row.argmax(-1)
    return (strongest >= a) & (strongest < b)


def copy_hits(rows: Tensor, sources: Sequence[int]) -> Tensor:
    """Whether the token that predicts answer token m attends most to where that token stood, (..., n) for (..., n, K).

    Args:
        rows: attention of the n tokens that predict the answer's.
        sources: where each token of the answer stands in the needle.
    """
    if rows.shape[-2] != len(sources):
        raise ShapeError(f"{rows.shape[-2]} rows for {len(sources)} tokens of the answer")
    return rows.argmax(-1) == torch.tensor(sources, device=rows.device)


def heads_above(scores: Tensor, threshold: float = THRESHOLD) -> list[tuple[int, int]]:
    """Return the (layer, head) whose score (layers, heads) reaches the threshold, the highest first; of equal ones the first."""
    if scores.ndim != 2:
        raise ShapeError(f"scores are (layers, heads); got shape {tuple(scores.shape)}")
    order = scores.flatten().argsort(descending=True, stable=True).tolist()
    heads = [divmod(i, scores.shape[1]) for i in order]
    return [head for head in heads if float(scores[head]) >= threshold]


def coverage(heads: Sequence[tuple[int, int]], share: float = 0.5, most: int = 30) -> list[tuple[int, int]]:
    """Return the first share of some heads, at least one and at most so many: those whose channels are patched."""
    if not 0 < share <= 1:
        raise ConfigError(f"share is above 0 and at most 1; got {share!r}")
    return list(heads[: min(most, max(1, round(share * len(heads))))]) if heads else []


# ---- channels ---------------------------------------------------------------------------------------------------------------


def rotary_channels(spectrum: Spectrum, count: int, band: Band, pairing: Pairing, seed: int = 0) -> list[int]:
    """Return channels of a head, rising: those of the slowest or fastest planes, or any at random.

    The released code takes neighbours as pairs also of models that pair halves; give pairing="interleaved" for its numbers.

    Args:
        spectrum: P frequencies of 2P channels.
        count: channels, an even number.
        band: "low_freq", "high_freq" or "random", which need not be whole pairs.
        pairing: of the channels.
        seed: of the random ones.
    """
    n = len(spectrum.inv_freq)
    if isinstance(count, bool) or not isinstance(count, int) or count % 2 or not 0 <= count <= 2 * n:
        raise ConfigError(f"count is an even number of channels from 0 to {2 * n}; got {count!r}")
    if band == "random":
        generator = torch.Generator().manual_seed(seed)
        return sorted(torch.randperm(2 * n, generator=generator)[:count].tolist())
    if band not in ("low_freq", "high_freq"):
        raise ConfigError(f"band is 'low_freq', 'high_freq' or 'random'; got {band!r}")
    order = sorted(range(n), key=lambda i: abs(spectrum.inv_freq[i]), reverse=band == "high_freq")
    return pair_channels(order[: count // 2], n, pairing)


def pair_channels(chosen: Sequence[int], count: int, pairing: Pairing) -> list[int]:
    """Return the channels of some of ``count`` planes, rising."""
    half = check_pairing(pairing) == "half"
    return sorted(c for i in chosen for c in ((i, i + count) if half else (2 * i, 2 * i + 1)))


def spectral_windows(spectrum: Spectrum, pairing: Pairing, positions: int = 8) -> list[list[int]]:
    """Return sets of D/8 channels that slide from the slowest planes to the fastest."""
    n = len(spectrum.inv_freq)
    width = max(1, n // 8)
    if not 1 <= positions <= n - width + 1:
        raise ConfigError(f"{positions} positions of a window of {width} planes among {n}")
    order = sorted(range(n), key=lambda i: abs(spectrum.inv_freq[i]))
    starts = [round(i * (n - width) / max(1, positions - 1)) for i in range(positions)]
    return [pair_channels(order[s : s + width], n, pairing) for s in starts]


class SpectralSignature(NamedTuple):
    """Recall lost in each window, slow ones first, where the loss lies and how wide it is (None where nothing is lost)."""

    drops: tuple[float, ...]
    centre: float | None
    width: float | None


def spectral_signature(whole: float, windows: Sequence[float]) -> SpectralSignature:
    """Summarise recall without each window, beside recall with all channels."""
    drops = tuple(whole - w for w in windows)
    found = centre_of_mass(torch.tensor(drops, dtype=torch.float64))
    return SpectralSignature(drops, *(found or (None, None)))


def row_norms(weight: Tensor, num_heads: int) -> Tensor:
    """L1 norm of each row of W_q by head, (H, D): a guess at how useful a channel is, from weights alone.

    Args:
        weight: (H · D, hidden size), as `torch.nn.Linear` keeps it.
        num_heads: H.
    """
    check_positive(num_heads=num_heads)
    if weight.ndim != 2 or weight.shape[0] % num_heads:
        raise ShapeError(f"weight {tuple(weight.shape)} has no rows for {num_heads} heads")
    return weight.abs().sum(-1).unflatten(0, (num_heads, -1))
