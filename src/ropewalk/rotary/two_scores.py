"""Rotary encodings with two scores: one for keys nearby, one for keys far away."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from ropewalk.core import rotation
from ropewalk.core.attention import AtLeast, Attention, Branch, Mask, Problem
from ropewalk.core.encoding import check_axes, table_dtype
from ropewalk.core.errors import CannotCompose, ConfigError, NotCausal, check_positive
from ropewalk.core.positions import Chain, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum
from ropewalk.rotary.rope import RoPE

Side = Literal["query", "key"]


class TwoScores(RoPE):
    """s_ij = ⟨R_i q_i, R_j k_j⟩ / √d for i − j < w,  ⟨R'_i q_i, R'_j k_j⟩ / √d for i − j ≥ w, under one softmax.

    Near pairs see RoPE as it was trained. Far pairs see other angles, which a subclass gives: write ``far(tokens, at,
    side)``, float64 angles (b, S, P) of the tokens whose coordinates are read after the chain ``at``. Where far keys are turned
    as near ones, return None for the side "key"; a cache then holds what RoPE's holds, and otherwise every key twice.

    Args:
        head_dim: width d of a head, even; None: taken from the first problem.
        window: w, in tokens; None: a part of the trained context (`share`).
        base: of the frequencies.
        pairing: "half" as in Llama, or "interleaved".
        train_length: tokens of the trained context.
        spectrum: other frequencies than the geometric ones, as in `RoPE`.

    Raises:
        ConfigError: a window that is no positive number.
        NotCausal: the problem is not causal.
        CannotCompose: after an encoding whose scores are not one dot product.
    """

    share: ClassVar[int] = 8
    """How many windows make the trained context, where no window is given."""

    def __init__(
        self,
        head_dim: int | None,
        window: int | None,
        base: float = 10_000.0,
        pairing: Pairing = "half",
        *,
        train_length: int = 4096,
        spectrum: Spectrum | None = None,
    ) -> None:
        super().__init__(head_dim, base, pairing, spectrum=spectrum)
        check_positive(train_length=train_length)
        window = max(1, train_length // self.share) if window is None else window
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise ConfigError(f"window is a number of tokens, at least 1; got {window!r}")
        self.window = window

    def far(self, tokens: Tokens, at: Chain, side: Side) -> Tensor | None:
        """Return the angles of far queries or far keys; None for keys: they are those of near ones."""
        raise NotImplementedError

    def rewrite(self, problem: Attention) -> Problem:
        """Make the two scores."""
        name = type(self).__name__
        if problem.branches or problem.product is not None or problem.kernel is not None:
            raise CannotCompose(f"{name} makes two scores of one dot product; the problem has several, or none")
        if not problem.causal:
            raise NotCausal(f"{name} is about the distance to earlier keys; it is defined for causal attention only")
        p = super().rewrite(problem)
        assert isinstance(p, Attention)
        q = self._far_tables(p.where.query, p, "query")
        k = self._far_tables(p.where.key, p, "key")
        assert q is not None
        p = p.with_features(
            q={"far": self.turn(problem.q, q, p)}, k={} if k is None else {"far": self.turn(problem.k, k, p)}
        )
        place, far = p.coordinate(), p.name("far")
        where = Mask("far", AtLeast(self.window), (place,), (place,))
        return p.replace(branches=(Branch(), Branch(q=far, k=None if k is None else far, where=where)))

    def _far_tables(self, tokens: Tokens, p: Attention, side: Side) -> tuple[Tensor, Tensor] | None:
        at, dtype = p.at, table_dtype(p.q)

        def make() -> tuple[Tensor, Tensor] | None:
            check_axes(self, tokens.coordinates(at), self.axes)
            angles = self.far(tokens, at, side)
            return None if angles is None else rotation.tables(angles[:, None], dtype, self.magnitude, self.pairing)

        if any(m.learned for m in at):
            return make()
        return tokens.memo(lambda: ("far", side, self.key(), tuple(m.key for m in at), dtype), make)

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        """Turn the stored keys on, near and far ones each by the difference of their own angles."""
        p = super().move(problem, tokens)
        now, was = (self.far(t, p.at, "key") for t in (tokens, p.where.key))
        if now is None or was is None:
            return p
        tables = rotation.tables((now - was)[:, None], table_dtype(p.k))
        return p.with_features(k={"far": self.turn(p.kf[p.name("far")], tables, p)})

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, window={self.window}"
