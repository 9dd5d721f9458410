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

from ropewalk.integrations.transformers.apply import apply, columns, encodings, new_cache, remove, spectrum
from ropewalk.integrations.transformers.bf16_shift import bf16_shift_by_head
from ropewalk.integrations.transformers.buckets import MultiBaseDecoder
from ropewalk.integrations.transformers.cache import EncodedCache
from ropewalk.integrations.transformers.dope import DopeSelection, apply_dope, dope_select, sink_mass_by_head
from ropewalk.integrations.transformers.export import CannotExport, Export, export
from ropewalk.integrations.transformers.gguf import load_gguf
from ropewalk.integrations.transformers.interventions import disrupt_channels, mask_heads, zero_channels
from ropewalk.integrations.transformers.layers import ModelsVerdict, verify_models
from ropewalk.integrations.transformers.measure import measure
from ropewalk.integrations.transformers.probe import Probe
from ropewalk.integrations.transformers.saved import load
from ropewalk.integrations.transformers.vision import vision_layout

__all__ = [
    "CannotExport",
    "DopeSelection",
    "EncodedCache",
    "Export",
    "ModelsVerdict",
    "MultiBaseDecoder",
    "Probe",
    "apply",
    "apply_dope",
    "bf16_shift_by_head",
    "columns",
    "disrupt_channels",
    "dope_select",
    "encodings",
    "export",
    "load",
    "load_gguf",
    "mask_heads",
    "measure",
    "new_cache",
    "remove",
    "sink_mass_by_head",
    "spectrum",
    "verify_models",
    "vision_layout",
    "zero_channels",
]

if __name__ == "__main__":
    from ropewalk.integrations.transformers.command import main

    main()
