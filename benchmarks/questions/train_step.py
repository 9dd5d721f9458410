"""Training steps of the decoder of `ropewalk compare` with RoPE: forward, loss, backward, AdamW (fused), float32, 16 × 256
tokens, uncompiled. Below 1 ours is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from ropewalk.lab.model import SIZES, Decoder, ModelConfig

from .._question import Bench, Question, Row, absent


def rows(bench: Bench) -> Iterator[Row]:
    batch, length = bench.pick((16, 256), (2, 8))
    for size in bench.pick(("tiny", "small"), ("tiny",)):
        name = f"{size}, {batch} × {length} tokens"
        try:
            other = theirs(size, length)
        except ImportError:
            yield absent(name, "transformers is not installed")
            continue
        tokens = torch.randint(257, (batch, length + 1))
        yield from bench.against(step(other, tokens), {name: step(ours(size, length), tokens)}, 1.0)


def ours(size: str, length: int) -> nn.Module:
    return Decoder(ModelConfig(vocab_size=257, max_length=length, encodings=("rope",), **SIZES[size]))


def theirs(size: str, length: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = ModelConfig(vocab_size=257, **SIZES[size])
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=length,
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def step(model: nn.Module, tokens: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def run() -> None:
        logits = model(tokens[:, :-1])
        logits = getattr(logits, "logits", logits)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run


QUESTION = Question(
    title="A training step of `ropewalk compare`",
    text=__doc__,
    yardstick="the step of transformers' `LlamaForCausalLM` of the same shape",
    rows=rows,
    why="""
    Both are the same products of matrices; what differs are the rotations and the calls in between, a few hundredths of a step.
    """,
)
