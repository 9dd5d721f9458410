"""The migration notes, docs/migrating.md: each pair of snippets gives equal numbers.

With a library installed its snippet runs as it stands there. What it made is also in data/migrating.json, so that ours
is compared without the library too; ``python tests/test_migrating.py`` records that file anew.
"""

import importlib.metadata
import json
import math
import re
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import ropewalk as rw

ROOT = Path(__file__).parent.parent
GOLDEN = Path(__file__).parent / "data" / "migrating.json"
LIBRARIES = {"rotary_embedding_torch": "rotary-embedding-torch", "x_transformers": "x-transformers"}
HEADS, SEQ, HEAD_DIM, HIDDEN = 3, 6, 8, 10


def wave(*shape, seed=1):
    """Numbers that are the same in every version of torch."""
    t = torch.arange(math.prod(shape), dtype=torch.float64) + 1000 * seed
    return (t * t * 0.37).sin().float().reshape(shape)


WEIGHTS = {
    "Frequencies of your own": {"freqs": wave(HEAD_DIM // 2).abs()},
    "T5 relative position bias": {"relative_attention_bias.weight": wave(32, HEADS)},
    "T5 bias in both directions": {"relative_attention_bias.weight": wave(32, HEADS)},
    "CoPE": {"pos_emb": wave(4, HEAD_DIM)},
    "Data-dependent ALiBi": {
        "to_forget_gates.0.weight": wave(HEADS, HIDDEN),
        "to_forget_gates.0.bias": wave(HEADS, seed=2),
    },
    "Polar embedding": {"learned_bias": -3 * wave(HEADS, 1, HEAD_DIM).abs()},
    "Learned absolute positions": {"emb.weight": wave(8, HIDDEN)},
    "Scaled sinusoids": {"scale": torch.tensor([0.7])},
    "Checkpoints with the other pairing": {
        "wq.weight": wave(HEADS * HEAD_DIM, HIDDEN),
        "wk.weight": wave(HEADS * HEAD_DIM, HIDDEN, seed=2),
    },
}

PAGE = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
# heading -> (the snippet that makes `theirs`, the one that makes `ours`)
SECTIONS = {
    section.partition("\n")[0]: tuple(
        re.search(rf"```python {which}\n(.*?)```", section, re.S)[1] for which in ("before", "after")
    )
    for section in re.split(r"^### ", PAGE, flags=re.M)[1:]
}


def library(section):
    """Name the module that the first snippet of a section needs, or None where it is written out."""
    return next((module for module in LIBRARIES if f"from {module}" in SECTIONS[section][0]), None)


FOREIGN = [s for s in SECTIONS if library(s)]


def space(section):
    """Make what the page says every snippet knows."""
    q, k, v = (wave(1, HEADS, SEQ, HEAD_DIM, seed=seed) for seed in (1, 2, 3))
    names = {"torch": torch, "rw": rw, "scaled_dot_product_attention": scaled_dot_product_attention}
    sizes = {"batch": 1, "heads": HEADS, "seq": SEQ, "head_dim": HEAD_DIM, "hidden_size": HIDDEN}
    return {
        **names,
        **sizes,
        "q": q,
        "k": k,
        "v": v,
        "x": wave(1, SEQ, HIDDEN, seed=4),
        "weights": WEIGHTS.get(section),
    }


def run(section, which, names):
    """Run one snippet of a section among these names."""
    exec(
        compile(SECTIONS[section][("before", "after").index(which)], f"migrating.md, {section}, {which}", "exec"), names
    )
    return names


def tensors(result):
    return [t.detach() for t in ((result,) if isinstance(result, torch.Tensor) else result)]


def assert_equal(ours, theirs):
    ours, theirs = tensors(ours), tensors(theirs)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=3e-6)  # float32, and theirs rounds angles to it


def test_every_section_has_a_pair_of_snippets_and_weights_are_those_of_sections():
    assert len(FOREIGN) > 20 and len(SECTIONS) - len(FOREIGN) >= 6
    assert set(WEIGHTS) <= set(SECTIONS)
    assert PAGE.count("```python before") == PAGE.count("```python after") == len(SECTIONS)


@pytest.mark.parametrize("section", [s for s in SECTIONS if not library(s)])
def test_written_out_code_and_ropewalk_agree(section):
    names = run(section, "after", run(section, "before", space(section)))
    assert_equal(names["ours"], names["theirs"])


@pytest.mark.parametrize("section", FOREIGN)
def test_the_installed_library_and_ropewalk_agree(section):
    pytest.importorskip(library(section))
    theirs = run(section, "before", space(section))["theirs"]
    assert_equal(run(section, "after", space(section))["ours"], theirs)
    assert_equal(theirs, recorded(section))  # a new version that does something else is noticed, and named, here


@pytest.mark.parametrize("section", FOREIGN)
def test_recorded_numbers_of_the_library_and_ropewalk_agree(section):
    assert_equal(run(section, "after", space(section))["ours"], recorded(section))


def test_no_section_is_blind_to_positions():
    """What is compared would differ without an encoding, so that equal means something."""
    for section in FOREIGN:
        names = space(section)
        plain = {3: [names["x"]]}.get(tensors(recorded(section))[0].ndim)
        if plain is None:
            causal = "in both directions" not in section
            plain = [names["q"], scaled_dot_product_attention(names["q"], names["k"], names["v"], is_causal=causal)]
        first = recorded(section)[0]
        for other in plain:
            same_shape = other[..., -first.shape[-2] :, :]
            assert (first - same_shape).abs().max() > 1e-3, section


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_llama_of_transformers(factor):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    rope = {"rope_type": "default", "rope_theta": 500_000.0}
    config = llama.LlamaConfig(hidden_size=HEADS * HEAD_DIM, num_attention_heads=HEADS, rope_parameters=rope)
    names = space(None)
    q, k, positions = names["q"], names["k"], (torch.arange(SEQ) * factor)[None]
    theirs = llama.apply_rotary_pos_emb(q, k, *llama.LlamaRotaryEmbedding(config)(q, positions))
    assert_equal(rw.RoPE(HEAD_DIM, base=500_000.0, pairing="half").rotate(q, k, positions), theirs)


def test_gptj_of_transformers():
    gptj = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    names, width = space(None), HEAD_DIM // 2
    sin, cos = gptj.create_sinusoidal_positions(SEQ, width).chunk(2, -1)
    theirs = []
    for t in (names["q"].transpose(1, 2), names["k"].transpose(1, 2)):
        turned = gptj.apply_rotary_pos_emb(t[..., :width], sin[None], cos[None])
        theirs.append(torch.cat((turned, t[..., width:]), -1).transpose(1, 2))
    assert_equal(rw.Partial(rw.RoPE(width), width).rotate(names["q"], names["k"]), theirs)


def test_xpos_decodes_with_other_logits_there_and_with_the_same_here():
    """The fault that the page warns of."""
    rotary = pytest.importorskip("rotary_embedding_torch").RotaryEmbedding(HEAD_DIM, use_xpos=True, xpos_scale_base=8)
    names = space(None)
    q, k, v = names["q"], names["k"], names["v"]

    def decoded(problem_encoding):
        cache = rw.KVCache(problem_encoding)
        for t in range(SEQ):
            out = rw.attend(cache.extend(rw.Attention(*(s[:, :, t : t + 1] for s in (q, k, v)))))
        return out

    full, keys = rotary.rotate_queries_and_keys(q, k)
    last, cached = rotary.rotate_queries_with_cached_keys(q[:, :, -1:], k)
    trained = full[:, :, -1:] @ keys.mT
    assert ((last @ cached.mT - trained).abs().max() / trained.abs().max()) > 0.05
    encoding = rw.XPos(HEAD_DIM, scale_base=8)
    ours = rw.attend(encoding(rw.Attention(q, k, v)))
    assert_equal(ours, scaled_dot_product_attention(full, keys, v, is_causal=True))
    assert_equal(decoded(encoding), ours[:, :, -1:])


def recorded(section):
    (sizes, numbers) = zip(*json.loads(GOLDEN.read_text(encoding="utf-8"))["theirs"][section], strict=True)
    return [torch.tensor(n, dtype=torch.float32).reshape(s) for s, n in zip(sizes, numbers, strict=True)]


def record():
    """Write what the installed libraries give."""
    theirs = {}
    for section in FOREIGN:
        made = tensors(run(section, "before", space(section))["theirs"])
        theirs[section] = [[list(t.shape), [float(f"{n:.7g}") for n in t.flatten().tolist()]] for t in made]
    versions = {name: importlib.metadata.version(name) for name in (*LIBRARIES.values(), "torch")}
    entries = ",\n".join(f"{json.dumps(s)}: {json.dumps(t, separators=(',', ':'))}" for s, t in theirs.items())
    GOLDEN.write_text(f'{{"versions": {json.dumps(versions)},\n"theirs": {{\n{entries}\n}}}}\n', encoding="utf-8")


if __name__ == "__main__":
    record()
