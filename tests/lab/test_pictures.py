"""Questions about pictures, pictures to edit, tiles and clips: what is asked, where its tokens are."""

import math

import pytest
import torch

from ropewalk.core.errors import ConfigError
from ropewalk.lab.batch import IGNORE
from ropewalk.lab.model import Decoder, ModelConfig
from ropewalk.lab.tasks import task
from ropewalk.lab.tasks.examples import ASK
from ropewalk.rotary.modality_rope import ModalityIds
from ropewalk.rotary.mrope import MRoPEIds
from ropewalk.rotary.rope_dhr import ThumbnailIds


@pytest.mark.parametrize("question", ["place", "below", "presence"])
@pytest.mark.parametrize("words", [0, 5])
@pytest.mark.parametrize("size", [2, 3, 6, 9])
def test_every_answer_is_the_one_worked_out_from_the_prompt(question, words, size):
    made = task("picture_question", question=question, words=words)
    batch = made.eval_batch(size, 64, seed=0)
    assert batch.tokens.shape[1] == made.length(size)
    answers = [made.solve(tokens.tolist()) for tokens in batch.tokens]
    assert batch.targets[:, -1:].tolist() == answers
    assert (batch.targets[:, :-1] == IGNORE).all()
    assert len({one for (one,) in answers}) > 1


def test_whether_a_colour_is_there_is_even_and_it_may_be_anywhere():
    made = task("picture_question", question="presence")
    batch = made.eval_batch(3, 600, seed=0)
    there = batch.targets[:, -1] == 3
    assert 0.4 < there.double().mean() < 0.6
    cells = batch.tokens[:, 1:13] == batch.tokens[:, -1:]
    assert torch.equal(cells.sum(1), there.long()) and (cells.sum(0) > 10).all()


def test_objects_are_squares_of_up_to_so_many_cells():
    made = task("picture_question", question="presence", largest_object=3)
    batch = made.eval_batch(5, 400, seed=0)
    shown = (batch.tokens[:, 1:31] == batch.tokens[:, -1:]).view(400, 5, 6)
    found = set()
    for picture, target in zip(shown, batch.targets[:, -1].tolist(), strict=True):
        if target == 3:
            row, column = picture.nonzero()[0].tolist()
            side = math.isqrt(int(picture.sum()))
            assert picture[row : row + side, column : column + side].sum() == side**2 == picture.sum()
            found.add((side, row, column))
        else:
            assert not picture.any()
    assert {side for side, *_ in found} == {1, 2, 3} and (3, 2, 3) in found and (1, 4, 5) in found
    assert 0.4 < (batch.targets[:, -1] == 3).double().mean() < 0.6
    small = made.eval_batch(2, 64, seed=0)  # what is larger than the picture is not drawn
    assert {math.isqrt(n) for n in (small.tokens[:, 1:7] == small.tokens[:, -1:]).sum(1).tolist()} == {0, 1, 2}


@pytest.mark.parametrize(("row", "column", "side"), [(0, 0, 1), (3, 4, 1), (1, 2, 3)])
def test_an_object_is_put_where_it_is_wanted(row, column, side):
    made = task("picture_question", question="presence", largest_object=3).with_object(row, column, side)
    batch = made.eval_batch(4, 32, seed=0)
    shown = (batch.tokens[:, 1:21] == batch.tokens[:, -1:]).view(32, 4, 5)
    want = torch.zeros(4, 5, dtype=torch.bool)
    want[row : row + side, column : column + side] = True
    assert torch.equal(shown, want.expand(32, 4, 5))
    assert batch.targets[:, -1:].tolist() == [made.solve(tokens.tolist()) for tokens in batch.tokens]
    for wrong in ((4, 0, 1), (0, 5, 1), (2, 0, 3), (0, 3, 3)):
        with pytest.raises(ConfigError, match=r"rows from [56]"):
            made.with_object(*wrong).eval_batch(4, 4, seed=0)


def test_cells_lie_on_a_grid_and_words_after_it():
    made = task("picture_question", words=3)
    batch = made.train_batch(0, 16, seed=0, max_size=5)
    at = MRoPEIds().coordinates(batch.where().query)
    for row, tokens in enumerate(batch.tokens):
        asked = int((tokens == ASK).nonzero()[0])
        n = next(n for n in range(2, 6) if n * (n + 1) == asked - 4)
        assert at[row, 1 : 1 + n * (n + 1)].tolist() == [[1, 1 + r, 1 + c] for r in range(n) for c in range(n + 1)]
        assert at[row, asked].tolist() == [1 + n + 1 + 3] * 3


def test_a_picture_to_edit_is_read_with_blanks_and_answered_in_place():
    made = task("picture_edit")
    batch = made.train_batch(0, 32, seed=0, max_size=4)
    at = ModalityIds().coordinates(batch.where().query)
    for row, (tokens, targets) in enumerate(zip(batch.tokens, batch.targets, strict=True)):
        asked = int((tokens == ASK).nonzero()[0])
        source, (old, new) = tokens[2 : asked - 1], tokens[asked + 1 : asked + 3]
        noise = slice(asked + 4, asked + 4 + len(source))
        assert (tokens[noise] == made.blank).all() and tokens[noise.stop] == made.close
        assert torch.equal(targets[noise], torch.where(source == old, new, source))
        assert int((targets != IGNORE).sum()) == len(source)
        assert torch.equal(
            at[row, noise], at[row, 2 : asked - 1]
        )  # as published: a target stands where its source does


def test_a_model_that_reads_pictures_to_edit_does_not_see_the_answer():
    made = task("picture_edit")
    batch = made.eval_batch(3, 4, seed=0)
    solved = made.solve([0, made.open, *batch.tokens[0, 2:14].tolist(), made.close, *batch.tokens[0, 15:18].tolist()])
    assert solved[:-2] == batch.targets[0][batch.targets[0] != IGNORE].tolist()
    model = Decoder(ModelConfig(made.vocab_size, ("modality_rope",), hidden_size=32, num_layers=1, num_heads=2))
    assert torch.isfinite(model(batch.tokens, batch.where())).all()


@pytest.mark.parametrize("size", [1, 7, 40])
def test_the_needle_is_in_one_tile_and_the_thumbnail_shows_every_second_cell(size):
    made = task("tiles_needle", rows=4, columns=2)
    batch = made.eval_batch(size, 64, seed=0)
    assert batch.tokens.shape[1] == made.length(size)
    assert batch.targets[:, -1:].tolist() == [made.solve(tokens.tolist()) for tokens in batch.tokens]
    tiles, thumbnail = batch.tokens[:, 1:33].view(64, 2, 2, 4, 2), batch.tokens[:, 33:41].view(64, 4, 2)
    whole = tiles.permute(0, 1, 3, 2, 4).reshape(64, 8, 4)
    colours = whole[:, ::2, ::2] < made.value
    assert (thumbnail < made.value).all() and torch.equal(thumbnail[colours], whole[:, ::2, ::2][colours])
    counted = ThumbnailIds().coordinates(batch.where().query)[:, -1]
    assert (counted == 8 + size + 2).all()  # an image takes as many positions as its thumbnail


@pytest.mark.parametrize("size", [1, 7])
def test_without_a_distractor_there_is_one_key_with_one_value(size):
    made = task("tiles_needle", rows=4, columns=2, distractor=False)
    batch = made.eval_batch(size, 64, seed=0)
    shown = batch.tokens[:, 1:33].view(64, 4, 4, 2)
    keys = (shown >= made.key) & (shown < made.word)
    values = (shown >= made.value) & (shown < made.key)
    assert (keys.flatten(1).sum(1) == 1).all() and (values.flatten(1).sum(1) == 1).all()
    assert torch.equal(keys[:, :, :-1], values[:, :, 1:])  # the value stands below, in the same tile
    assert torch.equal(shown[keys], batch.tokens[:, -1]) and torch.equal(shown[values], batch.targets[:, -1])
    assert keys.any(3).any(2).any(0).all()  # every tile has it in some picture
    assert batch.targets[:, -1:].tolist() == [made.solve(tokens.tolist()) for tokens in batch.tokens]


@pytest.mark.parametrize("size", [2, 3, 9])
def test_a_cell_walks_round_the_edges(size):
    made = task("motion", rows=3, columns=5)
    batch = made.eval_batch(size, 200, seed=0)
    assert batch.targets[:, -1:].tolist() == [made.solve(tokens.tolist()) for tokens in batch.tokens]
    assert len(set(batch.targets[:, -1].tolist())) == 4
    assert (batch.tokens == made.symbols.index("#")).sum() == 200 * size
    assert batch.positions[0, [0, 1, 5, 6, 16, -1]].tolist() == [
        [0, 0, 0], [1, 1, 1], [1, 1, 5], [1, 2, 1], [2, 1, 1], [0, 0, 0],
    ]  # fmt: skip


@pytest.mark.parametrize("size", [2, 3, 6])
def test_what_follows_at_the_place_of_the_marked_cell(size):
    made = task("motion", rows=2, columns=3, question="next")
    batch = made.eval_batch(size, 200, seed=0)
    clips = batch.tokens[:, 1:-1].view(200, size, 6)
    row, frame, cell = (clips == made.symbols.index("#")).nonzero().T
    assert torch.equal(row, torch.arange(200))  # one mark a clip
    assert (frame < size - 1).all() and set(frame.tolist()) == set(range(size - 1))
    assert set(cell.tolist()) == set(range(6))
    assert torch.equal(clips[row, frame + 1, cell], batch.targets[:, -1])
    assert batch.targets[:, -1:].tolist() == [made.solve(tokens.tolist()) for tokens in batch.tokens]
    assert len(set(batch.targets[:, -1].tolist())) == made.colours


@pytest.mark.parametrize(
    ("name", "options", "size", "message"),
    [
        ("picture_question", {"question": "bellow"}, 2, "did you mean 'below'"),
        ("picture_question", {"words": -1}, 2, "from 0 on"),
        ("picture_question", {"colours": 1}, 2, "from 2"),
        ("picture_question", {"largest_object": 2}, 2, "by 'presence'; the question is 'place'"),
        ("picture_question", {"question": "presence", "largest_object": 0}, 2, "largest_object"),
        ("picture_question", {}, 10, "rows from 2 to 9"),
        ("picture_edit", {}, 1, "rows from 2"),
        ("tiles_needle", {"rows": 3}, 2, "even numbers; got 3 x 2"),
        ("tiles_needle", {"distractor": 0}, 2, "True or False; got 0"),
        ("motion", {"rows": 0}, 2, "rows"),
        ("motion", {"question": "nxt"}, 2, "did you mean 'next'"),
        ("motion", {"question": "next"}, 1, "frames from 2"),
    ],
)
def test_options_that_cannot_be(name, options, size, message):
    with pytest.raises(ConfigError, match=f"(?i){message}"):
        task(name, **options).eval_batch(size, 4, seed=0)
