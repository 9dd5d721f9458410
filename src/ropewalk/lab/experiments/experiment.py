"""What an experiment is: a claim of a paper, written down with what is expected, before anything is run. Plain data.

    EXPERIMENT = Experiment(
        name="pope",
        ...
        settings={"encodings": ("pope", "rope"), "task": "indirect_indexing", ...},
        contrasts=(Contrast("pope", "rope", "higher", (12,)),),
    )

Nothing here imports torch, so that the claims can be listed at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ropewalk.core.errors import ConfigError
from ropewalk.lab.experiments.verdict import WANTS, Want

if TYPE_CHECKING:
    from ropewalk.lab.settings import Settings

LEAST_SEEDS = 3


@dataclass(frozen=True, slots=True)
class Contrast:
    """The difference ours − other that is measured, paired by seed and by document, and the side it is expected on.

    Attributes:
        ours: encoding as the settings name it.
        other: what it is compared with.
        want: "lower", "higher" or "within"; losses are nats a token, exact matches fractions.
        sizes: the length of text, or sizes of a task, whose mean is compared.
        margin: of "within".
        decides: whether the verdict follows from it; others are measured and shown.
        because: what it is for, where that needs words.
    """

    ours: str
    other: str
    want: Want
    sizes: tuple[int, ...]
    margin: float = 0.0
    decides: bool = True
    because: str = ""

    def __post_init__(self) -> None:
        if self.want not in WANTS:
            raise ConfigError(f"want is one of {', '.join(WANTS)}; got {self.want!r}")
        if not self.sizes or self.ours == self.other:
            raise ConfigError(f"a contrast compares two encodings at one size or more; got {self}")


@dataclass(frozen=True, slots=True)
class Experiment:
    """A claim and how it is put to the test.

    Attributes:
        name: of the experiment, of ``evidence/NAME.json`` and of ``runs/reproduce-NAME``.
        slugs: the encodings of the catalog that it is evidence for.
        claim: what the paper says, in one sentence.
        source: authors, title, arXiv id and year.
        expected: the direction that is expected in this setting.
        settings: what `Settings` takes; the smallest setting in which the claim should show.
        contrasts: what is compared; the deciding ones make the verdict.
        seconds: what it is expected to take on two cores, all seeds and baselines included.
        full: settings that differ in the longer form.
        drop_in: encodings that are not trained but put into the trained models of another: ``{new: trained}``.
        altered: trained models that are changed by hand and measured once more: ``{name: (encoding, "module:function")}``;
            the function takes a model and what it is measured on, and changes the model in place.
        before: settings of an earlier stage of training, whose models this one goes on with.
        start: which model of the earlier stage each encoding goes on with.
        limits: what a desk cannot show of the claim.
        out_of_reach: why the claim itself cannot be shown here at all; the verdict is then "cannot show here".
    """

    name: str
    slugs: tuple[str, ...]
    claim: str
    source: str
    expected: str
    settings: Mapping[str, Any]
    contrasts: tuple[Contrast, ...]
    seconds: int
    limits: str
    full: Mapping[str, Any] = field(default_factory=dict)
    drop_in: Mapping[str, str] = field(default_factory=dict)
    altered: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    before: Mapping[str, Any] | None = None
    start: Mapping[str, str] = field(default_factory=dict)
    out_of_reach: str = ""

    def __post_init__(self) -> None:
        if self.settings.get("seeds", LEAST_SEEDS) < LEAST_SEEDS:
            raise ConfigError(f"{self.name}: an experiment has at least {LEAST_SEEDS} seeds")
        if not any(contrast.decides for contrast in self.contrasts):
            raise ConfigError(f"{self.name}: no contrast decides, so there is no verdict")
        trained = {*self.settings["encodings"], *self.drop_in}
        measured = {*trained, *self.altered}
        for contrast in self.contrasts:
            for encoding in (contrast.ours, contrast.other):
                if encoding not in measured:
                    raise ConfigError(f"{self.name}: {encoding!r} is compared and not among {sorted(measured)}")
            if not set(contrast.sizes) <= set(self.settings["eval_lengths"]):
                raise ConfigError(f"{self.name}: {contrast.sizes} are compared and not all in eval_lengths")
            if self.settings.get("task", "text") == "text" and len(contrast.sizes) > 1:
                raise ConfigError(f"{self.name}: losses at {contrast.sizes} do not make a mean; compare one length")
        for new, of in self.drop_in.items():
            if of not in self.settings["encodings"]:
                raise ConfigError(f"{self.name}: {new!r} is put into models of {of!r}, which nobody trains")
        for new, (of, _) in self.altered.items():
            if of not in trained:
                raise ConfigError(f"{self.name}: {new!r} changes models of {of!r}, and there are none")
        if (self.before is None) != (not self.start):
            raise ConfigError(f"{self.name}: before= and start= belong together")
        if self.before is not None and set(self.start) != set(self.settings["encodings"]):
            raise ConfigError(f"{self.name}: start says for every encoding what it goes on with")

    def asked(self, *, full: bool = False, seeds: int | None = None, tokens: int | None = None) -> Settings:
        """Return the settings of the run.

        Args:
            full: the longer form.
            seeds: another number of seeds.
            tokens: another budget of training, to try the experiment out.
        """
        return self._settings({**self.settings, **(self.full if full else {})}, seeds, tokens)

    def asked_before(
        self, *, full: bool = False, seeds: int | None = None, tokens: int | None = None
    ) -> Settings | None:
        """Return the settings of the earlier stage, with the seeds of the later one."""
        if self.before is None:
            return None
        if seeds is None:
            seeds = self.asked(full=full).seeds
        return self._settings(self.before, seeds, tokens)

    def command(self, *, full: bool = False, seeds: int | None = None) -> str:
        """Return the command that makes the evidence."""
        parts = ["ropewalk", "reproduce", self.name, *(["--full"] if full else [])]
        return " ".join([*parts, *([f"--seeds {seeds}"] if seeds is not None else [])])

    def _settings(self, values: Mapping[str, Any], seeds: int | None, tokens: int | None) -> Settings:
        from ropewalk.lab.settings import Settings

        given = {"seeds": LEAST_SEEDS, **values}
        given.update({} if seeds is None else {"seeds": seeds})
        given.update({} if tokens is None else {"tokens": tokens})
        return Settings.from_dict(given)
