"""Packages that only some data needs."""

from __future__ import annotations

import importlib
from typing import Any

from ropewalk.core.errors import ConfigError


def need(module: str, purpose: str, *, extra: str = "lab", package: str | None = None) -> Any:
    """Import a module of an optional package.

    Args:
        module: with dots.
        purpose: what needs it, as a message begins.
        extra: of ropewalk that brings the package.
        package: its name on the index, where that is not the module's.

    Raises:
        ConfigError: it is not installed; the message names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        package = package or module.partition(".")[0]
        raise ConfigError(
            f"{purpose} needs the package {package}, which cannot be imported ({problem}); "
            f"install it with: pip install 'ropewalk[{extra}]'"
        ) from problem
