"""AnchorAttention: does a first token that all packed documents share help what is trained in bfloat16?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lab.experiments.desk import FULL_TEXT, SMALL_MODEL, TEXT
from ropewalk.lab.experiments.experiment import Contrast, Experiment

if TYPE_CHECKING:
    from torch import Generator

    from ropewalk.coordinates.packed import Visibility
    from ropewalk.core.encoding import Encoding
    from ropewalk.lab.batch import Batch
    from ropewalk.lab.model import Decoder
    from ropewalk.lab.workloads import Workload

SHORT, LONG, SHIFT = 128, 512, 16
STEPS, ROWS, PIECES, LEAST = 50, 8, 6, 32
_ROPE, _LONG = "rope(pairing=half)", "rope(base=100000, pairing=half)"
_ANCHOR, _INTRA, _FULL = "tuned with an anchor", "tuned with documents apart", "tuned with full attention"
_HERE, _THERE = "rounded to bfloat16", f"rounded to bfloat16, {SHIFT} positions further"

EXPERIMENT = Experiment(
    name="anchor_attention",
    slugs=(),
    claim="In bfloat16 RoPE depends on more than relative positions, most of all at the first token. Packed documents that see "
    "themselves and one shared first token make better long-context models than full attention or documents apart, in less than "
    "half the time.",
    source="Haonan Wang, Qian Liu, Chao Du, Tongyao Zhu, Cunxiao Du, Kenji Kawaguchi, Tianyu Pang. When Precision Meets "
    "Position: BFloat16 Breaks Down RoPE in Long-Context Training. arXiv 2411.13476, 2024",
    expected=f"Models trained at {SHORT} tokens, and tuned with a larger base and rotations in bfloat16 on rows of {LONG} that "
    f"hold one to {PIECES} documents, have a lower loss at {LONG} with an anchor than with full attention, and than with "
    "documents apart.",
    settings={**TEXT, "encodings": (_ROPE,), "eval_lengths": (SHORT, LONG)},
    drop_in={_LONG: _ROPE},
    altered={
        _ANCHOR: (_LONG, f"{__name__}:tune_with_anchor"),
        _INTRA: (_LONG, f"{__name__}:tune_apart"),
        _FULL: (_LONG, f"{__name__}:tune_together"),
        _HERE: (_LONG, f"{__name__}:round_here"),
        _THERE: (_LONG, f"{__name__}:round_there"),
    },
    contrasts=(
        Contrast(_ANCHOR, _FULL, "lower", (LONG,)),
        Contrast(_ANCHOR, _INTRA, "lower", (LONG,)),
        Contrast(_ANCHOR, _LONG, "lower", (LONG,), decides=False, because="what the tuning gains"),
        Contrast(_ANCHOR, _FULL, "within", (SHORT,), margin=0.02, decides=False, because="the trained length"),
        Contrast(_HERE, _LONG, "within", (LONG,), margin=0.001, decides=False, because="what rounding costs"),
        Contrast(
            _THERE,
            _HERE,
            "within",
            (LONG,),
            margin=0.001,
            decides=False,
            because="0 if only relative positions counted",
        ),
    ),
    seconds=150,
    full=FULL_TEXT,
    limits=f"Seen on {SMALL_MODEL}; tuning is {STEPS} steps of {ROWS} rows. The error of bfloat16 grows with the length: for "
    "random q and k of 64 channels, moving 512 positions by 16 changes the attention weights of a head by 2.1 in all, against "
    "0.02 in float32, so that at this length little of it can be seen in a loss. Weights and other activations stay in float32.",
)


def tune_with_anchor(model: Decoder, workload: Workload) -> None:
    """Tune on documents that see themselves and the first token of their row."""
    _tune(model, workload, "anchor")


def tune_apart(model: Decoder, workload: Workload) -> None:
    """Tune on documents that see themselves alone."""
    _tune(model, workload, "intra")


def tune_together(model: Decoder, workload: Workload) -> None:
    """Tune on documents that see all before them."""
    _tune(model, workload, "full")


def round_here(model: Decoder, workload: Workload) -> None:
    """Turn q and k in bfloat16."""
    _encode(model, _rounded(model, 0))


def round_there(model: Decoder, workload: Workload) -> None:
    """Turn them in bfloat16 with all positions moved."""
    _encode(model, _rounded(model, SHIFT))


def packed(batch: Batch, mode: Visibility, begins: int, draw: Generator) -> Batch:
    """Return rows of several documents each, made of pieces of the rows of a batch.

    All rows are cut at the same places, and each piece comes from another row, so that what stands in one row has nothing to
    do with what stands before it. Positions count on across documents.

    Args:
        batch: rows of text.
        mode: who sees whom.
        begins: the token that begins a document, or, as an anchor, the row.
        draw: of how many pieces there are, and where they end.
    """
    import torch

    from ropewalk.lab.batch import IGNORE, Batch

    rows, length = batch.tokens.shape
    pieces = int(torch.randint(1, PIECES + 1, (), generator=draw))
    cuts = torch.randperm(length // LEAST - 1, generator=draw)[: pieces - 1].add(1).mul(LEAST).sort().values
    piece = torch.zeros(length, dtype=torch.long)
    piece[cuts] = 1
    piece = piece.cumsum(0)
    source = (torch.arange(rows)[:, None] + piece) % rows
    at = torch.arange(length)
    tokens, targets = batch.tokens[source, at].clone(), batch.targets[source, at].clone()
    own = torch.zeros_like(tokens) if batch.documents is None else batch.documents[source, at]
    starts = torch.ones_like(tokens, dtype=torch.bool)
    starts[:, 1:] = (own[:, 1:] != own[:, :-1]) | (piece[1:] != piece[:-1])
    targets[:, :-1][starts[:, 1:]] = IGNORE  # nothing foretells the next document
    document = starts.cumsum(1)
    if mode == "anchor":
        tokens[:, 0], document[:, 0] = begins, 0
    else:
        tokens[starts] = begins
    return Batch(tokens, targets, None if mode == "full" else document, at.expand(rows, length))


def _tune(model: Decoder, workload: Workload, mode: Visibility) -> None:
    import torch
    from torch import Tensor

    from ropewalk.bias.anchor_attention import AnchorAttention
    from ropewalk.core.combinators import Sequential
    from ropewalk.core.positions import Positions
    from ropewalk.lab.experiments.desk import tune
    from ropewalk.lab.workloads import Seen, Text

    assert isinstance(workload, Text)
    begins = workload.corpus.tokenizer.start
    draw = torch.Generator().manual_seed(0)  # the same pieces for all modes
    rounded = _rounded(model, 0)
    _encode(model, Sequential(rounded, AnchorAttention()) if mode == "anchor" else rounded)
    long = Text(workload.corpus, LONG, (SHORT, LONG))
    tune(model, Seen(long, lambda batch: packed(batch, mode, begins, draw)), steps=STEPS, lr=1e-3, batch_size=ROWS)
    _encode(model, rounded)  # the anchor was for training
    one = type(model).forward

    def begun(tokens: Tensor, positions: Positions | None = None) -> Tensor:
        tokens = tokens.clone()
        tokens[:, 0] = begins  # which every row of the tuning began with
        return one(model, tokens, positions)

    vars(model)["forward"] = begun  # beside the class's, for this model alone


def _encode(model: Decoder, encoding: Encoding) -> None:
    for block in model.blocks:
        block.attention.encoding = encoding  # type: ignore[union-attr]


def _rounded(model: Decoder, shift: int) -> Encoding:
    """Return a model's RoPE with everything in the rotation rounded, and all positions moved."""
    from torch import Tensor

    from ropewalk.analysis.bf16_shift import rounded_rotation
    from ropewalk.core.attention import Attention
    from ropewalk.core.encoding import Encoding
    from ropewalk.core.positions import Tokens
    from ropewalk.rotary.rope import RoPE

    rope = model.encodings[0]
    assert isinstance(rope, RoPE)
    rope.fit(model.config.width)

    class Rounded(Encoding):
        """RoPE in bfloat16."""

        def __init__(self, own: RoPE) -> None:
            super().__init__()
            self.own = own

        def rewrite(self, problem: Attention) -> Attention:
            def turn(x: Tensor, tokens: Tokens) -> Tensor:
                angles = self.own.angles(tokens.coordinates() + shift)[:, None]
                return rounded_rotation(x, angles.cos(), angles.sin(), self.own.pairing).to(x.dtype)

            p = problem
            return p.replace(q=turn(p.q, p.where.query), k=turn(p.k, p.where.key))

    return Rounded(rope)
