"""Models of which each process holds some parameters or some heads, and the page that shows how."""

from __future__ import annotations

import model_cases as cases
import pytest


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("text", cases.ENCODINGS)
def test_frequencies_under_fully_shard(text, low, processes):
    dtypes = processes.run(cases.sharded, text, low)
    assert set(dtypes[0]) <= {"torch.float64", "torch.float32"}
    assert dtypes[0]


def test_parameters_that_were_dealt_out_with_the_rest(processes):
    for said in processes.run(cases.sharded_with_the_rest):
        assert "ignored_params=parameters_of_encodings" in said


def test_means_of_gradients(processes):
    assert processes.run(cases.means) == [[1.5, 1.5]] * 2


@pytest.mark.parametrize("text", cases.ENCODINGS)
def test_heads_of_a_model(text, processes):
    processes.run(cases.heads, text)


@pytest.mark.parametrize("block", [0, 1])
def test_the_page(block, processes):
    assert max(processes.run(cases.page, block)) < 1e-5
