"""How much weaker attention is across paragraphs than between tokens just as far apart within one.

    ratio(δ) = Σ_r n_rδ a_rδ / Σ_r n_rδ a_r0,   a_rδ the mean attention of the n_rδ pairs r tokens and δ paragraphs apart

After Shuyang Xiang. Paragraph Boundaries Are Not White Space: Compression Depth as the Signature of Hierarchical Structure.
arXiv 2609.23551, 2026. Random boundaries are compressed too, so a ratio below 1 shows nothing by itself: compare the depth
with that of `density_matched_labels`. The normalisation of the depth, the smallest number of pairs and the statistics of a
corpus are our reading.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, ShapeError, check_positive

MIN_PAIRS = 5
"""Pairs that a cell needs to count."""


class CompressionCurve(NamedTuple):
    """Attention by paragraphs apart, 1 being that of the same distance within a paragraph.

    Attributes:
        ratio: for δ = 0, 1, …; None where no distance has enough pairs on both sides.
        pairs: pairs of tokens behind each.
        pooled: the ratio of all δ ≥ 1 together; None where there is none.
        depth: the largest compression 1 − ratio over δ ≥ 1.
        location: the δ where that is, the smallest of equal ones. It varies between runs, and nothing should be read into it.
    """

    ratio: tuple[float | None, ...]
    pairs: tuple[int, ...]
    pooled: float | None
    depth: float | None
    location: int | None


class Cells:
    """Number of pairs and sum of attention by distance in tokens and in paragraphs, of one text or of several.

    Args:
        heads: of all layers together, whatever their order.
    """

    def __init__(self, heads: int) -> None:
        check_positive(heads=heads)
        self.counts = torch.zeros(0, 0, dtype=torch.int64)
        self.sums = torch.zeros(heads, 0, 0, dtype=torch.float64)

    def add(self, weights: Tensor, labels: Tensor, *, start: int = 0, head: int = 0, count: bool = True) -> None:
        """Add attention of some queries; r = 0, keys after the query and padding (labels below 0) make no pairs.

        Args:
            weights: (H, Q, K).
            labels: (K,) paragraph of each token, from 0, rising.
            start: index of the first query.
            head: where these heads are among all.
            count: whether the pairs are new; they are counted with the first layer only.
        """
        if weights.ndim != 3 or labels.shape != weights.shape[-1:]:
            raise ShapeError(
                f"weights {tuple(weights.shape)} and labels {tuple(labels.shape)}; expected (H, Q, K) and (K,)"
            )
        n, length = weights.shape[1:]
        query = torch.arange(start, start + n, device=weights.device)[:, None]
        r = query - torch.arange(length, device=weights.device)
        delta = labels[start : start + n, None] - labels
        real = (r > 0) & (labels >= 0) & (labels[start : start + n, None] >= 0)
        if bool((delta[real] < 0).any()):
            raise ConfigError("paragraphs are counted from the beginning, so their numbers never fall")
        if not bool(real.any()):
            return
        r, delta = r[real], delta[real]
        self._grow(int(r.max()) + 1, int(delta.max()) + 1)
        width = self.counts.shape[1]
        index = (r * width + delta).cpu()
        size = self.counts.numel()
        if count:
            self.counts += torch.bincount(index, minlength=size).view_as(self.counts)
        flat = torch.zeros(weights.shape[0], size, dtype=torch.float64)
        flat.index_add_(1, index, weights[:, real].double().cpu())
        self.sums[head : head + weights.shape[0]] += flat.view(-1, *self.counts.shape)

    def _grow(self, distances: int, paragraphs: int) -> None:
        a, b = self.counts.shape
        if distances <= a and paragraphs <= b:
            return
        pad = (0, max(0, paragraphs - b), 0, max(0, distances - a))
        self.counts = torch.nn.functional.pad(self.counts, pad)
        self.sums = torch.nn.functional.pad(self.sums, pad)

    @staticmethod
    def joined(cells: Sequence[Cells], times: Sequence[int] | None = None) -> Cells:
        """Return several texts as one; ``times`` says how often each counts."""
        if not cells:
            raise ConfigError("no texts to join")
        out = Cells(cells[0].sums.shape[0])
        out._grow(*(max(c.counts.shape[i] for c in cells) for i in (0, 1)))
        for one, weight in zip(cells, times or [1] * len(cells), strict=True):
            a, b = one.counts.shape
            out.counts[:a, :b] += weight * one.counts
            out.sums[:, :a, :b] += weight * one.sums
        return out

    def curve(
        self, min_pairs: int = MIN_PAIRS, head: int | None = None, paragraphs: int | None = None
    ) -> CompressionCurve:
        """Return the curve of one head, or the plain mean over all heads.

        Args:
            min_pairs: pairs that a cell and its baseline need, counted over all texts.
            head: which; None: all.
            paragraphs: δ up to here are listed; None: all that occur.
        """
        check_positive(min_pairs=min_pairs)
        n = self.counts.double()
        enough = (self.counts >= min_pairs) & (self.counts[:, :1] >= min_pairs)
        sums = self.sums if head is None else self.sums[head : head + 1]
        baseline = sums[:, :, :1] / n[:, :1].clamp(min=1)  # a_r0
        across, within = (sums * enough).sum(1), (enough * n * baseline).sum(1)
        last = n.shape[1] if paragraphs is None else paragraphs + 1
        pairs = [int(x) for x in (self.counts * enough).sum(0)][:last]
        ratio: list[float | None] = []
        for d, there in enumerate(pairs):
            ratio.append(None if not there else 1.0 if d == 0 else float((across[:, d] / within[:, d]).mean()))
        ratio += [None] * (last - len(ratio))
        pairs += [0] * (last - len(pairs))
        merged = self.counts[:, 1:].sum(1)
        use = (merged >= min_pairs) & (self.counts[:, 0] >= min_pairs) if len(self.counts) else merged > 0
        pooled = None
        if bool(use.any()):
            top = (sums[:, :, 1:].sum(-1) * use).sum(1)
            pooled = float((top / (use * merged * baseline[..., 0]).sum(1)).mean())
        found = [(1 - x, -d) for d, x in enumerate(ratio) if d and x is not None]
        best = max(found, default=None)
        depth, location = (None, None) if best is None else (best[0], -best[1])
        return CompressionCurve(tuple(ratio), tuple(pairs), pooled, depth, location)


def paragraph_compression(weights: Tensor, labels: Tensor, min_pairs: int = MIN_PAIRS) -> CompressionCurve:
    """Return the curve of the attention (H, S, S) of one text, averaged over heads.

    Args:
        weights: causal, after the softmax.
        labels: (S,) paragraph of each token.
        min_pairs: pairs that a cell needs.
    """
    cells = Cells(weights.shape[0])
    cells.add(weights, labels)
    return cells.curve(min_pairs, paragraphs=int(labels.max()))


def attention_change(before: Tensor, after: Tensor, labels: Tensor) -> tuple[float | None, ...]:
    """Return how much attention changed, by paragraphs apart δ = 0, 1, …: the mean over pairs and heads; None without pairs.

    Args:
        before: (H, S, S) causal attention of one text.
        after: the same text, after an intervention on its paragraphs (`ropewalk.coordinates.hierarchy.intervene`).
        labels: (S,) paragraph of each token, as it was.
    """
    if before.shape != after.shape:
        raise ShapeError(f"attention of shapes {tuple(before.shape)} and {tuple(after.shape)} is not of the same text")
    cells = Cells(before.shape[0])
    cells.add(after.double() - before.double(), labels)
    counts = cells.counts.sum(0)
    change = cells.sums.sum((0, 1)) / (before.shape[0] * counts.clamp(min=1))
    return tuple(float(c) if n else None for c, n in zip(change, counts.tolist(), strict=True))


class Spread(NamedTuple):
    """A number, and where 95 % of the resamples of texts lie; None where too few texts have it."""

    value: float | None
    low: float | None
    high: float | None


def depth_gap(
    real: Sequence[Cells],
    control: Sequence[Cells],
    *,
    min_pairs: int = MIN_PAIRS,
    draws: int = 1000,
    seed: int = 0,
) -> Spread:
    """Return how much deeper real paragraphs are compressed; the interval resamples whole texts, the same ones on both sides.

    Args:
        real: one a text.
        control: one a text, in the same order, of labels drawn at random.
        min_pairs: pairs that a cell needs.
        draws: resamples.
        seed: of them.
    """
    if len(real) != len(control) or not real:
        raise ConfigError(f"{len(real)} texts and {len(control)} controls; give one a text")

    @cache  # few texts have few resamples
    def gap(times: tuple[int, ...]) -> float | None:
        depths = [Cells.joined(side, times).curve(min_pairs).depth for side in (real, control)]
        return None if None in depths else depths[0] - depths[1]  # type: ignore[operator]

    n = len(real)
    found = [gap(times) for times in _resamples(n, draws, seed)]
    return _spread(gap((1,) * n), found)


def depth(curve: CompressionCurve, *, log: bool = False) -> float | None:
    """Return the largest compression over δ ≥ 1, 1 − ratio, or −ln ratio with ``log``; None where no ratio is known.

    Args:
        curve: of one text or of several.
        log: a ratio of 0 is then infinitely deep.
    """
    known = [ratio for ratio in curve.ratio[1:] if ratio is not None]
    if not known:
        return None
    if not log:
        return 1 - min(known)
    return math.inf if min(known) <= 0 else -math.log(min(known))


def location_spread(texts: Sequence[Cells], *, min_pairs: int = MIN_PAIRS, draws: int = 1000, seed: int = 0) -> Spread:
    """Return at how many paragraphs apart the compression is largest, and how far that varies between resamples of whole texts.

    Args:
        texts: one a text.
        min_pairs: pairs that a cell needs.
        draws: resamples.
        seed: of them.
    """
    if not texts:
        raise ConfigError("no texts to resample")

    @cache  # few texts have few resamples
    def location(times: tuple[int, ...]) -> int | None:
        return Cells.joined(texts, times).curve(min_pairs).location

    n = len(texts)
    found = [location(times) for times in _resamples(n, draws, seed)]
    return _spread(location((1,) * n), found)


def _spread(value: float | None, found: Sequence[float | None]) -> Spread:
    kept = torch.tensor([f for f in found if f is not None], dtype=torch.float64)
    if not len(kept):
        return Spread(value, None, None)
    low, high = kept.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Spread(value, low, high)


def _resamples(n: int, draws: int, seed: int) -> Iterator[tuple[int, ...]]:
    """Yield how often each of n texts is drawn; nothing for a single one."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(draws if n > 1 else 0):
        yield tuple(torch.bincount(torch.randint(n, (n,), generator=generator), minlength=n).tolist())


# ---- labels -----------------------------------------------------------------------------------------------------------------


def paragraph_labels(text: str, offsets: Sequence[tuple[int, int]]) -> Tensor:
    """Return the paragraph of each token, counted from 0; blank lines end one and belong to it.

    Args:
        text: what was tokenised.
        offsets: characters of each token; empty ones (special tokens) go with the token before.
    """
    ends = [m.end() for m in re.finditer(r"\n[ \t]*\n\s*", text)]
    labels, at = [], 0
    for start, stop in offsets:
        while stop > start and at < len(ends) and start >= ends[at]:
            at += 1
        labels.append(at)
    return torch.tensor(labels, dtype=torch.int64)


def density_matched_labels(labels: Tensor, seed: int = 0, step: int = 0, starts: Tensor | None = None) -> Tensor:
    """Return labels with as many boundaries at random places, the same for the same seed and step.

    Args:
        labels: (S,) real ones.
        seed: of the run and the document.
        step: of the training, where boundaries are drawn anew at each.
        starts: (S,) True where a sentence starts: boundaries then lie there only.
    """
    n, count = len(labels), int(labels[-1]) if len(labels) else 0
    places = torch.arange(1, n) if starts is None else torch.nonzero(starts[1:])[:, 0] + 1
    if count > len(places):
        raise ConfigError(f"{count} boundaries do not fit into {len(places)} places")
    generator = torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)
    drawn = places[torch.randperm(len(places), generator=generator)[:count]]
    edges = torch.zeros(n, dtype=torch.int64)
    edges[drawn] = 1
    return edges.cumsum(0)


# ---- what a corpus is like without any model ----------------------------------------------------------------------------------


class CorpusStatistics(NamedTuple):
    """Three constructs in eight numbers; None where a text has too few paragraphs, or no vectors were given."""

    adjacent_overlap: float | None
    """Jaccard index of the content words of neighbouring paragraphs."""

    within_overlap: float | None
    """The same of the two halves of a paragraph's sentences."""

    overlap_ratio: float | None
    repetition_half_life: int | None
    """Paragraphs apart at which the overlap is at most half that of neighbours."""

    mean_length: float | None
    """Words of a paragraph."""

    length_variation: float | None
    """Standard deviation over mean."""

    coherence: float | None
    """Mean cosine of neighbouring sentences within paragraphs."""

    coherence_gap: float | None
    """The same less that across borders."""


_STOP = frozenset(
    [
        "the",
        "a",
        "an",
        "and",
        "or",
        "but",
        "if",
        "of",
        "to",
        "in",
        "on",
        "at",
        "by",
        "for",
        "with",
        "from",
        "as",
        "is",
        "are",
        "was",
        "were",
        "be",
        "been",
        "it",
        "its",
        "this",
        "that",
        "these",
        "those",
        "he",
        "she",
        "they",
        "we",
        "you",
        "i",
        "his",
        "her",
        "their",
        "our",
        "your",
        "not",
        "no",
        "so",
        "then",
        "than",
        "which",
        "who",
        "whom",
        "what",
        "when",
        "where",
        "how",
    ]
)


def corpus_statistics(
    documents: Sequence[str], vectors: Callable[[list[str]], Tensor] | None = None
) -> CorpusStatistics:
    """Return statistics of texts whose paragraphs are apart by blank lines.

    Args:
        documents: the texts.
        vectors: returns a vector for each sentence, (n, width); None leaves coherence out.
    """
    split = [[p for p in re.split(r"\n[ \t]*\n\s*", text) if p.strip()] for text in documents]
    words = [[_content(p) for p in paragraphs] for paragraphs in split]
    longest = max((len(w) for w in words), default=0)
    by_distance = [
        _mean([_overlap(a, b) for w in words for a, b in zip(w, w[d:], strict=False)]) for d in range(1, longest)
    ]
    sentences = [[_sentences(p) for p in paragraphs] for paragraphs in split]
    halves = [
        _overlap(_content(" ".join(s[: len(s) // 2])), _content(" ".join(s[len(s) // 2 :])))
        for document in sentences
        for s in document
        if len(s) > 1
    ]
    adjacent, within = (by_distance[0] if by_distance else None), _mean(halves)
    half_life = None
    if adjacent:
        half_life = next((d for d, x in enumerate(by_distance, 1) if x is not None and x <= adjacent / 2), None)
    lengths = torch.tensor([len(p.split()) for paragraphs in split for p in paragraphs], dtype=torch.float64)
    mean = float(lengths.mean()) if len(lengths) else None
    spread = float(lengths.std(correction=0)) / mean if mean else None
    inside, across = _coherence(sentences, vectors)
    return CorpusStatistics(
        adjacent,
        within,
        adjacent / within if adjacent is not None and within else None,
        half_life,
        mean,
        spread,
        inside,
        inside - across if inside is not None and across is not None else None,
    )


def _coherence(
    sentences: list[list[list[str]]], vectors: Callable[[list[str]], Tensor] | None
) -> tuple[float | None, float | None]:
    """Return the mean cosine of neighbouring sentences within paragraphs and across their borders."""
    if vectors is None:
        return None, None
    inside: list[float] = []
    across: list[float] = []
    for document in sentences:
        flat = [s for paragraph in document for s in paragraph]
        if len(flat) < 2:
            continue
        unit = torch.nn.functional.normalize(vectors(flat).double(), dim=-1)
        cosines = (unit[1:] * unit[:-1]).sum(-1).tolist()
        paragraph = [i for i, p in enumerate(document) for _ in p]
        for same, cosine in zip((a == b for a, b in pairwise(paragraph)), cosines, strict=True):
            (inside if same else across).append(cosine)
    return _mean(inside), _mean(across)


def _sentences(text: str) -> list[str]:
    return [s for s in re.split(r"(?<=[.!?])\s+", text.strip()) if s]


def _content(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[^\W\d_]{2,}", text.lower())) - _STOP


def _overlap(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / len(a | b) if a | b else 0.0


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
