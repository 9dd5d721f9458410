"""Write docs/found.md and docs/found/NAME.svg from evidence/NAME.json: what `ropewalk reproduce` measured.

``python docs/generate_found.py``; with ``--check``, say whether they are up to date.
"""

from __future__ import annotations

import hashlib
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ropewalk.lab.experiments import experiments
from ropewalk.lab.experiments.evidence import read_all
from ropewalk.lab.experiments.verdict import BEYOND, FAILS, HOLDS, UNSEEN
from ropewalk.lab.reproduce_command import sentence

HERE = Path(__file__).parent
EVIDENCE = HERE.parent / "evidence"
PICTURES = HERE / "found"

HEAD = f"""# What we found

What happened when claims of papers were put to the test at a desk: small models, minutes of training on two cores, at least
three seeds. Each experiment and the direction it expects were written before it was run, and the verdict follows from the
numbers by a rule:

- **{HOLDS}**: the whole 95 % interval of the difference is on the expected side;
- **{FAILS}**: it is on the other side;
- **{UNSEEN}**: it has a part on both, which is no proof that there is no difference;
- **{BEYOND}**: the claim needs scale or data that a desk does not have; something near it was measured.

None of this repeats a paper's own numbers, which come from models a thousand times larger and more. What holds here may not
hold there, and the other way round: of twenty claims about equals, one is expected to come out on either side by chance.

In the pictures a dot is the mean difference, the bar its interval, and each small mark one seed; filled dots decide. Made by
`python docs/generate_found.py` from `evidence/`; `ropewalk reproduce NAME` measures a system again.

"""

INK = {HOLDS: "#2a7f4f", FAILS: "#b3412c", UNSEEN: "#6b7280", BEYOND: "#6b7280"}


def page(found: dict[str, dict[str, Any]]) -> str:
    """Return the whole page: the experiments in their own order."""
    entries = [entry(found[one.name]) for one in experiments() if one.name in found]
    missing = [f"`{one.name}`" for one in experiments() if one.name not in found]
    tail = [f"Not measured yet: {', '.join(missing)}.\n"] if missing else []
    return HEAD + "\n".join([*entries, *tail])


def entry(what: dict[str, Any]) -> str:
    """Describe one experiment."""
    name = what["experiment"]
    decided = [c for c in what["contrasts"] if c["decides"]]
    where = what["hardware"]
    lines = [
        f"## {name}: {what['verdict']}",
        "",
        f"{what['claim']} ({what['source']}.)",
        "",
        f"![{name}: {'; '.join(sentence(c, what['metric']) for c in decided)}](found/{name}.svg)",
        "",
        f"- Expected: {what['expected']}",
        *[f"- Measured: {sentence(c, what['metric'])}: {c['judgement']}." for c in decided],
        *([f"- Cannot show here: {what['out_of_reach']}."] if what["out_of_reach"] else []),
        f"- Limits: {what['limits']}",
        f"- `{what['command']}`, {len(what['seeds'])} seeds, {what['seconds']:.0f} s {on(where)}, "
        f"ropewalk {what['versions']['ropewalk']}",
        "",
    ]
    return "\n".join(lines)


def on(where: dict[str, Any]) -> str:
    """Name the machine, and how much of it was used."""
    machine = where["gpu"] or where["cpu"]
    if (where.get("trials_at_once") or 1) > 1:
        return f"with {where['trials_at_once']} trials at once on {where['cores']} cores of {machine}"
    return f"on {where['threads']} thread{'' if where['threads'] == 1 else 's'} of {machine}"


def digest(what: dict[str, Any]) -> str:
    """Name the numbers a picture was drawn from."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def draw(what: dict[str, Any], file: Path) -> None:
    """Draw every difference of an experiment with its interval and its seeds."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    contrasts = what["contrasts"][::-1]
    unit = 100.0 if what["metric"] == "exact" else 1.0
    with rc_context({"svg.hashsalt": what["experiment"], "svg.fonttype": "none", "font.size": 8}):
        names = [label(c) for c in contrasts]
        lines = sum(max(2, name.count("\n") + 1) for name in names)
        figure = Figure(figsize=(6.4, 0.7 + 0.17 * lines), layout="constrained")
        axes = figure.add_subplot()
        axes.axvline(0, color="#9ca3af", linewidth=0.8)
        for row, c in enumerate(contrasts):
            ink = INK[c["judgement"]]
            if c["margin"]:
                axes.fill_betweenx([row - 0.3, row + 0.3], -c["margin"] * unit, c["margin"] * unit, color="#e5e7eb")
            if c["low"] is not None and c["high"] is not None:
                axes.plot(
                    [c["low"] * unit, c["high"] * unit], [row, row], color=ink, linewidth=2, solid_capstyle="butt"
                )
            axes.plot([v * unit for v in c["by_seed"]], [row] * len(c["by_seed"]), "|", color=ink, markersize=7)
            axes.plot(
                [c["mean"] * unit], [row], "o", color=ink, markersize=5, fillstyle="full" if c["decides"] else "none"
            )
        axes.set_yticks(range(len(contrasts)), names)
        axes.set_ylim(-0.6, len(contrasts) - 0.4)
        axes.set_xlabel(
            "difference in points (higher is better)" if unit == 100 else "difference in nats (lower is better)"
        )
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Description": digest(what)})


def label(contrast: dict[str, Any]) -> str:
    """Name a difference; long names are cut into lines, so that the picture has room."""
    text = f"{contrast['ours']} − {contrast['other']}, {', '.join(map(str, contrast['sizes']))}"
    return "\n".join(textwrap.wrap(text, 44, break_long_words=False, break_on_hyphens=False))


def stale(found: dict[str, dict[str, Any]]) -> list[str]:
    """Name what is not up to date."""
    file = HERE / "found.md"
    old = [] if file.exists() and file.read_text(encoding="utf-8") == page(found) else ["found.md"]
    for name, what in found.items():
        picture = PICTURES / f"{name}.svg"
        if not picture.exists() or digest(what) not in picture.read_text(encoding="utf-8"):
            old.append(f"found/{name}.svg")
    return old + [f"found/{p.name}" for p in sorted(PICTURES.glob("*.svg")) if p.stem not in found]


def main(arguments: Sequence[str]) -> int:
    """Write the page and its pictures, or compare them."""
    found = read_all(EVIDENCE)
    if "--check" in arguments:
        for name in stale(found):
            print(f"docs/{name} differs: run python docs/generate_found.py")
        return 1 if stale(found) else 0
    (HERE / "found.md").write_text(page(found), encoding="utf-8")
    PICTURES.mkdir(exist_ok=True)
    for old in PICTURES.glob("*.svg"):
        if old.stem not in found:
            old.unlink()
    for name, what in found.items():
        draw(what, PICTURES / f"{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
