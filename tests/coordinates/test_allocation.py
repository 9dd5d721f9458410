"""Which pair of channels turns by which axis."""

from __future__ import annotations

import pytest
import torch

import ropewalk as rw
from ropewalk.coordinates.allocation import Allocation, runs, share_out
from ropewalk.core.errors import ConfigError, PositionError
from ropewalk.rotary.mrope import MRoPEIds


@pytest.mark.parametrize(
    ("made", "picture"),
    [
        (Allocation.contiguous((1, 2, 3)), "t h h w w w"),
        (Allocation.interleaved((4, 2, 2)), "t h w t h w t t"),
        (Allocation.time_last((2, 2, 1)), "h w h t t"),
        (Allocation.time_last((2, 2, 1), rotate_time=False, row_first=False), "w h w · ·"),
        (Allocation.cyclic(5, ("a", "b")), "a b a b a"),
        (Allocation.by_head((1, 0, 1), 2, 3), "key head 0: t t\nkey head 1: w w\nkey head 2: · ·"),
        (Allocation.one(3), "p p p"),
        (Allocation.each(3), "p0 p1 p2"),
    ],
)
def test_pictures(made, picture):
    assert str(made) == picture
    assert made.pairs == len(picture.splitlines()[0].split(": ")[-1].split())


def test_an_allocation_is_a_value():
    assert Allocation.contiguous((1, 1, 1)) == Allocation(((0, 1, 2),))
    assert hash(Allocation.contiguous((1, 1, 1))) == hash(Allocation(((0, 1, 2),)))


def test_published_proportions():
    assert share_out(64) == (16, 24, 24)
    assert share_out(64, eighths=(2.5, 2.5)) == (24, 20, 20)
    assert runs(Allocation.contiguous((1, 2, 1)).rows[0], ("t", "h", "w")) == [("t", 0, 1), ("h", 1, 2), ("w", 3, 1)]


def test_ladders_and_bases():
    shared = Allocation.contiguous((1, 2, 1)).frequencies(10.0)[0]
    assert shared.tolist() == pytest.approx([10 ** (-i / 4) for i in range(4)])
    own = Allocation.contiguous((2, 2), ("h", "w"), "own").frequencies(10.0)[0]
    assert own.tolist() == pytest.approx([1, 10**-0.5] * 2)
    bases = Allocation(((0, 0, 1, None),), ("a", "b"), "own", (4.0, 100.0)).frequencies(10.0)[0]
    assert bases.tolist() == pytest.approx([1, 0.5, 1, 0])


def test_a_scheme_with_bases_of_its_own():
    made = rw.MultiAxisRoPE(8, Allocation(((0, 1, 2, 2),), bases=(10.0, 20.0, 30.0)), MRoPEIds())
    where = rw.layout([rw.Text(1), rw.Image(2, 3)])
    c = made.scheme.coordinates(where.query)[0]
    want = torch.stack([c[:, 0], c[:, 1] * 20.0**-0.25, c[:, 2] * 30.0**-0.5, c[:, 2] * 30.0**-0.75], -1)
    torch.testing.assert_close(made.angles(c[None])[0], want)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Allocation(()), "a row of axes"),
        (lambda: Allocation(((0,), (0, 1))), "a row of axes"),
        (lambda: Allocation(((0, 3, 1),)), "counted from 0"),
        (lambda: Allocation(((0, 1),)), r"3 axes \(t, h, w\) and only 2 pairs"),
        (lambda: Allocation(((0,),), ("t",), "other"), "'shared' or 'own'"),
        (lambda: Allocation(((0,),), ("t",), bases=(1e4, 1e4)), "2 bases for 1 axes"),
        (lambda: Allocation(((0,),), ("t",), bases=(float("nan"),)), "base"),
        (lambda: Allocation.contiguous((1, 2)), "each of 3 axes"),
        (lambda: Allocation.contiguous((1, 2, 0)), "at least 1"),
        (lambda: Allocation.contiguous((1, 2.0, 1)), "at least 1"),
        (lambda: Allocation.cyclic(2, ("a", "b", "c")), "3 axes and only 2 pairs"),
        (lambda: Allocation.by_head((1, 1), 4, 4), "each axis"),
        (lambda: share_out(2), "only 2 pairs"),
    ],
)
def test_bad_input(make, match):
    with pytest.raises(ConfigError, match=match):
        make()


def test_positions_and_schemes_of_other_axes():
    with pytest.raises(PositionError, match=r"\(batch, seq, 3\)"):
        Allocation.contiguous((1, 1, 1)).spread(torch.zeros(1, 4, 2))
    with pytest.raises(ConfigError, match="the scheme gives 3 axes"):
        rw.MultiAxisRoPE(8, Allocation.one(4), MRoPEIds())
    with pytest.raises(ConfigError, match="5 pairs need 10 channels; head_dim is 8"):
        rw.MultiAxisRoPE(8, Allocation.one(5), MRoPEIds())
