"""p-RoPE (arXiv 2410.06205)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, attend, close, decoded, differ, golden, logits, problem, random
from sine_cases import check_rotation, sines

import ropewalk as rw
from ropewalk.analysis.pairs import FrequencyUsage, distractor, norm_for_position, pair_norms
from ropewalk.frequencies import geometric, p_rope, pairs_of_fraction, waveform

CASES = golden("022")


# ---- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(CASES))
def test_golden(name):
    case = CASES[name]
    c = case.params
    made = rw.PRoPEFraction(c["D"], c["p"], c["max_wavelength"], reverse=c["reverse"])
    assert pairs_of_fraction(c["D"], c["p"]) == c["rope_angles"]
    assert int((made.inv_freq != 0).sum()) == c["rope_angles"]
    check_rotation(case, made)
    close(pair_norms(sines(case)[0], "half"), case.outputs["mean_norm_per_frequency_q"], DOUBLE)


# ---- which pairs turn ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "p", "pairs"),
    [(12, 0.25, 1), (16, 0.6, 4), (16, 0.75, 6), (100, 0.58, 28), (64, 1, 32), (64, 0, 0), (2, 0.99, 0)],
)
def test_count_of_pairs(width, p, pairs):
    assert pairs_of_fraction(width, p) == pairs


def test_published_expressions_agree():
    differ = []
    for width in range(2, 258, 2):
        for hundredth in range(101):
            p = hundredth / 100
            pairs = pairs_of_fraction(width, p)
            assert pairs == int(p * width // 2) == int(width * p) // 2
            if pairs != hundredth * width // 200:
                differ.append((width, p))
    assert (100, 0.58) in differ  # floating point loses a pair, as published
    assert all(pairs_of_fraction(w, (r + 0.5) / (w // 2)) == r for w in (12, 64, 100, 128) for r in range(w // 2))


@pytest.mark.parametrize("p", [0.0, 0.2, 0.25, 0.5, 0.9, 1.0])
def test_normal_and_reversed_cover_the_pairs(p):
    every = geometric(16)
    fast, slow = p_rope(every, p), p_rope(every, 1 - p, reverse=True)
    covered = [(a != 0) + (b != 0) for a, b in zip(fast.inv_freq, slow.inv_freq, strict=True)]
    assert all(n <= 1 for n in covered)
    assert covered.count(0) == (0 if (p * 8).is_integer() else 1)
    for kept in (fast, slow):
        assert all(a in (0.0, w) for a, w in zip(kept.inv_freq, every.inv_freq, strict=True))
    assert every.inv_freq == geometric(16).inv_freq


def test_longest_wavelength():
    for p in (0.25, 0.5, 0.75):
        r = pairs_of_fraction(64, p)
        slowest = min(w for w in p_rope(geometric(64), p).inv_freq if w)
        assert 2 * math.pi / slowest == pytest.approx(2 * math.pi * 10_000 ** (2 * (r - 1) / 64), rel=1e-12)


def test_schedules_chain_and_say_so():
    spectrum = p_rope(rw.Spectrum((1.0, 0.5, 0.1, 0.01), 1.25, "mine"), 0.5)
    assert spectrum.inv_freq == (1.0, 0.5, 0.0, 0.0)
    assert spectrum.attention_factor == 1.25
    assert spectrum.origin == "mine.p_rope(0.5)"
    assert spectrum.padded(6).inv_freq == (1.0, 0.5, 0.0, 0.0, 0.0, 0.0)
    assert spectrum.trimmed().inv_freq == (1.0, 0.5)
    assert rw.Spectrum((0.0, 1.0, 0.0)).trimmed().inv_freq == (0.0, 1.0)
    assert rw.Spectrum((0.0,)).trimmed().inv_freq == ()
    with pytest.raises(rw.ConfigError, match=r"\[4\] of a spectrum of 4"):
        spectrum.keep([0, 4])
    with pytest.raises(rw.ConfigError, match="padded"):
        spectrum.padded(3)


# ---- what it does ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_ends_are_rope_and_nope(pairing):
    p = problem(d=16)
    whole, none = rw.PRoPEFraction(16, 1.0, pairing=pairing), rw.PRoPEFraction(16, 0.0, pairing=pairing)
    for got, want in zip(whole.rotate(p.q, p.k), rw.RoPE(16, pairing=pairing).rotate(p.q, p.k), strict=True):
        assert torch.equal(got, want)
    assert all(torch.equal(a, b) for a, b in zip(none.rotate(p.q, p.k), (p.q, p.k), strict=True))
    close(attend(none, p, "sdpa"), attend(rw.NoPE(), p))


def test_defaults_are_those_published():
    made = rw.PRoPEFraction(64)
    assert (made.p, made.base, made.pairing, made.reverse) == (0.75, 10_000.0, "half", False)
    assert made.frequencies(64).inv_freq == p_rope(geometric(64), 0.75).inv_freq


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_reversed_turns_the_slowest(pairing):
    p, made = problem(d=16), rw.PRoPEFraction(16, 0.4, pairing=pairing, reverse=True)
    kept = rw.RoPE(16, pairing=pairing, spectrum=p_rope(geometric(16), 0.4, reverse=True))
    close(attend(made, p), attend(kept, p), 1e-15)
    assert made.inv_freq.tolist() == [0.0] * 5 + list(geometric(16).inv_freq[5:])
    differ(attend(made, p), attend(rw.PRoPEFraction(16, 0.4, pairing=pairing), p))


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_unturned_pairs_pass_through(pairing):
    p, made = problem(d=16), rw.PRoPEFraction(16, 0.5, pairing=pairing)
    q, _ = made.rotate(p.q, p.k)
    channels = torch.arange(16).reshape(2, 8).T if pairing == "half" else torch.arange(16).reshape(8, 2)
    assert torch.equal(q[..., channels[4:].flatten()], p.q[..., channels[4:].flatten()])
    turned = rw.RoPE(16, pairing=pairing).rotate(p.q, p.k)[0]
    close(q[..., channels[:4].flatten()], turned[..., channels[:4].flatten()])
    assert len(made.inv_freq) == (8 if pairing == "half" else 4)  # neighbours need no table for what stays


def test_logits_depend_on_differences():
    p, made = problem(d=16), rw.PRoPEFraction(16, 0.6)
    at = torch.tensor([0, 3, 3, 11, 5, 40, 2])
    want = logits(made(p.replace(positions=rw.Positions(at))))
    close(logits(made(p.replace(positions=rw.Positions(at + 5000)))), want, 1e-11)
    differ(want, logits(made(p)))


@pytest.mark.parametrize("sizes", [(), (4, 2)])
def test_decoding_is_the_full_pass(sizes):
    p, made = problem(kv=2, d=16), rw.PRoPEFraction(p=0.5)
    close(decoded(made, p, *sizes), attend(made, p))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"p": 1.01}, "between 0 and 1"),
        ({"p": -0.1}, "between 0 and 1"),
        ({"p": math.nan}, "nan"),
        ({"p": "half"}, "half"),
        ({"p": True}, "True"),
        ({"head_dim": 15}, "even"),
        ({"base": 0}, "base"),
        ({"pairing": "neox"}, "half"),
    ],
)
def test_errors(options, message):
    with pytest.raises(rw.ConfigError, match=message):
        rw.PRoPEFraction(**options)


def test_another_width_is_an_error():
    with pytest.raises(rw.ShapeError, match="16"):
        rw.PRoPEFraction(16)(problem(d=8))


# ---- propositions of the paper ---------------------------------------------------------------------------------------


def curve(query, key, distances, spectrum):
    """Unscaled logits of one query after one key, at some distances (B = distances)."""
    n = len(distances)
    q, k = query.expand(n, 1, 1, -1), key.expand(n, 1, 1, -1)
    where = rw.Positions(q=distances[:, None], k=torch.zeros(n, 1))
    encoded = rw.RoPE(spectrum=spectrum, pairing="half")(rw.Attention(q, k, k, where, causal=False, scale=1.0))
    return logits(encoded)[:, 0, 0, 0]


@pytest.mark.parametrize("distance", [0, 7, 60, 201])
def test_some_key_makes_any_distance_the_best(distance):
    query, spectrum, at = random(16), geometric(16), torch.arange(256)
    key, _ = rw.RoPE(16, pairing="half").rotate(
        query[None, None, None], query[None, None, None], torch.tensor([distance])
    )
    got = curve(query, key[0, 0, 0], at, spectrum)
    sizes = pair_norms(query[None, None, None], "half")[0, 0]
    want = (sizes**2 * ((at[:, None] - distance) * spectrum.tensor()).cos()).sum(-1)
    close(got, want)
    assert int(got.argmax()) == distance
    assert (got < got[distance]).sum() == len(at) - 1


def test_random_contents_do_not_decay():
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(20_000, 16, dtype=torch.float64, generator=g) for _ in range(2))
    for distance in (0, 10, 1000):
        at = torch.tensor([distance])
        turned = rw.RoPE(16, pairing="half").rotate(q[None, :, None], q[None, :, None], at)[0][0, :, 0]
        dots = (turned * k).sum(-1)
        assert abs(dots.mean()) < 5 * 4 / 20_000**0.5
        assert dots.var() == pytest.approx(16, rel=0.05)
    ones = torch.ones(16, dtype=torch.float64)
    close(curve(ones, ones, torch.arange(50), geometric(16)), 2 * waveform(geometric(16), torch.arange(50)))
    decay = waveform(geometric(128), torch.tensor([0, 10, 100, 1000]))
    assert (decay.diff() < 0).all()


@pytest.mark.parametrize("behind", [0, 1])
def test_one_pair_makes_a_positional_head(behind):
    length, eps = 24, 0.01
    squared = norm_for_position(1.0, length, eps, scale=2**-0.5)
    psi = torch.tensor([squared**0.5, 0.0], dtype=torch.float64)
    q = psi.expand(1, 1, length, 2)
    k = rw.RoPE(2).rotate(q, q, torch.full((length,), behind))[1]
    weights = rw.attend(rw.RoPE(2)(rw.Attention(q, k, k)), backend="dense", return_weights=True)[1][0, 0]
    on_target = weights.diagonal(-behind)[1 - behind :]
    assert (on_target > 1 - eps).all()
    assert norm_for_position(0.014, 24, eps) > 100 * norm_for_position(1.0, 24, eps)  # fast planes need less
    assert norm_for_position(0.0, 24, eps) == math.inf  # a plane that stays tells nothing
    for bad in ({"epsilon": 0.0}, {"length": 1}, {"scale": 0.0}):
        with pytest.raises(rw.ConfigError):
            norm_for_position(**{"frequency": 1.0, "length": 8, "epsilon": 0.1, **bad})


def test_without_positions_equal_tokens_share_attention():
    bos, x = random(8), random(8, seed=1)
    q = torch.stack([bos, x, x])[None, None]
    k = torch.stack([bos, x * 3, x * 3])[None, None]
    weights = rw.attend(rw.NoPE()(rw.Attention(q, k, k)), backend="dense", return_weights=True)[1][0, 0]
    assert weights[2, 1] == weights[2, 2] < 0.5


def test_slow_planes_are_no_lasting_channels():
    for distance in range(60):
        found = distractor(0.014, distance, 4000)
        if distance == 0:  # the maximum itself, and no whole number of turns comes back to it
            assert found is None
            continue
        assert found is not None
        assert math.cos(0.014 * found) > math.cos(0.014 * distance)
        assert all(math.cos(0.014 * d) <= math.cos(0.014 * distance) for d in range(distance + 1, found))
    assert distractor(0.014, 0, 4000, phase=-0.7) is not None
    assert distractor(0.014, 10, 11) is None


# ---- what a model uses -----------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self, encoding):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(24, n * 16, dtype=torch.float64) for n in (4, 2, 2))
        self.encoding = encoding

    def forward(self, x, positions=None):
        q, k, v = (m(x).unflatten(-1, (-1, 16)).transpose(1, 2) for m in (self.q, self.k, self.v))
        return x + rw.attend(self.encoding(rw.Attention(q, k, v, positions))).sum((1, -1))[..., None]


def test_usage_of_a_model():
    torch.manual_seed(0)
    blocks = torch.nn.Sequential(*(Block(rw.PRoPEFraction(16)) for _ in range(3)))
    batches = [random(2, 7, 24), random(3, 5, 24, seed=1)]
    by_projection = [{"q": b.q, "k": b.k, "v": b.v} for b in blocks]
    with FrequencyUsage([b.encoding for b in blocks], 16) as one, FrequencyUsage(by_projection, 16) as other:
        inputs = [x for x in batches if blocks(x) is not None]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in blocks.modules())
    for name, heads in (("q", 4), ("k", 2), ("v", 2)):
        assert getattr(one, name).shape == (3, heads, 8)
        close(getattr(one, name), getattr(other, name))
    first = [blocks[0].q(x).unflatten(-1, (-1, 2, 8)) for x in inputs]
    want = torch.cat([z.square().sum(-2).sqrt().mean(1) for z in first]).mean(0)
    close(one.q[0], want)


def test_usage_leaves_padding_out():
    torch.manual_seed(0)
    block, x = Block(rw.PRoPEFraction(16)), random(2, 7, 24)
    valid = torch.ones(2, 7, dtype=torch.bool)
    valid[:, :3] = False
    with FrequencyUsage([block.encoding], 16) as padded:
        block(x, rw.Positions.arange(7, valid=valid))
    with FrequencyUsage([block.encoding], 16) as alone:
        block(x[:, 3:])
    close(padded.q, alone.q)
    close(padded.k, alone.k)


def test_usage_errors():
    with pytest.raises(rw.ConfigError, match="layer 0"):
        FrequencyUsage([torch.nn.Linear(2, 2)], 16)
    with pytest.raises(rw.ConfigError, match="layer 0"):
        FrequencyUsage([{"query": torch.nn.Linear(2, 2)}], 16)
    with pytest.raises(rw.ConfigError, match="nothing was recorded"):
        _ = FrequencyUsage([rw.RoPE(8)], 8).q
    with pytest.raises(rw.ShapeError, match="no pairs"):
        pair_norms(random(1, 1, 2, 3), "half")
    line = torch.nn.Linear(2, 12)
    with FrequencyUsage([{"q": line}], 8), pytest.raises(rw.ShapeError, match="heads"):
        line(torch.zeros(1, 3, 2))
