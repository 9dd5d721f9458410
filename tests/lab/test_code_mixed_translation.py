"""From mixed texts to one language."""

from __future__ import annotations

import pytest
import torch

from ropewalk.core.errors import ConfigError
from ropewalk.lab.code_mixed import CODES, WORDS
from ropewalk.lab.code_mixed_translation import BEGIN, END, MixedTranslator, mixed_pairs, translation

SMALL = {"hidden_size": 16, "num_layers": 1, "num_heads": 2}


def pairs(n=5, length=9, seed=0):
    return mixed_pairs(n, length, torch.Generator().manual_seed(seed))


def test_stretches_of_the_first_language_are_turned_round():
    hi, en, o = (lambda w: w), (lambda w: WORDS + w), 2 * WORDS
    tokens = [hi(1), hi(2), en(3), en(4), o, hi(5), o, hi(6), en(7)]
    tags = ["hi", "hi", "en", "en", "o", "hi", "o", "hi", "en"]
    assert translation(tokens, tags) == [2, 1, 3, 4, 6, 5, 7]
    assert translation([o, hi(1), hi(2)], ["o", "hi", "hi"]) == [2, 1]  # a neutral token is of what follows
    assert translation([en(1), en(2)], ["en", "en"]) == [1, 2]
    assert translation([o, o], ["o", "o"]) == []


def test_every_word_is_translated_and_nothing_else():
    made = pairs(50, 12)
    for tokens, row in zip(made.tokens.tolist(), made.target.tolist(), strict=True):
        said = row[: row.index(END)]
        assert sorted(said) == sorted(t % WORDS for t in tokens if t < 2 * WORDS)
        assert set(row[len(said) :]) == {END}
    assert torch.equal(made.target, pairs(50, 12).target)


@pytest.mark.parametrize("code", CODES)
def test_a_target_does_not_look_ahead(code):
    torch.manual_seed(0)
    made = pairs()
    for more in ({}, {"decoder_pairs": True}, {"streams": "bigram", "decoder_code": "sinusoidal"}):
        model = MixedTranslator(code, **SMALL, **more)
        out = model(made)
        assert out.shape == (*made.target.shape, END + 1)
        other = made.target.clone()
        other[:, 4:] = (other[:, 4:] + 1) % WORDS
        torch.testing.assert_close(model(made._replace(target=other))[:, :5], out[:, :5])
        assert model.loss(made).isfinite()


@pytest.mark.parametrize("decoder_pairs", [False, True])
def test_what_is_written_is_the_likeliest_of_one_pass(decoder_pairs):
    torch.manual_seed(1)
    made = pairs()
    model = MixedTranslator(decoder_pairs=decoder_pairs, **SMALL)
    written = model.translate(made.tokens, made.tags, max_length=7)
    begun = torch.cat([torch.full((5, 1), BEGIN), written[:, :-1]], 1)
    best = model.decode(begun, model.encode(made.tokens, made.tags)).argmax(-1)
    ended = torch.cat([torch.zeros(5, 1), written[:, :-1]], 1) == END
    assert torch.equal(best[~ended], written[~ended])


def test_the_end_counts_once():
    model, made = MixedTranslator(**SMALL), pairs()
    longer = made._replace(target=torch.cat([made.target, torch.full((5, 4), END)], 1))
    torch.testing.assert_close(model.loss(longer), model.loss(made))


@pytest.mark.slow
def test_it_learns_to_translate():
    torch.manual_seed(0)
    model = MixedTranslator("switching_rope_segment", hidden_size=64, num_layers=2)
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(400):
        optimiser.zero_grad()
        model.loss(mixed_pairs(64, 6, generator)).backward()
        optimiser.step()
    test = mixed_pairs(100, 6, torch.Generator().manual_seed(2))
    with torch.no_grad():
        said = model.translate(test.tokens, test.tags, max_length=test.target.shape[1])
    wide = test.target.shape[1] - said.shape[1]
    said = torch.nn.functional.pad(said, (0, wide), value=END)
    assert (said == test.target).double().mean() > 0.6  # of twelve words; a guess is right in a tenth


def test_bad_input():
    with pytest.raises(ConfigError, match="has no switches"):
        MixedTranslator(decoder_code="switching_rope_token", **SMALL)
    with pytest.raises(ConfigError, match="reads the token before each"):
        MixedTranslator(decoder_pairs=True, **SMALL).cache()
    with pytest.raises(ConfigError, match="beams=2"):
        MixedTranslator(decoder_pairs=True, **SMALL).translate(*pairs()[:2], max_length=3, beams=2)
