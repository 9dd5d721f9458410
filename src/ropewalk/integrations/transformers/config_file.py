"""config.json, read without transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ropewalk.core.errors import ConfigError


def read_config(folder: Path) -> dict[str, Any]:
    """Return what the config.json of a folder holds."""
    file = folder / "config.json" if folder.is_dir() else folder
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as problem:
        raise ConfigError(f"{file} cannot be read ({problem}); give a folder that save_pretrained wrote") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{file} holds a {type(values).__name__}; expected a configuration")
    return values
