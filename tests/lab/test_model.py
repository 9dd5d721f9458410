"""The decoder of the lab: shared initial values, layer patterns, decoding, saving."""

from __future__ import annotations

import json

import pytest
import torch

import ropewalk as rw
from ropewalk.core.errors import CacheError, ConfigError, PositionError
from ropewalk.lab.model import Decoder, ModelConfig, expand_layers, load, sized

SMALL = {"vocab_size": 31, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_length": 64}
TOKENS = torch.arange(2 * 20).reshape(2, 20) % 31


def model(*encodings, seed=0, **changes):
    return Decoder(ModelConfig(**{**SMALL, **changes}, encodings=encodings or ("rope",)), seed).eval()


@pytest.mark.parametrize(
    "name", ["nope", "alibi", "fox", "pope", "learned", "randomized_rope", "rope + t5", "sinusoidal"]
)
def test_shared_parameters_start_equal(name):
    ours, theirs = model("rope", seed=3), model(name, seed=3)
    shared = dict(ours.named_parameters())
    for key, value in theirs.named_parameters():
        if ".encoding." not in key:
            assert torch.equal(value, shared.pop(key)), key
    assert not shared
    assert not torch.equal(model(name, seed=4).embedding.weight, theirs.embedding.weight)


def test_own_parameters_of_encodings_follow_the_seed_alone():
    torch.manual_seed(1)
    first = model("fox", seed=3)
    torch.manual_seed(2)
    second = model("fox", seed=3)
    for (key, a), (_, b) in zip(first.named_parameters(), second.named_parameters(), strict=True):
        assert torch.equal(a, b), key
    weights = [e.weight for e in first.encodings]
    assert not torch.equal(*weights)  # each layer draws its own


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    model("fox")
    assert torch.equal(torch.rand(3), want)


@pytest.mark.parametrize(
    "name", ["rope", "alibi", "fox", "pope", "sinusoidal", "learned", "contextual_cope", "rope_pp", "rope:1,nope:1"]
)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_decoding_equals_the_full_pass(name, kv_heads):
    made = model(*expand_layers(name), num_kv_heads=kv_heads, qk_norm=True)
    with torch.no_grad():
        full = made(TOKENS)
        cache = made.cache()
        pieces = [made(part, cache=cache) for part in TOKENS.split([7, 1, 1, 11], dim=1)]
    assert torch.allclose(torch.cat(pieces, 1), full, atol=2e-5)


def test_packed_documents_equal_separate_ones():
    made = model("rope", "fox")
    ids = torch.tensor([[0] * 8 + [1] * 12] * 2)
    with torch.no_grad():
        packed = made(TOKENS, rw.Positions.arange(20, document_ids=ids))
        first, second = made(TOKENS[:, :8]), made(TOKENS[:, 8:])
    assert torch.allclose(packed, torch.cat([first, second], 1), atol=2e-5)


def test_layers_follow_the_pattern():
    made = model(*expand_layers("rope:3,nope:1"), num_layers=6)
    assert [type(e) for e in made.encodings] == [rw.RoPE, rw.RoPE, rw.RoPE, rw.NoPE, rw.RoPE, rw.RoPE]
    assert made.encodings[0] is made.encodings[4]  # nothing to learn: one object, one table


def test_what_is_added_to_embeddings_is_there_once():
    made = model("rope", "learned")
    owners = [name for name in made.encoding_parameters()]
    assert len(owners) == 1 and owners[0].startswith("blocks.0.")
    assert type(made.encodings[1]) is rw.NoPE
    both = model("learned")
    assert len(both.encoding_parameters()) == 1


def test_a_table_that_is_too_short_is_an_error():
    with pytest.raises(PositionError):
        model("learned", max_length=10)(TOKENS)


def test_encoder_sees_both_ways():
    made = model("rope", causal=False, num_classes=3)
    logits = made(TOKENS)
    assert logits.shape == (2, 20, 3)
    changed = TOKENS.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 31
    assert not torch.allclose(made(changed)[:, 0], logits[:, 0])


def test_saved_models_come_back(tmp_path):
    made = model("rope(base=500)", "fox")
    made.save(tmp_path / "m")
    again = load(tmp_path / "m").eval()
    assert again.config == made.config
    assert torch.equal(again(TOKENS), made(TOKENS))
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["config.json", "model.safetensors"]
    assert json.loads((tmp_path / "m" / "config.json").read_text())["encodings"] == ["rope(base=500)", "fox"]
    with pytest.raises(ConfigError, match=r"config\.json is missing"):
        load(tmp_path / "other")
    (tmp_path / "m" / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(ConfigError, match="no model that this version reads"):
        load(tmp_path / "m")


def test_bad_shapes():
    for changes, said in (
        ({"num_heads": 3}, "evenly"),
        ({"num_kv_heads": 3}, "no multiple"),
        ({"vocab_size": 0}, "at least 1"),
        ({"encodings": ()}, "needs an encoding"),
    ):
        with pytest.raises(ConfigError, match=said):
            ModelConfig(**{**SMALL, **changes})
    with pytest.raises(ConfigError, match="no size"):
        sized("huge")
    with pytest.raises(CacheError, match="layers"):
        model("rope")(TOKENS, cache=rw.KVCache([rw.NoPE()]))
