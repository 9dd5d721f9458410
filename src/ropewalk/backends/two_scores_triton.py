"""Attention with two scores chosen by distance, by one Triton kernel: a softmax that never leaves the registers.

    s_ij = <q_i, k_j> * scale  for i - j < w,      <q'_i, k'_j> * scale  for i - j >= w

Imported by `ropewalk.backends.two_scores` when it is first asked for, and by nothing else: Triton is optional. Tiles of keys
that all queries of a block see at a near distance, or all at a far one, take one product; only those that the border
crosses take both. Which they are is found from the least and the largest coordinate of each tile, so that any positions
are right, and rising ones are fast. Query heads that share a key head are rows of one block: keys are read once for all.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from ropewalk.backends.merge import merge

# Rows (queries times the heads that share a key head) and keys of one tile. Reasoned, not measured.
_ROWS = 64
_COLUMNS = 64
_SCAN = 1024  # tiles whose coordinates are looked at together
LARGEST_WIDTH = 512  # bytes of a head; with these the tiles fit the 99 KiB of shared memory that small devices have
LARGEST_GROUP = 128
LARGEST_TILE = 1 << 14  # bytes of the queries of a block


@triton.jit  # type: ignore[misc, untyped-decorator, unused-ignore]
def _take(
    total: tl.tensor,
    top: tl.tensor,
    mass: tl.tensor,
    q: tl.tensor,
    far_q: tl.tensor,
    k: tl.tensor,
    far_k: tl.tensor,
    v: tl.tensor,
    place_k: tl.tensor,
    facts_k: tl.tensor,
    here: tl.tensor,
    place: tl.tensor,
    order: tl.tensor,
    document: tl.tensor,
    first: tl.tensor,
    keys: tl.tensor,
    window: tl.tensor,
    before: tl.tensor,
    after: tl.tensor,
    k_s: tl.tensor,
    k_d: tl.tensor,
    far_k_s: tl.tensor,
    far_k_d: tl.tensor,
    v_s: tl.tensor,
    v_d: tl.tensor,
    NEAR: tl.constexpr,
    FAR: tl.constexpr,
    OWN_KEYS: tl.constexpr,
    DISTANCE: tl.constexpr,
    CAP: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    DOCUMENTS: tl.constexpr,
    VALID: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    V_DIM: tl.constexpr,
    V_WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    FACTORS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Add one tile of keys to the running softmax, whose logits are in units of log 2."""
    key = (first + tl.arange(0, COLUMNS)).to(tl.int64)
    inside = key < keys
    channel = tl.arange(0, WIDTH)
    read = inside[None, :] & (channel < DIM)[:, None]
    if NEAR or not OWN_KEYS:
        turned = tl.load(k + key[None, :] * k_s + channel[:, None] * k_d, mask=read, other=0.0).to(FACTORS)
    if FAR and OWN_KEYS:
        at = far_k + key[None, :] * far_k_s + channel[:, None] * far_k_d
        far_turned = tl.load(at, mask=read, other=0.0).to(FACTORS)
    elif FAR:
        far_turned = turned
    if NEAR and FAR:
        j = tl.load(place_k + key, mask=inside, other=0.0)
        far = place[:, None] - j[None, :] >= tl.full((), DISTANCE, tl.float64)
        near_s = tl.dot(q, turned, input_precision="ieee")
        s = tl.where(far, tl.dot(far_q, far_turned, input_precision="ieee"), near_s)
    elif NEAR:
        s = tl.dot(q, turned, input_precision="ieee")
    else:
        s = tl.dot(far_q, far_turned, input_precision="ieee")
    s *= before
    if CAP:
        s = after * (2.0 * tl.sigmoid(2.0 * s) - 1.0)  # tanh

    seen = here[:, None] & inside[None, :]
    if CAUSAL or WINDOW:
        j_order = tl.load(facts_k + key, mask=inside, other=0)
        ahead = order[:, None] - j_order[None, :]
        if CAUSAL:
            seen = seen & (ahead >= 0)
        if WINDOW:
            seen = seen & (ahead < window) & (ahead > -window)
    if DOCUMENTS:
        seen = seen & (document[:, None] == tl.load(facts_k + keys + key, mask=inside, other=0)[None, :])
    if VALID:
        seen = seen & (tl.load(facts_k + 2 * keys + key, mask=inside, other=0) != 0)[None, :]
    s = tl.where(seen, s, float("-inf"))

    higher = tl.maximum(top, tl.max(s, 1))
    base = tl.where(higher == float("-inf"), 0.0, higher)
    weight = tl.exp2(s - base[:, None])
    shrink = tl.exp2(top - base)
    v_channel = tl.arange(0, V_WIDTH)
    read = inside[:, None] & (v_channel < V_DIM)[None, :]
    value = tl.load(v + key[:, None] * v_s + v_channel[None, :] * v_d, mask=read, other=0.0).to(FACTORS)
    total = total * shrink[:, None] + tl.dot(weight.to(FACTORS), value, input_precision="ieee")
    return total, higher, mass * shrink + tl.sum(weight, 1)


@triton.jit  # type: ignore[misc, untyped-decorator, unused-ignore]
def _attend(
    q: tl.tensor,
    far_q: tl.tensor,
    k: tl.tensor,
    far_k: tl.tensor,
    v: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    place_q: tl.tensor,
    place_k: tl.tensor,
    facts_q: tl.tensor,
    facts_k: tl.tensor,
    tiles: tl.tensor,
    kv_heads: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    count: tl.tensor,
    blocks: tl.tensor,
    splits: tl.tensor,
    window: tl.tensor,
    before: tl.tensor,
    after: tl.tensor,
    q_b: tl.tensor,
    q_h: tl.tensor,
    q_s: tl.tensor,
    q_d: tl.tensor,
    far_q_b: tl.tensor,
    far_q_h: tl.tensor,
    far_q_s: tl.tensor,
    far_q_d: tl.tensor,
    k_b: tl.tensor,
    k_h: tl.tensor,
    k_s: tl.tensor,
    k_d: tl.tensor,
    far_k_b: tl.tensor,
    far_k_h: tl.tensor,
    far_k_s: tl.tensor,
    far_k_d: tl.tensor,
    v_b: tl.tensor,
    v_h: tl.tensor,
    v_s: tl.tensor,
    v_d: tl.tensor,
    batches: tl.tensor,
    by_row: tl.tensor,
    GROUP: tl.constexpr,
    OWN_KEYS: tl.constexpr,
    DISTANCE: tl.constexpr,
    CAP: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    DOCUMENTS: tl.constexpr,
    VALID: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    V_DIM: tl.constexpr,
    V_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SCAN: tl.constexpr,
    FACTORS: tl.constexpr,
) -> None:
    """Attend from ROWS // GROUP queries of GROUP heads to one stretch of the keys of their common head.

    Blocks with the latest queries come first: under causality they have most to do.
    """
    program = tl.program_id(0)
    split = program % splits
    head_k = program // splits % kv_heads
    batch = (program // splits // kv_heads % batches).to(tl.int64)
    block = blocks - 1 - program // splits // kv_heads // batches
    fact_row = batch * by_row

    PER_BLOCK: tl.constexpr = ROWS // GROUP
    row = tl.arange(0, ROWS)
    query = (block * PER_BLOCK + row // GROUP).to(tl.int64)
    head = (head_k * GROUP + row % GROUP).to(tl.int64)
    here = (row < PER_BLOCK * GROUP) & (query < queries)
    channel = tl.arange(0, WIDTH)
    read = here[:, None] & (channel < DIM)[None, :]
    at = q + batch * q_b + head[:, None] * q_h + query[:, None] * q_s + channel[None, :] * q_d
    mine = tl.load(at, mask=read, other=0.0).to(FACTORS)
    at = far_q + batch * far_q_b + head[:, None] * far_q_h + query[:, None] * far_q_s + channel[None, :] * far_q_d
    far_mine = tl.load(at, mask=read, other=0.0).to(FACTORS)

    place = tl.load(place_q + fact_row * queries + query, mask=here, other=0.0)
    order = tl.load(facts_q + fact_row * 2 * queries + query, mask=here, other=0)
    document = tl.load(facts_q + fact_row * 2 * queries + queries + query, mask=here, other=0)
    place_low = tl.min(tl.where(here, place, float("inf")))
    place_high = tl.max(tl.where(here, place, float("-inf")))
    order_low = tl.min(tl.where(here, order.to(tl.float64), float("inf")))
    order_high = tl.max(tl.where(here, order.to(tl.float64), float("-inf")))
    document_low = tl.min(tl.where(here, document.to(tl.float64), float("inf")))
    document_high = tl.max(tl.where(here, document.to(tl.float64), float("-inf")))

    # Of the tiles of this stretch: from the first that is seen to the last, and those at its ends that take one product.
    each = (count + splits - 1) // splits
    start = split * each
    stop = tl.minimum(start + each, count)
    facts = tiles + fact_row * 6 * count
    low = stop
    high = start
    for begin in range(start, stop, SCAN):
        tile = begin + tl.arange(0, SCAN)
        seen = tile < stop
        least = tl.load(facts + 2 * count + tile, mask=seen, other=float("inf"))
        most = tl.load(facts + 3 * count + tile, mask=seen, other=float("-inf"))
        seen = seen & (least <= most)  # not of padding alone
        if CAUSAL:
            seen = seen & (least <= order_high)
        if WINDOW:
            seen = seen & (order_low - most < window) & (least - order_high < window)
        if DOCUMENTS:
            seen = seen & (tl.load(facts + 4 * count + tile, mask=tile < stop, other=float("inf")) <= document_high)
            seen = seen & (tl.load(facts + 5 * count + tile, mask=tile < stop, other=float("-inf")) >= document_low)
        low = tl.minimum(low, tl.min(tl.where(seen, tile, stop)))
        high = tl.maximum(high, tl.max(tl.where(seen, tile + 1, start)))
    low = tl.minimum(low, high)
    far_until = high
    near_from = low
    distance = tl.full((), DISTANCE, tl.float64)
    for begin in range(low, high, SCAN):
        tile = begin + tl.arange(0, SCAN)
        within = tile < high
        far = place_low - tl.load(facts + count + tile, mask=within, other=float("-inf")) >= distance
        near = place_high - tl.load(facts + tile, mask=within, other=float("inf")) < distance
        far_until = tl.minimum(far_until, tl.min(tl.where(far, high, tile)))
        near_from = tl.maximum(near_from, tl.max(tl.where(near, low, tile + 1)))
    near_from = tl.maximum(near_from, far_until)

    total = tl.zeros((ROWS, V_WIDTH), tl.float32)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    mass = tl.zeros((ROWS,), tl.float32)
    head_k = head_k.to(tl.int64)
    k += batch * k_b + head_k * k_h
    far_k += batch * far_k_b + head_k * far_k_h
    v += batch * v_b + head_k * v_h
    place_k += fact_row * keys
    facts_k += fact_row * 3 * keys
    # fmt: off
    for tile in range(low, far_until):
        total, top, mass = _take(
            total, top, mass, mine, far_mine, k, far_k, v, place_k, facts_k, here, place, order, document,
            tile * COLUMNS, keys, window, before, after, k_s, k_d, far_k_s, far_k_d, v_s, v_d, False, True, OWN_KEYS, DISTANCE,
            CAP, CAUSAL, WINDOW, DOCUMENTS, VALID, DIM, WIDTH, V_DIM, V_WIDTH, COLUMNS, FACTORS,
        )
    for tile in range(far_until, near_from):
        total, top, mass = _take(
            total, top, mass, mine, far_mine, k, far_k, v, place_k, facts_k, here, place, order, document,
            tile * COLUMNS, keys, window, before, after, k_s, k_d, far_k_s, far_k_d, v_s, v_d, True, True, OWN_KEYS, DISTANCE,
            CAP, CAUSAL, WINDOW, DOCUMENTS, VALID, DIM, WIDTH, V_DIM, V_WIDTH, COLUMNS, FACTORS,
        )
    for tile in range(near_from, high):
        total, top, mass = _take(
            total, top, mass, mine, far_mine, k, far_k, v, place_k, facts_k, here, place, order, document,
            tile * COLUMNS, keys, window, before, after, k_s, k_d, far_k_s, far_k_d, v_s, v_d, True, False, OWN_KEYS, DISTANCE,
            CAP, CAUSAL, WINDOW, DOCUMENTS, VALID, DIM, WIDTH, V_DIM, V_WIDTH, COLUMNS, FACTORS,
        )
    # fmt: on

    nothing = mass == 0.0
    total = total / tl.where(nothing, 1.0, mass)[:, None]
    line = ((split * batches + batch) * kv_heads * GROUP + head) * queries + query
    v_channel = tl.arange(0, V_WIDTH)
    tl.store(
        out + line[:, None] * V_DIM + v_channel[None, :],
        total.to(out.dtype.element_ty),
        mask=here[:, None] & (v_channel < V_DIM)[None, :],
    )
    logarithm = (top + tl.log2(tl.where(nothing, 1.0, mass))) * 0.6931471805599453
    tl.store(lse + line, tl.where(nothing, float("-inf"), logarithm), mask=here)


def tile_facts(place: Tensor, order: Tensor, document: Tensor, valid: Tensor | None, columns: int) -> Tensor:
    """Return the least and the largest coordinate, index and document of each tile of keys, (b, 6, tiles) float64.

    Of padding nothing counts: the least of a tile without real tokens is ∞, the largest −∞.
    """
    facts = torch.stack(torch.broadcast_tensors(place, order.double(), document.double()), 1)
    low = high = facts
    if valid is not None:
        low, high = facts.masked_fill(~valid[:, None], torch.inf), facts.masked_fill(~valid[:, None], -torch.inf)
    more = -facts.shape[-1] % columns
    low = torch.nn.functional.pad(low, (0, more), value=torch.inf).unflatten(-1, (-1, columns)).amin(-1)
    high = torch.nn.functional.pad(high, (0, more), value=-torch.inf).unflatten(-1, (-1, columns)).amax(-1)
    return torch.stack((low, high), 2).flatten(1, 2)


def columns_of(dtype: torch.dtype, width: int) -> int:
    """Return how many keys are one tile; half as many where heads are large in memory."""
    return _COLUMNS if width * dtype.itemsize <= 256 else max(16, _COLUMNS // 2)


def _rows_of(dtype: torch.dtype, width: int, queries: int, group: int) -> int:
    """Return how many rows are one block: no more than there are, and at least one query of each head of a group."""
    most = _ROWS if width * dtype.itemsize <= 256 else max(16, _ROWS // 2)
    least = max(16, triton.next_power_of_2(group))
    return max(least, min(most, triton.next_power_of_2(group * queries)))


def _factors(dtype: torch.dtype) -> tl.dtype:
    """Return the dtype of the factors of a product: that of q, but Triton's interpreter multiplies bf16 as whole numbers."""
    if dtype == torch.float32 or triton.knobs.runtime.interpret:
        return tl.float32
    return tl.bfloat16 if dtype == torch.bfloat16 else tl.float16


def _splits(programs: int, tiles: int, device: torch.device) -> int:
    """Return into how many stretches the keys are cut, for a few queries to occupy the device. Reasoned, not measured."""
    if device.type != "cuda":
        return 1
    at_once = 2 * torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(at_once // programs, tiles // 4))


_SCHEMA = (
    "(Tensor q, Tensor far_q, Tensor k, Tensor? far_k, Tensor v, Tensor place_q, Tensor place_k, Tensor facts_q, "
    "Tensor facts_k, Tensor tiles, float distance, float scale, float? softcap, bool causal, int? window, bool documents, "
    "bool valid) -> (Tensor, Tensor)"
)


@torch.library.custom_op("ropewalk::two_scores", mutates_args=(), schema=_SCHEMA)
def two_scores(
    q: Tensor,
    far_q: Tensor,
    k: Tensor,
    far_k: Tensor | None,
    v: Tensor,
    place_q: Tensor,
    place_k: Tensor,
    facts_q: Tensor,
    facts_k: Tensor,
    tiles: Tensor,
    distance: float,
    scale: float,
    softcap: float | None,
    causal: bool,
    window: int | None,
    documents: bool,
    valid: bool,
) -> tuple[Tensor, Tensor]:
    """Attend with two scores; there is no gradient.

    Args:
        q: (B, H, Q, D) queries of near pairs, of any strides; bf16, fp16 or fp32.
        far_q: likewise, of far ones.
        k: (B, H_kv, K, D) keys of near pairs.
        far_k: likewise, of far ones; None: k.
        v: (B, H_kv, K, D_v).
        place_q: (1 or B, Q) float64 coordinates, by which distances go.
        place_k: (1 or B, K) likewise.
        facts_q: (1 or B, 2, Q) int64: index among the keys, document.
        facts_k: (1 or B, 3, K) int64: index, document, whether it is no padding.
        tiles: of the keys, by `tile_facts`, of `columns_of` columns.
        distance: pairs at this distance or more are far.
        scale: of the logits.
        softcap: of the scaled logits.
        causal: by index.
        window: by index.
        documents: whether queries see their own document only.
        valid: whether there is padding.

    Returns:
        (B, H, Q, D_v) in the dtype of q, zero where nothing is seen, and the log-sum-exp (B, H, Q) in float32.
    """
    batch, heads, queries, dim = q.shape
    _, kv_heads, keys, v_dim = v.shape
    group = heads // kv_heads
    rows = _rows_of(q.dtype, max(dim, v_dim), queries, group)
    blocks, count = triton.cdiv(queries, rows // group), tiles.shape[-1]
    splits = _splits(blocks * kv_heads * batch, count, q.device)
    out = q.new_empty((splits, batch, heads, queries, v_dim), dtype=q.dtype if splits == 1 else torch.float32)
    lse = q.new_empty((splits, batch, heads, queries), dtype=torch.float32)
    other = k if far_k is None else far_k
    before = scale * math.log2(math.e) if softcap is None else scale / softcap
    with torch.cuda.device_of(q):
        _attend[(splits * kv_heads * batch * blocks,)](
            *(q, far_q, k, other, v, out, lse, place_q, place_k, facts_q, facts_k, tiles),
            *(kv_heads, queries, keys, count, blocks, splits, 0 if window is None else window),
            *(before, 0.0 if softcap is None else softcap * math.log2(math.e)),
            *(*q.stride(), *far_q.stride(), *k.stride(), *other.stride(), *v.stride()),
            *(batch, int(place_k.shape[0] > 1)),
            GROUP=group,
            OWN_KEYS=far_k is not None,
            DISTANCE=distance,
            CAP=softcap is not None,
            CAUSAL=causal,
            WINDOW=window is not None,
            DOCUMENTS=documents,
            VALID=valid,
            DIM=dim,
            WIDTH=max(16, triton.next_power_of_2(dim)),
            V_DIM=v_dim,
            V_WIDTH=max(16, triton.next_power_of_2(v_dim)),
            ROWS=rows,
            COLUMNS=columns_of(q.dtype, max(dim, v_dim)),
            SCAN=_SCAN,
            FACTORS=_factors(q.dtype),
            num_warps=4,
            num_stages=2,
        )
    if splits == 1:
        return out[0], lse[0]
    joined, whole = merge(list(zip(out, lse, strict=True)))
    return joined.to(q.dtype), whole


@two_scores.register_fake
def _(q: Tensor, far_q: Tensor, k: Tensor, far_k: Tensor | None, v: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    return q.new_empty((*q.shape[:3], v.shape[-1])), q.new_empty(q.shape[:3], dtype=torch.float32)
