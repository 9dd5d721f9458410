"""A layer of two streams (Lance): tokens that are understood and tokens that are generated have weights of their own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ropewalk.backends import attend
from ropewalk.coordinates.scheme import Cells
from ropewalk.core.attention import Attention
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import ConfigError, ShapeError, check_positive
from ropewalk.core.positions import Positions, Tokens
from ropewalk.lab.model import Extend, RMSNorm, SwiGLU
from ropewalk.rotary.modality_rope import MODALITIES

LATENTS = tuple(float(MODALITIES[kind]) for kind in ("noise", "ref_source", "ref_image"))


def generated_tokens(tokens: Tokens) -> Tensor:
    """(b, S) whether each token is a latent, noisy or clean; text, markers and semantic tokens (ViT) are not.

    Args:
        tokens: of a layout of `ropewalk.rotary.modality_rope.Segment` blocks.

    Raises:
        NeedsColumn: tokens that do not say what blocks they are of.
    """
    cells = Cells.of(tokens, tokens.position.double())
    latents = torch.tensor(LATENTS, dtype=torch.float64, device=tokens.device)
    return cells.visual & torch.isin(cells["modality"], latents)


class Streams(nn.Module):
    """x ↦ f(x) for tokens that are understood, g(x) for those that are generated, f and g two modules of one shape.

    Each is run on its own tokens alone, so that two streams cost what one does.

    Args:
        make: returns a new module, (n, ...) → (n, ...); called twice.
    """

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.understanding, self.generation = make(), make()

    def forward(self, x: Tensor, generated: Tensor) -> Tensor:
        """Return (B, S, ...) for x (B, S, ...) and ``generated`` (B, S) bool."""
        one, other = self.understanding(x[~generated]), self.generation(x[generated])
        made = one.new_empty(*x.shape[:2], *one.shape[1:])
        made[~generated], made[generated] = one, other
        return made


class DualStreamLayer(nn.Module):
    """x ← x + W_O,s attend(W_Q,s n, W_K,s n, W_V,s n),  n = norm_s x;  x ← x + SwiGLU_s(norm'_s x),  s the stream of the token.

    Attention is joint: one softmax over the keys of both streams. With equal weights in both it is an ordinary layer.

    Args:
        hidden_size: width of x.
        num_heads: query heads.
        encoding: turns queries and keys and says who sees whom; `ropewalk.ModalityRoPE` as published.
        num_kv_heads: key heads; None: as many.
        head_dim: width of a head; None: hidden_size / num_heads.
        inner: width of the SwiGLU; None: 4 · hidden_size (ours).
        qk_norm: RMSNorm of queries and keys, head by head.

    Shapes: x (B, S, hidden_size) → the same. Units: positions of a layout, which say the stream of each token. No biases (ours).

    Raises:
        ConfigError: heads that do not divide.
        ShapeError: x and positions that do not fit.

    Source: Fengyi Fu et al. Lance: Unified Multimodal Modeling by Multi-Task Synergy. arXiv 2605.18678, 2026.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        encoding: Encoding,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        inner: int | None = None,
        *,
        qk_norm: bool = True,
    ) -> None:
        super().__init__()
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_positive(
            hidden_size=hidden_size, num_heads=num_heads, num_kv_heads=kv_heads, head_dim=head_dim, inner=inner
        )
        if num_heads % kv_heads or (head_dim is None and hidden_size % num_heads):
            raise ConfigError(
                f"{num_heads} query heads are shared out evenly over {kv_heads} key heads, and hidden_size {hidden_size} over "
                "the query heads unless head_dim is given"
            )
        width = hidden_size // num_heads if head_dim is None else head_dim
        net = 4 * hidden_size if inner is None else inner
        self.hidden_size, self.head_dim, self.encoding = hidden_size, width, encoding
        self.q, self.k, self.v = (
            Streams(lambda n=n: nn.Linear(hidden_size, n * width, bias=False))  # type: ignore[misc]
            for n in (num_heads, kv_heads, kv_heads)
        )
        heads = encoding.output_heads(num_heads)
        self.out = Streams(lambda: nn.Linear(heads * width, hidden_size, bias=False))
        self.q_norm, self.k_norm = (Streams(lambda: RMSNorm(width)) if qk_norm else None for _ in range(2))
        self.norm, self.norm_feed_forward = (Streams(lambda: RMSNorm(hidden_size)) for _ in range(2))
        self.feed_forward = Streams(lambda: SwiGLU(hidden_size, net))

    def forward(self, x: Tensor, positions: Positions, extend: Extend | None = None) -> Tensor:
        """Return x after both halves.

        Args:
            x: (B, S, hidden_size); with a cache the new tokens alone.
            positions: of x, from `ropewalk.layout`; with a cache ``cache.step(positions)``.
            extend: the layer's ``cache[i].extend``. Clean context is given to the cache once; each step of denoising then goes
                on from a snapshot with the noise segment in one chunk.
        """
        tokens = positions.query
        if x.ndim != 3 or x.shape[1:] != (tokens.length, self.hidden_size) or tokens.batch not in (1, x.shape[0]):
            raise ShapeError(
                f"x has shape {tuple(x.shape)} and the positions are {tokens.batch} rows of {tokens.length} tokens; expected "
                f"(batch, tokens, {self.hidden_size})"
            )
        of = generated_tokens(tokens).expand(x.shape[:2])
        n = self.norm(x, of)
        q, k, v = (w(n, of).unflatten(-1, (-1, self.head_dim)) for w in (self.q, self.k, self.v))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q, of), self.k_norm(k, of)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        problem = Attention(q, k, v, positions, x=n)
        seen = attend(self.encoding(problem) if extend is None else extend(problem))
        x = x + self.out(seen.transpose(1, 2).flatten(2), of)
        return x + self.feed_forward(self.norm_feed_forward(x, of), of)
