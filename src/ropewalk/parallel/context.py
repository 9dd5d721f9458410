"""Attention over a sequence that is dealt out to several processes.

Each process encodes its own tokens, as a cache encodes a chunk; then keys, values and key features meet, and nothing else.
`gathered` brings all of them to every process and leaves an ordinary problem; `ring` hands them round, so that a process
holds those of two at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ropewalk.backends import attend, finished
from ropewalk.backends.merge import merge
from ropewalk.cache.kv_cache import Stored, overrides
from ropewalk.core.attention import (
    Attention,
    Parts,
    Pointwise,
    Problem,
    check_mask,
    check_positions,
    leaves,
    map_leaves,
)
from ropewalk.core.encoding import Encoding, State, observe, rewrite
from ropewalk.core.errors import CannotSplit, PositionError
from ropewalk.parallel.exchange import after, join, shift

if TYPE_CHECKING:
    from ropewalk.core.positions import Positions
    from ropewalk.parallel.shard import Shard, Span


def gathered(encoding: Encoding, problem: Attention, shard: Shard) -> Problem:
    """Return the problem of this process's queries and the keys of all, encoded; hand it to `attend`.

    Args:
        encoding: of the layer.
        problem: of this process's tokens: q, k, v and x hold those alone; a mask is (own queries, all keys). The positions
            are the shard's, and may be left out.
        shard: who holds which tokens.

    Raises:
        CannotSplit: the encoding needs tokens that other processes hold before it can encode its own.
    """
    local = _encoded(encoding, problem, shard)
    held = [Stored.of(leaf) for leaf in leaves(local)]
    return _over(encoding, local, _unpacked(join(shard, _packed(held), 2), held), shard.among_all)


def ring(encoding: Encoding, problem: Attention, shard: Shard, backend: str = "auto") -> Tensor:
    """Return the output of this process's queries, (B, H, own tokens, D_v), while keys and values go round once.

    Stretches of keys that causality or a window hides are left out, and the parts are merged by their log-sum-exps. A
    transfer is not hidden behind the computation. There is no dropout: `gathered` and `attend` have it.

    Args:
        encoding: of the layer.
        problem: as for `gathered`.
        shard: who holds which tokens.
        backend: see `attend`.

    Raises:
        CannotSplit: see `gathered`.
            Also where it reads the logits or weights of a whole row at once: `gathered` has them.
    """
    local = _encoded(encoding, problem, shard)
    held = [Stored.of(leaf) for leaf in leaves(local)]
    moving: Sequence[Tensor] = _packed(held)
    parts: dict[tuple[int, Span], list[tuple[Tensor, Tensor]]] = {}
    over = local
    for step in range(shard.size):
        if step:
            moving = shift(shard, step - 1, moving)
        start = 0
        for keys in shard.spans[(shard.rank - step) % shard.size]:
            stop = start + keys[1] - keys[0]
            block = [stored.index(2, slice(start, stop)) for stored in _unpacked(moving, held)]
            over = _over(encoding, local, block, shard.among(keys))
            for i, leaf in enumerate(leaves(over)):
                _check_rows_part(leaf)
                for queries, piece in _pieces(leaf, shard, keys):
                    found = attend(piece, backend, return_lse=True)
                    parts.setdefault((i, queries), []).append(found)
            start = stop
    own = shard.spans[shard.rank]
    outs = []
    for i, leaf in enumerate(leaves(over)):
        merged = torch.cat([merge(parts[i, queries], leaf.sinks)[0] for queries in own], 2)
        dtype = parts[i, own[0]][0][0].dtype  # under autocast another one than that of q
        outs.append(finished(leaf, merged.to(leaf.q.dtype)).to(dtype))
    return after(_combined(over, iter(outs)), moving)


# ---- encoding apart, joining keys ----------------------------------------------------------------------------------


def _encoded(encoding: Encoding, problem: Attention, shard: Shard) -> Problem:
    """Encode this process's tokens by themselves, or refuse before anything is sent."""
    name = type(encoding).__name__
    why = encoding.why_not_split()
    if why is None and overrides(encoding, "settle"):
        why = "later tokens move the keys of earlier ones on"
    if why is not None:
        raise CannotSplit(f"{name} cannot encode a part of the tokens by itself: {why}")
    where = shard.positions
    if problem.positions is not None and problem.positions is not where:
        raise PositionError(
            "the problem's positions are not those of the shard; leave them out, or give shard.positions"
        )
    if encoding.draw(where) is not where:
        raise CannotSplit(
            f"{name} draws at random, and each process would draw something else; draw before dealing out: "
            "Shard.zigzag(encoding.draw(positions)), with one seed on all processes"
        )
    check_positions(problem, where)
    if problem.mask is not None:
        keys = problem.k[:, :, :1].expand(-1, -1, shard.length, -1)
        check_mask(problem.replace(k=keys), problem.mask)
    seen, state = observe(encoding, problem.replace(positions=where))
    if _holds_numbers(state):
        raise CannotSplit(
            f"{name} sums up all tokens before a token (or looks back at them), and other processes hold some of those; "
            "keep the sequence whole and deal out batches or heads"
        )
    return seen if encoding.stores == "raw" else rewrite(encoding, seen)


def _holds_numbers(state: State) -> bool:
    return any(_holds_numbers(s) for s in state) if isinstance(state, tuple) else state is not None


def _over(encoding: Encoding, local: Problem, keys: Sequence[Stored], where: Positions) -> Problem:
    """Return this process's queries over other keys."""
    queue = iter(keys)
    problem = map_leaves(local, lambda leaf: next(queue).problem(leaf).replace(positions=where))
    return rewrite(encoding, problem) if encoding.stores == "raw" else problem


def _packed(held: Sequence[Stored]) -> list[Tensor]:
    return [t for s in held for t in (s.k, s.v, *s.features.values())]


def _unpacked(tensors: Sequence[Tensor], like: Sequence[Stored]) -> list[Stored]:
    queue = iter(tensors)
    return [Stored(next(queue), next(queue), {name: next(queue) for name in s.features}) for s in like]


# ---- parts of a row ------------------------------------------------------------------------------------------------


def _check_rows_part(p: Attention) -> None:
    what = None
    if p.product is not None and p.product.rows_coupled:
        what = "the scores couple the rows"
    elif not all(isinstance(term, Pointwise) for term in p.terms):
        what = "a term reads the whole row of logits or weights"
    if what is not None:
        raise CannotSplit(f"keys cannot be attended to a part at a time: {what}. Use parallel.gathered and attend")


def _pieces(leaf: Attention, shard: Shard, keys: Span) -> Iterator[tuple[Span, Attention]]:
    """Cut a problem over one stretch of keys into the stretches of this process's queries that see any of it."""
    replaced = {mask.name for mask in leaf.masks}
    plain = leaf.causal and "causal" not in replaced
    window = leaf.window if "window" not in replaced else None
    bare = leaf.replace(sinks=None, finish=())  # done once, when all keys were seen
    if leaf.mask is not None:
        bare = bare.replace(mask=leaf.mask[..., slice(*keys)])
    start = 0
    for queries in shard.spans[shard.rank]:
        stop = start + queries[1] - queries[0]
        index = torch.arange(start, stop, device=leaf.q.device)
        start = stop
        if plain and keys[0] >= queries[1]:
            continue
        if window is not None and max(queries[0] - keys[1], keys[0] - queries[1]) + 1 >= window:
            continue  # the nearest pair is too far apart
        piece = bare.select_queries(index).replace(positions=shard.pair(queries, keys))
        if plain and keys[1] <= queries[0] + 1:
            piece = piece.replace(causal=False)  # every key is an earlier one: no mask
        yield queries, piece


def _combined(problem: Problem, outs: Iterator[Tensor]) -> Tensor:
    if isinstance(problem, Parts):
        return problem.combine([_combined(item, outs) for item in problem.items])
    return next(outs)
