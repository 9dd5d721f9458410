"""The header of a GGUF file as a configuration, from files written here byte by byte."""

from __future__ import annotations

import struct

import pytest

from ropewalk.core.errors import ConfigError
from ropewalk.frequencies import geometric, read_rope_config
from ropewalk.integrations.gguf_config import gguf_config


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def pair(key, value):
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        inner = b"".join(text(v) if isinstance(v, str) else struct.pack("<i", v) for v in value)
        return text(key) + struct.pack("<IIQ", 9, 8 if isinstance(value[0], str) else 5, len(value)) + inner
    kind, form = (6, "<f") if isinstance(value, float) else (4, "<I")
    return text(key) + struct.pack("<I", kind) + struct.pack(form, value)


def write(path, tensors=(), version=3, **keys):
    named = {"general.architecture": "llama", **{f"llama.{k.replace('__', '.')}": v for k, v in keys.items()}}
    named["tokenizer.ggml.tokens"] = [f"t{i}" for i in range(2000)]  # passed over
    named["tokenizer.ggml.token_type"] = [1] * 2000
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(named))
    head += b"".join(pair(k, v) for k, v in named.items())
    data = b""
    for name, values in tensors:
        head += text(name) + struct.pack("<IQIQ", 1, len(values), 0, len(data))
        data += struct.pack(f"<{len(values)}f", *values)
        data += b"\0" * (-len(data) % 32)
    head += b"\0" * (-len(head) % 32)
    path.write_bytes(head + data)
    return path


SHAPE = {
    "context_length": 8192,
    "embedding_length": 256,
    "block_count": 4,
    "attention__head_count": 4,
    "rope__dimension_count": 64,
    "rope__freq_base": 500_000.0,
}


def test_plain(tmp_path):
    values = gguf_config(write(tmp_path / "a.gguf", **SHAPE))
    read = read_rope_config(values)
    assert (read.rope_type, read.dim, read.base, read.max_length) == ("default", 64, 500_000.0, 8192)
    assert read.spectrum() == geometric(64, 500_000.0)
    assert gguf_config(tmp_path) == values  # the only one in a folder


def test_yarn(tmp_path):
    more = {
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": 4.0,
        "rope__scaling__original_context_length": 2048,
    }
    read = read_rope_config(gguf_config(write(tmp_path / "a.gguf", **SHAPE, **more)))
    assert read.spectrum() == geometric(64, 500_000.0).yarn(4.0, 2048)


def test_layers_with_a_base_of_their_own(tmp_path):
    values = gguf_config(
        write(tmp_path / "a.gguf", **SHAPE, rope__freq_base_swa=10_000.0, attention__sliding_window=512)
    )
    assert read_rope_config(values, layer_type="sliding_attention").base == 10_000.0
    assert values["sliding_window"] == 512


def test_factors_for_each_plane(tmp_path):
    """As the conversion of Llama 3.1 writes them."""
    ladder = geometric(64, 500_000.0)
    scaled = ladder.llama3(8.0, 8192, slow=1.0, fast=4.0)
    factors = [a / b for a, b in zip(ladder.inv_freq, scaled.inv_freq, strict=True)]
    tensors = [("token_embd.weight", [0.0] * 5), ("rope_freqs.weight", factors)]
    read = read_rope_config(gguf_config(write(tmp_path / "a.gguf", tensors, **SHAPE)))
    assert read.spectrum().inv_freq == pytest.approx(scaled.inv_freq, rel=1e-6)
    assert read.spectrum().attention_factor == 1.0


def test_files_that_are_cut_off(tmp_path):
    whole = write(tmp_path / "a.gguf", **SHAPE).read_bytes()
    file = tmp_path / "cut.gguf"
    for size in range(4, len(whole) - 64, 997):
        file.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match="header"):
            gguf_config(file)


@pytest.mark.parametrize(
    "content",
    [
        b"GGUF" + struct.pack("<IQQ", 9, 0, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60),
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 9, 1 << 20),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 4, 1 << 62),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<I", 77),
    ],
)
def test_hostile_headers(tmp_path, content):
    file = tmp_path / "a.gguf"
    file.write_bytes(content)
    with pytest.raises(ConfigError):
        gguf_config(file)


def test_no_gguf_at_all(tmp_path):
    file = tmp_path / "a.gguf"
    file.write_bytes(b"PK")
    with pytest.raises(ConfigError, match="no GGUF file"):
        gguf_config(file)
