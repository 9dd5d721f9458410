"""Where the tokens are: builders, checks, what follows, joining, memo."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk import ALiBi, Attention, Positions, RoPE, Scale, Spectrum, Tokens, attend, geometric
from ropewalk.core.encoding import Rotary
from ropewalk.core.errors import NeedsColumn, PositionError, RopewalkError, ShapeError


def places(positions):
    return positions.key.position.tolist()


# ---- builders ----------------------------------------------------------------------------------------------------


def test_arange():
    p = Positions.arange(4)
    assert places(p) == [[0, 1, 2, 3]]
    assert p.is_self
    assert p.key.position.dtype == torch.int64
    assert p.key.next.tolist() == [4]


def test_arange_offset_and_batch():
    p = Positions.arange(3, offset=5, batch=2)
    assert places(p) == [[5, 6, 7]] * 2
    assert p.key.next.tolist() == [8, 8]


def test_arange_of_nothing():
    p = Positions.arange(0, offset=2)
    assert p.key.length == 0
    assert p.key.next.tolist() == [2]


@pytest.mark.parametrize("n", [-1, 2.0, True, "3", torch.tensor(3)])
def test_arange_wants_a_whole_number(n):
    with pytest.raises(PositionError, match="number of tokens"):
        Positions.arange(n)


@pytest.mark.parametrize("offset", [-1, 0.5, True])
def test_arange_wants_a_whole_offset(offset):
    with pytest.raises(PositionError, match="offset"):
        Positions.arange(3, offset=offset)


@pytest.mark.parametrize(
    ("valid", "want"),
    [
        ([0, 0, 1, 1, 1], [2, 3, 4]),
        ([1, 1, 1, 0, 0], [0, 1, 2]),
        ([1, 0, 0, 1, 1], [0, 1, 2]),
        ([0, 1, 0, 1, 0], [0, 1]),
        ([1, 1, 1, 1, 1], [0, 1, 2, 3, 4]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8])
def test_padding_shifts_nothing(valid, want, dtype):
    mask = torch.tensor(valid).to(dtype)
    p = Positions.arange(5, valid=mask)
    want = list(range(len(want)))
    assert p.key.position[0][mask.bool()].tolist() == want
    assert p.key.column("valid").dtype == torch.bool
    assert (p.key.position >= 0).all()
    assert p.key.next.tolist() == [len(want)]


def test_padding_by_row():
    valid = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]])
    p = Positions.arange(4, valid=valid, offset=10)
    assert [row[m].tolist() for row, m in zip(p.key.position, valid.bool(), strict=True)] == [
        [10, 11], [10, 11, 12], [10, 11, 12, 13],
    ]  # fmt: skip
    assert p.key.next.tolist() == [12, 13, 14]


def test_documents_start_anew():
    p = Positions.arange(7, document_ids=torch.tensor([4, 4, 4, 9, 9, 1, 1]), offset=2)
    assert places(p) == [[2, 3, 4, 2, 3, 2, 3]]
    assert p.key.column("document").tolist() == [[4, 4, 4, 9, 9, 1, 1]]
    assert p.key.next.tolist() == [4]


def test_documents_and_padding_together():
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    valid = torch.tensor([[0, 1, 1, 1, 0, 1, 0], [1, 1, 1, 0, 1, 1, 1]])
    p = Positions.arange(7, document_ids=documents, valid=valid)
    real = [row[m].tolist() for row, m in zip(p.key.position, valid.bool(), strict=True)]
    assert real == [[0, 1, 0, 1], [0, 1, 2, 0, 1, 2]]
    assert p.key.next.tolist() == [2, 3]


def test_cu_seqlens_say_the_same_as_document_ids():
    a = Positions.arange(6, cu_seqlens=torch.tensor([0, 2, 5, 6], dtype=torch.int32))
    b = Positions.arange(6, document_ids=torch.tensor([0, 0, 1, 1, 1, 2]))
    assert places(a) == places(b)
    assert a.key.column("document").tolist() == b.key.column("document").tolist()
    c = Positions(torch.arange(6), cu_seqlens=[0, 2, 5, 6])
    assert c.key.column("document").tolist() == b.key.column("document").tolist()


def test_cu_seqlens_with_an_empty_document():
    p = Positions.arange(4, cu_seqlens=torch.tensor([0, 2, 2, 4]))
    assert places(p) == [[0, 1, 0, 1]]


@pytest.mark.parametrize("cu", [[0, 2], [1, 4], [0, 3, 2, 4], [0.0, 4.0], [4], [[0, 4]]])
def test_wrong_cu_seqlens(cu):
    with pytest.raises(PositionError, match="cu_seqlens"):
        Positions.arange(4, cu_seqlens=torch.tensor(cu))


def test_documents_said_twice():
    with pytest.raises(PositionError, match="not both"):
        Positions.arange(4, cu_seqlens=torch.tensor([0, 4]), document_ids=torch.zeros(4, dtype=torch.int64))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(0, 9))
@settings(max_examples=50, deadline=None)
def test_packed_documents_count_as_each_alone(lengths, offset):
    total = sum(lengths)
    cu = torch.tensor([0, *lengths]).cumsum(0)
    packed = Positions.arange(total, cu_seqlens=cu, offset=offset)
    alone = [Positions.arange(n, offset=offset).key.position[0] for n in lengths]
    assert packed.key.position[0].tolist() == torch.cat(alone).tolist()
    document = packed.key.column("document")[0]
    where = torch.arange(total)
    for i, (a, b) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)):
        assert bool((document[(where >= a) & (where < b)] == i).all())
    if total and lengths[-1]:
        assert packed.key.next.tolist() == [offset + lengths[-1]]


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=3))
@settings(max_examples=50, deadline=None)
def test_real_tokens_count_whatever_the_padding(rows):
    valid = torch.tensor(rows)
    p = Positions.arange(6, valid=valid)
    for row, mask in zip(p.key.position, valid, strict=True):
        assert row[mask].tolist() == list(range(int(mask.sum())))


def test_positions_as_they_are():
    assert places(Positions(torch.tensor([3, 1, 1]))) == [[3, 1, 1]]
    assert Positions(torch.zeros(2, 3)).key.position.dtype == torch.float64
    assert Positions(torch.zeros(2, 3, 4, dtype=torch.int64)).key.axes == 4
    assert places(Positions([5, 7])) == [[5, 7]]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.uint8, torch.int64, torch.float32])
def test_every_exact_dtype(dtype):
    p = Positions(torch.arange(100, dtype=dtype))
    assert p.key.position.dtype == (torch.float64 if dtype.is_floating_point else torch.int64)
    assert places(p) == [list(range(100))]


def test_two_sides():
    p = Positions(q=torch.arange(2), k=Positions(torch.arange(5), valid=torch.tensor([1, 1, 1, 1, 0])))
    assert not p.is_self
    assert (p.query.length, p.key.length) == (2, 5)
    assert "valid" in p.key.columns
    assert p.index().tolist() == [[3, 4]]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"q": torch.arange(2)},
        {"k": torch.arange(2)},
        {"position": torch.arange(2), "q": torch.arange(2), "k": torch.arange(2)},
    ],
)
def test_one_tensor_or_both_sides(wrong):
    with pytest.raises(PositionError, match="either one tensor"):
        Positions(**wrong)


@pytest.mark.parametrize(
    "facts",
    [
        {"valid": torch.tensor([1, 1, 0])},
        {"document_ids": torch.tensor([0, 0, 1])},
        {"cu_seqlens": torch.tensor([0, 2, 3])},
        {"columns": {"segment": torch.zeros(1, 3)}},
        {"next": torch.tensor([7])},
    ],
    ids=lambda f: next(iter(f)),
)
@pytest.mark.parametrize("how", ["two sides", "tokens"])
def test_facts_are_never_dropped_in_silence(facts, how):
    """Facts belong to one side: beside q= and k=, or ready-made Tokens, they are an error, or are heeded."""
    sides = {"q": torch.arange(3), "k": torch.arange(3)} if how == "two sides" else {"position": Tokens.arange(3)}
    try:
        made = Positions(**sides, **facts)
    except RopewalkError:
        return
    name = {"document_ids": "document", "cu_seqlens": "document", "columns": "segment"}.get(next(iter(facts)))
    if "next" in facts:
        assert made.key.next.tolist() == [7]
    else:
        assert (name or next(iter(facts))) in made.key.columns


# ---- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_ids_are_refused(dtype):
    with pytest.raises(PositionError, match="int64"):
        Positions(torch.arange(4).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint16, torch.uint32])
def test_other_dtypes_work_or_are_refused(dtype):
    try:
        made = Positions(torch.arange(3).to(dtype))
    except PositionError:
        return
    assert made.key.position.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("position", [torch.tensor([True, False]), torch.zeros(2, dtype=torch.complex64)])
def test_no_numbers(position):
    with pytest.raises(PositionError, match="integers or real numbers"):
        Positions(position)


def test_float32_holds_integers_to_two_to_24():
    assert places(Positions(torch.tensor([2.0**24]))) == [[2.0**24]]
    with pytest.raises(PositionError, match="int64 or float64"):
        Positions(torch.tensor([2.0**24 + 2]))
    with pytest.raises(PositionError, match="16777218"):
        Positions(torch.tensor([-(2.0**24) - 2]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_integers_to_two_to_53(dtype):
    top = 2**53
    p = Positions(torch.tensor([top - 1, top, -top], dtype=dtype))
    assert [int(x) for x in p.key.coordinates()[0].tolist()] == [top - 1, top, -top]
    with pytest.raises(PositionError, match="exactly"):
        Positions(torch.tensor([top + 1 if dtype == torch.int64 else top + 2], dtype=dtype))


def test_the_smallest_integer_is_no_exception():
    with pytest.raises(PositionError):
        Positions(torch.tensor([-(2**63)]))


def test_lists_of_numbers_are_read_in_float64():
    """A list has no dtype that could be blamed: nothing may be rounded on the way in."""
    assert Positions([0.1, 0.2]).key.position.tolist() == [[0.1, 0.2]]
    assert Positions([16777217.0]).key.position.tolist() == [[16777217.0]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity(bad):
    with pytest.raises(PositionError, match="NaN or infinite"):
        Positions(torch.tensor([0.0, bad]))
    with pytest.raises(PositionError, match="NaN or infinite"):
        Positions(q=torch.arange(1), k=torch.tensor([[0.0, bad]]))


@pytest.mark.parametrize("shape", [(), (1, 2, 3, 4)])
def test_shapes(shape):
    with pytest.raises(PositionError, match="allowed are"):
        Positions(torch.zeros(shape, dtype=torch.int64))


@pytest.mark.parametrize("name", ["valid", "document_ids"])
@pytest.mark.parametrize("value", [torch.ones(4).long(), torch.ones(2, 3, 1).long(), torch.ones(3)], ids=str)
def test_facts_of_the_wrong_shape(name, value):
    with pytest.raises(PositionError, match="document_ids" if name == "document_ids" else "valid"):
        Positions(torch.arange(3), **{name: value})
    with pytest.raises(PositionError, match="document_ids" if name == "document_ids" else "valid"):
        Positions.arange(3, **{name: value})


@pytest.mark.parametrize("name", ["valid", "document_ids"])
def test_facts_about_another_number_of_rows(name):
    with pytest.raises(RopewalkError):
        Positions(torch.zeros(3, 4, dtype=torch.int64), **{name: torch.ones(2, 4, dtype=torch.int64)})


@pytest.mark.parametrize("shape", [(3,), (1, 4), (4, 2)])
def test_columns_of_the_wrong_shape(shape):
    with pytest.raises(PositionError, match="camera"):
        Positions(torch.arange(3), columns={"camera": torch.zeros(shape)})


@pytest.mark.parametrize("order", [torch.zeros(3), torch.zeros(2).long(), torch.zeros(1, 1, 3).long()])
def test_order_of_the_wrong_shape(order):
    with pytest.raises(PositionError, match="order"):
        Positions(torch.arange(3), order=order)


def test_a_missing_column_is_named():
    with pytest.raises(NeedsColumn, match="camera") as error:
        Positions.arange(3).key.column("camera")
    assert "columns=" in str(error.value)


# ---- what follows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "facts", "want"),
    [
        ([0, 1, 2], {}, [3]),
        ([0, 5, 9], {}, [10]),
        ([[0, 1], [4, 7]], {}, [2, 8]),
        ([0, 1, 0, 1], {"document_ids": [0, 0, 1, 1]}, [2]),
        ([0, 1, 2, 0], {"valid": [1, 1, 1, 0]}, [3]),
        ([0, 0, 0, 1], {"valid": [0, 0, 1, 1]}, [2]),
        ([[0, 1, 0], [0, 1, 2]], {"valid": [[1, 1, 0], [1, 1, 1]]}, [2, 3]),
        ([0, 1, 2], {"valid": [[1, 1, 0], [1, 1, 1]]}, [2, 3]),
        ([3, 3], {"next": [9]}, [9]),
        ([[[0, 0], [0, 1]]], {"next": [2]}, [2]),
        ([0.5, 1.5], {"next": [2.5]}, [2.5]),
    ],
)
def test_next(position, facts, want):
    facts = {name: torch.tensor(value) for name, value in facts.items()}
    assert Positions(torch.tensor(position), **facts).key.next.tolist() == want


@pytest.mark.parametrize(
    ("position", "facts", "why"),
    [
        ([0, 1, 1], {}, "guess"),
        ([2, 1, 0], {}, "guess"),
        ([0, 1, 1, 2], {}, "guess"),
        ([[0, 1, 2], [0, 1, 1]], {}, "guess"),
        ([0.0, 0.5], {}, "real-valued"),
        ([[[0, 0], [0, 1]]], {}, "2-axis"),
        ([], {}, "zero tokens"),
        ([0, 1], {"valid": [0, 0]}, "guess"),
        ([[0, 1], [0, 1]], {"valid": [[1, 1], [0, 0]]}, "guess"),
        ([5, 0, 3], {"valid": [1, 0, 1]}, "guess"),
        ([5, 0, 5], {"valid": [1, 0, 1]}, "guess"),
        ([4, 0, 0, 2, 3], {"valid": [1, 0, 0, 1, 1]}, "guess"),
    ],
)
def test_next_would_be_a_guess(position, facts, why):
    facts = {name: torch.tensor(value) for name, value in facts.items()}
    dtype = torch.int64 if not position else None
    with pytest.raises(PositionError, match=why) as error:
        _ = Positions(torch.tensor(position, dtype=dtype), **facts).key.next
    assert "next=" in str(error.value)


def test_continuing():
    t = Positions.arange(3, batch=2).key.continuing(2)
    assert t.position.tolist() == [[3, 4], [3, 4]]
    assert t.next.tolist() == [5, 5]
    padded = Positions.arange(3, valid=torch.tensor([[1, 1, 0], [0, 1, 1], [1, 1, 1]])).key.continuing(1)
    assert padded.position.tolist() == [[2], [2], [3]]
    assert "valid" not in padded.columns or bool(padded.column("valid").all())


def test_continuing_stays_in_the_last_real_document():
    documents = torch.tensor([7, 7, 8, 8, 9])
    t = Positions.arange(5, document_ids=documents, valid=torch.tensor([1, 1, 1, 1, 0])).key
    following = t.continuing(2)
    assert following.position.tolist() == [[2, 3]]
    assert following.column("document").tolist() == [[8, 8]]


def test_continuing_on_several_axes():
    given = torch.tensor([[[0, 0, 0], [1, 0, 1]], [[0, 0, 0], [1, 5, 1]]])
    t = Positions(given, next=torch.tensor([2, 6])).key.continuing(2)
    assert t.position.tolist() == [[[2] * 3, [3] * 3], [[6] * 3, [7] * 3]]
    assert t.next.tolist() == [4, 8]
    assert t.continuing(1).position[:, 0, 0].tolist() == [4, 8]


def test_continuing_real_positions_keeps_them_real():
    t = Positions(torch.tensor([0.25]), next=torch.tensor([1.25], dtype=torch.float64)).key.continuing(2)
    assert t.position.tolist() == [[1.25, 2.25]]


# ---- joining and taking ------------------------------------------------------------------------------------------


def test_cat():
    a = Positions.arange(2, batch=2).key
    joined = a.cat(a.continuing(2))
    assert joined.position.tolist() == [[0, 1, 2, 3]] * 2
    assert joined.next.tolist() == [4, 4]
    assert a.length == 2


def test_cat_of_one_row_and_several():
    a = Positions.arange(2).key
    b = Positions(torch.tensor([[2], [7]])).key
    assert a.cat(b).position.tolist() == [[0, 1, 2], [0, 1, 7]]
    assert b.cat(a).position.tolist() == [[2, 0, 1], [7, 0, 1]]


def test_cat_valid_missing_means_real():
    a = Positions.arange(2, valid=torch.tensor([[0, 1], [1, 1]])).key
    b = a.continuing(1)
    assert a.cat(b).column("valid").tolist() == [[False, True, True], [True, True, True]]
    assert b.cat(a).column("valid").tolist() == [[True, False, True], [True, True, True]]
    axes = Positions(torch.zeros(1, 2, 3), valid=torch.tensor([0, 1])).key
    assert axes.cat(Positions(torch.zeros(1, 1, 3)).key).column("valid").tolist() == [[False, True, True]]


def test_cat_integers_and_reals():
    joined = Positions(torch.tensor([1, 2])).key.cat(Positions(torch.tensor([2.5])).key)
    assert joined.position.tolist() == [[1.0, 2.0, 2.5]]
    assert joined.position.dtype == torch.float64


def test_cat_refuses_what_does_not_fit():
    plain, axes = Positions.arange(2).key, Positions(torch.zeros(1, 2, 3)).key
    with pytest.raises(PositionError, match="axes"):
        plain.cat(axes)
    with pytest.raises(PositionError, match="axes"):
        axes.cat(Positions(torch.zeros(1, 2, 2)).key)
    with pytest.raises(PositionError, match="document_ids"):
        plain.cat(Positions.arange(2, document_ids=torch.zeros(2).long()).key)
    with pytest.raises(ShapeError, match="joined"):
        Positions.arange(2, batch=2).key.cat(Positions.arange(2, batch=3).key)


def test_cat_drops_a_column_known_of_some_tokens_only():
    a = Positions(torch.arange(2), columns={"segment": torch.zeros(1, 2)}).key
    joined = a.cat(a.continuing(1))
    with pytest.raises(NeedsColumn, match="segment"):
        joined.column("segment")
    both = a.cat(Positions(torch.arange(1), columns={"segment": torch.ones(1, 1)}).key)
    assert both.column("segment").tolist() == [[0.0, 0.0, 1.0]]


def test_slice_and_what_follows_it():
    t = Positions(torch.tensor([0, 1, 1, 2]), next=torch.tensor([9]), valid=torch.ones(4).long()).key
    assert t.slice(2).next.tolist() == [9]
    assert t.slice(1, 4).next.tolist() == [9]
    assert t.slice(0, 2).next.tolist() == [2]
    assert t.slice(1, 3).position.tolist() == [[1, 1]]
    assert t.slice(0, 2).column("valid").shape == (1, 2)


def test_slices_join_to_the_whole():
    p = Positions.arange(6, document_ids=torch.tensor([0, 0, 0, 1, 1, 1]), valid=torch.tensor([1, 1, 0, 1, 1, 1]))
    joined = p.key.slice(0, 2).cat(p.key.slice(2, 5)).cat(p.key.slice(5))
    assert joined.columns.keys() == p.key.columns.keys()
    assert all(torch.equal(joined.columns[n], c) for n, c in p.key.columns.items())


def test_take_and_select():
    t = Positions(torch.tensor([[0, 1, 2], [5, 6, 7]]), columns={"c": torch.tensor([[3, 4, 5]])}).key
    assert t.take(torch.tensor([2, 0])).position.tolist() == [[2, 0], [7, 5]]
    assert t.take(torch.tensor([2, 0])).column("c").tolist() == [[5, 3]]
    chosen = t.select(torch.tensor([1, 1, 0]))
    assert chosen.position.tolist() == [[5, 6, 7], [5, 6, 7], [0, 1, 2]]
    assert chosen.column("c").tolist() == [[3, 4, 5]]
    assert chosen.next.tolist() == [8, 8, 3]


def test_select_keeps_what_follows():
    p = Positions(torch.zeros(2, 2, 3, dtype=torch.int64), next=torch.tensor([4, 9]))
    assert p.select(torch.tensor([1, 0, 1])).key.next.tolist() == [9, 4, 9]


def test_take_queries_says_which_keys_they_are():
    p = Positions.arange(5).take_queries(torch.tensor([1, 4]))
    assert p.query.position.tolist() == [[1, 4]]
    assert p.key.length == 5
    assert p.index().tolist() == [[1, 4]]
    assert p.take_queries(torch.tensor([1])).index().tolist() == [[4]]


def test_order_travels():
    p = Positions(q=torch.tensor([[3], [5]]), k=torch.arange(6), order=torch.tensor([[3], [5]]))
    assert p.index().tolist() == [[3], [5]]
    assert p.select(torch.tensor([1])).index().tolist() == [[5]]
    assert p.to("cpu").index().tolist() == [[3], [5]]


def test_causality_goes_by_order_not_by_ids(rand):
    q, k, v = (rand(1, 2, 5, 4, seed=i) for i in range(3))
    plain = attend(Attention(q, k, v), "dense")
    backwards = attend(Attention(q, k, v, Positions(torch.tensor([9, 3, 3, 1, 0]))), "dense")
    assert torch.equal(plain, backwards)
    shuffled = torch.tensor([4, 0, 2, 1, 3])
    p = Positions(q=torch.arange(5)[shuffled], k=torch.arange(5), order=shuffled)
    got = attend(Attention(q[:, :, shuffled], k, v, p), "dense")
    torch.testing.assert_close(got, plain[:, :, shuffled])


def test_sides_of_cross_attention_cannot_be_sliced_at_once():
    with pytest.raises(PositionError, match="self-attention"):
        Positions(q=torch.arange(2), k=torch.arange(5)).slice(0, 1)


def test_taking_parts_leaves_the_whole_alone():
    given = torch.tensor([[0, 1, 2]])
    t = Positions(given, valid=torch.tensor([1, 1, 0])).key
    before = {n: c.clone() for n, c in t.columns.items()}
    t.slice(0, 1), t.take(torch.tensor([0])), t.cat(t), t.continuing(2), t.select(torch.tensor([0]))
    t.with_columns(segment=torch.zeros(1, 3)), t.with_sequence(sample=torch.zeros(1, 9)), t.to("cpu")
    assert t.columns.keys() == before.keys()
    assert all(torch.equal(t.columns[n], c) for n, c in before.items())
    assert t.sequence == {}


def test_facts_of_the_sequence_travel():
    t = Positions.arange(3).key.with_sequence(sample=torch.arange(4)[None])
    for other in (t.slice(0, 1), t.take(torch.tensor([1])), t.continuing(1), t.cat(t.continuing(1)), t.to("cpu")):
        assert other.sequence["sample"].tolist() == [[0, 1, 2, 3]]


def test_devices():
    p = Positions(torch.arange(3), valid=torch.tensor([1, 1, 0]), next=torch.tensor([2])).to("meta")
    assert p.device.type == "meta"
    assert p.is_self
    assert all(c.is_meta for c in p.key.columns.values())


# ---- plain objects -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thing", [Positions.arange(2), Tokens.arange(2)], ids=["Positions", "Tokens"])
def test_no_dataclass_and_no_dict(thing):
    """Sharding wrappers walk dataclasses and dicts and cast what they find."""
    assert not dataclasses.is_dataclass(thing)
    assert not isinstance(thing, dict | list | tuple)
    assert not hasattr(thing, "__dict__")


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_copies(duplicate):
    p = Positions(
        torch.tensor([[0.5, 1.5]]), valid=torch.tensor([1, 0]), next=torch.tensor([3]), order=torch.tensor([0, 1])
    )
    p.key.coordinates()
    other = duplicate(p)
    assert other.is_self
    assert places(other) == places(p)
    assert other.key.next.tolist() == [3]
    assert other.index().tolist() == [[0, 1]]
    assert other.key.coordinates().tolist() == [[0.5, 1.5]]


def test_tables_are_not_sent_along(rand):
    """Positions that were used are as small to send as new ones, and can be sent whatever was memoised."""
    p = Positions.arange(64)
    fresh = len(pickle.dumps(p))
    q = rand(1, 1, 64, 8)
    RoPE(8)(Attention(q, q, q, p))
    p.memo(lambda: "blocks", lambda: lambda b, h, i, j: j <= i)  # what flex keeps there holds functions
    assert len(pickle.dumps(p)) <= 2 * fresh
    assert places(copy.deepcopy(p)) == places(p)


def test_repr_is_short():
    assert repr(Positions.arange(3)) == "Positions(Tokens(position=(1, 3)))"
    assert "q=Tokens" in repr(Positions(q=torch.arange(2), k=torch.arange(3)))


# ---- memo --------------------------------------------------------------------------------------------------------


class Counting(Rotary):
    """Counts how often its angles are computed."""

    calls = 0

    def __init__(self, rate=0.5):
        super().__init__()
        self.rate = rate

    def angles(self, position):
        type(self).calls += 1
        return position[..., None] * self.rate * torch.ones(2, dtype=torch.float64)


@pytest.fixture
def counting():
    Counting.calls = 0
    return Counting


def rotated(encoding, positions, rand, dtype=torch.float64):
    q = rand(1, 2, positions.key.length, 4, dtype=dtype)
    return encoding(Attention(q, q, q, positions))


def test_one_table_for_queries_keys_and_layers(counting, rand):
    positions = Positions.arange(5)
    for layer in (counting(), counting(), counting()):
        rotated(layer, positions, rand)
    assert counting.calls == 1


def test_other_numbers_have_other_tables(counting, rand):
    positions = Positions.arange(5)
    a = rotated(counting(0.5), positions, rand)
    b = rotated(counting(0.25), positions, rand)
    assert counting.calls == 2
    assert not torch.equal(a.q, b.q)
    rotated(counting(0.5), Positions.arange(5), rand)
    assert counting.calls == 3


def test_the_dtype_is_part_of_the_key(counting, rand):
    positions = Positions.arange(5)
    rotated(counting(), positions, rand, torch.bfloat16)
    exact = rotated(counting(), positions, rand)
    assert counting.calls == 2
    assert torch.equal(exact.q, rotated(counting(), Positions.arange(5), rand).q)


def test_the_chain_is_part_of_the_key(counting, rand):
    from ropewalk import Sequential

    positions = Positions.arange(5)
    plain = rotated(counting(), positions, rand)
    scaled = rotated(Sequential(Scale(2.0), counting()), positions, rand)
    again = rotated(Sequential(Scale(2), counting()), positions, rand)
    assert counting.calls == 2
    assert not torch.equal(plain.q, scaled.q)
    assert torch.equal(scaled.q, again.q)


def test_private_hyper_parameters_count_too():
    """A user's encoding may keep its numbers under any name."""
    from ropewalk import Coordinates

    class Slower(Coordinates):
        def __init__(self, factor):
            super().__init__()
            self._factor = factor

        def map(self, position):
            return position / self._factor

    tokens = Positions.arange(3).key
    assert tokens.coordinates(Slower(2.0).chained(())).tolist() == [[0.0, 0.5, 1.0]]
    assert tokens.coordinates(Slower(4.0).chained(())).tolist() == [[0.0, 0.25, 0.5]]


def test_changed_hyper_parameters_make_other_tables(counting, rand):
    positions, encoding = Positions.arange(5), counting(0.5)
    before = rotated(encoding, positions, rand)
    encoding.rate = 0.25
    after = rotated(encoding, positions, rand)
    assert not torch.equal(before.q, after.q)
    assert torch.equal(after.q, rotated(counting(0.25), Positions.arange(5), rand).q)


def test_two_ropes_share_and_others_do_not(rand):
    positions = Positions.arange(5)
    tables = [RoPE(4).tables(positions.key, (), torch.float32) for _ in range(2)]
    assert tables[0][0] is tables[1][0]
    other = RoPE(4, base=500.0).tables(positions.key, (), torch.float32)
    assert other[0] is not tables[0][0]
    assert RoPE(4, base=10_000).tables(positions.key, (), torch.float32)[0] is tables[0][0]


def test_equal_spectra_share():
    positions = Positions.arange(5)
    first, second = (RoPE(spectrum=geometric(4)).tables(positions.key, (), torch.float32) for _ in range(2))
    other = RoPE(spectrum=Spectrum((1.0, 0.5))).tables(positions.key, (), torch.float32)
    assert first[0] is second[0]
    assert other[0] is not first[0]


def test_nothing_learned_is_memoised(rand):
    class Learned(Rotary):
        def __init__(self):
            super().__init__()
            self.freq = torch.nn.Parameter(torch.tensor([1.0, 0.5]))

        def angles(self, position):
            return position[..., None] * self.freq.double()

    positions, encoding, w = Positions.arange(5), Learned(), rand(1, 2, 5, 4, seed=7)
    with torch.no_grad():
        rotated(encoding, positions, rand)  # evaluated first, without gradients
    grads = []
    for _ in range(2):  # a table kept from the first pass would break the second backward
        (grad,) = torch.autograd.grad((rotated(encoding, positions, rand).q * w).sum(), encoding.freq)
        grads.append(grad)
    assert grads[0].abs().min() > 0
    assert torch.equal(*grads)
    with torch.no_grad():
        encoding.freq.mul_(2)
    assert not torch.equal(
        torch.autograd.grad((rotated(encoding, positions, rand).q * w).sum(), encoding.freq)[0], grads[0]
    )


def test_a_learned_map_of_coordinates_is_not_memoised():
    from ropewalk import Coordinates

    class Stretch(Coordinates):
        def __init__(self):
            super().__init__()
            self.factor = torch.nn.Parameter(torch.tensor(2.0))

        def map(self, position):
            return position * self.factor.double()

    module, tokens = Stretch(), Positions.arange(3).key
    chain = (*module.chained(()), *Scale(2.0).chained(()))
    for _ in range(2):
        (grad,) = torch.autograd.grad(tokens.coordinates(chain).sum(), module.factor)
        assert grad.item() == 1.5


@pytest.mark.parametrize("where", ["positions too", "positions before"])
@pytest.mark.parametrize("real", [True, False])
def test_tables_of_inference_mode_serve_training(rand, where, real):
    """transformers and others: 'Inference tensors cannot be saved for backward'."""

    def make():
        return (
            Positions(torch.arange(5).double() / 2)
            if real
            else Positions.arange(5, valid=torch.tensor([1, 1, 1, 1, 0]))
        )

    positions = make() if where == "positions before" else None
    rope, alibi = RoPE(4), ALiBi(2)
    q = rand(1, 2, 5, 4)
    with torch.inference_mode():
        positions = make() if positions is None else positions
        attend(alibi(rope(Attention(q, q, q, positions))))
    q.requires_grad_()
    out = attend(alibi(rope(Attention(q, q, q, positions))))
    out.sum().backward()
    assert torch.isfinite(q.grad).all()


def test_tables_die_with_the_positions(rand):
    import weakref

    positions = Positions.arange(5)
    RoPE(4)(Attention(*(rand(1, 1, 5, 4),) * 3, positions))
    table = weakref.ref(RoPE(4).tables(positions.key, (), torch.float64)[0])
    assert table() is not None
    del positions
    gc.collect()
    assert table() is None


def test_memo_of_pairs():
    p, calls = Positions.arange(3), []
    for _ in range(2):
        p.memo(lambda: "mask", lambda: calls.append(1) or 5)
    assert len(calls) == 1
    assert p.slice(0, 2).memo(lambda: "mask", lambda: 6) == 6


def test_coordinates_are_float64_and_computed_once():
    t = Positions.arange(3).key
    assert t.coordinates().dtype == torch.float64
    assert t.coordinates() is t.coordinates()
    chain = Scale(4.0).chained(())
    assert t.coordinates(chain).tolist() == [[0.0, 0.25, 0.5]]
    assert t.coordinates(chain) is t.coordinates(Scale(4.0).chained(()))


def test_equal_maps_are_equal():
    assert Scale(2.0).chained(()) == Scale(2.0).chained(())
    assert Scale(2.0).chained(()) != Scale(4.0).chained(())


def test_documents_of_one_side_only():
    with_ids = Positions(torch.arange(4), document_ids=torch.tensor([0, 0, 1, 1]))
    for sides in ({"q": with_ids, "k": torch.arange(3)}, {"q": torch.arange(3), "k": with_ids}):
        with pytest.raises(PositionError, match="to both sides"):
            Positions(**sides)


# ---- keys that are a stretch of a sequence ---------------------------------------------------------------------------


def placed(start, stop):
    return Tokens.arange(stop - start, offset=start).with_columns(order=torch.arange(start, stop)[None])


def test_keys_are_counted_from_zero_or_say_where_they_lie():
    assert Positions.arange(3).key_index().tolist() == [[0, 1, 2]]
    there = Positions(placed(4, 7))
    assert there.key_index().tolist() == there.index().tolist() == [[4, 5, 6]]
    last = Positions.pair(Tokens.arange(2, offset=5), placed(4, 7))
    assert last.index().tolist() == [[5, 6]]  # the queries are the last keys, unless an order says which
    assert Positions.pair(Tokens.arange(2), placed(4, 7), torch.tensor([[1, 6]])).index().tolist() == [[1, 6]]


@pytest.mark.parametrize("backend", ["dense", "sdpa"])
def test_causality_and_windows_go_by_where_keys_lie(backend):
    """Queries 2 and 5 of a sequence and its keys 3 ... 6, with a window of 2 to both sides."""
    where = Positions.pair(Tokens.arange(2), placed(3, 7), torch.tensor([[2, 5]]))
    q, k, v = torch.zeros(1, 1, 2, 8), torch.zeros(1, 1, 4, 8), torch.eye(4, 8)[None, None]
    for fields, seen in (
        ({}, [[0, 0, 0, 0], [1, 1, 1, 0]]),
        ({"causal": False}, [[1, 1, 1, 1], [1, 1, 1, 1]]),
        ({"causal": False, "window": 2}, [[1, 0, 0, 0], [0, 1, 1, 1]]),
        ({"window": 2}, [[0, 0, 0, 0], [0, 1, 1, 0]]),
    ):
        out = attend(Attention(q, k, v, where, **fields), backend)[0, 0, :, :4]
        assert (out > 0).int().tolist() == seen
