"""Where the tokens of mixed sequences are: blocks in, positions out, for every scheme at once.

    from ropewalk.coordinates.blocks import Image, Text, Video

    positions = rw.layout([Text(3), Image(2, 3), Text(2)])
    encoding = rw.build("videorope", head_dim=64)
    out = rw.attend(encoding(rw.Attention(q, k, v, positions)))

The positions count the real tokens, as of any sequence, and carry the list of blocks beside them. A `Scheme` turns both into
coordinates, when an encoding asks and for any token alone: so caches, chunks, padding and packed rows need nothing more, what
decoding continues from follows from the blocks, and one `Positions` serves all encodings and all layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, cast

import torch
from torch import Tensor

from ropewalk.coordinates.blocks import (
    FIELDS,
    IMAGE,
    NUMBER,
    SHARED,
    VIDEO,
    Block,
    Entry,
    Image,
    Numbers,
    Text,
    Tiles,
    Video,
)
from ropewalk.core.errors import ConfigError, PositionError
from ropewalk.core.positions import Positions, Tokens

Sample = Sequence[Block]


def layout(
    samples: Sample | Sequence[Sample],
    *,
    padding: Literal["right", "left"] = "right",
    valid: Tensor | None = None,
    after: Tokens | Positions | None = None,
    device: torch.device | str | None = None,
) -> Positions:
    """Place the tokens of one sample, or of a batch with a sample a row.

    Args:
        samples: blocks in the order of the sequence.
        padding: the side on which shorter rows are filled up.
        valid: (batch, S) True where the real tokens are, instead of ``padding``: an attention mask.
        after: the tokens that are there already, where these continue them (``cache.tokens``): their blocks stay known.
        device: where the positions live.

    Returns:
        Positions (batch, S), counted, with a column ``block`` and the blocks as facts of the sequence.

    Raises:
        PositionError: a mask that does not have as many real tokens as the sample.
    """
    rows = _rows(samples)
    return _build([[row] for row in rows], padding, valid, after, device)


def packed_layout(
    rows: Sequence[Sequence[Sample]],
    *,
    padding: Literal["right", "left"] = "right",
    valid: Tensor | None = None,
    device: torch.device | str | None = None,
) -> Positions:
    """Place the tokens of rows into which several samples are packed: each is a document that begins anew and sees itself.

    Args:
        rows: for each row of the batch its samples.
        padding: see `layout`.
        valid: see `layout`.
        device: where the positions live.
    """
    for row in rows:
        if not row or not all(isinstance(sample, Sequence) for sample in row):
            raise ConfigError("each row is a list of samples, and each sample a list of blocks")
    return _build([[_sample(s) for s in row] for row in rows], padding, valid, None, device, packed=True)


def text_only(positions: Positions) -> Positions:
    """Say of counted positions that they are of text and nothing else."""

    def say(tokens: Tokens) -> Tokens:
        if "block" in tokens.columns:
            return tokens
        none = torch.zeros_like(tokens.position, dtype=torch.int64)
        facts = (
            torch.zeros(1, n, *f, dtype=torch.float64, device=tokens.device) for n, f in ((0, (len(FIELDS),)), (0, ()))
        )
        return tokens.with_columns(block=none).with_sequence(**dict(zip(("blocks", "times"), facts, strict=True)))

    return positions.map_sides(say)


def visual_tokens(tokens: Tokens) -> Tensor:
    """(b, S) whether each token is of an image or a video."""
    from ropewalk.coordinates.scheme import Cells

    return Cells.of(tokens, tokens.position.double()).visual


def suffix_mask(positions: Positions) -> Tensor:
    """(b, 1, Q, K) False where a key of a shared text (``Text(n, shared=True)``) is hidden: all but its own block see none of it.

    For ``Attention(..., mask=...)``, beside causality.
    """
    from ropewalk.coordinates.scheme import Cells

    query, key = (Cells.of(t, t.position.double()) for t in (positions.query, positions.key))
    of_query, of_key = (torch.where(c.inside & (c["kind"] == SHARED), c.begun, 0) for c in (query, key))
    return ((of_key == 0)[:, None, :] | (of_query[..., None] == of_key[:, None, :]))[:, None]


# ---- building ------------------------------------------------------------------------------------------------------


def _rows(samples: Sample | Sequence[Sample]) -> list[list[Block]]:
    if not isinstance(samples, Sequence) or not samples:
        raise ConfigError("a layout is a list of blocks, or a list of such lists; got nothing")
    if isinstance(samples[0], Block):
        return [_sample(cast("Sample", samples))]
    return [_sample(sample) for sample in cast("Sequence[Sample]", samples)]


def _sample(sample: Sample) -> list[Block]:
    for block in sample if isinstance(sample, Sequence) else (sample,):
        if not isinstance(block, Block):
            raise ConfigError(
                f"a sample is a list of blocks ({', '.join(c.__name__ for c in (Text, Image, Video, Tiles))}); got a "
                f"{type(block).__name__}"
            )
    return list(sample)


def _build(
    rows: list[list[list[Block]]],
    padding: str,
    valid: Tensor | None,
    after: Tokens | Positions | None,
    device: torch.device | str | None,
    packed: bool = False,
) -> Positions:
    if padding not in ("right", "left"):
        raise ConfigError(f"padding is 'right' or 'left'; got {padding!r}")
    before = after.key if isinstance(after, Positions) else after
    starts = _starts(before, len(rows))
    tables, times, named, places = [], [], [], []
    held = {} if before is None else before.sequence
    blocks, timed, numbered = (
        held[n].shape[1] if n in held else 0 for n in ("blocks", "times", next(iter(_names(held)), ""))
    )
    for row, (start, begun) in zip(rows, starts, strict=True):
        table, seconds, numbers, place = _row(row, start, begun, (blocks, timed, numbered))
        tables.append(table)
        times.append(seconds)
        named.append(numbers)
        places.append(place)
    lengths = [place.shape[1] for place in places]
    mask = _mask(lengths, padding, valid)
    position, block, document = (torch.zeros(len(rows), mask.shape[1], dtype=torch.int64) for _ in range(3))
    for b, place in enumerate(places):
        for to, values in zip((position, block, document), place, strict=True):
            to[b, mask[b]] = values
    if packed:
        document = _held(document, mask)
    facts = {"blocks": _padded(tables), "times": _padded(times), **_aligned(named, held)}
    if before is not None:
        facts = {name: _joined(held[name].cpu(), fact) if name in held else fact for name, fact in facts.items()}
    columns = {"position": position, "block": block}
    if not bool(mask.all()):
        columns["valid"] = mask
    if packed:
        columns["document"] = document
    made = Tokens(columns, facts)
    return Positions(made if device is None else made.to(device))


def _starts(before: Tokens | None, rows: int) -> list[tuple[int, int]]:
    """Return, for each row, the position that comes next and the number of blocks that have begun."""
    if before is None:
        return [(0, 0)] * rows
    if "blocks" not in before.sequence or "block" not in before.columns:
        raise PositionError(
            "these tokens continue tokens that do not say what blocks they are of; make both with rw.layout"
        )
    if "document" in before.columns:
        raise PositionError("a row of packed documents cannot be continued with a sample; it would be of none of them")
    following = before.continuing(1)
    position, block = following.position[:, 0].tolist(), following.columns["block"][:, 0].tolist()
    if len(position) == 1 or len(block) == 1:
        position, block = (t * rows if len(t) == 1 else t for t in (position, block))
    if len(position) != rows:
        raise PositionError(f"{rows} samples continue {len(position)} rows; give one for each")
    return list(zip(position, block, strict=True))


def _row(
    documents: list[list[Block]], start: int, begun: int, already: tuple[int, int, int]
) -> tuple[Tensor, Tensor, dict[str, Tensor], Tensor]:
    """Return the table of a row, the times of its frames, its numbers by name, and (position, block, document) of its tokens.

    Args:
        documents: the samples.
        start: position of the first token.
        begun: number of the block that has begun before it, from 1; 0: none.
        already: blocks, times, and tokens with numbers, that are known already.
    """
    known, offset, counted = already
    entries: list[Entry] = []
    seconds: list[float] = []
    named: dict[str, Tensor] = {}
    numbered = 0
    placed: list[Tensor] = []
    for d, blocks in enumerate(documents):
        first = 0 if known else len(entries)
        position, latest = (start, begun) if d == 0 else (0, 0)
        opened = len(entries)
        for block in blocks:
            begins, end = position, position + block.length
            numbers = block.numbers()
            for entry, times in block.entries():
                number = known + len(entries) + 1
                filled = {**_EMPTY, **entry, "start": position, "first": first}
                if filled["group"] < 0:
                    filled["group"] = -1 - opened
                if times is not None:
                    filled["times"] = offset + len(seconds)
                    seconds += times
                if numbers:
                    filled["numbers"] = counted + numbered + position - begins
                entries.append(filled)
                placed.append(_stretch(position, int(entry["tokens"]), number, d))
                position, latest = position + int(entry["tokens"]), number
            placed.append(_stretch(position, end - position, latest, d))
            position, opened = end, len(entries)
            if numbers:
                named = _appended(named, numbers, numbered, block)
                numbered += block.length
    for i, entry in enumerate(entries):
        later = [e for e in entries[i + 1 :] if e["kind"] in (IMAGE, VIDEO) and e["first"] == entry["first"]]
        entry["last"] = float(entry["group"] == 0 or all(e["group"] != entry["group"] for e in later))
    table = torch.tensor([[e[f] for f in FIELDS] for e in entries], dtype=torch.float64).reshape(-1, len(FIELDS))
    tokens = torch.cat([torch.zeros(3, 0, dtype=torch.int64), *placed], 1)
    return table, torch.tensor(seconds, dtype=torch.float64), named, tokens


_EMPTY: Entry = {
    **dict.fromkeys(FIELDS, 0.0), "frames": 1, "rows": 1, "columns": 1, "depth": 1, "times": -1, "numbers": -1,
}  # fmt: skip


def _names(facts: Mapping[str, Tensor]) -> list[str]:
    """Return the facts that are numbers of tokens by name; all are of one length."""
    return [name for name in facts if name.startswith(NUMBER)]


def _appended(named: dict[str, Tensor], numbers: Numbers, counted: int, block: Block) -> dict[str, Tensor]:
    """Append the numbers of a block to those of ``counted`` tokens before it; NaN where a token has none of a name."""
    new = {
        NUMBER + name: torch.tensor([float(v) for v in values], dtype=torch.float64) for name, values in numbers.items()
    }
    for name, values in new.items():
        if len(values) != block.length:
            raise PositionError(
                f"a {type(block).__name__} of {block.length} tokens has {len(values)} numbers {name.removeprefix(NUMBER)!r}; "
                "give one for each token"
            )
    before, after = _nothing(counted), _nothing(block.length)
    return {name: torch.cat([named.get(name, before), new.get(name, after)]) for name in {**named, **new}}


def _aligned(rows: list[dict[str, Tensor]], held: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the numbers of all rows by name, (b, V) each, and of every name as many."""
    names = dict.fromkeys([*_names(held), *(name for row in rows for name in row)])
    made = {}
    for name in names:
        most = max(len(t) for row in rows for t in [_nothing(0), *row.values()])
        columns = [row.get(name, _nothing(0)) for row in rows]
        made[name] = torch.stack([torch.cat([t, _nothing(most - len(t))]) for t in columns])
    before = next((held[name] for name in _names(held)), None)
    if before is not None:  # names that are new were not known of the tokens before
        none = torch.full_like(before.cpu(), torch.nan)
        made = {n: t if n in held else _joined(none, t) for n, t in made.items()}
    return made


def _nothing(n: int) -> Tensor:
    return torch.full((n,), torch.nan, dtype=torch.float64)


def _stretch(start: int, tokens: int, block: int, document: int) -> Tensor:
    position = torch.arange(start, start + tokens)
    return torch.stack([position, torch.full_like(position, block), torch.full_like(position, document)])


def _mask(lengths: list[int], padding: str, valid: Tensor | None) -> Tensor:
    """Return where the real tokens are, (batch, S) on the CPU."""
    if valid is None:
        index, n = torch.arange(max(lengths)), torch.tensor(lengths)[:, None]
        return index < n if padding == "right" else index >= max(lengths) - n
    mask = torch.as_tensor(valid).cpu()
    if mask.ndim != 2 or mask.shape[0] != len(lengths) or mask.is_floating_point():
        raise PositionError(
            f"valid has shape {tuple(mask.shape)} and dtype {mask.dtype}; it is ({len(lengths)}, S), True for real tokens"
        )
    mask = mask.bool()
    for row, (have, want) in enumerate(zip(mask.sum(1).tolist(), lengths, strict=True)):
        if have != want:
            raise PositionError(f"row {row} has {have} real tokens, and the blocks of its sample have {want}")
    return mask


def _held(document: Tensor, mask: Tensor) -> Tensor:
    """Let padding be of the document of the real token before it, or of the first."""
    index = torch.arange(mask.shape[1])
    return document.gather(1, torch.where(mask, index, 0).cummax(1).values)


def _padded(rows: list[Tensor]) -> Tensor:
    """Stack tables or times of different numbers; what is filled up is no block."""
    most = max(len(row) for row in rows)
    made = rows[0].new_zeros(len(rows), most, *rows[0].shape[1:])
    for to, row in zip(made, rows, strict=True):
        to[: len(row)] = row
    return made


def _joined(before: Tensor, new: Tensor) -> Tensor:
    rows = max(before.shape[0], new.shape[0])
    return torch.cat([before.expand(rows, *before.shape[1:]), new.expand(rows, *new.shape[1:])], 1)


# ---- samples for checks --------------------------------------------------------------------------------------------


def sample_layout(batch: int, seq: int, generator: torch.Generator | None = None) -> Positions:
    """Draw samples of text, an image, a video and a tiled image, no grid square, cut off at ``seq`` tokens."""

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    samples = []
    for _ in range(batch):
        blocks: list[Block] = [
            Text(draw(1, 3)),
            Image(2, 3, modality=2),
            Text(draw(1, 2)),
            Video(2, 1, draw(2, 3), seconds=1.5, modality=4),
            Text(1),
            Tiles(1, 2, 1, 2),
            Text(max(seq, 1)),
        ]
        samples.append(blocks)
    longest = max(sum(block.length for block in blocks) for blocks in samples)
    for blocks in samples:  # rows of one length
        short = longest - sum(block.length for block in blocks)
        if short:
            blocks[-1] = Text(blocks[-1].length + short)
    return layout(samples).slice(0, seq)
