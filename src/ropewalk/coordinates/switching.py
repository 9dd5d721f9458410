"""Texts of several languages: where the language changes.

    tags = ["hi", "hi", "en", "en", "o", "hi", "en", "en"]          # o: punctuation, numbers, names
    positions, state = switching_positions([tags])

A neutral token is of the language before it, or of the first one that follows where there is none before. A switch is a token
whose language is another than that of the token before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ropewalk.core.encoding import Coordinates
from ropewalk.core.errors import ConfigError, PositionError, suggest
from ropewalk.core.positions import Positions, Tokens

NEUTRAL = "o"
TAGGED = "rw.switching_positions(tags)"
"""The call that makes positions with switches."""

Tag = str | None
"""Language of a token; `NEUTRAL` or None where it has none."""

Form = Literal["token", "parity", "zigzag", "segment", "count"]


class SwitchState(NamedTuple):
    """Where the next token of a row is, unless its document is another one: what incremental decoding carries."""

    language: str | None = None
    """Of the last token; None before the first that has one."""

    position: int = 0
    """Of the next token."""

    switches: int = 0
    """Switches so far."""

    began: int = 0
    """Position at which the stretch of one language began."""

    walk: int = 0
    """Where the walk that turns around at switches stands."""

    document: int | None = None


def languages(tags: Sequence[Tag]) -> list[str | None]:
    """Return the language of each token; all None where none has a tag."""
    first = next((tag for tag in tags if not _neutral(tag)), None)
    found, last = [], first
    for tag in tags:
        last = last if _neutral(tag) else tag
        found.append(last)
    return found


def switching_points(tags: Sequence[Tag]) -> list[int]:
    """Return 1 for each token at which the language changes, and 0 for the others.

    Example:
        >>> switching_points(["hi", "o", "en", "en", "hi"])
        [0, 0, 1, 0, 1]
    """
    found = languages(tags)
    return [int(i > 0 and found[i] != found[i - 1]) for i in range(len(found))]


def bigram_switches(tags: Sequence[Tag]) -> list[int]:
    """Return 1 for each pair of neighbouring tokens of two languages, n − 1 of them."""
    return switching_points(tags)[1:]


def switching_positions(
    tags: Sequence[Sequence[Tag]],
    state: Sequence[SwitchState] | None = None,
    *,
    document_ids: Tensor | None = None,
    valid: Tensor | None = None,
    device: torch.device | str | None = None,
) -> tuple[Positions, list[SwitchState]]:
    """Count tokens, with the columns that `SwitchCoordinates` reads, (b, S) each.

    "switch": whether the token is a switch. "switches": switches up to it. "since": tokens since the last switch, or since the
    beginning. "walk": u_0 = 0, u_t = u_{t−1} + (−1)^switches, which turns around at every switch.

    All of them depend on the past alone. Packed documents start anew, padding is not counted. Pieces of a word have the tag of
    the word.

    Args:
        tags: of each row; shorter rows are padded on the right.
        state: what the call for the tokens before these returned; None: texts begin.
        document_ids: (b, S) of packed documents.
        valid: (b, S), False for padding, in addition to that of shorter rows.
        device: where the positions live.

    Returns:
        The positions, and the state of each row for the tokens that follow.
    """
    if any(isinstance(row, str) for row in tags):
        raise PositionError(
            "tags are a list of tags for each row; got one tag where a row is expected: give [tags] for one row"
        )
    before = [SwitchState()] * len(tags) if state is None else list(state)
    if len(before) != len(tags):
        raise PositionError(f"the state is of {len(before)} rows and there are tags of {len(tags)}")
    size = max(map(len, tags), default=0)
    documents = _facts(document_ids, len(tags), size, "document_ids")
    real = _facts(valid, len(tags), size, "valid")
    rows, after = [], []
    there = torch.zeros(len(tags), size, dtype=torch.bool)
    for r, (row, one) in enumerate(zip(tags, before, strict=True)):
        made, one = _row(row, one, None if documents is None else documents[r], None if real is None else real[r])
        rows.append([*made, *[(one.position, 0, 0, 0, 0)] * (size - len(row))])
        after.append(one)
        for i in range(len(row)):
            there[r, i] = real is None or real[r][i]
    facts = torch.tensor(rows, dtype=torch.int64).reshape(len(tags), size, 5).to(device)
    position, *columns = facts.unbind(-1)
    names = ("switch", "switches", "since", "walk")
    padded = None if bool(there.all()) else there.to(device)
    ids = None if document_ids is None else document_ids.to(device)
    tokens = Tokens.of(position, document_ids=ids, valid=padded, columns=dict(zip(names, columns, strict=True)))
    return Positions(tokens), after


def bigram_positions(tags: Sequence[Sequence[Tag]], *, end: bool = True) -> Positions:
    """Return positions of the pairs (t, t + 1) of rows of equal length, as `switching_positions` of pairs that are switches.

    A pair may be a switch at once, so that its first count may be 1; walks begin at 0. This stream looks one token ahead. For
    causal models take the pairs (t − 1, t): their positions are those of their last token.

    Args:
        tags: of each row.
        end: pair the last token with an end of the text, so that there are as many pairs as tokens.
    """
    if len({len(row) for row in tags}) > 1:
        raise PositionError("rows of pairs are of one length; pad the tags with the last one of each row")
    rows = []
    for row in tags:
        flags = [*bigram_switches(row), *([0] if end and len(row) else [])]
        count, began, walk, made = 0, 0, 0, []
        for t, flag in enumerate(flags):
            count, began = count + flag, t if flag else began
            walk += (-1) ** count if t else 0
            made.append((flag, count, t - began, walk))
        rows.append(made)
    n = max(map(len, rows), default=0)
    facts = torch.tensor(rows, dtype=torch.int64).reshape(len(rows), n, 4)
    columns = dict(zip(("switch", "switches", "since", "walk"), facts.unbind(-1), strict=True))
    return Positions(Tokens.of(torch.arange(n).expand(len(rows), -1), columns=columns))


class SwitchCoordinates(Coordinates):
    """t → u_t, a position that knows of switches: what comes after sees u.

    With an embedding of absolute positions and "segment" it counts anew at every switch.

    Args:
        form: "token": (1 − 2 SP_t) t, only a switch is turned back. "parity": (−1)^c_t t, c the switches so far. "zigzag": the
            walk that turns around at switches. "segment": tokens since the last switch. "count": c_t.

    Raises:
        NeedsColumn: positions that know of no switches.

    Source: Mohsin Ali, Kandukuri Sai Teja, Neeharika Gupta, Parth Patwa, Anubhab Chatterjee, Vinija Jain, Aman Chadha, Amitava
    Das. CONFLATOR: Incorporating Switching Point based Rotatory Positional Encodings for Code-Mixed Language Modeling.
    arXiv 2309.05270, 2023. "segment" under an embedding is the group's earlier PESTO (arXiv 2111.06599, 2021).
    """

    def __init__(self, form: Form = "token") -> None:
        super().__init__()
        if form not in get_args(Form):
            raise ConfigError(
                f"form is one of {', '.join(get_args(Form))}; got {form!r}.{suggest(form, get_args(Form))}"
            )
        self.form = form

    def remap(self, tokens: Tokens, position: Tensor) -> Tensor:
        return switched(tokens, position, self.form)

    def extra_repr(self) -> str:
        return self.form


def switched(tokens: Tokens, position: Tensor, form: Form) -> Tensor:
    """Return u of tokens at positions t (b, S), float64; see `SwitchCoordinates`."""
    if position.ndim != 2:
        raise PositionError(f"switches are counted along plain positions, and these have {position.shape[-1]} axes")
    if form == "token":
        return (1 - 2 * tokens.column("switch", TAGGED).double()) * position
    if form == "parity":
        return (1 - 2 * tokens.column("switches", TAGGED).double().remainder(2)) * position
    return tokens.column({"zigzag": "walk", "segment": "since", "count": "switches"}[form], TAGGED).double()


def sample_switching(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw texts whose language changes at every fourth token or so, each row from another token on."""
    start = torch.randint(0, 9, (batch,), generator=generator).tolist()
    drawn = torch.randint(0, 8, (batch, seq), generator=generator).tolist()
    names = ("hi", "hi", "hi", "en", "en", NEUTRAL, NEUTRAL, NEUTRAL)
    tags = [[names[n] for n in row] for row in drawn]
    return switching_positions(tags, [SwitchState("hi", s, 0, s, s) for s in start])[0]


def _neutral(tag: Tag) -> bool:
    return tag is None or tag == NEUTRAL


def _row(
    tags: Sequence[Tag], state: SwitchState, documents: list[int] | None, real: list[int] | None
) -> tuple[list[tuple[int, int, int, int, int]], SwitchState]:
    made = []
    language, t, count, began, walk, document = state
    for i, tag in enumerate(tags):
        if real is not None and not real[i]:
            made.append((t, 0, count, t - began, walk))
            continue
        if documents is not None and documents[i] != document:
            if document is not None:
                language, t, count, began, walk = None, 0, 0, 0, 0
            document = documents[i]
        own = language if _neutral(tag) else tag
        flag = int(language is not None and own != language)
        language, count, began = own, count + flag, t if flag else began
        walk += (-1) ** count if t else 0
        made.append((t, flag, count, t - began, walk))
        t += 1
    return made, SwitchState(language, t, count, began, walk, document)


def _facts(given: Tensor | None, rows: int, size: int, name: str) -> list[list[int]] | None:
    if given is None:
        return None
    if given.shape not in ((rows, size), (1, size)) or given.is_floating_point():
        raise PositionError(
            f"{name} has shape {tuple(given.shape)}; expected whole numbers or booleans ({rows}, {size})"
        )
    listed: list[list[int]] = given.expand(rows, size).tolist()
    return listed
