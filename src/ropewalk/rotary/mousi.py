"""MouSi: image tokens share positions, so that an image takes up as many as it has rows, or one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ropewalk.coordinates.allocation import Allocation
from ropewalk.coordinates.blocks import Table
from ropewalk.coordinates.scheme import Cells, Scheme
from ropewalk.core.errors import ConfigError, PositionError, ShapeError, check_positive, suggest
from ropewalk.core.positions import Chain, Positions
from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.spectrum import Spectrum
from ropewalk.rotary.mrope import rotary_pairs
from ropewalk.rotary.multi_axis import MultiAxisRoPE

Sharing = Literal["original", "share_all", "share_by_row", "share_by_row_col"]


@dataclass(frozen=True)
class SharedIds(Scheme):
    """p = s + rW + c ("original"), s ("share_all") or s + r (by row);  the cursor moves by HW, 1 or H for each frame.

    Args:
        sharing: which of them.
        shared_start: grids of one group, which several encoders made of one image, all stand at the same cursor.
    """

    sharing: Sharing = "share_by_row"
    shared_start: bool = False

    @property
    def axes(self) -> tuple[str, ...]:
        return ("p",)

    def advance(self, table: Table) -> Tensor:
        own = self._taken(table) * table["frames"]
        if not self.shared_start:
            return own
        group, first = table["group"], table["first"]
        same = (group[..., :, None] == group[..., None, :]) & (first[..., :, None] == first[..., None, :])
        largest = torch.where(same & table.visual[..., None, :], own[..., None, :], 0.0).amax(-1)
        return torch.where(group == 0, own, torch.where(table["last"] > 0, largest, 0.0))

    def place(self, cells: Cells) -> Tensor:
        start = cells.cursor + cells.frame * self._taken(cells)
        if self.sharing == "original":
            start = cells.cursor + cells.offset
        elif self.sharing != "share_all":
            start = start + cells.row
        return start[..., None]

    def _taken(self, block: Table | Cells) -> Tensor:
        """Positions that a frame takes up."""
        if self.sharing == "original":
            return block["rows"] * block["columns"] * block["depth"]
        return torch.ones_like(block["rows"]) if self.sharing == "share_all" else block["rows"]


class MouSi(MultiAxisRoPE):
    """RoPE at p = s + r for the token in row r of an image, so that an image of H rows takes up H positions.

    Or p = s for all its tokens ("share_all"), or row by row as usual ("original"). Attention stays causal in the order of the
    sequence. "share_by_row_col" tells columns apart by a learned vector each, added to the embeddings.

    Args:
        head_dim: width of a head.
        sharing: "original", "share_all", "share_by_row" or "share_by_row_col".
        base: of the frequencies.
        shared_start: grids of several encoders with the same ``group`` all begin at the same position.
        hidden_size: width of the embeddings, for "share_by_row_col".
        max_columns: columns that have a vector, for "share_by_row_col".
        rotary_dim: channels that turn, the first ones; None: all.
        pairing: "half" as in the language models it was made for.
        spectrum: other frequencies.

    Shapes, errors: see `MultiAxisRoPE`.

    Raises:
        PositionError: an image with more columns than there are vectors.

    Source: Xiaoran Fan, Tao Ji, Changhao Jiang, Shuo Li, Senjie Jin, Sirui Song, Junke Wang, Boyang Hong, Lu Chen, Guodong
    Zheng, Ming Zhang, Caishuang Huang, Rui Zheng, Zhiheng Xi, Yuhao Zhou, Shihan Dou, Junjie Ye, Hang Yan, Tao Gui, Qi Zhang,
    Xipeng Qiu, Xuanjing Huang, Zuxuan Wu, Yu-Gang Jiang. MouSi: Poly-Visual-Expert Vision-Language Models. arXiv 2401.17221,
    2024. Where the column vectors are added and how they start (N(0, 0.02²)) is this library's reconstruction.
    """

    def __init__(
        self,
        head_dim: int,
        sharing: Sharing = "share_by_row",
        base: float = 10_000.0,
        *,
        shared_start: bool = False,
        hidden_size: int | None = None,
        max_columns: int = 64,
        rotary_dim: int | None = None,
        pairing: Pairing = "half",
        spectrum: Spectrum | None = None,
    ) -> None:
        kinds = get_args(Sharing)
        if sharing not in kinds:
            raise ConfigError(f"sharing is one of {', '.join(kinds)}; got {sharing!r}.{suggest(sharing, kinds)}")
        pairs = rotary_pairs(head_dim, rotary_dim)
        scheme = SharedIds(sharing, shared_start)
        super().__init__(head_dim, Allocation.one(pairs), scheme, base=base, pairing=pairing, spectrum=spectrum)
        check_positive(hidden_size=hidden_size, max_columns=max_columns)
        self.columns: nn.Parameter | None = None
        if sharing == "share_by_row_col":
            if hidden_size is None:
                raise ConfigError("share_by_row_col adds a vector to the embeddings: give hidden_size=")
            self.columns = nn.Parameter(0.02 * torch.randn(max_columns, hidden_size))

    def embed(self, x: Tensor, positions: Positions | None = None, at: Chain = ()) -> Tensor:
        if self.columns is None:
            return x
        if positions is None:
            raise PositionError("which tokens are of which column is not said: give the positions of a layout")
        if x.shape[-1] != self.columns.shape[1]:
            raise ShapeError(f"the column vectors have width {self.columns.shape[1]} and the embeddings {x.shape[-1]}")
        tokens = positions.query
        cells = Cells.of(tokens, tokens.position.double())
        column = torch.where(cells.visual, cells.column, 0.0).long()
        if not torch.compiler.is_compiling() and column.numel() and int(column.max()) >= len(self.columns):
            raise PositionError(
                f"an image has {int(column.max()) + 1} columns and there are {len(self.columns)} vectors"
            )
        added = torch.where(cells.visual[..., None], self.columns[column], 0.0)
        return (x + added.to(x.dtype)).to(x.dtype)

    def layer(self, index: int) -> MouSi:
        return self if self.columns is None else super().layer(index)  # type: ignore[return-value]


class PolyExpertFusion(nn.Module):
    """Tokens of several visual encoders, made as wide as the language model and fewer.

    "mlp": m consecutive patches of an encoder are joined, W₂ gelu(W_e [x_1 … x_m]), W₂ shared by all encoders. "query": N learned
    queries an encoder attend to its patches, W_e softmax(q kᵀ) v. The results follow each other.

    Args:
        widths: of the patches of each encoder.
        hidden_size: of the language model.
        merge: m of each encoder ("mlp").
        kind: "mlp" or "query".
        inner: width between the two linear maps, and of the attention; None: hidden_size.
        queries: N of each encoder ("query").
        num_heads: of the attention ("query").
        num_layers: of the attention ("query").

    Source: see `MouSi`. Widths, depths and m are not published.
    """

    def __init__(
        self,
        widths: Sequence[int],
        hidden_size: int,
        *,
        merge: Sequence[int] | None = None,
        kind: Literal["mlp", "query"] = "mlp",
        inner: int | None = None,
        queries: int = 64,
        num_heads: int = 8,
        num_layers: int = 1,
    ) -> None:
        super().__init__()
        merge = (1,) * len(widths) if merge is None else tuple(merge)
        if kind not in ("mlp", "query") or not widths or len(merge) != len(widths):
            raise ConfigError(
                f"kind is 'mlp' or 'query', with one width and one merge an encoder; got {kind!r}, {widths}, {merge}"
            )
        inner = hidden_size if inner is None else inner
        check_positive(
            hidden_size=hidden_size, inner=inner, queries=queries, num_heads=num_heads, num_layers=num_layers
        )
        check_positive(**{f"merge of encoder {i}": m for i, m in enumerate(merge)})
        self.widths, self.merge, self.kind = tuple(widths), merge, kind
        if kind == "mlp":
            self.experts = nn.ModuleList(nn.Linear(m * width, inner) for m, width in zip(merge, widths, strict=True))
            self.shared = nn.Linear(inner, hidden_size)
            return
        self.experts = nn.ModuleList(nn.Linear(width, inner) for width in widths)
        self.queries = nn.Parameter(0.02 * torch.randn(len(widths), queries, inner))
        layer = nn.TransformerDecoderLayer(inner, num_heads, 4 * inner, 0.0, "gelu", batch_first=True, norm_first=True)
        self.reader = nn.TransformerDecoder(layer, num_layers)
        self.shared = nn.Linear(inner, hidden_size)

    def forward(self, patches: Sequence[Tensor]) -> Tensor:
        """Return (B, tokens, hidden_size) of the patches (B, n_e, width_e) of every encoder."""
        if len(patches) != len(self.widths):
            raise ShapeError(f"patches of {len(patches)} encoders, and there are {len(self.widths)}")
        made = []
        for i, (x, expert, m) in enumerate(zip(patches, self.experts, self.merge, strict=True)):
            if x.ndim != 3 or x.shape[-1] != self.widths[i] or x.shape[1] % m:
                raise ShapeError(
                    f"patches of encoder {i} have shape {tuple(x.shape)}; expected (batch, a multiple of {m}, {self.widths[i]})"
                )
            if self.kind == "mlp":
                made.append(self.shared(nn.functional.gelu(expert(x.reshape(x.shape[0], -1, m * x.shape[-1])))))
            else:
                asked = self.queries[i].expand(x.shape[0], -1, -1)
                made.append(self.shared(self.reader(asked, expert(x))))
        return torch.cat(made, 1)
