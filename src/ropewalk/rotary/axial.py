"""RoPE on several axes: each axis turns planes of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ropewalk.core.encoding import Rotary
from ropewalk.core.errors import ConfigError, ShapeError, check_positive
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import check_base, check_rotary_width, geometric


def axis_widths(head_dim: int, axes: int, widths: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the channels of each axis, checked: even, and head_dim together; 0: nothing turns by it; None: equal shares."""
    check_positive(head_dim=head_dim, axes=axes)
    if widths is None:
        if head_dim % (2 * axes):
            raise ConfigError(
                f"head_dim={head_dim} is not shared out over {axes} axes in pairs of channels; give the channels of each "
                f"axis, or a multiple of {2 * axes}"
            )
        return (head_dim // axes,) * axes
    for width in widths:
        if width:
            check_rotary_width(width)
    if len(widths) != axes or sum(widths) != head_dim:
        raise ConfigError(
            f"channels {list(widths)} of {axes} axes: give one even number an axis, {head_dim} (head_dim) together"
        )
    return tuple(widths)


def spread(position: Tensor, pairs: Sequence[int]) -> Tensor:
    """Give each pair of channels the coordinate of its axis: (b, S, axes) → (b, S, P), ``pairs`` of them an axis."""
    return torch.cat([position[..., a, None].expand(*position.shape[:-1], n) for a, n in enumerate(pairs)], -1)


class AxialRoPE(Rotary):
    """Pair i of axis a turns by p_a · base^(−2i/d_a),  i = 0 … d_a/2 − 1.

    The pairs are dealt out to the axes in runs, in the order of the axes; each run has RoPE's ladder of its width.

    Args:
        head_dim: width d of a head.
        axes: axes of a position: (t, row, col) or its last ones.
        widths: channels d_a of each axis, 0 for one by which nothing turns; None: equal shares.
        base: of the frequencies.
        pairing: "interleaved" (each axis owns channels next to each other) or "half".

    Shapes: positions (b, S, axes), integer or real.

    Raises:
        ConfigError: channels that cannot be shared out in pairs.
        ShapeError: heads of another width.

    Source: RoPE (arXiv 2104.09864, 2021) axis by axis, as vision models use it.
    """

    inv_freq: Tensor

    def __init__(
        self,
        head_dim: int,
        axes: int = 2,
        *,
        widths: Sequence[int] | None = None,
        base: float = 10_000.0,
        pairing: Pairing = "interleaved",
    ) -> None:
        super().__init__(pairing)
        check_base(base)
        self.widths = axis_widths(head_dim, axes, widths)
        self.head_dim, self.axes, self.base = head_dim, axes, float(base)  # type: ignore[misc]
        self.derive("inv_freq", self._inverse_frequencies)

    def _inverse_frequencies(self) -> Tensor:
        return torch.cat([geometric(width, self.base).tensor() for width in self.widths if width])

    def fit(self, head_dim: int) -> None:
        if head_dim != self.head_dim:
            raise ShapeError(f"{type(self).__name__} was made for head_dim {self.head_dim}; the problem has {head_dim}")

    def angles(self, position: Tensor) -> Tensor:
        pairs = [width // 2 for width in self.widths]
        return spread(position, pairs) * self.exact("inv_freq", position.device)

    def extra_repr(self) -> str:
        return f"{self.head_dim}, axes={self.axes}, base={self.base}, pairing={self.pairing}"
