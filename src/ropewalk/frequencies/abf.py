"""ABF: a larger base."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.core.errors import ConfigError
from ropewalk.frequencies.checks import check_base

if TYPE_CHECKING:
    from ropewalk.frequencies.spectrum import Spectrum


def abf(spectrum: Spectrum, base: float = 500_000.0) -> Spectrum:
    """b^(−i/P) in place of base^(−i/P): adjusted base frequency.

    Args:
        spectrum: frequencies base^(−i/P).
        base: b, 500000 in the paper and since.

    Raises:
        ConfigError: frequencies that have no base to adjust.

    Source: Wenhan Xiong, Jingyu Liu, Igor Molybog, Hejia Zhang, Prajjwal Bhargava, Rui Hou and others. Effective Long-Context
    Scaling of Foundation Models. arXiv 2309.16039, 2023.
    """
    check_base(base)
    planes = len(spectrum.inv_freq)
    if spectrum.base is None and planes > 1:
        raise ConfigError(
            f"these frequencies ({spectrum.origin or 'given as numbers'}) are not base^(-i/P), so there is no base to adjust; "
            "adjust the base first and scale afterwards"
        )
    return spectrum.then((float(base) ** (-i / planes) for i in range(planes)), f"abf({float(base)!r})")
