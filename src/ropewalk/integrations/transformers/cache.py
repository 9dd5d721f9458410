"""The cache of models whose encoding is ropewalk's: what `generate` takes, with a `KVCache` inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from ropewalk.cache import KVCache
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import CacheError


class EncodedCache(Cache):
    """Keys, values, features and running state of a model to which `hf.apply` gave an encoding.

    `generate` and the model make one by themselves. Make one to continue it later, or to look inside (``cache.kv``). It keeps
    all keys, also of layers with a sliding window, and of models with latent keys the expanded ones.

    Args:
        encodings: one a layer: ``model.ropewalk.encodings``.
    """

    def __init__(self, encodings: Sequence[Encoding]) -> None:
        self.kv = KVCache(list(encodings))
        super().__init__(layers=[_Layer(self.kv) for _ in range(len(self.kv))])

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """Refuse: keys come from the attention function."""
        raise CacheError(f"layer {layer_idx} wrote its keys into the cache itself, past its encoding")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the rows, for beam search."""
        self.kv.select(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        if self.kv.tokens is not None:
            self.kv.select(torch.arange(self.batch_size).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows."""
        self.kv.select(indices)

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens, given as a negative number; refused where running state cannot be taken back."""
        self.kv.crop(self.kv.length - abs(tokens_to_remove))

    def reset(self) -> None:
        """Forget everything."""
        self.kv.crop(0)

    @property
    def batch_size(self) -> int:
        """Rows, or -1 while it is empty."""
        stored = self.kv[0].stored
        return stored[0].k.shape[0] if stored else -1

    @property
    def is_croppable(self) -> bool:
        """Whether `crop` can take tokens back."""
        return all(self.kv[i].state is None for i in range(len(self.kv)))


class _Layer(CacheLayerMixin):
    """What transformers asks a layer of a cache: lengths only."""

    is_sliding = False

    def __init__(self, kv: KVCache) -> None:
        super().__init__()
        self.kv = kv

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: there is nothing to allocate."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Refuse, see `EncodedCache.update`."""
        raise CacheError("a layer wrote its keys into the cache itself, past its encoding")

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the keys of a step and their offset."""
        return self.kv.length + query_length, 0

    def get_seq_length(self) -> int:
        """Return the keys held."""
        return self.kv.length

    def get_max_length(self) -> int:
        """Return -1: it grows."""
        return -1
