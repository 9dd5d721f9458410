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

import ast
import functools
import importlib
import inspect
import json
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, get_args

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
    "record",
    "shared",
]

ENTRY_POINTS = "ropewalk.encodings"

# What a caller may say about the model without knowing the encoding; a factory gets the ones it takes.
SHAPE_KEYWORDS = ("head_dim", "num_heads", "num_kv_heads", "hidden_size", "max_length")

Kind = Literal["rotary", "bias", "embedding", "coordinates", "operator"]
KINDS: tuple[str, ...] = get_args(Kind)


class CatalogWarning(UserWarning):
    """A third-party entry point was left out of the catalog; the message names it and says why."""


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
        evidence: where its measured results are.
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


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of several methods that share a name, or almost."""

    slug: str
    name: str
    arxiv: str | None
    summary: str

    @property
    def available(self) -> bool:
        """Whether this installation has it."""
        return any(entry.slug == self.slug for entry in catalog())

    def __str__(self) -> str:
        paper = f", arXiv {self.arxiv}" if self.arxiv else ""
        return f"{self.slug} ({self.name}{paper}{'' if self.available else '; not available yet'})"


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
    """Make the encoding of that name.

    Of the keywords that describe a model (`SHAPE_KEYWORDS`) the factory gets those it takes, so that one call
    fits every encoding. Every other keyword must be one of its parameters. What is missing comes from the
    record's defaults.

        rw.build("t5", head_dim=64, num_heads=8)  # T5 takes num_heads and knows nothing of head_dim

    Raises:
        UnknownNameError: see `record`.
        ConfigError: a keyword the encoding does not take, or one it needs and nobody gave.
    """
    return record(name).build(**kwargs)


def normalise(name: str) -> str:
    """``"Transformer-XL"`` -> ``"transformer_xl"``."""
    return re.sub(r"[-\s]+", "_", name.strip().lower())


def shared(name: str) -> tuple[Candidate, ...]:
    """Methods that go by that name, where several do; otherwise nothing."""
    return SHARED_NAMES.get(normalise(name), ())


def namesakes(slug: str) -> tuple[Candidate, ...]:
    """Return the other methods that go by a name of this one, and may have been meant instead."""
    groups = [group for group in SHARED_NAMES.values() if any(one.slug == slug for one in group)]
    return tuple({other.slug: other for group in groups for other in group if other.slug != slug}.values())


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


def _randomized(
    slug: str, name: str, summary: str, kind: Kind, traits: Traits, factory: str, **defaults: int
) -> Record:
    return Record(
        slug=slug,
        name=name,
        summary=summary,
        paper="Randomized Positional Encodings Boost Length Generalization of Transformers",
        authors="Anian Ruoss, Grégoire Delétang, Tim Genewein, Jordi Grau-Moya, Róbert Csordás, "
        "Mehdi Bennani, Shane Legg, Joel Veness",
        arxiv="2305.16843",
        year=2023,
        kind=kind,
        traits=traits,
        factory=factory,
        defaults={**defaults, "max_length": 512},
        sheet=108,
    )


# In the order in which they were added. Encodings that leave q and k alone keep their norm.
RECORDS: tuple[Record, ...] = (
    Record(
        slug="nope",
        name="NoPE",
        summary="No positional encoding: the causal mask alone tells a decoder where it is.",
        paper="The Impact of Positional Encoding on Length Generalization in Transformers",
        authors="Amirhossein Kazemnejad, Inkit Padhi, Karthikeyan Natesan Ramamurthy, Payel Das, Siva Reddy",
        arxiv="2305.19466",
        year=2023,
        kind="bias",
        traits=Traits(
            relative=True,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
        ),
        factory="ropewalk.bias.nope:NoPE",
        sheet=45,
    ),
    Record(
        slug="sinusoidal",
        name="Sinusoidal",
        summary="Sines and cosines of the position at geometric frequencies, added to the token embeddings.",
        paper="Attention Is All You Need",
        authors="Ashish Vaswani, Noam Shazeer, Niki Parmar, Jakob Uszkoreit, Llion Jones, Aidan N. Gomez, "
        "Łukasz Kaiser, Illia Polosukhin",
        arxiv="1706.03762",
        year=2017,
        kind="embedding",
        traits=Traits(
            relative=False,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
        ),
        factory="ropewalk.embedding.sinusoidal:Sinusoidal",
        defaults={"hidden_size": 128},
        sheet=45,
    ),
    Record(
        slug="learned",
        name="Learned absolute",
        summary="A trained vector for each position, added to the token embeddings.",
        paper="Convolutional Sequence to Sequence Learning",
        authors="Jonas Gehring, Michael Auli, David Grangier, Denis Yarats, Yann N. Dauphin",
        arxiv="1705.03122",
        year=2017,
        kind="embedding",
        traits=Traits(
            relative=False,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
            max_position=511,
            real_positions=False,
        ),
        factory="ropewalk.embedding.learned:LearnedAbsolute",
        defaults={"hidden_size": 128, "max_length": 512},
        sheet=45,
    ),
    Record(
        slug="t5",
        name="T5 bias",
        summary="A trained bias for each head and each bucket of distances; buckets widen with distance.",
        paper="Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
        authors="Colin Raffel, Noam Shazeer, Adam Roberts, Katherine Lee, Sharan Narang, Michael Matena, "
        "Yanqi Zhou, Wei Li, Peter J. Liu",
        arxiv="1910.10683",
        year=2019,
        kind="bias",
        traits=Traits(
            relative=True,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=False,
            reduces_to=("nope when the table is zero",),
        ),
        factory="ropewalk.bias.t5:T5",
        defaults={"num_heads": 4},
        sheet=45,
    ),
    Record(
        slug="alibi",
        name="ALiBi",
        summary="Each head discounts a key in proportion to its distance, at its own slope.",
        paper="Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation",
        authors="Ofir Press, Noah A. Smith, Mike Lewis",
        arxiv="2108.12409",
        year=2021,
        kind="bias",
        traits=Traits(
            relative=True,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=False,
        ),
        factory="ropewalk.bias.alibi:ALiBi",
        defaults={"num_heads": 4},
        sheet=45,
    ),
    Record(
        slug="rope",
        name="RoPE",
        summary="Turn each channel pair of q and k by an angle proportional to position.",
        paper="RoFormer: Enhanced Transformer with Rotary Position Embedding",
        authors="Jianlin Su, Yu Lu, Shengfeng Pan, Ahmed Murtadha, Bo Wen, Yunfeng Liu",
        arxiv="2104.09864",
        year=2021,
        kind="rotary",
        traits=Traits(
            relative=True,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
            reduces_to=("nope when every frequency is zero",),
        ),
        factory="ropewalk.rotary.rope:RoPE",
        defaults={"head_dim": 32},
        sheet=66,
    ),
    Record(
        slug="linear_rope",
        name="Linear RoPE",
        summary="Linear attention whose numerator sees rotated feature maps and whose denominator does not.",
        paper="RoFormer: Enhanced Transformer with Rotary Position Embedding",
        authors="Jianlin Su, Yu Lu, Shengfeng Pan, Ahmed Murtadha, Bo Wen, Yunfeng Liu",
        arxiv="2104.09864",
        year=2021,
        kind="operator",
        traits=Traits(
            relative=True,
            norm_preserving=False,  # the feature map comes first
            content_dependent=False,
            streamable=True,
            linear_attention=True,
        ),
        factory="ropewalk.rotary.linear_attention:linear_rope",
        defaults={"head_dim": 32},
        sheet=66,
    ),
    Record(
        slug="fox",
        name="FoX",
        summary="A forget gate on every token: a key fades by the product of the gates since it.",
        paper="Forgetting Transformer: Softmax Attention with a Forget Gate",
        authors="Zhixuan Lin, Evgenii Nikishin, Xu Owen He, Aaron Courville",
        arxiv="2503.02130",
        year=2025,
        kind="bias",
        traits=Traits(
            relative=True,  # it counts tokens and never looks at their positions
            norm_preserving=True,
            content_dependent=True,
            streamable=True,
            linear_attention=False,
            causal="only",
            reduces_to=("alibi when every gate is exp(-slope)", "nope when every gate is open"),
        ),
        factory="ropewalk.bias.fox:FoX",
        defaults={"hidden_size": 128, "num_heads": 4},
        needs=("x",),
        sheet=85,
    ),
    Record(
        slug="pope",
        name="PoPE",
        summary="Polar coordinates: content sets the magnitude of each channel, position alone its angle.",
        paper='Decoupling the "What" and "Where" With Polar Coordinate Positional Embeddings',
        authors="Anand Gopalakrishnan, Róbert Csordás, Jürgen Schmidhuber, Michael C. Mozer",
        arxiv="2509.10534",
        year=2025,
        kind="rotary",
        traits=Traits(
            relative=True,
            norm_preserving=False,  # magnitudes are softplus of the channels
            content_dependent=False,
            streamable=True,
            linear_attention=True,
        ),
        factory="ropewalk.rotary.pope:PoPE",
        defaults={"head_dim": 32, "num_heads": 4},
        sheet=61,
    ),
    Record(
        slug="contextual_cope",
        name="CoPE (contextual)",
        summary="Each query counts the tokens its gates let through; the count looks up a trained embedding.",
        paper="Contextual Position Encoding: Learning to Count What's Important",
        authors="Olga Golovneva, Tianlu Wang, Jason Weston, Sainbayar Sukhbaatar",
        arxiv="2405.18719",
        year=2024,
        kind="bias",
        traits=Traits(
            relative=True,  # only the order of keys counts
            norm_preserving=True,
            content_dependent=True,
            streamable=True,
            linear_attention=False,
            causal="only",
            reduces_to=("nope when the table is zero", "nope when the table has one row"),
        ),
        factory="ropewalk.bias.contextual_cope:ContextualCoPE",
        defaults={"head_dim": 32},
        sheet=63,
    ),
    _randomized(
        "randomized_rope",
        "Randomized RoPE",
        "RoPE at positions drawn in order from a range much longer than the sequence.",
        "rotary",
        Traits(
            relative=False,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
            max_position=511,
            real_positions=False,
            reduces_to=("rope when the range is as long as the sequence",),
        ),
        "ropewalk.rotary.randomized_rope:randomized_rope",
        head_dim=32,
    ),
    _randomized(
        "randomized_alibi",
        "Randomized ALiBi",
        "ALiBi whose distances are drawn in order from a much longer range.",
        "bias",
        Traits(
            relative=True,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=False,
            real_positions=False,
        ),
        "ropewalk.bias.randomized_alibi:RandomizedALiBi",
        num_heads=4,
    ),
    _randomized(
        "randomized_relative",
        "Randomized relative",
        "Transformer-XL's relative encoding whose distances are drawn in order from a much longer range.",
        "bias",
        Traits(
            relative=True,
            norm_preserving=False,
            content_dependent=True,
            streamable=True,
            linear_attention=False,
            real_positions=False,
            reduces_to=("transformer_xl when the range is as long as the sequence",),
        ),
        "ropewalk.bias.transformer_xl:RandomizedRelative",
        head_dim=32,
        num_heads=4,
    ),
    _randomized(
        "randomized_sinusoidal",
        "Randomized sinusoids",
        "Sinusoids of positions drawn in order from a range much longer than the sequence.",
        "embedding",
        Traits(
            relative=False,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
            max_position=511,
            real_positions=False,
            reduces_to=("sinusoidal when the range is as long as the sequence",),
        ),
        "ropewalk.embedding.randomized:randomized_sinusoidal",
        hidden_size=128,
    ),
    _randomized(
        "randomized_learned",
        "Randomized learned",
        "Trained vectors of positions drawn in order from a range much longer than the sequence.",
        "embedding",
        Traits(
            relative=False,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=True,
            max_position=511,
            real_positions=False,
            reduces_to=("learned when the range is as long as the sequence",),
        ),
        "ropewalk.embedding.randomized:randomized_learned",
        hidden_size=128,
    ),
    Record(
        slug="transformer_xl",
        name="Transformer-XL",
        summary="Logits of content and of sinusoidal distance, each with a trained query bias of its own.",
        paper="Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context",
        authors="Zihang Dai, Zhilin Yang, Yiming Yang, Jaime Carbonell, Quoc V. Le, Ruslan Salakhutdinov",
        arxiv="1901.02860",
        year=2019,
        kind="bias",
        traits=Traits(
            relative=True,
            norm_preserving=False,  # q + u meets the keys
            content_dependent=False,  # q as it is meets the sinusoids of the distance
            streamable=True,
            linear_attention=True,
        ),
        factory="ropewalk.bias.transformer_xl:TransformerXL",
        defaults={"head_dim": 32, "num_heads": 4},
        sheet=108,
    ),
    Record(
        slug="string_shifted",
        name="STRING (shifted)",
        summary="Far keys of a trained RoPE model are seen at shorter, well-trained distances.",
        paper="Why Does the Effective Context Length of LLMs Fall Short?",
        authors="Chenxin An, Jun Zhang, Ming Zhong, Lei Li, Shansan Gong, Yao Luo, Jingjing Xu, Lingpeng Kong",
        arxiv="2410.18745",
        year=2024,
        kind="rotary",
        traits=Traits(
            relative=True,
            norm_preserving=True,
            content_dependent=False,
            streamable=True,
            linear_attention=False,
            causal="only",
            training="drop-in",
            reduces_to=("rope when local == shift", "rope up to shift tokens"),
        ),
        factory="ropewalk.rotary.string_shifted:STRINGShifted",
        defaults={"head_dim": 32, "shift": 8, "local": 3},
        sheet=116,
    ),
    Record(
        slug="gta",
        name="GTA",
        summary="Relative camera and patch transforms bring each key and value into the query's frame.",
        paper="GTA: A Geometry-Aware Attention Mechanism for Multi-View Transformers",
        authors="Takeru Miyato, Bernhard Jaeger, Max Welling, Andreas Geiger",
        arxiv="2310.10375",
        year=2023,
        kind="rotary",
        traits=Traits(
            relative=True,
            norm_preserving=False,  # camera transforms translate
            content_dependent=False,
            streamable=True,
            linear_attention=False,  # it acts on values and on the output too
            domain="views",
        ),
        factory="ropewalk.rotary.gta:GTA",
        defaults={"head_dim": 32},
        needs=("cameras",),
        sheet=121,
    ),
)

_OWN = {entry.slug: entry for entry in RECORDS}

# Names that several published methods have, or that differ by a letter. A slug of the catalog means that
# record; any other name here is an error that lists the candidates.
SHARED_NAMES: dict[str, tuple[Candidate, ...]] = {}


def _share(names: str, *candidates: Candidate) -> None:
    SHARED_NAMES.update(dict.fromkeys(names.split(), candidates))


_share(
    "cope",
    Candidate("contextual_cope", "Contextual Position Encoding", "2405.18719", "counts gated tokens"),
    Candidate("clipped_cope", "Clipped RoPE", "2602.05258", "tapers the lowest frequencies to zero"),
    Candidate("complex_cope", "Complex Positional Encoding", "2508.18308", "position as imaginary part"),
)
_share(
    "drope",
    Candidate("drope_directional", "Directional RoPE", "2503.15029", "turns all pairs by a heading"),
    Candidate("drope_dropping", "Dropped positional embeddings", "2512.12167", "RoPE removed after training"),
)
_share(
    "harpe harope",
    Candidate("harpe", "HARPE", "2412.07171", "a base for each head, to extend the context in one stage"),
    Candidate("harope", "HARoPE", "2510.10489", "a trained matrix for each head before RoPE, for images"),
)
_share(
    "hope",
    Candidate("hope_hyperbolic", "Hyperbolic Rotary", "2509.05218", "Lorentz boosts instead of rotations"),
    Candidate("hope_high_frequency", "High-frequency rotary", "2410.21216", "turns only the fast pairs"),
    Candidate("hope_video", "Hybrid of Position Embedding", "2505.20444", "video RoPE with idle time pairs"),
)
_share(
    "hrope hirope",
    Candidate("hrope_paragraph", "hRoPE", "2609.23551", "paragraph, sentence and token channels"),
    Candidate("hrope_homography", "Homography encoding", None, "plane-induced homographies between views"),
    Candidate("hirope", "HiRoPE", "2403.19115", "token and function index on separate pairs, for code"),
)
_share(
    "p_rope prope",
    Candidate("p_rope_fraction", "p-RoPE", "2410.06205", "turns only the fastest fraction p of the pairs"),
    Candidate("p_rope_periodic", "Periodic RoPE", "2605.27980", "positions modulo the attention window"),
    Candidate("prope_camera", "Projective encoding", "2507.10496", "relative transforms of whole cameras"),
)
_share(
    "pope",
    Candidate("pope", "Polar coordinates", "2509.10534", "content in magnitudes, position in angles"),
    Candidate("pope_legendre", "Orthogonal polynomials", "2405.04585", "Legendre polynomials, embedded"),
)
_share(
    "string",
    Candidate("string_shifted", "Shifted rotary", "2410.18745", "far keys at shorter distances"),
    Candidate("string_separable", "Separable encodings", "2502.02562", "commuting generators, any axes"),
)


class _CallableModule(ModuleType):
    """Makes ``ropewalk.catalog`` the module and ``ropewalk.catalog()`` the records, in any import order."""

    def __call__(self) -> tuple[Record, ...]:
        """Return every record: `catalog`."""
        return catalog()


sys.modules[__name__].__class__ = _CallableModule
