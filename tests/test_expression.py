"""Encodings by name, with arguments and composition."""

from __future__ import annotations

import pytest

import ropewalk as rw
from ropewalk.catalog.expression import parse, parse_layers, split_list
from ropewalk.core.errors import ConfigError, UnknownNameError

SHAPE = {"head_dim": 16, "num_heads": 4, "num_kv_heads": 4, "hidden_size": 64, "max_length": 128}


@pytest.mark.parametrize(
    "text, canonical",
    [
        ("rope", "rope"),
        (" Transformer-XL ", "transformer_xl"),
        ("transformer xl", "transformer_xl"),
        ("rope(base=500000)", "rope(base=500000)"),
        ("rope( base = 5e5 , pairing=half)", "rope(base=500000.0, pairing='half')"),
        ("rope(base=5e+5)+alibi", "rope(base=500000.0) + alibi"),
        ("alibi()", "alibi"),
        ("partial(rope, dims=8)", "partial(rope, dims=8)"),
        ("per_head(rope, nope + alibi)", "per_head(rope, nope + alibi)"),
        ("per_head(partial(rope(base=100.0), dims=8), nope) + alibi", None),
    ],
)
def test_reads_and_prints_itself(text, canonical):
    expression = parse(text)
    assert canonical is None or str(expression) == canonical
    assert str(parse(str(expression))) == str(expression)
    assert isinstance(expression.build(**SHAPE), rw.Encoding)


def test_what_is_built():
    assert rw.build("rope(base=100)", **SHAPE).base == 100
    both = rw.build("rope + alibi", **SHAPE)
    assert [type(e) for e in both] == [rw.RoPE, rw.ALiBi]
    part = rw.build("partial(rope, dims=8)", **SHAPE)
    assert (part.dims, part.encoding.head_dim) == (8, 8)
    heads = rw.build("per_head(alibi, fox)", **SHAPE)
    assert [e.num_heads for e in heads] == [2, 2]


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "expected a name"),
        ("rope +", "expected a name"),
        ("rope + + alibi", "expected a name"),
        ("rope(", "missing"),
        ("rope)", "closes nothing"),
        ("rope(base=5]", "closes nothing"),
        ("rope(500000)", "by name"),
        ("rope(base=1, base=2)", "twice"),
        ("rope(base=(1,)", "missing"),
        ("rope alibi(base=1)x", "arguments go in"),
        ("rope(base=__import__('os'))", "no number, word or list"),
        ("partial(rope)", "partial takes"),
        ("partial(rope, dims=True)", "partial takes"),
        ("per_head()", "per_head takes"),
        ("3rope", "expected a name"),
    ],
)
def test_says_what_is_wrong(text, said):
    with pytest.raises(ConfigError, match=said):
        parse(text)


def test_unknown_names_are_found_while_reading():
    with pytest.raises(UnknownNameError, match="Did you mean"):
        parse("rpoe + alibi")
    with pytest.raises(UnknownNameError, match="several methods"):
        parse("hope")
    with pytest.raises(ConfigError, match="whose"):
        rw.build("rope + alibi", base=3)
    with pytest.raises(ConfigError, match="takes no 'bass'"):
        rw.build("rope(bass=3)", **SHAPE)
    with pytest.raises(ConfigError, match="evenly"):
        rw.build("per_head(rope, nope, alibi)", **SHAPE)


def test_layers():
    assert [(str(e), n) for e, n in parse_layers("rope:3, nope")] == [("rope", 3), ("nope", 1)]
    assert [(str(e), n) for e, n in parse_layers("per_head(rope,nope):2")] == [("per_head(rope, nope)", 2)]
    for text in ("rope:0", "rope:x", "rope:"):
        with pytest.raises(ConfigError, match="number of layers"):
            parse_layers(text)
    assert split_list("rope(base=1, pairing=half), nope") == ["rope(base=1, pairing=half)", "nope"]
