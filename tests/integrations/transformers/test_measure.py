"""Looking at models of transformers: states, changes, needle tests, and the sections made of them."""

import json
import math
from dataclasses import asdict, replace

import pytest
import torch
import transformers
from hf_families import DECODERS, model, tokens
from torch import nn

from ropewalk import hf
from ropewalk.analysis.positional_heads import plane_scores
from ropewalk.analysis.retrieval_heads import Needle, rotary_channels
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.integrations.transformers import parts
from ropewalk.integrations.transformers.effects import others_like
from ropewalk.integrations.transformers.interventions import (
    disrupt_channels,
    level_heads,
    mask_heads,
    zero_channels,
    zero_states,
)
from ropewalk.integrations.transformers.measure import measure
from ropewalk.integrations.transformers.needles import Recall, TokenNeedle, needle_scores, recall, token_needles
from ropewalk.integrations.transformers.probe import PROBES, LayerStates, Probe, layer_shapes, turn
from ropewalk.integrations.transformers.weights import query_key


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def seen(made, ids=None, **probe):
    """Return the states of each layer, and the logits."""
    states: list[LayerStates] = []
    with Probe(made, look=states.append, **probe):
        logits = made(tokens() if ids is None else ids, use_cache=False).logits
    return states, logits


# ---- looking --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", DECODERS)
def test_looking_changes_nothing_and_sees_the_attention(family):
    made = model(family)
    before = made(tokens(), use_cache=False).logits
    names, implementation = [n for n, _ in made.named_modules()], made.config._attn_implementation
    states, logits = seen(made)
    torch.testing.assert_close(logits, before, atol=1e-5, rtol=1e-5)
    assert made.config._attn_implementation == implementation
    assert [n for n, _ in made.named_modules()] == names
    assert not any(PROBES in vars(m) for m in made.modules())
    assert torch.equal(made(tokens(), use_cache=False).logits, before)
    made.set_attn_implementation("eager")
    wanted = made(tokens(), use_cache=False, output_attentions=True).attentions
    assert len(states) == len(wanted)
    for one, weights in zip(states, wanted, strict=True):
        torch.testing.assert_close(one.weights(0, one.length), weights, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(one.weights(3, 7), weights[:, :, 3:7], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama2", "llama3", "phi3", "gpt_neox"])
def test_the_rotation_is_undone(family):
    made = model(family)
    states, _ = seen(made)
    for one in states:
        for x, y in zip(one.still(), (one.q, one.k), strict=True):
            torch.testing.assert_close(turn(x, one.shape), y[..., : one.turned], atol=1e-5, rtol=1e-5)
    if family == "llama2":
        kept = {}
        layer = parts.attention_layers(made)[1]
        handle = layer.q_proj.register_forward_hook(lambda m, i, out: kept.update(q=out))
        made(tokens(), use_cache=False)
        handle.remove()
        q = kept["q"].unflatten(-1, (4, 16)).transpose(1, 2)
        torch.testing.assert_close(states[1].still()[0], q, atol=1e-5, rtol=1e-5)


def test_applied_frequencies_are_seen():
    made = hf.apply(model("llama2"), "yarn", factor=4)
    assert layer_shapes(made)[0].spectrum == hf.spectrum(made)["all"]
    assert layer_shapes(model("smollm3"))[1].spectrum is None
    hf.apply(made, "rope + alibi")
    with pytest.raises(ConfigError, match=r"hf\.remove"):
        layer_shapes(made)


def test_models_that_are_not_causal_are_refused():
    with pytest.raises(ConfigError, match="not causal"):
        layer_shapes(model("modernbert"))


def test_a_failing_look_leaves_no_trace():
    made = model("llama2")

    def look(states):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), Probe(made, look=look):
        made(tokens())
    assert made.config._attn_implementation == "sdpa"
    assert not any(PROBES in vars(m) for m in made.modules())


# ---- changing -------------------------------------------------------------------------------------------------------


def all_heads(made):
    return [(s.index, h) for s in layer_shapes(made) for h in range(s.num_heads)]


@pytest.mark.parametrize("family", ["llama2", "mistral", "gemma2", "deepseek_v3"])
def test_nothing_taken_away_is_the_same(family):
    made = model(family)
    before = made(tokens(), use_cache=False).logits
    for probe in (mask_heads(made, []), level_heads(made, []), zero_channels(made, {}), disrupt_channels(made, 0)):
        with probe:
            torch.testing.assert_close(made(tokens(), use_cache=False).logits, before, atol=1e-5, rtol=1e-5)


def test_masked_heads_are_zero_before_the_output_projection():
    made = model("llama3")
    kept = []
    layer = parts.attention_layers(made)[1]
    handle = layer.o_proj.register_forward_pre_hook(lambda m, args: kept.append(args[0].unflatten(-1, (4, 16))))
    with mask_heads(made, [(1, 0), (1, 3)]):
        made(tokens(), use_cache=False)
    handle.remove()
    assert not bool(kept[0][:, :, [0, 3]].any())
    assert bool(kept[0][:, :, [1, 2]].any())


def test_a_layer_without_heads_is_its_residual():
    made = model("llama3")
    whole = [h for h in all_heads(made) if h[0] == 0]
    with mask_heads(made, whole):
        masked = made(tokens(), use_cache=False).logits
    layer = parts.attention_layers(made)[0]
    layer.o_proj.weight.zero_()
    torch.testing.assert_close(made(tokens(), use_cache=False).logits, masked)


def test_all_channels_zero_is_uniform_attention():
    made = model("llama3")
    everything = {head: range(16) for head in all_heads(made)}
    for probe in (zero_channels(made, everything, target="q"), level_heads(made, all_heads(made))):
        with probe:
            states, _ = seen(made)
        weights = states[1].weights(0, 5)[0, 0]
        torch.testing.assert_close(weights[4, :5], torch.full((5,), 0.2))


def test_zeroed_pairs_take_their_terms_off_the_logits():
    made = model("llama3")
    plain, _ = seen(made)
    spectrum = plain[0].shape.spectrum
    low = rotary_channels(spectrum, 4, "low_freq", "half")
    for target in ("q", "qk"):
        with zero_channels(made, {(0, 1): low}, target=target):
            changed, _ = seen(made)
        q, k = plain[0].q[0, 1], plain[0].keys[0, 1]
        terms = plane_scores(q[:, None], k[None], "half", plain[0].scale)[..., [6, 7]].sum(-1)
        before, after = (s[0].logits(0, 99)[0, 1] for s in (plain, changed))
        real = before > -math.inf
        torch.testing.assert_close((before - after)[real], terms[real], atol=1e-5, rtol=1e-4)
        # The other query of the group shares the key head.
        assert torch.equal(changed[0].k, plain[0].k) == (target == "q")
        assert torch.equal(changed[0].logits(0, 99)[0, 2], plain[0].logits(0, 99)[0, 2])
        assert torch.equal(changed[0].logits(0, 99)[0, 0], plain[0].logits(0, 99)[0, 0]) == (target == "q")


def test_single_channels_are_zero_before_the_rotation():
    made = model("llama3")
    with zero_channels(made, {(0, 1): [3], (1, 0): [2, 9]}):
        logits = made(tokens(), use_cache=False).logits
    hooks = []
    for i, (head, key, channels) in enumerate([(1, 0, [3]), (0, 0, [2, 9])]):
        layer = parts.attention_layers(made)[i]
        for module, at in ((layer.q_proj, head), (layer.k_proj, key)):
            index = torch.tensor([16 * at + c for c in channels])
            hooks.append(module.register_forward_hook(lambda m, a, out, index=index: out.index_fill(-1, index, 0.0)))
    torch.testing.assert_close(made(tokens(), use_cache=False).logits, logits, atol=1e-5, rtol=1e-5)
    for hook in hooks:
        hook.remove()


def test_states_are_zero_as_the_layer_attends():
    made = model("llama3")
    plain, _ = seen(made)
    masks = {("q", 0): torch.zeros(4, 16).bool(), ("v", 1): torch.ones(2, 16).bool()}
    masks["q", 0][2, [3, 9]] = True
    with zero_states(made, masks):
        changed, _ = seen(made)
    q = plain[0].q.clone()
    q[:, 2, :, [3, 9]] = 0
    assert torch.equal(changed[0].q, q)
    assert torch.equal(changed[0].k, plain[0].k)
    assert torch.equal(changed[0].v, plain[0].v)
    assert not bool(changed[1].v.any())
    with pytest.raises(ConfigError, match="names no states"):
        zero_states(made, {("x", 0): masks["q", 0]})
    with pytest.raises(ShapeError, match="truth values"), zero_states(made, {("k", 0): masks["q", 0]}):
        made(tokens())


def test_as_many_other_channels():
    generator = torch.Generator().manual_seed(0)
    masks = {("q", i): torch.rand(5, 16, generator=generator) < 0.2 for i in range(3)}
    masks["k", 0] = torch.ones(2, 16).bool()  # nothing else is left
    other = others_like(masks, 0)
    for at, mask in masks.items():
        assert not bool((other[at] & mask).any())
        assert torch.equal(other[at].sum(-1), mask.sum(-1).clamp(max=16 - mask.sum(-1)))
    assert all(torch.equal(others_like(masks, 0)[at], other[at]) for at in masks)
    assert not torch.equal(others_like(masks, 1)["q", 0], other["q", 0])


def test_what_an_answer_costs_more():
    one, two = Recall((True, False), (1.0, 2.0)), Recall((True, True), (0.5, 0.5))
    assert one.rise(two) == pytest.approx((1.0, 0.5))
    assert Recall((True,), (1.0,)).rise(Recall((True,), (3.0,))) == (-2.0, None)


def test_changed_prompts_stay_changed_while_decoding():
    made = model("llama3")
    prompt, after = tokens()[:, :-3], tokens()[:, -3:]
    probe = disrupt_channels(made, 2)
    with probe:
        out = made(prompt, use_cache=True)
        steps = []
        for i in range(3):
            out = made(after[:, i : i + 1], past_key_values=out.past_key_values, use_cache=True)
            steps.append(out.logits[:, 0])
    prompts = {}

    def change(states):
        n = prompt.shape[1]
        from ropewalk.analysis.massive_values import disruption

        q, k = (
            torch.cat((disruption(x[:, :, :n], 2).apply(x[:, :, :n]), x[:, :, n:]), 2) for x in (states.q, states.k)
        )
        prompts[states.index] = True
        return replace(states, q=q, k=k)

    with Probe(made, change=change):
        whole = made(tokens(), use_cache=False).logits[:, -3:]
    assert prompts
    torch.testing.assert_close(torch.stack(steps, 1), whole, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(whole, made(tokens(), use_cache=False).logits[:, -3:], atol=1e-3)


def test_changes_that_cannot_be():
    made = model("llama3")
    with pytest.raises(ConfigError, match="counted from 0"):
        mask_heads(made, [(2, 0)])
    with pytest.raises(ConfigError, match="counted from 0"):
        level_heads(made, [(0, 4)])
    with pytest.raises(ConfigError, match="has 16"):
        zero_channels(made, {(0, 0): [16]})
    with pytest.raises(ConfigError, match="'qk' or 'q'"):
        zero_channels(made, {}, target="k")


# ---- needles --------------------------------------------------------------------------------------------------------

ASK, FIRST_ANSWER, HEAD = 63, 40, 2


def copying():
    """A model of one layer whose head 2 looks from "?" at any token 40 … 47, by its slowest plane, and copies it."""
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=8, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=False,
    )  # fmt: skip
    made = transformers.LlamaForCausalLM(config).eval()
    for name, parameter in made.named_parameters():
        if "norm" not in name:
            parameter.zero_()
    made.model.embed_tokens.weight.copy_(torch.eye(64))
    made.lm_head.weight.copy_(torch.eye(64))
    attention = made.model.layers[0].self_attn
    slow = 7  # of 8 planes, channels 7 and 15
    attention.q_proj.weight[16 * HEAD + slow, ASK] = 10.0
    for j in range(8):
        attention.k_proj.weight[16 + slow, FIRST_ANSWER + j] = 10.0  # key head 1
        attention.v_proj.weight[16 + j, FIRST_ANSWER + j] = 1.0
        attention.o_proj.weight[FIRST_ANSWER + j, 16 * HEAD + j] = 1.0
    return made


class Letters:
    """Names tokens by their numbers."""

    is_fast = True

    def decode(self, ids):
        return " ".join(map(str, ids))


def made_needles():
    found = []
    for i in range(8):
        ids = torch.randint(1, 40, (1, 30), generator=torch.Generator().manual_seed(i))
        at, answer = 3 + 3 * i, FIRST_ANSWER + i
        ids[0, at], ids[0, -1] = answer, ASK
        text = Needle("", str(answer), 0, 0, at / 30)
        found.append(TokenNeedle(text, ids, (at - 1, at + 2), torch.tensor([answer]), (at,)))
    return found


def test_the_copying_head_is_found_and_nothing_else():
    made, needles = copying(), made_needles()
    scores = needle_scores(made, needles)
    want = torch.zeros(1, 4, dtype=torch.float64)
    want[0, HEAD] = 1
    assert torch.equal(scores.argmax, want)
    assert torch.equal(scores.copy, want)
    assert (scores.needles, scores.events) == (8, 8)


def test_knockout_and_slow_channels_take_the_answer_away():
    made, needles = copying(), made_needles()
    whole = recall(made, Letters(), needles, 1)
    assert whole.rate == 1.0
    spectrum = layer_shapes(made)[0].spectrum
    slow, fast = (rotary_channels(spectrum, 2, band, "half") for band in ("low_freq", "high_freq"))
    for probe, rate in (
        (mask_heads(made, [(0, HEAD)]), 0.0),
        (mask_heads(made, [(0, 0), (0, 1), (0, 3)]), 1.0),
        (zero_channels(made, {(0, HEAD): slow}), 0.0),
        (zero_channels(made, {(0, HEAD): fast}), 1.0),
    ):
        with probe:
            found = recall(made, Letters(), needles, 1)
        assert found.rate == rate
        assert (found.mean_nats > whole.mean_nats + 0.1) == (rate == 0.0)
    assert recall(made, Letters(), needles, 1) == whole


def tokenizer():
    """A fast tokenizer of words and spaces, whose last word is unknown."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = [chr(c) for c in range(32, 127)]
    made = Tokenizer(models.WordLevel({c: i for i, c in enumerate([*letters, "\n", "<unk>"])}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


def reader():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def test_needles_in_tokens():
    names = tokenizer()
    for one in token_needles(names, 40, 3):
        said = names.convert_ids_to_tokens(one.ids[0].tolist())
        assert "".join(said[slice(*one.span)]).startswith("The secret passphrase is")
        assert one.text.answer in "".join(said[slice(*one.span)])
    with pytest.raises(ConfigError, match="fast tokenizer"):
        token_needles(object(), 40, 1)


# ---- sections -------------------------------------------------------------------------------------------------------

TEXT = "The river rises in the hills. It falls.\n\nBoats carry grain and stone. They return.\n\nAt dusk the lamps burn.\n\n"


def sections(made, names=None, texts=None, **plan):
    small = {"max_tokens": 64, "max_texts": 2, "needles": 2, "needle_words": 12, "masks": 0} | plan
    return list(measure(made, names, [5 * TEXT] if texts is None else texts, **small))


def plain(found):
    """Return the sections as plain data, which JSON can hold; NaN and infinity would raise."""
    return json.dumps([asdict(s) for s in found], allow_nan=False)


def check(found):
    plain(found)
    for section in found:
        assert section.name
        assert section.source
        assert section.findings
        for table in section.tables:
            assert all(len(row) == len(table.header) for row in table.rows)
        for heat in section.heats:
            assert len(heat.values) == len(heat.rows)
            assert all(len(row) == len(heat.columns) for row in heat.values)


def test_everything_is_measured_and_the_model_is_as_it_was():
    made, names = reader().train(), tokenizer()
    before = {n: t.clone() for n, t in made.state_dict().items()}
    modules = [n for n, _ in made.named_modules()]
    logits = made(torch.arange(60)[None], use_cache=False).logits
    found = sections(made, names, masks=1)
    check(found)
    assert any("mean u" in t.note for s in found for t in s.tables)
    assert [s.name for s in found] == [
        "Norms of the rotary planes",
        "Massive values",
        "Matrix entropy and sinks",
        "Positional heads",
        "Attention by distance",
        "Stability of positions and tokens",
        "Compression across paragraphs",
        "Distribution of angles",
        "Spectra of W_q W_kᵀ",
        "Utility of the rotary planes",
        "Retrieval heads",
        "What taking them away does",
    ]
    assert made.training
    assert made.config._attn_implementation == "sdpa"
    assert [n for n, _ in made.named_modules()] == modules
    assert not any(PROBES in vars(m) or m._forward_hooks or m._forward_pre_hooks for m in made.modules())
    assert all(torch.equal(t, before[n]) for n, t in made.state_dict().items())
    assert torch.equal(made(torch.arange(60)[None], use_cache=False).logits, logits)


def test_the_same_seed_measures_the_same():
    made, names = reader(), tokenizer()
    one = plain(sections(made, names, [40 * TEXT], changes=False))
    assert plain(sections(made, names, [40 * TEXT], changes=False)) == one
    assert plain(sections(made, names, [40 * TEXT], changes=False, seed=1)) != one


def test_sections_come_one_by_one_and_leave_gradients_alone():
    made = measure(
        reader(), tokenizer(), [5 * TEXT], max_tokens=64, needles=0, masks=0, changes=False, remark="4-bit weights."
    )
    with torch.enable_grad():
        first = next(made)
        assert torch.is_grad_enabled()
        assert first.summary.endswith("4-bit weights.")
        made.close()


@pytest.mark.parametrize("family", DECODERS)
def test_every_family(family):
    made = model(family)
    ids = [torch.randint(2, 60, (40,), generator=torch.Generator().manual_seed(i)) for i in range(2)]
    found = sections(made, None, ids)
    check(found)
    assert {"Massive values", "Matrix entropy and sinks", "What taking them away does"} <= {s.name for s in found}


def test_layers_that_turn_otherwise_are_told_apart():
    made = model("gemma3")
    different = {s.spectrum for s in layer_shapes(made)}
    assert len(different) > 1
    section = next(
        s for s in sections(made, None, [torch.arange(40)], changes=False) if s.name == "Distribution of angles"
    )
    assert len(section.findings) == len(section.tables) == len(different)
    some = [i for i, s in enumerate(layer_shapes(model("smollm3"))) if s.spectrum is not None]
    stable = next(
        s for s in sections(model("smollm3"), None, [torch.arange(40)], changes=False) if "Stability" in s.name
    )
    assert list(stable.heats[0].rows) == [f"layer {i}" for i in some]


def test_layers_with_other_heads_are_refused(monkeypatch):
    made = model("llama3")
    first, second = layer_shapes(made)
    shapes = [first, replace(second, head_dim=32)]
    monkeypatch.setattr("ropewalk.integrations.transformers.measure.layer_shapes", lambda model, length: shapes)
    with pytest.raises(ConfigError, match="differ"):
        measure(made, None, [torch.arange(40)])


def test_models_without_rotation():
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=1
    )
    made = transformers.GPT2LMHeadModel(config).eval()
    found = sections(made, None, [torch.arange(40)])
    check(found)
    assert "Norms of the rotary planes" not in [s.name for s in found]
    assert "Massive values" in [s.name for s in found]


def test_weights_of_a_layer():
    for family in ("llama3", "phi3", "gpt_neox"):
        made = model(family)
        layer, shape = parts.attention_layers(made)[0], layer_shapes(made)[0]
        weights = query_key(layer, shape)
        hidden = torch.randn(1, 3, 64)
        kept = {}
        with Probe(made, look=lambda s, kept=kept: kept.setdefault(s.index, s)):
            handle = layer.register_forward_pre_hook(
                lambda m, a, k, kept=kept: kept.update(x=k.get("hidden_states", a[0] if a else None)), with_kwargs=True
            )
            made(inputs_embeds=hidden, use_cache=False)
            handle.remove()
        q = kept["x"] @ weights.head(shape, 3)[0]
        states = kept[0]
        still = states.still()[0][0, 3]
        bias = 0.0
        if family == "gpt_neox":
            bias = layer.query_key_value.bias.unflatten(0, (4, 3, 16))[3, 0]
        torch.testing.assert_close((q[0] + bias)[:, : states.turned], still, atol=1e-5, rtol=1e-4)
    assert query_key(nn.Linear(2, 2), layer_shapes(model("llama3"))[0]) is None


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one text", "a list of strings"),
        ([], "no piece"),
        ([torch.tensor([1])], "no piece"),
        (["text"], "no tokenizer"),
        ([3], "strings, or tensors"),
        ([torch.zeros(3)], "whole numbers"),
        ([torch.tensor([1, 2, 64])], "the model has 64"),
        ([torch.tensor([[1, 2]])], "whole numbers"),
    ],
)
def test_bad_texts(texts, message):
    with pytest.raises((ConfigError, ShapeError), match=message):
        measure(model("llama3"), None, texts)


def test_bad_plans():
    with pytest.raises(ConfigError, match="max_tokens"):
        measure(model("llama3"), None, [torch.arange(9)], max_token=5)
    with pytest.raises(ConfigError, match="at least 1"):
        measure(model("llama3"), None, [torch.arange(9)], max_tokens=0)
    with pytest.raises(ConfigError, match="needles"):
        measure(model("llama3"), None, [torch.arange(9)], needles=-1)
    with pytest.raises(ConfigError, match="masks"):
        measure(model("llama3"), None, [torch.arange(9)], masks=True)


def test_layers_from_the_disk(tmp_path):
    """A model whose layers are read when they are needed: nothing of them stays in memory."""
    pytest.importorskip("accelerate")
    made = reader()
    made.save_pretrained(tmp_path / "model")
    there = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model",
        device_map={"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.norm": "cpu", "lm_head": "cpu",
                    "model.layers.0": "disk", "model.layers.1": "disk"},
        offload_folder=tmp_path / "offload",
    )  # fmt: skip
    assert there.model.layers[0].self_attn.q_proj.weight.is_meta
    one, other = (sections(m, None, [torch.arange(2, 60)]) for m in (made, there))
    assert there.model.layers[0].self_attn.q_proj.weight.is_meta
    assert [s.name for s in one] == [s.name for s in other]
    for a, b in zip(one, other, strict=True):
        for x, y in zip(a.findings, b.findings, strict=True):
            assert x.number == pytest.approx(y.number, rel=1e-4, abs=1e-6)
