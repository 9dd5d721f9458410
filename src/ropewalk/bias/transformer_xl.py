"""Transformer-XL's relative encoding, plain and with randomised distances."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ropewalk.bias.randomized_alibi import check_reach
from ropewalk.coordinates.randomized import OrderedSample, Scope
from ropewalk.core.attention import Attention, Pointwise, Problem
from ropewalk.core.encoding import Encoding, check_axes, full_precision, table_dtype
from ropewalk.core.errors import CannotCompose, ConfigError, ShapeError, check_positive
from ropewalk.core.positions import Positions, Tokens
from ropewalk.frequencies.spectrum import check_base


class TransformerXL(Encoding):
    """s_ij = ((q_i + u)·k_j + (q_i + v)·W_R e(j − i)) / √d,  e(m) = [sin mω_c | cos mω_c],  ω_c = base^(−2c/D).

    By the addition theorem e(j − i) is a rotation of e(j) by i, so the second product is one more dot product, of width D:
    queries and keys are widened, and fused attention runs.

    Args:
        num_heads: query heads H of the layer.
        head_dim: width d of a head; D = H · d is the width of the sinusoids, even.
        base: of the sinusoids.
        bug_compatible: the released causal path of arXiv 2305.16843 counts offsets from the end: −r gets e(n − 1 − r) with n
            the number of keys. It changes with n, so this form refuses a cache.

    Shapes: u (H, d), v (H, d), weight (D, D), applied as e @ weight and cut into heads; positions (b, S), integer or real.

    Source: Zihang Dai, Zhilin Yang, Yiming Yang, Jaime Carbonell, Quoc V. Le, Ruslan Salakhutdinov. Transformer-XL: Attentive
    Language Models Beyond a Fixed-Length Context. arXiv 1901.02860, 2019; in the form of arXiv 2305.16843.
    """

    freqs: Tensor

    def __init__(self, num_heads: int, head_dim: int, *, base: float = 10_000.0, bug_compatible: bool = False) -> None:
        super().__init__()
        check_base(base)
        check_positive(num_heads=num_heads, head_dim=head_dim)
        if (num_heads * head_dim) % 2:
            raise ConfigError(f"num_heads={num_heads} times head_dim={head_dim} is an even width of sinusoids")
        self.num_heads, self.head_dim, self.base = num_heads, head_dim, float(base)
        self.bug_compatible = bug_compatible
        width = num_heads * head_dim
        self.u = nn.Parameter(0.02 * torch.randn(num_heads, head_dim))
        self.v = nn.Parameter(0.02 * torch.randn(num_heads, head_dim))
        self.weight = nn.Parameter(torch.randn(width, width) * width**-0.5)
        self.derive("freqs", self._frequencies)

    def _frequencies(self) -> Tensor:
        width = self.num_heads * self.head_dim
        c = torch.arange(0, width, 2, dtype=torch.float64, device="cpu")
        return torch.tensor(self.base, dtype=torch.float64, device="cpu") ** (-c / width)

    def why_not_cached(self) -> str | None:
        return "the released causal path changes with the number of keys" if self.bug_compatible else None

    def sinusoids(self, position: Tensor) -> Tensor:
        """Return e(position), (..., D) float64."""
        angles = position.double()[..., None] * self.exact("freqs", position.device)
        return torch.cat([angles.sin(), angles.cos()], -1)

    def _gathered(self, p: Attention) -> Tensor:
        """Return (q_i + v) W_Rᵀ by sinusoid, (B, H, Q, D)."""
        dtype = table_dtype(p.q)
        heads = p.head_slice(self.weight.unflatten(1, (self.num_heads, self.head_dim)), 1)
        with full_precision(p.q):
            return torch.einsum(
                "bhqd,xhd->bhqx", p.q.to(dtype) + p.head_slice(self.v)[:, None].to(dtype), heads.to(dtype)
            )

    def _check(self, p: Attention) -> None:
        check_axes(self, p.where.query.position, None)
        if p.q.shape[-1] != self.head_dim:
            raise ShapeError(f"{type(self).__name__} was made for head_dim {self.head_dim} and q has {p.q.shape[-1]}")
        if p.branches or p.product is not None or p.kernel is not None:
            raise CannotCompose(f"{type(self).__name__} adds to the score of one dot product under a softmax")

    def _with_u(self, p: Attention) -> Attention:
        return p.replace(q=(p.q + p.head_slice(self.u)[:, None].to(table_dtype(p.q))).to(p.q.dtype))

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        self._check(p)
        a, b = self._gathered(p).chunk(2, -1)  # of sin and of cos
        quirk = p.k.shape[2] - 1 if self.bug_compatible and p.causal else 0
        at_q = self.sinusoids(p.where.query.coordinates(p.at))[:, None].to(a.dtype)
        at_k = self.sinusoids(p.where.key.coordinates(p.at) + quirk)[:, None].to(a.dtype)
        sin, cos = at_q.chunk(2, -1)
        # a sin ω(j − i) + b cos ω(j − i), sorted by sin ωj and cos ωj.
        turned = torch.cat([a * cos + b * sin, b * cos - a * sin], -1)
        p = self._with_u(p)
        shape = (*p.k.shape[:3], at_k.shape[-1])
        return p.replace(
            q=torch.cat([p.q, turned.to(p.q.dtype)], -1), k=torch.cat([p.k, at_k.to(p.k.dtype).expand(shape)], -1)
        )

    def extra_repr(self) -> str:
        return f"{self.num_heads}, {self.head_dim}"


class RandomizedRelative(TransformerXL):
    """s_ij = ((q_i + u)·k_j + (q_i + v)·W_R e(± r_|i−j|)) / √d,  r_1 < r_2 < ... a sorted sample from {1, ..., L − 1}, r_0 = 0.

    Transformer-XL's encoding with sampled distances (the sign is that of j − i).

    Args:
        num_heads: query heads H of the layer.
        head_dim: width d of a head.
        span: L.
        max_length: length N that distances are drawn for; None: the length of the sequence.
        base: of the sinusoids.
        scope: "per_layer" as published, "per_forward" or "per_example".
        both_sides: distances of their own for keys after the query.
        seed: of the draws; None: torch's global generator.
        bug_compatible: the released table has no negative rows and clamps: every offset ≥ 0 gets e(L − 1), an offset −r
            gets e(L − r).

    Source: Anian Ruoss, Grégoire Delétang, Tim Genewein, Jordi Grau-Moya, Róbert Csordás, Mehdi Bennani, Shane Legg, Joel
    Veness. Randomized Positional Encodings Boost Length Generalization of Transformers. arXiv 2305.16843, 2023.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        span: int = 2048,
        max_length: int | None = None,
        *,
        base: float = 10_000.0,
        scope: Scope = "per_layer",
        both_sides: bool = False,
        seed: int | None = None,
        bug_compatible: bool = False,
    ) -> None:
        super().__init__(num_heads, head_dim, base=base, bug_compatible=bug_compatible)
        self.span, self.max_length, self.both_sides = span, max_length, both_sides
        self._sample = OrderedSample(
            1, span, None if max_length is None else max(max_length - 1, 1), scope, seed, "distances"
        )

    def why_not_cached(self) -> str | None:
        return None  # its released quirk is the same for every length

    def draw(self, positions: Positions, generator: torch.Generator | None = None) -> Positions:
        return self._sample.draw(positions, generator, 2 if self.both_sides else 1)

    def layer(self, index: int) -> Encoding:
        made = super().layer(index)
        assert isinstance(made, RandomizedRelative)
        made._sample.layer = index
        return made

    def offsets(self, tokens: Tokens) -> Tensor:
        """Return the position whose sinusoids each offset j − i = −(N − 1) ... N − 1 gets, (b, 2N − 1)."""
        past = tokens.sequence[self._sample.fact].double()
        future = tokens.sequence[self._sample.fact + ".1"].double() if self.both_sides else past
        if self.bug_compatible:
            last = past.new_full((past.shape[0], future.shape[1] + 1), self.span - 1.0)
            return torch.cat([(self.span - past).flip(-1), last], -1)
        return torch.cat([-past.flip(-1), past.new_zeros(past.shape[0], 1), future], -1)

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        self._check(p)
        table = self.sinusoids(self.offsets(p.where.query))  # (b, 2N − 1, D)
        reach = table.shape[1] // 2
        check_reach(p, reach)
        gathered = self._gathered(p)
        with full_precision(p.q):
            scores = gathered @ table.to(gathered.dtype)[:, None].transpose(-1, -2) * p.logit_scale
        p = self._with_u(p).with_features(q={"offsets": scores})

        def bias(i: Tensor, j: Tensor, lookup: Callable[[Tensor], Tensor]) -> Tensor:
            return lookup((j - i).clamp(-reach, reach) + reach)

        place = p.coordinate(centred=True)
        return p.add(Pointwise(bias, (place,), (place,), p.own("offsets")))

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        return problem
