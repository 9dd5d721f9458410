"""The text that models are compared on: read once, split without leaks, served as a pure function of the step."""

from ropewalk.lab.data.build import make_corpus, read_corpus
from ropewalk.lab.data.corpus import Corpus
from ropewalk.lab.data.labels import Labels
from ropewalk.lab.data.splits import SPLITS
from ropewalk.lab.data.tokens import ByteTokenizer, JsonTokenizer, Tokenizer, find_tokenizer
from ropewalk.lab.data.windows import Windows

__all__ = [
    "SPLITS",
    "ByteTokenizer",
    "Corpus",
    "JsonTokenizer",
    "Labels",
    "Tokenizer",
    "Windows",
    "find_tokenizer",
    "make_corpus",
    "read_corpus",
]
