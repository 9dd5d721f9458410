"""Methods by name, with the arguments that follow from the checkpoint and the wanted length."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ropewalk.catalog.entry import normalise
from ropewalk.catalog.expression import Named, parse, read_call, read_value
from ropewalk.core.errors import ConfigError, RopewalkError
from ropewalk.frequencies import Spectrum, planes_beyond
from ropewalk.integrations.transformers.apply import apply
from ropewalk.integrations.transformers.bridge import bridge_of
from ropewalk.integrations.transformers.changes import SCHEDULES, SYNONYMS, TRAINED
from ropewalk.integrations.transformers.dope import dope_select
from ropewalk.lab.extend.checkpoint import Checkpoint
from ropewalk.lab.extend.copies import BUCKETS, Copies, copies_of
from ropewalk.lab.extend.settings import UNCHANGED

RISE = 50
"""Times the base of the model, where a method has a larger base and none is given: 10,000 became 500,000 in the paper."""

ALONE = {
    "dope": ("ntk", "dope"),
    "psc": ("pi", "psc"),
    "log_length_scale": ("rope + log_length_scale",),
    "attention_temperature": ("rope + log_length_scale",),
}
"""What a name means where nothing else is named: these go on top of other frequencies, in their papers too."""

TUNED_FIRST = ("psc", "harpe")
"""Methods that are nothing without training: one changes nothing at first, the other what every head has learned."""


@dataclass(frozen=True)
class Method:
    """What is done to the model, one change after the other.

    Attributes:
        name: as the user gave it.
        changes: texts for `hf.apply`, with the arguments that were filled in; or a spectrum that was searched.
    """

    name: str
    changes: tuple[str | Spectrum, ...]

    @property
    def for_tuning(self) -> bool:
        """Whether it is nothing without training."""
        return any(isinstance(c, str) and c.partition("(")[0] in TUNED_FIRST for c in self.changes)

    @property
    def calibrated(self) -> bool:
        """Whether it looks at text before it is applied."""
        return any(_uncalibrated(change) for change in self.changes)

    def apply(self, model: Any, texts: Tensor | None = None) -> Any:
        """Change a model in place, and return it, or copies of it.

        Args:
            model: of transformers.
            texts: (N, S) to calibrate on, for DoPE without heads.
        """
        for change in self.changes:
            if change == BUCKETS:
                return copies_of(model)
            if texts is not None and _uncalibrated(change):
                mode = read_call(str(change))[2].get("mode", "'zero'")
                change = dope_select(model, texts).encoding(read_value(mode))
            apply(model, change)
        return model

    def __str__(self) -> str:
        return " > ".join(c if isinstance(c, str) else c.origin or "frequencies" for c in self.changes) or UNCHANGED


def method(name: str, checkpoint: Checkpoint, length: int) -> Method:
    """Read a method, and try it on the model without its weights.

    What a method needs and is not given follows from the checkpoint: ``factor`` is the wanted over the trained length,
    ``original`` and ``train_length`` are the trained one, ``length`` is the wanted one. `arguments_for` has the rest.

    Args:
        name: a schedule, an encoding, or several in a row with ">": "ntk > clipped".
        checkpoint: what it is for.
        length: the wanted context.

    Raises:
        ConfigError: arguments that do not fit; a model that cannot have it.
        UnknownNameError: a name that is neither a schedule nor in the catalog.
    """
    parts = _chain(name)
    made = Method(name, tuple(_completed(part, checkpoint, length) for part in parts))
    if BUCKETS in made.changes and len(made.changes) > 1:
        raise ConfigError(f"{BUCKETS} is no change of a model but several copies of it, and goes with nothing else")
    try:
        made.apply(checkpoint.skeleton())
    except RopewalkError as problem:
        raise type(problem)(f"method {name!r} ({made}): {problem}") from None
    return made


def _chain(name: str) -> list[str]:
    """Return the changes that a method names, in order."""
    parts = [part.strip() for part in name.split(">")]
    head, opened, arguments = parts[0].partition("(")
    usual = ALONE.get(normalise(head)) if len(parts) == 1 else None
    if usual is None:
        return parts
    own = usual[-1] + opened + arguments  # what is said in brackets is of the last
    return [*usual[:-1], own if opened and "+" not in usual[-1] else usual[-1]]


def _uncalibrated(change: object) -> bool:
    """Whether a change is DoPE without the heads that it is to denoise."""
    return isinstance(change, str) and change.partition("(")[0] == "dope" and "heads=" not in change


def is_static(model: Any) -> bool:
    """Whether what was applied to a model is frequencies alone, which plain transformers can load."""
    if isinstance(model, Copies):
        return False
    bridge = bridge_of(model)
    return bridge is None or bridge.encodings is None


def arguments_for(name: str, takes: Mapping[str, Any], checkpoint: Checkpoint, length: int) -> dict[str, Any]:
    """Return the arguments of a method that follow from the checkpoint and the wanted length.

    Args:
        name: of the schedule or the encoding.
        takes: its parameters.
        checkpoint: what it is for.
        length: the wanted context.
    """
    trained = checkpoint.trained
    chosen: dict[str, Any] = {"length": length, "factor": _plain(length / trained), **dict.fromkeys(TRAINED, trained)}
    if name == "dynamic_ntk":  # its factor is another number: how fast it grows with the length
        del chosen["factor"]
    if name in ("abf", "entropy_abf"):
        chosen["base"] = RISE * _base(checkpoint)
    if name == "harpe":
        chosen |= {"lowest": _base(checkpoint), "highest": RISE * _base(checkpoint)}
    if name in ("clipped", "clipped_cope"):
        chosen["planes"] = planes_beyond(checkpoint.spectrum, trained)
    if name == "string_shifted":  # a third of the trained context; 128 of 131,072 tokens and more in the paper
        shift = trained // 3
        chosen |= {"shift": shift, "local": max(1, min(128, shift // 8))}
    if name == "rerope":  # distances stop growing at the window, so that none is beyond half of the trained ones
        chosen["window"] = trained // 2
    if name == "self_extend":  # the largest distance, (length − W) / G + W, is a trained one
        near = trained // 4
        chosen |= {"window": near, "group": math.ceil((length - near) / (trained - near))}
    if name == "hirope":  # functions are read from the text; 512 of 4,096 tokens and more in the paper
        chosen["window"] = max(1, min(512, trained // 4))
    return {key: value for key, value in chosen.items() if key in takes}


def _completed(text: str, checkpoint: Checkpoint, length: int) -> str:
    """Write a method with all of its arguments; a sum of encodings is left as it is."""
    if not text:
        raise ConfigError("a method is a name, as in yarn, or several in a row, as in 'ntk > clipped'")
    try:
        name, positional, keywords = read_call(text)
    except ConfigError:
        return text  # a sum: whoever applies it says what is wrong with it
    name = SYNONYMS.get(normalise(name), normalise(name))
    if name == BUCKETS:
        return BUCKETS
    if positional:
        return text
    if name in SCHEDULES and not (name == "longrope" and "factors" not in keywords):
        takes: Mapping[str, Any] = inspect.signature(SCHEDULES[name]).parameters
    else:
        expression = parse(text)
        if not isinstance(expression, Named):
            return text
        name, takes = expression.record.slug, inspect.signature(expression.record.load()).parameters
    given = {key: repr(value) for key, value in arguments_for(name, takes, checkpoint, length).items()}
    written = ", ".join(f"{key}={value}" for key, value in {**given, **keywords}.items())
    return f"{name}({written})" if written else name


def _base(checkpoint: Checkpoint) -> float:
    return _plain((checkpoint.rope.get("full_attention") or next(iter(checkpoint.rope.values()))).base)


def _plain(number: float) -> float:
    return int(number) if number == int(number) else number
