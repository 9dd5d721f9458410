"""How transformers, vLLM and llama.cpp read the rotary part of a configuration, and where they part.

Each rule says what was read, in which file at which revision. What an engine does elsewhere (in a model's own file) is not
known here. The table of `docs/inspect.md` is `markdown()`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.analysis.inspection.findings import Finding, Section, Severity, Table
from ropewalk.core.errors import ConfigError
from ropewalk.frequencies.longrope import longrope_attention_factor
from ropewalk.frequencies.rope_config import ORIGINAL, RopeConfig
from ropewalk.frequencies.yarn import yarn_attention_factor

IGNORE_FRACTION = (
    "cohere", "cohere2", "falcon", "gemma", "gemma2", "gemma3_text", "gpt_oss", "granite", "granitemoe", "helium", "llama",
    "ministral", "mistral", "mixtral", "olmo", "olmo2", "olmo3", "olmoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3",
    "starcoder2",
)  # fmt: skip
"""Model types whose file in transformers 5.24.0 has no partial_rotary_factor: type "default" turns whole heads there."""

LLAMA_CPP = ("llama", "mistral", "mixtral")
"""Model types that llama.cpp converts by conversion/llama.py, so far as they are known here."""

LLAMA_CPP_ORIGINAL = 8192
"""What llama.cpp takes for the original length of "llama3" where the top level of a configuration does not say."""


@dataclass(frozen=True)
class Source:
    """What was read of an engine.

    Attributes:
        engine: its name.
        revision: of its repository, or the release.
        file: within the repository.
        reads: of the rotary part of a configuration.
        parts: what it leaves out or reads in another way.
    """

    engine: str
    revision: str
    file: str
    reads: str
    parts: str

    def __str__(self) -> str:
        return f"{self.engine} {self.revision}, {self.file}"


TRANSFORMERS = Source(
    "transformers",
    "5.24.0 (run)",
    "modeling_rope_utils.py and the model's own file",
    "all types; `attention_factor`, `mscale`, `mscale_all_dim`; entries by layer type",
    "`truncate` inside the entry of a layer type is not read; type `default` reads `partial_rotary_factor` in some models "
    "only, and the other types read it always",
)
VLLM = Source(
    "vLLM",
    "07b12f1b16d5",
    "vllm/model_executor/layers/rotary_embedding/__init__.py",
    "`default`, `linear`, `llama3`, `dynamic`, `yarn` with `attn_factor` and `truncate`, `longrope` with `short_mscale` and "
    "`long_mscale`; `partial_rotary_factor` in every model; base 10000 where none is given",
    "`attention_factor`, `mscale` and `mscale_all_dim` of `yarn` are not read, nor `attention_factor` of `longrope`; "
    "`proportional` is an unknown type",
)
VLLM_YARN = Source(
    "vLLM",
    "0cd5784803d8",
    "vllm/model_executor/layers/rotary_embedding/yarn_scaling_rope.py",
    "`yarn` with `attention_factor`, `mscale`, `mscale_all_dim`, `truncate`; `proportional`",
    "`attn_factor` and `extrapolation_factor` are not read any more",
)
VLLM_DYNAMIC = Source(
    "vLLM",
    "3cfbaf333d80",
    "vllm/model_executor/layers/rotary_embedding/dynamic_ntk_scaling_rope.py",
    "`dynamic` with `factor`",
    "one table, made once for `max_position_embeddings` × `factor` tokens: it does not follow the length of what is read",
)
VLLM_LONGROPE = Source(
    "vLLM",
    "17d618b0f944",
    "vllm/model_executor/layers/rotary_embedding/phi3_long_rope_scaled_rope.py",
    "`longrope` of models that pair channels by halves",
    "the long factors serve all lengths as soon as the longest allowed one is beyond the original; `attention_factor` is not "
    "read; interleaved pairs (Cohere, DeepSeek) are an error",
)
LLAMA_CPP_BASE = Source(
    "llama.cpp",
    "00bd27a621f9",
    "conversion/base.py",
    "`linear`, and `yarn` with `attention_factor` or `attn_factor`, `beta_fast`, `beta_slow`, `extrapolation_factor`; of layer "
    "types the entry of `full_attention`, and the base of `sliding_attention`",
    "`mscale`, `mscale_all_dim` and `truncate` are not read; `dynamic` writes nothing; of `longrope` the name alone; "
    "`proportional` is unknown and becomes no scaling; a scaling of `sliding_attention` and other layer types are not read",
)
LLAMA_CPP_LLAMA = Source(
    "llama.cpp",
    "0274f0fc7d7f",
    "conversion/llama.py",
    "Llama, Mistral, Mixtral: `llama3`, with the original length from the top level of the configuration",
    f"the `{ORIGINAL}` of the rope entry is not read: {LLAMA_CPP_ORIGINAL} is taken; `partial_rotary_factor` is not read",
)
LLAMA_CPP_PHI = Source(
    "llama.cpp",
    "051139f51130",
    "conversion/phi.py",
    f"Phi-3: the factors of `longrope`, `{ORIGINAL}`, `partial_rotary_factor`",
    "`attention_factor` is not read: it is computed from the lengths",
)
SOURCES = (
    TRANSFORMERS, VLLM_YARN, VLLM, VLLM_DYNAMIC, VLLM_LONGROPE, LLAMA_CPP_BASE, LLAMA_CPP_LLAMA, LLAMA_CPP_PHI,
)  # fmt: skip


def markdown() -> str:
    """Return the table of engines for documentation."""
    rows = [("engine", "revision", "reads", "reads otherwise, or not"), ("---",) * 4]
    rows += [(s.engine, f"{s.revision}, `{s.file}`", s.reads, s.parts) for s in SOURCES]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def engines(ladders: Mapping[str, RopeConfig], values: Mapping[str, Any]) -> Section:
    """Return where the engines read a configuration differently.

    Args:
        ladders: what was understood, by layer type ("all" where layers do not differ).
        values: the part of the configuration that it was read from.
    """
    findings = []
    for layer_type, read in ladders.items():
        for finding in _differences(read, values, layer_type):
            if finding not in findings:
                findings.append(finding)
    findings += _layers(ladders)
    shown = Table(
        "What was read",
        ("engine", "revision and file", "reads otherwise, or not"),
        [(s.engine, f"{s.revision}, {s.file}", s.parts.replace("`", "")) for s in SOURCES],
        "Model files of an engine may do more than this.",
    )
    return Section(
        "Engines",
        "the engines' own sources, at the revisions named",
        "Whether transformers, vLLM and llama.cpp make the same rotation of this configuration.",
        tuple(findings),
        (shown,),
    )


def _severity(model: str) -> Severity:
    """Return how sure the common part of an engine is to be what reads this model: others may have files of their own."""
    return "warning" if model in IGNORE_FRACTION else "note"


def _differences(read: RopeConfig, values: Mapping[str, Any], layer_type: str) -> Iterator[Finding]:
    p, model = read.parameters, str(values.get("model_type", ""))
    nested = layer_type != "all"
    yield from _fraction(read, model)
    match read.rope_type:
        case "dynamic":
            yield _finding(
                "warning",
                "vLLM's dynamic scaling does not follow the length: one table serves short and long requests alike",
                float(p["factor"]),
                VLLM_DYNAMIC,
                "use a static type (yarn, linear), which all engines read alike, or serve short requests without scaling",
            )
            yield _finding(
                _severity(model),
                "llama.cpp writes no scaling for type 'dynamic': its frequencies are those before scaling",
                None,
                LLAMA_CPP_BASE,
                "convert with yarn or linear, or give llama.cpp its own --rope-scaling options",
            )
        case "yarn":
            yield from _yarn(read, model, nested)
        case "longrope":
            yield from _longrope(read, model)
        case "llama3" if model in LLAMA_CPP and values.get(ORIGINAL) is None and p[ORIGINAL] != LLAMA_CPP_ORIGINAL:
            yield _finding(
                "warning",
                f"llama.cpp takes {LLAMA_CPP_ORIGINAL} for the original length, and the rope entry says {p[ORIGINAL]}",
                p[ORIGINAL] / LLAMA_CPP_ORIGINAL,
                LLAMA_CPP_LLAMA,
                f"write {ORIGINAL} at the top level of the configuration too",
            )
        case "proportional":
            yield _finding(
                _severity(model),
                "type 'proportional' is unknown to llama.cpp's common part, which scales nothing, and to vLLM at 07b12f1b16d5, "
                "which stops",
                None,
                LLAMA_CPP_BASE,
                "use vLLM 0cd5784803d8 or later, or transformers",
            )
        case _:
            pass
    entry = values.get("rope_parameters")
    if isinstance(entry, Mapping) and values.get("rope_theta") is None and read.base != 10_000.0 and not nested:
        yield Finding(
            "note",
            f"tools that look for rope_theta at the top level find none and take 10000 instead of {read.base:g}",
            read.base / 10_000.0,
            "the base stands in rope_parameters alone, as transformers 5 writes it; DeepSpeed did so (DeepSpeed#8345)",
            "write rope_theta at the top level too, with the same value",
        )


def _fraction(read: RopeConfig, model: str) -> Iterator[Finding]:
    fraction = read.parameters.get("partial_rotary_factor", 1.0)
    if fraction == 1.0 or read.rope_type == "proportional" or model not in IGNORE_FRACTION:
        return
    if read.rope_type == "default":
        does = f"transformers turns all {read.head_dim} channels of a head, and the configuration says {read.dim}"
    else:
        does = f"transformers makes tables for {read.dim} channels and turns heads of {read.head_dim} with them, which stops"
    yield _finding(
        "error",
        f"{model} models do not know partial_rotary_factor: {does}",
        float(fraction),
        TRANSFORMERS,
        f"leave it out, or take an architecture that knows it. vLLM would turn {read.dim} channels",
    )


def _yarn(read: RopeConfig, model: str, nested: bool) -> Iterator[Finding]:
    p = read.parameters
    try:
        made, usual = read.spectrum().attention_factor, yarn_attention_factor(_yarn_factor(read))
    except ConfigError:
        return
    if not math.isclose(made, usual, rel_tol=1e-6):
        ratio = made / usual
        if "attn_factor" not in p:
            yield _finding(
                _severity(model),
                f"vLLM at 07b12f1b16d5 computes YaRN's attention factor, {usual:.4g}, where the configuration says {made:.4g}",
                ratio,
                VLLM,
                f"use vLLM 0cd5784803d8 or later, or write attention_factor {made:.6g} and attn_factor {ratio:.6g}",
                f"all logits are {1 / ratio**2:.3g} of what they should be",
            )
        if "attention_factor" not in p and "attn_factor" not in p:
            yield _finding(
                _severity(model),
                "llama.cpp does not read mscale and mscale_all_dim in its common part",
                ratio,
                LLAMA_CPP_BASE,
                f"write attention_factor {made:.6g}, unless the architecture's own conversion handles them (DeepSeek)",
            )
    if p.get("truncate", True) is False:
        if nested:
            yield _finding(
                "error",
                "transformers does not read truncate inside the entry of a layer type: the ramp is rounded to whole planes",
                None,
                TRANSFORMERS,
                "leave truncate out, or export these frequencies as longrope (hf.export)",
            )
        yield _finding(
            _severity(model),
            "llama.cpp does not read truncate: false",
            None,
            LLAMA_CPP_BASE,
            "compare logits after conversion",
        )


def _longrope(read: RopeConfig, model: str) -> Iterator[Finding]:
    p = read.parameters
    original = float(p[ORIGINAL])
    if read.follows_length:
        yield _finding(
            "warning",
            f"vLLM uses the long factors for short requests too, once its longest allowed length is beyond {original:g}",
            (read.max_length or original) / original,
            VLLM_LONGROPE,
            f"serve with max_model_len {original:g} where requests are short; transformers changes over with the length",
        )
    given = p.get("attention_factor")
    if given is not None and "short_mscale" not in p:
        usual = longrope_attention_factor(max((read.max_length or original) / original, 1.0), original)
        if not math.isclose(given, usual, rel_tol=1e-6):
            yield _finding(
                "warning",
                f"vLLM does not read attention_factor of longrope: it computes {usual:.4g}, and the configuration says "
                f"{given:.4g}",
                given / usual,
                VLLM_LONGROPE,
                f"write short_mscale and long_mscale {given:.6g} too",
            )
            if model.startswith("phi"):
                yield _finding(
                    "warning",
                    f"llama.cpp computes {usual:.4g} too, and does not read attention_factor",
                    given / usual,
                    LLAMA_CPP_PHI,
                    "compare logits after conversion",
                )
    if not model.startswith("phi"):
        yield _finding(
            _severity(model),
            "llama.cpp's common part writes the name longrope and not its factors, which the conversion of Phi-3 does",
            None,
            LLAMA_CPP_BASE,
            "use another type, or another engine",
        )


def _layers(ladders: Mapping[str, RopeConfig]) -> Iterator[Finding]:
    sliding = ladders.get("sliding_attention")
    if sliding is not None and sliding.rope_type != "default":
        yield _finding(
            "note",
            f"llama.cpp's common part reads the base of the sliding layers and not their scaling ({sliding.rope_type!r})",
            None,
            LLAMA_CPP_BASE,
            "compare logits after conversion",
        )
    others = [name for name in ladders if name not in ("all", "full_attention", "sliding_attention")]
    if others:
        yield _finding(
            "note",
            f"llama.cpp's common part reads layer types full_attention and sliding_attention, and not {', '.join(others)}",
            float(len(others)),
            LLAMA_CPP_BASE,
            "see whether the conversion of this architecture does",
        )


def _yarn_factor(read: RopeConfig) -> float:
    factor = read.parameters.get("factor")
    return float(factor) if factor is not None else (read.max_length or 0) / float(read.parameters[ORIGINAL])


def _finding(severity: Severity, title: str, number: float | None, source: Source, fix: str, more: str = "") -> Finding:
    return Finding(severity, title, number, f"{source}{f'; {more}' if more else ''}", fix)
