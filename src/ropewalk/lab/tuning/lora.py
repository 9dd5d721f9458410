"""LoRA: a trained correction of low rank beside frozen linear maps, for models of this library.

Models of transformers take the package peft instead, as `ropewalk extend --tune` does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.core.errors import ConfigError, check_positive


class LoRA(nn.Module):
    """y = W x + s B A x,  s = α/r;  A random, B zero: at first it is the map it stands for.

    Args:
        base: W, frozen.
        rank: r.
        alpha: α.
        dropout: on x of the correction.
        rank_scaled: s = α/√r instead.

    Shapes: A (r, in), B (out, r).

    Source: Edward J. Hu, Yelong Shen, Phillip Wallis, Zeyuan Allen-Zhu, Yuanzhi Li, Shean Wang, Lu Wang, Weizhu Chen. LoRA:
    Low-Rank Adaptation of Large Language Models. arXiv 2106.09685, 2021.
    """

    def __init__(
        self, base: nn.Linear, rank: int = 8, alpha: float = 16.0, dropout: float = 0.05, *, rank_scaled: bool = False
    ) -> None:
        super().__init__()
        check_positive(rank=rank)
        if not 0 <= dropout < 1 or not math.isfinite(alpha):
            raise ConfigError(f"dropout is a share below 1 and alpha a number; got {dropout!r} and {alpha!r}")
        self.base = base.requires_grad_(False)
        self.scale = alpha / (math.sqrt(rank) if rank_scaled else rank)
        self.dropout = dropout
        self.lora_a = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.lora_b = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """Apply both."""
        low = functional.dropout(x, self.dropout, self.training) @ self.lora_a.T
        return self.base(x) + self.scale * (low @ self.lora_b.T)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Return the linear map with the correction in its weight."""
        self.base.weight += self.scale * (self.lora_b @ self.lora_a)
        return self.base.requires_grad_(True)


def add_lora(
    model: nn.Module,
    targets: Sequence[str] = ("k", "v"),
    rank: int = 8,
    alpha: float = 16.0,
    dropout: float = 0.05,
    *,
    rank_scaled: bool = False,
) -> list[str]:
    """Freeze a model but for LoRA beside its linear maps of these names; return what is trained.

    Args:
        model: changed in place.
        targets: last parts of names of modules, such as "k" and "v" of `Decoder` and `Seq2Seq`.
        rank: of the corrections.
        alpha: see `LoRA`.
        dropout: see `LoRA`.
        rank_scaled: see `LoRA`.

    Raises:
        ConfigError: no linear map of such a name.
    """
    found = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and n.rpartition(".")[2] in targets]
    if not found:
        raise ConfigError(f"no linear map of {type(model).__name__} is called {' or '.join(map(repr, targets))}")
    model.requires_grad_(False)
    for name in found:
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        model.set_submodule(name, LoRA(linear, rank, alpha, dropout, rank_scaled=rank_scaled))
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def merge_lora(model: nn.Module) -> None:
    """Put every correction into the weight of its map; all parameters may be trained again."""
    for name in [n for n, m in model.named_modules() if isinstance(m, LoRA)]:
        module = model.get_submodule(name)
        assert isinstance(module, LoRA)
        model.set_submodule(name, module.merged())
    model.requires_grad_(True)
