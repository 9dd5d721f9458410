"""One attention layer, four ways to tell it where its tokens are: rewrite, attend, decode.

Run it with `make quickstart`, or `python examples/quickstart.py`.
"""

import torch

import ropewalk as rw

BATCH, HEADS, LENGTH, HEAD_DIM = 2, 8, 96, 64
HIDDEN = HEADS * HEAD_DIM


class Layer(torch.nn.Module):
    """Causal self-attention. Nothing in it knows which encoding it was given."""

    def __init__(self, encoding):
        super().__init__()
        self.qkv = torch.nn.Linear(HIDDEN, 3 * HIDDEN)
        self.out = torch.nn.Linear(HIDDEN, HIDDEN)
        self.encoding = encoding

    def problem(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, HEAD_DIM)).permute(2, 0, 3, 1, 4)
        return rw.Attention(q, k, v, x=x)

    def forward(self, x, cache=None):
        problem = self.problem(x)
        problem = self.encoding(problem) if cache is None else cache.extend(problem)
        return self.out(rw.attend(problem).transpose(1, 2).flatten(2))


def main():
    torch.manual_seed(0)
    x = torch.randn(BATCH, LENGTH, HIDDEN)
    encodings = {
        "no encoding": rw.NoPE(),
        "rotary": rw.RoPE(HEAD_DIM),
        "rotary and linear bias": rw.Sequential(rw.RoPE(HEAD_DIM), rw.ALiBi(HEADS)),
        "a forget gate, by name": rw.build("fox", num_heads=HEADS, hidden_size=HIDDEN),
    }
    for title, encoding in encodings.items():
        layer = Layer(encoding).eval()
        with torch.inference_mode():
            full = layer(x)
            # The same tokens through a cache: a prompt in one piece, then one token at a time.
            cache = rw.KVCache(encoding)
            pieces = [layer(piece, cache) for piece in x.split([LENGTH - 16, *[1] * 16], dim=1)]
            error = (torch.cat(pieces, dim=1) - full).abs().max().item()
            backend, *others = rw.explain(layer.encoding(layer.problem(x))).splitlines()
        print(f"{title}\n  decoding differs from the full pass by {error:.0e}\n  runs on {backend}")
        assert error < 1e-5
    print("  because", *others, sep="\n  ")


if __name__ == "__main__":
    main()
