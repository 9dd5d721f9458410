"""What an encoding costs, and what it learned: speed, memory, trained and fixed numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ropewalk.coordinates.layout import text_only
from ropewalk.core.encoding import Encoding
from ropewalk.core.positions import Positions
from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.model import Decoder
from ropewalk.lab.place import Place
from ropewalk.lab.results import Record

KEEP = 512  # numbers of a parameter that a record holds
DECODED = 16  # tokens that are decoded to time one


def speed_record(what: str, length: int, tokens_per_second: Sequence[float]) -> Record:
    """Median and quartiles of several timings."""
    values = torch.tensor(tokens_per_second, dtype=torch.float64)
    low, middle, high = values.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
    return {"kind": "speed", "what": what, "length": length, "tokens_per_second": middle, "low": low, "high": high}


def speed(model: Decoder, length: int, place: Place, blocks: bool = False) -> list[Record]:
    """Time a whole sequence, and decoding behind it where the encoding can decode.

    Args:
        model: it.
        length: of the sequence.
        place: where it runs.
        blocks: the encoding reads blocks, and is told that all of it is text.
    """
    tokens = torch.zeros(1, length + DECODED, dtype=torch.int64, device=place.device)
    whole = tokens[:, :length]

    def where(n: int) -> Positions | None:
        return text_only(Positions.arange(n, device=place.device)) if blocks else None

    def prefill() -> None:
        with place.autocast():
            model(whole, where(length))

    records = [speed_record("prefill", length, [length / seconds for seconds in _timed(prefill, place)])]
    if not model.config.causal or any(encoding.why_not_cached() for encoding in model.encodings):
        return records
    if length + DECODED > model.config.max_length:
        tokens, start = tokens[:, :length], length - DECODED
    else:
        start = length
    if start < 1:
        return records
    cache = model.cache()
    with place.autocast():
        model(tokens[:, :start], where(start), cache=cache)
        before = cache.snapshot()

        def decode() -> None:
            cache.restore(before)
            for i in range(DECODED):
                model(tokens[:, start + i : start + i + 1], cache=cache)

        times = _timed(decode, place)
    records.append(speed_record("decode", start, [DECODED / seconds for seconds in times]))
    cache.restore(before)
    records.append({"kind": "memory", "what": "cache", "length": start, "bytes": cache.nbytes})
    return records


def memory(model: Decoder, batch: Batch, place: Place) -> list[Record]:
    """Bytes that a training step keeps for its backward pass, each storage once; parameters are not counted."""
    batch = batch.to(place.device)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}  # held, so that no address is used twice

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t), place.autocast():
        logits = model(batch.tokens, batch.where())
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), batch.targets.flatten(), ignore_index=IGNORE
        )
    del loss
    what = "saved for backward"
    return [
        {
            "kind": "memory",
            "what": what,
            "length": batch.tokens.shape[1],
            "bytes": sum(s.nbytes() for s in kept.values()),
        }
    ]


def learned(model: Decoder, before: Mapping[str, Tensor]) -> list[Record]:
    """What training made of the encodings' numbers, and the numbers that follow from their settings."""
    records: list[Record] = []
    for name, parameter in model.encoding_parameters().items():
        records.append(
            {
                "kind": "learned",
                "name": name,
                "shape": list(parameter.shape),
                "before": _head(before[name]),
                "after": _head(parameter),
            }
        )
    seen: set[str] = set()
    for name, module in model.named_modules():
        if not isinstance(module, Encoding) or str(module) in seen:
            continue  # layers of one kind derive the same numbers
        seen.add(str(module))
        for key, tensor in module._buffers.items():
            if tensor is not None and tensor.is_floating_point():
                full = f"{name}.{key}"
                records.append({"kind": "fixed", "name": full, "shape": list(tensor.shape), "values": _head(tensor)})
    return records


def _head(tensor: Tensor) -> list[float]:
    return [float(v) for v in tensor.detach().flatten()[:KEEP].double().cpu().tolist()]


def _timed(run: Callable[[], None], place: Place, budget: float = 0.5) -> list[float]:
    """Seconds of a few runs after one that warms up, within about ``budget`` seconds."""
    wait = torch.cuda.synchronize if place.device.type == "cuda" else lambda: None
    run()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < budget and len(times) < 20):
        wait()
        start = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - start)
    return times
