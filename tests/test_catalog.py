import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

import ropewalk as rw
from ropewalk.catalog import (
    KINDS,
    RECORDS,
    SHARED_NAMES,
    TRAITS,
    CatalogWarning,
    Record,
    namesakes,
    normalise,
)
from ropewalk.core.errors import ConfigError, UnknownNameError

PLAIN = rw.record("rope")

# ---- the records


def test_slugs_are_unique():
    slugs = [record.slug for record in rw.catalog()]
    assert len(set(slugs)) == len(slugs)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.slug)
def test_record_is_well_formed(record):
    assert record.kind in KINDS
    assert record.summary.endswith(".")
    assert "\n" not in record.summary
    if record.arxiv is None:  # published elsewhere: the docstring says where
        assert record.paper in " ".join(record.doc().split())
    else:
        assert re.fullmatch(r"\d{4}\.\d{5}", record.arxiv)
        assert abs(2000 + int(record.arxiv[:2]) - record.year) <= 1
    assert record.sheet is None or 1 <= record.sheet <= 121
    assert hash(record) == hash(replace(record))
    for case in record.traits.reduces_to:  # "rope when ...": the case names a record
        rw.record(case.split()[0])


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.slug)
def test_every_factory_resolves(record):
    factory = record.load()
    assert inspect.signature(factory).bind_partial(**record.defaults)
    assert isinstance(record.build(), rw.Encoding)
    assert record.doc() == inspect.getdoc(factory)


def test_json_round_trip():
    for record in rw.catalog():
        assert json.loads(json.dumps(record.as_dict())) == record.as_dict()
        assert record.as_dict()["traits"]["relative"] is record.traits.relative


def test_traits_to_filter_by_are_the_boolean_ones():
    assert {name for name in PLAIN.as_dict()["traits"] if isinstance(getattr(PLAIN.traits, name), bool)} == set(TRAITS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slug": "My-Enc"}, "slug 'My-Enc'"),
        ({"slug": "2d"}, "slug '2d'"),
        ({"kind": "rotatory"}, "kind 'rotatory'"),
        ({"factory": "ropewalk.rotary.rope.RoPE"}, "package.module:name"),
    ],
)
def test_malformed_records_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        replace(PLAIN, **change)


# ---- names


@pytest.mark.parametrize("name", ["transformer_xl", "Transformer-XL", " transformer xl "])
def test_spelling_of_names(name):
    assert rw.record(name).slug == "transformer_xl"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("alibii", "no encoding is called 'alibii'. Did you mean 'alibi'?"),
        ("sinusoid", "Did you mean 'sinusoidal'?"),
        ("randomized", "There are randomized_rope, randomized_alibi"),
        ("xyzzy", "no encoding is called 'xyzzy'. `ropewalk list`"),
    ],
)
def test_unknown_names_suggest(name, message):
    with pytest.raises(UnknownNameError, match=re.escape(message)):
        rw.record(name)


@pytest.mark.parametrize(
    ("name", "slugs"),
    [
        ("hope", ("hope_hyperbolic", "hope_high_frequency", "hope_video")),
        ("CoPE", ("contextual_cope", "clipped_cope", "complex_cope")),
        ("STRING", ("string_shifted", "string_separable")),
        ("p-RoPE", ("p_rope_fraction", "p_rope_periodic", "prope_camera")),
        ("PRoPE", ("p_rope_fraction", "p_rope_periodic", "prope_camera")),
    ],
)
def test_shared_names_list_the_candidates(name, slugs):
    with pytest.raises(UnknownNameError) as caught:
        rw.record(name)
    assert all(slug in str(caught.value) for slug in slugs)
    with pytest.raises(UnknownNameError):
        rw.build(name)


def test_a_name_that_is_a_slug_means_that_record():
    assert rw.record("PoPE").arxiv == "2509.10534"
    assert [other.slug for other in namesakes("pope")] == ["pope_legendre"]
    assert namesakes("alibi") == ()


def test_shared_names_are_consistent():
    for name, candidates in SHARED_NAMES.items():
        assert name == normalise(name)
        assert len(candidates) > 1
        for candidate in candidates:
            assert candidate.slug == normalise(candidate.slug)
            if candidate.available:
                assert rw.record(candidate.slug).arxiv == candidate.arxiv
            assert ("not available" in str(candidate)) is not candidate.available


# ---- build: `Wheel` stands for an encoding


class Wheel:
    def __init__(self, head_dim, *, turn=1.0, num_heads=1):
        self.given = (head_dim, turn, num_heads)


def forwards(num_heads, **rest):
    return num_heads, rest


WHEEL = replace(PLAIN, slug="wheel", factory=f"{__name__}:Wheel", defaults={"head_dim": 32, "turn": 2.0})


def test_defaults_fill_what_is_missing():
    assert WHEEL.build().given == (32, 2.0, 1)
    assert WHEEL.build(head_dim=64, turn=3.0).given == (64, 3.0, 1)
    assert WHEEL.defaults == {"head_dim": 32, "turn": 2.0}


def test_shape_keywords_reach_those_who_take_them():
    assert WHEEL.build(head_dim=8, num_heads=2, num_kv_heads=1, hidden_size=16, max_length=9).given == (
        8,
        2.0,
        2,
    )


def test_other_keywords_must_exist():
    with pytest.raises(
        ConfigError, match=r"wheel takes no 'turns'; it takes head_dim, num_heads, turn\. Did you.*'turn'"
    ):
        WHEEL.build(turns=1.0)


def test_missing_arguments_are_named():
    with pytest.raises(ConfigError, match="wheel needs head_dim"):
        replace(WHEEL, defaults={}).build()


def test_factories_that_forward_keywords():
    record = replace(WHEEL, factory=f"{__name__}:forwards", defaults={"num_heads": 4})
    assert record.build(base=5.0, hidden_size=16) == (4, {"base": 5.0})


SOURCE = '''
raise ImportError("reading a docstring imports nothing")


class Wheel:
    """w(n) = turn * n

    Turns.
    """


def undocumented(): ...
'''


@pytest.fixture
def shed(tmp_path, monkeypatch):
    (tmp_path / "shed" / "yard").mkdir(parents=True)
    for package in ("shed", "shed/yard"):
        (tmp_path / package / "__init__.py").write_text("raise ImportError")
    (tmp_path / "shed" / "yard" / "wheels.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)


def test_doc_is_read_from_source(shed):
    assert replace(WHEEL, factory="shed.yard.wheels:Wheel").doc() == "w(n) = turn * n\n\nTurns."


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("ropewalk.nowhere:Thing", "the source of ropewalk.nowhere cannot be read"),
        ("no_such_package.deep.er:Thing", "the source of no_such_package.deep.er cannot be read"),
        ("sys:exit", "the source of sys cannot be read"),
        ("shed.yard.wheels:Nothing", "shed.yard.wheels does not define Nothing"),
        ("shed.yard.wheels:undocumented", "has no docstring"),
    ],
)
def test_doc_says_why_it_cannot(shed, factory, message):
    with pytest.raises(ConfigError, match=message):
        replace(WHEEL, factory=factory).doc()


# ---- other packages

THIRD_PARTY = """
from dataclasses import replace
import ropewalk as rw

WHEEL = replace(rw.record("rope"), slug="wheel", name="Wheel", factory="wheels:Wheel", defaults={})
MORE = [replace(WHEEL, slug="cog"), replace(WHEEL, slug="crank")]
RENAMED = replace(WHEEL, slug="rope")
SHARED = replace(WHEEL, slug="hope")
NUMBER = 5
UNPRINTABLE = replace(WHEEL, slug="axle", defaults={"way": object()})

class Wheel:
    "w(n) = n"
"""


@pytest.fixture
def wheels(tmp_path):
    """A package on disk whose entry points a fresh interpreter sees; returns what that interpreter prints."""

    def run(entry_points, *code):
        info = tmp_path / "wheels-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wheels\nVersion: 1.0\n")
        points = "".join(f"{name} = {value}\n" for name, value in entry_points.items())
        (info / "entry_points.txt").write_text(f"[ropewalk.encodings]\n{points}")
        (tmp_path / "wheels.py").write_text(THIRD_PARTY)
        path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
        return subprocess.run(
            [sys.executable, *code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
        )

    return run


def test_other_packages_join(wheels):
    code = """
        import ropewalk as rw
        assert [r.slug for r in rw.catalog()][-3:] == ["wheel", "cog", "crank"]
        assert rw.record("Crank").name == "Wheel"
        assert rw.record("wheel").doc() == "w(n) = n"
        assert type(rw.build("wheel", head_dim=8)).__name__ == "Wheel"
    """
    done = wheels({"one": "wheels:WHEEL", "more": "wheels:MORE"}, "-W", "error", "-c", textwrap.dedent(code))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no_such_module:RECORD", "ModuleNotFoundError"),
        ("wheels:nothing", "AttributeError"),
        ("wheels:NUMBER", "TypeError"),
        ("wheels:RENAMED", "the slug 'rope' is taken"),
        ("wheels:SHARED", "the name 'hope' is shared by several published methods"),
        ("wheels:UNPRINTABLE", "not JSON serializable"),
    ],
)
def test_a_broken_entry_point_is_named_and_left_out(wheels, value, message):
    done = wheels({"broken": value, "fine": "wheels:MORE"}, "-m", "ropewalk", "list")
    assert done.returncode == 0, done.stderr
    assert "crank" in done.stdout
    assert "rope " in done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("ropewalk: warning: entry point 'broken'")
    assert message in done.stderr


def test_the_warning_has_a_class_to_filter_by():
    assert issubclass(CatalogWarning, UserWarning)
    assert isinstance(WHEEL, Record)
