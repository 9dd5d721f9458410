"""RoPE-Mixed: learned frequency vectors in the plane."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from ropewalk.core.errors import ConfigError
from ropewalk.core.noise import uniform
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import check_base, geometric
from ropewalk.rotary.vector_rope import VectorRoPE, check_layer_index, key_heads


class MixedRoPE(VectorRoPE):
    """Pair p of key head h turns by ⟨w_hp, x⟩ = u_hp · row + v_hp · column,  u and v learned.

    Axial RoPE cannot turn a pair along a diagonal; here every pair has a direction and a frequency of its own, learned for each
    layer and key head. They start as axial RoPE's, turned as a whole by an angle α_h that is drawn: |w| = base^(−4j/d),
    j = 0 … d/4 − 1, once at α and once at α + 90°. With α = 0 that is axial RoPE.

    Args:
        head_dim: width d of a head, a multiple of 4.
        num_heads: key heads, unless ``num_kv_heads`` says otherwise; each learns its own vectors.
        num_kv_heads: key heads.
        base: of the frequencies at the start; 10 as published.
        turned: draw α; otherwise it is 0.
        seed: of α, which is a function of it, the layer and the key head.
        layer_index: which layer this is; ``layer(i)`` sets it, and turns the vectors to that layer's start.
        pairing: "interleaved" as published.

    Shapes: positions (b, S, 2) of (row, column), real, in patches at any resolution; tokens at the origin, such as CLS, do not
    turn. frequencies (H_kv, d/2, 2), float32 in models of any dtype; angles in float64.

    Raises:
        ConfigError: a width that is no multiple of 4, no number of heads.

    Source: Byeongho Heo, Song Park, Dongyoon Han, Sangdoo Yun. Rotary Position Embedding for Vision Transformer.
    arXiv 2403.13298, 2024.
    """

    def __init__(
        self,
        head_dim: int,
        num_heads: int | None = None,
        *,
        num_kv_heads: int | None = None,
        base: float = 10.0,
        turned: bool = True,
        seed: int = 0,
        layer_index: int = 0,
        pairing: Pairing = "interleaved",
    ) -> None:
        super().__init__(head_dim, 2, pairing)
        check_base(base)
        if head_dim % 4:
            raise ConfigError(f"head_dim is a multiple of 4, pairs of channels in two directions; got {head_dim}")
        check_layer_index(layer_index)
        heads = key_heads(num_heads, num_kv_heads, "RoPE-Mixed learns frequencies for each key head")
        self.base, self.turned, self.seed, self.layer_index = float(base), turned, seed, layer_index
        ladder = geometric(head_dim // 2, base).tensor()
        zero = torch.zeros_like(ladder)
        axial = torch.stack([torch.cat([ladder, zero]), torch.cat([zero, ladder])], -1)
        start = _turn(axial.expand(heads, -1, -1), self._start(heads))
        self.frequencies = nn.Parameter(torch.empty(start.shape))
        with torch.no_grad():
            self.frequencies.copy_(start)

    def _start(self, heads: int) -> Tensor:
        """α of each key head, (heads,) float64."""
        head = torch.arange(heads, device="cpu")
        if not self.turned:
            return torch.zeros_like(head, dtype=torch.float64)
        seed, layer = (torch.tensor(n, device="cpu") for n in (self.seed, self.layer_index))
        return 2 * math.pi * uniform(seed, layer, head)

    def vectors(self) -> Tensor:
        return self.frequencies.double()

    def layer(self, index: int) -> MixedRoPE:
        made = copy.deepcopy(self)
        made.layer_index = index
        heads = len(self.frequencies)
        by = made._start(heads) - self._start(heads)
        with torch.no_grad():
            made.frequencies.copy_(_turn(self.frequencies.double(), by))
        return made

    def extra_repr(self) -> str:
        return f"{self.head_dim}, base={self.base}, turned={self.turned}, pairing={self.pairing}"


def _turn(vectors: Tensor, angle: Tensor) -> Tensor:
    """Turn vectors (heads, P, 2) by an angle a head."""
    cos, sin = (f.to(vectors.device)[:, None] for f in (angle.cos(), angle.sin()))
    u, v = vectors.unbind(-1)
    return torch.stack([u * cos - v * sin, u * sin + v * cos], -1)
