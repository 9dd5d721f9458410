"""ropewalk in models of transformers: other frequencies, other encodings, and export.

    from ropewalk import hf

    model = hf.apply(model, "yarn", factor=4)
    model.save_pretrained(path)
    model = hf.load(path)
    hf.export(model, path)                       # for engines that have never heard of ropewalk

``python -m ropewalk.hf --help`` does the same to checkpoints on disk. Needs the extra ``ropewalk[hf]``.
"""

from __future__ import annotations

from ropewalk.core.errors import ConfigError

try:
    import safetensors as _safetensors  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ImportError as problem:
    raise ConfigError(
        f"ropewalk.hf needs transformers and safetensors ({problem}): pip install 'ropewalk[hf]'"
    ) from problem

from ropewalk.integrations.transformers.apply import apply, encodings, new_cache, remove, spectrum
from ropewalk.integrations.transformers.cache import EncodedCache
from ropewalk.integrations.transformers.export import CannotExport, Export, export
from ropewalk.integrations.transformers.saved import load

__all__ = [
    "CannotExport",
    "EncodedCache",
    "Export",
    "apply",
    "encodings",
    "export",
    "load",
    "new_cache",
    "remove",
    "spectrum",
]

if __name__ == "__main__":
    from ropewalk.integrations.transformers.command import main

    main()
