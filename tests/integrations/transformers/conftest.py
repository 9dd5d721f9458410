import warnings

import pytest

with warnings.catch_warnings():  # what other packages warn of when they are imported
    warnings.simplefilter("ignore")
    pytest.importorskip("transformers")
    pytest.importorskip("safetensors")


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """No progress bars among the dots."""
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    yield
    logging.set_verbosity(before)
    logging.enable_progress_bar()
