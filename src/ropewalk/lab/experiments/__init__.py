"""Experiments: does the claim of a paper hold at a desk?

    ropewalk reproduce pope

One small file a system: what the paper says, the smallest setting in which it should show, what it is compared with, and the
direction that is expected, all written before anything is run. `EXPERIMENTS` says where each is; none is imported before it
is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from ropewalk.catalog import normalise
from ropewalk.core.errors import ConfigError, UnknownNameError, suggest
from ropewalk.lab.experiments.experiment import Experiment

__all__ = ["EXPERIMENTS", "Experiment", "experiment", "experiments"]

_NAMES = (
    "rope",
    "nope",
    "pope",
    "p_rope",
    "partial_rope",
    "hope_high_frequency",
    "hope_hyperbolic",
    "lerope",
    "carope",
    "rope_pp",
    "rove",
    "grape",
    "gape",
    "wavelet_pe",
    "contextual_cope",
    "orthogonal",
    "randomized",
    "bipe",
    "string_shifted",
    "rerope",
    "hirope",
    "dope",
    "attention_buckets",
    "psc",
    "harpe",
    "yarn",
    "clipped_cope",
    "entropy_abf",
    "dprope",
    "swap",
    "endprompt",
    "anchor_attention",
    "base",
    "slow_planes",
    "massive_values",
    "pape",
    "spherope",
    "harope",
    "gta",
    "mrope",
    "mrope_interleave",
    "videorope",
    "hope_video",
    "vrope",
    "rope_dhr",
    "pype",
    "concentric_attention",
    "mousi",
    "modality_rope",
    "st_rope",
    "drope_directional",
    "time_speaker_rope",
    "wavelength_rope",
    "position_forest",
    "hrope_paragraph",
    "position_coupling",
    "gridpe",
    "mixed_rope",
    "position_interpolated_rope",
    "switching_rope",
    "larope",
    "r_rope",
    "condition_rope",
    "entity_temporal_rope",
    "depth_rope",
    "pma",
    "untwisting_rope",
    "rope_probe",
    "spatial_rope_scale",
)

EXPERIMENTS: dict[str, str] = {
    **{name: f"ropewalk.lab.experiments.{name}:EXPERIMENT" for name in _NAMES},
    "pope_indirect_indexing": "ropewalk.lab.experiments.pope:INDEXING",
    "randomized_odds_first": "ropewalk.lab.experiments.randomized:ODDS_FIRST",
    "randomized_reverse": "ropewalk.lab.experiments.randomized:REVERSE",
}


def experiment(name: str) -> Experiment:
    """Return the experiment of that name, or the one about the encoding of that name.

    Raises:
        UnknownNameError: there is none.
    """
    key = normalise(name)
    if key in EXPERIMENTS:
        return _load(key)
    about = {slug: one for one in experiments() for slug in one.slugs}
    if key in about:
        return about[key]
    known = [*EXPERIMENTS, *about]
    raise UnknownNameError(
        f"no experiment is called {name!r}.{suggest(key, known)} There are {', '.join(EXPERIMENTS)}."
    )


def experiments() -> Iterator[Experiment]:
    """Yield every experiment."""
    return map(_load, EXPERIMENTS)


def _load(name: str) -> Experiment:
    module, _, attribute = EXPERIMENTS[name].partition(":")
    found = getattr(import_module(module), attribute)
    if not isinstance(found, Experiment) or found.name != name:
        raise ConfigError(f"{EXPERIMENTS[name]} is not the experiment {name!r}")
    return found
