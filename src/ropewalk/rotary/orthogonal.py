"""Orthogonal matrices that are learned: each map takes free numbers to an orthogonal matrix, and zeros to the identity."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from ropewalk.core.errors import ConfigError

Map = Literal["exp", "cayley", "householder"]


def check_map(how: str) -> Map:
    """Check the name of a map."""
    for name in get_args(Map):
        if how == name:
            return name
    raise ConfigError(f"orthogonal matrices are made by {', '.join(map(repr, get_args(Map)))}; got {how!r}")


def skew(raw: Tensor) -> Tensor:
    """(A − Aᵀ) / 2."""
    return (raw - raw.transpose(-1, -2)) / 2


def orthogonal(raw: Tensor, how: Map = "exp") -> Tensor:
    """Return an orthogonal matrix (..., d, d) in the dtype of ``raw``, which is float32 or wider.

    - "exp": exp(S), S the skew part of ``raw``; determinant 1.
    - "cayley": (1 − S/2)⁻¹ (1 + S/2), the same to second order; determinant 1, never a half turn.
    - "householder": −H_1 ⋯ H_d, reflections whose vectors are the columns of the part of ``raw`` below the diagonal, with
      ones on it; determinant 1 for even d.
    """
    if how == "exp":
        return torch.linalg.matrix_exp(skew(raw))
    eye = torch.eye(raw.shape[-1], dtype=raw.dtype, device=raw.device)
    if how == "cayley":
        half = skew(raw) / 2
        return torch.linalg.solve(eye - half, eye + half)
    below = raw.tril(-1)
    return -torch.linalg.householder_product(below, 2 / (1 + below.square().sum(-2)))


def orthonormal(raw: Tensor) -> Tensor:
    """Return the columns of ``raw`` (..., d, r), of full rank, made orthonormal from the first on (Gram and Schmidt)."""
    q, r = torch.linalg.qr(raw)
    signs = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(q.dtype)
    return q * signs[..., None, :]
