from __future__ import annotations

import warnings

import pytest

with warnings.catch_warnings():  # what other packages warn of when they are imported
    warnings.simplefilter("ignore")
    pytest.importorskip("transformers")
    pytest.importorskip("peft")

from tiny import llama, save, train


@pytest.fixture(scope="session", autouse=True)
def quiet():
    """No progress bars among the dots."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A small Llama that was trained for a few seconds, on disk. Nobody may change it."""
    return save(train(llama(), 60), tmp_path_factory.mktemp("checkpoint") / "tiny")
