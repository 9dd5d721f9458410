"""A small decoder, written against ropewalk's public interface only: also the example of how to use it.

    model = Decoder(ModelConfig(vocab_size=257, encodings=("rope",)))
    logits = model(tokens)

Two models with the same seed have the same initial values in every parameter that they share, whatever their encodings
are: each value is drawn from the seed and the parameter's own name.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

import ropewalk as rw
from ropewalk.catalog.expression import Combined, Expression, Named, Sum, parse, parse_layers
from ropewalk.core.errors import CacheError, ConfigError, check_positive

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 128, "num_layers": 2, "num_heads": 4},
    "small": {"hidden_size": 256, "num_layers": 4, "num_heads": 4},
    "medium": {"hidden_size": 512, "num_layers": 8, "num_heads": 8},
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a `Decoder`.

    Attributes:
        vocab_size: number of tokens.
        encodings: a name a layer, repeated as often as the layers need; as in the catalog, with arguments and composition.
        hidden_size: width of the residual stream.
        num_layers: number of blocks.
        num_heads: query heads of a layer; ``num_kv_heads`` key heads (None: as many).
        head_dim: width of a head; None: hidden_size / num_heads.
        feed_forward: inner width of the SwiGLU; None: 8/3 of hidden_size, rounded up to a multiple of 32.
        max_length: longest sequence, for encodings with a table.
        qk_norm: RMSNorm on q and k.
        tied: the output layer is the embedding table.
        causal: a decoder; False: every token sees all.
        num_classes: an encoder with this many outputs a token instead of the vocabulary; None: the vocabulary.
    """

    vocab_size: int
    encodings: tuple[str, ...] = ("rope",)
    hidden_size: int = 128
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int | None = None
    head_dim: int | None = None
    feed_forward: int | None = None
    max_length: int = 1024
    qk_norm: bool = False
    tied: bool = True
    causal: bool = True
    num_classes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "encodings", tuple(self.encodings))
        numbers = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "feed_forward")
        check_positive(
            max_length=self.max_length, num_classes=self.num_classes, **{n: getattr(self, n) for n in numbers}
        )
        if not self.encodings:
            raise ConfigError("a model needs an encoding for its layers; 'nope' is none")
        if self.head_dim is None and self.hidden_size % self.num_heads:
            raise ConfigError(
                f"hidden_size {self.hidden_size} is not shared out evenly over num_heads {self.num_heads}; give head_dim"
            )
        if self.num_heads % self.kv_heads:
            raise ConfigError(f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.kv_heads}")

    def as_dict(self) -> dict[str, Any]:
        """The shape as JSON would give it back."""
        return {**asdict(self), "encodings": list(self.encodings)}

    @property
    def width(self) -> int:
        """Width of a head."""
        return self.head_dim or self.hidden_size // self.num_heads

    @property
    def kv_heads(self) -> int:
        """Key heads."""
        return self.num_kv_heads or self.num_heads

    @property
    def inner(self) -> int:
        """Inner width of the SwiGLU."""
        return self.feed_forward or 32 * math.ceil(self.hidden_size * 8 / 3 / 32)


class RMSNorm(nn.Module):
    """x ↦ w x / √(mean(x²) + eps)."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        return functional.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class SwiGLU(nn.Module):
    """x ↦ W_down (silu(W_gate x) ⊙ W_up x)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the last axis."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class SelfAttention(nn.Module):
    """Attention that knows nothing of the encoding it was given: the three lines of the README."""

    def __init__(self, config: ModelConfig, encoding: rw.Encoding) -> None:
        super().__init__()
        self.width, self.causal = config.width, config.causal
        self.q = nn.Linear(config.hidden_size, config.num_heads * config.width, bias=False)
        self.k = nn.Linear(config.hidden_size, config.kv_heads * config.width, bias=False)
        self.v = nn.Linear(config.hidden_size, config.kv_heads * config.width, bias=False)
        heads = encoding.output_heads(config.num_heads)  # a few encodings make more heads than there are queries
        self.out = nn.Linear(heads * config.width, config.hidden_size, bias=False)
        self.norms = nn.ModuleList([RMSNorm(config.width), RMSNorm(config.width)]) if config.qk_norm else None
        self.encoding = encoding

    def forward(self, x: Tensor, positions: rw.Positions, extend: Extend | None = None) -> Tensor:
        """Attend; ``extend`` is the layer's cache in decoding."""
        q, k, v = (w(x).unflatten(-1, (-1, self.width)).transpose(1, 2) for w in (self.q, self.k, self.v))
        if self.norms is not None:
            q, k = self.norms[0](q), self.norms[1](k)
        problem = rw.Attention(q, k, v, positions, causal=self.causal, x=x)
        out = rw.attend(extend(problem) if extend is not None else self.encoding(problem))
        return self.out(out.transpose(1, 2).flatten(2))


Extend = Callable[[rw.Attention], "rw.Attention | rw.Parts"]


class Block(nn.Module):
    """x + attention(norm x), then x + feed_forward(norm x)."""

    def __init__(self, config: ModelConfig, encoding: rw.Encoding) -> None:
        super().__init__()
        self.norm_attention = RMSNorm(config.hidden_size)
        self.attention = SelfAttention(config, encoding)
        self.norm_feed_forward = RMSNorm(config.hidden_size)
        self.feed_forward = SwiGLU(config.hidden_size, config.inner)

    def forward(self, x: Tensor, positions: rw.Positions, extend: Extend | None = None) -> Tensor:
        """Apply both halves."""
        x = x + self.attention(self.norm_attention(x), positions, extend)
        return x + self.feed_forward(self.norm_feed_forward(x))


class Decoder(nn.Module):
    """logits = W norm(block_L(... block_1(embed(token)))): pre-norm, RMSNorm, SwiGLU, no biases, no dropout.

    Args:
        config: its shape, and the encoding of each layer by name.
        seed: of the initial values.

    Shapes: tokens (B, S) int64 → logits (B, S, vocab_size or num_classes).
    """

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):  # whoever builds a model keeps their random numbers
            torch.manual_seed(seed_of(seed, "encodings"))
            encodings = build_encodings(config)
            self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
            self.blocks = nn.ModuleList(Block(config, encoding) for encoding in encodings)
            self.norm = RMSNorm(config.hidden_size)
            self.head = nn.Linear(config.hidden_size, config.num_classes or config.vocab_size, bias=False)
        if config.tied and config.num_classes is None:
            self.head.weight = self.embedding.weight
        self.initialise(seed)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Draw every parameter outside the encodings from the seed and its own name."""
        deep = (
            2 * self.config.num_layers
        ) ** -0.5  # what is added to the residual stream, so that depth does not widen it
        for name, parameter in self.named_parameters():
            if ".encoding." in name or parameter.ndim < 2:
                continue
            generator = torch.Generator().manual_seed(seed_of(seed, name))
            std = 0.02 * (deep if name.endswith(("out.weight", "down.weight")) else 1)
            parameter.copy_(torch.empty(parameter.shape).normal_(0, std, generator=generator))

    @property
    def encodings(self) -> list[rw.Encoding]:
        """The encoding of each layer."""
        return [cast("Block", block).attention.encoding for block in self.blocks]

    def encoding_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters that belong to encodings."""
        return {name: p for name, p in self.named_parameters() if ".encoding." in name}

    def forward(self, tokens: Tensor, positions: rw.Positions | None = None, cache: rw.KVCache | None = None) -> Tensor:
        """Return the logits; with a cache the tokens are the new ones only."""
        encodings = self.encodings
        if cache is not None:
            if len(cache) != len(encodings):
                raise CacheError(f"a cache of {len(cache)} layers for a model of {len(encodings)}; use model.cache()")
            where = cache.step(tokens.shape[1] if positions is None else positions)
        else:
            where = positions if positions is not None else rw.Positions.arange(tokens.shape[1], device=tokens.device)
            for encoding in encodings:  # what is random is drawn once, for all layers
                where = encoding.draw(where)
        x = encodings[0].embed(self.embedding(tokens), where)
        for i, block in enumerate(self.blocks):
            x = block(x, where, None if cache is None else cache[i].extend)
        return self.head(self.norm(x))

    def cache(self) -> rw.KVCache:
        """Return an empty cache for decoding."""
        return rw.KVCache(self.encodings)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``model.safetensors`` and ``config.json``, each whole or not at all."""
        from ropewalk.lab.files import write_bytes

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / "model.safetensors", self.to_bytes())
        write_bytes(folder / "config.json", (json.dumps(self.config.as_dict(), indent=2) + "\n").encode())

    def to_bytes(self) -> bytes:
        """Return the parameters as the content of a safetensors file."""
        from safetensors.torch import save

        state = {name: t.detach().cpu().contiguous() for name, t in self.state_dict().items()}
        if self.head.weight is self.embedding.weight:
            del state["head.weight"]  # one tensor under two names
        return save(state)

    def from_bytes(self, content: bytes) -> None:
        """Take the parameters back from `to_bytes`."""
        from safetensors.torch import load

        state = load(content)
        if self.head.weight is self.embedding.weight:
            state["head.weight"] = state["embedding.weight"]
        self.load_state_dict(state)


def load(folder: str | os.PathLike[str]) -> Decoder:
    """Load a model that `Decoder.save` wrote."""
    from safetensors import SafetensorError

    folder = Path(folder)
    try:
        settings: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        model = Decoder(ModelConfig(**settings))
        model.from_bytes((folder / "model.safetensors").read_bytes())
    except FileNotFoundError as missing:
        raise ConfigError(
            f"{folder} holds no model of ropewalk: {Path(missing.filename).name} is missing; a model is a folder with "
            "config.json and model.safetensors"
        ) from None
    except (json.JSONDecodeError, TypeError, RuntimeError, SafetensorError) as problem:
        raise ConfigError(f"{folder} holds no model that this version reads: {problem}") from None
    return model


def build_encodings(config: ModelConfig) -> list[rw.Encoding]:
    """Make the encoding of each layer.

    What is added to the embeddings acts once, before the first layer, whichever layer it was named for.
    """
    shape = {
        "head_dim": config.width,
        "num_heads": config.num_heads,
        "num_kv_heads": config.kv_heads,
        "hidden_size": config.hidden_size,
        "max_length": config.max_length,
    }
    pattern = [parse(name) for name in config.encodings]
    layers = [pattern[i % len(pattern)] for i in range(config.num_layers)]
    embedded = list(dict.fromkeys(term for layer in layers for term in _terms(layer) if _is_embedding(term)))
    shared: dict[Expression, rw.Encoding] = {}
    made = []
    for i, layer in enumerate(layers):
        terms = [term for term in _terms(layer) if not _is_embedding(term)]
        terms = [*embedded, *terms] if i == 0 else terms
        expression: Expression = Sum(tuple(terms)) if len(terms) > 1 else terms[0] if terms else parse("nope")
        if expression not in shared:
            encoding = expression.build(**shape)
            if any(True for _ in encoding.parameters()):  # what is learned is each layer's own
                made.append(encoding.layer(i))
                continue
            shared[expression] = encoding
        made.append(shared[expression].layer(i))
    return made


def expand_layers(text: str) -> tuple[str, ...]:
    """``"rope:3,nope:1"`` -> one name a layer of the pattern."""
    return tuple(str(expression) for expression, count in parse_layers(text) for _ in range(count))


def count_parameters(parameters: Sequence[nn.Parameter]) -> int:
    """Number of trained numbers."""
    return sum(p.numel() for p in parameters)


def sized(size: str, **changes: Any) -> dict[str, Any]:
    """Return the shape called tiny, small or medium, with changes; None is no change."""
    if size not in SIZES:
        raise ConfigError(f"no size is called {size!r}; there are {', '.join(SIZES)}, and every number can be given")
    return {**SIZES[size], **{name: value for name, value in changes.items() if value is not None}}


def with_encodings(config: ModelConfig, encodings: Sequence[str]) -> ModelConfig:
    """Return the same shape with other encodings."""
    return replace(config, encodings=tuple(encodings))


def _terms(expression: Expression) -> tuple[Named | Combined, ...]:
    return expression.terms if isinstance(expression, Sum) else (expression,)


def _is_embedding(expression: Expression) -> bool:
    # What orders segments acts in every layer besides.
    return (
        isinstance(expression, Named)
        and expression.record.kind == "embedding"
        and "segments" not in expression.record.needs
    )


def seed_of(seed: int, name: str) -> int:
    """Return a number for a name: what is drawn for it depends on nothing that was drawn before."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
