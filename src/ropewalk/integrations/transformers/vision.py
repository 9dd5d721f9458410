"""Where images and videos are among the tokens of a model: from what a processor returns to the blocks of a layout."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import torch
from torch import Tensor

from ropewalk.coordinates.allocation import Allocation
from ropewalk.coordinates.blocks import Block, Image, Text, Video
from ropewalk.coordinates.layout import layout, packed_layout
from ropewalk.core.errors import ConfigError, NeedsColumn, PositionError, ShapeError
from ropewalk.core.positions import Positions, Tokens

TEXT, IMAGE, VIDEO = 0, 1, 2
"""What ``mm_token_type_ids`` says of a token."""

KINDS = {IMAGE: "image", VIDEO: "video"}


@dataclass(frozen=True)
class Family:
    """What vision-language models of a type have in common.

    Args:
        layout: which pairs turn by which axis, as in `ropewalk.rotary.mrope.MRoPE`.
        frames_apart: the frames of a video stand apart in the text, each after its time.
    """

    layout: Literal["blocked", "interleaved"]
    frames_apart: bool

    def allocation(self, sections: Sequence[int]) -> Allocation:
        """Return which pair turns by which axis."""
        return Allocation.contiguous(sections) if self.layout == "blocked" else Allocation.interleaved(sections)


FAMILIES = {
    "qwen2_vl": Family("blocked", frames_apart=False),
    "qwen2_5_vl": Family("blocked", frames_apart=False),
    "qwen3_vl": Family("interleaved", frames_apart=True),
    "glm4v": Family("blocked", frames_apart=True),
}
"""By the model type of the whole model; those that were tried."""


def family_of(config: Any) -> Family | None:
    """Return the family of a configuration, or None where its model places text alone or is not known."""
    return FAMILIES.get(getattr(config, "model_type", ""))


def vision_layout(model: Any, **inputs: Any) -> Positions:
    """Return where the tokens of a prompt are, as blocks that every scheme of coordinates reads.

        inputs = processor(text=..., images=..., return_tensors="pt")
        positions = hf.vision_layout(model, **inputs)
        MRoPE(128).scheme.coordinates(positions.query)          # (batch, S, 3)

    `hf.apply` does this at every forward pass of a model. Nothing is guessed: runs of image and video tokens have to be as long
    as the grids say, and all grids have to be used.

    Args:
        model: a vision-language model of transformers, or its configuration.
        inputs: what its processor returns: ``mm_token_type_ids`` (or ``input_ids``, whose image and video tokens the
            configuration names), ``image_grid_thw`` and ``video_grid_thw`` (n, 3) in patches, in the order of the batch,
            ``second_per_grid_ts`` (one a video, where its frames are not apart in the text), ``attention_mask`` (batch, S).
            ``position_ids`` that start anew, without a mask, are packed documents. Pixels are not looked at.

    Raises:
        ConfigError: a model that is not known to place images.
        PositionError: tokens and grids that disagree; frames without end, or times that are negative or not numbers.
        NeedsColumn: nothing that says which tokens are of images.
    """
    config = getattr(model, "config", model)
    family = family_of(config)
    if family is None:
        raise ConfigError(
            f"a {getattr(config, 'model_type', type(config).__name__)!r} model is not known to place images and videos; known "
            f"are {', '.join(FAMILIES)}"
        )
    return VisionPlaces(config, family).whole(inputs)


@dataclass(frozen=True)
class VisionPlaces:
    """How a model reads what its processor returns.

    Args:
        config: of the whole model.
        family: of the configuration.
    """

    config: Any
    family: Family

    # ---- a whole prompt, and the tokens of one forward pass -----------------------------------------------------

    def whole(self, given: dict[str, Any], after: Tokens | None = None) -> Positions:
        """Return the positions of all tokens given; ``after``: of those that came before, where these continue them."""
        types = self._types(given)
        mask = given.get("attention_mask")
        mask = None if mask is not None and mask.ndim == 4 else mask  # says who sees whom, and not what is padding
        valid = None
        if mask is not None:
            if mask.ndim != 2 or mask.shape[0] != types.shape[0] or mask.shape[1] < types.shape[1]:
                raise ShapeError(
                    f"attention_mask has shape {tuple(mask.shape)}; a layout of images needs {tuple(types.shape)}, 1 for real "
                    "tokens"
                )
            valid = mask[:, -types.shape[1] :].bool()
        documents = None if after is not None else self._documents(given, mask)
        rows = self._blocks(types, given, valid, documents)
        device = types.device
        if documents is not None:
            return packed_layout(rows, valid=valid, device=device)
        samples = [found[0] if found else [] for found in rows]
        return layout(samples, valid=valid, after=after, device=device)

    def step(self, given: dict[str, Any], held: Tokens | None, known: Positions | None) -> Positions:
        """Return the positions of the new tokens of a forward pass.

        Args:
            given: what the model was called with.
            held: tokens of the cache.
            known: positions of the whole prompt, where `generate` made them.
        """
        x = given.get("input_ids")
        x = given["inputs_embeds"] if x is None else x
        rows, new = x.shape[:2]
        past = 0 if held is None else held.length
        if known is not None and known.query.length > past:
            return _part(known, past, past + new, rows)
        types = given.get("mm_token_type_ids")
        if (
            types is not None and types.shape[1] > new and types.shape[1] >= past + new
        ):  # of a prompt that comes in chunks
            return _part(self.whole(_without_future(given, types)), past, past + new, rows)
        if held is None:
            return self.whole(given)
        mask = given.get("attention_mask")
        if mask is not None and mask.ndim == 2 and mask.shape[1] != past + new:
            raise ShapeError(
                f"attention_mask covers {mask.shape[1]} tokens; there are {past} in the cache and {new} new"
            )
        text = known is not None or not bool(self._types(given).any())  # what was generated is no image
        if text and (mask is None or mask.ndim != 2 or bool(mask[:, past:].all())):
            return Positions(held.continuing(new))
        return self.whole(given, after=held)

    # ---- reading ----------------------------------------------------------------------------------------------

    def _types(self, given: dict[str, Any]) -> Tensor:
        """(batch, S) what each token is of."""
        types, ids = given.get("mm_token_type_ids"), given.get("input_ids")
        if types is None:
            if ids is None:
                raise NeedsColumn(
                    "inputs_embeds do not say which tokens are of images; give mm_token_type_ids (0 text, 1 image, 2 video), "
                    "all 0 for text alone"
                )
            return self._types_of(ids)
        types = torch.as_tensor(types)
        if types.ndim != 2 or types.is_floating_point() or (ids is not None and types.shape[0] != ids.shape[0]):
            raise ShapeError(
                f"mm_token_type_ids have shape {tuple(types.shape)} and dtype {types.dtype}; expected whole numbers (batch, S)"
            )
        strange = sorted(set(types.unique().tolist()) - {TEXT, IMAGE, VIDEO})
        if strange:
            raise PositionError(
                f"mm_token_type_ids hold {strange}; a layout knows 0 for text, 1 for images and 2 for videos"
            )
        return types

    def _types_of(self, ids: Tensor) -> Tensor:
        types = torch.zeros_like(ids)
        image, video = (getattr(self.config, f"{kind}_token_id", None) for kind in KINDS.values())
        if image is not None:
            types = torch.where(ids == image, IMAGE, types)
        if video is not None:
            types = torch.where(ids == video, VIDEO, types)
        opens, closes = (getattr(self.config, f"video_{end}_token_id", None) for end in ("start", "end"))
        if opens is not None and closes is not None:  # frames of a video may have the token of images
            inside = (ids == opens).long().cumsum(-1) > (ids == closes).long().cumsum(-1)
            types = torch.where(inside & (types == IMAGE), VIDEO, types)
        return types

    def _documents(self, given: dict[str, Any], mask: Tensor | None) -> Tensor | None:
        """(batch, S) which packed document each token is of; None: rows are one document each."""
        if (documents := given.get("document")) is not None:
            return torch.as_tensor(documents)
        ids = given.get("position_ids")
        if ids is None:
            return None
        if ids.ndim == 3 and ids.shape[0] == 4:
            ids = ids[0]  # of text, which says where documents start; the other three are the model's own scheme
        elif ids.ndim == 3:
            raise PositionError(
                f"position_ids {tuple(ids.shape)} are those of the model's own scheme, and it has another: leave them out, since "
                "they follow from mm_token_type_ids and the grids. Packed documents start anew in position_ids (batch, S)"
            )
        if mask is not None:
            return None
        restarts = (ids.diff(dim=-1, prepend=ids[:, :1] - 1) != 1).cumsum(-1)
        return restarts if bool(restarts.any()) else None

    def _blocks(
        self, types: Tensor, given: dict[str, Any], valid: Tensor | None, documents: Tensor | None
    ) -> list[list[list[Block]]]:
        """Return for each row the documents in it, and for each of them its blocks."""
        grids = {kind: self._grids(given, kind) for kind in KINDS}
        left = {kind: iter(found) for kind, found in grids.items()}
        real = torch.ones_like(types, dtype=torch.bool) if valid is None else valid.to(types.device)
        of = torch.zeros_like(types) if documents is None else documents.to(types.device).expand_as(types)
        rows = []
        for row in range(types.shape[0]):
            here = real[row].nonzero()[:, 0]
            marks = zip(of[row, here].tolist(), types[row, here].tolist(), here.tolist(), strict=True)
            samples: list[list[Block]] = []
            for _, document in groupby(marks, key=lambda mark: mark[0]):
                sample: list[Block] = []
                for kind, tokens in groupby(document, key=lambda mark: mark[1]):
                    run = [mark[2] for mark in tokens]
                    if kind == TEXT:
                        sample.append(Text(len(run)))
                    else:
                        sample += _taken(left[kind], kind, len(run), row, run[0], len(grids[kind]))
                samples.append(sample)
            rows.append(samples)
        for kind, name in KINDS.items():
            over = len(list(left[kind]))
            if over:
                raise PositionError(
                    f"{name}_grid_thw has {len(grids[kind])} grids and the {name} tokens use {len(grids[kind]) - over} of them; "
                    "give the grids of these tokens and no others"
                    + (" (each frame of a video is one)" if kind == VIDEO and self.family.frames_apart else "")
                )
        return rows

    def _grids(self, given: dict[str, Any], kind: int) -> list[Block]:
        """Return the grids of a kind as blocks, merged; each frame is one where frames are apart."""
        name, merge = KINDS[kind], int(self.config.vision_config.spatial_merge_size)
        grids = given.get(f"{name}_grid_thw")
        if grids is None:
            return []
        grids = torch.as_tensor(grids)
        if grids.ndim != 2 or grids.shape[1] != 3 or grids.is_floating_point():
            raise ShapeError(
                f"{name}_grid_thw has shape {tuple(grids.shape)} and dtype {grids.dtype}; expected whole numbers (n, 3): frames, "
                "rows and columns of patches"
            )
        seconds = self._seconds(given, len(grids)) if kind == VIDEO and not self.family.frames_apart else None
        made: list[Block] = []
        for i, (frames, rows, columns) in enumerate(grids.tolist()):
            if min(frames, rows, columns) < 1 or rows % merge or columns % merge:
                raise PositionError(
                    f"grid {i} of {name}_grid_thw is {frames} x {rows} x {columns}; it has at least one frame, and rows and "
                    f"columns of patches in multiples of {merge}, which are merged"
                )
            size = (rows // merge, columns // merge)
            if kind == IMAGE:
                if frames != 1:
                    raise PositionError(
                        f"grid {i} of image_grid_thw has {frames} frames; an image has one, and videos go into video_grid_thw"
                    )
                made.append(Image(*size))
            elif self.family.frames_apart:
                made += [Video(1, *size)] * frames
            else:
                made.append(Video(frames, *size, seconds=None if seconds is None else seconds[i]))
        return made

    def _seconds(self, given: dict[str, Any], videos: int) -> list[float] | None:
        seconds = given.get("second_per_grid_ts")
        if seconds is None:
            return None
        found = [float(s) for s in seconds]
        if len(found) != videos:
            raise PositionError(f"second_per_grid_ts has {len(found)} numbers for {videos} videos; give one for each")
        wrong = [s for s in found if not math.isfinite(s) or s < 0]
        if wrong:
            raise PositionError(f"second_per_grid_ts are seconds between frames, from 0 on; got {wrong[0]!r}")
        return found


def _taken(left: Iterator[Block], kind: int, tokens: int, row: int, start: int, given: int) -> Sequence[Block]:
    """Take from the grids that are left as many as make up a run of tokens."""
    name, found, have = KINDS[kind], [], 0
    while have < tokens:
        block = next(left, None)
        if block is None:
            raise PositionError(
                f"row {row} has {tokens} {name} tokens from token {start} on, and there is no grid for {tokens - have} of them: "
                f"{name}_grid_thw has {given} grids"
            )
        found.append(block)
        have += block.length
    if have != tokens:
        sizes = " + ".join(str(block.length) for block in found)
        raise PositionError(
            f"row {row} has {tokens} {name} tokens from token {start} on, and the grids that come next in {name}_grid_thw have "
            f"{sizes} tokens after merging"
        )
    return found


def _without_future(given: dict[str, Any], types: Tensor) -> dict[str, Any]:
    """Return the inputs of a whole prompt, of which a chunk was given: a mask that ends with the chunk says nothing after it."""
    mask = given.get("attention_mask")
    if mask is not None and mask.ndim == 2 and mask.shape[1] < types.shape[1]:
        mask = torch.cat([mask, mask.new_ones(mask.shape[0], types.shape[1] - mask.shape[1])], 1)
    return {**given, "attention_mask": mask, "input_ids": None, "position_ids": None}


def _part(whole: Positions, start: int, stop: int, rows: int) -> Positions:
    """Return some tokens of a prompt and of the text that follows it; beams of a row stand next to each other."""
    tokens = whole.query
    if tokens.length < stop:
        tokens = tokens.cat(tokens.continuing(stop - tokens.length))
    if rows % tokens.batch:
        raise PositionError(f"the prompt has {tokens.batch} rows and the batch {rows}; give 1 row or all")
    if rows != tokens.batch:
        tokens = tokens.select(torch.arange(tokens.batch, device=tokens.device).repeat_interleave(rows // tokens.batch))
    return Positions(tokens.slice(start, stop))
