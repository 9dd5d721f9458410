"""Attention Buckets on a trained model: one prompt read under several bases, the next token told by all of them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from ropewalk.core import rotation
from ropewalk.core.encoding import table_dtype
from ropewalk.core.errors import CacheError, ConfigError, ShapeError, check_positive
from ropewalk.frequencies import TOOL_BASES, Spectrum, geometric
from ropewalk.frequencies.buckets import Combine, copy_weights, mixed
from ropewalk.frequencies.spectrum import check_base
from ropewalk.integrations.transformers import parts
from ropewalk.integrations.transformers.bridge import CACHES, bridge_of
from ropewalk.integrations.transformers.rotary import ALL, LAYOUTS, Tables


@dataclass(frozen=True)
class BucketCache:
    """What the copies keep of the tokens they have seen: one cache for each group of copies, and who was padding."""

    groups: tuple[DynamicCache, ...]
    mask: Tensor


@dataclass(frozen=True)
class BucketOutput:
    """What `MultiBaseDecoder` returns.

    Attributes:
        logits: (B, S, V) of all copies together.
        past_key_values: to go on with; None where none was asked for.
    """

    logits: Tensor
    past_key_values: BucketCache | None


class MultiBaseDecoder(nn.Module):
    """p(next) = Σ_j α_j p_j: N copies of one model that differ in the base of RoPE alone, weighed by how sure each is.

    With any one base, attention dips at some distances, and what stands there is missed; with another base it dips elsewhere.
    Hidden states differ from the first layer on, so each copy has keys of its own: N times the work and N times the cache.
    Copies are rows of the batch.

        buckets = MultiBaseDecoder(model, bases=(10_000, 17_500, 25_000))
        buckets.generate(ids, max_new_tokens=100)

    Args:
        model: a causal RoPE model of transformers without other frequencies or encodings of ropewalk. It is used and left as
            it is between calls.
        bases: one a copy; `complementary_bases` searches for some, the default are the paper's for Llama 2.
        combine: how they are mixed, see `mixed`.
        rows: copies run at once; None: all of them.

    Raises:
        ConfigError: a model whose frequencies are not those of one base, or that is changed already.

    Source: Yuhan Chen, Ang Lv, Ting-En Lin, Changyu Chen, Yuchuan Wu, Fei Huang, Yongbin Li, Rui Yan. Fortify the Shortest
    Stave in Attention: Enhancing Context Awareness of Large Language Models for Effective Tool Use. arXiv 2312.04455, 2023.
    """

    def __init__(
        self, model: Any, bases: Sequence[float] = TOOL_BASES, combine: Combine = "logits", *, rows: int | None = None
    ) -> None:
        super().__init__()
        if not isinstance(model, PreTrainedModel):
            raise ConfigError(f"expected a model of transformers; got {type(model).__name__}")
        if bridge_of(model) is not None:
            raise ConfigError(
                "this model was changed by hf.apply, and each copy here has frequencies of its own: hf.remove(model)"
            )
        if not bases:
            raise ConfigError("no bases; give one for each copy")
        for base in bases:
            check_base(base)
        copy_weights(torch.zeros(1, 1), combine)
        check_positive(rows=rows)
        (place, *more) = parts.rotary_places(model)
        if more or place.layer_types != (ALL,):
            raise ConfigError(
                f"{type(model).__name__} turns its layers by different frequencies, and bases are for all of them"
            )
        own = place.declared(ALL)
        if own.base is None:
            raise ConfigError(
                f"the frequencies of this model ({own.origin or 'as configured'}) are not those of a base, so another base does "
                "not say what they would be"
            )
        self.model, self.place, self.combine = model, place, combine
        self._cache_name = next(n for n in CACHES if n in inspect.signature(model.forward).parameters)
        self.bases = tuple(float(b) for b in bases)
        self.spectra = tuple(
            Spectrum(geometric(2 * len(own.inv_freq), base).inv_freq, own.attention_factor) for base in self.bases
        )
        rows = len(self.bases) if rows is None else rows
        self.groups = tuple(self.spectra[i : i + rows] for i in range(0, len(self.bases), rows))

    @property
    def config(self) -> Any:
        """The model's."""
        return self.model.config

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: BucketCache | None = None,
        use_cache: bool = False,
        logits_to_keep: int = 0,
    ) -> BucketOutput:
        """Return the logits of all copies together.

        Args:
            input_ids: (B, S).
            attention_mask: (B, S), of the new tokens, False for padding; None: all are real.
            position_ids: (B, S); None: real tokens are counted.
            past_key_values: of the tokens before.
            use_cache: whether to return one.
            logits_to_keep: of the last tokens; 0: of all.
        """
        if input_ids.ndim != 2:
            raise ShapeError(f"input_ids have shape {tuple(input_ids.shape)}; expected (batch, length)")
        new = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        if new.shape != input_ids.shape:
            raise ShapeError(f"attention_mask {tuple(new.shape)} is of the new tokens, {tuple(input_ids.shape)}")
        mask = new
        if past_key_values is not None:
            if len(past_key_values.mask) != len(input_ids) or len(past_key_values.groups) != len(self.groups):
                raise CacheError("this cache is of another batch or of other copies")
            mask = torch.cat([past_key_values.mask, new], 1)
        if position_ids is None:
            position_ids = (mask.long().cumsum(-1) - 1).clamp(min=0)[:, -input_ids.shape[1] :]
        caches = past_key_values.groups if past_key_values is not None else (None,) * len(self.groups)
        said: list[Tensor] = []
        kept: list[DynamicCache] = []
        for spectra, cache in zip(self.groups, caches, strict=True):
            n = len(spectra)
            cache = DynamicCache(config=self.config) if cache is None and use_cache else cache
            with _Turned(self, spectra):
                out = self.model(
                    input_ids=input_ids.repeat(n, 1),
                    attention_mask=mask.long().repeat(n, 1),
                    position_ids=position_ids.expand_as(input_ids).repeat(n, 1),
                    use_cache=cache is not None,
                    logits_to_keep=logits_to_keep,
                    **{self._cache_name: cache},
                )
            said.append(out.logits.unflatten(0, (n, -1)))
            if cache is not None:
                kept.append(cache)
        logits = mixed(torch.cat(said), self.combine)
        return BucketOutput(logits, BucketCache(tuple(kept), mask) if kept else None)

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        max_new_tokens: int = 20,
        temperature: float = 0.0,
        eos_token_id: int | None = None,
        pad_token_id: int = 0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the prompt with what follows it, (B, S + n); padding of the prompt stands on the left.

        Args:
            input_ids: (B, S).
            attention_mask: (B, S), False for padding.
            max_new_tokens: n at most.
            temperature: 0: the most likely token; else drawn.
            eos_token_id: ends a row; None: as the model's generation configuration says.
            pad_token_id: follows the end of a row.
            generator: of the draws.
        """
        check_positive(max_new_tokens=max_new_tokens)
        if not temperature >= 0:
            raise ConfigError(f"temperature is 0 or more; got {temperature!r}")
        ends = getattr(self.model.generation_config, "eos_token_id", None) if eos_token_id is None else eos_token_id
        stop = torch.as_tensor([] if ends is None else ends, device=input_ids.device).reshape(-1).long()
        if attention_mask is not None and not bool(attention_mask[:, -1].all()):
            raise ShapeError("padding of a prompt stands on the left, so that what is generated follows its last token")
        done = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        out, step, mask, cache = input_ids, input_ids, attention_mask, None
        for _ in range(max_new_tokens):
            result = self(step, mask, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, mask, last = result.past_key_values, None, result.logits[:, -1]
            if temperature == 0:
                token = last.argmax(-1)
            else:
                token = torch.multinomial((last / temperature).softmax(-1), 1, generator=generator)[:, 0]
            token = token.masked_fill(done, pad_token_id)
            out, step = torch.cat([out, token[:, None]], 1), token[:, None]
            done = done | torch.isin(token, stop)
            if bool(done.all()):
                break
        return out

    def extra_repr(self) -> str:
        return f"bases={list(self.bases)}, combine={self.combine!r}"


class _RowTables(nn.Module):
    """Tables of cos and sin for a batch in which each stretch of rows has frequencies of its own."""

    def __init__(self, spectra: Sequence[Spectrum], layout: str) -> None:
        super().__init__()
        self.spectra, self.layout = tuple(spectra), layout

    def forward(self, x: Tensor, position_ids: Tensor) -> Tables:
        """Return the tables for positions (b, S), b a multiple of the copies."""
        n = len(self.spectra)
        position = position_ids.expand(x.shape[0], -1).double().unflatten(0, (n, -1))
        inv_freq = torch.stack([s.tensor() for s in self.spectra]).to(position.device)
        angles = (position[..., None] * inv_freq[:, None, None]).flatten(0, 1)
        cos, sin = rotation.tables(angles, table_dtype(x), self.spectra[0].attention_factor)
        return LAYOUTS[self.layout][0](cos, sin, x.dtype)


class _Turned:
    """The model with the frequencies of some copies, for the time of a `with`."""

    def __init__(self, decoder: MultiBaseDecoder, spectra: Sequence[Spectrum]) -> None:
        self.model, self.place = decoder.model, decoder.place
        self.tables = _RowTables(spectra, decoder.place.layout)

    def __enter__(self) -> None:
        self.before = self.model.get_submodule(self.place.name)
        self.model.set_submodule(self.place.name, self.tables)

    def __exit__(self, *_: object) -> None:
        self.model.set_submodule(self.place.name, self.before)
