"""The text of a comparison: sources, splits, tokens, batches, windows, classes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ropewalk.core.errors import ConfigError
from ropewalk.lab.batch import IGNORE
from ropewalk.lab.data import SPLITS, ByteTokenizer, Corpus, JsonTokenizer, find_tokenizer, make_corpus, read_corpus
from ropewalk.lab.data.hub import load_hub
from ropewalk.lab.data.sources import find
from ropewalk.lab.data.splits import split_of

SPACE = ByteTokenizer.start


def put(path, content="some text"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def names(*sources):
    return [file.name for file in find(sources)[0]]


def texts(corpus):
    """Name to text, of a corpus whose documents are whole."""
    bounds = corpus.offsets.tolist()
    return {
        name: corpus.tokenizer.decode(corpus.tokens[begin:end])
        for name, begin, end in zip(corpus.names, bounds, bounds[1:], strict=False)
    }


def pieces(corpus):
    """Name to text, of a corpus whose documents were cut into ranges."""
    joined = Counter()
    bounds = corpus.offsets.tolist()
    out = {}
    for name, begin, end in zip(corpus.names, bounds, bounds[1:], strict=False):
        joined[name] += 1
        out[name] = out.get(name, b"") + bytes(corpus.tokens[begin + 1 : end].tolist())
    return {name: raw.decode() for name, raw in out.items()}


def many(count=60, size=50, name="d{}.txt"):
    """Documents that a hash divides fairly; no two bytes in a row tell two documents apart by accident."""
    return [(name.format(i), name.format(i), f"{i}:" + "abcdefghij" * (size // 10)) for i in range(count)]


def same(one, other):
    return all(
        (a is None and b is None) or torch.equal(a, b)
        for a, b in ((one.tokens, other.tokens), (one.targets, other.targets), (one.documents, other.documents))
    )


# ---- sources ---------------------------------------------------------------------------------------------------------


def test_folder_is_read_in_depth_and_sorted(tmp_path):
    for name in ("b.txt", "a/z.md", "a/deep/er/y", "ä ö.txt"):
        put(tmp_path / name)
    put(tmp_path / ".git/config")
    put(tmp_path / "a/.hidden")
    assert names(tmp_path) == ["a/deep/er/y", "a/z.md", "b.txt", "ä ö.txt"]


def test_binaries_in_folders_are_passed_over_and_counted(tmp_path):
    put(tmp_path / "good.txt", "good text " * 5)
    put(tmp_path / "nul.bin", b"ELF\0\0 and so on")
    put(tmp_path / "latin.txt", "é".encode("latin-1") * 20)
    corpus = read_corpus([tmp_path])
    assert set(corpus.names) == {"good.txt"} and corpus.describe()["not_text"] == 2


def test_named_file_that_is_not_utf8_is_an_error(tmp_path):
    path = put(tmp_path / "latin.txt", "é".encode("latin-1") * 20)
    with pytest.raises(ConfigError, match=r"latin\.txt' is not UTF-8 text: .* at byte 0"):
        read_corpus([path])
    with pytest.raises(ConfigError, match="is not UTF-8"):  # in a folder that is read as well
        read_corpus([tmp_path, path])


def test_links_are_followed_once(tmp_path, monkeypatch):
    put(tmp_path / "data/a.txt")
    put(tmp_path / "elsewhere/b.txt")
    (tmp_path / "data/loop").symlink_to(tmp_path / "data")
    (tmp_path / "data/self").symlink_to(tmp_path / "data/self")
    (tmp_path / "data/gone.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "data/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/same.txt").symlink_to(tmp_path / "data/a.txt")
    listed, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(path) or scandir(path))
    assert names(tmp_path / "data") == ["a.txt", "linked/b.txt"]
    assert len(listed) == 2  # loops are not followed until the system gives up


def test_globs(tmp_path, monkeypatch):
    for name in ("books/a.txt", "books/b.md", "books/more/c.txt", "x.txt"):
        put(tmp_path / name)
    assert names(f"{tmp_path}/books/*.txt") == ["a.txt"]
    assert names(f"{tmp_path}/books/**/*.txt") == ["a.txt", "more/c.txt"]
    assert names(f"{tmp_path}/*") == ["books/a.txt", "books/b.md", "books/more/c.txt", "x.txt"]
    monkeypatch.chdir(tmp_path)
    assert names("books/[ab].*") == ["a.txt", "b.md"]
    with pytest.raises(ConfigError, match=r"nothing matches '\*\.pdf' in the folder .*books"):
        names("books/*.pdf")


def test_path_with_brackets_and_spaces_is_a_path(tmp_path):
    put(tmp_path / "a [old]/x y.txt")
    put(tmp_path / "a [old]/[1].txt")
    assert names(f"{tmp_path}/a [old]") == ["[1].txt", "x y.txt"]
    assert names(f"{tmp_path}/a [old]/[1].txt") == ["[1].txt"]
    assert names(f"{tmp_path}/a [old]/x*") == ["x y.txt"]


def test_order_and_repetition_of_sources_do_not_matter(tmp_path, monkeypatch):
    for i in range(20):
        put(tmp_path / f"one/{i}.txt", f"one {i}" * 9)
        put(tmp_path / f"two/{i}.txt", f"two {i}" * 9)
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    first = read_corpus([one, two])
    assert first.names[0] == "one/0.txt" and first.names[-1] == "two/9.txt"
    again = read_corpus([two, one, f"{two}/3.txt", two, f"{one}/*.txt", f"{tmp_path}/one/../two"])
    assert again.digest == first.digest and texts(again) == texts(first)
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: reversed(sorted(scandir(path), key=lambda e: e.name)))
    assert read_corpus([one, two]).digest == first.digest


def test_files_of_one_name_are_numbered(tmp_path):
    paths = [put(tmp_path / f"{i}/same.txt", f"text {i} " * 9) for i in range(3)]
    assert names(*paths) == names(*reversed(paths)) == ["same.txt", "same.txt~2", "same.txt~3"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "empty string"),
        ("nowhere", r"no file or folder 'nowhere'"),
        ("boooks", r"Did you mean 'books'\?.*hf:NAME"),
        ("books/a.txt/below", "no file or folder"),
        ("nul\0", "cannot be read"),
        ("pipe", "neither a file nor a folder"),
        ("empty.txt", r"empty\.txt' is empty"),
        ("blank.txt", r"blank\.txt' is empty"),
        ("empty folder", "holds no text"),
        ("hf:", "is spelled"),
        ("hf:books", "is a path here"),
    ],
)
def test_sources_that_cannot_be(tmp_path, monkeypatch, source, message):
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "books/a.txt")
    put(tmp_path / "empty.txt", "")
    put(tmp_path / "blank.txt", " \r\n\t")
    (tmp_path / "empty folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=message):
        read_corpus([source])


def test_nothing_is_read_before_every_source_is_found(tmp_path):
    bad = put(tmp_path / "bad.jsonl", "{broken")
    with pytest.raises(ConfigError, match="no file or folder"):
        read_corpus([bad, tmp_path / "missing"])


def test_unreadable_file_and_folder(tmp_path, monkeypatch):
    path = put(tmp_path / "secret.txt")

    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        with pytest.raises(ConfigError, match=r"secret\.txt' cannot be read: .*Permission denied"):
            read_corpus([tmp_path])
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(ConfigError, match=r"the folder .* cannot be read: .*Permission denied"):
        read_corpus([path.parent])


def test_text_is_the_same_on_every_machine():
    corpus = make_corpus([("a", "a", "\ufeffone\r\ntwo\rthree\n" + "x" * 30)])
    assert pieces(corpus) == {"a": "one\ntwo\nthree\n" + "x" * 30}
    half = make_corpus([("a", "a", "before \ud83d after, and more of it")])
    assert pieces(half) == {"a": "before \ufffd after, and more of it"}


def test_bom_and_line_ends_of_files(tmp_path):
    put(tmp_path / "bom.txt", b"\xef\xbb\xbfline\r\nline " + b"x" * 30)
    assert pieces(read_corpus([tmp_path])) == {"bom.txt": "line\nline " + "x" * 30}


# ---- tables ----------------------------------------------------------------------------------------------------------


def rows(count=40, column="text"):
    return "".join(json.dumps({"id": i, column: f"row {i}\r\n" + "abc" * 20}) + "\n" for i in range(count))


def test_json_lines(tmp_path):
    path = put(tmp_path / "t.jsonl", "\ufeff" + rows().replace("\n", "\r\n") + '\n{"text": null}\n{"text": ""}\n')
    corpus = read_corpus([path])
    assert corpus.names[:2] == ("t.jsonl:1", "t.jsonl:2") and len(corpus.names) == 40
    assert texts(corpus)["t.jsonl:3"] == "row 2\n" + "abc" * 20
    assert corpus.describe()["empty"] == 2


def test_json_lines_zipped(tmp_path):
    plain, zipped = put(tmp_path / "a/t.jsonl", rows()), tmp_path / "t.jsonl.gz"
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    assert list(texts(read_corpus([zipped])).values()) == list(texts(read_corpus([plain])).values())
    zipped.write_bytes(zipped.read_bytes()[:-20])
    with pytest.raises(ConfigError, match=r"t\.jsonl\.gz' cannot be read"):
        read_corpus([zipped])
    zipped.write_bytes(b"no gzip")
    with pytest.raises(ConfigError, match=r"t\.jsonl\.gz' cannot be read"):
        read_corpus([zipped])


def test_other_column(tmp_path):
    put(tmp_path / "t.jsonl", rows(column="body"))
    assert len(read_corpus([tmp_path], text_column="body").names) == 40
    with pytest.raises(ConfigError, match=r"t\.jsonl', line 1 has no column 'text' of text; its columns are: id, body"):
        read_corpus([tmp_path])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": ', "line 3 is not JSON"),
        (b"[" * 100_000, "line 3 is not JSON"),
        (b'"text"', "line 3 is a JSON str; every line must be an object"),
        (b'{"text": 5}', "row 3: the column 'text' is int, not text"),
        (b'{"text": "\xff"}', "line 3 is not UTF-8"),
    ],
)
def test_broken_lines_are_named(tmp_path, line, message):
    put(tmp_path / "t.jsonl", b'{"text": "good"}\n\n' + line + b'\n{"text": "fine"}\n')
    with pytest.raises(ConfigError, match=rf"t\.jsonl', {message}"):
        read_corpus([tmp_path])


def test_huge_line(tmp_path):
    put(tmp_path / "t.jsonl", json.dumps({"text": "word " * 400_000}))
    assert sum(read_corpus([tmp_path]).describe()["tokens"].values()) == 2_000_000 + 3


def test_parquet(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"text": [f"row {i} " + "abc" * 20 for i in range(40)] + [None], "id": list(range(41))})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=7)
    corpus = read_corpus([tmp_path])
    assert len(corpus.names) == 40 and texts(corpus)["t.parquet:40"].startswith("row 39 ")
    with pytest.raises(ConfigError, match=r"t\.parquet' has no column 'body' of text; its columns are: text, id"):
        read_corpus([tmp_path], text_column="body")
    with pytest.raises(ConfigError, match="'id' is int, not text"):
        read_corpus([tmp_path], text_column="id")
    put(tmp_path / "t.parquet", b"PAR1 but no more")
    with pytest.raises(ConfigError, match=r"t\.parquet' (is not a parquet file|cannot be read)"):
        read_corpus([tmp_path])


def test_hub(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    asked = []

    def load(*args, **options):
        asked.append((args, options))
        if args[0] == "org/none":
            raise FileNotFoundError("no such data set")
        return datasets.Dataset.from_dict(
            {"text": [f"row {i} " + "abc" * 20 for i in range(40)], "id": list(range(40))}
        )

    monkeypatch.setattr(datasets, "load_dataset", load)
    corpus = read_corpus(["hf:org/name:small@train[:10%]"])
    assert asked == [(("org/name", "small"), {"split": "train[:10%]"})]
    assert corpus.names[1] == "hf:org--name:small@train[:10%]/1" and len(corpus.names) == 40
    assert corpus.labels().names == ("hf:org--name:small@train[:10%]",)
    with pytest.raises(ConfigError, match="no column 'body' of text; its columns are: text, id"):
        read_corpus(["hf:org/name"], text_column="body")
    with pytest.raises(ConfigError, match="'hf:org/none' cannot be loaded: FileNotFoundError: no such data set"):
        load_hub("hf:org/none")

    def old(*args, trust_remote_code=None, **options):
        asked.append(trust_remote_code)
        return load(*args, **options)

    monkeypatch.setattr(datasets, "load_dataset", old)
    load_hub("hf:org/name")
    assert asked[-2] is False and asked[-1] == (("org/name", None), {"split": "train"})


@pytest.mark.parametrize(("source", "missing"), [("hf:org/name", "datasets"), ("t.parquet", "pyarrow")])
def test_missing_packages(tmp_path, monkeypatch, source, missing):
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "t.parquet", b"PAR1")
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=rf"needs the package {missing}.*pip install 'ropewalk\[lab\]'"):
        read_corpus([source])


def test_another_process_without_extras_sees_the_same(tmp_path):
    for name, _, text in many():
        put(tmp_path / name, text)
    code = (
        "import sys, warnings\n"
        "for name in ('numpy', 'datasets', 'pyarrow', 'tokenizers', 'safetensors'): sys.modules[name] = None\n"
        "warnings.simplefilter('ignore')\n"
        "from ropewalk.lab.data import read_corpus\n"
        f"corpus = read_corpus([{str(tmp_path)!r}])\n"
        "batch = corpus.batch(17, batch_size=4, length=32, seed=3)\n"
        "windows = [corpus.windows(split, 10, count=5, seed=3) for split in ('validation', 'test')]\n"
        "tensors = (batch.tokens, batch.targets, batch.documents, *(w.tokens for w in windows))\n"
        "print([corpus.digest, *(t.tolist() for t in tensors), *(w.documents for w in windows)])\n"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert there.returncode == 0, there.stderr
    corpus = read_corpus([tmp_path])
    batch = corpus.batch(17, batch_size=4, length=32, seed=3)
    windows = [corpus.windows(split, 10, count=5, seed=3) for split in ("validation", "test")]
    tensors = (batch.tokens, batch.targets, batch.documents, *(w.tokens for w in windows))
    assert there.stdout == f"{[corpus.digest, *(t.tolist() for t in tensors), *(w.documents for w in windows)]}\n"


# ---- the default corpus ----------------------------------------------------------------------------------------------


def test_standard_library():
    files, hub, titles = find([])
    found = {file.name for file in files}
    assert {"json/decoder.py", "argparse.py", "asyncio/events.py"} <= found and len(files) > 300 and not hub
    assert titles == [f"standard library of Python {sys.version.split()[0].rstrip('+')}"]
    for name in found:
        assert name.endswith(".py") and not name.startswith(("/", "."))
        assert not {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"} & set(name.split("/"))


def test_no_standard_library(tmp_path, monkeypatch):
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "python311.zip"))
    with pytest.raises(ConfigError, match="no source of its standard library"):
        read_corpus()


def test_standard_library_makes_a_corpus():
    corpus = read_corpus()
    facts = corpus.describe()
    assert facts["split"] == "whole documents, by a hash of their names"
    assert all(facts["documents"][split] > 10 for split in SPLITS)
    assert sum(facts["tokens"].values()) == len(corpus.tokens) > 4_000_000
    assert corpus.tokens.dtype == torch.int16 and len(corpus.labels().names) > 5
    assert len(corpus.windows("test", 1024, count=20)) == 20


# ---- splits ----------------------------------------------------------------------------------------------------------


def test_split_depends_on_the_name_only():
    few, more = make_corpus(many(60)), make_corpus([("new", "new", "z" * 50), *many(80)[::-1]])
    assert few.facts["split"] == more.facts["split"] == "whole documents, by a hash of their names"
    where = dict(zip(more.names, more.splits.tolist(), strict=True))
    assert all(where[name] == split for name, split in zip(few.names, few.splits.tolist(), strict=True))
    assert few.splits.tolist() == [split_of(f"d{i}.txt") for i in range(60)]


def test_splits_are_published_numbers():
    """A release that moved documents between splits would make old and new results disagree without a word."""
    assert [split_of(f"d{i}.txt") for i in range(20)] == [
        2,
        1,
        0,
        0,
        0,
        0,
        2,
        1,
        0,
        1,
        1,
        0,
        0,
        2,
        0,
        0,
        0,
        0,
        0,
        1,
    ]  # by b2sum


def test_shares_of_the_splits():
    count = Counter(split_of(f"name {i}") for i in range(20_000))
    assert count[0] / 20_000 == pytest.approx(0.8, abs=0.01) and count[1] / 20_000 == pytest.approx(0.1, abs=0.01)
    other = Counter(split_of(f"name {i}", (0.5, 0.2, 0.3)) for i in range(20_000))
    assert other[2] / 20_000 == pytest.approx(0.3, abs=0.02)


def test_split_of_a_file_does_not_depend_on_other_folders(tmp_path):
    for i in range(50):
        put(tmp_path / f"one/{i}.txt", f"one {i}" * 9)
        put(tmp_path / f"two/{i}.txt", f"two {i}" * 9)
    alone, both = read_corpus([tmp_path / "one"]), read_corpus([tmp_path / "one", tmp_path / "two"])
    where = dict(zip(both.names, both.splits.tolist(), strict=True))
    assert all(where[f"one/{n}"] == split for n, split in zip(alone.names, alone.splits.tolist(), strict=True))


def test_equal_texts_are_one_document():
    given = many(60)
    corpus = make_corpus([*given, *((f"copy of {name}", f"copy of {name}", text) for name, _, text in given)])
    assert corpus.digest == make_corpus(given).digest and corpus.facts["repeated"] == 60


def test_few_documents_are_cut_into_ranges():
    text = "".join(chr(97 + i % 26) for i in range(1000))
    corpus = make_corpus([("one", "one", text), ("two", "two", text[::-1])])
    assert corpus.facts["split"] == "every document cut into contiguous ranges, because there are only 2 documents"
    assert corpus.names == ("one",) * 3 + ("two",) * 3 and corpus.splits.tolist() == [0, 1, 2] * 2
    assert corpus.lengths.tolist() == [801, 101, 101] * 2
    assert (corpus.tokens[corpus.offsets[:-1]] == SPACE).all() and int((corpus.tokens == SPACE).sum()) == 6
    assert pieces(corpus) == {"one": text, "two": text[::-1]}


def test_lopsided_splits_are_cut_into_ranges():
    large = next(f"x{i}" for i in range(99) if split_of(f"x{i}") == 2)
    corpus = make_corpus([*many(60), (large, large, "large " * 10_000)])
    assert "because whole documents would give the train split" in corpus.facts["split"]
    shares = corpus.describe()["tokens"]
    assert shares["train"] / sum(shares.values()) == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("text", ["a", "ab", "abcd"])
def test_too_little_text(text):
    with pytest.raises(ConfigError, match=r"split is empty: there are 1 documents with \d tokens"):
        make_corpus([("a", "a", text)])


def test_no_text():
    with pytest.raises(ConfigError, match=r"holds no text \(left out: 2 empty\)"):
        make_corpus([("a", "a", ""), ("b", "b", " \n")])


@pytest.mark.parametrize(
    "fractions", [(0.8, 0.2), (0.8, 0.1, 0.2), (1.0, 0.0, 0.0), (float("nan"), 0.1, 0.1), ("a", 0.1, 0.1)]
)
def test_fractions(fractions):
    with pytest.raises(ConfigError, match="fractions are three positive numbers"):
        read_corpus(fractions=fractions)


# ---- tokenizers ------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=20))
def test_bytes_round_trip(text):
    tokenizer = ByteTokenizer()
    clean = text.encode(errors="replace").decode()
    ids = tokenizer.encode(clean)
    assert tokenizer.decode([tokenizer.start, *ids.tolist()]) == tokenizer.decode(ids) == clean


def test_bytes_refuse_other_ids():
    with pytest.raises(ConfigError, match=r"\[0, 257\); got 257"):
        ByteTokenizer().decode(torch.tensor([257]))
    assert ByteTokenizer().decode([0xC3]) == "\ufffd"


def word_level(special=()):
    tokenizers = pytest.importorskip("tokenizers")
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"the": 0, "rope": 1, "?": 2}, unk_token="?"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.add_special_tokens(list(special))
    inner.enable_truncation(4)
    inner.enable_padding(length=7)
    return inner


@pytest.mark.parametrize(
    ("special", "start", "size"),
    [((), 3, 4), (("<pad>", "</s>", "<s>"), 5, 6), (("<|endoftext|>", "<pad>"), 3, 5), (("<odd>",), 4, 5)],
)
def test_json_tokenizer(tmp_path, special, start, size):
    put(tmp_path / "tokenizer.json", word_level(special).to_str())
    tokenizer = find_tokenizer(tmp_path)
    assert (tokenizer.start, tokenizer.vocab_size, tokenizer.name) == (start, size, "tokenizer.json")
    assert tokenizer.encode("the rope the rope the rope").tolist() == [0, 1] * 3  # neither cut nor padded
    assert tokenizer.decode([tokenizer.start, 0, 1]) == "the rope"
    assert tokenizer.digest != JsonTokenizer(word_level((*special, "<more>")).to_str()).digest
    assert tokenizer.encode("").tolist() == []


def test_special_words_in_a_text_are_text():
    tokenizer = JsonTokenizer(word_level(("<s>",)).to_str())
    assert tokenizer.start not in tokenizer.encode("the <s> rope").tolist()


def test_long_text_is_encoded_in_pieces(monkeypatch):
    monkeypatch.setattr("ropewalk.lab.data.tokens._PIECE", 100)
    tokenizer = JsonTokenizer(word_level().to_str())
    assert tokenizer.encode("the rope\n" * 300).tolist() == [0, 1] * 300
    assert len(tokenizer.encode("the " * 600)) == 600  # no line break to cut at


def test_corpus_with_a_json_tokenizer(tmp_path):
    put(tmp_path / "tokenizer.json", word_level(("<s>",)).to_str())
    given = [(f"{i}", f"{i}", "the rope " * i + "?") for i in range(100, 160)]
    corpus = make_corpus(given, tokenizer=tmp_path / "tokenizer.json")
    assert corpus.tokens.dtype == torch.uint8 and (corpus.tokens[corpus.offsets[:-1]] == 3).all()
    assert corpus.digest != make_corpus(given).digest
    corpus.save(tmp_path / "corpus.safetensors")
    loaded = Corpus.load(tmp_path / "corpus.safetensors")
    assert loaded.describe() == corpus.describe() and loaded.tokenizer.encode("rope").tolist() == [1]


@pytest.mark.parametrize(
    ("name", "message"), [("gone.json", "cannot be read"), ("bad.json", "is not a tokenizer.json")]
)
def test_tokenizers_that_cannot_be(tmp_path, name, message):
    pytest.importorskip("tokenizers")
    put(tmp_path / "bad.json", "{}")
    with pytest.raises(ConfigError, match=message):
        read_corpus(tokenizer=tmp_path / name)


# ---- saving ----------------------------------------------------------------------------------------------------------


def test_saved_and_loaded(tmp_path):
    pytest.importorskip("safetensors")
    corpus, path = make_corpus(many(), sources=["here"]), tmp_path / "new" / "corpus.safetensors"
    corpus.save(path)
    loaded = Corpus.load(path)
    for name in ("tokens", "offsets", "splits"):
        assert torch.equal(getattr(loaded, name), getattr(corpus, name))
        assert getattr(loaded, name).dtype == getattr(corpus, name).dtype
    assert loaded.names == corpus.names and loaded.digest == corpus.digest
    assert loaded.describe() == corpus.describe() == json.loads(json.dumps(corpus.describe()))
    assert same(loaded.batch(3, batch_size=4, length=16, seed=1), corpus.batch(3, batch_size=4, length=16, seed=1))
    corpus.save(path)  # over the one that is mapped into memory
    assert os.listdir(path.parent) == [path.name] and Corpus.load(path).digest == loaded.digest


def test_what_is_no_corpus(tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    path = tmp_path / "corpus.safetensors"
    with pytest.raises(ConfigError, match="cannot be loaded"):
        Corpus.load(path)
    put(path, b"what is this, which is no safetensors")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        Corpus.load(path)
    save_file({"tokens": torch.zeros(3)}, path)
    with pytest.raises(ConfigError, match="no corpus of this version"):
        Corpus.load(path)
    make_corpus(many()).save(path)
    raw = bytearray(path.read_bytes())
    raw[raw.rfind(b"abcdefghij") if b"abcdefghij" in raw else raw.find(b"a\0b\0c\0d\0")] ^= 1
    put(path, bytes(raw))
    with pytest.raises(ConfigError, match="is damaged"):
        Corpus.load(path)


def test_digest_tells_corpora_apart():
    base = make_corpus(many()).digest
    assert make_corpus(many()).digest == base
    assert make_corpus(many(name="e{}.txt")).digest != base
    assert make_corpus(many(size=60)).digest != base
    assert make_corpus(many(), fractions=(0.6, 0.2, 0.2)).digest != base


# ---- training batches ------------------------------------------------------------------------------------------------


@st.composite
def corpora(draw):
    """Documents of one-letter alphabets, so that a token says which document it is of."""
    lengths = draw(st.lists(st.integers(2, 30), min_size=2, max_size=12))
    splits = draw(st.lists(st.integers(0, 2), min_size=len(lengths), max_size=len(lengths)).filter(lambda s: 0 in s))
    parts = [torch.tensor([SPACE] + [i] * (n - 1), dtype=torch.int16) for i, n in enumerate(lengths)]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    named = tuple(f"{i}" for i in range(len(lengths)))
    return Corpus.of(torch.cat(parts), offsets, named, torch.tensor(splits, dtype=torch.uint8), ByteTokenizer(), {})


def traced(corpus):
    """The same corpus with tokens that are numbered through: every token is the place where it is."""
    tokens = torch.arange(len(corpus.tokens), dtype=torch.int32)
    return Corpus.of(tokens, corpus.offsets, corpus.names, corpus.splits, corpus.tokenizer, {})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(corpora(), st.integers(1, 9), st.integers(1, 6), st.integers(0, 3))
def test_an_epoch_predicts_every_token_once(corpus, length, batch_size, seed):
    corpus = traced(corpus)
    train = corpus.documents("train")
    mine = {t for d in train.tolist() for t in range(int(corpus.offsets[d]), int(corpus.offsets[d + 1]))}
    firsts = set(corpus.offsets[:-1].tolist())
    if len(mine) <= length:
        with pytest.raises(ConfigError, match=f"the train split has {len(mine)} tokens"):
            corpus.batch(0, batch_size=batch_size, length=length, seed=seed)
        return
    per_epoch = (len(mine) - 1) // length
    steps = -(-2 * per_epoch // batch_size)
    batches = [corpus.batch(step, batch_size=batch_size, length=length, seed=seed) for step in range(steps)]
    tokens = torch.cat([b.tokens for b in batches])
    targets = torch.cat([b.targets for b in batches])
    document = torch.cat([torch.zeros_like(b.tokens) if b.documents is None else b.documents for b in batches])
    owner = torch.searchsorted(corpus.offsets, tokens, right=True) - 1
    assert set(tokens.flatten().tolist()) <= mine
    # A target is the next token of the same document, or nothing at the document's end.
    last = corpus.offsets[owner + 1] - 1
    assert torch.equal(targets, torch.where(tokens == last, IGNORE, tokens + 1))
    # Documents of a row are told apart exactly where they differ, and numbered from 0.
    assert torch.equal(document[:, 1:] != document[:, :-1], owner[:, 1:] != owner[:, :-1])
    assert (document[:, 0] == 0).all() and (document.diff(dim=1) >= 0).all()
    for epoch in range(2):
        rows = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
        seen = Counter(targets[rows][targets[rows] != IGNORE].tolist())
        read = Counter(tokens[rows].flatten().tolist())
        assert set(read.values()) == {1} and len(read) == per_epoch * length
        assert set(seen.values()) <= {1} and not set(seen) & firsts
        dropped = len(mine) - 1 - per_epoch * length  # less than a window, and the first token of the stream
        assert dropped < length and len(mine - firsts - set(seen)) <= dropped


@settings(max_examples=25, deadline=None)
@given(corpora(), st.integers(1, 6), st.integers(1, 5))
def test_fast_path_only_without_borders(corpus, length, batch_size):
    if int(corpus.lengths[corpus.documents("train")].sum()) <= length:
        return
    for step in range(4):
        batch = corpus.batch(step, batch_size=batch_size, length=length, seed=0)
        border = (batch.tokens[:, 1:] == SPACE).any()
        assert (batch.documents is not None) == bool(border)
        assert batch.tokens.dtype == batch.targets.dtype == torch.int64
        assert batch.tokens.shape == batch.targets.shape == (batch_size, length)


def test_batches_are_a_function_of_step_and_seed():
    corpus, twin = make_corpus(many()), make_corpus(many())
    forwards = [corpus.batch(i, batch_size=3, length=20, seed=5) for i in range(60)]
    for step in (59, 7, 58, 0):
        assert same(twin.batch(step, batch_size=3, length=20, seed=5), forwards[step])
        assert same(corpus.batch(step, batch_size=3, length=20, seed=5), forwards[step])
        assert not same(corpus.batch(step, batch_size=3, length=20, seed=6), forwards[step])
    # Rows count on: what is in a step depends on the batch size only in where it is cut.
    wide = corpus.batch(1, batch_size=6, length=20, seed=5)
    assert torch.equal(wide.tokens, torch.cat([forwards[2].tokens, forwards[3].tokens]))


def test_epochs_differ():
    corpus = traced(make_corpus(many()))
    per_epoch = (int(corpus.lengths[corpus.documents("train")].sum()) - 1) // 20
    one, two = (corpus.batch(step, batch_size=per_epoch, length=20, seed=0) for step in (0, 1))
    assert not torch.equal(one.tokens.flatten().sort().values, two.tokens.flatten().sort().values)


def test_batch_larger_than_many_epochs():
    corpus = make_corpus([("a", "a", "abcdefghij" * 3)])
    assert corpus.batch(2, batch_size=100, length=5, seed=0).tokens.shape == (100, 5)


@pytest.mark.parametrize(
    "wrong", [{"step": -1}, {"step": True}, {"step": 1.0}, {"batch_size": 0}, {"length": 2.5}, {"seed": -1}]
)
def test_batches_that_cannot_be(wrong):
    asked = {"step": 0, "batch_size": 2, "length": 4, "seed": 0, **wrong}
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} is a whole number"):
        make_corpus(many()).batch(asked.pop("step"), **asked)


# ---- windows ---------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(corpora(), st.integers(1, 9), st.integers(1, 20), st.integers(0, 3), st.sampled_from(SPLITS))
def test_windows_stay_within_documents_and_apart(corpus, length, count, seed, split):
    corpus = traced(corpus)
    mine = corpus.documents(split)
    room = (corpus.lengths[mine] // (length + 1)).tolist()
    if not sum(room):
        with pytest.raises(ConfigError, match=f"documents in the {split} split has"):
            corpus.windows(split, length, count=count, seed=seed)
        return
    windows = corpus.windows(split, length, count=count, seed=seed)
    assert len(windows) == min(count, sum(room)) and windows.asked == count
    assert torch.equal(windows.tokens, windows.tokens[:, :1] + torch.arange(length + 1))
    owner = torch.searchsorted(corpus.offsets, windows.tokens, right=True) - 1
    assert (owner == owner[:, :1]).all() and set(owner[:, 0].tolist()) <= set(mine.tolist())
    assert windows.documents == tuple(corpus.names[i] for i in owner[:, 0].tolist())
    assert torch.equal(windows.starts, windows.tokens[:, 0] - corpus.offsets[owner[:, 0]])
    assert len(set(windows.tokens.flatten().tolist())) == windows.tokens.numel()  # no token is scored twice
    spread = Counter(windows.documents)
    assert len(spread) == min(count, sum(n > 0 for n in room))
    for document, n in zip(mine.tolist(), room, strict=True):  # no document has two more than one that has room
        if n > spread[corpus.names[document]]:
            assert spread[corpus.names[document]] >= max(spread.values()) - 1
    assert len(set(windows.documents[: len(spread)])) == len(spread)
    again = corpus.windows(split, length, count=count, seed=seed)
    assert torch.equal(again.tokens, windows.tokens)


def test_windows_as_a_batch():
    windows = make_corpus(many()).windows("test", 10, count=4)
    batch = windows.batch(1, 3)
    assert torch.equal(batch.tokens, windows.tokens[1:3, :-1]) and torch.equal(batch.targets, windows.tokens[1:3, 1:])
    assert batch.documents is None and batch.scored == 20


def test_no_document_is_long_enough():
    with pytest.raises(
        ConfigError, match=r"need 501 tokens .* documents in the test split has 54; give shorter eval_lengths"
    ):
        make_corpus(many()).windows("test", 500, count=4)


def test_unknown_split():
    with pytest.raises(ConfigError, match="one of train, validation, test; got 'dev'"):
        make_corpus(many()).windows("dev", 5, count=4)


# ---- classes ---------------------------------------------------------------------------------------------------------


def mixed():
    found = [*many(60, name="one/d{}.txt"), *many(60, 60, name="two/x/d{}.txt"), *many(40, 70, name="d{}.md")]
    return make_corpus([*found, ("rare/a", "rare/a", "z" * 70), ("bare", "bare", "y" * 70)])


def test_labels():
    labels = mixed().labels()
    assert labels.names == (".md", "one", "two", "other")
    assert labels.ids.bincount().tolist() == [40, 60, 60, 2]


def test_labels_of_tables_and_of_several_files(tmp_path):
    put(tmp_path / "a.jsonl", rows(30))
    put(tmp_path / "b.md", "words " * 50)
    put(tmp_path / "1/c.md", "other words " * 50)
    assert read_corpus([tmp_path / "a.jsonl", tmp_path / "b.md"]).labels().names == (".jsonl", ".md")


@pytest.mark.parametrize("split", SPLITS)
def test_classification_batches(split):
    corpus, length = mixed(), 30
    labels, seen = corpus.labels(), []
    mine = corpus.documents(split)
    where = traced(corpus)
    for step in range(-(-len(mine) // 8)):
        batch = corpus.classification_batch(step, batch_size=8, length=length, seed=1, split=split)
        places = where.classification_batch(step, batch_size=8, length=length, seed=1, split=split).tokens
        assert batch.tokens.shape == (8, length) and batch.documents is None
        assert (batch.targets[:, :-1] == IGNORE).all() and batch.scored == 8
        owner = torch.searchsorted(corpus.offsets, places, right=True) - 1
        assert (owner == owner[:, :1]).all() and torch.equal(batch.targets[:, -1], labels.ids[owner[:, 0]])
        assert torch.equal(corpus.tokens[places].long(), batch.tokens)
        seen += owner[:, 0].tolist()
    assert sorted(seen[: len(mine)]) == mine.tolist()  # every document once an epoch
    again = mixed().classification_batch(1, batch_size=8, length=length, seed=1, split=split)
    assert same(again, corpus.classification_batch(1, batch_size=8, length=length, seed=1, split=split))


def test_one_class_is_none():
    with pytest.raises(ConfigError, match=r"are '\.txt'.*at least two folders"):
        make_corpus(many()).classification_batch(0, batch_size=2, length=10, seed=0)


def test_documents_too_short_for_classes():
    with pytest.raises(ConfigError, match="no document of the train split has 500 tokens; the longest of"):
        mixed().classification_batch(0, batch_size=2, length=500, seed=0)


# ---- progress --------------------------------------------------------------------------------------------------------


def test_progress(tmp_path):
    put(tmp_path / "t.jsonl", rows(3000))
    put(tmp_path / "a.txt", "text " * 9999)
    told = []
    read_corpus([tmp_path], progress=lambda done, total: told.append((done, total)))
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    done = [d for d, _ in told]
    assert told[-1] == (total, total) and {t for _, t in told} == {total}
    assert done == sorted(set(done)) and 5 < len(told) < 1010


def test_failed_reading_is_never_finished(tmp_path):
    put(tmp_path / "t.jsonl", rows(30) + "{broken")
    told = []
    with pytest.raises(ConfigError, match="line 31"):
        read_corpus([tmp_path], progress=lambda done, total: told.append(done == total))
    assert not any(told)
