"""How papers tune a model for a longer context: what is applied, what is trained, and with which numbers. Plain data.

`ropewalk extend --tune` takes the first three of these apart: ``--method`` is what is applied, ``--recipe`` where tokens stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ropewalk.core.errors import UnknownNameError, suggest


@dataclass(frozen=True, slots=True)
class PublishedRecipe:
    """One paper's way.

    Attributes:
        name: of the system.
        method: what is applied to the model before, for `hf.apply`; {factor} is wanted over trained length.
        positions: where the tokens of a training text stand.
        trains: what is trained: "all", or parts of names of parameters, as `ropewalk.rotary.psc.train_only` takes them.
        settings: the paper's numbers.
        source: title, arXiv id and year.
        note: what has to be known besides.
    """

    name: str
    method: str
    positions: str
    trains: tuple[str, ...]
    source: str
    settings: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


def _recipe(
    name: str, method: str, positions: str, trains: tuple[str, ...], source: str, note: str = "", **settings: float
) -> PublishedRecipe:
    return PublishedRecipe(name, method, positions, trains, source, MappingProxyType(settings), note)


RECIPES: Mapping[str, PublishedRecipe] = MappingProxyType(
    {
        one.name: one
        for one in (
            _recipe(
                "endprompt", "linear(factor={factor})", "endprompt", ("all",),
                "EndPrompt: Efficient Long-Context Extension via Terminal Anchoring. arXiv 2605.14589, 2026",
                "The factor is rounded up to a whole number. `ropewalk.lab.tuning.endprompt` makes the samples.",
                learning_rate=2e-5, warmup_steps=20, weight_decay=0.0, batch_size=64, terminal=20,
            ),
            _recipe(
                "pose", "linear(factor={factor})", "pose", ("all",),
                "PoSE: Efficient Context Window Extension of LLMs via Positional Skip-wise Training. arXiv 2309.10400, 2023",
                "Positions are `ropewalk.coordinates.skipped.pose_positions`; the numbers of the paper's runs were not read.",
            ),
            _recipe(
                "psc", "psc", "in order, of the wanted length", ("lora", "phase"),
                "PSC: Extending Context Window of Large Language Models via Phase Shift Calibration. arXiv 2505.12423, 2025",
                "On top of PI or YaRN: hf.apply the schedule first, then psc, which takes over its frequencies.",
                learning_rate=2e-4, warmup_steps=20, weight_decay=0.0, steps=3000, batch_size=16, lora_rank=8, lora_alpha=16,
            ),
            _recipe(
                "dprope", "dprope(length={length})", "in order, of the wanted length", ("all",),
                "Extending Context Window of Large Language Models from a Distributional Perspective. arXiv 2410.01490, 2024",
                "500 steps where the context becomes four times as long.",
                steps=1000, batch_size=64,
            ),
            _recipe(
                "harpe", "harpe(lowest=1e6, highest=5e6)", "in order, of the wanted length", ("all",),
                "Breaking the Stage Barrier: A Novel Single-Stage Approach to Long Context Extension for Large Language Models. "
                "arXiv 2412.07171, 2024",
                "6 billion tokens, from 4,096 to 128,000 at once. The bases are for that length.",
                learning_rate=2e-5, beta1=0.9, beta2=0.95,
            ),
            _recipe(
                "anchor", "abf(base=1e5)", "packed documents behind one anchor, counted on", ("all",),
                "When Precision Meets Position: BFloat16 Breaks Down RoPE in Long-Context Training. arXiv 2411.13476, 2024",
                "`ropewalk.lab.tuning.anchor` packs the rows; `AnchorAttention` is for training, and inference ordinary. "
                "The base is the demo's, of 64,000 tokens.",
                learning_rate=2e-5, steps=2000, batch_size=8,
            ),
            _recipe(
                "swap", "partial(rope, dims={half_head})", "in order", ("lora",),
                "Towards Inducing Long-Context Abilities in Multilingual Neural Machine Translation Models. "
                "arXiv 2408.11382, 2024",
                "Of encoders and decoders: `ropewalk.lab.seq2seq.swap_positional_encoding`. LoRA on keys and values; the numbers "
                "of the paper's own runs were not confirmed.",
                lora_rank=8, lora_alpha=16, lora_dropout=0.05,
            ),
        )
    }
)  # fmt: skip


def published(name: str) -> PublishedRecipe:
    """Return a recipe by name.

    Raises:
        UnknownNameError: there is none.
    """
    if name not in RECIPES:
        raise UnknownNameError(f"no recipe is called {name!r}.{suggest(name, RECIPES)} There are {', '.join(RECIPES)}.")
    return RECIPES[name]
