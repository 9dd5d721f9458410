"""Where a trial runs: device, precision, and how many processes share a batch."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from ropewalk.core.errors import ConfigError
from ropewalk.lab.batch import Batch
from ropewalk.lab.model import Decoder

Forward = Callable[[Batch], Tensor]


class Place(ABC):
    """What `trial.run` asks of the machine."""

    device: torch.device
    processes: int = 1
    is_main: bool = True
    low: torch.dtype | None = None

    @abstractmethod
    def prepare(self, model: Decoder, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Bring model and optimiser to the device, wrapped if need be."""

    @abstractmethod
    def share(self, batch: Batch) -> Batch:
        """Return the rows of a batch that this process works on, on its device."""

    @abstractmethod
    def backward(self, loss: Tensor) -> None:
        """Compute gradients."""

    @abstractmethod
    def clip(self, module: nn.Module, norm: float) -> None:
        """Clip the norm of all gradients."""

    @abstractmethod
    def mean(self, value: Tensor) -> Tensor:
        """Average a number over the processes."""

    @abstractmethod
    def unwrap(self, module: nn.Module) -> Decoder:
        """Return the model inside."""

    @abstractmethod
    def gather(self, module: nn.Module) -> Decoder:
        """Return the whole model, for the main process to measure; every process has to call this."""

    @abstractmethod
    def state(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """Return all trained numbers and the optimiser's, whole, by name."""

    @abstractmethod
    def restore(self, module: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Tensor]) -> None:
        """Take them back."""

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass."""
        return contextlib.nullcontext() if self.low is None else torch.autocast(self.device.type, self.low)

    def forward(self, model: Decoder) -> Forward:
        """Return a function from a batch to logits, for measuring."""

        def call(batch: Batch) -> Tensor:
            batch = batch.to(self.device)
            with self.autocast():
                return model(batch.tokens, batch.where())

        return call


class Alone(Place):
    """One process on one device.

    Args:
        device: None: a GPU where there is one, else the CPU.
        precision: "fp32", "bf16", or "auto": bf16 on a GPU that has it.
    """

    def __init__(self, device: str | None = "cpu", precision: str = "fp32") -> None:
        self.device = pick_device(device)
        self.low = pick_precision(precision, self.device)

    def prepare(self, model: Decoder, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        return model.to(self.device), optimizer  # parameters keep their identity

    def share(self, batch: Batch) -> Batch:
        return batch.to(self.device)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def clip(self, module: nn.Module, norm: float) -> None:
        nn.utils.clip_grad_norm_(module.parameters(), norm)

    def mean(self, value: Tensor) -> Tensor:
        return value

    def unwrap(self, module: nn.Module) -> Decoder:
        assert isinstance(module, Decoder)
        return module

    def gather(self, module: nn.Module) -> Decoder:
        return self.unwrap(module)

    def state(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        return dict(named_state(self.unwrap(module), optimizer))

    def restore(self, module: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Tensor]) -> None:
        take_back(self.unwrap(module), optimizer, state)


def named_state(model: Decoder, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Yield every trained number and the optimiser's, by name."""
    for name, parameter in model.named_parameters():
        yield f"model/{name}", parameter.detach().cpu()
        for key, value in optimizer.state.get(parameter, {}).items():
            yield f"optimizer/{key}/{name}", value.detach().cpu()
    for name, buffer in model.state_dict().items():
        if name not in dict(model.named_parameters(remove_duplicate=False)):
            yield f"buffer/{name}", buffer.detach().cpu()


@torch.no_grad()
def take_back(model: Decoder, optimizer: torch.optim.Optimizer, state: dict[str, Tensor]) -> None:
    """Put trained numbers and the optimiser's back where they were."""
    parameters = dict(model.named_parameters())
    buffers = dict(model.named_buffers())
    for label, value in state.items():
        what, _, name = label.partition("/")
        if what == "model":
            parameters[name].copy_(value)
        elif what == "buffer":
            buffers[name].copy_(value)
        else:
            key, _, name = name.partition("/")
            parameter = parameters[name]
            home = torch.device("cpu") if key == "step" and parameter.device.type == "cpu" else parameter.device
            optimizer.state[parameter][key] = value.to(home)


def pick_device(device: str | None) -> torch.device:
    """Return the device asked for, or the best there is."""
    if device in (None, "auto"):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(str(device))
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as problem:
        raise ConfigError(f"device {device!r} cannot be used here: {str(problem).splitlines()[0]}") from None
    if chosen.type == "mps":
        raise ConfigError("MPS has no float64, in which coordinates live; use --device cpu")
    return chosen


def pick_precision(precision: str, device: torch.device) -> torch.dtype | None:
    """Return the dtype of autocast, or None for float32."""
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    if precision not in ("fp32", "bf16"):
        raise ConfigError(f"precision is auto, fp32 or bf16; got {precision!r}")
    return torch.bfloat16 if precision == "bf16" else None
