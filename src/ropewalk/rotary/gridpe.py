"""GridPE: plane waves as in grid cells, along the vertices of a simplex."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.core.noise import normal
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import check_base
from ropewalk.rotary.vector_rope import VectorRoPE, check_layer_index, key_heads

BASE = 10_000.0
Matrix = Sequence[Sequence[float]]
Rotation = Literal["random", "none"] | Tensor | Matrix | Sequence[Matrix]


def simplex_vectors(axes: int) -> Tensor:
    """Return the unit vectors to the vertices of a regular simplex, (axes + 1, axes) float64; on one axis the vector 1 alone.

    Their products are −1/axes, and they add up to 0. The first is along the first axis, and each new one needs one axis more:
    0°, 120° and 240° in the plane.
    """
    check_positive(axes=axes)
    if axes == 1:
        return torch.ones(1, 1, dtype=torch.float64, device="cpu")
    w = torch.zeros(axes + 1, axes, dtype=torch.float64, device="cpu")
    for i in range(axes):
        w[i, i] = (1 - w[i, :i].square().sum()).sqrt()
        w[i + 1 :, i] = (-1 / axes - w[i + 1 :, :i] @ w[i, :i]) / w[i, i]
    return w


def ladder_cost(ratio: float, axes: int) -> float:
    """Return r^axes / ln r: what a ladder of scales a ratio r apart costs, up to a factor, for its range and resolution."""
    check_positive(axes=axes)
    if not (math.isfinite(ratio) and ratio > 1):
        raise ConfigError(f"the ratio of neighbouring scales is a number above 1; got {ratio!r}")
    return float(ratio**axes / math.log(ratio))


def economy_ratio(axes: int) -> float:
    """Return e^(1/axes), the ratio of neighbouring scales at which `ladder_cost` is least."""
    check_positive(axes=axes)
    return math.exp(1 / axes)


def gridpe_scales(
    axes: int, number: int, base: float | None = None, ratio: float | Literal["economy"] | None = None
) -> Tensor:
    """Return m_s = base^(−s/number), or ratio^(−s), s = 0 … number − 1, float64. They are the same where base = ratio^number.

    Args:
        axes: of the coordinates, for "economy".
        number: of scales.
        base: of the ladder; None: 10000, unless there is a ratio.
        ratio: of neighbouring scales, above 1; "economy": `economy_ratio`.
    """
    check_positive(number=number)
    steps = torch.arange(number, dtype=torch.float64, device="cpu")
    if ratio is None:
        base = BASE if base is None else base
        check_base(base)
        return torch.tensor(float(base), dtype=torch.float64, device="cpu") ** (-steps / number)
    if base is not None:
        raise ConfigError(f"base={base!r} and ratio={ratio!r} are two ladders of scales; give one of them")
    if isinstance(ratio, str) and ratio != "economy":
        raise ConfigError(f"ratio is a number above 1 or 'economy'; got {ratio!r}")
    step = economy_ratio(axes) if isinstance(ratio, str) else float(ratio)
    ladder_cost(step, axes)  # says what a ratio may be
    return torch.tensor(step, dtype=torch.float64, device="cpu") ** -steps


def gridpe_frequencies(
    axes: int,
    head_dim: int,
    *,
    num_heads: int | None = None,
    base: float | None = None,
    ratio: float | Literal["economy"] | None = None,
    rotation: Rotation = "random",
    seed: int = 0,
    layer_index: int = 0,
    pass_rest: bool = False,
) -> Tensor:
    """Return the frequency vectors m_s Q_h ω_j of a head, (heads or 1, vectors · scales, axes) float64, vector by vector.

    Args: see `GridPE`; ``num_heads`` are those that differ, which on the key side are the key heads.
    """
    check_positive(axes=axes, head_dim=head_dim, num_heads=num_heads)
    omega = simplex_vectors(axes)
    group = 2 * len(omega)
    number = head_dim // group
    if not number or (head_dim % group and not pass_rest):
        near = ", ".join(str(n * group) for n in (number, number + 1) if n)
        raise ConfigError(
            f"head_dim {head_dim}: a scale takes {len(omega)} vectors of {axes} axes and so {group} channels; give a multiple of "
            f"{group}, such as {near}, or pass_rest=True, with which channels that are left over do not turn"
        )
    scales = gridpe_scales(axes, number, base, ratio)
    turns = _gauges(axes, num_heads, rotation, seed, layer_index)
    return torch.einsum("s,hab,jb->hjsa", scales, turns, omega).flatten(1, 2)


def _gauges(axes: int, num_heads: int | None, rotation: Rotation, seed: int, layer_index: int) -> Tensor:
    """Orthogonal matrices by which heads turn the simplex, (heads or 1, axes, axes)."""
    one = torch.eye(axes, dtype=torch.float64, device="cpu")[None]
    if isinstance(rotation, str):
        if rotation not in ("random", "none"):
            raise ConfigError(f"rotation is 'random', 'none' or an orthogonal matrix; got {rotation!r}")
        if rotation == "none" or axes == 1:
            return one
        heads = key_heads(num_heads, None, "GridPE turns the vectors of each key head at random")
        index = [torch.arange(n, device="cpu") for n in (heads, axes, axes)]
        head, row, column = (i.reshape([-1 if a == b else 1 for b in range(3)]) for a, i in enumerate(index))
        drawn = normal(torch.tensor(seed, device="cpu"), torch.tensor(layer_index, device="cpu"), head, row, column)
        q, r = torch.linalg.qr(drawn)
        return q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # the factor whose R has a positive diagonal: unique
    given = _matrices(rotation)
    if given.ndim != 3 or given.shape[1:] != (axes, axes) or len(given) not in (1, num_heads or len(given)):
        raise ConfigError(
            f"rotation has shape {tuple(given.shape)}; give one ({axes}, {axes}) matrix, or one for each of the key heads"
        )
    if not torch.allclose(given @ given.mT, one.expand_as(given), atol=1e-6):
        raise ConfigError(
            "rotation is orthogonal, Q Qᵀ = 1, and this matrix is not: its vectors would have other lengths"
        )
    return given


class GridPE(VectorRoPE):
    """Pair (j, s) of key head h turns by m_s ⟨Q_h ω_j, x⟩,  ω_0 … ω_d the vertices of a regular simplex,  m_s = base^(−s/S).

    A grid cell adds up plane waves. The fewest directions that look alike from all sides are d + 1 in d dimensions: three in
    the plane, 120° apart, whose waves make hexagons. Scores depend on differences of coordinates. On one axis it is RoPE.

    Args:
        head_dim: width D of a head, a multiple of 2 (d + 1), or of 2 on one axis; S is how often.
        num_heads: key heads, unless ``num_kv_heads`` says otherwise; for ``rotation="random"``.
        num_kv_heads: key heads.
        axes: d.
        base: of the scales; None: 10000, which the paper's models of images have. Its models of points have 100.
        ratio: of neighbouring scales instead, m_s = ratio^(−s); "economy": e^(1/d), where range and resolution cost least.
        rotation: Q; "random": drawn for each layer and key head from ``seed``, "none": Q = 1, or a matrix, (d, d) for all key
            heads or (H_kv, d, d).
        seed: of the rotations.
        layer_index: which layer this is; ``layer(i)`` sets it.
        pass_rest: with another width, the channels after the last whole scale do not turn; otherwise that is an error.
        pairing: "interleaved" as published; channels are dealt out vector by vector, and scale by scale within.

    Shapes: positions (b, S, d), real: (row, column) of patches, which `grid_positions` makes, or points as they are. Tokens at
    the origin, such as CLS, do not turn. Vectors are made from the arguments, in float64, and are neither stored nor cast.

    Raises:
        ConfigError: a width that is not shared out, no number of heads, a matrix that is not orthogonal, two ladders.

    Source: Boyang Li, Yulin Wu, Nuoxian Huang, Wenjia Zhang. GridPE: A Grid Cell-Inspired Unified Position Embedding for
    Arbitrary-Dimensional Spaces. arXiv 2406.07049, 2024; the form of its third version, 2026.
    """

    frequencies: Tensor

    def __init__(
        self,
        head_dim: int,
        num_heads: int | None = None,
        *,
        num_kv_heads: int | None = None,
        axes: int = 2,
        base: float | None = None,
        ratio: float | Literal["economy"] | None = None,
        rotation: Rotation = "random",
        seed: int = 0,
        layer_index: int = 0,
        pass_rest: bool = False,
        pairing: Pairing = "interleaved",
    ) -> None:
        super().__init__(head_dim, axes, pairing)
        check_positive(num_heads=num_heads, num_kv_heads=num_kv_heads)
        check_layer_index(layer_index)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.base, self.ratio, self.seed, self.layer_index, self.pass_rest = base, ratio, seed, layer_index, pass_rest
        # As numbers, so that encodings with equal ones share tables.
        self.rotation: Rotation = rotation if isinstance(rotation, str) else _numbers(_matrices(rotation))
        self.derive("frequencies", self._frequencies)

    def _frequencies(self) -> Tensor:
        return gridpe_frequencies(
            self.dims,
            self.head_dim,
            num_heads=self.num_kv_heads,
            base=self.base,
            ratio=self.ratio,
            rotation=self.rotation,
            seed=self.seed,
            layer_index=self.layer_index,
            pass_rest=self.pass_rest,
        )

    def vectors(self) -> Tensor:
        return self.exact("frequencies", self.frequencies.device)

    def layer(self, index: int) -> GridPE:
        if self.rotation != "random" or self.dims == 1:
            return self
        return GridPE(
            self.head_dim,
            num_kv_heads=self.num_kv_heads,
            axes=self.dims,
            base=self.base,
            ratio=self.ratio,
            seed=self.seed,
            layer_index=index,
            pass_rest=self.pass_rest,
            pairing=self.pairing,
        )

    def extra_repr(self) -> str:
        ladder = f"ratio={self.ratio}" if self.ratio is not None else f"base={BASE if self.base is None else self.base}"
        gauge = self.rotation if isinstance(self.rotation, str) else "given"
        return f"{self.head_dim}, axes={self.dims}, {ladder}, rotation={gauge}, pairing={self.pairing}"


def _matrices(rotation: Tensor | Matrix | Sequence[Matrix]) -> Tensor:
    given = torch.as_tensor(rotation, dtype=torch.float64, device="cpu").detach()
    return given[None] if given.ndim == 2 else given


def _numbers(tensor: Tensor) -> Any:
    """Return a tensor as nested tuples."""
    return tuple(map(_numbers, tensor)) if tensor.ndim else tensor.item()
