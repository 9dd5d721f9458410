"""An HTML document of sections, which needs no network and no scripts, and is held to that by its own policy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.resources import files

from ropewalk.lab.report.html import Html, element

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def document(title: str, intro: Iterable[Html | None], sections: Sequence[tuple[str, Html]], footer: str) -> str:
    """Return a page: its title, what stands before the contents, the sections, and who made it.

    Args:
        title: of the page.
        intro: below the title.
        sections: titles and bodies, in order.
        footer: last line.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", Html(files(__package__).joinpath("style.css").read_text(encoding="utf-8"))),
    )
    contents = [element("li", element("a", name, href=f"#{anchor(name)}")) for name, _ in sections]
    header = element(
        "header",
        element("h1", title),
        list(intro),
        element("nav", element("ul", contents), aria_label="Contents"),
    )
    main = element(
        "main",
        [element("section", element("h2", name), body, id=anchor(name)) for name, body in sections],
    )
    body = element("body", header, main, element("footer", footer))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def anchor(title: str) -> str:
    """Return the id of a section."""
    return "-".join(re.findall(r"\w+", title.lower()))
