"""Sequences that are dealt out to processes give what one process gives, or are refused."""

from __future__ import annotations

import re

import pytest
import sequence_cases as cases
import torch

import ropewalk as rw
from ropewalk import catalog, parallel
from ropewalk.core.errors import ConfigError

RECORDS = catalog.catalog()

PREFIX = "sums up all tokens before a token"
LENGTH = "positions are divided by the length"
REFUSED = {
    **dict.fromkeys(("fox", "carope", "grape_m_ctx", "kv_shift"), PREFIX),
    **dict.fromkeys(("larope", "orthogonal_legendre", "orthogonal_chebyshev"), LENGTH),
}
"""Entries that need all tokens before they can encode some, and what they say."""

WHOLE_ROWS = {"contextual_cope": "reads the whole row", "grape_ap": "reads the whole row"}
"""Entries whose keys can be gathered, and not handed round."""

GATHERED = [("contiguous", "gathered"), ("zigzag", "gathered")]
RING = [("zigzag", "ring"), ("contiguous", "ring")]


# ---- every entry -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", [r for r in RECORDS if r.slug not in REFUSED], ids=lambda r: r.slug)
def test_every_entry_gives_the_same_in_parts(record, processes):
    ways = GATHERED if record.slug in WHOLE_ROWS else [*RING, ("contiguous", "gathered")]
    assert processes.run(cases.catalog_entry, record.slug, ways) == [None, None]


@pytest.mark.parametrize("slug", [*REFUSED, *WHOLE_ROWS])
def test_what_needs_the_others_says_so(slug, processes):
    said = processes.run(cases.catalog_entry, slug, RING[:1])
    assert said[0] == said[1]
    assert (REFUSED | WHOLE_ROWS)[slug] in said[0]
    if slug in REFUSED:
        assert said == processes.run(cases.catalog_entry, slug, GATHERED[:1])


def test_only_content_and_lengths_are_reasons():
    named = {**REFUSED, **WHOLE_ROWS}
    apart = {r.slug for r in RECORDS if r.slug in named and not r.traits.content_dependent}
    assert {named[slug] for slug in apart} == {LENGTH}


# ---- every kind of problem -------------------------------------------------------------------------------------------

ENCODINGS = {
    "terms": ("alibi(num_heads=4) + rope(pairing='half')", "any"),
    "a table": ("t5(num_heads=4)", "any"),
    "two scores": ("string_shifted(local=2, shift=5)", "causal"),
    "raw keys": ("xpos", "causal"),
    "split heads": ("per_head(rope, alibi(num_heads=2))", "any"),
    "no softmax": ("linear_rope", "without sinks"),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", cases.PROBLEMS)
def test_kinds_of_problems(kind, encoding, processes):
    text, only = ENCODINGS[encoding]
    if (only == "causal" and "causal" in cases.PROBLEMS[kind]()) or (only == "without sinks" and kind == "sinks"):
        pytest.skip("not defined for it")
    processes.run(cases.kind_of_problem, text, kind, [("unequal", "gathered"), ("zigzag", "ring")], size=3)


@pytest.mark.parametrize("kind", ["counted", "packed", "padded on the left"])
@pytest.mark.parametrize("size", [1, 4])
def test_numbers_of_processes(size, kind, processes):
    processes.run(cases.kind_of_problem, ENCODINGS["terms"][0], kind, [("unequal", "ring")], size=size)


def test_layers_whose_gradients_wait_for_each_other(processes):
    processes.run(cases.two_layers, size=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_gradients(dtype, processes):
    processes.run(cases.inference, dtype, size=3)


def test_under_autocast(processes):
    processes.run(cases.autocast)


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_without_processes():
    for make in (parallel.Shard.contiguous, parallel.Shard.zigzag, lambda p: parallel.Shard(p, [[(0, 8)]])):
        with pytest.raises(ConfigError, match="init_process_group"):
            make(rw.Positions.arange(8))
    with pytest.raises(ConfigError, match="init_process_group"):
        parallel.sum_gradients(rw.T5(4))


@pytest.mark.parametrize("name", cases.ERRORS)
def test_errors(name, processes):
    kind, pattern = cases.ERRORS[name][:2]
    for raised, said in processes.run(cases.error, name):
        assert raised == kind
        assert re.search(pattern, said), said


def test_a_process_outside_the_group(processes):
    said = processes.run(cases.outside, size=4)
    assert said == ["(0, 3)"] + ["this process is not in the group it was asked to share a sequence with"] * 3
