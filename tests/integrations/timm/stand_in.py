"""timm reads pictures with torchvision, which its models do not use, and whose wheels fit one build of torch alone.

Where torchvision cannot be imported, something stands in for it that has all names and does nothing.
"""

from __future__ import annotations

import importlib
import sys
import types
import warnings
from importlib.machinery import ModuleSpec

PARTS = ("", ".transforms", ".transforms.functional", ".ops", ".ops.misc", ".datasets", ".models")
PARTS += (".models.feature_extraction",)


class _Names(type):
    """A class that has any attribute: another one of its kind."""

    def __getattr__(cls, name: str) -> _Names:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(cls, name, made := _Names(name, (), {}))
        return made


class _Stand(types.ModuleType):
    def __getattr__(self, name: str) -> _Names:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, made := _Names(name, (), {}))
        return made


def _stand_in() -> None:
    for part in PARTS:
        module = _Stand(f"torchvision{part}")
        module.__path__, module.__spec__ = [], ModuleSpec(module.__name__, None)
        sys.modules[module.__name__] = module
        if part:
            above, _, name = module.__name__.rpartition(".")
            setattr(sys.modules[above], name, module)


def import_timm() -> None:
    """Import timm, with or without a torchvision that works."""
    with warnings.catch_warnings():  # what other packages warn of when they are imported
        warnings.simplefilter("ignore")
        try:
            importlib.import_module("torchvision")
        except Exception:  # missing, or made for another build of torch, which ends in a RuntimeError
            _stand_in()
        importlib.import_module("timm")
        # Other libraries look for torchvision as well and would take what stands in for it.
        for name in [n for n, module in sys.modules.items() if isinstance(module, _Stand)]:
            del sys.modules[name]
