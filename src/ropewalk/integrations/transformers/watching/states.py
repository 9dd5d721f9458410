"""What queries, keys and values are like: norms of planes, massive values, sizes of queries, stable orders."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ropewalk.analysis.dimension_inefficiency import query_sizes
from ropewalk.analysis.inspection.findings import Finding, Heat, Section, Table
from ropewalk.analysis.massive_values import (
    FACTOR,
    channel_norms,
    concentration_score,
    index_agreement,
    massive_mask,
    pair_of_channel,
)
from ropewalk.analysis.pairs import pair_norms
from ropewalk.analysis.rope_limits import (
    amplitudes,
    position_inversion,
    position_sensitivity,
    score_curve,
    token_inversion,
    token_order_changes,
)
from ropewalk.integrations.transformers.probe import LayerShape, LayerStates
from ropewalk.integrations.transformers.watching.watch import SAMPLED, Watch, Window, heat, planes_of


class Norms(Watch):
    """How large q and k are in each plane, with v as the control."""

    def __init__(self, shapes: Sequence[LayerShape], seed: int = 0) -> None:
        super().__init__(shapes, seed)
        self.sums: dict[tuple[str, int], Tensor] = {}

    def states(self, states: LayerStates, window: Window) -> None:
        if states.shape.spectrum is None:
            return
        for name, x in (("q", states.q), ("k", states.k), ("v", states.v)):
            width = min(states.turned, x.shape[-1] // 2 * 2)
            norms = pair_norms(x[..., :width], states.shape.pairing)[0].double().cpu()
            self.sums[name, states.index] = self.sums.get((name, states.index), 0) + norms

    def norms(self, name: str) -> Tensor:
        """Return mean norms of q, k or v, (turning layers, heads, planes)."""
        layers = sorted(i for n, i in self.sums if n == name)
        return torch.stack([self.sums[name, i] for i in layers]) / max(1, self.windows)

    def section(self) -> Section | None:
        spectrum = self.spectrum
        if spectrum is None or not self.sums:
            return None
        q, k, v = (self.norms(name) for name in "qkv")
        half = q.shape[-1] // 2
        shares = {n: (x[..., half:].sum(-1) / x.sum(-1)) for n, x in (("q", q), ("k", k), ("v", v))}
        mean = {n: float(x.mean()) for n, x in shares.items()}
        bound = q * k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        low = bound[..., half:].sum(-1) / bound.sum(-1)
        carries = min(mean["q"], mean["k"]) > mean["v"] + 0.05
        finding = Finding(
            "note",
            "The slow half of the planes carries the norm of q and k"
            if carries
            else "The slow half of the planes does not carry the norm of q and k",
            mean["q"],
            f"share of the summed norms in the slow half: q {mean['q']:.3f}, k {mean['k']:.3f}, v (control) {mean['v']:.3f}; "
            f"of the bounds |q||k| {float(low.mean()):.3f}, above one half in {int((low > 0.5).sum())} of {low.numel()} heads",
            "Nothing to mend. Slow planes that carry the norm are content channels: moving them costs most.",
        )
        names = planes_of(self.shapes)
        layers = [f"layer {i}" for n, i in sorted(self.sums) if n == "q"]
        rows = [
            [
                names[i],
                *(f"{float(x[..., i].mean()):.3f}" for x in (q, k)),
                f"{float(v[..., i].mean()):.3f}" if i < v.shape[-1] else "",
            ]
            for i in range(q.shape[-1])
        ]
        at = int(low.mean(-1).argmax())
        return Section(
            "Norms of the rotary planes",
            "Barbero et al., arXiv 2410.06205, 2024",
            "Fast planes with large norms make heads that look at fixed distances; slow ones are nearly free of position. A "
            "plane adds at most |q||k| to a logit.",
            [finding],
            [Table("Mean norm by plane", ["plane", "q", "k", "v"], rows, "averaged over tokens, heads and layers")],
            [
                Heat("Norm of q", layers, names, q.mean(1).tolist(), "‖q‖", "mean over heads"),
                Heat("Norm of k", layers, names, k.mean(1).tolist(), "‖k‖", "mean over heads"),
                heat(
                    "Share of |q||k| in the slow half", low, "share", layers=sorted(i for n, i in self.sums if n == "q")
                ),
                Heat(
                    f"|q||k| in {layers[at]}, where slow planes hold most",
                    [f"head {h}" for h in range(bound.shape[1])],
                    names,
                    bound[at].tolist(),
                    "|q||k|",
                    "",
                ),
            ],
        )


class Massive(Watch):
    """Channels of q, k and v that are many times as large as the others."""

    def __init__(self, shapes: Sequence[LayerShape], seed: int = 0) -> None:
        super().__init__(shapes, seed)
        self.squares: dict[tuple[str, int], Tensor] = {}

    def states(self, states: LayerStates, window: Window) -> None:
        for name, x in (("q", states.q), ("k", states.k), ("v", states.v)):
            squares = channel_norms(x)[0].double().square().cpu()
            self.squares[name, states.index] = self.squares.get((name, states.index), 0) + squares

    def norms(self, name: str, layer: int) -> Tensor:
        """Return M of one layer, (H, D), over the tokens of all texts."""
        return self.squares[name, layer].sqrt()

    def masks(self, names: str) -> dict[tuple[str, int], Tensor]:
        """Return which channels are massive, (H, D) by (name, layer)."""
        return {(n, i): massive_mask(self.norms(n, i)) for n in names for i in range(len(self.shapes))}

    def section(self) -> Section | None:
        scores = {n: [float(concentration_score(self.norms(n, i))) for i in range(len(self.shapes))] for n in "qkv"}
        masks = {n: list(self.masks(n).values()) for n in "qkv"}
        counts = {n: [int(m.sum()) for m in of] for n, of in masks.items()}
        mean = {n: sum(of) / len(of) for n, of in scores.items()}
        shown = mean["q"] > 2 * mean["v"] and mean["k"] > 2 * mean["v"] and mean["q"] > 0.05
        agree = {n: [index_agreement(m) for m in of] for n, of in masks.items()}
        spectrum = self.spectrum
        slow = [(n, share) for n in "qk" if (share := self._slow(n, masks[n])) is not None]
        where = " and ".join(f"{share:.0%} of {n}'s" for n, share in slow)
        where = f", of which {where} lie in the slow half of the planes" if where else ""
        finding = Finding(
            "note",
            "Massive values concentrate in q and k and not in v"
            if shown
            else "No concentration of massive values in q and k",
            mean["q"],
            f"share of Σ M² in channels above {FACTOR:g} times the mean of their head: q {mean['q']:.3f}, k {mean['k']:.3f}, "
            f"v {mean['v']:.3f}; massive channels in all layers: q {sum(counts['q'])}, k {sum(counts['k'])}, v "
            f"{sum(counts['v'])}{where}; the sets of two heads of a layer agree (Jaccard) by "
            f"{sum(agree['q']) / len(agree['q']):.2f} in q and {sum(agree['k']) / len(agree['k']):.2f} in k",
            "Keep these channels in full precision when q and k are quantised; answers that come from the context "
            "depend on them.",
        )
        rows = [
            [
                str(i),
                *(f"{scores[n][i]:.3f}" for n in "qkv"),
                *(str(counts[n][i]) for n in "qkv"),
                *(f"{agree[n][i]:.2f}" for n in "qk"),
            ]
            for i in range(len(self.shapes))
        ]
        header = [
            "layer",
            *(f"energy {n}" for n in "qkv"),
            *(f"channels {n}" for n in "qkv"),
            "agreement q",
            "agreement k",
        ]
        heats = []
        if spectrum is not None:
            for name in "qk":
                ratio = torch.stack([self._by_plane(name, i) for i in range(len(self.shapes))])
                heats.append(
                    Heat(
                        f"Largest channel of {name} in each plane",
                        [f"layer {i}" for i in range(len(self.shapes))],
                        planes_of(self.shapes),
                        ratio.tolist(),
                        "times the mean of the head",
                        f"largest over heads; massive above {FACTOR:g}",
                    )
                )
        return Section(
            "Massive values",
            "Jin et al., arXiv 2502.01563, 2025",
            "Of models with RoPE a few channels of q and k, at the same places in all heads and of low frequency, are many times "
            "as large as the others, from the first layers on.",
            [finding],
            [
                Table(
                    "Concentration by layer",
                    header,
                    rows,
                    "agreement: mean Jaccard index of the heads' massive channels",
                )
            ],
            heats,
        )

    def _slow(self, name: str, masks: Sequence[Tensor]) -> float | None:
        slow, all_ = 0, 0
        for shape, mask in zip(self.shapes, masks, strict=True):
            if shape.spectrum is None:
                continue
            planes = len(shape.spectrum.inv_freq)
            for channel in torch.nonzero(mask)[:, 1].tolist():
                if channel < 2 * planes:
                    all_ += 1
                    slow += pair_of_channel(channel, planes, shape.pairing) >= planes // 2
        return slow / all_ if all_ else None

    def _by_plane(self, name: str, layer: int) -> Tensor:
        shape, norms = self.shapes[layer], self.norms(name, layer)
        spectrum = shape.spectrum or self.spectrum
        assert spectrum is not None
        ratio = norms / norms.mean(-1, keepdim=True).clamp(min=1e-300)
        turned = ratio[:, : 2 * len(spectrum.inv_freq)].amax(0)
        pairs = turned.unflatten(0, (2, -1)) if shape.pairing == "half" else turned.unflatten(0, (-1, 2)).mT
        return pairs.amax(0)


class Stability(Watch):
    """How often places and keys change order, for real queries and keys."""

    def __init__(self, shapes: Sequence[LayerShape], seed: int = 0, length: int = 2048) -> None:
        super().__init__(shapes, seed)
        self.length = length
        self.places, self.tokens = self.heads(), self.heads()

    def states(self, states: LayerStates, window: Window) -> None:
        spectrum = states.shape.spectrum
        if spectrum is None:
            return
        q, k = (x[0].double() for x in states.still())
        generator = torch.Generator().manual_seed(self.seed + 7919 * window.number + states.index)
        pick = torch.randint(q.shape[1], (3, SAMPLED), generator=generator).to(q.device)
        k = k.repeat_interleave(states.shape.group, 0)
        curves = [
            score_curve(*amplitudes(q[:, pick[0]], k[:, at], states.shape.pairing), spectrum, self.length)
            for at in pick[1:]
        ]
        self.places[states.index] += torch.stack([position_inversion(c).mean(-1) for c in curves]).mean(0).cpu()
        self.tokens[states.index] += token_order_changes(*curves).mean(-1).cpu()

    def section(self) -> Section | None:
        spectrum = self.spectrum
        if spectrum is None:
            return None
        turning = [s.index for s in self.shapes if s.spectrum is not None]
        places, tokens = self.places[turning] / self.windows, self.tokens[turning] / self.windows
        gauss = token_inversion(spectrum, self.length)
        rows = [
            [str(m), f"{token_inversion(spectrum, m):.3f}", f"{position_sensitivity(spectrum, m):.3f}"]
            for m in sorted({64, 1024, 8192, self.length})
        ]
        finding = Finding(
            "note",
            f"Within {self.length} tokens a far place beats a near one in {float(places.mean()):.0%} of the cases",
            float(places.mean()),
            f"mean over heads for queries and keys of the text: position inversion {float(places.mean()):.3f} (heads from "
            f"{float(places.min()):.3f} to {float(places.max()):.3f}), order of two keys other than at distance 0 "
            f"{float(tokens.mean()):.3f}; Gaussian vectors would give {gauss:.3f} between two places. 0.5 is chance",
            "A larger base keeps the order of keys and loses the order of places; no base keeps both.",
        )
        return Section(
            "Stability of positions and tokens",
            "Du et al., arXiv 2605.15514, 2026",
            "The score of one query and one key is a sum of sinusoids of the distance; over long ranges neither the order of "
            "places nor that of keys is safe.",
            [finding],
            [
                Table(
                    "From the frequencies alone",
                    ["tokens", "token inversion", "position sensitivity"],
                    rows,
                    "Gaussian q and k",
                )
            ],
            [
                heat("Position inversion", places, "share", layers=turning),
                heat("Token inversion, from distance 0", tokens, "share", layers=turning),
            ],
        )


class QuerySizes(Watch):
    """Σ |q_d| of each channel before the rotation: a cheap guess at its utility."""

    def __init__(self, shapes: Sequence[LayerShape], seed: int = 0) -> None:
        super().__init__(shapes, seed)
        self.sums: dict[int, Tensor] = {}

    def states(self, states: LayerStates, window: Window) -> None:
        if states.shape.spectrum is not None:
            sizes = query_sizes(states.still()[0][0].double()).cpu()
            self.sums[states.index] = self.sums.get(states.index, 0) + sizes

    def by_plane(self) -> Tensor:
        """Return shares of the planes, (turning layers, heads, P)."""
        made = []
        for i in sorted(self.sums):
            x = self.sums[i]
            pairs = (
                x.unflatten(-1, (2, -1)).sum(-2)
                if self.shapes[i].pairing == "half"
                else x.unflatten(-1, (-1, 2)).sum(-1)
            )
            made.append(pairs / pairs.sum(-1, keepdim=True))
        return torch.stack(made)
