"""ropewalk: positional encodings for PyTorch.

An encoding rewrites an attention problem; ``attend`` solves it:

    import ropewalk as rw

    encoding = rw.RoPE(64)
    out = rw.attend(encoding(rw.Attention(q, k, v)))

Every public name is imported when it is first used, so that ``import ropewalk`` and the command line
stay quick and need no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # the same table as _HOME below, for type checkers and editors; a test keeps the two equal
    from ropewalk import functional as functional
    from ropewalk import parallel as parallel
    from ropewalk import testing as testing
    from ropewalk.analysis.verify import verify as verify
    from ropewalk.backends import attend as attend
    from ropewalk.backends import explain as explain
    from ropewalk.bias.alibi import ALiBi as ALiBi
    from ropewalk.bias.clipped_relative import ClippedRelative as ClippedRelative
    from ropewalk.bias.contextual_cope import ContextualCoPE as ContextualCoPE
    from ropewalk.bias.fire import FIRE as FIRE
    from ropewalk.bias.fox import FoX as FoX
    from ropewalk.bias.gape import GAPE as GAPE
    from ropewalk.bias.grape_additive import GRAPEAdditive as GRAPEAdditive
    from ropewalk.bias.grape_path import GRAPEPath as GRAPEPath
    from ropewalk.bias.kerple import KERPLELog as KERPLELog
    from ropewalk.bias.kerple import KERPLEPower as KERPLEPower
    from ropewalk.bias.nope import NoPE as NoPE
    from ropewalk.bias.pape import PaPE as PaPE
    from ropewalk.bias.pape import PaPERI as PaPERI
    from ropewalk.bias.randomized_alibi import RandomizedALiBi as RandomizedALiBi
    from ropewalk.bias.t5 import T5 as T5
    from ropewalk.bias.transformer_xl import TransformerXL as TransformerXL
    from ropewalk.bias.wavelet_pe import WaveletPE as WaveletPE
    from ropewalk.cache import KVCache as KVCache
    from ropewalk.catalog import build as build
    from ropewalk.catalog import catalog as catalog
    from ropewalk.catalog import record as record
    from ropewalk.coordinates.allocation import Allocation as Allocation
    from ropewalk.coordinates.axis import OnAxis as OnAxis
    from ropewalk.coordinates.blocks import Image as Image
    from ropewalk.coordinates.blocks import Text as Text
    from ropewalk.coordinates.blocks import Tiles as Tiles
    from ropewalk.coordinates.blocks import Video as Video
    from ropewalk.coordinates.clip import clip_positions as clip_positions
    from ropewalk.coordinates.code import code_positions as code_positions
    from ropewalk.coordinates.code import code_segments as code_segments
    from ropewalk.coordinates.column_ids import ColumnIds as ColumnIds
    from ropewalk.coordinates.conditions import condition_coords as condition_coords
    from ropewalk.coordinates.coupling import couple as couple
    from ropewalk.coordinates.coupling import coupled_positions as coupled_positions
    from ropewalk.coordinates.denoising import at_step as at_step
    from ropewalk.coordinates.depth import ObjectMove as ObjectMove
    from ropewalk.coordinates.depth import centered_grid_ids as centered_grid_ids
    from ropewalk.coordinates.depth import depth_axis as depth_axis
    from ropewalk.coordinates.depth import token_mask as token_mask
    from ropewalk.coordinates.depth import warp_rows as warp_rows
    from ropewalk.coordinates.depth import warp_until as warp_until
    from ropewalk.coordinates.events import event_layout as event_layout
    from ropewalk.coordinates.events import read_entities as read_entities
    from ropewalk.coordinates.formulas import formula_positions as formula_positions
    from ropewalk.coordinates.formulas import latex_position_forest as latex_position_forest
    from ropewalk.coordinates.grid import grid_positions as grid_positions
    from ropewalk.coordinates.grid import scaled_positions as scaled_positions
    from ropewalk.coordinates.headings import heading_positions as heading_positions
    from ropewalk.coordinates.hierarchy import hierarchical_coordinates as hierarchical_coordinates
    from ropewalk.coordinates.hierarchy import hierarchical_positions as hierarchical_positions
    from ropewalk.coordinates.layout import layout as layout
    from ropewalk.coordinates.layout import packed_layout as packed_layout
    from ropewalk.coordinates.layout import text_only as text_only
    from ropewalk.coordinates.mixed_resolution import mixed_resolution_positions as mixed_resolution_positions
    from ropewalk.coordinates.patches import patch_positions as patch_positions
    from ropewalk.coordinates.patches import smart_resize as smart_resize
    from ropewalk.coordinates.randomized import RandomizedPositions as RandomizedPositions
    from ropewalk.coordinates.references import reference_coords as reference_coords
    from ropewalk.coordinates.scale import Scale as Scale
    from ropewalk.coordinates.segments import segment_positions as segment_positions
    from ropewalk.coordinates.shared_grid import shared_grid_positions as shared_grid_positions
    from ropewalk.coordinates.signals import Agents as Agents
    from ropewalk.coordinates.signals import Audio as Audio
    from ropewalk.coordinates.signals import Bands as Bands
    from ropewalk.coordinates.signals import Boxes as Boxes
    from ropewalk.coordinates.signals import Levels as Levels
    from ropewalk.coordinates.signals import Track as Track
    from ropewalk.coordinates.signals import Tree as Tree
    from ropewalk.coordinates.spectra import patch_spectrum as patch_spectrum
    from ropewalk.coordinates.spectra import spectrum_positions as spectrum_positions
    from ropewalk.coordinates.switching import switching_positions as switching_positions
    from ropewalk.coordinates.target_depth import synthesize_target_depth as synthesize_target_depth
    from ropewalk.coordinates.turns import speaker_activity as speaker_activity
    from ropewalk.coordinates.turns import speaker_positions as speaker_positions
    from ropewalk.core.attention import Attention as Attention
    from ropewalk.core.attention import Parts as Parts
    from ropewalk.core.combinators import Partial as Partial
    from ropewalk.core.combinators import PerHead as PerHead
    from ropewalk.core.combinators import PerLayer as PerLayer
    from ropewalk.core.combinators import Sequential as Sequential
    from ropewalk.core.encoding import Bias as Bias
    from ropewalk.core.encoding import Coordinates as Coordinates
    from ropewalk.core.encoding import Embedding as Embedding
    from ropewalk.core.encoding import Encoding as Encoding
    from ropewalk.core.encoding import Rotary as Rotary
    from ropewalk.core.errors import BackendError as BackendError
    from ropewalk.core.errors import CacheError as CacheError
    from ropewalk.core.errors import ConfigError as ConfigError
    from ropewalk.core.errors import PositionError as PositionError
    from ropewalk.core.errors import Refusal as Refusal
    from ropewalk.core.errors import RopewalkError as RopewalkError
    from ropewalk.core.errors import ShapeError as ShapeError
    from ropewalk.core.errors import UnknownNameError as UnknownNameError
    from ropewalk.core.positions import Positions as Positions
    from ropewalk.core.positions import Tokens as Tokens
    from ropewalk.embedding.bipe import BiPE as BiPE
    from ropewalk.embedding.coupled import position_coupling as position_coupling
    from ropewalk.embedding.learned import LearnedAbsolute as LearnedAbsolute
    from ropewalk.embedding.orthogonal_functions import Chebyshev as Chebyshev
    from ropewalk.embedding.orthogonal_functions import CosineTransform as CosineTransform
    from ropewalk.embedding.orthogonal_functions import Legendre as Legendre
    from ropewalk.embedding.orthogonal_functions import SquareWaves as SquareWaves
    from ropewalk.embedding.orthogonal_functions import WaveletBasis as WaveletBasis
    from ropewalk.embedding.position_forest import PositionForestEmbedding as PositionForestEmbedding
    from ropewalk.embedding.sinusoidal import Sinusoidal as Sinusoidal
    from ropewalk.frequencies import Spectrum as Spectrum
    from ropewalk.frequencies import geometric as geometric
    from ropewalk.functional import convert_pairing as convert_pairing
    from ropewalk.rotary.axial import AxialRoPE as AxialRoPE
    from ropewalk.rotary.carope import CARoPE as CARoPE
    from ropewalk.rotary.concentric import ConcentricAttention as ConcentricAttention
    from ropewalk.rotary.condition_rope import ConditionRoPE as ConditionRoPE
    from ropewalk.rotary.cross_rope import CrossRoPE2D as CrossRoPE2D
    from ropewalk.rotary.depth_rope import DepthRoPE as DepthRoPE
    from ropewalk.rotary.dope import DoPE as DoPE
    from ropewalk.rotary.drope_directional import DirectionalRoPE as DirectionalRoPE
    from ropewalk.rotary.dynamic_ntk import DynamicNTK as DynamicNTK
    from ropewalk.rotary.entropy_abf import LogLengthScale as LogLengthScale
    from ropewalk.rotary.grape import GRAPEMultiplicative as GRAPEMultiplicative
    from ropewalk.rotary.grape import GRAPERank2 as GRAPERank2
    from ropewalk.rotary.grape_contextual import GRAPEContextual as GRAPEContextual
    from ropewalk.rotary.gridpe import GridPE as GridPE
    from ropewalk.rotary.gta import GTA as GTA
    from ropewalk.rotary.harope import HARoPE as HARoPE
    from ropewalk.rotary.harpe import HARPE as HARPE
    from ropewalk.rotary.hirope import HiRoPE as HiRoPE
    from ropewalk.rotary.hope_high_frequency import HoPEHighFrequency as HoPEHighFrequency
    from ropewalk.rotary.hope_hyperbolic import HyperbolicRoPE as HyperbolicRoPE
    from ropewalk.rotary.hope_video import HybridVideoRoPE as HybridVideoRoPE
    from ropewalk.rotary.hrope_paragraph import MultiChannelRoPE as MultiChannelRoPE
    from ropewalk.rotary.kv_shift import KVShift as KVShift
    from ropewalk.rotary.larope import LARoPE as LARoPE
    from ropewalk.rotary.larope import length_aware_positions as length_aware_positions
    from ropewalk.rotary.lerope import LearnedRoPE as LearnedRoPE
    from ropewalk.rotary.linear_attention import LinearAttention as LinearAttention
    from ropewalk.rotary.longrope import LongRoPE as LongRoPE
    from ropewalk.rotary.mixed_rope import MixedRoPE as MixedRoPE
    from ropewalk.rotary.modality_rope import ModalityRoPE as ModalityRoPE
    from ropewalk.rotary.mousi import MouSi as MouSi
    from ropewalk.rotary.mrope import MRoPE as MRoPE
    from ropewalk.rotary.mrope import MRoPEInterleaved as MRoPEInterleaved
    from ropewalk.rotary.mrope import MultiHeadRoPE as MultiHeadRoPE
    from ropewalk.rotary.multi_axis import MultiAxisRoPE as MultiAxisRoPE
    from ropewalk.rotary.p_rope import PRoPEFraction as PRoPEFraction
    from ropewalk.rotary.partial_rope import PartialRoPE as PartialRoPE
    from ropewalk.rotary.pma import PhaseAlignedRoPE as PhaseAlignedRoPE
    from ropewalk.rotary.pma import phase_aligned_attention as phase_aligned_attention
    from ropewalk.rotary.pope import PoPE as PoPE
    from ropewalk.rotary.position_interpolated_rope import PositionInterpolatedRoPE as PositionInterpolatedRoPE
    from ropewalk.rotary.pype import PyPE as PyPE
    from ropewalk.rotary.qk_norm import QKNorm as QKNorm
    from ropewalk.rotary.r_rope import ReferenceRoPE as ReferenceRoPE
    from ropewalk.rotary.rerope import ReRoPE as ReRoPE
    from ropewalk.rotary.rope import RoPE as RoPE
    from ropewalk.rotary.rope_dhr import RoPEDHR as RoPEDHR
    from ropewalk.rotary.rope_pp import RoPEPlusPlus as RoPEPlusPlus
    from ropewalk.rotary.rope_pp import RoPEPlusPlusAttention as RoPEPlusPlusAttention
    from ropewalk.rotary.rove import RotaryValue as RotaryValue
    from ropewalk.rotary.rove import RoVE as RoVE
    from ropewalk.rotary.self_extend import SelfExtend as SelfExtend
    from ropewalk.rotary.spatial_scale import SpatialRoPEScale as SpatialRoPEScale
    from ropewalk.rotary.spherope import SpheRoPE as SpheRoPE
    from ropewalk.rotary.spherope import SpheRoPEFlux2 as SpheRoPEFlux2
    from ropewalk.rotary.spherope import SpheRoPELTX as SpheRoPELTX
    from ropewalk.rotary.st_rope import STRoPE as STRoPE
    from ropewalk.rotary.string_shifted import STRINGShifted as STRINGShifted
    from ropewalk.rotary.switching_rope import SwitchingRoPE as SwitchingRoPE
    from ropewalk.rotary.time_speaker_rope import TimeSpeakerRoPE as TimeSpeakerRoPE
    from ropewalk.rotary.untwisting import UntwistingRoPE as UntwistingRoPE
    from ropewalk.rotary.v2pe import V2PE as V2PE
    from ropewalk.rotary.videorope import VideoRoPE as VideoRoPE
    from ropewalk.rotary.vrope import VRoPE as VRoPE
    from ropewalk.rotary.wavelength_rope import WavelengthRoPE as WavelengthRoPE
    from ropewalk.rotary.xpos import XPos as XPos

# name -> module below ropewalk that defines it; a name mapped to itself is that module
_HOME = {
    # the problem
    "Positions": "core.positions",
    "Tokens": "core.positions",
    "Attention": "core.attention",
    "Parts": "core.attention",
    "attend": "backends",
    "explain": "backends",
    "KVCache": "cache",
    # encodings and how they combine
    "Encoding": "core.encoding",
    "Rotary": "core.encoding",
    "Bias": "core.encoding",
    "Coordinates": "core.encoding",
    "Embedding": "core.encoding",
    "Sequential": "core.combinators",
    "Partial": "core.combinators",
    "PerHead": "core.combinators",
    "PerLayer": "core.combinators",
    "Spectrum": "frequencies",
    "geometric": "frequencies",
    # the catalog; its module is callable, so that rw.catalog is the module and rw.catalog() the records
    "catalog": "catalog",
    "record": "catalog",
    "build": "catalog",
    # published encodings
    "UntwistingRoPE": "rotary.untwisting",
    "SpatialRoPEScale": "rotary.spatial_scale",
    "phase_aligned_attention": "rotary.pma",
    "PhaseAlignedRoPE": "rotary.pma",
    "ALiBi": "bias.alibi",
    "AxialRoPE": "rotary.axial",
    "BiPE": "embedding.bipe",
    "CARoPE": "rotary.carope",
    "Chebyshev": "embedding.orthogonal_functions",
    "ConcentricAttention": "rotary.concentric",
    "ConditionRoPE": "rotary.condition_rope",
    "ContextualCoPE": "bias.contextual_cope",
    "CrossRoPE2D": "rotary.cross_rope",
    "CosineTransform": "embedding.orthogonal_functions",
    "DepthRoPE": "rotary.depth_rope",
    "DoPE": "rotary.dope",
    "SwitchingRoPE": "rotary.switching_rope",
    "MultiChannelRoPE": "rotary.hrope_paragraph",
    "WavelengthRoPE": "rotary.wavelength_rope",
    "TimeSpeakerRoPE": "rotary.time_speaker_rope",
    "length_aware_positions": "rotary.larope",
    "LARoPE": "rotary.larope",
    "DirectionalRoPE": "rotary.drope_directional",
    "DynamicNTK": "rotary.dynamic_ntk",
    "FIRE": "bias.fire",
    "ClippedRelative": "bias.clipped_relative",
    "FoX": "bias.fox",
    "GAPE": "bias.gape",
    "GRAPEAdditive": "bias.grape_additive",
    "GRAPEContextual": "rotary.grape_contextual",
    "GRAPEMultiplicative": "rotary.grape",
    "GRAPEPath": "bias.grape_path",
    "GRAPERank2": "rotary.grape",
    "GTA": "rotary.gta",
    "GridPE": "rotary.gridpe",
    "HARPE": "rotary.harpe",
    "HARoPE": "rotary.harope",
    "HiRoPE": "rotary.hirope",
    "HoPEHighFrequency": "rotary.hope_high_frequency",
    "HybridVideoRoPE": "rotary.hope_video",
    "HyperbolicRoPE": "rotary.hope_hyperbolic",
    "KERPLELog": "bias.kerple",
    "KERPLEPower": "bias.kerple",
    "KVShift": "rotary.kv_shift",
    "LearnedAbsolute": "embedding.learned",
    "position_coupling": "embedding.coupled",
    "PositionForestEmbedding": "embedding.position_forest",
    "LearnedRoPE": "rotary.lerope",
    "Legendre": "embedding.orthogonal_functions",
    "LinearAttention": "rotary.linear_attention",
    "LogLengthScale": "rotary.entropy_abf",
    "LongRoPE": "rotary.longrope",
    "MRoPE": "rotary.mrope",
    "MRoPEInterleaved": "rotary.mrope",
    "MixedRoPE": "rotary.mixed_rope",
    "ModalityRoPE": "rotary.modality_rope",
    "MouSi": "rotary.mousi",
    "MultiAxisRoPE": "rotary.multi_axis",
    "MultiHeadRoPE": "rotary.mrope",
    "NoPE": "bias.nope",
    "OnAxis": "coordinates.axis",
    "PRoPEFraction": "rotary.p_rope",
    "PaPE": "bias.pape",
    "PaPERI": "bias.pape",
    "PartialRoPE": "rotary.partial_rope",
    "PoPE": "rotary.pope",
    "PositionInterpolatedRoPE": "rotary.position_interpolated_rope",
    "PyPE": "rotary.pype",
    "QKNorm": "rotary.qk_norm",
    "RandomizedALiBi": "bias.randomized_alibi",
    "RandomizedPositions": "coordinates.randomized",
    "ReRoPE": "rotary.rerope",
    "ReferenceRoPE": "rotary.r_rope",
    "RoPE": "rotary.rope",
    "RoPEDHR": "rotary.rope_dhr",
    "RoPEPlusPlus": "rotary.rope_pp",
    "RoPEPlusPlusAttention": "rotary.rope_pp",
    "RoVE": "rotary.rove",
    "RotaryValue": "rotary.rove",
    "STRINGShifted": "rotary.string_shifted",
    "STRoPE": "rotary.st_rope",
    "Scale": "coordinates.scale",
    "SelfExtend": "rotary.self_extend",
    "Sinusoidal": "embedding.sinusoidal",
    "SpheRoPE": "rotary.spherope",
    "SpheRoPEFlux2": "rotary.spherope",
    "SpheRoPELTX": "rotary.spherope",
    "SquareWaves": "embedding.orthogonal_functions",
    "T5": "bias.t5",
    "TransformerXL": "bias.transformer_xl",
    "V2PE": "rotary.v2pe",
    "VRoPE": "rotary.vrope",
    "VideoRoPE": "rotary.videorope",
    "WaveletBasis": "embedding.orthogonal_functions",
    "WaveletPE": "bias.wavelet_pe",
    "XPos": "rotary.xpos",
    # where tokens are
    "shared_grid_positions": "coordinates.shared_grid",
    "at_step": "coordinates.denoising",
    "mixed_resolution_positions": "coordinates.mixed_resolution",
    "Agents": "coordinates.signals",
    "Allocation": "coordinates.allocation",
    "Audio": "coordinates.signals",
    "Bands": "coordinates.signals",
    "Boxes": "coordinates.signals",
    "ColumnIds": "coordinates.column_ids",
    "Image": "coordinates.blocks",
    "Levels": "coordinates.signals",
    "Text": "coordinates.blocks",
    "Tiles": "coordinates.blocks",
    "Track": "coordinates.signals",
    "Tree": "coordinates.signals",
    "Video": "coordinates.blocks",
    "clip_positions": "coordinates.clip",
    "code_positions": "coordinates.code",
    "switching_positions": "coordinates.switching",
    "condition_coords": "coordinates.conditions",
    "coupled_positions": "coordinates.coupling",
    "couple": "coordinates.coupling",
    "hierarchical_coordinates": "coordinates.hierarchy",
    "hierarchical_positions": "coordinates.hierarchy",
    "event_layout": "coordinates.events",
    "read_entities": "coordinates.events",
    "ObjectMove": "coordinates.depth",
    "centered_grid_ids": "coordinates.depth",
    "depth_axis": "coordinates.depth",
    "token_mask": "coordinates.depth",
    "warp_rows": "coordinates.depth",
    "warp_until": "coordinates.depth",
    "synthesize_target_depth": "coordinates.target_depth",
    "formula_positions": "coordinates.formulas",
    "latex_position_forest": "coordinates.formulas",
    "patch_spectrum": "coordinates.spectra",
    "spectrum_positions": "coordinates.spectra",
    "speaker_activity": "coordinates.turns",
    "speaker_positions": "coordinates.turns",
    "heading_positions": "coordinates.headings",
    "code_segments": "coordinates.code",
    "grid_positions": "coordinates.grid",
    "layout": "coordinates.layout",
    "packed_layout": "coordinates.layout",
    "patch_positions": "coordinates.patches",
    "reference_coords": "coordinates.references",
    "scaled_positions": "coordinates.grid",
    "segment_positions": "coordinates.segments",
    "smart_resize": "coordinates.patches",
    "text_only": "coordinates.layout",
    # is a rotation what it claims to be
    "verify": "analysis.verify",
    # sequences, heads and parameters on several processes
    "parallel": "parallel",
    # plain functions and the contract suite
    "functional": "functional",
    "convert_pairing": "functional",
    "testing": "testing",
    # errors
    "RopewalkError": "core.errors",
    "BackendError": "core.errors",
    "CacheError": "core.errors",
    "ConfigError": "core.errors",
    "PositionError": "core.errors",
    "Refusal": "core.errors",
    "ShapeError": "core.errors",
    "UnknownNameError": "core.errors",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{home}")
    value = module if name == home else getattr(module, name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
