"""`hf.load`: a model that was saved with what `hf.apply` did to it."""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ropewalk.core.errors import ConfigError
from ropewalk.frequencies import Spectrum
from ropewalk.integrations.transformers.apply import Change, apply
from ropewalk.integrations.transformers.attention import NAME
from ropewalk.integrations.transformers.bridge import Bridge, bridge_of
from ropewalk.integrations.transformers.config_file import read_config as read_config

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def load(path: str | Path, what: Change | None = None, **options: Any) -> Any:
    """Load a model from a folder, with the frequencies or the encoding that it was saved with.

    What was learned in an encoding comes back too. Weights are read from safetensors only.

    Args:
        path: what ``model.save_pretrained(path)`` wrote; a model that was never changed is loaded as it is.
        what: the encoding, where it was applied as an object: a configuration keeps names.
        options: go to ``from_pretrained`` (``dtype``, ``device_map``, ...).

    Raises:
        ConfigError: no such folder, pickled weights, an architecture that transformers does not have, an encoding that was an
            object and is not given.
    """
    folder = Path(path)
    config = read_config(folder)
    check_weights(folder)
    kind = architecture(config, folder)
    model = kind.from_pretrained(str(folder), local_files_only=True, use_safetensors=True, **options)
    record = getattr(model.config, NAME, None)
    if record is None:
        if what is not None:
            raise ConfigError(f"{folder} was saved without a change; load it and use hf.apply(model, what)")
        return model
    delattr(model.config, NAME)
    return _restore(model, record, what, folder)


def _restore(model: Any, record: Mapping[str, Any], what: Change | None, folder: Path) -> Any:
    from ropewalk.integrations.transformers import parts

    saved = record.get("spectra")
    if saved is not None:
        places = parts.rotary_places(model)
        if {p.name for p in places} != set(saved):
            raise ConfigError(
                f"{folder} has frequencies for {', '.join(sorted(saved))}, and the model has {', '.join(p.name for p in places)}"
            )
        Bridge(model, places, {name: {t: Spectrum(**s) for t, s in of.items()} for name, of in saved.items()}).put_in()
    texts = record.get("encodings")
    if texts is None:
        model.config.ropewalk = bridge_of(model).record()  # type: ignore[union-attr]
        return model
    if what is None and any(text is None for text in texts):
        kinds = ", ".join(dict.fromkeys(record.get("kinds", ())))
        raise ConfigError(
            f"{folder} was saved with encodings that were given as objects ({kinds}); give them again: hf.load(path, encoding)"
        )
    apply(model, what if what is not None else texts)
    bridge = bridge_of(model)
    assert bridge is not None
    wanted = {f"{NAME}.{name}" for name, _ in bridge.named_parameters()}
    if wanted:
        learned = _tensors(folder)
        if learned.keys() != wanted:
            raise ConfigError(
                f"the encodings learned {sorted(wanted)}, and {folder} holds {sorted(learned)}: it was saved with others"
            )
        with torch.no_grad():
            for name, parameter in bridge.named_parameters():
                parameter.copy_(learned[f"{NAME}.{name}"])
    return model


def _tensors(folder: Path) -> dict[str, Tensor]:
    """Return what the bridge of a saved model had to learn."""
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            found |= {key: opened.get_tensor(key) for key in opened.keys() if key.startswith(f"{NAME}.")}  # noqa: SIM118
    return found


# ---- folders -------------------------------------------------------------------------------------------------------


def check_new(folder: Path) -> None:
    """Check that a folder is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty; give a new folder")


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """Yield where to write what a new or empty folder is to hold; it appears there once all is written, or not at all."""
    check_new(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        made = Path(scratch, "made")
        made.mkdir()
        yield made
        os.replace(made, folder)


def check_weights(folder: Path) -> None:
    """Check that a folder holds safetensors that can be read."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = sorted(p.name for pattern in PICKLED for p in folder.glob(pattern))
        if pickled:
            raise ConfigError(
                f"{folder} holds pickled weights only ({', '.join(pickled)}), which run code when they are opened. If you trust "
                "them, convert them once: tensors = torch.load(file, weights_only=True), then "
                "safetensors.torch.save_file(tensors, 'model.safetensors', metadata={'format': 'pt'})"
            )
        raise ConfigError(f"{folder} holds no weights: expected *.safetensors, as save_pretrained writes them")
    for file in files:
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as problem:
            raise ConfigError(f"{file} cannot be read as safetensors ({problem})") from None


def architecture(config: Mapping[str, Any], folder: Path) -> Any:
    """Return the model class a configuration names."""
    names: list[str] = config.get("architectures") or []
    if len(names) != 1:
        raise ConfigError(f"{folder / 'config.json'} names {names} as architectures; expected one")
    kind = getattr(transformers, names[0], None)
    if kind is None:
        known = [n for n in dir(transformers) if n.endswith(("ForCausalLM", "ForMaskedLM", "Model"))]
        near = "".join(f" Did you mean {n!r}?" for n in difflib.get_close_matches(names[0], known, n=1))
        raise ConfigError(f"transformers has no architecture {names[0]!r}.{near}")
    return kind
