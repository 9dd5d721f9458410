"""Vision-language models of transformers: our ids and theirs, and other schemes in their place."""

import functools
import re
from pathlib import Path

import pytest
import torch
import transformers
import vl_families as vl
from vl_families import FAMILIES, Prompt, batch, config, filmed, model, prompts, seen

import ropewalk as rw
from ropewalk import hf
from ropewalk.core.errors import ConfigError, NeedsColumn, PositionError, ShapeError
from ropewalk.rotary.videorope import VideoRoPE

NEW = 6


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@functools.cache
def untouched(family):
    """Return a model that is only looked at."""
    return model(family)


def theirs(made, given):
    """Return the ids (batch, S, 3) and deltas (batch,) that the model itself computes."""
    names = ("image_grid_thw", "video_grid_thw", "second_per_grid_ts", "attention_mask")
    known = {name: given[name] for name in names if name in given}
    ids, delta = made.model.get_rope_index(given["input_ids"], given["mm_token_type_ids"], **known)
    return ids.permute(1, 2, 0).double(), delta[:, 0].double()


def scheme_of(made):
    return hf.encodings(made)[0].scheme


def generate(made, given, **options):
    """Generate text: a tiny model would write tokens of images, too."""
    return made.generate(**given, **options, max_new_tokens=NEW, do_sample=False, suppress_tokens=vl.SPECIAL)


def longer(given, out):
    """Return the inputs of a prompt with what was generated."""
    new = out.shape[1] - given["input_ids"].shape[1]
    rows = out.shape[0]
    types = torch.cat([given["mm_token_type_ids"], torch.zeros(rows, new, dtype=torch.long)], 1)
    mask = torch.cat([given["attention_mask"], torch.ones(rows, new, dtype=torch.long)], 1)
    return {**given, "input_ids": out, "mm_token_type_ids": types, "attention_mask": mask}


# ---- ids -----------------------------------------------------------------------------------------------------------

ROWS = {
    "images, videos, both and text": (0, 1, 2, 3),
    "text": (1,),
    "images": (2,),
    "both": (0,),
    "videos": (3,),
    "with images and without": (1, 2),
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("family", FAMILIES)
def test_our_ids_are_theirs(family, rows, side):
    made = untouched(family)
    given = batch(family, *(prompts(family)[row] for row in rows), side=side)
    ids, delta = theirs(made, given)
    real = given["attention_mask"].bool()
    tokens = hf.vision_layout(made, **given).query
    scheme = scheme_of(made)
    assert torch.equal(scheme.coordinates(tokens)[real], ids[real])
    assert torch.equal(scheme.cursor(tokens), delta + real.sum(1))
    if side == "left":  # the next token of theirs is at its place among the real tokens + delta
        after = scheme.coordinates(tokens.continuing(3))
        wanted = (delta + real.sum(1))[:, None] + torch.arange(3)
        assert torch.equal(after, wanted[:, :, None].expand(-1, -1, 3))


@pytest.mark.parametrize("family", FAMILIES)
def test_token_ids_say_what_a_processor_would(family):
    given = batch(family, *prompts(family))
    wanted = hf.vision_layout(untouched(family), **given).query
    del given["mm_token_type_ids"]
    tokens = hf.vision_layout(untouched(family), **given).query
    assert torch.equal(tokens.column("block"), wanted.column("block"))
    assert torch.equal(tokens.sequence["blocks"], wanted.sequence["blocks"])


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_rows_are_their_samples(family):
    """Samples in one row, told apart by positions that start anew, are at the ids they have alone."""
    made, samples = untouched(family), prompts(family)
    lengths = [len(p.ids) for p in samples]
    row = Prompt(family)
    for p in samples:
        for name in ("ids", "types", "images", "videos", "seconds"):
            getattr(row, name).extend(getattr(p, name))
    given = batch(family, row)
    del given["attention_mask"]
    counted = torch.cat([torch.arange(n) for n in lengths])[None]
    alone = torch.cat([theirs(made, batch(family, p))[0][0] for p in samples])
    for ids in (counted, counted.expand(4, 1, -1)):
        tokens = hf.vision_layout(made, **given, position_ids=ids).query
        assert torch.equal(scheme_of(made).coordinates(tokens)[0], alone)
    document = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))[None]
    tokens = hf.vision_layout(made, **given, document=document).query
    assert torch.equal(scheme_of(made).coordinates(tokens)[0], alone)


@pytest.mark.parametrize("seconds", [0.25, 0.5, 1.0, 1.3, 2.0])
def test_seconds_of_videos_and_not_of_images(seconds):
    family = "qwen2_5_vl"
    made = untouched(family)
    given = batch(family, Prompt(family).text(2).image(2, 6).text(1).video(4, 2, 30, seconds).text(2))
    tokens = hf.vision_layout(made, **given).query
    assert torch.equal(scheme_of(made).coordinates(tokens), theirs(made, given)[0])
    as_floats = {**given, "second_per_grid_ts": [seconds]}
    assert torch.equal(scheme_of(made).coordinates(hf.vision_layout(made, **as_floats).query), theirs(made, given)[0])


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_a_bug_of_theirs_text_after_a_long_video_begins_within_it(family):
    """transformers goes on after a video by its rows and columns alone; the published rule counts its frames too.

    With more frames than rows and columns, text of theirs has the ids of frames, and decoding goes on elsewhere than the text
    before it: one id is taken twice or left out. Ours follows the rule, so that decoding equals one pass.
    """
    made = untouched(family)
    given = batch(family, Prompt(family).text(2).video(6, 2, 4).text(1))
    ids, delta = theirs(made, given)
    assert ids[0, -2:].max() < ids[0, :-2].max()  # the end marker, and what follows, are among the frames
    last, cursor = ids[0, -1].max(), delta + given["input_ids"].shape[1]
    assert cursor != last + 1
    tokens = hf.vision_layout(made, **given).query
    ours = scheme_of(made).coordinates(tokens)[0]
    assert ours[-2].min() == ours[:-2].max() + 1
    assert scheme_of(made).cursor(tokens) == ours[-1].max() + 1


# ---- in the model ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [seen, filmed])
@pytest.mark.parametrize("family", FAMILIES)
def test_its_own_encoding_computes_what_the_model_computes(family, rows):
    made = model(family)
    given = batch(family, *rows(family), pixels=True)
    before, plain = made(**given).logits, generate(made, given)
    # Of transformers alone, beams of GLM-4V cannot look at videos: it counts other tokens than those that stand for frames.
    beams = None if (family, rows) == ("glm4v", filmed) else generate(made, given, num_beams=2)
    implementation, text = made.config._attn_implementation, made.config.text_config._attn_implementation
    names, values = [n for n, _ in made.named_modules()], made.config.to_dict()
    hf.apply(made, rw.PerLayer(hf.encodings(made)))
    real = given["attention_mask"].bool()
    torch.testing.assert_close(made(**given).logits[real], before[real], atol=5e-5, rtol=1e-5)
    assert torch.equal(generate(made, given), plain)
    assert beams is None or torch.equal(generate(made, given, num_beams=2), beams)
    hf.remove(made)
    assert torch.equal(made(**given).logits, before)
    assert torch.equal(generate(made, given), plain)
    assert made.config._attn_implementation == implementation
    assert made.config.text_config._attn_implementation == text
    assert [n for n, _ in made.named_modules()] == names and made.config.to_dict() == values


def videorope(made):
    """Return VideoRoPE for a model, as its name would build it."""
    own = hf.encodings(made)[0]
    return VideoRoPE(
        own.head_dim,
        made.config.text_config.rope_parameters["mrope_section"],
        own.base,
        pairing=own.pairing,
        rotary_dim=2 * own.allocation.pairs,
        spectrum=own.spectrum,
    )


@pytest.mark.parametrize("rows", [seen, filmed])
@pytest.mark.parametrize("family", FAMILIES)
def test_another_scheme_decodes_what_one_pass_computes(family, rows):
    """With a cursor a row, in chunks that cut images, and without a cache."""
    made = model(family)
    given = batch(family, *rows(family), pixels=True)
    own = made(**given).logits
    hf.apply(made, videorope(made))
    assert not torch.allclose(made(**given).logits, own, atol=1e-2)
    out = generate(made, given)
    whole = longer(given, out)
    logits = made(**whole, use_cache=False).logits
    start = given["input_ids"].shape[1]
    logits[..., vl.SPECIAL] = -torch.inf
    assert torch.equal(logits[:, start - 1 : -1].argmax(-1), out[:, start:])
    assert torch.equal(generate(made, given, use_cache=False), out)
    first = made(**given, use_cache=True)
    cache, parts = first.cache, [first.logits]
    for end in range(start + 1, out.shape[1] + 1):  # with no word about images: the cache knows
        parts.append(made(out[:, end - 1 : end], attention_mask=whole["attention_mask"][:, :end], cache=cache).logits)
    real, parts = whole["attention_mask"].bool(), torch.cat(parts, 1)
    parts[..., vl.SPECIAL] = -torch.inf
    torch.testing.assert_close(parts[real], logits[real], atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_in_chunks_that_cut_images(family):
    """Embeddings come in pieces, and the types are those of the whole prompt."""
    made = model(family)
    hf.apply(made, videorope(made))
    given = batch(family, *prompts(family))
    embeds = made.get_input_embeddings()(given["input_ids"])
    facts = {k: v for k, v in given.items() if k not in ("input_ids", "attention_mask")}
    mask = given["attention_mask"]
    whole = made(inputs_embeds=embeds, attention_mask=mask, **facts).logits
    cache, parts = hf.new_cache(made), []
    for start in range(0, embeds.shape[1], 7):
        stop = min(start + 7, embeds.shape[1])
        given = {"inputs_embeds": embeds[:, start:stop], "attention_mask": mask[:, :stop], "cache": cache}
        parts.append(made(**given, **facts).logits)
    real = mask.bool()
    torch.testing.assert_close(torch.cat(parts, 1)[real], whole[real], atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_alone_is_the_row_in_a_batch(family):
    made = model(family)
    hf.apply(made, videorope(made))
    rows = seen(family)
    given = batch(family, *rows, pixels=True)
    together, at = generate(made, given)[:, -NEW:], 0
    for i, row in enumerate(rows):
        alone = batch(family, row, pixels=True)
        if "pixel_values" in alone:
            n = len(alone["pixel_values"])
            alone["pixel_values"], at = given["pixel_values"][at : at + n], at + n
        if "pixel_values_videos" in alone:
            alone["pixel_values_videos"] = given["pixel_values_videos"]
        assert torch.equal(generate(made, alone)[:, -NEW:], together[i : i + 1])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_leaves_nothing_to_the_next_one(family):
    """Cursors are those of each prompt: after images and videos, text alone, another batch, and the first prompt once more."""
    film, still = Prompt(family, 4).text(2).video(4, 2, 12).text(5), Prompt(family, 3).text(2).image(2, 8).text(3)
    rows = ((film,), (Prompt(family, 2).text(9),), (still, Prompt(family, 5).text(4)), (film,))
    given = [batch(family, *prompt, pixels=True) for prompt in rows]
    made = model(family)
    hf.apply(made, videorope(made))
    cursors = {float(scheme_of(made).delta(hf.vision_layout(made, **one).query)[0]) for one in given}
    assert len(cursors) == 3  # one that is left over would be seen
    out = [generate(made, one) for one in given]
    for one, found in zip(given, out, strict=True):
        fresh = model(family)
        assert torch.equal(generate(hf.apply(fresh, videorope(fresh)), one), found)
    assert torch.equal(out[-1], out[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_second_turn_with_a_new_image(family):
    """A conversation goes on: the new tokens bring the new grid only."""
    made = model(family)
    hf.apply(made, videorope(made))
    one, two = Prompt(family, 1).text(2).image(4, 6).text(3), Prompt(family, 1).text(2).image(4, 6).text(3)
    two = two.text(2).image(2, 10).text(4)
    first, both = batch(family, one, pixels=True), batch(family, two, pixels=True)
    whole = made(**both, use_cache=False).logits
    n = first["input_ids"].shape[1]
    cache = made(**first, use_cache=True).cache
    new = {k: both[k][:, n:] for k in ("input_ids", "mm_token_type_ids")}
    new |= {"pixel_values": both["pixel_values"][24:], "image_grid_thw": both["image_grid_thw"][1:]}
    again = made(**new, attention_mask=both["attention_mask"], cache=cache).logits
    torch.testing.assert_close(again, whole[:, n:], atol=5e-5, rtol=1e-5)
    cache = made(**first, use_cache=True).cache
    assert torch.equal(made(**new, cache=cache).logits, again)


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_samples_do_not_see_each_other(family):
    made = model(family)
    hf.apply(made, videorope(made))
    samples = prompts(family)
    row = Prompt(family)
    for p in samples:
        for name in ("ids", "types", "images", "videos", "seconds"):
            getattr(row, name).extend(getattr(p, name))
    given = batch(family, row)
    del given["attention_mask"]
    counted = torch.cat([torch.arange(len(p.ids)) for p in samples])[None]
    packed = made(**given, position_ids=counted).logits
    alone = torch.cat([made(**batch(family, p)).logits for p in samples], 1)
    torch.testing.assert_close(packed, alone, atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize("what", ["rope", "alibi", "nope"])
def test_an_encoding_of_plain_positions_counts_tokens(what):
    made = hf.apply(model("qwen2_vl"), what)
    given = batch("qwen2_vl", *seen("qwen2_vl"), pixels=True)
    out = generate(made, given)
    logits = made(**longer(given, out), use_cache=False).logits
    logits[..., vl.SPECIAL] = -torch.inf
    start = given["input_ids"].shape[1]
    assert torch.equal(logits[:, start - 1 : -1].argmax(-1), out[:, start:])


@pytest.mark.parametrize("family", FAMILIES)
def test_text_alone_is_rope(family):
    """Every scheme of text alone is RoPE, and one allocation is another."""
    made = model(family)
    given = {"input_ids": torch.tensor([Prompt(family, 6).text(12).ids])}
    wanted, out = made(**given).logits, generate(made, given)
    hf.apply(made, videorope(made))
    torch.testing.assert_close(made(**given).logits, wanted, atol=5e-5, rtol=1e-5)
    assert torch.equal(generate(made, given), out)


@pytest.mark.parametrize("schedule", ["linear", "yarn"])
@pytest.mark.parametrize("family", FAMILIES)
def test_other_frequencies_and_the_same_scheme(family, schedule, tmp_path):
    """They replace the rotary module, as in models of text: what transformers makes of such a configuration."""
    made = model(family)
    given = batch(family, *seen(family), pixels=True)
    real = given["attention_mask"].bool()
    before = made(**given).logits
    hf.apply(made, schedule, factor=4, **({"original": 64} if schedule == "yarn" else {}))
    found = made(**given).logits
    assert not torch.allclose(found[real], before[real], atol=1e-2)
    assert isinstance(made.config._attn_implementation, str) and made.config._attn_implementation != "ropewalk"
    theirs = config(family)
    more = {"original_max_position_embeddings": 64} if schedule == "yarn" else {}
    own = dict(theirs.text_config.rope_parameters)
    theirs.text_config.rope_parameters = {**own, "rope_type": schedule, "factor": 4.0, **more}
    other = type(made)(theirs).eval()
    other.load_state_dict(made.state_dict())
    torch.testing.assert_close(found[real], other(**given).logits[real], atol=5e-5, rtol=1e-5)
    other.generation_config.eos_token_id, other.generation_config.pad_token_id = None, vl.PAD
    assert torch.equal(generate(made, given), generate(other, given))
    # as an encoding, with the same frequencies and the model's own scheme
    (spectrum,) = hf.spectrum(made).values()
    assert all(e.spectrum == spectrum and e.scheme == scheme_of(untouched(family)) for e in hf.encodings(made))
    hf.apply(made, rw.PerLayer(hf.encodings(made)))
    torch.testing.assert_close(made(**given).logits[real], found[real], atol=5e-5, rtol=1e-5)
    hf.remove(made)
    assert torch.equal(made(**given).logits, before)
    hf.apply(made, {"all": spectrum})
    made.save_pretrained(tmp_path / "saved")
    assert torch.equal(hf.load(tmp_path / "saved")(**given).logits, found)


def test_frequencies_are_exported_with_the_sections(tmp_path):
    made = hf.apply(model("qwen2_vl"), "linear", factor=2)
    found = hf.export(made, tmp_path / "out")
    (entry,) = found.entries.values()
    assert entry["rope_type"] == "linear" and entry["mrope_section"] == [2, 3, 3]
    given = batch("qwen2_vl", *seen("qwen2_vl"), pixels=True)
    real = given["attention_mask"].bool()
    plain = type(made).from_pretrained(tmp_path / "out").eval()
    torch.testing.assert_close(plain(**given).logits[real], made(**given).logits[real], atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_by_name_with_the_models_sections_and_frequencies(family, tmp_path):
    made = model(family)
    given = batch(family, *seen(family), pixels=True)
    before = made(**given).logits
    wanted = hf.apply(model(family), videorope(made))(**given).logits
    hf.apply(made, "videorope")
    assert torch.equal(made(**given).logits, wanted)
    made.save_pretrained(tmp_path)
    assert torch.equal(hf.load(tmp_path)(**given).logits, wanted)
    hf.apply(made, "videorope", scale=1.5)
    assert hf.encodings(made)[0].scheme.scale == 1.5
    own = "mrope_interleave" if family == "qwen3_vl" else "mrope"
    hf.apply(made, own)
    real = given["attention_mask"].bool()
    torch.testing.assert_close(made(**given).logits[real], before[real], atol=5e-5, rtol=1e-5)
    assert hf.encodings(made)[0].scheme == scheme_of(untouched(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_example_of_the_page(family):
    page = (Path(__file__).parents[3] / "docs" / "huggingface.md").read_text()
    (example,) = re.findall(r"## Models that see\n.*?```python\n(.*?)```", page, re.S)
    space = {"model": model(family), "inputs": batch(family, *seen(family), pixels=True)}
    exec(compile(example, "docs/huggingface.md, Models that see", "exec"), space)
    length = space["inputs"]["input_ids"].shape[1]
    assert space["out"].shape == (3, length + 4) and space["ids"].shape == (3, length, 3)
    assert space["cursor"][1] == 9


SCHEMES = ("mrope", "mrope_interleave", "mhrope", "hope_video", "vrope", "rope_dhr", "pype", "concentric_attention")


@pytest.mark.parametrize("what", SCHEMES)
@pytest.mark.parametrize("family", ["qwen2_5_vl", "glm4v"])
def test_every_scheme_generates_what_one_pass_computes(family, what):
    """In GLM-4V half of the channels turn, and heads are paired channel by channel."""
    if (family, what) == ("glm4v", "mrope_interleave"):
        return  # 4 pairs with the sections 2, 1, 1 are dealt out, and nothing else is different
    made = model(family)
    rows = filmed(family)
    given = batch(family, *rows, pixels=True)
    own = made(**given).logits
    if (family, what) == ("qwen2_5_vl", "mrope_interleave"):
        with pytest.raises(ConfigError, match="sections"):  # every third of 8 pairs are 2
            hf.apply(made, what)
        hf.apply(made, what, sections=(4, 2, 2))
    else:
        hf.apply(made, what)
    assert not torch.allclose(made(**given).logits, own, atol=1e-3) or what == "mrope"
    out = generate(made, given)
    logits, start = made(**longer(given, out), use_cache=False).logits, given["input_ids"].shape[1]
    logits[..., vl.SPECIAL] = -torch.inf
    assert torch.equal(logits[:, start - 1 : -1].argmax(-1), out[:, start:])
    hf.remove(made)
    assert torch.equal(made(**given).logits, own)


# ---- what cannot be --------------------------------------------------------------------------------------------------

FAULTS = {
    "fewer tokens than the grid has": (
        lambda g: {**g, "image_grid_thw": torch.tensor([[1, 4, 8]])},
        PositionError,
        "row 0 has 6 image tokens from token 4 on, and the grids that come next in image_grid_thw have 8 tokens",
    ),
    "more tokens than the grid has": (
        lambda g: {**g, "image_grid_thw": torch.tensor([[1, 4, 4]])},
        PositionError,
        "there is no grid for 2 of them",
    ),
    "a grid too many": (
        lambda g: {**g, "image_grid_thw": torch.tensor([[1, 4, 6], [1, 2, 4]])},
        PositionError,
        "has 2 grids and the image tokens use 1",
    ),
    "no grids": (
        lambda g: {k: v for k, v in g.items() if k != "image_grid_thw"},
        PositionError,
        "image_grid_thw has 0 grids",
    ),
    "a grid of a video that is not there": (
        lambda g: {**g, "video_grid_thw": torch.tensor([[2, 4, 6]])},
        PositionError,
        "video tokens use 0",
    ),
    "no frames": (lambda g: {**g, "image_grid_thw": torch.tensor([[0, 4, 6]])}, PositionError, "at least one frame"),
    "an image of two frames": (
        lambda g: {**g, "image_grid_thw": torch.tensor([[2, 2, 6]])},
        PositionError,
        "videos go into video_grid_thw",
    ),
    "a patch too few to merge": (
        lambda g: {**g, "image_grid_thw": torch.tensor([[1, 3, 8]])},
        PositionError,
        "multiples of 2",
    ),
    "a grid of floats": (
        lambda g: {**g, "image_grid_thw": torch.tensor([[1.0, 4, 6]])},
        ShapeError,
        "expected whole numbers",
    ),
    "an unknown type": (
        lambda g: {**g, "mm_token_type_ids": g["mm_token_type_ids"] * 3},
        PositionError,
        r"hold \[3\]",
    ),
    "ids of three axes": (
        lambda g: {**g, "position_ids": torch.zeros(3, 1, 13, dtype=torch.long)},
        PositionError,
        "the model's own scheme",
    ),
    "a mask of another batch": (
        lambda g: {**g, "attention_mask": torch.ones(2, 13)},
        ShapeError,
        "a layout of images needs",
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("spoil", "error", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_inputs_that_disagree(family, spoil, error, message):
    given = batch(family, Prompt(family).text(3).image(4, 6).text(2))
    assert given["input_ids"].shape[1] == 13
    made = hf.apply(model(family), "rope")
    with pytest.raises(error, match=message):
        hf.vision_layout(untouched(family), **spoil(given))
    with pytest.raises(error, match=message):
        made(**spoil(given))


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("frames", [1, 3])
def test_times_that_cannot_be(seconds, frames):
    given = batch("qwen2_5_vl", Prompt("qwen2_5_vl").text(2).video(frames, 2, 4, seconds).text(2))
    with pytest.raises(PositionError, match="seconds between frames, from 0 on"):
        hf.vision_layout(untouched("qwen2_5_vl"), **given)
    given["second_per_grid_ts"] = torch.tensor([1.0, 1.0])
    with pytest.raises(PositionError, match="2 numbers for 1 videos"):
        hf.vision_layout(untouched("qwen2_5_vl"), **given)


def test_never_silently_one_axis():
    """What does not say where images are is an error, in `generate` too, where transformers counts tokens."""
    family = "qwen2_vl"
    made = model(family)
    hf.apply(made, videorope(made))
    given = batch(family, *seen(family), pixels=True)
    embeds = made.get_input_embeddings()(given["input_ids"])
    with pytest.raises(NeedsColumn, match="inputs_embeds do not say"):
        made(inputs_embeds=embeds)
    with pytest.raises(PositionError, match="image_grid_thw has 0 grids"):
        made.generate(given["input_ids"], attention_mask=given["attention_mask"], max_new_tokens=2)
    with pytest.raises(PositionError, match="was called by itself"):
        made.model.language_model(inputs_embeds=embeds)
    del given["mm_token_type_ids"]  # the token ids say it, and nothing is lost
    out = generate(made, given)
    assert torch.equal(out, generate(made, batch(family, *seen(family), pixels=True)))


def test_models_that_are_not_known():
    with pytest.raises(ConfigError, match="'llama' model is not known to place images"):
        hf.vision_layout(transformers.LlamaConfig(), input_ids=torch.zeros(1, 3, dtype=torch.long))
