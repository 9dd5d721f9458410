"""Generated tasks: answers, sizes, streams, padding, positions, scores."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from importlib import metadata
from itertools import groupby
from pathlib import Path

import pytest
import torch

from ropewalk.core.errors import ConfigError, RopewalkError, ShapeError, UnknownNameError
from ropewalk.lab import tasks
from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.errors import TrialError
from ropewalk.lab.tasks import TASKS, names, task
from ropewalk.lab.tasks.examples import ASK, EDGE
from ropewalk.lab.tasks.score import score
from ropewalk.lab.tasks.task import FEW, HELD_OUT, Task, held_out, stream

OPTIONS = [
    *((name, {}) for name in TASKS),
    ("copy", {"alphabet": 2}),
    ("sorting", {"alphabet": 52}),
    ("selective_copy", {"blanks": 0.5, "test_blanks": 3}),
    ("selective_copy", {"blanks": 0}),
    ("missing_duplicate", {"alphabet": 10}),
    ("summation", {"modulus": 7}),
    ("addition", {"reverse": False}),
    ("addition_coupled", {"reverse": False, "max_position": 43}),
    ("flip_flop", {"test_ignore": 0.98}),
    ("flip_flop", {"ignore": 0.0, "test_ignore": 1.0}),
    ("counting", {"variables": 1, "passes": 0.0}),
    ("counting", {"variables": 5, "test_passes": 1.0}),
    ("mqar", {"queries": 1}),
    ("mqar", {"queries": 100, "values": 3}),
    ("needle", {"digits": 4}),
    ("needle", {"needles": 4, "digits": 2}),
    ("needle", {"depth": 0.3, "needles": 8}),
    ("index_position", {"origin": "end"}),
    ("index_content", {"alphabet": 2}),
    ("indirect_indexing", {"max_shift": 4}),
    ("indirect_indexing", {"max_shift": 51}),
]
ENCODER_READY = {
    *("missing_duplicate", "summation", "parity", "counting", "needle"),
    *("index_position", "index_content", "indirect_indexing"),
}


def called(name, options):
    return f"{name}({', '.join(f'{k}={v}' for k, v in options.items())})"


each = pytest.mark.parametrize(("name", "options"), OPTIONS, ids=[called(*one) for one in OPTIONS])
plain = pytest.mark.parametrize("name", TASKS)


def rows(batch):
    """Whole sequences, told by what is read and what is asked for, as (prompt, answer) pairs."""
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        for scored, run in groupby(range(len(targets)), key=lambda i: targets[i] != IGNORE):
            if scored:
                places = list(run)
                yield tokens[: places[0] + 1], [targets[i] for i in places]


def same(a, b):
    return all(
        (x is None and y is None) or torch.equal(x, y)
        for x, y in zip((a.tokens, a.targets, a.positions), (b.tokens, b.targets, b.positions), strict=True)
    )


def sizes_of(made):
    most = made.eval_sizes[-1] if made.largest is None else min(made.largest, made.eval_sizes[-1])
    return sorted({made.min_size, made.min_size + 1, min(5 + made.min_size, most), made.train_size, most})


# ---- every task -----------------------------------------------------------------------------------------------


@each
def test_every_answer_is_the_one_worked_out_from_the_prompt(name, options):
    made = task(name, **options)
    batches = [made.train_batch(step, 64, seed=3, max_size=made.train_size) for step in range(3)]
    batches += [made.eval_batch(size, 16, seed=3) for size in sizes_of(made)]
    solved = 0
    for batch in batches:
        for prompt, answer in rows(batch):
            assert made.solve(prompt) == answer
            solved += 1
    assert solved >= 3 * 64 + 16 * len(sizes_of(made))


@each
def test_tokens_have_symbols_and_lengths_are_as_promised(name, options):
    made = task(name, **options)
    assert len(set(made.symbols)) == made.vocab_size
    for size in sizes_of(made):
        for test in (False, True):
            batch = made.batch(stream("any", size), size, 8, test=test)
            assert batch.tokens.shape[1] <= made.length(size)
            assert batch.tokens.dtype == batch.targets.dtype == torch.int64
            assert int(batch.tokens.min()) >= 0 and int(batch.tokens.max()) < made.vocab_size
            assert (batch.tokens[:, 0] == EDGE).all()
            assert ((batch.targets != IGNORE).sum(1) > 0).all()
            # A token that is asked for is the next one that is read.
            asked = batch.targets[:, :-1] != IGNORE
            assert (batch.tokens[:, 1:][asked] == batch.targets[:, :-1][asked]).all()
    longest = max(made.batch(stream("any"), made.train_size, 4, test=t).tokens.shape[1] for t in (False, True))
    assert longest == made.length(made.train_size)


@plain
def test_a_training_batch_holds_every_size_padded_on_the_right(name):
    made = task(name)
    most = made.min_size + 4
    widths = {made.batch(stream("any"), s, 1).tokens.shape[1]: s for s in range(made.min_size, most + 1)}
    assert len(widths) == 5
    batch = made.train_batch(0, 200, seed=0, max_size=most)
    assert batch.valid is None and batch.documents is None
    assert batch.tokens.shape == batch.targets.shape == (200, max(widths))
    last = (torch.arange(batch.tokens.shape[1]) * (batch.targets != IGNORE)).amax(1)
    counts = [int((last + 1 == width).sum()) for width in widths]
    assert sum(counts) == 200  # every row ends with a scored token
    assert min(counts) > 15  # 40 each on average: 4.4 standard deviations
    beyond = torch.arange(batch.tokens.shape[1]) > last[:, None]
    assert (batch.tokens[beyond] == EDGE).all() and (batch.targets[beyond] == IGNORE).all()
    if batch.positions is not None:
        assert (batch.positions[beyond] == 0).all()


@plain
def test_batches_are_functions_of_their_arguments(name):
    made = task(name)
    most = made.min_size + 6
    batch = made.train_batch(5, 8, seed=1, max_size=most)
    assert same(batch, task(name).train_batch(5, 8, seed=1, max_size=most))
    assert not same(batch, made.train_batch(6, 8, seed=1, max_size=most))
    assert not same(batch, made.train_batch(5, 8, seed=2, max_size=most))
    scored = made.eval_batch(most, 8, 1)
    assert same(scored, task(name).eval_batch(most, 8, 1))
    assert not same(scored, made.eval_batch(most, 8, 2))


DIGEST = """
import hashlib, sys
from ropewalk.lab.tasks import TASKS, task
h = hashlib.sha256()
for name in TASKS:
    made = task(name)
    for batch in (made.train_batch(2, 4, seed=1, max_size=12), made.eval_batch(12, 4, 1)):
        h.update(repr((batch.tokens.tolist(), batch.targets.tolist())).encode())
print(h.hexdigest())
"""


def test_batches_are_the_same_in_another_process():
    h = hashlib.sha256()
    for name in TASKS:
        made = task(name)
        for batch in (made.train_batch(2, 4, seed=1, max_size=12), made.eval_batch(12, 4, 1)):
            h.update(repr((batch.tokens.tolist(), batch.targets.tolist())).encode())
    other = subprocess.run([sys.executable, "-c", DIGEST], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == h.hexdigest()


@each
def test_what_is_scored_was_never_trained_on(name, options):
    made = task(name, **options)
    size = made.min_size
    while made.space(size) < FEW:
        size += 1
    if made.largest is not None and size > made.largest:
        pytest.skip("too few examples at any size")
    trained = {tuple(row) for row in made.examples(stream("a"), size, 400).tokens.tolist()}
    scored = {tuple(row) for row in made.examples(stream("b"), size, 400, test=True).tokens.tolist()}
    assert trained and scored and not trained & scored
    for step in range(2):
        batch = made.train_batch(step, 32, seed=0, max_size=size)
        assert not {tuple(row) for row in batch.tokens.tolist()} & {row[:-1] for row in scored}


def test_one_example_in_eight_is_held_out():
    tokens = torch.randint(30, (20_000, 12), generator=stream("hash"))
    share = held_out(tokens).double().mean()
    assert abs(share - 1 / HELD_OUT) < 5 * math.sqrt(0.125 * 0.875 / 20_000)
    # One token decides as well as twelve do, and rows of the batch do not matter to each other.
    pairs = torch.cartesian_prod(torch.arange(100), torch.arange(100))
    assert abs(held_out(pairs).double().mean() - 1 / HELD_OUT) < 0.02
    assert torch.equal(held_out(tokens[5:9]), held_out(tokens)[5:9])


def test_training_uses_all_that_is_not_held_out():
    made = task("addition")
    seen = {tuple(row) for row in made.examples(stream("all"), 1, 2000).tokens.tolist()}
    assert len(seen) == 100  # single digits: too few to hold any out
    copy = task("copy", alphabet=10)
    both = [{tuple(r) for r in copy.examples(stream(str(t)), 3, 20_000, test=t).tokens.tolist()} for t in (False, True)]
    assert len(both[0]) + len(both[1]) == 1000


@each
def test_space_promises_no_more_than_there_is(name, options):
    made = task(name, **options)
    if made.space(made.min_size) > 500:
        pytest.skip("too many to draw")
    seen = {tuple(row) for row in made.draw(stream("s"), made.min_size, 8000, test=False).tokens.tolist()}
    seen |= {tuple(row) for row in made.draw(stream("t"), made.min_size, 8000, test=True).tokens.tolist()}
    assert len(seen) >= made.space(made.min_size)


@each
def test_encoders_read_no_answers(name, options):
    made = task(name, **options)
    most = made.min_size + 5
    if not made.encoder_ready:
        with pytest.raises(ConfigError, match=f"{name} needs causal attention"):
            made.train_batch(0, 4, seed=0, max_size=most, bidirectional=True)
        with pytest.raises(ConfigError, match="Leave out --encoder"):
            made.eval_batch(most, 4, 0, bidirectional=True)
        return
    batch = made.train_batch(0, 64, seed=0, max_size=most, bidirectional=True)
    asked = batch.targets != IGNORE
    assert (asked.sum(1) == 1).all()
    # Everything visible is the prompt: it ends where the answer is asked for, and the rest is marked as padding.
    place = asked.int().argmax(1)
    assert torch.equal(batch.valid, torch.arange(batch.tokens.shape[1]) <= place[:, None])
    assert (batch.tokens[~batch.valid] == EDGE).all()
    assert made.eval_batch(most, 4, 0, bidirectional=True).valid.all()


def test_which_tasks_encoders_can_do():
    assert {name for name in TASKS if task(name).encoder_ready} == ENCODER_READY
    assert task("mqar", queries=1).encoder_ready and not task("needle", digits=2).encoder_ready


@plain
def test_says_what_it_is(name):
    made = task(name)
    assert made.name == name
    assert made.summary and made.size_name and "arXiv" in made.source
    assert made.train_size in made.eval_sizes and list(made.eval_sizes) == sorted(made.eval_sizes)
    assert made.eval_sizes[-1] >= 2.5 * made.train_size
    for size in made.eval_sizes:
        made.check_size(size)


@plain
def test_perfect_answers_score_one_and_guesses_are_near_chance(name):
    made = task(name)
    batch = made.eval_batch(made.min_size + 7, 200, 0)
    right = torch.nn.functional.one_hot(batch.targets.clamp(min=0), made.vocab_size).double()
    perfect = score(right, batch)
    assert perfect.token == 1 and perfect.exact.all() and perfect.exact.shape == (200,)
    guess = score(torch.rand(*batch.tokens.shape, made.vocab_size, generator=stream("guess")), batch)
    chance = 1 / made.vocab_size
    assert abs(guess.token - chance) < 5 * math.sqrt(chance / batch.scored)
    assert guess.exact.double().mean() < chance + 5 * math.sqrt(chance / 200)


@plain
def test_bad_sizes(name):
    made = task(name)
    for size in (made.min_size - 1, 0, True, 2.0):
        with pytest.raises(ConfigError, match=f"the size of {name} is a whole number of .* from {made.min_size}"):
            made.eval_batch(size, 1, 0)
    with pytest.raises(ConfigError, match="batch_size"):
        made.train_batch(0, 0, seed=0, max_size=made.train_size)


# ---- one task at a time -----------------------------------------------------------------------------------------

EXAMPLES = [
    ("copy", {}, "c a b d = > c a b d |"),
    ("reverse", {}, "c a b d = > d b a c |"),
    ("sorting", {}, "c a b d = > a b c d |"),
    ("bucket_sort", {}, "c a c d = > a c c d |"),
    ("odds_first", {}, "c a b d = > a d c b |"),
    ("odds_first", {}, "c a b d e = > a d c b e |"),
    ("selective_copy", {}, "_ c _ a b _ = > c a b |"),
    ("missing_duplicate", {}, "a b b a a b _ a = > b"),
    ("missing_duplicate", {}, "a b _ a a b a a = > a"),
    ("summation", {}, "7 5 9 = > 1"),
    ("parity", {}, "1 0 1 1 = > 1"),
    ("addition", {}, "6 5 3 + 0 4 9 = > 2 0 7 0 |"),
    ("addition", {"reverse": False}, "6 5 3 + 0 4 9 = > 0 7 0 2 |"),
    ("flip_flop", {}, "w 1 i 0 i 1 r > 1"),
    ("flip_flop", {}, "w 1 i 0 i 1 r 1 w 0 i 1 r > 0"),
    ("counting", {}, "b+1 a=0 pass a+1 b=0 pass a+1 a? > 2"),
    ("mqar", {}, "k5 v3 k0 v7 k2 v1 = k0 > v7"),
    ("mqar", {}, "k5 v3 k0 v7 k2 v1 = k0 v7 k5 > v3"),
    ("needle", {}, "q f K 7 m a c v t ? K > 7"),
    ("needle", {"digits": 3}, "q f K 7 1 9 m a A 1 1 1 ? K > 7 1 9 |"),
    ("index_position", {}, "c a f b = 0 2 > f"),
    ("index_position", {"origin": "end"}, "c a f b = 0 0 > b"),
    ("index_content", {}, "c a f b = a > f"),
    ("indirect_indexing", {}, "c a f b = a + 0 2 > b"),
    ("indirect_indexing", {}, "c a f b = b - 0 3 > c"),
]


@pytest.mark.parametrize(("name", "options", "text"), EXAMPLES, ids=[text for _, _, text in EXAMPLES])
def test_answers_people_can_check(name, options, text):
    made = task(name, **options)
    prompt, answer = ([made.symbols.index(word) for word in part.split()] for part in text.split(">"))
    assert made.solve([EDGE, *prompt]) == answer


def row(made, text):
    """A batch of one row, written like ``a b = > b a |``: '>' stands before an answer token."""
    tokens, asked = [], []
    mark = False
    for word in text.split():
        if word == ">":
            mark = True
            continue
        tokens.append(made.symbols.index(word))
        asked.append(mark)
        mark = False
    t = torch.tensor([tokens])
    return Batch(t[:, :-1], torch.where(torch.tensor([asked])[:, 1:], t[:, 1:], IGNORE))


def test_shows_a_row():
    made = task("copy")
    assert made.show(row(made, "| b a = > b > a > |"), 0) == "b a = → b a |"
    made = task("flip_flop")
    assert made.show(row(made, "| w 1 r > 1 i 0 r > 1"), 0) == "w 1 r → 1 i 0 r → 1"
    made = task("mqar")
    batch = made.train_batch(0, 20, seed=0, max_size=4)
    for i in range(20):
        shown = made.show(batch, i)
        assert "|" not in shown and shown.count("→") == shown.split("=")[1].count("k")
    made = task("needle")
    batch = made.train_batch(0, 20, seed=0, max_size=30)
    for i in range(20):
        head, _, tail = made.show(batch, i).partition(" → ")
        assert head.split()[-2] == "?" and tail.isdigit()


def test_selective_copy_is_tested_with_other_blanks():
    made = task("selective_copy", blanks=2, test_blanks=0.25)
    blank = made.symbols.index("_")
    assert int((made.batch(stream("a"), 8, 1).tokens == blank).sum()) == 16
    assert int((made.eval_batch(8, 1, 0).tokens == blank).sum()) == 2


def test_flip_flop_ignores_as_often_as_asked():
    made = task("flip_flop", ignore=0.8, test_ignore=0.98)
    ignored = made.symbols.index("i")
    for test, expected in ((False, 0.8), (True, 0.98)):
        tokens = made.batch(stream("f"), 200, 100, test=test).tokens[:, 3:-1:2]
        assert abs((tokens == ignored).double().mean() - expected) < 0.01
    written = made.batch(stream("f"), 200, 100).tokens[:, 3:-1:2]
    assert abs((written == 1).double().mean() - 0.1) < 0.01


def test_counting_asks_for_all_values_alike():
    made = task("counting")
    values = made.batch(stream("c"), 40, 4000).targets[:, -1] - made.symbols.index("0")
    counts = values.bincount(minlength=10).double() / 4000
    assert (counts - 0.1).abs().max() < 5 * math.sqrt(0.09 / 4000)


def test_mqar_asks_for_different_keys_in_random_order():
    made = task("mqar", queries=5)
    batch = made.batch(stream("m"), 12, 300)
    keys = batch.tokens[:, 1:25:2]
    asked = batch.tokens[:, 26::2]
    assert all(len(set(k)) == 12 for k in keys.tolist())
    assert all(len(set(q)) == 5 and set(q) <= set(k) for q, k in zip(asked.tolist(), keys.tolist(), strict=True))
    place = (keys[:, None, :] == asked[:, :, None]).int().argmax(2).double()
    assert (place.mean(0) - 5.5).abs().max() < 1  # 3.45 / √300 = 0.2 is a standard deviation


@pytest.mark.parametrize("needles", [1, 3])
@pytest.mark.parametrize("digits", [1, 3])
@pytest.mark.parametrize("depth", [0.0, 0.31, 1.0])
def test_a_needle_is_where_it_should_be(depth, digits, needles):
    made = task("needle", depth=depth, digits=digits, needles=needles)
    size = 40
    batch = made.eval_batch(size, 50, 0)
    place = round(depth * (size - 1 - digits))
    question = batch.tokens[:, size + 2]
    assert (batch.tokens[:, size + 1] == ASK).all()
    assert torch.equal(batch.tokens[:, 1 + place], question)
    capitals = batch.tokens[:, 1 : size + 1] >= made.symbols.index("A")
    figures = batch.tokens[:, 1 : size + 1] >= made.symbols.index("0")
    assert (capitals.sum(1) == needles).all()
    assert (figures.sum(1) == needles * (1 + digits)).all()  # none lies over another
    assert len(set(question.tolist())) > 10


def test_a_needle_is_anywhere_without_a_depth():
    made = task("needle")
    tokens = made.batch(stream("n"), 12, 2200).tokens[:, 1:13]
    place = (tokens >= made.symbols.index("A")).int().argmax(1)
    assert torch.equal(place.unique(), torch.arange(11))
    assert (place.bincount() - 200).abs().max() < 5 * math.sqrt(200)


def test_grid_of_lengths_and_depths():
    made = task("needle", digits=2)
    grid = list(made.grid(stream("g"), [16, 32], [0.0, 0.5, 1.0], 7))
    assert [(length, depth) for length, depth, _ in grid] == [(n, d) for n in (16, 32) for d in (0.0, 0.5, 1.0)]
    for length, depth, batch in grid:
        assert batch.tokens.shape == (7, length)
        place = round(depth * (length - 5 - 3))
        assert torch.equal(batch.tokens[:, 1 + place], batch.tokens[:, -3])  # K, and its two digits
    with pytest.raises(ConfigError, match="at least 8 tokens; got 7"):
        next(made.grid(stream("g"), [7], [0.5], 1))
    near = made.at_depth(30, 0.9, 5, seed=0)
    assert same(near, made.at_depth(30, 0.9, 5, seed=0)) and not same(near, made.at_depth(30, 0.9, 5, seed=1))
    assert torch.equal(near.tokens[:, 1 + round(0.9 * 27)], near.tokens[:, -3])
    several = task("needle", needles=3).at_depth(30, 0.5, 5, seed=0)
    assert ((several.tokens >= made.symbols.index("A")).sum(1) == 4).all()


def test_numbers_have_the_digits_they_should():
    made = task("addition")
    tokens = made.batch(stream("n"), 4, 2000).tokens
    zero = made.symbols.index("0")
    a, b = tokens[:, 1:5] - zero, tokens[:, 6:10] - zero
    digits = [((x != 0).int() * torch.arange(4, 0, -1)).amax(1).clamp(min=1) for x in (a, b)]
    longer = torch.maximum(*digits)
    assert (longer == 4).all()
    shorter = torch.minimum(*digits)
    assert all(abs(int((shorter == n).sum()) - 500) < 5 * math.sqrt(375) for n in (1, 2, 3, 4))
    assert 850 < int((digits[0] == 4).sum() - ((digits[0] == 4) & (digits[1] == 4)).sum() / 2) < 1150


# ---- coupled positions ------------------------------------------------------------------------------------------

GOLDEN = json.loads((Path(__file__).parent.parent / "golden/076-position-coupling.json").read_text())["cases"]
SUMS = [case for case in GOLDEN if case["params"]["task"] == "addition"]


@pytest.mark.parametrize("case", SUMS, ids=[case["name"] for case in SUMS])
def test_coupled_positions_are_the_published_ones(case):
    made = task("addition_coupled", reverse=case["params"].get("reverse_output", True))
    text, out = case["outputs"]["input_tokens"], case["outputs"]
    plus = text.index("+")
    a, b = ([[int(digit) for digit in part]] for part in (text[:plus], text[plus + 1 :]))
    examples = made.write(torch.tensor(a), torch.tensor(b))
    assert [made.symbols[t] for t in examples.tokens[0]] == ["|", *text, "=", *out["label_tokens"], "|"]
    start = torch.tensor([case["params"]["start"]])
    assert made.positions(start, plus).tolist() == [[0, *out["input_positions"], *out["label_positions"], 0]]
    assert made.positions(start + 5, plus)[0, 1:-1].tolist() == [
        p + 5 for p in (*out["input_positions"], *out["label_positions"])
    ]


def test_there_are_golden_sums():
    assert len(SUMS) == 4


@pytest.mark.parametrize("reverse", [True, False])
def test_every_position_is_trained_and_scoring_starts_at_one(reverse):
    made = task("addition_coupled", max_position=15, reverse=reverse)
    seen = torch.cat([made.train_batch(s, 64, seed=0, max_size=5).positions.flatten() for s in range(10)])
    assert torch.equal(seen.unique(), torch.arange(16))
    batch = made.eval_batch(5, 32, 0)
    assert batch.positions.shape == batch.tokens.shape
    assert (batch.positions == batch.positions[0]).all()
    inner = batch.positions[0, 1:].tolist()
    assert min(inner) == 1 and max(inner) == (7 if reverse else 8)
    assert (batch.positions[:, 0] == 0).all()
    largest = made.largest
    assert int(made.eval_batch(largest, 2, 0).positions.max()) == 15
    assert int(made.train_batch(0, 64, seed=0, max_size=largest).positions.max()) <= 15
    with pytest.raises(ConfigError, match=f"from 1 to {largest} with these options; got {largest + 1}"):
        made.eval_batch(largest + 1, 1, 0)


def test_coupling_changes_nothing_but_positions():
    one, other = (task(name).batch(stream("x"), 4, 6, test=True) for name in ("addition", "addition_coupled"))
    assert torch.equal(one.tokens, other.tokens) and torch.equal(one.targets, other.targets)
    assert one.positions is None
    other.where()  # the encodings take them


# ---- scores -----------------------------------------------------------------------------------------------------


def small():
    return Batch(torch.tensor([[0, 1, 2], [0, 2, 1]]), torch.tensor([[IGNORE, 2, 3], [IGNORE, IGNORE, 0]]))


def test_score_counts_rows_and_tokens():
    exact, token = score(torch.tensor([[9, 2, 0], [9, 9, 0]]), small())
    assert exact.tolist() == [False, True] and token == pytest.approx(2 / 3)


def test_score_takes_the_first_of_equal_logits():
    logits = torch.zeros(2, 3, 4)
    exact, token = score(logits, small())
    assert exact.tolist() == [False, True] and token == pytest.approx(1 / 3)
    logits[..., 2:] = 5.0
    assert score(logits, small()).token == pytest.approx(1 / 3)  # token 2 everywhere


def test_score_refuses_what_it_cannot_judge():
    logits = torch.zeros(2, 3, 4)
    logits[1, 0, 0] = math.nan
    with pytest.raises(TrialError, match=r"rows \[1\] contain NaN"):
        score(logits, small())
    for wrong in (torch.zeros(2, 4, 4), torch.zeros(2, 3), torch.zeros(2, 3, 4, dtype=torch.int64)):
        with pytest.raises(ShapeError, match="to score targets of shape"):
            score(wrong, small())
    empty = Batch(torch.zeros(1, 2, dtype=torch.int64), torch.full((1, 2), IGNORE))
    with pytest.raises(ShapeError, match="no target"):
        score(torch.zeros(1, 2, dtype=torch.int64), empty)


# ---- names and options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("copy", {"alphabet": 1}, "alphabet is a whole number of letters from 2 to 52; got 1"),
        ("copy", {"alphabet": 53}, "got 53"),
        ("copy", {"alfabet": 5}, "takes no 'alfabet'; it takes alphabet. Did you mean 'alphabet'"),
        ("parity", {"modulus": 3}, "takes no 'modulus'; it takes no options"),
        ("selective_copy", {"blanks": -1}, "blanks is a number .* got -1"),
        ("selective_copy", {"test_blanks": math.inf}, "test_blanks is a number .* got inf"),
        ("selective_copy", {"blanks": math.nan}, "blanks is a number .* got nan"),
        ("summation", {"modulus": 11}, "modulus is a whole number from 2 to 10; got 11"),
        ("addition", {"reverse": 1}, "reverse is True or False; got 1"),
        ("addition_coupled", {"max_position": 2}, "at least 3, .* got 2"),
        ("addition_coupled", {"max_position": 3, "reverse": False}, "at least 4, .* got 3"),
        ("flip_flop", {"ignore": 1.5}, "ignore is a number from 0 to 1; got 1.5"),
        ("flip_flop", {"test_ignore": math.nan}, "test_ignore is a number from 0 to 1; got nan"),
        ("counting", {"variables": 0}, "variables is a whole number from 1 to 52; got 0"),
        ("counting", {"passes": "many"}, "passes is a number from 0 to 1; got 'many'"),
        ("mqar", {"queries": 0}, "queries is a whole number, at least 1; got 0"),
        ("needle", {"depth": 2}, "depth is a number from 0 to 1; got 2"),
        ("needle", {"needles": 27}, "needles is a whole number from 1 to 26.* got 27"),
        ("index_position", {"origin": "middle"}, "origin is 'start' or 'end'; got 'middle'"),
        ("index_position", {"digits": 0}, "digits is a whole number, at least 1; got 0"),
        ("indirect_indexing", {"max_shift": 52}, "max_shift is a whole number from 1 to 51; got 52"),
    ],
)
def test_bad_options(name, options, message):
    with pytest.raises(ConfigError, match=message):
        task(name, **options)


def test_options_bound_the_size():
    for made, most in (
        (task("mqar", keys=9), 9),
        (task("index_position", digits=1), 10),
        (task("indirect_indexing"), 52),
    ):
        assert made.eval_batch(most, 2, 0).tokens.shape[0] == 2
        with pytest.raises(ConfigError, match=f"to {most} with these options; got {most + 1}"):
            made.train_batch(0, 2, seed=0, max_size=most + 1)
    assert task("needle", needles=4, digits=2).min_size == 14


def test_unknown_names():
    with pytest.raises(UnknownNameError, match=r"no task is called 'nedle'. Did you mean 'needle'\? There are copy, "):
        task("nedle")
    assert task("Selective-Copy").name == "selective_copy"
    assert set(TASKS) <= set(names())


class Constant(Task):
    """= 0."""

    name, summary, source, size_name = "constant", "say nothing", "arXiv none", "nothings"
    symbols = ("|", "=")
    train_size, eval_sizes = 2, (2, 8)

    def draw(self, generator, size, count, *, test):
        from ropewalk.lab.tasks.examples import ask, written

        return written(ask(count), ask(count), end=False)

    def solve(self, prompt):
        return [ASK]

    def length(self, size):
        return 2

    def space(self, size):
        return 10**6  # which is not true


def broken(**anything):
    return anything


@pytest.fixture
def theirs(monkeypatch):
    points = [
        metadata.EntryPoint(name, value, tasks.ENTRY_POINTS)
        for name, value in (
            ("constant", f"{__name__}:Constant"),
            ("no_task", f"{__name__}:broken"),
            ("not_there", f"{__name__}:missing"),
        )
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: metadata.EntryPoints(points))


def test_tasks_of_other_packages(theirs):
    assert names()[-3:] == ("constant", "no_task", "not_there")
    assert isinstance(task("constant"), Constant)
    assert task("copy").name == "copy"
    with pytest.raises(ConfigError, match="makes a dict; it has to make a Task"):
        task("no_task", any=1)
    with pytest.raises(ConfigError, match="cannot be loaded: AttributeError"):
        task("not_there")


def test_a_task_that_promises_too_many_examples_is_told_so(theirs):
    made = task("constant")
    with pytest.raises(RopewalkError, match=r"its space\(\) promises too many"):
        made.examples(stream("x"), 2, 3, test=not held_out(torch.tensor([[EDGE, ASK, ASK]])))
