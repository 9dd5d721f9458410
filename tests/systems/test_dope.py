"""DoPE, the encoding (arXiv 2511.09146); how heads are chosen is tested with the analysis."""

from __future__ import annotations

import pytest
import torch
from reference import DOUBLE, attend, close, decoded, differ, golden, logits, problem

import ropewalk as rw
from ropewalk.analysis.matrix_entropy import choose_heads, concentration
from ropewalk.core.errors import CannotCache, CannotEdit
from ropewalk.core.noise import normal

(CASE,) = golden("036").values()
MODES = ["zero", "nope", "parts", "gaussian"]
DEVIATION = [(0.7, 1.3)]


def golden_problem():
    q, k = (CASE.inputs[n][None] for n in "qk")
    return rw.Attention(q, k, k, causal=False)


def made(mode, heads=(1,), h=4, kv=None, d=8, **options):
    if mode == "gaussian":
        options = {"deviation": DEVIATION * len(heads), **options}
    return rw.DoPE(d, h, kv, heads=heads, mode=mode, train_length=64, **options)


@pytest.mark.parametrize(("mode", "output"), [("zero", "by_all_zero"), ("nope", "by_all_nope"), ("parts", "by_parts")])
def test_golden(mode, output):
    encoding = made(mode, (CASE.outputs["selected_head"],), 3, pairing="interleaved")
    close(logits(encoding(golden_problem()))[0], CASE.outputs[f"logits_{output}"], DOUBLE)
    assert list(made("parts", (2,), 3).kept()) == CASE.outputs["band_keep_mask"].tolist()


def test_golden_selection():
    k = rw.RoPE(8).rotate(*(CASE.inputs[n][None] for n in "qk"))[1]
    close(k[0], CASE.outputs["k_rot"], DOUBLE)
    assert choose_heads(concentration(k, 4), 1) == [(0, CASE.outputs["selected_head"])]


@pytest.mark.parametrize("mode", MODES)
def test_no_head_is_rope(mode):
    p = problem()
    assert torch.equal(attend(made(mode, ()), p), attend(rw.RoPE(8, pairing="half"), p))


@pytest.mark.parametrize("mode", MODES)
def test_other_heads_are_as_they_were(mode):
    p = problem(h=6, kv=3)
    got, rope = logits(made(mode, (1,), 6, 3)(p)), logits(rw.RoPE(8, pairing="half")(p))
    assert torch.equal(got[:, [0, 1, 4, 5]], rope[:, [0, 1, 4, 5]])
    differ(got[:, 2:4], rope[:, 2:4])  # both query heads of the key head


def test_zero_attends_evenly():
    _, weights = rw.attend(made("zero")(problem(s=7)), return_weights=True)
    close(weights[0, 1], torch.ones(7, 7, dtype=torch.float64).tril() / torch.arange(1, 8)[:, None])


def test_nope_is_rope_at_one_place():
    p = problem()
    here = p.replace(positions=rw.Positions(torch.full((7,), 5)))
    close(logits(made("nope")(p))[:, 1], logits(rw.RoPE(8, pairing="half")(here))[:, 1])


def test_parts_drops_the_planes_that_do_not_turn_around():
    p = problem(s=9)
    kept = torch.tensor([True, True, False, False])  # of 64 tokens
    rope = rw.RoPE(8, pairing="half")(p)
    q, k = (x[:, 1] * kept.repeat(2) for x in (rope.q, rope.k))
    close(logits(made("parts")(p))[:, 1], q @ k.mT * 8**-0.5)
    all_gone = rw.DoPE(8, 4, heads=(1,), mode="parts", train_length=1)
    close(logits(all_gone(p)), logits(made("zero")(p)))
    none_gone = rw.DoPE(8, 4, heads=(1,), mode="parts", train_length=1e9)
    close(logits(none_gone(p)), logits(rope))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kv", [4, 2])
def test_decoding_is_the_full_pass(mode, kv):
    p, encoding = problem(s=9, kv=kv), made(mode, (1,), 4, kv)
    close(decoded(encoding, p, 4), attend(encoding, p))
    close(attend(encoding, p, "sdpa"), attend(encoding, p))


def test_cached_keys_move():
    for mode in ("zero", "nope", "parts"):
        p, encoding = problem(s=9), made(mode)
        cache, alone = rw.KVCache(encoding), rw.KVCache(encoding)
        cache.extend(p)
        keep = torch.tensor([0, 4, 5, 6, 7, 8])
        cache.edit(keep, rw.Positions.arange(6))
        alone.extend(rw.Attention(*(t[:, :, keep] for t in (p.q, p.k, p.v))))
        new = problem(s=1, seed=9)
        close(rw.attend(cache.extend(new), "dense"), rw.attend(alone.extend(new), "dense"))
    cache = rw.KVCache(made("gaussian"))
    cache.extend(problem(s=9))
    with pytest.raises(CannotEdit, match="noise"):
        cache.edit([0, 1], rw.Positions.arange(2))


# ---- noise -----------------------------------------------------------------------------------------------------------


def test_noise_is_normal_and_depends_on_every_key():
    z = normal(torch.tensor(3), torch.arange(40)[:, None, None], torch.arange(50).double()[:, None], torch.arange(64))
    assert z.shape == (40, 50, 64) and z.isfinite().all()
    flat = z.flatten()
    assert abs(flat.mean()) < 0.01 and abs(flat.std() - 1) < 0.01
    assert abs((flat**4).mean() - 3) < 0.1 and abs((flat**3).mean()) < 0.05
    for dim in range(3):
        rolled = z.roll(1, dim)
        assert abs((z * rolled).mean()) < 0.01
    assert len(flat.unique()) > 0.999 * len(flat)
    assert torch.equal(normal(torch.tensor(3), torch.tensor(7), torch.tensor(9.0).double(), torch.arange(64)), z[7, 9])
    assert not torch.equal(
        normal(torch.tensor(4), torch.tensor(7), torch.tensor(9.0).double(), torch.arange(64)), z[7, 9]
    )


def test_noise_has_the_deviation_that_was_given():
    p = problem(b=1, h=2, s=200, d=64)
    p = made("gaussian", (0, 1), 2, d=64, deviation=[(0.5, 2.0), (3.0, 0.25)])(p)
    close(p.q.std((2, 3))[0], torch.tensor([0.5, 3.0]), 0.03)
    close(p.k.std((2, 3))[0], torch.tensor([2.0, 0.25]), 0.03)
    assert abs((p.q[0, 0] * p.k[0, 0]).mean()) < 0.05


def test_noise_differs_by_layer_and_seed_and_not_by_row():
    p = problem(b=2)
    whole = rw.DoPE(8, 4, heads=[(0, 1), (1, 1), (1, 3)], mode="gaussian", deviation=DEVIATION * 3)
    first, second = (whole.layer(i)(p) for i in range(2))
    differ(first.q[:, 1], second.q[:, 1])
    differ(
        first.q[:, 1], rw.DoPE(8, 4, heads=[(0, 1)], mode="gaussian", deviation=DEVIATION, seed=1).layer(0)(p).q[:, 1]
    )
    assert torch.equal(first.q[0, 1], first.q[1, 1])
    assert torch.equal(whole.layer(2)(p).q, rw.RoPE(8, pairing="half")(p).q)


def test_measured_deviation_cannot_be_decoded():
    p = problem(s=200, d=64)
    encoding = rw.DoPE(64, 4, heads=(1,), mode="gaussian")
    rope, got = rw.RoPE(64, pairing="half")(p), encoding(p)
    close(got.q[:, 1].std((1, 2)), rope.q[:, 1].std((1, 2)), 0.05)
    with pytest.raises(CannotCache, match="deviation="):
        rw.KVCache(encoding)
    valid = torch.ones(2, 200, dtype=torch.bool)
    valid[1, :80] = False
    padded = problem(s=200, d=64, positions=rw.Positions.arange(200, valid=valid))
    padded.k[1, :, :80] = 100.0  # what stands in padding does not count
    close(encoding(padded).k[1:, 1, 80:].std((1, 2)), rope.k[1:, 1, 80:].std((1, 2)), 0.05)


def test_what_cannot_be():
    with pytest.raises(rw.ConfigError, match="Did you mean 'parts'"):
        rw.DoPE(8, 4, mode="part")
    with pytest.raises(rw.ConfigError, match="train_length"):
        rw.DoPE(8, 4, heads=(1,), mode="parts")
    for heads in ((4,), (-1,), ((0, 4),), ((1, 2, 3),), (1.0,)):
        with pytest.raises(rw.ConfigError, match="heads"):
            rw.DoPE(8, 4, heads=heads)
    with pytest.raises(rw.ConfigError, match="count the key heads"):
        rw.DoPE(8, 4, 2, heads=(3,))
    with pytest.raises(rw.ConfigError, match="deviation"):
        rw.DoPE(8, 4, heads=(1,), mode="gaussian", deviation=[(1.0, 1.0), (1.0, 1.0)])
    with pytest.raises(rw.ConfigError, match="layer"):
        rw.DoPE(8, 4, heads=[(0, 1)])(problem())
    with pytest.raises(rw.ShapeError, match="heads"):
        rw.DoPE(8, 4, heads=(1,))(problem(h=2))
