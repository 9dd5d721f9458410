"""Attention Buckets on models of transformers."""

import pytest
import torch
from hf_families import model, tokens

import ropewalk as rw
from ropewalk import hf
from ropewalk.core.errors import CacheError
from ropewalk.frequencies.buckets import copy_weights, mixed

LOGITS = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
BASES = (10_000.0, 17_500.0, 25_000.0)
FAMILY = "qwen2"


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def test_golden():
    import json
    from pathlib import Path

    path = Path(__file__).resolve().parents[2] / "golden" / "041-attention-buckets.json"
    (case,) = json.loads(path.read_text(encoding="utf-8"))["cases"]
    said = torch.tensor(case["inputs"]["process_logits"], dtype=torch.float64)
    for combine, weights, out in (("logits", "code", "logits_code"), ("probs", "prob", "probs")):
        want = torch.tensor(case["outputs"][f"weights_{weights}"], dtype=torch.float64)
        torch.testing.assert_close(copy_weights(said, combine), want, atol=1e-10, rtol=0)
        got = mixed(said, combine)
        got = got.exp() if combine == "probs" else got
        want = torch.tensor(case["outputs"][f"combined_{out}"], dtype=torch.float64)
        torch.testing.assert_close(got, want, atol=1e-10, rtol=0)


def test_weights():
    for combine in ("logits", "probs"):
        shares = copy_weights(LOGITS, combine)
        torch.testing.assert_close(shares.sum(0), torch.ones((), dtype=torch.float64))
        torch.testing.assert_close(copy_weights(LOGITS + 5, combine), shares)
        torch.testing.assert_close(copy_weights(LOGITS.flip(0), combine), shares.flip(0))
    torch.testing.assert_close(mixed(LOGITS[:1].expand(4, -1)), LOGITS[0])
    with pytest.raises(rw.ConfigError, match="Did you mean 'logits'"):
        mixed(LOGITS, "logit")


@pytest.mark.parametrize("family", ["qwen2", "llama2", "cohere"])
def test_one_base_is_the_model(family):
    made = model(family)
    want, greedy = made(tokens()).logits, made.generate(tokens(), max_new_tokens=5, do_sample=False)
    base = made.config.rope_parameters["rope_theta"]
    for bases in ((base,), (base, base, base)):
        buckets = hf.MultiBaseDecoder(made, bases)
        torch.testing.assert_close(buckets(tokens()).logits, want, atol=2e-5, rtol=1e-5)
        assert torch.equal(buckets.generate(tokens(), max_new_tokens=5), greedy)
    assert torch.equal(made(tokens()).logits, want)  # the model is as it was


def test_copies_are_separate_runs_and_groups_do_not_matter():
    made = model(FAMILY)
    apart = []
    for base in BASES:
        hf.apply(made, rw.geometric(made.config.hidden_size // made.config.num_attention_heads, base))
        apart.append(made(tokens()).logits)
        hf.remove(made)
    want = mixed(torch.stack(apart))
    for rows in (None, 1, 2):
        got = hf.MultiBaseDecoder(made, BASES, rows=rows)(tokens()).logits
        torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-5)
    probs = hf.MultiBaseDecoder(made, BASES, "probs")(tokens()).logits
    torch.testing.assert_close(probs, mixed(torch.stack(apart), "probs"), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [None, 2])
def test_decodes_what_one_pass_computes_with_padding(rows):
    buckets = hf.MultiBaseDecoder(model(FAMILY), BASES, rows=rows)
    ids, mask = tokens(), torch.ones_like(tokens())
    ids[0, :4] = mask[0, :4] = 0
    out = buckets.generate(ids, mask, max_new_tokens=6)
    full = torch.cat([mask, mask.new_ones(2, 6)], 1)
    whole = buckets(out, full).logits
    assert torch.equal(whole[:, 11:-1].argmax(-1), out[:, 12:])
    alone = buckets.generate(ids[:1, 4:], max_new_tokens=6)
    assert torch.equal(alone[0, 8:], out[0, 12:])
    first = buckets(out[:, :7], full[:, :7], use_cache=True)
    rest = buckets(out[:, 7:], full[:, 7:], past_key_values=first.past_key_values, use_cache=True)
    real = full.bool()
    joined = torch.cat([first.logits, rest.logits], 1)
    torch.testing.assert_close(joined[real], whole[real], atol=5e-5, rtol=1e-5)
    with pytest.raises(CacheError, match="another batch"):
        buckets(out[:1, 7:], past_key_values=first.past_key_values)


def test_rows_end_by_themselves():
    buckets = hf.MultiBaseDecoder(model(FAMILY), BASES)
    out = buckets.generate(tokens(), max_new_tokens=6)
    end = int(out[0, 14])
    stopped = buckets.generate(tokens(), max_new_tokens=6, eos_token_id=end, pad_token_id=63)
    first = (out[0, 12:] == end).nonzero()[0, 0]
    assert torch.equal(stopped[0, : 13 + first], out[0, : 13 + first])
    assert (stopped[0, 13 + first :] == 63).all()
    drawn = [
        buckets.generate(tokens(), max_new_tokens=4, temperature=2.0, generator=torch.Generator().manual_seed(1))
        for _ in "ab"
    ]
    assert torch.equal(*drawn)


def test_what_cannot_be():
    with pytest.raises(rw.ConfigError, match="no bases"):
        hf.MultiBaseDecoder(model(FAMILY), ())
    with pytest.raises(rw.ConfigError, match="not those of a base"):
        hf.MultiBaseDecoder(model("llama3"))
    with pytest.raises(rw.ConfigError, match=r"hf\.remove"):
        hf.MultiBaseDecoder(hf.apply(model(FAMILY), "linear", factor=2))
    with pytest.raises(rw.ConfigError, match="model of transformers"):
        hf.MultiBaseDecoder(torch.nn.Linear(2, 2))
    with pytest.raises(rw.ShapeError, match="on the left"):
        hf.MultiBaseDecoder(model(FAMILY)).generate(tokens(), torch.ones_like(tokens()).tril(10))
