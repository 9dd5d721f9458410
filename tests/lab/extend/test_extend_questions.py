"""Windows, hidden sentences and definitions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tiny import TEXT, byte_tokenizer

from ropewalk.lab.batch import IGNORE
from ropewalk.lab.data import JsonTokenizer
from ropewalk.lab.extend import questions
from ropewalk.lab.extend.measures import bucket_edges, joined_answers, measured_lengths
from ropewalk.lab.extend.questions import Needles, find_definitions, split
from ropewalk.lab.extend.settings import Extension
from ropewalk.lab.extend.text import read_text, sliding

LONGEST = 4000


@pytest.fixture(scope="module")
def tokenizer():
    return JsonTokenizer(byte_tokenizer().backend_tokenizer.to_str(), "bytes")


@pytest.fixture(scope="module")
def corpus(tokenizer):
    return read_text(Extension("x", "2x", data=TEXT, windows=3, tune=1), tokenizer, LONGEST)


def test_nothing_is_tuned_on_what_is_measured(tokenizer):
    settings = Extension("x", "2x", data=TEXT, windows=3, tune=1, search="longrope", search_windows=1)
    corpus = read_text(settings, tokenizer, LONGEST)
    sizes = {name: len(corpus.documents(name)) for name in ("train", "validation", "test")}
    assert sizes == {"train": 1, "validation": 1, "test": 3}


def test_windows_slide_by_what_is_scored(corpus, tokenizer):
    windows = sliding(corpus, "test", LONGEST, 500, 12)
    assert windows.tokens.shape == (12, LONGEST + 1)
    assert len(set(windows.documents[:3])) == 3  # different documents first
    first, second = (windows.tokens[i] for i in (0, 3))
    assert windows.documents[0] == windows.documents[3]
    assert torch.equal(first[500:], second[:-500])
    text = tokenizer.decode(first)
    file = next(f for f in TEXT if f.endswith(windows.documents[0]))
    assert text in Path(file).read_text(encoding="utf-8")


DEPTHS = (0.0, 0.5, 1.0)


def needles(corpus, tokenizer, count=4, trained=1200):
    return Needles(tokenizer, sliding(corpus, "test", LONGEST, 500, 3), count, DEPTHS, trained, seed=0)


def whole(exam, text=None):
    """All that is read in one pass."""
    return torch.cat([exam.text if text is None else text, *(p for q in exam.questions for p in (q.asked, q.answer))])


def test_hidden_sentences(corpus, tokenizer):
    made = needles(corpus, tokenizer)
    exams = made.exams(2000)
    assert len(exams) == 4
    for exam in exams:
        assert len(whole(exam)) == 2000 and len(exam.other) == len(exam.text)
        text, other = tokenizer.decode(exam.text), tokenizer.decode(exam.other)
        assert sorted(fact["depth"] for fact in exam.facts) == list(DEPTHS)
        for question, fact in zip(exam.questions, exam.facts, strict=True):
            asked, key = tokenizer.decode(question.asked), tokenizer.decode(question.answer)
            assert text.count(f"{asked}{key}.\n") == 1 == other.count(asked) and key not in other
            assert text.index(asked) == pytest.approx(fact["depth"] * len(text), abs=120)
        names = {tokenizer.decode(q.asked) for q in exam.questions}
        assert len(names) == 3
    orders = [tuple(fact["depth"] for fact in exam.facts) for exam in exams]
    assert len(set(orders)) > 1  # what is asked first is drawn
    again = needles(corpus, tokenizer).exams(2000)
    assert all(torch.equal(whole(a), whole(b)) for a, b in zip(exams, again, strict=True))
    assert {whole(exam).shape for exam in made.exams(LONGEST)} == {(LONGEST,)}
    assert not made.exams(40)  # no room


def test_a_short_context_is_asked_in_several_passes(corpus, tokenizer):
    exams = needles(corpus, tokenizer, count=2, trained=64).exams(256)
    assert len(exams) == 6 and all(len(exam.questions) == 1 for exam in exams)
    assert sorted(exam.facts[0]["depth"] for exam in exams) == sorted(DEPTHS * 2)


def test_definitions(corpus, tokenizer):
    made = find_definitions(corpus, LONGEST, 3 * LONGEST, 6, seed=0)
    assert len(made) == 6
    assert max(len(context.questions) for context in made.contexts) > 1
    for length in (3500, LONGEST):
        for exam in made.exams(length):
            text, other = tokenizer.decode(exam.text), tokenizer.decode(exam.other)
            assert len(whole(exam)) == length
            assert text.split("(")[0].split("def ")[1] in tokenizer.decode(exam.questions[0].asked)
            for question in exam.questions:
                asked, answer = tokenizer.decode(question.asked), tokenizer.decode(question.answer)
                name = asked.split("def ")[1].rstrip("(")
                parameters = answer.rpartition(")")[0]
                assert asked.endswith(f"\ndef {name}(") and text.count(f"def {name}({parameters})") == 1
                assert len(re.findall(rf"\b{name}\b", text)) == 1 and name not in other
                assert text.count(f"({parameters})") == 1 and text.index(parameters) < 3000


def test_a_function_is_asked_for_once(corpus):
    made = find_definitions(corpus, 1000, 1000, 500, seed=0)
    asked = [tuple(q.asked.tolist()) for context in made.contexts for q in context.questions]
    assert len(asked) == len(set(asked)) > 10


def test_text_that_is_no_code(tokenizer, tmp_path):
    file = tmp_path / "prose.txt"
    file.write_text("It was a dark and stormy night. " * 400)
    corpus = read_text(Extension("x", "2x", data=(str(file),)), tokenizer, 1000)
    assert len(find_definitions(corpus, 1000, 500, 6, seed=0)) == 0


def test_answers_that_cross_a_token():
    class Pairs:
        """Joins "(s" where it can."""

        def encode(self, text):
            ids, i = [], 0
            while i < len(text):
                step = 2 if text[i : i + 2] == "(s" else 1
                ids.append(hash(text[i : i + step]) % 1000)
                i += step
            return torch.tensor(ids)

    question, answer = split(Pairs(), "def f(", "self)")
    assert len(question) == 5 and len(answer) == 5
    question, answer = split(Pairs(), "def f(", "x)")
    assert len(question) == 6 and len(answer) == 2


def test_what_is_said_of_answers(corpus, tokenizer, monkeypatch):
    """A reader that looks the sentence up is always right, and one that guesses gains nothing."""

    def reader(model, tokens, targets, tokenizer_):
        text = tokenizer.decode(tokens[0])
        assert tokens.shape == targets.shape
        scored = targets[0][targets[0] != IGNORE]
        # What is scored is what follows: the answers, one after the other.
        assert torch.equal(tokens[0][1:][targets[0][:-1] != IGNORE], scored[:-1])
        keys = re.findall(r"\d{5}", tokenizer.decode(scored))
        known = [model == "reads" and f"{key}.\n" in text for key in keys]
        loss = torch.tensor([0.0 if k else 2.3 for k in known]).repeat_interleave(6)
        return loss, torch.tensor([1.5 if k else -0.5 for k in known]).repeat_interleave(6)

    monkeypatch.setattr(questions, "predictions", reader)
    exams = needles(corpus, tokenizer, count=2).exams(2000)
    answers = [answer for exam in exams for answer in exam.take("reads", True, tokenizer)]
    assert all(a["right"] == 1.0 and a["margin"] == 1.5 and a["gained"] == pytest.approx(2.3) for a in answers)
    records = list(joined_answers(2000, answers))
    assert [(r["depth"], r["metric"]) for r in records[:3]] == [(0.0, m) for m in ("accuracy", "margin", "nats gained")]
    assert len(records) == 9 and all(r["count"] == 2 and r["kind"] == "retrieval" for r in records)
    guessed = [answer for exam in exams for answer in exam.take("guesses", True, tokenizer)]
    assert all(a["right"] == 0.0 and a["gained"] == 0 for a in guessed)
    assert all("gained" not in a for a in exams[0].take("reads", False, tokenizer))


def test_lengths_and_buckets():
    assert measured_lengths(64, 256) == [64, 128, 256]
    assert measured_lengths(64, 200) == [64, 128, 200]
    assert measured_lengths(64, 96) == [64, 96]
    assert bucket_edges(64)[:3] == [0, 4, 8] and bucket_edges(5) == [0, 1, 2, 3, 4, 5]
