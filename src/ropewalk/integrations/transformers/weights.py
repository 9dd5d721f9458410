"""The query and key weights of a layer, whatever the model calls them, and what can be seen in them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ropewalk.analysis.inspection.findings import Finding, Section
from ropewalk.analysis.random_matrix import product_diagnostics
from ropewalk.analysis.retrieval_heads import row_norms
from ropewalk.core.errors import ConfigError
from ropewalk.integrations.transformers import parts
from ropewalk.integrations.transformers.probe import LayerShape
from ropewalk.integrations.transformers.watching.watch import heat


class QueryKey(NamedTuple):
    """W_q (H · d, hidden size) and W_k (H_kv · d, hidden size), as `torch.nn.Linear` keeps them."""

    q: Tensor
    k: Tensor

    def head(self, shape: LayerShape, index: int) -> tuple[Tensor, Tensor]:
        """Return W_q and W_k of a query head and its key head as factors (hidden size, d): y = x W."""
        d = shape.head_dim
        at = index // shape.group
        return self.q[index * d : (index + 1) * d].mT, self.k[at * d : (at + 1) * d].mT


@torch.no_grad()
def query_key(layer: nn.Module, shape: LayerShape) -> QueryKey | None:
    """Return the weights of an attention module; None where they are not two plain matrices (latent keys, unknown names).

    Norms that follow them (Qwen 3, Gemma 3) and biases are not in them.
    """
    rows_q, rows_k = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    found: QueryKey | None = None
    for name in ("q_proj", "qkv_proj", "query_key_value", "c_attn"):
        module = getattr(layer, name, None)
        if not isinstance(module, nn.Module) or not isinstance(getattr(module, "weight", None), Tensor):
            continue
        weight = _read(module)
        if name == "q_proj":
            other = getattr(layer, "k_proj", None)
            if isinstance(other, nn.Module):
                found = QueryKey(weight, _read(other))
        elif name == "qkv_proj":
            found = QueryKey(*weight.split([rows_q, rows_k, len(weight) - rows_q - rows_k])[:2])
        elif name == "c_attn":  # a matrix (in, out)
            found = QueryKey(*weight.mT.chunk(3)[:2])
        elif len(weight) == 3 * rows_q:  # q, k and v of each head side by side
            parts = weight.unflatten(0, (shape.num_heads, 3, shape.head_dim))
            found = QueryKey(parts[:, 0].flatten(0, 1), parts[:, 1].flatten(0, 1))
    if found is None or len(found.q) != rows_q or len(found.k) != rows_k:
        return None
    return found


def _read(module: nn.Module) -> Tensor:
    """Return a copy of a module's weight, also of one whose weights come from the disk when they are needed."""
    with _loaded(module):
        weight = module.weight
        assert isinstance(weight, Tensor)
        if weight.is_meta:
            raise ConfigError(f"the weights of {type(module).__name__} are not there: load the model first")
        return weight.detach().float().cpu().clone()


@contextlib.contextmanager
def _loaded(module: nn.Module) -> Iterator[None]:
    if not hasattr(module, "_hf_hook"):
        yield
        return
    from accelerate.utils import align_module_device

    with align_module_device(module):
        yield


def row_utility(model: Any, shapes: Sequence[LayerShape]) -> Tensor | None:
    """Return the L1 norm of W_q's rows, (layers, heads, d); None where the weights are not two plain matrices."""
    made = []
    for layer, shape in zip(parts.attention_layers(model), shapes, strict=True):
        weights = query_key(layer, shape)
        if weights is None:
            return None
        made.append(row_norms(weights.q, shape.num_heads).double())
    return torch.stack(made)


def spectra(model: Any, shapes: Sequence[LayerShape]) -> Section | None:
    """Return what the eigenvalues of W_q W_kᵀ say of each head; None where the weights are not two plain matrices."""
    outliers, energy, rank = [], [], []
    for layer, shape in zip(parts.attention_layers(model), shapes, strict=True):
        weights = query_key(layer, shape)
        if weights is None:
            return None
        found = [product_diagnostics(*weights.head(shape, h)) for h in range(shape.num_heads)]
        outliers.append([float(f.outliers) for f in found])
        energy.append([f.outlier_energy for f in found])
        rank.append([f.soft_rank for f in found])
    counts, energies, ranks = (torch.tensor(x, dtype=torch.float64) for x in (outliers, energy, rank))
    mean = float(energies.mean())
    return Section(
        "Spectra of W_q W_kᵀ",
        "Jha and Reagen, arXiv 2507.09394, 2025; the law for products is ours",
        "Eigenvalues of each head's query-key matrix beyond those a product of random factors of its size has. Rotation, biases "
        "and norms of q and k are left out.",
        [
            Finding(
                "note",
                f"{float(counts.mean()):.1f} of {shapes[0].head_dim} directions of a head stand out of the random ones",
                mean,
                f"outliers hold {mean:.1%} of the energy on average, {float(energies.max()):.1%} at most; soft rank from "
                f"{float(ranks.min()):.3f} to {float(ranks.max()):.3f} (1: noise)",
                "Nothing to mend. Heads with a soft rank near 0 hang on one direction.",
            )
        ],
        [],
        [
            heat("Energy of outliers", energies, "share"),
            heat("Outliers", counts, "directions"),
            heat("Soft rank", ranks, "λ₊/λ₁"),
        ],
    )
