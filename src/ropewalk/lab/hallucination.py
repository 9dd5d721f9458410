"""Scores of what a model says that is not there: yes and no (POPE), and objects named in captions (CHAIR)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ropewalk.core.errors import ConfigError


@dataclass(frozen=True)
class YesNo:
    """Answers to "is there …?", counted.

    Attributes:
        accuracy: answers that are right.
        precision: of those who say yes; None: nobody does.
        recall: of what is there; None: nothing is.
        f1: harmonic mean of the two; None where one is.
        yes: answers that are yes, a half where a model is even-handed.
    """

    accuracy: float
    precision: float | None
    recall: float | None
    f1: float | None
    yes: float


def yes_no(answers: Sequence[bool], truth: Sequence[bool]) -> YesNo:
    """Count answers against what is true.

    Source: Yifan Li et al. Evaluating Object Hallucination in Large Vision-Language Models. arXiv 2305.10355, 2023.
    """
    if not answers or len(answers) != len(truth):
        raise ConfigError(f"{len(answers)} answers to {len(truth)} questions; give one for each, and at least one")
    both = sum(a and t for a, t in zip(answers, truth, strict=True))
    said, there = sum(answers), sum(truth)
    precision = both / said if said else None
    recall = both / there if there else None
    f1 = None if precision is None or recall is None else 2 * both / (said + there)
    right = sum(a == t for a, t in zip(answers, truth, strict=True))
    return YesNo(right / len(truth), precision, recall, f1, said / len(truth))


def chair(mentioned: Sequence[Collection[str]], present: Sequence[Collection[str]]) -> tuple[float | None, float]:
    """Return (CHAIR_I, CHAIR_S): objects mentioned that are not there, by objects mentioned; captions with any, by captions.

    Args:
        mentioned: objects of each caption.
        present: objects of each image.

    Returns:
        CHAIR_I is None where no caption mentions anything.

    Source: Anna Rohrbach et al. Object Hallucination in Image Captioning. arXiv 1809.02156, 2018.
    """
    if not mentioned or len(mentioned) != len(present):
        raise ConfigError(f"{len(mentioned)} captions of {len(present)} images; give one for each, and at least one")
    wrong = [len(set(said) - set(there)) for said, there in zip(mentioned, present, strict=True)]
    named = sum(len(set(said)) for said in mentioned)
    return (sum(wrong) / named if named else None), sum(w > 0 for w in wrong) / len(wrong)
