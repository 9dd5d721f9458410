"""What DreamVideo-Omni adds to latents: which role a condition has and which subject it is of, and boxes block by block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.core.errors import ConfigError, PositionError, ShapeError, check_positive


class ConditionEmbedding(nn.Module):
    """reference_r += o + G[r];  boxes += Σ_r G[r] M_r + c;  trajectory k at its cells: s_k + G[r_k] + c.

    o and c are the roles "object" and "control", G a row for each subject, M_r the box mask of subject r, and
    s_k = [sin((k + 1)/θ_i), cos((k + 1)/θ_i)], θ_i = base^(2i/z), the code of track k. Row 0 of the table is not used, as
    released: `ConditionEmbedding.subject` gives the row of subject r = 0, 1, …

    Args:
        channels: z of the latents, even.
        subjects: rows of the table, one of them unused.
        base: of the codes of tracks.

    Errors: more subjects than rows, latents, masks or tracks that do not fit.

    Source: Yujie Wei et al. DreamVideo-Omni: Omni-Motion Controlled Multi-Subject Video Customization with Latent Identity
    Reinforcement Learning. arXiv 2603.12257, 2026.
    """

    def __init__(self, channels: int = 16, subjects: int = 20, base: float = 10_000.0) -> None:
        super().__init__()
        check_positive(channels=channels, subjects=subjects)
        if channels % 2 or subjects < 2:
            raise ConfigError(
                f"channels is even (a sine and a cosine each) and subjects at least 2, since row 0 is unused; got {channels} and "
                f"{subjects}"
            )
        if not base > 1:
            raise ConfigError(f"base is a number above 1; got {base!r}")
        self.channels, self.base = channels, float(base)
        self.object, self.control = (nn.Parameter(torch.randn(channels)) for _ in range(2))
        self.group = nn.Parameter(torch.randn(subjects, channels))

    def subject(self, numbers: Tensor) -> Tensor:
        """Return G of subjects counted from 0, (...) → (..., z)."""
        if numbers.numel() and (int(numbers.min()) < 0 or int(numbers.max()) + 1 >= len(self.group)):
            raise PositionError(
                f"subjects are numbered from 0 to {len(self.group) - 2}, and {int(numbers.max())} is among these; raise subjects="
            )
        return self.group[numbers + 1]

    def references(self, latents: Tensor) -> Tensor:
        """Add roles and subjects to the latents of reference images, (..., R, z, h, w); empty slots are not among them."""
        self._fit(latents, -3)
        every = torch.arange(latents.shape[-4], device=latents.device)
        return latents + (self.object + self.subject(every))[..., None, None].to(latents.dtype)

    def boxes(self, latents: Tensor, masks: Tensor) -> Tensor:
        """Add the subjects to their boxes, and the role everywhere.

        Args:
            latents: (B, z, F, h, w) of the video of box masks.
            masks: (B, R, F, h, w) of each subject on the grid of the latents: `ropewalk.coordinates.conditions.pooled_boxes`.
        """
        self._fit(latents, 1)
        if masks.ndim != 5 or masks.shape[0] != latents.shape[0] or masks.shape[2:] != latents.shape[2:]:
            raise ShapeError(
                f"masks {tuple(masks.shape)} and latents {tuple(latents.shape)}: masks are (batch, subjects) and the frames, "
                "rows and columns of the latents; pool them with pooled_boxes"
            )
        group = self.subject(torch.arange(masks.shape[1], device=masks.device))
        inside = torch.einsum("brfhw,rz->bzfhw", masks.to(group.dtype), group)
        return latents + (inside + self.control[:, None, None, None]).to(latents.dtype)

    def track_codes(self, tracks: int) -> Tensor:
        """Return s_k of each track, (tracks, z)."""
        k = torch.arange(1, tracks + 1, dtype=torch.float64, device=self.group.device)
        slower = self.base ** (torch.arange(0, self.channels, 2, dtype=torch.float64, device=k.device) / self.channels)
        angles = k[:, None] / slower
        return torch.cat([angles.sin(), angles.cos()], -1).to(self.group.dtype)

    def trajectories(
        self,
        points: Tensor,
        visible: Tensor,
        size: tuple[int, int],
        *,
        masks: Tensor | None = None,
        generator: torch.Generator | None = None,
        stride: tuple[int, int] = (4, 8),
    ) -> Tensor:
        """Return the map of the trajectories of points, (z, 1 + ⌈(F − 1)/4⌉, ⌈H/8⌉, ⌈W/8⌉), zero where there is none.

        Every fourth frame is read, from the first one; tracks that meet in a cell are added up. Points out of the picture, and
        those that are not visible, are left out.

        Args:
            points: (N, F, 2), row and column in pixels, of each track in each frame.
            visible: (N, F) bool.
            size: H and W of the picture in pixels.
            masks: (R, F, H, W) of subjects; a track is of the first subject in whose mask it is where it is first visible in the
                picture. None: tracks are of no subject.
            generator: shuffles which code a track has, for training; None: track k has code k.
            stride: frames of a latent frame, and pixels of a cell.
        """
        n, frames = self._check_tracks(points, visible, size, masks)
        step, side = stride
        check_positive(frames_of_latent=step, pixels_of_cell=side, height=size[0], width=size[1])
        pixel = points.floor().long() if points.is_floating_point() else points.long()
        inside = ((pixel >= 0) & (pixel < pixel.new_tensor(size))).all(-1)
        seen = inside & visible
        order = torch.arange(n) if generator is None else torch.randperm(n, generator=generator)
        codes = self.track_codes(n)[order.to(self.group.device)] + self.control
        if masks is not None:
            codes = codes + self._subject_of_track(pixel, seen, masks)
        shape = (1 + -(-(frames - 1) // step), -(-size[0] // side), -(-size[1] // side))
        flat = codes.new_zeros(shape[0] * shape[1] * shape[2], self.channels)
        track, frame = seen[:, ::step].nonzero(as_tuple=True)
        row, column = (pixel[track, frame * step] // side).unbind(-1)
        cell = (frame * shape[1] + row) * shape[2] + column
        return flat.index_add(0, cell.to(flat.device), codes[track]).reshape(*shape, -1).movedim(-1, 0)

    def _subject_of_track(self, pixel: Tensor, seen: Tensor, masks: Tensor) -> Tensor:
        """Return G of the subject that each track starts in, (N, z), or 0."""
        start = seen.long().argmax(1)  # of a track that is never seen, any frame: it is written nowhere
        every = torch.arange(len(pixel), device=pixel.device)
        at = pixel[every, start] * seen.any(1, keepdim=True)
        inside = masks[:, start, at[:, 0], at[:, 1]] > 0.5  # (R, N)
        found = self.subject(inside.long().argmax(0))
        return found * inside.any(0)[:, None]

    def _check_tracks(
        self, points: Tensor, visible: Tensor, size: tuple[int, int], masks: Tensor | None
    ) -> tuple[int, int]:
        if points.ndim != 3 or points.shape[-1] != 2 or visible.shape != points.shape[:2] or not points.shape[1]:
            raise ShapeError(
                f"points {tuple(points.shape)} and visible {tuple(visible.shape)}; expected (tracks, frames, 2), row and column, "
                "and (tracks, frames)"
            )
        if visible.dtype != torch.bool:
            raise PositionError(f"visible is True or False for each point; got {visible.dtype}")
        if not bool(points[visible].isfinite().all()):
            raise PositionError("visible points are NaN or infinite; mark what was lost as not visible")
        wanted = (points.shape[1], *size)
        if masks is not None and (masks.ndim != 4 or tuple(masks.shape[1:]) != wanted):
            raise ShapeError(
                f"masks {tuple(masks.shape)}; expected (subjects, {', '.join(map(str, wanted))}), the frames of the tracks"
            )
        return points.shape[0], points.shape[1]

    def _fit(self, latents: Tensor, axis: int) -> None:
        least = 4 if axis < 0 else 5
        if latents.ndim < least or (axis > 0 and latents.ndim != 5) or latents.shape[axis] != self.channels:
            wanted = f"(..., references, {self.channels}, h, w)" if axis < 0 else f"(batch, {self.channels}, F, h, w)"
            raise ShapeError(f"latents have shape {tuple(latents.shape)}; expected {wanted}")


class BoxInjection(nn.Module):
    """x ← x + Z(b) before the patches are cut, and in each block l  h_video ← h_video + Z_l(patches of b);  Z, Z_l start at zero.

    So a model that is fine-tuned with it starts as it was.

    Args:
        channels: z of the latents.
        hidden_size: of the blocks.
        num_layers: blocks.
        patch: frames, rows and columns of latents that make a token.

    Source: see `ConditionEmbedding`.
    """

    def __init__(self, channels: int, hidden_size: int, num_layers: int, patch: Sequence[int] = (1, 2, 2)) -> None:
        super().__init__()
        check_positive(channels=channels, hidden_size=hidden_size, num_layers=num_layers)
        if len(patch) != 3:
            raise ConfigError(f"a patch has three sizes (frames, rows, columns); got {list(patch)}")
        check_positive(**{f"size {axis} of a patch": n for axis, n in enumerate(patch)})
        self.patch = tuple(patch)
        width = channels * self.patch[0] * self.patch[1] * self.patch[2]
        self.of_latents = nn.Conv3d(channels, channels, 1)
        self.of_layers = nn.ModuleList(nn.Linear(width, hidden_size) for _ in range(num_layers))
        for convolution in (self.of_latents, *self.of_layers):
            nn.init.zeros_(convolution.weight)
            nn.init.zeros_(convolution.bias)

    def latents(self, video: Tensor, boxes: Tensor) -> Tensor:
        """Return the latents of the video, (B, z, F, h, w), with those of the boxes, of the same shape, in them."""
        if video.shape != boxes.shape:
            raise ShapeError(f"video {tuple(video.shape)} and boxes {tuple(boxes.shape)} have latents of one shape")
        injected: Tensor = self.of_latents(boxes)
        return video + injected

    def patches(self, boxes: Tensor) -> Tensor:
        """Cut the latents of the boxes into tokens, (B, z, F, h, w) → (B, N, z · patch), in the order of the video's tokens."""
        if boxes.ndim != 5 or any(n % p for n, p in zip(boxes.shape[2:], self.patch, strict=True)):
            raise ShapeError(f"latents {tuple(boxes.shape)} are not cut into patches of {list(self.patch)}")
        for axis, size in zip((2, 4, 6), self.patch, strict=True):
            boxes = boxes.unflatten(axis, (-1, size))
        return boxes.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)

    def forward(self, hidden: Tensor, patches: Tensor, layer: int, start: int = 0) -> Tensor:
        """Return the hidden states of a block, (B, S, hidden_size), with the boxes in those of the video.

        Args:
            hidden: of all tokens.
            patches: of the boxes, from `patches`.
            layer: which block it is, from 0.
            start: where the tokens of the video begin; they are as many as the patches.
        """
        n = patches.shape[1]
        if not 0 <= layer < len(self.of_layers):
            raise ConfigError(f"blocks are counted from 0 to {len(self.of_layers) - 1}; got {layer!r}")
        if start < 0 or start + n > hidden.shape[1]:
            raise ShapeError(f"{n} tokens of the video from {start} on, and there are {hidden.shape[1]} tokens in all")
        added: Tensor = self.of_layers[layer](patches)
        return hidden + functional.pad(added, (0, 0, start, hidden.shape[1] - start - n))
