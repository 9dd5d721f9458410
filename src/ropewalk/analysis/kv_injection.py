"""Keys and values of a source image in the layers of a target that is generated beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ropewalk.analysis.encoding_layers import AroundEncoding, ReplacedEncodings
from ropewalk.coordinates.denoising import progress_of
from ropewalk.core.attention import Attention, Parts, Problem
from ropewalk.core.encoding import Encoding, rewrite
from ropewalk.core.errors import CannotCompose, ConfigError, PositionError, ShapeError, check_positive

POSITION_LAYERS = (1, 2, 4, 26, 30, 54, 55)
"""Layers of FLUX.1-dev that attend by position: injected into to add an object."""

CONTENT_LAYERS = (0, 7, 8, 9, 10, 18, 25, 28, 37, 42, 45, 50, 56)
"""Layers of FLUX.1-dev that attend by content: injected into to change a pose."""

SUBJECT_LAYERS = (40, 41, 42, 43)
"""Layers of FLUX.1-dev whose attention says where a word is."""


class InjectedKV(AroundEncoding):
    """k, v of target tokens → those of source tokens, after the encoding turned them; text keeps its own.

    Args:
        encoding: of the layer.
        source: (n,) indices of tokens in the sequence.
        target: (n,) of the tokens that get theirs.
        what: "kv", or "v" for values alone, which leaves attention as it is.
        rows: numbers of the source and of the target in the batch.
        window: (a, b): steps with a ≤ progress < b; None: all, and positions need not say at which step they are.

    Raises:
        CannotCompose: an encoding that splits its heads.
        ShapeError: a batch or a sequence without the rows or tokens.
        NeedsColumn: a window, and positions that say no step.

    Source: see `KVInjection`.
    """

    def __init__(
        self,
        encoding: Encoding,
        source: Sequence[int],
        target: Sequence[int],
        what: Literal["kv", "v"] = "kv",
        rows: tuple[int, int] = (0, 1),
        window: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(encoding)
        self.source, self.target = tuple(source), tuple(target)
        self.what, self.rows, self.window = what, rows, window

    def rewrite(self, problem: Attention) -> Problem:
        p = rewrite(self.encoding, problem)
        if isinstance(p, Parts):
            raise CannotCompose("the encoding splits the heads, so keys cannot be injected after it")
        (b, _, n, _), last = p.k.shape, max(*self.source, *self.target, -1)
        if not 0 <= max(self.rows) < b or last >= n:
            raise ShapeError(f"rows {self.rows} and tokens up to {last} are injected, and keys are {tuple(p.k.shape)}")
        if not self.target:
            return p
        p = p.replace(v=self._injected(p.v, p))
        return p.map_keys(lambda k: self._injected(k, p)) if self.what == "kv" else p

    def why_not_cached(self) -> str | None:
        return "tokens are counted in whole passes; what is injected into keys that come later is not known"

    def _injected(self, x: Tensor, p: Attention) -> Tensor:
        giver, taker = self.rows
        source, target = (torch.tensor(index, device=x.device) for index in (self.source, self.target))
        row = x[taker].index_copy(1, target, x[giver].index_select(1, source))
        if self.window is not None:
            progress = progress_of(p.where.key)
            now = progress[taker if len(progress) > 1 else 0]
            row = torch.where((self.window[0] <= now) & (now < self.window[1]), row, x[taker])
        return x.index_copy(0, torch.tensor([taker], device=x.device), row[None])

    def extra_repr(self) -> str:
        return f"{len(self.target)} tokens, {self.what}, rows={self.rows}, window={self.window}"


class KVInjection(ReplacedEncodings):
    """Within this context image tokens of a target see keys and values of a source image that is generated in the same batch.

        with KVInjection(model, POSITION_LAYERS, grid=(64, 64), num_text=512, keep=mask):  # add an object
            images = sample(model, [source_prompt, target_prompt])

    Layers that attend by position hold the layout, those that attend by content the looks. Values alone, of the tokens of a
    region in all layers, hold that region: `region=foreground, what="v", window=(0, 0.9)` for another background, and a shift
    beside it to move the object. Both images have the same noise at first.

    Args:
        model: holds one encoding for each attention layer, in order.
        layers: numbers of layers, counted from 0.
        grid: (rows, columns) of image tokens, which come last in the sequence.
        num_text: tokens before them, which keep their own.
        what: "kv", or "v".
        keep: (rows, columns) boolean, True for target tokens that keep their own (`subject_mask`); None: none do.
        region: (rows, columns) boolean, True for source tokens that are injected; None: all.
        shift: (rows, columns) by which the region lies elsewhere in the target.
        rows: numbers of the source and of the target in the batch.
        window: steps with a ≤ progress < b, which positions then say (`ropewalk.at_step`); None: all.

    Raises:
        ConfigError: layers that do not exist, a window that ends before it begins.
        PositionError: a mask of another grid, a region that is moved out of the image.

    Source: Tianyi Wei, Yifan Zhou, Dongdong Chen, Xingang Pan. FreeFlux: Understanding and Exploiting Layer-Specific Roles in
    RoPE-Based MMDiT for Versatile Image Editing. arXiv 2503.16153, 2025.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[int],
        *,
        grid: tuple[int, int],
        num_text: int = 0,
        what: Literal["kv", "v"] = "kv",
        keep: Tensor | None = None,
        region: Tensor | None = None,
        shift: tuple[int, int] = (0, 0),
        rows: tuple[int, int] = (0, 1),
        window: tuple[float, float] | None = None,
    ) -> None:
        check_positive(rows=grid[0], columns=grid[1])
        if what not in ("kv", "v"):
            raise ConfigError(f"what is 'kv' or 'v'; got {what!r}")
        if window is not None and not 0 <= window[0] <= window[1] <= 1:
            raise ConfigError(f"window {window!r}: steps from a to below b of denoising, 0 ≤ a ≤ b ≤ 1")
        if rows[0] == rows[1] or min(rows) < 0:
            raise ConfigError(f"rows {rows!r}: the numbers of a source and of another row, the target")
        cells = _mask(region, grid, "region").nonzero()
        there = cells + torch.tensor(shift)
        if bool(((there < 0) | (there >= torch.tensor(grid))).any()):
            raise PositionError(f"the region leaves the grid {grid} when it is moved by {shift}; give a smaller shift")
        own = _mask(keep, grid, "keep") if keep is not None else torch.zeros(grid, dtype=torch.bool)
        taken = ~own[there[:, 0], there[:, 1]]
        source, target = ((num_text + x[taken, 0] * grid[1] + x[taken, 1]).tolist() for x in (cells, there))
        super().__init__(model, layers, lambda encoding: InjectedKV(encoding, source, target, what, rows, window))


# ---- where the new object is -----------------------------------------------------------------------------------------


def subject_attention(weights: Sequence[Tensor], words: Sequence[int], num_text: int) -> Tensor:
    """A_x = mean over layers, heads and words t of (p_tx + p_xt) / 2: how image tokens x and the words see each other.

    Args:
        weights: of each layer (`SUBJECT_LAYERS`), (H, N, N), text first, at an early step (7 of 50).
        words: numbers of the text tokens of the object.
        num_text: text tokens.

    Returns:
        (N − num_text,).
    """
    if not weights or not words or not all(0 <= t < num_text for t in words):
        raise ShapeError(
            f"{len(weights)} layers and words {list(words)} of {num_text} text tokens; give one of each at least"
        )
    mean = torch.stack([w.double().mean(0) for w in weights]).mean(0)
    chosen = torch.tensor(list(words), device=mean.device)
    return (mean[chosen, num_text:].mean(0) + mean[num_text:, chosen].mean(1)) / 2


def subject_mask(attention: Tensor, grid: tuple[int, int], threshold: float = 0.2, sigma: float = 0.5) -> Tensor:
    """Return where the object is: the map smoothed, brought to [0, 1], above a threshold; (rows, columns) boolean.

    Args:
        attention: (rows · columns,) of `subject_attention`.
        grid: rows and columns, at least two of each.
        threshold: 0.2; 0.3 for foregrounds.
        sigma: of the 3 x 3 Gaussian, in cells; at the border cells are mirrored without the border itself.
    """
    rows, columns = grid
    if attention.numel() != rows * columns or min(grid) < 2:
        raise PositionError(f"{attention.numel()} image tokens and a grid of {rows} x {columns}, at least 2 x 2")
    if not sigma > 0:
        raise ConfigError(f"sigma is a positive number; got {sigma!r}")
    line = (-torch.arange(-1, 2, device=attention.device).double().square() / (2 * sigma**2)).exp()
    kernel = torch.outer(line, line) / line.sum() ** 2
    padded = F.pad(attention.double().reshape(1, 1, rows, columns), (1, 1, 1, 1), mode="reflect")
    smooth = F.conv2d(padded, kernel[None, None])[0, 0]
    size = smooth.max() - smooth.min()
    return (smooth - smooth.min()) > threshold * size


def _mask(mask: Tensor | None, grid: tuple[int, int], name: str) -> Tensor:
    if mask is None:
        return torch.ones(grid, dtype=torch.bool)
    if mask.dtype != torch.bool or tuple(mask.shape) != tuple(grid):
        raise PositionError(
            f"{name} is {tuple(mask.shape)} in {mask.dtype}; expected boolean, of the grid {tuple(grid)}"
        )
    return mask.cpu()
