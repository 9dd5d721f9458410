"""The KV cache and operations on it."""

from ropewalk.cache.kv_cache import KVCache, LayerCache, Snapshot

__all__ = ["KVCache", "LayerCache", "Snapshot"]
