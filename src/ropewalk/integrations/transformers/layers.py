"""Two implementations of one model, compared layer by layer where they rotate."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from ropewalk.analysis.verify import Finding, Reference, Verdict, verify
from ropewalk.analysis.verify.reference import follows_length, read_reference
from ropewalk.core.errors import ConfigError
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies import rope_layer_types
from ropewalk.functional import convert_pairing
from ropewalk.integrations.transformers.saved import load

ROTATIONS = (
    "apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave", "apply_rotary_emb", "apply_multimodal_rotary_pos_emb",
)  # fmt: skip
"""Functions by which models of transformers rotate q and k."""

Captured = dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class LayerVerdict:
    """One layer of both models.

    Args:
        name: of the attention layer.
        first: the first model's rotation against the first model's configuration.
        second: the second model's rotation against the same.
    """

    name: str
    first: Verdict
    second: Verdict


@dataclass(frozen=True)
class ModelsVerdict:
    """Whether two models rotate alike.

    Args:
        same: every layer of both is what the first configuration says.
        layers: one a layer.
        findings: of the models as wholes.
        logits: largest difference of the logits for the same random tokens.
    """

    same: bool
    layers: tuple[LayerVerdict, ...]
    findings: tuple[Finding, ...]
    logits: float

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "same": self.same,
            "logits": self.logits,
            "findings": [vars(f) for f in self.findings],
            "layers": [{"name": v.name, "first": v.first.as_dict(), "second": v.second.as_dict()} for v in self.layers],
        }

    def __str__(self) -> str:
        lines = ["the models rotate alike" if self.same else "the models do not rotate alike"]
        lines[0] += f" ({len(self.layers)} layers; logits differ by up to {self.logits:.3g})"
        lines += [str(f) for f in self.findings]
        seen: dict[tuple[str, ...], list[str]] = {}
        for layer in self.layers:
            for which, verdict in (("first", layer.first), ("second", layer.second)):
                if not verdict.same:
                    seen.setdefault((which, *map(str, verdict.errors)), []).append(layer.name)
        for (which, *errors), names in seen.items():
            where = names[0] if len(names) == 1 else f"{len(names)} layers, {names[0]} to {names[-1]}"
            lines += [f"{which} model, {where}:", *("  " + line for text in errors for line in text.splitlines())]
        return "\n".join(lines)


def verify_models(first: str | Path, second: str | Path, *, tokens: int = 64, seed: int = 0) -> ModelsVerdict:
    """Run the same random tokens through two checkpoints, and verify the rotation of every layer.

    Both are compared with the configuration of the first one. Where pairings differ, the weights of the second must be
    permuted accordingly, which is seen in q of the first layer.

    Args:
        first: a folder with config.json and *.safetensors.
        second: likewise.
        tokens: length of the text.
        seed: of the tokens.

    Raises:
        ConfigError: a folder that cannot be loaded, models of other shapes, or that rotate in a way not known here.
    """
    models = [load(path, dtype=torch.float32).eval() for path in (first, second)]
    sizes = [int(m.config.get_text_config().vocab_size) for m in models]
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"the models have {sizes[0]} and {sizes[1]} tokens in their vocabularies: they are not one model"
        )
    ids = torch.randint(0, sizes[0], (1, tokens), generator=torch.Generator().manual_seed(seed))
    captured, logits = zip(*(capture(m, ids) for m in models), strict=True)
    names = [list(c) for c in captured]
    if len(names[0]) != len(names[1]):
        raise ConfigError(f"the models rotate in {len(names[0])} and {len(names[1])} layers: they are not one model")
    configs = [m.config.get_text_config() for m in models]
    findings, layers = [], []
    pairing, note = _pairing(configs, captured, tokens)
    if note is not None:
        findings.append(note)
    for i, (a, b) in enumerate(zip(*names, strict=True)):
        wanted = _reference(configs[0], i, tokens)
        other = wanted if pairing is None else replace(wanted, pairing=pairing)
        layers.append(LayerVerdict(a, verify(captured[0][a], wanted), verify(captured[1][b], other)))
    apart = float((logits[0] - logits[1]).abs().max()) if logits[0].shape == logits[1].shape else float("inf")
    same = all(v.first.same and v.second.same for v in layers) and not any(f.severity == "error" for f in findings)
    return ModelsVerdict(same, tuple(layers), tuple(findings), apart)


def capture(model: nn.Module, ids: Tensor) -> tuple[Captured, Tensor]:
    """Return q and k before and after the rotation of each layer, by its name, and the logits.

    The functions that rotate are wrapped for the time of one forward pass; the model is left as it was.
    """
    found: Captured = {}
    current = [""]
    with ExitStack() as stack:
        modules = {sys.modules[type(m).__module__] for m in model.modules()}
        for module in modules:
            for name in ROTATIONS:
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, _recording(getattr(module, name), found, current)))
        stack.enter_context(_following(model, current))
        with torch.no_grad():
            out = model(input_ids=ids, use_cache=False)
    if not found:
        raise ConfigError(
            f"{type(model).__name__} rotates by none of {', '.join(ROTATIONS)}; save q, k, q_rot, k_rot and verify the dump"
        )
    positions = torch.arange(ids.shape[1])
    return {name: {**tensors, "positions": positions} for name, tensors in found.items()}, getattr(
        out, "logits", out[0]
    )


@contextmanager
def _following(model: nn.Module, current: list[str]) -> Iterator[None]:
    """Keep track of which attention layer is running."""

    def enter(name: str) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            current[0] = name

        return hook

    handles = [
        m.register_forward_pre_hook(enter(n)) for n, m in model.named_modules() if "Attention" in type(m).__name__
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _recording(fn: Any, found: Captured, current: list[str]) -> Any:
    def record(q: Tensor, k: Tensor, *args: Any, **kwargs: Any) -> Any:
        before = q.clone(), k.clone()
        out = fn(q, k, *args, **kwargs)
        names = ("q", "k", "q_rot", "k_rot")
        found.setdefault(current[0], dict(zip(names, (*before, out[0].clone(), out[1].clone()), strict=True)))
        return out

    return record


def _reference(config: Any, layer: int, tokens: int) -> Reference:
    kinds = rope_layer_types(config)
    kind = config.layer_types[layer] if kinds else None
    length = float(tokens) if follows_length(config, kind) else None
    return read_reference(config, layer_type=kind, length=length)


def _pairing(
    configs: Sequence[Any], captured: Sequence[Captured], tokens: int
) -> tuple[Pairing | None, Finding | None]:
    """Return the pairing that the second model must have, and what is odd about it."""
    first, second = (_reference(c, 0, tokens) for c in configs)
    a, b = (next(iter(c.values()))["q"] for c in captured)
    if a.shape != b.shape:
        raise ConfigError(f"q of the first layers is {tuple(a.shape)} and {tuple(b.shape)}: they are not one model")
    near = 1e-3 * float(a.abs().max())
    if torch.allclose(a, b, rtol=1e-3, atol=near):
        return None, None
    other: Pairing = "interleaved" if first.pairing == "half" else "half"
    if first.start == 0:
        rows = a.permute(1, 3, 0, 2)
        moved = convert_pairing(rows.flatten(0, 1), rows.shape[0], first.pairing, other, rotary_dim=first.width)
        if torch.allclose(moved.view_as(rows).permute(2, 0, 3, 1), b, rtol=1e-3, atol=near):
            text = f"q of the second model is that of the first with its rows permuted to {other} pairs"
            return other, Finding("permuted", text, severity="note")
    return second.pairing, Finding(
        "weights", "q of the first layers differs before the rotation: the models have other weights", severity="note"
    )
