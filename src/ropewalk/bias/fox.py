"""FoX, the forgetting transformer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid

from ropewalk.core.attention import Attention, Feature, Pair, Problem, low_rank
from ropewalk.core.encoding import Encoding, State, full_precision
from ropewalk.core.errors import NotCausal, check_positive
from ropewalk.core.running import hidden_of_keys, of_queries, running_sum


class FoX(Encoding):
    """s_ij = q_i·k_j / √d + Σ_{l=j+1..i} log f_l,  f_l = σ(w_h·x_l + b_h).

    Each token carries a forget gate a head, computed from the layer's input; what lies before it is discounted by it.
    The sum is U_i − U_j with the running sum U, which is kept in float64.

    Args:
        num_heads: query heads H.
        hidden_size: width of the layer's input x.
        init_bias: of the gates; larger forgets less.

    Shapes: x (B, S, hidden_size) on the problem; weight (H, hidden_size), bias (H,).

    Raises:
        NeedsHiddenStates: the problem carries no x.
        NotCausal: the problem is not causal.

    Source: Zhixuan Lin, Evgenii Nikishin, Xu Owen He, Aaron Courville. Forgetting Transformer: Softmax Attention with a
    Forget Gate. arXiv 2503.02130, 2025; the special case of path-integral GRAPE (arXiv 2512.07805).
    """

    def __init__(self, num_heads: int, hidden_size: int, *, init_bias: float = 0.0) -> None:
        super().__init__()
        check_positive(num_heads=num_heads, hidden_size=hidden_size)
        self.num_heads = num_heads
        self.hidden_size = hidden_size
        self.weight = nn.Parameter(torch.empty(num_heads, hidden_size))
        self.bias = nn.Parameter(torch.full((num_heads,), float(init_bias)))
        nn.init.normal_(self.weight, std=hidden_size**-0.5)

    def observe(self, problem: Attention, state: State = None) -> tuple[Problem, State]:
        if not problem.causal:
            raise NotCausal("FoX sums gates from the key forward to the query; it is defined for causal attention only")
        x = hidden_of_keys(self, problem, self.hidden_size)  # the gates are the keys'
        weight, bias = problem.head_slice(self.weight), problem.head_slice(self.bias)
        with full_precision(x):
            dtype = torch.promote_types(x.dtype, weight.dtype)
            gate = logsigmoid(linear(x.to(dtype), weight.to(dtype), bias.to(dtype))).double()
        total, after = running_sum(problem, gate.transpose(1, 2)[..., None], state)
        return problem.with_features(q={"sum": of_queries(self, problem, total)}, k={"sum": total}), after

    def rewrite(self, problem: Attention) -> Problem:
        u: Feature = problem.own("sum", centred=True)
        return problem.add(low_rank(_difference, (u,), (u,)))

    def extra_repr(self) -> str:
        return f"{self.num_heads}, hidden_size={self.hidden_size}"


def _difference(u_i: Tensor, u_j: Tensor) -> Sequence[Pair]:
    return (u_i, 1.0), (1.0, -u_j)
