"""Where attention goes: sinks, positional heads, distances, paragraphs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ropewalk.analysis.distance import attention_by_distance, distance_edges
from ropewalk.analysis.inspection.findings import Finding, Heat, Section, Table
from ropewalk.analysis.matrix_entropy import (
    band_matrix_entropy,
    choose_heads,
    concentration,
    truncated_effective_rank,
)
from ropewalk.analysis.paragraph_compression import Cells, depth_gap
from ropewalk.analysis.positional_heads import (
    Correlation,
    attended_pairs,
    correlation,
    expected_plane,
    first_unturned_plane,
    plane_scores,
    positional_heads,
    reach,
    slow_allocation,
)
from ropewalk.integrations.transformers.probe import LayerShape, LayerStates
from ropewalk.integrations.transformers.watching.watch import SAMPLED, Watch, Window, heat, named, planes_of

RANK = 32
"""Eigenvalues that count in the effective rank of a head's keys."""


class Entropy(Watch):
    """Spectrum of each head's keys, and attention on the first token."""

    def __init__(self, shapes: Sequence[LayerShape], seed: int = 0) -> None:
        super().__init__(shapes, seed)
        self.rank, self.first = self.heads(keys=True), self.heads(keys=True)
        self.sink, self.queries = self.heads(), 0
        self.bands: dict[int, Tensor] = {}

    def states(self, states: LayerStates, window: Window) -> None:
        k = states.k[0]
        self.rank[states.index] += truncated_effective_rank(k, RANK).cpu()
        self.first[states.index] -= concentration(k, 1).cpu()
        if states.turned:
            entropy = band_matrix_entropy(k[..., : states.turned], states.shape.pairing).mean(0).cpu()
            self.bands[states.index] = self.bands.get(states.index, 0) + entropy
        if states.index == 0:
            self.queries += k.shape[-2] - 1

    def rows(self, states: LayerStates, weights: Tensor, start: int, window: Window) -> None:
        self.sink[states.index] += weights[:, 1 if start == 0 else 0 :, 0].double().sum(-1).cpu()

    @property
    def sinks(self) -> Tensor:
        """Share of attention on the first token, (layers, heads), of the queries after it."""
        return self.sink / max(1, self.queries)

    def section(self) -> Section | None:
        rank, first, sink = self.rank / self.windows, self.first / self.windows, self.sinks
        group = self.shapes[0].group
        of_keys = rank.repeat_interleave(group, 1)
        link = correlation(of_keys.flatten(), sink.flatten(), "spearman")
        lowest = choose_heads(rank, min(3, rank.numel()))
        strong = int((sink > 0.5).sum())
        finding = Finding(
            "note",
            "Attention sinks on the first token" if float(sink.mean()) > 0.2 else "Little attention on the first token",
            float(sink.mean()),
            f"mean share of attention on the first token {float(sink.mean()):.3f}, largest {float(sink.max()):.3f}; {strong} of "
            f"{sink.numel()} heads above one half; rank correlation with the effective rank of the keys {link or 0.0:+.2f}",
            "Keep the first tokens in the cache when older ones are dropped.",
        )
        table = Table(
            "Most concentrated key heads",
            ["layer.head", f"effective rank (r = {RANK})", "largest eigenvalue", "sink mass of its queries"],
            [
                [f"{i}.{h}", f"{float(rank[i, h]):.2f}", f"{float(first[i, h]):.3f}",
                 f"{float(sink[i, h * group : (h + 1) * group].mean()):.3f}"]
                for i, h in lowest
            ],
            "DoPE denoises these first. Small values: few directions hold all keys",
        )  # fmt: skip
        heats = [
            heat("Share of attention on the first token", sink, "share"),
            heat("Effective rank of turned keys", rank, "directions", f"of {RANK} at most", columns="key head"),
        ]
        if self.bands and self.spectrum is not None:
            layers = sorted(self.bands)
            heats.append(
                Heat(
                    "Entropy of each plane's keys",
                    [f"layer {i}" for i in layers],
                    planes_of(self.shapes),
                    (torch.stack([self.bands[i] for i in layers]) / self.windows).tolist(),
                    "nats",
                    "mean over heads; 0: one direction, 0.693: none preferred",
                )
            )
        return Section(
            "Matrix entropy and sinks",
            "Xiong et al., arXiv 2511.09146, 2025",
            "A plane that hardly turns adds its keys up in one direction, which shows as a bright column in the attention.",
            [finding],
            [table],
            heats,
        )


class Positional(Watch):
    """Heads in which slow planes take over with distance, and how far heads look."""

    def __init__(self, shapes: Sequence[LayerShape], seed: int = 0, train_length: float | None = None) -> None:
        super().__init__(shapes, seed)
        self.train_length = train_length
        self.sums = {(s.index, h): Correlation() for s in self.shapes for h in range(s.num_heads)}
        self.distance, self.far, self.slow = self.heads(), self.heads(), self.heads()
        self.queries = self.sampled = 0

    def rows(self, states: LayerStates, weights: Tensor, start: int, window: Window) -> None:
        n, length = weights.shape[1:]
        if states.index == 0:
            self.queries += n
        how_far = reach(weights, start, length)
        self.distance[states.index] += how_far.mean_distance.double().cpu() * n
        self.far[states.index] += how_far.far.double().cpu() * n
        spectrum = states.shape.spectrum
        if spectrum is None:
            return
        q, k = states.q[0, :, :, : states.turned], states.keys[0, :, :, : states.turned]
        for head, pairs in enumerate(attended_pairs(weights, 10, start=start)):
            scores = plane_scores(q[head, pairs.query], k[head, pairs.key], states.shape.pairing, states.scale)
            self.sums[states.index, head].add(pairs.query - pairs.key, expected_plane(scores))
        if self.train_length is None:
            return
        first = first_unturned_plane(spectrum, self.train_length)
        at = torch.arange(start + n - 1, start - 1, -max(1, length // SAMPLED), device=weights.device).flip(0)
        if states.index == 0:
            self.sampled += len(at)
        share = slow_allocation(q[:, at], k, weights[:, at - start], first, states.shape.pairing, states.scale)
        self.slow[states.index] += share.cpu() * len(at)

    def correlations(self) -> Tensor:
        """Return the correlation of each head, (layers, heads); 0 where there is none."""
        made = self.heads()
        for at, sums in self.sums.items():
            made[at] = 0.0 if (value := sums.value()) is None else float(value)
        return made

    def section(self) -> Section | None:
        if self.spectrum is None:
            return None
        found = self.correlations()
        heads = positional_heads(found)
        distance, far = self.distance / self.queries, self.far / self.queries
        tenth = torch.zeros_like(found, dtype=torch.bool)
        for head in heads.top_tenth:
            tenth[head] = True
        others = ~tenth
        inside, outside = float(distance[tenth].mean()), float(distance[others].mean()) if bool(others.any()) else 0.0
        finding = Finding(
            "note",
            f"{len(heads.above_half)} positional heads with a correlation above one half",
            float(found.max()),
            f"top tenth: {named(heads.top_tenth)}; the three rules share {heads.overlap}. Mean attended distance {inside:.1f} "
            f"tokens in the top tenth, {outside:.1f} in the others",
            "When the context is extended, look first at the planes that these heads use.",
        )
        rows = [
            [f"{i}.{h}", f"{float(found[i, h]):+.3f}", f"{float(distance[i, h]):.1f}", f"{float(far[i, h]):.3f}",
             f"{float(self.slow[i, h]) / self.sampled:.3f}" if self.sampled else "–"]
            for i, h in heads.top_tenth
        ]  # fmt: skip
        header = ["layer.head", "correlation", "mean distance", "far share", "slow allocation"]
        note = "pairs: each query with the 10 keys it attends to most. Far: beyond half the text. Slow: planes with a period "
        note += "above the training context"
        heats = [
            heat("Correlation of distance and dominant plane", found, "r"),
            heat("Mean attended distance", distance, "tokens"),
        ]
        if self.sampled:
            heats.append(heat("Slow planes' share of the attended scores", self.slow / self.sampled, "share"))
        return Section(
            "Positional heads",
            "Hong et al., arXiv 2410.08703, 2024",
            "Heads in which slow planes dominate the score the further a key is away; they are said to look far and to matter "
            "for long inputs.",
            [finding],
            [Table("Top tenth", header, rows, note)],
            heats,
        )


class Distances(Watch):
    """Where attention goes, by distance."""

    def __init__(self, shapes: Sequence[LayerShape], seed: int = 0, longest: int = 1024) -> None:
        super().__init__(shapes, seed)
        self.edges = distance_edges(longest)
        self.sums = torch.zeros(len(self.shapes), self.shapes[0].num_heads, len(self.edges) - 1, dtype=torch.float64)
        self.queries = 0

    def rows(self, states: LayerStates, weights: Tensor, start: int, window: Window) -> None:
        n = weights.shape[1]
        if states.index == 0:
            self.queries += n
        self.sums[states.index] += attention_by_distance(weights, self.edges, start).double().cpu() * n

    def section(self) -> Section | None:
        shares = self.sums / self.queries
        names = [str(a) if b == a + 1 else f"{a}–{b - 1}" for a, b in zip(self.edges, self.edges[1:], strict=False)]
        layers = [f"layer {i}" for i in range(len(shares))]
        rows = [[n, f"{float(m):.3f}"] for n, m in zip(names, shares.mean((0, 1)), strict=True)]
        previous = shares[..., :2].sum(-1)
        local = [divmod(int(i), shares.shape[1]) for i in torch.nonzero((previous > 0.8).flatten())[:, 0]]
        finding = Finding(
            "note",
            f"{len(local)} heads look at the token itself or the one before",
            float(len(local)),
            f"more than 0.8 of their attention at distances 0 and 1: {named(local)}",
            "Nothing to mend.",
        )
        return Section(
            "Attention by distance",
            "shares of Σ a_mn by m − n, ours",
            "Share of attention by distance in tokens. Queries near the beginning have no far keys, and attention that sinks "
            "into the first token counts at its distance.",
            [finding],
            [Table("Mean over layers and heads", ["distance", "share"], rows)],
            [
                Heat("Share by layer", layers, names, shares.mean(1).tolist(), "share", "mean over heads"),
                heat("Share at distances 0 and 1", previous, "share"),
            ],
        )


class Paragraphs(Watch):
    """Attention across borders of paragraphs beside that at the same distance within."""

    def __init__(self, shapes: Sequence[LayerShape], seed: int = 0) -> None:
        super().__init__(shapes, seed)
        self.real: dict[int, Cells] = {}
        self.control: dict[int, Cells] = {}

    def rows(self, states: LayerStates, weights: Tensor, start: int, window: Window) -> None:
        # Cells are many: one a distance and a paragraph. A layer's heads share theirs, so that large models fit.
        mean = weights.mean(0, keepdim=True)
        for held, labels in ((self.real, window.paragraphs), (self.control, window.control)):
            if labels is None or int(labels.max()) == 0:
                continue
            cells = held.setdefault(window.number, Cells(len(self.shapes)))
            # What sinks into the first token depends on how far the beginning is, and would drown all else.
            labels = labels.to(weights.device).index_fill(0, torch.tensor(0, device=weights.device), -1)
            cells.add(mean, labels, start=start, head=states.index, count=states.index == 0)

    def section(self) -> Section | None:
        if not self.real:
            return None
        numbers = sorted(self.real)
        real, control = [self.real[i] for i in numbers], [self.control[i] for i in numbers]
        curves = [Cells.joined(side).curve() for side in (real, control)]
        gap = depth_gap(real, control, draws=200, seed=self.seed)
        shown = min(7, max(len(c.ratio) for c in curves))

        def said(values: Sequence[float | None]) -> list[str]:
            return [("–" if i >= len(values) or values[i] is None else f"{values[i]:.3f}") for i in range(shown)]

        rows = [
            [
                name,
                *said(c.ratio),
                "–" if c.pooled is None else f"{c.pooled:.3f}",
                "–" if c.depth is None else f"{c.depth:.3f}",
            ]
            for name, c in zip(("paragraphs", "random borders"), curves, strict=True)
        ]
        header = ["borders", *map(str, range(shown)), "pooled", "depth"]
        interval = (
            "one text, so no interval"
            if gap.low is None
            else f"95 % of resamples of texts in [{gap.low:.3f}, {gap.high:.3f}]"
        )
        shows = gap.low is not None and gap.value is not None and gap.low > 0
        finding = Finding(
            "note",
            "Attention is compressed deeper across paragraphs than across random borders"
            if shows
            else "Paragraphs are not told from random borders by their compression",
            0.0 if gap.value is None else gap.value,
            f"depth {'–' if curves[0].depth is None else f'{curves[0].depth:.3f}'} against "
            f"{'–' if curves[1].depth is None else f'{curves[1].depth:.3f}'}: gap "
            f"{'–' if gap.value is None else f'{gap.value:.3f}'}, {interval}",
            "Nothing to mend. A ratio below 1 alone shows nothing: random borders are compressed too.",
        )
        return Section(
            "Compression across paragraphs",
            "Xiang, arXiv 2609.23551, 2026",
            "Attention between tokens some paragraphs apart, over that at exactly the same distances within a paragraph. "
            "Attention is averaged over the heads of a layer, the ratios over layers; the first token of a text, where attention "
            "sinks, is left out.",
            [finding],
            [Table("Ratio by paragraphs apart", header, rows, "cells with 5 pairs or more")],
        )
