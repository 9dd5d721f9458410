"""Randomised positional encodings (arXiv 2305.16843)."""

from __future__ import annotations

import pytest
import torch
from reference import (
    DOUBLE,
    SINGLE,
    added,
    attend,
    close,
    decoded,
    differ,
    golden,
    heads_first,
    logits,
    problem,
    random,
    triangle,
)

import ropewalk as rw
from ropewalk import RandomizedPositions
from ropewalk.bias.transformer_xl import RandomizedRelative
from ropewalk.embedding.randomized import randomized_learned, randomized_sinusoidal
from ropewalk.rotary.randomized_rope import randomized_rope

CASES = golden("108")


def carrying(n, **facts):
    """Positions that carry these samples."""
    tokens = rw.Positions.arange(n).query
    return rw.Positions(tokens.with_sequence(**{k: torch.as_tensor(v).sort().values[None] for k, v in facts.items()}))


def relative(case, cls=rw.TransformerXL, **options):
    heads, d = case.inputs["content_bias"].shape
    made = cls(heads, d, base=case.params["max_time"], **options).double()
    made.u.data, made.v.data = case.inputs["content_bias"], case.inputs["relative_bias"]
    made.weight.data = case.inputs["W_rel"]
    return made


def relative_problem(case, **fields):
    q, k = (heads_first(case.inputs[n]) for n in "qk")
    return rw.Attention(q, k, k, scale=1.0, causal=False, **fields)


def sample_of(positions, name="randomized"):
    return positions.query.sequence[name]


# ---- golden values ---------------------------------------------------------------------------------------------------


def test_golden_sinusoids_of_both_signs():
    case = CASES["sinusoid_4_6_negTrue"]
    n, d = case.params["n"], case.params["D"]
    got = rw.Sinusoidal(d, layout="halves").table(torch.arange(-n, n).double())
    close(got, case.outputs["pe"], DOUBLE)


def test_golden_rope():
    case = CASES["noisy_rope"]
    x, sample = heads_first(case.inputs["x"]), case.inputs["sampled_unsorted"]
    made = randomized_rope(8, case.params["noise_max_length"], base=case.params["base"], scope="per_forward")
    for turned in made.rotate(x, x, carrying(5, randomized=sample)):
        close(turned, heads_first(case.outputs["x_rot"]), SINGLE)


def test_golden_alibi():
    case = CASES["noisy_alibi_sym"]
    h, n = case.params["heads"], case.params["n"]
    made = rw.RandomizedALiBi(h, case.params["noise_max_length"], scope="per_forward")
    p = problem(h=h, s=n, causal=False, positions=carrying(n, distances=case.inputs["symmetric"]))
    close(added(made, p), case.outputs["bias"].expand(2, h, n, n), DOUBLE)
    causal = added(made, p.replace(causal=True))  # our extension: the same bias under the causal mask
    close(causal, case.outputs["bias"].expand(2, h, n, n), DOUBLE, where=triangle(n))


def test_golden_alibi_with_a_table_a_side():
    case = CASES["noisy_alibi_both"]
    h, n = case.params["heads"], case.params["n"]
    made = rw.RandomizedALiBi(h, case.params["noise_max_length"], scope="per_forward", both_sides=True)
    at = carrying(n, **{"distances": case.inputs["left"], "distances.1": case.inputs["right"]})
    p = problem(h=h, s=n, causal=False, positions=at)
    close(added(made, p), case.outputs["bias"].expand(2, h, n, n), DOUBLE)


def test_golden_relative():
    case = CASES["relative_plain"]
    close(logits(relative(case)(relative_problem(case))), case.outputs["logits_unscaled"], SINGLE)


@pytest.mark.parametrize(("name", "bug"), [("noisy_relative_intended", False), ("noisy_relative_released_code", True)])
def test_golden_randomised_relative(name, bug):
    case = CASES[name]
    assert case.params["bug_compatible"] is bug
    span, n = case.params["noise_max_length"], case.inputs["q"].shape[1]
    made = relative(case, RandomizedRelative, span=span, scope="per_forward", bug_compatible=bug)
    p = relative_problem(case, positions=carrying(n, distances=case.inputs["right_indexes"]))
    close(logits(made(p)), case.outputs["logits_unscaled"], SINGLE)


def test_golden_causal_relative():
    """The released causal path gives offset −r the sinusoids of n − 1 − r, which changes with n; ours are those of −r."""
    quirky, plain = CASES["relative_plain_causal_released_code"], CASES["relative_plain"]
    made, p = relative(quirky), relative_problem(quirky).replace(causal=True)
    n = p.q.shape[2]
    seen = triangle(n)
    close(logits(made(p)), plain.outputs["logits_unscaled"], SINGLE, where=seen)
    made.bug_compatible = True
    close(logits(made(p)), quirky.outputs["logits_unscaled"], SINGLE, where=seen)
    with pytest.raises(rw.Refusal, match="changes with the number of keys"):
        rw.KVCache(made)


def test_a_generator_decides_the_draws():
    def draw(seed):
        positions = RandomizedPositions(500).draw(rw.Positions.arange(6), torch.Generator().manual_seed(seed))
        return positions.query.sequence["randomized"]

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


# ---- a sample of everything is none ----------------------------------------------------------------------------------


def test_full_sample_is_plain_rope():
    p = problem()
    for scope in ("per_forward", "per_layer"):
        assert torch.equal(attend(randomized_rope(8, 7, scope=scope), p), attend(rw.RoPE(8), p))


@pytest.mark.parametrize("both_sides", [False, True])
def test_full_sample_is_plain_alibi(both_sides):
    p = problem(h=3, causal=False)
    plain = rw.ALiBi(3, bidirectional=True, past_discount=0.5)
    close(added(rw.RandomizedALiBi(3, 7, both_sides=both_sides), p), added(plain, p))
    undiscounted = rw.RandomizedALiBi(3, 7, past_discount=0.0)
    close(attend(undiscounted, p.replace(causal=True)), attend(rw.ALiBi(3), p.replace(causal=True)))


@pytest.mark.parametrize("both_sides", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_full_sample_is_plain_relative(causal, both_sides):
    p = problem(h=2, kv=1, causal=causal)
    plain, made = rw.TransformerXL(2, 8).double(), RandomizedRelative(2, 8, 7, both_sides=both_sides).double()
    made.load_state_dict(plain.state_dict())
    close(attend(made, p), attend(plain, p))


def test_full_sample_is_plain_embedding():
    x = random(2, 7, 6)
    assert torch.equal(randomized_sinusoidal(6, 7).embed(x), rw.Sinusoidal(6, layout="halves").embed(x))
    learned, plain = randomized_learned(6, 7), rw.LearnedAbsolute(7, 6)
    list(learned)[1].load_state_dict(plain.state_dict())
    assert torch.equal(learned.embed(x), plain.embed(x))


# ---- the sample ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["per_forward", "per_layer", "per_example"])
def test_samples_rise_within_the_span(scope):
    made = rw.RandomizedPositions(19, scope=scope, seed=1)
    drawn = made.draw(rw.Positions.arange(7, batch=500))
    (sample,) = drawn.query.sequence.values()
    assert sample.shape == (500 if scope == "per_example" else 1, 7)
    assert (sample.diff(dim=-1) >= 1).all()
    assert sample.min() >= 0
    assert sample.max() <= 18
    if scope == "per_example":
        assert sample.unique(dim=0).shape[0] > 400
        assert (sample.flatten().bincount(minlength=19) > 0).all()


def test_distances_rise_from_one():
    made = rw.RandomizedALiBi(2, 19, scope="per_example", seed=1)
    sample = sample_of(made.draw(rw.Positions.arange(7, batch=500)), "distances")
    assert sample.shape == (500, 6)
    assert (sample.diff(dim=-1) >= 1).all()
    assert sample.min() == 1
    assert sample.max() == 18


@pytest.mark.parametrize(("n", "span"), [(5, 20), (7, 7), (1, 64), (12, 2048)])
def test_mean_of_each_order_statistic(n, span):
    rows = 20_000 if span < 1000 else 4000
    made = rw.RandomizedPositions(span, scope="per_example", seed=3)
    sample = sample_of(made.draw(rw.Positions.arange(n, batch=rows))).double()
    want = (torch.arange(n) + 1) * (span + 1) / (n + 1) - 1
    error = sample.std(0) / rows**0.5
    assert ((sample.mean(0) - want).abs() <= 5 * error + 1e-9).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: randomized_rope(8, 6),
        lambda: rw.RandomizedALiBi(4, 6),
        lambda: RandomizedRelative(4, 8, 6),
        lambda: rw.Sequential(rw.RandomizedPositions(6), rw.ALiBi()),
    ],
)
def test_more_tokens_than_positions(make):
    with pytest.raises(rw.PositionError, match=r"7.*6"):
        make()(problem())


def test_more_tokens_than_positions_in_an_embedding():
    for made in (randomized_sinusoidal(6, 6), randomized_learned(6, 6)):
        with pytest.raises(rw.PositionError, match=r"7.*6"):
            made.embed(random(2, 7, 6))


def test_lengths_that_cannot_be():
    with pytest.raises(rw.ConfigError, match=r"40.*31"):
        rw.RandomizedPositions(32, 40)
    with pytest.raises(rw.PositionError, match=r"6.*5"):
        randomized_rope(8, 32, 5)(problem())  # the sample is for 5 tokens, and there are 7
    with pytest.raises(rw.ConfigError):
        rw.RandomizedPositions(32, scope="per_head")


# ---- seeds and scopes ------------------------------------------------------------------------------------------------

MAKERS = {
    "rope": lambda **o: randomized_rope(8, 50, **o),
    "alibi": lambda **o: rw.RandomizedALiBi(4, 50, **o),
    "relative": lambda **o: _seeded_relative(50, **o),
}


def _seeded_relative(span, **options):
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    made = RandomizedRelative(4, 8, span, **options).double()
    torch.random.set_rng_state(state)
    return made


@pytest.mark.parametrize("name", list(MAKERS))
def test_seeds(name):
    p, make = problem(causal=False), MAKERS[name]
    one = make(seed=1)
    assert torch.equal(attend(one, p), attend(make(seed=1), p))
    assert torch.equal(attend(one, p), attend(one, p))
    differ(attend(one, p), attend(make(seed=2), p))


@pytest.mark.parametrize("name", list(MAKERS))
@pytest.mark.parametrize("training", [True, False])
def test_each_forward_draws_anew(name, training):
    p, made = problem(causal=False), MAKERS[name]().train(training)
    torch.manual_seed(5)
    a, b = attend(made, p), attend(made, p)
    differ(a, b)
    torch.manual_seed(5)
    assert torch.equal(attend(made, p), a)


@pytest.mark.parametrize("name", list(MAKERS))
def test_layers_draw_their_own(name):
    p, base = problem(causal=False), MAKERS[name](seed=1, scope="per_layer")
    layers = rw.PerLayer(base, 3)
    differ(attend(layers[0], p), attend(layers[1], p))
    differ(attend(layers[1], p), attend(layers[2], p))
    assert torch.equal(attend(layers[1], p), attend(MAKERS[name](seed=1, scope="per_layer").layer(1), p))
    shared = rw.PerLayer(MAKERS[name](seed=1, scope="per_forward"), 2)
    assert torch.equal(attend(shared[0], p), attend(shared[1], p))


def test_one_forward_shares_what_was_drawn():
    made = rw.PerLayer(randomized_rope(8, 50, scope="per_forward"), 2)
    p = problem()
    drawn = p.replace(positions=made[0].draw(rw.Positions.arange(7)))
    assert torch.equal(attend(made[0], drawn), attend(made[1], drawn))
    assert torch.equal(attend(made[0], drawn), attend(made[0], drawn))


@pytest.mark.parametrize("name", list(MAKERS))
def test_rows_draw_their_own(name):
    p, made = problem(causal=False), MAKERS[name](seed=1, scope="per_example")
    twice = rw.Attention(*(t[:1].expand(2, -1, -1, -1) for t in (p.q, p.k, p.v)), causal=False)
    out = attend(made, twice.replace(positions=rw.Positions.arange(7, batch=2)))
    differ(out[0], out[1])
    whole = attend(MAKERS[name](seed=1, scope="per_forward"), twice.replace(positions=rw.Positions.arange(7, batch=2)))
    close(whole[0], whole[1], 1e-14)


# ---- operators -------------------------------------------------------------------------------------------------------


def test_queries_and_keys_share_the_sample():
    p, made = problem(), randomized_rope(8, 500, scope="per_forward")
    sample = torch.tensor([3, 8, 40, 41, 90, 300, 499])
    got = logits(made(p.replace(positions=carrying(7, randomized=sample))))
    close(got, logits(rw.RoPE(8)(p.replace(positions=rw.Positions(sample)))))
    close(got, logits(rw.RoPE(8)(p.replace(positions=rw.Positions(sample - 3)))), 1e-11)
    q, k = made.rotate(p.q, p.q)
    assert torch.equal(q, k)


@pytest.mark.parametrize("scope", ["per_forward", "per_layer"])
def test_the_last_queries_share_the_sample_of_the_keys(scope):
    p, made = problem(), randomized_rope(8, 500, scope=scope)
    torch.manual_seed(3)
    after = made(rw.Attention(p.k[:, :, -2:], p.k, p.v))
    close(after.q, after.k[:, :, -2:], 1e-15)


@pytest.mark.parametrize("name", ["alibi", "relative"])
@pytest.mark.parametrize("both_sides", [False, True])
def test_bias_is_constant_along_diagonals(name, both_sides):
    p, made = problem(causal=False), MAKERS[name](seed=4, both_sides=both_sides)
    if name == "alibi":
        bias = added(made, p)
    else:  # a query of its own differs; alike queries leave the distances
        alike = rw.Attention(p.q[:, :, :1].expand_as(p.q), p.k[:, :, :1].expand_as(p.k), p.v, causal=False)
        bias = logits(made(alike))
    close(bias[..., 1:, 1:], bias[..., :-1, :-1])
    differ(bias[..., 0, 1], bias[..., 1, 0], 1e-6)
    differ(bias[..., 0, 1], bias[..., 0, 2], 1e-6)


def test_relative_against_the_formula():
    p, made = problem(h=4, kv=2, causal=False), MAKERS["relative"](seed=4, scope="per_forward")
    drawn = made.draw(rw.Positions.arange(7))
    table = torch.cat([torch.zeros(1), sample_of(drawn, "distances")[0]]).double()
    keys = p.k.repeat_interleave(2, 1)
    want = torch.zeros(2, 4, 7, 7, dtype=torch.float64)
    for i in range(7):
        for j in range(7):
            place = torch.sign(torch.tensor(float(j - i))) * table[abs(j - i)]
            angle = place.double() * torch.tensor([10_000.0 ** (-2 * c / 32) for c in range(16)], dtype=torch.float64)
            r = (torch.cat([angle.sin(), angle.cos()]) @ made.weight).unflatten(-1, (4, 8))
            want[:, :, i, j] = ((p.q[:, :, i] + made.u) * keys[:, :, j]).sum(-1) + ((p.q[:, :, i] + made.v) * r).sum(-1)
    close(logits(made(p.replace(positions=drawn))), want * 8**-0.5)


def test_composes_with_other_encodings():
    p = problem()
    sample = torch.tensor([3, 8, 40, 41, 90, 300, 499])
    made = rw.Sequential(rw.RandomizedPositions(500), rw.ALiBi())
    got = logits(made(p.replace(positions=carrying(7, randomized=sample))))
    close(got, logits(rw.ALiBi()(p.replace(positions=rw.Positions(sample)))))


@pytest.mark.parametrize("name", list(MAKERS))
def test_shorter_sequences_use_the_first_entries(name):
    p = problem(s=9)
    made = MAKERS[name](max_length=12, seed=1, scope="per_forward")
    whole = attend(made, p)
    for n in (1, 4, 8):
        part = rw.Attention(*(t[:, :, :n] for t in (p.q, p.k, p.v)))
        close(attend(made, part), whole[:, :, :n])
    (sample,) = made.draw(rw.Positions.arange(3)).query.sequence.values()
    assert sample.shape[-1] == (12 if name == "rope" else 11)


@pytest.mark.parametrize("name", list(MAKERS))
@pytest.mark.parametrize("scope", ["per_forward", "per_layer", "per_example"])
@pytest.mark.parametrize("seed", [1, None])
def test_decoding_is_the_full_pass(name, scope, seed):
    p = problem(s=9, positions=rw.Positions.arange(9, batch=2) if scope == "per_example" else None)
    made = MAKERS[name](max_length=9, seed=seed, scope=scope)
    torch.manual_seed(11)
    whole = attend(made, p)
    torch.manual_seed(11)
    cache, outputs = rw.KVCache(made), []
    for start, stop in ((0, 4), (4, 5), (5, 6), (6, 9)):
        at = rw.Positions.arange(4, batch=2) if scope == "per_example" and start == 0 else None
        step = rw.Attention(*(t[:, :, start:stop] for t in (p.q, p.k, p.v)), at)
        outputs.append(rw.attend(cache.extend(step), backend="dense"))
    close(torch.cat(outputs, 2), whole)


def test_decoding_a_fixed_sample():
    p = problem()
    made = rw.Sequential(rw.RandomizedPositions(100, fixed=(0, 5, 9, 30, 31, 50, 99)), rw.RoPE(8))
    close(decoded(made, p, 3), attend(made, p))


# ---- given positions -------------------------------------------------------------------------------------------------


def test_even_positions():
    made = rw.RandomizedPositions(100, 7, fixed="even")
    want = torch.tensor([0, 16, 33, 50, 66, 82, 99])  # round(linspace(0, 99, 7))
    assert list(made.fixed) == torch.linspace(0, 99, 7, dtype=torch.float64).round().long().tolist() == want.tolist()
    p = problem()
    close(attend(rw.Sequential(made, rw.RoPE(8)), p), attend(rw.RoPE(8), p.replace(positions=rw.Positions(want))))


def test_given_positions_rise():
    p, fixed = problem(), (2, 3, 10, 11, 20, 90, 91)
    made = rw.Sequential(rw.RandomizedPositions(100, fixed=fixed), rw.RoPE(8))
    want = attend(rw.RoPE(8), p.replace(positions=rw.Positions(torch.tensor(fixed))))
    assert torch.equal(attend(made, p), want)
    assert torch.equal(attend(made, p), want)
    with pytest.raises(rw.ConfigError, match="rise"):
        rw.RandomizedPositions(100, fixed=(1, 1, 2))
    with pytest.raises(rw.PositionError):
        rw.Sequential(rw.RandomizedPositions(100, fixed=fixed[:5]), rw.RoPE(8))(p)


def test_a_learned_table_trains_beyond_the_length():
    torch.manual_seed(0)
    made = randomized_learned(6, 64)
    for _ in range(60):
        made.embed(torch.zeros(1, 7, 6)).sum().backward()
    table = list(made)[1]
    assert ((table.weight.grad.abs().sum(-1) > 0).sum() > 55).item()
    assert table.weight.shape == (64, 6)
