"""PSC, phase shift calibration: a learned, bounded correction of q and k around RoPE."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from ropewalk.core import rotation
from ropewalk.core.attention import Attention, Problem
from ropewalk.core.combinators import Sequential
from ropewalk.core.encoding import Encoding, full_precision, table_dtype
from ropewalk.core.errors import CannotEdit, ConfigError, ShapeError, check_positive, suggest
from ropewalk.core.positions import Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum, check_rotary_width
from ropewalk.rotary.rope import RoPE

Place = Literal["pre", "post", "rotation"]


class Calibration(Encoding):
    """x → x (1 + tanh(y) / 2),  y = silu(x U_h) D_h: each head scales its channels by between 0.5 and 1.5.

    U starts at 0, so that nothing changes at first. With ``place="rotation"``, which is our reading of the paper's idea and not
    its code, pairs of channels are turned by the angles y instead, D_h of half the width.

    Args:
        head_dim: width d of a head, even.
        num_heads: query heads H.
        num_kv_heads: key heads, each with its own U and D; None: as many.
        place: "pre" before RoPE as released, "post" after it (the gain then sees the position: not relative), "rotation".
        pairing: of the channels, for "rotation".

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); q_phase_up, q_phase_down (H, d, d), k_phase_up, k_phase_down (H_kv, d, d); for
    "rotation" the latter (…, d, d/2). Parameters are float32 whatever the model is cast to.

    Raises:
        ConfigError: an unknown place, an odd width.
        ShapeError: a problem with other heads.

    Source: Wenqiao Zhu, Chao Xu, Lulu Wang, Jun Wu. PSC: Extending Context Window of Large Language Models via Phase Shift
    Calibration. arXiv 2505.12423, 2025.
    """

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        place: Place = "pre",
        pairing: Pairing = "half",
    ) -> None:
        super().__init__()
        check_rotary_width(head_dim)
        check_positive(head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads)
        if place not in get_args(Place):
            raise ConfigError(f"place is 'pre', 'post' or 'rotation'; got {place!r}.{suggest(place, get_args(Place))}")
        self.head_dim, self.num_heads = head_dim, num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.place, self.pairing = place, rotation.check_pairing(pairing)
        out = head_dim // 2 if place == "rotation" else head_dim
        self.q_phase_up = nn.Parameter(torch.zeros(num_heads, head_dim, head_dim))
        self.q_phase_down = nn.Parameter(torch.empty(num_heads, head_dim, out))
        self.k_phase_up = nn.Parameter(torch.zeros(self.num_kv_heads, head_dim, head_dim))
        self.k_phase_down = nn.Parameter(torch.empty(self.num_kv_heads, head_dim, out))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Make it the identity."""
        with torch.no_grad():
            for up, down in ((self.q_phase_up, self.q_phase_down), (self.k_phase_up, self.k_phase_down)):
                up.zero_()
                nn.init.kaiming_uniform_(down, a=math.sqrt(5))

    def rewrite(self, problem: Attention) -> Problem:
        """Calibrate q and k."""
        p = problem
        if p.q.shape[-1] != self.head_dim:
            raise ShapeError(f"PSC was made for head_dim {self.head_dim} and the problem has {p.q.shape[-1]}")
        q = [p.head_slice(w) for w in (self.q_phase_up, self.q_phase_down)]
        k = [p.kv_head_slice(w) for w in (self.k_phase_up, self.k_phase_down)]
        return p.map_queries(lambda x: self._calibrated(x, *q)).map_keys(lambda x: self._calibrated(x, *k))

    def _calibrated(self, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        dtype = table_dtype(x)
        with full_precision(x):
            wide = x.to(dtype)
            y = silu(wide @ up.to(dtype)) @ down.to(dtype)
            if self.place == "rotation":
                return rotation.rotate(x, y.cos(), y.sin(), self.pairing)
            return (wide * (1 + y.tanh() / 2)).to(x.dtype)

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        """Change nothing where the correction came before the position; refuse where it saw it."""
        if self.place == "post":
            raise CannotEdit(
                "the gain of PSC after the rotation depends on the position; encode the edited sequence anew"
            )
        return problem

    def extra_repr(self) -> str:
        return f"{self.head_dim}, {self.num_heads}, {self.num_kv_heads}, place={self.place}"


def psc(
    head_dim: int,
    num_heads: int,
    num_kv_heads: int | None = None,
    *,
    place: Place = "pre",
    base: float = 10_000.0,
    pairing: Pairing = "half",
    spectrum: Spectrum | None = None,
) -> Sequential:
    """q, k → x (1 + tanh(silu(x U_h) D_h) / 2), then RoPE with rescaled frequencies.

    Frequencies that a schedule sets a little wrong turn each pair by a wrong phase; `Calibration`, trained together with
    adapters of a frozen model (`train_only`), makes up for it.

    Args:
        head_dim: width of a head, even.
        num_heads: query heads.
        num_kv_heads: key heads; None: as many.
        place: as in `Calibration`.
        base: of the frequencies.
        pairing: "half" as in Llama, or "interleaved".
        spectrum: of a schedule, such as ``geometric(64).yarn(16, 4096)``.

    Source: Wenqiao Zhu, Chao Xu, Lulu Wang, Jun Wu. PSC: Extending Context Window of Large Language Models via Phase Shift
    Calibration. arXiv 2505.12423, 2025.
    """
    calibration = Calibration(head_dim, num_heads, num_kv_heads, place=place, pairing=pairing)
    rope = RoPE(head_dim, base, pairing, spectrum=spectrum)
    return Sequential(rope, calibration) if place == "post" else Sequential(calibration, rope)


def train_only(model: nn.Module, *parts: str) -> list[str]:
    """Freeze a model but for the parameters whose names have one of these parts; return their names.

    Args:
        model: changed in place.
        parts: of names; "lora" and "phase" if none is given, as published.

    Raises:
        ConfigError: no parameter is left to train.
    """
    wanted = parts or ("lora", "phase")
    trained = []
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(part in name.lower() for part in wanted))
        if parameter.requires_grad:
            trained.append(name)
    if not trained:
        raise ConfigError(f"no parameter of {type(model).__name__} has {' or '.join(map(repr, wanted))} in its name")
    return trained
