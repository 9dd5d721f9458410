"""`ropewalk extend`: give a trained model a longer context, and say what that costs.

    from ropewalk.lab.extend import Extension, extend

    outcome = extend(Extension("path/of/checkpoint", to="4x", methods=("yarn", "ntk")), "runs/extended")

Needs the extra ``ropewalk[extend]``.
"""

from __future__ import annotations

from ropewalk.core.errors import ConfigError

try:
    import safetensors as _safetensors  # noqa: F401
    import tokenizers as _tokenizers  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ImportError as problem:
    raise ConfigError(
        f"ropewalk extend needs transformers, tokenizers and safetensors ({problem}): pip install 'ropewalk[extend]'"
    ) from problem

from ropewalk.lab.extend.driver import Outcome, extend
from ropewalk.lab.extend.settings import UNCHANGED, Extension

__all__ = ["UNCHANGED", "Extension", "Outcome", "extend"]
