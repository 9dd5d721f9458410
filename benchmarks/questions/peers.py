"""The same work done by other libraries, each by the call that its users make, both sides on ready tables where the peer keeps
them; ours is `apply_rotary` for rotations, and encoding and `attend` for attention. Below 1 ours is faster.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import ropewalk as rw

from ._attention import WIDTH, forward, heads, qkv, solved
from ._rotation import case, without_gradients

Calls = tuple[Callable[[], object], Callable[[], object]]
"""The peer's and ours."""


def rotary_embedding_torch(length: int, dtype: torch.dtype) -> Calls:
    from rotary_embedding_torch import RotaryEmbedding

    c, peer = case(length, dtype, "interleaved"), RotaryEmbedding(WIDTH)

    def theirs() -> tuple[Tensor, Tensor]:
        return peer.rotate_queries_or_keys(c.q), peer.rotate_queries_or_keys(c.k)

    return without_gradients(theirs), without_gradients(c.turn)


def x_transformers_rotary(length: int, dtype: torch.dtype) -> Calls:
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    c, (angles, scale) = case(length, dtype, "interleaved"), RotaryEmbedding(WIDTH).forward_from_seq_len(length)

    def theirs() -> tuple[Tensor, Tensor]:
        return apply_rotary_pos_emb(c.q, angles, scale), apply_rotary_pos_emb(c.k, angles, scale)

    return without_gradients(theirs), without_gradients(c.turn)


def transformers_rotary(length: int, dtype: torch.dtype) -> Calls:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    c = case(length, dtype, "half")
    cos, sin = (torch.cat((t, t), -1)[None].to(dtype) for t in (c.cos, c.sin))  # as LlamaRotaryEmbedding gives them

    def theirs() -> tuple[Tensor, Tensor]:
        return apply_rotary_pos_emb(c.q, c.k, cos, sin)

    return without_gradients(theirs), without_gradients(c.turn)


def x_transformers_alibi(length: int, dtype: torch.dtype) -> Calls:
    from x_transformers.attend import Attend
    from x_transformers.x_transformers import AlibiPositionalBias

    tensors, bias = qkv(length, dtype), AlibiPositionalBias(heads(length))
    attend = Attend(causal=True, flash=True, heads=heads(length))
    ours = solved(rw.ALiBi(heads(length)), length)

    def theirs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, attn_bias=bias(length, length).to(q.dtype))[0]

    return forward(theirs, tensors), forward(ours, tensors)


def fla_rotary(length: int, dtype: torch.dtype) -> Calls:
    from fla.modules.rotary import rotary_embedding_ref

    c = case(length, dtype, "half", projected=True)
    cos, sin = (t.to(dtype) for t in (c.cos, c.sin))

    def theirs() -> list[Tensor]:
        return [rotary_embedding_ref(t.transpose(1, 2), cos, sin) for t in (c.q, c.k)]

    return without_gradients(theirs), without_gradients(c.turn)


def fla_forgetting(length: int, dtype: torch.dtype) -> Calls:
    raise NotImplementedError


PEERS = {
    "rotary-embedding-torch": ("rotary-embedding-torch", "rotate_queries_or_keys", rotary_embedding_torch),
}


QUESTION = None
