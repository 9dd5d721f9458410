"""A tiny FLUX of diffusers learns flat windows of pictures that wrap around, and makes panoramas with SpheRoPE in its place."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch.nn import functional

import ropewalk as rw
from ropewalk.lab.batch import IGNORE
from ropewalk.lab.panorama import seam_score
from ropewalk.lab.panoramas import Panoramas

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    diffusers = pytest.importorskip("diffusers")

from ropewalk.integrations import diffusers as rwd

COLUMNS, WIDTHS, BASE = 26, (8, 8, 8), 16.0  # as in the experiment: fast pairs of width take nearly whole turns


def flux(levels):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = diffusers.FluxTransformer2DModel(
            in_channels=1 + levels,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=sum(WIDTHS),
            num_attention_heads=2,
            joint_attention_dim=8,
            pooled_projection_dim=8,
            axes_dims_rope=WIDTHS,
        )
    model.pos_embed.theta = BASE
    return model


def denoiser(model, workload):
    """Return the model as one of masked cells: levels, and unknown, come in and go out in channels of their own."""

    def forward(batch):
        count = len(batch.tokens)
        return model(
            hidden_states=functional.one_hot(batch.tokens, workload.vocab_size).float(),
            encoder_hidden_states=torch.zeros(count, 1, 8),  # a prompt of one token that says nothing
            pooled_projections=torch.zeros(count, 8),
            timestep=torch.zeros(count),
            img_ids=rw.grid_positions(1, workload.rows, COLUMNS).query.position[0].float(),
            txt_ids=torch.zeros(1, 3),
            return_dict=False,
        )[0]

    return forward


def train(model, workload, steps):
    forward, optimizer = denoiser(model, workload), torch.optim.AdamW(model.parameters(), 3e-3, betas=(0.9, 0.95))
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1, (step + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
        batch = workload.batch(step, 32, 0)
        loss = functional.cross_entropy(forward(batch).flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


@pytest.mark.slow
def test_pictures_of_a_flux_that_has_seen_flat_windows_wrap_around():
    workload = Panoramas(COLUMNS, (COLUMNS,), encoder=True)
    model = flux(workload.levels)
    assert sum(p.numel() for p in model.parameters()) < 1_000_000
    train(model, workload, 400)

    def seams():
        pictures = workload.sample(denoiser(model, workload), COLUMNS, 48, seed=0).double()
        return seam_score(pictures), float(pictures.diff(dim=-1).abs().mean())

    flat, inside = seams()
    with rwd.apply(model, rwd.native(model)):
        native, _ = seams()
    where = rw.layout([rw.Text(1), rw.Video(1, workload.rows, COLUMNS)])
    sphere = rw.SpheRoPE(sum(WIDTHS), WIDTHS, BASE, time_position=0)
    with rwd.apply(model, sphere, positions=lambda _: where):
        wrapped, inside_wrapped = seams()
    assert flat > 2 and native == pytest.approx(flat, rel=0.1)
    assert wrapped < 1.5
    assert inside_wrapped < 1.2 * inside < 1.5  # of noise it is above 2.5
    assert seams()[0] == pytest.approx(flat)  # nothing is left behind
