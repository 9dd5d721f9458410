"""The checkpoint that is to be extended: what it is, and why it cannot be, before anything is loaded or written."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ropewalk.core.errors import ConfigError
from ropewalk.frequencies import RopeConfig, Spectrum, read_rope_config, rope_layer_types
from ropewalk.integrations.transformers import parts
from ropewalk.integrations.transformers.attention import NAME
from ropewalk.integrations.transformers.gguf import find_gguf, load_gguf, quantisation
from ropewalk.integrations.transformers.parts import RotaryPlace
from ropewalk.integrations.transformers.rotary import ALL
from ropewalk.integrations.transformers.saved import architecture, check_weights, load, read_config
from ropewalk.lab.data import JsonTokenizer

INDEX = "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
"""Files of which a tokenizer has at least one."""


@dataclass(frozen=True)
class Checkpoint:
    """A causal language model with rotary positions on disk. It is read and never written to.

    Attributes:
        path: the folder or the .gguf file.
        is_gguf: whether it is the latter.
        kind: class of the model.
        config: its configuration.
        trained: tokens of the context it was trained for.
        rope: what the configuration says of each layer type.
        quantised: how the weights are kept, where they were quantised; else None.
        dtype: of the model that is loaded.
    """

    path: Path
    is_gguf: bool
    kind: Any
    config: Any
    trained: int
    rope: Mapping[str, RopeConfig]
    quantised: str | None
    dtype: str = "auto"

    def load(self) -> Any:
        """Return the model, in eval mode.

        Raises:
            ConfigError: weights that are missing or left over.
        """
        dtype = self.dtype if self.dtype == "auto" else getattr(torch, self.dtype)
        if self.is_gguf:
            model, _ = load_gguf(self.path, **({} if dtype == "auto" else {"dtype": dtype}))
            return model.eval()
        if self.is_changed:
            return load(self.path, dtype=dtype).eval()
        model, told = self.kind.from_pretrained(
            str(self.path), local_files_only=True, use_safetensors=True, dtype=dtype, output_loading_info=True
        )
        if missing := sorted(told["missing_keys"]):
            raise ConfigError(_missing(self.path, missing, bool(getattr(self.config, "tie_word_embeddings", False))))
        return model.eval()

    def tokenizer(self) -> Any:
        """Return the tokenizer.

        Raises:
            ConfigError: there is none, or none that the package tokenizers runs.
        """
        from transformers import AutoTokenizer

        if self.is_gguf:
            made = self._gguf_tokenizer()
        else:
            if not any((self.path / name).is_file() for name in TOKENIZERS):
                raise ConfigError(
                    f"{self.path} has no tokenizer ({', '.join(TOKENIZERS)}), and text cannot be measured without one; copy the "
                    "tokenizer's files into the folder"
                )
            try:
                made = AutoTokenizer.from_pretrained(str(self.path), local_files_only=True, trust_remote_code=False)
            except (OSError, ValueError, KeyError, ImportError) as problem:
                raise ConfigError(f"the tokenizer of {self.path} cannot be loaded: {problem}") from problem
        if getattr(made, "backend_tokenizer", None) is None:
            raise ConfigError(
                f"the tokenizer of {self.path} ({type(made).__name__}) is not one that the package tokenizers runs; save it once "
                "as a fast one (tokenizer.json)"
            )
        return made

    def _gguf_tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        file = find_gguf(self.path)
        try:
            return AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name, local_files_only=True)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as problem:
            raise ConfigError(f"the tokenizer in {file} cannot be loaded: {problem}") from problem

    def text_tokenizer(self, tokenizer: Any) -> JsonTokenizer:
        """Return a tokenizer as the lab's text wants it: no special tokens but one that begins a document."""
        return JsonTokenizer(tokenizer.backend_tokenizer.to_str(), self.path.name)

    def skeleton(self) -> Any:
        """Return the model without weights, to try on it what will be applied."""
        config = copy.deepcopy(self.config)
        if hasattr(config, NAME):
            delattr(config, NAME)
        with torch.device("meta"):
            return self.kind(config)

    @property
    def is_changed(self) -> bool:
        """Whether `hf.apply` changed the model before it was saved."""
        return getattr(self.config, NAME, None) is not None

    @property
    def spectrum(self) -> Spectrum:
        """The frequencies of the layers that see everything, as trained.

        Raises:
            ConfigError: they depend on the length.
        """
        chosen = self.rope.get("full_attention") or next(iter(self.rope.values()))
        return chosen.spectrum()

    @property
    def scaled(self) -> str | None:
        """How the frequencies are scaled already; None: they are not."""
        if self.is_changed:
            return f"ropewalk changed it ({_change(getattr(self.config, NAME))})"
        said = []
        for name, rope in self.rope.items():
            if rope.rope_type not in ("default", "proportional") or "clip_low_n" in rope.parameters:
                of = "" if name == ALL else f" in {name} layers"
                numbers = {k: v for k, v in rope.parameters.items() if not isinstance(v, list | tuple)}
                told = ", ".join(f"{k} {v:g}" if isinstance(v, float | int) else f"{k} {v}" for k, v in numbers.items())
                said.append(f"rope type {rope.rope_type!r}{of}{f' ({told})' if told else ''}")
        return "; ".join(said) or None

    def describe(self) -> dict[str, Any]:
        """Say what it is, as plain data."""
        inner = self.config.get_text_config()
        return {
            "path": str(self.path),
            "family": inner.model_type,
            "architecture": self.kind.__name__,
            "trained_length": self.trained,
            "base": {name: rope.base for name, rope in self.rope.items()},
            "rope_type": {name: rope.rope_type for name, rope in self.rope.items()},
            "scaling": self.scaled,
            "layers": inner.num_hidden_layers,
            "heads": inner.num_attention_heads,
            "kv_heads": getattr(inner, "num_key_value_heads", None) or inner.num_attention_heads,
            "head_dim": next(iter(self.rope.values())).head_dim,
            "vocabulary": inner.vocab_size,
            "quantised": self.quantised,
            "sliding_window": getattr(inner, "sliding_window", None),
        }

    def sentences(self) -> Iterator[str]:
        """Say what it is, in sentences."""
        d = self.describe()
        bases = ", ".join(f"{base:g}" if name == ALL else f"{base:g} ({name})" for name, base in d["base"].items())
        yield (
            f"{self.path.name}: {d['architecture']} ({d['family']}), {d['layers']} layers, {d['heads']} heads and "
            f"{d['kv_heads']} key heads of {d['head_dim']} channels, trained for {self.trained:,} tokens, base {bases}, "
            f"{'scaled: ' + self.scaled if self.scaled else 'no scaling'}."
        )
        if self.quantised:
            yield f"Its weights are quantised, {self.quantised}: every number below is of the quantised model."


def read_checkpoint(path: str | Path, *, dtype: str = "auto", force: bool = False) -> Checkpoint:
    """Read what a checkpoint is, without its weights.

    Args:
        path: a folder with config.json and safetensors, or a .gguf file (or a folder with one).
        dtype: of the model that will be loaded.
        force: accept frequencies that are scaled already.

    Raises:
        ConfigError: nothing there, pickled or missing weights, a model without rotary positions, a configuration that is
            contradictory, misspelt or unknown, frequencies that are scaled already.
    """
    place = Path(path).expanduser()
    if not place.exists():
        raise ConfigError(
            f"there is no folder or file {str(path)!r}. A model of the Hugging Face hub is downloaded first: hf download NAME "
            "--local-dir FOLDER"
        )
    is_gguf = place.suffix == ".gguf" or (
        place.is_dir() and not (place / "config.json").exists() and any(place.glob("*.gguf"))
    )
    made = _read_gguf(find_gguf(place), dtype) if is_gguf else _read_folder(place, dtype)
    if made.scaled and not force:
        raise ConfigError(
            f"the frequencies of {place} are scaled already: {made.scaled}. A second scaling would multiply the first, and what "
            "was trained for one of them is trained for neither; extend the checkpoint it was made from, or give --force"
        )
    return made


def wanted_length(text: str, trained: int) -> int:
    """Read ``--to``: "4x" the trained length, or tokens.

    Raises:
        ConfigError: not a length, or one that is not beyond the trained one.
    """
    plain = text.strip().lower().replace("_", "").replace(",", "")
    times = plain.endswith(("x", "×"))
    try:
        number = float(plain.rstrip("x×") if times else plain.removesuffix("k"))
    except ValueError:
        raise ConfigError(f"--to is a number of tokens, or times the trained length as in 4x; got {text!r}") from None
    length = number * (trained if times else 1024 if plain.endswith("k") else 1)
    if not 0 < length < 2**40 or length != int(length):
        raise ConfigError(f"--to {text} is {length:g} tokens; give a whole number of them")
    if length <= trained:
        raise ConfigError(
            f"--to {text} is {int(length):,} tokens, and the checkpoint was trained for {trained:,}: there is nothing to extend; "
            f"give more, such as --to {2 * trained} or --to 2x"
        )
    return int(length)


# ---- reading ---------------------------------------------------------------------------------------------------------


def _read_folder(folder: Path, dtype: str) -> Checkpoint:
    values = read_config(folder)
    if folder.is_file():
        raise ConfigError(f"{folder} is a file; give the folder of the checkpoint, or a .gguf file")
    kind = architecture(values, folder)
    rope = _rope(values, folder)
    check_weights(folder)
    _check_shards(folder)
    config = kind.config_class.from_pretrained(str(folder), local_files_only=True)
    return _checked(Checkpoint(folder, False, kind, config, _trained(config, folder), rope, _low(values), dtype))


def _read_gguf(file: Path, dtype: str) -> Checkpoint:
    kept = quantisation(file)  # first, since its message names the package that is missing
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(str(file.parent), gguf_file=file.name, local_files_only=True)
        kind = AutoModelForCausalLM._model_mapping[type(config)]
    except (OSError, ValueError, KeyError) as problem:
        raise ConfigError(f"{file} cannot be read as a GGUF model of transformers: {problem}") from problem
    rope = _rope(config.to_dict(), file)
    return _checked(Checkpoint(file, True, kind, config, _trained(config, file), rope, kept, dtype))


def _rope(values: dict[str, Any], where: Path) -> dict[str, RopeConfig]:
    """Return what a configuration says of its frequencies, read before any model class looks at it."""
    inner = values.get("text_config") if isinstance(values.get("text_config"), dict) else None
    read = inner or values
    try:
        types = rope_layer_types(read)
        return {t: read_rope_config(read, layer_type=None if t == ALL else t) for t in types or (ALL,)}
    except ConfigError as problem:
        raise ConfigError(f"{where}: {problem}") from None


def _trained(config: Any, where: Path) -> int:
    length = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(length, int) or isinstance(length, bool) or length < 2:
        raise ConfigError(f"{where} does not say what it was trained for: max_position_embeddings is {length!r}")
    return length


def _checked(made: Checkpoint) -> Checkpoint:
    if not hasattr(made.kind, "get_output_embeddings") or not made.kind.__name__.endswith(
        ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
    ):
        raise ConfigError(
            f"{made.path} is a {made.kind.__name__}; the loss of the next token is measured, so give a causal language model"
        )
    places: list[RotaryPlace] = parts.rotary_places(made.skeleton())
    if len(places) != 1:
        raise ConfigError(
            f"{made.kind.__name__} has {len(places)} rotary modules ({', '.join(p.name for p in places)}); models with one can "
            "be extended"
        )
    return made


def _check_shards(folder: Path) -> None:
    """Check that all files of an index are there."""
    index = folder / INDEX
    if not index.exists():
        return
    try:
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError) as problem:
        raise ConfigError(f"{index} cannot be read ({problem}); download it again") from None
    if lost := sorted(name for name in named if not (folder / name).is_file()):
        raise ConfigError(
            f"{folder} lacks {len(lost)} of its {len(named)} files of weights, {lost[0]} first; download them again"
        )


def _missing(path: Path, missing: list[str], tied: bool) -> str:
    shown = ", ".join(missing[:4]) + (", …" if len(missing) > 4 else "")
    hint = "the download may be incomplete"
    if not tied and any("lm_head" in name or "embed_out" in name for name in missing):
        hint = (
            "tie_word_embeddings is false in its config.json; if the model shares them with its input embeddings, set it to "
            "true"
        )
    return f"{path} lacks {len(missing)} weights of its model ({shown}): {hint}"


def _low(values: Mapping[str, Any]) -> str | None:
    """Say how a folder's weights are quantised."""
    quantised = values.get("quantization_config")
    if not isinstance(quantised, Mapping):
        return None
    return str(quantised.get("quant_method") or "quantised")


def _change(record: Mapping[str, Any]) -> str:
    if "encodings" in record:
        return ", ".join(dict.fromkeys(str(text) for text in record["encodings"]))
    (first, *_) = record["spectra"].values()
    return ", ".join(str(s.get("origin") or "other frequencies") for s in first.values())
