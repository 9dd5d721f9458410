"""Where attention goes when nothing but the encoding tells tokens apart."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ropewalk.backends import attend
from ropewalk.catalog import Record, record
from ropewalk.core.attention import Attention, Parts, Problem
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import ConfigError, check_positive
from ropewalk.core.positions import Positions
from ropewalk.testing.subjects import subject

CONTENT = 4.0
"""Mean logit of a token with itself before it is encoded."""

NEAR_ZERO = 0.1
"""Learned numbers that start below it are drawn instead: a table of zeros would show nothing."""

TOKEN = 0.1
"""Size of the token embeddings beside what an encoding adds to them."""


EXAMPLES = 4
"""Contents shown one by one, where their mean says little."""


@dataclass(frozen=True)
class AttentionMap:
    """Attention among tokens of equal content: averaged over many contents, or of some of them.

    Attributes:
        name: of the encoding.
        weights: (N, S, S) weight of query and key; N counts heads or contents. In cross-attention (N, Q, K), as logits are.
        logits: (N, S, S) logit against that of the query with itself (where it does not see itself, against the largest of
            its row); NaN where a pair is never seen.
        each: whether there is a map for each head, averaged over contents, or for some contents, of the first head.
        causal: whether keys after the query are masked.
        sequence: whether tokens lie in a row, so that i − j is a distance.
        drawn: whether learned numbers were drawn at random, since they start near 0.
    """

    name: str
    weights: Tensor
    logits: Tensor
    each: Literal["head", "content"]
    causal: bool
    sequence: bool
    drawn: bool

    @property
    def count(self) -> int:
        """Number N of maps."""
        return self.weights.shape[0]

    @property
    def length(self) -> int:
        """Queries, which are the keys unless positions say otherwise."""
        return self.weights.shape[1]

    @property
    def alike(self) -> bool:
        """Whether all maps are the same."""
        return bool((self.weights - self.weights[:1]).abs().max() < 1e-6)

    @property
    def distances(self) -> Tensor:
        """Distances i − j that occur, in order."""
        return torch.arange(0 if self.causal else 1 - self.length, self.length)

    def by_distance(self) -> Tensor:
        """Return the mean logit at each distance, (N, distances); NaN where no pair is seen."""
        return _by_distance(self.logits)[:, self.distances + self.length - 1]

    def profile(self) -> Tensor:
        """Return the weights of one query by distance, (N, distances): the last one, or without causality the middle one.

        NaN where there is no key.
        """
        query = self.length - 1 if self.causal else self.length // 2
        key = query - self.distances
        there = (key >= 0) & (key < self.length)
        return torch.where(there, self.weights[:, query, key.clamp(0, self.length - 1)], torch.nan)


def attention_map(
    encoding: Encoding | Record | str,
    length: int = 48,
    *,
    head_dim: int = 64,
    num_heads: int = 4,
    hidden_size: int = 128,
    causal: bool | None = None,
    positions: Positions | None = None,
    each: Literal["head", "content"] | None = None,
    draws: int | None = None,
    seed: int = 0,
) -> AttentionMap:
    """Draw contents, give every token the same one as query and as key, encode, and average the attention.

    What is added to embeddings is seen through a random projection, the same for queries and keys. The layer's input that
    some encodings read holds random tokens.

    Args:
        encoding: an encoding, a record of the catalog, or its name.
        length: tokens, unless there are positions.
        head_dim: width of a head.
        num_heads: query and key heads.
        hidden_size: width of the embeddings and of the layer's input.
        causal: None: causal unless the record says that it never is.
        positions: where the tokens are, of one row or of as many as each round draws; None: counted, or drawn from the domain
            that the record names. Keys may be other tokens than queries.
        each: "head": a map for each head, averaged over contents. "content": of the first head, a map for some contents.
            None: the second where logits differ more between contents than, in the mean, between distances (where each
            query decides what distances it likes, the mean over contents shows nothing).
        draws: contents; None: 64, and fewer from 128 tokens on.
        seed: of everything random.

    Raises:
        ConfigError: sizes the encoding cannot have.
        RopewalkError: whatever the encoding refuses.
    """
    check_positive(length=length, draws=draws, head_dim=head_dim, num_heads=num_heads, hidden_size=hidden_size)
    entry = record(encoding) if isinstance(encoding, str) else encoding
    domain = entry.traits.domain if isinstance(entry, Record) else "sequence"
    if causal is None:
        causal = not isinstance(entry, Record) or entry.traits.causal != "never"
    if draws is None:
        draws = max(EXAMPLES, min(64, 64 * 128**2 // length**2))
    rounds = min(4, draws)  # what is random in the positions is drawn anew in each
    rows = -(-draws // rounds)
    if positions is not None:
        length = positions.query.length
    in_a_row = domain in ("sequence", "segments") and (positions is None or positions.key.length == length)
    found = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        name, layer, drawn = _made(entry, length, head_dim, num_heads, hidden_size)
        for i in range(rounds):
            torch.manual_seed(seed + 1 + i)
            where = positions
            if where is None and isinstance(entry, Record) and domain != "sequence":
                where = subject(entry).sample(rows, length, torch.Generator().manual_seed(seed + i))
            found.append(_weights(layer, rows, length, head_dim, num_heads, hidden_size, causal, where))
    weights = torch.cat(found)
    most = weights.amax(-1, keepdim=True)
    own = weights.diagonal(dim1=-2, dim2=-1)[..., None] if weights.shape[-1] == length else most
    logits = (weights / torch.where(own > 0, own, most)).log()
    logits = torch.where(logits.isfinite(), logits, torch.nan)
    if each is None:
        each = "content" if in_a_row and _differ(logits) else "head"
    if each == "content":
        weights, logits = weights[:EXAMPLES, 0], logits[:EXAMPLES, 0]
    else:
        weights, logits = weights.mean(0), logits.nanmean(0)
    return AttentionMap(name, weights, logits, each, causal, in_a_row, drawn)


def _by_distance(logits: Tensor) -> Tensor:
    """Return the mean logit at the distances 1 − S ... S − 1, (..., 2S − 1), of pairs (..., S, S)."""
    n = logits.shape[-1]
    index = (torch.arange(n)[:, None] - torch.arange(n) + n - 1).flatten()
    values = logits.flatten(-2)
    sums, counts = (
        torch.zeros(*values.shape[:-1], 2 * n - 1, dtype=torch.float64).index_add_(-1, index, t.double())
        for t in (values.nan_to_num(0.0), ~values.isnan())
    )
    return sums / counts


def _differ(logits: Tensor) -> bool:
    """Whether curves (draws, H, S, S) differ more between contents than their mean does between distances."""
    curves = _by_distance(logits)
    curves = curves[..., ~curves.isnan().flatten(0, -2).any(0)]
    if curves.shape[0] < 2 or curves.shape[-1] < 2:
        return False
    mean = curves.mean(0)
    return bool((curves.std(0).mean(-1) > (mean.amax(-1) - mean.amin(-1))).any()) and float(curves.std(0).mean()) > 1e-3


def _made(
    entry: Encoding | Record, length: int, head_dim: int, num_heads: int, hidden_size: int
) -> tuple[str, Encoding, bool]:
    """Return a name, the encoding in float64, and whether learned numbers were drawn."""
    if isinstance(entry, Encoding):
        return type(entry).__name__, copy.deepcopy(entry).double(), False
    sizes = {"head_dim": head_dim, "num_heads": num_heads, "num_kv_heads": num_heads, "hidden_size": hidden_size}
    if length > entry.defaults.get("max_length", math.inf):
        sizes["max_length"] = length
    layer = entry.build(**sizes).double()
    drawn = False
    for parameter in layer.parameters():
        if parameter.numel() and parameter.abs().max() < NEAR_ZERO:
            parameter.add_(0.5 * torch.randn(parameter.shape))
            drawn = True
    return entry.name, layer, drawn


def _weights(
    layer: Encoding,
    rows: int,
    length: int,
    head_dim: int,
    num_heads: int,
    hidden_size: int,
    causal: bool,
    positions: Positions | None,
) -> Tensor:
    """Return the weights of one round of draws, (rows, H, S, S)."""
    where = layer.draw(Positions.arange(length) if positions is None else positions)
    x = TOKEN * torch.randn(rows, 1, hidden_size, dtype=torch.float64).expand(rows, length, hidden_size)
    content = layer.embed(x, where) @ torch.randn(hidden_size, head_dim, dtype=torch.float64)
    size = content.square().sum(-1).mean()
    content = content * (CONTENT * head_dim**0.5 / size).sqrt()
    q = content[:, None].expand(rows, num_heads, length, head_dim)
    seen = where.key.length
    k = q if seen == length else q[:, :, :1].expand(rows, num_heads, seen, head_dim)
    tokens = torch.randn(rows, length, hidden_size, dtype=torch.float64)

    def encoded(v: Tensor) -> Problem:
        return layer(Attention(q, k, v, where, causal=causal, x=tokens))

    problem = encoded(k)
    if isinstance(problem, Parts) and not problem.by_head:
        # A mixture of softmaxes has no weights of its own; what it does to values that name their key is as good.
        ones = torch.eye(seen, dtype=torch.float64).expand(rows, num_heads, seen, seen)
        made: Tensor = attend(encoded(ones), "dense")
        if made.shape[-1] != seen:
            raise ConfigError(f"{type(layer).__name__} maps the values, so that its weights cannot be told")
        return made
    made = attend(problem, "dense", return_weights=True)[1]
    return made
