"""Rows, padding, documents, heads and layouts: how tokens are laid out in tensors must not matter."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.backends import attend
from ropewalk.core.attention import Attention
from ropewalk.core.positions import Tokens
from ropewalk.testing.compare import SAME, Excluded, agree, error_of, finite, require
from ropewalk.testing.subjects import BATCH, EITHER, HEAD_DIM, HEADS, KV_HEADS, LONG, MEDIUM, Subject, able
from ropewalk.testing.tokens import alone, packed, padded, padding


def check_batch(s: Subject) -> None:
    """Rows of a batch are independent, in any order. Finds: an answer that depends on who else was in the batch."""
    layer = s.layer()
    x, positions = s.x(LONG), s.positions(layer.encoding, LONG)
    for causal, backend in s.ways:
        case = f"{causal=}, {backend}"
        together = layer(x, positions, causal, backend)
        for row in range(BATCH):
            pick = torch.tensor([row])
            got = layer(x[pick], positions.select(pick), causal, backend)
            agree(got, together[pick], SAME, f"row {row} alone, {case}", "its result in the batch")
        order = torch.tensor([2, 0, 1])
        got = layer(x[order], positions.select(order), causal, backend)
        agree(got, together[order], SAME, f"rows in another order, {case}", "the same, reordered")

        common = positions.select(torch.tensor([0]))
        got = layer(x, common, causal, backend)
        first = layer(x[:1], common, causal, backend)
        agree(got[:1], first, SAME, f"positions of one row for all, {case}", "each row at them")
        repeated = layer(x, common.map_sides(_repeated), causal, backend)
        agree(got, repeated, SAME, f"positions of one row for all, {case}", "the same as repeated ones")


def _repeated(t: Tokens) -> Tokens:
    return Tokens({n: c.expand(BATCH, *c.shape[1:]) for n, c in t.columns.items()}, t.sequence)


def check_padding(s: Subject) -> None:
    """A padded row gives what its real tokens give alone. Finds: padding that is counted, seen or summed."""
    layer = s.layer()
    valid = padding(LONG, (0, 0, 11), (1, 30, LONG), (2, 5, 9), (2, 20, 31))
    x, positions = s.x(LONG), padded(s, layer.encoding, valid)
    for causal, backend in s.ways:
        out = layer(x, positions, causal, backend)
        finite(f"padded, {causal=}, {backend}", out)
        for row, where in enumerate(("left", "right", "middle")):
            index = valid[row].nonzero()[:, 0]
            want = alone(s, layer, x, positions, row, index, causal, backend)
            case = f"padding on the {where}, {causal=}, {backend}"
            agree(out[row : row + 1, :, index], want, SAME, case, "what the tokens give alone")


def check_packing(s: Subject) -> None:
    """Documents packed into a row give what each gives alone. Finds: training on packed rows that leaks across them."""
    layer = s.layer()
    ids, positions = packed(s, layer.encoding)
    x = s.x(LONG)
    for causal, backend in s.ways:
        out = layer(x, positions, causal, backend)
        for row in range(BATCH):
            for document in ids[row].unique().tolist():
                index = (ids[row] == document).nonzero()[:, 0]
                want = alone(s, layer, x, positions, row, index, causal, backend)
                case = f"document {document} of row {row}, {causal=}, {backend}"
                agree(out[row : row + 1, :, index], want, SAME, case, "what the document gives alone")


def check_short(s: Subject) -> None:
    """One token and none are problems like others. Finds: the first step of decoding or an empty batch that crashes."""
    layer = s.layer()
    x, positions = s.x(MEDIUM), s.positions(layer.encoding, MEDIUM)
    for causal, backend in s.ways:
        one = layer(x[:, :1], positions.slice(0, 1), causal, backend)
        finite(f"one token, {backend}", one)
        if s.streamable and causal:  # what does not stream may read its own length
            whole = layer(x, positions, causal, backend)
            agree(one, whole[:, :, :1], SAME, f"one token, {backend}", "the first of many")
        none = layer(x[:, :0], positions.slice(0, 0), causal, backend)
        shape = (BATCH, layer.encoding.output_heads(HEADS), 0, HEAD_DIM)
        require(none.shape == shape, f"no token, {backend}", f"an output of shape {shape}", tuple(none.shape))


def check_grouped_heads(s: Subject) -> None:
    """Shared key heads give what repeated ones give. Finds: grouped-query attention with heads paired wrongly."""
    encoding = s.encoding()
    for causal in s.causals:
        p = s.problem(encoding, LONG, causal)
        encoded = encoding(p)
        want = attend(encoded, "dense")
        for backend in able(encoded):
            agree(attend(encoded, backend), want, SAME, f"{backend}, {causal=}", "the dense result")
        if "num_kv_heads" in s.takes:
            continue  # made for a number of key heads: the repeated problem is another encoding's
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (p.k, p.v))
        repeated = Attention(p.q, k, v, p.positions, causal=causal, x=p.x)
        for backend in EITHER:
            got = attend(encoding(repeated), backend)
            agree(got, want, SAME, f"key heads repeated, {backend}, {causal=}", "the result of shared ones")


def check_heads_permuted(s: Subject) -> None:
    """Where heads are treated alike, their order does not matter. Finds: heads that leak into each other."""
    encoding = s.encoding(num_kv_heads=HEADS)
    order = torch.tensor([2, 0, 3, 1])
    for causal in s.causals:
        p = s.problem(encoding, MEDIUM, causal, kv_heads=HEADS)
        alike = p.replace(q=p.q[:, :1].expand_as(p.q), k=p.k[:, :1].expand_as(p.k), v=p.v[:, :1].expand_as(p.v))
        out = attend(encoding(alike), "dense")
        if error_of(out, out[:, :1].expand_as(out)) > SAME:
            raise Excluded("heads differ by design: equal heads give different outputs")
        got = attend(encoding(p.replace(q=p.q[:, order], k=p.k[:, order], v=p.v[:, order])), "dense")
        agree(got, attend(encoding(p), "dense")[:, order], SAME, f"{causal=}", "outputs in the same other order")


def check_strides(s: Subject) -> None:
    """Views give what contiguous inputs give. Finds: a ``view`` that crashes on, or misreads, transposed projections."""
    encoding = s.encoding()
    for causal, backend in s.ways:
        p = s.problem(encoding, MEDIUM, causal)
        want = attend(encoding(p), "dense")
        for case, change in (
            ("(batch, seq, heads, head_dim) in memory", _transposed),
            ("every other channel", _sliced),
        ):
            strided = p.replace(q=change(p.q), k=change(p.k), v=change(p.v))
            got = attend(encoding(strided), backend)
            agree(got, want, SAME, f"{case}, {causal=}, {backend}", "the result of contiguous inputs")
        expanded = p.replace(k=p.k[:, :1].expand_as(p.k), v=p.v[:, :1].expand_as(p.v))
        solid = expanded.replace(k=expanded.k.contiguous(), v=expanded.v.contiguous())
        got = attend(encoding(expanded), backend)
        agree(got, attend(encoding(solid), "dense"), SAME, f"expanded heads, {causal=}, {backend}", "that of copies")


def _transposed(t: Tensor) -> Tensor:
    return t.transpose(1, 2).contiguous().transpose(1, 2)


def _sliced(t: Tensor) -> Tensor:
    return t.repeat_interleave(2, -1)[..., ::2]
