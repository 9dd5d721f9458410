"""The rotary part of a configuration of transformers as a value, and the frequencies that it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ropewalk.core.errors import ConfigError
from ropewalk.frequencies.fraction import p_rope
from ropewalk.frequencies.longrope import longrope_attention_factor
from ropewalk.frequencies.spectrum import Spectrum, geometric
from ropewalk.frequencies.yarn import yarn_attention_factor

ORIGINAL = "original_max_position_embeddings"

STILL = 1e30
"""A factor of a longrope entry from which a plane counts as standing still: such entries cannot say 0."""

# The keys of each type, besides those of all types.
KEYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": (
        "factor", ORIGINAL, "beta_fast", "beta_slow", "attention_factor", "attn_factor", "mscale", "mscale_all_dim",
        "truncate", "extrapolation_factor",
    ),
    "longrope": ("factor", "short_factor", "long_factor", ORIGINAL, "attention_factor"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL),
    "proportional": ("factor",),
}  # fmt: skip
COMMON = (
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "clip_low_n", "clip_mode", "mrope_section",
    "max_position_embeddings",
)  # fmt: skip
RENAMED = {"su": "longrope", "mrope": "default"}


class Remark(str):
    """What is unusual about a configuration: a sentence, how serious it is, and the number behind it.

    Args:
        text: the sentence.
        severity: "warning": it may be a mistake; "note": it is how things are.
        number: None where there is none.
    """

    severity: Literal["warning", "note"]
    number: float | None

    def __new__(
        cls, text: str, severity: Literal["warning", "note"] = "warning", number: float | None = None
    ) -> Remark:
        """Return the sentence, with the two beside it."""
        made = super().__new__(cls, text)
        made.severity, made.number = severity, number
        return made


@dataclass(frozen=True)
class RopeConfig:
    """The rotary part of a configuration, understood.

    Args:
        rope_type: as transformers names it.
        head_dim: width of a head.
        dim: how much of it is turned.
        base: of the frequencies before scaling.
        parameters: what belongs to the type; nothing in it is None.
        max_length: ``max_position_embeddings``, where given.
        findings: what is unusual, and what was taken.
    """

    rope_type: str
    head_dim: int
    dim: int
    base: float
    parameters: Mapping[str, Any]
    max_length: int | None
    findings: tuple[Remark, ...] = ()

    @property
    def follows_length(self) -> bool:
        """Whether the frequencies depend on the length of what is read."""
        p = self.parameters
        return self.rope_type == "dynamic" or (
            self.rope_type == "longrope" and list(p["short_factor"]) != list(p["long_factor"])
        )

    def spectrum(self, length: float | None = None) -> Spectrum:
        """Return the frequencies, for a context of ``length`` tokens where they depend on it.

        Raises:
            ConfigError: a type that depends on the length, without one.
        """
        if length is None:
            if self.follows_length:
                raise ConfigError(
                    f"rope type {self.rope_type!r} depends on the length of the sequence: give length=, the context it is to "
                    "be used with, or take ropewalk.DynamicNTK or ropewalk.LongRoPE, which follow the length"
                )
            length = 1
        made = self._scaled(length)
        clip = self.parameters.get("clip_low_n")
        return made if clip is None else made.clipped(clip, self.parameters.get("clip_mode", "soft"))

    def _scaled(self, length: float) -> Spectrum:
        p, ladder = self.parameters, geometric(self.dim, self.base)
        match self.rope_type:
            case "linear":
                return ladder.linear(self._number("factor"))
            case "dynamic":
                if self.max_length is None:
                    raise ConfigError("rope type 'dynamic' grows from max_position_embeddings on, which is not given")
                return ladder.dynamic_ntk(length, self.max_length, factor=self._number("factor"))
            case "yarn":
                factor = self._factor()
                usual = yarn_attention_factor(
                    factor, mscale=self._number("mscale", 0.0), mscale_all_dim=self._number("mscale_all_dim", 0.0)
                )
                truncate = p.get("truncate", True)
                if not isinstance(truncate, bool):
                    raise ConfigError(f"truncate is true or false; got {truncate!r}")
                return ladder.yarn(
                    factor,
                    self._number(ORIGINAL),
                    slow=self._number("beta_slow", 1.0),
                    fast=self._number("beta_fast", 32.0),
                    attention_factor=self._number("attention_factor", self._number("attn_factor", 1.0) * usual),
                    truncate=truncate,
                    extrapolation=self._number("extrapolation_factor", 1.0),
                )
            case "longrope":
                original = self._number(ORIGINAL)
                usual = (
                    1.0 if "attention_factor" in p else longrope_attention_factor(max(self._factor(), 1.0), original)
                )
                scaled = ladder.longrope_at(
                    length,
                    original,
                    short=p["short_factor"],
                    long=p["long_factor"],
                    attention_factor=self._number("attention_factor", usual),
                )
                factors = p["long_factor" if length > original else "short_factor"]
                return scaled.keep([i for i, f in enumerate(factors) if f < STILL], origin=scaled.origin)
            case "llama3":
                return ladder.llama3(
                    self._number("factor"),
                    self._number(ORIGINAL),
                    slow=self._number("low_freq_factor"),
                    fast=self._number("high_freq_factor"),
                )
            case "proportional":
                turned = p_rope(geometric(self.head_dim, self.base), self._number("partial_rotary_factor", 1.0))
                factor = self._number("factor", 1.0)
                return turned if factor == 1.0 else turned.linear(factor)
            case _:
                return ladder

    def _number(self, key: str, default: float | None = None) -> float:
        value = self.parameters.get(key, default)
        if value is None:
            raise ConfigError(f"rope type {self.rope_type!r} needs {key!r}, and the configuration does not give it")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{key} is a number; got {value!r}")
        return value

    def _factor(self) -> float:
        """Return the extension factor, or the ratio of the lengths where it is left out."""
        if "factor" in self.parameters:
            return self._number("factor")
        if self.max_length is None:
            raise ConfigError(f"rope type {self.rope_type!r} needs a factor, or max_position_embeddings to find it")
        return self.max_length / self._number(ORIGINAL)
