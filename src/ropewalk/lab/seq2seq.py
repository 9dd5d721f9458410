"""A small encoder and decoder whose positional encoding can be swapped after training.

model = Seq2Seq(Seq2SeqConfig(vocab_size=32))                   # trained with sinusoids
swap_positional_encoding(model, "rope")                         # and tuned on
model.translate(source, begin=1, end=2, max_length=40, beams=4)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol, cast, get_args

import torch
from torch import Tensor, nn

import ropewalk as rw
from ropewalk.core.errors import ConfigError, check_positive, suggest
from ropewalk.lab.model import Extend, ModelConfig, RMSNorm, SelfAttention, SwiGLU, seed_of
from ropewalk.rotary.partial_rope import PartialRoPE

Swap = Literal["rope", "alibi", "none"]


@dataclass(frozen=True, slots=True)
class Seq2SeqConfig:
    """Shape of a `Seq2Seq`.

    Attributes:
        vocab_size: tokens of both sides.
        hidden_size: width of the residual streams.
        num_layers: of the encoder, and of the decoder.
        num_heads: of each layer.
    """

    vocab_size: int
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4

    def __post_init__(self) -> None:
        check_positive(**{name: getattr(self, name) for name in self.__slots__})
        if self.hidden_size % self.num_heads:
            raise ConfigError(
                f"hidden_size {self.hidden_size} is not shared out evenly over num_heads {self.num_heads}"
            )

    def side(self, causal: bool) -> ModelConfig:
        """Return the shape of one side, as layers of `Decoder` take it."""
        return ModelConfig(self.vocab_size, ("nope",), self.hidden_size, self.num_layers, self.num_heads, causal=causal)


class CrossAttention(nn.Module):
    """Attention of one side's tokens to all real tokens of the other, without positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.width = config.width
        self.q, self.k, self.v, self.out = (
            nn.Linear(config.hidden_size, config.hidden_size, bias=False) for _ in range(4)
        )

    def remember(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of the other side, (B, H, S, d) each: once for a whole translation."""
        k, v = (w(memory).unflatten(-1, (-1, self.width)).transpose(1, 2) for w in (self.k, self.v))
        return k, v

    def forward(self, x: Tensor, keys: tuple[Tensor, Tensor], valid: Tensor) -> Tensor:
        """Attend to where ``valid`` (B, S) is True."""
        q = self.q(x).unflatten(-1, (-1, self.width)).transpose(1, 2)
        mask = valid[:, None, None].expand(-1, 1, q.shape[2], -1)
        out = rw.attend(rw.Attention(q, *keys, causal=False, mask=mask).located())
        return self.out(out.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """x + self-attention, then x + cross-attention in a decoder, then x + feed-forward; each after a norm."""

    def __init__(self, config: ModelConfig, encoding: rw.Encoding) -> None:
        super().__init__()
        self.norm_self = RMSNorm(config.hidden_size)
        self.self_attention = SelfAttention(config, encoding)
        self.norm_cross = RMSNorm(config.hidden_size) if config.causal else None
        self.cross_attention = CrossAttention(config) if config.causal else None
        self.norm_feed_forward = RMSNorm(config.hidden_size)
        self.feed_forward = SwiGLU(config.hidden_size, config.inner)

    def forward(
        self,
        x: Tensor,
        positions: rw.Positions,
        extend: Extend | None = None,
        keys: tuple[Tensor, Tensor] | None = None,
        valid: Tensor | None = None,
    ) -> Tensor:
        """Apply all of them."""
        x = x + self.self_attention(self.norm_self(x), positions, extend)
        if self.cross_attention is not None and self.norm_cross is not None:
            assert keys is not None and valid is not None
            x = x + self.cross_attention(self.norm_cross(x), keys, valid)
        return x + self.feed_forward(self.norm_feed_forward(x))


@dataclass(frozen=True)
class Memory:
    """What a decoder keeps of the source: keys and values for each layer, and which tokens are real."""

    keys: tuple[tuple[Tensor, Tensor], ...]
    valid: Tensor

    def select(self, rows: Tensor) -> Memory:
        """Return other rows of the batch."""
        return Memory(tuple((k[rows], v[rows]) for k, v in self.keys), self.valid[rows])


class Seq2Seq(nn.Module):
    """Pre-norm encoder and decoder with sinusoids added to √d times the embeddings, as translation models are trained.

    Args:
        config: its shape.
        seed: of the initial values, each of which follows from it and the name of its parameter.

    Shapes: source (B, S), target (B, T) → logits (B, T, vocab_size). Padding is told by ``valid``, True for real tokens.
    """

    def __init__(self, config: Seq2SeqConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        sides = {"encoder": config.side(causal=False), "decoder": config.side(causal=True)}
        with torch.random.fork_rng(devices=[]):
            self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
            self.encoder, self.decoder = (
                nn.ModuleList(Layer(side, rw.NoPE()) for _ in range(config.num_layers)) for side in sides.values()
            )
            self.encoder_norm, self.decoder_norm = RMSNorm(config.hidden_size), RMSNorm(config.hidden_size)
        self.added: rw.Encoding = rw.Sinusoidal(config.hidden_size, layout="halves", rule="endpoints", start=2)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim < 2:
                    continue
                generator = torch.Generator().manual_seed(seed_of(seed, name))
                std = config.hidden_size**-0.5
                parameter.copy_(torch.empty(parameter.shape).normal_(0, std, generator=generator))

    def encodings(self, side: Literal["encoder", "decoder"]) -> list[rw.Encoding]:
        """Return the encoding of each layer's self-attention."""
        return [cast("Layer", layer).self_attention.encoding for layer in getattr(self, side)]

    def _embed(self, tokens: Tensor, where: rw.Positions) -> Tensor:
        return self.added.embed(self.embedding(tokens) * math.sqrt(self.config.hidden_size), where)

    def encode(self, source: Tensor, valid: Tensor | None = None) -> Memory:
        """Read the source."""
        real = torch.ones_like(source, dtype=torch.bool) if valid is None else valid.bool()
        where = rw.Positions.arange(source.shape[1], valid=real)
        x = self._embed(source, where)
        for layer in self.encoder:
            x = layer(x, where)
        memory = self.encoder_norm(x)
        keys = (cast("CrossAttention", cast("Layer", layer).cross_attention).remember(memory) for layer in self.decoder)
        return Memory(tuple(keys), real)

    def decode(
        self, target: Tensor, memory: Memory, valid: Tensor | None = None, cache: rw.KVCache | None = None
    ) -> Tensor:
        """Return the logits; with a cache (`cache`) the tokens are the new ones only."""
        if cache is None:
            where = rw.Positions.arange(target.shape[1], valid=valid, device=target.device)
        else:
            where = cache.step(target.shape[1])
        x = self._embed(target, where)
        for i, layer in enumerate(self.decoder):
            x = layer(x, where, None if cache is None else cache[i].extend, memory.keys[i], memory.valid)
        return self.decoder_norm(x) @ self.embedding.weight.T

    def forward(
        self, source: Tensor, target: Tensor, source_valid: Tensor | None = None, target_valid: Tensor | None = None
    ) -> Tensor:
        """Return the logits of each target token's successor."""
        return self.decode(target, self.encode(source, source_valid), target_valid)

    def cache(self) -> rw.KVCache:
        """Return an empty cache for decoding."""
        return rw.KVCache(self.encodings("decoder"), device=self.embedding.weight.device)

    @torch.no_grad()
    def translate(
        self,
        source: Tensor,
        valid: Tensor | None = None,
        *,
        begin: int,
        end: int,
        max_length: int,
        beams: int = 1,
    ) -> Tensor:
        """Return the best target of each source that beam search finds, (B, ≤ max_length), filled up with ``end``.

        Args:
            source: (B, S).
            valid: of the same shape, False for padding.
            begin: token that stands before a target.
            end: token that ends it.
            max_length: tokens of a target at most, the end included.
            beams: hypotheses kept of each source; 1 is greedy. They are compared by the mean log-likelihood of a token.
        """
        return search(self, self.encode(source, valid), begin=begin, end=end, max_length=max_length, beams=beams)


class Writes(Protocol):
    """A model that writes a target, token by token, from what it keeps of a source."""

    def decode(
        self, target: Tensor, memory: Memory, valid: Tensor | None = None, cache: rw.KVCache | None = None
    ) -> Tensor:
        """Return the logits of the successor of each token; with a cache the tokens are the new ones only."""

    def cache(self) -> rw.KVCache:
        """Return an empty cache for decoding."""


@torch.no_grad()
def search(model: Writes, memory: Memory, *, begin: int, end: int, max_length: int, beams: int = 1) -> Tensor:
    """Return the best target of each source that beam search finds, (B, ≤ max_length), filled up with ``end``.

    Args:
        model: it.
        memory: what it keeps of the sources.
        begin: see `Seq2Seq.translate`, as for all that is not said here.
        end: likewise.
        max_length: likewise.
        beams: likewise.
    """
    check_positive(max_length=max_length, beams=beams)
    rows, device = len(memory.valid), memory.valid.device
    memory = memory.select(torch.arange(rows).repeat_interleave(beams))
    cache = model.cache()
    out = torch.empty(rows * beams, 0, dtype=torch.long, device=device)
    step = torch.full((rows * beams, 1), begin, device=device)
    # At first the hypotheses of a source are one and the same: all but the first are out of the running.
    score = torch.full((rows, beams), -torch.inf, device=device)
    score[:, 0] = 0.0
    length = torch.zeros(rows, beams, device=device)
    done = torch.zeros(rows, beams, dtype=torch.bool, device=device)
    for _ in range(max_length):
        told = model.decode(step, memory, cache=cache)[:, -1].log_softmax(-1).unflatten(0, (rows, beams))
        stay = torch.full_like(told, -torch.inf)
        stay[..., end] = 0.0  # a finished hypothesis goes on at no cost
        told = torch.where(done[..., None], stay, told)
        grown = length + ~done
        total = score[..., None] + told
        ranked = (total / grown.clamp(min=1)[..., None]).flatten(1).topk(beams).indices
        parent, token = ranked // told.shape[-1], ranked % told.shape[-1]
        score = total.flatten(1).gather(1, ranked)
        length, done = grown.gather(1, parent), done.gather(1, parent) | (token == end)
        index = (parent + beams * torch.arange(rows, device=device)[:, None]).flatten()
        out, step = torch.cat([out[index], token.reshape(-1, 1)], 1), token.reshape(-1, 1)
        cache.select(index)
        if bool(done.all()):
            break
    best = (score / length.clamp(min=1)).argmax(-1) + beams * torch.arange(rows, device=device)
    return out[best]


def swap_positional_encoding(
    model: Seq2Seq,
    to: Swap,
    *,
    rotary_fraction: float = 0.5,
    base: float = 10_000.0,
    scaling_factor: float = 1.0,
    asymmetrical: bool = False,
) -> Seq2Seq:
    """Take the sinusoids off the embeddings and put another encoding into all self-attention; then tune.

    Nothing is lost and nothing is new: sinusoids have no parameters, and neither have these. Cross-attention has no positions
    before and after. Right after the swap the outputs are far off; some per cent of the training steps, with LoRA
    (`add_lora`) or without, bring short sentences back, and a little long data brings long ones.

    Args:
        model: changed in place, and returned.
        to: "rope": `PartialRoPE`, interleaved pairs; "alibi", symmetrical in the encoder; "none", with which a decoder still
            knows the order and an encoder does not.
        rotary_fraction: of each head that RoPE turns, from its first channel on.
        base: of the frequencies.
        scaling_factor: positions are divided by it.
        asymmetrical: ALiBi of the encoder counts a key after the query half a token nearer, so that direction shows.

    Raises:
        ConfigError: a head whose turned channels are odd; an unknown name.

    Source: Varun Gumma, Pranjal A. Chitale, Kalika Bali. Towards Inducing Long-Context Abilities in Multilingual Neural Machine
    Translation Models. arXiv 2408.11382, 2024.
    """
    if to not in get_args(Swap):
        raise ConfigError(f"to is one of {', '.join(get_args(Swap))}; got {to!r}.{suggest(to, get_args(Swap))}")
    side = model.config.side(causal=True)
    width = rotary_fraction * side.width
    if to == "rope" and (width != int(width) or int(width) % 2 or not 0 < width <= side.width):
        raise ConfigError(
            f"{rotary_fraction:g} of heads of {side.width} channels are {width:g}; RoPE turns an even number of them, so for a "
            "half a head's width is a multiple of 4"
        )
    if to == "rope":
        rope: rw.Encoding = PartialRoPE(side.width, rotary_fraction, base, "interleaved")
        encoder = decoder = rope if scaling_factor == 1 else rw.Sequential(rw.Scale(scaling_factor), rope)
    elif to == "alibi":
        discount = 0.5 if asymmetrical else 0.0
        encoder = rw.ALiBi(side.num_heads, bidirectional=True, future_discount=discount)
        decoder = rw.ALiBi(side.num_heads)
    else:
        encoder = decoder = rw.NoPE()
    for layers, encoding in ((model.encoder, encoder), (model.decoder, decoder)):
        for i, layer in enumerate(layers):
            cast("Layer", layer).self_attention.encoding = encoding.layer(i)
    model.added = rw.NoPE()
    return model


@dataclass(frozen=True, slots=True)
class Transfer:
    """What became of parameters when a trained model's were handed to one with another encoding.

    Attributes:
        copied: names of parameters taken over.
        fresh: of the new model's alone; they are as they were made.
        dropped: of the old model's alone.
    """

    copied: tuple[str, ...]
    fresh: tuple[str, ...]
    dropped: tuple[str, ...]


@torch.no_grad()
def transfer(trained: nn.Module, new: nn.Module) -> Transfer:
    """Copy every parameter that both models have, by name; those of an encoding only to an encoding of the same kind.

    Raises:
        ConfigError: one of the same name and another shape: the models differ in more than the encoding.
    """
    old, theirs = _parameters(trained, new), _parameters(new, trained)
    copied = [name for name in theirs if name in old]
    wrong = [name for name in copied if old[name].shape != theirs[name].shape]
    if wrong:
        shapes = f"{tuple(old[wrong[0]].shape)} in the trained model and {tuple(theirs[wrong[0]].shape)} in the new one"
        raise ConfigError(f"{wrong[0]} is {shapes}; they differ in more than the encoding")
    for name in copied:
        theirs[name].copy_(old[name])
    fresh, dropped = (sorted(a.keys() - b.keys()) for a, b in ((theirs, old), (old, theirs)))
    return Transfer(tuple(copied), tuple(fresh), tuple(dropped))


def _parameters(model: nn.Module, other: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters by name; those of an encoding of another kind than the other model's have a name of their own."""
    kinds = {n: type(m).__name__ for n, m in model.named_modules() if isinstance(m, rw.Encoding)}
    theirs = {n: type(m).__name__ for n, m in other.named_modules() if isinstance(m, rw.Encoding)}
    found = {}
    for name, parameter in model.named_parameters():
        owner = next((n for n in kinds if name.startswith(f"{n}.")), None)
        same = owner is None or kinds[owner] == theirs.get(owner)
        found[name if same else f"{name} of {kinds[owner or '']}"] = parameter
    return found


def chunk_pairs(
    vocab_size: int, rows: int, length: int, generator: torch.Generator, chunk: int = 3
) -> tuple[Tensor, Tensor]:
    """Draw a synthetic translation: each token is mapped to another, and every chunk of three is reversed.

    Tokens 0, 1, 2 are padding, begin and end. The source stands between its marks, (rows, length + 2), from which what knows
    relative positions alone can count chunks. The target has its end, (rows, length + 1).
    """
    check_positive(vocab_size=vocab_size, rows=rows, length=length, chunk=chunk)
    if vocab_size < 5:
        raise ConfigError(f"two words and three marks are the least; got vocab_size={vocab_size}")
    words = vocab_size - 3
    source = torch.randint(words, (rows, length), generator=generator)
    mapped = (source * _coprime(words) + 1) % words
    order = torch.cat([piece.flip(0) for piece in torch.arange(length).split(chunk)])
    begin, end = torch.full((rows, 1), 1), torch.full((rows, 1), 2)
    return torch.cat([begin, source + 3, end], 1), torch.cat([mapped[:, order] + 3, end], 1)


def _coprime(words: int) -> int:
    return next(n for n in range(words // 2 + 1, words + 2) if math.gcd(n, words) == 1)
