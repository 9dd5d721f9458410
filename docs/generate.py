"""Write docs/encodings.md from the catalog and docs/api.md from the docstrings.

``python docs/generate.py [encodings | api]``; with ``--check``, say whether they are up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import api_reference as reference

from ropewalk.catalog import RECORDS, Record

HEAD = """# Encodings

Every encoding of the catalog, from its record and the docstring of its class. Made by `python docs/generate.py`; traits are
claims that the contract suite checks (`make test`).

"""


def traits(record: Record) -> str:
    """Say the traits of a record in a line."""
    t = record.traits
    said = [
        "relative" if t.relative else "not relative",
        "keeps norms" if t.norm_preserving else "changes norms",
        "depends on content" if t.content_dependent else "the same for all content",
        "decodes with a cache" if t.streamable else "cannot be decoded",
        *(["enters linear attention"] if t.linear_attention else []),
        {"any": "causal or not", "only": "causal only", "never": "never causal"}[t.causal],
        f"domain: {t.domain}",
        *([f"positions up to {t.max_position} with the defaults below"] if t.max_position is not None else []),
        *(["whole positions only"] if not t.real_positions else []),
        {"scratch": "trained from scratch", "drop-in": "drops into a trained model"}[t.training],
    ]
    return ", ".join(said)


def entry(record: Record) -> str:
    """Describe one record."""
    formula, _, rest = record.doc().partition("\n\n")
    about = rest.split("\n\nArgs:")[0].split("\n\nSource:")[0].split("\n\nShapes:")[0]
    size = ", ".join(f"{name}={value!r}" for name, value in record.defaults.items())
    call = f'rw.build("{record.slug}"{", " + size if size else ""})'
    lines = [
        f"## {record.name} (`{record.slug}`)",
        "",
        record.summary,
        "",
        "```",
        " ".join(formula.split()),
        "```",
        "",
        about.strip(),
        "",
        f"- `{call}`" + (f"; needs {', '.join(record.needs)}" if record.needs else ""),
        f"- {traits(record)}",
        *[f"- {claim}" for claim in record.traits.reduces_to],
        f"- {record.authors}. *{record.paper}.* "
        + (f"[arXiv {record.arxiv}]({record.url}), " if record.arxiv else "")
        + str(record.year),
        "",
    ]
    return "\n".join(lines)


def page() -> str:
    """Return the whole page."""
    return HEAD + "\n".join(entry(r) for r in sorted(RECORDS, key=lambda r: r.slug))


PAGES = {"encodings": page, "api": reference.page}


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or compare them."""
    names = [a for a in arguments if a != "--check"] or list(PAGES)
    if unknown := set(names) - set(PAGES):
        sys.exit(f"no page is called {', '.join(sorted(unknown))}; there are {', '.join(PAGES)}")
    same = True
    for name in names:
        file = Path(__file__).parent / f"{name}.md"
        if "--check" not in arguments:
            file.write_text(PAGES[name](), encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != PAGES[name]():
            same = False
            print(f"docs/{name}.md differs: run python docs/generate.py {name}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
