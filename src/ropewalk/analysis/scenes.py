"""Small examples of what encodings are for: a panorama, a dialogue, a formula, a road, with names for their tokens.

for scene in scenes(rw.record("switching_rope")):
    print(scene.caption, scene.queries)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ropewalk.catalog import Record
from ropewalk.coordinates.blocks import Image, Text
from ropewalk.coordinates.code import code_positions
from ropewalk.coordinates.conditions import condition_coords
from ropewalk.coordinates.coupling import couple, coupled_positions
from ropewalk.coordinates.denoising import at_step
from ropewalk.coordinates.depth import ObjectMove, centered_grid_ids, depth_axis, warp_rows
from ropewalk.coordinates.events import event_layout, read_entities
from ropewalk.coordinates.formulas import formula_positions, latex_position_forest
from ropewalk.coordinates.grid import grid_positions
from ropewalk.coordinates.headings import heading_positions
from ropewalk.coordinates.hierarchy import hierarchical_positions
from ropewalk.coordinates.layout import layout
from ropewalk.coordinates.mixed_resolution import mixed_resolution_positions
from ropewalk.coordinates.references import reference_coords
from ropewalk.coordinates.shared_grid import shared_grid_positions
from ropewalk.coordinates.spectra import spectrum_positions
from ropewalk.coordinates.switching import NEUTRAL, switched, switching_positions
from ropewalk.coordinates.turns import speaker_activity, speaker_positions
from ropewalk.core.positions import Positions, Tokens

Cell = tuple[int, int, int]
"""Where a token is drawn: row and column of its upper left corner, and its side."""


@dataclass(frozen=True)
class Scene:
    """An example with few tokens, each of which has a name.

    Attributes:
        caption: what it is.
        positions: where its tokens are, one row.
        queries: names of the queries.
        facts: what is known of each query, by name.
        keys: names of the keys where they are other tokens; (): the queries.
        key_facts: what is known of each key then.
        causal: whether keys after a query are masked.
        plane: where each key is drawn, for what lies on a plane; (): nothing does.
        looks: the queries whose attention is drawn there.
        options: what the encoding is built with, so that the example is long or large enough for it.
    """

    caption: str
    positions: Positions
    queries: tuple[str, ...]
    facts: Mapping[str, Sequence[object]] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    key_facts: Mapping[str, Sequence[object]] = field(default_factory=dict)
    causal: bool = False
    plane: tuple[Cell, ...] = ()
    looks: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def scenes(entry: Record) -> tuple[Scene, ...]:
    """Return the examples of an encoding, or of the domain that its tokens live in; () where a row of tokens says all."""
    make = SCENES.get(entry.slug) or SCENES.get(entry.traits.domain)
    return () if make is None else make()


# ---- pictures --------------------------------------------------------------------------------------------------------


def _cells(rows: int, columns: int, name: str = "", left: int = 0) -> tuple[list[str], list[Cell]]:
    """Return names "r,c" of the cells of a grid, row by row, and where they are drawn."""
    cells = [(r, c) for r in range(rows) for c in range(columns)]
    return [f"{name} {r},{c}".strip() for r, c in cells], [(r, left + c, 1) for r, c in cells]


def _axes(positions: Positions, names: str) -> dict[str, list[float]]:
    """Return the coordinates of the queries, an axis a name."""
    return {name: positions.query.position[0, :, a].tolist() for a, name in enumerate(names.split())}


def _picture() -> tuple[Scene, ...]:
    names, plane = _cells(4, 6)
    where = grid_positions(4, 6)
    said = "a picture of 4 × 6 patches, named by row and column"
    return (Scene(said, where, tuple(names), _axes(where, "h w"), plane=tuple(plane), looks=(0, 14)),)


def _large_picture() -> tuple[Scene, ...]:
    names, plane = _cells(3, 8)
    said = "a picture of 3 × 8 patches, for a model trained on 4 × 4: columns are drawn together, rows are not"
    where = layout([Image(3, 8)])
    return (Scene(said, where, tuple(names), plane=tuple(plane), looks=(8,), options={"trained_grid": 4}),)


def _panorama() -> tuple[Scene, ...]:
    names, plane = _cells(3, 8)
    text = [(0, -3, 1), (1, -3, 1)]
    said = (
        "a panorama of 3 × 8 patches after its caption: the last column is beside the first, the outer rows are poles"
    )
    where = layout([Text(2), Image(3, 8)])
    tokens = ("a", "beach", *names)
    return (Scene(said, where, tokens, plane=_shifted([*text, *plane]), looks=(10, 14)),)


def _references() -> tuple[Scene, ...]:
    where = reference_coords((2, 2, 3), [(2, 2), (2, 1)])
    parts = (_cells(2, 2, "cat"), _cells(2, 1, "hat", 3), _cells(2, 3, "f0", 5), _cells(2, 3, "f1", 9))
    said = "references of a cat and of its hat, and a video of two frames, f0 and f1"
    names, plane = _together(parts)
    return (Scene(said, where, names, _axes(where, "t h w"), plane=plane, looks=(6, 0)),)


def _conditions() -> tuple[Scene, ...]:
    where = condition_coords((2, 2, 2), 1, 2, t_ref=40, t_invalid=60, with_traj=True)
    kinds = ("f0", "f1", "ref", "empty", "way0", "way1")
    parts = [_cells(2, 2, kind, 3 * i) for i, kind in enumerate(kinds)]
    said = "a video of two frames, one reference, one slot without any, and the way of a point through both frames"
    names, plane = _together(parts)
    return (Scene(said, where, names, _axes(where, "t h w"), plane=plane, looks=(0, 8)),)


def _moved() -> tuple[Scene, ...]:
    ball = torch.zeros(3, 4, dtype=torch.bool)
    ball[1, 0] = True
    depth = torch.full((3, 4), 2.0)
    depth[1, 2] = 1.0
    where = depth_axis(centered_grid_ids([(3, 4), (3, 4)]), depth)
    where = warp_rows(where, [ObjectMove(ball, dx=2)])
    parts = (_cells(3, 4, "new"), _cells(3, 4, "old", 5))
    names, plane = _together(parts)
    names = tuple("old ball" if name == "old 1,0" else "new ball" if name == "new 1,2" else name for name in names)
    said = (
        "a ball is moved two patches to the right: it is at old 1,0, stands where it goes, and is nearer than the rest"
    )
    return (Scene(said, where, names, _axes(where, "depth h w"), plane=plane, looks=(6, 4)),)


def _two_resolutions() -> tuple[Scene, ...]:
    mask = torch.tensor([[False, False, True, False], [False, False, True, False]])
    where = mixed_resolution_positions(mask, 2)
    position, steps = where.query.position[0], where.query.column("resolution")[0]
    plane = [(int(2 * r), int(2 * c), 2 // int(f)) for (r, c), f in zip(position.tolist(), steps.tolist(), strict=True)]
    names = [f"{'fine' if f > 1 else 'coarse'} {r:g},{c:g}" for (r, c), f in zip(position.tolist(), steps, strict=True)]
    said = "a picture of 2 × 4 patches, two of which are divided in four: coarse patches see one of the four"
    facts = {"h": position[:, 0].tolist(), "w": position[:, 1].tolist(), "fine": steps.tolist()}
    return (Scene(said, where, tuple(names), facts, plane=tuple(plane), looks=(4, 8)),)


def _steps() -> tuple[Scene, ...]:
    parts = [_cells(3, 4, f"f{f}", 5 * f) for f in range(2)]
    names, plane = _together(parts)
    clip = grid_positions(2, 3, 4)
    made = []
    for step, said in ((0, "height and width turn more slowly"), (10, "nothing is changed")):
        caption = f"a video of two frames at step {step} of 50, where {said}"
        where = at_step(clip, step, 50)
        made.append(Scene(caption, where, names, _axes(where, "t h w"), plane=plane, looks=(0,)))
    return tuple(made)


def _shared() -> tuple[Scene, ...]:
    own, reference = _cells(3, 4, "own"), _cells(3, 4, "ref", 5)
    keys, plane = _together((own, reference))
    where = shared_grid_positions((3, 4), [(3, 4)], index_axis=False)
    said = "a picture that sees itself and a reference, whose keys are weaker where pairs turn fast"
    facts, key_facts = _axes(where, "h w"), dict(zip("hw", _columns(where.key), strict=True))
    return (Scene(said, where, tuple(own[0]), facts, keys, key_facts, plane=plane, looks=(5,)),)


def _together(parts: Sequence[tuple[list[str], list[Cell]]]) -> tuple[tuple[str, ...], tuple[Cell, ...]]:
    return tuple(name for names, _ in parts for name in names), tuple(cell for _, cells in parts for cell in cells)


def _shifted(plane: Sequence[Cell]) -> tuple[Cell, ...]:
    """Let the plane begin at row and column 0."""
    top, left = min(r for r, _, _ in plane), min(c for _, c, _ in plane)
    return tuple((r - top, c - left, side) for r, c, side in plane)


def _columns(tokens: Tokens) -> list[list[float]]:
    made: list[list[float]] = tokens.position[0].T.tolist()
    return made


# ---- signals and text ------------------------------------------------------------------------------------------------

ARROWS = {"→": 0.0, "↑": math.pi / 2, "←": math.pi, "↓": -math.pi / 2}
"""Directions of road users, in radians."""

ROAD = (
    ("car", 0, 0, "←"), ("bus", 12, 0, "←"), ("car", 18, 0, "←"),
    ("car", 0, -4, "→"), ("car", 6, -4, "→"), ("truck", 18, -4, "→"),
    ("walker", 9, -8, "↑"), ("bicycle", 9, 4, "↓"),
)  # fmt: skip
"""Road users: what, metres to the east and to the north, and where they look."""

TEXT = "ropes are long . they are made here .¶ sheds are longer . rain stays out ."
FORMULA = r"\frac { a ^ { 2 } } { b } + \sqrt { a ^ { 2 } }"
MIXED = "main/hi kal/hi office/en gaya/hi tha/hi ,/o but/en it/en was/en closed/en so/en main/hi ghar/hi aa/hi gaya/hi"
CODE = "def f(x):\n    return x\n\ndef g(y):\n    z = f(y)\n    return z\n"
CAPTIONS = "man he walks in he sits she waves at him it pans"


def _road() -> tuple[Scene, ...]:
    xy = torch.tensor([[x, y] for _, x, y, _ in ROAD], dtype=torch.float64)
    where = heading_positions(xy, torch.tensor([ARROWS[a] for *_, a in ROAD], dtype=torch.float64))
    names = tuple(f"{who} {arrow}" for who, _, _, arrow in ROAD)
    plane = _shifted([(-y // 4, x // 3, 1) for _, x, y, _ in ROAD])
    said = "a road with a lane to the west and one to the east, somebody on foot and a bicycle across"
    facts = {"x": xy[:, 0].tolist(), "y": xy[:, 1].tolist(), "heading": [round(ARROWS[a], 2) for *_, a in ROAD]}
    return (Scene(said, where, names, facts, plane=plane, looks=(4, 1)),)


def _speech() -> tuple[Scene, ...]:
    words = ("the", "ropes", "are", "made", "here", ".")
    where = Positions(q=Tokens.arange(18), k=Tokens.arange(len(words)))
    names = tuple(f"frame {n}" for n in range(18))
    said = "18 frames of speech look at the 6 words that they say; positions are shares of each length"
    share = {"share": [round(n / 18, 2) for n in range(18)]}
    of_words = {"share": [round(n / len(words), 2) for n in range(len(words))]}
    return (Scene(said, where, names, share, words, of_words),)


def _dialogue() -> tuple[Scene, ...]:
    speakers = ("ann", "bob", "cas", "dan")
    talk = (("ann", 0, 5), ("bob", 4, 9), ("ann", 10, 13), ("cas", 13, 16), ("bob", 16, 18))
    activity = speaker_activity(talk, speakers, 18, seconds=1.0)
    where = speaker_positions(activity)
    who = [[s for s, talks in zip(speakers, row, strict=True) if talks] for row in activity.tolist()]
    turns = where.key.column("turns")[0]
    facts = {name: turns[:, s].tolist() for s, name in enumerate(speakers[:3])}
    names = tuple(" & ".join(some) or "silence" for some in who)
    said = "a recording of four speakers, one of whom says nothing; a frame a second, and the turns that each has had"
    return (Scene(said, where, names, facts),)


def _spectrum() -> tuple[Scene, ...]:
    fine, coarse = 6500 + 5 * torch.arange(14.0), 6600 + 20 * torch.arange(8.0)
    wavelength = torch.cat([fine, coarse]).double()
    where = spectrum_positions(wavelength)
    names = tuple(f"{w:g} Å" for w in wavelength.tolist())
    said = "a spectrum of two instruments: up to 6565 Å a pixel every 5 Å, from 6600 Å on every 20 Å"
    return (Scene(said, where, names, {"ln λ": [f"{u:.4f}" for u in where.query.position[0].tolist()]}),)


def _formula() -> tuple[Scene, ...]:
    tokens = FORMULA.split()
    paths = latex_position_forest(tokens)
    said = r"\frac{a^{2}}{b} + \sqrt{a^{2}}: paths through fractions, roots and scripts, 4 up or left, 5 down or right"
    facts: dict[str, Sequence[object]] = {
        "depth": [len(path) - 1 for path in paths],
        "path": ["/".join(map(str, path)) for path in paths],
    }
    return (Scene(said, formula_positions([paths]), tuple(tokens), facts, causal=True),)


def _paragraphs() -> tuple[Scene, ...]:
    words = TEXT.split()
    ends = [word.startswith(".") for word in words]
    where, _ = hierarchical_positions(torch.tensor([word == ".¶" for word in words]), torch.tensor(ends))
    said = "two paragraphs of two sentences each"
    return (Scene(said, where, tuple(words), _axes(where, "par. sent. token"), causal=True),)


def _sum() -> tuple[Scene, ...]:
    example = couple("addition", "653", "49")
    said = "653 + 049 = 702, written from its end on: digits of equal significance share a position"
    where = coupled_positions([example])
    return (Scene(said, where, example.tokens, {"position": example.ids[0]}, causal=True),)


def _mixed_text() -> tuple[Scene, ...]:
    text = (
        "main/hi kal/hi office/en gaya/hi tha/hi ,/o but/en it/en was/en closed/en so/en main/hi ghar/hi aa/hi gaya/hi"
    )
    words, tags = zip(*(token.rsplit("/", 1) for token in text.split()), strict=True)
    where, _ = switching_positions([[NEUTRAL if tag == "o" else tag for tag in tags]])
    turned = switched(where.query, where.query.position.double(), "token")[0].tolist()
    facts = {"language": tags, "switch": where.query.column("switch")[0].tolist(), "position": turned}
    said = "a text of Hindi and English (yesterday I went to the office, but it was closed, so I came home): switches turn back"
    return (Scene(said, where, words, facts, causal=True),)


def _code() -> tuple[Scene, ...]:
    spans = [match.span() for match in re.finditer(r"\w+|[^\w\s]", CODE)]
    where = code_positions(CODE, spans)
    segment: Tensor = where.query.column("segment")[0]
    said = "two functions, the second of which calls the first"
    names = tuple(CODE[start:stop] for start, stop in spans)
    return (Scene(said, where, names, {"function": segment.tolist()}, causal=True),)


def _film() -> tuple[Scene, ...]:
    records: list[dict[str, Any]] = [
        {"name": "man", "global_tokens": 1, "events": [[0, 4, 3], [4, 8, 2]], "reference_tokens": 1},
        {"name": "woman", "events": [[2, 8, 4]], "reference_tokens": 1},
        {"name": "camera", "events": [[6, 8, 2]]},
    ]
    said = tuple(CAPTIONS.split())
    made = event_layout(read_entities(records), frames=8, tokens_per_frame=1, frames_per_second=1.0, entity_offset=1)
    times, entities = _columns(made.positions.query)
    at, of = _columns(made.positions.key)
    names = (*(f"frame {f}" for f in range(8)), "ref man", "ref woman")
    caption = "a clip of 8 s: a man walks in (0–4 s) and sits (4–8 s), a woman waves (2–8 s), the camera pans (6–8 s)"
    return (
        Scene(
            caption,
            made.positions,
            names,
            {"time": times, "entity": entities},
            said,
            {"time": [round(t, 2) for t in at], "entity": of},
        ),
    )


SCENES: dict[str, Callable[[], tuple[Scene, ...]]] = {
    "code": _code,
    "conditions": _conditions,
    "coupling": _sum,
    "denoising": _steps,
    "depth": _moved,
    "events": _film,
    "formulas": _formula,
    "grid": _picture,
    "headings": _road,
    "hierarchy": _paragraphs,
    "mixed_resolution": _two_resolutions,
    "panorama": _panorama,
    "references": _references,
    "shared_grid": _shared,
    "spectra": _spectrum,
    "switching": _mixed_text,
    "turns": _dialogue,
    # Where the domain does not say what it is for.
    "larope": _speech,
    "position_interpolated_rope": _large_picture,
}
"""What makes the examples of a domain, or of one encoding by its slug."""
