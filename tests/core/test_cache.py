"""The cache: steps, chunks, going back, beams, edits, cross-attention."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ropewalk as rw
from ropewalk import (
    ALiBi,
    Attention,
    Encoding,
    FoX,
    KVCache,
    NoPE,
    PerHead,
    PoPE,
    Positions,
    RoPE,
    Scale,
    Sequential,
    Sinusoidal,
    attend,
)
from ropewalk.core.errors import (
    CacheError,
    CannotCrop,
    CannotEdit,
    ConfigError,
    NeedsHiddenStates,
    PositionError,
    Refusal,
    RopewalkError,
)

RUNNING = Sequential(RoPE(8), FoX(4, 5))


def dense(encoding, p):
    return attend(encoding(p), "dense").detach()


def out_of(problem, backend="dense"):
    return attend(problem, backend).detach()


def state_of(cache):
    """Everything a cache holds, to compare before and after."""
    tensors = [] if cache.tokens is None else list(cache.tokens.columns.values())
    for i in range(len(cache)):
        for s in cache[i].stored:
            tensors += [s.k, s.v, *s.features.values()]
        if isinstance(cache[i].state, torch.Tensor):
            tensors.append(cache[i].state)
    return [t.detach().clone() for t in tensors]


def unchanged(cache, before):
    after = state_of(cache)
    return len(after) == len(before) and all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


# ---- steps -------------------------------------------------------------------------------------------------------


def test_an_empty_cache():
    cache = KVCache(RoPE(8))
    assert (cache.length, len(cache), cache.tokens) == (0, 1, None)
    assert KVCache([RoPE(8)] * 3)[2].encoding is not None
    assert len(KVCache(nn.ModuleList([RoPE(8), ALiBi(4)]))) == 2


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: KVCache([]), ConfigError, "at least one"),
        (lambda: KVCache([RoPE(8), nn.Linear(1, 1)]), ConfigError, "encoding 1"),
        (lambda: KVCache([3]), ConfigError, "encoding 0"),
    ],
)
def test_wrong_caches(make, error, said):
    with pytest.raises(error, match=said):
        make()


def test_the_positions_of_a_step():
    cache = KVCache([RoPE(8), RoPE(8)])
    now = cache.step(3)
    assert now.key.position.tolist() == [[0, 1, 2]]
    assert cache.length == 3


def test_a_model_of_layers(problem, part, agree):
    p, other = problem(), problem(seed=1)
    encodings = [RoPE(8), Sequential(Scale(2.0), RoPE(8), ALiBi(4)), FoX(4, 5)]
    cache, outs, done = KVCache(encodings), [[], [], []], 0
    for n in (4, 1, 2):
        now = cache.step(n)
        assert now.key.position.tolist() == [list(range(done, done + n))]
        for i, q in enumerate((p, other, p)):
            new = part(q, done, done + n)
            outs[i].append(out_of(cache[i].extend(new if i else new.replace(positions=now))))
        done += n
    for i, q in enumerate((p, other, p)):
        agree(torch.cat(outs[i], 2), dense(encodings[i], q))


def test_layers_share_one_table(problem, part):
    calls = []

    class Counting(rw.Rotary):
        def angles(self, position):
            calls.append(position.shape[1])
            return position[..., None] * torch.ones(4, dtype=torch.float64)

    cache, p = KVCache([Counting() for _ in range(3)]), problem()
    for start, stop in ((0, 4), (4, 5)):
        cache.step(stop - start)
        for i in range(3):
            cache[i].extend(part(p, start, stop))
    assert calls == [4, 1]


def test_misuse(problem, part):
    p = problem()
    two = KVCache([RoPE(8), RoPE(8)])
    with pytest.raises(CacheError, match="step"):
        two[0].extend(part(p, 0, 3))
    with pytest.raises(CacheError, match=r"cache\[i\]"):
        two.extend(part(p, 0, 3))
    two.step(3)
    two[0].extend(part(p, 0, 3))
    with pytest.raises(CacheError, match="once"):
        two[0].extend(part(p, 0, 3))
    with pytest.raises(CacheError, match=r"\[1\]"):
        two.step(1)
    for call in (lambda: two.crop(1), lambda: two.select([0]), lambda: two.edit([0])):
        with pytest.raises(CacheError, match="middle of a step"):
            call()
    two[1].extend(part(p, 0, 3))
    two.step(1)
    with pytest.raises(RopewalkError, match="1 tokens"):
        two[0].extend(part(p, 3, 5))


@pytest.mark.parametrize("n", [-1, 1.5, "2", True])
def test_steps_of_no_number(n):
    cache = KVCache(RoPE(8))
    with pytest.raises(RopewalkError):
        cache.step(n)
    cache.step(2)
    assert cache.length == 2


@pytest.mark.parametrize("n", [-1, 1.5, "2", True])
def test_later_steps_of_no_number(n, problem, part):
    cache = KVCache(RoPE(8))
    cache.extend(part(problem(), 0, 2))
    with pytest.raises(RopewalkError):
        cache.step(n)
    assert cache.length == 2


def test_positions_that_differ_from_the_step(problem, part):
    p, cache = problem(), KVCache([RoPE(8)])
    cache.step(3)
    for where in (
        Positions.arange(3, offset=1),
        Positions.arange(4).slice(1),
        Positions(torch.tensor([[0, 1, 2], [0, 1, 3]])),
        Positions(torch.arange(3), valid=torch.tensor([0, 1, 1])),
        Positions(torch.arange(3), document_ids=torch.tensor([0, 0, 1])),
        Positions(q=torch.arange(3) + 1, k=torch.arange(3)),
        Positions(torch.arange(3), order=torch.tensor([2, 1, 0])),
    ):
        with pytest.raises(CacheError, match="step"):
            cache[0].extend(part(p, 0, 3).replace(positions=where))
    same = Positions.arange(3, batch=2)
    assert out_of(cache[0].extend(part(p, 0, 3).replace(positions=same))).shape[2] == 3


def test_positions_of_another_batch_than_the_step(problem, part):
    p, cache = problem(), KVCache([RoPE(8)])
    cache.step(Positions.arange(3, batch=2))
    with pytest.raises(RopewalkError):
        cache[0].extend(part(p, 0, 3).replace(positions=Positions.arange(3, batch=5)))


@pytest.mark.parametrize("cuts", [(1,) * 7, (7,), (2, 5), (0, 3, 0, 4), (6, 1), (1, 2, 3, 1)])
@pytest.mark.parametrize(
    "encoding",
    [RoPE(8), RUNNING, PoPE(8, num_kv_heads=2), rw.STRINGShifted(8, 3, 2), rw.ContextualCoPE(8, 5)],
    ids=lambda e: type(e).__name__,
)
def test_ragged_chunks(cuts, encoding, problem, in_chunks, agree):
    p = problem()
    agree(in_chunks(encoding, p, cuts).detach(), dense(encoding, p))


def test_windows_sinks_and_caps_across_chunks(problem, in_chunks, agree):
    p = problem(window=3, softcap=2.0, sinks=torch.arange(4.0, dtype=torch.float64))
    for cuts in ((1,) * 7, (3, 4)):
        agree(in_chunks(RUNNING, p, cuts).detach(), dense(RUNNING, p))


def test_extend_after_a_step_uses_that_step(problem, part, agree):
    p, cache = problem(), KVCache(RoPE(8))
    cache.step(Positions.arange(3, offset=5))
    out_of(cache.extend(part(p, 0, 3)))
    got = out_of(cache.extend(part(p, 3, 7)))
    agree(got, dense(RoPE(8), p.replace(positions=Positions.arange(7, offset=5)))[:, :, 3:])


def test_a_new_cache_says_where_it_counts():
    cache = KVCache(RoPE(8), device="meta")
    assert cache.step(3).device.type == "meta"
    assert KVCache(RoPE(8).to("meta")).step(2).device.type == "meta"
    assert KVCache(ALiBi(4)).step(2).device.type == "cpu"


def test_the_first_extend_counts_where_q_is():
    q = torch.zeros(1, 1, 2, 8, device="meta")
    cache = KVCache(ALiBi(1))
    cache.extend(Attention(q, q, q))
    assert cache.tokens.device.type == "meta"


# ---- what does not belong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [
        {"b": 1}, {"b": 3}, {"hk": 1}, {"hk": 4}, {"d": 10}, {"dtype": torch.float32},
    ],
    ids=str,
)  # fmt: skip
def test_tensors_of_another_kind(shape, problem, part):
    """What was cached has a batch, heads, a width and a dtype; others are errors of ours, and change nothing."""
    cache = KVCache(NoPE())
    cache.extend(part(problem(), 0, 3))
    before = state_of(cache)
    with pytest.raises(RopewalkError):
        cache.extend(part(problem(**shape), 3, 4))
    assert unchanged(cache, before)
    assert cache.length == 3


def test_values_of_another_width(problem, part):
    p, cache = problem(), KVCache(NoPE())
    cache.extend(part(p, 0, 3))
    with pytest.raises(RopewalkError):
        cache.extend(Attention(p.q[:, :, :1], p.k[:, :, :1], p.v[:, :, :1, :5]))


@pytest.mark.parametrize("encoding", [RoPE(8), RUNNING], ids=["plain", "running"])
def test_a_failed_extend_changes_nothing(encoding, problem, part, agree):
    p, cache = problem(), KVCache(encoding)
    cache.extend(part(p, 0, 3))
    before = state_of(cache)
    for bad in (
        lambda: part(p, 3, 5).replace(positions=Positions.arange(3)),
        lambda: part(
            p,
            3,
            5,
        ).replace(positions=Positions(torch.arange(2), document_ids=torch.zeros(2).long())),
        lambda: part(p, 3, 5).replace(positions=Positions(torch.zeros(1, 2, 3))),
        lambda: problem(d=10),
        lambda: part(problem(b=3), 3, 5).replace(positions=Positions.arange(2, batch=4)),
        lambda: Attention(p.q[:, :, :2], p.k[:, :, :1], p.v[:, :, :1]),
    ):
        with pytest.raises(RopewalkError):
            cache.extend(bad())
        assert unchanged(cache, before)
    if encoding is RUNNING:
        with pytest.raises(NeedsHiddenStates):
            cache.extend(part(p, 3, 5).replace(x=None))
        assert unchanged(cache, before)
    agree(out_of(cache.extend(part(p, 3, 7))), dense(encoding, p)[:, :, 3:])


def test_a_failed_step_changes_nothing(problem, part, agree):
    p, cache = problem(), KVCache([RoPE(8), ALiBi(4)])
    cache.step(3)
    for i in range(2):
        cache[i].extend(part(p, 0, 3))
    before = state_of(cache)
    for bad in (Positions(torch.zeros(1, 2, 3)), Positions.arange(2, document_ids=torch.zeros(2).long())):
        with pytest.raises(PositionError):
            cache.step(bad)
        assert unchanged(cache, before)
    cache.step(4)
    for i, encoding in enumerate((RoPE(8), ALiBi(4))):
        agree(out_of(cache[i].extend(part(p, 3, 7))), dense(encoding, p)[:, :, 3:])


def test_a_layer_that_failed_may_try_again(problem, part, agree):
    p, cache = problem(), KVCache([RUNNING, RUNNING])
    cache.step(7)
    cache[0].extend(part(p, 0, 7))
    with pytest.raises(NeedsHiddenStates):
        cache[1].extend(part(p, 0, 7).replace(x=None))
    agree(out_of(cache[1].extend(part(p, 0, 7))), dense(RUNNING, p))
    cache.step(1)


# ---- masks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 4), (2, 4), None], ids=str)
def test_a_mask_covers_all_cached_keys(shape, problem, agree):
    """In a decoding step a mask says of every key so far whether the new queries may see it."""
    generator = torch.Generator().manual_seed(4)
    mask = torch.rand(*(shape or ()), 7, 7, generator=generator) < 0.7
    p = problem(mask=mask)
    for encoding in (RoPE(8), PerHead([RoPE(8), ALiBi()], [1, 3])):
        want, cache, got = dense(encoding, p), KVCache(encoding), []
        for start, stop in ((0, 3), (3, 4), (4, 7)):
            new = (t[:, :, start:stop] for t in (p.q, p.k, p.v))
            got.append(out_of(cache.extend(Attention(*new, mask=mask[..., start:stop, :stop]))))
        agree(torch.cat(got, 2), want)


def test_a_mask_of_the_new_keys_only_is_refused(problem, part):
    p, cache = problem(), KVCache(RoPE(8))
    cache.extend(part(p, 0, 3))
    before = state_of(cache)
    with pytest.raises(RopewalkError, match="mask"):
        cache.extend(part(p, 3, 5, mask=torch.ones(2, 2, dtype=torch.bool)))
    assert unchanged(cache, before)


# ---- padding, packing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "encoding", [RoPE(8), ALiBi(4), RUNNING, PoPE(8, num_kv_heads=2)], ids=lambda e: type(e).__name__
)
@pytest.mark.parametrize(
    "valid",
    [[[0, 0, 1, 1], [1, 1, 1, 1]], [[1, 1, 0, 0], [1, 1, 1, 1]], [[1, 0, 0, 1], [0, 1, 1, 1]]],
    ids=["left", "right", "middle"],
)
def test_a_padded_batch_decodes_as_each_row_alone(encoding, valid, problem, part, agree):
    p, valid = problem(), torch.tensor(valid).bool()
    cache = KVCache(encoding)
    prompt = part(p, 0, 4).replace(positions=Positions.arange(4, valid=valid))
    outs = [out_of(cache.extend(prompt))]
    for t in range(4, 7):
        outs.append(out_of(cache.extend(part(p, t, t + 1))))
    got = torch.cat(outs, 2)
    for row in range(2):
        kept = torch.cat([torch.nonzero(valid[row])[:, 0], torch.arange(4, 7)])
        alone = Attention(*(t[row : row + 1, :, kept] for t in (p.q, p.k, p.v)), x=p.x[row : row + 1, kept])
        agree(got[row : row + 1, :, kept], dense(encoding, alone))


@pytest.mark.parametrize("encoding", [RoPE(8), RUNNING, ALiBi(4)], ids=lambda e: type(e).__name__)
def test_packed_prefill_then_decode(encoding, problem, part, agree):
    """Decoding goes on in the last document, as if it were alone."""
    p = problem()
    cache = KVCache(encoding)
    prompt = part(p, 0, 5).replace(positions=Positions.arange(5, cu_seqlens=torch.tensor([0, 2, 5])))
    out_of(cache.extend(prompt))
    got = torch.cat([out_of(cache.extend(part(p, t, t + 1))) for t in (5, 6)], 2)
    alone = Attention(p.q[:, :, 2:], p.k[:, :, 2:], p.v[:, :, 2:], x=p.x[:, 2:])
    agree(got, dense(encoding, alone)[:, :, 3:])


def test_documents_are_never_dropped(problem, part):
    p, cache = problem(), KVCache(RoPE(8))
    cache.extend(part(p, 0, 4).replace(positions=Positions.arange(4, cu_seqlens=torch.tensor([0, 2, 4]))))
    with pytest.raises(PositionError, match="document_ids"):
        cache.extend(part(p, 4, 5).replace(positions=Positions(torch.tensor([2]))))


# ---- positions of one's own --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "encoding", [RoPE(8), ALiBi(4), Sequential(Scale(2.0), RoPE(8))], ids=lambda e: type(e).__name__
)
def test_positions_with_gaps_and_repeats(encoding, problem, in_chunks, agree):
    """Cursor decoding: ids jump, repeat and run backwards; causality goes by order."""
    p = problem(positions=Positions(torch.tensor([[0, 5, 5, 2, 90, 91, 3], [7, 6, 5, 4, 3, 2, 1]])))
    for cuts in ((1,) * 7, (3, 4), (6, 1)):
        agree(in_chunks(encoding, p, cuts), dense(encoding, p))


def test_real_positions(problem, in_chunks, agree):
    p = problem(positions=Positions(torch.linspace(0, 3.3, 7, dtype=torch.float64)))
    agree(in_chunks(RoPE(8), p, (3, 1, 3)), dense(RoPE(8), p))


def test_counting_on_would_be_a_guess(problem, part):
    p, cache = problem(), KVCache(RoPE(8))
    cache.extend(part(p, 0, 3).replace(positions=Positions(torch.tensor([4, 4, 4]))))
    before = state_of(cache)
    with pytest.raises(PositionError, match="guess"):
        cache.extend(part(p, 3, 4))
    assert unchanged(cache, before)
    cache.extend(part(p, 3, 4).replace(positions=Positions(torch.tensor([9]))))
    cache.extend(part(p, 4, 5).replace(positions=Positions(torch.tensor([10]), next=torch.tensor([50]))))
    assert cache.step(1).key.position.tolist() == [[50]]


class TwoAxes(rw.Rotary):
    """Half of the pairs turn by one axis, half by the other."""

    axes = 2

    def angles(self, position):
        return position.repeat_interleave(2, -1) * torch.tensor([1.0, 0.1, 1.0, 0.1], dtype=torch.float64)


def test_several_axes_go_on_from_next(problem, part, agree):
    """M-RoPE: an image of 2 x 2 patches, then text that goes on after the largest id of the row."""
    p = problem()
    image = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    first = torch.stack([image, image + torch.tensor([0, 3])])  # rows of different offset
    cache = KVCache(TwoAxes())
    prompt = Positions(first, next=torch.tensor([2, 5]))
    outs = [out_of(cache.extend(part(p, 0, 4).replace(positions=prompt)))]
    outs += [out_of(cache.extend(part(p, t, t + 1))) for t in (4, 5, 6)]
    text = torch.arange(3)[None, :, None] + torch.tensor([2, 5])[:, None, None]
    whole = Positions(torch.cat([first, text.expand(2, 3, 2)], 1))
    agree(torch.cat(outs, 2), dense(TwoAxes(), p.replace(positions=whole)))
    bare = KVCache(TwoAxes())
    bare.extend(part(p, 0, 4).replace(positions=Positions(first)))
    with pytest.raises(PositionError, match="2-axis"):
        bare.extend(part(p, 4, 5))


def test_embeddings_decode_at_the_right_place(rand, agree):
    encoding, x = Sequential(Scale(2.0), Sinusoidal(6)), rand(2, 7, 6)
    cache, got = KVCache(encoding), []
    for start, stop in ((0, 4), (4, 5), (5, 7)):
        now = cache.step(stop - start)
        got.append(encoding.embed(x[:, start:stop], now))
        h = got[-1][:, None]
        cache.extend(Attention(h, h, h))
    agree(torch.cat(got, 1), encoding.embed(x))


# ---- cross-attention ---------------------------------------------------------------------------------------------


def test_cross_attention(rand, agree):
    """Keys once; later steps bring queries only."""
    q, k, v = rand(2, 4, 5, 8), rand(2, 2, 6, 8, seed=1), rand(2, 2, 6, 8, seed=2)
    for encoding in (
        RoPE(8),
        Sequential(Scale(2.0), RoPE(8), ALiBi(4, bidirectional=True)),
        PerHead([RoPE(8), NoPE()], [1, 3]),
    ):
        where = Positions(q=torch.arange(5), k=torch.arange(6) * 2)
        want = dense(encoding, Attention(q, k, v, where, causal=False))
        cache = KVCache(encoding)
        got = [
            out_of(
                cache.extend(
                    Attention(q[:, :, :2], k, v, Positions(q=torch.arange(2), k=torch.arange(6) * 2), causal=False)
                )
            )
        ]
        for t in range(2, 5):
            none = Positions(q=torch.tensor([t]), k=torch.zeros(0, dtype=torch.int64))
            new = Attention(q[:, :, t : t + 1], k[:, :, :0], v[:, :, :0], none, causal=False)
            got.append(out_of(cache.extend(new)))
        agree(torch.cat(got, 2), want)
        assert cache.length == 6


def test_cross_attention_in_layers(rand, agree):
    q, k, v = rand(2, 4, 3, 8), rand(2, 2, 6, 8, seed=1), rand(2, 2, 6, 8, seed=2)
    cache = KVCache([RoPE(8), RoPE(8)])
    valid = torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6])
    keys = Positions(torch.arange(6), valid=valid)
    want = dense(RoPE(8), Attention(q, k, v, Positions(q=torch.arange(3), k=keys), causal=False))
    got = []
    for t in range(3):
        n = 6 if t == 0 else 0
        cache.step(Positions(q=torch.tensor([t]), k=keys if n else keys.slice(0, 0)))
        for i in range(2):
            out = out_of(cache[i].extend(Attention(q[:, :, t : t + 1], k[:, :, :n], v[:, :, :n], causal=False)))
        got.append(out)
    agree(torch.cat(got, 2), want)


def test_a_step_without_new_keys_is_a_step(rand):
    """`extend` takes the step unless it was just taken, also when it brings no keys."""
    q, k = rand(2, 4, 1, 8), rand(2, 2, 6, 8)
    cache = KVCache(RoPE(8))
    cache.extend(Attention(q, k, k, Positions(q=torch.tensor([0]), k=torch.arange(6)), causal=False))
    cache.step(Positions(q=torch.tensor([1]), k=torch.zeros(0, dtype=torch.int64)))
    out = out_of(cache.extend(Attention(q, k[:, :, :0], k[:, :, :0], causal=False)))
    assert out.shape == (2, 4, 1, 8)
    with pytest.raises(CacheError, match="Positions"):
        cache.extend(Attention(q, k, k, causal=False))


# ---- going back and aside ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "encoding",
    [RoPE(8), RUNNING, Sequential(FoX(4, 5), ALiBi(4)), PerHead([RoPE(8), Sequential(FoX(2, 5))])],
    ids=["plain", "running", "two", "heads"],
)
@pytest.mark.parametrize("rows", [[1, 1, 0], [0], [1, 0], [0, 0, 0, 1]], ids=str)
def test_beams(encoding, rows, problem, part, agree):
    p, cache, index = problem(), KVCache(encoding), torch.tensor(rows)
    cache.extend(part(p, 0, 3).replace(positions=Positions.arange(3, valid=torch.tensor([[0, 1, 1], [1, 1, 1]]))))
    cache.select(rows)
    beams = p.select_rows(index)
    got = out_of(cache.extend(part(beams, 3, 7)))
    valid = torch.cat([torch.tensor([[0, 1, 1], [1, 1, 1]]), torch.ones(2, 4).long()], 1)[index]
    agree(got, dense(encoding, beams.replace(positions=Positions.arange(7, valid=valid)))[:, :, 3:])


def test_one_row_becomes_beams(problem, part, agree):
    p, cache = problem(b=1), KVCache(RUNNING)
    cache.extend(part(p, 0, 3))
    cache.select([0, 0, 0])
    beams = p.select_rows(torch.tensor([0, 0, 0]))
    agree(out_of(cache.extend(part(beams, 3, 7))), dense(RUNNING, beams)[:, :, 3:])
    assert cache[0].stored[0].k.shape[0] == 3


def test_rows_by_mask_and_wrong_rows(problem, part):
    p, cache = problem(), KVCache(RoPE(8))
    cache.select([0])  # nothing yet
    cache.extend(part(p, 0, 3))
    for wrong in ([0.5], [[0, 1]], torch.zeros(2)):
        with pytest.raises(CacheError, match="row"):
            cache.select(wrong)
    cache.select(torch.tensor([False, True]))
    assert torch.equal(cache[0].stored[0].v, p.v[1:, :, :3])


@pytest.mark.parametrize("rows", [[2], [0, 7], [-3]])
@pytest.mark.parametrize("b", [1, 2])
def test_rows_that_are_not_there(rows, b, problem, part):
    cache = KVCache(RoPE(8))
    cache.extend(part(problem(b=b), 0, 3))
    before = state_of(cache)
    with pytest.raises((RopewalkError, IndexError)):
        cache.select(rows)
    assert unchanged(cache, before)


@pytest.mark.parametrize(
    "encoding", [RoPE(8), RUNNING, PerHead([RoPE(8), FoX(2, 5)])], ids=["plain", "running", "heads"]
)
def test_a_rejected_draft(encoding, problem, part, agree):
    p, cache = problem(), KVCache(encoding)
    cache.extend(part(p, 0, 3))
    before, held = cache.snapshot(), state_of(cache)
    draft = problem(seed=1)
    for t in range(3, 6):
        cache.extend(part(draft, t, t + 1))
    cache.restore(before)
    assert unchanged(cache, held)
    agree(out_of(cache.extend(part(p, 3, 7))), dense(encoding, p)[:, :, 3:])
    cache.restore(before)  # a snapshot is a value: it may be used again
    agree(out_of(cache.extend(part(p, 3, 7))), dense(encoding, p)[:, :, 3:])
    assert unchanged_after_restore(cache, before, held)


def unchanged_after_restore(cache, snapshot, held):
    cache.restore(snapshot)
    return unchanged(cache, held)


def test_restoring_in_the_middle_of_a_step(problem, part, agree):
    p, cache = problem(), KVCache([RUNNING, RUNNING])
    empty = cache.snapshot()
    cache.step(3)
    cache[0].extend(part(p, 0, 3))
    cache.restore(empty)
    assert cache.length == 0
    cache.step(7)
    for i in range(2):
        agree(out_of(cache[i].extend(part(p, 0, 7))), dense(RUNNING, p))


def test_a_snapshot_of_another_cache():
    with pytest.raises(CacheError, match="2 layers"):
        KVCache(RoPE(8)).restore(KVCache([RoPE(8), RoPE(8)]).snapshot())


def test_crop(problem, part, agree):
    p, cache = problem(), KVCache(Sequential(RoPE(8), ALiBi(4)))
    cache.extend(part(problem(seed=1), 0, 2))
    cache.crop(0)
    cache.extend(part(p, 0, 3))
    cache.extend(part(problem(seed=1), 3, 6))
    cache.crop(3)
    assert cache.length == 3
    cache.crop(3)
    agree(out_of(cache.extend(part(p, 3, 7))), dense(Sequential(RoPE(8), ALiBi(4)), p)[:, :, 3:])


def test_crop_of_padded_rows(problem, part, agree):
    """The first n tokens, padding counted: rows go on where their own tokens end."""
    p, valid = problem(), torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    cache = KVCache(RoPE(8))
    cache.extend(part(p, 0, 5).replace(positions=Positions.arange(5, valid=valid)))
    cache.crop(4)
    assert cache.step(1).key.position.tolist() == [[2], [4]]


@pytest.mark.parametrize(
    "encoding", [FoX(4, 5), RUNNING, PerHead([RoPE(8), FoX(2, 5)])], ids=["fox", "sequential", "heads"]
)
def test_running_state_cannot_be_cropped(encoding, problem, part, agree):
    p, cache = problem(), KVCache(encoding)
    cache.extend(part(p, 0, 5))
    before = state_of(cache)
    with pytest.raises(CannotCrop, match="snapshot"):
        cache.crop(3)
    assert unchanged(cache, before)
    cache.crop(5)
    cache.crop(0)
    agree(out_of(cache.extend(p)), dense(encoding, p))


@pytest.mark.parametrize("n", [-1, 6, 99])
def test_crops_beyond(n, problem, part):
    cache = KVCache(RoPE(8))
    cache.extend(part(problem(), 0, 5))
    with pytest.raises(CacheError, match="5 tokens"):
        cache.crop(n)


# ---- edits -------------------------------------------------------------------------------------------------------

MOVABLE = {
    "rope": RoPE(8), "half": RoPE(8, pairing="half"), "pope": PoPE(8, num_kv_heads=2, phase="uniform"), "alibi": ALiBi(4),
    "scaled": Sequential(Scale(3.0), RoPE(8)), "both": Sequential(RoPE(8), ALiBi(4)), "nope": NoPE(), "t5": rw.T5(4),
    "string": rw.STRINGShifted(8, 3, 2), "yarned": RoPE(spectrum=rw.Spectrum((1.0, 0.5, 0.1, 0.01), 1.3)),
    "cope": rw.ContextualCoPE(8, 5), "heads": PerHead([RoPE(8), Sequential(Scale(2.0), RoPE(8), ALiBi())], [1, 3]),
}  # fmt: skip


@pytest.mark.parametrize("encoding", MOVABLE.values(), ids=MOVABLE.keys())
@pytest.mark.parametrize(
    ("keep", "to"),
    [
        ([0, 1, 4, 5], [0, 1, 2, 3]),
        ([0, 1, 2, 3, 4, 5], [100, 101, 102, 103, 104, 105]),
        ([1, 2, 3], [0.0, 0.5, 1.0]),
        ([0, 5], [7, 3]),
        ([2, 3], [[0, 1], [5, 6]]),
    ],
    ids=str,
)
def test_an_edit_equals_a_fresh_cache(encoding, keep, to, problem, part, agree):
    p, index, where = problem(), torch.tensor(keep), Positions(torch.tensor(to))
    cache, fresh = KVCache(encoding), KVCache(encoding)
    cache.extend(part(p, 0, 6))
    cache.edit(keep, where)
    fresh.extend(Attention(p.q[:, :, index], p.k[:, :, index], p.v[:, :, index], where))
    assert cache.length == fresh.length == len(keep)
    new = part(p, 6, 7).replace(positions=Positions(torch.tensor([200])))
    agree(out_of(cache.extend(new)), out_of(fresh.extend(new)))


def test_edits_far_from_home_and_back(problem, part, agree):
    p, cache = problem(), KVCache(RoPE(8))
    cache.extend(part(p, 0, 6))
    cache.edit(range(6), torch.arange(6) + 10_000_000)
    cache.edit(range(6), torch.arange(6))
    agree(cache[0].stored[0].k, RoPE(8)(p).k[:, :, :6], 1e-9)
    agree(out_of(cache.extend(part(p, 6, 7))), dense(RoPE(8), p)[:, :, 6:], 1e-9)


def test_eviction_leaves_positions(problem, part, agree):
    """Sinks and recent tokens: what follows is the true position, not the number of rows kept."""
    p, keep = problem(), [0, 4, 5]
    for encoding in (RoPE(8), ALiBi(4)):
        cache = KVCache(encoding)
        cache.extend(part(p, 0, 6))
        cache.edit(keep)
        assert cache.tokens.position.tolist() == [[0, 4, 5]]
        got = out_of(cache.extend(part(p, 6, 7)))
        mask = torch.zeros(7, 7, dtype=torch.bool)
        mask[:, [0, 4, 5, 6]] = True
        agree(got, dense(encoding, p.replace(mask=mask))[:, :, 6:])


def test_evicting_the_newest_token_does_not_turn_back_time(problem, part):
    """Heavy hitters: the next token's position is where the stream stands, or an error, not the last survivor's."""
    cache = KVCache(RoPE(8))
    cache.extend(part(problem(), 0, 6))
    cache.edit([0, 2, 3])
    try:
        now = cache.step(1)
    except PositionError:
        return
    assert now.key.position.tolist() == [[6]]


def test_a_shift_of_later_tokens(problem, part, agree):
    """A token taken out, those after it moved up: as if it had never been there."""
    p, keep = problem(), torch.tensor([0, 1, 3, 4, 5])
    cache = KVCache(Sequential(Scale(2.0), RoPE(8), ALiBi(4)))
    cache.extend(part(p, 0, 6))
    cache.edit(keep, torch.arange(5))
    got = out_of(cache.extend(part(p, 6, 7)))
    index = torch.tensor([0, 1, 3, 4, 5, 6])
    alone = Attention(p.q[:, :, index], p.k[:, :, index], p.v[:, :, index])
    agree(got, dense(cache[0].encoding, alone)[:, :, 5:])


@pytest.mark.parametrize(
    "encoding",
    [
        FoX(4, 5), RUNNING, Sinusoidal(6), rw.LearnedAbsolute(16, 5), PerHead([RoPE(8), FoX(2, 5)]), Encoding(),
        Sequential(RoPE(8), Encoding()),
    ],
    ids=lambda e: type(e).__name__,
)  # fmt: skip
def test_what_cannot_be_moved(encoding, problem, part, agree):
    """The shared refusal says so, and nothing has changed."""
    p, cache = problem(), KVCache([RoPE(8), encoding])
    cache.step(5)
    for i in range(2):
        cache[i].extend(part(p, 0, 5))
    before = state_of(cache)
    with pytest.raises(Refusal) as refusal:
        cache.edit([0, 1, 2], torch.arange(3))
    assert isinstance(refusal.value, CannotEdit)
    assert unchanged(cache, before)
    cache.step(2)
    for i, e in enumerate((RoPE(8), encoding)):
        agree(out_of(cache[i].extend(part(p, 5, 7))), dense(e, p)[:, :, 5:])


def test_gta_cannot_be_moved(rand):
    encoding = rw.GTA({"so2": 8}, v_transform=True)
    q = rand(1, 2, 3, 8)
    where = Positions(torch.rand(1, 3, 2, dtype=torch.float64))
    cache = KVCache(encoding)
    cache.extend(Attention(q, q, q, where, causal=False))
    with pytest.raises(CannotEdit):
        cache.edit([0, 1], where.slice(0, 2))
    assert cache.length == 3


def test_wrong_edits(problem, part):
    cache = KVCache(RoPE(8))
    with pytest.raises(CacheError, match="empty"):
        cache.edit([0])
    cache.extend(part(problem(), 0, 5))
    before = state_of(cache)
    for wrong in ([[0, 1]], [0.5], [True, False, True, True, True]):
        with pytest.raises(CacheError, match="indices"):
            cache.edit(torch.tensor(wrong))
    with pytest.raises(CacheError, match="2 tokens are kept and positions say 3"):
        cache.edit([0, 1], torch.arange(3))
    for outside in ([9], [0, 5]):
        with pytest.raises((RopewalkError, IndexError)):
            cache.edit(outside)
    with pytest.raises(PositionError):
        cache.edit([0, 1], torch.tensor([0.0, float("nan")]))
    with pytest.raises(RopewalkError):
        cache.edit([0, 1], torch.zeros(1, 2, 3))
    assert unchanged(cache, before)


def test_edits_keep_padding_and_documents(problem, part, agree):
    p, valid = problem(), torch.tensor([[0, 1, 1, 1, 1, 1], [1] * 6])
    cache = KVCache(RoPE(8))
    cache.extend(part(p, 0, 6).replace(positions=Positions.arange(6, valid=valid)))
    cache.edit([0, 1, 4, 5], torch.arange(4))
    assert cache.tokens.column("valid").tolist() == [[False, True, True, True], [True] * 4]
    got = out_of(cache.extend(part(p, 6, 7)))
    index = torch.tensor([0, 1, 4, 5, 6])
    where = Positions(torch.arange(5), valid=torch.tensor([[0, 1, 1, 1, 1], [1] * 5]))
    alone = Attention(p.q[:, :, index], p.k[:, :, index], p.v[:, :, index], where)
    agree(got, dense(RoPE(8), alone)[:, :, 4:])


# ---- what is stored ----------------------------------------------------------------------------------------------


def test_nothing_is_changed_in_place(problem, part):
    p, cache = problem(), KVCache(RUNNING)
    first = cache.extend(part(p, 0, 3))
    k, u = first.k.clone(), first.kf["1.sum"].clone()
    cache.extend(part(p, 3, 4))
    cache.select([1])
    assert torch.equal(first.k, k) and torch.equal(first.kf["1.sum"], u)
    assert torch.equal(out_of(first), dense(RUNNING, p)[:, :, :3])


def test_a_cache_stores_what_rope_stores(problem, part):
    """Sums of products need no copy of the keys: one number a token and head, no more."""
    cache = KVCache(RUNNING)
    cache.extend(part(problem(), 0, 5))
    (stored,) = cache[0].stored
    assert stored.k.shape == (2, 2, 5, 8)
    assert {n: tuple(t.shape) for n, t in stored.features.items()} == {"1.sum": (2, 4, 5, 1)}
    per_head = KVCache(PerHead([RoPE(8), NoPE()]))
    per_head.extend(part(problem(), 0, 5))
    assert [tuple(s.k.shape) for s in per_head[0].stored] == [(2, 1, 5, 8)] * 2


def test_low_precision(problem, in_chunks, agree):
    p = problem(dtype=torch.bfloat16)
    for encoding in (RoPE(8), RUNNING):
        got = in_chunks(encoding, p, (3, 1, 3)).detach()
        assert got.dtype == torch.bfloat16
        agree(got.float(), dense(encoding, p).float(), 2e-2)


def test_gradients_reach_the_first_chunk(problem, part):
    p = problem()
    k = p.k.clone().requires_grad_()
    cache = KVCache(RUNNING)
    cache.extend(part(p, 0, 3).replace(k=k[:, :, :3]))
    attend(cache.extend(part(p, 3, 7)), "dense").sum().backward()
    assert k.grad[:, :, :3].abs().min() > 0


def test_nbytes_counts_what_is_held():
    cache = rw.KVCache([rw.RoPE(8), rw.FoX(2, 16)])
    assert cache.nbytes == 0
    q = torch.randn(3, 2, 5, 8)
    cache.step(5)
    for i in range(2):
        cache[i].extend(rw.Attention(q, q, q, x=torch.randn(3, 5, 16)))
    keys = 3 * 2 * 5 * 8 * 4
    assert cache.nbytes == 2 * (2 * keys) + 3 * 2 * 5 * 8  # and the gates' running sums, in float64
