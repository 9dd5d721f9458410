"""Questions about what stands far above: hidden sentences, and definitions of the text's own code.

All questions about a text stand at its end, each followed by its answer, so that one pass of the model answers all of them.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ropewalk.lab.batch import IGNORE
from ropewalk.lab.data import Corpus
from ropewalk.lab.data.packing import generator
from ropewalk.lab.data.tokens import Tokenizer
from ropewalk.lab.extend.losses import predictions
from ropewalk.lab.extend.text import Windows
from ropewalk.lab.results import Record

LETTERS = "bcdfghjklmnpqrstvwxz"
HEADER = re.compile(r"^ *def (\w+)\(([^()#\"']+)\)(?: *->[^:]+)?:$")
ANSWER = (4, 48)
"""Fewest and most tokens of a definition's answer."""

SHARE = 4
"""Questions and definitions take at most one part in so many of the trained context, each; a lone one may take more."""


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked, and what should follow.

    Attributes:
        asked: (n,) tokens.
        answer: (m,) tokens.
    """

    asked: Tensor
    answer: Tensor

    def __len__(self) -> int:
        return len(self.asked) + len(self.answer)


@dataclass(frozen=True, eq=False)
class Exam:
    """A text, and questions about it.

    Attributes:
        text: (n,) tokens that hold the answers.
        other: (n,) tokens that are much the same and do not hold them.
        questions: in the order in which they are asked.
        facts: what the records of each question say besides.
    """

    text: Tensor
    other: Tensor
    questions: tuple[Question, ...]
    facts: tuple[Record, ...]

    def take(self, model: Any, control: bool, tokenizer: Tokenizer | None = None) -> list[Record]:
        """Let a model answer, and return a record for each question.

        Returns:
            records with the facts of the question, right (1 if greedy decoding would write the whole answer, given the earlier
            ones), margin (how many nats the least sure token of the answer is before the next best) and, with a control,
            gained: the nats a token that having read the answer is worth.
        """
        told = self._read(model, self.text, tokenizer)
        other = self._read(model, self.other, tokenizer) if control else None
        records: list[Record] = []
        for i, (loss, margin) in enumerate(told):
            gained = {} if other is None else {"gained": other[i][0] - loss}
            records.append({**self.facts[i], "right": float(margin > 0), "margin": margin, **gained})
        return records

    @torch.no_grad()
    def _read(self, model: Any, text: Tensor, tokenizer: Tokenizer | None) -> list[tuple[float, float]]:
        """Return the mean loss and the smallest margin of each answer."""
        tokens = torch.cat([text, *(part for q in self.questions for part in (q.asked, q.answer))])
        blank = [torch.full_like(text, IGNORE)]
        blank += [part for q in self.questions for part in (torch.full_like(q.asked, IGNORE), q.answer)]
        loss, margin = predictions(model, tokens[None, :-1], torch.cat(blank)[None, 1:], tokenizer)
        sizes = [len(q.answer) for q in self.questions]
        parts = zip(loss.double().split(sizes), margin.double().split(sizes), strict=True)
        return [(float(a.mean()), float(b.min())) for a, b in parts]


class Needles:
    """Sentences "# The pass key of NAME is 48213." at several depths of a text; at its end the beginning of each is repeated.

    An answer is right if every token of the key is the likeliest one. With a control, also how many nats a token of it costs
    less than when the text holds other keys in the same places: 0 if nothing was retrieved.

    Args:
        tokenizer: of the model.
        windows: of text, in which sentences are hidden in turn.
        count: texts, each with a sentence at every depth.
        depths: from 0, the beginning and farthest from the questions, to 1.
        trained: tokens of the trained context. Where it is short, the depths of a text are asked in several passes.
        seed: of names and keys, and of the order of the questions.
    """

    def __init__(
        self, tokenizer: Tokenizer, windows: Windows, count: int, depths: Sequence[float], trained: int, seed: int
    ) -> None:
        self.tokenizer, self.windows, self.count, self.seed = tokenizer, windows, count, seed
        asked, answer, needle, _ = self._drawn(0)
        together = max(1, trained // SHARE // (len(asked) + len(answer) + len(needle)))
        passes = math.ceil(len(depths) / together)
        self.groups = [list(enumerate(depths))[i::passes] for i in range(passes)]

    def exams(self, length: int) -> list[Exam]:
        """Return texts of ``length`` tokens, questions and answers included; none where they do not fit."""
        made = (self._exam(length, i, group) for i in range(self.count) for group in self.groups)
        return [exam for exam in made if exam is not None]

    def _exam(self, length: int, text: int, group: Sequence[tuple[int, float]]) -> Exam | None:
        drawn = [self._drawn(text, number) for number, _ in group]
        free = length - sum(len(asked) + len(answer) + len(needle) for asked, answer, needle, _ in drawn)
        if free < 1:
            return None
        hay = self.windows.tokens[text % len(self.windows), :free]
        at = [round(depth * free) for _, depth in group]
        pieces = [hay[a:b] for a, b in zip([0, *at], [*at, free], strict=True)]

        def hidden(which: int) -> Tensor:
            between = [part for piece, one in zip(pieces[1:], drawn, strict=True) for part in (one[which], piece)]
            return torch.cat([pieces[0], *between])

        order = torch.randperm(len(group), generator=generator("needles", self.seed, text, length)).tolist()
        return Exam(
            hidden(2),
            hidden(3),
            tuple(Question(*drawn[n][:2]) for n in order),
            tuple({"kind": "retrieval", "depth": group[n][1]} for n in order),
        )

    def _drawn(self, *number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return a question, its answer, the sentence that holds it, and one of as many tokens that holds another."""
        draw = generator("needle", self.seed, *number)
        while True:
            name = "".join(LETTERS[n] for n in torch.randint(len(LETTERS), (5,), generator=draw).tolist())
            key, other = ("".join(map(str, k)) for k in torch.randint(10, (2, 5), generator=draw).tolist())
            beginning = f"\n# The pass key of {name} is"
            asked, answer = split(self.tokenizer, beginning, f" {key}")
            needle, without = (_encoded(self.tokenizer, f"{beginning} {k}.\n") for k in (key, other))
            if key != other and len(needle) == len(without):
                return asked, answer, needle, without


@dataclass(frozen=True, eq=False)
class Context:
    """A text that begins with the header of a function, and what is asked about it and other functions that soon follow.

    Attributes:
        text: tokens, as many as the longest context.
        other: the same text without these headers.
        stop: tokens up to the end of the last of them.
        questions: the beginnings of the headers; the answers are their parameters.
    """

    text: Tensor
    other: Tensor
    stop: int
    questions: tuple[Question, ...]


@dataclass(frozen=True, eq=False)
class Definitions:
    """The parameters of functions that were defined at the beginning of the context; names and parameters stand nowhere else.

    At the end of the context stand their headers again, up to the parameters. With a control, also how many nats a token of them
    costs less than when the headers were left out of the text.
    """

    contexts: tuple[Context, ...]

    def __len__(self) -> int:
        return sum(len(context.questions) for context in self.contexts)

    def exams(self, length: int) -> list[Exam]:
        """Return contexts of ``length`` tokens, questions and answers included; none where they do not fit."""
        made = []
        for c in self.contexts:
            room = length - sum(map(len, c.questions))
            if room >= c.stop:
                facts: tuple[Record, ...] = ({"kind": "definition"},) * len(c.questions)
                made.append(Exam(c.text[:room], c.other[:room], c.questions, facts))
        return made


def find_definitions(corpus: Corpus, longest: int, trained: int, count: int, seed: int) -> Definitions:
    """Find functions of several parameters in the measured documents, as far as they are Python.

    After the end of its document a context goes on with the next one.

    Args:
        corpus: the text.
        longest: tokens of the longest context.
        trained: tokens of the trained context. What is asked for together is defined within a quarter of it.
        count: definitions wanted; there are fewer where the text has no more.
        seed: of the choice.
    """
    documents = corpus.documents("test").tolist() if count else []
    spans = [(int(corpus.offsets[d]) + 1, int(corpus.offsets[d + 1])) for d in documents]
    sources = [corpus.tokenizer.decode(corpus.tokens[a:b]) for a, b in spans]
    headers = [list(_headers(source)) for source in sources]
    candidates = [(d, n) for d in range(len(documents)) for n in range(len(headers[d]))]
    contexts: list[Context] = []
    taken: set[str] = set()
    for number in torch.randperm(len(candidates), generator=generator("definitions", seed)).tolist():
        d, first = candidates[number]
        left = count - sum(len(c.questions) for c in contexts)
        if left <= 0:
            break
        source = "".join([sources[d][headers[d][first].start :], *sources[d + 1 :], *sources[:d]])
        soon = [h for h in headers[d][first:] if h.name not in taken]
        if soon and soon[0] is headers[d][first]:
            made = _context(corpus.tokenizer, source, soon, longest, trained // SHARE, left)
            if made is not None:
                context, names = made
                contexts.append(context)
                taken |= names
    return Definitions(tuple(contexts))


@dataclass(frozen=True)
class _Header:
    """A header of one line, and where it stands in characters."""

    name: str
    parameters: str
    start: int
    stop: int


def _context(
    tokenizer: Tokenizer, source: str, headers: Sequence[_Header], longest: int, share: int, most: int
) -> tuple[Context, set[str]] | None:
    """Return a context that begins with the first header, and the names it asks for; None: nobody can ask for the first one."""
    begin = headers[0].start
    text = _beginning(tokenizer, source, longest)
    whole = tokenizer.decode(text)
    asked: list[Question] = []
    used: list[_Header] = []
    stop = 0
    for header in headers[:most]:
        question = Question(
            *split(tokenizer, f"\n\n# as defined above\ndef {header.name}(", f"{header.parameters}):\n")
        )
        # Neither the name nor the parameters stand elsewhere, where they could be copied from.
        unique = len(re.findall(rf"\b{header.name}\b", whole)) == 1 == whole.count(f"({header.parameters})")
        if unique and ANSWER[0] <= len(question.answer) <= ANSWER[1]:
            end = len(_encoded(tokenizer, source[: header.stop - begin]))
            if used and max(end, sum(map(len, (*asked, question)))) > share:
                break
            asked.append(question)
            used.append(header)
            stop = end
        elif header is headers[0]:
            return None
    edges = [0, *(edge - begin for h in used for edge in (h.start, h.stop)), len(source)]
    without = "".join(source[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True))
    other = _beginning(tokenizer, without, longest)
    if min(len(text), len(other)) < longest:
        return None
    return Context(text, other, stop, tuple(asked)), {h.name for h in used}


def _headers(text: str) -> Iterator[_Header]:
    """Yield functions with headers of one line, in the order of the text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    lines = text.splitlines(keepends=True)
    starts = list(accumulate(map(len, lines), initial=0))
    defined = {n.lineno for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    for number in sorted(n for n in defined if n <= len(lines)):
        header = HEADER.match(lines[number - 1].rstrip("\n"))
        if header is not None and header[2].count(",") >= 2 and len(header[1]) > 3:
            yield _Header(header[1], header[2], *starts[number - 1 : number + 1])


def split(tokenizer: Tokenizer, question: str, answer: str) -> tuple[Tensor, Tensor]:
    """Return the tokens of a question and of what follows it, cut where the question's own tokens end.

    A token that goes across belongs to the answer.
    """
    alone, both = _encoded(tokenizer, question), _encoded(tokenizer, question + answer)
    same = alone[: len(both)] == both[: len(alone)]
    shared = len(same) if bool(same.all()) else int((~same).nonzero()[0])
    return both[:shared], both[shared:]


def _beginning(tokenizer: Tokenizer, text: str, count: int) -> Tensor:
    """Return the first tokens of a text, without encoding much more of it."""
    read, made = 4 * count, _encoded(tokenizer, text[: 4 * count])
    while len(made) < count + ANSWER[1] and read < len(text):  # the last tokens may be what was cut
        read *= 2
        made = _encoded(tokenizer, text[:read])
    return made[:count]


def _encoded(tokenizer: Tokenizer, text: str) -> Tensor:
    return torch.as_tensor(tokenizer.encode(text)).long()
