"""Rotary position embeddings of packed documents, laid out as variable-length attention takes them.

    positions = packed_positions(cu_seqlens)                                  # once a batch
    q, k = (apply_rotary_packed(t, cos, sin, positions=positions) for t in (q, k))

Documents stand one after the other in (total, heads, head_dim), and each begins anew at position 0. The Triton kernel reads
the tables by row, so that nothing is gathered; elsewhere the rows are gathered first.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from ropewalk.core import rotation
from ropewalk.core.errors import ConfigError, PositionError, ShapeError
from ropewalk.core.positions import packed_documents
from ropewalk.core.rotation import Pairing


def packed_positions(cu_seqlens: Tensor, total: int | None = None, *, offsets: Tensor | None = None) -> Tensor:
    """i − cu_seqlens[d] (+ offsets[d]) for token i of document d: the position of each packed token in its own document.

    Make it once a batch and hand it to all layers: the lengths are checked, for which a CUDA device is waited for.

    Args:
        cu_seqlens: (documents + 1,) integers, where documents begin and the last one ends, as flash-attention's
            functions of variable length take it. A document may be empty.
        total: tokens in all; None: the last of ``cu_seqlens``.
        offsets: (documents,) integers, how many tokens of each lie in its cache already.

    Returns:
        (total,) int64.

    Raises:
        PositionError: lengths that do not begin at 0, fall, or do not end at ``total``; no integers.
        ShapeError: not one offset for each document.

    Example:
        >>> packed_positions(torch.tensor([0, 3, 5])).tolist()
        [0, 1, 2, 0, 1]
    """
    if total is None:
        total = int(cu_seqlens[-1]) if cu_seqlens.ndim == 1 and len(cu_seqlens) else 0
    document = packed_documents(cu_seqlens, total)
    position = torch.arange(total, device=cu_seqlens.device) - cu_seqlens.long()[document]
    if offsets is None:
        return position
    if offsets.shape != (len(cu_seqlens) - 1,):
        raise ShapeError(
            f"offsets is {tuple(offsets.shape)}; give one number for each of the {len(cu_seqlens) - 1} documents of cu_seqlens"
        )
    if not _whole(offsets):
        raise PositionError(f"offsets come in {offsets.dtype}; they count tokens: give integers")
    return position + offsets.long()[document]


def apply_rotary_packed(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    pairing: Pairing = "interleaved",
    *,
    cu_seqlens: Tensor | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """(a, b) → (a cos − b sin, a sin + b cos) for packed tokens, each with the row of the tables that is its position.

    As `apply_rotary` otherwise: channels after the first 2P pass through, the result has the dtype of x, gradients reach x.

    Args:
        x: (total, heads, head_dim), the documents one after the other; any strides.
        cos: (max_position, P), or (1 or heads, max_position, P).
        sin: likewise.
        pairing: "interleaved" or "half".
        cu_seqlens: (documents + 1,) where documents begin; see `packed_positions`, which is then called.
        positions: or (total,) integers, the position of each token: from `packed_positions`, made once for all layers. In the
            Triton kernel a token whose row the tables do not have becomes NaN; on the CPU it is an error.

    Raises:
        ShapeError: shapes that do not fit, with the likely reason.
        PositionError: lengths or positions that do not fit x and the tables.
        ConfigError: an unknown pairing; both or none of ``cu_seqlens`` and ``positions``.

    Example:
        >>> from ropewalk.functional import rotary_tables
        >>> cos, sin = rotary_tables(torch.arange(4096), head_dim=64)
        >>> q = torch.randn(5, 8, 64)  # a document of three tokens and one of two
        >>> apply_rotary_packed(q, cos, sin, cu_seqlens=torch.tensor([0, 3, 5])).shape
        torch.Size([5, 8, 64])
    """
    positions = _checked(x, cos, sin, cu_seqlens, positions)
    turned = x.transpose(0, 1)
    kernel = _kernel(x, cos, sin)
    if kernel is not None:
        return kernel.rotate(turned, cos, sin, pairing, index=positions).transpose(0, 1)
    return rotation.rotate(turned, *_rows(cos, sin, positions), pairing).transpose(0, 1)


def apply_rotary_packed_(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    pairing: Pairing = "interleaved",
    *,
    cu_seqlens: Tensor | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """`apply_rotary_packed` in place: turn x and return it. x may be a part of a joint projection, (total, 3, heads, d)[:, 0].

    The Triton kernel reads and writes each number once; elsewhere the result is made beside x and copied. Gradients pass,
    since x itself is not needed for them.

    Raises:
        ShapeError: also where several elements of x share memory (an expanded tensor).
    """
    positions = _checked(x, cos, sin, cu_seqlens, positions)
    kernel = _kernel(x, cos, sin)
    if kernel is not None:
        kernel.rotate_(x.transpose(0, 1), cos, sin, pairing, index=positions)
        return x
    if any(n > 1 and stride == 0 for n, stride in zip(x.shape, x.stride(), strict=True)):
        raise ShapeError(
            f"x {tuple(x.shape)} has strides {x.stride()}: elements share memory and cannot be turned apart. Give "
            "x.contiguous(), or turn it out of place"
        )
    return x.copy_(rotation.rotate(x.transpose(0, 1), *_rows(cos, sin, positions), pairing).transpose(0, 1))


def check_rows(positions: Tensor, rows: int, name: str = "positions") -> None:
    """Check that tables of ``rows`` rows have each position: negative ones would silently count from the end.

    On the CPU at once, in a compiled graph by an assertion; a CUDA device is not waited for (its own bound check, or NaN).
    """
    if torch.compiler.is_compiling():
        inside = ((positions >= 0) & (positions < rows)).all()
        torch._assert_async(inside, f"{name} are not all among the {rows} rows of the tables")
        return
    readable = type(positions) is Tensor and not torch._C._are_functorch_transforms_active()
    if not readable or positions.device.type != "cpu" or not positions.numel():
        return
    low, high = int(positions.min()), int(positions.max())
    if low < 0 or high >= rows:
        raise PositionError(
            f"{name} run from {low} to {high}, the tables from 0 to {rows - 1}. Make longer tables, or tables for these very "
            "positions: rotary_tables(positions, ...)"
        )


def _whole(t: Tensor) -> bool:
    return not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool)


def _checked(x: Tensor, cos: Tensor, sin: Tensor, cu_seqlens: Tensor | None, positions: Tensor | None) -> Tensor:
    """Check the shapes, and return the position of each token, int32 or int64."""
    if x.ndim != 3:
        raise ShapeError(
            f"x is {tuple(x.shape)}; packed documents are (total, heads, head_dim). For (batch, heads, seq, head_dim) there "
            "is apply_rotary; (batch, seq, heads, head_dim) is packed by x.flatten(0, 1)"
        )
    if cos.shape != sin.shape or cos.ndim not in (2, 3) or (cos.ndim == 3 and cos.shape[0] not in (1, x.shape[1])):
        raise ShapeError(
            f"cos is {tuple(cos.shape)} and sin {tuple(sin.shape)}; both must be (max_position, P), or (1 or heads, "
            f"max_position, P) with heads = {x.shape[1]}"
        )
    if (cu_seqlens is None) == (positions is None):
        raise ConfigError(
            "give either cu_seqlens or positions" + ("" if positions is None else ", not both: they say the same")
        )
    if positions is None:
        assert cu_seqlens is not None
        positions = packed_positions(cu_seqlens, x.shape[0])
    if not _whole(positions):
        raise PositionError(
            f"positions come in {positions.dtype}; they are rows of the tables: give integers. For real positions make the "
            "tables of them, rotary_tables(positions, ...), and positions=torch.arange(total)"
        )
    if positions.shape != x.shape[:1]:
        raise ShapeError(
            f"positions is {tuple(positions.shape)} and x {tuple(x.shape)}; give ({x.shape[0]},), one a token"
        )
    return positions if positions.dtype in (torch.int32, torch.int64) else positions.long()


def _kernel(x: Tensor, cos: Tensor, sin: Tensor) -> ModuleType | None:
    """Return the Triton kernel where it turns such a tensor."""
    return rotation._kernel(x.device) if x.is_cuda and not rotation._must_be_plain(x, cos, sin) else None


def _rows(cos: Tensor, sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    check_rows(positions, cos.shape[-2])
    return cos[..., positions, :], sin[..., positions, :]
