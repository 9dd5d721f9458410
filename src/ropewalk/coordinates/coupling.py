"""Position coupling: tokens that play the same part in a task have the same position.

    example = couple("addition", "653", "49")                       # | 6 5 3 + 0 4 9 = 2 0 7 0 |
    start = random_start(example, max_position=202)                 # in training; 1 for scoring
    positions = coupled_positions([example.moved(start)])

Positions repeat and run backwards, so causality goes by the order of the tokens, as everywhere in this library.

After Hanseul Cho, Jaeyoung Cha, Pranjal Awasthi, Srinadh Bhojanapalli, Anupam Gupta, Chulhee Yun. Position Coupling: Improving
Length Generalization of Arithmetic Transformers Using Task Structure. arXiv 2405.20671, 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, PositionError, check_positive, suggest
from ropewalk.core.positions import Positions

EDGE = "|"
"""Opens a sequence, ends an answer and fills up a row; its position is 0."""


SEPARATORS = ("+", "*", "=")


@dataclass(frozen=True)
class Coupled:
    """A question, its answer, and where their tokens are.

    Attributes:
        tokens: from the edge that opens the sequence to the one that ends the answer.
        ids: of each dimension, the position of each token; 0 for the edges.
        answer: for each token, whether it belongs to the answer, the edge at the end among it: where a loss is taken.
        start: s of each dimension.
    """

    tokens: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]
    answer: tuple[bool, ...]
    start: tuple[int, ...]

    @property
    def eos(self) -> int:
        """Index of the edge that ends the answer."""
        return len(self.tokens) - 1

    @property
    def reach(self) -> tuple[int, ...]:
        """How far the largest position of each dimension lies beyond its start."""
        return tuple(max(ids) - s for ids, s in zip(self.ids, self.start, strict=True))

    def moved(self, start: int | Sequence[int]) -> Coupled:
        """Return the same example from another start; one for all dimensions, or one for each."""
        starts = _starts(start, len(self.ids))
        ids = tuple(
            tuple(i if i == 0 else i - old + new for i in row)
            for row, old, new in zip(self.ids, self.start, starts, strict=True)
        )
        return replace(self, ids=ids, start=starts)


def ids_from_groups(groups: Sequence[int | None], start: int = 1) -> tuple[int, ...]:
    """Return start + group for each token, and 0 where the group is None.

    Tokens of one group, such as the digits of equal significance, share a position, and groups that follow each other are one
    apart. By the general rule what separates numbers is group 0, and groups of digits count from 1.

    Args:
        groups: the group of each token, from 0; None: an edge or padding.
        start: s, at least 1.
    """
    check_positive(start=start)
    wrong = [g for g in groups if g is not None and (isinstance(g, bool) or not isinstance(g, int) or g < 0)]
    if wrong:
        raise ConfigError(f"groups are whole numbers from 0, or None; got {wrong[0]!r}")
    return tuple(0 if g is None else start + g for g in groups)


def couple(task: str, *operands: Any, start: int | Sequence[int] = 1, **options: bool) -> Coupled:
    """Write an example of a task, with coupled positions.

    Args:
        task: "addition" of two or more numbers, "multiplication" of two, "copy" of symbols, "parity" of bits, "minesweeper" on
            a board.
        operands: numbers as strings of digits; symbols as a string; the rows of a board as strings of M (mine) and E (empty).
        start: s; two of them for a board, columns first.
        options: "reverse" of addition (True) and of copy (False): write the answer from its end on. "scratchpad" of parity
            (False): write the parity of all bits up to each.

    Returns:
        The example. Sums of two numbers have a digit more than the longer number; of more, as many as the largest sum can have.

    Raises:
        ConfigError: an unknown task, operands or options that are not of it.

    Example:
        >>> example = couple("addition", "7", "5")
        >>> "".join(example.tokens), example.ids[0]
        ('|7+5=21|', (0, 2, 1, 2, 1, 2, 3, 0))
    """
    if task not in TASKS:
        raise ConfigError(f"task is one of {', '.join(TASKS)}; got {task!r}.{suggest(task, TASKS)}")
    make, known = TASKS[task]
    if wrong := sorted(set(options) - set(known)):
        raise ConfigError(f"{task} has no option {wrong[0]!r}; it has {', '.join(known) or 'none'}")
    question, answer, groups = make(*operands, **options)
    tokens = (EDGE, *question, *answer, EDGE)
    ids = [ids_from_groups([None, *row, None], s) for row, s in zip(groups, _starts(start, len(groups)), strict=True)]
    scored = tuple(i > len(question) for i in range(len(tokens)))
    return Coupled(tokens, tuple(ids), scored, _starts(start, len(groups)))


def random_start(example: Coupled, max_position: int, generator: torch.Generator | None = None) -> tuple[int, ...]:
    """Draw a start for each dimension, evenly from those that keep all positions within 1 … max_position.

    Args:
        example: for its size.
        max_position: largest position that is trained.
        generator: of the draw.
    """
    check_positive(max_position=max_position)
    drawn = []
    for reach in example.reach:
        most = max_position - reach
        if most < 1:
            raise PositionError(
                f"the example takes {reach + 1} positions, and max_position is {max_position}; give a larger one"
            )
        drawn.append(1 + int(torch.randint(most, (1,), generator=generator)))
    return tuple(drawn)


def uncoupled(example: Coupled, whole: bool = False) -> Coupled:
    """Return the example at s, s + 1, s + 2, …: the baseline of tokens that are counted from a random start.

    Args:
        example: for its tokens.
        whole: the edges are counted too, so that the start shifts the whole row; otherwise they stay at 0.
    """
    n = len(example.tokens)
    if whole:
        return replace(example, ids=tuple(tuple(range(s, s + n)) for s in example.start))
    return replace(example, ids=tuple((0, *range(s, s + n - 2), 0) for s in example.start))


def hinted(example: Coupled, separators: bool = False) -> Coupled:
    """Return the example with a hint before each token, at s, s + 1, s + 2, …: the baseline of index hints.

    A hint is a token that names the coupled position, "#4" for 4: digits of equal significance have the same one. They are part
    of the text, of the answer too, and so say in tokens what coupling says in positions.

    Args:
        example: of one dimension.
        separators: what separates numbers has hints too.

    Example:
        >>> "".join(hinted(couple("addition", "7", "5")).tokens)
        '|#27+#25=#22#31|'
    """
    if len(example.ids) != 1:
        raise ConfigError(f"a hint names one position, and tokens of this example have {len(example.ids)}")
    tokens: list[str] = []
    answer: list[bool] = []
    for token, place, scored in zip(example.tokens, example.ids[0], example.answer, strict=True):
        if place and (separators or token not in SEPARATORS):
            tokens.append(f"#{place}")
            answer.append(scored)
        tokens.append(token)
        answer.append(scored)
    return uncoupled(replace(example, tokens=tuple(tokens), answer=tuple(answer)))


def scrambled(example: Coupled, generator: torch.Generator | None = None) -> Coupled:
    """Return the example with the groups of each dimension in a random order; what separates numbers stays.

    Tokens of one part still share a position, and that neighbouring parts are neighbours is lost.
    """
    kept = [i for i, token in enumerate(example.tokens) if token in SEPARATORS]
    ids = []
    for row in example.ids:
        groups = sorted({*row} - {row[i] for i in kept} - {0})
        order = torch.randperm(len(groups), generator=generator).tolist()
        moved = dict(zip(groups, (groups[i] for i in order), strict=True))
        ids.append(tuple(moved.get(i, i) for i in row))
    return replace(example, ids=tuple(ids))


def coupled_positions(examples: Sequence[Coupled]) -> Positions:
    """Return the positions of several examples, (b, S), or (b, S, dimensions) where there is more than one.

    Shorter examples are filled up on the right by tokens at position 0 that nobody attends to. What decoding continues with is
    not known from positions: give those of the answer, which the rule knows beforehand.
    """
    dims = {len(example.ids) for example in examples}
    if len(dims) != 1:
        raise PositionError(f"examples of {sorted(dims)} dimensions; give one or more, all of the same task")
    size = max(len(example.tokens) for example in examples)
    ids = torch.zeros(len(examples), size, *dims, dtype=torch.int64)
    valid = torch.zeros(len(examples), size, dtype=torch.bool)
    for row, example in enumerate(examples):
        n = len(example.tokens)
        ids[row, :n] = torch.tensor(example.ids).T
        valid[row, :n] = True
    return Positions(ids if ids.shape[2] > 1 else ids[..., 0], valid=None if bool(valid.all()) else valid)


# ---- tasks: question with its '=', answer, and the group of each of their tokens in each dimension -----------------------

Written = tuple[Sequence[str], Sequence[str], Sequence[Sequence[int]]]


def _addition(*numbers: str, reverse: bool = True) -> Written:
    if len(numbers) < 2:
        raise ConfigError(f"addition is of two numbers or more; got {len(numbers)}")
    _digits(*numbers)
    longest = max(map(len, numbers))
    if len(numbers) == 2:
        width, size = longest, longest + 1
    else:
        width = size = len(str(len(numbers) * (10**longest - 1)))
    total = str(sum(map(int, numbers))).zfill(size)
    question: list[str] = []
    groups: list[int] = []
    for i, number in enumerate(numbers):
        question += [*number.zfill(width), "+" if i < len(numbers) - 1 else "="]
        groups += [*range(width, 0, -1), 0]
    if reverse:
        return question, total[::-1], [[*groups, *range(1, size + 1)]]
    return question, total, [[*groups[:-1], size + 1, *range(size, 0, -1)]]


def _multiplication(*numbers: str) -> Written:
    if len(numbers) != 2:
        raise ConfigError(f"multiplication is of two numbers; got {len(numbers)}")
    _digits(*numbers)
    a, b = numbers
    n, m = len(a), len(b)
    end = n + m
    product = str(int(a) * int(b)).zfill(end)
    question = [*a, "*", *b, "="]
    groups = [*range(end - n, end), end, *range(end - m, end), end, *range(end - 1, -1, -1)]
    return question, product[::-1], [groups]


def _copy(symbols: str, *, reverse: bool = False) -> Written:
    n = _some(symbols)
    if reverse:
        return [*symbols, "="], symbols[::-1], [[*range(n), n, *range(n - 1, -1, -1)]]
    return [*symbols, "="], symbols, [[*range(1, n + 1), 0, *range(1, n + 1)]]


def _parity(bits: str, *, scratchpad: bool = False) -> Written:
    n = _some(bits)
    if set(bits) - {"0", "1"}:
        raise ConfigError(f"parity is of the bits 0 and 1; got {bits!r}")
    running = [str(bits[: i + 1].count("1") % 2) for i in range(n)]
    if scratchpad:
        return [*bits, "="], running, [[*range(1, n + 1), 0, *range(1, n + 1)]]
    return [*bits, "="], running[-1:], [[*[0] * n, 1, 0]]


def _minesweeper(board: Sequence[str]) -> Written:
    wide = {len(row) for row in board}
    if isinstance(board, str) or len(wide) != 1 or 0 in wide or {*"".join(board)} - {"M", "E"}:
        raise ConfigError(f"a board is rows of M and E, all of one length; got {board!r}")
    columns = wide.pop()
    cells = [(r, c) for r in range(len(board)) for c in range(columns)]

    def count(r: int, c: int) -> str:
        around = (row[max(c - 1, 0) : c + 2] for row in board[max(r - 1, 0) : r + 2])
        return "M" if board[r][c] == "M" else str("".join(around).count("M"))

    across, down = [1 + c for _, c in cells], [1 + r for r, _ in cells]
    groups = [[*across, 0, *across], [*down, 0, *down]]
    return [*"".join(board), "="], [count(r, c) for r, c in cells], groups


TASKS: dict[str, tuple[Callable[..., Written], tuple[str, ...]]] = {
    "addition": (_addition, ("reverse",)),
    "multiplication": (_multiplication, ()),
    "copy": (_copy, ("reverse",)),
    "parity": (_parity, ("scratchpad",)),
    "minesweeper": (_minesweeper, ()),
}
"""What writes each task, and its options."""


def _digits(*numbers: str) -> None:
    for number in numbers:
        if not isinstance(number, str) or not number.isascii() or not number.isdigit():
            raise ConfigError(f"a number is a string of digits; got {number!r}")


def _some(symbols: str) -> int:
    if not isinstance(symbols, str) or not symbols:
        raise ConfigError(f"give a string of at least one symbol; got {symbols!r}")
    return len(symbols)


def _starts(start: int | Sequence[int], dims: int) -> tuple[int, ...]:
    starts = (start,) * dims if isinstance(start, int) else tuple(start)
    if len(starts) != dims:
        raise ConfigError(f"{len(starts)} starts for {dims} dimensions; give one for each")
    for s in starts:
        check_positive(start=s)
    return starts


def sample_coupling(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw positions that repeat, each row from another start."""
    start = torch.randint(1, 9, (batch, 1), generator=generator)
    groups: Tensor = torch.randint(0, 8, (batch, seq), generator=generator)
    return Positions(start + groups)
