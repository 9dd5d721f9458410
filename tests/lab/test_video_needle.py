"""V-NIAH-D on generated frames: what is asked, where its tokens are, and that it can be learned."""

import pytest
import torch

from ropewalk.core.errors import ConfigError
from ropewalk.core.positions import Positions
from ropewalk.lab.costs import speed
from ropewalk.lab.model import Decoder, ModelConfig, sized
from ropewalk.lab.place import Alone
from ropewalk.lab.settings import Settings
from ropewalk.lab.tasks import task
from ropewalk.lab.tasks.examples import ASK
from ropewalk.lab.tasks.score import score
from ropewalk.lab.workloads import make_workload, seen_by
from ropewalk.rotary.mrope import MRoPEIds
from ropewalk.rotary.videorope import DiagonalIds


def frames(made, batch, row):
    tokens = batch.tokens[row]
    end = int((tokens == ASK).nonzero()[0])
    return tokens[1:end].view(-1, made.rows, made.columns)


@pytest.mark.parametrize("size", [2, 3, 7, 16])
@pytest.mark.parametrize("depth", [None, 0.0, 0.4, 1.0])
def test_the_needle_and_the_frame_that_looks_like_it(size, depth):
    made = task("video-needle", depth=depth, gap=5, rows=3, columns=2)
    batch = made.eval_batch(size, 64, seed=0)
    for row in range(64):
        seen = frames(made, batch, row)
        (answer,) = made.solve(batch.tokens[row].tolist())
        assert batch.targets[row, -1] == answer
        keys = (seen >= made.key).nonzero()
        asked = batch.tokens[row, -1]
        (needle,) = [f for f, r, c in keys.tolist() if seen[f, r, c] == asked]
        (other,) = [f for f, r, c in keys.tolist() if seen[f, r, c] != asked]
        assert abs(needle - other) == min(5, max(needle, size - 1 - needle))
        if depth is not None:
            assert needle == round(depth * (size - 1))
        assert keys[0, 1:].tolist() == keys[1, 1:].tolist()
        changed = (seen[needle] != seen[other]).nonzero()
        r, c = keys[0, 1:].tolist()
        assert changed.tolist() == [[r, c], [r + 1, c]]  # all else is the same
        assert seen[needle, r + 1, c] == answer
        assert (seen >= made.value).sum() == 4


def test_both_sides_and_every_cell_are_drawn():
    made = task("video_needle", depth=0.5, gap=2)
    batch = made.eval_batch(9, 200, seed=0)
    sides, cells = set(), set()
    for row in range(200):
        for f, r, c in (frames(made, batch, row) >= made.key).nonzero().tolist():
            sides.add(f)
            cells.add((r, c))
    assert sides == {2, 4, 6} and cells == {(0, 0), (0, 1), (0, 2)}


def test_without_a_distractor():
    made = task("video_needle", distractor=False)
    batch = made.eval_batch(6, 32, seed=0)
    assert ((batch.tokens[:, :-1] >= made.value).sum(1) == 2).all()


def test_blocks_of_rows_of_different_sizes():
    made = task("video_needle", rows=2, columns=4)
    batch = made.train_batch(0, 16, seed=0, max_size=6)
    where = batch.where()
    assert isinstance(where, Positions)
    for scheme, advance in ((MRoPEIds(), lambda n: max(n, 4)), (DiagonalIds(2.0), lambda n: 2 * n - 1)):
        at = scheme.coordinates(where.query)
        for row in range(16):
            n = len(frames(made, batch, row))
            asked = 1 + 8 * n
            assert at[row, 0].tolist() == [0, 0, 0]
            assert at[row, asked].tolist() == [1 + advance(n)] * 3
            last = (at[row, asked - 1] - at[row, asked - 8]).tolist()
            assert last == [0, 1, 3]
    halves = batch.rows(4, 8).where().query
    assert torch.equal(DiagonalIds().coordinates(halves), DiagonalIds().coordinates(where.query)[4:8])


def test_what_schemes_of_blocks_see_and_others_do_not():
    settings = Settings(encodings=("videorope",), task="video-needle", train_length=4, eval_lengths=(4, 6))
    workload = make_workload(settings, None)
    assert workload.domains == ("sequence", "layout")
    assert "block" in seen_by(workload, ["videorope"]).batch(0, 2, 0).where().query.columns
    counted = seen_by(workload, ["rope"]).batch(0, 2, 0)
    assert counted.positions is None and counted.sequence is None
    assert [m.name for m in workload.measures()] == ["exact/4", "exact/6", "grid/4", "grid/6"]


def test_scores_by_depth():
    settings = Settings(encodings=("mrope",), task="video-needle", train_length=4, eval_lengths=(6,), windows=8)
    workload = make_workload(settings, None)
    model = Decoder(ModelConfig(workload.vocab_size, ("mrope",), hidden_size=32, num_layers=1, num_heads=2))
    measures = {m.name: m for m in workload.measures()}
    with torch.no_grad():
        records = measures["grid/6"].run(lambda batch: model(batch.tokens, batch.where()))
    assert len({record["depth"] for record in records}) == len(records) > 2
    assert all(record["length"] == 6 * 6 + 3 and record["count"] == 32 for record in records)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 1}, "at least 2 rows"),
        ({"keys": 1}, "from 2 to 26"),
        ({"gap": 0}, "gap"),
        ({"depth": 1.5}, "from 0 to 1"),
        ({"distractor": 1}, "True or False"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(ConfigError, match=message):
        task("video_needle", **options)
    with pytest.raises(ConfigError, match="frames from 2"):
        task("video_needle").eval_batch(1, 4, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["mrope", "videorope"])
def test_a_small_model_learns_to_find_the_needle(encoding):
    """Without a distractor, in a minute. Telling the two keys apart takes more than 1500 steps of 32 rows."""
    made = task("video_needle", columns=2, colours=4, keys=4, distractor=False)
    model = Decoder(ModelConfig(made.vocab_size, (encoding,), **sized("tiny")))
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
    for step in range(300):
        batch = made.train_batch(step, 32, seed=0, max_size=4)
        for group in optimiser.param_groups:
            group["lr"] = 2e-3 * min(1, (step + 1) / 50)
        logits = model(batch.tokens, batch.where())
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        batch = made.eval_batch(4, 256, seed=0)
        assert score(model(batch.tokens, batch.where()), batch).exact.double().mean() > 0.9


@pytest.mark.parametrize("encoding", ["videorope", "vrope"])
def test_speed_is_that_of_text(encoding):
    """Encodings of blocks are timed on sequences that say they are text."""
    model = Decoder(ModelConfig(8, (encoding,), hidden_size=64, num_layers=1, num_heads=2, max_length=40))
    with torch.no_grad():
        records = speed(model, 20, Alone(), blocks=True)
    assert [r.get("what") for r in records] == ["prefill", "decode", "cache"]
