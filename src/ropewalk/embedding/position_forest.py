"""PosFormer's position forest: paths of LaTeX tokens as embeddings, and a decoder that learns to tell them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.functional import cross_entropy, gelu, layer_norm, linear

from ropewalk.coordinates.formulas import LOWER, PAD
from ropewalk.core.encoding import Encoding, full_precision, table_dtype
from ropewalk.core.errors import PositionError, ShapeError, check_positive
from ropewalk.core.positions import Chain, Positions
from ropewalk.embedding.sinusoidal import Sinusoidal

CODES = LOWER + 1


class PositionForestEmbedding(Encoding):
    """x_t ← norm(x_t + norm(gelu(W c_t + b)) + s(t)),  c_t the path of the token, s the sinusoid of its position.

    With x = 0 this is what the position decoder of the paper reads. The numbers 0 … 5 of a path enter as they are.

    Args:
        hidden_size: width d of the embeddings, even.
        depth: numbers of a path.

    Shapes: x (B, S, d); positions (b, S) in tokens, with the column "path" (b, S, depth), from `ropewalk.formula_positions`.
    Learned: W, b and two norms.

    Raises:
        NeedsColumn: positions without paths.
        PositionError: paths of another depth, or of other numbers than codes.

    Source: Tongkun Guan, Chengyu Lin, Wei Shen, Xiaokang Yang. PosFormer: Recognizing Complex Handwritten Mathematical Expression
    with Position Forest Transformer. arXiv 2407.07764, 2024.
    """

    def __init__(self, hidden_size: int, depth: int = 5) -> None:
        super().__init__()
        check_positive(hidden_size=hidden_size, depth=depth)
        self.hidden_size, self.depth = hidden_size, depth
        self.sinusoid = Sinusoidal(hidden_size)
        self.path = nn.Linear(depth, hidden_size)
        self.norms = nn.ModuleList([nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)])

    def embed(self, x: Tensor, positions: Positions | None = None, at: Chain = ()) -> Tensor:
        dtype = table_dtype(x)
        placed = self.sinusoid.embed(x.to(dtype), positions, at)
        if positions is None:
            positions = Positions.arange(x.shape[1], device=x.device)  # and the column is missing, which is told
        path = _paths(positions.query.column("path", "rw.formula_positions(paths)"), self.depth)
        with full_precision(x):
            weight, bias = (t.to(dtype) for t in (self.path.weight, self.path.bias))
            forest = self._norm(0, gelu(linear(path.to(dtype), weight, bias)))
            return self._norm(1, placed + forest).to(x.dtype)

    def _norm(self, index: int, x: Tensor) -> Tensor:
        norm = self.norms[index]
        assert isinstance(norm, nn.LayerNorm)
        return layer_norm(x, (self.hidden_size,), norm.weight.to(x.dtype), norm.bias.to(x.dtype), norm.eps)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, depth={self.depth}"


def _paths(path: Tensor, depth: int) -> Tensor:
    if path.ndim != 3 or path.shape[2] != depth:
        deep = f"{path.shape[-1]} numbers each" if path.ndim == 3 else f"shape {tuple(path.shape)}"
        raise PositionError(
            f"paths have {deep} and the table reads {depth}: a path deeper than the table is cut by "
            f"forest_tensor(paths, {depth}, deeper='cut'), or give the embedding a larger depth"
        )
    if not is_compiling() and not path.is_meta and bool(((path < 0) | (path >= CODES)).any()):
        raise PositionError(f"paths are of codes 0 to {CODES - 1}; got {path.min().item()} to {path.max().item()}")
    return path


class PositionForestDecoder(nn.Module):
    """Reads paths and an image, and tells of the next token how deep it is nested and on which branch.

    It is trained beside the decoder of tokens and then left out, so that recognition costs nothing more.

    Args:
        hidden_size: width.
        num_heads: heads.
        num_layers: layers of masked self-attention, attention to the image and a feed-forward net, norms after each.
        feed_forward: inner width.
        dropout: share of activations left out in training.
        depth: numbers of a path.

    Source: see `PositionForestEmbedding`.
    """

    def __init__(
        self,
        hidden_size: int = 256,
        num_heads: int = 8,
        num_layers: int = 3,
        feed_forward: int = 1024,
        dropout: float = 0.3,
        depth: int = 5,
    ) -> None:
        super().__init__()
        self.embedding = PositionForestEmbedding(hidden_size, depth)
        self.layers = nn.ModuleList(
            nn.TransformerDecoderLayer(hidden_size, num_heads, feed_forward, dropout, batch_first=True)
            for _ in range(num_layers)
        )
        self.depth, self.branch = (
            nn.Sequential(nn.Linear(hidden_size, 128), nn.ReLU(), nn.Linear(128, n)) for n in (depth, CODES)
        )

    def forward(self, positions: Positions, image: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return logits of the nesting (B, S, depth) and of the branch (B, S, 6).

        Args:
            positions: from `ropewalk.formula_positions`.
            image: (B, L, hidden_size) features.
            valid: (B, L), False for cells that are padding.
        """
        n = positions.query.length
        x = self.embedding.embed(image.new_zeros(len(image), n, image.shape[-1]), positions)
        later = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        hidden = None if valid is None else ~valid
        for layer in self.layers:
            x = layer(x, image, tgt_mask=later, memory_key_padding_mask=hidden)
        return self.depth(x), self.branch(x)


class ForestLoss(NamedTuple):
    """The losses of one batch, and (tokens + 0.25 nesting + 0.25 branch) / 1.5 of them."""

    tokens: Tensor
    nesting: Tensor
    branch: Tensor

    @property
    def total(self) -> Tensor:
        """What is trained on."""
        return (self.tokens + 0.25 * self.nesting + 0.25 * self.branch) / 1.5


def forest_loss(
    tokens: tuple[Tensor, Tensor], nesting: tuple[Tensor, Tensor], branch: tuple[Tensor, Tensor], pad: int = PAD
) -> ForestLoss:
    """Return mean cross-entropies over the steps whose next token is real.

    Args:
        tokens: logits (B, S, vocabulary) and the next tokens (B, S).
        nesting: logits and targets of `ropewalk.coordinates.formulas.forest_targets`.
        branch: likewise.
        pad: token that is padding.
    """
    real = tokens[1] != pad
    losses = []
    for logits, target in (tokens, nesting, branch):
        if logits.shape[:-1] != target.shape or target.shape != real.shape:
            raise ShapeError(
                f"logits {tuple(logits.shape)} and targets {tuple(target.shape)} of next tokens {tuple(real.shape)}; "
                "expected (B, S, classes) and (B, S)"
            )
        losses.append(cross_entropy(logits[real], target[real]))
    return ForestLoss(*losses)


def image_sinusoid(valid: Tensor, hidden_size: int) -> Tensor:
    """Return the sinusoids of the cells of padded images, (b, h, w, d): the first half of x, the second of y.

    x and y count the real cells and end at 2π; sin and cos take turns, frequencies 10000^(−2i/(d/2)), i < d/4.

    Args:
        valid: (b, h, w), False for padding.
        hidden_size: d, a multiple of 4.
    """
    if valid.ndim != 3 or hidden_size % 4:
        raise ShapeError(
            f"valid has shape {tuple(valid.shape)} and the width is {hidden_size}; expected (b, h, w) and 4n"
        )
    half = Sinusoidal(hidden_size // 2)
    sides = []
    for axis in (2, 1):
        count = valid.double().cumsum(axis)
        last = count.narrow(axis, count.shape[axis] - 1, 1).clamp(min=1)
        sides.append(half.table(2 * torch.pi * count / last))
    return torch.cat(sides, -1)
