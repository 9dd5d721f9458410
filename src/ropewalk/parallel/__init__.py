"""Sequences and heads that are dealt out to several processes of `torch.distributed`.

    shard = rw.parallel.Shard.zigzag(positions)                       # once a batch: which tokens this process holds
    x = shard.take(embeddings)                                        # (batch, own tokens, hidden)
    out = rw.parallel.ring(encoding, rw.Attention(q, k, v, x=x), shard)

Positions travel with their tokens, so that any split gives what one process gives. Heads need nothing from here:
``Attention(..., heads=(first, total), kv_total=...)`` says which heads of a layer a process holds.
"""

from ropewalk.parallel.context import gathered, ring
from ropewalk.parallel.parameters import parameters_of_encodings, sum_gradients
from ropewalk.parallel.shard import Shard

__all__ = ["Shard", "gathered", "parameters_of_encodings", "ring", "sum_gradients"]
