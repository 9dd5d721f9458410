import json
import os
import re
import subprocess
import sys

import pytest

import ropewalk as rw
from ropewalk.cli import _opening, main

# A module that is None in sys.modules cannot be imported.
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from ropewalk.cli import main; main()"


def ropewalk(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def run(capsys, monkeypatch):
    """The command line in this process: (exit status, stdout, stderr)."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        return (stop.value.code or 0, *capsys.readouterr())

    return call


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["list", "--json"], ["show", "rope"], ["--version"]])
def test_needs_no_torch(arguments):
    done = ropewalk(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_runs_as_module():
    done = subprocess.run([sys.executable, "-m", "ropewalk", "--version"], capture_output=True, text=True)
    assert done.stdout.strip() == rw.__version__


def test_list_has_every_record_on_a_line_of_its_own(run):
    status, out, err = run("list")
    rows = out.splitlines()[1:]
    assert (status, err) == (0, "")
    assert [row.split()[0] for row in rows] == sorted(record.slug for record in rw.catalog())
    assert "\x1b" not in out
    assert all(rw.record(row.split()[0]).name in row for row in rows)


def test_list_json_is_the_catalog(run):
    _, out, _ = run("list", "--json")
    assert json.loads(out) == sorted((record.as_dict() for record in rw.catalog()), key=lambda r: r["slug"])


@pytest.mark.parametrize(
    ("arguments", "holds"),
    [
        (["--kind", "rotary"], lambda record: record.kind == "rotary"),
        (["--search", "OFIR PRESS"], lambda record: "Press" in record.authors),
        (["--trait", "relative"], lambda record: record.traits.relative),
        (
            ["--trait", "norm-preserving", "--trait", "linear_attention"],
            lambda record: record.traits.norm_preserving and record.traits.linear_attention,
        ),
        (["--search", "nothing like it"], lambda record: False),
    ],
)
def test_list_filters(run, arguments, holds):
    _, out, _ = run("list", "--json", *arguments)
    assert {record["slug"] for record in json.loads(out)} == {r.slug for r in rw.catalog() if holds(r)}


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_any_width_will_do(width):
    done = ropewalk("list", COLUMNS=str(width))
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= width
    if width >= 80:
        assert all(record.slug in done.stdout for record in rw.catalog())


def test_colour_only_where_it_is_wanted():
    assert "\x1b[" in ropewalk("list", FORCE_COLOR="1", NO_COLOR="", TERM="xterm-256color").stdout
    assert "\x1b[" not in ropewalk("list").stdout
    # no colours, though bold and dim are allowed
    codes = re.findall(r"\x1b\[([\d;]*)m", ropewalk("list", FORCE_COLOR="1", NO_COLOR="1", TERM="xterm").stdout)
    assert set(codes) <= {"0", "1", "2"}


def test_a_terminal_without_the_letters():
    done = ropewalk("show", "pope", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "J?rgen" in done.stdout


@pytest.mark.parametrize("record", rw.catalog(), ids=lambda record: record.slug)
def test_show(run, record):
    status, out, err = run("show", record.slug)
    assert (status, err) == (0, "")
    for part in (
        record.name,
        record.paper,
        record.url or "no arXiv id known",
        f'rw.build("{record.slug}"',
        "Formula",
        "Traits",
    ):
        assert part in out
    assert ("Needs" in out) == bool(record.needs)
    assert not any(f"  {need}\n" in out for need in record.needs)  # it says how to get it, not its name alone
    code = out[out.index("  import ropewalk as rw") :].split("\n\n")[0]
    compile("\n".join(line.strip() for line in code.splitlines()), "usage", "exec")
    # import, build, and where it acts: on the embeddings, in attention, or in both
    assert len(code.strip().splitlines()) == (4 if "segments" in record.needs else 3)


@pytest.mark.parametrize(
    ("slug", "said"),
    [
        ("videorope", ["hwhwhwhwhwhwtttt", "w  ", "goes on at 7 on every axis"]),
        ("hope_video", ["hwhwhwhwhwhw····"]),
        ("mhrope", ["key head 2  hhhhhhhhhhhhhhhh"]),
        ("rope_dhr", ["grids of 2 × 3 tokens; decoding goes on at 10"]),
    ],
)
def test_show_draws_an_allocation_and_coordinates(run, tmp_path, slug, said):
    status, out, err = run("show", slug, "--png", str(tmp_path / "it.png"))
    assert (status, err) == (0, "")
    assert all(part in out for part in ["Coordinates", *said])
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")


def test_show_prints_the_formula(run):
    _, out, _ = run("show", "rope")
    assert all(line in out for line in _opening(rw.record("rope").doc()))


def test_show_json(run):
    _, out, _ = run("show", "ALiBi", "--json")
    shown = json.loads(out)
    assert shown.pop("doc") == rw.record("alibi").doc()
    assert shown == rw.record("alibi").as_dict()


def test_show_mentions_namesakes(run):
    _, out, _ = run("show", "contextual_cope")
    assert "clipped_cope" in out.split("Not to be confused with")[1]


def test_the_formula_is_the_opening_of_the_docstring():
    doc = "s = q k\n\n    over all pairs\n\nArgs:\n    q: a query\n\n    more"
    assert _opening(doc) == ["s = q k", "", "    over all pairs"]
    assert _opening("one line") == ["one line"]


def test_a_shared_name_lists_its_candidates(run):
    status, out, err = run("show", "hope")
    assert (status, out) == (2, "")
    assert [line.split()[0] for line in err.splitlines()[1:]] == [
        "hope_hyperbolic",
        "hope_high_frequency",
        "hope_video",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "alibii"], "Did you mean 'alibi'?"),
        (["list", "--kind", "rotatory"], "Did you mean 'rotary'?"),
        (["list", "--trait", "relativ"], "Did you mean 'relative'?"),
    ],
)
def test_errors_are_one_line(run, arguments, message):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("ropewalk: ")
    assert message in err
    assert len(err.splitlines()) == 1


def test_misuse_exits_with_2(run):
    assert run("list", "--bogus")[0] == 2
    assert run("shew")[0] == 2
