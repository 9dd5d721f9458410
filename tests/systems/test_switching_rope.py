"""CONFLATOR: positions that know where a text changes its language (arXiv 2309.05270)."""

from __future__ import annotations

import pytest
import torch
from reference import DOUBLE, attend, close, differ, golden, logits, problem, random

import ropewalk as rw
from ropewalk.analysis.switching import attention_on_switches, code_mixing
from ropewalk.coordinates.switching import (
    SwitchCoordinates,
    bigram_positions,
    bigram_switches,
    languages,
    switching_points,
)
from ropewalk.core.errors import ConfigError, NeedsColumn, PositionError, ShapeError
from ropewalk.lab.code_mixed import CODES, TEXT_TOKENS, TwoStreamEncoder, mixed_texts, position_code

CASE = golden("042")["hinglish"]
TAGS = ["hi", "hi", "en", "en", "o", "hi", "en", "en"]
FORMS = ("token", "parity", "zigzag", "segment", "split", "flag")


def placed(tags=TAGS):
    return rw.switching_positions([tags])[0]


def scores(form, tags=TAGS, **more):
    q, k = CASE.inputs["q"], CASE.inputs["k"]
    n = len(tags)
    p = rw.Attention(q[:, :, :n], k[:, :, :n], k[:, :, :n], placed(tags))
    return logits(rw.SwitchingRoPE(8, form, CASE.params["base"], **more)(p))


def test_golden_coordinates():
    want, where = CASE.outputs, placed().key
    assert languages(TAGS) == want["effective_lang"]
    assert switching_points(TAGS) == want["switch_point"].tolist()
    assert bigram_switches(TAGS) == want["bigram_switch"].tolist()
    for column, name in (("switch", "switch_point"), ("since", "segment_position"), ("switches", "switch_count")):
        assert where.column(column)[0].tolist() == want[name].tolist()
    for form in ("token", "parity", "zigzag"):
        made = SwitchCoordinates(form).remap(where, where.coordinates())
        assert made[0].tolist() == want[f"position_invert_{form}"].tolist()


@pytest.mark.parametrize("form", FORMS[:-1])
def test_golden_logits(form):
    name = f"logits_invert_{form}" if form in ("token", "parity", "zigzag") else f"logits_{form}"
    close(scores(form), CASE.outputs[name], DOUBLE)


# ---- coordinates -----------------------------------------------------------------------------------------------------


def test_neutral_tokens_make_no_switch():
    assert switching_points(["o", None, "hi", "o", "hi", "en", "o"]) == [0, 0, 0, 0, 0, 1, 0]
    assert switching_points(["o", None]) == [0, 0]
    assert switching_points([]) == []
    assert languages(["o", "hi"]) == ["hi", "hi"]


def test_names_of_languages_do_not_matter():
    other = [{"hi": "en", "en": "hi", "o": "o"}[tag] for tag in TAGS]
    for name in ("switch", "switches", "since", "walk"):
        assert torch.equal(placed(other).key.column(name), placed().key.column(name))


@pytest.mark.parametrize("cuts", [(3, 8), (1, 2, 6, 8), tuple(range(1, 9))])
def test_token_by_token_is_all_at_once(cuts):
    tags = [TAGS, ["o", "o", "en", "hi", "hi", "en", "o", "hi"]]
    ids = torch.tensor([[0] * 8, [0, 0, 0, 0, 1, 1, 1, 1]])
    valid = torch.ones(2, 8, dtype=torch.bool)
    valid[0, 2] = False
    want = rw.switching_positions(tags, document_ids=ids, valid=valid)[0].key
    state, start, parts = None, 0, []
    for stop in cuts:
        rows = [row[start:stop] for row in tags]
        where, state = rw.switching_positions(rows, state, document_ids=ids[:, start:stop], valid=valid[:, start:stop])
        parts.append(where.key)
        start = stop
    for name in ("position", "switch", "switches", "since", "walk"):
        got = torch.cat([part.columns[name] for part in parts], 1)
        assert torch.equal(got, want.columns[name])
    second = placed(tags[1][4:]).key  # a document alone
    assert torch.equal(want.column("walk")[1, 4:], second.column("walk")[0])
    assert want.position[1].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_rows_of_other_lengths_are_padded():
    where = rw.switching_positions([TAGS, TAGS[:3]])[0].key
    assert where.column("valid")[1].tolist() == [True] * 3 + [False] * 5
    for name in ("switch", "switches", "since", "walk"):
        assert torch.equal(where.column(name)[1, :3], where.column(name)[0, :3])


def test_pairs():
    where = bigram_positions([TAGS]).key
    assert where.column("switch")[0].tolist() == [0, 1, 0, 0, 1, 1, 0, 0]
    assert where.column("switches")[0].tolist() == [0, 1, 1, 1, 2, 3, 3, 3]
    assert where.column("since")[0].tolist() == [0, 0, 1, 2, 0, 0, 1, 2]
    assert where.column("walk")[0].tolist() == [0, -1, -2, -3, -2, -3, -4, -5]
    at_once = bigram_positions([["hi", "en", "en"]], end=False).key
    assert at_once.column("switches")[0].tolist() == [1, 1]
    assert at_once.column("walk")[0].tolist() == [0, -1]
    assert at_once.length == 2


# ---- properties of the sheet -----------------------------------------------------------------------------------------

ONE = ["hi", "o", "hi", None, "hi", "hi", "hi"]


@pytest.mark.parametrize("form", FORMS)
def test_one_language_is_rope(form):
    p = problem(positions=placed(ONE))
    a, b = rw.SwitchingRoPE(8, form)(p), rw.RoPE(8, pairing="half")(p)
    if form == "split":
        turns = torch.cat([b.q[..., :2], p.q[..., 2:4], b.q[..., 4:6], p.q[..., 6:]], -1)  # the last pairs stand still
        close(a.q, turns)
    else:
        close(a.q, b.q)
        close(a.k, b.k)


@pytest.mark.parametrize("form", FORMS)
def test_norms(form):
    p = problem(s=8, positions=placed())
    close(rw.SwitchingRoPE(8, form)(p).q.norm(dim=-1), p.q.norm(dim=-1))


def test_only_a_switch_is_turned_back():
    plain = CASE.inputs["q"], CASE.inputs["k"]
    rope = logits(rw.RoPE(8, pairing="half")(rw.Attention(*plain, plain[1], rw.Positions(torch.arange(8)))))
    switch = torch.tensor(switching_points(TAGS), dtype=torch.bool)
    neither = ~switch[:, None] & ~switch
    close(scores("token")[..., neither], rope[..., neither])
    both = scores("token")
    q, k = (t[0, 0].double() for t in plain)
    i, j = 5, 3  # a switch and another token: the angle is of their sum
    from ropewalk.core.rotation import rotate, tables

    angles = -torch.tensor(float(i + j), dtype=torch.float64) * rw.SwitchingRoPE(8).inv_freq
    turned = rotate(q[i : i + 1], *tables(angles[None], torch.float64), "half")
    close(both[0, 0, i, j], (turned @ k[j]).squeeze() / 8**0.5)


def test_places_that_are_one():
    """Tokens at one distance on both sides of a turning point share u; segments of equal content give equal logits."""
    walk = placed(["hi", "hi", "hi", "en", "en", "en"]).key.column("walk")[0]
    assert walk.tolist() == [0, 1, 2, 1, 0, -1]
    q = random(1, 1, 3, 8).repeat(1, 1, 2, 1)
    p = rw.Attention(q, q, q, placed(["hi", "hi", "hi", "en", "en", "en"]))
    s = logits(rw.SwitchingRoPE(8, "segment")(p))[0, 0]
    close(s[:3, :3], s[3:, 3:])
    close(s[:3, :3], s[3:, :3])


def test_inside_a_segment_only_distances_count():
    q = torch.ones(1, 1, 8, 8, dtype=torch.float64)
    for form in ("parity", "zigzag"):
        s = logits(rw.SwitchingRoPE(8, form)(rw.Attention(q, q, q, placed())))[0, 0]
        close(s[3, 2], s[4, 3])
        close(s[4, 2], s[2, 4])  # of equal q and k; a direction turns with the sign


def test_switches_may_be_learned():
    made = rw.SwitchingRoPE(8, "flag").double()
    p = problem(s=8, positions=placed())
    before = attend(made, p)
    close(before, attend(rw.RoPE(8, pairing="half"), p))
    with torch.no_grad():
        made.phi.add_(1.0)
    differ(attend(made, p), before)
    attend(made, p).sum().backward()
    assert bool((made.phi.grad != 0).all())


def test_absolute_positions_that_begin_anew():
    """PESTO: a learned table of places since the last switch."""
    torch.manual_seed(0)
    table = rw.LearnedAbsolute(9, 8).double()
    made = rw.Sequential(SwitchCoordinates("segment"), table)
    x = random(1, 8, 8)
    close(made.embed(x, placed()), x + table.weight[CASE.outputs["segment_position"].long()])


@pytest.mark.parametrize("form", FORMS)
def test_decoding_is_one_pass(form):
    torch.manual_seed(0)
    made = rw.SwitchingRoPE(8, form).double()
    if made.phi is not None:
        torch.nn.init.normal_(made.phi)
    p = problem(b=1, s=8, positions=placed())
    cache, state, out = rw.KVCache(made), None, []
    for a, b in ((0, 3), *((i, i + 1) for i in range(3, 8))):
        new, state = rw.switching_positions([TAGS[a:b]], state)
        part = rw.Attention(p.q[:, :, a:b], p.k[:, :, a:b], p.v[:, :, a:b], new)
        out.append(rw.attend(cache.extend(part), "dense"))
    close(torch.cat(out, 2), attend(made, p))


def test_clipped_relative_positions():
    torch.manual_seed(0)
    made = rw.ClippedRelative(8, 2).double()
    p = problem()
    i = torch.arange(7)
    vectors = made.weight[(i - i[:, None]).clamp(-2, 2) + 2]
    want = logits(p) + torch.einsum("bhid,ijd->bhij", p.q, vectors) / 8**0.5
    close(logits(made(p)), want)


# ---- models and measures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", CODES)
def test_two_streams(code):
    torch.manual_seed(0)
    texts = mixed_texts(3, 9, torch.Generator().manual_seed(0))
    assert isinstance(position_code(code, 8, 16), rw.Encoding)
    for streams in ("both", "unigram", "bigram"):
        model = TwoStreamEncoder(TEXT_TOKENS, 2, code, streams, hidden_size=16, num_layers=1, num_heads=2)
        out = model(texts.tokens, texts.tags)
        assert out.shape == (3, 2)
        alone = model(texts.tokens[:1], texts.tags[:1])
        close(out[:1], alone, 1e-5)


def test_texts_are_decided_by_their_switches():
    texts = mixed_texts(200, 12, torch.Generator().manual_seed(0))
    assert 40 < int(texts.label.sum()) < 160
    for row in range(5):
        flags = switching_points(texts.tags[row])
        score = sum(f * (1 if t % 12 >= 6 else -1) for f, t in zip(flags, texts.tokens[row].tolist(), strict=True))
        assert int(score > 0) == texts.label[row]


def test_how_mixed_a_text_is():
    found = code_mixing(TAGS)
    assert found.mixing == pytest.approx(1 - 4 / 7)
    assert found.switches == pytest.approx(3 / 7)
    assert found.languages == {"hi": 3, "en": 4}
    assert code_mixing(["o", None]) == (None, 0.0, {})
    assert code_mixing(["hi", "hi"]).mixing == 0
    assert code_mixing([]).switches is None


def test_attention_on_switches():
    weights = torch.full((1, 2, 3, 4), 0.25)
    weights[:, 1] = torch.tensor([1.0, 0, 0, 0])
    found = attention_on_switches(weights, torch.tensor([[1, 0, 0, 1]]))
    close(found.share, torch.tensor([0.5, 1.0]))
    assert found.expected == 0.5
    causal = torch.ones(4, 4).tril().softmax(-1).tril()
    even = attention_on_switches(causal[None, None] / causal.sum(-1, keepdim=True), torch.tensor([[0, 1, 0, 0]]))
    assert even.expected == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 4) / 4)
    with pytest.raises(ShapeError, match="expected"):
        attention_on_switches(weights, torch.ones(1, 3))


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_bad_input():
    with pytest.raises(NeedsColumn, match="switch"):
        rw.SwitchingRoPE(8)(problem())
    with pytest.raises(ConfigError, match="form is one of"):
        rw.SwitchingRoPE(8, "zig")
    with pytest.raises(ConfigError, match="form is one of"):
        SwitchCoordinates("split")
    with pytest.raises(PositionError, match="a list of tags for each row"):
        rw.switching_positions(["hi", "en"])
    with pytest.raises(PositionError, match="the state is of 1 rows"):
        rw.switching_positions([TAGS, TAGS], rw.switching_positions([TAGS])[1])
    with pytest.raises(PositionError, match="of one length"):
        bigram_positions([TAGS, TAGS[:2]])
    with pytest.raises(PositionError, match="document_ids has shape"):
        rw.switching_positions([TAGS], document_ids=torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(ShapeError, match="made for head_dim 8"):
        rw.ClippedRelative(8)(problem(d=16))
    with pytest.raises(ConfigError, match="code is one of"):
        position_code("ropes", 8, 16)
