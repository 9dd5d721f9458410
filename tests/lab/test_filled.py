"""Sequences with blanks: what is drawn follows from what is shown, encodings see the places that they are about."""

from __future__ import annotations

import pytest
import torch

import ropewalk as rw
from ropewalk.coordinates.events import Entity, Event
from ropewalk.coordinates.scheme import Cells
from ropewalk.coordinates.shared_grid import REFERENCE
from ropewalk.core.errors import ConfigError
from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.experiments import experiment
from ropewalk.lab.filled import one_blank
from ropewalk.lab.model import Decoder, ModelConfig
from ropewalk.lab.overlap import PICTURE
from ropewalk.lab.settings import Settings
from ropewalk.lab.tasks.task import stream
from ropewalk.lab.workloads import OWN, make_workload, resolved, seen_by

NAMES = [
    "alignment",
    "event_frames",
    "mixed_picture",
    "overlap",
    "reference_video",
    "reference_video(groups=True)",
    "shared_picture",
]
EXPERIMENTS = [
    "condition_rope",
    "depth_rope",
    "entity_temporal_rope",
    "larope",
    "pma",
    "r_rope",
    "untwisting_rope",
]
each = pytest.mark.parametrize("name", NAMES)


def made(name, examples=24, **sizes):
    return make_workload(
        resolved(Settings(encodings=("nope",), task=name, encoder=True, windows=examples, **sizes)), None
    )


def drawn(name, test, count=60, **sizes):
    workload = made(name, **sizes)
    return workload, workload.draw(stream("drawn", name), workload.sizes[0], count, test=test)


# ---- what all of them have in common ---------------------------------------------------------------------------------


@each
def test_batches_follow_from_their_step(name):
    workload = made(name)
    batch, again, later, other = (workload.batch(step, 8, seed) for step, seed in ((3, 1), (3, 1), (4, 1), (3, 2)))
    assert torch.equal(batch.tokens, again.tokens) and torch.equal(batch.targets, again.targets)
    for changed in (later, other):
        assert batch.tokens.shape != changed.tokens.shape or not torch.equal(batch.tokens, changed.tokens)
    assert batch.tokens.max() < workload.vocab_size == len(workload.symbols)
    assert (batch.targets != IGNORE).any(1).all()
    assert batch.targets.max() < workload.vocab_size
    assert batch.tokens.shape[1] <= workload.train_length


@each
def test_one_blank_of_each_example_is_scored(name):
    workload = made(name)
    told = []
    for measure in workload.measures():
        (record,) = measure.run(lambda b: told.append(b) or torch.zeros(*b.tokens.shape, workload.vocab_size))
        assert record["kind"] == "exact" and len(record["items"]) == 24
        assert record["exact"] == record["token"] == sum(record["items"]) / 24
    for batch in told:
        assert ((batch.targets != IGNORE).sum(1) == 1).all()
    assert [r["size"] for m in workload.measures() for r in m.run(lambda b: _knowing(b, workload))] == list(
        workload.sizes
    )
    assert all(r["exact"] == 1 for m in workload.measures() for r in m.run(lambda b: _knowing(b, workload)))


def _knowing(batch, workload):
    return torch.nn.functional.one_hot(batch.targets.clamp(min=0), workload.vocab_size).double()


def test_blanks_are_drawn_alike():
    targets = torch.full((3000, 6), IGNORE)
    targets[:, [1, 2, 5]] = torch.tensor([7, 8, 9])
    kept = one_blank(Batch(torch.zeros_like(targets), targets), stream("one"))
    assert ((kept.targets != IGNORE).sum(1) == 1).all()
    for answer in (7, 8, 9):
        assert 850 < (kept.targets == answer).sum() < 1150


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_models_of_an_experiment_see_its_places(name):
    """Tokens that have changed their places are answered otherwise, as they would not be without positions."""
    one = experiment(name)
    workload = make_workload(resolved(one.asked()), None)
    for encoding in (*one.settings["encodings"], *one.drop_in):
        batch = seen_by(workload, (encoding,)).batch(0, 2, 0)
        assert batch.positions is not None
        model = Decoder(ModelConfig(workload.vocab_size, (encoding,), 64, num_layers=1, num_heads=2, causal=False))
        with torch.no_grad():  # attention that is sharp enough to tell
            for part in ("q", "k", "out"):
                getattr(model.blocks[0].attention, part).weight.mul_(30)
        order = torch.randperm(batch.tokens.shape[1], generator=stream("order"))
        here, there = (model(tokens, batch.where()) for tokens in (batch.tokens, batch.tokens[:, order]))
        assert torch.isfinite(here).all()
        assert not torch.allclose(here[:, order], there, atol=1e-3)


# ---- each of them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [False, True])
def test_boxes_have_the_colours_of_their_references(groups):
    workload, batch = drawn(f"reference_video(groups={groups})", test=True)
    where = batch.where().query
    number = Cells.of(where, where.position.double())["reference"].long()
    n = workload.colours
    orders = set()
    for tokens, targets, of in zip(batch.tokens, batch.targets, number, strict=True):
        references = [(tokens[of == i] % n).unique() for i in (1, 2)]
        assert [len(r) for r in references] == [1, 1] and references[0] != references[1]
        for i in (1, 2):
            assert (tokens[of == i] // n).unique().tolist() == ([i] if groups else [1, 2])
        boxes, answers = tokens[of == 0].view(2, 2, 4) // n, targets[of == 0].view(2, 2, 4)
        halves = [boxes[..., :2].unique().tolist(), boxes[..., 2:].unique().tolist()]
        assert sorted(halves) == [[1], [2]]
        orders.add(halves[0][0])
        for i in (1, 2):
            assert (answers[boxes == i] == references[i - 1]).all()
        assert (targets[of > 0] == IGNORE).all()
    assert orders == {1, 2}


def test_training_pictures_are_of_one_resolution_and_scored_ones_of_two():
    workload, trained = drawn("mixed_picture", test=False)
    _, scored = drawn("mixed_picture", test=True)
    assert trained.tokens.shape[1] == 36 and scored.tokens.shape[1] == 20 + 64
    assert trained.columns["resolution"].unique().tolist() == [1]
    fine = scored.columns["resolution"][0] == 2
    assert fine.sum() == len(scored.positions[0, fine].unique(dim=0)) == 64
    assert scored.positions[0, fine].unique().tolist() == [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5]
    for batch in (trained, scored):
        hidden = batch.tokens == 0
        assert torch.equal(hidden, batch.targets != IGNORE)
        assert len(batch.targets[hidden].unique()) == workload.levels


def test_waves_look_alike_at_both_resolutions():
    """Neighbours differ as much as in training, in steps of either grid."""
    workload = made("mixed_picture", examples=1)

    def steps(test, resolution):
        batch = workload.draw(stream("steps"), 6, 800, test=test)
        level = torch.where(batch.tokens == 0, batch.targets, batch.tokens).double()
        here = batch.columns["resolution"][0] == resolution
        at = batch.positions[0, here] * resolution
        near = (at[:, None] - at[None]).abs().sum(-1) == 1
        return float((level[:, here][:, :, None] - level[:, here][:, None]).abs()[:, near].mean())

    trained, coarse, fine = steps(False, 1), steps(True, 1), steps(True, 2)
    assert fine < trained < coarse
    assert coarse < 1.7 * trained < 3 * fine


def test_patches_have_a_label_and_a_colour_of_their_own():
    workload, batch = drawn("shared_picture", test=False)
    width = workload.colours + 1
    whole = torch.where(batch.targets == IGNORE, batch.tokens, batch.targets)
    assert torch.equal(batch.tokens // width, whole // width)  # labels are told
    assert ((batch.tokens % width == 0) == (batch.targets != IGNORE)).all() and (whole % width > 0).all()
    several = 0
    for cells in whole:
        label_of = {int(cell) % width: int(cell) // width for cell in cells}
        assert all(label_of[int(cell) % width] == int(cell) // width for cell in cells)
        several += len(label_of) > len({*label_of.values()})
    assert several > 50


def test_labels_have_changed_sides_in_the_reference():
    workload, batch = drawn("shared_picture", test=True)
    width = workload.colours + 1
    number = batch.columns[REFERENCE][0]
    assert torch.equal(batch.positions[:, number == 0], batch.positions[:, number == 1])
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        own, reference = tokens[number == 0], tokens[number == 1]
        assert (own % width == 0).all() and (own // width != reference // width).all()
        for cell, target in zip(own, targets[number == 0], strict=True):
            (same,) = {int(r) for r in reference if r // width == cell // width}
            assert target == same
        assert (targets[number == 1] == IGNORE).all()


def test_the_nearer_shape_is_seen():
    workload, trained = drawn("overlap", test=False)
    _, scored = drawn("overlap", test=True)
    for batch, test in ((trained, False), (scored, True)):
        for tokens, targets, where, picture in zip(
            batch.tokens, batch.targets, batch.positions.tolist(), batch.columns[PICTURE].tolist(), strict=True
        ):
            shown: dict[tuple[float, float], list[tuple[float, int]]] = {}
            for token, (depth, *cell), n in zip(tokens.tolist(), where, picture, strict=True):
                if n:
                    shown.setdefault(tuple(cell), []).append((depth, token))
            for target, (depth, *cell), n in zip(targets.tolist(), where, picture, strict=True):
                if n == 0:
                    assert min(shown[tuple(cell)])[0] == depth
                    assert target == (
                        min(shown[tuple(cell)])[1] if not test or len(shown[tuple(cell)]) == 2 else IGNORE
                    )
            columns = {int(cell[2]) for cell, n in zip(where, picture, strict=True) if n == 2}
            assert columns == {3, 4} if test else max(columns) < 4
    (view,) = workload.views().values()
    seen = view(scored)
    assert torch.equal(seen.positions[..., 0].long(), scored.columns[PICTURE])
    assert torch.equal(seen.positions[..., 1:], scored.positions[..., 1:])


def test_frames_ask_for_the_event_that_goes_on():
    workload, batch = drawn("event_frames", test=True)
    captions = 2 * 3 * 3
    for tokens, targets, where, middle in zip(
        batch.tokens.tolist(),
        batch.targets.tolist(),
        batch.positions.tolist(),
        batch.columns["middle"].tolist(),
        strict=True,
    ):
        said = tokens[:captions]
        for i, (time, entity) in enumerate(where[captions:]):
            who = tokens[captions + i] - workload.words + 1
            assert entity == 0
            mine = [n for n in range(captions) if where[n][1] == who]
            # The middle, and the first token a sixth of the length after the start.
            spans = {(m := middle[n], 3 * (m - where[n][0])): said[n] for n in mine[::3]}
            (going_on,) = [
                word for (m, length), word in spans.items() if m - length / 2 - 1e-6 <= time < m + length / 2 - 1e-6
            ]
            assert targets[captions + i] == going_on
    (view,) = workload.views().values()
    seen = view(batch)
    assert torch.equal(seen.positions[..., 0], batch.columns["middle"])
    assert torch.equal(seen.positions[:, captions:], batch.positions[:, captions:])


def test_captions_are_where_the_layout_of_events_places_them():
    workload = made("event_frames", examples=1)
    batch = workload.draw(stream("layout"), 8, 1, test=True)
    time, middle = batch.positions[0, :18, 0].view(2, 3, 3), batch.columns["middle"][0, :18].view(2, 3, 3)[..., 0]
    half = (middle - time[..., 0]) * 3 / 2
    entities = [
        Entity(tuple(Event(round(m - h), round(m + h), 3) for m, h in zip(middles, halves, strict=True)))
        for middles, halves in zip(middle.tolist(), half.tolist(), strict=True)
    ]
    placed = rw.event_layout(entities, 8, 1, 1.0, entity_offset=1).positions
    torch.testing.assert_close(placed.key.position[0], batch.positions[0, :18])
    torch.testing.assert_close(placed.query.position[0, :8].double(), batch.positions[0, 18:26])


def test_letters_last_about_as_long_as_others():
    _, batch = drawn("alignment", test=True)
    for tokens, targets, where, length in zip(
        batch.tokens.tolist(),
        batch.targets.tolist(),
        batch.positions.tolist(),
        batch.columns["length"].tolist(),
        strict=True,
    ):
        text, spoken = tokens[:5], targets[5:]
        assert len(spoken) == 15 and where == [*range(5), *range(15)] and length == [5] * 5 + [15] * 15
        runs = [[spoken[0], 0]]
        for letter in spoken:
            if letter != runs[-1][0]:
                runs.append([letter, 0])
            runs[-1][1] += 1
        assert [letter for letter, _ in runs] == text
        assert sorted(lasts for _, lasts in runs) == [2, 3, 3, 3, 4]


def test_speech_is_beside_its_text():
    """With LARoPE the share of a text and that of its frames are one place, and with RoPE their numbers are."""
    batch = made("alignment").draw(stream("beside"), 10, 1, test=True)
    where = batch.where().query
    at = rw.LARoPE(32).coordinates(where, ())[0]
    torch.testing.assert_close(at[:10], at[10::3])
    assert rw.RoPE(32).coordinates(where, ())[0, [9, 10, 39]].tolist() == [9, 0, 29]


# ---- what cannot be --------------------------------------------------------------------------------------------------


@each
def test_blanks_need_both_sides(name):
    with pytest.raises(ConfigError, match="bidirectional"):
        make_workload(resolved(Settings(encodings=("nope",), task=name)), None)


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("alignment", {"eval_lengths": (2,)}, "letters from 3 on; got 2"),
        ("alignment(frames=1)", {}, "cannot last one less"),
        ("event_frames", {"eval_lengths": (2,)}, "3 events need 3 frames or more; got 2"),
        ("event_frames(entities=0)", {}, "entities"),
        ("mixed_picture", {"train_length": 3}, "from 4 on; got 3"),
        ("mixed_picture(levels=0)", {}, "levels"),
        ("overlap", {"train_length": 2}, "columns from 3 on; got 2"),
        ("overlap(rows=1)", {}, "rows are 2 or more"),
        ("reference_video(groups=1)", {}, "True or False"),
        ("shared_picture(labels=9)", {}, "9 labels and 6 patches"),
    ],
)
def test_what_cannot_be(name, sizes, message):
    with pytest.raises(ConfigError, match=message):
        made(name, **sizes)


def test_every_workload_of_its_own_is_tested():
    assert {name.partition("(")[0] for name in NAMES} == {*OWN} - {"moving_dot", "panorama"}


# ---- what examples show, for pictures and tests ------------------------------------------------------------------------


@each
def test_examples_say_what_they_show(name):
    _, batch = drawn(name, True, 4)
    assert batch.drawn and all(len(fact) == 4 for fact in batch.drawn.values())
    some = batch.rows(1, 3)
    assert {n: f.tolist() for n, f in some.drawn.items()} == {n: f[1:3].tolist() for n, f in batch.drawn.items()}
    assert one_blank(batch, stream("blank", name)).drawn is batch.drawn
    seen = batch.where()
    for tokens in (seen.query, seen.key):  # no model sees it
        assert not set(batch.drawn) & {*tokens.columns, *tokens.sequence}


def test_where_a_shape_lies():
    workload, batch = drawn("overlap", True, 4)
    size = workload.sizes[0]
    for row in range(4):
        r, c = batch.drawn["corner"][row].tolist()
        asked = (batch.targets[row] != IGNORE).nonzero()[:, 0].tolist()
        assert asked == [i * size + j for i in (r, r + 1) for j in (c, c + 1)]
        back, front = batch.tokens[row, workload.rows * size :].split([workload.rows * size, 4])
        want = front if batch.drawn["nearer"][row] else back[asked]
        assert torch.equal(batch.targets[row, asked], want)


def test_whose_box_a_cell_is_in():
    _, batch = drawn("reference_video", True, 4)
    owner, colour = batch.drawn["owner"].flatten(1), batch.drawn["colour"]
    blank = batch.targets != IGNORE
    assert torch.equal(batch.targets[blank].reshape(4, -1), colour.gather(1, owner))


def test_when_events_are():
    workload, batch = drawn("event_frames", True, 4)
    answers = workload.of_frames(batch.targets)
    frame = torch.arange(answers.shape[-1])
    start, end, word = (batch.drawn[name][..., None] for name in ("start", "end", "word"))
    going = (frame >= start) & (frame < end)  # (B, entities, events, frames)
    assert (going.sum(2) == 1).all()
    assert torch.equal((going * word).sum(2), answers)


def test_how_long_letters_last():
    _, batch = drawn("alignment", True, 4)
    lasts, letter = batch.drawn["frames"], batch.drawn["letter"]
    for row in range(4):
        assert torch.equal(letter[row], torch.arange(len(lasts[row])).repeat_interleave(lasts[row]))
    text = batch.tokens[:, : lasts.shape[1]]
    assert torch.equal(batch.targets[:, lasts.shape[1] :], text.gather(1, letter))


def test_what_hidden_cells_are():
    workload, batch = drawn("mixed_picture", True, 4)
    hidden = batch.targets != IGNORE
    assert torch.equal(batch.targets[hidden], 1 + batch.drawn["level"][hidden])
    assert torch.equal(batch.tokens[~hidden], 1 + batch.drawn["level"][~hidden])
    for test in (True, False):
        workload, batch = drawn("shared_picture", test, 4)
        whole = workload._tokens(batch.drawn["label"], batch.drawn["colour"])
        assert torch.equal(torch.where(batch.targets == IGNORE, batch.tokens, batch.targets), whole)
