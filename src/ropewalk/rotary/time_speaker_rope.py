"""TS-RoPE: time and the turns of each speaker, on pairs of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.coordinates.allocation import Allocation
from ropewalk.core import rotation
from ropewalk.core.attention import Attention, Problem
from ropewalk.core.encoding import Rotary, check_axes, table_dtype
from ropewalk.core.errors import ConfigError, PositionError, ShapeError, check_positive
from ropewalk.core.positions import Chain, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import check_base


class TimeSpeakerRoPE(Rotary):
    """Pair p turns by c_{a(p)} ω_p,  a = time, speaker 1, time, speaker 2, … in turn,  ω_p = base^(−2p/d);  c of a speaker is
    C + π for keys and C + 1 for queries, C his turns so far and π ∈ [0, 1] his activity in the frame.

    Frames of one turn of a speaker are near each other on his axis, and a new turn is a jump. Queries ask for frames in which a
    speaker is fully active: where he is not, they are 1 − π away from their own keys. A speaker has frequencies of his own, so
    their order matters.

    Args:
        head_dim: width d of a head, a multiple of 4 × speakers.
        speakers: S.
        base: of the frequencies, one ladder over all pairs.
        turns: count turns; without, C = 0.
        activity: read π; without, keys and queries are at C.
        query_bias: queries at C + 1; without, they are where keys are.
        pairing: "interleaved" or "half".

    Shapes: q (B, H, T, d), k (B, H_kv, T, d); positions (b, T) in frames, with the columns "activity" and "turns" (b, T, S):
    `ropewalk.speaker_positions` makes them. Gradients go through π, not through C.

    Raises:
        ConfigError: a width that cannot be dealt out.
        NeedsColumn: positions without speakers.
        PositionError: as many speakers as the encoding does not know.

    Source: Yifan Hu, Peiji Yang, Zhisheng Wang, Yicheng Zhong, Rui Liu. TellWhisper: Tell Whisper Who Speaks When.
    arXiv 2601.03712, 2026. When a turn begins, and that frequencies do not start again for each axis, is our reading.
    """

    inv_freq: Tensor

    def __init__(
        self,
        head_dim: int,
        speakers: int = 4,
        base: float = 10_000.0,
        *,
        turns: bool = True,
        activity: bool = True,
        query_bias: bool = True,
        pairing: Pairing = "interleaved",
    ) -> None:
        super().__init__(pairing)
        check_base(base)
        check_positive(head_dim=head_dim, speakers=speakers)
        if head_dim % (4 * speakers):
            raise ConfigError(
                f"head_dim {head_dim} is not dealt out evenly to time and {speakers} speakers, pair by pair in turn; give a "
                f"multiple of {4 * speakers}"
            )
        self.head_dim, self.speakers, self.base = head_dim, speakers, float(base)
        self.counts_turns, self.reads_activity, self.query_bias = turns, activity, query_bias
        self.axes = 1 + speakers  # type: ignore[misc]
        group = [axis for s in range(speakers) for axis in (0, 1 + s)]
        names = ("time", *(f"s{s + 1}" for s in range(speakers)))
        self.allocation = Allocation((tuple(group) * (head_dim // (4 * speakers)),), names)
        self.derive("inv_freq", self._inverse_frequencies)

    def _inverse_frequencies(self) -> Tensor:
        return self.allocation.frequencies(self.base)

    def fit(self, head_dim: int) -> None:
        if head_dim != self.head_dim:
            raise ShapeError(f"{type(self).__name__} was made for head_dim {self.head_dim}; the problem has {head_dim}")

    def coordinates(self, tokens: Tokens, chain: Chain) -> Tensor:
        return self._place(tokens, chain, asks=False)

    def _place(self, tokens: Tokens, chain: Chain, *, asks: bool) -> Tensor:
        """Return (time, speakers) of tokens as keys, or as queries, which ask."""
        time = tokens.coordinates(chain)
        if time.ndim != 2:
            raise PositionError(
                f"{type(self).__name__} turns by frames and speakers, and these positions have {time.shape[2]} axes: make them "
                "with rw.speaker_positions(activity)"
            )
        activity, turns = (
            tokens.column(name, "rw.speaker_positions(activity)").double() for name in ("activity", "turns")
        )
        for name, column in (("activity", activity), ("turns", turns)):
            if column.ndim != 3 or column.shape[2] != self.speakers:
                have = f"{column.shape[2]} speakers" if column.ndim == 3 else "none"
                raise PositionError(
                    f"the column {name!r} has {have} and the encoding knows {self.speakers}: give zeros for who is absent, "
                    f"or build it with speakers={column.shape[-1]}"
                )
        place = turns if self.counts_turns else torch.zeros_like(turns)
        if self.reads_activity:
            place = place + (torch.ones_like(activity) if asks and self.query_bias else activity)
        b = max(len(time), len(place))
        return torch.cat([time[..., None].expand(b, -1, -1), place.expand(b, -1, -1)], -1)

    def angles(self, position: Tensor) -> Tensor:
        return (self.allocation.spread(position) * self.exact("inv_freq", position.device)[:, None])[:, 0]

    def _asked(self, tokens: Tokens, chain: Chain, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos and sin of queries."""

        def make() -> tuple[Tensor, Tensor]:
            position = self._place(tokens, chain, asks=True)
            check_axes(self, position, self.axes)
            return rotation.tables(self.angles(position)[:, None], dtype, self.magnitude, self.pairing)

        if any(m.learned for m in chain):
            return make()
        return tokens.memo(lambda: ("asked", self.key(), tuple(m.key for m in chain), dtype), make)

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        self.fit(p.q.shape[-1])
        dtype = table_dtype(p.q)
        asked, told = self._asked(p.where.query, p.at, dtype), self.tables(p.where.key, p.at, dtype)
        return p.map_queries(lambda q: self.turn(q, asked, p)).map_keys(lambda k: self.turn(k, told, p))

    def extra_repr(self) -> str:
        return f"{self.head_dim}, speakers={self.speakers}, base={self.base}, pairing={self.pairing}"
