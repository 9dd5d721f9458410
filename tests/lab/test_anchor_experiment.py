"""The rows that the experiment on AnchorAttention tunes on."""

from __future__ import annotations

import pytest
import torch

from ropewalk.coordinates.packed import document_mask
from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.experiments.anchor_attention import PIECES, packed


def rows(n=8, length=512):
    tokens = torch.arange(n * (length + 1)).view(n, length + 1)
    return Batch(tokens[:, :-1], tokens[:, 1:])


@pytest.mark.parametrize("mode", ["anchor", "intra", "full"])
def test_documents_of_a_row_have_nothing_to_do_with_each_other(mode):
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        made = packed(rows(), mode, -1, draw)
        assert torch.equal(made.positions, torch.arange(512).expand(8, 512))
        scored = (made.targets != IGNORE) & (made.tokens >= 0)
        assert torch.equal(made.targets[scored], made.tokens[scored] + 1)
        begun = (made.tokens == -1).sum(1)
        assert bool((begun == 1).all()) if mode == "anchor" else bool((begun == begun[0]).all())
        if mode != "full":
            (number,) = made.documents.amax(1).unique().tolist()
            assert 1 <= number <= PIECES
            for document in range(1, number + 1):
                of = torch.where((made.documents == document) & (made.tokens >= 0), made.tokens // 513, -1).amax(1)
                assert len(of.unique()) == 8  # each from another row


def test_an_anchor_saves_half_of_the_pairs():
    draw = torch.Generator().manual_seed(0)
    made = [packed(rows(), "anchor", -1, draw) for _ in range(50)]
    pairs = sum(document_mask(batch.documents).pairs for batch in made) / sum(
        document_mask(batch.documents, "full").pairs for batch in made
    )
    assert 0.35 < pairs < 0.55
