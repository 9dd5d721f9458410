"""HTML, put together so that text from outside cannot become markup."""

from __future__ import annotations

from html import escape


class Html(str):
    """A string that is markup already; every other string is text and will be escaped."""

    __slots__ = ()


def element(tag: str, /, *children: object, **attributes: object) -> Html:
    """Write an element. None and False attributes are left out, True ones have no value, "class_" means "class"."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in ("meta", "link"):
        return Html(f"<{tag}{written}>")
    return Html(f"<{tag}{written}>{join(*children)}</{tag}>")


def join(*children: object) -> Html:
    """Write children one after the other; lists and generators are opened, None is left out."""
    out = []
    for child in children:
        if isinstance(child, Html):
            out.append(str(child))
        elif isinstance(child, list | tuple):
            out.append(join(*child))
        elif child is not None:
            out.append(escape(str(child)))
    return Html("".join(out))
