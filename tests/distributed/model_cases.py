"""What the processes run: models whose parameters or heads are dealt out against the same models on one process."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import ropewalk as rw
from ropewalk.parallel import parameters_of_encodings, sum_gradients

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LENGTH = 32, 4, 2, 8, 11
ENCODINGS = ("rope", "yarn", "rope + t5(num_heads=4)", "alibi(num_heads=4) + lerope")


class Layer(nn.Module):
    """An attention layer, of which a process may hold the heads ``first`` ... only."""

    def __init__(self, encoding, heads=HEADS, kv_heads=KV_HEADS, first=0):
        super().__init__()
        self.encoding, self.heads = encoding, (first, HEADS)
        self.q, self.k, self.v = (nn.Linear(HIDDEN, n * HEAD_DIM, bias=False) for n in (heads, kv_heads, kv_heads))
        self.out = nn.Linear(heads * HEAD_DIM, HIDDEN, bias=False)

    def forward(self, x, positions):
        q, k, v = (m(x).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for m in (self.q, self.k, self.v))
        problem = rw.Attention(q, k, v, positions, x=x, heads=self.heads, kv_total=KV_HEADS)
        return self.out(rw.attend(self.encoding(problem), "dense").transpose(1, 2).flatten(2))


class Model(nn.Module):
    """Two layers, each with its encoding."""

    def __init__(self, text):
        super().__init__()
        torch.manual_seed(0)
        encoding = rw.build(text, head_dim=HEAD_DIM, num_heads=HEADS, num_kv_heads=KV_HEADS, hidden_size=HIDDEN)
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
        self.layers = nn.ModuleList(Layer(e) for e in rw.PerLayer(encoding, 2))

    def forward(self, x, positions):
        for layer in self.layers:
            x = x + layer(x, positions)
        return x


def numbers(model):
    """Buffers of a model and what its encodings learn, by name."""
    learned = {id(p) for p in parameters_of_encodings(model)}
    found = dict(model.named_buffers()) | {n: p.detach() for n, p in model.named_parameters() if id(p) in learned}
    return {name: tensor.clone() for name, tensor in found.items()}


def same_numbers(model, before):
    after = numbers(model)
    assert after.keys() == before.keys()
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype and torch.equal(after[name], tensor), name


def sharded(group, text, low):
    """fully_shard leaves frequencies as they are, and the model computes what it computed."""
    whole = Model(text)
    before = numbers(whole)
    model = copy.deepcopy(whole)
    mesh = DeviceMesh.from_group(group, "cpu")
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32) if low else MixedPrecisionPolicy()
    )
    kept = parameters_of_encodings(model)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, ignored_params=kept)
    fully_shard(model, mesh=mesh, mp_policy=policy, ignored_params=kept)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    x = torch.randn(size, LENGTH, HIDDEN, generator=torch.Generator().manual_seed(1))
    # Positions in which a cast to bfloat16 would be seen.
    positions = rw.Positions(torch.arange(LENGTH) + 1000.25)
    out = model(x[rank : rank + 1], positions)
    same_numbers(model, before)
    out.square().sum().backward()
    sum_gradients(model, group)
    if low:
        whole = whole.to(torch.bfloat16)
        same_numbers(whole, before)
    want = whole(x.to(torch.bfloat16) if low else x, positions)
    want.float().square().sum().backward()
    error = float((out - want[rank].float()).abs().max())
    assert error < (2e-2 if low else 1e-5), error
    if not low:
        wanted = dict(whole.named_parameters())
        for name, parameter in model.named_parameters():
            grad = parameter.grad
            grad = grad.full_tensor() * size if hasattr(grad, "full_tensor") else grad  # fully_shard takes means
            torch.testing.assert_close(grad, wanted[name].grad, rtol=1e-4, atol=1e-4, msg=name)
    return [str(t.dtype) for t in before.values()]


def sharded_with_the_rest(group):
    """What encodings learn, dealt out like everything else: gradients cannot be summed again."""
    model = Model("t5(num_heads=4)")
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    try:
        sum_gradients(model, group)
    except rw.ConfigError as found:
        return str(found)
    return ""


def means(group):
    """The mean of the gradients; a process that did not use a parameter counts as zero."""
    encoding = rw.T5(4)
    if dist.get_rank(group) == 0:
        encoding.weight.grad = torch.full_like(encoding.weight, 3.0)
    sum_gradients(encoding, group, mean=True)
    return [float(encoding.weight.grad.min()), float(encoding.weight.grad.max())]


def heads(group, text):
    """Each process holds half of the heads of each layer, and the encodings of the whole layer."""
    whole = Model(text).double()
    model = copy.deepcopy(whole)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    h, kv = HEADS // size, KV_HEADS // size
    for i, layer in enumerate(whole.layers):
        part = Layer(model.layers[i].encoding, h, kv, rank * h).double()
        with torch.no_grad():
            for name, n in (("q", h), ("k", kv), ("v", kv)):
                rows = getattr(layer, name).weight.unflatten(0, (-1, HEAD_DIM))[rank * n : (rank + 1) * n]
                getattr(part, name).weight.copy_(rows.flatten(0, 1))
            part.out.weight.copy_(layer.out.weight[:, rank * h * HEAD_DIM : (rank + 1) * h * HEAD_DIM])
        model.layers[i] = part
    x = torch.randn(2, LENGTH, HIDDEN, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    positions, y = rw.Positions.arange(LENGTH), x
    for layer in model.layers:
        y = y + Summed.apply(layer(Copied.apply(y, group), positions), group)
    want = whole(x, positions)
    torch.testing.assert_close(y, want, rtol=0, atol=1e-10)
    y.square().sum().backward()
    want.square().sum().backward()
    sum_gradients(model, group)
    wanted = dict(whole.named_parameters())
    for name, parameter in model.named_parameters():
        if ".encoding." in name:
            torch.testing.assert_close(parameter.grad, wanted[name].grad, rtol=1e-9, atol=1e-9)


class Copied(torch.autograd.Function):
    """Into the heads of a process: nothing forward, the sum backward."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Summed(torch.autograd.Function):
    """Out of the heads of a process: the sum forward, nothing backward."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def page(group, number):
    """Run a block of docs/parallel.md, and return the numbers it says that two ways agree to."""
    text = (Path(__file__).parents[2] / "docs" / "parallel.md").read_text()
    block = text.split("```python\n")[1 + number].split("```")[0]
    space = {"group": group}
    exec(compile(block, "docs/parallel.md", "exec"), space)
    return float((space["got"] - space["want"]).abs().max())
