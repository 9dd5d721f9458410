"""Turning a fraction of the channels: which pairs, and with which frequencies.

Two published layouts are often mixed up, because they turn the same *number* of pairs:

- "slice" (GPT-J, GPT-NeoX, Pythia, Phi): the first channels are a narrow RoPE of their own, with pairs inside the slice.
- "proportional" (p-RoPE): the pairs are those of the whole head, and the last ones have frequency 0.

Independently of that the ladder of frequencies is "rescaled" (base^(−2i/r) over the r turned channels, usual with the slice)
or "truncated" (the fastest ones of base^(−2i/d), usual with the proportional layout).
"""

from __future__ import annotations

from typing import Literal

from ropewalk.core.errors import ConfigError
from ropewalk.frequencies.spectrum import Spectrum, check_rotary_width, geometric

Layout = Literal["slice", "proportional"]
Ladder = Literal["rescaled", "truncated"]


def pairs_of_fraction(head_dim: int, fraction: float) -> int:
    """⌊fraction · head_dim / 2⌋ in floating point: the number of pairs that a fraction of the channels makes.

    The published expressions agree on it: ``int(p * D // 2)`` (p-RoPE) and half of ``int(D * pct)`` after an odd channel
    is dropped (GPT-NeoX). Both multiply first, in float64, and so does this: 0.58 · 100 is 57.99999999999999 there, which
    makes 28 pairs and not 29. To be sure of a count, give (pairs + 0.5) / (head_dim / 2).

    Raises:
        ConfigError: a fraction outside 0 ... 1, an odd head_dim.
    """
    check_rotary_width(head_dim)
    check_fraction(fraction)
    return int(fraction * head_dim // 2)


def p_rope(spectrum: Spectrum, p: float, *, reverse: bool = False) -> Spectrum:
    """ω_i for i < r, 0 for the others; r = ⌊p · P⌋ of the P planes (`pairs_of_fraction`).

    Keeps the first planes, the fastest of a geometric ladder; ``reverse`` keeps the last ones, as many.

    Source: Federico Barbero, Alex Vitvitskyi, Christos Perivolaropoulos, Razvan Pascanu, Petar Veličković. Round and Round
    We Go! What makes Rotary Positional Encodings useful? arXiv 2410.06205, 2024.
    """
    planes = len(spectrum.inv_freq)
    r = pairs_of_fraction(2 * planes, p)
    kept = range(planes - r, planes) if reverse else range(r)
    return spectrum.keep(kept, origin=f"{spectrum.origin}.p_rope({p!r}{', reverse=True' if reverse else ''})")


def partial(
    head_dim: int,
    fraction: float,
    base: float = 10_000.0,
    *,
    layout: Layout = "slice",
    ladder: Ladder = "rescaled",
) -> Spectrum:
    """Return the frequencies of a partly turned head: r = `pairs_of_fraction` pairs turn.

    With layout "slice" the spectrum has r planes, so that the first 2r channels are turned; with "proportional" it has
    head_dim/2, the last of frequency 0. Ladder "rescaled" is base^(−i/r), "truncated" base^(−2i/head_dim), i < r.

    Raises:
        ConfigError: a fraction above 0 that makes no pair; unknown names.

    Source: Mohammad Aflah Khan, Krishna P. Gummadi, Manish Gupta, Abhilasha Ravichander. Fractional Rotation, Full
    Potential? Investigating Performance and Convergence of Partial RoPE. arXiv 2603.11611, 2026; the layouts are those of
    GPT-NeoX (arXiv 2204.06745) and of p-RoPE (arXiv 2410.06205).
    """
    check_layout(layout, ladder)
    r = pairs_of_fraction(head_dim, fraction)
    if r == 0 and fraction > 0:
        raise ConfigError(
            f"fraction {fraction!r} of head_dim {head_dim} is less than one pair of channels; give at least "
            f"{2 / head_dim:g}, or 0 for no positional encoding"
        )
    turned = geometric(2 * r, base) if ladder == "rescaled" else geometric(head_dim, base).keep(range(r)).trimmed()
    return turned if layout == "slice" else turned.padded(head_dim // 2)


def rotary_table_bytes(
    head_dim: int, fraction: float, length: int, *, itemsize: int = 4, full_width: bool = True
) -> int:
    """2 · length · 2r · itemsize: memory of the cos and sin tables of a model, r = `pairs_of_fraction`.

    Args:
        head_dim: width of a head.
        fraction: of its channels that is turned.
        length: positions.
        itemsize: bytes a number.
        full_width: each number is stored for both channels of a pair, as most implementations do; False: once, as
            ropewalk's own tables.
    """
    return 2 * length * pairs_of_fraction(head_dim, fraction) * (2 if full_width else 1) * itemsize


def check_fraction(fraction: float) -> None:
    """Check a fraction of the channels."""
    number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
    if not number or not 0 <= fraction <= 1:  # NaN fails too
        raise ConfigError(f"a fraction of the channels lies between 0 and 1; got {fraction!r}")


def check_layout(layout: str, ladder: str) -> None:
    """Check the names of a layout and a ladder."""
    if layout not in ("slice", "proportional"):
        raise ConfigError(f"layout is 'slice' or 'proportional'; got {layout!r}")
    if ladder not in ("rescaled", "truncated"):
        raise ConfigError(f"ladder is 'rescaled' or 'truncated'; got {ladder!r}")
