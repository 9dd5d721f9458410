"""Rotary encodings whose frequencies follow the length, in the form that decodes as it reads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropewalk.core import rotation
from ropewalk.core.attention import Attention, Problem, Product
from ropewalk.core.encoding import Encoding, check_axes
from ropewalk.core.errors import CannotCompose, ConfigError, ShapeError
from ropewalk.core.positions import Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.checks import check_length
from ropewalk.frequencies.spectrum import Spectrum


class FollowsLength(Encoding):
    """s_ij = q_i · R((j − i) ω(n_i)) k_j / √d,  n_i = i + 1: every query turns by the frequencies of the length it can see.

    The usual form turns a whole row by the frequencies of its last token, so that every token before moves when one is added,
    and what was cached is turned by older frequencies. Here token i is treated as it is when it is the last: decoding, reading
    in chunks and one pass agree, rows of a batch do not know of each other, and documents start anew.

    Up to the original length this is one rotation and one product. Queries beyond it turn all keys each for itself:
    Q x K x P cosines, as much as an implementation needs that turns a raw cache anew at every token.

    Write ``frequencies(length)``, float64 in and out: (...) to (..., P), constant up to ``original``.

    Args:
        spectrum: the frequencies up to the original length; its attention factor holds at every length.
        original: L, tokens of the training context.
        head_dim: width of a head, where not all of it is turned; None: twice the number of planes.
        pairing: "half" or "interleaved".
    """

    inv_freq: Tensor

    def __init__(
        self, spectrum: Spectrum, original: float, head_dim: int | None = None, pairing: Pairing = "half"
    ) -> None:
        super().__init__()
        check_length("original", original)
        self.pairing = rotation.check_pairing(pairing)
        self.spectrum, self.original = spectrum, original
        planes = len(spectrum.inv_freq)
        self.head_dim = 2 * planes if head_dim is None else head_dim
        if self.head_dim < 2 * planes:
            raise ConfigError(f"a spectrum of {planes} pairs does not fit head_dim {head_dim}")
        self.derive("inv_freq", spectrum.tensor)

    def frequencies(self, length: Tensor) -> Tensor:
        """Return the frequency of each plane at each length."""
        raise NotImplementedError

    def rewrite(self, problem: Attention) -> Problem:
        """Replace the product of q and k."""
        p = problem
        if p.q.shape[-1] != self.head_dim:
            raise ShapeError(
                f"{type(self).__name__} was made for head_dim {self.head_dim} and the problem has {p.q.shape[-1]}"
            )
        check_axes(self, p.where.query.coordinates(p.at), None)
        if p.branches or p.product is not None or p.kernel is not None:
            raise CannotCompose(f"{type(self).__name__} turns q and k of one dot product under a softmax")
        place = p.coordinate()
        return p.replace(product=Product(self._product(p.logit_scale), (place,), (place,)))

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        """Change nothing: keys are turned when scores are computed."""
        return problem

    def _product(self, scale: float) -> Callable[..., Tensor]:
        def scores(q: Tensor, k: Tensor, i: Tensor, j: Tensor) -> Tensor:
            i, j = i[..., 0], j[..., 0]
            together = self._within(i)
            near, far = q[:, :, :together], q[:, :, together:]
            parts = []
            if together:
                parts.append(self._turned(near, i[..., :together]) @ self._turned(k, j).transpose(-1, -2))
            if far.shape[2] or not parts:
                parts.append(self._each(far, k, i[..., together:], j))
            return scale * torch.cat(parts, 2)

        return scores

    def _within(self, i: Tensor) -> int:
        """Return how many of the first queries see no more than the original length in any row."""
        if is_compiling() or i.is_meta:
            return 0
        beyond = torch.nonzero((i + 1 > self.original).flatten(0, -2).any(0))
        return int(beyond[0]) if len(beyond) else i.shape[-1]

    def _turned(self, x: Tensor, position: Tensor) -> Tensor:
        angles = position[..., None] * self.exact("inv_freq", position.device)
        cos, sin = rotation.tables(angles, x.dtype, self.spectrum.attention_factor, self.pairing)
        return rotation.rotate(x, cos, sin, self.pairing)

    def _each(self, q: Tensor, k: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Turn the keys for each query apart, plane by plane."""
        planes = len(self.spectrum.inv_freq)
        distance = j[..., None, :] - i[..., :, None]
        frequency = self.frequencies((i + 1).clamp(min=self.original))
        q_a, q_b = _pairs(q[..., : 2 * planes], self.pairing)
        k_a, k_b = _pairs(k[..., : 2 * planes], self.pairing)
        total = q[..., 2 * planes :] @ k[..., 2 * planes :].transpose(-1, -2)
        square = self.spectrum.attention_factor**2
        for n in range(planes):
            a, b, c, d = (x[..., n, None] for x in (q_a, q_b, k_a, k_b))
            c, d = c.transpose(-1, -2), d.transpose(-1, -2)
            angle = distance * frequency[..., n, None]
            cos, sin = angle.cos().to(q.dtype), angle.sin().to(q.dtype)
            total = total + square * ((a * c + b * d) * cos + (b * c - a * d) * sin)
        return total

    def extra_repr(self) -> str:
        return f"{self.head_dim}, original={self.original}, pairing={self.pairing}"


def _pairs(x: Tensor, pairing: Pairing) -> tuple[Tensor, Tensor]:
    if pairing == "half":
        first, second = x.chunk(2, -1)
        return first, second
    return x[..., 0::2], x[..., 1::2]
