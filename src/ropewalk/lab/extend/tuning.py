"""A short training for a longer context: adapters or all parameters, safe against a kill at any moment.

Batches and positions are functions of the step, so a checkpoint holds what is trained and the optimiser, and nothing else.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.bias.anchor_attention import AnchorAttention
from ropewalk.core.combinators import Sequential
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import ConfigError
from ropewalk.integrations.transformers import parts
from ropewalk.integrations.transformers.apply import apply, encodings, remove
from ropewalk.integrations.transformers.apply import spectrum as hf_spectrum
from ropewalk.integrations.transformers.attention import NAME
from ropewalk.integrations.transformers.bridge import bridge_of
from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.data import Corpus
from ropewalk.lab.data.packing import generator
from ropewalk.lab.errors import DataError, TrialError
from ropewalk.lab.extend.copies import Copies
from ropewalk.lab.extend.losses import token_losses
from ropewalk.lab.extend.recipes import RECIPES
from ropewalk.lab.extend.settings import Extension
from ropewalk.lab.trial import Checkpoint, Measured, Progress, project, seed_step

WARMUP = 20
"""Steps in which the learning rate rises; it stays from there, as in EndPrompt, PSC and LongLoRA."""

REPORT_EVERY = 5


class Tuning:
    """A model in training. It is changed in place; `finish` gives it back without adapters.

    Args:
        model: of transformers, with what was applied to it.
        corpus: its training split is read.
        settings: steps, learning rate, recipe, ….
        trained: tokens of the trained context: the length of a sequence, unless the recipe takes the wanted one.
        wanted: tokens of the wanted context.

    Raises:
        ConfigError: the package peft is missing; nothing to train.
        DataError: less text than one sequence.
    """

    def __init__(self, model: Any, corpus: Corpus, settings: Extension, trained: int, wanted: int) -> None:
        if isinstance(model, Copies):
            raise ConfigError("copies under several bases are for a trained model, and are not tuned")
        self.model, self.corpus, self.settings = model, corpus, settings
        self.recipe = RECIPES[settings.recipe]
        self.wanted = wanted
        self._static: Callable[[Any], Any] | None = None
        self.length = wanted if self.recipe.long else trained
        tokens = int(corpus.lengths[corpus.documents("train")].sum())
        if tokens <= self.length:
            raise DataError(
                f"tuning takes sequences of {self.length:,} tokens, and besides the documents that are measured there are "
                f"{tokens:,}; give more text{', or --recipe endprompt' if self.recipe.long else ''}"
            )
        prompt = torch.as_tensor(corpus.tokenizer.encode(self.recipe.prompt or "")).long()
        self.prompt = prompt if 2 * len(prompt) <= self.length else prompt[:0]
        if self.recipe.anchored:
            self._static = _anchored(model)
        for parameter in model.parameters():
            parameter.requires_grad_(settings.full)
        self._adapted = None if settings.full else _with_adapters(model, settings)
        for name, parameter in model.named_parameters():  # what an encoding learns is always trained
            if name.startswith(f"{NAME}."):
                parameter.requires_grad_(True)
        self.trained: dict[str, nn.Parameter] = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if settings.gradient_checkpointing:
            _checkpointing(model, "enable")({"use_reentrant": False})
        self.optimizer = torch.optim.AdamW(
            list(self.trained.values()), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )

    def run(self, checkpoint: bytes | None = None) -> Iterator[Progress | Checkpoint | Measured]:
        """Train, from the last `Checkpoint` if one is given; the end is the curve."""
        start, curve = (0, _Curve()) if checkpoint is None else self.restore(checkpoint)
        steps, every = self.settings.tune, self.settings.checkpoint_every
        self.model.train()
        since: list[float] = []
        clock = time.perf_counter()
        for step in range(start, steps):
            loss = self._step(step)
            since.append(loss)
            if (step + 1) % REPORT_EVERY == 0 or step + 1 == steps or (step + 1) % every == 0:
                seconds = time.perf_counter() - clock
                curve.step.append(step + 1)
                curve.tokens.append((step + 1) * self.settings.batch_size * self.length)
                curve.loss.append(sum(since) / len(since))
                speed = len(since) * self.settings.batch_size * self.length / max(seconds, 1e-9)
                yield Progress(step + 1, steps, curve.loss[-1], speed)
                since, clock = [], time.perf_counter()
            if (step + 1) % every == 0 or step + 1 == steps:
                yield Checkpoint(step + 1, self.content(step + 1, curve))
        self.model.eval()
        yield Measured("curve", ({"kind": "curve", "step": curve.step, "tokens": curve.tokens, "loss": curve.loss},))

    def _step(self, step: int) -> float:
        seed_step(self.settings.seed, "extend", step)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * min(1.0, (step + 1) / min(WARMUP, self.settings.tune))
        batch, positions = self.batch(step)
        facts = {"document": batch.documents} if batch.documents is not None else None
        with torch.enable_grad():
            losses = token_losses(self.model, batch.tokens, batch.targets, positions, facts, self.corpus.tokenizer)
            loss = losses.mean()
        loss.backward()
        nn.utils.clip_grad_norm_(list(self.trained.values()), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        project(self.model)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise TrialError(f"the loss became {value} at step {step}; a smaller --lr may help")
        return value

    def batch(self, step: int) -> tuple[Batch, Tensor]:
        """Return the sequences of a step, and where their tokens stand.

        Documents that share a sequence see each other, as in EndPrompt, unless the recipe says otherwise.
        """
        made = self.corpus.batch(step, batch_size=self.settings.batch_size, length=self.length, seed=self.settings.seed)
        vocabulary = self.model.config.get_text_config().vocab_size
        begins = _begins(self.model.config, vocabulary)
        tokens = torch.where(made.tokens < vocabulary, made.tokens, begins)  # the corpus's own mark of a beginning
        draw = generator("positions", self.settings.recipe, self.settings.seed, step)
        terminal = len(self.prompt) or max(1, self.length // 4)
        positions = self.recipe.positions(len(tokens), self.length, terminal, self.wanted, draw)
        if len(self.prompt):
            tokens, targets = tokens.clone(), made.targets.clone()
            tokens[:, -terminal:] = self.prompt
            targets[:, -terminal - 1 : -1], targets[:, -1] = self.prompt, IGNORE
            return Batch(tokens, targets), positions
        if not self.recipe.anchored:
            return Batch(tokens, made.targets), positions
        # The anchor takes the place of the first token, and is document 0.
        documents = torch.zeros_like(tokens) if made.documents is None else made.documents
        documents, tokens = documents + 1, tokens.clone()
        documents[:, 0], tokens[:, 0] = 0, begins
        return Batch(tokens, made.targets, documents), positions

    def content(self, step: int, curve: _Curve) -> bytes:
        """Return a safetensors file from which training can go on."""
        from safetensors.torch import save

        tensors = {f"model/{name}": p.detach().cpu().contiguous() for name, p in self.trained.items()}
        for name, parameter in self.trained.items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{key}/{name}"] = value.detach().cpu().contiguous()
        return save(tensors, {"step": str(step), "curve": json.dumps(curve.as_dict())})

    def restore(self, content: bytes) -> tuple[int, _Curve]:
        """Take back what `content` wrote."""
        from safetensors.torch import load

        about = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
        with torch.no_grad():
            for label, value in load(content).items():
                what, _, name = label.partition("/")
                if what == "model":
                    self.trained[name].copy_(value)
                else:
                    key, _, name = name.partition("/")
                    parameter = self.trained[name]
                    home = torch.device("cpu") if key == "step" else parameter.device
                    self.optimizer.state[parameter][key] = value.to(home)
        return int(about["step"]), _Curve(**json.loads(about["curve"]))

    def finish(self) -> Any:
        """Return the model with what was learned in its own weights."""
        if self.settings.gradient_checkpointing:
            _checkpointing(self.model, "disable")()
        if self._adapted is not None:
            self.model = self._adapted.merge_and_unload()
        if self._static is not None:  # the anchor was for training
            self._static(self.model)
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)
        return self.model.eval()


@dataclass
class _Curve:
    """The training curve so far."""

    step: list[int]
    tokens: list[int]
    loss: list[float]

    def __init__(
        self, step: list[int] | None = None, tokens: list[int] | None = None, loss: list[float] | None = None
    ) -> None:
        self.step, self.tokens, self.loss = step or [], tokens or [], loss or []

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"step": self.step, "tokens": self.tokens, "loss": self.loss}


def check_peft() -> Any:
    """Import the package that adapters need.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import peft
    except ImportError as problem:
        raise ConfigError(
            f"--tune trains adapters with the package peft ({problem}): pip install 'ropewalk[extend]', or train all parameters "
            "with --full"
        ) from None
    return peft


def _with_adapters(model: Any, settings: Extension) -> Any:
    """Put adapters beside the linear maps of all attention layers; their start is the model itself."""
    peft = check_peft()
    own = {id(child) for layer in parts.attention_layers(model) for child in layer.modules()}
    targets = [name for name, m in model.named_modules() if isinstance(m, nn.Linear) and id(m) in own]
    if not targets:
        raise ConfigError(f"{type(model).__name__} has no linear maps in its attention layers; train with --full")
    config = peft.LoraConfig(r=settings.rank, lora_alpha=2 * settings.rank, lora_dropout=0.0, target_modules=targets)
    seed_step(settings.seed, "adapters")
    with warnings.catch_warnings():  # of what peft asks transformers
        warnings.simplefilter("ignore", FutureWarning)
        return peft.get_peft_model(model, config)


def _anchored(model: Any) -> Callable[[Any], Any]:
    """Let documents share an anchor in the model's own frequencies, and return what takes it out again.

    Raises:
        ConfigError: a model with another encoding, of which nobody knows how to go with it.
    """
    bridge = bridge_of(model)
    if bridge is not None and bridge.encodings is not None:
        raise ConfigError("the recipe 'anchor' goes with frequencies alone, and this method is an encoding")
    own = None if bridge is None else hf_spectrum(model)
    anchored: list[Encoding] = [Sequential(encoding, AnchorAttention()) for encoding in encodings(model)]
    apply(model, anchored)
    return lambda model: remove(model) if own is None else apply(model, own)


def _checkpointing(model: Any, what: str) -> Any:
    """Return a switch of gradient checkpointing by the name that this release of transformers has for it."""
    newer = getattr(model, f"activation_checkpointing_{what}", None)
    return newer if newer is not None else getattr(model, f"gradient_checkpointing_{what}")


def _begins(config: Any, vocabulary: int) -> int:
    """Return a token that begins or ends a text."""
    for name in ("bos_token_id", "eos_token_id"):
        token = getattr(config.get_text_config(), name, None)
        token = token[0] if isinstance(token, list) else token
        if isinstance(token, int) and 0 <= token < vocabulary:
            return token
    return 0
