"""A rotary embedding written anew, with a switch for everything that ports get wrong.

Nothing here comes from ropewalk.analysis.verify: the same mistake in both would be seen by neither. Two honest styles of
arithmetic are among the sizes: everything in the dtype of the data, as transformers does it, and float32 rounded once.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


@dataclass
class Setting:
    """A correct rotation, and tensors to show it on."""

    config: dict
    head_dim: int
    width: int
    base: float
    pairing: str
    heads: int
    kv_heads: int
    batch: int
    seq: int
    positions: torch.Tensor  # (B, S) or (B, S, 3)
    dtype: torch.dtype
    style: str  # "rounded" or "native"
    seed: int

    @property
    def scaling(self):
        return self.config.get("rope_scaling") or {}

    def tensors(self):
        g = torch.Generator().manual_seed(self.seed)
        make = [
            torch.randn(self.batch, h, self.seq, self.head_dim, generator=g, dtype=FP64)
            for h in (self.heads, self.kv_heads)
        ]
        return [x.to(self.dtype) for x in make]


@dataclass
class Port:
    """How somebody implemented it. The defaults are right."""

    inv_freq: Callable | None = None  # (setting, right) -> wrong
    positions: dict = field(default_factory=dict)  # side -> (setting, right) -> wrong
    factor: dict = field(default_factory=dict)  # side -> (setting, right) -> wrong
    sides: tuple = ("q", "k")
    heads: Callable | None = None  # number of heads -> those that are turned
    pairing: str | None = None
    width: Callable | None = None
    start: Callable | None = None
    sign: dict = field(default_factory=dict)
    mirror: bool = False
    table_order: bool = False
    swap_tables: bool = False
    drop: str = ""
    swap_axes: bool = False
    axis: Callable | None = None
    rest: bool = False
    cast: dict = field(default_factory=dict)  # which of inv_freq, position, angle, table -> dtype
    twice: bool = False
    widen: bool = False
    channel_order: bool = False


# ---- right -------------------------------------------------------------------------------------------------------------


def geometric(width, base):
    return base ** (-torch.arange(0, width, 2, dtype=FP64) / width)


def right_inv_freq(s: Setting, width=None, base=None):
    width, base = width or s.width, base or s.base
    f, r = geometric(width, base), s.scaling
    kind = r.get("rope_type", "default")
    if kind in ("default",):
        return f
    factor, original = r["factor"], r.get("original_max_position_embeddings")
    if kind == "linear":
        return f / factor
    if kind == "llama3":
        low, high = r["low_freq_factor"], r["high_freq_factor"]
        keep = ((original * f / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
        return (1 - keep) * f / factor + keep * f
    if kind == "yarn":

        def dim(turns):
            return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = max(math.floor(dim(32)), 0), min(math.ceil(dim(1)), width - 1)
        high = high if high > low else low + 0.001
        ramp = ((torch.arange(width // 2, dtype=FP64) - low) / (high - low)).clamp(0, 1)
        return f / factor * ramp + f * (1 - ramp)
    raise AssertionError(kind)


def right_factor(s: Setting):
    r = s.scaling
    if r.get("rope_type") != "yarn":
        return 1.0
    return r.get("attention_factor", 0.1 * math.log(r["factor"]) + 1)


def right_axis(s: Setting):
    sections = s.scaling["mrope_section"]
    if s.scaling.get("mrope_interleaved"):
        return [j % 3 if j < 3 * sections[j % 3] else 0 for j in range(sum(sections))]
    return [a for a, n in enumerate(sections) for _ in range(n)]


def run(s: Setting, port: Port):
    """Return the tensors by name, as a dump."""
    q, k = s.tensors()
    out = {"q": q, "k": k, "positions": s.positions}
    for side, x in (("q", q), ("k", k)):
        y = _side(s, port, side, x)
        out[f"{side}_rot"] = y if port.widen and side == "k" else y.to(s.dtype)
    return out


def _side(s, port, side, x):
    if side not in port.sides:
        return x.clone()
    if port.swap_axes:
        x = x.transpose(1, 2)
    y = _turn(s, port, side, x)
    if port.twice:
        y = _turn(s, port, side, y)
    if port.swap_axes:
        x, y = x.transpose(1, 2), y.transpose(1, 2)
    if port.heads is not None:
        y = y.clone()
        still = [h for h in range(x.shape[1]) if h not in port.heads(x.shape[1])]
        y[:, still] = x[:, still].to(y.dtype)
    return y


def _turn(s, port, side, x):
    width = port.width(s) if port.width else s.width
    start = port.start(s) if port.start else 0
    inv_freq = right_inv_freq(s, width)
    if port.inv_freq is not None:
        inv_freq = port.inv_freq(s, inv_freq)
    position = s.positions.double()
    change = port.positions.get(side)
    if change is not None:
        position = change(s, position).double()
    if port.swap_axes:  # the tables are cut to what stands where the sequence should be
        position = (
            position[:, : x.shape[2]]
            if position.shape[1] >= x.shape[2]
            else torch.arange(x.shape[2], dtype=FP64)[None].expand(len(position), -1)
        )
    cast = port.cast
    if "inv_freq" in cast:
        inv_freq = inv_freq.float().to(cast["inv_freq"]).double()
    if "position" in cast:
        position = position.float().to(cast["position"]).double()
    if position.ndim == 3:
        axis = port.axis(s) if port.axis else right_axis(s)
        where = position[..., axis] if not callable(axis) else axis(position)
    else:
        where = position[..., None]
    angle = where * inv_freq
    if "angle" in cast:
        angle = angle.float().to(cast["angle"]).double()
    elif s.dtype != FP64 and "exact" not in cast:  # as everybody does it
        angle = (where.float() * inv_freq.float()).double()
    factor = right_factor(s)
    if side in port.factor:
        factor = port.factor[side](s, factor)
    cos, sin = angle.cos() * factor, angle.sin() * factor
    sin = sin * port.sign.get(side, 1)
    if port.swap_tables:
        cos, sin = sin, cos
    if port.drop == "sin":
        sin = torch.zeros_like(sin)
    if "table" in cast:
        cos, sin = (t.float().to(cast["table"]).double() for t in (cos, sin))
    return _apply(s, port, x, cos[:, None], sin[:, None], width, start, factor)


def _apply(s, port, x, cos, sin, width, start, factor):
    pairing, half = port.pairing or s.pairing, width // 2
    order = pairing if not port.table_order else {"half": "interleaved", "interleaved": "half"}[pairing]
    cos, sin = (torch.cat((t, t), -1) if order == "half" else t.repeat_interleave(2, -1) for t in (cos, sin))
    work = s.dtype if s.style == "native" or s.dtype == FP64 else FP32
    if s.dtype == FP64 and s.style != "native":
        cos, sin = cos.float().double(), sin.float().double()  # float32 tables, as everybody does it
    body = x[..., start : start + width].to(work)
    cos, sin = cos.to(work), sin.to(work)
    minus = 1 if port.mirror else -1
    if pairing == "half":
        other = torch.cat((minus * body[..., half:], body[..., :half]), -1)
    else:
        other = torch.stack((minus * body[..., 1::2], body[..., 0::2]), -1).flatten(-2)
    turned = body * cos + other * sin
    if port.channel_order:
        turned = (
            torch.cat((turned[..., 0::2], turned[..., 1::2]), -1)
            if pairing == "interleaved"
            else torch.stack((turned[..., :half], turned[..., half:]), -1).flatten(-2)
        )
    out = x.clone().to(FP32 if port.widen else x.dtype)
    if port.rest:
        out = (out.double() * factor).to(out.dtype)
    out[..., start : start + width] = turned.to(out.dtype)
    return out


# ---- wrong -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """What a port gets wrong.

    Args:
        name: of it.
        part: what of the port it changes; two faults of one part do not go together.
        causes: of `Finding`, any of which names it: all ways to say the same thing.
        port: changes.
        needs: whether a setting can show it.
    """

    name: str
    part: str
    causes: tuple
    port: dict
    needs: Callable = lambda s: True


def both(fn):
    return {"q": fn, "k": fn}


def text(s):
    return s.positions.ndim == 2


def scaled(*kinds):
    return lambda s: s.scaling.get("rope_type") in kinds and text(s)


def images(s):
    return s.positions.ndim == 3


def heads_apart(s):
    """Whether positions along the heads are several: else swapped axes are one position for all, and nothing else."""
    first = s.positions[:, : s.kv_heads]
    return text(s) and s.kv_heads > 1 and bool((first != first[:, :1]).any())


def partial(s):
    return s.width < s.head_dim


def with_scaling(**changes):
    def make(s, right):
        other = replace(s, config={**s.config, "rope_scaling": {**s.scaling, **changes}})
        return right_inv_freq(other, 2 * len(right))

    return make


def clamp_at(s, p):
    return p.clamp(max=float(p.max()) * 0.6 // 1)


def restart(s, p):
    n = max(s.seq // 2, 1)
    out = p.clone()
    out[:, n:] = p[:, n:] - p[:, n : n + 1]
    return out


def last_at_zero(s, p):
    out = p.clone()
    out[:, -1] = 0
    return out


def late(s, p):
    out = p.clone()
    out[:, s.seq // 2 :] += 1
    return out


def index(s, p):
    return torch.arange(s.seq).expand(s.batch, s.seq)


FREQ = ("base", "ladder", "frequencies", "width")
SCALE = ("position-scale",)
FAULTS = [
    # which channels
    Fault("other pairing", "kernel", ("pairing",), {"pairing": "other"}),
    Fault(
        "tables in the other order",
        "kernel",
        ("table-order",),
        {"table_order": True},
        lambda s: min(s.heads, s.kv_heads) >= 3 and s.width > 2,
    ),
    Fault("minus of rotate_half missing", "kernel", ("mirror",), {"mirror": True}),
    Fault("cos and sin exchanged", "kernel", ("swapped",), {"swap_tables": True}),
    Fault("sin dropped", "kernel", ("no-sin",), {"drop": "sin"}, lambda s: min(s.heads, s.kv_heads) >= 2),
    Fault("sign", "kernel", ("sign",), {"sign": {"q": -1, "k": -1}}),
    Fault("sign of k", "kernel", ("sign",), {"sign": {"k": -1}}),
    Fault("whole head turned", "width", ("width",), {"width": lambda s: s.head_dim}, partial),
    Fault(
        "partial factor twice",
        "width",
        ("width",),
        {"width": lambda s: max(s.width // 2 // 2 * 2, 2)},
        lambda s: s.width >= 8 and text(s),
    ),
    Fault(
        "one pair too few",
        "width",
        (
            "width",
            "still-planes",
            "base",
        ),  # base: b^(P/(P-1)) has the same ladder, but for a last plane that hardly turns
        {"width": lambda s: s.width - 2},
        lambda s: s.width >= 8 and text(s),
    ),
    Fault("last channels turned", "width", ("start",), {"start": lambda s: s.head_dim - s.width}, partial),
    Fault(
        "ladder over the head",
        "frequencies",
        FREQ,
        {"inv_freq": lambda s, f: geometric(s.head_dim, s.base)[: len(f)]},
        lambda s: partial(s) and not s.scaling,
    ),
    Fault("axes swapped", "axes", ("axes", "not-rotated"), {"swap_axes": True}, heads_apart),
    Fault("first head alone", "heads", ("heads",), {"heads": lambda n: [0]}, lambda s: s.kv_heads > 1),
    Fault("last head not", "heads", ("heads",), {"heads": lambda n: list(range(n - 1))}, lambda s: s.kv_heads > 1),
    Fault("k not turned", "sides", ("not-rotated",), {"sides": ("q",)}),
    Fault("q not turned", "sides", ("not-rotated",), {"sides": ("k",)}),
    Fault("nothing turned", "sides", ("not-rotated", "position-zero"), {"sides": ()}),
    Fault("dtype widened", "dtype", ("dtype",), {"widen": True}, lambda s: s.dtype in (BF16, FP16)),
    # frequencies
    Fault(
        "base 10000",
        "frequencies",
        FREQ,
        {"inv_freq": lambda s, f: right_inv_freq(s, 2 * len(f), 10_000.0)},
        lambda s: s.base != 10_000,
    ),
    Fault(
        "base times ten",
        "frequencies",
        FREQ,
        {"inv_freq": lambda s, f: right_inv_freq(s, 2 * len(f), 10 * s.base)},
        lambda s: not s.scaling,
    ),
    Fault(
        "odd base",
        "frequencies",
        FREQ,
        {"inv_freq": lambda s, f: geometric(2 * len(f), 1.37 * s.base + 321)},
        lambda s: not s.scaling,
    ),
    Fault(
        "exponent i/d",
        "frequencies",
        FREQ,
        {"inv_freq": lambda s, f: geometric(2 * len(f), s.base**0.5)},
        lambda s: not s.scaling,
    ),
    Fault(
        "division by P-1",
        "frequencies",
        FREQ,
        {"inv_freq": lambda s, f: s.base ** (-torch.arange(len(f), dtype=FP64) / max(len(f) - 1, 1))},
        lambda s: not s.scaling,
    ),
    Fault(
        "planes counted from 1",
        "frequencies",
        ("ladder", *SCALE),
        {"inv_freq": lambda s, f: s.base ** (-(torch.arange(len(f), dtype=FP64) + 1) / len(f))},
        lambda s: not s.scaling,
    ),
    Fault("reversed", "frequencies", ("frequency-order",), {"inv_freq": lambda s, f: f.flip(0)}, lambda s: s.width > 2),
    Fault(
        "each frequency twice",
        "frequencies",
        ("frequency-order",),
        {"inv_freq": lambda s, f: f[torch.arange(len(f)) // 2]},
        lambda s: s.width > 4,
    ),
    Fault(
        "scaling ignored",
        "frequencies",
        ("scaling-ignored", *SCALE),
        {"inv_freq": lambda s, f: geometric(2 * len(f), s.base)},
        scaled("linear", "yarn", "llama3"),
    ),
    Fault(
        "linear in its place",
        "frequencies",
        ("scaling-type", *SCALE),
        {"inv_freq": lambda s, f: geometric(2 * len(f), s.base) / s.scaling["factor"]},
        scaled("yarn", "llama3"),
    ),
    Fault(
        "ntk in its place",
        "frequencies",
        ("scaling-type", "base"),
        {
            "inv_freq": lambda s, f: (
                geometric(2 * len(f), s.base)
                * s.scaling["factor"] ** (-torch.arange(len(f), dtype=FP64) / max(len(f) - 1, 1))
            )
        },
        lambda s: scaled("linear", "yarn", "llama3")(s) and s.width > 2,
    ),
    Fault(
        "factor squared",
        "frequencies",
        ("factor", *SCALE),
        {"inv_freq": lambda s, f: with_scaling(factor=s.scaling["factor"] ** 2)(s, f)},
        scaled("linear", "yarn", "llama3"),
    ),
    Fault(
        "original length is the new one",
        "frequencies",
        ("original-length", "scaling-ignored", "scaling-type"),
        {
            "inv_freq": lambda s, f: with_scaling(original_max_position_embeddings=s.config["max_position_embeddings"])(
                s, f
            )
        },
        scaled("yarn", "llama3"),
    ),
    Fault(
        "ramp reversed",
        "frequencies",
        ("ramp",),
        {"inv_freq": lambda s, f: geometric(2 * len(f), s.base) * (1 + 1 / s.scaling["factor"]) - f},
        scaled("yarn", "llama3"),
    ),
    Fault(
        "scaling inverted",
        "frequencies",
        ("scaling-inverted", *SCALE),
        {"inv_freq": lambda s, f: geometric(2 * len(f), s.base) ** 2 / f},
        scaled("linear"),
    ),
    # attention factor
    Fault("attention factor lost", "factor", ("attention-factor",), {"factor": both(lambda s, a: 1.0)}, scaled("yarn")),
    Fault(
        "attention factor squared",
        "factor",
        ("attention-factor",),
        {"factor": both(lambda s, a: a * a)},
        scaled("yarn"),
    ),
    Fault(
        "attention factor on q alone",
        "factor",
        ("attention-factor",),
        {"factor": {"k": lambda s, a: 1.0}},
        scaled("yarn"),
    ),
    Fault(
        "attention factor on the whole head",
        "factor",
        ("rest-scaled",),
        {"rest": True},
        lambda s: scaled("yarn")(s) and partial(s),
    ),
    Fault(
        "softmax scale in q",
        "factor",
        ("softmax-scale", "attention-factor"),
        {"factor": {"q": lambda s, a: a * s.head_dim**-0.5}},
    ),
    # positions
    Fault("positions doubled", "positions", SCALE, {"positions": both(lambda s, p: 2 * p)}),
    Fault("rotated twice", "positions", SCALE, {"twice": True}, lambda s: s.scaling.get("rope_type") != "yarn"),
    Fault(
        "positions divided",
        "positions",
        (*SCALE, "factor", "scaling-type"),
        {"positions": both(lambda s, p: p / 4)},
        text,
    ),
    Fault("one too large", "positions", ("position-offset",), {"positions": both(lambda s, p: p + 1)}),
    Fault("q one too small", "positions", ("position-offset",), {"positions": {"q": lambda s, p: p - 1}}),
    Fault("k offset of 7", "positions", ("position-offset",), {"positions": {"k": lambda s, p: p + 7}}),
    Fault(
        "restart",
        "positions",
        ("position-restart", "position-jump"),
        {"positions": both(restart)},
        lambda s: text(s) and s.seq >= 8,
    ),
    Fault(
        "last token at zero",
        "positions",
        ("decode-position", "position-jump", "position-restart"),
        {"positions": both(last_at_zero)},
        lambda s: text(s) and s.seq >= 8,
    ),
    Fault(
        "one too large from the middle on",
        "positions",
        ("position-jump",),
        {"positions": both(late)},
        lambda s: text(s) and s.seq >= 8,
    ),
    Fault("ids ignored", "positions", ("positions-ignored", "position-offset"), {"positions": both(index)}, text),
    Fault(
        "first row for all",
        "positions",
        ("rows",),
        {"positions": both(lambda s, p: p[:1].expand_as(p))},
        lambda s: s.batch > 1,
    ),
    Fault("all at zero", "positions", ("not-rotated", "position-zero"), {"positions": both(lambda s, p: 0 * p)}),
    Fault(
        "clamped", "positions", ("position-clamped",), {"positions": both(clamp_at)}, lambda s: text(s) and s.seq >= 8
    ),
    Fault(
        "four share one",
        "positions",
        ("position-grouped",),
        {"positions": both(lambda s, p: torch.floor(p / 4))},
        lambda s: text(s) and s.seq >= 8,
    ),
    Fault(
        "backwards",
        "positions",
        ("position-reversed",),
        {"positions": both(lambda s, p: p.amax(1, keepdim=True) - p)},
        lambda s: text(s) and s.batch == 1 and s.seq >= 4,
    ),
    # precision
    Fault("positions in bf16", "precision", ("precision",), {"cast": {"position": BF16}}),
    Fault("positions in fp16", "precision", ("precision",), {"cast": {"position": FP16}}),
    Fault("inv_freq in bf16", "precision", ("precision",), {"cast": {"inv_freq": BF16}}),
    Fault("inv_freq in fp16", "precision", ("precision",), {"cast": {"inv_freq": FP16}}),
    Fault("angles in bf16", "precision", ("precision",), {"cast": {"angle": BF16}}),
    Fault(
        "module in bf16",
        "precision",
        ("precision",),
        {"cast": {"inv_freq": BF16, "position": BF16, "angle": BF16, "table": BF16}},
    ),
    Fault(
        "autocast in fp16",
        "precision",
        ("precision",),
        {"cast": {"inv_freq": FP16, "position": FP16, "angle": FP16}},
        lambda s: float(s.positions.max()) < 60000,
    ),
    Fault("tables in bf16", "precision", ("precision",), {"cast": {"table": BF16}}, lambda s: s.dtype in (FP32, FP64)),
    # several axes
    Fault(
        "sections ignored",
        "positions",
        ("sections-ignored", "sections"),
        {"axis": lambda s: [0] * (s.width // 2)},
        images,
    ),
    Fault(
        "one axis for images",
        "positions",
        ("positions-ignored",),
        {"positions": both(lambda s, p: torch.arange(s.seq, dtype=FP64)[None, :, None].expand_as(p))},
        images,
    ),
    Fault(
        "row and column exchanged",
        "positions",
        ("axis-order", "sections"),
        {"positions": both(lambda s, p: p[..., [0, 2, 1]])},
        images,
    ),
    Fault(
        "order of axes",
        "positions",
        ("axis-order", "sections"),
        {"positions": both(lambda s, p: p[..., [2, 1, 0]])},
        images,
    ),
    Fault(
        "sections dealt the other way",
        "positions",
        ("sections",),
        {
            "axis": lambda s: right_axis(
                replace(
                    s,
                    config={
                        **s.config,
                        "rope_scaling": {**s.scaling, "mrope_interleaved": not s.scaling.get("mrope_interleaved")},
                    },
                )
            )
        },
        images,
    ),
]


def port_of(*faults, setting) -> Port:
    changes = {}
    for fault in faults:
        for name, value in fault.port.items():
            changes[name] = (
                {"half": "interleaved", "interleaved": "half"}[setting.pairing] if value == "other" else value
            )
    return Port(**changes)


# ---- settings ----------------------------------------------------------------------------------------------------------


def setting(r: random.Random, dtype=None, kind=None) -> Setting:
    """Draw a correct rotation of any size."""
    kind = kind or r.choice(["default"] * 4 + ["linear", "yarn", "yarn", "llama3", "mrope", "mrope"])
    head_dim = r.choice([8, 16, 24, 32, 48, 64, 80, 96, 128])
    if kind == "mrope":
        head_dim = r.choice([32, 48, 64, 96, 128])
    base = r.choice([10_000.0, 10_000.0, 50_000.0, 500_000.0, 1_000_000.0])
    fraction = r.choice([1.0, 1.0, 1.0, 0.5, 0.25]) if head_dim % 8 == 0 and kind != "mrope" else 1.0
    width = int(head_dim * fraction)
    pairing = r.choice(["half", "half", "interleaved"])
    kv_heads = r.choice([1, 2, 3, 4])
    heads = kv_heads * r.choice([1, 2])
    batch, seq = r.choice([1, 2, 3]), r.choice([1, 5, 12, 24, 33, 64, 130, 300])
    if kind == "mrope":
        seq = r.choice([24, 40, 64, 130])
    original = r.choice([256, 1024, 4096])
    factor = r.choice([2.0, 4.0, 8.0])
    config = {"head_dim": head_dim, "hidden_size": head_dim * heads, "num_attention_heads": heads, "rope_theta": base}
    config["max_position_embeddings"] = original
    if fraction != 1.0:
        config["partial_rotary_factor"] = fraction
    config["rope_interleave"] = pairing == "interleaved"
    if kind in ("linear", "yarn", "llama3"):
        scaling = {"rope_type": kind, "factor": factor}
        if kind != "linear":
            scaling["original_max_position_embeddings"] = original
            config["max_position_embeddings"] = int(original * factor)
        if kind == "llama3":
            scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        config["rope_scaling"] = scaling
    if kind == "mrope":
        planes = width // 2
        rest = planes * 3 // 8
        config["rope_scaling"] = {"rope_type": "default", "mrope_section": [planes - 2 * rest, rest, rest]}
        if r.random() < 0.5:
            rest = planes * 5 // 16
            config["rope_scaling"] |= {"mrope_section": [planes - 2 * rest, rest, rest], "mrope_interleaved": True}
    reach = config["max_position_embeddings"]
    positions = _positions(r, kind, batch, seq, reach)
    return Setting(
        config,
        head_dim,
        width,
        base,
        pairing,
        heads,
        kv_heads,
        batch,
        seq,
        positions,
        dtype or r.choice([FP32, BF16, FP16, FP64]),
        r.choice(["native", "rounded"]),
        r.randrange(1 << 30),
    )


def _positions(r, kind, batch, seq, reach):
    if kind == "mrope":
        start = torch.tensor([r.randrange(0, 5) for _ in range(batch)])
        p = (torch.arange(seq)[None] + start[:, None])[..., None].repeat(1, 1, 3)
        begin, rows, columns = r.randrange(1, 6), r.choice([2, 3]), r.choice([4, 5])
        cells = torch.arange(rows * columns)
        image = slice(begin, begin + rows * columns)
        first = p[:, begin, :1]
        p[:, image] = torch.stack((first.expand(-1, len(cells)), first + cells // columns, first + cells % columns), -1)
        follow = first + max(rows, columns)
        p[:, image.stop :] = (follow + torch.arange(seq - image.stop))[..., None]
        return p
    manner = r.choice(["count", "padded", "far", "sparse"])
    count = torch.arange(seq)
    if manner == "count" or seq > reach // 2:
        return count.expand(batch, seq).clone()
    if manner == "padded":
        return torch.stack([(count - r.randrange(0, max(seq // 3, 1))).clamp(min=0) for _ in range(batch)])
    if manner == "far":
        return torch.stack([count + r.randrange(0, reach - seq) for _ in range(batch)])
    return torch.stack([torch.tensor(sorted(r.sample(range(reach), seq))) for _ in range(batch)])


def largest_change(s: Setting, got, right) -> float:
    """Return the largest difference of two dumps, in units of rounding, relative to the length of the pair."""
    unit = {BF16: 2.0**-9, FP16: 2.0**-11, FP32: 2.0**-24, FP64: 2.0**-24}[s.dtype]
    worst = 0.0
    for side in ("q", "k"):
        x = got[side].double()
        half = s.width // 2
        body = x[..., : s.width]
        pairs = (
            torch.stack((body[..., :half], body[..., half:]), -1)
            if s.pairing == "half"
            else body.unflatten(-1, (half, 2))
        )
        length = pairs.square().sum(-1).sqrt().amax(-1, keepdim=True)
        off = (got[f"{side}_rot"].double() - right[f"{side}_rot"].double()).nan_to_num(nan=1e9).abs()
        worst = max(worst, float((off / length).max()))
    return worst / unit
