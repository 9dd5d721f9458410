"""Frequencies and their schedules."""

from ropewalk.frequencies.abf import abf
from ropewalk.frequencies.base_bounds import (
    abel_bound,
    count_negative,
    effective_length,
    first_negative,
    fitted_base,
    min_base,
    safe_base,
    too_short,
)
from ropewalk.frequencies.buckets import (
    RETRIEVAL_BASES,
    TOOL_BASES,
    attention_waveform,
    complementary_bases,
    find_extrema,
    smoothed,
    wave_coverage,
)
from ropewalk.frequencies.clipped import clipped, planes_beyond, unseen_planes
from ropewalk.frequencies.curves import ringing
from ropewalk.frequencies.dprope import angle_histogram, disturbance, dprope, dprope_report
from ropewalk.frequencies.feasibility import (
    BaseBounds,
    PhaseBudget,
    distinct_phase_codes,
    oscillator_report,
    phase_budget,
    rope_base_bounds,
    suggest_base,
)
from ropewalk.frequencies.fraction import p_rope, pairs_of_fraction, partial
from ropewalk.frequencies.high_frequency import high_frequency
from ropewalk.frequencies.lerope import interpolate_band, lerope_published_profile
from ropewalk.frequencies.linear import dynamic_linear, linear
from ropewalk.frequencies.llama3 import llama3
from ropewalk.frequencies.longrope import longrope, longrope_at, longrope_attention_factor
from ropewalk.frequencies.ntk import dynamic_ntk, ntk, ntk_by_parts
from ropewalk.frequencies.per_head import per_head_bases, search_bases
from ropewalk.frequencies.periods import physical_period_frequencies
from ropewalk.frequencies.rope_config import RopeConfig
from ropewalk.frequencies.rope_export import to_rope_parameters
from ropewalk.frequencies.rope_parameters import (
    RopeConfigWarning,
    read_rope_config,
    rope_layer_types,
    spectrum_from_config,
)
from ropewalk.frequencies.search import FoundFactors, search_factors
from ropewalk.frequencies.spectrum import Spectrum, geometric
from ropewalk.frequencies.waveform import extrema, waveform
from ropewalk.frequencies.yarn import (
    dynamic_yarn,
    part_ntk,
    yarn,
    yarn_attention_factor,
    yarn_range,
    yarn_softmax_factor,
)

__all__ = [
    "RETRIEVAL_BASES",
    "TOOL_BASES",
    "BaseBounds",
    "FoundFactors",
    "PhaseBudget",
    "RopeConfig",
    "RopeConfigWarning",
    "Spectrum",
    "abel_bound",
    "abf",
    "angle_histogram",
    "attention_waveform",
    "clipped",
    "complementary_bases",
    "count_negative",
    "distinct_phase_codes",
    "disturbance",
    "dprope",
    "dprope_report",
    "dynamic_linear",
    "dynamic_ntk",
    "dynamic_yarn",
    "effective_length",
    "extrema",
    "find_extrema",
    "first_negative",
    "fitted_base",
    "geometric",
    "high_frequency",
    "interpolate_band",
    "lerope_published_profile",
    "linear",
    "llama3",
    "longrope",
    "longrope_at",
    "longrope_attention_factor",
    "min_base",
    "ntk",
    "ntk_by_parts",
    "oscillator_report",
    "p_rope",
    "pairs_of_fraction",
    "part_ntk",
    "partial",
    "per_head_bases",
    "phase_budget",
    "physical_period_frequencies",
    "planes_beyond",
    "read_rope_config",
    "ringing",
    "rope_base_bounds",
    "rope_layer_types",
    "safe_base",
    "search_bases",
    "search_factors",
    "smoothed",
    "spectrum_from_config",
    "suggest_base",
    "to_rope_parameters",
    "too_short",
    "unseen_planes",
    "wave_coverage",
    "waveform",
    "yarn",
    "yarn_attention_factor",
    "yarn_range",
    "yarn_softmax_factor",
]
