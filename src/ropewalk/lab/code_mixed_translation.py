"""From mixed texts of two made-up languages to one of them.

    pairs = mixed_pairs(64, 12, torch.Generator().manual_seed(0))
    model = MixedTranslator("switching_rope_token")
    loss = model.loss(pairs)
    model.translate(pairs.tokens, pairs.tags, max_length=13)

A word is said by its translation, neutral tokens are left out, and each stretch of the first language is turned round, as its
verbs stand last: whoever translates has to know where a stretch begins and ends.

After CONFLATOR (arXiv 2309.05270, 2023; see `ropewalk.rotary.switching_rope.SwitchingRoPE`), whose code of pairs is reported to
lag in a decoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

import ropewalk as rw
from ropewalk.coordinates.switching import NEUTRAL, Tag, languages
from ropewalk.core.errors import ConfigError
from ropewalk.lab.batch import IGNORE
from ropewalk.lab.code_mixed import TEXT_TOKENS, WORDS, Streams, TwoStreams, mixed_texts, position_code
from ropewalk.lab.model import ModelConfig, RMSNorm
from ropewalk.lab.seq2seq import CrossAttention, Layer, Memory, search

BEGIN, END = WORDS, WORDS + 1
"""Tokens that stand before and after a translation; those below are words."""

DecoderCode = Literal["nope", "sinusoidal", "learned", "relative", "rope"]


class MixedPairs(NamedTuple):
    """Texts (n, L), the tags of their tokens, and their translations (n, T), filled up with `END`."""

    tokens: Tensor
    tags: list[list[str]]
    target: Tensor


def translation(tokens: Sequence[int], tags: Sequence[Tag]) -> list[int]:
    """Return the words of the translation of a text, without `END`."""
    said: list[int] = []
    stretch: list[int] = []
    language: str | None = None
    for token, tag, now in zip(tokens, tags, languages(tags), strict=True):
        if now != language:
            said += stretch[::-1] if language == "hi" else stretch
            stretch, language = [], now
        if tag != NEUTRAL:
            stretch.append(token % WORDS)
    return said + (stretch[::-1] if language == "hi" else stretch)


def mixed_pairs(n: int, length: int, generator: Generator, *, switch: float = 0.3, neutral: float = 0.1) -> MixedPairs:
    """Draw texts as `ropewalk.lab.code_mixed.mixed_texts` does, and translate them.

    Args:
        n: texts.
        length: tokens of each.
        generator: of everything random.
        switch: how likely a word is of the other language.
        neutral: how likely a token is neutral.
    """
    texts = mixed_texts(n, length, generator, switch=switch, neutral=neutral)
    rows = [translation(row, tags) for row, tags in zip(texts.tokens.tolist(), texts.tags, strict=True)]
    longest = 1 + max(map(len, rows))
    target = torch.tensor([[*row, *[END] * (longest - len(row))] for row in rows])
    return MixedPairs(texts.tokens, texts.tags, target)


class MixedTranslator(nn.Module):
    """An encoder of two streams that knows of switches, and a decoder of one language.

    Args:
        code: of the encoder, one of `ropewalk.lab.code_mixed.CODES`.
        streams: of the encoder.
        decoder_code: of the decoder, whose text has no switches.
        decoder_pairs: the decoder reads pairs (t − 1, t) of its tokens, as the bigram stream does, instead of tokens.
        hidden_size: width.
        num_layers: of the decoder and of each stream.
        num_heads: heads.
        max_length: longest text, for learned tables.

    Shapes: source (B, S) with tags, target (B, T) → logits (B, T, WORDS + 2).
    """

    def __init__(
        self,
        code: str = "switching_rope_token",
        streams: Streams = "both",
        decoder_code: DecoderCode = "rope",
        *,
        decoder_pairs: bool = False,
        hidden_size: int = 64,
        num_layers: int = 2,
        num_heads: int = 4,
        max_length: int = 128,
    ) -> None:
        super().__init__()
        if decoder_code.startswith("switch"):
            raise ConfigError(
                f"a translation is of one language and has no switches; got decoder_code={decoder_code!r}"
            )
        sizes = {"hidden_size": hidden_size, "num_layers": num_layers, "num_heads": num_heads}
        self.source = TwoStreams(TEXT_TOKENS, code, streams, **sizes, max_length=max_length)
        config = ModelConfig(END + 1, hidden_size=hidden_size, num_layers=num_layers, num_heads=num_heads, causal=True)
        self.embed = nn.Embedding(END + 1, hidden_size)
        self.start = nn.Parameter(0.02 * torch.randn(hidden_size)) if decoder_pairs else None
        self.pair = nn.Linear(2 * hidden_size, hidden_size) if decoder_pairs else None
        self.decoder = nn.ModuleList(
            Layer(config, position_code(decoder_code, config.width, hidden_size, max_length)) for _ in range(num_layers)
        )
        self.norm = RMSNorm(hidden_size)
        self.head = nn.Linear(hidden_size, END + 1)

    def _layers(self) -> list[Layer]:
        return [cast("Layer", layer) for layer in self.decoder]

    def encode(self, source: Tensor, tags: Sequence[Sequence[Tag]]) -> Memory:
        """Read texts."""
        states = self.source.states(source, tags)
        keys = (cast("CrossAttention", layer.cross_attention).remember(states) for layer in self._layers())
        return Memory(tuple(keys), torch.ones_like(source, dtype=torch.bool))

    def decode(
        self, target: Tensor, memory: Memory, valid: Tensor | None = None, cache: rw.KVCache | None = None
    ) -> Tensor:
        """Return the logits of the successor of each token; with a cache the tokens are the new ones only.

        Pairs reach one token back, which a cache does not keep: with ``decoder_pairs`` there is none.
        """
        if cache is None:
            where = rw.Positions.arange(target.shape[1], valid=valid, device=target.device)
        else:
            where = cache.step(target.shape[1])
        x = self.embed(target)
        if self.pair is not None and self.start is not None:
            before = torch.cat([self.start.expand(len(x), 1, -1), x[:, :-1]], 1)
            x = self.pair(torch.cat([before, x], -1))
        for i, layer in enumerate(self._layers()):
            x = layer.self_attention.encoding.embed(x, where) if i == 0 else x
            x = layer(x, where, None if cache is None else cache[i].extend, memory.keys[i], memory.valid)
        return self.head(self.norm(x))

    def cache(self) -> rw.KVCache:
        """Return an empty cache for decoding."""
        if self.pair is not None:
            raise ConfigError("a decoder of pairs reads the token before each; translate one whole target at a time")
        return rw.KVCache([layer.self_attention.encoding for layer in self._layers()], device=self.embed.weight.device)

    def forward(self, pairs: MixedPairs) -> Tensor:
        """Return the logits of each token of the targets."""
        begun = torch.cat([torch.full_like(pairs.target[:, :1], BEGIN), pairs.target[:, :-1]], 1)
        return self.decode(begun, self.encode(pairs.tokens, pairs.tags))

    def loss(self, pairs: MixedPairs) -> Tensor:
        """Mean cross-entropy of the words and of the first `END` of each target."""
        again = torch.cat([torch.zeros_like(pairs.target[:, :1]), pairs.target[:, :-1]], 1) == END
        wanted = pairs.target.masked_fill(again, IGNORE)
        return cross_entropy(self(pairs).flatten(0, 1), wanted.flatten(), ignore_index=IGNORE)

    @torch.no_grad()
    def translate(self, source: Tensor, tags: Sequence[Sequence[Tag]], *, max_length: int, beams: int = 1) -> Tensor:
        """Return translations, (B, ≤ max_length), filled up with `END`.

        Args:
            source: (B, S).
            tags: of their tokens.
            max_length: tokens of a translation at most, `END` included.
            beams: hypotheses kept of each text.
        """
        memory = self.encode(source, tags)
        if self.pair is None:
            return search(self, memory, begin=BEGIN, end=END, max_length=max_length, beams=beams)
        if beams != 1:
            raise ConfigError(f"a decoder of pairs writes the likeliest word at each step; got beams={beams}")
        out = torch.full((len(source), 1), BEGIN, device=source.device)
        for _ in range(max_length):
            step = self.decode(out, memory)[:, -1].argmax(-1)
            done = (out == END).any(1)
            out = torch.cat([out, torch.where(done, END, step)[:, None]], 1)
            if bool((out == END).any(1).all()):
                break
        return out[:, 1:]
