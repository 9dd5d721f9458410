"""Encodings of layouts as exported programs: blocks are inputs, so that one program serves all prompts of its sizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ropewalk as rw
from ropewalk.catalog import RECORDS
from ropewalk.coordinates.conditions import sample_conditions
from ropewalk.coordinates.layout import sample_layout
from ropewalk.coordinates.panorama import sample_panorama
from ropewalk.coordinates.references import sample_references
from ropewalk.core.positions import Positions, Tokens

SAMPLES = {
    "layout": sample_layout,
    "references": sample_references,
    "conditions": sample_conditions,
    "panorama": sample_panorama,
}
SLUGS = [r.slug for r in RECORDS if SAMPLES.keys() & r.needs]
HEADS = {"num_kv_heads": 4}


class Layer(nn.Module):
    """Attention whose positions are given as plain tensors."""

    def __init__(self, encoding, causal):
        super().__init__()
        self.encoding, self.causal = encoding, causal

    def forward(self, q, k, v, position, block, blocks, times):
        tokens = Tokens({"position": position, "block": block}, {"blocks": blocks, "times": times})
        problem = rw.Attention(q, k, v, Positions.pair(tokens, tokens), causal=self.causal)
        return rw.attend(self.encoding(problem), "dense")


def inputs(sample, seq, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = sample(2, seq, generator).query
    q, k, v = (torch.randn(2, 4, seq, 32, generator=generator) for _ in range(3))
    columns = (tokens.columns[name].contiguous() for name in ("position", "block"))  # a slice tells its old length
    return (q, k, v, *columns, tokens.sequence["blocks"], tokens.sequence["times"])


@pytest.mark.parametrize("slug", SLUGS)
def test_an_exported_program_takes_any_layout_and_length(slug):
    record = rw.record(slug)
    encoding = rw.build(slug, head_dim=32, **(HEADS if slug == "mhrope" else {}))
    layer, sample = Layer(encoding, record.traits.causal != "never").eval(), SAMPLES[record.traits.domain]
    n = torch.export.Dim("n", min=2, max=512)
    along = {2: n}
    dynamic = (along, along, along, {1: n}, {1: n}, None, None)
    program = torch.export.export(layer, inputs(sample, 19, 0), dynamic_shapes=dynamic).module()
    for seq, seed in ((19, 1), (33, 2), (7, 3)):
        given = inputs(sample, seq, seed)
        torch.testing.assert_close(program(*given), layer(*given))
