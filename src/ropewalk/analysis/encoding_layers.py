"""The encodings of the layers of a model, and putting others in their place for a while."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType

from torch import Tensor, nn

from ropewalk.core.attention import Attention, Problem
from ropewalk.core.encoding import Encoding, State, observe
from ropewalk.core.errors import ConfigError
from ropewalk.core.positions import Chain, Positions


def encoding_slots(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return where a model holds the encodings of its layers, in order: modules and the names of their attributes.

    An encoding inside another one is part of it. One that several layers share is found once for each of them.
    """
    return [
        (module, name)
        for module in model.modules()
        if not isinstance(module, Encoding)
        for name, child in module._modules.items()
        if isinstance(child, Encoding)
    ]


class AroundEncoding(Encoding):
    """Stands where another encoding stood and lets it do its part; a subclass writes `rewrite`.

    Args:
        encoding: the one that stood there.
    """

    def __init__(self, encoding: Encoding) -> None:
        super().__init__()
        self.encoding = encoding

    def observe(self, problem: Attention, state: State = None) -> tuple[Problem, State]:
        return observe(self.encoding, problem, state)

    def embed(self, x: Tensor, positions: Positions | None = None, at: Chain = ()) -> Tensor:
        return self.encoding.embed(x, positions, at)

    def chained(self, at: Chain) -> Chain:
        return self.encoding.chained(at)

    def output_heads(self, num_heads: int) -> int:
        return self.encoding.output_heads(num_heads)


class ReplacedEncodings:
    """Puts other encodings in the place of those of some layers, as a context; after it they are what they were.

    Args:
        model: holds one encoding for each attention layer.
        layers: numbers of layers, counted from 0.
        make: the encoding to use, made of the one that is there.
    """

    def __init__(self, model: nn.Module, layers: Sequence[int], make: Callable[[Encoding], Encoding]) -> None:
        slots = encoding_slots(model)
        if not slots:
            raise ConfigError(f"{type(model).__name__} holds no encoding of ropewalk, so there is nothing to look at")
        wrong = [i for i in layers if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < len(slots)]
        if wrong or len(set(layers)) != len(layers):
            raise ConfigError(f"layers {list(layers)} of {len(slots)}: each once, counted from 0")
        self._slots = [slots[i] for i in layers]
        self._make = make
        self._before: list[Encoding] = []

    def __enter__(self) -> ReplacedEncodings:
        if self._before:
            raise ConfigError("this context was entered already; make another one")
        found = [module._modules[name] for module, name in self._slots]
        made = [self._make(encoding) for encoding in found if isinstance(encoding, Encoding)]
        for (module, name), encoding in zip(self._slots, made, strict=True):
            self._before.append(module._modules[name])  # type: ignore[arg-type]
            module._modules[name] = encoding
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for (module, name), encoding in zip(self._slots, self._before, strict=True):
            module._modules[name] = encoding
        self._before = []
