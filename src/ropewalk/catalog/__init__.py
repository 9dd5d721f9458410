"""The catalog: one record per published system, as plain data.

A record names its factory by a dotted path and says what it claims, so listing and showing need no torch. All
that is done "for every encoding" (contract tests, the command line, comparisons) iterates over `catalog()`:

    for record in rw.catalog():
        print(record.slug, record.paper)
    encoding = rw.build("alibi", num_heads=8)

Other packages add records through the entry-point group ``ropewalk.encodings``: an entry point that loads to
a `Record` or to several. Loading it imports that package, so a module of records should import no torch.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Mapping
from importlib import metadata
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ropewalk.catalog import bias, diffusion, embedding, generation, multimodal, operator, pictures, rotary, signals
from ropewalk.catalog.entry import KINDS, SHAPE_KEYWORDS, TRAITS, Record, Traits, normalise
from ropewalk.catalog.expression import Named, parse
from ropewalk.catalog.names import SHARED_NAMES, Candidate, namesakes, shared
from ropewalk.core.errors import ConfigError, UnknownNameError, suggest

if TYPE_CHECKING:
    from ropewalk.core.encoding import Encoding

__all__ = [
    "ENTRY_POINTS",
    "KINDS",
    "SHAPE_KEYWORDS",
    "SHARED_NAMES",
    "TRAITS",
    "Candidate",
    "CatalogWarning",
    "Record",
    "Traits",
    "build",
    "catalog",
    "namesakes",
    "normalise",
    "parse",
    "record",
    "shared",
]

ENTRY_POINTS = "ropewalk.encodings"

RECORDS: tuple[Record, ...] = (
    *rotary.RECORDS,
    *bias.RECORDS,
    *embedding.RECORDS,
    *operator.RECORDS,
    *multimodal.RECORDS,
    *signals.RECORDS,
    *pictures.RECORDS,
    *generation.RECORDS,
    *diffusion.RECORDS,
)

_OWN = {entry.slug: entry for entry in RECORDS}


class CatalogWarning(UserWarning):
    """A third-party entry point was left out of the catalog; the message names it and says why."""


def catalog() -> tuple[Record, ...]:
    """Every record: those of this library, then those of other packages."""
    return RECORDS + _third_party()


def record(name: str) -> Record:
    """Return the record of that name; case does not matter, and '-' and ' ' are '_'.

    Raises:
        UnknownNameError: no record has that name, or several published methods do.
    """
    key = normalise(name)
    # Our own first: a package that derives its records from one of ours asks while it is being loaded.
    if entry := _OWN.get(key) or {other.slug: other for other in _third_party()}.get(key):
        return entry
    if candidates := shared(key):
        raise UnknownNameError(f"{name!r} may mean several methods: {'; '.join(map(str, candidates))}.")
    known = [entry.slug for entry in catalog()]
    family = [slug for slug in known if slug.startswith(f"{key}_")]
    hint = f" There are {', '.join(family)}." if family else suggest(key, [*known, *SHARED_NAMES])
    raise UnknownNameError(f"no encoding is called {name!r}.{hint} `ropewalk list` prints every name.")


def build(name: str, **kwargs: Any) -> Encoding:
    """Make the encoding of that name, with arguments and composition in the name if you like.

    Of the keywords that describe a model (`SHAPE_KEYWORDS`) a factory gets those it takes, so that one call
    fits every encoding. Every other keyword must be one of its parameters. What is missing comes from the
    record's defaults.

        rw.build("t5", head_dim=64, num_heads=8)  # T5 takes num_heads and knows nothing of head_dim
        rw.build("rope(base=500000) + alibi", head_dim=64, num_heads=8)

    Raises:
        UnknownNameError: see `record`.
        ConfigError: a keyword the encoding does not take, or one it needs and nobody gave.
    """
    expression = parse(name)
    other = sorted(set(kwargs) - set(SHAPE_KEYWORDS))
    if other and not isinstance(expression, Named):
        raise ConfigError(
            f"{', '.join(other)}: whose? In {name!r} several encodings are named; write it beside its own"
        )
    return expression.build(**kwargs)


@functools.cache
def _third_party() -> tuple[Record, ...]:
    found: dict[str, Record] = {}
    for point in metadata.entry_points(group=ENTRY_POINTS):
        try:
            loaded = point.load()
            for entry in (loaded,) if isinstance(loaded, Record) else tuple(loaded):
                found[entry.slug] = _admit(entry, found)
        except Exception as problem:  # whatever another package does wrong must not take the catalog down
            warnings.warn(
                f"entry point {point.name!r} ({point.value}) of group {ENTRY_POINTS!r} is left out:"
                f" {type(problem).__name__}: {problem}",
                CatalogWarning,
                stacklevel=2,
            )
    return tuple(found.values())


def _admit(entry: object, found: Mapping[str, Record]) -> Record:
    if not isinstance(entry, Record):
        raise TypeError(f"expected a ropewalk.catalog.Record, got {type(entry).__name__}")
    if entry.slug in found or entry.slug in _OWN:
        raise ConfigError(f"the slug {entry.slug!r} is taken")
    if shared(entry.slug) and entry.slug not in {candidate.slug for candidate in shared(entry.slug)}:
        raise ConfigError(f"the name {entry.slug!r} is shared by several published methods")
    entry.as_dict()  # fails here, with a name to blame, rather than in `ropewalk list --json`
    return entry


class _CallableModule(ModuleType):
    """Makes ``ropewalk.catalog`` the module and ``ropewalk.catalog()`` the records, in any import order."""

    def __call__(self) -> tuple[Record, ...]:
        """Return every record: `catalog`."""
        return catalog()


sys.modules[__name__].__class__ = _CallableModule
