"""The page of an inspection: as HTML, and in a real browser."""

import math
import shutil

import pytest

from ropewalk.analysis.inspection.configuration import inspect_config
from ropewalk.analysis.inspection.findings import Finding, Heat, Section

pytest.importorskip("matplotlib", reason="the report is drawn with matplotlib")

HOSTILE = "<script>document.title = 'hacked'</script>"
CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "max_position_embeddings": 4096,
    "rope_theta": 500_000.0,
    "rope_hostile": HOSTILE + "y" * 200,
}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    from ropewalk.lab.report.inspection import write_inspection

    values = [[math.nan if (a + b) % 5 == 0 else a * b / 100 for b in range(32)] for a in range(30)]
    heat = Heat(
        "Norm", [f"layer {i}" for i in range(30)], [str(i) for i in range(32)], values, "of the mean", "A remark."
    )
    empty = Heat("Nothing", ["a"], ["b"], [[math.nan]], "")
    finding = Finding("error", "something is wrong", 1.0, "seen", "mend it")
    section = Section("Norms", "somebody", "What is looked at.", (finding,), (), (heat, empty))
    found = inspect_config(CONFIG, context=16384, subject=HOSTILE).with_sections([section, section])
    return write_inspection(tmp_path_factory.mktemp("report"), found)


def test_findings_come_first_and_the_gravest_of_them(page):
    text = page.read_text()
    assert text.index("Error: something is wrong") < text.index("Warning: ") < text.index("Note: ")
    assert text.index("Note: ") < text.index('id="configuration"')
    assert "<script" not in text


def test_sections_of_one_name_have_ids_of_their_own(page):
    import re

    ids = re.findall(r'\bid="([^"]+)"', page.read_text())
    assert len(ids) == len(set(ids))


def test_nothing_found():
    from ropewalk.lab.report.inspection import inspection_page

    found = inspect_config({"model_type": "llama", "text_config": {"hidden_size": 3}})
    assert "Nothing was found" in inspection_page(found)


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")
    path = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
    if path is None:
        pytest.skip("no Chromium on this machine")
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.mark.parametrize("width", [320, 390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(browser, page, width, scheme):
    shown = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme).new_page()
    noise = []
    shown.on("console", lambda message: noise.append(message.text))
    shown.on("pageerror", lambda error: noise.append(str(error)))
    shown.on("request", lambda r: noise.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
    shown.goto(page.as_uri(), wait_until="load")
    assert noise == []
    assert shown.title() == f"Positions in {HOSTILE}"
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert (
        shown.evaluate("[...document.querySelectorAll('a')].filter(a => !document.querySelector(a.hash)).length") == 0
    )
    assert shown.locator("svg[role=img]").count() == 4
    assert not shown.locator("details table").first.is_visible()
    shown.locator("details summary").first.click()
    assert shown.locator("details table").first.is_visible()
