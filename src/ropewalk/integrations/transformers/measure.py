"""What a trained model of transformers does with positions, measured with text.

    for section in measure(model, tokenizer, texts):
        print(section.name, section.summary)

Each text passes through the model once while everything that can be seen in one pass is watched, layer by layer; needle
tests and the effect of taking things away follow. Only sums of a few numbers a head are kept, so the model may be one whose
layers come from the disk when they are needed (``from_pretrained(path, device_map="auto", offload_folder=...)``). Afterwards
the model is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ropewalk.analysis.inspection.findings import Finding, Section, Table
from ropewalk.analysis.paragraph_compression import density_matched_labels, paragraph_labels
from ropewalk.core.errors import ConfigError, ShapeError
from ropewalk.frequencies import Spectrum
from ropewalk.frequencies.dprope import dprope_report
from ropewalk.integrations.transformers import parts
from ropewalk.integrations.transformers.effects import Trial, retrieval, taken_away, utility
from ropewalk.integrations.transformers.plan import Plan
from ropewalk.integrations.transformers.probe import LayerShape, LayerStates, Probe, layer_shapes
from ropewalk.integrations.transformers.watching.attention import Distances, Entropy, Paragraphs, Positional
from ropewalk.integrations.transformers.watching.states import Massive, Norms, QuerySizes, Stability
from ropewalk.integrations.transformers.watching.watch import Watch, Window, planes_of
from ropewalk.integrations.transformers.weights import spectra

BLOCK = 256
"""Queries whose attention is held at once."""

W = TypeVar("W", bound=Watch)


def measure(
    model: Any,
    tokenizer: Any | None,
    texts: Sequence[str] | Sequence[Tensor],
    plan: Plan | None = None,
    **changes: Any,
) -> Iterator[Section]:
    """Yield what is found, section by section, as soon as it is known.

    Args:
        model: a causal model of transformers.
        tokenizer: its own; None where texts are tokens, which leaves paragraphs and needles out.
        texts: strings, or tokens (S,) each.
        plan: how much is measured.
        changes: fields of the plan.

    Raises:
        ConfigError: a model that cannot be looked at (`layer_shapes`) or whose layers differ in heads or planes, no text,
            fields that are no plan's.
        ShapeError: tokens of another shape, or that the model does not have.
    """
    try:
        plan = replace(plan or Plan(), **changes)
    except TypeError as problem:
        raise ConfigError(f"{problem}; a plan has {', '.join(vars(Plan()))}") from None
    shapes = layer_shapes(model, length=plan.max_tokens)
    _alike(model, shapes)
    pieces = windows(model, tokenizer, texts, plan)
    return _remarked(_measured(model, tokenizer, shapes, pieces, plan), plan.remark)


def _alike(model: Any, shapes: Sequence[LayerShape]) -> None:
    kinds = {(s.num_heads, s.num_kv_heads, s.head_dim) for s in shapes}
    turned = {len(s.spectrum.inv_freq) for s in shapes if s.spectrum is not None}
    if len(kinds) > 1 or len(turned) > 1:
        heads = ", ".join(f"{q} and {k} heads of width {d}" for q, k, d in sorted(kinds))
        raise ConfigError(
            f"layers of {type(model).__name__} differ ({heads}; {sorted(turned)} planes); maps of layers and heads need "
            "them alike"
        )


def _remarked(sections: Iterator[Section], remark: str) -> Iterator[Section]:
    for section in sections:
        yield replace(section, summary=f"{section.summary} {remark}".strip()) if remark else section


@torch.no_grad()
def _measured(
    model: Any, tokenizer: Any | None, shapes: list[LayerShape], pieces: list[Window], plan: Plan
) -> Iterator[Section]:
    training = model.training
    model.eval()
    try:
        watches = _watch(model, shapes, pieces, plan)
        for section in (*(w.section() for w in watches), angles(model, shapes, plan), spectra(model, shapes)):
            if section is not None:
                yield section
        positional = _the(Positional, watches)
        trial = Trial(model, tokenizer, shapes, pieces, plan)
        yield from utility(trial, _the(QuerySizes, watches), positional)
        yield from retrieval(trial)
        if plan.changes:
            yield from taken_away(trial, _the(Massive, watches), positional)
    finally:
        model.train(training)


def _the(kind: type[W], watches: Sequence[Watch]) -> W:
    return next(w for w in watches if isinstance(w, kind))


# ---- texts ------------------------------------------------------------------------------------------------------------------


def windows(model: Any, tokenizer: Any | None, texts: Sequence[Any], plan: Plan) -> list[Window]:
    """Return pieces of texts, cut to at most so many tokens; where there are too many, some are drawn."""
    if isinstance(texts, str):
        raise ConfigError("texts is a list of strings; a single text is [text]")
    pieces: list[tuple[Tensor, Tensor | None]] = []
    vocabulary = model.get_input_embeddings().num_embeddings
    for number, text in enumerate(texts):
        ids, labels = _encoded(tokenizer, text, number)
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
            raise ShapeError(
                f"text {number} holds tokens {int(ids.min())} … {int(ids.max())}; the model has {vocabulary}"
            )
        for start in range(0, len(ids), plan.max_tokens):
            stop = start + plan.max_tokens
            piece = None if labels is None else labels[start:stop] - labels[start]
            if len(ids[start:stop]) >= 2:
                pieces.append((ids[start:stop], piece))
    if not pieces:
        raise ConfigError(f"{len(texts)} texts hold no piece of two tokens or more; give text to measure with")
    # Pieces of full length say more than what was left at the end of a text.
    longest = max(len(ids) for ids, _ in pieces)
    pieces = [p for p in pieces if len(p[0]) * 2 >= longest]
    if len(pieces) > plan.max_texts:
        generator = torch.Generator().manual_seed(plan.seed)
        chosen = torch.randperm(len(pieces), generator=generator)[: plan.max_texts].sort().values.tolist()
        pieces = [pieces[i] for i in chosen]
    device = model.get_input_embeddings().weight.device
    device = torch.device("cpu") if device.type == "meta" else device
    return [
        Window(
            ids[None].to(device),
            i,
            labels,
            None if labels is None else density_matched_labels(labels, seed=plan.seed + i),
        )
        for i, (ids, labels) in enumerate(pieces)
    ]


def _encoded(tokenizer: Any | None, text: Any, number: int) -> tuple[Tensor, Tensor | None]:
    if isinstance(text, Tensor):
        if text.ndim != 1 or text.is_floating_point() or text.dtype == torch.bool:
            raise ShapeError(
                f"text {number} is a {text.dtype} tensor of shape {tuple(text.shape)}; tokens are whole numbers (S,)"
            )
        return text.long(), None
    if not isinstance(text, str):
        raise ConfigError(f"text {number} is a {type(text).__name__}; give strings, or tensors of tokens")
    if tokenizer is None:
        raise ConfigError("texts are strings, and there is no tokenizer: give one, or tensors of tokens")
    if getattr(tokenizer, "is_fast", False):
        encoded = tokenizer(text, return_offsets_mapping=True, verbose=False)
        return torch.tensor(encoded["input_ids"], dtype=torch.int64), paragraph_labels(text, encoded["offset_mapping"])
    return torch.tensor(tokenizer(text, verbose=False)["input_ids"], dtype=torch.int64), None


# ---- one pass ---------------------------------------------------------------------------------------------------------------


def _watch(model: Any, shapes: list[LayerShape], pieces: list[Window], plan: Plan) -> list[Watch]:
    longest = max(w.ids.shape[1] for w in pieces)
    trained = getattr(parts.decoder_config(model), "max_position_embeddings", None)
    watches: list[Watch] = [
        Norms(shapes, plan.seed),
        Massive(shapes, plan.seed),
        Entropy(shapes, plan.seed),
        Positional(shapes, plan.seed, trained),
        Distances(shapes, plan.seed, longest),
        Stability(shapes, plan.seed),
        Paragraphs(shapes, plan.seed),
        QuerySizes(shapes, plan.seed),
    ]
    for window in pieces:

        def look(states: LayerStates, window: Window = window) -> None:
            for watch in watches:
                watch.states(states, window)
            for start in range(0, states.q.shape[2], BLOCK):
                weights = states.weights(start, start + BLOCK)[0]
                for watch in watches:
                    watch.rows(states, weights, start, window)

        for watch in watches:
            watch.windows += 1
        with Probe(model, look=look, shapes=shapes):
            model.base_model(window.ids, use_cache=False)
    return watches


def angles(model: Any, shapes: Sequence[LayerShape], plan: Plan) -> Section | None:
    """Return how far the angles of the wanted context are from those of training, plane by plane.

    None for models that turn nothing, that do not say how long they were trained, or of which less is wanted.
    """
    trained = getattr(parts.decoder_config(model), "max_position_embeddings", None)
    wanted = 2 * (trained or 0) if plan.context is None else plan.context
    layers: dict[Spectrum, list[int]] = {}
    for shape in shapes:
        if shape.spectrum is not None:
            layers.setdefault(shape.spectrum, []).append(shape.index)
    if not layers or not trained or wanted < trained:
        return None
    findings, tables = [], []
    for spectrum, of in layers.items():
        report = dprope_report(spectrum, trained, wanted)
        where = "" if len(layers) == 1 else f" of layers {', '.join(map(str, of))}"
        new = [str(i) for i, p in enumerate(report.planes) if p.kept > 1]
        findings.append(
            Finding(
                "note",
                f"{len(new)} planes{where} meet angles beyond training at {wanted} tokens",
                report.kept,
                f"mean divergence {report.kept:.3f} nats as they are, {report.changed:.3f} interpolated, {report.best:.3f} when "
                f"each plane takes the better way; worst plane {max(p.kept for p in report.planes):.2f}. Planes above 1 nat: "
                f"{', '.join(new) or 'none'}",
                "To extend, interpolate these planes and leave the others: the schedule dprope does.",
            )
        )
        names = planes_of([shapes[of[0]]])
        rows = [[name, f"{p.kept:.4f}", f"{p.changed:.4f}"] for name, p in zip(names, report.planes, strict=True)]
        tables.append(
            Table(f"Divergence by plane{where}", ["plane", "as it is", "interpolated"], rows, "nats, 360 bins")
        )
    return Section(
        "Distribution of angles",
        "Wu et al., arXiv 2410.01490, 2024",
        f"How far the angles of {wanted} tokens are from those of {trained} in training, plane by plane: KL divergence of their "
        "histograms, as they are and with position interpolation.",
        findings,
        tables,
    )
