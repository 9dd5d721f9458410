"""GTA, geometric transform attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ropewalk.core.attention import Attention, Feature, Pair, Problem, low_rank
from ropewalk.core.encoding import Encoding, check_axes, full_precision, table_dtype
from ropewalk.core.errors import CannotCompose, ConfigError, ShapeError
from ropewalk.core.positions import Chain, Tokens

SIZES = {"triv": 1, "se3": 4, "so3": 0, "so2": 2, "t2": 3}
"""Kinds of block in the order of the channels, with the size of one group (so3: by degree)."""


class GTA(Encoding):
    """o_i = Σ_j softmax_j( q_iᵀ ρ(g_i g_j⁻¹) k_j / √C ) ρ(g_i g_j⁻¹) v_j,  ρ block-diagonal.

    Each token carries a group element g: the pose of its camera and the place of its patch. Keys and values are brought
    into the frame of the query. It factors into matrices a token: q ← ρ(g_i)ᵀ q, k ← ρ(g_j⁻¹) k, v ← ρ(g_j⁻¹) v,
    o ← ρ(g_i) o, so that ordinary fused attention runs in between.

    The channels of a head are runs of blocks in this order, each a repetition of small matrices:

    - ``triv``: untouched.
    - ``se3``: the 4 x 4 camera matrix E, translation times a scale s.
    - ``so3``: real Wigner matrices of degree 1 ... so3_degree of the camera's rotation (3, or 3 + 5, ... channels a group),
      in an orthonormal basis of traceless symmetric tensors; a basis of spherical harmonics differs by a fixed rotation.
    - ``so2``: 2 x 2 rotations of the patch coordinates by 2π · max_freq · x · f_k, f_k = 2^(k − n), k = 1 ... n, ordered
      frequency by frequency and (row, column) within: 4 · so2_freqs channels.
    - ``t2``: 3 x 3 translations by the patch coordinates.

    Args:
        f_dims: channels of each kind; their sum is the width of a head.
        so2_freqs: frequencies n an axis.
        max_freq: one number, or one for (row, column).
        shared_freqs: all f_k = 1.
        so3_degree: largest degree, 1 or 2.
        trans_scale: initial s; learned with ``learn_scale``.
        learn_scale: learn s, one number a layer.
        euclid: similarity −½‖q' − k'‖² instead of the dot product; se3 then acts on points, in groups of 3 channels.
        v_transform: also transform values and output (without it the paper finds it worse).

    Shapes: positions from `view_positions`: (b, S, 2) with a column ``extrinsics`` (b, S, 4, 4), world to camera.
    Numbers: matrices in float64, applied in float32 or wider.

    Raises:
        NeedsColumn: positions without cameras, where se3 or so3 blocks ask for them.
        ConfigError: widths that groups do not fill.

    Source: Takeru Miyato, Bernhard Jaeger, Max Welling, Andreas Geiger. GTA: A Geometry-Aware Attention Mechanism for
    Multi-View Transformers. arXiv 2310.10375, 2023.
    """

    def __init__(
        self,
        f_dims: Mapping[str, int] | None = None,
        *,
        head_dim: int | None = None,
        so2_freqs: int | None = None,
        max_freq: float | Sequence[float] = 1.0,
        shared_freqs: bool = False,
        so3_degree: int = 2,
        trans_scale: float = 0.01,
        learn_scale: bool = True,
        euclid: bool = False,
        v_transform: bool = True,
    ) -> None:
        super().__init__()
        if f_dims is None:
            if head_dim is None or head_dim % 8:
                raise ConfigError(
                    f"give f_dims, or a head_dim that is a multiple of 8 for half se3, half so2; got {head_dim!r}"
                )
            f_dims = {"se3": head_dim // 2, "so2": head_dim // 2}
        unknown = set(f_dims) - set(SIZES)
        if unknown or any(n < 0 for n in f_dims.values()):
            raise ConfigError(f"f_dims has {dict(f_dims)}; the kinds are {list(SIZES)}, with channels of each")
        if so3_degree not in (1, 2):
            raise ConfigError(f"so3_degree is 1 or 2; got {so3_degree!r}")
        self.blocks = tuple((kind, f_dims[kind]) for kind in SIZES if f_dims.get(kind, 0))
        self.width = sum(n for _, n in self.blocks)
        if head_dim is not None and head_dim != self.width:
            raise ConfigError(f"f_dims {dict(f_dims)} add up to {self.width}, not to head_dim={head_dim}")
        so2 = f_dims.get("so2", 0)
        self.so2_freqs = so2 // 4 if so2_freqs is None else so2_freqs
        if so2 and so2 != 4 * self.so2_freqs:
            raise ConfigError(
                f"{self.so2_freqs} frequencies on two axes fill {4 * self.so2_freqs} so2 channels, not {so2}"
            )
        self.max_freq = tuple(float(f) for f in max_freq) if isinstance(max_freq, Sequence) else (float(max_freq),) * 2
        if len(self.max_freq) != 2:
            raise ConfigError(f"max_freq is one number, or one for (row, column); got {max_freq!r}")
        self.shared_freqs, self.so3_degree = shared_freqs, so3_degree
        self.euclid, self.v_transform = euclid, v_transform
        for kind, n in self.blocks:
            if n % self._group(kind):
                raise ConfigError(f"{n} {kind} channels are not filled by groups of {self._group(kind)}")
        scale = torch.tensor(float(trans_scale))
        self.trans_scale: nn.Parameter | None = nn.Parameter(scale) if learn_scale else None
        self.fixed_scale = float(trans_scale)

    def _group(self, kind: str) -> int:
        if kind == "so3":
            return 3 if self.so3_degree == 1 else 8
        return 3 if kind == "se3" and self.euclid else SIZES[kind]

    # ---- matrices a token -------------------------------------------------------------------------------------

    def _matrices(self, tokens: Tokens, chain: Chain) -> dict[str, Tensor]:
        """Return ρ(g⁻¹), which keys and values meet: (b, 1, S, groups or 1, m, m) for each kind."""
        made: dict[str, Tensor] = {}
        kinds = [kind for kind, _ in self.blocks]
        if "se3" in kinds or "so3" in kinds:
            inverse = tokens.memo(
                lambda: "gta inverse",
                lambda: _inverse(
                    tokens.column("extrinsics", "ropewalk.coordinates.views.view_positions(coordinates, extrinsics)")
                ),
            )
            if "se3" in kinds:
                made["se3"] = self._scaled(inverse)[:, None, :, None]
            if "so3" in kinds:
                made["so3"] = _wigner(inverse[..., :3, :3], self.so3_degree)[:, None, :, None]
        if "so2" in kinds or "t2" in kinds:
            xy = tokens.coordinates(chain)
            check_axes(self, xy, 2)
            if "so2" in kinds:
                made["so2"] = _turns(self._angles(xy))[:, None]
            if "t2" in kinds:
                made["t2"] = _translation(xy)[:, None, :, None]
        return made

    def _scaled(self, matrix: Tensor) -> Tensor:
        scale = self.fixed_scale if self.trans_scale is None else self.trans_scale.double()
        return torch.cat([matrix[..., :3], torch.cat([matrix[..., :3, 3:] * scale, matrix[..., 3:, 3:]], -2)], -1)

    def _angles(self, xy: Tensor) -> Tensor:
        n = self.so2_freqs
        f = [1.0 if self.shared_freqs else 2.0 ** (k - n) for k in range(1, n + 1)]
        steps = xy.new_tensor([[2 * math.pi * m * fk for m in self.max_freq] for fk in f])  # (n, 2)
        return (xy[:, :, None] * steps).flatten(2)

    # ---- applying them ----------------------------------------------------------------------------------------

    def _apply_blocks(self, x: Tensor, matrices: Mapping[str, Tensor], transpose: bool = False) -> Tensor:
        """Multiply each run of channels by its matrices, (B, H, S, C) → the same."""
        dtype = table_dtype(x)
        out, start = [], 0
        for kind, width in self.blocks:
            part = x[..., start : start + width].to(dtype)
            start += width
            if kind in matrices:
                m = matrices[kind].to(dtype)
                m = m.transpose(-1, -2) if transpose else m
                groups = part.unflatten(-1, (-1, self._group(kind)))
                if kind == "se3" and self.euclid:
                    turned = (m[..., :3, :3] @ groups[..., None])[..., 0] + m[..., :3, 3]
                else:
                    turned = (m @ groups[..., None])[..., 0]
                part = turned.flatten(-2)
            out.append(part)
        return torch.cat(out, -1).to(x.dtype)

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        if p.q.shape[-1] != self.width or (self.v_transform and p.v.shape[-1] != self.width):
            raise ShapeError(
                f"GTA was made for heads of width {self.width}; q has {p.q.shape[-1]} and v {p.v.shape[-1]}"
            )
        if self.euclid and (p.branches or p.product is not None):
            raise CannotCompose("GTA's Euclidean similarity needs one dot product")
        dtype = table_dtype(p.q)
        with full_precision(p.q):
            at_k = self._matrices(p.where.key, p.at)
            at_q = at_k if p.where.is_self else self._matrices(p.where.query, p.at)
            undone = {kind: _inverse(m) if kind in ("se3", "t2") else m.transpose(-1, -2) for kind, m in at_q.items()}
            if self.euclid:
                p = p.map_queries(lambda q: self._apply_blocks(q, at_q))
            else:  # ρ(g)ᵀ, the transpose of what the output meets
                p = p.map_queries(lambda q: self._apply_blocks(q, undone, transpose=True))
            p = p.map_keys(lambda k: self._apply_blocks(k, at_k))
            if self.euclid:
                half = -0.5 * p.logit_scale
                sizes = [half * t.to(dtype).square().sum(-1, keepdim=True) for t in (p.q, p.k)]
                p = p.with_features(q={"size": sizes[0]}, k={"size": sizes[1]})
                p = p.add(low_rank(_sum, (p.own("size"),), (p.own("size"),)))
            if not self.v_transform:
                return p
            p = p.replace(v=self._apply_blocks(p.v, at_k))
            names = tuple(undone)
            p = p.with_features(q={f"out.{kind}": m.flatten(3).to(dtype) for kind, m in undone.items()})

            def bring_back(out: Tensor, *flat: Tensor) -> Tensor:
                shapes = {kind: (-1, s, s) for kind, s in ((n, 4 if n == "se3" else self._group(n)) for n in names)}
                matrices = {n: f.unflatten(3, shapes[n]) for n, f in zip(names, flat, strict=True)}
                with full_precision(out):
                    return self._apply_blocks(out, matrices)

            refs: list[Feature] = [p.own(f"out.{kind}") for kind in names]
            return p.finish_with(bring_back, *refs)

    def extra_repr(self) -> str:
        blocks = ", ".join(f"{kind}={n}" for kind, n in self.blocks)
        return blocks + (", euclid" if self.euclid else "") + ("" if self.v_transform else ", v_transform=False")


def _sum(at_query: Tensor, at_key: Tensor) -> Sequence[Pair]:
    return (at_query, 1.0), (1.0, at_key)


def _inverse(matrix: Tensor) -> Tensor:
    """Invert affine matrices (b, ..., m, m) in the precision they have."""
    return torch.linalg.inv(matrix)


def _turns(angles: Tensor) -> Tensor:
    """(..., g) angles → (..., g, 2, 2) rotations."""
    c, s = angles.cos(), angles.sin()
    return torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)


def _translation(xy: Tensor) -> Tensor:
    """(..., 2) → [[1, 0, 0], [0, 1, 0], [x, y, 1]]."""
    last = torch.cat([xy, torch.ones_like(xy[..., :1])], -1)
    top = torch.eye(3, dtype=xy.dtype, device=xy.device)[:2].expand(*xy.shape[:-1], 2, 3)
    return torch.cat([top, last[..., None, :]], -2)


def _wigner(rotation: Tensor, degree: int) -> Tensor:
    """Real representations of degree 1 (and 2) of a rotation, block-diagonal: (..., 3, 3) or (..., 8, 8)."""
    order = [1, 2, 0]  # (y, z, x), the order of real spherical harmonics of degree 1
    first = rotation[..., order, :][..., order]
    if degree == 1:
        return first
    basis = _traceless(rotation)
    # S -> R S Rᵀ on traceless symmetric S, written in an orthonormal basis of those.
    moved = rotation[..., None, :, :] @ basis @ rotation[..., None, :, :].transpose(-1, -2)
    second = torch.einsum("aij,...bij->...ab", basis, moved)
    top = torch.cat([first, first.new_zeros(*first.shape[:-1], 5)], -1)
    bottom = torch.cat([second.new_zeros(*second.shape[:-1], 3), second], -1)
    return torch.cat([top, bottom], -2)


def _traceless(like: Tensor) -> Tensor:
    """Return an orthonormal basis of traceless symmetric 3 x 3 matrices, (5, 3, 3)."""
    r, s = math.sqrt(0.5), math.sqrt(1 / 6)
    return like.new_tensor(
        [
            [[0, r, 0], [r, 0, 0], [0, 0, 0]],
            [[0, 0, 0], [0, 0, r], [0, r, 0]],
            [[-s, 0, 0], [0, -s, 0], [0, 0, 2 * s]],
            [[0, 0, r], [0, 0, 0], [r, 0, 0]],
            [[r, 0, 0], [0, -r, 0], [0, 0, 0]],
        ]
    )
