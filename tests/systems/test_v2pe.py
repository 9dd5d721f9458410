"""V2PE: smaller steps for visual tokens (arXiv 2412.09616), one of the variants that M-RoPE's sheet compares."""

from __future__ import annotations

import math

import pytest
from reference import attend, close, logits, problem

import ropewalk as rw
from ropewalk.core.errors import ConfigError
from ropewalk.rotary.v2pe import StepIds

BLOCKS = [rw.Text(3), rw.Image(2, 4), rw.Text(1), rw.Video(2, 1, 3), rw.Text(2)]


def ids(step, *blocks):
    return StepIds(step).coordinates(rw.layout(list(blocks)).query)[0, :, 0]


def test_steps():
    got = ids(0.25, *BLOCKS)
    wanted, p = [], 0.0
    for block in BLOCKS:
        for _ in range(block.length):
            wanted.append(p)
            p += 1 if isinstance(block, rw.Text) else 0.25
    assert got.tolist() == wanted
    assert StepIds(0.25).cursor(rw.layout(BLOCKS).key).tolist() == [p] == [6 + 14 / 4]


def test_text_and_steps_of_one_are_rope():
    n = sum(block.length for block in BLOCKS)
    p = problem(b=1, s=n, d=16, positions=rw.layout([BLOCKS]))
    plain = attend(rw.RoPE(16, pairing="half"), p.replace(positions=None))
    close(attend(rw.V2PE(16, 1.0), p), plain)
    close(attend(rw.V2PE(16), p.replace(positions=rw.layout([rw.Text(n)]))), plain)


def test_logits_are_ropes_at_these_positions():
    where = rw.layout([BLOCKS])
    p = problem(b=1, s=where.query.length, d=16, positions=where)
    at = rw.Positions(ids(0.5, *BLOCKS)[None])
    close(
        logits(rw.V2PE(16, 0.5, base=50.0)(p)), logits(rw.RoPE(16, base=50.0, pairing="half")(p.replace(positions=at)))
    )


def test_between_one_position_for_each_token_and_one_for_all():
    """The variants: 1-D flattening, fractional steps, a single position."""
    image = [rw.Text(1), rw.Image(4, 5), rw.Text(1)]
    taken = [
        rw.build(name, head_dim=16, **more).scheme.cursor(rw.layout(image).key).item()
        for name, more in (
            ("mousi", {"sharing": "original"}),
            ("v2pe", {"step": 0.25}),
            ("mrope", {}),
            ("mousi", {"sharing": "share_all"}),
        )
    ]
    assert taken == [22, 7, 7, 3]


@pytest.mark.parametrize("bad", [0.0, -0.5, 1.5, math.nan, math.inf])
def test_steps_that_are_none(bad):
    with pytest.raises(ConfigError, match="more than 0 and at most 1"):
        rw.V2PE(16, bad)
