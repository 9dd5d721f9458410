"""Other frequencies in models of transformers: the rotary modules change, and nothing else."""

import copy

import pytest
import torch
import transformers
from hf_families import DECODERS, FAMILIES, LONGROPE, config, model, tokens

import ropewalk as rw
from ropewalk import hf
from ropewalk.core.errors import ConfigError, UnknownNameError
from ropewalk.frequencies import RopeConfigWarning, Spectrum, geometric

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
    return made.generate(**padded(), max_new_tokens=NEW, do_sample=False, **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_its_own_frequencies_change_nothing(family):
    made = model(family)
    before = made(**padded()).logits
    own = hf.spectrum(made)
    assert hf.apply(made, own) is made
    after = made(**padded()).logits
    real = padded()["attention_mask"].bool()
    torch.testing.assert_close(after[real], before[real], atol=2e-5, rtol=1e-5)
    assert hf.spectrum(made) == own


@pytest.mark.parametrize("family", FAMILIES)
def test_remove_gives_the_model_back_bit_for_bit(family):
    made = model(family)
    names, values = [n for n, _ in made.named_modules()], made.config.to_dict()
    before = made(tokens()).logits
    hf.apply(made, "yarn", factor=4)
    changed = made(tokens()).logits
    assert not torch.allclose(changed, before, atol=1e-3)
    assert hf.remove(made) is made
    assert torch.equal(made(tokens()).logits, before)
    assert [n for n, _ in made.named_modules()] == names
    assert made.config.to_dict() == values
    assert hf.remove(made) is made


@pytest.mark.parametrize("family", DECODERS)
def test_generates_with_the_caches_of_transformers(family):
    made = model(family)
    plain = generate(made), generate(made, cache_implementation="static", disable_compile=True)
    hf.apply(made, hf.spectrum(made))
    assert torch.equal(generate(made), plain[0])
    assert torch.equal(generate(made, cache_implementation="static", disable_compile=True), plain[1])


@pytest.mark.parametrize("family", ["llama3", "mistral"])
def test_generates_as_plain_transformers_does_with_the_same_entry(family):
    """The schedule is theirs too, so the whole path can be compared: 20 tokens run out of Mistral's window of 5."""
    entry = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 16}
    theirs = model(family, rope_parameters=entry)
    ours = model(family, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0})
    hf.apply(ours, "yarn(factor=4)", original=16)
    real = padded()["attention_mask"].bool()
    torch.testing.assert_close(ours(**padded()).logits[real], theirs(**padded()).logits[real], atol=2e-5, rtol=1e-5)
    assert torch.equal(generate(ours), generate(theirs))
    assert torch.equal(generate(ours, num_beams=3), generate(theirs, num_beams=3))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama3", "gemma3", "gpt_oss"])
def test_generates_with_a_compiled_static_cache(family):
    torch._dynamo.reset()
    options = {"cache_implementation": "static", "compile_config": transformers.CompileConfig(mode="default")}
    options["compile_config"]._compile_all_devices = True  # transformers compiles on accelerators only otherwise
    made = model(family)
    plain = generate(made, cache_implementation="static", disable_compile=True)
    hf.apply(made, hf.spectrum(made))
    assert torch.equal(generate(made, **options), plain)


def test_is_one_graph():
    made = hf.apply(model("llama3"), "linear", factor=2)
    torch._dynamo.reset()
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens(), use_cache=False).logits, made(tokens(), use_cache=False).logits)
    longer = tokens(length=17)
    torch.testing.assert_close(compiled(longer, use_cache=False).logits, made(longer, use_cache=False).logits)


def test_exports_as_a_program():
    made = hf.apply(model("llama2"), "clipped", planes=3)
    tables = made.model.rotary_emb
    x, positions = torch.zeros(1, 5, 64), torch.arange(5)[None]
    program = torch.export.export(tables, (x, positions)).module()
    for got, wanted in zip(program(x, positions), tables(x, positions), strict=True):
        assert torch.equal(got, wanted)


# ---- what a schedule starts from -----------------------------------------------------------------------------------


def test_schedules_start_from_the_frequencies_the_model_has():
    made = hf.apply(model("llama3"), "linear", factor=2)
    own = hf.spectrum(model("llama3"))["all"]
    assert hf.spectrum(made)["all"] == own.linear(2)
    hf.apply(made, "clipped(planes=3)")
    assert hf.spectrum(made)["all"] == own.linear(2).clipped(3)
    assert torch.equal(hf.remove(made)(tokens()).logits, model("llama3")(tokens()).logits)


def test_the_original_length_is_the_models():
    made = hf.apply(model("qwen2"), "yarn", factor=4)
    assert hf.spectrum(made)["all"] == geometric(16).yarn(4, 64)
    hf.apply(hf.remove(made), "yarn", factor=4, original=32)
    assert hf.spectrum(made)["all"] == geometric(16).yarn(4, 32)


def test_layer_types_apart():
    made = model("gemma3")
    before = hf.spectrum(made)
    assert before["full_attention"].base == 1e6 and before["sliding_attention"].base == 1e4
    hf.apply(made, {"full_attention": before["full_attention"].linear(8)})
    assert hf.spectrum(made) == {
        "full_attention": before["full_attention"].linear(8),
        "sliding_attention": before["sliding_attention"],
    }


def test_a_plain_rope_is_a_change_of_frequencies():
    made = hf.apply(model("llama2"), rw.RoPE(16, base=500.0, pairing="half"))
    assert hf.spectrum(made)["all"].base == 500.0
    assert made.config._attn_implementation == "sdpa"


def test_a_configuration_says_what_was_done():
    made = hf.apply(model("llama2"), "p_rope", p=0.5)
    assert hf.spectrum(made.config) == hf.spectrum(made)
    assert hf.spectrum(made.config.to_dict()) == hf.spectrum(made)
    (said,) = made.config.to_dict()["ropewalk"]["spectra"].values()
    assert said["all"]["inv_freq"] == list(hf.spectrum(made)["all"].inv_freq)


# ---- dtypes, devices, copies ---------------------------------------------------------------------------------------


def test_a_cast_changes_nothing():
    """The model's own frequencies are cast with it; position 2047 of a bf16 model then turns by another angle."""
    made = model("llama2", max_position_embeddings=4096)
    far = torch.tensor([[2047]])
    exact = hf.apply(made, hf.spectrum(made)).model.rotary_emb(torch.zeros(1), far)
    made.to(torch.bfloat16).to(torch.float32)
    for got, wanted in zip(made.model.rotary_emb(torch.zeros(1), far), exact, strict=True):
        assert torch.equal(got, wanted)
    position, frequency = 2047.0, 10_000.0 ** (-6 / 16)
    assert exact[0][0, 0, 3].item() == pytest.approx(torch.tensor(position * frequency).double().cos().item(), abs=1e-4)


def test_the_model_in_bf16_gives_bf16():
    made = hf.apply(model("llama2").to(torch.bfloat16), "linear", factor=2)
    assert {t.dtype for t in made.model.rotary_emb(torch.zeros(1, dtype=torch.bfloat16), torch.tensor([[1]]))} == {
        torch.bfloat16
    }
    assert made(tokens()).logits.dtype == torch.bfloat16


def test_frequencies_that_were_cast_are_a_finding_and_mended():
    made = model("llama2").to(torch.bfloat16)
    with pytest.warns(RopeConfigWarning, match="were cast to torch.bfloat16"):
        found = hf.spectrum(made)["all"]
    assert found.inv_freq != geometric(16).inv_freq
    hf.apply(made, "linear", factor=2)
    assert hf.spectrum(made)["all"] == geometric(16).linear(2)


def test_built_on_the_meta_device():
    with torch.device("meta"):
        made = transformers.LlamaForCausalLM(config("llama3"))
    hf.apply(made, "linear", factor=2)
    made.to_empty(device="cpu")
    made.load_state_dict(model("llama3").state_dict())
    wanted = hf.apply(model("llama3"), "linear", factor=2)
    assert torch.equal(made.eval()(tokens()).logits, wanted(tokens()).logits)
    assert torch.equal(hf.remove(made)(tokens()).logits, model("llama3")(tokens()).logits)


def test_frequencies_are_not_in_the_state():
    made = hf.apply(model("llama2"), "linear", factor=2)
    assert made.state_dict().keys() == model("llama2").state_dict().keys()
    made.load_state_dict(model("llama2").state_dict())
    assert hf.spectrum(made)["all"] == geometric(16).linear(2)


def test_a_copy_is_its_own():
    made = hf.apply(model("llama2"), "linear", factor=2)
    other = copy.deepcopy(made)
    wanted = made(tokens()).logits
    hf.remove(made)
    assert torch.equal(other(tokens()).logits, wanted)
    assert torch.equal(hf.remove(other)(tokens()).logits, made(tokens()).logits)


@pytest.mark.parametrize("what", ["linear(factor=2)", "alibi"])
def test_a_configuration_that_two_models_share(what):
    shared = config("llama2")
    one, other = (transformers.LlamaForCausalLM(shared).eval() for _ in range(2))
    before, values = other(tokens()).logits, shared.to_dict()
    hf.apply(one, what)
    assert shared.to_dict() == values and other.config._attn_implementation == "sdpa"
    assert torch.equal(other(tokens()).logits, before)
    one.config.pad_token_id = 3
    assert hf.remove(one).config.pad_token_id == 3


def test_no_other_model_is_touched():
    one, other = model("llama2"), model("llama2")
    before = other(tokens()).logits
    hf.apply(one, "linear", factor=2)
    assert torch.equal(other(tokens()).logits, before)
    hf.apply(one, "alibi")
    assert torch.equal(other(tokens()).logits, before)
    assert torch.equal(model("llama2")(tokens()).logits, before)


# ---- bad input -----------------------------------------------------------------------------------------------------


def gpt2():
    made = transformers.GPT2Config(n_embd=64, n_layer=1, n_head=4, vocab_size=64, bos_token_id=1, eos_token_id=2)
    return transformers.GPT2LMHeadModel(made)


def t5():
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(d_model=32, num_layers=1, vocab_size=32, d_kv=8, d_ff=32)
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (gpt2, r"GPT2LMHeadModel adds learned absolute positions .*transformer\.wpe"),
        (t5, "T5ForConditionalGeneration is no rotary model"),
        (lambda: torch.nn.Linear(2, 2), "expected a model of transformers; got Linear"),
    ],
)
def test_what_is_no_rotary_model(make, message):
    with pytest.raises(ConfigError, match=message):
        hf.apply(make(), "linear", factor=2)


@pytest.mark.parametrize(
    ("what", "arguments", "message"),
    [
        ("yarn", {}, "yarn needs factor"),
        ("yarn", {"factr": 2}, "no 'factr'. Did you mean 'factor'?"),
        ("yarn(4)", {}, "give the arguments of yarn by name"),
        ("yarn(factor=4)", {"factor": 2}, "factor of yarn is given twice"),
        ("linear", {"factor": float("nan")}, "factor"),
        (geometric(8), {}, "a spectrum of 4 planes for rotary modules of 8"),
        (geometric(16), {"factor": 2}, "beside frequencies that are given"),
        (
            {"sliding_attention": geometric(16)},
            {},
            "no layer type 'sliding_attention' turns anything here; there are all",
        ),
        ({"all": "yarn"}, {}, "was given a str; expected a Spectrum"),
        (3, {}, "cannot apply a int"),
        (["rope"], {}, "1 encodings for a model of 2 layers"),
        (["rope", 3], {}, "a layer was given a int"),
    ],
)
def test_what_cannot_be_applied(what, arguments, message):
    made = model("llama2")
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        hf.apply(made, what, **arguments)
    assert torch.equal(made(tokens()).logits, model("llama2")(tokens()).logits)


def test_an_unknown_name():
    with pytest.raises(UnknownNameError, match=r"no encoding is called 'yran'.*Schedules of frequencies are linear"):
        hf.apply(model("llama2"), "yran", factor=4)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "asks for 4 turning pairs .* turns 8"),
        ({"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}, "does not know partial_rotary_factor"),
        ({"rope_type": "dynamic", "factor": 2.0}, "depends on the length of the sequence"),
        ({"rope_type": "linear", "factor": 2.0, "factr": 4.0}, "Did you mean 'factor'"),
    ],
)
def test_a_configuration_that_the_class_does_not_obey(entry, message):
    made = model("llama2", rope_parameters={"rope_theta": 10_000.0, **entry})
    with pytest.raises(ConfigError, match=message):
        hf.apply(made, "linear", factor=2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rope_parameters": {"rope_type": "exotic", "rope_theta": 1e4}}, "rope type 'exotic' is unknown"),
        (
            {
                "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
            },
            "rope_scaling",
        ),
        ({"original_max_position_embedding": 32, "rope_theta": 1e4}, "Did you mean 'original_max_position_embeddings'"),
    ],
)
def test_a_configuration_that_is_wrong(values, message):
    plain = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 64}
    with pytest.raises(ConfigError, match=message):
        hf.spectrum({**plain, **values})


def test_per_layer_parameters_that_transformers_reads_in_part():
    """``truncate`` inside the parameters of a layer type is not read by transformers: what is asked for is not what turns."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "truncate": False}
    parameters = {
        "full_attention": {**yarn, "rope_theta": 1e4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    made = model("gemma3", rope_parameters=parameters, max_position_embeddings=2048)
    with pytest.raises(ConfigError, match=r"other frequencies than Gemma3RotaryEmbedding for 'full_attention'"):
        hf.apply(made, "linear", factor=2)


def test_frequencies_of_uninitialised_memory():
    made = model("llama2")
    made.model.rotary_emb.inv_freq.fill_(123.0)
    with pytest.warns(RopeConfigWarning, match="are not those of its configuration"):
        found = hf.spectrum(made)["all"]
    assert set(found.inv_freq) == {123.0}
    with pytest.raises(ConfigError, match=r"are not those of its configuration.*hf\.apply\(model, spectrum\)"):
        hf.apply(made, "linear", factor=2)
    hf.apply(made, geometric(16))
    assert hf.spectrum(made)["all"] == geometric(16)


def test_frequencies_that_follow_the_length_have_no_spectrum():
    made = model("llama2", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    with pytest.raises(ConfigError, match="give length="):
        hf.spectrum(made)
    assert isinstance(hf.spectrum(made, length=32)["all"], Spectrum)


def test_short_and_long_factors():
    """Phi-3 as released: the frequencies depend on the length, and what replaces them does not."""
    entry = {**LONGROPE, "long_factor": [2 * f for f in LONGROPE["long_factor"]]}
    made = model("phi3", rope_parameters=entry)
    short, long = (hf.spectrum(made, length=n)["all"] for n in (32, 33))
    assert [a / b for a, b in zip(short.inv_freq, long.inv_freq, strict=True)] == pytest.approx([2.0] * 8)
    with pytest.raises(ConfigError, match="depends on the length"):
        hf.apply(made, "linear", factor=2)
    wanted = made(tokens(length=40)).logits
    hf.apply(made, long)
    torch.testing.assert_close(made(tokens(length=40)).logits, wanted, atol=2e-5, rtol=1e-5)


def test_a_changed_model_loaded_without_ropewalk_is_not_taken_for_the_change(tmp_path):
    hf.apply(model("llama2"), "linear", factor=2).save_pretrained(tmp_path)
    made = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"use hf\.load"):
        hf.apply(made, "linear", factor=2)
    with pytest.warns(RopeConfigWarning, match=r"use hf\.load"):
        assert hf.spectrum(made)["all"] == geometric(16)
