"""Attention across paragraphs (arXiv 2609.23551)."""

import math

import pytest
import torch
from reference import DOUBLE, close, golden, random, triangle

from ropewalk.analysis.paragraph_compression import (
    Cells,
    corpus_statistics,
    density_matched_labels,
    depth,
    depth_gap,
    location_spread,
    paragraph_compression,
    paragraph_labels,
)
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.core.rotation import rotate, tables
from ropewalk.frequencies import geometric

CASE = golden("002")["four-paragraphs"]


def attention(coordinates):
    """Causal attention of one head whose channels (4, 4, 8) turn by paragraph, sentence and token."""
    n = torch.arange(24 * 16, dtype=torch.float64)
    q, k = ((1.5 * x.sin()).view(24, 16) for x in (0.1 * n, 0.07 * n + 0.5))
    sides = []
    for x in (q, k):
        parts = []
        for c, (part, base) in enumerate(zip(x.split([4, 4, 8], -1), CASE.params["bases"], strict=True)):
            angles = coordinates[:, c, None].double() * geometric(part.shape[-1], float(base)).tensor()
            parts.append(rotate(part, *tables(angles, x.dtype), "half"))
        sides.append(torch.cat(parts, -1))
    logits = sides[0] @ sides[1].mT / 4
    return logits.masked_fill(~triangle(24), -torch.inf).softmax(-1)


@pytest.mark.parametrize(("name", "erased"), [("curve", False), ("curve_p1_erased", True)])
def test_golden(name, erased):
    coordinates = CASE.outputs["coordinates"]
    labels = coordinates[:, 0].long()
    fed = coordinates.clone()
    if erased:
        fed[:, 0] = 0
    weights = attention(fed)
    if not erased:
        close(weights[-1], CASE.outputs["attention_last_row"], DOUBLE)
    found, want = paragraph_compression(weights[None], labels, 1), CASE.outputs[name]
    assert [x is None for x in found.ratio] == [x is None for x in want["ratio"]]
    assert [x for x in found.ratio if x is not None] == pytest.approx([x for x in want["ratio"] if x is not None])
    assert list(found.pairs) == want["pairs"]
    assert found.pooled == pytest.approx(want["pooled"])
    assert found.depth == pytest.approx(want["depth"])
    assert found.location == want["location"]


def some_labels(n=60, seed=0):
    return density_matched_labels(torch.arange(n) // 9, seed=seed)


def by_distance(n=60):
    r = torch.arange(n)[:, None] - torch.arange(n)
    return torch.where(r >= 0, 0.9 ** r.clamp(min=0).double(), 0.0)


@pytest.mark.parametrize("seed", range(5))
def test_what_depends_on_distance_alone_is_not_compressed(seed):
    labels = some_labels(seed=seed)
    found = paragraph_compression(by_distance()[None], labels, 1)
    assert all(x == pytest.approx(1) for x in found.ratio if x is not None)
    assert found.pooled == pytest.approx(1)
    assert found.depth == pytest.approx(0, abs=1e-12)
    # Coarse bins of distance would see a compression where there is none.
    r = torch.arange(60)[:, None] - torch.arange(60)
    near = (r >= 1) & (r < 16)
    same = labels[:, None] == labels
    binned = by_distance()[near & ~same].mean() / by_distance()[near & same].mean()
    assert float(binned) < 0.9


def test_planted_compression_is_recovered():
    labels = some_labels()
    apart = labels[:, None] - labels
    found = paragraph_compression((by_distance() * 0.8 ** apart.clamp(min=0).double())[None], labels, 1)
    for d, x in enumerate(found.ratio):
        assert x is None or x == pytest.approx(0.8**d)
    assert found.ratio[0] == 1.0


def test_texts_and_heads_add_up():
    labels = some_labels()
    weights = random(3, 60, 60).abs() * triangle(60)
    whole = Cells(3)
    whole.add(weights, labels)
    blocks = Cells(3)
    for start in range(0, 60, 17):
        for head in range(3):
            blocks.add(weights[head : head + 1, start : start + 17], labels, start=start, head=head, count=head == 0)
    assert torch.equal(blocks.counts, whole.counts)
    close(blocks.sums, whole.sums)
    twice, once = Cells.joined([whole, whole]).curve(1), whole.curve(1)  # the same text twice
    assert twice._replace(pairs=once.pairs) == once
    assert twice.pairs == tuple(2 * n for n in once.pairs)
    close(
        torch.tensor([whole.curve(1, head=h).pooled for h in range(3)], dtype=torch.float64).mean(),
        torch.tensor(whole.curve(1).pooled, dtype=torch.float64),
    )


def test_cells_with_few_pairs_do_not_count():
    labels = torch.tensor([0] * 12 + [1] * 12)
    weights = by_distance(24)[None]
    assert paragraph_compression(weights, labels, 5).pairs[1] < paragraph_compression(weights, labels, 1).pairs[1]
    few = paragraph_compression(weights, labels, 1000)
    assert few.ratio == (None, None)
    assert few.pooled is few.depth is few.location is None
    one = paragraph_compression(weights, torch.zeros(24).long(), 1)
    assert one.ratio == (1.0,)
    assert one.depth is None


def test_padding_makes_no_pairs():
    labels = some_labels()
    padded = torch.cat([torch.full((4,), -1), labels])
    weights = random(1, 64, 64).abs() * triangle(64)
    a, b = Cells(1), Cells(1)
    a.add(weights, padded)
    b.add(weights[:, 4:, 4:], labels)
    assert torch.equal(a.counts, b.counts)
    close(a.sums, b.sums)


def test_depth_gap():
    real, control = [], []
    for seed in range(6):
        labels, other = some_labels(seed=seed), some_labels(seed=seed + 100)
        noise = 1 + 0.01 * random(1, 60, 60, seed=seed)
        weights = by_distance() * 0.7 ** (labels[:, None] - labels).clamp(min=0).double() * noise
        for side, l in ((real, labels), (control, other)):
            cells = Cells(1)
            cells.add(weights, l)
            side.append(cells)
    gap = depth_gap(real, control, draws=50)
    assert gap.low > 0
    assert gap.low <= gap.value <= gap.high
    assert depth_gap(real[:1], control[:1]).low is None
    with pytest.raises(ConfigError, match="controls"):
        depth_gap(real, control[:2])


def test_random_borders():
    labels = torch.tensor([0] * 20 + [1] * 10 + [2] * 30)
    one = density_matched_labels(labels, seed=1)
    assert torch.equal(one, density_matched_labels(labels, seed=1))
    assert int(one[-1]) == 2
    assert int(one[0]) == 0
    assert sorted(one.tolist()) == one.tolist()
    assert not torch.equal(one, density_matched_labels(labels, seed=1, step=1))
    starts = torch.zeros(60, dtype=torch.bool)
    starts[[0, 7, 13, 40]] = True
    strict = density_matched_labels(labels, seed=1, starts=starts)
    assert int(strict[-1]) == 2
    assert all(bool(starts[i]) for i in torch.nonzero(strict.diff())[:, 0] + 1)
    with pytest.raises(ConfigError, match="do not fit"):
        density_matched_labels(labels, starts=starts & False)


def test_labels_of_text():
    text = "One two.\n\nThree.\n \nFour five"
    offsets = [(0, 3), (3, 8), (8, 10), (10, 16), (16, 19), (19, 23), (23, 28), (0, 0)]
    assert paragraph_labels(text, offsets).tolist() == [0, 0, 0, 1, 1, 2, 2, 2]


def test_corpus_statistics():
    rain = "The rain fell on roofs. Rain filled barrels under roofs."
    bread = "Bakers knead bread before dawn. Bread cools on racks."
    found = corpus_statistics([f"{rain}\n\n{rain}\n\n{bread}\n\n{bread}"])
    assert found.adjacent_overlap == pytest.approx(2 / 3)
    assert found.repetition_half_life == 2
    assert found.mean_length == pytest.approx(9.5)
    assert found.length_variation == pytest.approx(0.5 / 9.5)
    assert found.coherence is None

    def vectors(sentences):
        return torch.tensor([[1.0, 0] if "ain" in s or "oofs" in s else [0, 1.0] for s in sentences])

    with_vectors = corpus_statistics([f"{rain}\n\n{bread}"], vectors)
    assert with_vectors.coherence == 1.0
    assert with_vectors.coherence_gap == 1.0
    empty = corpus_statistics([])
    assert all(x is None for x in empty)


def test_bad_input():
    with pytest.raises(ShapeError):
        Cells(1).add(torch.ones(1, 4, 4), torch.zeros(3).long())
    with pytest.raises(ConfigError, match="never fall"):
        Cells(1).add(torch.ones(1, 3, 3), torch.tensor([1, 0, 0]))


def test_depth_by_ratio_or_by_its_logarithm():
    labels = some_labels()
    weights = by_distance() * 0.5 ** (labels[:, None] - labels).clamp(min=0)
    curve = paragraph_compression(weights[None], labels, 1)
    assert depth(curve) == pytest.approx(curve.depth)
    assert depth(curve, log=True) == pytest.approx(-math.log(1 - curve.depth))
    assert depth(paragraph_compression(by_distance()[None], torch.zeros(60, dtype=torch.int64), 1)) is None
    assert depth(curve._replace(ratio=(1.0, 0.0)), log=True) == math.inf


def test_where_compression_is_largest_varies():
    texts = []
    for seed in range(5):
        labels = some_labels(seed=seed)
        cells = Cells(1)
        cells.add(by_distance()[None] * random(60, 60, seed=seed).exp(), labels)
        texts.append(cells)
    found = location_spread(texts, min_pairs=1, draws=40)
    assert found.value == Cells.joined(texts).curve(1).location
    assert found.low <= found.value <= found.high
    assert location_spread(texts, min_pairs=1, draws=40) == found
    assert location_spread(texts[:1], min_pairs=1)[1:] == (None, None)
    with pytest.raises(ConfigError, match="no texts"):
        location_spread([])
