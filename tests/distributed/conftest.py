"""Processes that exchange tensors, shared by all tests of a session."""

from __future__ import annotations

import pytest
from processes import Processes


@pytest.fixture(scope="session")
def processes():
    made = Processes()
    yield made
    made.stop()
