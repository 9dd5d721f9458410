"""What an extension was asked to do."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from ropewalk.core.errors import ConfigError, check_positive, suggest

UNCHANGED = "unchanged"
"""The model as it is: what every method is compared with."""

SEARCHED = "longrope"
"""The method that `--search` adds."""

TUNED = ", tuned"
"""Follows the name of a method whose model was tuned."""

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Extension:
    """Everything that decides the numbers of an extension.

    Attributes:
        checkpoint: a folder with config.json and safetensors, or a .gguf file.
        to: the wanted context: "4x", or tokens ("131072").
        methods: schedules and encodings by name, with or without arguments; several in a row with ">".
        search: "longrope": look for factors on the text; None: no search.
        data: files, folders, globs or data sets; empty: the source of Python's standard library.
        text_column: of tables.
        windows: windows of text that are measured at each length.
        scored: tokens at the end of a window whose loss counts, the same ones at every length; None: a quarter of the trained
            length.
        needles: texts with a hidden sentence at each depth, at each length; 0: none.
        depths: where they are, from 0 (first) to 1 (last).
        definitions: definitions of the text's own code that are asked for at each length; 0: none.
        control: measure also what an answer costs that the text does not hold. It doubles the passes of needles and definitions.
        search_iterations: of the evolution.
        search_population: at its start; half as many children follow in each iteration.
        search_windows: windows of text that a set of factors is scored on.
        tune: steps of training with each method; 0: none.
        full: train all parameters, and not adapters (LoRA) alone.
        recipe: where the tokens of a training sequence stand; a name of `ropewalk.lab.extend.recipes.RECIPES`.
        lr: learning rate; None: 2e-4 for adapters, 2e-5 for all parameters.
        batch_size: sequences a step.
        rank: of the adapters.
        gradient_checkpointing: compute activations again in the backward pass instead of keeping them.
        checkpoint_every: steps between checkpoints.
        lm_eval: tasks of the package lm-eval, by name or as YAML files, for every method.
        choose: the method whose model is written; None: the lowest loss at the wanted length.
        force: extend a model that was extended before.
        dtype: of the model; "auto": as in the checkpoint.
        seed: of everything that is drawn.
    """

    checkpoint: str
    to: str
    methods: tuple[str, ...] = ("pi", "ntk", "yarn")
    search: str | None = None
    data: tuple[str, ...] = ()
    text_column: str = "text"
    windows: int = 16
    scored: int | None = None
    needles: int = 4
    depths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    definitions: int = 8
    control: bool = True
    search_iterations: int = 4
    search_population: int = 16
    search_windows: int = 2
    tune: int = 0
    full: bool = False
    recipe: str = "endprompt"
    lr: float | None = None
    batch_size: int = 8
    rank: int = 8
    gradient_checkpointing: bool = False
    checkpoint_every: int = 20
    lm_eval: tuple[str, ...] = ()
    choose: str | None = None
    force: bool = False
    dtype: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("methods", "data", "lm_eval"):
            object.__setattr__(self, name, tuple(str(item).strip() for item in getattr(self, name)))
        object.__setattr__(self, "depths", tuple(sorted({float(depth) for depth in self.depths})))
        self._check()

    def _check(self) -> None:
        from ropewalk.lab.extend.recipes import RECIPES

        check_positive(
            windows=self.windows,
            scored=self.scored,
            batch_size=self.batch_size,
            rank=self.rank,
            checkpoint_every=self.checkpoint_every,
            search_population=self.search_population,
            search_windows=self.search_windows,
        )
        for name in ("needles", "definitions", "tune", "seed", "search_iterations"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigError(f"{name} is a whole number, 0 or more; got {value!r}")
        if not all(0 <= depth <= 1 for depth in self.depths) or not self.depths:
            raise ConfigError(f"depths are numbers from 0 to 1; got {self.depths!r}")
        if self.lr is not None and not (math.isfinite(self.lr) and self.lr > 0):
            raise ConfigError(f"a learning rate is a positive number; got {self.lr!r}")
        if self.recipe not in RECIPES:
            raise ConfigError(
                f"no recipe is called {self.recipe!r}; there are {', '.join(RECIPES)}.{suggest(self.recipe, RECIPES)}"
            )
        if self.search not in (None, SEARCHED):
            raise ConfigError(f"--search knows {SEARCHED!r}; got {self.search!r}")
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype is one of {', '.join(DTYPES)}; got {self.dtype!r}")
        names = self.names
        if UNCHANGED in self.methods:
            raise ConfigError(f"{UNCHANGED!r} is measured with every run; name what it is compared with")
        if not self.methods and self.search is None:
            raise ConfigError("name at least one method, as in --method yarn,ntk, or --search longrope")
        if twice := sorted({name for of in (names, self.lm_eval) for name in of if of.count(name) > 1}):
            raise ConfigError(f"{', '.join(map(repr, twice))} is named twice")
        if self.choose is not None and self.choose not in names:
            raise ConfigError(
                f"--choose is one of the methods, {', '.join(names)}; got {self.choose!r}.{suggest(self.choose, names)}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """What is measured, in order: the model as it is, the methods, what the search finds, and all of them tuned."""
        plain = (UNCHANGED, *self.methods, *(() if self.search is None else (f"{self.search} (searched)",)))
        return plain + tuple(name + TUNED for name in plain) if self.tune else plain

    @property
    def looks_at_text(self) -> bool:
        """Whether text is needed besides what is measured: for a search, or to calibrate DoPE."""
        return self.search is not None or any("dope" in name.lower() for name in self.methods)

    @property
    def learning_rate(self) -> float:
        """The learning rate, with the default of the way of training."""
        return self.lr if self.lr is not None else 2e-5 if self.full else 2e-4

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON would give them back."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @property
    def digest(self) -> str:
        """Name of these settings, in a few letters."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:8]


def untuned(name: str) -> str | None:
    """Return the method that was tuned; None: it was not."""
    return name.removesuffix(TUNED) if name.endswith(TUNED) else None
