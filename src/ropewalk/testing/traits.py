"""Claims: each trait is measured, and so is that what is not claimed does not hold anyway."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ropewalk.backends import BACKENDS, attend, dense
from ropewalk.backends.request import Request
from ropewalk.catalog import Traits
from ropewalk.core.attention import Attention, Feature, Pointwise, Row, leaves
from ropewalk.core.errors import PositionError, Refusal, RopewalkError
from ropewalk.core.positions import Positions
from ropewalk.testing.compare import DIFFERENT, SAME, SHIFTED, Excluded, agree, attempt, error_of, finite, require, said
from ropewalk.testing.subjects import HEAD_DIM, LONG, MEDIUM, Subject
from ropewalk.testing.tokens import shifted


def _traits(s: Subject) -> Traits:
    if s.traits is None:
        raise Excluded("nothing is claimed")
    return s.traits


def _hold(trait: str, claimed: bool, errors: Mapping[str, float], tolerance: float, what: str) -> None:
    """Fail a claim that does not hold, and a property that holds in every case and is not claimed."""
    case, worst = max(errors.items(), key=lambda item: item[1])
    if claimed:
        expected = f"{what} to within {tolerance:.0e}"
        require(worst <= tolerance, f"traits.{trait}; {case}", expected, f"a difference of {worst:.3g}")
    else:
        found = f"at most {worst:.3g} in {len(errors)}"
        require(worst > tolerance, f"traits.{trait}", f"a case where not: {what}", found)


def check_relative(s: Subject) -> None:
    """All positions moved alike change nothing. Finds: a model that is wrongly trusted to shift its context."""
    traits = _traits(s)
    layer = s.layer()
    errors = {}
    for by in (1, 17, 1000.5):
        if (by != int(by) and not traits.real_positions) or by + LONG + 9 > s.limit:
            continue
        for causal in s.causals:
            for salt in range(2):
                x, positions = s.x(LONG, salt=salt), s.positions(layer.encoding, LONG, salt=salt)
                there = layer(x, shifted(positions, by), causal)
                errors[f"moved by {by}, {causal=}, {salt=}"] = error_of(there, layer(x, positions, causal))
    claim = f"relative is {traits.relative}"
    _hold(claim, traits.relative, errors, SHIFTED, "the same outputs at moved positions")


def check_norm_preserving(s: Subject) -> None:
    """Norms of q and k, their width, and v stay. Finds: logits that grow or shrink under a normalised model."""
    traits = _traits(s)
    encoding = s.encoding()
    errors = {}
    for causal in s.causals:
        p = s.problem(encoding, LONG, causal)
        encoded = leaves(encoding(p))
        if len(encoded) > 1:  # several softmaxes are not the problem that came in
            errors[f"{causal=}"] = math.inf
            continue
        (e,) = encoded
        for name, old, new in (("q", p.q, e.q), ("k", p.k, e.k)):
            same = old.shape == new.shape
            errors[f"{name}, {causal=}"] = error_of(new.norm(dim=-1), old.norm(dim=-1)) if same else math.inf
        errors[f"v, {causal=}"] = error_of(e.v, p.v)
    claim = f"norm_preserving is {traits.norm_preserving}"
    _hold(claim, traits.norm_preserving, errors, SAME, "the norms that came in, and v")


# ---- content ---------------------------------------------------------------------------------------------------------


def check_content_dependent(s: Subject) -> None:
    """What is done to a token depends on content. Finds: cached tables that would be wrong for the next input.

    Measured: other tokens and x change nothing of q' and k' of a token; its q' and k' at two positions are related by
    one linear map for all contents (so that a feature map of q and k does not count); and the bias of a pair is the
    same for all contents.
    """
    traits = _traits(s)
    encoding = s.encoding()
    errors: dict[str, float] = {}
    rows, length = 120, 5  # rows are contents at the same positions, enough to fit a map of 16 channels and test it
    for causal in s.causals:
        positions = s.positions(encoding, length, batch=1)
        here = s.problem(encoding, length, causal, positions=positions, batch=rows)
        home = here.replace(positions=Positions(positions.key.take(torch.zeros(length, dtype=torch.long))))
        encoded, among_others = (leaves(encoding(p)) for p in (here, _other_tokens(here)))
        try:
            at_home = leaves(encoding(home))
        except PositionError:  # what counts tokens refuses to have them all at one place
            at_home = encoded
        for e, h, o in zip(encoded, at_home, among_others, strict=True):
            if e.product is not None:
                raise Excluded("a product of its own: what depends on content in it cannot be told apart")
            for name, now, then, other in (("q", e.q, h.q, o.q), ("k", e.k, h.k, o.k)):
                errors[f"other tokens, {name}, {causal=}"] = error_of(now[:, :, -1], other[:, :, -1])
                errors[f"map of {name}, {causal=}"] = _not_linear(then, now)
            for i, term in enumerate(e.terms):
                errors[f"{type(term).__name__} {i}, {causal=}"] = _varies(e, term)
    claim = f"content_dependent is {traits.content_dependent}"
    _hold(claim, not traits.content_dependent, errors, 1e-7, "the same done to all contents")


def _other_tokens(p: Attention) -> Attention:
    """The same last token, after other ones and with another x."""
    q, k, v = (torch.cat([t.roll(1, 0)[:, :, :-1], t[:, :, -1:]], 2) for t in (p.q, p.k, p.v))
    return p.replace(q=q, k=k, v=v, x=p.hidden.roll(1, 0))


def _not_linear(then: Tensor, now: Tensor) -> float:
    """How far what was done to the rows between two positions is from one linear map a head and token."""
    if torch.equal(then, now):
        return 0.0
    half = then.shape[0] // 2
    a, b = (t.movedim(0, -2) for t in (then, now))  # (h, S, rows, width)
    found = torch.linalg.lstsq(a[..., :half, :], b[..., :half, :], driver="gelsd").solution
    return error_of(a[..., half:, :] @ found, b[..., half:, :])


def _varies(p: Attention, term: object) -> float:
    """How much the bias of a pair differs between contents."""
    if isinstance(term, Row):
        return math.inf  # a function of the logits
    if not isinstance(term, Pointwise):
        return 0.0  # acts on the weights, and not on what was said about the tokens
    if not term.additive:  # a function of the score, but the same one for all contents unless it reads features
        return math.inf if any(isinstance(r, Feature) for r in (*term.q, *term.k)) else 0.0
    bias = dense.pointwise(p, term)
    bias = torch.where(torch.isfinite(bias), bias, 0.0)
    return error_of(bias, bias[:1].expand_as(bias))


# ---- what it can be used for -----------------------------------------------------------------------------------------


def check_linear_attention(s: Subject) -> None:
    """A map of q and k alone. Finds: an encoding put before linear attention that loses half of what it does there."""
    claimed = _traits(s).linear_attention
    case = f"traits.linear_attention is {claimed}"
    encoding, causal = s.encoding(), s.causals[0]
    p = s.problem(encoding, LONG, causal)
    encoded = leaves(encoding(p))
    if any(e.kernel is not None for e in encoded):
        linear = next(b for b in BACKENDS if b.name == "linear")
        reasons = [why for e in encoded if (why := linear.why_not(e, Request())) is not None]
        require(claimed, case, "no linear attention", "a linear kernel")
        require(not reasons, case, "a problem for the linear backend", reasons)
        return
    try:
        q, k = encoding.rotate(p.q, p.k, p.positions)
    except Refusal as why:
        require(not claimed, case, "a map of q and k", why)
        return
    require(claimed, case, "more than a map of q and k", "rotate() works")
    # rotate may widen q and k, and the scale stays that of the original width
    got = attend(Attention(q, k, p.v, p.positions, causal=causal, scale=HEAD_DIM**-0.5), "dense")
    agree(got, attend(encoding(p), "dense"), SAME, "rotate, then plain attention", "the result of the encoding")


def check_max_position(s: Subject) -> None:
    """It is defined up to the largest position, and says so beyond. Finds: nonsense past the trained length."""
    traits = _traits(s)
    if traits.max_position is None:
        raise Excluded("no bound is claimed")
    layer, top = s.layer(), traits.max_position

    def run(causal: bool, first: int) -> Tensor:
        positions = Positions(torch.arange(first, first + MEDIUM))
        return layer(s.x(MEDIUM), s.draw(layer.encoding, positions), causal)

    for causal in s.causals:
        finite(f"positions up to {top}", run(causal, top - MEDIUM + 1))
        beyond = attempt(f"position {top + 1}", run, causal, top - MEDIUM + 2)
        require(isinstance(beyond, PositionError), f"position {top + 1}", "a PositionError", type(beyond).__name__)
        below = attempt("position -1", run, causal, -1)
        allowed = isinstance(below, PositionError) or traits.relative  # then distances are bounded, not positions
        require(allowed, "position -1", "a PositionError", type(below).__name__)


def check_real_positions(s: Subject) -> None:
    """Real positions are taken as they are, or refused. Finds: interpolated positions that are silently truncated."""
    claimed = _traits(s).real_positions
    case = f"traits.real_positions is {claimed}"
    if not s.sequence:
        raise Excluded("positions of this domain are its own")
    layer = s.layer()

    def run(position: Tensor) -> Tensor:
        return layer(s.x(MEDIUM), s.draw(layer.encoding, Positions(position)), s.causals[0])

    whole = torch.arange(MEDIUM)
    real = whole + 0.9 * torch.rand(MEDIUM, generator=s.generator("real"), dtype=torch.float64)
    out = attempt("real positions", run, real)
    if isinstance(out, RopewalkError):
        require(not claimed, case, "a result at real positions", said(out))
        return
    require(claimed, case, "an error at real positions", "a result")
    finite("real positions", out)
    if error_of(run(whole), run(whole * 3)) > DIFFERENT:  # positions are read at all
        for how, rounded in (("rounded down", real.floor()), ("rounded", real.round())):
            differs = error_of(out, run(rounded)) > DIFFERENT
            require(differs, f"real positions, {how}", "another result than at whole ones", "the same")


def check_causal(s: Subject) -> None:
    """Problems it is not defined for are refused. Finds: a gate of the past that is used in a bidirectional model."""
    traits = _traits(s)
    if traits.causal == "any":
        raise Excluded("both kinds are allowed")
    encoding = s.encoding()
    case = f"traits.causal is {traits.causal!r}, and the problem is of the other kind"
    result = attempt(case, encoding, s.problem(encoding, MEDIUM, traits.causal == "never"))
    got = said(result) if isinstance(result, RopewalkError) else "a result"
    require(isinstance(result, Refusal), case, "a Refusal", got)
