"""Training steps of the lab's decoder with RoPE, as a ratio to transformers' LlamaForCausalLM of the same shape.

    python benchmarks/train.py [--seconds 20] [--threads 2] [--sizes tiny,small] [--batch 16] [--length 256]

Both are float32, untouched by a compiler, and take turns in one process: forward, loss, backward, AdamW (fused) with the
same batch. Above 1.00 the other one takes longer. With ``--compare`` also
a default ``ropewalk compare``: seconds from start until ten steps are done, and in all.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch
from _timing import header, prepare, quiet, rounds, spread
from torch import Tensor, nn

from ropewalk.lab.model import SIZES, Decoder, ModelConfig


def ours(size: str, length: int) -> nn.Module:
    return Decoder(ModelConfig(vocab_size=257, max_length=length, encodings=("rope",), **SIZES[size]))


def theirs(size: str, length: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = ModelConfig(vocab_size=257, **SIZES[size])
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=length,
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def step(model: nn.Module, tokens: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def run() -> None:
        logits = model(tokens[:, :-1])
        logits = getattr(logits, "logits", logits)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run


WATCHED = """
import sys, time
from ropewalk.lab.compare import compare
from ropewalk.lab.settings import Settings
from ropewalk.lab.trial import Progress

class Watch:
    told = False
    def begin(self, specs, over):
        pass
    def tell(self, spec, event):
        if isinstance(event, Progress) and not self.told:
            self.told = True
            print(time.time(), flush=True)

compare(Settings(), sys.argv[1], watcher=Watch())
"""


def default_comparison() -> tuple[float, float]:
    """Return the seconds until ten steps are done, and in all."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.time()
        done = subprocess.run([sys.executable, "-c", WATCHED, f"{folder}/run"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return float(done.stdout.split()[0]) - start, time.time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--sizes", default="tiny,small")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--compare", action="store_true", help="time a default comparison too (minutes)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    prepare()
    print(header())
    print("\n| size | Llama / ours, one step | tokens/s, ours |\n|---|---|---|")
    for size in options.sizes.split(","):
        torch.manual_seed(0)
        tokens = torch.randint(257, (options.batch, options.length + 1))
        alone = quiet()
        took = rounds(
            {name: step(make(size, options.length), tokens) for name, make in (("ours", ours), ("theirs", theirs))},
            options.seconds,
        )
        ratio = spread([b / a for a, b in zip(took["ours"], took["theirs"], strict=True)])
        speed = options.batch * options.length / spread(took["ours"]).median
        print(f"| {size} | {ratio} | {speed:,.0f} |{'' if alone else ' others were using the machine'}", flush=True)
    if options.compare:
        first, total = default_comparison()
        print(f"\ndefault comparison: {first:.0f} s until ten steps are done, {total:.0f} s in all")


if __name__ == "__main__":
    main()
