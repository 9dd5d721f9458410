"""PosFormer: paths of LaTeX tokens, their decoder, and coverage (arXiv 2407.07764)."""

from __future__ import annotations

import json

import pytest
import torch
from reference import FOLDER, close, differ, random

import ropewalk as rw
from ropewalk.bias.coverage import CoverageRefinement
from ropewalk.coordinates.formulas import (
    STRUCTURE,
    both_directions,
    forest_labels,
    forest_targets,
    forest_tensor,
)
from ropewalk.core.errors import ConfigError, NeedsColumn, PositionError, ShapeError
from ropewalk.embedding.position_forest import PositionForestDecoder, forest_loss, image_sinusoid

CASES = {c["name"]: c for c in json.loads((FOLDER / "105-posformer.json").read_text(encoding="utf-8"))["cases"]}
POWER = ["<sos>", "\\frac", "{", "a", "^", "{", "2", "}", "}", "{", "b", "}"]


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    case = CASES[name]
    paths = rw.latex_position_forest(case["inputs"]["tokens"], case["params"]["direction"])
    want = case["outputs"]
    assert paths == want["identifier"]
    assert forest_tensor([paths])[0].tolist() == want["padded5"]
    nesting, branch = forest_labels(paths)
    assert nesting == want["layer_num"]
    assert branch == want["last_pos"]
    nesting, branch = forest_targets([paths])
    assert nesting[0].tolist() == want["target_layer_num"]
    assert branch[0].tolist() == want["target_last_pos"]


# ---- the parser ------------------------------------------------------------------------------------------------------


def nested(depth):
    return [*(["x", "^", "{"] * depth), "y", *["}"] * depth]


def test_an_identifier_is_as_long_as_the_nesting():
    paths = rw.latex_position_forest(nested(4))
    assert paths[12] == [4, 4, 4, 4, 3]
    for i, token in enumerate(nested(4)):  # brackets are on the line around them
        if token == "{":
            assert len(paths[i]) == i // 3 + 1
            assert paths[i] == paths[i - 1] == paths[i - 2]


def test_both_directions_agree():
    tokens = POWER[1:]
    forwards = rw.latex_position_forest(tokens)
    assert rw.latex_position_forest(tokens[::-1], "r2l") == forwards[::-1]
    rows, paths = both_directions([tokens, ["x"]])
    assert [row[0] for row in rows] == ["<sos>", "<sos>", "<eos>", "<eos>"]
    assert [path[0] for path in paths] == [[1], [1], [2], [2]]
    assert paths[0][1:] == paths[2][:0:-1]


@pytest.mark.parametrize(
    ("tokens", "want"),
    [
        (["x", "^", "2"], [[3], [3], [3]]),  # a script without its group
        (["^", "{", "2", "x"], [[3], [3], [4, 3], [4, 3]]),  # a group that never closes
        (["}", "x", "}"], [[3], [3], [3]]),
        (["\\frac", "{", "a", "}", "b"], [[3], [3], [4, 3], [3], [3]]),
        (["\\sqrt", "[", "3", "]", "x"], [[3], [3], [4, 3], [3], [3]]),
        (["\\sqrt", "[", "3", "{", "x", "}"], [[3], [3], *[[4, 3]] * 4]),
        (["{", "x", "}"], [[3], [3], [3]]),
        (["_", "{", "}", "<pad>"], [[3], [3], [3], [0]]),
        (["\\overline", "{", "x", "}"], [[3]] * 4),
        (["^"], [[3]]),
        ([], []),
    ],
)
def test_whatever_the_tokens_are(tokens, want):
    assert rw.latex_position_forest(tokens) == want


def test_nesting_without_end():
    paths = rw.latex_position_forest(nested(3000))
    assert max(map(len, paths)) == 3001


def test_targets_are_shifted_before_they_are_padded():
    paths = [rw.latex_position_forest(f) for f in (["<sos>", "x", "^", "{", "2", "}"], ["<sos>", "x"])]
    nesting, branch = forest_targets(paths)
    assert nesting.tolist() == [[0, 0, 0, 1, 0, 0], [0] * 6]
    assert branch.tolist() == [[3, 3, 3, 4, 3, 1], [3, 1, 0, 0, 0, 0]]


def test_paths_that_are_cut_lose_their_end():
    path = rw.latex_position_forest(nested(6))[18]
    assert forest_tensor([[path]], deeper="cut").tolist() == [[[4, 4, 4, 4, 4]]]
    assert forest_labels([path]) == ([4], [4])
    mixed = [4, 4, 4, 5, 4, 3]
    assert forest_labels([mixed]) == ([4], [5])  # the 4th entry


# ---- the embedding and the decoder -----------------------------------------------------------------------------------


def where(*formulas):
    return rw.formula_positions([rw.latex_position_forest(f) for f in formulas])


def test_embedding():
    torch.manual_seed(0)
    made = rw.PositionForestEmbedding(8).double()
    at = where(POWER)
    path = at.query.column("path").double()
    s = rw.Sinusoidal(8).embed(torch.zeros(1, 12, 8, dtype=torch.float64), at)
    forest = made.norms[0](torch.nn.functional.gelu(made.path(path)))
    close(made.embed(torch.zeros(1, 12, 8, dtype=torch.float64), at), made.norms[1](forest + s))
    x = random(1, 12, 8)
    close(made.embed(x, at), made.norms[1](x + forest + s))
    q = random(1, 2, 12, 8)
    p = rw.Attention(q, q, q, at)
    assert made(p).q is q


def test_one_token_at_a_time_is_all_at_once():
    torch.manual_seed(0)
    made, at, x = rw.PositionForestEmbedding(8).double(), where(POWER), random(1, 12, 8)
    parts = [made.embed(x[:, i : i + 1], at.slice(i, i + 1)) for i in range(12)]
    close(torch.cat(parts, 1), made.embed(x, at))


def test_decoder_and_loss():
    torch.manual_seed(0)
    made = PositionForestDecoder(16, 2, 2, 32).double().eval()
    formulas = [POWER, ["<sos>", "x", "_", "{", "i", "}"]]
    paths = [rw.latex_position_forest(f) for f in formulas]
    at, image = rw.formula_positions(paths), random(2, 5, 16)
    cells = torch.arange(5) < torch.tensor([[5], [3]])
    nesting, branch = made(at, image, cells)
    assert nesting.shape == (2, 12, 5)
    assert branch.shape == (2, 12, 6)
    alone = made(rw.formula_positions(paths[1:]), image[1:, :3])
    close(nesting[1, :6], alone[0][0], 1e-10)
    start = made(rw.formula_positions([p[:4] for p in paths]), image, cells)
    close(nesting[:, :4], start[0], 1e-10)  # steps do not see later ones
    targets = forest_targets(paths)
    tokens = torch.where(targets[1] > 0, 7, 0)
    logits = random(2, 12, 9)
    loss = forest_loss((logits, tokens), (nesting, targets[0]), (branch, targets[1]))
    want = torch.nn.functional.cross_entropy(logits[tokens > 0], tokens[tokens > 0])
    close(loss.tokens, want)
    close(loss.total, (loss.tokens + 0.25 * loss.nesting + 0.25 * loss.branch) / 1.5)


def test_image_sinusoid():
    valid = torch.zeros(1, 3, 5, dtype=torch.bool)
    valid[:, :2, :4] = True
    made = image_sinusoid(valid, 8)
    assert made.shape == (1, 3, 5, 8)
    x = 2 * torch.pi * torch.tensor(2 / 4, dtype=torch.float64)
    y = 2 * torch.pi * torch.tensor(1 / 2, dtype=torch.float64)
    want = [f(a * w) for a in (x, y) for w in (1, 0.01) for f in (torch.sin, torch.cos)]
    close(made[0, 0, 1], torch.stack(want))


# ---- coverage --------------------------------------------------------------------------------------------------------


def layer(**more):
    torch.manual_seed(0)
    made = CoverageRefinement(2, 4, 3, **more).double()
    with torch.no_grad():
        made.norm.running_mean.normal_()
        made.norm.weight.uniform_(0.5, 2)
    return made.eval()


E, BEFORE = 2 * random(2, 2, 6, 12), random(2, 2, 6, 12, seed=1).softmax(-1)
SKIP = torch.tensor([[token in STRUCTURE for token in formula] for formula in (POWER[:6], POWER[6:])])


def test_coverage_by_its_formula():
    made = layer()
    got, state = made(E, BEFORE, (3, 4), skip=SKIP)
    looked = torch.cat([BEFORE, E.softmax(-1)], 1) * ~SKIP[:, None, :, None]
    for t in range(6):
        c = looked[:, :, :t].sum(2).view(2, 4, 3, 4)
        off = made.norm(made.mix(made.spread(c).relu()).flatten(2))
        close(got[:, :, t], (E[:, :, t] - off).softmax(-1))
    close(state, looked.sum(2))


def test_steps_depend_on_earlier_ones_alone():
    made = layer()
    got = made(E, BEFORE, (3, 4))[0]
    later = E.clone()
    later[:, :, 3] += random(2, 2, 12, seed=5)
    other = made(later, BEFORE, (3, 4))[0]
    close(other[:, :, :3], got[:, :, :3])
    differ(other[:, :, 4], got[:, :, 4])
    first = made(E[:, :, :1], BEFORE[:, :, :1], (3, 4))[0]
    close(first, got[:, :, :1])


def test_steps_without_ink_do_not_count():
    made = layer()
    got = made(E, BEFORE, (3, 4), skip=SKIP)[0]
    changed = torch.where(SKIP[:, None, :, None], random(2, 2, 6, 12, seed=7), E)
    other = made(changed, BEFORE, (3, 4), skip=SKIP)[0]
    keep = ~SKIP[:, None, :, None].expand_as(got)
    close(other[keep], got[keep])


def test_decoding_is_all_at_once():
    made = layer()
    valid = torch.arange(12) < torch.tensor([[12], [7]])
    want = made(E, BEFORE, (3, 4), skip=SKIP, valid=valid)[0]
    parts, state = [], None
    for a, b in ((0, 2), (2, 3), (3, 6)):
        part, state = made(E[:, :, a:b], BEFORE[:, :, a:b], (3, 4), skip=SKIP[:, a:b], valid=valid, state=state)
        parts.append(part)
    close(torch.cat(parts, 2), want)
    assert bool((want[1, :, :, 7:] == 0).all())


def test_cells_that_are_padding_are_not_in_the_statistics():
    made = layer().train()
    valid = torch.zeros(2, 3, 4, dtype=torch.bool)
    valid[:, :, :2] = True
    flat = valid.flatten(1)
    previous = torch.where(flat[:, None, None], BEFORE, 0.0)
    padded = made(E, previous, (3, 4), valid=flat)[0]
    cut = made(E[..., valid[0].flatten()], previous[..., valid[0].flatten()], (3, 2))[0]
    close(padded[..., valid[0].flatten()], cut)


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_paths_deeper_than_the_table():
    paths = rw.latex_position_forest(nested(5))
    for make in (forest_tensor, rw.formula_positions):
        with pytest.raises(PositionError, match="token 15 of formula 0 is 5 structures deep"):
            make([paths])
    at = rw.formula_positions([paths], 6)
    with pytest.raises(PositionError, match="a path deeper than the table"):
        rw.PositionForestEmbedding(8).embed(torch.zeros(1, at.query.length, 8), at)


def test_other_bad_input():
    with pytest.raises(NeedsColumn, match="path"):
        rw.PositionForestEmbedding(8).embed(torch.zeros(1, 3, 8))
    with pytest.raises(PositionError, match="codes 0 to 5"):
        wrong = rw.Positions(torch.arange(2), columns={"path": torch.full((1, 2, 5), 6)})
        rw.PositionForestEmbedding(8).embed(torch.zeros(1, 2, 8), wrong)
    with pytest.raises(ConfigError, match="direction"):
        rw.latex_position_forest(["x"], "rtl")
    with pytest.raises(ShapeError, match=r"expected \(B, heads"):
        layer()(E, BEFORE, (3, 5))
    with pytest.raises(ShapeError, match="skip has shape"):
        layer()(E, BEFORE, (3, 4), skip=SKIP[:, 1:])
