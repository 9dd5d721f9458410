"""What the header of a GGUF file says of positions, as a configuration. Nothing but the header is read."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from ropewalk.core.errors import ConfigError
from ropewalk.frequencies.rope_config import ORIGINAL
from ropewalk.integrations.transformers.gguf import find_gguf

_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_AXES = 8
_KEPT = 1024
"""Longer arrays, such as vocabularies, are passed over."""

FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors with a number for each plane, by which its frequency is divided."""


def gguf_config(path: str | Path) -> dict[str, Any]:
    """Return the configuration that a GGUF file stands for, with the names that transformers has.

    Factors a plane that the file holds as tensors (``rope_freqs``, as of Llama 3.1, and ``rope_factors_long`` and ``_short``, as
    of Phi-3) become an entry of type "longrope", which says the same.

    Args:
        path: the file, or a folder with one such file.

    Raises:
        ConfigError: no such file, or a header that is cut off or of another version.
    """
    file = find_gguf(path)
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as held:
            header, factors = _Reader(held).read()
    except (struct.error, ValueError, OSError) as problem:
        raise ConfigError(f"{file} has a header that cannot be read ({problem}); is the file whole?") from None
    return _named(header, factors)


class _Reader:
    """Reads a header from its start."""

    def __init__(self, held: mmap.mmap) -> None:
        self.held, self.at = held, 4

    def read(self) -> tuple[dict[str, Any], dict[str, list[float]]]:
        """Return the keys and values, and the factors a plane, by name of the tensor."""
        version = self.number("<I")
        if version not in _VERSIONS:
            raise ValueError(f"version {version}, and versions {_VERSIONS} are known")
        tensors, keys = self.number("<Q"), self.number("<Q")
        if max(tensors, keys) > len(self.held):
            raise ValueError(f"{tensors} tensors and {keys} keys in {len(self.held)} bytes")
        header: dict[str, Any] = {}
        for _ in range(keys):
            name = self.text()
            header[name] = self.value(self.number("<I"))
        found = {}
        for _ in range(tensors):
            name = self.text()
            shape = [self.number("<Q") for _ in range(min(self.number("<I"), _AXES))]
            kind, offset = self.number("<I"), self.number("<Q")
            if name in FACTORS and kind == 0 and len(shape) == 1 and shape[0] <= _KEPT:
                found[name] = (shape[0], offset)
        step = header.get("general.alignment", 32)
        if not isinstance(step, int) or step < 1:
            raise ValueError(f"an alignment of {step!r}")
        data = -(-self.at // step) * step
        factors = {
            name: list(struct.unpack_from(f"<{count}f", self.held, data + offset))
            for name, (count, offset) in found.items()
        }
        return header, factors

    def number(self, form: str) -> Any:
        (found,) = struct.unpack_from(form, self.held, self.at)
        self.at += struct.calcsize(form)
        return found

    def text(self) -> str:
        size = self.number("<Q")
        start = self.at
        self.skip(size)
        return self.held[start : self.at].decode("utf-8", errors="replace")

    def skip(self, size: int) -> None:
        if size > len(self.held) - self.at:
            raise ValueError(f"{size} bytes are announced, and {len(self.held) - self.at} follow")
        self.at += size

    def value(self, kind: int) -> Any:
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            raise ValueError(f"value type {kind} is unknown")
        inner, count = self.number("<I"), self.number("<Q")
        if inner == _ARRAY:
            raise ValueError("arrays of arrays are not known")
        if inner in _NUMBERS and count > _KEPT:
            self.skip(count * struct.calcsize(_NUMBERS[inner]))
            return None
        if count > len(self.held):
            raise ValueError(f"an array of {count} in {len(self.held)} bytes")
        if inner == _STRING and count > _KEPT:
            for _ in range(count):
                self.skip(self.number("<Q"))
            return None
        return [self.value(inner) for _ in range(count)]


def _named(header: dict[str, Any], factors: dict[str, list[float]]) -> dict[str, Any]:
    """Return a configuration with the names of transformers."""
    arch = str(header.get("general.architecture", ""))

    def said(name: str) -> Any:
        found = header.get(f"{arch}.{name}")
        return found[0] if isinstance(found, list) and found else found

    heads, hidden, width = said("attention.head_count"), said("embedding_length"), said("attention.key_length")
    head_dim = width if width is not None else hidden // heads if hidden and heads else None
    values: dict[str, Any] = {
        "model_type": arch,
        "max_position_embeddings": said("context_length"),
        "num_hidden_layers": said("block_count"),
        "num_attention_heads": heads,
        "hidden_size": hidden,
        "head_dim": head_dim,
        "rotary_dim": said("rope.dimension_count"),
        "sliding_window": said("attention.sliding_window") or None,
    }
    entry: dict[str, Any] = {"rope_type": "default", "rope_theta": _short(said("rope.freq_base") or 10_000.0)}
    kind = said("rope.scaling.type")
    if kind in ("linear", "yarn"):
        entry |= {"rope_type": kind, "factor": _short(said("rope.scaling.factor"))}
    if kind == "yarn":
        named = {
            ORIGINAL: "rope.scaling.original_context_length",
            "beta_fast": "rope.scaling.yarn_beta_fast",
            "beta_slow": "rope.scaling.yarn_beta_slow",
        }
        entry |= {key: _short(said(name)) for key, name in named.items()}
    if factors:
        one = factors.get("rope_freqs.weight")
        entry |= {
            "rope_type": "longrope",
            "short_factor": one or factors.get("rope_factors_short.weight"),
            "long_factor": one or factors.get("rope_factors_long.weight"),
            "attention_factor": _short(said("rope.scaling.attn_factor") or 1.0),
            ORIGINAL: said("rope.scaling.original_context_length") or said("context_length"),
        }
    entry = {key: value for key, value in entry.items() if value is not None}
    sliding = said("rope.freq_base_swa")
    values["rope_parameters"] = (
        entry
        if sliding is None
        else {"full_attention": entry, "sliding_attention": {"rope_type": "default", "rope_theta": _short(sliding)}}
    )
    return {key: value for key, value in values.items() if value is not None}


def _short(value: Any) -> Any:
    """Return a float32 as the number it was written from."""
    return float(f"{value:.7g}") if isinstance(value, float) else value
