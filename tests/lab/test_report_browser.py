"""The report in a real browser: quiet, offline, within a phone's width, legible in the dark."""

import re
import shutil

import pytest
import synthetic

pytest.importorskip("matplotlib", reason="the report is drawn with matplotlib")
sync_api = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")

BROWSER = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")

ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
HOSTILE = "<script>document.title = 'hacked'</script>"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    from ropewalk.lab.report import write_report

    records, settings = synthetic.text_run(("rope", HOSTILE, "t5", "alibi(" + "x" * 80 + ")"), seeds=2)
    reason = {
        "kind": "failed",
        "trial": "fox-s0",
        "encoding": "fox",
        "task": "text",
        "seed": 0,
        "lr": 1e-3,
        "attempt": 0,
    }
    records.append(
        {**reason, "reason": "<img src=http://example.invalid/x onerror=\"document.title='hacked'\">" + "y" * 90}
    )
    folder = synthetic.write(tmp_path_factory.mktemp("run"), records, settings)
    return write_report(folder).as_uri()


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=ARGUMENTS)
        yield browser
        browser.close()


def visit(browser, address, **options):
    """Open the report; return the page and what it said or asked for."""
    page = browser.new_context(**options).new_page()
    noise = []
    page.on("console", lambda message: noise.append(message.text))
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.on("request", lambda request: noise.append(request.url) if request.url != address else None)
    page.goto(address, wait_until="load")
    return page, noise


def luminance(colour):
    parts = [float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3]]
    parts = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_it_is_quiet_and_loads_nothing(browser, address):
    page, noise = visit(browser, address)
    assert noise == []
    assert page.title() == "Positional encodings on text"
    assert page.locator("script, img").count() == 0
    assert page.locator("tbody th", has_text="<script>document.title").count() >= 1
    assert page.locator("svg[role=img]").count() > 10


def test_links_within_the_page_lead_somewhere(browser, address):
    page, _ = visit(browser, address)
    assert page.evaluate("[...document.querySelectorAll('a')].filter(a => !document.querySelector(a.hash)).length") == 0


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_sticks_out_sideways(browser, address, width):
    page, _ = visit(browser, address, viewport={"width": width, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Wide tables scroll in a box of their own.
    inside = page.evaluate("getComputedStyle(document.querySelector('.scroll')).overflowX")
    assert inside == "auto"
    if width < 400:
        assert page.evaluate("(b => b.scrollWidth > b.clientWidth)(document.querySelector('.scroll'))")


def test_figures_keep_their_text_inside(browser, address):
    page, _ = visit(browser, address, viewport={"width": 1280, "height": 900})
    cut = page.evaluate(
        """[...document.querySelectorAll('svg[role=img]')].flatMap(svg => {
            const box = svg.getBoundingClientRect();
            return [...svg.querySelectorAll('text')].filter(text => {
                const t = text.getBoundingClientRect();
                return t.left < box.left - 2 || t.right > box.right + 2 || t.top < box.top - 2 || t.bottom > box.bottom + 2;
            }).map(text => text.textContent);
        })"""
    )
    assert cut == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_stand_out(browser, address, scheme):
    page, _ = visit(browser, address, color_scheme=scheme)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(ground) < 0.1) == (scheme == "dark")
    for selector, least in (("body", 7), ("figcaption", 4.5), ("a", 4.5), (".note", 4.5)):
        colour = page.evaluate("s => getComputedStyle(document.querySelector(s)).color", selector)
        assert contrast(colour, ground) >= least, selector
    text = page.evaluate("getComputedStyle(document.querySelector('svg[role=img] text')).fill")
    assert contrast(text, ground) >= 7
    for i in range(8):
        colour = page.evaluate(
            "i => { const e = document.createElement('i'); e.style.color = `var(--series-${i})`;"
            " document.body.append(e); return getComputedStyle(e).color; }",
            i,
        )
        assert contrast(colour, ground) >= 3, i
    partial = page.evaluate("(s => [s.color, s.backgroundColor])(getComputedStyle(document.querySelector('.partial')))")
    assert contrast(*partial) >= 4.5


def test_print_is_black_on_white_and_fits_the_paper(browser, address):
    page, _ = visit(browser, address, color_scheme="dark", viewport={"width": 680, "height": 960})
    page.emulate_media(media="print", color_scheme="dark")
    assert luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) == 1
    assert luminance(page.evaluate("getComputedStyle(document.body).color")) == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 680
    assert not page.locator("nav").is_visible()
