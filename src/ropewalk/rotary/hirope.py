"""HiRoPE, hierarchical rotary positions for code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropewalk.core.attention import Attention, Problem
from ropewalk.core.errors import ConfigError, PositionError, ShapeError, check_positive, suggest
from ropewalk.core.positions import Chain, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.checks import check_length
from ropewalk.frequencies.spectrum import Spectrum, check_base, check_rotary_width
from ropewalk.rotary.two_scores import Side, TwoScores

TokenIndex = Literal["global", "segment"]

CODE = "rw.code_positions(source, offsets)"
"""The call that makes positions with segments."""


class HiRoPE(TwoScores):
    """s_ij = Σ_p ⟨R(Δ_p ω_p) q_i, k_j⟩ / √d,  Δ = i − j if that is below W;  beyond, Δ = i − j in the first (fast) pairs and
    n_i − n_j + W − 1 in the others, n the number of the function or class that a token is in.

    A model fails beyond its training length because its slow pairs meet angles they never saw. Here they count functions
    instead of tokens, while short distances stay as they were. Where the functions are is the column "segment" of the
    positions: `ropewalk.code_positions` reads it from source code. Tokens that are decoded stay in the last segment
    unless their positions say otherwise.

    Args:
        head_dim: width d of a head, even; None: taken from the first problem.
        split: d_s, channels that go on counting tokens, even; None: half of them (`split_from_pretrain_length` gives what
            the paper finds safe). Several widths, from fine to coarse, make several levels: "segment" is (b, S, levels − 1).
        window: W, in tokens, 512 in the paper; None: an eighth of the trained context. Texts up to W are exactly RoPE.
        base: of the frequencies.
        pairing: "half" as in Llama, or "interleaved". "First" pairs are the first in frequency, whatever the pairing.
        segment_length: a segment every so many tokens instead of a column, for plain text; 128 in the paper.
        token_index: "global": the fast pairs count all tokens, so that split = d is RoPE; "segment": tokens since the
            segment began (column "intra", which `code_positions` gives too), the other reading of the paper.
        train_length: tokens of the trained context.
        spectrum: other frequencies than the geometric ones, as in `RoPE`.

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); positions (b, S) in tokens; "segment" (b, S), whole numbers that do not
    fall. A cache holds every key twice.

    Raises:
        ConfigError: a split that is odd or wider than a head, a window below 1.
        PositionError: a segment index that falls, or of another number of levels.
        NeedsColumn: positions without segments.
        NotCausal: the problem is not causal.

    Source: Kechi Zhang, Ge Li, Huangzhao Zhang, Zhi Jin. HiRoPE: Length Extrapolation for Code Models Using Hierarchical
    Position. arXiv 2403.19115, 2024.
    """

    def __init__(
        self,
        head_dim: int | None = None,
        split: int | Sequence[int] | None = None,
        window: int | None = None,
        base: float = 10_000.0,
        pairing: Pairing = "half",
        *,
        segment_length: int | None = None,
        token_index: TokenIndex = "global",
        train_length: int = 4096,
        spectrum: Spectrum | None = None,
    ) -> None:
        super().__init__(head_dim, window, base, pairing, train_length=train_length, spectrum=spectrum)
        check_positive(segment_length=segment_length)
        if token_index not in get_args(TokenIndex):
            hint = suggest(token_index, get_args(TokenIndex))
            raise ConfigError(f"token_index is 'global' or 'segment'; got {token_index!r}.{hint}")
        self.split = tuple(split) if isinstance(split, Sequence) else split
        self.segment_length, self.token_index = segment_length, token_index
        if segment_length is not None and isinstance(split, Sequence) and len(split) != 2:
            raise ConfigError("segments of equal length make one level above the tokens: give split as one number")
        if self.head_dim is not None:
            _widths(self.split, 2 * len(self.inv_freq))

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each level, from fine to coarse."""
        return _widths(self.split, 2 * len(self.inv_freq))

    def rewrite(self, problem: Attention) -> Problem:
        self.fit(problem.q.shape[-1])
        if self.segment_length is None and self.widths[0] < sum(self.widths):
            _check_rising(problem.where.query)
            _check_rising(problem.where.key)
        return super().rewrite(problem)

    def far(self, tokens: Tokens, at: Chain, side: Side) -> Tensor | None:
        position = tokens.coordinates(at)
        apart = self.window - 1 if side == "query" else 0
        coarse = self._levels(tokens, position) + apart
        if self.token_index == "segment":
            length = self.segment_length
            fine = (
                tokens.column("intra", CODE).double()
                if length is None
                else position - length * (position / length).floor()
            )
        else:
            fine = position
        inv_freq = self.exact("inv_freq", position.device)
        angles, first = torch.zeros((), dtype=torch.float64, device=position.device), 0
        for width, count in zip(self.widths, (fine, *coarse.unbind(-1)), strict=True):
            planes = torch.arange(len(inv_freq), device=position.device)
            mine = (planes >= first // 2) & (planes < (first + width) // 2)
            angles, first = angles + count[..., None] * (inv_freq * mine), first + width
        return angles

    def _levels(self, tokens: Tokens, position: Tensor) -> Tensor:
        """Return the indices above the tokens, from fine to coarse, (b, S, levels − 1)."""
        if self.segment_length is not None:
            return (position / self.segment_length).floor()[..., None]
        above = len(self.widths) - 1
        if self.widths[0] == sum(self.widths):  # no pair counts segments, so nobody has to know them
            return position.new_zeros(*position.shape, above)
        segment = tokens.column("segment", CODE)
        segment = segment[..., None] if segment.ndim == 2 else segment
        if segment.shape[2] != above:
            raise PositionError(
                f"split={self.split} has {above} levels above the tokens, and the column 'segment' has {segment.shape[2]}"
            )
        return segment.double()

    def extra_repr(self) -> str:
        more = "" if self.segment_length is None else f", segment_length={self.segment_length}"
        return f"{super().extra_repr()}, split={self.split or 'half'}{more}"


def split_from_pretrain_length(length: float, head_dim: int, base: float = 10_000.0) -> int:
    """Return d log_base(L / 2π), rounded down to even channels: those whose planes turned around in pre-training.

    They saw every angle, so they can go on counting tokens.

    Args:
        length: L, tokens of the pre-training context.
        head_dim: d.
        base: of the frequencies.

    Example:
        >>> split_from_pretrain_length(4096, 128)
        90

    Source: see `HiRoPE`.
    """
    check_length("length", length)
    check_rotary_width(head_dim)
    check_base(base)
    if base <= 1:
        raise ConfigError(f"base {base:g} makes no slower and slower planes; it is above 1")
    channels = head_dim * math.log(length / (2 * math.pi)) / math.log(base)
    return min(max(2 * math.floor(channels / 2), 0), head_dim)


def _widths(split: int | tuple[int, ...] | None, width: int) -> tuple[int, ...]:
    """Return the channels of each level, from fine to coarse."""
    if split is None:
        split = width // 4 * 2
    widths = split if isinstance(split, tuple) else (split, width - split)
    plain = all(isinstance(w, int) and not isinstance(w, bool) for w in widths)
    if not plain or len(widths) < 2 or sum(widths) != width or any(w < 0 or w % 2 for w in widths):
        raise ConfigError(
            f"split={split!r} of {width} channels that turn: give an even number from 0 to {width}, or even widths of two levels "
            f"or more that add up to {width}"
        )
    return tuple(widths)


def _check_rising(tokens: Tokens) -> None:
    """Check that no real token of a document is in an earlier segment than the one before it."""

    def look() -> bool:
        segment = tokens.column("segment", CODE)
        if segment.ndim not in (2, 3):
            raise ShapeError(
                f"the column 'segment' has shape {tuple(segment.shape)}; expected (b, S) or (b, S, levels)"
            )
        if is_compiling() or segment.is_meta or segment.shape[1] < 2:
            return True
        # Levels nest: a finer one may only start again where a coarser one went on; the paper counts all of them on.
        flat = segment if segment.ndim == 3 else segment[..., None]
        falls = (flat[:, 1:] < flat[:, :-1]).any(-1)
        for name in ("document", "valid"):
            if (column := tokens.columns.get(name)) is not None:
                same = column[:, 1:] == column[:, :-1] if name == "document" else column[:, 1:] & column[:, :-1]
                falls = falls & same
        if bool(falls.any()):
            raise PositionError(
                "the column 'segment' falls from one token to the next; segments are numbered in the order of the text"
            )
        return True

    tokens.memo(lambda: "segments do not fall", look)
