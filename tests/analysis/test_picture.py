"""What an encoding does to attention, drawn."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest
import torch

import ropewalk as rw
from ropewalk.analysis.attention_map import CONTENT, AttentionMap, attention_map
from ropewalk.analysis.picture import FINE, PLAIN, draw_text, ink_for, save_picture
from ropewalk.cli import main
from ropewalk.core.attention import Parts

drawable = pytest.mark.skipif(find_spec("matplotlib") is None, reason="pictures need matplotlib")


def told(what, width=80, ink=FINE):
    return "\n".join(line.plain for line in draw_text(what, width, ink))


# ---- the map ---------------------------------------------------------------------------------------------------------


WHOLE_BLOCKS = ("concentric_attention", "modality_rope", "pype")  # tokens of an image see later ones of it


@pytest.mark.parametrize("length", [48, 5])
@pytest.mark.parametrize("entry", rw.catalog(), ids=lambda entry: entry.slug)
def test_every_encoding_has_a_map(entry, length):
    what = attention_map(entry, length, draws=8)
    assert what.name == entry.name
    assert what.weights.shape == what.logits.shape == (what.count, length, length)
    assert what.weights.isfinite().all()
    assert what.causal == (entry.traits.causal != "never")
    if entry.slug in WHOLE_BLOCKS:
        assert what.weights.triu(1).any()
    elif what.causal:
        assert not what.weights.triu(1).any()
        assert what.logits.triu(1).isnan().eq(torch.ones(length, length).triu(1).bool()).all()
    for ink in (FINE, PLAIN):
        lines = told(what, ink=ink).splitlines()
        assert max(map(len, lines)) <= 80
        assert len(lines) <= 18 or not what.sequence
        assert any(character in "\n".join(lines) for character in ink.shades)
    told(what, ink=PLAIN).encode("ascii")


def test_maps_are_the_same_in_every_run():
    state = torch.get_rng_state()
    first, second = (attention_map("fox", 20) for _ in range(2))
    assert torch.equal(first.weights, second.weights)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first.weights, attention_map("fox", 20, seed=1).weights)


def test_nope_attends_to_all_alike():
    what = attention_map("nope", 11)
    torch.testing.assert_close(what.weights[0], torch.ones(11, 11).double().tril() / torch.arange(1, 12)[:, None])
    assert what.by_distance().abs().max() < 1e-12
    torch.testing.assert_close(what.profile(), torch.full((4, 11), 1 / 11).double())
    assert what.alike
    assert "attends to all keys alike" in told(what)


def test_alibi_is_a_line_a_head():
    what = attention_map("alibi", 30)
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8], dtype=torch.float64)[:, None]
    torch.testing.assert_close(what.by_distance(), -slopes * torch.arange(30))
    torch.testing.assert_close(what.profile(), (-slopes * torch.arange(30)).softmax(-1))
    assert not what.alike
    assert "head 3" in told(what)


def test_rope_is_its_mean_of_cosines():
    what = attention_map("rope", 24, draws=600)
    turned = (rw.geometric(64).tensor() * torch.arange(24)[:, None]).cos().mean(-1)
    torch.testing.assert_close(what.by_distance()[0], CONTENT * (turned - 1), rtol=0, atol=0.15)
    assert what.each == "head"
    assert what.alike


def test_t5_is_its_table():
    t5 = rw.T5(4)
    t5.weight.data.normal_()
    what = attention_map(t5, 40)
    table = t5.weight.double().t()[:, t5.bucket(torch.arange(40).double()).long()]
    torch.testing.assert_close(what.by_distance(), (table - table[:, :1]).detach(), rtol=0, atol=1e-9)
    assert t5.weight.dtype == torch.float32  # what was given is left as it was


def test_embeddings_are_seen_through_a_projection():
    what = attention_map("sinusoidal", 40, draws=400, hidden_size=64)
    p = rw.Sinusoidal(64).table(torch.arange(40).double())
    gram = p @ p.t()
    want = CONTENT * (gram / gram.diagonal().mean() - 1)
    near = what.logits[0][torch.ones(40, 40).tril().bool()] - want[torch.ones(40, 40).tril().bool()]
    assert near.abs().mean() < 0.5
    assert attention_map(rw.NoPE(), 40).alike


def test_what_each_query_decides_is_shown_by_content():
    for slug, each in {"rope": "head", "alibi": "head", "t5": "head", "fox": "head", "wavelet_pe": "content"}.items():
        assert attention_map(slug).each == each
    what = attention_map("wavelet_pe")
    assert not what.alike
    assert "content 3" in told(what)
    assert "of its own" in told(what)
    assert attention_map("wavelet_pe", each="head").each == "head"


def test_learned_numbers_that_start_at_nothing_are_drawn():
    assert attention_map("contextual_cope").drawn
    assert "drawn at random" in told(attention_map("contextual_cope"))
    assert not attention_map("alibi").drawn


def test_pairs_that_are_never_seen():
    class Near(rw.Encoding):
        def rewrite(self, problem):
            return problem.replace(window=5)

    what = attention_map(Near(), 20)
    curve = what.by_distance()[0]
    assert curve[:5].abs().max() < 1e-12
    assert curve[5:].isnan().all()
    assert told(what).count("█") > 0


def test_a_mixture_of_softmaxes():
    class Mixture(rw.Encoding):
        def rewrite(self, problem):
            steep = rw.ALiBi(slopes=[1.0] * 4)(problem)
            return Parts((problem, steep), lambda outs: (outs[0] + outs[1]) / 2, problem.scope)

    what = attention_map(Mixture(), 9)
    alone = [attention_map(e, 9).weights for e in (rw.NoPE(), rw.ALiBi(slopes=[1.0] * 4))]
    torch.testing.assert_close(what.weights, sum(alone) / 2)


def test_both_directions():
    what = attention_map(rw.ALiBi(4, bidirectional=True), 10, causal=False)
    assert what.distances.tolist() == list(range(-9, 10))
    torch.testing.assert_close(what.by_distance()[0], -0.25 * torch.arange(-9, 10).abs().double())
    assert int(what.profile()[0].isfinite().sum()) == 10
    assert " -9" in told(what)


def test_longer_than_the_learned_table():
    assert attention_map("learned", 600, draws=1).length == 600


def test_other_sizes():
    what = attention_map("rope", 7, head_dim=8, num_heads=2, hidden_size=12, draws=1)
    assert what.weights.shape == (2, 7, 7)
    assert attention_map("rope", 1).by_distance().tolist() == [[0.0]] * 4
    assert told(attention_map("rope", 1))
    for bad in ({"length": 0}, {"draws": 0}, {"head_dim": 0}):
        with pytest.raises(rw.ConfigError, match="at least 1"):
            attention_map("rope", **bad)
    with pytest.raises(rw.UnknownNameError):
        attention_map("ropee")


# ---- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ink", [FINE, PLAIN])
@pytest.mark.parametrize("width", [10, 24, 40, 60, 78, 80, 200])
def test_any_width_will_do(width, ink):
    for slug in ("rope", "alibi", "gta"):
        assert max(map(len, told(attention_map(slug, 48, draws=1), width, ink).splitlines())) <= max(24, min(width, 80))


def test_the_curve_falls_where_the_logit_does():
    curve = torch.where(torch.arange(48) < 24, 0.0, -8.0).double()
    distance = torch.arange(48)[:, None] - torch.arange(48)
    logits = torch.where(distance >= 0, curve[distance.clamp(min=0)], torch.nan)[None]
    what = AttentionMap("step", (logits.exp().nan_to_num(0.0)), logits, "head", True, True, False)
    lines = told(what, ink=PLAIN).splitlines()[1:12]
    chart = [line[27:] for line in lines]
    assert chart[0].split()[0] == "0.00"
    assert chart[-1].split()[0] == "-8.00"
    assert chart[0].rstrip().endswith("0")
    top, bottom = (len(chart[i].replace("0.00", "").replace("-8", "")) for i in (0, -1))
    assert top < bottom  # high at near distances, low at far ones
    assert [line[:24].rstrip() for line in lines[:2]] == ["@@", "@@@@"]
    assert lines[10].startswith("........@")  # queries 40 ... 43: keys up to 15 are 24 and more away from all of them


def test_ink_follows_the_stream():
    assert ink_for("utf-8") is FINE
    assert ink_for("ascii") is ink_for("latin-1") is ink_for(None) is ink_for("no such") is PLAIN


# ---- pictures --------------------------------------------------------------------------------------------------------


@drawable
@pytest.mark.parametrize("slug", ["rope", "alibi", "wavelet_pe", "gta", "nope"])
def test_pictures(slug, tmp_path):
    path = tmp_path / f"{slug}.png"
    save_picture(attention_map(slug, 16, draws=4), path, dpi=40)
    assert path.read_bytes().startswith(b"\x89PNG")


@drawable
def test_pictures_that_cannot_be(tmp_path):
    what = attention_map("rope", 8, draws=1)
    with pytest.raises(rw.ConfigError, match="does not exist"):
        save_picture(what, tmp_path / "nowhere" / "a.png")
    for name in ("a.xyz", "a"):
        with pytest.raises(rw.ConfigError, match=r"use \.png"):
            save_picture(what, tmp_path / name)


def test_pictures_need_matplotlib(monkeypatch, tmp_path):
    for name in [n for n in sys.modules if n.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(rw.ConfigError, match="pip install matplotlib"):
        save_picture(attention_map("rope", 8, draws=1), tmp_path / "a.png")


# ---- the command -----------------------------------------------------------------------------------------------------


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return (stop.value.code or 0, *capsys.readouterr())


def test_show_draws(capsys):
    status, out, err = run(capsys, "show", "alibi")
    assert (status, err) == (0, "")
    assert "attention, head 0" in out.split("\nAttention\n")[1]
    assert "attention, head 0" not in run(capsys, "show", "alibi", "--no-map")[1]
    assert "200 tokens" in run(capsys, "show", "alibi", "--length", "200")[1]
    assert "(no attention map: length is a whole number" in run(capsys, "show", "alibi", "--length", "0")[1]


@drawable
def test_show_saves(capsys, tmp_path):
    path = tmp_path / "rope.png"
    status, out, err = run(capsys, "show", "rope", "--no-map", "--png", str(path))
    assert (status, err) == (0, "")
    assert out.endswith(f"saved {path}\n")
    assert path.stat().st_size > 10_000
    status, out, err = run(capsys, "show", "rope", "--png", str(tmp_path / "a" / "b.png"))
    assert status == 2
    assert "does not exist" in err
    status, out, err = run(capsys, "show", "rope", "--json", "--png", str(path))
    assert (status, out) == (2, "")
