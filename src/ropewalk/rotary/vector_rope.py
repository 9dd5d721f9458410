"""RoPE on several axes at once: every pair of channels turns by the place of the token along a vector of its own."""

from __future__ import annotations

from torch import Tensor

from ropewalk.core.encoding import Rotary
from ropewalk.core.errors import ConfigError, ShapeError, check_positive
from ropewalk.core.rotation import Pairing


class VectorRoPE(Rotary):
    """Pair p of key head h turns by ⟨w_hp, x⟩,  x the coordinates of the token.

    RoPE is w = ω on one axis; axial RoPE has vectors along the axes. Subclasses say what the vectors are.

    Args:
        head_dim: width of a head.
        axes: axes of a position.
        pairing: "interleaved" or "half".

    Shapes: positions (b, S, axes), real. Angles are sums of products in float64.

    Raises:
        ShapeError: heads of another width.
    """

    def __init__(self, head_dim: int, axes: int, pairing: Pairing = "interleaved") -> None:
        super().__init__(pairing)
        check_positive(head_dim=head_dim, axes=axes)
        self.head_dim, self.dims = head_dim, axes
        self.axes = axes  # type: ignore[misc]

    def vectors(self) -> Tensor:
        """Return w, (1 or H_kv, P, axes) float64; one row where key heads do not differ."""
        raise NotImplementedError

    def fit(self, head_dim: int) -> None:
        if head_dim != self.head_dim:
            raise ShapeError(f"{type(self).__name__} was made for head_dim {self.head_dim}; the problem has {head_dim}")

    def angles(self, position: Tensor) -> Tensor:
        w = self.vectors().to(position.device)
        angles = (position[:, None, :, None] * w[:, None]).sum(-1)
        return angles[:, 0] if len(w) == 1 else angles


def key_heads(num_heads: int | None, num_kv_heads: int | None, why: str) -> int:
    """Return the number of key heads, for an encoding in which they differ; an error where it is not given."""
    check_positive(num_heads=num_heads, num_kv_heads=num_kv_heads)
    heads = num_heads if num_kv_heads is None else num_kv_heads
    if heads is None:
        raise ConfigError(f"{why}: give num_heads, or num_kv_heads where keys have fewer")
    return heads


def check_layer_index(index: int) -> None:
    """Check the number of a layer."""
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise ConfigError(f"layer_index is a whole number, counted from 0; got {index!r}")
