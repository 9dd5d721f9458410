"""The same work done by other libraries, each by the call that its users make, both sides on ready tables where the peer keeps
them; ours is `apply_rotary` for rotations, and encoding and `attend` for attention. Below 1 ours is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version

import torch
import torch.nn.functional as F
from torch import Tensor

import ropewalk as rw

from .._question import Bench, Question, Row, absent
from ._attention import HIDDEN, WIDTH, forward, heads, qkv, solved
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


def fla_forgetting(length: int, dtype: torch.dtype) -> Calls:
    from fla.ops.forgetting_attn.naive import naive_forgetting_attn

    tensors, x, count = qkv(length, dtype), torch.randn(1, length, HIDDEN), heads(length)
    fox, positions = rw.FoX(count, HIDDEN), rw.Positions.arange(length)

    def theirs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        gates = F.logsigmoid(F.linear(x, fox.weight, fox.bias))  # the projection is not part of theirs
        return naive_forgetting_attn(*(t.transpose(1, 2) for t in (q, k, v)), gates).transpose(1, 2)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return rw.attend(fox(rw.Attention(q, k, v, positions, x=x)))

    return forward(theirs, tensors), forward(ours, tensors)


FP32, BF16 = (torch.float32, "fp32"), (torch.bfloat16, "bf16")
PEERS = (
    ("rotary-embedding-torch", "RotaryEmbedding.rotate_queries_or_keys", rotary_embedding_torch, (FP32,)),
    ("x-transformers", "apply_rotary_pos_emb", x_transformers_rotary, (FP32, BF16)),
    ("transformers", "apply_rotary_pos_emb of Llama", transformers_rotary, (FP32, BF16)),
    ("x-transformers", "Attend with AlibiPositionalBias", x_transformers_alibi, (FP32,)),
    ("flash-linear-attention", "naive_forgetting_attn", fla_forgetting, (FP32,)),
)


def rows(bench: Bench) -> Iterator[Row]:
    for package, call, make, kinds in PEERS:
        for dtype, short in kinds:
            for length in bench.pick((512, 2048), (16,)):
                name = f"{package}, {call}, {short}, S = {length}"
                try:
                    theirs, ours = make(length, dtype)
                except ImportError as error:
                    yield absent(name, f"not installed ({error.name})" if error.name else str(error))
                    continue
                check(theirs(), ours(), dtype, name)
                for row in bench.against(theirs, {name: ours}, 1.0):
                    yield replace(row, note=f"(version {version(package)})")


def check(theirs: object, ours: object, dtype: torch.dtype, name: str) -> None:
    """Make sure that both do the same: a ratio of different things says nothing."""
    loose = 5e-3 if dtype == torch.float32 else 0.05  # theirs may round angles to float32, or tables to bf16
    torch.testing.assert_close(ours, theirs, atol=loose, rtol=loose, msg=lambda said: f"{name}: {said}")


QUESTION = Question(
    title="Other libraries",
    text=__doc__,
    yardstick="the peer's call",
    rows=rows,
    why="""
    transformers turns bfloat16 in bfloat16, by tables rounded to eight bits: a pass over half the bytes, and an error of
    its own; ours widens to float32 and rounds once.
    """,
)
