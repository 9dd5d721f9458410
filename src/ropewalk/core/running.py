"""Running sums over the tokens of a sequence: forget gates, phases that tokens add to.

What is summed belongs to the keys, and a query has the sum of its own key. Sums are float64, or decoding drifts away
from the full pass; padding adds nothing. Packed documents are not started anew: where only differences of sums between
a query and a key enter, what lies before both makes no difference.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ropewalk.core import rotation
from ropewalk.core.attention import Attention, Problem
from ropewalk.core.encoding import Encoding, State, table_dtype
from ropewalk.core.errors import NeedsHiddenStates, NotCausal, ShapeError


def hidden_of_keys(encoding: Encoding, problem: Attention, hidden_size: int) -> Tensor:
    """Return the layer's input of every key, (B, K, hidden), checked."""
    x, keys = problem.hidden_kv, problem.k.shape[2]
    if x.shape[-1] != hidden_size:
        raise ShapeError(f"{type(encoding).__name__} was made for hidden_size {hidden_size} and x has {x.shape[-1]}")
    if x.shape[1] != keys:
        raise NeedsHiddenStates(
            f"{type(encoding).__name__} reads the input of each key: {keys} keys and x for {x.shape[1]} of them; give "
            "x_kv= for all keys"
        )
    return x


def of_queries(encoding: Encoding, problem: Attention, of_keys: Tensor) -> Tensor:
    """Return what each query has of its own key, out of what every key has: (B, h, K, r) → (B, h, Q, r)."""
    where = problem.where
    if where.is_self:
        return of_keys
    if not problem.causal and where.order is None:
        raise NotCausal(
            f"{type(encoding).__name__} gives each query what its own key has, and which key that is is not said; give "
            "positions with order=, or a causal problem"
        )
    index = where.index()[:, None, :, None].expand(of_keys.shape[0], of_keys.shape[1], -1, of_keys.shape[3])
    return of_keys.gather(2, index)


def running_sum(problem: Attention, steps: Tensor, state: State) -> tuple[Tensor, State]:
    """Sum what each key adds, itself included.

    Args:
        problem: of the new tokens.
        steps: (B, h, K, r) float64.
        state: (B, h, r), the sum before the first of them; None: zero.

    Returns:
        (B, h, K, r) sums, and the state after the last.
    """
    valid = problem.where.key.columns.get("valid")
    if valid is not None:
        steps = steps.masked_fill(~valid[:, None, :, None], 0.0)
    total = steps.cumsum(2)
    if state is not None:
        total = total + state[:, :, None]
    return total, total[:, :, -1] if total.shape[2] else state


class RunningRotary(Encoding):
    """Turns pairs of channels of q and k by running sums of what tokens add.

    Write ``steps(problem) -> (B, 1 or H_kv, K, r)`` in float64, what each key adds to its sums, and, where an angle is
    more than a sum, ``angles(sums) -> (B, h, S, P)``.

    Args:
        pairing: "interleaved" (channels 2i, 2i+1) or "half" (i, i+P).
    """

    exclusive: ClassVar[bool] = False
    """Whether the sum at a token is of the tokens before it only."""

    def __init__(self, pairing: rotation.Pairing) -> None:
        super().__init__()
        self.pairing: rotation.Pairing = rotation.check_pairing(pairing)

    def steps(self, problem: Attention) -> Tensor:
        """Return what each key adds."""
        raise NotImplementedError

    def angles(self, sums: Tensor) -> Tensor:
        """Return the angle of each pair from the sums."""
        return sums

    def observe(self, problem: Attention, state: State = None) -> tuple[Problem, State]:
        steps = self.steps(problem)
        total, after = running_sum(problem, steps, state)
        if self.exclusive:
            total = total - steps
        own = _per_query_head(of_queries(self, problem, total), problem)
        return problem.with_features(q={"sums": own}, k={"sums": total}), after

    def rewrite(self, problem: Attention) -> Problem:
        p, name, dtype = problem, problem.own("sums").name, table_dtype(problem.q)
        at_k = rotation.tables(self.angles(p.kf[name]), dtype, pairing=self.pairing)
        if p.where.is_self:
            at_q = _per_query_head(at_k[0], p), _per_query_head(at_k[1], p)
        else:
            at_q = rotation.tables(self.angles(p.qf[name]), dtype, pairing=self.pairing)
        p = p.map_queries(lambda q: rotation.rotate(q, *at_q, self.pairing))
        p = p.map_keys(lambda k: rotation.rotate(k, *at_k, self.pairing))
        # The sums are in q and k now: a cache of encoded keys need not keep them.
        return p.replace(
            qf={n: t for n, t in p.qf.items() if n != name}, kf={n: t for n, t in p.kf.items() if n != name}
        )


def _per_query_head(x: Tensor, p: Attention) -> Tensor:
    return x if x.shape[1] in (1, p.num_heads) else x.repeat_interleave(p.num_heads // x.shape[1], 1)
