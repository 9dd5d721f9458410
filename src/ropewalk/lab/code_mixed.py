"""Mixed texts of two made-up languages, and an encoder of two streams for them.

    texts = mixed_texts(64, 12, torch.Generator().manual_seed(0))
    model = TwoStreamEncoder(TEXT_TOKENS, 2, "switching_rope")
    logits = model(texts.tokens, texts.tags)                        # what class each text is of

After CONFLATOR (arXiv 2309.05270, 2023; see `ropewalk.rotary.switching_rope.SwitchingRoPE`); its sizes are not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor, nn

import ropewalk as rw
from ropewalk.coordinates.switching import NEUTRAL, SwitchCoordinates, Tag, bigram_positions
from ropewalk.core.combinators import Sequential
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import ConfigError, ShapeError, check_positive, suggest
from ropewalk.lab.model import Block, ModelConfig, RMSNorm

WORDS = 12
"""Words of each language; word w of one means what word w of the other does."""

TEXT_TOKENS = 2 * WORDS + 1
"""Words of both languages, and a neutral token."""

Streams = Literal["unigram", "bigram", "both"]

CODES = (
    "nope",
    "sinusoidal",
    "learned",
    "relative",
    "switch_learned",
    "switch_learned_relative",
    "rope",
    *(f"switching_rope_{form}" for form in ("token", "parity", "zigzag", "segment", "split", "flag")),
)
"""Codes of position that the paper compares, and the readings of the last one."""


def position_code(name: str, head_dim: int, hidden_size: int, max_length: int = 128) -> Encoding:
    """Return one of `CODES`.

    "switch_learned" counts anew at every switch (PESTO), alone or with relative positions.

    Args:
        name: which.
        head_dim: width of a head.
        hidden_size: width of the embeddings.
        max_length: longest text, for learned tables.
    """
    if name not in CODES:
        raise ConfigError(f"code is one of {', '.join(CODES)}; got {name!r}.{suggest(name, CODES)}")
    if name.startswith("switching_rope_"):
        return rw.SwitchingRoPE(head_dim, name.removeprefix("switching_rope_"))  # type: ignore[arg-type]
    learned = Sequential(SwitchCoordinates("segment"), rw.LearnedAbsolute(max_length, hidden_size))
    made: dict[str, Encoding] = {
        "nope": rw.NoPE(),
        "sinusoidal": rw.Sinusoidal(hidden_size),
        "learned": rw.LearnedAbsolute(max_length, hidden_size),
        "relative": rw.ClippedRelative(head_dim),
        "switch_learned": learned,
        # relative positions first: they count tokens, not tokens since a switch
        "switch_learned_relative": Sequential(rw.ClippedRelative(head_dim), *learned),
        "rope": rw.RoPE(head_dim, pairing="half"),
    }
    return made[name]


class Mixed(NamedTuple):
    """Texts (n, L), the tags of their tokens, and the class of each."""

    tokens: Tensor
    tags: list[list[str]]
    label: Tensor


def mixed_texts(n: int, length: int, generator: Generator, *, switch: float = 0.3, neutral: float = 0.1) -> Mixed:
    """Draw texts that change their language at random; the class is whether the words right after switches mean a high number.

    Words after a switch count +1 from the middle of the vocabulary on and −1 below it; the class is whether the sum is above 0.

    Args:
        n: texts.
        length: tokens of each.
        generator: of everything random.
        switch: how likely a word is of the other language.
        neutral: how likely a token is neutral.
    """
    check_positive(n=n, length=length)
    turns = torch.rand(n, length, generator=generator) < switch
    side = (turns.long().cumsum(1) + torch.randint(2, (n, 1), generator=generator)) % 2
    word = torch.randint(WORDS, (n, length), generator=generator)
    blank = torch.rand(n, length, generator=generator) < neutral
    tokens = torch.where(blank, 2 * WORDS, word + WORDS * side)
    names = torch.where(blank, 2, side).tolist()
    tags = [[("hi", "en", NEUTRAL)[name] for name in row] for row in names]
    switches = rw.switching_positions(tags)[0].key.column("switch")
    score = (switches * torch.where(word >= WORDS // 2, 1, -1)).sum(1)
    return Mixed(tokens, tags, (score > 0).long())


class TwoStreams(nn.Module):
    """Blocks over tokens and blocks over pairs of neighbours, joined token by token.

    Args:
        vocab_size: tokens.
        code: one of `CODES`.
        streams: which there are.
        hidden_size: width.
        num_layers: blocks of each stream.
        num_heads: heads.
        max_length: longest text.
    """

    def __init__(
        self,
        vocab_size: int,
        code: str = "switching_rope_token",
        streams: Streams = "both",
        *,
        hidden_size: int = 64,
        num_layers: int = 2,
        num_heads: int = 4,
        max_length: int = 128,
    ) -> None:
        super().__init__()
        if streams not in ("unigram", "bigram", "both"):
            raise ConfigError(f"streams is 'unigram', 'bigram' or 'both'; got {streams!r}")
        config = ModelConfig(
            vocab_size, hidden_size=hidden_size, num_layers=num_layers, num_heads=num_heads, causal=False
        )
        self.names = ("unigram", "bigram") if streams == "both" else (streams,)
        self.embed = nn.Embedding(vocab_size, hidden_size)
        self.end = nn.Parameter(0.02 * torch.randn(hidden_size))
        self.pair = nn.Linear(2 * hidden_size, hidden_size)
        self.streams = nn.ModuleDict(
            {
                name: nn.ModuleList(
                    Block(config, position_code(code, config.width, hidden_size, max_length)) for _ in range(num_layers)
                )
                for name in self.names
            }
        )
        self.join = nn.Linear(len(self.names) * hidden_size, hidden_size)
        self.norm = RMSNorm(hidden_size)

    def states(self, tokens: Tensor, tags: Sequence[Sequence[Tag]]) -> Tensor:
        """Return the joined streams, (n, L, hidden_size)."""
        if tokens.ndim != 2 or [len(row) for row in tags] != [tokens.shape[1]] * len(tokens):
            raise ShapeError(
                f"tokens {tuple(tokens.shape)} and tags of {[len(row) for row in tags]} tokens; give a tag for each token"
            )
        x = self.embed(tokens)
        found = []
        for name in self.names:
            if name == "unigram":
                where, h = rw.switching_positions(tags, device=tokens.device)[0], x
            else:
                following = torch.cat([x[:, 1:], self.end.expand(len(x), 1, -1)], 1)
                where, h = bigram_positions(tags).to(tokens.device), self.pair(torch.cat([x, following], -1))
            blocks = self.streams[name]
            assert isinstance(blocks, nn.ModuleList)
            for i, block in enumerate(blocks):
                assert isinstance(block, Block)
                h = block.attention.encoding.embed(h, where) if i == 0 else h
                h = block(h, where)
            found.append(h)
        return self.norm(self.join(torch.cat(found, -1)))


class TwoStreamEncoder(TwoStreams):
    """`TwoStreams`, then classes of the whole text.

    Args:
        vocab_size: tokens.
        num_classes: of a text.
        code: one of `CODES`.
        streams: which there are.
        hidden_size: width.
        num_layers: blocks of each stream.
        num_heads: heads.
        max_length: longest text.
    """

    def __init__(
        self,
        vocab_size: int,
        num_classes: int,
        code: str = "switching_rope_token",
        streams: Streams = "both",
        *,
        hidden_size: int = 64,
        num_layers: int = 2,
        num_heads: int = 4,
        max_length: int = 128,
    ) -> None:
        super().__init__(
            vocab_size,
            code,
            streams,
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            max_length=max_length,
        )
        check_positive(num_classes=num_classes)
        self.head = nn.Linear(hidden_size, num_classes)

    def forward(self, tokens: Tensor, tags: Sequence[Sequence[Tag]]) -> Tensor:
        """Return logits of the classes, (n, num_classes)."""
        return self.head(self.states(tokens, tags).mean(1))
