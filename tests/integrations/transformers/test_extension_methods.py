"""Encodings that extend a context, in models of transformers; heads that DoPE chooses there; facts about tokens."""

import pytest
import torch
from hf_families import model, tokens

import ropewalk as rw
from ropewalk import hf
from ropewalk.analysis.matrix_entropy import concentration
from ropewalk.bias.anchor_attention import AnchorAttention
from ropewalk.coordinates.packed import packed_positions
from ropewalk.core.errors import NeedsColumn

NEW = 6
METHODS = [
    "rerope(window=5)",
    "rerope(window=5, leak=3)",
    "self_extend(group=3, window=4)",
    "hirope(window=4, split=4, segment_length=5)",
    "string_shifted(shift=6, local=2)",
    "rerope(window=5) + log_length_scale(train_length=6)",
    "dope(heads=[[0, 1], [1, 0]])",
    "dope(heads=[[0, 1]], mode=parts)",
    "dope(heads=[[0, 1]], mode=nope)",
    "dope(heads=[[1, 1]], mode=gaussian, deviation=[[0.5, 0.4]])",
    "dynamic_ntk(original=6)",
    "entropy_abf(train_length=6, exempt_layers=1)",
]


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def padded():
    ids = tokens()
    mask = torch.ones_like(ids)
    ids[0, :4] = mask[0, :4] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("what", METHODS)
def test_decodes_what_one_pass_computes(what):
    made = model("llama3")
    before = made(**padded()).logits
    hf.apply(made, what)
    out = made.generate(**padded(), max_new_tokens=NEW, do_sample=False)
    mask = torch.cat([padded()["attention_mask"], torch.ones(2, NEW, dtype=torch.long)], 1)
    whole = made(out, attention_mask=mask).logits
    cache, parts = hf.new_cache(made), []
    for start, stop in ((0, 7), (7, 8), (8, 13), (13, 14), (14, 18)):
        parts.append(made(out[:, start:stop], attention_mask=mask[:, :stop], cache=cache).logits)
    real = mask.bool()
    torch.testing.assert_close(torch.cat(parts, 1)[real], whole[real], atol=5e-5, rtol=1e-5)
    assert torch.equal(whole[:, 11:-1].argmax(-1), out[:, 12:])
    alone = made(padded()["input_ids"][:1, 4:]).logits
    torch.testing.assert_close(whole[:1, 4:12], alone, atol=5e-5, rtol=1e-5)
    differs = (whole[:, :12] - before)[padded()["attention_mask"].bool()]
    assert differs.abs().max() > 1e-3
    hf.remove(made)
    assert torch.equal(made(**padded()).logits, before)


@pytest.mark.parametrize(
    "what",
    ["rerope(window=40)", "self_extend(group=1)", "hirope(split=16)", "dope(heads=[])", "string_shifted(shift=0)"],
)
def test_what_reduces_to_the_model(what):
    made = model("llama3")
    before = made(tokens()).logits
    torch.testing.assert_close(hf.apply(made, what)(tokens()).logits, before, atol=3e-5, rtol=1e-5)


def test_saved_and_loaded(tmp_path):
    made = hf.apply(model("llama3"), "dope(heads=[[0, 1]], mode=gaussian, deviation=[[0.5, 0.4]], seed=3)")
    made.save_pretrained(tmp_path)
    torch.testing.assert_close(hf.load(tmp_path)(tokens()).logits, made(tokens()).logits)


# ---- facts about tokens ----------------------------------------------------------------------------------------------


def test_segments_of_code_reach_hirope():
    made = hf.apply(model("llama3"), "hirope(window=3)")
    with pytest.raises(NeedsColumn, match="segment"):
        made(tokens())
    segment = torch.arange(18) // 5
    with hf.columns(made, segment=segment[:12]):
        out = made.generate(tokens(), max_new_tokens=NEW, do_sample=False, num_beams=2)
        assert out.shape == (2, 18)
        out = made.generate(tokens(), max_new_tokens=NEW, do_sample=False)
    held = torch.cat([segment[:12], segment[11:12].expand(6)])
    with hf.columns(made, segment=held.expand(2, -1)):
        whole = made(out).logits
    assert torch.equal(whole[:, 11:-1].argmax(-1), out[:, 12:])
    with hf.columns(made, segment=segment):
        assert not torch.allclose(made(out).logits, whole, atol=1e-4)
        cache = hf.new_cache(made)
        parts = [made(out[:, a:b], cache=cache).logits for a, b in ((0, 7), (7, 18))]
        torch.testing.assert_close(torch.cat(parts, 1), made(out).logits, atol=5e-5, rtol=1e-5)
    plain = hf.apply(model("llama3"), "hirope(window=3, segment_length=5)")
    with hf.columns(made, segment=segment):
        torch.testing.assert_close(made(out).logits, plain(out).logits, atol=2e-5, rtol=1e-5)
    with pytest.raises(NeedsColumn):
        made(tokens())


def test_documents_share_an_anchor():
    made = model("llama3")
    own = hf.encodings(made)
    hf.apply(made, rw.PerLayer([rw.Sequential(e, AnchorAttention()) for e in own]))
    ids, positions = tokens(1, 10), packed_positions([3, 2, 4])
    with hf.columns(made, document=positions.query.column("document")):
        got = made(ids).logits
    spread = torch.tensor([0, 1, 2, 3, 0, 4, 5, 0, 6, 7, 8, 9])
    copies = packed_positions([3, 2, 4], "anchor_copies")
    hf.remove(made)
    hf.apply(made, rw.PerLayer(own))
    with hf.columns(made, document=copies.query.column("document")):
        want = made(ids[:, spread], position_ids=copies.query.position).logits
    torch.testing.assert_close(got[:, spread], want, atol=2e-5, rtol=1e-5)


def test_facts_that_cannot_be():
    made = model("llama3")
    with pytest.raises(rw.ConfigError, match=r"hf\.apply"), hf.columns(made, segment=torch.zeros(12)):
        pass
    hf.apply(made, "hirope(window=3)")
    with pytest.raises(rw.PositionError, match="tensor"), hf.columns(made, segment=[1, 2]):
        pass
    for column, message in ((torch.zeros(7).long(), "whole prompt"), (torch.zeros(3, 12).long(), "3 rows")):
        with pytest.raises(rw.PositionError, match=message), hf.columns(made, segment=column):
            made(tokens())


@pytest.mark.parametrize("family", ["llama3", "gpt_neox"])
def test_bfloat16_study(family):
    made = model(family)
    ids = tokens(2, 40)
    before = made(ids).logits
    half, single = (hf.bf16_shift_by_head(made, ids, dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
    assert half.total.shape == (2, 4) and half.first_ratio.shape == (2, 4)
    assert half.total.min() > 20 * single.total.max()
    assert torch.equal(made(ids).logits, before)
    with pytest.raises(rw.ShapeError):
        hf.bf16_shift_by_head(made, ids[:, :1])


# ---- DoPE on a model -------------------------------------------------------------------------------------------------


def test_heads_are_chosen_by_the_entropy_of_their_keys():
    made = model("llama3")
    before = made(tokens()).logits
    texts = [tokens(2, 20), tokens(1, 30)[0]]
    chosen = hf.dope_select(made, texts, heads=2, r=4)
    assert torch.equal(made(tokens()).logits, before) and made.config._attn_implementation != "ropewalk_probe"
    assert chosen.scores.shape == (2, 2) and len(chosen.heads) == 2
    flat = chosen.scores.flatten()
    assert [chosen.scores[h] for h in chosen.heads] == flat.sort().values[:2].tolist()
    seen = {}

    class Watch(rw.Encoding):
        def __init__(self, own, index):
            super().__init__()
            self.own, self.number = own, index

        def rewrite(self, problem):
            p = self.own.rewrite(problem)
            seen.setdefault(self.number, []).append((p.q, p.k))
            return p

    hf.apply(made, rw.PerLayer([Watch(e, i) for i, e in enumerate(hf.encodings(made))]))
    for text in texts:
        made(text.reshape(-1, text.shape[-1]))
    for i in range(2):
        rows = torch.cat([concentration(k, 4) for _, k in seen[i]])
        torch.testing.assert_close(chosen.scores[i], rows.mean(0), atol=1e-4, rtol=1e-4)
    (layer, head), (q, k) = chosen.heads[0], chosen.deviation[0]
    square = torch.stack(
        [x[r, 2 * head : 2 * head + 2].var(correction=0) for x, _ in seen[layer] for r in range(len(x))]
    ).mean()
    assert abs(q - square.sqrt()) < 1e-3
    square = torch.stack([y[r, head].var(correction=0) for _, y in seen[layer] for r in range(len(y))]).mean()
    assert abs(k - square.sqrt()) < 1e-3


@pytest.mark.parametrize("indicator", ["key", "query"])
def test_stages(indicator):
    made = hf.apply(model("qwen2"), "ntk", factor=8)
    before = made(tokens()).logits
    scores = {
        stage: hf.dope_select(made, [tokens(1, 40)], heads=1, r=None, indicator=indicator, stage=stage).scores
        for stage in ("pre_ntk", "post_ntk", "post_rope")
    }
    assert torch.equal(made(tokens()).logits, before)
    assert made.config.ropewalk["spectra"]
    assert not torch.allclose(scores["post_ntk"], scores["post_rope"], atol=1e-2)
    torch.testing.assert_close(
        scores["pre_ntk"][0], scores["post_ntk"][0], atol=1e-4, rtol=1e-4
    )  # nothing came before it
    assert not torch.allclose(scores["pre_ntk"][1], scores["post_ntk"][1], atol=1e-6)


@pytest.mark.parametrize("mode", ["zero", "nope", "parts", "gaussian"])
def test_applied_on_top_of_a_schedule(mode):
    made = hf.apply(model("qwen2"), "ntk", factor=8)
    scaled = made(tokens()).logits
    selection = hf.dope_select(made, [tokens(1, 40)], heads=1)
    hf.apply_dope(made, selection, mode)
    assert not torch.allclose(made(tokens()).logits, scaled, atol=1e-3)
    assert all(e.spectrum.inv_freq != rw.geometric(16).inv_freq for e in hf.encodings(made))


def test_sinks_before_and_after():
    made = model("llama3")
    ids = tokens(2, 20)
    before = hf.sink_mass_by_head(made, ids)
    assert before.shape == (2, 4) and bool(((before > 0) & (before < 1)).all())
    selection = hf.dope_select(made, [ids], heads=1)
    (layer, head), *_ = selection.heads
    after = hf.sink_mass_by_head(made, ids, selection)
    even = (1 / torch.arange(2.0, 21)).mean().double()
    torch.testing.assert_close(after[layer, 2 * head : 2 * head + 2], even.expand(2), atol=1e-6, rtol=1e-6)
    if layer == 0:
        others = [h for h in range(4) if h // 2 != head]
        torch.testing.assert_close(after[0, others], before[0, others], atol=1e-5, rtol=1e-4)


def test_choices_that_cannot_be():
    made = model("llama3")
    with pytest.raises(rw.ConfigError, match="no text"):
        hf.dope_select(made, [])
    with pytest.raises(rw.ConfigError, match="Did you mean 'post_rope'"):
        hf.dope_select(made, [tokens()], stage="post_rop")
    with pytest.raises(rw.ConfigError, match="from 0 to 4"):
        hf.dope_select(made, [tokens()], heads=5)
    with pytest.raises(rw.ShapeError, match="two tokens"):
        hf.sink_mass_by_head(made, tokens(1, 1))
