"""What the documents show runs as it stands there."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ropewalk as rw

ROOT = Path(__file__).parent.parent


def blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.S)


def test_the_worked_example_of_the_design_document_passes_the_contract_suite(tmp_path, monkeypatch):
    (example,) = blocks("docs/design.md")
    (tmp_path / "late_bias.py").write_text(example)  # a file of its own, as its author would have
    monkeypatch.syspath_prepend(tmp_path)
    encoding = importlib.import_module("late_bias").LateBias(4, free=2)
    q = torch.zeros(1, 4, 6, 8)
    (weights,) = rw.attend(encoding(rw.Attention(q, q, q)), return_weights=True)[1:]
    slope = torch.linspace(0.1, 0.5, 4)
    # Six keys at distances 5 ... 0 from the last query, the nearest three without penalty.
    logits = -slope[:, None] * torch.tensor([3.0, 2.0, 1.0, 0.0, 0.0, 0.0])
    torch.testing.assert_close(weights[0, :, -1], logits.softmax(-1))


@pytest.mark.parametrize("line", ["composition", "positions"])
def test_the_lines_of_the_readme_run(line):
    ids = torch.tensor([[0] * 500 + [1] * 524])
    space = {
        "rw": rw,
        "attention_mask": torch.ones(2, 1024, dtype=torch.long),
        "ids": ids,
        "tensor": torch.arange(4),
        "queries": torch.arange(3),
        "keys": torch.arange(5),
    }
    wanted = "rw.PerHead" if line == "composition" else "rw.Positions.arange"
    (block,) = [b for b in blocks("README.md") if b.startswith("rw.") and wanted in b]
    exec(compile(block, "README.md", "exec"), space)


def test_the_first_screen_of_the_readme_runs():
    q, k, v = (torch.randn(2, h, 10, 64) for h in (8, 2, 2))
    space = {"q": q, "k": k, "v": v, "x": torch.randn(2, 10, 512)}
    exec(compile(blocks("README.md")[0], "README.md", "exec"), space)
    assert space["out"].shape == q.shape


def test_the_page_on_pictures_runs():
    space = {}
    for block in blocks("docs/vision.md"):
        exec(compile(block, "docs/vision.md", "exec"), space)
    assert (space["rows"], space["columns"]) == (476, 644)
    q = torch.randn(1, 2, 34 * 46, 80)
    turned, _ = space["encoding"].rotate(q, q, space["patches"])
    torch.testing.assert_close(turned[:, :, 0], q[:, :, 0])  # the first patch stands at 0, 0
    assert not torch.equal(turned[:, :, 1], q[:, :, 1])
    assert space["cells"].shape == (1, 6, 8)
    assert 0 <= float(space["anchors"]) <= 1
    assert (space["far"], space["none"], space["first"]) == ([483, 1420], [], 3)
    assert space["shares"] == (0.5, 1.0)
    assert space["pope"] == pytest.approx(2 / 3)


def test_the_quickstart_runs(capsys):
    space = {"__name__": "quickstart"}
    exec(compile((ROOT / "examples" / "quickstart.py").read_text(), "quickstart.py", "exec"), space)
    space["main"]()
    assert "decoding differs" in capsys.readouterr().out


@pytest.mark.parametrize("page", ["encodings", "api"])
def test_a_generated_page_is_what_the_code_says(page):
    generate = [sys.executable, ROOT / "docs" / "generate.py", "--check", page]
    run = subprocess.run(generate, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_an_unknown_page_is_an_error():
    run = subprocess.run([sys.executable, ROOT / "docs" / "generate.py", "apy"], capture_output=True, text=True)
    assert run.returncode == 1 and "encodings, api" in run.stderr


def test_a_docstring_becomes_markdown(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    reference = importlib.import_module("api_reference")
    doc = """y = x <w> `a<b>`.

    Prose.

    Args:
        x: what goes in,
            on two lines.
        w: the rest.

    Shapes: x (B, S),
    y (B, S).

    Raises:
        ShapeError: x < 0.

    Example:
        >>> 1 + 1  # doctest: +SKIP
    """
    assert reference.rendered(doc, formula=True).split("\n") == [
        *["```", "y = x <w> `a<b>`.", "```", "", "Prose.", "", "- **Args**"],
        *[
            "  - `x`: what goes in, on two lines.",
            "  - `w`: the rest.",
            "- **Shapes**: x (B, S), y (B, S).",
            "- **Raises**",
        ],
        *["  - `ShapeError`: x < 0.", "", "```python", ">>> 1 + 1", "```"],
    ]
    assert reference.rendered("Less <a> and `<b>`.") == r"Less \<a> and `<b>`."
    assert reference.signature("attend", rw.attend).startswith("attend(\n    problem: Problem,\n")
    assert set(re.findall(r"^### `(\w+)`", (ROOT / "docs" / "api.md").read_text(), re.M)) == set(rw.__all__)
