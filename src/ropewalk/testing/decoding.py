"""Decoding with a cache equals the full pass, whatever is done to the cache on the way."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from ropewalk.backends import attend
from ropewalk.cache import KVCache
from ropewalk.core.errors import CacheError, CannotCrop, Refusal
from ropewalk.core.positions import Positions, Tokens
from ropewalk.testing.compare import SAME, SHIFTED, Excluded, agree, explains, identical, require
from ropewalk.testing.subjects import BATCH, EITHER, LONG, Layer, Subject, spans
from ropewalk.testing.tokens import alone, at, packed, padded, padding

CUT = 20  # where a cache that was filled so far is snapshot, cropped or picked from
REST = LONG - CUT


def check_decoding(s: Subject) -> None:
    """Through a cache, a token at a time or in ragged chunks: the full pass. Finds: generation unlike training."""
    s.needs_causal()
    layer = s.layer()
    x, positions = s.x(LONG), s.positions(layer.encoding, LONG)
    for backend in EITHER:
        want = layer(x, positions, backend=backend)
        for case, chunks in (
            ("a token at a time", [1] * LONG),
            ("ragged chunks", [5, 1, 19, 2, 10]),
            ("prefill, then tokens", [LONG - 6, *[1] * 6]),
        ):
            try:
                got = layer.stream(x, positions, chunks, backend=backend)
            except (Refusal, CacheError) as why:
                if s.streamable:
                    raise
                raise Excluded(f"it refuses to stream: {why}") from None
            agree(got, want, SAME, f"{case}, {backend}", "the full pass")  # also of what does not claim to stream


def check_decoding_counted(s: Subject) -> None:
    """A cache that counts goes on where the tokens ended. Finds: generation after a padded or packed prompt gone wrong."""
    s.needs_streaming()
    if not s.sequence:
        raise Excluded("positions of this domain do not follow from those before")
    layer = s.layer()
    _counted_from_zero(s, layer)
    _counted_past_padding(s, layer)
    _counted_in_the_last_document(s, layer)


PROMPT, AFTER = LONG - 7, [1, 1, 3, 2]


def _counted_from_zero(s: Subject, layer: Layer) -> None:
    cache = KVCache(layer.encoding)
    got = layer.stream(s.x(LONG), None, [PROMPT, *AFTER], cache)
    seen = _seen(cache)
    identical(seen.key.position, torch.arange(LONG).expand_as(seen.key.position), "counted", "positions 0, 1, 2, ...")
    agree(got, layer(s.x(LONG), seen), SAME, "counted from 0", "the full pass")


def _counted_past_padding(s: Subject, layer: Layer) -> None:
    x, valid = s.x(LONG), padding(PROMPT, (0, 0, 11), (1, 17, PROMPT), (2, 3, 8))
    cache = KVCache(layer.encoding)
    prompt = layer.stream(x[:, :PROMPT], padded(s, layer.encoding, valid), [PROMPT], cache)
    got = torch.cat([prompt, layer.stream(x[:, PROMPT:], None, AFTER, cache)], 2)
    seen = _seen(cache)
    for row, where in enumerate(("left", "right", "middle")):
        index = seen.key.column("valid").expand(BATCH, -1)[row].nonzero()[:, 0]
        want = alone(s, layer, x, seen, row, index)
        agree(got[row : row + 1, :, index], want, SAME, f"padding on the {where}, then tokens", "the row alone")


def _counted_in_the_last_document(s: Subject, layer: Layer) -> None:
    ids, positions = packed(s, layer.encoding)
    x, more = s.x(LONG), s.x(3, salt=1)
    cache = KVCache(layer.encoding)
    layer.stream(x, positions, [12, LONG - 12], cache)
    got = layer.stream(more, None, [1, 2], cache)
    for row in range(BATCH):
        last = (ids[row] == ids[row, -1]).nonzero()[:, 0]
        index = torch.cat([last, torch.arange(LONG, LONG + 3)])
        want = alone(s, layer, torch.cat([x, more], 1), _seen(cache), row, index)[:, :, -3:]
        agree(got[row : row + 1], want, SAME, f"row {row}: tokens after packed documents", "the last document alone")


def _seen(cache: KVCache) -> Positions:
    return Positions(cast("Tokens", cache.tokens))


def check_decoding_padded(s: Subject) -> None:
    """Padding and documents inside chunks. Finds: a prompt given in pieces that is read unlike the whole prompt."""
    s.needs_streaming()
    layer = s.layer()
    valid = padding(LONG, (0, 0, 11), (1, 14, 22))
    for case, positions, real in (
        ("padding", padded(s, layer.encoding, valid), valid),
        ("documents", packed(s, layer.encoding)[1], padding(LONG)),
    ):
        got = layer.stream(s.x(LONG), positions, [6, 14, 1, 1, 15])
        want = layer(s.x(LONG), positions)
        mask = real[:, None, :, None]
        agree(got * mask, want * mask, SAME, f"{case} in chunks", "the full pass")


def check_layers(s: Subject) -> None:
    """Two layers over one cache decode as they compute. Finds: layers that overwrite each other's state."""
    s.needs_streaming()
    encoding = s.encoding()
    layers = [s.around(encoding.layer(i)) for i in range(2)]
    x, positions = s.x(LONG), s.positions(layers[0].encoding, LONG)
    positions = s.draw(layers[1].encoding, positions)
    cache = KVCache([layer.encoding for layer in layers])
    out: list[list[Tensor]] = [[], []]
    for start, stop in spans([9, 1, LONG - 10]):
        now = cache.step(positions.slice(start, stop))
        for i, layer in enumerate(layers):
            out[i].append(attend(cache[i].extend(layer.problem(x[:, start:stop], now)), "auto"))
    for i, layer in enumerate(layers):
        agree(torch.cat(out[i], 2), layer(x, positions), SAME, f"layer {i} of 2", "the full pass")


def check_stored(s: Subject) -> None:
    """What a cache keeps is the same however it was filled. Finds: a shared prompt cache that fits one caller only."""
    s.needs_streaming()
    layer = s.layer()
    x, positions = s.x(LONG), s.positions(layer.encoding, LONG)
    whole, parts = KVCache(layer.encoding), KVCache(layer.encoding)
    layer.stream(x, positions, [LONG], whole)
    layer.stream(x, positions, [3, 20, 1, 13], parts)
    for a, b in zip(whole[0].stored, parts[0].stored, strict=True):
        agree(b.k, a.k, SAME, "keys", "those of one pass")
        agree(b.v, a.v, SAME, "values", "those of one pass")
        require(a.features.keys() == b.features.keys(), "features", str(sorted(a.features)), sorted(b.features))
        for name, feature in a.features.items():
            got = b.features[name].expand_as(feature)
            agree(got, feature, SAME, f"feature {name}", "that of one pass")


def check_snapshot(s: Subject) -> None:
    """Back to a snapshot, and on with other tokens. Finds: rejected drafts of speculative decoding that leave traces."""
    s.needs_streaming()
    layer = s.layer()
    x, draft, positions = s.x(LONG), s.x(LONG, salt=1), s.positions(layer.encoding, LONG)
    cache = _filled(layer, x, positions, CUT)
    kept = cache.snapshot()
    layer.stream(draft[:, CUT:], positions.slice(CUT), [9, REST - 9], cache)
    cache.restore(kept)
    got = layer.stream(x[:, CUT:], positions.slice(CUT), [4, REST - 4], cache)
    agree(got, layer(x, positions)[:, :, CUT:], SAME, "snapshot, draft, restore", "the full pass")


def check_beams(s: Subject) -> None:
    """Rows of a cache picked, repeated, reordered. Finds: beam search whose state stays with the wrong beam."""
    s.needs_streaming()
    layer = s.layer()
    x, positions = s.x(LONG), s.positions(layer.encoding, LONG)
    for rows in ([1, 1, 0, 2], [2], [0, 1]):
        pick = torch.tensor(rows)
        cache = _filled(layer, x, positions, CUT)
        cache.select(rows)
        after = positions.select(pick)
        got = layer.stream(x[pick, CUT:], after.slice(CUT), [1, REST - 1], cache)
        agree(got, layer(x[pick], after)[:, :, CUT:], SAME, f"rows {rows}", "a fresh run of these rows")


def check_crop(s: Subject) -> None:
    """A cropped cache goes on as if the rest had never come, or refuses. Finds: dropped tokens still in the sums."""
    s.needs_streaming()
    layer = s.layer()
    x, positions = s.x(LONG), s.positions(layer.encoding, LONG)
    cache = _filled(layer, s.x(LONG, salt=1), positions, LONG)
    cache.crop(0)
    agree(layer.stream(x, positions, [LONG], cache), layer(x, positions), SAME, "crop(0)", "a fresh run")
    try:
        cache.crop(CUT)
    except (CannotCrop, CacheError) as why:
        explains(why, f"crop({CUT})")
        return
    got = layer.stream(x[:, CUT:], positions.slice(CUT), [1, REST - 1], cache)
    agree(got, layer(x, positions)[:, :, CUT:], SAME, f"crop({CUT})", "the full pass")


def check_edit(s: Subject) -> None:
    """Tokens dropped from a cache and the others moved, or a refusal. Finds: a rolling context with keys left behind."""
    s.needs_streaming()
    layer = s.layer()
    x, positions = s.x(LONG), s.positions(layer.encoding, LONG)
    first, keep = 30, torch.tensor([0, 1, 2, 3, *range(11, 30)])
    moved = at(positions.slice(0, len(keep)), positions.key.position[:, : len(keep)])
    if not s.sequence:
        moved = s.positions(layer.encoding, len(keep), salt=1)
    refused = []
    for case, new in (("tokens dropped", None), ("tokens dropped and the others moved", moved)):
        cache = _filled(layer, x, positions, first)
        try:
            cache.edit(keep, new)
        except (Refusal, CacheError) as why:
            explains(why, case)
            refused.append(str(why))
            continue
        start = Positions(positions.key.take(keep)) if new is None else new
        fresh = _filled(layer, x[:, keep], start, len(keep))
        got, want = (
            layer.stream(x[:, first:], positions.slice(first), [1, LONG - first - 1], c) for c in (cache, fresh)
        )
        agree(got, want, SHIFTED, case, "a fresh cache of the kept tokens")
    if len(refused) == 2:
        raise Excluded(f"it refuses to edit: {refused[0]}")


def _filled(layer: Layer, x: Tensor, positions: Positions, n: int) -> KVCache:
    cache = KVCache(layer.encoding)
    layer.stream(x[:, :n], positions.slice(0, n), [n], cache)
    return cache
