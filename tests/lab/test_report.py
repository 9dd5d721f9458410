"""Ranking, the terminal's table, JSON and the page: what is said, what is left out, what is escaped."""

import json
import math
import re
import sys
from html.parser import HTMLParser
from io import StringIO

import pytest
import synthetic
from rich.console import Console

from ropewalk.core.errors import ConfigError, UnknownNameError
from ropewalk.lab.errors import RunError
from ropewalk.lab.measured import Results
from ropewalk.lab.report.html import Html, element, join
from ropewalk.lab.summary import as_json, board, fixed_point, headlines
from ropewalk.lab.table import count, render, size_of

HOSTILE = "<script>alert('x')</script>$x_1$"


def printed(results, width=100, **options):
    console = Console(file=StringIO(), width=width, highlight=False, markup=False)
    console.print(render(results, width=width, **options))
    return console.file.getvalue()


def words(text):
    return " ".join(text.split())


@pytest.fixture(scope="module")
def text():
    return Results(*synthetic.text_run())


@pytest.fixture(scope="module")
def task():
    return Results(*synthetic.task_run())


class TestRanking:
    def test_text_is_ranked_by_the_loss_at_the_trained_length(self, text):
        table = board(text)
        assert (table.metric, table.rank, table.trained, table.sizes) == ("loss", 64, 64, [64, 128, 256])
        assert [row.encoding for row in table.rows] == ["rope", "alibi", "nope"]
        assert table.reference == "rope"
        assert [row.verdict for row in table.rows] == ["reference", "worse", "worse"]
        assert table.rows[1].versus.mean == pytest.approx(0.03, abs=0.02)
        means = [row.score.mean for row in table.rows]
        assert means == sorted(means)

    def test_another_length_may_rank(self, text):
        table = board(text, rank=256)
        assert [row.encoding for row in table.rows] == ["alibi", "nope", "rope"]
        with pytest.raises(ConfigError, match="64, 128, 256; got 100"):
            board(text, rank=100)

    def test_another_reference_may_be_named(self, text):
        table = board(text, reference="nope")
        assert [row.verdict for row in table.rows] == ["better", "better", "reference"]
        with pytest.raises(UnknownNameError, match="Did you mean 'alibi'"):
            board(text, reference="alib")

    def test_settings_may_name_both(self):
        records, settings = synthetic.text_run()
        table = board(Results(records, {**settings, "rank": 128, "reference": "alibi"}))
        assert (table.rank, table.reference) == (128, "alibi")

    def test_tasks_are_ranked_by_the_mean_over_sizes(self, task):
        table = board(task)
        assert (table.metric, table.rank, table.trained) == ("exact", None, 8)
        assert [row.encoding for row in table.rows] == ["alibi", "nope", "rope"]
        by_size = [sum(score.mean for score in row.scores.values()) / 3 for row in table.rows]
        assert [row.score.mean for row in table.rows] == pytest.approx(by_size)
        assert table.rows[-1].verdict == "worse"

    def test_what_cannot_be_told_from_the_best_is_marked(self, task, text):
        marks = {row.encoding: row.marks for row in board(task).rows}
        assert sorted(m[16] for m in marks.values()) == ["", "", "best"]
        assert sorted(m[8] for m in marks.values()) == ["best", "close", "close"]
        assert {row.encoding: row.marks[64] for row in board(text).rows} == {"rope": "best", "alibi": "", "nope": ""}

    def test_speed_and_memory_are_compared_at_one_length(self, text):
        table = board(text)
        assert table.lengths == {"train": 256, "decode": 256, "saved for backward": 64}
        assert table.rows[0].encoding == "rope"
        assert table.rows[0].train == pytest.approx(9e4 * 0.88 * 1.01)  # the median of three seeds

    def test_equal_encodings_are_no_difference(self):
        records, settings = synthetic.text_run(("rope",), sweep=False)
        twin = [{**r, "encoding": "twin", "trial": r["trial"].replace("rope", "twin")} for r in records]
        table = board(Results(records + twin, settings))
        assert table.rows[1].verdict == "no difference seen"
        assert "rope and twin scored exactly the same" in headlines(Results(records + twin), table)[0]


class TestWhatIsSaid:
    def test_the_lead_comes_with_its_interval(self, text):
        said = " ".join(headlines(text, board(text)))
        assert "At 64 tokens, as trained, rope had the lowest loss: 1.5" in said
        assert re.search(r"rope was better than alibi \(by 0\.0\d+ ±0\.0\d+\) and nope", said)
        assert re.search(r"At 256 tokens \(4 × what was trained\), alibi had .*; rope was behind it by 0\.\d+ ±", said)
        assert "seed" not in said

    def test_what_is_too_close_is_no_difference(self):
        records, settings = synthetic.text_run(("rope", "rope(base=500000)", "nope"), seeds=2)
        results = Results(records, settings)
        said = headlines(results, board(results))
        assert said[1].startswith(
            "No difference was seen between rope and rope(base=500000); rope was better than nope"
        )

    def test_one_seed_is_said_and_nothing_is_called_better(self):
        results = Results(*synthetic.text_run(seeds=1))
        table = board(results)
        said = " ".join(headlines(results, table))
        assert "One seed was trained: differences between seeds were not measured." in said
        assert "better" not in said and "on one seed" in said
        assert {row.verdict for row in table.rows} == {"reference", "seeds not measured"}
        out = words(printed(results))
        assert "one seed only" in out and "spread between seeds not measured" in out

    def test_what_is_equal_is_not_called_best(self):
        records, settings = synthetic.task_run()
        for record in records:
            if record["kind"] == "exact":
                record["items"] = [0] * 40
        results = Results(records, settings)
        assert headlines(results, board(results)) == [
            "Averaged over all sizes, rope, alibi and nope scored exactly the same: 0.0 ±0.0 %.",
            "At 16 symbols (2 × what was trained), all scored exactly the same: 0.0 ±0.0 %.",
        ]
        assert {row.verdict for row in board(results).rows} == {"reference", "no difference seen"}
        assert {mark for row in board(results).rows for mark in row.marks.values()} == {""}

    def test_nothing_scored(self):
        records, settings = synthetic.text_run()
        results = Results([r for r in records if r["kind"] == "curve"], settings)
        assert headlines(results, board(results)) == ["No encoding has been scored yet."]
        assert "Not measured yet (9)" in printed(results)

    def test_validation_stands_in_until_something_was_tested(self):
        records, settings = synthetic.text_run(sweep=False)
        for record in records:
            if record["kind"] == "loss":
                record["split"] = "validation"
        assert Results(records, settings).split == "validation"
        assert board(Results(records, settings)).rows[0].score is not None


class TestTable:
    @pytest.mark.parametrize("width", [60, 80, 100, 140])
    def test_it_fits_and_says_what_it_left_out(self, text, width):
        out = printed(text, width)
        assert max(map(len, out.splitlines())) <= width
        assert "loss @64" in out and "rope" in out
        left_out = words(out.split("Left out")[1]) if "Left out" in out else ""
        for title in ("own params", "decode tok/s @256"):
            assert (title in left_out) != all(word in out.split("At 64")[0] for word in title.split())
        assert ("saved for backward @64" in left_out) == (width < 140)

    def test_best_first_with_marks_and_legend(self, text):
        out = printed(text)
        rows = [line.split()[0] for line in out.split("At 64")[0].splitlines() if re.match(r"(rope|alibi|nope) ", line)]
        assert rows == ["rope", "alibi", "nope"]
        assert re.search(r"rope +1\.\d{3} ±0\.\d{3} \*", out)
        assert "* best, ≈ no difference" in words(out)

    def test_failures_are_listed_with_reasons(self):
        records, settings = synthetic.text_run(seeds=2)
        records = [r for r in records if r["trial"] != "nope-s1"]
        base = {
            "kind": "failed",
            "trial": "nope-s1",
            "encoding": "nope",
            "task": "text",
            "seed": 1,
            "lr": 1e-3,
            "attempt": 0,
        }
        out = printed(Results([*records, {**base, "reason": "the loss is not a number [bold]"}], settings))
        assert "nope, seed 1 (nope-s1): the loss is not a number [bold]" in out
        assert "Not measured yet" not in out
        assert "1 of 2 seeds are on both sides (nope)" in out

    def test_names_that_are_long_are_folded(self):
        name = "rope(base=500000)+alibi(slopes=learned)"
        out = printed(Results(*synthetic.text_run((name, "nope"), sweep=False)))
        assert max(map(len, out.splitlines())) <= 100
        assert name[:20] in out

    def test_numbers_are_short(self):
        assert [fixed_point(n, 2) for n in (-0.001, 0, -1.234)] == ["0.00", "0.00", "−1.23"]
        assert [fixed_point(n, 1, signed=True) for n in (-0.01, 0.26)] == ["+0.0", "+0.3"]
        assert [count(n) for n in (None, 9, 1234, 5.6e6, 7e9)] == ["–", "9", "1.23k", "5.6M", "7G"]
        assert [size_of(n) for n in (None, 10, 2048, 3 * 2**20, 2**30)] == ["–", "10 B", "2 KiB", "3 MiB", "1 GiB"]


class TestJson:
    def test_it_is_plain_and_complete(self, text):
        summary = json.loads(json.dumps(as_json(text), allow_nan=False))
        assert [row["encoding"] for row in summary["encodings"]] == ["rope", "alibi", "nope"]
        first, second = summary["encodings"][:2]
        assert first["difference"] is None and first["scores"]["64"]["seeds"] == 3
        assert second["verdict"] == "worse" and second["difference"]["low"] > 0
        assert summary["missing"] == [] and summary["failed"] == [] and summary["trained"] == 64

    def test_an_end_that_was_not_measured_is_null(self):
        results = Results(*synthetic.text_run(seeds=1, documents=1))
        summary = json.loads(json.dumps(as_json(results), allow_nan=False))
        assert summary["encodings"][0]["score"]["high"] is None
        assert "±?" in printed(results)


class TestRecords:
    def test_numbers_that_are_none_are_failures(self):
        records, settings = synthetic.text_run(seeds=2)
        bad = next(r for r in records if r["kind"] == "loss" and r["trial"] == "nope-s1" and r["length"] == 256)
        bad["documents"]["doc 3.txt"][0] = math.nan
        results = Results(records, settings)
        assert [f["reason"] for f in results.failures] == [
            "documents of loss (split test, length 256) is not a finite number"
        ]
        rows = {row.encoding: row for row in board(results).rows}
        assert rows["nope"].scores[256].seeds == 1 and rows["rope"].scores[256].seeds == 2

    def test_a_trial_that_was_resumed_counts_once(self):
        records, settings = synthetic.text_run(seeds=2)
        again = [r for r in records if r["trial"] == "rope-s0"]
        assert as_json(Results(records + again, settings)) == as_json(Results(records, settings))

    def test_missing_trials_are_named(self):
        records, settings = synthetic.text_run(seeds=2)
        results = Results([r for r in records if r["trial"] != "alibi-s1"], settings)
        assert results.missing == ["alibi, seed 1"]

    def test_a_run_that_is_being_written_can_be_read(self, tmp_path):
        folder = synthetic.write(tmp_path, *synthetic.text_run())
        path = folder / "results.jsonl"
        whole = as_json(Results.read(folder))
        path.write_text(path.read_text() + '{"kind": "loss", "tri')
        assert as_json(Results.read(folder)) == whole

    def test_a_folder_without_a_run_is_refused(self, tmp_path):
        with pytest.raises(RunError, match="no folder of a run"):
            Results.read(tmp_path)

    def test_a_learning_rate_that_failed_is_not_a_missing_trial(self):
        records, settings = synthetic.text_run(seeds=2)
        settings["settings"]["lr_sweep"] = [1e-3, 3e-3]
        base = {
            "kind": "failed",
            "encoding": "nope",
            "task": "text",
            "seed": 0,
            "reason": "it diverged",
            "lr": 1e-3,
            "attempt": 0,
        }
        failed = [{**base, "trial": "nope-lr0.001"}, {**base, "trial": "nope-lr0.003"}]
        others = [r for r in records if r["encoding"] != "nope"]
        assert Results(others + failed[:1], settings).missing == ["nope, seed 0", "nope, seed 1"]
        assert Results(others + failed, settings).missing == []  # no rate is left to train it with

    def test_refusals_are_said_once_and_are_no_failures(self):
        records, settings = synthetic.text_run(seeds=2)
        base = {"kind": "refused", "encoding": "nope", "task": "text", "what": "speed/64", "reason": "cannot decode"}
        records += [{**base, "trial": f"nope-s{seed}", "seed": seed} for seed in range(2)]
        results = Results(records, settings)
        assert results.failures == [] and len(results.refusals) == 1
        assert "nope, speed/64: cannot decode" in printed(results)
        assert as_json(results)["refused"] == [{"encoding": "nope", "what": "speed/64", "reason": "cannot decode"}]


class TestHtml:
    def test_text_is_escaped_and_markup_is_not(self):
        assert element("p", "<b>", element("b", "&"), class_="x y", aria_label='"') == (
            '<p class="x y" aria-label="&quot;">&lt;b&gt;<b>&amp;</b></p>'
        )
        assert join("a", None, [Html("<i>"), 3], element("meta", name="x")) == 'a<i>3<meta name="x">'
        assert element("p", hidden=True, title=None) == "<p hidden></p>"


class Checker(HTMLParser):
    """Whether tags are balanced, ids unique and nothing is loaded from elsewhere."""

    VOID = ("meta", "link")

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.references, self.tags, self.headings = [], [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            elif name in ("href", "src", "xlink:href"):
                self.references.append(value)
            elif name == "aria-labelledby":
                self.references += [f"#{one}" for one in value.split()]
            self.references += [f"#{one}" for one in re.findall(r"url\(#(.*?)\)", value or "")]

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] == ["h2"]:
            self.headings.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("matplotlib", reason="the report is drawn with matplotlib")
    from ropewalk.lab.report import write_report

    records, settings = synthetic.text_run(("rope", HOSTILE, "t5"), seeds=2)
    base = {"kind": "failed", "trial": "fox-s0", "encoding": "fox", "task": "text", "seed": 0, "lr": 1e-3, "attempt": 0}
    records.append({**base, "reason": "<img src=x onerror=alert(1)>"})
    settings["settings"]["encodings"].append("fox")
    settings["workload"]["sources"] = ["</pre><script>1</script>"]
    folder = synthetic.write(tmp_path_factory.mktemp("runs") / "a run", records, settings)
    assert write_report(folder) == folder / "report.html"
    return folder


@pytest.fixture(scope="module")
def html(folder):
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def checked(html):
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert checker.open == []
    return checker


class TestPage:
    def test_it_is_one_sound_file(self, html, checked):
        assert len(html) < 500_000
        assert len(checked.ids) == len(set(checked.ids))
        inside = {f"#{one}" for one in checked.ids}
        assert {reference for reference in checked.references if reference not in inside} == {"data:,"}
        assert not {"script", "img", "iframe", "object", "foreignObject"} & set(checked.tags)
        assert "@import" not in html and "url(http" not in html

    def test_text_from_outside_is_escaped(self, html):
        assert "<script" not in html and "<img" not in html
        assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;$x_1$" in html
        assert "&lt;img src=x onerror=alert(1)&gt;" in html

    def test_sections_come_in_order(self, checked):
        assert checked.headings == [
            *("Results", "Beyond the trained length", "Retrieval", "Speed and memory", "Training", "What was learned"),
            *("Fixed numbers", "Failed trials", "Settings", "Data", "Versions and hardware", "How to read this"),
        ]

    def test_it_says_that_it_is_partial(self, html):
        assert "Partial: not measured yet are fox, seed 1." in html
        assert "1 trial failed in part or as a whole." in html

    def test_every_figure_has_a_title_and_a_description(self, html):
        assert html.count('role="img"') > 10
        assert html.count("<desc ") == html.count('role="img"')
        assert not re.search(r"<title[^>]*></title>|<desc[^>]*></desc>", html)

    def test_figures_take_the_colours_of_the_page(self, html):
        svg = "".join(re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL))
        assert "var(--ink)" in svg and "var(--grid)" in svg and "var(--series-2)" in svg
        assert "#0101" not in svg and "#0102" not in svg
        assert "DejaVu" not in svg and "var(--sans)" in svg

    def test_the_trained_length_is_marked(self, html):
        assert html.count("trained: 64") == 3

    def test_results_and_command_are_there(self, html, text):
        assert "rope had the lowest loss" in html
        assert "ropewalk compare rope &#x27;&lt;script&gt;alert(" in html  # quoted for the shell
        assert "versions.torch" in html and "documents.train" in html

    def test_the_same_results_give_the_same_bytes(self, folder, html):
        from ropewalk.lab.report import write_report

        stamp = (folder / "report.html").stat().st_ino
        write_report(folder)
        assert (folder / "report.html").read_text(encoding="utf-8") == html
        assert (folder / "report.html").stat().st_ino != stamp  # replaced, not written into
        assert sorted(p.name for p in folder.iterdir()) == ["report.html", "results.jsonl", "settings.json"]

    def test_tasks_have_their_own_sections(self, task):
        pytest.importorskip("matplotlib", reason="the report is drawn with matplotlib")
        from ropewalk.lab.report import page

        checker = Checker()
        html = page(task)
        checker.feed(html)
        assert checker.headings[:3] == ["Results", "Exact matches by size", "Training"]
        assert "Failed trials" not in checker.headings and "Retrieval" not in checker.headings
        assert "trained on up to 8 symbols" in html and html.count("trained: 8") == 2
        assert "Partial" not in html

    def test_a_run_that_has_just_begun_has_a_page(self):
        pytest.importorskip("matplotlib", reason="the report is drawn with matplotlib")
        from ropewalk.lab.report import page

        html = page(Results([], synthetic.text_run()[1]))
        assert "No encoding has been scored yet." in html and "Partial" in html

    def test_without_matplotlib_it_says_what_to_install(self, monkeypatch, text):
        from ropewalk.lab.report import page

        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(ConfigError, match=r"pip install 'ropewalk\[lab\]'"):
            page(text)

    def test_trials_on_different_machines_are_told_apart(self):
        pytest.importorskip("matplotlib", reason="the report is drawn with matplotlib")
        from ropewalk.lab.report import page

        records, settings = synthetic.task_run(("rope",), seeds=2)
        for record in records:
            if record["seed"] == 1:
                record["context"] = {**synthetic.CONTEXT, "hardware": {"device": "cuda", "cores": 2}}
        html = page(Results(records, settings))
        assert "cpu (rope-s0); cuda (rope-s1)" in html
