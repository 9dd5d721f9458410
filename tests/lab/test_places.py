"""Right answers by the place and the size of what is asked for."""

import pytest
import torch

from ropewalk.core.errors import ConfigError
from ropewalk.lab.measured import Results
from ropewalk.lab.model import Decoder, ModelConfig
from ropewalk.lab.places import accuracy_by_place
from ropewalk.lab.report.numbers import places
from ropewalk.lab.settings import Settings
from ropewalk.lab.tasks import task
from ropewalk.lab.tasks.picture_question import NO, YES
from ropewalk.lab.workloads import make_workload

PRESENCE = task("picture_question", question="presence", largest_object=3)


def blind_to(rows):
    """Return a model that sees no object in some rows of pictures of 4 x 5 cells, and all others."""

    def forward(batch):
        shown = (batch.tokens[:, 1:21] == batch.tokens[:, -1:]).view(-1, 4, 5)
        seen = shown[:, [r for r in range(4) if r not in rows]].flatten(1).any(1)
        said = torch.where(seen, YES, NO)
        return said[:, None].expand_as(batch.tokens)

    return forward


def test_an_object_that_is_not_seen_in_some_rows():
    small = accuracy_by_place(blind_to((0, 1)), PRESENCE, 4, count=3)
    assert small.right.tolist() == [[0.0] * 5] * 2 + [[1.0] * 5] * 2
    assert (small.mean, small.lowest, small.spread, small.count) == (0.5, 0, 1, 3)
    larger = accuracy_by_place(blind_to((0, 1)), PRESENCE, 4, 2)
    assert larger.right.tolist() == [[0.0] * 4, [1.0] * 4, [1.0] * 4]
    assert accuracy_by_place(blind_to((0, 1)), PRESENCE, 4, 3).lowest == 1


def test_what_cannot_be_asked():
    with pytest.raises(ConfigError, match="rows from 5"):
        accuracy_by_place(blind_to(()), PRESENCE, 4, 5)
    with pytest.raises(ConfigError, match="asked for by 'presence'"):
        accuracy_by_place(blind_to(()), task("picture_question"), 4)
    with pytest.raises(ConfigError, match="counted from 0"):
        PRESENCE.with_object(-1, 0)
    with pytest.raises(ConfigError, match="count"):
        accuracy_by_place(blind_to(()), PRESENCE, 4, count=0)


@pytest.mark.parametrize("encoder", [False, True])
def test_comparisons_measure_places(encoder):
    name = "picture-question(question=presence, largest_object=2)"
    settings = Settings(
        encodings=("mrope",), task=name, train_length=3, eval_lengths=(3, 4), windows=8, encoder=encoder
    )
    workload = make_workload(settings, None)
    measures = {m.name: m for m in workload.measures()}
    assert list(measures) == ["exact/3", "exact/4", "places/3", "places/4"]
    config = ModelConfig(workload.vocab_size, ("mrope",), hidden_size=32, num_layers=1, num_heads=2, causal=not encoder)
    model = Decoder(config)
    records = measures["places/4"].run(lambda batch: model(batch.tokens, batch.where()))
    assert [(r["kind"], r["size"], r["side"]) for r in records] == [("places", 4, 1), ("places", 4, 2)]
    assert [torch.tensor(r["right"]).shape for r in records] == [(4, 5), (3, 4)]
    other = make_workload(
        Settings(encodings=("mrope",), task="picture-question", train_length=3, eval_lengths=(3,)), None
    )
    assert [m.name for m in other.measures()] == ["exact/3"]


def test_a_report_has_a_row_for_each_size():
    def record(seed, size, side, right):
        more = {"kind": "places", "size": size, "side": side, "right": right, "count": 4}
        return {"trial": f"mrope-s{seed}", "encoding": "mrope", "task": "picture_question", "seed": seed, **more}

    records = [record(0, 2, 1, [[0.0, 1.0, 1.0], [0.5, 1.0, 1.0]]), record(1, 2, 1, [[0.5, 1.0, 1.0], [0.5, 1.0, 1.0]])]
    text = str(places(Results([*records, record(0, 2, 2, [[0.75, 0.75]])])))
    for cell in ("1 × 1", "79 %", "25 %", "100 %", "2 × 2", "75 %"):
        assert f"<td>{cell}</td>" in text
    assert places(Results([])) is None
