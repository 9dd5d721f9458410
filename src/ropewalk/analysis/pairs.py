"""What a model does with each rotary plane: how large it makes it, and what it adds to the logits at each distance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.core.attention import Attention
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import ConfigError, ShapeError, check_positive
from ropewalk.core.rotation import Pairing, check_pairing
from ropewalk.frequencies.spectrum import Spectrum


def planes(x: Tensor, pairing: Pairing) -> Tensor:
    """Return channels (..., 2P) as P complex numbers, one a rotary plane; float32, or float64 for float64."""
    check_pairing(pairing)
    if x.shape[-1] % 2:
        raise ShapeError(f"{x.shape[-1]} channels make no pairs; give the channels that are turned")
    x = x.double() if x.dtype == torch.float64 else x.float()
    a, b = x.chunk(2, -1) if pairing == "half" else (x[..., 0::2], x[..., 1::2])
    return torch.complex(a, b)


def pair_norms(x: Tensor, pairing: Pairing, valid: Tensor | None = None) -> Tensor:
    """mean_t |x_ti|, (B, H, P): how large each plane is. The rotation preserves it, so x may be turned or not.

    |q_i| |k_i| bounds what plane i adds to a logit.

    Args:
        x: (B, H, S, 2P), q, k, or v for comparison.
        pairing: of the channels.
        valid: (B or 1, S), True for tokens that count.
    """
    size = planes(x, pairing).abs()
    if valid is None:
        return size.mean(-2)
    weight = valid[:, None, :, None].to(size.dtype)
    return (size * weight).sum(-2) / weight.sum(-2).clamp(min=1)


class FrequencyUsage:
    """Records `pair_norms` of q, k and v while a model runs, averaged over the batch: (layers, heads, planes) each.

        with FrequencyUsage([block.encoding for block in model.blocks], 64, "half") as usage:
            model(tokens)
        usage.q[3]      # the heads of layer 3

    Large slow planes carry meaning, large fast planes build heads that look at fixed distances; v is the control.

    Args:
        layers: one a layer: a ropewalk encoding (its problems are read before they are encoded), or the modules that make
            the vectors, ``{"q": q_proj, "k": k_proj, "v": v_proj}``, with outputs (batch, seq, heads · head_dim).
        head_dim: width of a head.
        pairing: of the channels.

    Raises:
        ConfigError: something else as a layer.
        ShapeError: outputs that do not divide into heads.

    Source: after Federico Barbero and others, arXiv 2410.06205, 2024.
    """

    def __init__(
        self, layers: Sequence[Encoding | Mapping[str, nn.Module]], head_dim: int, pairing: Pairing = "half"
    ) -> None:
        check_positive(head_dim=head_dim)
        self.head_dim, self.pairing = head_dim, check_pairing(pairing)
        for i, layer in enumerate(layers):
            if not isinstance(layer, Encoding | Mapping) or (
                isinstance(layer, Mapping) and not layer.keys() <= set("qkv")
            ):
                raise ConfigError(f"layer {i} is an encoding, or modules by the names 'q', 'k', 'v'; got {layer!r}")
        self.layers = list(layers)
        self._sums: list[dict[str, Tensor]] = [{} for _ in self.layers]
        self._rows: list[dict[str, int]] = [{} for _ in self.layers]
        self._hooks: list[Any] = []

    def __enter__(self) -> FrequencyUsage:
        for i, layer in enumerate(self.layers):
            if isinstance(layer, Encoding):
                self._hooks.append(layer.register_forward_pre_hook(self._problem(i)))
            else:
                for name, module in layer.items():
                    self._hooks.append(module.register_forward_hook(self._output(i, name)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    @property
    def q(self) -> Tensor:
        """Of the queries."""
        return self._mean("q")

    @property
    def k(self) -> Tensor:
        """Of the keys."""
        return self._mean("k")

    @property
    def v(self) -> Tensor:
        """Of the values, whose channels know no pairs."""
        return self._mean("v")

    def _mean(self, name: str) -> Tensor:
        missing = [i for i, sums in enumerate(self._sums) if name not in sums]
        if missing:
            raise ConfigError(f"nothing was recorded of {name} in layers {missing}; run the model inside `with`")
        return torch.stack([s[name] / n[name] for s, n in zip(self._sums, self._rows, strict=True)])

    @torch.no_grad()
    def _add(self, i: int, name: str, x: Tensor, valid: Tensor | None) -> None:
        norms = pair_norms(x.detach(), self.pairing, valid).sum(0)
        self._sums[i][name] = norms + self._sums[i].get(name, 0.0)
        self._rows[i][name] = x.shape[0] + self._rows[i].get(name, 0)

    def _problem(self, i: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            p = inputs[0]
            if not isinstance(p, Attention):
                raise ConfigError("a problem that was split already; record the encoding that comes first")
            where = p.located().where
            for name, x, side in (("q", p.q, where.query), ("k", p.k, where.key), ("v", p.v, where.key)):
                self._add(i, name, x, side.columns.get("valid"))

        return hook

    def _output(self, i: int, name: str) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], x: Tensor) -> None:
            if x.ndim != 3 or x.shape[-1] % self.head_dim:
                raise ShapeError(
                    f"{name} of layer {i} is {tuple(x.shape)}; expected (batch, seq, heads · {self.head_dim})"
                )
            self._add(i, name, x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2), None)

        return hook


def contributions(q: Tensor, k: Tensor, spectrum: Spectrum, pairing: Pairing = "half") -> Tensor:
    """c_i(m) = mean_n Re q_ni k̄_(n−m)i e^{i m ω_i}, (H, P, S): what plane i adds to the unscaled logits at distance m.

    The planes' curves add up to the mean logit at a distance. The long distances are means of few pairs.

    Args:
        q: (B, H, S, 2P), not turned, tokens at 0 … S − 1.
        k: (B, H_kv, S, 2P), not turned.
        spectrum: P frequencies.
        pairing: of the channels.
    """
    length, n = q.shape[2], len(spectrum.inv_freq)
    if q.shape[2:] != k.shape[2:] or q.shape[-1] != 2 * n or q.shape[1] % k.shape[1]:
        raise ShapeError(f"q {tuple(q.shape)} and k {tuple(k.shape)} with {n} frequencies; expected (B, H, S, {2 * n})")
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    zq, zk = (planes(x.double(), pairing).transpose(-1, -2) for x in (q, k))  # (B, H, P, S)
    # A sum over all pairs at each distance is a correlation; twice the length keeps its ends apart.
    sums = torch.fft.ifft(torch.fft.fft(zq, 2 * length) * torch.fft.fft(zk, 2 * length).conj())[..., :length]
    m = torch.arange(length, device=q.device, dtype=torch.float64)
    angles = spectrum.tensor().to(q.device)[:, None] * m
    return (sums.mean(0) * torch.polar(torch.ones_like(angles), angles)).real / (length - m)


def activated_pairs(curves: Tensor, count: int, train_length: int | None = None) -> Tensor:
    """Return the ``count`` planes whose `contributions` vary most over distance, largest first, (..., count).

    In models trained with RoPE they are those whose first period is about the training length, and they make attention
    U-shaped.

    Args:
        curves: (..., P, S).
        count: planes to return.
        train_length: look at distances below it; None: all.

    Source: after Yuhan Chen and others, arXiv 2410.21216, 2024.
    """
    if not 1 <= count <= curves.shape[-2]:
        raise ConfigError(f"count={count} of {curves.shape[-2]} planes")
    seen = curves[..., :train_length]
    return (seen.amax(-1) - seen.amin(-1)).argsort(dim=-1, descending=True, stable=True)[..., :count]


def attention_by_position(weights: Tensor, last: int = 1) -> Tensor:
    """Return the mean attention of the last queries to each key, (H, K).

    Args:
        weights: (B, H, Q, K) after the softmax.
        last: how many queries, counted from the end.
    """
    if weights.ndim != 4 or not 1 <= last <= weights.shape[2]:
        raise ShapeError(f"weights {tuple(weights.shape)} and last={last}; expected (B, H, Q, K) and 1 … Q")
    return weights[:, :, -last:].mean((0, 2))


# ---- one plane as a positional head, and why it is no memory --------------------------------------------------------


def norm_for_position(frequency: float, length: int, epsilon: float, scale: float = 1.0) -> float:
    """|ψ|² = ln((n − 1)(1 − ε)/ε) / (σ (1 − max_{0<d<n} cos gd)): enough for more than 1 − ε of the attention on one key.

    With it a plane of frequency g that holds the same ψ in all queries and keys looks at the token itself, and with the keys
    turned by g at the one before. Fast planes need less at short lengths.

    Args:
        frequency: g, radians a token.
        length: n, keys.
        epsilon: ε, attention that may go elsewhere.
        scale: σ, of the logits.

    Returns:
        The squared norm; infinity where another distance looks the same.

    Source: the bound is ours; the construction is that of Federico Barbero and others, arXiv 2410.06205, 2024.
    """
    if not 0 < epsilon < 1 or length < 2 or not scale > 0:
        raise ConfigError(f"epsilon={epsilon} in 0 … 1, length={length} from 2 and scale={scale} above 0 are needed")
    nearest = max(math.cos(frequency * d) for d in range(1, length))
    return math.inf if nearest == 1 else math.log((length - 1) * (1 - epsilon) / epsilon) / (scale * (1 - nearest))


def distractor(frequency: float, distance: int, within: int, phase: float = 0.0) -> int | None:
    """Return the first larger distance d' < ``within`` at which cos(gd' + phase) exceeds that at ``distance``, if any.

    A key there with the same content gets more attention. Any plane that turns has one in a long enough sequence, which is
    why slow planes are no lasting channels of meaning.
    """
    at = torch.arange(distance + 1, within, dtype=torch.float64)
    larger = torch.nonzero((frequency * at + phase).cos() > math.cos(frequency * distance + phase))
    return int(at[larger[0, 0]]) if len(larger) else None
