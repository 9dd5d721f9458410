"""What a model loses when something is taken from it: planes, heads, channels, each beside a control."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ropewalk.analysis.dimension_inefficiency import HeadInputs, learn_query_mask
from ropewalk.analysis.group_tests import cohens_d, layer_permutation, mcnemar
from ropewalk.analysis.inspection.findings import Finding, Heat, Section, Table
from ropewalk.analysis.massive_values import FACTOR
from ropewalk.analysis.positional_heads import matched_heads, positional_heads
from ropewalk.analysis.retrieval_heads import THRESHOLD, Band, coverage, heads_above, rotary_channels
from ropewalk.integrations.transformers.interventions import disrupt_channels, mask_heads, zero_channels, zero_states
from ropewalk.integrations.transformers.needles import NeedleScores, Recall, needle_scores, recall, token_needles
from ropewalk.integrations.transformers.plan import Plan
from ropewalk.integrations.transformers.probe import LayerShape, LayerStates, Probe
from ropewalk.integrations.transformers.watching.attention import Positional
from ropewalk.integrations.transformers.watching.states import Massive, QuerySizes
from ropewalk.integrations.transformers.watching.watch import Window, heat, named, planes_of
from ropewalk.integrations.transformers.weights import row_utility

Heads = list[tuple[int, int]]


class Trial:
    """A model with what it is tried on: texts, and needles where there is a tokenizer that can place them.

    Args:
        model: a causal model of transformers.
        tokenizer: its own, or None.
        shapes: of the layers.
        pieces: of texts.
        plan: how much is measured.
    """

    def __init__(
        self, model: Any, tokenizer: Any | None, shapes: list[LayerShape], pieces: list[Window], plan: Plan
    ) -> None:
        self.model, self.tokenizer, self.shapes, self.pieces, self.plan = model, tokenizer, shapes, pieces, plan
        self.needles = (
            token_needles(tokenizer, plan.needle_words, plan.needles, seed=plan.seed, device=pieces[0].ids.device)
            if plan.needles and getattr(tokenizer, "is_fast", False)
            else []
        )

    @cached_property
    def scores(self) -> NeedleScores:
        """Where heads look in the needles."""
        return needle_scores(self.model, self.needles, self.shapes)

    @cached_property
    def retrieval_heads(self) -> Heads:
        """Heads that point at the needle, the surest first."""
        return heads_above(self.scores.argmax) if self.needles else []

    @cached_property
    def whole(self) -> Recall | None:
        """What becomes of the needles when nothing is taken away."""
        return self.recall()

    def recall(self) -> Recall | None:
        """Return what becomes of the needles, with whatever probe is in the model."""
        return recall(self.model, self.tokenizer, self.needles) if self.needles else None

    def loss(self) -> float:
        """Return nats a token of the texts."""
        total = count = 0.0
        for window in self.pieces:
            logits = logits_of(self.model, window.ids)
            losses = functional.cross_entropy(logits[0, :-1].float(), window.ids[0, 1:], reduction="sum")
            total, count = total + float(losses), count + window.ids.shape[1] - 1
        return total / count


def logits_of(model: Any, ids: Tensor) -> Tensor:
    """Return all logits (1, S, vocabulary) of a model, without a cache where it takes the word for it."""
    takes = "use_cache" in inspect.signature(model.forward).parameters
    out: Tensor = (model(ids, use_cache=False) if takes else model(ids)).logits
    return out


# ---- utility ----------------------------------------------------------------------------------------------------------------


def utility(trial: Trial, sizes: QuerySizes, positional: Positional) -> Iterator[Section]:
    """Yield how much each plane of the queries is used."""
    if not sizes.sums:
        return
    share = sizes.by_plane()
    quarter = max(1, share.shape[-1] // 4)
    fast, slow = float(share[..., :quarter].sum(-1).mean()), float(share[..., -quarter:].sum(-1).mean())
    kind = "retrieval heads" if trial.retrieval_heads else "positional heads"
    heads = trial.retrieval_heads or positional_heads(positional.correlations()).top_tenth
    heads = [h for h in heads[: trial.plan.masks] if trial.shapes[h[0]].spectrum is not None]
    layers, names = [f"layer {i}" for i in sorted(sizes.sums)], planes_of(trial.shapes)
    heats = [Heat("Share of Σ|q| by plane", layers, names, share.mean(1).tolist(), "share", "mean over heads")]
    tables, said = [], ["no masks were learned"]
    if masks := _learned_masks(trial, heads):
        learned, labels = torch.stack(masks), [f"{i}.{h}" for i, h in heads]
        heats.append(Heat(f"Learned utility, {kind}", labels, names, learned.tolist(), "u", "0: not used, 1: needed"))
        ends = learned[:, :quarter].mean(-1), learned[:, -quarter:].mean(-1), (learned > 0.5).sum(-1)
        tables.append(
            Table(
                f"Learned masks of {kind}",
                ["layer.head", "fastest quarter", "slowest quarter", "planes above 0.5"],
                [
                    [n, f"{float(a):.2f}", f"{float(b):.2f}", str(int(c))]
                    for n, a, b, c in zip(labels, *ends, strict=True)
                ],
                "mean u; one number a plane, 300 steps of Adam on one text",
            )
        )
        a, b = float(ends[0].mean()), float(ends[1].mean())
        said = [f"learned utility of {kind} {a:.2f} in the fastest quarter, {b:.2f} in the slowest"]
    said += _weights_of_retrieval_heads(trial)
    yield Section(
        "Utility of the rotary planes",
        "Chiang and Yogatama, arXiv 2502.11276, 2025",
        "Planes that turn fast cannot point at a key whose distance varies. Sizes of the queries are a guess; a mask that is "
        "learned so that the head's output stays and few planes stay says more.",
        [
            Finding(
                "note",
                "The slowest quarter of the planes holds more of the queries than the fastest"
                if slow > fast
                else "The fastest quarter of the planes holds as much of the queries as the slowest",
                slow,
                f"share of Σ|q|: slowest quarter {slow:.3f}, fastest {fast:.3f}; {'; '.join(said)}",
                "Planes that no head uses can be left unturned, or their channels dropped.",
            )
        ],
        tables,
        heats,
    )


def _weights_of_retrieval_heads(trial: Trial) -> list[str]:
    rows = row_utility(trial.model, trial.shapes) if trial.retrieval_heads else None
    if rows is None:
        return []
    chosen = torch.zeros(rows.shape[:2], dtype=torch.bool)
    for head in trial.retrieval_heads:
        chosen[head] = True
    mean = rows.mean(-1)
    effect, p = cohens_d(mean[chosen], mean[~chosen]), layer_permutation(mean, chosen, seed=trial.plan.seed)
    return [
        "L1 norm of the rows of W_q in retrieval heads against others: Cohen's d "
        f"{'–' if effect is None else f'{effect:+.2f}'}, p = {'–' if p is None else f'{p:.3f}'} within layers"
    ]


def _learned_masks(trial: Trial, heads: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Return learned masks by plane, of some heads on the first text; none where channels are not turned."""
    if not heads or any(trial.shapes[i].head_dim != 2 * _planes(trial.shapes[i]) for i, _ in heads):
        return []
    inputs: dict[tuple[int, int], HeadInputs] = {}

    def look(states: LayerStates) -> None:
        for layer, head in heads:
            if layer == states.index:
                at = torch.arange(states.length - 1, 0, -max(1, states.length // 128), device=states.q.device).flip(0)
                allowed = torch.arange(states.length, device=at.device) <= at[:, None]
                key, shape = head // states.shape.group, states.shape
                # Masks by plane commute with the rotation, so the turned states will do.
                q, k, v = states.q[0, head, at].float(), states.k[0, key].float(), states.v[0, key].float()
                inputs[layer, head] = HeadInputs(q, k, v, allowed, pairing=shape.pairing, scale=states.scale)

    with Probe(trial.model, look=look, shapes=trial.shapes):
        trial.model.base_model(trial.pieces[0].ids, use_cache=False)
    made = []
    for layer, head in heads:
        mask, shape = learn_query_mask(inputs[layer, head], by_pair=True), trial.shapes[layer]
        made.append(mask[: _planes(shape)] if shape.pairing == "half" else mask[::2])
    return made


def _planes(shape: LayerShape) -> int:
    return 0 if shape.spectrum is None else len(shape.spectrum.inv_freq)


# ---- retrieval heads --------------------------------------------------------------------------------------------------------


def retrieval(trial: Trial) -> Iterator[Section]:
    """Yield which heads find the needles, and what they are worth without them and without some of their planes."""
    whole = trial.whole
    if whole is None:
        return
    scores, heads = trial.scores, trial.retrieval_heads
    best = f"{float(scores.argmax.max()):.2f} in {named(heads[:1])}"
    findings = [
        Finding(
            "note",
            f"{len(heads)} retrieval heads; the model finds {whole.rate:.0%} of the needles",
            float(len(heads)),
            f"heads whose strongest key is the needle in at least {THRESHOLD:.0%} of {scores.needles} prompts of about "
            f"{trial.needles[0].ids.shape[1]} tokens; highest score {best}; a token of the answer costs "
            f"{whole.mean_nats:.2f} nats",
            "Nothing to mend."
            if whole.rate > 0
            else "Without a needle found recall says nothing, and only the cost of the answer does: give shorter needles.",
        )
    ]
    tables = []
    if heads and trial.plan.changes:
        found = _tried(trial, _knockouts(trial, heads))
        tables.append(
            Table(
                "What the needles are worth without these heads, and without some of their channels",
                ["taken away", "recall", "p (McNemar)", "nats a token", "rise ± s.e."],
                [[name, *_compared(one, whole)] for name, one in found.items()],
                "random ones are drawn with the seed, heads from the same layers; channels before the rotation, in q and k",
            )
        )
        findings += _slow_against_fast(found)
    heats = [heat("Points at the needle", scores.argmax, "share of needles")]
    if scores.copy is not None:
        heats.append(heat("Points at the token to copy", scores.copy, "share of answer tokens"))
    yield Section(
        "Retrieval heads",
        "Bayram, arXiv 2606.21249, 2026",
        "Heads that look at a passphrase told among other sentences when it is asked for.",
        findings,
        tables,
        heats,
    )


def _knockouts(trial: Trial, heads: Heads) -> dict[str, Probe]:
    model, shapes, seed = trial.model, trial.shapes, trial.plan.seed
    others = matched_heads(heads, shapes[0].num_heads, seed)
    probes = {
        f"{len(heads)} retrieval heads": mask_heads(model, heads, shapes),
        f"{len(others)} other heads of the same layers": mask_heads(model, others, shapes),
    }
    patched = [h for h in coverage(heads) if shapes[h[0]].spectrum is not None]
    if not patched:
        return probes
    width = 2 * min(_planes(shapes[i]) for i, _ in patched)
    counts = sorted({max(2, width // share // 2 * 2) for share in (8, 4)})
    for count in counts:
        bands: dict[str, Band] = {"slowest": "low_freq", "fastest": "high_freq", "random": "random"}
        for words, band in bands.items():
            channels = band_channels(trial, patched, count, band)
            probes[f"{count} {words} channels of {len(patched)} of them"] = zero_channels(
                model, channels, shapes=shapes
            )
    controls = matched_heads(patched, shapes[0].num_heads, seed)
    channels = band_channels(trial, controls, counts[-1], "low_freq")
    probes[f"{counts[-1]} slowest channels of {len(controls)} other heads"] = zero_channels(
        model, channels, shapes=shapes
    )
    return probes


def band_channels(trial: Trial, heads: Heads, count: int, band: Band) -> dict[tuple[int, int], list[int]]:
    """Return so many channels of each head: of the slowest or fastest planes of its layer, or random ones."""
    found = {}
    for layer, head in heads:
        shape = trial.shapes[layer]
        if shape.spectrum is not None:
            found[layer, head] = rotary_channels(shape.spectrum, count, band, shape.pairing, trial.plan.seed)
    return found


def _tried(trial: Trial, probes: Mapping[str, Probe]) -> dict[str, Recall]:
    found = {"nothing": trial.whole}
    for name, probe in probes.items():
        with probe:
            found[name] = trial.recall()
    return {name: one for name, one in found.items() if one is not None}


def _compared(found: Recall, whole: Recall) -> list[str]:
    """Return cells: recall, its p value, the cost of the answer, and by how much it rose."""
    cells = [f"{found.rate:.2f}", "–", f"{found.mean_nats:.2f}", "–"]
    if found is whole:
        return cells
    lost = sum(a and not b for a, b in zip(whole.found, found.found, strict=True))
    won = sum(b and not a for a, b in zip(whole.found, found.found, strict=True))
    rise, error = found.rise(whole)
    return [
        cells[0],
        f"{mcnemar(lost, won):.3f}",
        cells[2],
        f"{rise:+.2f}" + ("" if error is None else f" ± {error:.2f}"),
    ]


def _slow_against_fast(found: Mapping[str, Recall]) -> list[Finding]:
    slow = [(n, r) for n, r in found.items() if " slowest " in n and n.endswith("of them")]
    fast = [r for n, r in found.items() if " fastest " in n]
    if not slow or not fast:
        return []
    (name, low), high = slow[-1], fast[-1]
    rise, error = low.rise(high)
    # Two standard errors; a single needle has none.
    sure = error is not None and rise > 2 * error
    return [
        Finding(
            "note",
            "Slow planes of the retrieval heads matter more than fast ones"
            if sure
            else "Slow planes of the retrieval heads are not seen to matter more than fast ones",
            low.rate - high.rate,
            f"recall without the slow channels less recall without as many fast ones {low.rate - high.rate:+.2f} ({name}); a "
            f"token of the answer costs {low.mean_nats:.2f} nats without the slow and {high.mean_nats:.2f} without the fast, "
            f"{rise:+.2f} ± {'–' if error is None else f'{error:.2f}'} (standard error over needles)",
            "Leave these planes' frequencies as they are for as long as the context allows."
            if sure
            else "Nothing to mend; more needles would tell more.",
        )
    ]


# ---- channels and heads of the whole model ----------------------------------------------------------------------------------


def taken_away(trial: Trial, massive: Massive, positional: Positional) -> Iterator[Section]:
    """Yield what the texts and the needles are worth without massive values and without positional heads."""
    model, shapes, seed = trial.model, trial.shapes, trial.plan.seed
    probes: dict[str, Probe] = {}
    masks = massive.masks("qk")
    count = sum(int(m.sum()) for m in masks.values())
    largest, others = f"{count} massive channels of q and k ← 0", f"{count} others of the same heads, at random ← 0"
    if count:
        probes[largest] = zero_states(model, masks, shapes=shapes)
        probes[others] = zero_states(model, others_like(masks, seed), shapes=shapes)
    probes["largest channel of q and k in every head ← mean"] = disrupt_channels(model, 1, "massive", "mean", shapes)
    probes["smallest channel of q and k in every head ← mean"] = disrupt_channels(model, 1, "other", "mean", shapes)
    if positional.spectrum is not None:
        heads = positional_heads(positional.correlations()).top_tenth
        matched = matched_heads(heads, shapes[0].num_heads, seed)
        probes[f"{len(heads)} positional heads"] = mask_heads(model, heads, shapes)
        probes[f"{len(matched)} other heads of the same layers"] = mask_heads(model, matched, shapes)
    losses, needles = {"nothing": trial.loss()}, {"nothing": trial.whole}
    for name, probe in probes.items():
        with probe:
            losses[name], needles[name] = trial.loss(), trial.recall()
    rises = {name: loss - losses["nothing"] for name, loss in losses.items()}
    rows = []
    for name, loss in losses.items():
        kept, whole = needles[name], trial.whole
        cells = ["–"] * 4 if kept is None or whole is None else _compared(kept, whole)
        rows.append([name, f"{loss:.3f}", f"{rises[name]:+.3f}", *cells])
    header = [
        "taken away",
        "nats a token of text",
        "rise",
        "recall",
        "p (McNemar)",
        "nats a token of the answer",
        "rise ± s.e.",
    ]
    yield Section(
        "What taking them away does",
        "Jin et al., arXiv 2502.01563, 2025; Hong et al., arXiv 2410.08703, 2024",
        "Loss on the texts and recall of the needles without the massive channels of q and k, and with positional heads "
        "silenced, each beside a control.",
        [_massive_finding(count, rises.get(largest, 0.0), rises.get(others, 0.0))],
        [
            Table(
                "Loss and recall", header, rows, f"massive: above {FACTOR:g} times the mean of the head, on these texts"
            )
        ],
        [],
    )


def _massive_finding(count: int, rise: float, control: float) -> Finding:
    if not count:
        return Finding(
            "note", "There are no massive channels in q and k to take away", 0.0, "none above the threshold", ""
        )
    return Finding(
        "note",
        "Massive channels of q and k matter far more than as many others"
        if rise > 10 * max(control, 0.001)
        else "Massive channels of q and k do not matter far more than as many others",
        rise,
        f"the loss rises by {rise:.3f} nats a token without the {count} massive channels of q and k, and by {control:.3f} "
        "without as many others of the same heads, drawn at random",
        "Keep large channels exact when q, k or the cache are quantised.",
    )


def others_like(masks: Mapping[tuple[str, int], Tensor], seed: int) -> dict[tuple[str, int], Tensor]:
    """Return masks (heads, channels) with as many channels a head, drawn from those that are not in the given ones."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for at, mask in masks.items():
        # Those to avoid sort last; a head with more than half in the mask gives what others it has.
        keys = torch.rand(mask.shape, generator=generator).masked_fill(mask.cpu(), 2.0)
        rank = keys.argsort(-1).argsort(-1)
        made[at] = (rank < mask.cpu().sum(-1, keepdim=True)) & ~mask.cpu()
    return made
