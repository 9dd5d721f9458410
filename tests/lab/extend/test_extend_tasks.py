"""Tasks of lm-eval: found and loaded before anything is measured, run on every method, and shown. Nothing is downloaded."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import TEXT, byte_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

pytest.importorskip("lm_eval")

from lm_eval import tasks as lm_eval_tasks

from ropewalk.cli import main
from ropewalk.core.errors import ConfigError
from ropewalk.lab.extend import UNCHANGED, Extension, extend
from ropewalk.lab.extend.report import page
from ropewalk.lab.extend.summary import as_json, headlines, summarise
from ropewalk.lab.runs import read_results, read_settings

LONG = Path(TEXT[3]).read_text(encoding="utf-8")
TEXTS = [(at, LONG[at : at + n].rstrip()) for at, n in ((2000, 12), (3000, 30), (4000, 90), (5000, 110), (6000, 20))]
DOCUMENTS = [{"text": text, "choices": [LONG[at + len(text) :][:3], "zqj"], "label": 0} for at, text in TEXTS]
"""Some are longer than the 64 tokens that the model was trained for."""

HEAD = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
doc_to_text: "{{{{text}}}}"
target_delimiter: ""
"""
CHOICE = """
output_type: multiple_choice
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
NEXT = """
output_type: loglikelihood
doc_to_target: "{{choices[0]}}"
metric_list: [{metric: perplexity, aggregation: perplexity, higher_is_better: false}]
"""
WRITTEN = """
output_type: generate_until
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["qqq"], max_gen_toks: 3}
filter_list:
  - {name: strict, filter: [{function: take_first}]}
  - {name: loose, filter: [{function: remove_whitespace}, {function: take_first}]}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture(autouse=True)
def own_tasks_alone(request, monkeypatch):
    """Reading the thousands that lm-eval brings takes seconds each time."""
    if "every_task" not in request.fixturenames:
        quick = functools.partial(lm_eval_tasks.TaskManager, include_defaults=False)
        monkeypatch.setattr(lm_eval_tasks, "TaskManager", quick)


@pytest.fixture
def every_task():
    """For tests of lm-eval's own tasks."""


@pytest.fixture
def task(tmp_path):
    """Write a task with its data, and return its file."""

    def write(name, kind, documents=DOCUMENTS):
        data = tmp_path / f"{name}.jsonl"
        if documents is not None:
            data.write_text("".join(json.dumps(document) + "\n" for document in documents))
        file = tmp_path / f"{name}.yaml"
        file.write_text(HEAD.format(name=name, data=data) + kind)
        return str(file)

    return write


def settings(checkpoint, **more):
    few = {"windows": 2, "needles": 0, "definitions": 0, "data": TEXT, "to": "2x", "methods": ("pi",)}
    return Extension(str(checkpoint), **{**few, **more})


def refused(source, out, match, **more):
    with pytest.raises(ConfigError, match=match):
        extend(settings(source, **more), out)
    assert not out.exists()


def told(records, encoding, task):
    return {
        r["metric"]: r for r in records if r["kind"] == "lm-eval" and (r["encoding"], r["what"]) == (encoding, task)
    }


def log_likelihood(model, text, continuation):
    """Without lm-eval."""
    tokens = torch.tensor([byte_tokenizer()(text + continuation)["input_ids"]])
    size = len(byte_tokenizer()(continuation)["input_ids"])
    with torch.no_grad():
        scores = model(tokens[:, :-1]).logits.float().log_softmax(-1)
    return float(scores[0, -size:].gather(1, tokens[0, -size:, None]).sum())


def test_results_are_those_of_the_changed_model(checkpoint, tmp_path, task):
    """By hand and by plain transformers; inputs beyond the trained length are read whole."""
    names = (task("choice", CHOICE), task("next", NEXT), task("written", WRITTEN))
    outcome = extend(settings(checkpoint, lm_eval=names, choose="pi"), tmp_path / "out")
    assert not outcome.failed
    scaled = {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}}
    for name, changes in ((UNCHANGED, {}), ("pi", scaled)):
        model = AutoModelForCausalLM.from_pretrained(checkpoint, **changes)
        own = [log_likelihood(model, d["text"], d["choices"][0]) for d in DOCUMENTS]
        other = [log_likelihood(model, d["text"], d["choices"][1]) for d in DOCUMENTS]
        choice = told(outcome.records, name, "choice")["acc"]
        assert choice["items"] == [float(a > b) for a, b in zip(own, other, strict=True)]
        assert choice["value"] == pytest.approx(sum(choice["items"]) / len(DOCUMENTS)) and choice["better"] == "higher"
        perplexity = told(outcome.records, name, "next")["perplexity"]
        assert perplexity["value"] == pytest.approx(float(torch.tensor(own).mean().neg().exp()), rel=1e-3)
        assert perplexity["items"] is None and perplexity["better"] == "lower"
        assert set(told(outcome.records, name, "written")) == {"exact_match (strict)", "exact_match (loose)"}
    losses = [told(outcome.records, name, "next")["perplexity"]["value"] for name in (UNCHANGED, "pi")]
    assert losses[0] != losses[1]
    written, there = (AutoTokenizer.from_pretrained(f) for f in (tmp_path / "out" / "model", checkpoint))
    assert written.pad_token is None and there.pad_token is None  # lm-eval wants one


def test_they_are_shown(checkpoint, tmp_path, task):
    outcome = extend(settings(checkpoint, lm_eval=(task("choice", CHOICE), task("next", NEXT))), tmp_path / "out")
    about = read_settings(outcome.folder)
    summary = summarise(outcome.records, about)
    before, after = (told(outcome.records, name, "choice")["acc"] for name in (UNCHANGED, "pi"))
    (acc, perplexity) = summary.row("pi").tasks
    assert (acc.task, acc.metric) == ("choice", "acc") and acc.value.mean == after["value"]
    assert acc.gap.mean == pytest.approx(after["value"] - before["value"]) and acc.gap.documents == len(DOCUMENTS)
    assert perplexity.seen == "not measured" and perplexity.gap.half_width == float("inf")
    assert all(score.gap is None for score in summary.row(UNCHANGED).tasks)
    html = page(outcome.records, about)
    assert ">Tasks</h2>" in html and "choice, acc (higher is better)" in html and "next, perplexity (lower" in html
    (plain,) = (m["tasks"] for m in as_json(summary)["methods"] if m["method"] == "pi")
    assert plain[0]["verdict"] == acc.seen and plain[1]["difference"]["low"] is None
    said = " ".join(headlines(summary, "pi"))
    assert "choice, acc: " in said and "against before" in said


def test_the_direction_of_a_metric_is_its_own():
    """More of what is better is better."""
    items = {UNCHANGED: [0.0, 0.0, 0.0, 1.0] * 5, "pi": [1.0] * 20}
    record = {"kind": "lm-eval", "what": "t", "metric": "m", "error": None, "seed": 0}
    workload = {"lengths": [64, 128], "checkpoint": {"trained_length": 64}, "wanted": 128}
    for better, seen in (("higher", "better"), ("lower", "worse"), (None, "not measured")):
        records = [
            {**record, "encoding": name, "better": better, "items": of, "value": sum(of) / 20}
            for name, of in items.items()
        ]
        (score,) = summarise(records, {"workload": workload, "settings": {"methods": ["pi"]}}).row("pi").tasks
        assert score.seen == seen and score.gap.mean == pytest.approx(0.75)


def test_nothing_is_run_twice(checkpoint, tmp_path, task):
    asked = settings(checkpoint, lm_eval=(task("choice", CHOICE),))
    said = []

    def stop(line):
        said.append(line)
        if ": lm-eval: " in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extend(asked, tmp_path / "out", say=stop, write=False)
    later = []
    extend(asked, tmp_path / "out", say=later.append, write=False)
    assert "unchanged: lm-eval: choice acc" in said[-1]
    assert [line.partition(":")[0] for line in later if ": lm-eval: " in line] == ["pi"]
    assert len([r for r in read_results(tmp_path / "out") if r["kind"] == "lm-eval"]) == 2


def test_a_task_that_cannot_be_run(checkpoint, tmp_path, task):
    """Fails that method, in words, and what was measured before it stays."""
    file = task("broken", NEXT, [DOCUMENTS[0], {**DOCUMENTS[1], "choices": []}])
    outcome = extend(settings(checkpoint, lm_eval=(file,)), tmp_path / "out", write=False)
    assert set(outcome.failed) == {UNCHANGED, "pi"} and "lm-eval could not run" in outcome.failed["pi"]


def test_files_that_are_not_there(checkpoint, tmp_path, task):
    refused(checkpoint, tmp_path / "out", r"no file '.*nothing\.yaml'", lm_eval=(str(tmp_path / "nothing.yaml"),))
    lost = task("lost", CHOICE, documents=None)
    refused(
        checkpoint,
        tmp_path / "out",
        r"cannot load the task '.*lost\.yaml' .*lost\.jsonl.*while online",
        lm_eval=(lost,),
    )
    empty = task("split", CHOICE.replace("acc,", "acc,") + "\nvalidation_split: dev\n")
    Path(empty).write_text(Path(empty).read_text().replace("test_split: test", ""))
    refused(checkpoint, tmp_path / "out", r"cannot load the task '.*split\.yaml' \(KeyError", lm_eval=(empty,))


def test_what_is_refused(checkpoint, tmp_path, task):
    one = task("choice", CHOICE)
    refused(checkpoint, tmp_path / "out", "several copies", lm_eval=(one,), methods=("attention_buckets",))
    other = tmp_path / "again.yaml"
    other.write_text(Path(one).read_text())
    refused(checkpoint, tmp_path / "out", "both hold the task choice", lm_eval=(one, str(other)))
    with pytest.raises(ConfigError, match="named twice"):
        settings(checkpoint, lm_eval=(one, one))


def test_a_task_that_nobody_knows(checkpoint, tmp_path, every_task):
    refused(
        checkpoint,
        tmp_path / "out",
        "no task, group or tag 'hellaswagg'.*Did you mean 'hellaswag'",
        lm_eval=("hellaswagg",),
    )


def test_the_command_without_a_network(checkpoint, tmp_path):
    """Data of a published task that are not on this machine: said before anything is measured or written."""
    code = "from ropewalk.cli import main; main()"
    asked = ["extend", str(checkpoint), "--to", "2x", "--method", "pi", "--lm-eval", "hellaswag", "--text", TEXT[0]]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "nothing")}
    done = subprocess.run(
        [sys.executable, "-c", code, *asked, "--out", str(tmp_path / "out")],
        env={**os.environ, **offline}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2 and re.search(r"cannot load the task 'hellaswag'.*while\s+online", done.stderr, re.S)
    assert "Traceback" not in done.stderr and not (tmp_path / "out").exists()


def test_the_command(checkpoint, tmp_path, task, capsys):
    names = f"{task('choice', CHOICE)},{task('next', NEXT)}"
    arguments = ["extend", str(checkpoint), "--to", "2x", "--method", "pi", "--needles", "0", "--definitions", "0"]
    arguments += ["--windows", "2", "--out", str(tmp_path / "out"), "--device", "cpu", "--lm-eval", names, "--no-write"]
    arguments += [part for file in TEXT for part in ("--text", file)]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, _ = capsys.readouterr()
    assert ended.value.code == 0 and "choice, acc: " in out and "next, perplexity: " in out
    with pytest.raises(SystemExit):
        main([*arguments, "--out", str(tmp_path / "other"), "--json"])
    told = json.loads(capsys.readouterr().out)  # and nothing that lm-eval prints
    assert {score["task"] for score in told["methods"][1]["tasks"]} == {"choice", "next"}
