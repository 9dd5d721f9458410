"""Encodings made of encodings. No encoding knows about another; the recursion over split problems is in `encoding`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ropewalk.core.attention import Attention, Parts, Problem, leaves
from ropewalk.core.encoding import Encoding, State, move, observe, rewrite, settle
from ropewalk.core.errors import CannotCompose, CannotEdit, CannotSplit, ConfigError, ShapeError
from ropewalk.core.positions import Chain, Positions, Tokens


class Sequential(Encoding):
    """Function composition: ``Sequential(a, b)(p) = b(a(p))``, with both observing before either rewrites.

    Example:
        >>> import ropewalk as rw
        >>> rw.Sequential(rw.RoPE(64), rw.ALiBi(8))
        Sequential(
          (0): RoPE(64, base=10000.0, pairing=interleaved)
          (1): ALiBi(8)
        )
    """

    structure = "chain"
    combines = True

    def __init__(self, *encodings: Encoding) -> None:
        super().__init__()
        for i, encoding in enumerate(encodings):
            _is_encoding(encoding, f"argument {i} of Sequential")
            self.add_module(str(i), encoding)

    @property
    def stores(self) -> str:  # type: ignore[override]
        """Raw as soon as one child needs its raw keys."""
        return "raw" if any(e.stores == "raw" for e in self) else "encoded"

    def __iter__(self) -> Iterator[Encoding]:
        return iter(cast("list[Encoding]", list(self.children())))

    def __len__(self) -> int:
        return len(self._modules)

    def observe(self, problem: Attention, state: State = None) -> tuple[Problem, State]:
        p: Problem = problem
        scope, states = p.scope, state if state is not None else (None,) * len(self)
        after = []
        for i, (child, before) in enumerate(zip(self, states, strict=True)):
            p, s = observe(child, p.enter(str(i)), before)
            p = p.leave(scope)
            after.append(s)
        return p, None if all(s is None for s in after) else tuple(after)

    def rewrite(self, problem: Attention) -> Problem:
        p: Problem = problem
        scope = p.scope
        for i, child in enumerate(self):
            p = rewrite(child, p.enter(str(i))).leave(scope)
        return p

    def settle(self, problem: Attention) -> Attention:
        p: Problem = problem
        scope = p.scope
        for i, child in enumerate(self):
            p = settle(child, p.enter(str(i))).leave(scope)
        return cast("Attention", p)

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        p: Problem = problem
        scope = p.scope
        turned = None
        for i, child in enumerate(self):
            before = [leaf.k for leaf in leaves(p)]
            p = move(child, p.enter(str(i)), tokens).leave(scope)
            if any(leaf.k is not k for leaf, k in zip(leaves(p), before, strict=True)):
                if turned is not None:
                    # The keys of the first were turned by the second: moving them in the same order moves other numbers.
                    raise CannotEdit(
                        f"{type(turned).__name__} and {type(child).__name__} both change the cached keys, and only the last "
                        "change can be moved; encode the edited sequence anew"
                    )
                turned = child
        return cast("Attention", p)

    def embed(self, x: Tensor, positions: Positions | None = None, at: Chain = ()) -> Tensor:
        if positions is None:
            positions = Positions.arange(x.shape[1], device=x.device)
        positions = self.draw(positions)
        for child in self:
            x = child.embed(x, positions, at)
            at = child.chained(at)
        return x

    def chained(self, at: Chain) -> Chain:
        for child in self:
            at = child.chained(at)
        return at

    def output_heads(self, num_heads: int) -> int:
        for child in self:
            num_heads = child.output_heads(num_heads)
        return num_heads

    def layer(self, index: int) -> Sequential:
        return Sequential(*(child.layer(index) for child in self))


class Partial(Encoding):
    """The encoding acts on the first ``dims`` channels of q and k; the others make an ordinary dot product.

    The scale of the logits stays that of the whole width.

    Args:
        encoding: an encoding of width ``dims``.
        dims: channels it acts on, counted from the first.

    Raises:
        CannotCompose: the encoding is not a dot product (several scores, a product of its own, split heads).
    """

    combines = True

    def __init__(self, encoding: Encoding, dims: int) -> None:
        super().__init__()
        _is_encoding(encoding, "Partial")
        if isinstance(dims, bool) or not isinstance(dims, int) or dims < 0:
            raise ConfigError(f"dims is a number of channels, 0 or more; got {dims!r}")
        self.encoding = encoding
        self.dims = dims

    @property
    def stores(self) -> str:  # type: ignore[override]
        return self.encoding.stores

    def _inner(self, p: Attention) -> Attention:
        if self.dims > p.q.shape[-1]:
            raise ShapeError(f"Partial over {self.dims} channels of a head of {p.q.shape[-1]}")
        if p.branches or p.product is not None:
            raise CannotCompose(f"Partial({type(self.encoding).__name__}) after an encoding that is no dot product")
        return p.replace(q=p.q[..., : self.dims], k=p.k[..., : self.dims])

    def _outer(self, inner: Problem, p: Attention) -> Attention:
        if isinstance(inner, Parts) or inner.branches or inner.product is not None or inner.kernel is not None:
            raise CannotCompose(
                f"Partial({type(self.encoding).__name__}): the encoding makes more than one dot product of its channels, "
                "so the channels left over have nowhere to go"
            )
        rest = p.q[..., self.dims :]
        if inner.num_heads != p.num_heads:  # the channels left over go to each of the heads made of one
            rest = rest.repeat_interleave(inner.num_heads // p.num_heads, 1)
        q = torch.cat([inner.q, rest], -1)
        k = torch.cat([inner.k, p.k[..., self.dims :]], -1)
        return inner.replace(q=q, k=k)

    def observe(self, problem: Attention, state: State = None) -> tuple[Problem, State]:
        part = self._inner(problem)
        inner, state = observe(self.encoding, part, state)
        if isinstance(inner, Parts):
            raise CannotCompose("Partial cannot hold a combinator that splits the heads; put Partial inside it")
        k = problem.k if inner.k is part.k else torch.cat([inner.k, problem.k[..., self.dims :]], -1)
        return inner.replace(q=problem.q, k=k), state

    def rewrite(self, problem: Attention) -> Problem:
        return self._outer(rewrite(self.encoding, self._inner(problem)), problem)

    def settle(self, problem: Attention) -> Attention:
        width = problem.k.shape[-1] - (problem.head_dim - self.dims)
        inner = problem.replace(q=problem.q[..., :width], k=problem.k[..., :width], head_dim=self.dims)
        settled = cast("Attention", settle(self.encoding, inner))
        k = torch.cat([settled.k, problem.k[..., width:]], -1)
        return settled.replace(q=problem.q, k=k, head_dim=problem.head_dim)

    def move(self, problem: Attention, tokens: Tokens) -> Attention:
        width = problem.k.shape[-1] - (problem.head_dim - self.dims)  # the encoding may have widened its channels
        inner = problem.replace(k=problem.k[..., :width], head_dim=self.dims)
        moved = cast("Attention", move(self.encoding, inner, tokens))
        return moved.replace(k=torch.cat([moved.k, problem.k[..., width:]], -1), head_dim=problem.head_dim)

    def embed(self, x: Tensor, positions: Positions | None = None, at: Chain = ()) -> Tensor:
        return self.encoding.embed(x, positions, at)

    def chained(self, at: Chain) -> Chain:
        return self.encoding.chained(at)

    def output_heads(self, num_heads: int) -> int:
        return self.encoding.output_heads(num_heads)

    def layer(self, index: int) -> Partial:
        return Partial(self.encoding.layer(index), self.dims)

    def extra_repr(self) -> str:
        return f"dims={self.dims}"


class PerHead(Encoding):
    """Different heads, different encodings: the query heads are dealt out in order.

    Each encoding sees a problem of its own heads, counted from 0. The outputs are joined in the same order.

    Args:
        encodings: one for each group of heads.
        sizes: query heads of each group; None: equal groups.
    """

    structure = "split"
    combines = True

    def __init__(self, encodings: Sequence[Encoding], sizes: Sequence[int] | None = None) -> None:
        super().__init__()
        if not encodings:
            raise ConfigError("PerHead needs at least one encoding")
        for i, encoding in enumerate(encodings):
            _is_encoding(encoding, f"encoding {i} of PerHead")
        if sizes is not None and (len(sizes) != len(encodings) or any(s < 1 for s in sizes)):
            raise ConfigError(
                f"PerHead got {len(encodings)} encodings and sizes {list(sizes)}; one positive size for each"
            )
        for i, encoding in enumerate(encodings):
            self.add_module(str(i), encoding)
        self.sizes = None if sizes is None else tuple(sizes)

    @property
    def stores(self) -> str:  # type: ignore[override]
        return "raw" if any(e.stores == "raw" for e in self) else "encoded"

    def __iter__(self) -> Iterator[Encoding]:
        return iter(cast("list[Encoding]", list(self.children())))

    def _sizes(self, heads: int) -> tuple[int, ...]:
        n = len(self._modules)
        sizes = self.sizes if self.sizes is not None else (heads // n,) * n
        if sum(sizes) != heads:
            raise ShapeError(
                f"PerHead deals out {sizes if self.sizes is not None else f'{n} equal groups'} and the problem has "
                f"{heads} query heads"
            )
        return sizes

    def _each(self, parts: Parts, apply: Any) -> Parts:
        """Apply a hook of each child to its own item, which counts its heads from 0 meanwhile."""
        out, scope = [], parts.scope
        before = [_count(item, "q") for item in parts.items]
        for i, (child, item) in enumerate(zip(self, parts.items, strict=True)):
            own = _renumber(item.enter(str(i)), (0, before[i]), _count(item, "k"))
            out.append(apply(i, child, own).leave(scope))
        more = [_count(item, "q") - n for item, n in zip(out, before, strict=True)]  # a child may make heads
        for i, item in enumerate(parts.items):
            first = leaves(item)[0]
            heads = (first.heads[0] + sum(more[:i]), first.heads[1] + sum(more))
            out[i] = _renumber(out[i], heads, first.kv_total)
        return parts.with_items(out)

    def observe(self, problem: Problem, state: State = None) -> tuple[Problem, State]:
        if isinstance(problem, Parts):
            raise CannotCompose(
                "PerHead deals out the heads of a layer, and they were dealt out already; combine encodings head by head: "
                "PerHead([Sequential(a, b), ...])"
            )
        if problem.num_heads != problem.heads[1]:
            raise CannotSplit(
                f"PerHead deals out the {problem.heads[1]} heads of a layer, and this problem holds {problem.num_heads} of them; "
                "give each process the encodings of its own heads, and leave heads= out of the problem"
            )
        start, items = 0, []
        for size in self._sizes(problem.num_heads):
            items.append(problem.select_heads(start, start + size))
            start += size
        states = list(state) if state is not None else [None] * len(items)
        after: list[State] = [None] * len(items)

        def see(i: int, child: Encoding, p: Problem) -> Problem:
            p, after[i] = observe(child, p, states[i])
            return p

        parts = self._each(Parts(tuple(items), _join_heads, problem.scope, by_head=True), see)
        return parts, None if all(s is None for s in after) else tuple(after)

    def rewrite(self, problem: Problem) -> Problem:
        if not isinstance(problem, Parts):
            raise CannotCompose("PerHead has to observe a problem before it rewrites it; call the encoding")
        return self._each(problem, lambda i, child, p: rewrite(child, p))

    def settle(self, problem: Problem) -> Problem:  # type: ignore[override]
        return self._each(cast("Parts", problem), lambda i, child, p: settle(child, p))

    def move(self, problem: Problem, tokens: Tokens) -> Problem:  # type: ignore[override]
        return self._each(cast("Parts", problem), lambda i, child, p: move(child, p, tokens))

    def embed(self, x: Tensor, positions: Positions | None = None, at: Chain = ()) -> Tensor:
        if any(child.embed(x, positions, at) is not x for child in self):
            raise CannotCompose(
                "embeddings come before there are heads; put the encoding that acts on them outside PerHead"
            )
        return x

    def output_heads(self, num_heads: int) -> int:
        return sum(e.output_heads(n) for e, n in zip(self, self._sizes(num_heads), strict=True))

    def layer(self, index: int) -> PerHead:
        return PerHead([child.layer(index) for child in self], self.sizes)

    def extra_repr(self) -> str:
        return "" if self.sizes is None else f"sizes={list(self.sizes)}"


class PerLayer(nn.ModuleList):
    """A list of encodings, one a layer; not an encoding, since a problem carries no layer index.

    ``PerLayer(enc, 12)`` gives every layer ``enc.layer(i)``: the same object where there is nothing to learn, so that
    layers share their tables, and a copy where there is.
    """

    def __init__(self, encodings: Encoding | Sequence[Encoding], num_layers: int | None = None) -> None:
        if isinstance(encodings, Encoding):
            if num_layers is None:
                raise ConfigError("PerLayer of one encoding needs num_layers")
            encodings = [encodings.layer(i) for i in range(num_layers)]
        elif num_layers is not None and num_layers != len(encodings):
            raise ConfigError(f"PerLayer got {len(encodings)} encodings for {num_layers} layers")
        for i, encoding in enumerate(encodings):
            _is_encoding(encoding, f"layer {i} of PerLayer")
        super().__init__(encodings)


def _count(problem: Problem, side: str) -> int:
    """Query or key heads of an item; problems that are not dealt out by head have the same ones."""
    if isinstance(problem, Attention):
        return problem.num_heads if side == "q" else problem.num_kv_heads
    counts = [_count(item, side) for item in problem.items]
    return sum(counts) if problem.by_head else counts[0]


def _renumber(problem: Problem, heads: tuple[int, int], kv_total: int) -> Problem:
    """Say which heads of how many an item holds: its own for a child, the layer's for everybody else."""
    if isinstance(problem, Attention):
        return problem.replace(heads=heads, kv_total=kv_total)
    first, items = heads[0], []
    for item in problem.items:
        items.append(_renumber(item, (first, heads[1]), kv_total))
        first += _count(item, "q") if problem.by_head else 0
    return problem.with_items(items)


def _join_heads(outputs: list[Tensor]) -> Tensor:
    return torch.cat(outputs, dim=1)


def _is_encoding(encoding: object, what: str) -> None:
    if not isinstance(encoding, Encoding):
        raise ConfigError(f"{what} is a {type(encoding).__name__}, not an Encoding")
