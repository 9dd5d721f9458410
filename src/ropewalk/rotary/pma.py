"""PMA, phase-aligned attention between tokens of several resolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropewalk.backends import attend
from ropewalk.coordinates.mixed_resolution import MIXED, RESOLUTION, divided_axes, on_grid
from ropewalk.core import rotation
from ropewalk.core.attention import Attention, Branch, Mask, Problem
from ropewalk.core.encoding import check_axes, table_dtype
from ropewalk.core.errors import CannotCompose, ConfigError, PositionError
from ropewalk.core.positions import Chain, Tokens
from ropewalk.core.rotation import Pairing
from ropewalk.rotary.axial import AxialRoPE

ON_GRID = 1e-3  # parts of a step: a token that close to a point of a grid stands on it, whatever was rounded before


class PhaseAlignedRoPE(AxialRoPE):
    """s_ij = ⟨R(r_i x_i) q_i, R(r_i x_j) k_j⟩ / √d,  r_i the resolution of the query: its steps are the unit of distance.

    x is the place of a token in coarse cells, r the tokens along one. Trained attention is a sharp function of distances in
    whole steps; counted on one common grid, tokens of the other resolution stand at half or double steps, where it was
    never trained. A query does not see finer tokens that lie between the points of its own grid. Tokens of no grid (text,
    resolution 0) keep their coordinates, are seen by all, and see what the coarsest tokens see.

    Args:
        head_dim: width d of a head.
        axes: axes of a position.
        resolutions: tokens along a coarse cell that occur, whole or not; one more score each.
        widths: channels of each axis; None: equal shares.
        base: of the frequencies.
        pairing: "interleaved" (FLUX, Wan) or "half".
        divided: the axes along which cells are divided; None: the last two, so that time is not.
        subsample: without it a query sees all tokens, those between the points of its grid too.
        centred: tokens stand in the middle of their part of a cell, not at its first corner.

    Shapes: positions (b, S, axes) in coarse cells with a column "resolution"; `ropewalk.mixed_resolution_positions` makes
    them. A cache holds every key once a resolution. `phase_aligned_attention` computes the same without the keys that are not
    seen, where all rows of a batch have the same tokens.

    Raises:
        ConfigError: resolutions that are not positive, or twice the same; axes that do not exist.
        PositionError: a token of a resolution that was not named.
        NeedsColumn: positions without resolutions.
        CannotCompose: after an encoding whose scores are not one dot product.

    Source: Haoyu Wu, Jingyi Xu, Qiaomu Miao, Dimitris Samaras, Hieu Le. Phase-Aligned RoPE for Mixed-Resolution Diffusion
    Transformer. arXiv 2511.19778, 2025.
    """

    def __init__(
        self,
        head_dim: int,
        axes: int = 2,
        resolutions: Sequence[float] = (1, 2),
        *,
        widths: Sequence[int] | None = None,
        base: float = 10_000.0,
        pairing: Pairing = "interleaved",
        divided: Sequence[int] | None = None,
        subsample: bool = True,
        centred: bool = False,
    ) -> None:
        super().__init__(head_dim, axes, widths=widths, base=base, pairing=pairing)
        if not resolutions or not all(r > 0 for r in resolutions) or len(set(resolutions)) != len(resolutions):
            raise ConfigError(f"resolutions are different positive numbers, at least one; got {list(resolutions)}")
        self.resolutions = tuple(sorted(float(r) for r in resolutions))
        self.divided = divided_axes(axes, None if divided is None else tuple(divided))
        self.subsample, self.centred = subsample, centred

    # ---- where tokens are, in whose steps ---------------------------------------------------------------------

    def place(self, tokens: Tokens, chain: Chain, resolution: float | None = None) -> Tensor:
        """Return coordinates (b, S, axes) in steps of a resolution; None: in the steps of each token itself."""
        position = tokens.coordinates(chain)
        check_axes(self, position, self.axes)
        if self.centred:
            own = tokens.column(RESOLUTION, MIXED).double()
            shift = torch.where(own > 0, (1 / own.clamp(min=ON_GRID) - 1) / 2, 0.0)
            parts = enumerate(position.unbind(-1))
            position = torch.stack([x + shift if a in self.divided else x for a, x in parts], -1)
        return on_grid(tokens, position, resolution, self.divided)

    def group(self, tokens: Tokens) -> Tensor:
        """Return the resolution in whose steps each query counts, (b, S); text counts as the coarsest tokens do."""
        own = tokens.column(RESOLUTION, MIXED).double()
        known = (0.0, *self.resolutions)

        def check() -> bool:
            # Not torch.isin: export has no dynamic shape for it.
            sure = (own[..., None] == own.new_tensor(known)).any(-1).all()
            message = f"the encoding was made for resolutions {self.resolutions}, and 0 for tokens of no grid"
            if is_compiling():
                torch._assert_async(sure, message)
            elif not own.is_meta and not sure:
                raise PositionError(f"{message}; these are {own.unique().tolist()}: give resolutions= with all of them")
            return True

        tokens.memo(lambda: ("resolutions", known), check)
        return torch.where(own > 0, own, self.resolutions[0])

    def residues(self, tokens: Tokens, resolution: float | None = None) -> list[Tensor]:
        """Return how far each token is beyond a point of a grid, along each divided axis, (b, S) in steps.

        Of a key (a resolution is given) −1 says that it is on any grid: it belongs to none.
        """
        at = on_grid(tokens, tokens.coordinates(), resolution, self.divided)
        made = [at[..., a].remainder(1.0) for a in self.divided]
        if resolution is None:
            return made
        anywhere = tokens.column(RESOLUTION, MIXED) == 0
        return [x.masked_fill(anywhere, -1.0) for x in made]

    def _tables(self, tokens: Tokens, p: Attention, resolution: float | None) -> tuple[Tensor, Tensor]:
        at, dtype = p.at, table_dtype(p.q)

        def make() -> tuple[Tensor, Tensor]:
            angles = self.angles(self.place(tokens, at, resolution))[:, None]
            return rotation.tables(angles, dtype, self.magnitude, self.pairing)

        if any(m.learned for m in at):
            return make()
        return tokens.memo(lambda: ("phase aligned", resolution, self.key(), tuple(m.key for m in at), dtype), make)

    # ---- the problem ------------------------------------------------------------------------------------------

    def rewrite(self, problem: Attention) -> Problem:
        p = problem
        if p.branches or p.product is not None or p.kernel is not None:
            raise CannotCompose(
                "PMA makes a score for each resolution of one dot product; the problem has several, or none"
            )
        self.fit(p.q.shape[-1])
        query, key, first = p.where.query, p.where.key, self.resolutions[0]
        group = self.group(query)
        self.group(key)
        turned = {r: self.turn(problem.k, self._tables(key, p, r), p) for r in self.resolutions}
        p = p.replace(q=self.turn(p.q, self._tables(query, p, None), p), k=turned.pop(first))
        if not turned:
            return p
        p = p.with_features(q={"group": _feature(group)}, k={self._name(r): k for r, k in turned.items()})
        branches = [Branch()]
        for r in turned:
            mask = Mask(p.name(self._name(r)), _of(r), (p.own("group"),))
            branches.append(Branch(k=p.name(self._name(r)), where=mask))
        p = p.replace(branches=tuple(branches))
        return self._masked(p) if self.subsample else p

    def _masked(self, p: Attention) -> Attention:
        own = {f"at {a}": _feature(x) for a, x in zip(self.divided, self.residues(p.where.query), strict=True)}
        p = p.with_features(q=own, k=self._key_residues(p.where.key))
        names = [self._residue(r, a) for r in self.resolutions for a in self.divided]
        q, k = [p.own("group"), *map(p.own, own)], [p.own(name) for name in names]
        return p.with_mask(Mask(p.name("subsample"), self._seen(), tuple(q), tuple(k)))

    def _seen(self) -> Callable[..., Tensor]:
        resolutions, axes = self.resolutions, len(self.divided)

        def seen(group: Tensor, *residues: Tensor) -> Tensor:
            own, keys = residues[:axes], residues[axes:]
            out = group < 0
            for n, r in enumerate(resolutions):
                mine = group == r
                for i, j in zip(own, keys[n * axes : (n + 1) * axes], strict=True):
                    mine = mine & _aligned(i, j)
                out = out | mine
            return out

        return seen

    def _key_residues(self, tokens: Tokens) -> dict[str, Tensor]:
        return {
            self._residue(r, a): _feature(x)
            for r in self.resolutions
            for a, x in zip(self.divided, self.residues(tokens, r), strict=True)
        }

    def _name(self, resolution: float) -> str:
        return f"resolution {resolution:g}"

    def _residue(self, resolution: float, axis: int) -> str:
        return f"at {axis} of {resolution:g}"

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        p = problem
        self.group(tokens)
        moved = {}
        for r in self.resolutions:
            now, was = (self.angles(self.place(t, p.at, r)) for t in (tokens, p.where.key))
            k = p.k if r == self.resolutions[0] else p.kf[p.name(self._name(r))]
            moved[r] = self.turn(k, rotation.tables((now - was)[:, None], table_dtype(p.k)), p)
        p = p.replace(k=moved.pop(self.resolutions[0]))
        p = p.with_features(k={self._name(r): k for r, k in moved.items()})
        return p.with_features(k=self._key_residues(tokens)) if moved and self.subsample else p

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, resolutions={list(self.resolutions)}, subsample={self.subsample}"


def phase_aligned_attention(
    encoding: PhaseAlignedRoPE, problem: Attention, *, pool: bool = False, backend: str = "auto"
) -> Tensor:
    """Return the attention of a problem with `PhaseAlignedRoPE`, one call a resolution with the keys that it sees and no others.

    Args:
        encoding: what turns queries and keys.
        problem: not yet encoded, bidirectional self-attention without masks.
        pool: of finer tokens that lie in one step of a query's grid, see the mean of keys and values instead of the first one.
        backend: see `ropewalk.attend`.

    Returns:
        (B, H, S, d_v), in the order of the tokens.

    Raises:
        CannotCompose: a problem that is causal, masked, already encoded, or of cross-attention.
        PositionError: rows of a batch with different tokens; queries of one resolution on grids that do not match.
    """
    p = problem.located()
    tokens = p.where.key
    if p.causal or p.mask is not None or p.window is not None or not p.where.is_self or p.at or p.terms or p.branches:
        raise CannotCompose(
            "phase_aligned_attention takes bidirectional self-attention as a layer has it: no mask, not encoded"
        )
    if tokens.batch != 1 or {"valid", "document"} & tokens.columns.keys():
        raise PositionError(
            "rows of the batch with different tokens, padding or documents: use attend(encoding(problem)), which takes all"
        )
    encoding.fit(p.q.shape[-1])
    out = p.q.new_empty(*p.q.shape[:3], p.v.shape[-1])
    group = encoding.group(tokens)[0]
    for r in group.unique().tolist():
        here = (group == r).nonzero()[:, 0]
        q = encoding.turn(p.q, encoding._tables(tokens, p, None), p)[:, :, here]
        k, v = _keys(encoding, p, r, here, pool)
        plain = Attention(q, k, v, causal=False, scale=p.logit_scale)
        out[:, :, here] = attend(plain, backend)
    return out


def _keys(encoding: PhaseAlignedRoPE, p: Attention, r: float, queries: Tensor, pool: bool) -> tuple[Tensor, Tensor]:
    """Return the turned keys and the values that the queries of a resolution see."""
    tokens = p.where.key
    turned = encoding.turn(p.k, encoding._tables(tokens, p, r), p)
    if not encoding.subsample and not pool:
        return turned, p.v
    own = [x[0, queries] for x in encoding.residues(tokens)]
    if not all(bool(_aligned(x[:1], x).all()) for x in own):
        raise PositionError(
            f"queries of resolution {r:g} are on grids that do not match: use attend(encoding(problem)), which takes all"
        )
    grid = [x[:1] for x in own]
    finer = tokens.column(RESOLUTION, MIXED)[0] > r
    kept = ~finer if pool else torch.ones_like(finer)
    for there, x in zip(grid, encoding.residues(tokens, r), strict=True):
        kept = kept & _aligned(there, x[0])
    kept = kept.nonzero()[:, 0]
    if not pool or not bool(finer.any()):
        return turned[:, :, kept], p.v[:, :, kept]
    return _pooled(encoding, p, r, grid, kept, finer.nonzero()[:, 0], turned)


def _pooled(
    encoding: PhaseAlignedRoPE, p: Attention, r: float, grid: list[Tensor], kept: Tensor, finer: Tensor, turned: Tensor
) -> tuple[Tensor, Tensor]:
    at = on_grid(p.where.key, p.where.key.coordinates(), r, encoding.divided)[0, finer].clone()
    for a, there in zip(encoding.divided, grid, strict=True):
        at[:, a] = (at[:, a] - there + ON_GRID).floor() + there
    cells, which = at.unique(dim=0, return_inverse=True)
    count = torch.bincount(which, minlength=len(cells))

    def mean(x: Tensor) -> Tensor:
        total = x.new_zeros(*x.shape[:2], len(cells), x.shape[-1]).index_add(2, which, x[:, :, finer])
        return total / count[:, None].to(x.dtype)

    where = Tokens({"position": cells[None], RESOLUTION: cells.new_full((1, len(cells)), r)})
    where = where.with_columns(position=on_grid(where, cells[None], 1 / r, encoding.divided))
    k = encoding.turn(mean(p.k), encoding._tables(where, p, r), p)
    return torch.cat([turned[:, :, kept], k], 2), torch.cat([p.v[:, :, kept], mean(p.v)], 2)


def _feature(x: Tensor) -> Tensor:
    return x[:, None, :, None]


def _of(resolution: float) -> Callable[[Tensor], Tensor]:
    def of(group: Tensor) -> Tensor:
        return group == resolution

    return of


def _aligned(i: Tensor, j: Tensor) -> Tensor:
    """Whether a key, of residue j, is on the grid of a query, of residue i."""
    apart = (i - j).abs()
    return (j < 0) | (apart < ON_GRID) | (apart > 1 - ON_GRID)
