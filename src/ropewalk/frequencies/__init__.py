"""Frequencies and their schedules."""

from ropewalk.frequencies.spectrum import Spectrum, geometric

__all__ = ["Spectrum", "geometric"]
