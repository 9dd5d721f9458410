"""Modality-aware ids of Lance (arXiv 2605.18678)."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from frames import axes_first
from reference import attend, close, differ, golden, problem, random, triangle

import ropewalk as rw
from ropewalk.backends import dense
from ropewalk.core.errors import CannotCache, ConfigError, NeedsColumn, NotCausal, ShapeError
from ropewalk.lab.dual_stream import DualStreamLayer, generated_tokens
from ropewalk.rotary.modality_rope import MODALITIES, ModalityIds, Segment, latent_table, prose
from ropewalk.rotary.mrope import MRoPEIds

CASES = golden("072")
EDIT = [
    prose("system_prompt", 2),
    Segment("ref_vit", 1, 2, 3),
    Segment("ref_image", 1, 3, 2),
    Segment("ref_source", 2, 1, 3),
    prose("text", 2),
    Segment("noise", 2, 1, 3),
    rw.Text(2),
]


def blocks_of(case):
    return [
        Segment(kind, *size) if isinstance(size, list) else prose(kind, size) for kind, size in case.params["segments"]
    ]


def labels(blocks):
    for block in blocks:
        kind = MODALITIES[block.kind] if isinstance(block, Segment) else block.modality
        yield from [kind] * block.length


# ---- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    case = CASES[name]
    blocks = blocks_of(case)
    where = rw.layout(blocks)
    assert list(labels(blocks)) == case.inputs["modality"].tolist()
    seconds = MRoPEIds(tokens_per_second=2.0)
    assert torch.equal(axes_first(where, seconds)[:, 0], case.outputs["base_mrope_ids"].double())
    assert torch.equal(axes_first(where, ModalityIds())[:, 0], case.outputs["lance_ids"].double())


# ---- properties of the sheet -----------------------------------------------------------------------------------------


def spans(blocks):
    return dict(zip(("prompt", "vit", "image", "source", "text", "noise", "more"), itertools.pairwise(
        itertools.accumulate((b.length for b in blocks), initial=0)), strict=True))  # fmt: skip


def test_bands_and_ties():
    where, at = rw.layout(EDIT), spans(EDIT)
    base, moved = (axes_first(where, s)[:, 0] for s in (MRoPEIds(tokens_per_second=2.0), ModalityIds()))
    for name, band in (("vit", 1000), ("image", 2000)):
        part = slice(*at[name])
        assert moved[0, part][0] == band
        assert torch.equal(moved[0, part] - band, base[0, part] - base[0, part][0])
        assert torch.equal(moved[1:, part], base[1:, part])
    assert torch.equal(moved[:, slice(*at["noise"])], base[:, slice(*at["source"])])
    for name in ("prompt", "source", "text", "more"):
        assert torch.equal(moved[:, slice(*at[name])], base[:, slice(*at[name])])
    assert ModalityIds().cursor(where.key).tolist() == [base.max() + 1]


@pytest.mark.parametrize(
    "blocks",
    [[rw.Text(5)], [rw.Text(2), Segment("noise", 2, 1, 3), rw.Text(1)], [rw.Text(1), rw.Image(2, 3), rw.Text(1)]],
)
def test_without_conditions_nothing_moves(blocks):
    where = rw.layout(blocks)
    assert torch.equal(axes_first(where, ModalityIds()), axes_first(where, MRoPEIds(tokens_per_second=2.0)))


def test_a_target_of_another_size_keeps_its_place():
    blocks = [Segment("ref_source", 1, 2, 3), rw.Text(1), Segment("noise", 1, 3, 3)]
    where = rw.layout(blocks)
    assert torch.equal(axes_first(where, ModalityIds()), axes_first(where, MRoPEIds(tokens_per_second=2.0)))


def test_several_blocks_of_a_kind_keep_their_distances():
    blocks = [rw.Text(1), Segment("ref_vit", 1, 2, 3), rw.Text(2), Segment("ref_vit", 2, 1, 2), rw.Text(1)]
    where = rw.layout(blocks)
    base, moved = (axes_first(where, s)[0, 0] for s in (MRoPEIds(tokens_per_second=2.0), ModalityIds()))
    vit = torch.tensor(list(labels(blocks))) == MODALITIES["ref_vit"]
    assert torch.equal(moved[vit], base[vit] + 999)
    assert torch.equal(moved[~vit], base[~vit])


def test_samples_do_not_meet():
    """Packed and padded, each sample has the ids it has alone."""
    other = [rw.Text(3), Segment("ref_vit", 1, 1, 2)]
    scheme = ModalityIds()
    alone = [scheme.coordinates(rw.layout(b).query)[0] for b in (EDIT, other)]
    packed = scheme.coordinates(rw.packed_layout([[other, EDIT]]).query)[0]
    close(packed, torch.cat(alone[::-1]))
    rows = rw.layout([EDIT, other], padding="left")
    padded = scheme.coordinates(rows.query)
    close(padded[0], alone[0])
    close(padded[1, -len(alone[1]) :], alone[1])


def test_who_sees_whom():
    where = rw.layout([EDIT])
    s, at = where.query.length, spans(EDIT)
    made = rw.ModalityRoPE(8, (1, 2, 1))
    mask = dense.allowed(made(problem(b=1, h=1, s=s, positions=where)))[0, 0]
    want = triangle(s)
    for name in ("vit", "image", "source", "noise"):
        part = slice(*at[name])
        want[part, part] = True
    start, stop = at["noise"]
    want[stop:, start:stop] = False
    assert torch.equal(mask.expand(s, s), want)


def test_a_target_meets_its_source_at_distance_zero():
    where, at = rw.layout([EDIT]), spans(EDIT)
    made = rw.ModalityRoPE(8, (1, 2, 1), base=10.0)
    angles = made.angles(made.scheme.coordinates(where.query))[0]
    close(angles[slice(*at["noise"])], angles[slice(*at["source"])])


def test_text_decodes_from_the_counter():
    made = rw.ModalityRoPE(8, (1, 2, 1), base=50.0)
    blocks = [*EDIT[:5], rw.Text(4)]
    where = rw.layout([blocks])
    n = where.query.length
    p = problem(b=1, s=n, positions=where)
    cache = rw.KVCache(made)
    part = rw.Attention(p.q[:, :, : n - 4], p.k[:, :, : n - 4], p.v[:, :, : n - 4], where.slice(0, n - 4))
    out = [rw.attend(cache.extend(part), "dense")]
    for i in range(n - 4, n):
        part = rw.Attention(p.q[:, :, i : i + 1], p.k[:, :, i : i + 1], p.v[:, :, i : i + 1])
        out.append(rw.attend(cache.extend(part), "dense"))
    close(torch.cat(out, 2), attend(made, p))


def test_a_sinusoid_for_latents():
    table = latent_table(2, 3, 14)
    assert table.shape == (18, 14)
    t, y, x = 1, 2, 1
    row = table[t * 9 + y * 3 + x]
    want = []
    for value, width in ((t, 4), (y, 4), (x, 6)):
        angles = [value * 10_000 ** (-k / (width / 2)) for k in range(width // 2)]
        want += [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    close(row, torch.tensor(want, dtype=torch.float64))


def test_bands_and_ties_can_be_chosen():
    where, at = rw.layout(EDIT), spans(EDIT)
    base, usual = (axes_first(where, s)[:, 0] for s in (MRoPEIds(tokens_per_second=2.0), ModalityIds()))
    made = rw.ModalityRoPE(8, (1, 2, 1), offsets={"ref_vit": 50, "ref_source": 70.5}, tied=False)
    moved = axes_first(where, made.scheme)[:, 0]
    for name, band in (("vit", 50), ("source", 70.5)):
        part = slice(*at[name])
        assert torch.equal(moved[0, part], base[0, part] - base[0, part][0] + band)
        assert torch.equal(moved[1:, part], base[1:, part])
    for name in ("prompt", "image", "text", "noise", "more"):  # without a band, and without a tie
        assert torch.equal(moved[:, slice(*at[name])], base[:, slice(*at[name])])
    tied = axes_first(where, rw.ModalityRoPE(8, (1, 2, 1), offsets={}).scheme)[:, 0]
    noise = slice(*at["noise"])
    assert torch.equal(tied[:, noise], usual[:, noise])
    rest = torch.arange(where.query.length) < noise.start
    assert torch.equal(tied[:, rest], base[:, rest])


def test_a_target_is_denoised_again_and_again_behind_context_that_is_cached():
    """Each step gives the noise segment anew, at its fixed places; the context is computed once."""
    made = rw.ModalityRoPE(8, (1, 2, 1), base=50.0)
    blocks = EDIT[:-1]
    where, (start, stop) = rw.layout([blocks]), spans(EDIT)["noise"]
    cache, context = rw.KVCache(made), problem(b=1, s=stop, positions=where)
    part = slice(0, start)
    cache.extend(rw.Attention(*(t[:, :, part] for t in (context.q, context.k, context.v)), where.slice(0, start)))
    kept, found = cache.snapshot(), []
    for step in range(3):
        noise = problem(b=1, s=stop - start, seed=10 * step + 1)
        cache.restore(kept)
        new = rw.Attention(noise.q, noise.k, noise.v, where.slice(start, stop))
        found.append(rw.attend(cache.extend(new), "dense"))
        q, k, v = (torch.cat([getattr(context, n)[:, :, part], getattr(noise, n)], 2) for n in ("q", "k", "v"))
        close(found[-1], attend(made, rw.Attention(q, k, v, where))[:, :, start:])
    differ(found[0], found[1])


# ---- the layer of two streams ----------------------------------------------------------------------------------------


def two_streams(**more):
    torch.manual_seed(0)
    made = DualStreamLayer(12, 2, rw.ModalityRoPE(6, (1, 1, 1), base=50.0), 1, inner=10, **more).double()
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.3 * torch.randn_like(p))  # gains, too, are not all the same
    return made


def test_latents_are_generated_and_the_rest_is_understood():
    at = spans(EDIT)
    want = torch.zeros(rw.layout(EDIT).query.length, dtype=torch.bool)
    for name in ("image", "source", "noise"):
        want[at[name][0] + 1 : at[name][1] - 1] = True  # markers are text
    assert torch.equal(generated_tokens(rw.layout([EDIT]).query)[0], want)
    with pytest.raises(NeedsColumn, match=r"rw\.layout"):
        generated_tokens(rw.Positions.arange(3).query)


@pytest.mark.parametrize("qk_norm", [True, False])
def test_two_streams_with_equal_weights_are_one(qk_norm):
    """The layer in plain formulas, with the weights that both streams have."""
    made = two_streams(qk_norm=qk_norm)
    state = {n: p for n, p in made.state_dict().items() if ".understanding" in n}
    made.load_state_dict({n: state[n.replace(".generation", ".understanding")] for n in made.state_dict()})
    w = {n.replace(".understanding.", ".").removesuffix(".weight"): p for n, p in state.items()}
    assert len(w) == (11 if qk_norm else 9)
    where, x = rw.layout([EDIT]), random(1, rw.layout(EDIT).query.length, 12)

    def normed(x, gain):
        return gain * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    n = normed(x, w["norm"])
    q, k, v = (torch.stack((n @ w[name].T).split(6, -1), 1) for name in "qkv")
    if qk_norm:
        q, k = normed(q, w["q_norm"]), normed(k, w["k_norm"])
    seen = attend(made.encoding, rw.Attention(q, k, v, where))
    h = x + torch.cat(seen.unbind(1), -1) @ w["out"].T
    n = normed(h, w["norm_feed_forward"])
    gate, up, down = (w[f"feed_forward.{name}"] for name in ("gate", "up", "down"))
    close(made(x, where), h + (torch.nn.functional.silu(n @ gate.T) * (n @ up.T)) @ down.T)


def test_a_stream_acts_on_its_own_tokens():
    made, at = two_streams(), spans(EDIT)
    where, x = rw.layout([EDIT]), random(1, rw.layout(EDIT).query.length, 12)
    before, of = made(x, where), generated_tokens(where.query)[0]
    with torch.no_grad():
        made.feed_forward.generation.down.weight.mul_(2)
    after = made(x, where)
    assert torch.equal(after[:, ~of], before[:, ~of])  # what follows attention stays in its stream
    differ(after[:, of], before[:, of])
    with torch.no_grad():
        made.v.generation.weight.mul_(2)
    joint = made(x, where)
    first = at["image"][0]
    assert torch.equal(joint[:, :first], after[:, :first])  # nothing generated came before
    differ(joint[:, slice(*at["text"])], after[:, slice(*at["text"])])  # attention is joint
    text = rw.layout([[rw.Text(4), Segment("ref_vit", 1, 1, 2)]])
    made(x[:, :8], text).sum().backward()
    for name, p in made.named_parameters():
        used = p.grad is not None and bool((p.grad != 0).any())
        assert used == (".understanding" in name), name


def test_two_streams_from_a_cache():
    made = two_streams()
    blocks, at = EDIT[:-1], spans(EDIT)
    where = rw.layout([blocks, blocks])
    x = random(2, where.query.length, 12)
    cache, found = rw.KVCache(made.encoding), []
    for a, b in at.values():
        if a < x.shape[1]:
            found.append(made(x[:, a:b], cache.step(where.slice(a, b)), cache[0].extend))
    close(torch.cat(found, 1), made(x, where))


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_bad_input():
    with pytest.raises(ConfigError, match="ref_vit"):
        Segment("ref_vi", 1, 2, 3)
    with pytest.raises(ConfigError, match="text has no grid"):
        Segment("text", 1, 2, 3)
    with pytest.raises(ConfigError, match="frames of a block"):
        Segment("noise", 0, 2, 3)
    with pytest.raises(ConfigError, match="noise is a grid"):
        prose("noise", 3)
    with pytest.raises(ConfigError, match="even number from 6"):
        latent_table(1, 2, 4)
    with pytest.raises(ConfigError, match="Did you mean 'ref_vit'"):
        rw.ModalityRoPE(8, offsets={"ref_vi": 5.0})
    with pytest.raises(ConfigError, match="text is text and is not moved"):
        rw.ModalityRoPE(8, offsets={"text": 5.0})
    with pytest.raises(ConfigError, match="finite numbers; got nan"):
        rw.ModalityRoPE(8, offsets={"ref_vit": math.nan})
    with pytest.raises(ConfigError, match="2 query heads are shared out evenly over 3 key heads"):
        DualStreamLayer(12, 2, rw.ModalityRoPE(6), 3)
    with pytest.raises(ShapeError, match="1 rows of 5 tokens"):
        two_streams()(random(1, 4, 12), rw.layout([[rw.Text(5)]]))
    where = rw.layout([[rw.Text(1), Segment("ref_vit", 1, 2, 3), rw.Text(1)]])
    made = rw.ModalityRoPE(8, (1, 2, 1))
    p = problem(b=1, s=10, positions=where)
    with pytest.raises(NotCausal):
        made(p.replace(causal=False))
    cache = rw.KVCache(made)
    cache.extend(rw.Attention(p.q[:, :, :4], p.k[:, :, :4], p.v[:, :, :4], where.slice(0, 4)))
    with pytest.raises(CannotCache, match="visual segment sees all of itself"):
        cache.extend(rw.Attention(p.q[:, :, 4:], p.k[:, :, 4:], p.v[:, :, 4:], where.slice(4)))
