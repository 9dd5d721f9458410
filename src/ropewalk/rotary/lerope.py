"""LeRoPE, rotary frequencies that are learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ropewalk.core.encoding import Encoding, Rotary
from ropewalk.core.errors import ConfigError, ShapeError, check_positive
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum, check_base, check_rotary_width, geometric

Sharing = Literal["model", "layer", "head"]
Parameterisation = Literal["log", "scale", "direct"]


class LearnedRoPE(Rotary):
    """(a, b) → (a cos pω_m − b sin pω_m, a sin pω_m + b cos pω_m),  ω_m = exp(α_m) base^(−2m/d),  α learned from 0.

    RoPE at the start. One α for all layers and heads, d/2 numbers in a model, learns which wavelengths the text needs: the
    published models keep the fast ones, take long-range position from one of about 2.2 training contexts, and stop the rest.

    ``PerLayer(LearnedRoPE(64), 12)`` holds the one object twelve times, and so do modules that are handed it; register it
    once where a checkpoint must not repeat it. α needs no weight decay and a learning rate of its own: `parameter_groups`.
    What was learned may be frozen (`requires_grad_(False)`), exported as a `Spectrum` and put into another model's `RoPE`.

    Args:
        head_dim: width d of a head, even.
        base: of the frequencies at the start.
        pairing: "half" (channels i, i+d/2) or "interleaved" (2i, 2i+1).
        sharing: "model" as published; "layer": each layer its own; "head": each layer and key head.
        num_kv_heads: key heads, for sharing="head".
        parameterisation: "log" as published; "scale": ω_m = α_m base^(−2m/d) from 1; "direct": ω_m = α_m.
        spectrum: other frequencies at the start than the geometric ones.

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); ``alpha`` (d/2,) or (H_kv, d/2); positions (b, S), integer or real, in tokens.
    Numbers: α in float32 whatever the model is cast to; angles in float64, made anew at every step with their gradient.

    Raises:
        ConfigError: an odd width, sharing="head" without a number of key heads.
        ShapeError: heads of another width, or another number of them.

    Source: Petros Karypis, Sean O'Brien, Shreyas Kadekodi, Rui Zhu, Julian McAuley. LeRoPE: Learnable RoPE Frequencies Improve
    Language Modeling. arXiv 2607.10134, 2026.
    """

    start: Tensor

    def __init__(
        self,
        head_dim: int,
        base: float = 10_000.0,
        pairing: Pairing = "half",
        *,
        sharing: Sharing = "model",
        num_kv_heads: int | None = None,
        parameterisation: Parameterisation = "log",
        spectrum: Spectrum | None = None,
    ) -> None:
        super().__init__(pairing)
        check_rotary_width(head_dim)
        check_base(base)
        check_positive(num_kv_heads=num_kv_heads)
        for name, value, kinds in (
            ("sharing", sharing, Sharing),
            ("parameterisation", parameterisation, Parameterisation),
        ):
            if value not in get_args(kinds):
                raise ConfigError(f"{name} is one of {', '.join(map(repr, get_args(kinds)))}; got {value!r}")
        if sharing == "head" and num_kv_heads is None:
            raise ConfigError("sharing='head' learns frequencies for each key head: give num_kv_heads")
        if spectrum is not None and 2 * len(spectrum.inv_freq) != head_dim:
            raise ConfigError(
                f"a spectrum of {len(spectrum.inv_freq)} planes for head_dim {head_dim}; give {head_dim // 2}"
            )
        self.head_dim, self.base, self.spectrum_at_start = head_dim, float(base), spectrum
        self.sharing, self.parameterisation = sharing, parameterisation
        if spectrum is not None:
            self.magnitude = spectrum.attention_factor
        self.derive("start", self._start)
        shape = (head_dim // 2,) if sharing != "head" else (int(num_kv_heads or 0), head_dim // 2)
        self.alpha = nn.Parameter(torch.zeros(shape))
        self._put(self.start)

    @classmethod
    def from_profile(cls, profile: Spectrum | Sequence[float], base: float = 10_000.0, **options: Any) -> LearnedRoPE:
        """Make one that has learned these frequencies already, such as `lerope_published_profile`."""
        spectrum = profile if isinstance(profile, Spectrum) else Spectrum(tuple(float(w) for w in profile))
        made = cls(2 * len(spectrum.inv_freq), base, **options)
        made.magnitude = spectrum.attention_factor
        made.import_inv_freq(spectrum.tensor())
        return made

    def _start(self) -> Tensor:
        return (self.spectrum_at_start or geometric(self.head_dim, self.base)).tensor()

    def fit(self, head_dim: int) -> None:
        if head_dim != self.head_dim:
            raise ShapeError(
                f"LearnedRoPE was made for head_dim {self.head_dim} and the problem has {head_dim}. To turn the first channels "
                "only, use Partial(LearnedRoPE(n), n)"
            )

    def inverse_frequencies(self) -> Tensor:
        """Return ω, (d/2,) or (H_kv, d/2), float64, with its gradient."""
        alpha = self.alpha.double()
        if self.parameterisation == "direct":
            return alpha
        factor = alpha.exp() if self.parameterisation == "log" else alpha
        return factor * self.exact("start", alpha.device)

    def angles(self, position: Tensor) -> Tensor:
        inv_freq = self.inverse_frequencies().to(position.device)
        if inv_freq.ndim == 1:
            return position[..., None] * inv_freq
        return position[:, None, :, None] * inv_freq[:, None]

    def layer(self, index: int) -> Encoding:
        return self if self.sharing == "model" else super().layer(index)

    # ---- in and out -------------------------------------------------------------------------------------------

    def export_inv_freq(self) -> Tensor:
        """Return ω as a tensor of its own, (d/2,) or (H_kv, d/2), float64 on the CPU."""
        return self.inverse_frequencies().detach().cpu().clone()

    @torch.no_grad()
    def import_inv_freq(self, inv_freq: Tensor) -> None:
        """Set α so that these are the frequencies; one row for all heads, or a row for each key head."""
        last = inv_freq.shape[-1] if inv_freq.ndim else 0
        if (
            inv_freq.ndim not in (1, 2)
            or last != self.head_dim // 2
            or (inv_freq.ndim == 2 and inv_freq.shape != self.alpha.shape)
        ):
            raise ShapeError(f"frequencies of shape {tuple(inv_freq.shape)}; expected {tuple(self.alpha.shape)}")
        values, start = inv_freq.double().cpu(), self.start.cpu()
        wrong = ~values.isfinite()
        if self.parameterisation != "direct":
            wrong |= (start == 0) & (values != 0)
        if self.parameterisation == "log":
            wrong |= (start != 0) & (values <= 0)
        if bool(wrong.any()):
            raise ConfigError(
                f"frequencies {values[wrong].tolist()} cannot be learned so: they are numbers, for parameterisation='log' "
                "above 0, and a plane that does not turn at the start cannot be scaled (use 'direct')"
            )
        self._put(values)

    @torch.no_grad()
    def _put(self, inv_freq: Tensor) -> None:
        value, start = inv_freq.to(self.alpha.device), self.start.to(self.alpha.device)
        if self.parameterisation != "direct":
            value = torch.where(start == 0, 1.0, value / start)  # a plane that does not turn keeps its factor
        if self.parameterisation == "log":
            value = value.log()
        self.alpha.copy_(value.expand_as(self.alpha))

    def spectrum(self) -> Spectrum:
        """Return ω as a `Spectrum`: for `RoPE`, and for the schedules of longer contexts.

        Raises:
            ConfigError: frequencies that differ by head; see `export_inv_freq`.
        """
        if self.sharing == "head":
            raise ConfigError("a Spectrum holds one frequency a plane, and these differ by head; use export_inv_freq()")
        return Spectrum(
            tuple(self.export_inv_freq().tolist()), self.magnitude, origin=f"learned from base {self.base!r}"
        )

    def extra_repr(self) -> str:
        return f"{self.head_dim}, base={self.base}, pairing={self.pairing}, sharing={self.sharing}"


def parameter_groups(
    model: nn.Module, *, lr: float, weight_decay: float, frequency_lr: float | None = None
) -> list[dict[str, Any]]:
    """Return groups for an optimiser: learned frequencies without decay and with their own rate, then everything else.

    Args:
        model: may hold the same `LearnedRoPE` many times; each parameter appears once.
        lr: of everything else.
        weight_decay: of everything else.
        frequency_lr: None: ``lr``. The paper takes the best of a grid of powers 2^(−i/2).

    Raises:
        ConfigError: the model learns no frequencies.
    """
    learned = {id(m.alpha): m.alpha for m in model.modules() if isinstance(m, LearnedRoPE) and m.alpha.requires_grad}
    if not learned:
        raise ConfigError("the model holds no LearnedRoPE whose frequencies are learned")
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in learned]
    return [
        {"params": list(learned.values()), "lr": lr if frequency_lr is None else frequency_lr, "weight_decay": 0.0},
        {"params": rest, "lr": lr, "weight_decay": weight_decay},
    ]
