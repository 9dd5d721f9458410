"""Models kept as GGUF files, dequantised into models of transformers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from ropewalk.core.errors import ConfigError

MAGIC = b"GGUF"

QUANTISED = {
    0: "32-bit floats",
    1: "16-bit floats",
    2: "4-bit (Q4_0)",
    3: "4-bit (Q4_1)",
    7: "8-bit (Q8_0)",
    8: "5-bit (Q5_0)",
    9: "5-bit (Q5_1)",
    10: "2-bit (Q2_K)",
    11: "3-bit (Q3_K_S)",
    12: "3-bit (Q3_K_M)",
    13: "3-bit (Q3_K_L)",
    14: "4-bit (Q4_K_S)",
    15: "4-bit (Q4_K_M)",
    16: "5-bit (Q5_K_S)",
    17: "5-bit (Q5_K_M)",
    18: "6-bit (Q6_K)",
    30: "4-bit (IQ4_XS)",
    25: "4-bit (IQ4_NL)",
    32: "bfloat16",
}
"""What ``general.file_type`` of a file says of its weights."""


def load_gguf(path: str | Path, **options: Any) -> tuple[Any, Any]:
    """Return the model and the tokenizer of a GGUF file, in float32 unless ``dtype`` says otherwise.

    Quantised weights are dequantised: they are the numbers that the file stands for, and not those that were trained.
    ``quantisation(path)`` says which. The file is read and not changed, and nothing in it is run.

    Args:
        path: the file, or a folder with one such file.
        options: go to ``from_pretrained`` (``dtype``, ...).

    Raises:
        ConfigError: no such file, several, no GGUF, an architecture that transformers does not read, or the package ``gguf``
            is missing.
    """
    file = find_gguf(path)
    _package(file)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    try:
        model = AutoModelForCausalLM.from_pretrained(str(file.parent), **where, **{"dtype": torch.float32, **options})
        tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **where)
    except (ValueError, KeyError, OSError, RuntimeError, AssertionError, struct.error) as problem:
        raise ConfigError(f"{file} cannot be loaded as a GGUF model ({type(problem).__name__}: {problem})") from problem
    return model.eval(), tokenizer


def find_gguf(path: str | Path) -> Path:
    """Return the GGUF file that a path names: itself, or the only one in a folder.

    Raises:
        ConfigError: there is none, there are several, or it does not begin as such files do.
    """
    given = Path(path)
    if given.is_dir():
        files = sorted(given.glob("*.gguf"))
        if len(files) != 1:
            names = ", ".join(f.name for f in files) or "none"
            raise ConfigError(f"{given} holds {len(files)} GGUF files ({names}); name the one to load")
        given = files[0]
    try:
        with given.open("rb") as opened:
            start = opened.read(len(MAGIC))
    except OSError as problem:
        raise ConfigError(f"{given} cannot be read ({problem}); give a .gguf file or a folder with one") from None
    if start != MAGIC:
        raise ConfigError(f"{given} is no GGUF file: it begins with {start!r} and not with {MAGIC!r}")
    return given


def quantisation(path: str | Path) -> str:
    """Say how the weights of a GGUF file are kept, for people: "4-bit (Q4_K_M)"."""
    file = find_gguf(path)
    package = _package(file)
    try:
        field = package.GGUFReader(file).get_field("general.file_type")
        number = None if field is None else int(field.contents())
    except (ValueError, KeyError, IndexError, OSError, struct.error) as problem:
        raise ConfigError(f"{file} cannot be read as GGUF ({type(problem).__name__}: {problem})") from problem
    return "not said" if number is None else QUANTISED.get(number, f"file type {number}")


def _package(file: Path) -> Any:
    """Return the package that reads such files."""
    try:
        import gguf
    except ImportError as problem:
        raise ConfigError(
            f"{file.name} is a GGUF file, which needs the package gguf ({problem}): pip install 'ropewalk[extend]'"
        ) from None
    return gguf
