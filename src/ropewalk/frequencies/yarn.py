"""YaRN: interpolation by parts with a sharper softmax."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from ropewalk.core.errors import ConfigError
from ropewalk.frequencies.checks import check_factor, check_length
from ropewalk.frequencies.ntk import blend, keep_by_turns

if TYPE_CHECKING:
    from ropewalk.frequencies.spectrum import Spectrum

Ramp = Literal["code", "paper"]


def yarn(
    spectrum: Spectrum,
    factor: float,
    original: float,
    *,
    slow: float = 1.0,
    fast: float = 32.0,
    attention_factor: float | None = None,
    ramp: Ramp | None = None,
    truncate: bool = True,
    extrapolation: float = 1.0,
) -> Spectrum:
    """(1 − g_i) ω_i / s + g_i ω_i, with cos and sin times 0.1 ln s + 1.

    Planes that turned often in training keep their frequency (g = 1), those that did not complete a turn are interpolated
    (g = 0). In between there are two published ramps, and they differ:

    - "paper": linear in the turns r_i = L ω_i / 2π of a plane, from ``slow`` to ``fast``, as in `ntk_by_parts`.
    - "code": linear in the number i of the plane, from the one that turns ``fast`` times to the one that turns ``slow`` times
      (`yarn_range`). Released checkpoints were trained with it. It means something for frequencies base^(−i/P) only.

    Args:
        spectrum: as trained.
        factor: s, new context over the original one.
        original: L, tokens of the training context: not the extended one.
        slow: turns up to which a plane is interpolated in full ("beta_slow").
        fast: turns from which it stays ("beta_fast").
        attention_factor: multiplies cos and sin, in place of the formula; 1.0 switches it off. `yarn_attention_factor` has
            the variants of the formula.
        ramp: None: "code" where the frequencies are base^(−i/P), "paper" where they are not.
        truncate: of the code's ramp: start and end at whole numbers.
        extrapolation: g is multiplied by it, a number between 0 and 1.

    Raises:
        ConfigError: the code's ramp for frequencies that have no base.

    Source: Bowen Peng, Jeffrey Quesnelle, Honglu Fan, Enrico Shippole. YaRN: Efficient Context Window Extension of Large
    Language Models. arXiv 2309.00071, 2023.
    """
    check_factor(factor)
    check_length("original", original)
    if not 0 <= extrapolation <= 1:
        raise ConfigError(f"extrapolation is between 0 and 1; got {extrapolation!r}")
    planes = len(spectrum.inv_freq)
    base = spectrum.base
    if ramp not in ("code", "paper", None):
        raise ConfigError(f"ramp is 'code', 'paper' or None for the one that fits; got {ramp!r}")
    if ramp == "paper" or (ramp is None and base is None and planes != 1):
        keep = keep_by_turns(spectrum.turns(original), slow, fast)
    elif base is not None:
        low, high = yarn_range(2 * planes, base, original, slow=slow, fast=fast, truncate=truncate)
        keep = tuple(1 - min(max((i - low) / (high - low), 0.0), 1.0) for i in range(planes))
    elif planes <= 1:  # the ramp starts at plane 0 or later, whatever the base is
        keep = (1.0,) * planes
    else:
        raise ConfigError(
            "the ramp of YaRN's code counts planes of frequencies base^(-i/P), and these are not of that form "
            f"({spectrum.origin or 'given as numbers'}); take ramp='paper', which looks at the turns of each plane"
        )
    if attention_factor is None:
        attention_factor = yarn_attention_factor(factor)
    usual = {"slow": 1.0, "fast": 32.0, "ramp": None, "truncate": True, "extrapolation": 1.0}
    given = {"slow": slow, "fast": fast, "ramp": ramp, "truncate": truncate, "extrapolation": extrapolation}
    options = [f"{name}={value!r}" for name, value in given.items() if value != usual[name]]
    if attention_factor != yarn_attention_factor(factor):
        options.append(f"attention_factor={attention_factor!r}")
    call = ", ".join([repr(factor), f"original={original!r}", *options])
    return spectrum.then(
        blend(spectrum.inv_freq, factor, tuple(extrapolation * g for g in keep)), f"yarn({call})", attention_factor
    )


def yarn_range(
    dim: int, base: float, original: float, *, slow: float = 1.0, fast: float = 32.0, truncate: bool = True
) -> tuple[float, float]:
    """(low, high): numbers of the planes between which the ramp of YaRN's code runs.

    Plane d ln(L / 2πn) / (2 ln b), a real number, turns n times in L tokens; ``truncate`` rounds outwards. The upper end is
    clamped to d − 1, though there are d/2 planes only, as released. Where nothing is left between the ends the ramp is a step;
    the released code turns it round there if they cross.

    Args:
        dim: d, the width that is turned.
        base: b.
        original: L, tokens of the training context.
        slow: turns at the upper end.
        fast: turns at the lower end.
        truncate: to whole numbers.
    """
    if not 0 < slow <= fast < math.inf:
        raise ConfigError(
            f"the ramp runs from fast turns to slow ones, 0 < slow <= fast; got slow={slow!r}, fast={fast!r}"
        )
    low, high = (dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (fast, slow))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    return low, high if high > low else low + 0.001


def yarn_attention_factor(
    factor: float,
    *,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    coefficient: float = 0.1,
) -> float:
    """m(s, c) = 0.1 c ln s + 1 for s > 1, else 1;  m(s, mscale) / m(s, mscale_all_dim) where both are given, else m(s, 1).

    What cos and sin are multiplied by. One of the two alone is ignored, and so is 0. Models that set ``mscale_all_dim``
    also multiply their softmax scale by m(s, mscale_all_dim)²: that is `yarn_softmax_factor`.

    Args:
        factor: s.
        mscale: of the turned channels.
        mscale_all_dim: of all channels.
        coefficient: 0.1 as published; some models have another.
    """
    check_factor(factor)
    if mscale and mscale_all_dim:
        return _m(factor, mscale, coefficient) / _m(factor, mscale_all_dim, coefficient)
    return _m(factor, 1.0, coefficient)


def yarn_softmax_factor(factor: float, mscale_all_dim: float, *, coefficient: float = 0.1) -> float:
    """m(s, mscale_all_dim)², by which the DeepSeek models multiply their softmax scale."""
    check_factor(factor)
    return _m(factor, mscale_all_dim, coefficient) ** 2


def _m(factor: float, mscale: float, coefficient: float) -> float:
    return coefficient * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def dynamic_yarn(
    spectrum: Spectrum,
    length: float,
    original: float,
    *,
    at_least: float = 1.0,
    attention_factor: float = 1.0,
    slow: float = 1.0,
    fast: float = 32.0,
    ramp: Ramp | None = None,
) -> Spectrum:
    """`yarn` with s = n/L for the length n that is fixed here, and the spectrum itself up to n = L.

    Args:
        spectrum: as trained.
        length: n, tokens of the context it is made for.
        original: L, tokens of the training context.
        at_least: smallest s, for a model that was tuned with one.
        attention_factor: on top of the 0.1 ln s + 1 that belongs to s.
        slow: as in `yarn`.
        fast: as in `yarn`.
        ramp: as in `yarn`.

    Source: as `yarn`; the published code, where s only ever grows, is not followed in that.
    """
    check_length("length", length)
    check_length("original", original)
    check_factor(at_least)
    factor = max(length / original, at_least)
    if factor == 1.0 and attention_factor == 1.0:
        return spectrum
    return yarn(
        spectrum,
        factor,
        original,
        slow=slow,
        fast=fast,
        ramp=ramp,
        attention_factor=attention_factor * yarn_attention_factor(factor),
    )


def part_ntk(spectrum: Spectrum, factor: float, original: float) -> Spectrum:
    """The blend that YaRN's repository had before the paper: of interpolation, NTK-aware scaling and the frequencies as they are.

    With keep(f, w) the code's ramp from f to w turns: inv₁ = (1 − keep(1.25, 0.75)) ω/s + keep(1.25, 0.75) ntk(ω, s), and
    the result (1 − keep(16, 2)) inv₁ + keep(16, 2) ω.

    Args:
        spectrum: frequencies base^(−i/P), as trained.
        factor: s, new context over the original one.
        original: L, tokens of the training context.
    """
    check_factor(factor)
    check_length("original", original)
    base, planes = spectrum.base, len(spectrum.inv_freq)
    if base is None:
        raise ConfigError("part_ntk counts planes of frequencies base^(-i/P), and these are not of that form")

    def keep(fast: float, slow: float) -> list[float]:
        low, high = yarn_range(2 * planes, base, original, slow=slow, fast=fast)
        return [1 - min(max((i - low) / (high - low), 0.0), 1.0) for i in range(planes)]

    first = [
        (1 - g) * w / factor + g * n
        for w, n, g in zip(spectrum.inv_freq, spectrum.ntk(factor).inv_freq, keep(1.25, 0.75), strict=True)
    ]
    values = [(1 - g) * a + g * w for w, a, g in zip(spectrum.inv_freq, first, keep(16, 2), strict=True)]
    return spectrum.then(values, f"part_ntk({factor!r}, original={original!r})")
