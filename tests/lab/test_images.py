"""Pictures at several resolutions: what they show, where their cells are, and who can read them."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import torch

from ropewalk.core.errors import ConfigError
from ropewalk.lab.model import Decoder, ModelConfig
from ropewalk.lab.settings import Settings
from ropewalk.lab.tasks import pictures as pictures_module
from ropewalk.lab.tasks import task
from ropewalk.lab.tasks.examples import ASK
from ropewalk.lab.tasks.pictures import Shapes, quantised
from ropewalk.lab.workloads import Seen, make_workload, resolved, seen_by

SIZES = (6, 7, 8, 12, 16)


@pytest.fixture
def digits(monkeypatch):
    """Stands in for scikit-learn: 160 pictures of 8 × 8, each a pattern of its label with noise."""
    g = np.random.default_rng(0)
    target = np.arange(160) % 10
    images = np.clip(16 * (g.random((10, 8, 8)) > 0.6)[target] + g.integers(-3, 4, (160, 8, 8)), 0, 16).astype(float)
    module = types.ModuleType("sklearn.datasets")
    module.load_digits = lambda: types.SimpleNamespace(images=images, target=target)
    monkeypatch.setitem(sys.modules, "sklearn", types.ModuleType("sklearn"))
    monkeypatch.setitem(sys.modules, "sklearn.datasets", module)
    pictures_module._digits.cache_clear()
    yield images, target
    pictures_module._digits.cache_clear()


def right(made, size, count):
    batch = made.eval_batch(size, count, seed=0)
    assert batch.tokens.shape[1] == made.length(size)
    answers = [made.solve(tokens) for tokens in batch.tokens.tolist()]
    assert batch.targets[:, -1:].tolist() == answers
    return batch


# ---- pictures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("levels", [2, 5])
def test_every_shape_can_be_told_from_its_cells(size, levels):
    batch = right(task("images", levels=levels), size, 300)
    assert (batch.targets[:, -1].bincount()[2:] > 30).all()  # all kinds


def test_a_larger_picture_is_the_same_scene():
    """Cells of a coarse picture are as bright as the finer ones that they cover, but for soft edges one cell wide."""
    shapes = Shapes()
    scenes = shapes.scenes(torch.Generator().manual_seed(0), 200, test=False)
    coarse = shapes.render(scenes, 24)
    fine = shapes.render(scenes, 96).unflatten(1, (24, 4)).unflatten(3, (24, 4)).mean((2, 4))
    assert (coarse - fine).abs().max() < 0.5 and (coarse - fine).abs().mean() < 0.02
    area = torch.stack([shapes.render(scenes, n).mean((1, 2)) for n in (64, 256)])
    assert (area[0] - area[1]).abs().max() < 2e-3
    assert (shapes.render(scenes, 256).amax((1, 2)) == 1).all()


def test_bars_are_alike_but_for_how_they_are_turned():
    shapes = Shapes()
    scene = torch.tensor([[0, 0.5, 0.5, 0.35, 0.09]], dtype=torch.float64)
    row, column, falling, rising = (
        shapes.render(torch.cat([torch.tensor([[float(kind)]]), scene[:, 1:]], 1).double(), 33)[0] for kind in range(4)
    )
    torch.testing.assert_close(column, row.mT)
    torch.testing.assert_close(rising, falling.flip(1))
    torch.testing.assert_close(falling, falling.mT)
    assert falling[10, 10] == 1 and falling[10, 22] == 0 and row[16, 8] == 1 and row[8, 16] == 0


def test_shapes_lie_whole_within_the_picture_and_anywhere_in_it():
    shapes = Shapes()
    scenes = shapes.scenes(torch.Generator().manual_seed(1), 500, test=False)
    pictures = shapes.render(scenes, 200)
    long, thick = scenes[:, 3:].unbind(1)
    area = torch.where(shapes.labels(scenes) == 4, 4 * torch.pi * (long - thick) * thick, 4 * long * thick)
    torch.testing.assert_close(pictures.mean((1, 2)), area, rtol=5e-3, atol=0)  # what is cut off would be missing
    assert (pictures.amax(0) > 0.9).double().mean() > 0.95


@pytest.mark.parametrize("size", SIZES)
def test_digits_are_looked_up(size, digits):
    right(task("images", data="digits"), size, 40)


def test_digits_of_scoring_are_not_those_of_training(digits):
    images, _ = digits
    made = task("images", data="digits").pictures
    g = torch.Generator().manual_seed(0)
    trained, scored = (set(made.scenes(g, 2000, test=test)[:, 0].long().tolist()) for test in (False, True))
    assert not trained & scored and trained | scored == set(range(len(images)))
    assert len(scored) == len(images) / 8
    assert torch.equal(made.render(torch.tensor([[3.0]]), 8)[0], torch.tensor(images[3] / 16))


def test_real_digits():
    pytest.importorskip("sklearn")
    pictures_module._digits.cache_clear()
    made = task("images", data="digits")
    assert len(made.pictures.targets) == 1797
    right(made, 6, 60)


def test_without_scikit_learn_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    pictures_module._digits.cache_clear()
    with pytest.raises(ConfigError, match=r"package scikit-learn.*pip install 'ropewalk\[digits\]'"):
        task("images", data="digits")


# ---- tokens ----------------------------------------------------------------------------------------------------------


def test_colours_mean_nothing():
    made = task("images", colours=3)
    batch = made.eval_batch(8, 200, seed=0)
    cells = batch.tokens[:, 1:-1] - made.cell
    assert cells.min() == 0 and cells.max() == 5
    for level in (0, 1):
        counts = cells[cells // 3 == level].bincount()[3 * level :]
        assert counts.min() > 0.9 * counts.double().mean()
    scenes = made.pictures.scenes(torch.Generator().manual_seed(0), 5, test=True)
    assert set(quantised(made.pictures.render(scenes, 8), 2).unique().tolist()) == {0, 1}


def test_cells_are_placed_by_row_and_column_whatever_the_padding():
    made = task("images")
    batch = made.train_batch(0, 16, seed=0, max_size=8, bidirectional=True)
    sides = set()
    for tokens, places in zip(batch.tokens.tolist(), batch.positions.tolist(), strict=True):
        side = round((tokens.index(ASK) - 1) ** 0.5)
        sides.add(side)
        cells = [[row + 1, column + 1] for row in range(side) for column in range(side)]
        assert places == [[0, 0], *cells, *[[0, 0]] * (len(tokens) - 1 - side * side)]
    assert sides == {6, 7, 8}


def test_larger_pictures_can_be_drawn_together_to_the_trained_size():
    plain, drawn = task("images"), task("images", trained=8)
    for size, factor in ((6, 1), (8, 1), (12, 8 / 12), (16, 0.5)):
        at, to = (made.eval_batch(size, 3, seed=0).positions.double() for made in (plain, drawn))
        torch.testing.assert_close(to, at * factor)
        assert to.max() <= 8
    assert torch.equal(plain.eval_batch(16, 3, seed=0).tokens, drawn.eval_batch(16, 3, seed=0).tokens)


def workload(name="images"):
    return make_workload(resolved(Settings(encodings=("nope",), task=name, encoder=True, windows=8)), None)


def test_encodings_see_the_places_of_their_domain():
    made = workload()
    assert set(made.domains) == {"sequence", "grid", "layout"}
    assert seen_by(made, ["axial_rope(axes=2)"]) is made
    blocks, counted = seen_by(made, ["position_interpolated_rope"]), seen_by(made, ["rope"])
    assert isinstance(blocks, Seen) and blocks.domain == "layout"
    assert isinstance(counted, Seen) and counted.domain == "sequence"
    tokens = made.batch(0, 8, 0).tokens
    assert torch.equal(blocks.batch(0, 8, 0).tokens, tokens)
    assert torch.equal(counted.batch(0, 8, 0).tokens, tokens)
    assert counted.batch(0, 8, 0).positions is None
    assert "block" in blocks.batch(0, 8, 0).where().query.columns


def test_blocks_say_how_large_the_picture_is():
    from ropewalk.rotary.position_interpolated_rope import FittedGrid

    made = task("images")
    for size, factor in ((8, 1.0), (16, 0.5)):
        batch = made.in_blocks(made.eval_batch(size, 2, seed=0, bidirectional=True))
        at = FittedGrid((8, 8)).coordinates(batch.where().query)
        cells = torch.tensor([[r, c] for r in range(size) for c in range(size)], dtype=torch.float64)
        torch.testing.assert_close(at[0, 1 : 1 + size * size], factor * cells)
        assert (at[0, -1] == 0).all() and (at[0, 0] == 0).all()


@pytest.mark.parametrize(
    "encoding",
    [
        "axial_rope(axes=2)",
        "mixed_rope",
        "gridpe",
        "pape(axes=2)",
        "position_interpolated_rope",
        "mrope",
        "sinusoidal",
        "rope",
    ],
)
def test_models_read_them_at_any_size(encoding):
    seen = seen_by(workload(), [encoding])
    config = ModelConfig(seen.vocab_size, (encoding,), 64, num_layers=1, num_heads=2, causal=False, max_length=300)
    model = Decoder(config)
    assert torch.isfinite(model(*read(seen.batch(0, 4, 0)))).all()
    measured = [measure.run(lambda batch: model(*read(batch)).detach()) for measure in seen.measures()]
    assert [record["size"] for (record,) in measured] == [6, 8, 12, 16]
    assert [record["trained"] for (record,) in measured] == [True, True, False, False]


def read(batch):
    return batch.tokens, batch.where()


@pytest.mark.parametrize(
    ("options", "size", "message"),
    [
        ({"data": "digit"}, 8, "did you mean 'digits'"),
        ({"levels": 1}, 8, "2 grey levels or more"),
        ({"colours": 27}, 8, "1 to 26 colours"),
        ({"colours": 0}, 8, "colours"),
        ({"trained": 0}, 8, "trained"),
        ({}, 5, "cells a side from 6"),
    ],
)
def test_options_that_cannot_be(options, size, message):
    with pytest.raises(ConfigError, match=f"(?i){message}"):
        task("images", **options).eval_batch(size, 4, seed=0)
