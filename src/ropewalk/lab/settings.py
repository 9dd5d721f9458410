"""What a comparison was asked to do."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ropewalk.core.errors import ConfigError, check_positive, suggest
from ropewalk.lab.model import SIZES, expand_layers

PRECISIONS = ("auto", "fp32", "bf16")
SHAPE = ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "feed_forward")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that decides the numbers of a comparison. Models differ in nothing but the encoding.

    Attributes:
        encodings: names as in the catalog, with arguments and composition, or patterns of layers ("rope:3,nope:1").
        task: "text" (language modelling), or a generated task, with arguments if it takes any: "needle(depth=0.5)".
        data: files, folders, globs or data sets; empty: the source of Python's standard library.
        text_column: of tables.
        tokenizer: path of a tokenizer.json; None: bytes.
        train_length: tokens of a training sequence, or the task's own size; None: a default of the task.
        eval_lengths: lengths that are measured; empty: once, twice and four times train_length, or the task's own.
        size: of the model, by name; ``shape`` has the numbers that differ from it.
        shape: hidden_size, num_layers, num_heads, num_kv_heads, head_dim, feed_forward.
        qk_norm: RMSNorm on q and k.
        encoder: bidirectional attention and a class a sequence, instead of a decoder.
        tokens: budget of training, in tokens, the same for every encoding.
        batch_size: sequences a step.
        lr: peak learning rate; it warms up over ``warmup`` of the steps and falls as a cosine to a tenth.
        lr_sweep: learning rates to try for each encoding on the first seed; empty: no sweep.
        weight_decay: of matrices; never of encodings or norms.
        seeds: how many.
        first_seed: counted from here.
        windows: sequences that are measured at each length.
        precision: "fp32", "bf16", or "auto": bf16 on a GPU that has it.
        checkpoint_every: steps between checkpoints.
    """

    encodings: tuple[str, ...] = ("rope", "alibi", "nope")
    task: str = "text"
    data: tuple[str, ...] = ()
    text_column: str = "text"
    tokenizer: str | None = None
    train_length: int | None = None
    eval_lengths: tuple[int, ...] = ()
    size: str = "tiny"
    shape: tuple[tuple[str, int], ...] = ()
    qk_norm: bool = False
    encoder: bool = False
    tokens: int = 500_000
    batch_size: int = 8
    lr: float = 3e-3
    lr_sweep: tuple[float, ...] = ()
    warmup: float = 0.05
    weight_decay: float = 0.1
    seeds: int = 2
    first_seed: int = 0
    windows: int = 128
    precision: str = "auto"
    checkpoint_every: int = 50

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("encodings", "data"):
            put(self, name, tuple(str(item) for item in getattr(self, name)))
        put(self, "eval_lengths", tuple(sorted(set(self.eval_lengths))))
        put(self, "lr_sweep", tuple(sorted(set(self.lr_sweep))))
        shape = self.shape.items() if isinstance(self.shape, Mapping) else self.shape
        put(self, "shape", tuple(sorted((str(name), value) for name, value in shape)))
        self._check()

    def _check(self) -> None:
        for name, kind, what in (
            ("task", str, "a name"),
            ("text_column", str, "a name"),
            ("tokenizer", str | None, "a path"),
            ("qk_norm", bool, "true or false"),
            ("encoder", bool, "true or false"),
            ("warmup", float | int, "a number"),
            ("weight_decay", float | int, "a number"),
        ):
            if not isinstance(value := getattr(self, name), kind):
                raise ConfigError(f"{name} is {what}; got {value!r}")
        for name, _ in self.shape:
            if name not in SHAPE:
                raise ConfigError(
                    f"no number of a model is called {name!r}; there are {', '.join(SHAPE)}.{suggest(name, SHAPE)}"
                )
        if isinstance(self.first_seed, bool) or not isinstance(self.first_seed, int) or self.first_seed < 0:
            raise ConfigError(f"first_seed is a whole number, 0 or more; got {self.first_seed!r}")
        check_positive(
            train_length=self.train_length,
            tokens=self.tokens,
            batch_size=self.batch_size,
            seeds=self.seeds,
            windows=self.windows,
            checkpoint_every=self.checkpoint_every,
            **dict(self.shape),
        )
        for length in self.eval_lengths:
            check_positive(eval_lengths=length)
        for lr in (self.lr, *self.lr_sweep):
            if not (isinstance(lr, float | int) and math.isfinite(lr) and lr > 0):
                raise ConfigError(f"a learning rate is a positive number; got {lr!r}")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"warmup is a fraction of the steps, in [0, 1); got {self.warmup!r}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ConfigError(f"weight_decay is a number, 0 or more; got {self.weight_decay!r}")
        if self.size not in SIZES:
            raise ConfigError(
                f"no size is called {self.size!r}; there are {', '.join(SIZES)}.{suggest(self.size, SIZES)}"
            )
        if self.precision not in PRECISIONS:
            raise ConfigError(f"precision is one of {', '.join(PRECISIONS)}; got {self.precision!r}")
        if not self.encodings:
            raise ConfigError("name at least one encoding, as `ropewalk list` prints them")
        layers = [expand_layers(name) for name in self.encodings]  # unknown names fail here
        for i, one in enumerate(layers):
            if one in layers[:i]:
                raise ConfigError(f"{self.encodings[i]!r} is named twice")
        if self.task != "text" and (self.data or self.tokenizer):
            raise ConfigError(
                f"the task {self.task!r} makes its own sequences; --data and --tokenizer are for --task text"
            )

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON would give them back."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """Read what `as_dict` wrote, or a table of a configuration file."""
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                raise ConfigError(
                    f"no setting is called {name!r}; there are {', '.join(sorted(known))}.{suggest(name, known)}"
                )
        shape = values.get("shape", ())
        if not isinstance(shape, Mapping | list | tuple):
            raise ConfigError(f"shape is a table of numbers, {', '.join(SHAPE)}; got {shape!r}")
        given: dict[str, Any] = {
            **values,
            "shape": tuple(shape.items()) if isinstance(shape, Mapping) else tuple(map(tuple, shape)),
        }
        for name in ("encodings", "data", "eval_lengths", "lr_sweep"):
            if name in given:
                given[name] = tuple(several(given[name]))
        try:
            return cls(**given)
        except TypeError as problem:
            raise ConfigError(f"a setting has the wrong type: {problem}") from None

    @property
    def digest(self) -> str:
        """Name of these settings, in a few letters."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:8]


def several(value: Any) -> list[Any]:
    """Return the items of a list, or the one thing that is none."""
    return list(value) if isinstance(value, list | tuple) else [value]


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Say in which settings two comparisons differ."""
    names = sorted({*ours, *theirs})
    return [f"{n}: {theirs.get(n)!r} there, {ours.get(n)!r} now" for n in names if ours.get(n) != theirs.get(n)]
