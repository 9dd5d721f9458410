"""KV-shift: keys and values mixed with those of the token before."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ropewalk.core.attention import Attention, Problem
from ropewalk.core.encoding import Encoding, State, full_precision, table_dtype
from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.core.running import hidden_of_keys


class KVShift(Encoding):
    """k'_t = α_t k_{t−1} + (1 − α_t) k_t,  α_t = σ(w·x_t) a key head;  the same for v with a gate of its own.

    The token before the first of a document counts as zero; padding is passed over. It changes the layer's own keys and
    values, before any encoding of a `Sequential` reads or turns them. Positions play no part.

    Args:
        hidden_size: width of the layer's input x.
        num_heads: key heads, unless ``num_kv_heads`` says otherwise.
        num_kv_heads: key heads.

    Shapes: x (B, S, hidden_size); of_k and of_v (H_kv, hidden_size).

    Raises:
        NeedsHiddenStates: the problem carries no x.

    Source: option of Yifan Zhang, Zixiang Chen, Yifeng Liu, Zhen Qin, Huizhuo Yuan, Kangping Xu, Yang Yuan, Quanquan Gu,
    Andrew Chi-Chih Yao. Group Representational Position Encoding. arXiv 2512.07805, 2025.
    """

    def __init__(self, hidden_size: int, num_heads: int | None = None, *, num_kv_heads: int | None = None) -> None:
        super().__init__()
        check_positive(hidden_size=hidden_size, num_heads=num_heads, num_kv_heads=num_kv_heads)
        heads = num_kv_heads if num_kv_heads is not None else num_heads
        if heads is None:
            raise ConfigError("KV-shift has gates for each key head: give num_heads, or num_kv_heads")
        self.hidden_size = hidden_size
        self.of_k, self.of_v = (nn.Parameter(torch.empty(heads, hidden_size)) for _ in range(2))
        for weight in (self.of_k, self.of_v):
            nn.init.normal_(weight, std=hidden_size**-0.5)

    def observe(self, problem: Attention, state: State = None) -> tuple[Problem, State]:
        p = problem
        x, tokens, n = hidden_of_keys(self, p, self.hidden_size), p.where.key, p.k.shape[2]
        if n == 0:
            return p, state
        device, index = p.k.device, torch.arange(n, device=p.k.device)
        first = (torch.zeros_like(p.k[:, :, :1]), torch.zeros_like(p.v[:, :, :1]))
        last_document = torch.full((p.k.shape[0],), -1, device=device)
        k, v, last = (*first, last_document) if state is None else state
        valid = tokens.columns.get("valid", torch.ones((1, n), dtype=torch.bool, device=device))
        document = tokens.columns.get("document", torch.zeros((1, n), dtype=torch.long, device=device))
        valid, document = (t.expand(p.k.shape[0], n) for t in (valid, document))
        # Slot 0 holds what came before these tokens, slot i + 1 token i; `upto` is the last real token up to each.
        upto = torch.where(valid, index + 1, 0).cummax(1).values
        before = upto.roll(1, 1)
        before[:, 0] = 0
        documents = torch.cat([last[:, None], document], 1)
        same = documents.gather(1, before) == document
        mixed, after = [], []
        for own, kept, weight in ((p.k, k, self.of_k), (p.v, v, self.of_v)):
            joined = torch.cat([kept, own], 2)
            prior = _pick(joined, before).masked_fill(~same[:, None, :, None], 0.0)
            alpha = self._gate(x, p.kv_head_slice(weight), own)
            wide = own.to(alpha.dtype)
            mixed.append((wide + alpha * (prior.to(alpha.dtype) - wide)).to(own.dtype))
            after.append(_pick(joined, upto[:, -1:]))
        # Done here, so that gates and rotations after it, wherever they stand in a `Sequential`, see the keys of the layer.
        return p.replace(k=mixed[0], v=mixed[1]), (*after, documents.gather(1, upto[:, -1:])[:, 0])

    def _gate(self, x: Tensor, weight: Tensor, own: Tensor) -> Tensor:
        """Return α, (B, H_kv, K, 1) in float32 or wider."""
        with full_precision(x):
            dtype = torch.promote_types(torch.promote_types(x.dtype, weight.dtype), table_dtype(own))
            return linear(x.to(dtype), weight.to(dtype)).sigmoid().transpose(1, 2)[..., None]

    def extra_repr(self) -> str:
        return f"hidden_size={self.hidden_size}"


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """Take tokens of each row: (B, H, S, d), (B, n) → (B, H, n, d)."""
    return x.gather(2, index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))
