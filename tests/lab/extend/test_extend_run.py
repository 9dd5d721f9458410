"""The whole job on a small model: measured, tuned, searched, interrupted, killed, written and reported."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load
from tiny import TEXT, TRAINED
from transformers import AutoModelForCausalLM

from ropewalk import hf
from ropewalk.cli import main
from ropewalk.lab.errors import RunError
from ropewalk.lab.extend import UNCHANGED, Extension, extend
from ropewalk.lab.extend.checkpoint import read_checkpoint
from ropewalk.lab.extend.report import page
from ropewalk.lab.extend.summary import as_json, best, headlines, summarise
from ropewalk.lab.runs import read_results, read_settings

FEW = {"data": TEXT, "windows": 4, "needles": 1, "depths": (0.0, 1.0), "definitions": 2, "control": True}


def settings(checkpoint, **more):
    return Extension(str(checkpoint), **{"to": "4x", "methods": ("pi", "yarn"), **FEW, **more})


def comparable(folder):
    """Everything that was measured, without when and by whom."""
    return sorted(
        json.dumps({k: v for k, v in r.items() if k not in ("time", "context")}, sort_keys=True)
        for r in read_results(folder)
    )


def fingerprint(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def done(checkpoint, tmp_path_factory):
    """A run that was left alone."""
    before = fingerprint(checkpoint)
    outcome = extend(settings(checkpoint, choose="yarn"), tmp_path_factory.mktemp("run") / "out")
    assert fingerprint(checkpoint) == before
    return outcome


def test_it_is_measured_at_every_length(done):
    assert not done.failed
    for name in (UNCHANGED, "pi", "yarn"):
        mine = [r for r in done.records if r["encoding"] == name]
        losses = {r["length"]: r["mean"] for r in mine if r["kind"] == "loss"}
        assert list(losses) == [64, 128, 256] and all(0 < loss < 20 for loss in losses.values())
        assert {r["length"] for r in mine if r["kind"] == "positions"} == {64, 128, 256}
        cells = {(r["length"], r["depth"], r["metric"]) for r in mine if r["kind"] == "retrieval"}
        assert len(cells) == 2 * 2 * 3  # 64 bytes have no room for a sentence and its question
        assert {128, 256} <= {r["length"] for r in mine if r["kind"] == "definition"}


def test_losses_are_those_of_one_pass(done, checkpoint):
    """The longest window of a schedule, by plain transformers."""
    from ropewalk.lab.data import Corpus
    from ropewalk.lab.extend.text import sliding

    corpus = Corpus.load(done.folder / "corpus.safetensors")
    windows = sliding(corpus, "test", 256, 16, 4)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, rope_parameters={
        "rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0,
    })  # fmt: skip
    with torch.no_grad():
        logits = model(windows.tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), windows.tokens[:, 1:], reduction="none")
    (record,) = (r for r in done.records if r["kind"] == "loss" and r["encoding"] == "pi" and r["length"] == 256)
    assert record["mean"] == pytest.approx(float(loss[:, -16:].mean()), rel=1e-4)


def test_the_chosen_model_loads_in_plain_transformers(done, checkpoint):
    assert done.chosen == "yarn" and done.written["loads_with"] == "transformers" and done.written["difference"] < 1e-3
    made = AutoModelForCausalLM.from_pretrained(done.folder / "model")
    assert made.config.max_position_embeddings == 256
    assert made.config.rope_parameters["rope_type"] == "yarn"
    assert made.config.rope_parameters["factor"] == 4.0
    assert (done.folder / "model" / "tokenizer.json").exists()
    assert json.loads((done.folder / "model" / "extended.json").read_text())["method"] == done.chosen


def test_the_native_length_is_always_said(done):
    summary = summarise(done.records, read_settings(done.folder))
    said = " ".join(headlines(summary, "yarn"))
    assert "At 64 tokens, as trained" in said and "against before" in said
    told = as_json(summary)
    assert {m["method"] for m in told["methods"]} == {UNCHANGED, "pi", "yarn"}
    assert set(told["methods"][1]["difference"]) == {"64", "128", "256"}


def test_the_report(done):
    about = read_settings(done.folder)
    html = page(done.records, about, done.chosen, done.written)
    for title in ("Results", "Loss", "Hidden sentences", "Definitions", "Methods", "How to read this"):
        assert f">{title}</h2>" in html
    assert (
        "linear(factor=4)" in html
        and "<script" not in html
        and "http" not in html.replace("http-equiv", "").replace("http://www.w3.org", "")
    )
    ids = re.findall(r' id="([^"]*)"', html)
    assert len(ids) == len(set(ids)) and set(re.findall(r'href="#([^"]*)"', html)) <= set(ids)
    assert all(re.fullmatch(r"[\w.-]+", name) for name in ids)
    assert "of the quantised model" not in html
    about["workload"]["checkpoint"]["quantised"] = "4-bit (Q4_K_M)"
    assert "every number here is of the quantised model" in page(done.records, about)
    assert page([], about)  # nothing measured yet


def test_nothing_is_written_if_nothing_is_better(done):
    """A run whose best is the model as it is."""
    summary = summarise([r for r in done.records if r["encoding"] == UNCHANGED], read_settings(done.folder))
    assert best(summary) == UNCHANGED and "unchanged has the lowest loss" in headlines(summary)[0]


def test_again_there_is_nothing_to_do(done, checkpoint):
    said = []
    again = extend(settings(checkpoint, choose="yarn"), done.folder, say=said.append)
    assert comparable(done.folder) == sorted(comparable(again.folder))
    assert sum("done already" in line for line in said) == 3 and any("is there already" in line for line in said)


def test_other_settings_need_another_folder(done, checkpoint):
    with pytest.raises(RunError, match=r"other settings.*windows"):
        extend(settings(checkpoint, choose="yarn", windows=5), done.folder)


def test_methods_are_added_to_a_run(checkpoint, tmp_path):
    few = {"needles": 0, "definitions": 0, "to": "2x", "windows": 2}
    extend(settings(checkpoint, methods=("pi",), **few), tmp_path / "out", write=False)
    before = comparable(tmp_path / "out")
    said = []
    outcome = extend(settings(checkpoint, methods=("hirope",), **few), tmp_path / "out", say=said.append, write=False)
    assert sum("done already" in line for line in said) == 2  # the model as it is, and pi
    assert set(before) < set(comparable(tmp_path / "out"))
    summary = summarise(outcome.records, read_settings(tmp_path / "out"))
    assert [row.name for row in summary.rows] == [UNCHANGED, "pi", "hirope"] and not outcome.failed
    assert summary.about["workload"]["methods"]["hirope"] == "hirope(train_length=64, window=16)"


@pytest.mark.slow
def test_every_method_that_needs_no_training(checkpoint, tmp_path):
    names = (
        "pi", "ntk", "dynamic_ntk", "ntk_by_parts", "yarn", "dprope", "clipped_cope", "ntk > clipped", "entropy_abf",
        "string_shifted", "hirope", "attention_buckets", "dope", "rerope", "self_extend", "attention_temperature",
    )  # fmt: skip
    outcome = extend(settings(checkpoint, methods=names, windows=2, needles=0, to="2x"), tmp_path / "out", write=False)
    assert not outcome.failed and {r["encoding"] for r in outcome.records} == {UNCHANGED, *names}


def test_a_model_is_written_whole_or_not_at_all(checkpoint, tmp_path, monkeypatch):
    from ropewalk.lab.extend import writing

    def stop(*_, **__):
        raise KeyboardInterrupt

    chosen = settings(checkpoint, methods=("pi",), choose="pi", to="2x", needles=0, definitions=0, windows=1)
    with monkeypatch.context() as during:
        during.setattr(writing, "write_json", stop)  # the weights are there, what was done is not
        with pytest.raises(KeyboardInterrupt):
            extend(chosen, tmp_path / "out")
    assert not [p.name for p in (tmp_path / "out").iterdir() if "model" in p.name]
    assert extend(chosen, tmp_path / "out").written["path"] == str(tmp_path / "out" / "model")


@pytest.mark.parametrize("after", [3, 14])
def test_an_interruption_loses_one_measurement(done, checkpoint, tmp_path, after):
    said = []

    def stop(line):
        said.append(line)
        if sum(": loss/" in s or ": needles/" in s for s in said) > after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extend(settings(checkpoint), tmp_path / "out", say=stop)
    measured = [line for line in said if ": loss/" in line or ": needles/" in line]
    later = []
    extend(settings(checkpoint), tmp_path / "out", say=later.append)
    assert not set(line.split(" (")[0] for line in measured) & set(line.split(" (")[0] for line in later)
    assert comparable(tmp_path / "out") == comparable(done.folder)


def test_an_encoding_is_saved_for_hf_load(checkpoint, tmp_path):
    outcome = extend(
        settings(checkpoint, methods=("string_shifted",), choose="string_shifted", to="2x", needles=0, definitions=0),
        tmp_path / "out",
    )
    assert outcome.written["loads_with"] == "ropewalk.hf.load"
    model = hf.load(tmp_path / "out" / "model")
    assert {type(e).__name__ for e in hf.encodings(model)} == {"STRINGShifted"}
    assert hf.encodings(model)[0].shift == TRAINED // 3


def test_a_method_that_fails_leaves_the_others(checkpoint, tmp_path, monkeypatch):
    from ropewalk.core.errors import CannotCompose
    from ropewalk.lab.extend import driver

    real = driver.Method.apply

    def apply(self, model, texts=None):
        if self.name == "pi":
            raise CannotCompose("not today")
        return real(self, model, texts)

    chosen = settings(checkpoint, to="2x", needles=0, definitions=0, windows=1)
    monkeypatch.setattr(driver, "plan", lambda s, plan=driver.plan: plan(s))
    made = driver.plan(chosen)
    monkeypatch.setattr(driver, "plan", lambda s: made)
    monkeypatch.setattr(driver.Method, "apply", apply)
    outcome = extend(chosen, tmp_path / "out", write=False)
    assert "not today" in outcome.failed["pi"] and "yarn" not in outcome.failed
    monkeypatch.setattr(driver.Method, "apply", real)
    assert extend(chosen, tmp_path / "out", write=False).failed  # it stays failed until it is to be tried again
    assert not extend(chosen, tmp_path / "out", write=False, retry_failed=True).failed
    assert {r["kind"] for r in read_results(tmp_path / "out") if r["encoding"] == "pi"} == {"loss", "positions"}


def test_search(checkpoint, tmp_path):
    chosen = settings(
        checkpoint, methods=("pi",), search="longrope", search_iterations=1, search_population=5, search_windows=1,
        needles=0, definitions=0, to="2x",
    )  # fmt: skip
    outcome = extend(chosen, tmp_path / "out", write=False)
    name = "longrope (searched)"
    summary = summarise(outcome.records, read_settings(outcome.folder))
    scores = (tmp_path / "out" / "trials" / "search-longrope" / "measured.jsonl").read_text().splitlines()
    assert len(scores) >= 5 and summary.row(name).losses[128].mean > 0

    said = []
    done = tmp_path / "out" / "trials"
    (trial,) = (p for p in done.iterdir() if p.name.startswith("longrope"))
    (trial / "done.json").unlink()
    extend(chosen, tmp_path / "out", say=said.append, write=False)
    assert not any("sets of factors scored" in line for line in said)  # found again from what was kept


class TestTuning:
    """Adapters and all parameters, kept through a kill."""

    @pytest.mark.parametrize(
        "more", [{}, {"full": True, "lr": 1e-3, "recipe": "anchor"}, {"gradient_checkpointing": True, "recipe": "pose"}]
    )
    def test_it_learns(self, checkpoint, tmp_path, more):
        chosen = settings(
            checkpoint, methods=("pi",), tune=40, batch_size=8, needles=0, definitions=0, to="2x", checkpoint_every=20,
            **{"lr": 5e-3, **more},
        )  # fmt: skip
        outcome = extend(chosen, tmp_path / "out", write=False)
        summary = summarise(outcome.records, read_settings(outcome.folder))
        plain, tuned = (summary.row(name).losses[128].mean for name in ("pi", "pi, tuned"))
        assert tuned < plain
        assert summary.row(f"{UNCHANGED}, tuned") is not None  # what learning the text alone does
        (curve,) = (r for r in outcome.records if r["kind"] == "curve" and r["encoding"] == "pi, tuned")
        assert curve["step"] == list(range(5, 41, 5)) and curve["loss"][-1] < curve["loss"][0]

    def test_a_sequence_ends_with_the_prompt(self, checkpoint):
        """Where it fits: half of a sequence is for the text."""
        from ropewalk.lab.extend.text import read_text
        from ropewalk.lab.extend.tuning import Tuning
        from ropewalk.lab.tuning.endprompt import TERMINAL_PROMPT

        made = read_checkpoint(checkpoint)
        chosen = settings(checkpoint, tune=1, batch_size=2)
        tokenizer = made.text_tokenizer(made.tokenizer())
        corpus = read_text(chosen, tokenizer, 256)
        batch, positions = Tuning(made.load(), corpus, chosen, 256, 1024).batch(0)
        size = len(TERMINAL_PROMPT)
        assert tokenizer.decode(batch.tokens[0, -size:]) == TERMINAL_PROMPT
        assert torch.equal(batch.tokens[:, -size:], batch.targets[:, -size - 1 : -1])
        assert bool((batch.targets[:, -1] == -100).all())
        assert positions[0, -1] == 1023 and positions[0, -size] == 1024 - size and positions[0, -size - 1] == 255 - size
        batch, positions = Tuning(made.load(), corpus, chosen, 64, 1024).batch(0)
        assert TERMINAL_PROMPT[-16:] not in tokenizer.decode(batch.tokens[0]) and positions[0, -17:].tolist()[:2] == [
            47,
            1008,
        ]

    @pytest.mark.slow
    def test_the_written_model_is_the_tuned_one(self, checkpoint, tmp_path):
        chosen = settings(
            checkpoint, methods=("pi",), tune=6, batch_size=2, lr=5e-3, needles=0, definitions=0, to="2x", windows=2,
            choose="pi, tuned",
        )  # fmt: skip
        outcome = extend(chosen, tmp_path / "out")
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "model")
        own = read_checkpoint(checkpoint).load()
        name = "model.layers.0.self_attn.q_proj.weight"
        assert not torch.equal(model.state_dict()[name], own.state_dict()[name])
        assert not [key for key in model.state_dict() if "lora" in key]
        assert outcome.written["difference"] < 1e-3 and model.config.rope_parameters["factor"] == 2.0

    def test_what_an_encoding_learns_is_trained(self, checkpoint):
        from ropewalk.lab.data import Corpus
        from ropewalk.lab.extend.text import read_text
        from ropewalk.lab.extend.tuning import Tuning

        made = read_checkpoint(checkpoint)
        chosen = settings(checkpoint, methods=("psc",), tune=2, batch_size=2)
        corpus = read_text(chosen, made.text_tokenizer(made.tokenizer()), 256)
        assert isinstance(corpus, Corpus)
        model = hf.apply(made.load(), "psc")
        tuning = Tuning(model, corpus, chosen, 64, 256)
        assert any("phase" in name for name in tuning.trained) and any("lora" in name for name in tuning.trained)
        assert not any(name.endswith("embed_tokens.weight") for name in tuning.trained)
        before = {name: p.detach().clone() for name, p in tuning.trained.items() if "phase_up" in name}
        list(tuning.run())
        assert all(not torch.equal(tuning.trained[name], value) for name, value in before.items())

    def test_a_checkpoint_goes_on_with_the_same_numbers(self, checkpoint):
        from ropewalk.lab.extend.text import read_text
        from ropewalk.lab.extend.tuning import Tuning
        from ropewalk.lab.trial import Checkpoint

        made = read_checkpoint(checkpoint)
        chosen = settings(checkpoint, tune=6, batch_size=2, checkpoint_every=3, recipe="pose")
        corpus = read_text(chosen, made.text_tokenizer(made.tokenizer()), 256)

        def end(start=None):
            events = list(Tuning(made.load(), corpus, chosen, 64, 256).run(start))
            return [e for e in events if isinstance(e, Checkpoint)]

        first, last = end()
        (again,) = end(first.content)
        assert (first.step, last.step, again.step) == (3, 6, 6)
        wanted, got = load(last.content), load(again.content)
        assert wanted.keys() == got.keys() and all(torch.equal(wanted[name], got[name]) for name in wanted)


COMMAND = [
    "--to",
    "2x",
    "--method",
    "pi",
    "--tune",
    "16",
    "--batch-size",
    "4",
    "--checkpoint-every",
    "4",
    "--windows",
    "3",
]
COMMAND += ["--needles", "1", "--definitions", "0", "--depths", "0,1", "--device", "cpu", "--lr", "0.003"]
COMMAND += [part for file in TEXT for part in ("--text", file)]


def start(checkpoint, folder):
    code = "from ropewalk.cli import main; main()"
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            code,
            "extend",
            str(checkpoint),
            *COMMAND,
            "--out",
            str(folder),
            "--choose",
            "pi, tuned",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def killed_at(checkpoint, folder, line):
    """Run until it says a line, and kill it there; return what it said."""
    process, said = start(checkpoint, folder), []
    for spoken in process.stderr:
        said.append(spoken)
        if spoken.startswith(line):
            process.kill()
            break
    process.stderr.close()
    assert process.wait(timeout=60) == -signal.SIGKILL, "".join(said)
    return said


def finished(checkpoint, folder):
    process = start(checkpoint, folder)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    return said.splitlines()


def first_step(said, name):
    """Of those that a process told of the tuning of a method."""
    return next(int(found[1]) for line in said if (found := re.match(rf"{name}, tuned: step (\d+) ", line)))


@pytest.mark.slow
def test_killed_again_and_again(checkpoint, tmp_path):
    """While it measures, and in the tuning of either model, after lines of progress and not after seconds."""
    killed_at(checkpoint, tmp_path / "killed", "pi: loss/128")
    said = killed_at(checkpoint, tmp_path / "killed", f"{UNCHANGED}, tuned: step 5 ")
    assert first_step(said, UNCHANGED) == 4
    said = killed_at(checkpoint, tmp_path / "killed", "pi, tuned: step 12 ")
    assert first_step(said, UNCHANGED) == 5  # from the checkpoint of step 4
    said = finished(checkpoint, tmp_path / "killed")
    assert first_step(said, "pi") in (10, 15)  # from that of step 8, or of 12 if it was written in time
    finished(checkpoint, tmp_path / "undisturbed")
    assert comparable(tmp_path / "killed") == comparable(tmp_path / "undisturbed")
    weights = "model/model.safetensors"
    assert (tmp_path / "killed" / weights).read_bytes() == (tmp_path / "undisturbed" / weights).read_bytes()


def test_the_command(checkpoint, tmp_path, capsys):
    arguments = ["extend", str(checkpoint), "--to", "2x", "--method", "pi,ntk", "--needles", "0", "--definitions", "0"]
    arguments += ["--windows", "2", "--out", str(tmp_path / "out"), "--device", "cpu"]
    arguments += [part for file in TEXT for part in ("--text", file)]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, said = capsys.readouterr()
    assert ended.value.code == 0
    assert "trained for 64 tokens" in said and "as trained" in out and "report.html" in out
    assert (tmp_path / "out" / "report.html").exists()
    with pytest.raises(SystemExit):
        main([*arguments, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["wanted"] == 128 and len(told["methods"]) == 3
    with pytest.raises(SystemExit) as ended:
        main(["extend", str(tmp_path / "nothing"), "--to", "2x"])
    assert ended.value.code == 2 and "no folder or file" in capsys.readouterr().err
