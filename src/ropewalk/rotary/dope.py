"""DoPE, denoising RoPE in the heads whose keys use few directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from ropewalk.core.attention import Attention, Problem
from ropewalk.core.errors import CannotEdit, ConfigError, ShapeError, check_positive, suggest
from ropewalk.core.noise import normal
from ropewalk.core.positions import Chain, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.checks import check_length
from ropewalk.frequencies.spectrum import Spectrum
from ropewalk.rotary.rope import RoPE

Side = Literal["query", "key"]
Mode = Literal["zero", "nope", "parts", "gaussian"]
"""What is done to a head: no logits at all, no rotation, no slow planes, or noise instead of q and k."""


class DoPE(RoPE):
    """q', k' = R q, R k, but in chosen heads 0 ("zero"), q, k ("nope"), R q, R k without the planes of ω ≤ 2π/L ("parts"), or
    noise of the same variance ("gaussian").

    Planes that hardly turn over the context add up in one direction, and their head attends to whatever lies there. The heads
    are chosen once, on text, by the entropy of their keys (`ropewalk.hf.dope_select`), and then fixed. A key head goes
    together with the query heads that share it.

    Args:
        head_dim: width d of a head, even.
        num_heads: query heads; the key heads too, unless ``num_kv_heads`` says otherwise.
        num_kv_heads: key heads.
        heads: key heads to denoise, counted from 0; or (layer, head) of a whole model, of which ``layer(i)`` takes its own.
        mode: "zero" is the formula as printed: such a head spreads its attention evenly. "nope" takes the position out alone.
        train_length: L, tokens of the training context, for "parts".
        deviation: of "gaussian": standard deviations (of q, of k), a pair for each of ``heads``, as measured on calibration text.
            None: those of the sequence at hand, q of each head and k of each, as published; then nothing can be decoded.
        seed: of the noise, which is a function of it, layer, head, position and channel.
        base: of the frequencies.
        pairing: "half" as in Llama, or "interleaved".
        spectrum: other frequencies than the geometric ones, such as those of NTK, on which the paper builds.

    Shapes: q (B, H, Q, d), k (B, H_kv, K, d); positions (b, S), integer or real, in tokens.

    Raises:
        ConfigError: an unknown mode, heads that are not there, "parts" without the training context.

    Source: Jing Xiong, Liyang Fan, Hui Shen, Zunhai Su, Min Yang, Lingpeng Kong, Ngai Wong. DoPE: Denoising Rotary Position
    Embedding. arXiv 2511.09146, 2025.
    """

    chosen: Tensor

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        heads: Sequence[int] | Sequence[tuple[int, int]] = (),
        mode: Mode = "zero",
        train_length: float | None = None,
        deviation: Sequence[tuple[float, float]] | None = None,
        seed: int = 0,
        base: float = 10_000.0,
        pairing: Pairing = "half",
        spectrum: Spectrum | None = None,
    ) -> None:
        super().__init__(head_dim, base, pairing, spectrum=spectrum)
        check_positive(num_heads=num_heads, num_kv_heads=num_kv_heads)
        if mode not in get_args(Mode):
            raise ConfigError(
                f"mode is one of {', '.join(get_args(Mode))}; got {mode!r}.{suggest(mode, get_args(Mode))}"
            )
        if mode == "parts":
            if train_length is None:
                raise ConfigError(
                    "mode 'parts' drops the planes that do not turn around in training: give train_length"
                )
            check_length("train_length", train_length)
        self.num_heads, self.num_kv_heads = num_heads, num_heads if num_kv_heads is None else num_kv_heads
        self.heads = tuple(_head(h, self.num_kv_heads) for h in heads)
        self.mode, self.train_length, self.seed = mode, train_length, seed
        self.deviation = None if deviation is None else tuple((float(q), float(k)) for q, k in deviation)
        if self.deviation is not None and (
            len(self.deviation) != len(self.heads)
            or any(not 0 <= s < float("inf") for pair in self.deviation for s in pair)
        ):
            raise ConfigError(
                f"deviation holds (of q, of k), not negative, for each of {len(self.heads)} heads; got {deviation!r}"
            )
        self.index = 0
        self.derive("chosen", self._chosen)

    def layer(self, index: int) -> DoPE:
        mine = [n for n, head in enumerate(self.heads) if not isinstance(head, tuple) or head[0] == index]
        made = type(self)(
            self.head_dim or 2 * len(self.inv_freq),
            self.num_heads,
            self.num_kv_heads,
            heads=[_within(self.heads[n]) for n in mine],
            mode=self.mode,
            train_length=self.train_length,
            deviation=None if self.deviation is None else [self.deviation[n] for n in mine],
            seed=self.seed,
            base=self.base,
            pairing=self.pairing,
            spectrum=self.spectrum,
        )
        made.index = index if self.mode == "gaussian" else 0
        return made

    def why_not_cached(self) -> str | None:
        if self.mode == "gaussian" and self.heads and self.deviation is None:
            return "the variance of its noise is that of the whole sequence; give deviation= as measured on calibration text"
        return None

    def kept(self) -> tuple[bool, ...]:
        """Return which planes "parts" keeps: those that turn around within the training context."""
        assert self.train_length is not None and self.head_dim is not None
        return tuple(turns > 1 for turns in self.frequencies(self.head_dim).turns(self.train_length))

    def angles(self, position: Tensor) -> Tensor:
        angles = super().angles(position)
        if self.mode != "nope" or not self.heads:
            return angles
        return angles[:, None] * ~self.chosen[:, None, None].to(angles.device)

    def tables(self, tokens: Tokens, chain: Chain, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        cos, sin = super().tables(tokens, chain, dtype)
        if self.mode != "parts" or not self.heads:
            return cos, sin
        kept = torch.tensor(self.kept(), device=cos.device) | ~self.chosen[:, None, None].to(cos.device)
        return cos * kept, sin * kept

    def rewrite(self, problem: Attention) -> Problem:
        if any(isinstance(head, tuple) for head in self.heads):
            raise ConfigError(
                "these heads are of a whole model, (layer, head); give each layer its own by encoding.layer(i)"
            )
        p = super().rewrite(problem)
        assert isinstance(p, Attention)
        if not self.heads or self.mode in ("nope", "parts"):
            return p
        queries, keys = self._here(p)
        if self.mode == "zero":
            return p.map_queries(lambda q: _put(q, queries, None)).map_keys(lambda k: _put(k, keys, None))
        turned = p
        p = p.map_queries(lambda q: _put(q, queries, self._noise(q, queries, turned, "query")))
        return p.map_keys(lambda k: _put(k, keys, self._noise(k, keys, turned, "key")))

    def _here(self, p: Attention) -> tuple[dict[int, int], dict[int, int]]:
        """Return the query heads and the key heads of a problem to denoise, each with its key head in the layer."""
        if p.kv_total != self.num_kv_heads or p.heads[1] != self.num_heads:
            raise ShapeError(
                f"DoPE was made for {self.num_heads} query and {self.num_kv_heads} key heads, and the layer has {p.heads[1]} and "
                f"{p.kv_total}"
            )
        group, own, first = self.num_heads // self.num_kv_heads, p.num_heads // p.num_kv_heads, p.heads[0]
        queries = {i: (first + i) // group for i in range(p.num_heads)}
        keys = {j: (first + j * own) // group for j in range(p.num_kv_heads)}
        return tuple({i: h for i, h in heads.items() if h in self.heads} for heads in (queries, keys))  # type: ignore[return-value]

    def _noise(self, x: Tensor, heads: dict[int, int], p: Attention, side: Side) -> Tensor:
        """Return noise for some heads, (B, n, S, d)."""
        tokens = p.where.query if side == "query" else p.where.key
        position = tokens.coordinates(p.at)[:, None, :, None]
        # A query head of a group has noise of its own; a key head is the same wherever it is looked at.
        first = p.heads[0] if side == "query" else 0
        names = [first + i if side == "query" else h for i, h in heads.items()]
        head = torch.tensor(names, device=x.device)[:, None, None]
        channel = torch.arange(x.shape[-1], device=x.device)
        which = torch.tensor([self.seed, self.index, int(side == "key")], device=x.device)
        noise = normal(*which.unbind(), head, position, channel)
        if self.deviation is None:
            size = _deviation(x[:, list(heads)], tokens.columns.get("valid"))
        else:
            known = {h: pair[side == "key"] for h, pair in zip(self.heads, self.deviation, strict=True)}
            size = torch.tensor([known[h] for h in heads.values()], dtype=torch.float64, device=x.device)[:, None, None]
        return noise * size

    def _chosen(self) -> Tensor:
        """Return which key heads are denoised here."""
        return torch.tensor(
            [any(head == h for head in self.heads) for h in range(self.num_kv_heads)], dtype=torch.bool, device="cpu"
        )

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        if self.mode == "gaussian" and self.heads:
            raise CannotEdit("the noise of DoPE belongs to the positions; encode the edited sequence anew")
        return super().move(problem, tokens)


def _head(head: int | tuple[int, int], num_kv_heads: int) -> int | tuple[int, int]:
    """Check a head, or a layer and a head."""
    pair = tuple(head) if isinstance(head, Sequence) else (0, head)
    if (
        len(pair) != 2
        or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in pair)
        or pair[1] >= num_kv_heads
    ):
        raise ConfigError(
            f"heads are key heads from 0 to {num_kv_heads - 1}, or (layer, head) of a whole model; got {head!r}. With grouped "
            "heads count the key heads"
        )
    return (pair[0], pair[1]) if isinstance(head, Sequence) else head


def _within(head: int | tuple[int, int]) -> int:
    return head[1] if isinstance(head, tuple) else head


def _put(x: Tensor, heads: dict[int, int], values: Tensor | None) -> Tensor:
    """Return x with some of its heads replaced, by zeros if nothing is given."""
    index = torch.tensor(list(heads), dtype=torch.long, device=x.device)
    if values is None:
        return x.index_fill(1, index, 0.0)
    return x.index_copy(1, index, values.to(x.dtype).expand(x.shape[0], *values.shape[1:]))


def _deviation(x: Tensor, valid: Tensor | None) -> Tensor:
    """Return the standard deviation over real tokens and channels, (B, n, 1, 1)."""
    x = x.detach().double()
    real = x.new_ones(()) if valid is None else valid[:, None, :, None].double()
    real = real.expand(x.shape)
    count = real.sum((2, 3), keepdim=True).clamp(min=1)
    mean = (x * real).sum((2, 3), keepdim=True) / count
    return (((x - mean).square() * real).sum((2, 3), keepdim=True) / count).sqrt()
