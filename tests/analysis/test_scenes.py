"""Small examples with names, drawn."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

import ropewalk as rw
from ropewalk.analysis.picture import FINE, PLAIN
from ropewalk.analysis.scene_picture import ASKS, draw_scene, save_scenes, scene_pictures
from ropewalk.analysis.scenes import SCENES, scenes
from ropewalk.cli import main

drawable = pytest.mark.skipif(find_spec("matplotlib") is None, reason="pictures need matplotlib")
SHOWN = [entry for entry in rw.catalog() if scenes(entry)]
DOMAINS = (
    *(
        "references",
        "conditions",
        "events",
        "depth",
        "mixed_resolution",
        "panorama",
        "denoising",
        "shared_grid",
        "grid",
    ),
    *("headings", "turns", "spectra", "formulas", "hierarchy", "coupling", "switching", "code"),
)


def told(picture, width=78, ink=FINE):
    return [line.plain for line in draw_scene(picture, width, ink)]


def one(slug):
    return scene_pictures(rw.record(slug))[0]


def weight(picture, query, key):
    """Weight over the largest of the row, by names."""
    return float(picture.weights[picture.scene.queries.index(query), picture.keys.index(key)])


def test_every_example_is_of_something():
    assert {entry.slug for entry in SHOWN} >= {entry.slug for entry in rw.catalog() if entry.traits.domain in DOMAINS}
    assert {entry.slug for entry in SHOWN} >= {"larope", "position_interpolated_rope"}
    used = {entry.slug for entry in SHOWN} | {entry.traits.domain for entry in SHOWN}
    assert used >= set(SCENES)
    assert scenes(rw.record("rope")) == ()


@pytest.mark.parametrize("make", SCENES.values(), ids=SCENES)
def test_everything_said_of_tokens_is_said_of_each(make):
    for scene in make():
        asked, seen = scene.positions.query.length, scene.positions.key.length
        assert len(scene.queries) == asked <= 26
        assert len(scene.keys or scene.queries) == seen <= 26
        assert all(len(values) == asked for values in scene.facts.values())
        assert all(len(values) == seen for values in scene.key_facts.values())
        assert len(scene.plane) in (0, seen)
        assert bool(scene.plane) == bool(scene.looks)
        drawn = [(r + i, c + j) for r, c, side in scene.plane for i in range(side) for j in range(side)]
        assert len(drawn) == len(set(drawn))  # no token is drawn on top of another
        assert all(min(cell) >= 0 for cell in drawn)


@pytest.mark.parametrize("entry", SHOWN, ids=lambda entry: entry.slug)
def test_every_example_is_drawn(entry):
    for picture in scene_pictures(entry, head_dim=32):
        assert picture.attention.weights.isfinite().all()
        torch.testing.assert_close(
            picture.attention.weights.sum(-1), torch.ones(()).double().expand(4, len(picture.scene.queries))
        )
        for width in (78, 40):
            lines = told(picture, width)
            assert max(map(len, lines)) <= 78
            text = "\n".join(lines)
            assert all(name in text for name in (*picture.scene.queries, *picture.keys, *picture.scene.facts))
            assert text.count("seen by") == len(picture.scene.looks)
            assert (ASKS in text) == (bool(picture.scene.looks) and picture.own)
        assert not set("".join(told(picture, ink=PLAIN))) & set(FINE.shades)


def test_the_last_column_of_a_panorama_is_beside_the_first():
    picture = one("spherope")
    assert weight(picture, "1,0", "1,7") > 0.9 > weight(picture, "1,0", "1,4")
    assert weight(picture, "0,0", "0,4") == pytest.approx(1)  # a pole is a point
    flat = one("axial_rope")
    assert weight(flat, "1,0", "1,5") < weight(flat, "1,0", "1,1")


def test_an_object_that_is_moved_is_seen_where_it_goes():
    picture = one("depth_rope")
    assert weight(picture, "new ball", "old ball") == pytest.approx(1)
    assert weight(picture, "new 1,0", "old ball") < weight(picture, "new 1,0", "old 1,1") < 0.999


def test_what_looks_the_same_way_is_seen():
    picture = one("drope_directional")
    assert weight(picture, "bus ←", "car ←") > 0.3 > weight(picture, "bus ←", "truck →")


def test_digits_of_equal_significance_are_seen():
    row = one("position_coupling").weights[9]  # the first digit of the answer
    assert one("position_coupling").scene.facts["position"][9] == 2
    assert set((row > 0.9).nonzero()[:, 0].tolist()) == {3, 7, 9}  # the units of both numbers


def test_height_and_width_count_less_in_the_first_steps():
    early, late = scene_pictures(rw.record("spatial_rope_scale"))
    assert weight(early, "f0 0,0", "f0 2,3") > weight(late, "f0 0,0", "f0 2,3")


def test_coarse_tokens_see_no_fine_ones_between_their_points():
    picture = one("pma")
    assert weight(picture, "coarse 0,0", "fine 0,2") > 0
    assert weight(picture, "coarse 0,0", "fine 0.5,2") == 0
    text = "\n".join(told(picture))
    assert "seen by 4 coarse 1,1" in text


def test_speech_is_beside_the_words_that_it_says():
    picture = one("larope")
    best = picture.weights.argmax(-1)
    assert (best.diff() >= 0).all()
    assert best[0] == 0
    assert best[-1] == 5


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return (stop.value.code or 0, *capsys.readouterr())


def test_show_draws_examples(capsys):
    status, out, err = run(capsys, "show", "switching_rope")
    assert (status, err) == (0, "")
    assert "a text of Hindi and English" in out.split("\nExample\n")[1]
    both = run(capsys, "show", "r_rope")[1]
    assert both.index("\nCoordinates\n") < both.index("\nExample\n")
    assert "20 tokens of equal content" in run(capsys, "show", "switching_rope", "--length", "20")[1]
    assert "Example" not in run(capsys, "show", "switching_rope", "--no-map")[1]


@drawable
@pytest.mark.parametrize("slug", ["spatial_rope_scale", "larope", "spherope", "position_forest"])
def test_show_saves_examples(capsys, tmp_path, slug):
    path = tmp_path / "it.png"
    status, out, err = run(capsys, "show", slug, "--no-map", "--png", str(path))
    assert (status, err) == (0, "")
    assert out.count("saved") == 1
    assert path.stat().st_size > 10_000


@drawable
def test_pictures_that_cannot_be(tmp_path):
    with pytest.raises(rw.ConfigError, match="does not exist"):
        save_scenes([one("larope")], tmp_path / "nowhere" / "a.png")
