"""How much of a model is measured."""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.core.errors import ConfigError, check_positive


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Args:
        max_tokens: of a text; longer ones are cut into pieces.
        max_texts: pieces, drawn with the seed where there are more.
        context: tokens wanted, for the distribution of angles; None: twice the trained context.
        needles: of the needle test; 0 leaves it out, as does a missing tokenizer.
        needle_words: of each.
        masks: heads whose query masks are learned, which takes seconds each; 0 leaves it out.
        changes: whether the effect of taking things away is measured too, the longest part.
        seed: of everything that is drawn.
        remark: is added to every summary, such as that weights were quantised.
    """

    max_tokens: int = 512
    max_texts: int = 8
    context: int | None = None
    needles: int = 8
    needle_words: int = 200
    masks: int = 3
    changes: bool = True
    seed: int = 0
    remark: str = ""

    def __post_init__(self) -> None:
        check_positive(
            max_tokens=self.max_tokens, max_texts=self.max_texts, context=self.context, needle_words=self.needle_words
        )
        for name in ("needles", "masks"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigError(f"{name} is a whole number from 0; got {value!r}")
