"""Tensors from files of any engine or language: .safetensors and .npz, read without running anything."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

from torch import Tensor

from ropewalk.analysis.verify.observation import NAMES, ROWS
from ropewalk.core.errors import ConfigError, ShapeError

MOST = 2 << 30
"""Bytes that are read at most."""


def read_dump(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors q, q_rot, k, k_rot and positions of a file, as far as it has them.

    Of a large batch only the first rows are read.

    Args:
        path: a .safetensors or .npz file. Pickles are not read.

    Raises:
        ConfigError: no such file, another kind, one that is cut off, damaged or too large, or a package that is missing.
        ShapeError: none of the names.
    """
    file = Path(path)
    readers = {".safetensors": _safetensors, ".npz": _npz}
    if file.suffix not in readers:
        raise ConfigError(f"{file} is no dump; allowed are .safetensors and .npz files with {', '.join(NAMES)}")
    if not file.is_file():
        raise ConfigError(f"there is no file {file}")
    found = readers[file.suffix](file)
    if not found:
        raise ShapeError(f"{file} holds none of {', '.join(NAMES)}; name the tensors so")
    return found


def _safetensors(file: Path) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as problem:
        raise ConfigError(f"{file} needs safetensors to be read ({problem}): pip install 'ropewalk[lab]'") from None
    found = {}
    try:
        with safe_open(file, framework="pt") as opened:
            names = [name for name in opened.keys() if name in NAMES]  # noqa: SIM118
            slices = {name: opened.get_slice(name) for name in names}
            shapes = {name: tuple(s.get_shape()) for name, s in slices.items()}
            rows = _rows(shapes)
            read = {
                name: (ROWS, *shape[1:]) if rows and shape[:1] == (rows,) else shape for name, shape in shapes.items()
            }
            _check_size(file, sum(8 * _product(shape) for shape in read.values()))
            for name in names:
                cut = rows and shapes[name][:1] == (rows,)
                found[name] = slices[name][:ROWS] if cut else opened.get_tensor(name)
    except (SafetensorError, OSError, ValueError, RuntimeError) as problem:
        raise ConfigError(f"{file} cannot be read as safetensors: {problem}. Is it complete?") from None
    return found


def _npz(file: Path) -> dict[str, Tensor]:
    try:
        import numpy as np
    except ImportError as problem:
        raise ConfigError(f"{file} needs numpy to be read ({problem}): pip install 'ropewalk[lab]'") from None
    import torch

    found: dict[str, Tensor] = {}
    try:
        with zipfile.ZipFile(file) as archive:  # sizes first: a small archive may unfold to a large one
            members = [m for m in archive.infolist() if m.filename.removesuffix(".npy") in NAMES]
            _check_size(file, sum(m.file_size for m in members))
        with np.load(file, allow_pickle=False) as opened:
            arrays: dict[str, Any] = {name: opened[name] for name in NAMES if name in opened.files}
    except ConfigError:
        raise
    except (
        OSError,
        ValueError,
        EOFError,
        KeyError,
        zipfile.BadZipFile,
        NotImplementedError,
        MemoryError,
        RuntimeError,
        SyntaxError,
    ) as problem:
        raise ConfigError(
            f"{file} cannot be read as npz: {problem}. Is it complete, and free of Python objects?"
        ) from None
    except Exception as problem:  # zlib.error and whatever a damaged header provokes
        raise ConfigError(f"{file} cannot be read as npz: {problem}") from None
    for name, array in arrays.items():
        if array.dtype.kind not in "fiu":
            raise ConfigError(
                f"{name} in {file} comes in {array.dtype}; allowed are numbers. npz has no bfloat16: "
                "save float32, which holds it exactly"
            )
        found[name] = torch.from_numpy(array.astype("int64") if array.dtype.kind == "u" else array.copy())
    return found


def _rows(shapes: dict[str, tuple[int, ...]]) -> int:
    """Return the size of the batch if some of it may be left out."""
    batches = {shape[0] for name, shape in shapes.items() if name != "positions" and len(shape) == 4}
    size = batches.pop() if len(batches) == 1 else 0
    places = shapes.get("positions", ())
    return size if size > ROWS and (not places or places[0] in (1, size) or len(places) == 1) else 0


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for n in shape:
        product *= n
    return product


def _check_size(file: Path, size: int) -> None:
    if size > MOST:
        raise ConfigError(
            f"{file} holds {size / 2**30:.1f} GiB, and {MOST / 2**30:.0f} are read at most; save a few "
            "heads of one sequence, they show as much"
        )
