"""The evidence that is committed: each file is whole, says what its numbers say, and answers the experiment as it is now."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ropewalk.catalog import RECORDS
from ropewalk.cli import app
from ropewalk.lab import reproduce_command
from ropewalk.lab.experiments import EXPERIMENTS, experiment
from ropewalk.lab.experiments.evidence import answers, check, disagreements, read

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "evidence").glob("*.json"))

each = pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])


@each
def test_the_verdict_follows_from_the_numbers(file):
    found = json.loads(file.read_text(encoding="utf-8"))
    check(found)
    assert found["experiment"] == file.stem and file.stem in EXPERIMENTS


@each
def test_it_answers_what_the_experiment_asks_now(file):
    found, one = read(file), experiment(file.stem)
    assert answers(found, one) == []
    full = "--full" in found["command"].split()
    settings = one.asked(full=full, seeds=len(found["seeds"]))
    asked = {k: v for k, v in settings.as_dict().items() if v is not None}
    assert {k: v for k, v in found["settings"].items() if k in asked} == asked
    assert found["seconds"] <= (240 if not full else float("inf")), "an experiment takes four minutes at most"


@each
def test_its_command_still_parses(file, monkeypatch):
    asked = []
    monkeypatch.setattr(reproduce_command, "_run", lambda queue, *_: asked.extend(queue) or ([], False, []))
    program, *arguments = read(file)["command"].split()
    assert program == "ropewalk"
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    assert [one.name for one in asked] == [file.stem]


@each
def test_the_catalog_points_to_it(file):
    pointing = {record.slug for record in RECORDS if record.evidence == f"evidence/{file.name}"}
    assert pointing == set(experiment(file.stem).slugs)


def test_the_page_and_its_pictures_are_up_to_date():
    generate = [sys.executable, ROOT / "docs" / "generate_found.py", "--check"]
    run = subprocess.run(generate, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
@pytest.mark.skipif(not FILES, reason="nothing has been measured yet")
def test_three_at_random_come_out_the_same_again(tmp_path):
    for file in random.sample(FILES, min(3, len(FILES))):
        old = read(file)
        program = [sys.executable, "-m", *old["command"].split()]
        again = [*program, "--out", tmp_path / "runs", "--evidence", tmp_path / "evidence", "--quiet"]
        run = subprocess.run(again, capture_output=True, text=True, cwd=tmp_path)
        assert run.returncode == 0, f"{file.stem}: {run.stdout}{run.stderr}"
        new = read(tmp_path / "evidence" / file.name)
        assert disagreements(old, new) == [], f"{file.stem} came out differently: {disagreements(old, new)}"
