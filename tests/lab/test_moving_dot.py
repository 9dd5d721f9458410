"""Videos of a dot that moves at one speed, and what a denoiser makes of unknown cells."""

from __future__ import annotations

import pytest
import torch

from ropewalk.core.errors import ConfigError
from ropewalk.lab.batch import IGNORE
from ropewalk.lab.experiments import experiment
from ropewalk.lab.model import Decoder, ModelConfig
from ropewalk.lab.moving_dot import DOT, EMPTY, MovingDot, moves_evenly
from ropewalk.lab.rounds import UNKNOWN, named_in_rounds
from ropewalk.lab.tasks.task import stream
from ropewalk.lab.workloads import make_workload, resolved, seen_by

EXPERIMENT = experiment("spatial_rope_scale")


def made(side=4, **options):
    return MovingDot(side, (side,), 12, encoder=True, **options)


def test_a_dot_goes_the_same_way_in_all_frames():
    videos = made().videos(stream("videos"), 2000)
    assert videos.unique().tolist() == [EMPTY, DOT] and videos.shape == (2000, 3, 4, 4)
    assert moves_evenly(videos).all()
    paths = {tuple(video.flatten(1).argmax(1).tolist()) for video in videos}
    assert len(paths) == 8**2  # along an axis: 4 that stay, 2 + 2 that go one cell a frame
    still = (videos[:, 0] == videos[:, 2]).flatten(1).all(1).double().mean()
    assert still == pytest.approx(0.25, abs=0.04)


def test_videos_that_do_not_count():
    good = made().videos(stream("good"), 1)
    twice, jump = good.clone(), good.clone()
    twice[0, 0] = torch.where(torch.arange(16).view(4, 4) < 2, DOT, EMPTY)
    jump[0, 2] = good[0, 2].roll(1, -1)
    none = torch.full_like(good, EMPTY)
    assert moves_evenly(torch.cat([good, twice, jump, none])).tolist() == [True, False, False, False]


def test_hidden_cells_are_asked_for_and_the_share_is_told():
    batch = made().batch(3, 400, seed=1)
    hidden = batch.tokens == UNKNOWN
    assert torch.equal(hidden, batch.targets != IGNORE) and hidden.any(1).all()
    known = 1 - hidden.double().mean(1)
    assert float((known - batch.sequence["progress"] ** 2).abs().mean()) < 0.08
    assert torch.equal(batch.tokens, made().batch(3, 400, seed=1).tokens)
    assert not torch.equal(batch.tokens, made().batch(4, 400, seed=1).tokens)
    assert batch.positions[0, -1].tolist() == [2, 3, 3]


def test_what_a_model_knows_is_made_and_counted():
    workload = made(rounds=5)
    video = workload.videos(stream("one"), 1)
    told = []

    def forward(batch):
        told.append((float(batch.sequence["progress"][0]), int((batch.tokens != UNKNOWN).sum())))
        sure = torch.nn.functional.one_hot(video.flatten(), workload.vocab_size)
        return (100.0 * sure).expand(len(batch.tokens), -1, -1)

    (measure,) = workload.measures()
    (record,) = measure.run(forward)
    assert record["exact"] == record["token"] == 1 and record["items"] == [1] * 12
    assert [progress for progress, _ in told] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert told[0][1] == 0 and told == sorted(told)
    (noise,) = measure.run(lambda batch: torch.zeros(*batch.tokens.shape, workload.vocab_size))
    assert noise["exact"] == 0 and noise["token"] < 0.2


def test_cells_that_are_named_stay():
    seen = []

    def locate(tokens, progress):
        seen.append(tokens)
        return made().located(tokens.view(-1, 3, 4, 4), tokens.view(-1, 3, 4, 4), torch.full((2,), progress))

    cells = named_in_rounds(lambda batch: torch.zeros(2, 48, 3), locate, 2, 48, 6, stream("stay"))
    assert (cells != UNKNOWN).all()
    for before, after in zip(seen, [*seen[1:], cells], strict=True):
        assert torch.equal(torch.where(before == UNKNOWN, UNKNOWN, after), before)


def test_scales_act_in_the_first_rounds_alone():
    workload = make_workload(resolved(EXPERIMENT.asked()), None)
    ((scaled, plain), *_) = EXPERIMENT.drop_in.items()
    assert seen_by(workload, (scaled,)) is workload
    video = workload.videos(stream("one"), 2)
    models = [Decoder(ModelConfig(workload.vocab_size, (name,), 64, 1, 2, causal=False)) for name in (scaled, plain)]
    for model in models:
        with torch.no_grad():  # attention that is sharp enough to tell
            model.blocks[0].attention.q.weight.mul_(100)
            model.blocks[0].attention.out.weight.mul_(100)
    for progress, same in ((0.2, False), (0.7, True)):
        batch = workload.located(video, video, torch.full((2,), progress))
        ours, other = (model(batch.tokens, batch.where()) for model in models)
        assert torch.equal(ours, other) == same


def test_what_cannot_be():
    with pytest.raises(ConfigError, match="bidirectional"):
        MovingDot(5, (5,))
    with pytest.raises(ConfigError, match="frames are 2 or more"):
        made(frames=1)
    with pytest.raises(ConfigError, match="at least 3"):
        made(2)
