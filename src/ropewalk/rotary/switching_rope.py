"""CONFLATOR's rotary codes, which turn back where the language changes."""

from __future__ import annotations

from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from ropewalk.coordinates.switching import TAGGED, Form, switched
from ropewalk.core.encoding import Rotary
from ropewalk.core.errors import ConfigError, ShapeError, check_positive, suggest
from ropewalk.core.positions import Chain, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import check_base, check_rotary_width, geometric

RotaryForm = Literal["token", "parity", "zigzag", "segment", "split", "flag"]


class SwitchingRoPE(Rotary):
    """Pair i turns by u_t ω_i,  ω_i = base^(−2i/d),  u_t = (1 − 2 SP_t) t,  SP_t = 1 where the language changes at token t.

    In a text of one language every form is RoPE. Where languages change these codes are not relative, on purpose: logits between
    a switch at i and another token at j see i + j. Causality goes by the order of the tokens: u repeats and runs backwards.

    Args:
        head_dim: width d of a head, even.
        form: what "inverted at a switch" means, which the abstract leaves open. "token": as above. "parity": u_t = (−1)^c t, c
            the switches so far. "zigzag": a walk with steps of 1 that turns around at every switch. Further: "segment": tokens
            since the last switch. "split": of the d/2 pairs the last ⌊d/4⌋ turn by c, the others by t, both from ω_0 on. "flag":
            by t ω_i + SP_t φ_i, φ learned from 0.
        base: of the frequencies.
        pairing: "half" or "interleaved".

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); positions (b, S) in tokens, with the columns of
    `ropewalk.switching_positions`, for the new tokens of a decoding step too (it carries a state).

    Raises:
        NeedsColumn: positions that know of no switches.

    Source: Mohsin Ali, Kandukuri Sai Teja, Neeharika Gupta, Parth Patwa, Anubhab Chatterjee, Vinija Jain, Aman Chadha, Amitava
    Das. CONFLATOR: Incorporating Switching Point based Rotatory Positional Encodings for Code-Mixed Language Modeling.
    arXiv 2309.05270, 2023. The forms are our reading of a listener's note.
    """

    inv_freq: Tensor
    phi: nn.Parameter | None

    def __init__(
        self, head_dim: int, form: RotaryForm = "token", base: float = 10_000.0, *, pairing: Pairing = "half"
    ) -> None:
        super().__init__(pairing)
        check_rotary_width(head_dim)
        check_positive(head_dim=head_dim)
        check_base(base)
        forms = get_args(RotaryForm)
        if form not in forms:
            raise ConfigError(f"form is one of {', '.join(forms)}; got {form!r}.{suggest(form, forms)}")
        self.head_dim, self.form, self.base = head_dim, form, float(base)
        self.axes = 2 if form in ("split", "flag") else None  # type: ignore[misc]
        self.phi = nn.Parameter(torch.zeros(head_dim // 2)) if form == "flag" else None
        self.derive("inv_freq", self._inverse_frequencies)

    def _inverse_frequencies(self) -> Tensor:
        return geometric(self.head_dim, self.base).tensor()

    def fit(self, head_dim: int) -> None:
        if head_dim != self.head_dim:
            raise ShapeError(f"{type(self).__name__} was made for head_dim {self.head_dim}; the problem has {head_dim}")

    def coordinates(self, tokens: Tokens, chain: Chain) -> Tensor:
        t = tokens.coordinates(chain)
        if self.axes is None:
            return switched(tokens, t, cast("Form", self.form))
        second = switched(tokens, t, "count") if self.form == "split" else tokens.column("switch", TAGGED).double()
        return torch.stack(torch.broadcast_tensors(t, second), -1)

    def angles(self, position: Tensor) -> Tensor:
        inv_freq = self.exact("inv_freq", position.device)
        if self.axes is None:
            return position[..., None] * inv_freq
        t, second = position[..., :1], position[..., 1:]
        if self.phi is not None:
            return t * inv_freq + second * self.phi.double()
        counting = self.head_dim // 4
        return torch.cat([t * inv_freq[: len(inv_freq) - counting], second * inv_freq[:counting]], -1)

    def extra_repr(self) -> str:
        return f"{self.head_dim}, form={self.form}, base={self.base}, pairing={self.pairing}"
