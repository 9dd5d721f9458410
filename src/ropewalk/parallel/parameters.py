"""Parameters of encodings in models whose other parameters are dealt out.

They are few and their numbers are positions: every process keeps all of them in float32, outside of whatever deals out and
casts the rest, and their gradients are summed.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import ConfigError
from ropewalk.parallel.shard import place


def parameters_of_encodings(module: nn.Module) -> set[nn.Parameter]:
    """Return what encodings learn, to be left alone by a wrapper: ``fully_shard(..., ignored_params=...)``."""
    return {p for m in module.modules() if isinstance(m, Encoding) for p in m.parameters()}


def sum_gradients(module: nn.Module, group: dist.ProcessGroup | None = None, *, mean: bool = False) -> None:
    """Sum over the processes the gradients of what encodings learn; call it after ``backward``, on all of them.

    Sums are right where processes hold different heads or tokens of one loss, means where each has a batch and a loss of
    its own. A process whose heads used a parameter not at all counts as zero.

    Raises:
        ConfigError: no process group, or parameters that were dealt out too.
    """
    size = place(group)[1]
    learned = parameters_of_encodings(module)
    for parameter in module.parameters():  # in one order everywhere
        if parameter not in learned or not parameter.requires_grad:
            continue
        if isinstance(parameter, DTensor):
            raise ConfigError(
                f"what encodings learn was dealt out with the rest, a parameter of shape {tuple(parameter.shape)} for one: leave "
                "it whole by ignored_params=parameters_of_encodings(module)"
            )
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad, group=group)
        if mean:
            parameter.grad.div_(size)
