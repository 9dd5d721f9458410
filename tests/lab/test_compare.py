"""Comparisons: fairness, interruption and resumption, failures, bad input."""

from __future__ import annotations

import json
import math
import os

import pytest
import torch
from small import Here, comparable, settings, texts

import ropewalk as rw
from ropewalk.core.errors import ConfigError, UnknownNameError
from ropewalk.lab import trial as trials
from ropewalk.lab.compare import Failure, compare, default_folder, file_name, plan, plan_sweep, shape_of
from ropewalk.lab.errors import RunError
from ropewalk.lab.files import write_bytes
from ropewalk.lab.model import load
from ropewalk.lab.runs import RunFolder, read_results, read_settings
from ropewalk.lab.settings import Settings
from ropewalk.lab.trial import Checkpoint, Finished, Measured, Progress, learning_rate
from ropewalk.lab.workloads import make_workload, resolved


def run(folder, given, **options):
    return compare(given, folder, runner=Here(folder, given, options.pop("stop_after", None)), **options)


def kinds(records, encoding=None):
    return {r["kind"] for r in records if encoding in (None, r["encoding"])}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    return run(folder, settings())


def test_what_a_run_leaves(undisturbed):
    folder, records = undisturbed.folder, undisturbed.records
    assert not undisturbed.failed
    assert kinds(records) == {"model", "curve", "exact", "retrieval", "memory", "speed", "fixed"}
    for record in records:
        assert {"trial", "encoding", "task", "seed", "lr", "time", "kind", "context"} <= record.keys()
        context = record["context"]
        assert context["versions"]["torch"] == torch.__version__
        assert context["settings"]["tokens"] == 3840 and context["hardware"]["threads"]
    assert {r["size"]: r["trained"] for r in records if r["kind"] == "exact"} == {8: True, 24: False}
    lines = (folder / "results.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == records
    assert sorted(os.listdir(folder / "models")) == ["alibi-s0", "rope-s0"]
    assert isinstance(load(folder / "models" / "rope-s0").encodings[0], rw.RoPE)
    asked = read_settings(folder)
    assert asked["settings"]["train_length"] == 12 and asked["workload"]["examples"]
    assert not list(folder.glob("trials/*/checkpoint*")) and not list(folder.glob("trials/*/measured*"))


def test_a_complete_run_does_nothing_more(undisturbed, tmp_path):
    class Refuses:
        def run(self, jobs):
            raise AssertionError("there was nothing to run")

    again = compare(settings(), undisturbed.folder, runner=Refuses())
    assert again.records == undisturbed.records


@pytest.mark.parametrize("after", [0, 1, 2, 3, 4, 5, 6, 8, 11, 14, 19, 24])
def test_an_interrupted_run_ends_with_the_same_numbers(undisturbed, tmp_path, after):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", settings(), stop_after=after)
    events = []

    class Watch:
        def begin(self, specs, over):
            events.append(("over", tuple(over)))

        def tell(self, spec, event):
            events.append((spec.name, event))

    again = run(tmp_path / "run", settings(), watcher=Watch())
    assert comparable(again.records) == comparable(undisturbed.records)
    for name in ("rope-s0", "alibi-s0"):
        ours, theirs = (f / "models" / name / "model.safetensors" for f in (again.folder, undisturbed.folder))
        assert ours.read_bytes() == theirs.read_bytes()
    for name in events[0][1]:  # no finished trial is repeated
        assert all(spec != name for spec, _ in events[1:])


def test_text_too(tmp_path):
    data = texts(tmp_path / "data")
    given = settings(
        task="text", data=(data,), train_length=32, eval_lengths=(32, 96), encodings=("fox", "randomized_rope")
    )
    whole = run(tmp_path / "a", given)
    assert {"loss", "positions", "learned"} <= kinds(whole.records, "fox")
    losses = [r for r in whole.records if r["kind"] == "loss"]
    for record in losses:
        tokens = sum(n for _, n in record["documents"].values())
        mean = sum(m * n for m, n in record["documents"].values()) / tokens
        assert math.isclose(mean, record["mean"]) and tokens == record["last"] * 8
    for after in (7, 22):
        folder = tmp_path / str(after)
        with pytest.raises(KeyboardInterrupt):
            run(folder, given, stop_after=after)
        for file in (tmp_path / "data").iterdir():
            file.write_text("the data changed, and the run goes on with what it began with")
        assert comparable(run(folder, given).records) == comparable(whole.records)
        texts(tmp_path / "data")


def test_everything_but_the_encoding_is_equal():
    given = resolved(settings(encodings=("rope", "fox", "sinusoidal"), seeds=2))
    workload = make_workload(given, None)
    specs = plan(given, shape_of(given, workload), workload)
    assert [s.name for s in specs] == [f"{e}-s{i}" for i in (0, 1) for e in ("rope", "fox", "sinusoidal")]
    for a in specs:
        for b in specs:
            same = ("lr", "steps", "batch_size", "warmup", "weight_decay")
            assert all(getattr(a, name) == getattr(b, name) for name in same)
    first, second = (workload.batch(3, 8, seed) for seed in (0, 1))
    assert not torch.equal(first.tokens, second.tokens)
    assert torch.equal(first.tokens, make_workload(given, None).batch(3, 8, 0).tokens)


def test_learning_rate():
    given = resolved(settings())
    workload = make_workload(given, None)
    spec = plan(given, shape_of(given, workload), workload)[0]
    rates = [learning_rate(spec, step) for step in range(spec.steps)]
    assert max(rates) == pytest.approx(spec.lr, rel=0.02)
    assert rates[-1] == pytest.approx(spec.lr / 10, rel=0.1)
    assert rates[0] < spec.lr


def test_sweep_chooses_on_validation_and_does_not_train_twice(tmp_path):
    given = settings(lr_sweep=(1e-4, 1e-2), seeds=2)
    trained = []

    class Watch:
        def begin(self, specs, over):
            pass

        def tell(self, spec, event):
            if isinstance(event, Progress):
                trained.append(spec.name)

    outcome = run(tmp_path / "run", given, watcher=Watch())
    sweep = [r for r in outcome.records if r["kind"] == "sweep"]
    assert len(sweep) == 4
    for name in ("rope", "alibi"):
        rates = {r["lr"]: r["validation_loss"] for r in sweep if r["encoding"] == name}
        best = min(rates, key=rates.get)
        assert {r["lr"] for r in outcome.records if r["kind"] == "exact" and r["encoding"] == name} == {best}
        assert f"{name}-s0" not in trained  # measured from the sweep's checkpoint
        assert f"{name}-s1" in trained
    direct = run(tmp_path / "direct", settings(lr=best, encodings=("alibi",)))
    want = [r for r in outcome.records if r["trial"] == "alibi-s0"]
    assert comparable(want) == comparable(direct.records)
    assert (
        plan_sweep(settings(), shape_of(resolved(given), make_workload(given, None)), make_workload(given, None)) == []
    )


# ---- failures --------------------------------------------------------------------------------------------------------


def test_a_failing_trial_is_recorded_and_the_others_go_on(tmp_path, monkeypatch):
    real = trials.loss_of

    def poisoned(logits, targets, reduction="mean"):
        return real(logits, targets, reduction) * (float("nan") if poison else 1)

    monkeypatch.setattr(trials, "loss_of", poisoned)
    poison = True
    given = settings(encodings=("rope",))
    outcome = run(tmp_path / "run", given)
    assert "loss became nan" in outcome.failed["rope-s0"]
    assert kinds(outcome.records) == {"failed"}
    poison = False
    assert run(tmp_path / "run", given).failed  # failed is over
    outcome = run(tmp_path / "run", given, retry_failed=True)
    assert not outcome.failed and "failed" not in kinds(outcome.records)
    every = [json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text().splitlines()]
    assert [r["kind"] for r in every if r["attempt"] == 0] == ["failed"]  # append-only: the failure stays on record
    # and a mended results file is the same as one that was written whole
    (tmp_path / "run" / "results.jsonl").write_text("\n".join(map(json.dumps, every[:5])) + '\n{"torn')
    assert comparable(run(tmp_path / "run", given).records) == comparable(outcome.records)


def test_out_of_memory_is_a_failure(tmp_path, monkeypatch):
    def starved(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 5 GiB")

    monkeypatch.setattr(trials, "learning_rate", starved)
    outcome = run(tmp_path / "run", settings())
    assert set(outcome.failed) == {"rope-s0", "alibi-s0"}
    assert all("out of memory" in reason for reason in outcome.failed.values())


def test_an_encoding_that_raises_is_a_failure_of_its_own(tmp_path, monkeypatch):
    def broken(self, problem):
        raise ZeroDivisionError("no such thing")

    monkeypatch.setattr(rw.ALiBi, "rewrite", broken)
    outcome = run(tmp_path / "run", settings())
    assert set(outcome.failed) == {"alibi-s0"}
    assert "ZeroDivisionError: no such thing" in outcome.failed["alibi-s0"]
    assert "exact" in kinds(outcome.records, "rope")


def test_a_refused_measurement_leaves_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(rw.ALiBi, "why_not_cached", lambda self: "it would not be the same")
    outcome = run(tmp_path / "run", settings())
    assert not outcome.failed
    what = {r["what"] for r in outcome.records if r["kind"] == "speed" and r["encoding"] == "alibi"}
    assert what == {"train", "prefill"}


# ---- folders ---------------------------------------------------------------------------------------------------------


def test_two_runs_in_one_folder(tmp_path):
    with RunFolder(tmp_path / "run", settings()), pytest.raises(RunError, match="another process"):
        run(tmp_path / "run", settings())


def test_a_folder_of_other_settings(tmp_path, undisturbed):
    with pytest.raises(RunError, match="seeds: 1 there, 2 now"):
        run(undisturbed.folder, settings(seeds=2))


def test_a_folder_of_other_things(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunError, match="holds other files"):
        run(tmp_path, settings())
    assert os.listdir(tmp_path) == ["thesis.tex"]
    with pytest.raises(RunError, match="is a file"):
        run(tmp_path / "thesis.tex", settings())


def test_bad_input_leaves_nothing_behind(tmp_path):
    for changes, error, said in (
        ({"encodings": ("rpoe",)}, UnknownNameError, "Did you mean"),
        ({"encodings": ("rope(bass=3)",)}, ConfigError, "takes no 'bass'"),
        ({"encodings": ("gta",)}, ConfigError, "views"),
        ({"encodings": ("rope", " rope ")}, ConfigError, "twice"),
        ({"task": "needel"}, UnknownNameError, "needle"),
        ({"task": "needle(depth=7)"}, ConfigError, "depth"),
        ({"task": "addition", "encoder": True}, ConfigError, "causal attention"),
        ({"encodings": ("string_shifted",), "encoder": True}, ConfigError, "causal attention only"),
        ({"task": "text", "data": (str(tmp_path / "none"),)}, ConfigError, "none"),
        ({"shape": {"num_heads": 3}}, ConfigError, "evenly"),
        ({"size": "enormous"}, ConfigError, "tiny"),
        ({"lr": float("nan")}, ConfigError, "learning rate"),
        ({"seeds": 0}, ConfigError, "seeds"),
        ({"tokenizer": "x.json"}, ConfigError, "makes its own"),
    ):
        with pytest.raises(error, match=said):
            run(tmp_path / "run", settings(**changes))
        assert not (tmp_path / "run" / "settings.json").exists()
    with pytest.raises(ConfigError, match="Did you mean 'tokens'"):
        Settings.from_dict({"token": 3})


def test_text_shorter_than_a_window(tmp_path):
    data = texts(tmp_path / "data", words=10)
    with pytest.raises(ConfigError, match="longest"):
        run(tmp_path / "run", settings(task="text", data=(data,), train_length=32, eval_lengths=(32, 4096)))


def test_names():
    assert file_name("rope") == "rope"
    one, other = file_name("rope(base=5e5)"), file_name("rope(base=5e5 )")
    assert one != other and one.startswith("rope_base_5e5-")
    assert default_folder(settings()) == default_folder(settings())
    assert default_folder(settings()) != default_folder(settings(seeds=2))


def test_files_are_whole_or_not_there(tmp_path, monkeypatch):
    file = tmp_path / "f"
    write_bytes(file, b"old")

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write_bytes(file, b"new")
    assert file.read_bytes() == b"old" and os.listdir(tmp_path) == ["f"]


def test_events_are_what_they_say(tmp_path):
    given = resolved(settings(encodings=("rope",)))
    workload = make_workload(given, None)
    spec = plan(given, shape_of(given, workload), workload)[0]
    events = list(trials.run(spec, workload))
    assert [e.step for e in events if isinstance(e, Checkpoint)] == sorted({*range(10, spec.steps, 10), spec.steps})
    assert isinstance(events[-1], Finished)
    names = [e.name for e in events if isinstance(e, Measured)]
    assert len(names) == len(set(names))
    assert not any(isinstance(e, Failure) for e in events)
    assert len(read_results(tmp_path)) == 0
