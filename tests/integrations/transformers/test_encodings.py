"""Other encodings in models of transformers: attention, caches and `generate` go through ropewalk."""

import copy

import pytest
import torch
import transformers
from hf_families import DECODERS, FAMILIES, config, model, tokens
from transformers import DynamicCache, StaticCache

import ropewalk as rw
from ropewalk import hf
from ropewalk.core.errors import (
    CacheError,
    CannotCache,
    CannotCrop,
    ConfigError,
    PositionError,
    RopewalkError,
    ShapeError,
)
from ropewalk.frequencies import RopeConfigWarning

NEW = 6


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def padded():
    """Two rows, the first with four tokens of padding on the left."""
    ids = tokens()
    mask = torch.ones_like(ids)
    ids[0, :4] = mask[0, :4] = 0
    return {"input_ids": ids, "attention_mask": mask}


def generate(made, **options):
    return made.generate(**{**padded(), **options}, max_new_tokens=NEW, do_sample=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_its_own_encoding_computes_what_the_model_computes(family):
    made = model(family)
    before = made(**padded()).logits
    own = hf.encodings(made)
    hf.apply(made, rw.PerLayer(own))
    assert made.config._attn_implementation == "ropewalk"
    assert hf.encodings(made) == own
    after = made(**padded()).logits
    real = padded()["attention_mask"].bool()
    torch.testing.assert_close(after[real], before[real], atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize("family", DECODERS)
def test_its_own_encoding_generates_what_the_model_generates(family):
    made = model(family)
    plain, beams = generate(made), generate(made, num_beams=3)
    hf.apply(made, rw.PerLayer(hf.encodings(made)))
    assert torch.equal(generate(made), plain)
    assert torch.equal(generate(made, num_beams=3), beams)


@pytest.mark.parametrize("family", FAMILIES)
def test_another_encoding_is_another_model_and_can_be_taken_out(family):
    made = model(family)
    values, names = made.config.to_dict(), [n for n, _ in made.named_modules()]
    implementation = made.config._attn_implementation
    before = made(tokens()).logits
    hf.apply(made, "alibi")
    assert not torch.allclose(made(tokens()).logits, before, atol=1e-2)
    hf.remove(made)
    assert torch.equal(made(tokens()).logits, before)
    assert made.config.to_dict() == values and made.config._attn_implementation == implementation
    assert [n for n, _ in made.named_modules()] == names
    if family != "modernbert":
        made.generate(tokens(), max_new_tokens=1, cache_implementation="static", disable_compile=True)


@pytest.mark.parametrize(
    "what", ["alibi", "rope + fox", "dynamic_ntk(factor=2)", "sinusoidal", "kv_shift + rope", "t5"]
)
@pytest.mark.parametrize("family", ["llama3", "mistral", "stablelm", "smollm3", "deepseek_v3", "gpt_oss"])
def test_decodes_what_one_pass_computes(family, what):
    """Token by token and in chunks, with padding on the left, equals the whole; 18 tokens leave a window of 5 behind."""
    made = hf.apply(model(family), what)
    out = generate(made)
    mask = torch.cat([padded()["attention_mask"], torch.ones(2, NEW, dtype=torch.long)], 1)
    whole = made(out, attention_mask=mask).logits
    cache, parts = hf.new_cache(made), []
    for start, stop in ((0, 7), (7, 8), (8, 13), (13, 14), (14, 18)):
        parts.append(made(out[:, start:stop], attention_mask=mask[:, :stop], cache=cache).logits)
    real = mask.bool()
    torch.testing.assert_close(torch.cat(parts, 1)[real], whole[real], atol=5e-5, rtol=1e-5)
    assert torch.equal(whole[:, 11:-1].argmax(-1), out[:, 12:])


@pytest.mark.parametrize("what", ["rope + fox", "dynamic_ntk(factor=2, original=6)", "alibi"])
def test_a_row_alone_is_the_row_in_a_padded_batch(what):
    made = hf.apply(model("llama3"), what)
    given = padded()
    alone = made(given["input_ids"][:1, 4:]).logits
    torch.testing.assert_close(made(**given).logits[:1, 4:], alone, atol=2e-5, rtol=1e-5)


def test_packed_documents_do_not_see_each_other():
    made = hf.apply(model("llama3"), "rope + fox")
    ids = tokens(1, 12)
    packed = made(ids, position_ids=torch.cat([torch.arange(5), torch.arange(7)])[None]).logits
    apart = torch.cat([made(ids[:, :5]).logits, made(ids[:, 5:]).logits], 1)
    torch.testing.assert_close(packed, apart, atol=2e-5, rtol=1e-5)


def test_a_mask_of_ones_own_is_obeyed():
    made = model("llama2")
    ids, mask = tokens(1, 8), torch.ones(1, 1, 8, 8, dtype=torch.bool).tril().triu(-3)
    wanted = made(ids, attention_mask=mask).logits
    hf.apply(made, rw.PerLayer(hf.encodings(made)))
    torch.testing.assert_close(made(ids, attention_mask=mask).logits, wanted, atol=2e-5, rtol=1e-5)
    floats = torch.zeros(1, 1, 8, 8).masked_fill(~mask, torch.finfo(torch.float32).min)
    torch.testing.assert_close(made(ids, attention_mask=floats).logits, wanted, atol=2e-5, rtol=1e-5)
    with pytest.raises(ShapeError, match="neither boolean nor 0 and -inf"):
        made(ids, attention_mask=floats + 0.5)


# ---- what is built -------------------------------------------------------------------------------------------------


def test_a_named_rope_is_the_models_own():
    made = model("llama3")
    wanted = made(tokens()).logits
    hf.apply(made, "rope")
    torch.testing.assert_close(made(tokens()).logits, wanted, atol=2e-5, rtol=1e-5)
    hf.apply(made, "rope(base=100)")
    assert not torch.allclose(made(tokens()).logits, wanted, atol=1e-2)


def test_encodings_come_on_top_of_frequencies():
    made = hf.apply(model("llama3"), "linear", factor=2)
    wanted = made(tokens()).logits
    hf.apply(made, "rope")
    torch.testing.assert_close(made(tokens()).logits, wanted, atol=2e-5, rtol=1e-5)
    hf.remove(made)
    assert torch.equal(made(tokens()).logits, model("llama3")(tokens()).logits)


def test_one_a_layer_and_what_learns_is_each_layers_own():
    made = hf.apply(model("llama2"), ["rope + fox", "nope"])
    kinds = [type(e).__name__ for e in hf.encodings(made)]
    assert kinds == ["Sequential", "NoPE"]
    hf.apply(made, "rope + fox")
    first, second = (list(encoding)[1] for encoding in hf.encodings(made))
    assert first.weight is not second.weight
    assert sum(p.numel() for n, p in made.named_parameters() if n.startswith("ropewalk.")) == 2 * (64 * 4 + 4)


def test_training_reaches_what_is_learned():
    made = hf.apply(model("stablelm"), "rope + fox").train()
    with torch.enable_grad():
        losses = []
        for checkpointing in (False, True):
            if checkpointing:
                made.activation_checkpointing_enable()
            made.zero_grad()
            loss = made(tokens(), labels=tokens(), use_cache=False).loss
            loss.backward()
            losses.append((loss, [p.grad.clone() for n, p in made.named_parameters() if n.startswith("ropewalk.")]))
    (one, grads), (other, again) = losses
    assert torch.equal(one, other) and len(grads) == 4 and all(g.abs().sum() > 0 for g in grads)
    for a, b in zip(grads, again, strict=True):
        torch.testing.assert_close(a, b)


def test_numbers_of_an_encoding_stay_in_float32():
    made = hf.apply(model("llama2").to(torch.bfloat16), "rope + fox")
    assert {p.dtype for n, p in made.named_parameters() if n.startswith("ropewalk.")} == {torch.float32}
    assert made(tokens()).logits.dtype == torch.bfloat16
    generate(made)


@pytest.mark.slow
def test_compiles():
    made = hf.apply(model("llama3"), "rope + alibi")
    torch._dynamo.reset()
    compiled = torch.compile(made, backend="eager")
    torch.testing.assert_close(compiled(tokens()).logits, made(tokens()).logits, atol=2e-5, rtol=1e-5)


def test_a_copy_is_its_own():
    made = hf.apply(model("llama2"), "rope + fox")
    other = copy.deepcopy(made)
    wanted, text = made(tokens()).logits, generate(made)
    hf.remove(made)
    assert torch.equal(other(tokens()).logits, wanted)
    assert torch.equal(generate(other), text)


# ---- the cache -----------------------------------------------------------------------------------------------------


def test_the_cache_goes_on_where_it_was():
    made = hf.apply(model("llama3"), "rope + fox")
    whole = made.generate(tokens(), max_new_tokens=8, do_sample=False)
    first = made.generate(tokens(), max_new_tokens=4, do_sample=False, return_dict_in_generate=True)
    assert isinstance(first.cache, hf.EncodedCache)
    rest = made.generate(first.sequences, max_new_tokens=4, do_sample=False, cache=first.cache)
    assert torch.equal(rest, whole)


def test_the_cache_can_be_cropped_where_nothing_runs():
    made = hf.apply(model("llama3"), "alibi")
    cache = hf.new_cache(made)
    assert cache.batch_size == -1 and cache.get_seq_length() == 0
    made(tokens(), cache=cache)
    cache.crop(-5)
    assert cache.is_croppable and cache.get_seq_length() == 7
    again = made(tokens()[:, 7:], cache=cache).logits
    torch.testing.assert_close(again, made(tokens()).logits[:, 7:], atol=2e-5, rtol=1e-5)
    cache.batch_repeat_interleave(2)
    assert cache.batch_size == 4
    cache.batch_select_indices(torch.tensor([0, 2]))
    assert cache.batch_size == 2
    cache.reset()
    assert cache.get_seq_length() == 0


def test_the_cache_says_no_where_state_is_gone():
    made = hf.apply(model("llama3"), "rope + fox")
    cache = made(tokens()).cache
    assert not cache.is_croppable
    with pytest.raises(CannotCrop):
        cache.crop(-1)


def test_other_caches_are_refused_by_name():
    made = hf.apply(model("llama3"), "rope + fox")
    with pytest.raises(CacheError, match=r"DynamicCache holds keys and values only.*hf\.new_cache"):
        made(tokens(), cache=DynamicCache())
    with pytest.raises(CacheError, match="StaticCache"):
        made.generate(tokens(), max_new_tokens=2, cache=StaticCache(config=made.config, max_cache_len=20))
    with pytest.raises(CacheError, match="cache_implementation='static'"):
        generate(made, cache_implementation="static")
    other = hf.apply(model("llama3"), "rope + fox")
    with pytest.raises(CacheError, match="made for other encodings"):
        made(tokens(), cache=hf.new_cache(other))
    with pytest.raises(ConfigError, match="takes the caches of transformers"):
        hf.new_cache(model("llama3"))


def test_what_cannot_be_cached_is_computed_without():
    made = hf.apply(model("llama2"), "string_shifted(shift=2, local=1, bug_compatible=True)")
    with pytest.raises(CannotCache):
        hf.new_cache(made)
    assert made(tokens()).cache is None
    with pytest.raises(CannotCache):
        made(tokens(), use_cache=True)
    generate(made, use_cache=False)


def test_a_step_that_asks_for_nothing_keeps_nothing():
    made = hf.apply(model("llama2"), "alibi")
    assert made(tokens(), use_cache=False).cache is None


# ---- bad input -----------------------------------------------------------------------------------------------------


def test_heads_the_output_has_no_room_for():
    with pytest.raises(ConfigError, match="RoPEPlusPlus makes 8 heads of 4"):
        hf.apply(model("llama2"), "rope_pp")


def test_a_failed_change_leaves_the_one_before():
    made = hf.apply(model("llama2"), "linear", factor=2)
    wanted = made(tokens()).logits
    with pytest.raises(ConfigError):
        hf.apply(made, "rope_pp")
    assert torch.equal(made(tokens()).logits, wanted)
    hf.remove(made)
    assert torch.equal(made(tokens()).logits, model("llama2")(tokens()).logits)


def test_positions_and_masks_that_do_not_fit():
    made = hf.apply(model("llama2"), "alibi")
    with pytest.raises(PositionError, match="several axes"):
        made(tokens(), position_ids=torch.zeros(3, 2, 12, dtype=torch.long), use_cache=False)
    with pytest.raises(ShapeError, match="covers 5 tokens; there are 0 in the cache and 12 new"):
        made(tokens(), attention_mask=torch.ones(2, 5))


def test_the_attention_function_set_by_hand():
    hf.apply(model("llama2"), "alibi")
    made = model("llama2")
    made.config._attn_implementation = "ropewalk"
    with pytest.raises(ConfigError, match="without having been prepared by hf"):
        made(tokens())


def test_a_model_type_that_was_not_tried():
    made = transformers.OlmoForCausalLM(
        transformers.OlmoConfig(
            vocab_size=64,
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            eos_token_id=None,
        )
    ).eval()
    with pytest.raises(ConfigError, match="which layers of a 'olmo' model turn"):
        hf.encodings(made)
    with pytest.warns(RopeConfigWarning, match="'olmo' models were not tried"):
        hf.apply(made, "alibi")
    generate(made)


def test_a_model_that_reads_more_than_text():
    text = config("gemma3").to_dict()
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
    }
    made = transformers.Gemma3ForConditionalGeneration(
        transformers.Gemma3Config(text_config=text, vision_config={**vision, "patch_size": 14}, mm_tokens_per_image=1)
    )
    with pytest.raises(ConfigError, match="reads more than text"):
        hf.apply(made, "alibi")
    assert set(hf.spectrum(hf.apply(made, "linear", factor=2))) == {"full_attention", "sliding_attention"}


@pytest.mark.parametrize("what", ["alibi", "dynamic_ntk"])
def test_ways_to_generate(what):
    """Drafts that are taken back, a prompt in chunks, embeddings for tokens, no cache: one text."""
    made = hf.apply(model("mistral"), what)
    options = {"max_new_tokens": 8, "do_sample": False}
    one, both = made.generate(tokens(1), **options), made.generate(tokens(), **options)
    assert torch.equal(made.generate(tokens(1), prompt_lookup_num_tokens=2, **options), one)
    assert torch.equal(made.generate(tokens(), prefill_chunk_size=5, **options), both)
    assert torch.equal(made.generate(tokens(), use_cache=False, **options), both)
    embedded = made.get_input_embeddings()(tokens())
    assert torch.equal(made.generate(inputs_embeds=embedded, **options), both[:, 12:])


def test_models_with_another_head():
    made = transformers.LlamaForSequenceClassification(config("llama2", num_labels=3)).eval()
    wanted = made(tokens(1)).logits
    hf.apply(made, rw.PerLayer(hf.encodings(made)))
    torch.testing.assert_close(made(tokens(1)).logits, wanted, atol=2e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("record", rw.catalog(), ids=lambda record: record.slug)
def test_every_entry_of_the_catalog_decodes_or_says_why_not(record):
    made = model("cohere")
    try:
        hf.apply(made, record.slug)
        out = generate(made)
    except RopewalkError:  # grids, cameras, sizes, schedules that need a factor, what cannot be cached
        return
    mask = torch.cat([padded()["attention_mask"], torch.ones(2, NEW, dtype=torch.long)], 1)
    whole = made(out, attention_mask=mask, use_cache=False).logits
    if "randomized" not in record.slug:  # which draws anew for every pass
        assert torch.equal(whole[:, 11:-1].argmax(-1), out[:, 12:])
