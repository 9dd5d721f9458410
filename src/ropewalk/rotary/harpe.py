"""HARPE, head-adaptive rotary position encoding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ropewalk.core.encoding import Rotary
from ropewalk.core.errors import ConfigError, ShapeError, check_positive
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.per_head import Bases, per_head_bases
from ropewalk.frequencies.spectrum import check_rotary_width, geometric
from ropewalk.rotary.rope import RoPE


class HARPE(Rotary):
    """Pair i of key head h, and of the query heads that share it, turns by p b_h^(−2i/d).

    RoPE with a base a head. The bases that a training in stages would go through are spread over the heads of one model,
    which is then trained once, at the final length. Nothing is learned here; a model of one base takes it over as it is
    (`from_rope`) and needs tuning.

    Args:
        head_dim: width d of a head, even.
        num_heads: key heads, unless ``num_kv_heads`` says otherwise.
        num_kv_heads: key heads. A base a query head would break the keys that a group shares; for heads without groups, as
            in the paper, it is the same.
        bases: "uniform" (evenly from ``lowest`` to ``highest``), "search" (`search_bases`, a reconstruction), "preset" (the
            paper's table, 32 key heads), or the bases themselves, one a key head.
        lowest: smallest base of "uniform" and "search".
        highest: largest base of these.
        descending: the largest base first.
        pairing: "half" as in Llama, or "interleaved".

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); ``inv_freq`` (H_kv, d/2); positions (b, S), integer or real, in tokens.

    Raises:
        ConfigError: no number of key heads, bases that are not positive or not one a key head, an odd width.
        ShapeError: heads of another width, or another number of them.

    Source: Haoran Lian et al. Breaking the Stage Barrier: A Novel Single-Stage Approach to Long Context Extension for Large
    Language Models. arXiv 2412.07171, 2024.
    """

    inv_freq: Tensor

    def __init__(
        self,
        head_dim: int,
        num_heads: int | None = None,
        *,
        num_kv_heads: int | None = None,
        bases: Bases | Sequence[float] = "uniform",
        lowest: float = 1e6,
        highest: float = 5e6,
        descending: bool = False,
        pairing: Pairing = "half",
    ) -> None:
        super().__init__(pairing)
        check_rotary_width(head_dim)
        check_positive(num_heads=num_heads, num_kv_heads=num_kv_heads)
        heads = num_kv_heads if num_kv_heads is not None else num_heads
        if heads is None and not isinstance(bases, str):
            heads = len(bases)
        if heads is None:
            raise ConfigError(
                "HARPE has a base for each key head: give num_kv_heads (or num_heads), or the bases themselves"
            )
        self.head_dim = head_dim
        self.bases = per_head_bases(
            heads, bases, lowest=lowest, highest=highest, descending=descending, head_dim=head_dim
        )
        self.derive("inv_freq", self._inverse_frequencies)

    @classmethod
    def from_rope(
        cls, rope: RoPE, num_kv_heads: int, bases: Bases | Sequence[float] = "uniform", **options: float
    ) -> HARPE:
        """Make the one that takes the place of a RoPE: the same width and pairing, so that no weight changes.

        With ``bases=[rope.base] * num_kv_heads`` it is that RoPE.

        Raises:
            ConfigError: the RoPE's width is not known yet, or its frequencies are not those of a base.
        """
        if rope.head_dim is None:
            raise ConfigError("this RoPE takes its width from its first problem; make it with head_dim")
        if not torch.equal(rope.inv_freq.cpu(), geometric(rope.head_dim, rope.base).tensor()):
            raise ConfigError("this RoPE has other frequencies than those of a base, and HARPE would drop them")
        return cls(rope.head_dim, num_kv_heads=num_kv_heads, bases=bases, pairing=rope.pairing, **options)  # type: ignore[arg-type]

    def _inverse_frequencies(self) -> Tensor:
        return torch.stack([geometric(self.head_dim, base).tensor() for base in self.bases])

    def fit(self, head_dim: int) -> None:
        if head_dim != self.head_dim:
            raise ShapeError(
                f"HARPE was made for head_dim {self.head_dim} and the problem has {head_dim}. To turn the first channels "
                "only, use Partial(HARPE(n, ...), n)"
            )

    def angles(self, position: Tensor) -> Tensor:
        return position[:, None, :, None] * self.exact("inv_freq", position.device)[:, None]

    def extra_repr(self) -> str:
        return f"{self.head_dim}, bases={[float(f'{b:.6g}') for b in self.bases]}, pairing={self.pairing}"
