"""A rotary module in the place of a model's own: other frequencies, the same layout of cos and sin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from ropewalk.coordinates.allocation import Allocation
from ropewalk.core import rotation
from ropewalk.core.encoding import table_dtype
from ropewalk.core.errors import ConfigError
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies import Spectrum
from ropewalk.rotary.rope import RoPE

ALL = "all"
"""Stands for the layer type where all layers turn by the same frequencies."""


def _twice(cos: Tensor, sin: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((sin, sin), -1).to(dtype)


def _repeated(cos: Tensor, sin: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return cos.repeat_interleave(2, -1).to(dtype), sin.repeat_interleave(2, -1).to(dtype)


def _once(cos: Tensor, sin: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return cos.to(dtype), sin.to(dtype)


def _complex(cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.complex(cos.float(), sin.float())  # whoever multiplies by it widens to float32 first


Tables = tuple[Tensor, Tensor] | Tensor

LAYOUTS: dict[str, tuple[Callable[[Tensor, Tensor, torch.dtype], Tables], Pairing]] = {
    "twice": (_twice, "half"),
    "once": (_once, "half"),
    "repeated": (_repeated, "interleaved"),
    "complex": (_complex, "interleaved"),
}
"""How models want cos and sin, (b, S, P) each, and the pairing that goes with it."""


class RotaryTables(nn.Module):
    """cos pω and sin pω, times the attention factor, as the model's own rotary module would hand them out.

    Angles are float64 and cos and sin are cast last, whatever the model was cast to.

    Args:
        spectra: frequencies by layer type; `ALL` where the layers do not differ.
        layout: a name of `LAYOUTS`.
        allocation: which pair turns by which axis, of models whose positions come as (axes, b, S).
    """

    def __init__(self, spectra: Mapping[str, Spectrum], layout: str, allocation: Allocation | None = None) -> None:
        super().__init__()
        self.layout, self.allocation = layout, allocation
        self.by_type = nn.ModuleDict({name: RoPE(spectrum=spectrum) for name, spectrum in spectra.items()})

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Tables:
        """Return the tables for positions (b, S), the same on all axes, or (axes, b, S), in the dtype of the hidden states x."""
        rope = cast("RoPE", self.by_type[ALL if layer_type is None else layer_type])
        position = position_ids.double()
        if self.allocation is not None and position.ndim == 3:
            angles = self.allocation.spread(position.movedim(0, -1))[:, 0] * rope.exact("inv_freq", position.device)
        else:
            angles = rope.angles(position)
        cos, sin = rotation.tables(angles, table_dtype(x), rope.magnitude)
        return LAYOUTS[self.layout][0](cos, sin, x.dtype)

    def extra_repr(self) -> str:
        return f"layout={self.layout}"


def layout_of(made: object, inv_freq: Tensor, positions: Tensor, factor: float, name: str) -> str:
    """Return the layout in which a model's own module made its tables for positions (1, S).

    Raises:
        ConfigError: none that is known.
    """
    angles = positions.double()[..., None] * inv_freq.double()
    cos, sin = rotation.tables(angles, torch.float32, factor)
    for layout, (lay_out, _) in LAYOUTS.items():
        wanted = lay_out(cos, sin, torch.float32)
        a, b = ((wanted,), (made,)) if isinstance(wanted, Tensor) else (wanted, made)
        if isinstance(b, tuple) and len(a) == len(b) and all(_near(x, y) for x, y in zip(a, b, strict=True)):
            return layout
    raise ConfigError(
        f"{name} makes its tables in a way that is not known here (known: {', '.join(LAYOUTS)}); its frequencies cannot be "
        "replaced"
    )


def _near(a: Tensor, b: object) -> bool:
    return (
        isinstance(b, Tensor)
        and a.shape == b.shape
        and a.dtype == b.dtype
        and bool(torch.isclose(a, b, atol=1e-5).all())
    )
