"""Which rotary plane a model takes position from, and what it loses without it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ropewalk.analysis.pairs import planes
from ropewalk.core.encoding import Rotary
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.core.positions import Chain, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum

How = Literal["still", "drop"]


def band_norms(q: Tensor, k: Tensor, pairing: Pairing = "half") -> Tensor:
    """mean_t |q_tm| |k_tm|, (H, P): how strong each plane is in each query head, turned or not.

    Args:
        q: (B, H, S, 2P).
        k: (B, H_kv, S, 2P), of the same tokens.
        pairing: of the channels.
    """
    if q.ndim != 4 or k.ndim != 4 or q.shape[2:] != k.shape[2:] or q.shape[0] != k.shape[0] or q.shape[1] % k.shape[1]:
        raise ShapeError(
            f"q {tuple(q.shape)} and k {tuple(k.shape)}; expected (B, H, S, d) and (B, H_kv, S, d) of the same tokens"
        )
    sizes = [planes(x, pairing).abs() for x in (q, k)]
    return (sizes[0] * sizes[1].repeat_interleave(q.shape[1] // k.shape[1], 1)).mean((0, 2))


def positional_band(
    q: Tensor | Sequence[Tensor],
    k: Tensor | Sequence[Tensor],
    spectrum: Spectrum,
    train_length: float,
    *,
    pairing: Pairing = "half",
    least_turns: float = 1 / 8,
) -> int:
    """Return the plane whose `band_norms` are largest, averaged over heads and layers, counted from 0.

    Planes that hardly turn in the training context are content and left out. The rule is ours; `leave_one_band_out` is the
    check of it.

    Args:
        q: of one layer (B, H, S, 2P), or one a layer.
        k: likewise.
        spectrum: P frequencies.
        train_length: tokens of the training context.
        pairing: of the channels.
        least_turns: turns in the training context from which a plane counts as positional.
    """
    layers = [(q, k)] if isinstance(q, Tensor) and isinstance(k, Tensor) else list(zip(q, k, strict=True))
    mean = torch.stack([band_norms(a, b, pairing).mean(0) for a, b in layers]).mean(0)
    if len(mean) != len(spectrum.inv_freq):
        raise ShapeError(f"{len(mean)} planes in q and k, and {len(spectrum.inv_freq)} frequencies")
    turning = torch.tensor(spectrum.turns(train_length), device=mean.device) >= least_turns
    if not bool(turning.any()):
        raise ConfigError(f"no plane makes {least_turns} turns in {train_length} tokens, so none is positional")
    return int(mean.masked_fill(~turning, -torch.inf).argmax())


def leave_one_band_out(
    model: nn.Module,
    loss: Callable[[], float | Tensor],
    bands: Iterable[int] | None = None,
    how: How = "still",
) -> dict[int, float]:
    """Return by how much the loss rises without each plane, in the whole model.

    Args:
        model: holds `Rotary` encodings.
        loss: computes the loss of the model as it is then, on whatever data.
        bands: planes to try; None: all.
        how: see `without_bands`.
    """
    with torch.no_grad():
        whole = float(loss())
        rises = {}
        for band in range(_planes(model)) if bands is None else bands:
            with without_bands(model, [band], how):
                rises[band] = float(loss()) - whole
    return rises


@contextlib.contextmanager
def without_bands(model: nn.Module, bands: Iterable[int], how: How = "still") -> Iterator[None]:
    """Let planes stand still in every `Rotary` encoding of a model, or leave them out of the logits, for the duration.

    Keys that were cached before were turned with all planes.

    Args:
        model: holds `Rotary` encodings; those with fewer planes keep what they have.
        bands: the planes, counted from 0.
        how: "still": frequency 0, so that the plane compares contents; "drop": its products are taken off the logits.
    """
    chosen, count = sorted(set(bands)), _planes(model)
    if how not in ("still", "drop"):
        raise ConfigError(f"how is 'still' or 'drop'; got {how!r}")
    if any(isinstance(b, bool) or not isinstance(b, int) or not 0 <= b < count for b in chosen):
        raise ConfigError(f"bands {chosen} of a model with {count} planes; they are counted from 0")
    changed = [m for m in model.modules() if isinstance(m, Rotary)]
    for module in changed:
        module.key()  # remembers its hyper-parameters, of which the change is none
        vars(module)["tables"] = _without(module, chosen, how)
    try:
        yield
    finally:
        for module in changed:
            del vars(module)["tables"]


def _without(
    module: Rotary, bands: list[int], how: How
) -> Callable[[Tokens, Chain, torch.dtype], tuple[Tensor, Tensor]]:
    whole = module.tables

    def tables(tokens: Tokens, chain: Chain, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        cos, sin = whole(tokens, chain, dtype)
        out = torch.zeros(cos.shape[-1], dtype=torch.bool, device=cos.device)
        out[[b for b in bands if b < len(out)]] = True
        left = module.magnitude if how == "still" else 0.0
        return cos.masked_fill(out, left), sin.masked_fill(out, 0.0)

    return tables


def _planes(model: nn.Module) -> int:
    """Planes of the encoding that has most."""
    counts = []
    for module in model.modules():
        if isinstance(module, Rotary):
            shape = (1, 1) if module.axes is None else (1, 1, module.axes)
            device = next((t.device for t in (*module.buffers(), *module.parameters())), None)
            counts.append(module.angles(torch.zeros(shape, dtype=torch.float64, device=device)).shape[-1])
    if not counts:
        raise ConfigError("the model holds no Rotary encoding")
    return max(counts)
