"""Entity-temporal RoPE (CineOrchestra): cross-attention of a video to captions on a plane of time and entity."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.coordinates.allocation import Allocation
from ropewalk.core import rotation
from ropewalk.core.attention import Attention
from ropewalk.core.encoding import Rotary, check_axes
from ropewalk.core.errors import CannotEdit, ConfigError, PositionError, ShapeError, check_positive
from ropewalk.core.positions import Chain, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import check_base, check_rotary_width


class CrossRoPE2D(Rotary):
    """The first d_t channels turn by t · base_t^(−2i/d_t), the other d_e by k · base_e^(−2i/d_e),  (t, k) time and entity.

    Captions stand at times within their events, so that a frame attends to what happens in it, and at their entity, so that what
    happens at once is not mixed up. With K times a token, each key is the mean of its K rotations: the logit is the mean over
    these times.

    Args:
        head_dim: width d of a head, even.
        entity_dim: d_e, even; None: d/4 rounded down to an even number; 0: time alone.
        base_t: of the frequencies of time, that of the model's own temporal axis.
        base_e: of the frequencies of entities, of which there are few.
        samples: K, times of each token (mode "repeat" of `ropewalk.event_layout`).
        pairing: "interleaved" or "half".

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); positions (b, S, samples + 1) of the times in latent frames and the entity, real.
    `ropewalk.event_layout` makes both sides. Scores are scaled by 1/√d. Turned keys stay what they are from one step of denoising
    to the next, and may be kept.

    Raises:
        ConfigError: channels that cannot be shared out in pairs.
        PositionError: positions of other axes, plain ones among them.
        CannotEdit: keys of several times that are to be moved.

    Source: Sharath Girish, Tsai-Shien Chen, Zhikang Dong, Mukesh Singhal, Hao Chen, Sergey Tulyakov, Aliaksandr Siarohin.
    CineOrchestra: Unified Entity-Centric Conditioning for Cinematic Video Generation. arXiv 2606.13768, 2026. That there is an
    axis of time and one of entities is the paper's; the rule of times, widths, bases and coordinates of queries are our reading.
    """

    inv_freq: Tensor

    def __init__(
        self,
        head_dim: int,
        entity_dim: int | None = None,
        *,
        base_t: float = 10_000.0,
        base_e: float = 100.0,
        samples: int = 1,
        pairing: Pairing = "interleaved",
    ) -> None:
        super().__init__(pairing)
        check_base(base_t)
        check_base(base_e)
        check_rotary_width(head_dim)
        check_positive(head_dim=head_dim, samples=samples)
        width = head_dim // 8 * 2 if entity_dim is None else entity_dim
        if isinstance(width, bool) or not isinstance(width, int) or width % 2 or not 0 <= width < head_dim:
            raise ConfigError(
                f"entity_dim is an even number from 0 to {head_dim - 2}, so that time has a pair too; got {entity_dim!r}"
            )
        self.head_dim, self.entity_dim, self.samples = head_dim, width, samples
        self.base_t, self.base_e = float(base_t), float(base_e)
        self.axes = samples + 1  # type: ignore[misc]
        row = (0,) * ((head_dim - width) // 2) + (1,) * (width // 2)
        self.allocation = Allocation((row,), ("t", "entity"), "own", (self.base_t, self.base_e))
        self.derive("inv_freq", self._inverse_frequencies)

    def _inverse_frequencies(self) -> Tensor:
        return self.allocation.frequencies(self.base_t)

    def fit(self, head_dim: int) -> None:
        if head_dim != self.head_dim:
            raise ShapeError(f"{type(self).__name__} was made for head_dim {self.head_dim}; the problem has {head_dim}")

    def coordinates(self, tokens: Tokens, chain: Chain) -> Tensor:
        if tokens.axes != self.axes:
            have = "plain" if tokens.axes is None else f"{tokens.axes} axes each"
            wants = "(time, entity)" if self.samples == 1 else f"{self.samples} times and the entity"
            raise PositionError(
                f"{type(self).__name__} turns by {wants} and these positions are {have}: make them with rw.event_layout, where "
                "mode='repeat' gives as many times as repeats="
            )
        return tokens.coordinates(chain)

    def angles(self, position: Tensor) -> Tensor:
        """Return the angles at the middle of the times of each token."""
        place = torch.stack([position[..., :-1].mean(-1), position[..., -1]], -1)
        return (self.allocation.spread(place) * self.exact("inv_freq", position.device)[:, None])[:, 0]

    def tables(self, tokens: Tokens, chain: Chain, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if self.samples == 1:
            return super().tables(tokens, chain, dtype)

        def make() -> tuple[Tensor, Tensor]:
            position = self.coordinates(tokens, chain)
            check_axes(self, position, self.axes)
            entity = position[..., -1:]
            each = [self.angles(torch.cat([t, entity], -1)) for t in position[..., :-1].split(1, -1)]
            cos, sin = rotation.tables(torch.stack(each)[:, :, None], torch.float64)
            return cos.mean(0).to(dtype), sin.mean(0).to(dtype)

        if any(m.learned for m in chain):
            return make()
        return tokens.memo(lambda: ("mean", self.key(), tuple(m.key for m in chain), dtype), make)

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        if self.samples > 1:
            raise CannotEdit(
                "a mean of rotations is no rotation, so keys of several times cannot be moved; encode them anew"
            )
        return super().move(problem, tokens)

    def extra_repr(self) -> str:
        return (
            f"{self.head_dim}, {self.entity_dim}, base_t={self.base_t}, base_e={self.base_e}, samples={self.samples}, "
            f"pairing={self.pairing}"
        )
