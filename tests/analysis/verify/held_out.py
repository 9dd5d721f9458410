"""Faults that were written after `verify` and on which nothing of it was tuned: what it does with what it was not made for."""

from faults import BF16, FP16, Fault, both, images, right_axis, scaled, text, with_scaling


def kept_rows(s, p):
    """An evicted cache counts its rows: from the middle on, positions are three too small."""
    out = p.clone()
    out[:, s.seq // 2 :] -= 3
    return out


def padding_counted(s, p):
    """Each row is shifted by its own padding."""
    return p + 1 + 3 * (p.new_tensor(range(s.batch)))[:, None]


def default_ramp(s, right):
    return with_scaling(low_freq_factor=1.0, high_freq_factor=8.0, beta_fast=16.0)(s, right)


FACTOR = ("attention-factor",)
SCALE = ("position-scale",)
HELD_OUT = [
    Fault(
        "half of each head turned",
        "width",
        ("width",),
        {"width": lambda s: s.head_dim // 2},
        lambda s: s.width == s.head_dim and not s.scaling,
    ),
    Fault("k one too small", "positions", ("position-offset",), {"positions": {"k": lambda s, p: p - 1}}),
    Fault("q and k apart", "positions", ("position-offset",), {"positions": {"q": lambda s, p: p + 2}}),
    Fault(
        "rows of an evicted cache",
        "positions",
        ("position-jump",),
        {"positions": both(kept_rows)},
        lambda s: text(s) and s.seq >= 12,
    ),
    Fault(
        "padding counted",
        "positions",
        ("position-offset", "position-jump", "positions"),
        {"positions": both(padding_counted)},
        lambda s: text(s) and s.batch > 1,
    ),
    Fault(
        "rows of the batch rolled",
        "positions",
        ("rows", "positions"),
        {"positions": both(lambda s, p: p.roll(1, 0))},
        lambda s: text(s) and s.batch > 1,
    ),
    Fault(
        "two share one",
        "positions",
        ("position-grouped",),
        {"positions": both(lambda s, p: (p / 2).floor())},
        lambda s: text(s) and s.seq >= 8,
    ),
    Fault(
        "all planes read rows",
        "axis",
        ("sections-ignored", "sections"),
        {"axis": lambda s: [1] * (s.width // 2)},
        images,
    ),
    Fault("sections from the end", "axis", ("sections", "axis-order"), {"axis": lambda s: right_axis(s)[::-1]}, images),
    Fault("frequencies in turns", "frequencies", SCALE, {"inv_freq": lambda s, f: 6.283185307179586 * f}, text),
    Fault(
        "every second frequency",
        "frequencies",
        ("frequency-order",),
        {"inv_freq": lambda s, f: f.repeat(2)[::2][: len(f)]},
        lambda s: s.width > 4 and text(s),
    ),
    Fault(
        "usual ramp",
        "frequencies",
        ("ramp", "scaling-type", "frequencies"),
        {"inv_freq": default_ramp},
        scaled("yarn", "llama3"),
    ),
    Fault("factor divides", "factor", FACTOR, {"factor": both(lambda s, a: 1 / a)}, scaled("yarn")),
    Fault("root of the factor", "factor", FACTOR, {"factor": both(lambda s, a: a**0.5)}, scaled("yarn")),
    Fault("even heads alone", "heads", ("heads",), {"heads": lambda n: list(range(0, n, 2))}, lambda s: s.kv_heads > 1),
    Fault("sign of q", "kernel", ("sign",), {"sign": {"q": -1}}),
    Fault(
        "positions and frequencies in fp16", "precision", ("precision",), {"cast": {"position": FP16, "inv_freq": FP16}}
    ),
    Fault("frequencies and tables in bf16", "precision", ("precision",), {"cast": {"inv_freq": BF16, "table": BF16}}),
]
