"""The same comparison as Ray tasks: the same numbers, and a driver that can be interrupted."""

from __future__ import annotations

import pytest
from small import Here, comparable, settings, texts

from ropewalk.core.errors import ConfigError
from ropewalk.lab.compare import compare

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


class Interrupted:
    """Stops a run after some events, as a killed driver would."""

    def __init__(self, runner, after):
        self.runner, self.left = runner, after

    def run(self, jobs):
        for spec, event in self.runner.run(jobs):
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            yield spec, event


@pytest.mark.parametrize("after", [None, 3, 9])
def test_ray_gives_the_same_numbers(tmp_path, after):
    from ropewalk.lab.on_ray import RayRunner

    data = texts(tmp_path / "data")
    given = settings(
        task="text", data=(data,), train_length=32, eval_lengths=(32, 64), encodings=("rope", "fox", "nope")
    )
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the tasks: sums are then added in the same order
    try:
        here = compare(given, tmp_path / "here", runner=Here(tmp_path / "here", given))
    finally:
        torch.set_num_threads(threads)
    folder = tmp_path / "ray"
    if after is not None:
        with pytest.raises(KeyboardInterrupt):
            compare(given, folder, runner=Interrupted(RayRunner(folder, given), after))
    there = compare(given, folder, runner=RayRunner(folder, given))
    assert not there.failed
    assert comparable(there.records) == comparable(here.records)


def test_a_failing_trial(tmp_path):
    from ropewalk.lab.on_ray import RayRunner

    given = settings(lr=1e30)
    outcome = compare(given, tmp_path / "run", runner=RayRunner(tmp_path / "run", given))
    assert set(outcome.failed) == {"rope-s0", "alibi-s0"}


def test_no_cluster_there(tmp_path):
    from ropewalk.lab.on_ray import RayRunner

    ray.shutdown()
    runner = RayRunner(tmp_path, settings(), "127.0.0.1:1")
    with pytest.raises(ConfigError, match="no Ray cluster"):
        list(runner.run([]))
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
