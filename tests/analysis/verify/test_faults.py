"""A sample of the fault-injection suite; benchmarks/verify.py runs all of it."""

import random

import pytest
import torch
from faults import BF16, FAULTS, FP16, FP32, FP64, Port, largest_change, port_of, run, setting

import ropewalk as rw

DTYPES = [FP32, BF16, FP16, FP64]


def drawn(seed, dtype, *faults):
    r = random.Random(seed)
    for _ in range(300):
        s = setting(r, dtype)
        if s.seq < 5 or not all(f.needs(s) for f in faults):
            continue
        got, right = run(s, port_of(*faults, setting=s)), run(s, Port())
        if largest_change(s, got, right) > 200 or "dtype" in {f.part for f in faults}:
            return s, got
    raise AssertionError(f"no setting shows {faults}")


@pytest.mark.parametrize("number", range(len(FAULTS)), ids=[f.name for f in FAULTS])
def test_a_fault_is_found_and_named(number):
    fault = FAULTS[number]
    allowed = DTYPES if fault.part not in ("precision", "dtype") else [BF16, FP16] if fault.part == "dtype" else [FP32]
    s, got = drawn(f"sample {number}", allowed[number % len(allowed)], fault)
    verdict = rw.verify(got, reference=s.config)
    assert not verdict.same
    assert verdict.errors[0].cause in fault.causes, str(verdict)
    assert verdict.errors[0].sentence and verdict.errors[0].fix


@pytest.mark.parametrize("heads", ["first head alone", "last head not"])
@pytest.mark.parametrize("other", ["base 10000", "scaling ignored", "exponent i/d", "last token at zero"])
def test_heads_that_do_not_turn_are_named_though_the_others_turn_wrongly(heads, other):
    named = {f.name: f for f in FAULTS}
    s, got = drawn(f"{heads} {other}", FP32, named[heads], named[other])
    causes = [f.cause for f in rw.verify(got, reference=s.config).errors]
    assert causes[0] == "heads" and set(causes[1:]) & {"heads", *named[other].causes}


def test_a_cause_comes_before_what_is_only_known_to_differ():
    named = {f.name: f for f in FAULTS}
    s, got = drawn("order", FP32, named["attention factor lost"], named["restart"])
    causes = [f.cause for f in rw.verify(got, reference=s.config).errors]
    assert causes[0] != "positions" and "attention-factor" in causes


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_alarm_for_honest_rounding(dtype):
    for seed in range(12):
        s = setting(random.Random(f"honest {seed}"), dtype)
        verdict = rw.verify(run(s, Port()), reference=s.config)
        assert verdict.same, str(verdict)


@pytest.mark.parametrize("seed", ["0 19", "0 20", "0 82", "0 88", "0 201", "7 256", "8 164"])
def test_no_alarm_where_rounding_errs_one_way(seed):
    """Slow planes round their cos, with an attention factor or not, alike at all tokens, and lose a sine below half a step."""
    first, number = seed.split()
    s = setting(random.Random(f"{first} bf16 right {number}"), BF16)
    verdict = rw.verify(run(s, Port()), reference=s.config)
    assert verdict.same, str(verdict)


PAIRS = [
    ("original length is the new one", "positions doubled", {"original-length", "position-scale"}),
    ("each frequency twice", "positions divided", {"frequency-order", "position-scale"}),
    ("linear in its place", "clamped", {"scaling-type", "position-clamped"}),
    ("scaling inverted", "four share one", {"scaling-inverted", "position-scale", "position-grouped"}),
    ("exponent i/d", "backwards", {"base", "ladder", "position-reversed"}),
    ("scaling ignored", "inv_freq in bf16", {"scaling-ignored", "precision"}),
    ("clamped", "tables in bf16", {"position-clamped", "precision"}),
    ("sin dropped", "positions doubled", {"no-sin"}),
]


@pytest.mark.parametrize(("one", "other", "causes"), PAIRS, ids=[f"{a} + {b}" for a, b, _ in PAIRS])
def test_two_faults_at_once_are_named(one, other, causes):
    named = {f.name: f for f in FAULTS}
    s, got = drawn(f"{one} {other}", FP32, named[one], named[other])
    verdict = rw.verify(got, reference=s.config)
    assert verdict.errors[0].cause in causes, str(verdict)


@pytest.mark.parametrize("seed", ["0 fp16 minus of rotate_half missing 2", "0 fp32 minus of rotate_half missing 2"])
def test_one_head_without_the_minus_sign_blames_nothing_else(seed):
    """Sum and difference of a pair are divided by, and where one is small, rounding shows many times as large."""
    assert causes_of(seed, "minus of rotate_half missing") == ["mirror"]


@pytest.mark.parametrize(
    ("seed", "fault", "other"),
    [
        ("0 fp32 backwards 5", "backwards", None),
        ("0 bf16 last head not rotated twice", "last head not", "rotated twice"),
        ("0 fp16 one pair too few odd base", "one pair too few", "odd base"),
    ],
)
def test_precision_is_not_blamed_for_what_something_else_does(seed, fault, other):
    assert "precision" not in causes_of(seed, fault, *([other] if other else []))


def test_the_other_way_and_shifted_are_two_faults():
    causes = causes_of("0 fp16 sign q one too small", "sign", "q one too small")
    assert causes == ["sign", "position-offset"]


def causes_of(seed, *names):
    """Return the causes for faults in the setting that benchmarks/verify.py draws with this seed."""
    named = {f.name: f for f in FAULTS}
    faults, dtype = [named[n] for n in names], {"fp32": FP32, "bf16": BF16, "fp16": FP16}[seed.split()[1]]
    r = random.Random(seed)
    for _ in range(200):
        s = setting(r, dtype)
        if all(f.needs(s) for f in faults):
            right, got = run(s, Port()), run(s, port_of(*faults, setting=s))
            alone = [largest_change(s, run(s, port_of(f, setting=s)), right) for f in faults]
            if min(*alone, largest_change(s, got, right)) > 12:
                return [f.cause for f in rw.verify(got, reference=s.config).errors]
    raise AssertionError(f"no setting shows {names}")


def test_an_offset_beyond_all_positions_is_none():
    """Angles of slow planes alone stand for positions of any size: such a fit once ended in an overflow."""
    named = {f.name: f for f in FAULTS}
    s, got = drawn("offset", BF16, named["cos and sin exchanged"], named["base times ten"])
    assert not rw.verify(got, reference=s.config).same


def test_a_side_without_a_gain_to_measure_is_no_crash():
    """Half of the heads are turned by tables in bf16, and there is one token, at position 0: nothing has a sure length."""
    r = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 1, 64, generator=r, dtype=torch.float64) for heads in (8, 4))
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    config = {"head_dim": 64, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "rope_scaling": scaling,
              "model_type": "llama", "rope_theta": 500000.0, "max_position_embeddings": 16384}  # fmt: skip
    turned = [x.clone() for x in (q, k)]
    for x in turned:
        x[:, ::2] *= float(torch.tensor(1.1386).bfloat16())
    got = {"q": q, "k": k, "q_rot": turned[0], "k_rot": turned[1], "positions": torch.zeros(1, 1, dtype=torch.long)}
    assert not rw.verify(got, reference=config).same
