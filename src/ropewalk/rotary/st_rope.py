"""ST-RoPE (EVA02-AT): spatial and temporal angles added up on the whole head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ropewalk.backends import attend
from ropewalk.core.attention import Attention, Problem
from ropewalk.core.encoding import Rotary
from ropewalk.core.errors import ConfigError, NotCausal, PositionError, ShapeError, check_positive
from ropewalk.core.positions import Positions
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import check_base, geometric


class STRoPE(Rotary):
    """φ(t, h, w, p) = (h b_p for p < d/4, else w b_{p − d/4}) + t c_p,  b_j = base^(−4j/d),  c_p = base^(−2p/d).

    Every pair turns by a place in the frame and by time. Scores depend on (Δt, Δh, Δw), and not as a sum over axes. One frame at
    t = 0 is the image encoder's rotation. Tokens at the origin, such as CLS, do not turn.

    Args:
        head_dim: width d of a head, a multiple of 4.
        base: of the frequencies.
        pairing: "interleaved" as published.

    Shapes: positions (b, S, 3) of (t, row, column), real; `clip_positions` makes them. Attention is bidirectional: a causal
    problem, and with it a cache, is refused.

    Raises:
        ConfigError: a width that is no multiple of 4.
        NotCausal: a causal problem.

    Source: Xiaoqi Wang, Yi Wang, Lap-Pui Chau. EVA02-AT: Egocentric Video-Language Understanding with Spatial-Temporal Rotary
    Positional Embeddings and Symmetric Optimization. arXiv 2506.14356, 2025.
    """

    axes = 3
    space: Tensor
    time: Tensor

    def __init__(self, head_dim: int, base: float = 10_000.0, *, pairing: Pairing = "interleaved") -> None:
        super().__init__(pairing)
        check_base(base)
        check_positive(head_dim=head_dim)
        if head_dim % 4:
            raise ConfigError(f"head_dim is a multiple of 4, two axes of pairs of channels; got {head_dim}")
        self.head_dim, self.base = head_dim, float(base)
        self.derive("space", self._of_places)
        self.derive("time", self._of_times)

    def _of_places(self) -> Tensor:
        return geometric(self.head_dim // 2, self.base).tensor()

    def _of_times(self) -> Tensor:
        return geometric(self.head_dim, self.base).tensor()

    def fit(self, head_dim: int) -> None:
        if head_dim != self.head_dim:
            raise ShapeError(f"{type(self).__name__} was made for head_dim {self.head_dim}; the problem has {head_dim}")

    def angles(self, position: Tensor) -> Tensor:
        space, time = (self.exact(name, position.device) for name in ("space", "time"))
        t, row, column = position.split(1, -1)
        return torch.cat([row * space, column * space], -1) + t * time

    def rewrite(self, problem: Attention) -> Problem:
        if problem.causal:
            raise NotCausal("ST-RoPE is of a bidirectional encoder of whole clips: give causal=False")
        return super().rewrite(problem)

    def extra_repr(self) -> str:
        return f"{self.head_dim}, base={self.base}, pairing={self.pairing}"


class JointSpaceTimeAttention(nn.Module):
    """One bidirectional softmax over all tokens of a clip, (B, 1 + T·H·W, D) → the same, as in EVA02's encoder block.

    Args:
        hidden_size: D.
        num_heads: heads.
        base: of the frequencies.
        inner_norm: LayerNorm before the output projection.

    Source: see `STRoPE`. q and v have biases, k has none.
    """

    def __init__(self, hidden_size: int, num_heads: int, base: float = 10_000.0, *, inner_norm: bool = True) -> None:
        super().__init__()
        check_positive(hidden_size=hidden_size, num_heads=num_heads)
        if hidden_size % num_heads:
            raise ConfigError(f"hidden_size {hidden_size} is not shared out evenly over {num_heads} heads")
        self.num_heads = num_heads
        self.encoding = STRoPE(hidden_size // num_heads, base)
        self.q = nn.Linear(hidden_size, hidden_size)
        self.k = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v = nn.Linear(hidden_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size) if inner_norm else nn.Identity()
        self.out = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor, positions: Positions) -> Tensor:
        """Attend."""
        q, k, v = (w(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for w in (self.q, self.k, self.v))
        out = attend(self.encoding(Attention(q, k, v, positions, causal=False)))
        return self.out(self.norm(out.transpose(1, 2).flatten(2)))


class ClipPositionEmbedding(nn.Module):
    """Learned vectors added to a clip: one a cell, repeated over frames, one a frame, and one for CLS.

    Args:
        max_frames: frames that have a vector.
        rows: of the grid.
        columns: of the grid.
        hidden_size: of the embeddings.

    Source: see `STRoPE`.
    """

    def __init__(self, max_frames: int, rows: int, columns: int, hidden_size: int) -> None:
        super().__init__()
        check_positive(max_frames=max_frames, rows=rows, columns=columns, hidden_size=hidden_size)
        self.space, self.time, self.cls = (
            nn.Parameter(nn.init.trunc_normal_(torch.empty(n, hidden_size), std=0.02))
            for n in (rows * columns, max_frames, 1)
        )

    def forward(self, x: Tensor, frames: int) -> Tensor:
        """Add them to x (B, 1 + frames · rows · columns, hidden_size)."""
        if frames > len(self.time):
            raise PositionError(f"{frames} frames and {len(self.time)} vectors of frames")
        cells = (self.time[:frames, None] + self.space).flatten(0, 1)
        if x.shape[1] != 1 + len(cells):
            raise ShapeError(f"x has {x.shape[1]} tokens; a clip of {frames} frames has 1 + {len(cells)}")
        return x + torch.cat([self.cls, cells]).to(x.dtype)
