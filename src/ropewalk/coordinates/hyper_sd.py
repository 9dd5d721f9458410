"""Hyper-SD: which speakers talk in a frame, by distances in hyperbolic space."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ropewalk.core.encoding import full_precision
from ropewalk.core.errors import ConfigError, ShapeError, check_positive

EDGE = 1e-5
"""Points stay this far, relatively, inside the ball: at its border distances are infinite."""


def into_ball(v: Tensor, c: float = 1.0) -> Tensor:
    """Return tanh(√c ‖v‖) v / (√c ‖v‖), the point of the Poincaré ball of curvature −c that v points to from its centre."""
    root = math.sqrt(c)
    norm = (root * v.norm(dim=-1, keepdim=True)).clamp(min=1e-15)
    return v * norm.tanh().clamp(max=1 - EDGE) / norm


def mobius_add(x: Tensor, y: Tensor, c: float = 1.0) -> Tensor:
    """Return x ⊕ y in the Poincaré ball of curvature −c."""
    xy, xx, yy = ((a * b).sum(-1, keepdim=True) for a, b in ((x, y), (x, x), (y, y)))
    top = (1 + 2 * c * xy + c * yy) * x + (1 - c * xx) * y
    return top / (1 + 2 * c * xy + c * c * xx * yy).clamp(min=1e-15)


def poincare_distance(x: Tensor, y: Tensor, c: float = 1.0) -> Tensor:
    """Return (2/√c) artanh(√c ‖(−x) ⊕ y‖); 2 ‖x − y‖ as c goes to 0."""
    root = math.sqrt(c)
    return 2 / root * torch.atanh((root * mobius_add(-x, y, c).norm(dim=-1)).clamp(max=1 - EDGE))


class HyperSD(nn.Module):
    """log p_n = log softmax_n(−d(v', p_n)),  v' the frame in the Poincaré ball, p_n a point for each of 2^S sets of speakers.

    Class n is the set of the speakers s whose bit 2^s is in n: class 0 is silence. The points are kept as vectors at the centre
    and carried into the ball, so that any optimiser may move them.

    Args:
        input_size: width of the features.
        speakers: S.
        size: of the ball.
        curvature: c > 0.
        layers: of features that are given stacked and are added up with learned weights; None: one layer.
        encoder: a module (B, T, input_size) → the same before the ball, such as a Conformer; None: none.

    Shapes: x (B, T, input_size), or (layers, B, T, input_size); log-probabilities (B, T, 2^S), activity (B, T, S).
    Numbers: float32 at least, under autocast too.

    Source: Yifan Hu, Peiji Yang, Zhisheng Wang, Yicheng Zhong, Rui Liu. TellWhisper: Tell Whisper Who Speaks When.
    arXiv 2601.03712, 2026.
    """

    members: Tensor

    def __init__(
        self,
        input_size: int,
        speakers: int = 4,
        size: int = 32,
        curvature: float = 1.0,
        *,
        layers: int | None = None,
        encoder: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_positive(input_size=input_size, speakers=speakers, size=size, layers=layers)
        if not 0 < curvature < math.inf:
            raise ConfigError(f"curvature is a positive number, of a space of curvature −c; got {curvature!r}")
        self.input_size, self.speakers, self.curvature, self.layers = input_size, speakers, float(curvature), layers
        self.weights = None if layers is None else nn.Parameter(torch.zeros(layers))
        self.encoder = nn.Identity() if encoder is None else encoder
        self.project = nn.Linear(input_size, size)
        self.points = nn.Parameter(torch.randn(2**speakers, size) / size**0.5)
        bits = torch.arange(2**speakers)[:, None] >> torch.arange(speakers) & 1
        self.register_buffer("members", bits.float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return log-probabilities of the sets of speakers."""
        if self.weights is not None:
            if x.ndim != 4 or len(x) != self.layers:
                raise ShapeError(
                    f"features have shape {tuple(x.shape)}; expected ({self.layers}, batch, frames, width)"
                )
            x = (self.weights.softmax(0).view(-1, 1, 1, 1) * x).sum(0)
        if x.ndim != 3 or x.shape[-1] != self.input_size:
            raise ShapeError(f"features have shape {tuple(x.shape)}; expected (batch, frames, {self.input_size})")
        v = self.project(self.encoder(x))
        with full_precision(v):
            wide = v if v.dtype == torch.float64 else v.float()
            frames, points = (into_ball(t, self.curvature) for t in (wide, self.points.to(wide.dtype)))
            return (-poincare_distance(frames[:, :, None], points, self.curvature)).log_softmax(-1)

    def activity(self, x: Tensor) -> Tensor:
        """Return the probability that each speaker talks."""
        found = self(x).exp()
        return (found @ self.members.to(found.dtype)).clamp(max=1)

    def classes(self, activity: Tensor) -> Tensor:
        """Return the number of the set of speakers that talk, (B, T), of activity (B, T, S) that is 0 or 1."""
        if activity.shape[-1] != self.speakers or bool(((activity != 0) & (activity != 1)).any()):
            raise ShapeError(
                f"activity of shape {tuple(activity.shape)}: give 0 or 1 for each of {self.speakers} speakers"
            )
        return (activity.long() << torch.arange(self.speakers, device=activity.device)).sum(-1)

    def loss(self, x: Tensor, activity: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return the mean negative log-likelihood of who talks, over real frames."""
        loss = nn.functional.nll_loss(self(x).transpose(1, 2), self.classes(activity), reduction="none")
        if valid is None:
            return loss.mean()
        return (loss * valid).sum() / valid.sum().clamp(min=1)
