"""The API reference: every public name with its signature and docstring, as Markdown."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import ropewalk as rw

HEAD = """# API

Every public name of `ropewalk`, from its docstring. Made by `python docs/generate.py`. `import ropewalk as rw` is understood.

"""
SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Example|Shapes|Numbers|Source):(?: |$)")
LISTS = ("Args", "Attributes", "Raises")
ENTRY = re.compile(r"((?:\*{0,2}\w+)(?:, \*{0,2}\w+)*): ?")


# ---- what is public ------------------------------------------------------------------------------------------------


def groups() -> dict[str, list[str]]:
    """Return the names of `_HOME` below the comments that group them."""
    table = inspect.getsource(rw).partition("\n_HOME = {\n")[2].partition("\n}\n")[0]
    found: dict[str, list[str]] = {}
    for line in table.splitlines():
        if line.startswith("    # "):
            found[line.removeprefix("    # ")] = []
        else:
            found[next(reversed(found))].append(line.split('"')[1])
    if sorted(name for names in found.values() for name in names) != rw.__all__:
        raise RuntimeError(
            "the table _HOME of ropewalk/__init__.py is not laid out as this reads it: # group, name, name"
        )
    return found


def members(owner: type) -> Iterator[tuple[str, Any]]:
    """Yield what a class itself defines and documents; hooks are documented once, on the base class."""
    for name, value in vars(owner).items():
        thing = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if not name.startswith("_") and (callable(thing) or isinstance(thing, property)) and thing.__doc__:
            yield name, thing


def attributes(owner: type) -> Iterator[tuple[str, str]]:
    """Yield the class attributes that a string below them documents."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(body, ast.ClassDef)
    for before, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            value = f" = {ast.unparse(before.value)}" if before.value else ""
            yield f"{ast.unparse(before.target)}: {ast.unparse(before.annotation)}{value}", str(after.value.value)


# ---- signatures ----------------------------------------------------------------------------------------------------


def signature(name: str, thing: Any, width: int = 110) -> str:
    """Write how a thing is called, on several lines where one would be long."""
    parameters, parts, kind = inspect.signature(thing).parameters, [], None
    documented = None
    if dataclasses.is_dataclass(thing) and "Args:" in (doc := inspect.cleandoc(thing.__doc__ or "")):
        documented = set(re.findall(r"^    (\w+): ", doc, re.M))  # further fields are not for the caller
    for p in parameters.values():
        if p.name in ("self", "cls"):
            continue
        if documented and p.name not in documented:
            parts.append("...")
            break
        if p.kind is p.KEYWORD_ONLY and kind not in (p.KEYWORD_ONLY, p.VAR_POSITIONAL):
            parts.append("*")
        kind = p.kind
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        annotation = "" if p.annotation is p.empty else f": {annotated(p.annotation)}"
        default = "" if p.default is p.empty else (" = " if annotation else "=") + written(p.default)
        parts.append(f"{star}{p.name}{annotation}{default}")
    result = "" if inspect.isclass(thing) else inspect.signature(thing).return_annotation
    arrow = "" if result in ("", inspect.Signature.empty) else f" -> {annotated(result)}"
    line = f"{name}({', '.join(parts)}){arrow}"
    return line if len(line) <= width else f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){arrow}"


def written(value: object) -> str:
    """Write a default as the source would."""
    if isinstance(value, str):
        return f'"{value}"'
    return "..." if repr(value) == "<factory>" else repr(value)  # a dataclass makes these anew for each instance


def annotated(annotation: Any) -> str:
    """Write an annotation as it stands in the source."""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


# ---- docstrings ----------------------------------------------------------------------------------------------------


def rendered(doc: str, formula: bool = False) -> str:
    """Turn a docstring into Markdown: its sections become lists, an opening formula a block."""
    blocks: list[tuple[str, list[str]]] = [("", [])]
    for line in inspect.cleandoc(doc).splitlines():
        section = SECTION.match(line)
        if section:
            blocks.append((section[1], [line[section.end() :]]))
        elif blocks[-1][0] and line and not line.startswith(" ") and not blocks[-1][1][-1]:
            blocks.append(("", [line]))  # prose again, after a blank line
        else:
            blocks[-1][1].append(line)
    out: list[str] = []
    for title, lines in blocks:
        text = "\n".join(lines).strip("\n")
        if title == "Example":
            out.append(f"```python\n{textwrap.dedent(text).replace('  # doctest: +SKIP', '')}\n```")
        elif title:
            fact = f"- **{title}**"
            fact += f"\n{entries(text)}" if title in LISTS else f": {escaped(' '.join(text.split()))}"
            if out and out[-1].startswith("- **"):
                out[-1] += f"\n{fact}"
            else:
                out.append(fact)
        elif text.strip():
            first, _, rest = text.partition("\n\n") if formula else ("", "", text)
            out += [f"```\n{' '.join(first.split())}\n```"] if first else []
            out += [escaped(rest.strip("\n"))] if rest.strip() else []
            formula = False
    return "\n\n".join(out)


def entries(text: str) -> str:
    """Make a list of the indented entries ``name: what it is``, however many lines they take."""
    found: list[str] = []
    for line in textwrap.dedent(text).splitlines():
        entry = ENTRY.match(line)
        if entry:
            found.append(f"  - `{entry[1]}`: {line[entry.end() :]}")
        elif line.strip() and found:
            found[-1] += f" {line.strip()}"
        elif line.strip():
            found.append(f"  - {line.strip()}")
    return "\n".join(escaped(entry) for entry in found)


def escaped(text: str) -> str:
    """Keep what is no code from being read as HTML or as emphasis."""
    parts = re.split(r"(`+[^`]+`+|^    .*$)", text, flags=re.M)
    return "".join(
        p if i % 2 else re.sub(r"(<(?=[\w/!?])|(?<=\w)\*(?=\w)|\*\*)", r"\\\1", p) for i, p in enumerate(parts)
    )


# ---- the page ------------------------------------------------------------------------------------------------------


def described(name: str, thing: Any, formula: bool) -> Iterator[str]:
    """Yield the paragraphs about one class or function, and about the members of a class."""
    short = name.removeprefix("rw.")
    yield f"### `{short}`"
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        yield f"A subclass of {' and '.join(f'`{base.__name__}`' for base in thing.__bases__)}."
        yield rendered(thing.__doc__ or "")
    else:
        yield f"```python\n{signature(name, thing)}\n```"
        yield rendered(thing.__doc__ or "", formula)
    if inspect.isclass(thing):
        listed = [item(line, doc) for line, doc in attributes(thing)]
        for member, method in members(thing):
            line = member if isinstance(method, property) else signature(member, method, width=10_000)
            listed.append(item(line, method.__doc__))
        yield "\n".join(["**Members**", "", *listed]) if listed else ""


def item(line: str, doc: str) -> str:
    """Make an item of a list of members: how it is called or read, and the whole docstring."""
    return f"- `{line}`: " + textwrap.indent(rendered(doc), "  ").removeprefix("  ")


def constant(name: str, value: object) -> str:
    """Describe a constant in a line; sets, tables and types are for code to read."""
    return f"- `{name} = {value!r}`" if isinstance(value, int | str | tuple) else f"- `{name}`"


def page() -> str:
    """Return the whole page."""
    shown, about, contents = set(rw.__all__), [], []
    links: set[str] = set()
    for comment, names in groups().items():
        title, _, note = comment.partition("; ")
        title = title[0].upper() + title[1:]
        about += [f"## {title}", *([f"{note[0].upper()}{note[1:]}."] if note else [])]
        for name in names:
            thing = getattr(rw, name)
            links.add(name.lower())
            if not isinstance(thing, ModuleType):
                about += described(f"rw.{name}", thing, formula=title == "Published encodings")
                continue
            about += [f"### `{name}`", rendered(thing.__doc__ or "")]
            inside = {n: getattr(thing, n) for n in sorted(set(thing.__all__) - shown)}
            called = {n: value for n, value in inside.items() if inspect.isclass(value) or inspect.isfunction(value)}
            about.append("\n".join(constant(n, value) for n, value in inside.items() if n not in called))
            for inner, value in called.items():
                about += described(f"rw.{name}.{inner}", value, formula=False)
        contents.append(f"- {title}: {', '.join(f'[{name}](#{name.lower()})' for name in names)}")
    headings = [line.strip("# `").replace(".", "").lower() for line in about if line.startswith("#")]
    if twice := {link for link in links if headings.count(link) != 1}:
        raise RuntimeError(f"links to {sorted(twice)} would lead nowhere, or to two places")
    text = HEAD + "\n".join(contents) + "\n\n" + "\n\n".join(part for part in about if part) + "\n"
    if stray := re.search(r"<[^<>\n]+ at 0x\w+>", text):
        raise RuntimeError(f"{stray[0]} would differ from run to run")
    return text
