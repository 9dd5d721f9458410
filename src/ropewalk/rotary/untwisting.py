"""Untwisting RoPE: reference keys of shared attention, weaker where frequencies are high and stronger where they are low."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from ropewalk.backends import attend
from ropewalk.coordinates.denoising import calls_of
from ropewalk.coordinates.shared_grid import REFERENCE
from ropewalk.core.attention import Attention, Problem
from ropewalk.core.combinators import Sequential
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import ConfigError, ShapeError, suggest
from ropewalk.core.positions import Tokens
from ropewalk.core.rotation import Pairing, check_pairing
from ropewalk.frequencies.spectrum import check_rotary_width
from ropewalk.rotary.axial import AxialRoPE, axis_widths

FirstAxis = Literal["curve", "low", "constant"]
Ends = float | tuple[float, float]
"""A gain, or its values in the first and in the last step."""


class ReferenceGain(Encoding):
    """k_j → s ∘ k_j for keys of a reference image,  s_d = s_hf + (s_lf − s_hf) (d / (P − 1))^β for pair d of the P of an axis.

    High frequencies tie a query to the reference token at its own place, and copy content; low ones find what means the same.
    A gain of a pair commutes with its rotation, so this goes before or after the encoding that turns. Keys of the target,
    queries and values are left alone: it is about queries of the target, and the reference itself is attended to apart.

    Args:
        widths: channels of each axis, in the order of the rotary encoding beside it; what is left of a head keeps gain 1.
        high: s_hf; (first, last) grows with the steps of denoising.
        low: s_lf likewise.
        beta: β; 1 is linear, and a large one leaves all but the slowest pairs near s_hf.
        first_axis: "curve": all axes alike. "low": s_lf on the first one, whose coordinate is constant in FLUX. "constant": a
            value of its own there, such as 1 for the time of a video.
        constant: that value.
        pairing: "interleaved" or "half", of the rotary encoding beside it.

    Shapes: k (B, H_kv, K, d); positions with a column "reference" on the key side (`ropewalk.shared_grid_positions`), 0 for keys
    of the target. With gains that grow, positions say at which step they are (`ropewalk.at_step`); a cache holds keys without
    gains.

    Raises:
        ConfigError: gains that are negative or shrink, an unknown policy.
        NeedsColumn: positions that do not say which keys are of a reference, or at which step they are.
        ShapeError: heads narrower than the axes.

    Source: Aryan Mikaeili, Or Patashnik, Andrea Tagliasacchi, Daniel Cohen-Or, Ali Mahdavi-Amiri. Untwisting RoPE: Frequency
    Control for Shared Attention in DiTs. arXiv 2602.05013, 2026. The numbers of the defaults are those of a port.
    """

    stores = "raw"

    def __init__(
        self,
        widths: Sequence[int],
        high: Ends = (0.25, 0.75),
        low: Ends = (1.0, 1.4),
        beta: float = 2.0,
        *,
        first_axis: FirstAxis = "curve",
        constant: float = 1.0,
        pairing: Pairing = "interleaved",
    ) -> None:
        super().__init__()
        self.widths, self.pairing = _widths(widths), check_pairing(pairing)
        self.high, self.low = _ends(high, "high"), _ends(low, "low")
        self.first_axis, self.beta, self.constant = first_axis, float(beta), float(constant)
        frequency_gain(self.widths, 1.0, 1.0, beta, first_axis=first_axis, constant=constant)  # checks them

    def gains(self, tokens: Tokens) -> Tensor:
        """Return the gain of each pair at the step of the tokens, (b, P) in float64."""
        ends = torch.tensor([self.high, self.low], dtype=torch.float64, device=tokens.device)
        if self.high[0] == self.high[1] and self.low[0] == self.low[1]:
            high, low = ends[:, :1]
        else:
            high, low = gain_schedule(calls_of(tokens), ends[0], ends[1])
        return frequency_gain(
            self.widths, high[:, None], low[:, None], self.beta, first_axis=self.first_axis, constant=self.constant
        )

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        tokens = p.where.key
        if sum(self.widths) > p.head_dim:
            raise ShapeError(f"axes of {sum(self.widths)} channels and heads of {p.head_dim}")
        referred = (tokens.column(REFERENCE, "rw.shared_grid_positions(target, references)") > 0)[:, None, :, None]
        gain = channel_gain(self.gains(tokens), p.head_dim, self.pairing)[:, None, None]
        factor = torch.where(referred, gain, 1.0)
        return p.map_keys(lambda k: k * factor.to(k.dtype))

    def extra_repr(self) -> str:
        return f"{list(self.widths)}, high={self.high}, low={self.low}, beta={self.beta}, first_axis={self.first_axis}"


class UntwistingRoPE(Sequential):
    """RoPE on several axes, and then `ReferenceGain` on the keys of reference images.

    Args:
        head_dim: width d of a head.
        axes: axes of a position.
        high: see `ReferenceGain`.
        low: likewise.
        beta: likewise.
        widths: channels of each axis; None: equal shares.
        base: of the frequencies.
        first_axis: see `ReferenceGain`.
        constant: likewise.
        pairing: of both.

    Shapes, errors, source: see `ReferenceGain`.
    """

    def __init__(
        self,
        head_dim: int,
        axes: int = 2,
        high: Ends = (0.25, 0.75),
        low: Ends = (1.0, 1.4),
        beta: float = 2.0,
        *,
        widths: Sequence[int] | None = None,
        base: float = 10_000.0,
        first_axis: FirstAxis = "curve",
        constant: float = 1.0,
        pairing: Pairing = "interleaved",
    ) -> None:
        shares = axis_widths(head_dim, axes, widths)
        gain = ReferenceGain(shares, high, low, beta, first_axis=first_axis, constant=constant, pairing=pairing)
        super().__init__(AxialRoPE(head_dim, axes, widths=shares, base=base, pairing=pairing), gain)


# ---- gains -----------------------------------------------------------------------------------------------------------


def frequency_gain(
    widths: Sequence[int],
    high: float | Tensor,
    low: float | Tensor,
    beta: float = 2.0,
    *,
    first_axis: FirstAxis = "curve",
    constant: float = 1.0,
) -> Tensor:
    """Return the gain of each pair: s_hf on the fastest of an axis, s_lf on its slowest, (P,), or (..., P) for ends (..., 1).

    Args:
        widths: channels of each axis.
        high: s_hf, also with gradients.
        low: s_lf likewise.
        beta: of the curve between.
        first_axis: see `ReferenceGain`.
        constant: likewise.
    """
    policies = get_args(FirstAxis)
    if first_axis not in policies:
        raise ConfigError(
            f"first_axis is one of {', '.join(policies)}; got {first_axis!r}.{suggest(first_axis, policies)}"
        )
    if not (math.isfinite(beta) and beta > 0) or not (math.isfinite(constant) and constant >= 0):
        raise ConfigError(f"beta is positive and constant not negative; got {beta!r} and {constant!r}")
    given = [x for x in (high, low) if isinstance(x, Tensor)]
    device, dtype = (given[0].device, given[0].dtype) if given else (None, torch.float64)
    parts = []
    for axis, width in enumerate(_widths(widths)):
        pairs = width // 2
        curve = (torch.arange(pairs, dtype=dtype, device=device) / max(pairs - 1, 1)) ** beta
        gain = high * (1 - curve) + low * curve  # both ends exactly
        if axis == 0 and first_axis == "low":
            gain = low + 0 * curve
        elif axis == 0 and first_axis == "constant":
            gain = constant + 0 * gain
        parts.append(gain)
    return torch.cat(parts, -1)


def channel_gain(gain: Tensor, head_dim: int, pairing: Pairing = "interleaved") -> Tensor:
    """Give each channel the gain of its pair, and 1 to those behind the pairs: (..., P) → (..., head_dim)."""
    pairs = gain.shape[-1]
    if 2 * pairs > head_dim:
        raise ShapeError(f"gains of {pairs} pairs need {2 * pairs} channels; the head has {head_dim}")
    turned = gain.repeat_interleave(2, -1) if pairing == "interleaved" else torch.cat([gain, gain], -1)
    return torch.cat([turned, turned.new_ones(*turned.shape[:-1], head_dim - 2 * pairs)], -1)


def gain_schedule(calls: Tensor, high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """Return s_hf and s_lf at a part of the calls of the denoiser, both linear between their ends.

    Args:
        calls: n / (N − 1) from 0 to 1, any shape.
        high: (2,) first and last.
        low: likewise.
    """
    return torch.lerp(high[0], high[1], calls), torch.lerp(low[0], low[1], calls)


# ---- shared attention ------------------------------------------------------------------------------------------------


def shared_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_reference: Tensor,
    v_reference: Tensor,
    gain: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Tensor:
    """softmax(q [k, s ∘ k_r]ᵀ / √d) [v, v_r]: queries of a target see their own keys and those of a reference.

    Args:
        q: (B, H, N, d), encoded.
        k: (B, H_kv, N, d) of the target, its text among them.
        v: (B, H_kv, N, d_v) likewise.
        k_reference: (B or 1, H_kv, N_r, d) of the image tokens of the reference.
        v_reference: likewise.
        gain: (d,) of the channels of reference keys (`channel_gain`); None: 1.
        mask: (N, N) or (B or 1, H or 1, N, N) of the target; its queries see every reference token.
        scale: of the logits; None: 1/√d.
        backend: see `ropewalk.attend`.

    Raises:
        ShapeError: a reference of other heads, widths or batch, or values of another length than its keys.
    """
    for name, own, other in (("k", k, k_reference), ("v", v, v_reference)):
        fits = (
            own.ndim == other.ndim == 4 and own.shape[1::2] == other.shape[1::2] and other.shape[0] in (1, own.shape[0])
        )
        if not fits:
            raise ShapeError(
                f"{name} {tuple(own.shape)} and that of the reference {tuple(other.shape)}: batch, heads, width differ"
            )
    if k_reference.shape[2] != v_reference.shape[2]:
        raise ShapeError(f"a reference of {k_reference.shape[2]} keys and {v_reference.shape[2]} values")
    if gain is not None:
        if gain.shape[-1] != k.shape[-1]:
            raise ShapeError(
                f"gain {tuple(gain.shape)} for {k.shape[-1]} channels; channel_gain makes one of gains of pairs"
            )
        k_reference = k_reference * gain.to(k_reference.dtype)
    rows = k.shape[0]
    keys, values = (torch.cat([a, b.expand(rows, -1, -1, -1)], 2) for a, b in ((k, k_reference), (v, v_reference)))
    if mask is not None:
        mask = torch.cat([mask, mask.new_ones(*mask.shape[:-1], k_reference.shape[2])], -1)
    return attend(Attention(q, keys, values, causal=False, scale=scale, mask=mask), backend)


def adain(x: Tensor, reference: Tensor, strength: float = 1.0, eps: float = 1e-6) -> Tensor:
    """(1 − α) x + α ((x − μ_x) σ_r / σ_x + μ_r): x with the statistics over tokens that a reference has, a head and channel.

    For q and k of the target before they are turned, as StyleAligned does.

    Args:
        x: (B, H, N, d).
        reference: (B or 1, H, N_r, d).
        strength: α.
        eps: added to variances, which divide by the number of tokens.
    """
    if x.shape[1] != reference.shape[1] or x.shape[-1] != reference.shape[-1] or not 0 <= strength <= 1:
        raise ShapeError(
            f"x {tuple(x.shape)}, reference {tuple(reference.shape)}, strength {strength} of [0, 1]: they do not fit"
        )
    (mean, deviation), (to_mean, to_deviation) = (
        (t.mean(2, keepdim=True), (t.var(2, correction=0, keepdim=True) + eps).sqrt()) for t in (x, reference)
    )
    return torch.lerp(x, (x - mean) / deviation * to_deviation + to_mean, strength)


def _widths(widths: Sequence[int]) -> tuple[int, ...]:
    if not widths:
        raise ConfigError("widths are the channels of each axis; got none")
    for width in widths:
        check_rotary_width(width)
    return tuple(widths)


def _ends(ends: Ends, name: str) -> tuple[float, float]:
    pair = tuple(float(x) for x in ends) if isinstance(ends, tuple) else (float(ends), float(ends))
    if len(pair) != 2 or not all(math.isfinite(x) and x >= 0 for x in pair) or pair[0] > pair[1]:
        raise ConfigError(
            f"{name} is a gain, or its first and its last, which is not smaller; none negative; got {ends!r}"
        )
    return pair[0], pair[1]
