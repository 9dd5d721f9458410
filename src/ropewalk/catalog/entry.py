"""What the catalog says of one system: plain data, and how it becomes an encoding."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, get_args

from ropewalk.core.errors import ConfigError, suggest

if TYPE_CHECKING:
    from ropewalk.core.encoding import Encoding

# What a caller may say about the model without knowing the encoding; a factory gets the ones it takes.
SHAPE_KEYWORDS = ("head_dim", "num_heads", "num_kv_heads", "hidden_size", "max_length")

Kind = Literal["rotary", "bias", "embedding", "coordinates", "operator"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Traits:
    """What an encoding claims. The contract suite checks each claim numerically.

    Attributes:
        relative: the output depends on coordinate differences only; shifting all positions changes nothing.
        norm_preserving: ``||q'|| = ||q||`` and ``||k'|| = ||k||``.
        content_dependent: what is done to a token depends on x, q, k or v, not on coordinates alone.
        streamable: decodes with a key-value cache, equal to the full pass.
        linear_attention: a pure map of q and k, usable in linear attention.
        causal: whether the problem may, must or must not be causal.
        domain: where tokens live: ``sequence``, ``views`` (patches seen by posed cameras), ``grid``, ...
        max_position: largest position it is defined for at the record's defaults; None: no bound.
        real_positions: positions may be real numbers.
        training: whether a model must be trained with it, or a trained one can take it as it is.
        reduces_to: special cases, as sentences such as "rope when local == shift".
    """

    relative: bool
    norm_preserving: bool
    content_dependent: bool
    streamable: bool
    linear_attention: bool
    causal: Literal["any", "only", "never"] = "any"
    domain: str = "sequence"
    max_position: int | None = None
    real_positions: bool = True
    training: Literal["scratch", "drop-in"] = "scratch"
    reduces_to: tuple[str, ...] = ()


# The yes-or-no claims, which `ropewalk list --trait` filters by.
TRAITS = (
    "relative",
    "norm_preserving",
    "content_dependent",
    "streamable",
    "linear_attention",
    "real_positions",
)


@dataclass(frozen=True, slots=True)
class Record:
    """One system of the catalog.

    Attributes:
        slug: its name in code, unique in the catalog.
        name: its name in print.
        summary: one line.
        paper: title of the paper; ``authors``, ``arxiv`` and ``year`` belong to it.
        kind: ``rotary``, ``bias``, ``embedding``, ``coordinates`` or ``operator``.
        traits: what it claims.
        factory: where it is made, as ``"package.module:name"``.
        defaults: constructor arguments for which `build` uses these values when the caller gives none.
        needs: what a problem must carry besides q, k, v: ``x`` (the layer's input), ``cameras``, ...
        sheet: number of the sheet it was built from, for systems of this library.
        evidence: where `ropewalk reproduce` writes what it measures of it.
    """

    slug: str
    name: str
    summary: str
    paper: str
    authors: str
    arxiv: str | None
    year: int
    kind: Kind
    traits: Traits
    factory: str
    defaults: Mapping[str, Any] = field(default_factory=dict, hash=False)
    needs: tuple[str, ...] = ()
    sheet: int | None = None
    evidence: str | None = None

    def __post_init__(self) -> None:
        if self.slug != normalise(self.slug) or not self.slug.isidentifier():
            raise ConfigError(f"slug {self.slug!r}: expected lower-case words joined by '_'.")
        if self.kind not in KINDS:
            raise ConfigError(f"{self.slug}: kind {self.kind!r} is none of {', '.join(KINDS)}.")
        if not re.fullmatch(r"[\w.]+:\w+", self.factory):
            raise ConfigError(f"{self.slug}: factory {self.factory!r} is not of the form 'package.module:name'.")

    @property
    def url(self) -> str | None:
        """Address of the paper."""
        return f"https://arxiv.org/abs/{self.arxiv}" if self.arxiv else None

    def load(self) -> Callable[..., Encoding]:
        """Import the factory (and with it torch)."""
        module, _, name = self.factory.partition(":")
        factory: Callable[..., Encoding] = getattr(importlib.import_module(module), name)
        return factory

    def build(self, **kwargs: Any) -> Encoding:
        """Make the encoding. `ropewalk.catalog.build` says how keywords are treated."""
        factory = self.load()
        parameters = inspect.signature(factory).parameters.values()
        takes = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        forwards = any(p.kind is p.VAR_KEYWORD for p in parameters)
        given = {**self.defaults, **kwargs}
        given = {name: value for name, value in given.items() if name in takes or name not in SHAPE_KEYWORDS}
        for name in given:
            if name not in takes and not forwards:
                raise ConfigError(
                    f"{self.slug} takes no {name!r}; it takes {', '.join(sorted(takes)) or 'nothing'}."
                    f"{suggest(name, takes)}"
                )
        missing = [p.name for p in parameters if p.name in takes and p.default is p.empty and p.name not in given]
        if missing:
            raise ConfigError(f"{self.slug} needs {', '.join(missing)}.")
        return factory(**given)

    def doc(self) -> str:
        """Docstring of the factory, read from its source: nothing is imported."""
        module, _, name = self.factory.partition(":")
        for node in ast.parse(_source(module)).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
                if text := ast.get_docstring(node):
                    return text
                raise ConfigError(f"{self.slug}: {self.factory} has no docstring.")
        raise ConfigError(f"{self.slug}: {module} does not define {name}.")

    def as_dict(self) -> dict[str, Any]:
        """The record as JSON would give it back: dicts, lists, strings, numbers."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain


def normalise(name: str) -> str:
    """``"Transformer-XL"`` -> ``"transformer_xl"``."""
    return re.sub(r"[-\s]+", "_", name.strip().lower())


def _source(module: str) -> str:
    """Source of a module that is found without importing it or its packages."""
    top, *rest = module.split(".")
    spec: ModuleSpec | None = find_spec(top)
    name = top
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            break
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, spec.submodule_search_locations)
    read = getattr(spec.loader, "get_source", None) if spec is not None and name == module else None
    text = read(module) if read is not None else None
    if text is None:
        raise ConfigError(f"the source of {module} cannot be read.")
    return str(text)
