"""benchmarks/images.py: every way to tell places trains at one resolution and reads the others; nothing is measured twice."""

from __future__ import annotations

import argparse
import importlib.util
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from ropewalk.lab.command import comparison

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "images.md"


@pytest.fixture(scope="module")
def images():
    spec = importlib.util.spec_from_file_location("images_benchmark", ROOT / "benchmarks" / "images.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_command_of_the_page_asks_what_the_table_shows(images):
    asked = []
    app = typer.Typer()
    app.command("compare")(comparison(lambda settings, options: asked.append(settings), "as it is"))
    (command,) = re.findall(r"^    ropewalk compare (.*?)\n\n", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    done = CliRunner().invoke(app, shlex.split(command.replace("\\\n", "")), catch_exceptions=False)
    assert done.exit_code == 0
    assert asked == [images.settings(images.PARTS["decoder"], 3)]


@pytest.mark.parametrize("label", ["PaPE", "axial RoPE, drawn together", "absolute, learned", "absolute, sines"])
def test_models_are_trained_at_one_resolution_and_read_all(images, monkeypatch, label):
    monkeypatch.setitem(images.PARTS, "shapes", replace(images.PARTS["shapes"], steps=2))
    monkeypatch.setattr(images, "TESTED", 8)
    found, losses = images.measure(images.Trial("shapes", label, 0))
    assert list(found) == [6, 8, 12, 16] and all(0 <= share <= 1 for share in found.values())
    assert len(losses) == 1
    assert images.measure(images.Trial("shapes", label, 0)) == (found, losses)
    assert images.measure(images.Trial("shapes", label, 1))[1] != losses


def test_all_models_start_alike_and_differ_in_where_patches_are(images):
    models = {label: images.VisionTransformerAt(label, 0, 5).eval() for label in images.NAMES}
    plain = dict(models["none"].named_parameters())
    for model in models.values():
        named = dict(model.named_parameters())
        assert all(torch.equal(value, named[name]) for name, value in plain.items())
    drawn, _ = images.examples("shapes", torch.Generator().manual_seed(0), 4, 12)
    moved = drawn.roll(5, -1)  # the same patches at other places
    for label, model in models.items():
        change = float((model(drawn) - model(moved)).detach().abs().max())
        assert change < 1e-5 if label == "none" else change > 1e-5, label


def test_what_is_written_down_is_not_measured_again(images, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(images, "NAMES", {"none": ("nope", "nope")})
    part = images.PARTS["shapes"]
    args = argparse.Namespace(out=tmp_path, seeds=2, jobs=1)
    shares = {6: 0.2, 8: 0.9, 12: 0.5, 16: 0.25}
    for seed in range(2):
        trial = images.Trial("shapes", "none", seed)
        images.write_json(trial.file(tmp_path), {"asked": trial.asked(), "exact": shares, "losses": []})
    assert images.trained("shapes", part, args) == {"none": {size: [v, v] for size, v in shares.items()}}
    assert "2 of 2 trials are there" in capsys.readouterr().out
    monkeypatch.setitem(images.PARTS, "shapes", replace(part, steps=part.steps + 1))
    assert images.read(images.Trial("shapes", "none", 0), tmp_path) is None  # it was asked something else


def test_the_page_is_filled_in_place(images, tmp_path):
    numbers = {label: {size: [0.9 - 0.01 * n, 0.8] for size in images.SIZES} for n, label in enumerate(images.NAMES)}
    found = {name: numbers for name in images.PARTS}
    (tmp_path / "images").mkdir()
    (tmp_path / "images.md").write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    text = images.page(found, 2)
    for _ in range(2):  # also a page that is full
        images.write(text, found, tmp_path)
    page = (tmp_path / "images.md").read_text(encoding="utf-8")
    assert page.count("| PaPE | 85 (80–90) |") == 3 and page.count("resolution.svg") == 1
    assert page.split("## What is compared")[1] == PAGE.read_text(encoding="utf-8").split("## What is compared")[1]
    picture = (tmp_path / "images" / "resolution.svg").read_text(encoding="utf-8")
    assert all(label in picture for label in images.NAMES) and len(picture) < 100_000
