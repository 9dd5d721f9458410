"""Dtypes: what an encoding computes survives the precision of the model around it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor, nn

from ropewalk.backends import attend
from ropewalk.core.attention import leaves
from ropewalk.core.encoding import Encoding, Rotary
from ropewalk.core.errors import NeedsColumn, PositionError
from ropewalk.core.positions import EXACT, Positions, Tokens
from ropewalk.testing.compare import LOW, TABLE, Excluded, agree, identical, require
from ropewalk.testing.modules import derived
from ropewalk.testing.subjects import EITHER, HEAD_DIM, LONG, MEDIUM, Subject, in_dtype, outcome
from ropewalk.testing.tokens import at


def check_low_precision(s: Subject) -> None:
    """In a model's dtype, results are those of float64, rounded, at any position. Finds: long contexts in bfloat16 lost."""
    exact = s.encoding()
    for dtype, tolerance in LOW.items():
        encoding = s.encoding(dtype=torch.float32).to(dtype)
        for causal in s.causals:
            for case, positions in _far(s, encoding):
                p = in_dtype(s.problem(encoding, LONG, causal, positions=positions), dtype)
                reference = in_dtype(p, torch.float64)  # of the inputs as rounded
                try:
                    want = attend(exact(reference), "dense")
                except PositionError:
                    if not case.endswith("apart"):
                        raise
                    continue  # a bound on distances is no bound on positions
                for backend in EITHER:
                    got = attend(encoding(p), backend)
                    agree(got, want, tolerance, f"{dtype}, {case}, {causal=}, {backend}", "the float64 result")
                want = exact.embed(reference.hidden, positions)
                bound = (want.abs() * torch.finfo(dtype).eps + 1e-6).max().item()
                got = encoding.embed(p.hidden, positions)
                agree(got, want, bound, f"embed, {dtype}, {case}", "the float64 embedding, rounded once")


def _far(s: Subject, encoding: Encoding) -> Iterator[tuple[str, Positions]]:
    if not s.sequence:
        yield "sampled", s.positions(encoding, LONG)
        return
    for start in (0, 10**6, 10**7):
        if start + LONG <= s.limit:
            yield f"positions from {start}", s.draw(encoding, Positions(start + torch.arange(LONG)))
    for stride in (4099, 270_001):
        if stride * LONG <= s.limit:
            yield f"{stride} apart", s.draw(encoding, Positions(stride * torch.arange(LONG)))


CASTS: dict[str, Callable[[nn.Module], nn.Module]] = {
    ".to(bfloat16)": lambda m: m.to(torch.bfloat16),
    ".half()": lambda m: m.half(),
    ".bfloat16().float()": lambda m: m.bfloat16().float(),
    ".double().float()": lambda m: m.double().float(),
    ".half().double().float()": lambda m: m.half().double().float(),
}


def check_casts(s: Subject) -> None:
    """Casts leave an encoding as it was, bit for bit. Finds: frequencies that ``model.half()`` rounds for good."""
    plain = s.encoding(dtype=torch.float32)
    p = in_dtype(s.problem(plain, MEDIUM, s.causals[0]), torch.float32)
    if s.sequence and s.limit > 40_000:
        far = p.replace(positions=at(p.where, p.where.key.position * 1009))  # where rounded frequencies show
        with contextlib.suppress(PositionError):  # a bound on distances
            plain(far)
            p = far

    def run(encoding: Encoding) -> list[Tensor]:
        encoded = leaves(encoding(p))
        sides = [t for leaf in encoded for t in (leaf.q, leaf.k, leaf.v, *leaf.qf.values(), *leaf.kf.values())]
        return [*sides, outcome(encoding, p)]

    want = run(plain)
    for case, change in CASTS.items():
        (fresh,) = change(nn.ModuleList([copy.deepcopy(plain)])).children()  # cast as a part of a model
        for got, kept in zip(run(cast("Encoding", fresh)), want, strict=True):
            identical(got, kept, case, "the results of the float32 module")


def check_autocast(s: Subject) -> None:
    """Autocast changes attention, not its encoding. Finds: gates and embeddings that mixed precision makes bfloat16."""
    encoding = s.encoding(dtype=torch.float32)
    same = "the same as without autocast"
    for causal in s.causals:
        p = in_dtype(s.problem(encoding, MEDIUM, causal), torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            under = encoding(p)
            attend(under)
            embedded = encoding.embed(p.hidden, p.positions)
        identical(embedded, encoding.embed(p.hidden, p.positions), "embed", same)
        for a, b in zip(leaves(encoding(p)), leaves(under), strict=True):
            for name, old, new in (("q", a.q, b.q), ("k", a.k, b.k), ("v", a.v, b.v)):
                identical(new, old, f"{name}, {causal=}", same)
            for side, olds, news in (("query", a.qf, b.qf), ("key", a.kf, b.kf)):
                for name, old in olds.items():
                    identical(news[name], old, f"{side} feature {name}, {causal=}", same)


def check_precision(s: Subject) -> None:
    """Rotary tables are right at positions up to 1e7. Finds: angles computed in float32, or from bfloat16 frequencies."""
    neighbours = Positions(torch.tensor([EXACT - 2, EXACT - 1])).query.coordinates()[0]
    require(bool(neighbours[0] != neighbours[1]), "ids 2^53 - 2 and 2^53 - 1", "two coordinates", "one")
    top = int(min(s.limit, 10**7))
    spread = torch.randint(0, top + 1, (200,), generator=s.generator("spread"))
    tokens = Tokens.of(torch.cat([spread, torch.tensor([0, 1, top - 1, top])]))
    found = {
        name: module
        for name, module in s.encoding().named_modules()
        if isinstance(module, Rotary)
        and type(module).tables is Rotary.tables
        and module.axes is None
        and _counts(module, tokens)
    }
    for name, module in found.items():
        module.fit(HEAD_DIM)
        _exact_angles(name or "the encoding", module, tokens)
        _exact_tables(module, tokens)
    if not found:
        raise Excluded("no rotary tables; what there is was checked at large positions in 'low_precision'")


def _counts(module: Rotary, tokens: Tokens) -> bool:
    """Whether positions are all that it reads of tokens."""
    try:
        module.coordinates(tokens, ())
    except NeedsColumn:
        return False
    return True


def _exact_angles(name: str, module: Rotary, tokens: Tokens) -> None:
    for buffer in derived(module):
        tensor = module.get_buffer(buffer)
        exact = tensor.dtype == torch.float64 or not tensor.is_floating_point()
        require(exact, f"{name}.{buffer}", "float64", tensor.dtype)
    angles = module.angles(module.coordinates(tokens, ()))
    require(angles.dtype == torch.float64, f"{name}.angles", "float64", angles.dtype)
    rounded = bool(angles.any()) and torch.equal(angles.float().double(), angles)
    expected = "float64 products of position and frequency"
    require(not rounded, f"{name}.angles", expected, "numbers rounded to float32")


def _exact_tables(module: Rotary, tokens: Tokens) -> None:
    # parameters are float32 numbers in every module, so the reference reads them rounded
    angles = copy.deepcopy(module).float().double().angles(module.coordinates(tokens, ()))
    angles = angles[:, None] if angles.ndim == 3 else angles
    bound = TABLE * max(1.0, abs(module.magnitude))
    for dtype in LOW:
        low = copy.deepcopy(module).float().to(dtype)
        cos, sin = low.tables(Tokens.of(tokens.position), (), torch.float32)  # fresh tokens: tables are remembered
        for what, got, want in (("cos", cos, angles.cos()), ("sin", sin, angles.sin())):
            agree(got, want * module.magnitude, bound, f"{what} of a module in {dtype}", "float64 values")
