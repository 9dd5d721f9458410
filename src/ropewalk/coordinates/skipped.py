"""Positions that skip: a short training text stands at positions of a long context.

EndPrompt keeps a text whole and puts its last tokens at the very end of the wanted context; PoSE cuts it in pieces and skips
between them. Attention then meets long distances at the cost of short ones. Only positions change: everything goes with any
rotary model and any kernel. `ropewalk.analysis.seen_distances` says which distances are trained.
"""

from __future__ import annotations

import warnings

import torch
from torch import Generator, Tensor

from ropewalk.core.errors import ConfigError, PositionError, check_positive


def endprompt_positions(length: int, terminal: int, final: int) -> Tensor:
    """0 … n−c−1, then F−c+1 … F: the last c of n tokens stand at the end, (n,).

    Args:
        length: n.
        terminal: c, 18 to 20 in the paper. Without a text before them or without any (c ≤ 0, c ≥ n) positions are
            0 … n − 1, with a warning.
        final: F, the last position of the wanted context.

    Raises:
        PositionError: F < n − 1, where the two stretches would overlap.

    Source: Dawei Yin, Fang Wang, Han Tian, Haoyi Xiong, Jiamin Chen, Jiashu Zhao, Jinman Zhao, Luxuan Chen, Rui Kong, Shuaiqiang
    Wang, Xinran Chen, Yuchen Li (in the order of the alphabet). EndPrompt: Efficient Long-Context Extension via Terminal
    Anchoring. arXiv 2605.14589, 2026.
    """
    check_positive(length=length)
    _fits(length, final)
    positions = torch.arange(length)
    if not 0 < terminal < length:
        warnings.warn(
            f"a terminal of {terminal} tokens in a text of {length} leaves nothing to skip: positions are 0 … {length - 1}",
            stacklevel=2,
        )
        return positions
    positions[length - terminal :] += final - (length - 1)
    return positions


def endprompt_random_positions(
    length: int, terminal: int, context: int, generator: Generator | None = None, *, physical: int | None = None
) -> Tensor:
    """0 … P−c−1, then s … s+c−1 with s drawn from P−c … L−c: the end of the text stands anywhere in the context, (n,).

    The released script has this variant beside the fixed one. Which tokens of a longer text are kept says `endprompt_tokens`.

    Args:
        length: tokens of the text.
        terminal: c.
        context: L, tokens of the wanted context.
        generator: of the draw.
        physical: P, tokens that are trained on; None: all. A text that is not longer is left at 0, 1, 2, ….

    Raises:
        PositionError: P − c > L − c.
        ConfigError: a terminal that is not part of P tokens.
    """
    check_positive(length=length, context=context, physical=physical)
    kept = length if physical is None else physical
    if not 0 < terminal < kept:
        raise ConfigError(f"the terminal is 1 to {kept - 1} of {kept} tokens; got {terminal}")
    if kept > context:
        raise PositionError(
            f"{kept} tokens do not fit a context of {context}; shorten the text or lengthen the context"
        )
    if physical is not None and length <= physical:
        return torch.arange(length)
    start = int(torch.randint(kept - terminal, context - terminal + 1, (), generator=generator))
    return torch.cat([torch.arange(kept - terminal), start + torch.arange(terminal)])


def endprompt_tokens(length: int, terminal: int, physical: int) -> Tensor:
    """Return which tokens of a text of n the random variant keeps: the first P − c and the last c, (min(n, P),)."""
    check_positive(length=length, terminal=terminal, physical=physical)
    if length <= physical:
        return torch.arange(length)
    if terminal >= physical:
        raise ConfigError(f"the terminal is 1 to {physical - 1} of {physical} tokens; got {terminal}")
    return torch.cat([torch.arange(physical - terminal), length - terminal + torch.arange(terminal)])


def pose_positions(length: int, context: int, generator: Generator | None = None, *, pieces: int = 2) -> Tensor:
    """t + u_m for token t of piece m, 0 = u_1 ≤ u_2 ≤ … ≤ L − n: cuts and skips are drawn anew for every text, (n,).

    With two pieces: cut a from 1 … n−1, skip u from 0 … L−n, uniformly. With more, cuts are distinct and each skip is drawn
    from what the last one left. The paper also takes the pieces from different places of a longer text; here the text stays.

    Args:
        length: n.
        context: L, tokens of the wanted context.
        generator: of the draws.
        pieces: into which the text is cut; 2 in the paper.

    Raises:
        PositionError: a text longer than the context.
        ConfigError: more pieces than tokens.

    Source: Dawei Zhu, Nan Yang, Liang Wang, Yifan Song, Wenhao Wu, Furu Wei, Sujian Li. PoSE: Efficient Context Window
    Extension of LLMs via Positional Skip-wise Training. arXiv 2309.10400, 2023.
    """
    check_positive(length=length, context=context, pieces=pieces)
    _fits(length, context - 1)
    if pieces > length:
        raise ConfigError(f"a text of {length} tokens cannot be cut in {pieces} pieces")
    cuts = (torch.randperm(length - 1, generator=generator)[: pieces - 1] + 1).sort().values
    positions, low = torch.arange(length), 0
    for cut in cuts.tolist():
        skip = int(torch.randint(low, context - length + 1, (), generator=generator))
        positions[cut:] += skip - low
        low = skip
    return positions


def _fits(length: int, final: int) -> None:
    if final < length - 1:
        raise PositionError(
            f"a text of {length} tokens ends at position {length - 1} and cannot be made to end at {final}; shorten it, or give "
            "the last position of a longer context"
        )
