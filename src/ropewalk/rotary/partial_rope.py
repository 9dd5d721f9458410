"""Partial RoPE."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.fraction import Ladder, Layout, check_fraction, check_layout, partial
from ropewalk.frequencies.spectrum import Spectrum
from ropewalk.rotary.rope import RoPE


class PartialRoPE(RoPE):
    """RoPE of the first 2r channels of a head, ω_i = base^(−i/r);  r = ⌊fraction · d / 2⌋. The others carry content only.

    A tenth of the channels is reported to train as well as all of them, and needs a tenth of the table.
    fraction = 1 is RoPE, 0 no positional encoding.

    For frequencies from another schedule, ``RoPE(head_dim, spectrum=schedule(geometric(2 * r)))`` turns the same slice.

    Args:
        head_dim: width d of a head, even; None: taken from the first problem.
        fraction: of the channels that turn; 0.25 in GPT-NeoX and Pythia. An odd number of channels loses one.
        base: of the frequencies.
        pairing: "half": channels (i, i+r) inside the slice, or "interleaved" (2i, 2i+1).
        layout: "slice" as here; "proportional": pairs (i, i+d/2) of the whole head, as in `PRoPEFraction`. The two differ
            for pairing "half" only, and a checkpoint depends on it; `slice_to_proportional` converts weights.
        ladder: "rescaled": the frequencies above; "truncated": base^(−2i/d), i < r, the fastest ones of the whole head.

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); positions (b, S), integer or real, in tokens.

    Raises:
        ConfigError: a fraction outside 0 ... 1, or of less than one pair; an odd width.
        ShapeError: heads of another width.

    Source: Mohammad Aflah Khan, Krishna P. Gummadi, Manish Gupta, Abhilasha Ravichander. Fractional Rotation, Full
    Potential? Investigating Performance and Convergence of Partial RoPE. arXiv 2603.11611, 2026.
    """

    def __init__(
        self,
        head_dim: int | None = None,
        fraction: float = 0.25,
        base: float = 10_000.0,
        pairing: Pairing = "half",
        *,
        layout: Layout = "slice",
        ladder: Ladder = "rescaled",
    ) -> None:
        super().__init__(None, base, pairing)
        check_fraction(fraction)
        check_layout(layout, ladder)
        self.fraction, self.layout, self.ladder = fraction, layout, ladder
        if head_dim is not None:
            self.fit(head_dim)

    def frequencies(self, head_dim: int) -> Spectrum:
        spectrum = partial(head_dim, self.fraction, self.base, layout=self.layout, ladder=self.ladder)
        return spectrum.trimmed(self.pairing)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, fraction={self.fraction}, layout={self.layout}, ladder={self.ladder}"


def slice_to_proportional(weight: Tensor, num_heads: int, rotary_dim: int, *, inverse: bool = False) -> Tensor:
    """Reorder the rows of a q or k projection from the layout "slice" to "proportional", both with pairing "half".

    Within each head: the first partners of the slice, the first half of the passed channels, the second partners, the other
    half. The logits stay what they were, if the frequencies do (``ladder`` is left as it was). Convert q and k, nothing else.

    Args:
        weight: (num_heads · head_dim, ...): the weight of a Linear, or its bias.
        num_heads: heads in ``weight``; for k of grouped-query attention the key heads.
        rotary_dim: channels that turn, 2r.
        inverse: from "proportional" to "slice".

    Raises:
        ConfigError: a rotary width that is odd or wider than a head, an odd head.
        ShapeError: rows that do not divide into heads.
    """
    if weight.ndim == 0 or num_heads < 1 or weight.shape[0] % num_heads:
        raise ShapeError(
            f"weight is {tuple(weight.shape)}: its first dimension is num_heads · head_dim and does not divide by num_heads = "
            f"{num_heads}. For k of grouped-query attention give the number of key heads; split a fused projection first"
        )
    width = weight.shape[0] // num_heads
    if width % 2 or rotary_dim % 2 or not 0 <= rotary_dim <= width:
        raise ConfigError(f"rotary width {rotary_dim} in heads of {width}; both are even, and the first is not larger")
    r, rest = rotary_dim // 2, (width - rotary_dim) // 2
    slices = (range(r), range(2 * r, 2 * r + rest), range(r, 2 * r), range(2 * r + rest, width))
    order = torch.tensor([i for part in slices for i in part], device=weight.device, dtype=torch.long)
    if inverse:
        order = order.argsort()
    return weight.unflatten(0, (num_heads, width)).index_select(1, order).flatten(0, 1)
