"""Room to append to: a decoding step writes its own keys and copies no older ones.

Tensors of a cache are values. What a snapshot or a beam holds never changes, because only memory behind the end of
every tensor handed out is written to; where that is not free any more, the keys move to a new room.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

SPARE = 4
"""A new room holds a quarter more than is put there: a token is copied four times on average, however long it gets."""

LEAST = 64
"""Tokens of spare room at least."""


class _Room:
    __slots__ = ("buffer", "filled")

    def __init__(self, buffer: Tensor, filled: int) -> None:
        self.buffer, self.filled = buffer, filled


class Rooms:
    """The rooms of one layer, by the name of what is in them."""

    def __init__(self) -> None:
        self._rooms: dict[Hashable, _Room] = {}

    def cat(self, name: Hashable, old: Tensor, new: Tensor) -> Tensor:
        """Join (B, H, K, ...) and (B, H, n, ...) along the tokens, without a copy of the old ones where there is room."""
        if old.shape[:2] != new.shape[:2]:  # a feature may be the same for all rows or heads
            rows, heads = (max(old.shape[i], new.shape[i]) for i in (0, 1))
            old, new = (t.expand(rows, heads, *t.shape[2:]) for t in (old, new))
        if not _may_be_written(old, new):
            return torch.cat([old, new], 2)
        room = self._rooms.get(name)
        length, count = old.shape[2], new.shape[2]
        if room is None or not _ends_in(room, old) or length + count > room.buffer.shape[2]:
            size = length + count + max(LEAST, length // SPARE)
            room = self._rooms[name] = _Room(old.new_empty(*old.shape[:2], size, *old.shape[3:]), length)
            room.buffer[:, :, :length] = old
        room.buffer[:, :, length : length + count] = new
        room.filled = length + count
        return room.buffer[:, :, : length + count]


def _may_be_written(old: Tensor, new: Tensor) -> bool:
    return not (
        torch.is_grad_enabled()  # a gradient may need what was there
        or torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or type(old) is not Tensor
        or type(new) is not Tensor
        or old.dtype != new.dtype
        or old.shape[0] == 0
    )


def _ends_in(room: _Room, old: Tensor) -> bool:
    """Whether ``old`` is all that was written into a room, and the room can be written to now."""
    b = room.buffer
    return (
        b.is_inference() == torch.is_inference_mode_enabled()
        and room.filled == old.shape[2]
        and old.data_ptr() == b.data_ptr()
        and old.stride() == b.stride()
        and old.shape[:2] == b.shape[:2]
        and old.shape[3:] == b.shape[3:]
        and old.dtype == b.dtype
        and old.device == b.device
    )
