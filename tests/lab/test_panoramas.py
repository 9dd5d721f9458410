"""Pictures that wrap around, and the seams of those that a denoiser makes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ropewalk.core.errors import ConfigError
from ropewalk.lab.batch import IGNORE
from ropewalk.lab.compare import plan, shape_of
from ropewalk.lab.experiments import experiment
from ropewalk.lab.model import Decoder, with_encodings
from ropewalk.lab.panorama import seam_score
from ropewalk.lab.panoramas import Panoramas
from ropewalk.lab.place import Alone
from ropewalk.lab.rounds import UNKNOWN
from ropewalk.lab.settings import Settings
from ropewalk.lab.tasks.task import stream
from ropewalk.lab.trial import Finished, run
from ropewalk.lab.workloads import make_workload, resolved, seen_by

EXPERIMENT = experiment("spherope")
((SPHERE, FLAT), *_) = EXPERIMENT.drop_in.items()


def made(columns=10, **options):
    return Panoramas(columns, (columns,), 16, encoder=True, **options)


def test_rings_wrap_around_and_windows_do_not():
    workload = made(26)
    ring = workload.pictures(stream("ring"), 200, columns=52)
    window = workload.pictures(stream("ring"), 200)
    assert torch.equal(ring[..., :26], window)
    assert seam_score(ring) == pytest.approx(1, abs=0.15)
    assert seam_score(window) > 2
    assert set(ring.flatten().tolist()) == set(range(8))


def test_hidden_cells_are_asked_for():
    batch = made().batch(3, 40, seed=1)
    hidden = batch.tokens == UNKNOWN
    assert torch.equal(hidden, batch.targets != IGNORE)
    assert hidden.any(1).sum() > 30
    assert not torch.equal(batch.tokens, made().batch(4, 40, seed=1).tokens)
    assert torch.equal(batch.tokens, made().batch(3, 40, seed=1).tokens)
    assert batch.targets[hidden].min() >= 1


def test_a_picture_is_made_whole():
    """A model that knows the picture makes it, however it is cut up into rounds."""
    workload = made(rounds=5)
    picture = workload.pictures(stream("one"), 1)[0]

    def forward(batch):
        told.append(int((batch.tokens != UNKNOWN).sum()))
        sure = torch.nn.functional.one_hot(1 + picture.flatten(), workload.vocab_size)
        return (100.0 * sure).expand(len(batch.tokens), -1, -1)

    told = []
    found = workload.sample(forward, 10, 3, seed=0)
    assert torch.equal(found, picture.expand(3, -1, -1))
    assert told == sorted(told) and told[0] == 0 and len(told) == 5
    steps = [b - a for a, b in zip(told, [*told[1:], 90], strict=True)]
    assert steps == sorted(steps)  # few at first


def test_seams_are_counted():
    workload = made(26)
    (measure,) = workload.measures()

    def always(level):
        def forward(batch):
            logits = torch.zeros(*batch.tokens.shape, workload.vocab_size)
            return logits.scatter(-1, level(batch).expand(len(batch.tokens), -1)[..., None] + 1, 100.0)

        return forward

    flat = torch.full((1, 78), 3)
    slope = torch.arange(26).div(4, rounding_mode="floor").repeat(3)[None]
    for level, seamless, seam in ((flat, 1.0, 0.0), (slope, 0.0, 6 / (6 / 25))):
        exact, other = measure.run(always(lambda batch, level=level: level))
        assert exact["exact"] == seamless and exact["items"] == [int(seamless)] * 16
        assert other["kind"] == "seam" and other["seam"] == pytest.approx(seam)
    noise, _ = measure.run(lambda batch: torch.zeros(*batch.tokens.shape, workload.vocab_size))
    assert noise["exact"] < 0.5  # no seam is worse than the rest of noise, which is no picture


def seams(tokens, batch_size):
    """Train the denoiser of the experiment, and return the seam and the steps inside with its own and spherical positions."""
    asked = {**EXPERIMENT.settings, "tokens": tokens, "batch_size": batch_size, "seeds": 1, "windows": 48}
    settings = resolved(Settings.from_dict(asked))
    workload = make_workload(settings, None)
    (spec,) = plan(settings, shape_of(settings, workload), workload)
    (done,) = [event for event in run(replace(spec, measure=False), workload) if isinstance(event, Finished)]
    found = {}
    for name in (FLAT, SPHERE):
        model = Decoder(with_encodings(spec.model, (name,)))
        model.from_bytes(done.model)
        assert seen_by(workload, (name,)) is workload
        assert sum(p.numel() for p in model.parameters()) < 1_000_000
        pictures = workload.sample(Alone().forward(model), 26, 48, seed=0).double()
        found[name] = seam_score(pictures), float(pictures.diff(dim=-1).abs().mean())
    return *found[FLAT], *found[SPHERE]


def test_pictures_of_a_trained_denoiser_wrap_around():
    flat, inside, sphere, inside_sphere = seams(160_000, 16)
    assert flat > 2
    assert sphere < 1.5
    assert inside_sphere < 1.2 * inside < 1.5  # of noise it is above 2.5


@pytest.mark.slow
def test_pictures_of_a_denoiser_that_was_trained_for_longer_wrap_around():
    flat, inside, sphere, inside_sphere = seams(900_000, 32)
    assert flat > 2.5
    assert sphere < 1.3
    assert inside_sphere < 1.2 * inside < 1.2


def test_what_cannot_be():
    with pytest.raises(ConfigError, match="bidirectional"):
        Panoramas(10, (10,))
    with pytest.raises(ConfigError, match="columns from 4 on; got 3"):
        Panoramas(10, (3,), encoder=True)
    with pytest.raises(ConfigError, match="levels"):
        made(levels=0)
