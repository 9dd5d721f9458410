"""Losses in pieces are the losses of one pass, and positions with gaps are no packed documents."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from tiny import llama
from torch.nn import functional

from ropewalk.integrations.transformers.apply import apply
from ropewalk.lab.batch import IGNORE
from ropewalk.lab.errors import TrialError
from ropewalk.lab.extend import losses
from ropewalk.lab.extend.losses import predictions, token_losses
from ropewalk.lab.extend.recipes import RECIPES

families = importlib.util.spec_from_file_location(
    "hf_families", Path(__file__).parents[2] / "integrations" / "transformers" / "hf_families.py"
)
hf = importlib.util.module_from_spec(families)
families.loader.exec_module(hf)


@pytest.mark.parametrize("name", ["llama2", "gemma2", "gemma3", "cohere", "gpt_neox", "phi3", "deepseek_v3", "gpt_oss"])
def test_in_pieces(name, monkeypatch):
    """Also where a cap or a scale follows the output embeddings."""
    model = hf.model(name)
    tokens = hf.tokens(2, 13)
    targets = tokens[:, 1:].clone()
    targets[0, :5] = IGNORE
    with torch.no_grad():
        logits = model(tokens[:, :-1]).logits.float()
        whole = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="none")
        monkeypatch.setattr(losses, "CHUNK", 64 * 4)
        pieces = token_losses(model, tokens[:, :-1], targets)
        loss, margin = predictions(model, tokens[:, :-1], targets)
    wanted = whole.view(targets.shape)[targets != IGNORE]
    assert len(pieces) == 19
    torch.testing.assert_close(pieces, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-5)
    kept = logits[targets != IGNORE]
    assert torch.equal(margin > 0, kept.argmax(-1) == targets[targets != IGNORE])
    assert bool((margin <= kept.amax(-1) - kept.amin(-1)).all())
    assert not [m for m in model.modules() if isinstance(m, losses._Given)]


def test_gradients_in_pieces(monkeypatch):
    tokens = torch.randint(256, (2, 17), generator=torch.Generator().manual_seed(0))
    whole, pieces = llama(), llama()
    logits = whole(tokens[:, :-1]).logits
    functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    monkeypatch.setattr(losses, "CHUNK", 257 * 5)
    token_losses(pieces, tokens[:, :-1], tokens[:, 1:]).mean().backward()
    for (name, a), b in zip(whole.named_parameters(), pieces.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("change", [None, "linear(factor=2)", "rope"])
@pytest.mark.parametrize("recipe", ["endprompt", "pose"])
def test_positions_with_a_gap_are_one_text(recipe, change):
    model = llama().eval()
    if change is not None:
        apply(model, change)
    tokens = torch.randint(256, (1, 33), generator=torch.Generator().manual_seed(0))
    where = RECIPES[recipe].positions(1, 32, 8, 128, torch.Generator().manual_seed(3))
    assert (where.diff() > 1).any()
    with torch.no_grad():
        before = token_losses(model, tokens[:, :-1], tokens[:, 1:], where)
        tokens[0, 0] = (tokens[0, 0] + 1) % 256
        after = token_losses(model, tokens[:, :-1], tokens[:, 1:], where)
        plain = token_losses(model, tokens[:, :-1], tokens[:, 1:])
    assert abs(float(before[-1] - after[-1])) > 1e-6  # the last token sees the first one, across the gap
    assert not torch.allclose(after, plain)


def test_a_model_that_gives_no_numbers():
    model = llama()
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    tokens = torch.zeros(1, 4, dtype=torch.long)
    with torch.no_grad(), pytest.raises(TrialError, match="not finite"):
        token_losses(model, tokens, tokens)


class TestRecipes:
    """Where the tokens of a sequence stand."""

    def test_endprompt(self):
        (row,) = RECIPES["endprompt"].positions(1, 100, 20, 400, torch.Generator())
        assert row[:80].tolist() == list(range(80)) and row[80:].tolist() == list(range(380, 400))
        same = RECIPES["endprompt"].positions(1, 100, 20, 100, torch.Generator())
        assert same[0].tolist() == list(range(100))

    def test_pose(self):
        rows = RECIPES["pose"].positions(200, 16, 4, 64, torch.Generator().manual_seed(0))
        assert (rows.diff() >= 1).all() and (rows[:, 0] == 0).all() and rows.max() <= 63
        assert ((rows.diff() > 1).sum(1) <= 1).all()
        assert rows[:, -1].max() == 63 and rows[:, -1].min() < 20  # skips reach from none to all of the context

    def test_all_are_functions_of_the_generator(self):
        for recipe in RECIPES.values():
            a, b = (recipe.positions(3, 32, 8, 128, torch.Generator().manual_seed(5)) for _ in range(2))
            assert torch.equal(a, b)
