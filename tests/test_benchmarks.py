"""python -m benchmarks: every question runs and answers with figures, and what is slower than before is said so."""

from __future__ import annotations

import importlib
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
QUESTIONS = sorted(f.stem for f in (ROOT / "benchmarks" / "questions").glob("[!_]*.py"))


@pytest.fixture(scope="module")
def benchmarks():
    sys.path.insert(0, str(ROOT))
    yield importlib.import_module("benchmarks.__main__")
    sys.path.remove(str(ROOT))


@pytest.fixture
def bench(benchmarks):
    return benchmarks.Bench(tiny=True, seconds=0.001, patience=0.0)


def test_every_file_is_asked(benchmarks):
    assert sorted(benchmarks.NAMES) == QUESTIONS


@pytest.mark.filterwarnings("default")  # other libraries warn as they like
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_answers_with_figures(benchmarks, bench, name):
    question = benchmarks.load(name)
    rows = list(question.rows(bench))
    assert question.title and question.text and rows
    assert len({row.name for row in rows}) == len(rows)
    assert question.why or not any(row.target is not None for row in rows)
    for row in rows:
        if row.figure is None:
            assert row.note, f"{row.name} was not measured, and does not say why"
            continue
        assert math.isfinite(row.figure) and row.figure >= 0
        if row.low is not None:
            assert 0 < row.low <= row.figure <= row.high
        if row.memory is not None:
            assert row.memory >= 0
    assert benchmarks._report.section(question, rows).count("\n| ") == len(rows) + 1


def test_memory_is_the_worst_moment(benchmarks):
    from benchmarks._memory import memory

    x = torch.randn(1 << 20)  # 4 MiB

    def three_at_once_of_four() -> torch.Tensor:
        a, b = x.clone(), x.clone()
        del a
        return torch.stack((b, b))  # 8 MiB beside b

    used = memory(three_at_once_of_four)
    assert used.largest == pytest.approx(8.0, abs=0.01)
    assert used.peak == pytest.approx(12.0, abs=0.01)


def test_a_process_of_its_own_answers(benchmarks, bench):
    rows = benchmarks.ask("pope", bench, 1)
    assert [row.name for row in rows] == ["S = 16, forward", "S = 16, forward and backward"]
    with pytest.raises(benchmarks.QuestionFailed, match="No module named"):
        benchmarks.ask("nonsense", bench, 1)


# ---- keeping, comparing, writing -------------------------------------------------------------------------------------


@pytest.fixture
def asked(benchmarks, monkeypatch, tmp_path):
    """Run the command with the answers of a list, one a call; returns what was asked."""
    Row, calls = benchmarks.Row, []
    monkeypatch.setattr(benchmarks, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(benchmarks, "PAGE", tmp_path / "performance.md")
    monkeypatch.setattr(benchmarks, "BASELINE", tmp_path / "baseline.json")
    monkeypatch.setattr(benchmarks, "NAMES", ("pope", "tables"))
    (tmp_path / "performance.md").write_text((ROOT / "docs" / "performance.md").read_text(encoding="utf-8"))

    def run(*options: str, pope: float = 1.0, memory: float = 8.0, broken: str | None = None) -> int:
        def ask(name, bench, threads):
            calls.append(name)
            if name == broken:
                raise benchmarks.QuestionFailed("the question raised")
            figure = pope if name == "pope" else 0.1
            return [Row("row", figure, figure - 0.01, figure + 0.01, target=1.15, memory=memory)]

        monkeypatch.setattr(benchmarks, "ask", ask)
        monkeypatch.setattr(sys, "argv", ["benchmarks", *options])
        calls.clear()
        return benchmarks.main()

    return run, calls


def test_answers_are_kept_until_they_are_asked_again(asked):
    run, calls = asked
    assert run(broken="tables") == 1
    assert run() == 0
    assert calls == ["tables"]  # a kill or a failure loses one question
    run("--again", "--only", "pope")
    assert calls == ["pope"]
    run("--seconds", "3")
    assert calls == ["pope", "tables"]


def test_the_page_and_the_baseline_are_written(asked, benchmarks, capsys):
    run, _ = asked
    before = benchmarks.PAGE.read_text(encoding="utf-8")
    assert run("--write", broken="tables") == 1
    assert benchmarks.PAGE.read_text(encoding="utf-8") == before and not benchmarks.BASELINE.exists()
    assert run("--write", "--again", pope=1.2) == 0
    page = benchmarks.PAGE.read_text(encoding="utf-8")
    assert page.startswith(before.partition(benchmarks._report.START)[0])
    assert "| row | **1.20** (1.19–1.21) | ≤ 1.15 |" in page and "Beyond a target: softplus" in page
    assert "| row | 0.10 (0.090–0.11) | ≤ 1.15 |" in page and page.count("Beyond a target") == 1
    assert json.loads(benchmarks.BASELINE.read_text(encoding="utf-8"))["questions"]["pope"]["row"]["figure"] == 1.2
    assert "beyond their targets:\n  pope: row: 1.20 (1.19-1.21), target 1.15 MISSED" in capsys.readouterr().out


def test_what_is_slower_twice_fails_the_check(asked, capsys):
    run, calls = asked
    run("--write")
    assert run("--check") == 0
    assert run("--check", "--again", pope=1.10) == 0
    assert run("--check", "--again", pope=1.30) == 1
    assert calls == ["pope", "pope", "tables"]
    assert "pope: row: 1.30, was 1.00" in capsys.readouterr().out
    assert run("--check", "--again", "--tolerance", "0.5", pope=1.30) == 0
    assert run("--check", "--again", memory=9.0) == 1
    assert run("--check", "--again", "--tolerance", "0.5", pope=1.30, broken="tables") == 1  # no answer is no pass


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({}, 0),
        ({"figure": 1.2, "low": 1.15, "high": 1.25}, 1),
        ({"figure": 1.2, "low": 0.9, "high": 1.5}, 0),  # scatter
        ({"figure": 0.5, "low": 0.4, "high": 0.6}, 0),
        ({"memory": 8.3}, 0),
        ({"memory": 8.6}, 1),
        ({"name": "another"}, 1),
        ({"figure": None, "note": "not installed"}, 0),
    ],
)
def test_worse(benchmarks, tmp_path, now, said):
    row = benchmarks.Row("row", 1.0, 0.95, 1.05, memory=8.0)
    benchmarks._report.write_baseline(tmp_path / "b.json", {"q": [row]}, "a machine")
    baseline = json.loads((tmp_path / "b.json").read_text(encoding="utf-8"))
    assert len(benchmarks._report.worse(baseline, "q", [replace(row, **now)], 0.15)) == said


@pytest.mark.parametrize("wrong", [["--tiny", "--write"], ["--tiny", "--check"], ["--write", "--only", "pope"]])
def test_options_that_contradict_each_other(benchmarks, monkeypatch, wrong):
    monkeypatch.setattr(sys, "argv", ["benchmarks", *wrong])
    with pytest.raises(SystemExit) as stopped:
        benchmarks.main()
    assert stopped.value.code == 2
