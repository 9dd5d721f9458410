"""Packages that only some data needs."""

from __future__ import annotations

import importlib
from typing import Any

from ropewalk.core.errors import ConfigError


def need(module: str, purpose: str) -> Any:
    """Import a module of an optional package.

    Raises:
        ConfigError: it is not installed; the message names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        package = module.partition(".")[0]
        raise ConfigError(
            f"{purpose} needs the package {package}, which cannot be imported ({problem}); "
            "install it with: pip install 'ropewalk[lab]'"
        ) from problem
