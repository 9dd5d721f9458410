"""Tasks of road users, speakers, spectra, formulas and texts."""

from __future__ import annotations

import math

import pytest
import torch

from ropewalk.core.errors import ConfigError
from ropewalk.lab.batch import Batch
from ropewalk.lab.model import Decoder, ModelConfig
from ropewalk.lab.tasks import task


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("oncoming", 1),
        ("oncoming", 5),
        ("last_turn", 4),
        ("last_turn", 19),
        ("nesting", 1),
        ("nesting", 9),
        ("paragraph_start", 2),
        ("paragraph_start", 17),
        ("spectral_kind", 24),
        ("spectral_kind", 50),
        ("code_words", 4),
        ("code_words", 16),
    ],
)
def test_answers(name, size):
    made = task(name)
    for batch in (made.eval_batch(size, 200, seed=0), made.train_batch(0, 100, seed=1, max_size=size)):
        for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
            (at,) = [i for i, target in enumerate(targets) if target >= 0]
            assert made.solve(tokens[: at + 1]) == [targets[at]]
    assert batch.tokens.shape[1] <= made.length(size)


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        ("oncoming", "drope_directional"),
        ("last_turn", "time_speaker_rope"),
        ("oncoming", "rope"),
        ("last_turn", "rope"),
        ("code_words", "switching_rope"),
        ("code_words", "switching_rope(form=zigzag)"),
        ("code_words", "rope"),
    ],
)
def test_models_read_them(name, encoding):
    made = task(name)
    batch = made.eval_batch(made.eval_sizes[0], 3, seed=0, bidirectional=True)
    if encoding == "rope":
        batch = batch.in_order()
    config = ModelConfig(made.vocab_size, (encoding,), 32, num_layers=1, num_heads=2, causal=False)
    assert torch.isfinite(Decoder(config)(batch.tokens, batch.where())).all()


def test_headings():
    made = task("oncoming", directions=4)
    batch = made.eval_batch(3, 50, seed=0)
    looks = batch.positions[..., 2] / (math.pi / 2)
    mine = looks[:, -1:]
    assert torch.equal(mine, looks[:, -2:-1])
    against = ((looks[:, 1:4] - mine) % 4 == 2).sum(1)
    assert (against == 1).all()
    assert batch.positions[0, :, 0].tolist() == [0, 0, 8, 16, 24, 24]
    trained = made.train_batch(0, 50, seed=0, max_size=3)
    assert (trained.tokens == made.symbols.index("me@0")).any(1).all()
    assert len(set(mine[:, 0].tolist())) == 4  # scoring turns everybody
    along = task("oncoming", directions=4, looks=2).train_batch(0, 50, seed=0, max_size=3).tokens
    assert {d for d in range(4) if (along == made.symbols.index(f"me@{d}")).any()} == {0, 1}


def test_turns():
    made = task("last_turn", words=2)
    tokens = torch.tensor([[0, *(made.symbols.index(s) for s in ("A:a", "A:b", "B:a", "A:b", "?", "A"))]])
    placed = made.place(Batch(tokens, tokens))
    assert placed.columns["turns"][0, :, 0].tolist() == [0, 1, 1, 1, 2, 2, 2]
    assert placed.columns["activity"][0, :, 1].tolist() == [0, 0, 0, 1, 0, 0, 0]


def test_paths():
    made = task("nesting")
    batch = made.eval_batch(9, 50, seed=0)
    path = batch.columns["path"]
    for row, targets in zip(range(50), batch.targets, strict=True):
        tokens = batch.tokens[row].tolist()
        at = tokens.index(tokens[-1])  # the symbol that is asked for, in its formula
        assert int((path[row, at] > 0).sum()) - 1 == int(targets[-1]) - made.digit
    assert len(set(batch.targets[:, -1].tolist())) > 2


def test_paragraphs():
    made = task("paragraph_start")
    batch = made.eval_batch(12, 20, seed=0)
    for tokens, targets, where in zip(batch.tokens, batch.targets, batch.positions, strict=True):
        asked = tokens.tolist().index(int(tokens[-1]))
        mine = where[:, 0] == where[asked, 0]
        mine[0] = False  # the edge
        assert tokens[mine & (tokens >= made.word)][0] == targets[-1]


def test_instruments():
    made = task("spectral_kind")
    trained, scored = made.train_batch(0, 50, seed=0, max_size=30), made.eval_batch(30, 50, seed=0)
    assert set(trained.tokens[:, 1].tolist()) == {made.instrument, made.instrument + 1}
    assert set(scored.tokens[:, 1].tolist()) == {made.instrument + 2}
    ends = scored.positions[:, [2, 31]].exp()
    assert ends[0].tolist() == pytest.approx([3000, 10500])
    assert scored.positions[0, [0, 1, -1]].exp().tolist() == pytest.approx([3000] * 3)


def test_switches():
    made = task("code_words")
    prompt = ["h7", "o", "h1", "e9", "e2", "o", "h3", "?"]
    tokens = torch.tensor([[0, *(made.symbols.index(s) for s in prompt)]])
    placed = made.place(Batch(tokens, tokens))
    assert placed.columns["switch"][0].tolist() == [0, 0, 0, 0, 1, 0, 0, 1, 0]
    assert placed.positions[0].tolist() == list(range(9))
    assert made.symbols[made.solve(tokens[0].tolist())[0]] == "low"  # one high word and a low one
    answers = made.eval_batch(12, 300, seed=0).targets[:, -1].unique()
    assert [made.symbols[a] for a in answers.tolist()] == ["low", "high"]


def test_plain_grids_see_the_same_scene():
    """Encodings that know nothing of headings or of logarithms are told the numbers themselves."""
    oncoming, spectra = task("oncoming"), task("spectral_kind")
    batch = oncoming.eval_batch(4, 5, seed=0)
    assert torch.equal(oncoming.views()["grid"](batch).positions, batch.positions)
    batch = spectra.eval_batch(24, 5, seed=0)
    wavelength = spectra.views()["grid"](batch).positions
    assert wavelength.shape == (*batch.tokens.shape, 1)
    steps = wavelength[0, 2:26, 0].diff()
    assert steps.std() < 1e-6 * steps.mean() and 0.5 < steps.mean() < 2


@pytest.mark.parametrize(
    ("name", "options", "size", "message"),
    [
        ("oncoming", {"directions": 5}, 2, "even"),
        ("oncoming", {}, 7, "road users from 1 to 6"),
        ("oncoming", {"turned": 1}, 2, "True or False"),
        ("oncoming", {"looks": 9}, 2, "some of the 8 directions; got 9"),
        ("last_turn", {"go_on": 1.0}, 5, "below 1"),
        ("last_turn", {}, 3, "frames from 4"),
        ("nesting", {}, 17, "symbols from 1 to 16"),
        ("paragraph_start", {"stop": 2}, 5, "stop is a probability"),
        ("spectral_kind", {}, 20, "pixels from 24"),
        ("spectral_kind", {"unseen": 2}, 30, "True or False"),
    ],
)
def test_options_that_cannot_be(name, options, size, message):
    with pytest.raises(ConfigError, match=message):
        task(name, **options).eval_batch(size, 4, seed=0)
