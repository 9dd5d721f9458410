"""RoPE++, the imaginary part of the rotary product as heads of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from ropewalk.backends import attend
from ropewalk.core.attention import Attention, Problem
from ropewalk.core.encoding import table_dtype
from ropewalk.core.errors import ConfigError, ShapeError, check_positive, suggest
from ropewalk.core.positions import Positions
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum
from ropewalk.frequencies.waveform import waveform
from ropewalk.rotary.rope import RoPE

Layout = Literal["ec", "eh", "imagh", "imagx", "imago"]
"""Which heads are imaginary; see `RoPEPlusPlus`."""

_DOUBLE = ("ec", "eh")


class RoPEPlusPlus(RoPE):
    """re_ts = Σ_j a_j cos ω_j(t−s) + x_j sin ω_j(t−s),  im_ts = Σ_j a_j sin ω_j(t−s) − x_j cos ω_j(t−s),  each / √d.

    a_j is the dot product and x_j the cross product of pair j of a query and a key. RoPE keeps the first, the real part of
    a complex product; the second is the logit of a query turned by another −π/2, of the same keys and values. Real heads
    favour near tokens, imaginary ones look further, and the cache does not grow.

    Args:
        head_dim: width d of a head, even; None: taken from the first problem.
        base: of the frequencies.
        pairing: "half" as released (Llama layout), or "interleaved".
        spectrum: other frequencies than the geometric ones, as in `RoPE`.
        layout: "ec" (equal cache) and "eh" (equal heads) make two heads of each query head, in the order real 0,
            imaginary 0, real 1, ...: the same here, they differ in the widths of a layer's projections, which
            `RoPEPlusPlusAttention` makes. Ablations that keep the number of heads: "imagh" (the second half of the heads
            is imaginary), "imagx" (the odd ones), "imago" (all).

    Shapes: q (B, H, Q, d), k and v (B, H_kv, K, d) → output (B, 2H, Q, d), or H for the ablations. A projection after it
    takes ``output_heads(H) * d`` channels.

    Raises:
        ConfigError: an unknown layout.
        ShapeError: "imagh" of an odd number of heads.

    Source: Xiaoran Liu, Yuerong Song, Zhigeng Liu, Zengfeng Huang, Qipeng Guo, Zhaoxiang Liu, Shiguo Lian, Ziwei He, Xipeng
    Qiu. Beyond Real: Imaginary Extension of Rotary Position Embeddings for Long-Context LLMs. arXiv 2512.07525, 2025.
    """

    def __init__(
        self,
        head_dim: int | None = None,
        base: float = 10_000.0,
        pairing: Pairing = "half",
        *,
        spectrum: Spectrum | None = None,
        layout: Layout = "ec",
    ) -> None:
        super().__init__(head_dim, base, pairing, spectrum=spectrum)
        self.layout: Layout = _check_layout(layout)

    def output_heads(self, num_heads: int) -> int:
        return 2 * num_heads if self.layout in _DOUBLE else num_heads

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        self.fit(p.q.shape[-1])
        dtype = table_dtype(p.q)
        at_q = self.tables(p.where.query, p.at, dtype)
        at_k = at_q if p.where.is_self else self.tables(p.where.key, p.at, dtype)
        p = p.map_keys(lambda k: self.turn(k, at_k, p))
        cos, sin = at_q
        turned = (sin, -cos)  # a further −π/2 by the same tables: the difference of angles would lose bits far out
        if self.layout in _DOUBLE:

            def both(q: Tensor) -> Tensor:
                return torch.stack([self.turn(q, at_q, p), self.turn(q, turned, p)], 2).flatten(1, 2)

            return p.multiply_queries(2, both)
        first, total = p.heads
        imaginary = imaginary_heads(total, self.layout)[first : first + p.num_heads]

        def each(q: Tensor) -> Tensor:
            which = imaginary.to(q.device)[:, None, None]
            return torch.where(which, self.turn(q, turned, p), self.turn(q, at_q, p))

        return p.map_queries(each)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, layout={self.layout}"


class RoPEPlusPlusAttention(nn.Module):
    """o = W_O attend(RoPE++(W_Q x, W_K x, W_V x)): an attention layer whose projections fit a layout.

    =======  ===========  =============  ===============
    layout   query heads  key heads      heads attending
    =======  ===========  =============  ===============
    ec       H            H_kv           2H
    eh       H / 2        H_kv / 2       H
    imag...  H            H_kv           H
    =======  ===========  =============  ===============

    "ec" costs twice the attention and output projection of RoPE at the same cache; "eh" half the projections of q, k, v and
    half the cache.

    Args:
        hidden_size: width of the input and of the output.
        num_heads: H.
        num_kv_heads: H_kv; None: as many.
        head_dim: width of a head; None: hidden_size / num_heads.
        layout: as in `RoPEPlusPlus`.
        base: of the frequencies.
        pairing: which channels form a pair.
        spectrum: other frequencies than the geometric ones.

    Shapes: x (B, S, hidden_size) → the same. Weights start normal with deviation 0.02.

    Raises:
        ConfigError: heads that the layout does not divide.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        layout: Layout = "ec",
        base: float = 10_000.0,
        pairing: Pairing = "half",
        spectrum: Spectrum | None = None,
    ) -> None:
        super().__init__()
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_positive(hidden_size=hidden_size, num_heads=num_heads, num_kv_heads=kv_heads, head_dim=head_dim)
        if head_dim is None and hidden_size % num_heads:
            raise ConfigError(
                f"hidden_size {hidden_size} is not shared out evenly over {num_heads} heads; give head_dim"
            )
        if layout == "eh":
            if num_heads % 2 or kv_heads % 2:
                raise ConfigError(
                    f"layout 'eh' halves the heads that are projected, so both are even; got num_heads={num_heads}, "
                    f"num_kv_heads={kv_heads}"
                )
            num_heads, kv_heads = num_heads // 2, kv_heads // 2
        if num_heads % kv_heads:
            raise ConfigError(f"{num_heads} query heads cannot be shared out over {kv_heads} key heads")
        if layout == "imagh" and num_heads % 2:
            raise ConfigError(f"layout 'imagh' makes half of the heads imaginary; num_heads={num_heads} is odd")
        self.head_dim = head_dim if head_dim is not None else hidden_size // (num_heads * (2 if layout == "eh" else 1))
        self.encoding = RoPEPlusPlus(self.head_dim, base, pairing, spectrum=spectrum, layout=layout)
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.encoding.output_heads(num_heads) * self.head_dim, hidden_size, bias=False)
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.o_proj):
            nn.init.normal_(projection.weight, std=0.02)

    def forward(
        self,
        x: Tensor,
        positions: Positions | None = None,
        encode: Callable[[Attention], Problem] | None = None,
    ) -> Tensor:
        """Attend causally; ``encode`` is the encoding itself, or ``cache[i].extend`` when decoding."""
        q, k, v = (
            proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        problem = (self.encoding if encode is None else encode)(Attention(q, k, v, positions, x=x))
        return cast("Tensor", self.o_proj(attend(problem).transpose(1, 2).flatten(2)))


def widen_output(weight: Tensor, num_heads: int) -> Tensor:
    """Return the output projection of a RoPE model for layout "ec": zeros for the imaginary heads, so the model stays.

    Args:
        weight: (out, H · d), as of a `torch.nn.Linear`.
        num_heads: H.
    """
    if weight.ndim != 2 or weight.shape[1] % num_heads:
        raise ShapeError(f"an output weight is (out, {num_heads} heads x head_dim); got {tuple(weight.shape)}")
    per_head = weight.unflatten(1, (num_heads, -1))
    return torch.stack([per_head, torch.zeros_like(per_head)], 2).flatten(1)


# ---- telling the two kinds of heads apart ---------------------------------------------------------------------------


def imaginary_heads(num_heads: int, layout: Layout = "ec") -> Tensor:
    """Return which heads of the output are imaginary, for ``num_heads`` query heads: boolean, on the CPU."""
    _check_layout(layout)
    made = torch.arange(2 * num_heads if layout in _DOUBLE else num_heads, device="cpu")
    if layout == "imago":
        return made >= 0
    if layout == "imagh":
        if num_heads % 2:
            raise ShapeError(f"layout 'imagh' makes half of the heads imaginary; {num_heads} query heads are odd")
        return made >= num_heads // 2
    return made % 2 == 1


def characteristic_curves(spectrum: Spectrum, distance: Tensor) -> tuple[Tensor, Tensor]:
    """((1/P) Σ_j cos ω_j D, (1/P) Σ_j sin ω_j D): the mean real and imaginary logit at a distance of equal contents.

    The real curve starts at 1 and falls; the imaginary one starts at 0, rises, and falls more slowly.

    Args:
        spectrum: of P frequencies.
        distance: D = t − s, any shape, in tokens.
    """
    omega = spectrum.tensor().to(distance.device)
    return waveform(spectrum, distance) / len(omega), (distance.double()[..., None] * omega).sin().mean(-1)


def disturbed(problem: Attention, std: float, imaginary: Tensor, generator: torch.Generator | None = None) -> Attention:
    """Return an encoded problem with Gaussian noise on the queries of some heads: how much does a model need them?

    Args:
        problem: as `RoPEPlusPlus` has rewritten it.
        std: of the noise, in units of the query's channels.
        imaginary: (heads,) boolean, the heads to disturb: `imaginary_heads` or its complement.
        generator: of the noise, on the device of q; None: torch's global one.
    """
    if tuple(imaginary.shape) != (problem.num_heads,) or imaginary.dtype != torch.bool:
        raise ShapeError(
            f"which heads to disturb is one boolean for each of the {problem.num_heads}; got {tuple(imaginary.shape)} in "
            f"{imaginary.dtype}"
        )
    if not 0 <= std < float("inf"):
        raise ConfigError(f"std is a number from 0; got {std!r}")
    q = problem.q
    noise = std * torch.randn(q.shape, generator=generator, dtype=q.dtype, device=q.device)
    return problem.replace(q=torch.where(imaginary.to(q.device)[:, None, None], q + noise, q))


def attention_distance(weights: Tensor, positions: Positions | None = None) -> Tensor:
    """Σ_s a_ts |t − s|, averaged over rows and queries: how far each head looks, (H,).

    Args:
        weights: (B, H, Q, K), as ``attend(..., return_weights=True)`` gives them; a query that sees nothing counts nothing.
        positions: of the tokens; None: counted from 0, with the queries last.
    """
    if positions is None:
        last = torch.arange(weights.shape[-1], device=weights.device)
        positions = Positions(q=last[weights.shape[-1] - weights.shape[-2] :], k=last)
    query, key = (side.coordinates()[:, None] for side in (positions.query, positions.key))
    distance = (query[..., :, None] - key[..., None, :]).abs()
    sees = weights.sum(-1) > 0
    return (weights.double() * distance).sum((0, 2, 3)) / sees.sum((0, 2)).clamp(min=1)


def _check_layout(layout: str) -> Layout:
    if layout not in get_args(Layout):
        near = suggest(layout, get_args(Layout))
        raise ConfigError(f"layout {layout!r} is none of {', '.join(map(repr, get_args(Layout)))}.{near}")
    return cast("Layout", layout)
