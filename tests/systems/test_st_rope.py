"""ST-RoPE and the SMS loss of EVA02-AT (arXiv 2506.14356)."""

from __future__ import annotations

import math

import pytest
import torch
from reference import DOUBLE, SINGLE, attend, close, golden, logits, problem, random

import ropewalk as rw
from ropewalk.core.errors import ConfigError, NotCausal, PositionError, ShapeError
from ropewalk.lab.sms_loss import SMSLoss, mean_average_precision, ndcg
from ropewalk.rotary.st_rope import ClipPositionEmbedding, JointSpaceTimeAttention

CASES = golden("005")
ROTATIONS = [name for name in CASES if name.startswith("st-rope")]


def clip(case):
    p = case.params
    return rw.clip_positions(
        p["frames"], *p["grid"], reference=p["ref_grid"], original_frames=p["original_clip_length"], num_prefix=1
    )


# ---- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROTATIONS)
def test_golden(name):
    case = CASES[name]
    made = rw.STRoPE(case.params["head_dim"], case.params["base"])
    where = clip(case)
    angles = made.angles(where.query.position.double())[0]
    assert bool((angles[0] == 0).all())
    close(angles[1:], case.outputs["total_angles"], DOUBLE)
    q, k = case.inputs["q"], case.inputs["k"]
    p = made(rw.Attention(q, k, k, where, causal=False))
    close(p.q, case.outputs["q_rot"], DOUBLE)
    close(p.k, case.outputs["k_rot"], DOUBLE)
    close(logits(p), case.outputs["scores_scaled"], DOUBLE)


def test_golden_loss():
    case = CASES["sms-loss-n4"]
    loss = SMSLoss(case.params["margin"], case.params["thres"])
    inputs = case.inputs["text"], case.inputs["video"], case.inputs["relevancy_video_by_text"].T
    assert loss(*inputs).item() == pytest.approx(case.outputs["loss_float64_transcription"], rel=1e-9)
    assert loss(*(t.float() for t in inputs)).item() == pytest.approx(case.outputs["loss"], rel=SINGLE)


# ---- properties of the sheet -----------------------------------------------------------------------------------------


def test_one_frame_is_the_image_encoder():
    """The axial rotation of 2-D positions, h on the first half of the pairs."""
    where = rw.clip_positions(1, 2, 5, num_prefix=0)
    p = problem(b=1, s=10, d=8, positions=where, causal=False)
    flat = rw.Positions(where.query.position[..., 1:])
    close(attend(rw.STRoPE(8), p), attend(rw.AxialRoPE(8, pairing="interleaved"), p.replace(positions=flat)))


def test_frames_of_one_cell_are_rope():
    p = problem(b=1, d=8, positions=rw.clip_positions(7, 1, 1, num_prefix=0), causal=False)
    close(attend(rw.STRoPE(8), p), attend(rw.RoPE(8), p.replace(positions=None)))


def test_angles_add_up_and_nothing_else_changes():
    where = rw.clip_positions(3, 2, 5)
    p = problem(b=1, s=31, d=8, positions=where, causal=False)
    made = rw.STRoPE(8)
    both = made(p)
    only = [where.query.position * torch.tensor(keep) for keep in ([0, 1, 1], [1, 0, 0])]
    one = made(p.replace(positions=rw.Positions(only[0])))
    two = made(one.replace(positions=rw.Positions(only[1])))
    close(both.q, two.q)
    close(both.k, two.k)
    assert torch.equal(both.q[:, :, 0], p.q[:, :, 0])  # CLS
    assert torch.equal(both.v, p.v)


def test_scores_depend_on_three_differences_and_are_no_sum():
    made = rw.STRoPE(8)
    q = random(8)
    k = random(8, seed=1)

    def score(t, row, column, at=(0, 0, 0)):
        where = rw.Positions(torch.tensor([[at, (at[0] + t, at[1] + row, at[2] + column)]], dtype=torch.float64))
        qk = torch.stack([q, k])[None, None]
        return logits(made(rw.Attention(qk, qk, qk, where, causal=False)))[0, 0, 0, 1]

    close(score(2, 1, 3), score(2, 1, 3, at=(5, -7, 2.5)))
    mixed = score(2, 2, 0) - score(2, 0, 0) - score(0, 2, 0) + score(0, 0, 0)
    assert mixed.abs() > 1e-3


def test_a_grid_of_reference_keeps_the_range():
    small, large = (rw.clip_positions(2, n, 2 * n, reference=(8, 16)).query.position for n in (4, 8))
    assert (small[0, 2, 2] - small[0, 1, 2]).item() == 2 * (large[0, 2, 2] - large[0, 1, 2]).item() == 2
    half = rw.clip_positions(4, 1, 1, original_frames=2, num_prefix=0).query.position[0, :, 0]
    assert half.tolist() == [0, 0.5, 1, 1.5]


def test_joint_attention_by_hand():
    torch.manual_seed(0)
    made = JointSpaceTimeAttention(16, 2).double()
    where = rw.clip_positions(2, 1, 3)
    x = random(2, 7, 16)
    q, k, v = (f(x).unflatten(-1, (2, 8)).transpose(1, 2) for f in (made.q, made.k, made.v))
    p = rw.STRoPE(8)(rw.Attention(q, k, v, where, causal=False))
    q, k = p.q, p.k
    out = ((q @ k.mT / math.sqrt(8)).softmax(-1) @ v).transpose(1, 2).flatten(2)
    close(made(x, where), made.out(made.norm(out)))
    assert made.k.bias is None


def test_added_embeddings():
    torch.manual_seed(0)
    made = ClipPositionEmbedding(4, 2, 3, 5).double()
    out = made(torch.zeros(1, 13, 5, dtype=torch.float64), 2)[0]
    close(out[0], made.cls[0])
    close(out[1 + 6 + 4], made.space[4] + made.time[1])
    with pytest.raises(PositionError, match="5 frames and 4 vectors"):
        made(torch.zeros(1, 31, 5), 5)
    with pytest.raises(ShapeError, match=r"1 \+ 12"):
        made(torch.zeros(1, 12, 5), 2)


def test_bad_input():
    with pytest.raises(ConfigError, match="multiple of 4"):
        rw.STRoPE(6)
    with pytest.raises(NotCausal, match="causal=False"):
        rw.STRoPE(8)(problem(b=1, positions=rw.clip_positions(7, 1, 1, num_prefix=0)))
    with pytest.raises(ConfigError, match="frames"):
        rw.clip_positions(0, 2, 3)
    with pytest.raises(ConfigError, match="reference is"):
        rw.clip_positions(1, 2, 3, reference=(4,))


# ---- the loss --------------------------------------------------------------------------------------------------------

EYE = torch.eye(2, dtype=torch.float64)
VIDEO = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
UNEVEN = torch.tensor([[1.0, 0.25], [0.75, 1.0]], dtype=torch.float64)


def test_the_loss_reads_relevance_by_text():
    assert SMSLoss()(EYE, VIDEO, UNEVEN).item() == pytest.approx(0.075)
    assert SMSLoss()(EYE, VIDEO, UNEVEN.T).item() == pytest.approx(0)
    assert SMSLoss()(VIDEO, EYE, UNEVEN.T).item() == pytest.approx(0.075)


def test_special_cases_of_the_loss():
    text, video = random(5, 4), random(5, 4, seed=1)
    s = torch.nn.functional.normalize(text, dim=-1) @ torch.nn.functional.normalize(video, dim=-1).T
    off = ~torch.eye(5, dtype=torch.bool)
    gaps = [(m.diagonal()[:, None] - m)[off] for m in (s, s.T)]
    identity = torch.eye(5, dtype=torch.float64)
    ranking = torch.cat([(0.6 - g).relu() for g in gaps]).mean()
    close(SMSLoss()(text, video, identity), ranking)
    alike = torch.cat([(g.abs() - 0.1).relu() for g in gaps]).mean()
    close(SMSLoss()(text, video, torch.ones_like(identity)), alike)
    above = torch.cat([(0.5 * 0.6 + g).relu() for g in gaps]).mean()  # all others are more relevant
    close(SMSLoss()(text, video, torch.ones_like(identity), weight=torch.full((5,), 0.5)), above)


def test_the_loss_is_in_float32_at_least():
    text, video = random(5, 4).bfloat16(), random(5, 4, seed=1).bfloat16()
    identity = torch.eye(5)
    with torch.autocast("cpu", torch.bfloat16):
        got = SMSLoss()(text, video, identity)
    assert got.dtype == torch.float32
    close(got, SMSLoss()(text.double(), video.double(), identity), 1e-6)


@pytest.mark.parametrize(
    ("sizes", "relevance", "error"),
    [
        ((3, 2), torch.full((3, 3), 1.5), ConfigError),
        ((3, 2), torch.full((3, 3), float("nan")), ConfigError),
        ((3, 2), torch.ones(3, 2), ShapeError),
        ((1, 2), torch.ones(1, 1), ShapeError),
    ],
)
def test_what_the_loss_refuses(sizes, relevance, error):
    with pytest.raises(error):
        SMSLoss()(random(*sizes), random(*sizes), relevance)


# ---- retrieval -------------------------------------------------------------------------------------------------------


def test_retrieval_by_hand():
    scores = torch.tensor([[0.9, 0.8, 0.7, 0.1], [0.1, 0.2, 0.3, 0.4], [1.0, 2.0, 3.0, 4.0]])
    relevance = torch.tensor([[1.0, 0.0, 1.0, 0.5], [0.0, 1.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert mean_average_precision(scores, relevance) == pytest.approx(((1 + 2 / 3) / 2 + 1 / 3) / 2)
    log = math.log2
    first = (1 + 1 / log(4)) / (1 + 1 / log(3) + 0.5 / log(4))
    second = (0.5 / log(3)) / (1 + 0.5 / log(3))
    assert ndcg(scores, relevance) == pytest.approx((first + second) / 2)
    assert mean_average_precision(scores, torch.zeros(3, 4)) is None
    assert ndcg(scores, torch.zeros(3, 4)) is None
    with pytest.raises(ConfigError, match="finite"):
        ndcg(scores * float("nan"), relevance)


@pytest.mark.slow
def test_graded_relevance_orders_better_than_pairs_alone():
    """Features learned from graded labels rank graded items better than those learned from the pairs alone."""
    place = torch.arange(12.0) / 12
    apart = (place[:, None] - place).abs()
    relevance = (1 - 3 * torch.minimum(apart, 1 - apart)).clamp(min=0)
    found = {}
    for name, labels in (("graded", relevance), ("pairs", torch.eye(12))):
        torch.manual_seed(0)
        text, video = (torch.randn(12, 6, requires_grad=True) for _ in range(2))
        optimiser = torch.optim.Adam([text, video], 0.05)
        for _ in range(300):
            optimiser.zero_grad()
            SMSLoss()(text, video, labels).backward()
            optimiser.step()
        with torch.no_grad():
            s = torch.nn.functional.normalize(text, dim=-1) @ torch.nn.functional.normalize(video, dim=-1).T
        found[name] = ndcg(s, relevance)
    assert found["graded"] > found["pairs"] + 0.02, found
