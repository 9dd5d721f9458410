"""Encodings that act on token embeddings."""

from __future__ import annotations

from ropewalk.catalog.entry import Record, Traits
from ropewalk.catalog.papers import randomized

# In the order in which they were added. Encodings that leave q and k alone keep their norm.
RECORDS: tuple[Record, ...] = (
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
    randomized(
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
    randomized(
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
)
