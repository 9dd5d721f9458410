"""`hf.export`: a checkpoint with other frequencies, for engines that have never heard of ropewalk."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ropewalk.core.errors import ConfigError, Refusal
from ropewalk.frequencies import Spectrum, to_rope_parameters, yarn_attention_factor
from ropewalk.frequencies.rope_config import ORIGINAL
from ropewalk.integrations.transformers import parts
from ropewalk.integrations.transformers.attention import NAME
from ropewalk.integrations.transformers.bridge import bridge_of
from ropewalk.integrations.transformers.parts import RotaryPlace
from ropewalk.integrations.transformers.rotary import ALL, LAYOUTS
from ropewalk.integrations.transformers.saved import check_new, whole

SCRIPT = Path(__file__).with_name("reload.py")
"""What runs where ropewalk cannot be imported."""

FAR = 2048
"""Positions up to here are compared: beyond, float32 angles of the engine are what is compared."""

TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Of the logits, relative to the largest."""


AXES = ("mrope_section", "mrope_interleaved")
"""What an entry says of positions with several axes, whatever the frequencies are."""


class CannotExport(Refusal):
    """No entry of a configuration of transformers says what the model does."""


@dataclass(frozen=True)
class Export:
    """What was written.

    Args:
        path: the folder.
        entries: ``rope_parameters`` by layer type ("all" where they do not differ).
        difference: largest difference of the logits of plain transformers, relative to the largest logit; None: not run.
        lost: what the checkpoint cannot say, in sentences.
    """

    path: Path
    entries: Mapping[str, Mapping[str, Any]]
    difference: float | None
    lost: tuple[str, ...]

    def __str__(self) -> str:
        types = ", ".join(
            f"{e['rope_type']}" if t == ALL else f"{t}: {e['rope_type']}" for t, e in self.entries.items()
        )
        checked = (
            "not checked"
            if self.difference is None
            else f"logits differ by {self.difference:.1e} in plain transformers"
        )
        return "\n".join([f"{self.path}: {types}; {checked}", *(f"lost: {line}" for line in self.lost)])


def export(model: Any, path: str | Path, *, max_length: int | None = None, verify: bool = True) -> Export:
    """Write a checkpoint that plain transformers loads with the frequencies the model has now.

    Types of their own are used where there are some ("linear", "yarn", "llama3", ...), else "longrope" with a factor for each
    plane, the same for short and long contexts; planes that stand still get an endless wavelength. What transformers makes of
    the entry is compared with the model's frequencies, and in a process of its own, where ropewalk cannot be imported, with
    its logits.

    Args:
        model: with or without `hf.apply`.
        path: a folder, new or empty.
        max_length: the context it is for, written as ``max_position_embeddings``; None: as it was.
        verify: whether to load the checkpoint in another process. It needs memory for the model once more.

    Raises:
        CannotExport: another encoding than frequencies; frequencies that no entry makes; logits that are not the model's.
            Nothing is left behind then.
        ConfigError: a folder that is not empty.
    """
    folder = Path(path)
    check_new(folder)
    bridge = bridge_of(model)
    if bridge is not None and bridge.encodings is not None:
        kinds = ", ".join(dict.fromkeys(type(e).__name__ for e in bridge.encodings))
        raise CannotExport(
            f"the model has an encoding ({kinds}), and a configuration of transformers says frequencies only: without ropewalk "
            "all of it would be lost. Save it with model.save_pretrained and load it with hf.load"
        )
    places = list(bridge.places) if bridge is not None else parts.rotary_places(model)
    if len(places) != 1:
        raise CannotExport(
            f"{type(model).__name__} has {len(places)} rotary modules, and one configuration cannot say which"
        )
    place = places[0]
    spectra = (bridge.spectra or {}).get(place.name) if bridge is not None else None
    spectra = spectra if spectra is not None else {t: place.declared(t) for t in place.layer_types}
    config, entries = _configured(place, spectra, max_length)
    with whole(folder) as made:
        model.save_pretrained(made)
        _write(model, config, made)
        difference = _verify(model, place, spectra, made) if verify else None
    return Export(folder, entries, difference, tuple(_lost(place, spectra, entries)))


# ---- entries -------------------------------------------------------------------------------------------------------


def _configured(
    place: RotaryPlace, spectra: Mapping[str, Spectrum], max_length: int | None
) -> tuple[Any, dict[str, Mapping[str, Any]]]:
    """Return the configuration with entries from which the model class makes these frequencies."""
    config = copy.deepcopy(place.config)
    if hasattr(config, NAME):
        delattr(config, NAME)
    if max_length is not None:
        config.max_position_embeddings = max_length
    chosen: dict[str, Mapping[str, Any]] = {}
    for t in place.layer_types:
        for entry in _entries(place, t, spectra[t]):
            trial = copy.deepcopy(config)
            _put(trial, t, entry)
            made, factor = parts.buffers(place.fresh(trial), t)
            if parts.agree(made, spectra[t].tensor(), factor, spectra[t].attention_factor):
                chosen[t], config = entry, trial
                break
        else:
            where = place.kind.__name__ if t == ALL else f"{place.kind.__name__} for {t!r}"
            raise CannotExport(
                f"from no entry does {where} make the frequencies {spectra[t].origin or spectra[t].inv_freq}"
            )
    return config, chosen


def _entries(place: RotaryPlace, layer_type: str, spectrum: Spectrum) -> Iterator[dict[str, Any]]:
    read = place.read(layer_type)
    original = int(read.parameters.get(ORIGINAL) or read.max_length or 0) or None
    said = getattr(place.config, "rope_parameters", None) or {}
    said = said if layer_type == ALL else said.get(layer_type) or {}
    own = read.parameters if read.rope_type != "default" else {}
    # DeepSeek scales all its logits by what these say, whatever the frequencies are.
    scaled = {k: own[k] for k in ("mscale", "mscale_all_dim") if own.get("mscale_all_dim")}
    for candidate in (spectrum, replace(spectrum, origin="")):  # without the origin: a factor for each plane
        try:
            entry = to_rope_parameters(candidate, head_dim=read.head_dim, original=original)
        except ConfigError:
            continue
        if "partial_rotary_factor" in said:  # a class that reads it, and cuts heads by it
            if entry["rope_type"] == "proportional":
                continue
            entry.setdefault("partial_rotary_factor", 1.0)
        entry |= {k: said[k] for k in AXES if k in said}
        if scaled:
            if entry["rope_type"] not in ("yarn", "longrope") or entry.get("factor", own["factor"]) not in (
                own["factor"],
                1.0,
            ):
                continue
            entry = {**entry, **scaled, "factor": own["factor"]}
        if entry["rope_type"] == "longrope":
            # vLLM reads these two and not attention_factor.
            entry |= {"short_mscale": entry["attention_factor"], "long_mscale": entry["attention_factor"]}
        if entry["rope_type"] == "yarn":
            usual = yarn_attention_factor(entry["factor"])
            if not math.isclose(entry["attention_factor"], usual):  # releases of vLLM before it read attention_factor
                entry["attn_factor"] = entry["attention_factor"] / usual
        yield entry


def _put(config: Any, layer_type: str, entry: Mapping[str, Any]) -> None:
    if layer_type == ALL:
        config.rope_parameters = dict(entry)
    else:
        config.rope_parameters = {**config.rope_parameters, layer_type: dict(entry)}
    if entry["rope_type"] == "longrope" and ORIGINAL in entry:
        setattr(config, ORIGINAL, entry[ORIGINAL])  # where vLLM looks for it


def _write(model: Any, config: Any, folder: Path) -> None:
    whole = copy.deepcopy(model.config)
    if hasattr(whole, NAME):
        delattr(whole, NAME)
    inner = parts.decoder_config(model)
    if inner is model.config:
        for name in ("rope_parameters", "max_position_embeddings", ORIGINAL):
            if hasattr(config, name):
                setattr(whole, name, getattr(config, name))
    else:
        setattr(whole, next(n for n, part in vars(model.config).items() if part is inner), config)
    whole.save_pretrained(folder)


def _lost(
    place: RotaryPlace, spectra: Mapping[str, Spectrum], entries: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    yield "angles are computed in float32 there, from frequencies in float32 (here in float64)"
    for t, entry in entries.items():
        where = "" if t == ALL else f"{t}: "
        planes = [i for i, w in enumerate(spectra[t].inv_freq) if w == 0.0]
        if entry["rope_type"] == "longrope":
            if planes:
                yield f"{where}{len(planes)} planes that stand still have an endless wavelength there, and turn by nothing"
            if LAYOUTS[place.layout][1] == "interleaved":
                yield f"{where}vLLM takes longrope entries for models that pair channels by halves only, and this one does not"


# ---- the check -----------------------------------------------------------------------------------------------------


def _verify(model: Any, place: RotaryPlace, spectra: Mapping[str, Spectrum], folder: Path) -> float:
    """Compare with what plain transformers makes of the folder, and return how far the logits are apart."""
    asked = _questions(model)
    with tempfile.TemporaryDirectory() as scratch:
        question, answer = Path(scratch, "asked.safetensors"), Path(scratch, "answer.safetensors")
        save_file(asked, question)
        # As text and from elsewhere: the folder of a script is where Python looks for modules first.
        command = [
            sys.executable,
            "-c",
            SCRIPT.read_text(encoding="utf-8"),
            str(folder.resolve()),
            str(question),
            str(answer),
        ]
        run = subprocess.run(command, capture_output=True, text=True, cwd=scratch)
        if run.returncode != 0:
            raise CannotExport(f"plain transformers could not load {folder}: {run.stderr.strip()[-2000:]}")
        got = load_file(answer)
    for t in place.layer_types:
        prefix = f"{place.name}." if t == ALL else f"{place.name}.{t}_"
        made, factor = got[f"{prefix}inv_freq"], float(got[f"{prefix}attention_scaling"])
        if not parts.agree(made, spectra[t].tensor(), factor, spectra[t].attention_factor):
            raise CannotExport(f"plain transformers makes other frequencies of {folder} for layers {t!r}")
    wanted = _logits(model, asked)
    difference = float((got["logits"] - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))
    allowed = TOLERANCE.get(model.dtype, 5e-2)
    if not math.isfinite(difference) or difference > allowed:
        raise CannotExport(
            f"plain transformers computes other logits from {folder}: {difference:.2g} apart (relative), allowed {allowed:g}"
        )
    return difference


def _questions(model: Any) -> dict[str, Tensor]:
    """Return tokens at near and at far positions."""
    config = parts.decoder_config(model)
    last = min(config.max_position_embeddings, FAR) - 1
    near, far = torch.arange(8), torch.linspace(0, last, 8).round().long()
    ids = torch.randint(0, config.vocab_size, (2, 8), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "position_ids": torch.stack((near, far))}


def _logits(model: Any, asked: Mapping[str, Tensor]) -> Tensor:
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            given = {name: tensor.to(model.device) for name, tensor in asked.items()}
            logits: Tensor = model(**given, use_cache=False)[0]
            return logits.float().cpu()
    finally:
        model.train(training)
