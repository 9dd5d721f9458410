"""p-RoPE."""

from __future__ import annotations

from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.fraction import check_fraction, p_rope
from ropewalk.frequencies.spectrum import Spectrum, geometric
from ropewalk.rotary.rope import RoPE


class PRoPEFraction(RoPE):
    """RoPE in which pair i turns by pω_i = p base^(−2i/d) for i < r only;  r = ⌊p d / 2⌋.

    The slowest pairs are left to content, which stays comparable at any distance. p = 1 is RoPE, p = 0 no positional
    encoding. The pairs are those of the whole head, unlike the slice of `PartialRoPE`, which turns as many.

    For other frequencies than the geometric ones use the schedule, ``RoPE(spectrum=p_rope(spectrum, p))``.

    Args:
        head_dim: width d of a head, even; None: taken from the first problem.
        p: fraction of the pairs that turn, 0.75 in the paper. What ⌊p d / 2⌋ is in floating point:
            `ropewalk.frequencies.pairs_of_fraction`.
        base: of the frequencies.
        pairing: "half" as published, or "interleaved".
        reverse: turn the r slowest pairs instead, the paper's counter-test.

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); positions (b, S), integer or real, in tokens.

    Raises:
        ConfigError: p outside 0 ... 1, an odd width.
        ShapeError: heads of another width.

    Source: Federico Barbero, Alex Vitvitskyi, Christos Perivolaropoulos, Razvan Pascanu, Petar Veličković. Round and Round
    We Go! What makes Rotary Positional Encodings useful? arXiv 2410.06205, 2024.
    """

    def __init__(
        self,
        head_dim: int | None = None,
        p: float = 0.75,
        base: float = 10_000.0,
        pairing: Pairing = "half",
        *,
        reverse: bool = False,
    ) -> None:
        super().__init__(None, base, pairing)
        check_fraction(p)
        self.p, self.reverse = p, reverse
        if head_dim is not None:
            self.fit(head_dim)

    def frequencies(self, head_dim: int) -> Spectrum:
        return p_rope(geometric(head_dim, self.base), self.p, reverse=self.reverse).trimmed(self.pairing)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, p={self.p}{', reverse' if self.reverse else ''}"
