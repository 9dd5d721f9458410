"""CoPE, contextual position encoding."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ropewalk.core.attention import Attention, Problem, Row
from ropewalk.core.encoding import Encoding, State, full_precision
from ropewalk.core.errors import ConfigError, NotCausal, ShapeError, check_positive
from ropewalk.core.positions import Tokens


class ContextualCoPE(Encoding):
    """s_ij + (1 − w) z_i[⌊p_ij⌋] + w z_i[⌈p_ij⌉],  p_ij = min(Σ_{t=j..i} σ(s_it), P − 1),  z_i[n] = q_i·E[n],  w = p − ⌊p⌋.

    A query decides by a gate which earlier tokens count; the position of a key is how many of them lie between it and
    the query, itself included. Gates use the logits as they stand when this encoding is applied (masked keys count 0);
    z uses the query before any rotation and is not divided by √d.

    Not to be confused with clipped RoPE, which is also called CoPE.

    Args:
        head_dim: width d of a head.
        npos_max: number P of position embeddings; counts beyond share the last.
        num_heads: with ``heads_share=False``, query heads H with a table each.
        heads_share: one table E for all heads of the layer, as published.
        gate: "keys": σ(s_ij) as above. "sep_keys": σ(q_i·(W_g x_j)/√d) with keys of their own, one set a query head
            (needs ``hidden_size`` and ``num_heads``). "values": σ(q_i·v_j/√d).
        hidden_size: width of the layer's input, for "sep_keys".

    Shapes: weight (P, d) or (H, P, d), zero at the start, so that the encoding starts as none. Counts are summed in
    float32 or wider. Position ids play no part: the order of the keys does.

    Raises:
        NotCausal: the problem is not causal.

    Source: Olga Golovneva, Tianlu Wang, Jason Weston, Sainbayar Sukhbaatar. Contextual Position Encoding: Learning to
    Count What's Important. arXiv 2405.18719, 2024.
    """

    def __init__(
        self,
        head_dim: int,
        npos_max: int = 64,
        *,
        num_heads: int | None = None,
        heads_share: bool = True,
        gate: Literal["keys", "sep_keys", "values"] = "keys",
        hidden_size: int | None = None,
    ) -> None:
        super().__init__()
        check_positive(num_heads=num_heads, hidden_size=hidden_size, head_dim=head_dim, npos_max=npos_max)
        if gate not in ("keys", "sep_keys", "values"):
            raise ConfigError(f"gate is 'keys', 'sep_keys' or 'values'; got {gate!r}")
        if num_heads is None and (not heads_share or gate == "sep_keys"):
            raise ConfigError("give num_heads: tables (heads_share=False) or gate keys are a head's own")
        if hidden_size is None and gate == "sep_keys":
            raise ConfigError("gate='sep_keys' projects the layer's input: give hidden_size")
        self.head_dim, self.npos_max, self.heads_share, self.gate = head_dim, npos_max, heads_share, gate
        shape = (npos_max, head_dim) if heads_share else (num_heads or 1, npos_max, head_dim)
        self.weight = nn.Parameter(torch.zeros(shape))
        self.gate_weight: nn.Parameter | None = None
        if gate == "sep_keys":
            assert num_heads is not None and hidden_size is not None
            self.gate_weight = nn.Parameter(torch.empty(num_heads, head_dim, hidden_size))
            nn.init.normal_(self.gate_weight, std=hidden_size**-0.5)

    def observe(self, problem: Attention, state: State = None) -> tuple[Problem, State]:
        p = problem
        if not p.causal:
            raise NotCausal(
                "contextual CoPE counts from a key forward to the query; it is defined for causal attention"
            )
        if p.q.shape[-1] != self.head_dim:
            raise ShapeError(f"contextual CoPE was made for head_dim {self.head_dim} and q has {p.q.shape[-1]}")
        weight = self.weight[None, None] if self.heads_share else p.head_slice(self.weight)[None]
        with full_precision(p.q):
            q = p.q.to(torch.promote_types(p.q.dtype, weight.dtype))
            p = p.with_features(q={"z": q @ weight.to(q.dtype).transpose(-1, -2)})
            if self.gate == "values":
                if p.v.shape[-1] != self.head_dim:
                    raise ShapeError(
                        f"gate='values' multiplies q and v; v has width {p.v.shape[-1]}, not {self.head_dim}"
                    )
                p = p.with_features(q={"gate": q}, k={"gate": p.v.to(q.dtype)})
            elif self.gate_weight is not None:
                keys = torch.einsum(
                    "bsx,hdx->bhsd", p.hidden_kv.to(q.dtype), p.head_slice(self.gate_weight).to(q.dtype)
                )
                p = p.with_features(q={"gate": q}, k={"gate": keys})
        return p, state

    def rewrite(self, problem: Attention) -> Problem:
        z = problem.own("z")
        if self.gate == "keys":
            return problem.add(Row(_count_by_logits, (z,)))
        gate, scale = problem.own("gate"), self.head_dim**-0.5

        def count_by_gates(logits: Tensor, allowed: Tensor, z: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return _add_bias(logits, scale * (q @ k.transpose(-1, -2)), allowed, z)

        return problem.add(Row(count_by_gates, (z, gate), (gate,)))

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        return problem

    def extra_repr(self) -> str:
        return f"{self.head_dim}, npos_max={self.npos_max}, gate={self.gate}"


def contextual_positions(gate_logits: Tensor, allowed: Tensor, npos_max: int) -> Tensor:
    """Return p_ij, (B, H, Q, K): the sum of the gates of the visible keys from j on, at most npos_max − 1."""
    gates = gate_logits.sigmoid().masked_fill(~allowed, 0.0)
    return gates.flip(-1).cumsum(-1).flip(-1).clamp(max=npos_max - 1)


def _add_bias(logits: Tensor, gate_logits: Tensor, allowed: Tensor, z: Tensor) -> Tensor:
    p = contextual_positions(gate_logits, allowed, z.shape[-1])
    below, above = p.floor(), p.ceil()
    w = p - below
    z = z.expand(*logits.shape[:3], z.shape[-1]).to(logits.dtype)
    return logits + (1 - w) * z.gather(-1, below.long()) + w * z.gather(-1, above.long())


def _count_by_logits(logits: Tensor, allowed: Tensor, z: Tensor) -> Tensor:
    return _add_bias(logits, logits, allowed, z)
