"""What a rotation should be."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError
from ropewalk.core.rotation import Pairing, check_pairing
from ropewalk.frequencies import RopeConfig, Spectrum, geometric, read_rope_config, rope_layer_types

INTERLEAVED = (
    "codegen", "cohere", "cohere2", "chatglm", "deepseek_v2", "ernie4_5", "ernie4_5_moe", "glm", "glm4", "gptj", "helium",
    "llama4", "llama4_text", "roformer",
)  # fmt: skip
"""Model types of transformers that pair neighbouring channels; the others pair the two halves."""

INTERLEAVED_BY_DEFAULT = ("deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "longcat_flash", "youtu")
"""Model types with an option ``rope_interleave`` that is on unless it is set to false."""

MROPE_INTERLEAVED = ("qwen3_vl", "qwen3_vl_text", "qwen3_vl_moe", "qwen3_vl_moe_text")
"""Model types whose axes take turns instead of owning runs of planes."""


@dataclass(frozen=True)
class Reference:
    """The rotation that is wanted.

    Args:
        spectrum: frequencies and attention factor.
        head_dim: width of a head.
        pairing: of its channels.
        start: first channel that is turned.
        axis: which axis of the positions each plane reads; None: the only one.
        config: what the spectrum was read from.
        others: spectra of the other layer types.
        name: for people.
        findings: what was unusual about the configuration.
    """

    spectrum: Spectrum
    head_dim: int
    pairing: Pairing
    start: int = 0
    axis: tuple[int, ...] | None = None
    config: RopeConfig | None = None
    sections: tuple[int, ...] | None = None
    others: Mapping[str, Spectrum] | None = None
    name: str = "reference"
    findings: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Channels that are turned."""
        return 2 * len(self.spectrum.inv_freq)

    def inv_freq(self) -> Tensor:
        """Return the frequencies, float64."""
        return self.spectrum.tensor()

    def coordinates(self, positions: Tensor) -> Tensor:
        """Return the coordinate that each plane reads: (..., axes) → (..., P)."""
        planes = len(self.spectrum.inv_freq)
        if self.axis is None:
            if positions.shape[-1] != 1:
                raise ConfigError(
                    f"positions have {positions.shape[-1]} axes and the reference reads one; give mrope_section in the "
                    "configuration, or positions of one axis"
                )
            return positions.expand(*positions.shape[:-1], planes)
        if positions.shape[-1] == 1:  # text: all axes are the same
            return positions.expand(*positions.shape[:-1], planes)
        if max(self.axis) >= positions.shape[-1]:
            raise ConfigError(
                f"the reference reads axis {max(self.axis)} of the positions, which have {positions.shape[-1]} axes"
            )
        return positions[..., list(self.axis)]


def read_reference(
    what: Any,
    *,
    length: float | None = None,
    layer_type: str | None = None,
    pairing: str | None = None,
    head_dim: int | None = None,
) -> Reference:
    """Return the reference that is meant.

    Args:
        what: a configuration of transformers, what its config.json holds, the path of one or of its folder, a
            `Spectrum`, a rotary encoding of ropewalk (RoPE, AxialRoPE), or a `Reference`.
        length: tokens of the context, where frequencies depend on it.
        layer_type: such as "full_attention", where layers differ.
        pairing: "half" or "interleaved", where the reference does not say, or to overrule it.
        head_dim: width of a head, for a spectrum of fewer planes.

    Raises:
        ConfigError: nothing that can be read.
    """
    wanted = None if pairing is None else check_pairing(pairing)
    made = _read(what, length, layer_type, head_dim)
    return made if wanted is None else replace(made, pairing=wanted)


def follows_length(what: Any, layer_type: str | None = None) -> bool:
    """Whether the frequencies of a configuration depend on the length of what is read."""
    if isinstance(what, (Reference, Spectrum, torch.nn.Module)):
        return False
    return read_rope_config(_language(_load(what)), layer_type=layer_type).follows_length


def axes_of_planes(sections: tuple[int, ...], *, interleaved: bool) -> tuple[int, ...]:
    """Return the axis of each plane.

    In runs, the first section reads axis 0, and so on (Qwen2-VL, arXiv 2409.12191). Interleaved, plane j reads axis
    j mod n while j < n · section, else axis 0 (Qwen3-VL).
    """
    if not interleaved:
        return tuple(a for a, n in enumerate(sections) for _ in range(n))
    count, planes = len(sections), sum(sections)
    return tuple(j % count if j < count * sections[j % count] else 0 for j in range(planes))


def _read(what: Any, length: float | None, layer_type: str | None, head_dim: int | None) -> Reference:
    if isinstance(what, Reference):
        return what
    if isinstance(what, Spectrum):
        return Reference(what, head_dim or 2 * len(what.inv_freq), "half", name=what.origin or "a spectrum")
    if isinstance(what, torch.nn.Module):
        return _of_encoding(what)
    return _of_config(_load(what), length, layer_type, str(what) if isinstance(what, (str, Path)) else "")


def _of_encoding(encoding: torch.nn.Module) -> Reference:
    from ropewalk.rotary.axial import AxialRoPE
    from ropewalk.rotary.rope import RoPE

    name = f"{type(encoding).__name__}({encoding.extra_repr()})"
    if isinstance(encoding, AxialRoPE):
        inv_freq = tuple(w for width in encoding.widths for w in geometric(width, encoding.base).inv_freq)
        axis = axes_of_planes(tuple(width // 2 for width in encoding.widths), interleaved=False)
        return Reference(Spectrum(inv_freq), sum(encoding.widths), encoding.pairing, axis=axis, name=name)
    if isinstance(encoding, RoPE):
        if encoding.head_dim is None:
            raise ConfigError("this RoPE takes its width from its first problem; give RoPE(head_dim) as a reference")
        return Reference(encoding.frequencies(encoding.head_dim), encoding.head_dim, encoding.pairing, name=name)
    raise ConfigError(
        f"{type(encoding).__name__} is no reference; allowed are RoPE, AxialRoPE, a Spectrum, a configuration"
    )


def _load(what: Any) -> Any:
    if not isinstance(what, (str, Path)):
        return what
    path = Path(what)
    file = path / "config.json" if path.is_dir() else path
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as problem:
        raise ConfigError(f"{file} cannot be read as a configuration ({problem})") from None


def _language(config: Any) -> Any:
    """Return the configuration of the language model of one for text and images."""
    inner = config.get("text_config") if isinstance(config, Mapping) else getattr(config, "text_config", None)
    own = config if isinstance(config, Mapping) else vars(config) if hasattr(config, "__dict__") else {}
    spoken = any(own.get(key) is not None for key in ("rope_theta", "rope_scaling", "rope_parameters", "head_dim"))
    return config if inner is None or spoken else inner


def _of_config(config: Any, length: float | None, layer_type: str | None, path: str) -> Reference:
    if isinstance(config, (list, int, float, str)) or config is None:
        raise ConfigError(f"a configuration is a dictionary; got {type(config).__name__}")
    config = _language(config)
    read = read_rope_config(config, layer_type=layer_type)
    spectrum = read.spectrum(length)
    values = dict(config) if isinstance(config, Mapping) else config.to_dict()
    kind = str(values.get("model_type", ""))
    nope = values.get("qk_nope_head_dim") or 0
    sections = read.parameters.get("mrope_section")
    axis = None
    if sections is not None:
        planes = len(spectrum.inv_freq)
        if not isinstance(sections, (list, tuple)) or not all(isinstance(n, int) and n >= 0 for n in sections):
            raise ConfigError(f"mrope_section is a list of whole numbers; got {sections!r}")
        if sum(sections) != planes:
            raise ConfigError(
                f"mrope_section {list(sections)} adds up to {sum(sections)}, and {planes} planes are turned"
            )
        turns = read.parameters.get("mrope_interleaved", kind in MROPE_INTERLEAVED)
        axis = axes_of_planes(tuple(sections), interleaved=bool(turns))
    name = f"{path or kind or 'configuration'}: {spectrum.origin}, {_pairing(values, kind)} pairs"
    return Reference(
        spectrum,
        read.head_dim,
        _pairing(values, kind),
        start=nope if nope and read.head_dim == nope + read.dim else 0,
        axis=axis,
        config=read,
        sections=None if sections is None else tuple(sections),
        others=_others(config, layer_type, length),
        name=name,
        findings=tuple(f for f in read.findings if not f.startswith("mrope_section")),
    )


def _pairing(values: Mapping[str, Any], kind: str) -> Pairing:
    said = values.get("rope_interleave", values.get("rope_interleaved", kind in INTERLEAVED_BY_DEFAULT))
    return "interleaved" if said or kind in INTERLEAVED else "half"


def _others(config: Any, layer_type: str | None, length: float | None) -> dict[str, Spectrum]:
    found = {}
    for other in rope_layer_types(config):
        if other != layer_type:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    found[other] = read_rope_config(config, layer_type=other).spectrum(length)
                except ConfigError:  # layers without rotation, or of another width
                    continue
    return found
