"""torch.compile and torch.export: whole graphs, few of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ropewalk as rw
from ropewalk import (
    ALiBi,
    Attention,
    FoX,
    KVCache,
    NoPE,
    Partial,
    PerHead,
    PerLayer,
    PoPE,
    Positions,
    RoPE,
    Scale,
    Sequential,
    Sinusoidal,
    attend,
)

HIDDEN, HEADS, KV, WIDTH = 24, 4, 2, 8

# Dynamo looks at .grad of whatever comes in, and says so of hidden states between compiled blocks.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


class Graphs:
    """A backend that runs what was traced, and counts and keeps the graphs."""

    def __init__(self):
        self.made = []

    def __call__(self, graph, inputs):
        self.made.append(graph)
        return graph.forward

    def __len__(self):
        return len(self.made)

    def count(self, *names):
        """How often operations of these names stand in the graphs."""
        return sum(
            getattr(node.target, "__name__", str(node.target)) in names for g in self.made for node in g.graph.nodes
        )


@pytest.fixture
def graphs():
    torch._dynamo.reset()
    yield Graphs()
    torch._dynamo.reset()


class Layer(nn.Module):
    def __init__(self, encoding):
        super().__init__()
        self.encoding = encoding
        self.q = nn.Linear(HIDDEN, HEADS * WIDTH, bias=False)
        self.k = nn.Linear(HIDDEN, KV * WIDTH, bias=False)
        self.v = nn.Linear(HIDDEN, KV * WIDTH, bias=False)
        self.o = nn.Linear(HEADS * WIDTH, HIDDEN, bias=False)

    def problem(self, x, positions=None):
        q, k, v = (f(x).unflatten(-1, (-1, WIDTH)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return Attention(q, k, v, positions, x=x)

    def finish(self, x, problem):
        return x + self.o(attend(problem).transpose(1, 2).flatten(2))

    def forward(self, x, positions=None, cache=None):
        p = self.problem(x, positions)
        return self.finish(x, self.encoding(p) if cache is None else cache.extend(p))


class Model(nn.Module):
    """Positions are made inside, from the length alone or from what is known of the tokens."""

    def __init__(self, encodings):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Layer(e) for e in encodings])

    def forward(self, x, positions=None):
        if positions is None:
            positions = Positions.arange(x.shape[1], device=x.device)
        for layer in self.layers:
            x = layer(x, positions)
        return x


class Packed(Model):
    def forward(self, x, document_ids, valid):
        return super().forward(x, Positions.arange(x.shape[1], document_ids=document_ids, valid=valid))


class Ids(Model):
    def forward(self, x, ids):
        return super().forward(x, Positions(ids))


def data(n, b=2):
    return torch.randn(b, n, HIDDEN, generator=torch.Generator().manual_seed(n))


ENCODINGS = {
    "rope": lambda: RoPE(WIDTH),
    "half": lambda: RoPE(WIDTH, pairing="half"),
    "alibi": lambda: ALiBi(HEADS),
    "fox": lambda: Sequential(RoPE(WIDTH), FoX(HEADS, HIDDEN)),
    "scaled": lambda: Sequential(Scale(2.0), RoPE(WIDTH), ALiBi(HEADS)),
    "pope": lambda: PoPE(WIDTH, num_kv_heads=KV),
    "partial": lambda: Partial(RoPE(4), 4),
    "heads": lambda: PerHead([RoPE(WIDTH), Sequential(FoX(2, HIDDEN), NoPE())]),
    "t5": lambda: rw.T5(HEADS),
    "cope": lambda: rw.ContextualCoPE(WIDTH, 6),
    "string": lambda: rw.STRINGShifted(WIDTH, 5, 2),
    "nope": lambda: NoPE(),
}

LENGTHS = (5, 9, 12, 20, 33)


def some(names, *quick):
    """All of these names, those that are not quick for `make slow` only: tracing takes seconds each."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", some(ENCODINGS, "alibi", "string"))
def test_five_lengths(name, graphs):
    model = Model([ENCODINGS[name]() for _ in range(3 if name == "rope" else 1)])
    compiled = torch.compile(model, backend=graphs, fullgraph=True)
    for n in LENGTHS:
        x = data(n)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    # Static, then dynamic; SDPA folds above 16 queries only, so terms cost a third.
    assert len(graphs) <= 3


@pytest.mark.parametrize("name", some(["rope", "half", "pope", "nope", "partial"], "rope"))
def test_rotations_take_two_graphs(name, graphs):
    """What adds no term has nothing to fold, so no length is special."""
    model = Model([ENCODINGS[name]()])
    compiled = torch.compile(model, backend=graphs, fullgraph=True)
    for n in LENGTHS:
        compiled(data(n))
    assert len(graphs) <= 2


@pytest.mark.parametrize("name", some(["rope", "scaled", "fox", "heads"], "rope"))
def test_positions_as_an_input(name, graphs):
    model = Model([ENCODINGS[name]() for _ in range(3 if name == "rope" else 1)])
    compiled = torch.compile(model, backend=graphs, fullgraph=True)
    for n in LENGTHS:
        x = data(n)
        torch.testing.assert_close(compiled(x, Positions.arange(n)), model(x), rtol=1e-4, atol=1e-5)
    assert len(graphs) <= 3


def test_ids_documents_and_padding_as_inputs(graphs):
    ids, packed = Ids([RoPE(WIDTH)]), Packed([Sequential(RoPE(WIDTH), ALiBi(HEADS))])
    compiled = torch.compile(ids, backend=graphs, fullgraph=True)
    for n in LENGTHS:
        given = torch.arange(n) * 3
        torch.testing.assert_close(compiled(data(n), given), ids(data(n), given), rtol=1e-4, atol=1e-5)
    assert len(graphs) <= 2
    torch._dynamo.reset()
    graphs.made.clear()
    compiled = torch.compile(packed, backend=graphs, fullgraph=True)
    for n in LENGTHS:
        documents = (torch.arange(n) > n // 2).long()[None].expand(2, n)
        valid = torch.arange(n)[None] >= torch.tensor([[1], [0]])
        got = compiled(data(n), documents, valid)
        torch.testing.assert_close(got, packed(data(n), documents, valid), rtol=1e-4, atol=1e-5)
    assert len(graphs) <= 3


@pytest.mark.slow
def test_a_mask_as_an_input(graphs):
    class Masked(Layer):
        def forward(self, x, mask):
            return self.finish(x, self.encoding(self.problem(x).replace(mask=mask)))

    model = Masked(RoPE(WIDTH))
    compiled = torch.compile(model, backend=graphs, fullgraph=True)
    for n in LENGTHS:
        mask = torch.rand(n, n, generator=torch.Generator().manual_seed(n)) < 0.8
        torch.testing.assert_close(compiled(data(n), mask), model(data(n), mask), rtol=1e-4, atol=1e-5)
    assert len(graphs) <= 2


def test_embeddings(graphs):
    model = nn.ModuleList([Sinusoidal(HIDDEN)])[0]
    compiled = torch.compile(model.embed, backend=graphs, fullgraph=True)
    for n in LENGTHS:
        torch.testing.assert_close(compiled(data(n)), model.embed(data(n)))
    assert len(graphs) <= 2


def test_gradients(graphs):
    model = Model([Sequential(RoPE(WIDTH), FoX(HEADS, HIDDEN)) for _ in range(2)])
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    x = data(9)
    model(x).square().sum().backward()
    want = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    compiled(x).square().sum().backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, want[name], rtol=1e-4, atol=1e-5, msg=name)


# ---- block by block ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inside", [pytest.param(True, marks=pytest.mark.slow), False], ids=["of the layer", "of the model"]
)
def test_twelve_layers_with_twelve_bases(inside, graphs):
    layers = [Layer(RoPE(WIDTH, base=1000.0 * (i + 1))) for i in range(12)]
    compiled = [torch.compile(layer, backend=graphs, fullgraph=True) for layer in layers]
    for n in (9, 12, 20):
        positions = None if inside else Positions.arange(n)
        x = y = data(n)
        for layer, fast in zip(layers, compiled, strict=True):
            x, y = layer(x), fast(y, positions)
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)
    assert len(graphs) <= 5


def test_twelve_layers_that_learn(graphs):
    layers = [Layer(e) for e in PerLayer(Sequential(RoPE(WIDTH), FoX(HEADS, HIDDEN)), 12)]
    compiled = [torch.compile(layer, backend=graphs, fullgraph=True) for layer in layers]
    for n in (20, 24):
        y, positions = data(n), Positions.arange(n)
        for fast in compiled:
            y = fast(y, positions)
        y.sum().backward()
    assert len(graphs) <= 5


# ---- decoding ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", some(["rope", "scaled", "fox", "heads"], "rope", "fox"))
def test_decoding_steps(name, graphs):
    """Twenty steps with a growing cache: few graphs, and the numbers of the full pass."""
    layer = Layer(ENCODINGS[name]())
    x = data(26)
    want = layer(x).detach()

    def step(x, cache):
        return layer.finish(x, cache.extend(layer.problem(x)))

    compiled = torch.compile(step, backend=graphs)
    cache, out = KVCache(layer.encoding), []
    with torch.no_grad():
        out.append(layer.finish(x[:, :6], cache.extend(layer.problem(x[:, :6]))))
        for t in range(6, 26):
            out.append(compiled(x[:, t : t + 1], cache))
    torch.testing.assert_close(torch.cat(out, 1), want, rtol=1e-4, atol=1e-5)
    assert len(graphs) <= 4


@pytest.mark.parametrize("name", some(["rope", "fox"], "rope"))
def test_decoding_steps_of_layers(name, graphs):
    """The step is taken outside; each layer's part compiles, and all layers share the graphs."""
    encodings = [ENCODINGS[name]() for _ in range(2)]
    layers = [Layer(e) for e in encodings]
    compiled = [torch.compile(layer, backend=graphs) for layer in layers]
    x, cache, out = data(20), KVCache(encodings), []
    with torch.no_grad():
        want = x
        for layer in layers:
            want = layer(want)
        for start, stop in ((0, 8), *((t, t + 1) for t in range(8, 20))):
            y = x[:, start:stop]
            cache.step(stop - start)
            for i in range(2):
                y = compiled[i](y, None, cache[i])
            out.append(y)
    torch.testing.assert_close(torch.cat(out, 1), want, rtol=1e-4, atol=1e-5)
    assert len(graphs) <= 8


# ---- the memo ----------------------------------------------------------------------------------------------------


def test_a_filled_memo_is_read(graphs):
    layers = [Layer(RoPE(WIDTH)) for _ in range(3)]
    positions, x = Positions.arange(9), data(9)
    want = layers[0](x, positions)  # eager: fills the memo
    compiled = torch.compile(layers[0], backend=graphs, fullgraph=True)
    torch.testing.assert_close(compiled(x, positions), want)
    assert graphs.count("cos", "sin") == 0
    fresh = Positions.arange(9)
    torch.testing.assert_close(compiled(x, fresh), want)
    assert graphs.count("cos", "sin") > 0
    assert not fresh.key._memo  # read, never written


def test_a_filled_memo_of_another_encoding_is_not_mistaken(graphs):
    positions, x = Positions.arange(9), data(9)
    first = Layer(RoPE(WIDTH, base=50.0))
    first(x, positions)
    other = Layer(RoPE(WIDTH))
    other.load_state_dict(first.state_dict())
    compiled = torch.compile(other, backend=graphs, fullgraph=True)
    torch.testing.assert_close(compiled(x, positions), other(x, Positions.arange(9)))


def test_stale_tables_are_not_baked_in(graphs):
    """A graph made with one filled memo serves other positions of the same length rightly."""
    layer, x = Layer(RoPE(WIDTH)), data(9)
    compiled = torch.compile(layer, backend=graphs, fullgraph=True)
    for offset in (0, 100, 7):
        positions = Positions.arange(9, offset=offset)
        want = layer(x, positions)
        torch.testing.assert_close(compiled(x, positions), want)
        torch.testing.assert_close(compiled(x, Positions.arange(9, offset=offset)), want)


# ---- checks under compile ----------------------------------------------------------------------------------------


def test_nan_is_noticed_under_compile(graphs):
    model = Ids([RoPE(WIDTH)])
    compiled = torch.compile(model, backend=graphs, fullgraph=True)
    compiled(data(5), torch.arange(5.0))
    with pytest.raises(Exception, match="NaN or infinite"):
        compiled(data(5), torch.tensor([0.0, 1.0, float("nan"), 3.0, 4.0]))


def test_shape_errors_keep_their_words_under_compile(graphs):
    model = Ids([RoPE(WIDTH)])
    compiled = torch.compile(model, backend=graphs)
    with pytest.raises(Exception, match="4 tokens and q has 5"):
        compiled(data(5), torch.arange(4))


# ---- export ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rope", "half", "scaled", "fox", "partial", "heads"])
def test_export_with_a_dynamic_length(name):
    """Terms are folded above 16 queries, so their graphs begin there; rotations are the same at any length."""
    model, folded = Model([ENCODINGS[name]()]).eval(), name in ("scaled", "fox", "heads")
    length = torch.export.Dim("length", min=17 if folded else 2, max=4096)
    program = torch.export.export(model, (data(20),), dynamic_shapes=({1: length},), strict=False)
    for n in (18, 20, 47) if folded else (3, 20, 47):
        torch.testing.assert_close(program.module()(data(n)), model(data(n)), rtol=1e-4, atol=1e-5)


def test_export_with_ids():
    model = Ids([RoPE(WIDTH)]).eval()
    length = torch.export.Dim("length", min=2, max=4096)
    ids = torch.arange(20) * 2
    program = torch.export.export(model, (data(20), ids), dynamic_shapes=({1: length}, {0: length}), strict=False)
    for n in (3, 31):
        ids = torch.arange(n) * 5
        torch.testing.assert_close(program.module()(data(n), ids), model(data(n), ids), rtol=1e-4, atol=1e-5)
