"""Position coupling: one position for tokens of one part (arXiv 2405.20671)."""

from __future__ import annotations

import json

import pytest
import torch
from reference import FOLDER, close, random

import ropewalk as rw
from ropewalk.coordinates.coupling import hinted, ids_from_groups, random_start, scrambled, uncoupled
from ropewalk.core.errors import ConfigError, PositionError
from ropewalk.lab.tasks.addition import AdditionCoupled

CASES = {
    case["name"]: case
    for case in json.loads((FOLDER / "076-position-coupling.json").read_text(encoding="utf-8"))["cases"]
}


def written(case):
    """Return the example that a case is about."""
    p, text = case["params"], case["inputs"]["input_string"].replace("P", "0")
    task, start = p["task"], p["start"]
    if task in ("addition", "multi-operand addition"):
        more = {"reverse": p["reverse_output"]} if "reverse_output" in p else {}
        numbers = case["inputs"]["input_string"].replace("P", "").split("+")
        return rw.couple("addition", *numbers, start=start, **more)
    if task == "NxM multiplication":
        return rw.couple("multiplication", *text.split("*"), start=start)
    if task == "copy":
        return rw.couple("copy", text, start=start, reverse=p["reverse_output"])
    if task.startswith("parity"):
        return rw.couple("parity", text, start=start, scratchpad=task.endswith("scratchpad"))
    rows = [text[r * p["widths"] : (r + 1) * p["widths"]] for r in range(p["heights"])]
    return rw.couple("minesweeper", rows, start=start)


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    case = CASES[name]
    made, want = written(case), case["outputs"]
    n = len(want["input_tokens"])
    assert made.tokens == ("|", *want["input_tokens"], "=", *want["label_tokens"], "|")
    several = isinstance(want["input_positions"][0], list)
    for axis, ids in enumerate(made.ids):
        given = [want[side][axis] if several else want[side] for side in ("input_positions", "label_positions")]
        assert ids == (0, *given[0], *given[1], 0)
    assert made.answer == (*[False] * (n + 2), *[True] * (len(want["label_tokens"]) + 1))
    assert made.eos == len(made.tokens) - 1


# ---- properties of the sheet -----------------------------------------------------------------------------------------

EXAMPLES = [
    rw.couple("addition", "653", "49"),
    rw.couple("addition", "653", "49", reverse=False),
    rw.couple("addition", "57", "48", "96"),
    rw.couple("multiplication", "653", "49"),
    rw.couple("copy", "abca"),
    rw.couple("copy", "abca", reverse=True),
    rw.couple("parity", "10110"),
    rw.couple("parity", "10110", scratchpad=True),
    rw.couple("minesweeper", ["MEE", "EEM"]),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: "".join(e.tokens))
def test_starts(example):
    moved = example.moved(7)
    for old, new in zip(example.ids, moved.ids, strict=True):
        assert new == tuple(i if i == 0 else i + 6 for i in old)
    assert moved.moved(1) == example
    generator = torch.Generator().manual_seed(0)
    top = max(max(ids) for ids in example.ids) + 3
    seen = [set() for _ in example.ids]
    for _ in range(200):
        there = example.moved(random_start(example, top, generator))
        for found, ids in zip(seen, there.ids, strict=True):
            found |= set(ids) - {0}
    assert all(found == set(range(1, top + 1)) for found in seen)


def test_digits_of_equal_significance():
    example = rw.couple("addition", "653", "49")
    ids, tokens = example.ids[0], example.tokens
    assert ids[1:4] == ids[5:8]
    assert {ids[i] for i, t in enumerate(tokens) if t in "+="} == {1}
    assert ids[9:12] == ids[3:0:-1]
    other = rw.couple("addition", "653", "4")  # as long, once it is padded
    assert other.ids == example.ids


def test_cells_of_a_board():
    example = rw.couple("minesweeper", ["MEEE", "EEME"], start=(2, 5))
    for ids in example.ids:
        assert ids[1:9] == ids[10:18]
    assert (example.ids[0][9], example.ids[1][9]) == (2, 5)
    assert example.reach == (4, 2)


def test_the_task_of_the_lab_says_the_same():
    for reverse in (True, False):
        task = AdditionCoupled(reverse=reverse)
        example = rw.couple("addition", "653", "49", start=4, reverse=reverse)
        assert task.positions(torch.tensor([4]), 3).tolist() == [list(example.ids[0])]


def test_baselines():
    example = rw.couple("addition", "653", "49", start=3)
    assert uncoupled(example).ids == ((0, *range(3, 15), 0),)
    mixed = scrambled(example, torch.Generator().manual_seed(1))
    old, new = example.ids[0], mixed.ids[0]
    assert sorted(set(new)) == sorted(set(old))
    assert new != old
    for i, token in enumerate(example.tokens):
        if token in "+=|":
            assert new[i] == old[i]
    pairs = {(a, b) for a, b in zip(old, new, strict=True)}
    assert len(pairs) == len(set(old))  # digits of equal significance are still together
    board = scrambled(EXAMPLES[-1], torch.Generator().manual_seed(0))
    for ids in board.ids:
        assert ids[1:7] == ids[8:14]


def test_groups():
    assert ids_from_groups([None, 2, 1, 0, 1, 2, None], 5) == (0, 7, 6, 5, 6, 7, 0)
    with pytest.raises(ConfigError, match="whole numbers from 0"):
        ids_from_groups([1, -1])


# ---- the table, and others -------------------------------------------------------------------------------------------


def test_the_table():
    torch.manual_seed(0)
    made = rw.position_coupling(8, 20).double()
    where = rw.coupled_positions([rw.couple("addition", "7", "5"), rw.couple("addition", "12", "5")])
    assert where.query.position.tolist()[0] == [0, 2, 1, 2, 1, 2, 3, 0, 0, 0, 0]
    assert where.query.column("valid")[0].tolist() == [True] * 8 + [False] * 3
    x = random(2, 11, 8)
    close(made.embed(x, where), x + made.weight[where.query.position])


@pytest.mark.parametrize("share", [True, False])
def test_a_table_for_each_dimension(share):
    torch.manual_seed(0)
    made = rw.position_coupling(8, 20, 2, share=share).double()
    where = rw.coupled_positions([rw.couple("minesweeper", ["MEE", "EEM"], start=(2, 3))])
    assert where.query.position.shape == (1, 15, 2)
    tables = list(made.parameters())
    assert len(tables) == (1 if share else 2)
    x, (across, down) = random(1, 15, 8), where.query.position.unbind(-1)
    close(made.embed(x, where), x + tables[0][across] + tables[-1][down])


def test_positions_that_repeat_are_causal_by_order():
    """Any encoding takes them, and a token still sees those before it alone."""
    where = rw.coupled_positions([rw.couple("addition", "653", "49")])
    n = where.query.length
    q, v = random(1, 2, n, 8), random(1, 2, n, 8, seed=1)
    for encoding in (rw.RoPE(8), rw.ALiBi(2)):
        p = rw.Attention(q, q, v, where)
        out = rw.attend(encoding(p), backend="dense")
        later = v.clone()
        later[:, :, 9:] += 5
        changed = rw.attend(encoding(p.replace(v=later)), backend="dense")
        close(changed[:, :, :9], out[:, :, :9])


def test_answers_are_decoded_at_positions_known_beforehand():
    encoding = rw.RoPE(8)
    where = rw.coupled_positions([rw.couple("addition", "653", "49")])
    n = where.query.length
    q, k, v = random(1, 2, n, 8), random(1, 2, n, 8, seed=1), random(1, 2, n, 8, seed=2)
    cache, out = rw.KVCache(encoding), []
    for a, b in ((0, 9), *((i, i + 1) for i in range(9, n))):
        part = rw.Attention(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b], where.slice(a, b))
        out.append(rw.attend(cache.extend(part), "dense"))
    close(torch.cat(out, 2), rw.attend(encoding(rw.Attention(q, k, v, where)), "dense"))
    with pytest.raises(PositionError, match="guess"):  # and what follows is never made up
        _ = where.key.next


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: rw.couple("additions", "1", "2"), "Did you mean 'addition'"),
        (lambda: rw.couple("addition", "1"), "two numbers or more"),
        (lambda: rw.couple("addition", "1", "-2"), "string of digits"),
        (lambda: rw.couple("multiplication", "1", "2", "3"), "two numbers"),
        (lambda: rw.couple("multiplication", "1", "2", reverse=True), "no option 'reverse'"),
        (lambda: rw.couple("copy", ""), "at least one symbol"),
        (lambda: rw.couple("parity", "102"), "bits 0 and 1"),
        (lambda: rw.couple("minesweeper", ["ME", "M"]), "all of one length"),
        (lambda: rw.couple("minesweeper", ["MX"]), "rows of M and E"),
        (lambda: rw.couple("addition", "1", "2", start=0), "start is a whole number"),
        (lambda: rw.couple("minesweeper", ["ME"], start=(1, 2, 3)), "3 starts for 2 dimensions"),
        (lambda: rw.position_coupling(8, share=True), "several dimensions"),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(ConfigError, match=match):
        call()


def test_positions_beyond_the_table():
    example = rw.couple("addition", "653", "49")
    with pytest.raises(PositionError, match="takes 5 positions, and max_position is 4"):
        random_start(example, 4)
    assert random_start(example, 5) == (1,)
    with pytest.raises(PositionError, match="larger max_length"):
        rw.position_coupling(8, 4).embed(torch.zeros(1, 14, 8), rw.coupled_positions([example]))
    with pytest.raises(PositionError, match="all of the same task"):
        rw.coupled_positions([example, EXAMPLES[-1]])


def test_a_start_may_shift_the_whole_row():
    example = rw.couple("addition", "653", "49", start=3)
    whole = uncoupled(example, whole=True)
    assert whole.ids == (tuple(range(3, 3 + len(example.tokens))),)
    assert whole.moved(1).ids == (tuple(range(1, 1 + len(example.tokens))),)
    assert random_start(whole, len(example.tokens)) == (1,)
    with pytest.raises(PositionError, match="max_position"):
        random_start(whole, len(example.tokens) - 1)
    board = uncoupled(EXAMPLES[-1], whole=True)
    assert board.ids[0] == board.ids[1] == tuple(range(1, 1 + len(board.tokens)))


def test_hints_name_the_significance():
    example = rw.couple("addition", "653", "49", start=2)
    made = hinted(example)
    assert "".join(made.tokens) == "|#56#45#33+#50#44#39=#32#40#57#60|"
    assert made.ids == ((0, *range(2, len(made.tokens)), 0),)
    plain = [i for i, token in enumerate(made.tokens) if not token.startswith("#")]
    assert tuple(made.tokens[i] for i in plain) == example.tokens
    assert tuple(made.answer[i] for i in plain) == example.answer
    first = made.answer.index(True)
    assert made.tokens[first - 1 : first + 2] == ("=", "#3", "2")  # the hint of a digit is part of the answer
    assert all(made.answer[first:])
    assert "".join(hinted(example, separators=True).tokens).startswith("|#56#45#33#2+#50")
    assert hinted(example.moved(7)).tokens[1] == "#10"
    where = rw.coupled_positions([made])
    assert where.query.position.shape == (1, len(made.tokens))
    with pytest.raises(ConfigError, match="one position, and tokens of this example have 2"):
        hinted(EXAMPLES[-1])
