"""An encoding as a module: copied, saved, made on the meta device, used twice, drawn from."""

from __future__ import annotations

import copy
import io
import pickle

import torch
from torch import nn

from ropewalk.testing.compare import Excluded, identical, require
from ropewalk.testing.subjects import LONG, MEDIUM, SHAPE, Subject, in_dtype, outcome
from ropewalk.testing.tokens import drawn


def derived(module: nn.Module) -> set[str]:
    """Names of the buffers that a module makes anew from hyper-parameters."""
    return set(module.__dict__.get("_derived", {}))


def check_memory(s: Subject) -> None:
    """A result depends on the request alone. Finds: a server whose answers depend on what it answered before."""
    layer, causal = s.layer(), s.causals[0]
    x, positions = s.x(MEDIUM), s.positions(layer.encoding, MEDIUM)
    want = layer(x, positions, causal)
    layer(s.x(LONG), s.positions(layer.encoding, LONG, salt=1), causal)
    identical(layer(x, positions, causal), want, "short, long, short again", "the result of the first short one")

    # positions remember tables for all who share them: none of those may be in low precision or lack gradients
    shared = s.positions(layer.encoding, MEDIUM)
    with torch.inference_mode():
        layer(x, shared, causal)
    copy.deepcopy(layer).bfloat16()(x.bfloat16(), shared, causal)
    leaf = x.clone().requires_grad_()
    out = layer(leaf, shared, causal)
    identical(out.detach(), want, "positions used in inference mode and in bfloat16 before", "the same result")
    out.sum().backward()
    require(leaf.grad is not None, "positions used in inference mode before", "gradients", "none")


def check_copies(s: Subject) -> None:
    """Copies and checkpoints are the same encoding. Finds: a saved model that answers otherwise after loading."""
    encoding = s.encoding()
    p = s.problem(encoding, MEDIUM, s.causals[0])
    want = outcome(encoding, p)
    identical(outcome(copy.deepcopy(encoding), p), want, "deepcopy", "the same result")
    identical(outcome(pickle.loads(pickle.dumps(encoding)), p), want, "pickle", "the same result")

    saved = io.BytesIO()
    torch.save(encoding.state_dict(), saved)
    saved.seek(0)
    other = s.encoding(seed=1)
    other.load_state_dict(torch.load(saved, weights_only=True), strict=True)
    identical(outcome(other, p), want, "state dict loaded into another", "the same result")
    for name, module in encoding.named_modules():
        _saves_what_it_must(name or "the encoding", module)

    layers = [encoding.layer(i) for i in range(2)]
    mine, others = ({id(t) for t in layer.parameters()} for layer in layers)
    one = layers[0] is layers[1]  # one encoding for all layers, on purpose
    require(
        one or not mine & others, "layer(0) and layer(1)", "parameters of their own, or one encoding", "shared ones"
    )
    if not drawn(p.where):  # what is drawn may differ by layer, and so may what says which layer it is
        for layer in layers:
            if getattr(layer, "layer_index", None) == getattr(encoding, "layer_index", None):
                identical(outcome(layer, p), want, "layer(i)", "the same result")


def _saves_what_it_must(name: str, module: nn.Module) -> None:
    """What follows from hyper-parameters would be loaded over those of another; what does not would be lost."""
    kept = set(module.state_dict()) & derived(module)
    require(not kept, f"state dict of {name}", "nothing that is derived", sorted(kept))
    loose = module._non_persistent_buffers_set - derived(module)
    require(not loose, f"buffers of {name}", "each in the state dict or made by `derive`", sorted(loose))


def check_meta(s: Subject) -> None:
    """Made on meta, emptied, loaded: the same encoding. Finds: a large model that loads with garbage for frequencies."""
    want = s.encoding(dtype=torch.float32)
    with torch.device("meta"):
        made = s.factory(**SHAPE)
    kinds = {t.device.type for t in (*made.parameters(), *made.buffers())}
    require(kinds <= {"meta"}, "made under torch.device('meta')", "parameters and buffers there", sorted(kinds))
    strict = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(True)  # fills what nobody initialises with NaN
        made = made.to_empty(device="cpu")
    finally:
        torch.use_deterministic_algorithms(strict)
    made.load_state_dict(want.state_dict())
    for causal in s.causals:
        p = in_dtype(s.problem(want, MEDIUM, causal), torch.float32)
        identical(outcome(made, p), outcome(want, p), "to_empty, load_state_dict", "the same result")


def check_draws(s: Subject) -> None:
    """What is random is drawn once. Finds: layers that each see other positions, so that none learns any."""
    encoding, other = s.encoding(), s.encoding(seed=1)
    positions = s.positions(encoding, MEDIUM)
    if not drawn(positions):
        raise Excluded("it draws nothing")
    for drawer in (encoding, other):
        again = s.draw(drawer, positions, salt=1)
        for old, new in ((positions.key.columns, again.key.columns), (positions.key.sequence, again.key.sequence)):
            require(old.keys() == new.keys(), "drawn again", str(sorted(old)), sorted(new))
            for name, first in old.items():
                identical(new[name], first, f"{name}, drawn again", "what was drawn first")
