"""Another encoding in a trained encoder and decoder (arXiv 2408.11382)."""

from __future__ import annotations

import copy

import pytest
import torch
from reference import DOUBLE, SINGLE, close, differ, golden

import ropewalk as rw
from ropewalk.bias.slopes import alibi_slopes
from ropewalk.lab.seq2seq import Seq2Seq, Seq2SeqConfig, chunk_pairs, swap_positional_encoding, transfer
from ropewalk.lab.tuning.lora import add_lora, merge_lora
from ropewalk.rotary.partial_rope import PartialRoPE

CASES = golden("114")
SMALL = Seq2SeqConfig(vocab_size=19, hidden_size=32, num_layers=2, num_heads=4)


@pytest.fixture(scope="module")
def data():
    source, target = chunk_pairs(19, 3, 10, torch.Generator().manual_seed(0))
    return source[:, 1:-1], target  # no mark, so that what knows no order shows


def made(to=None, **options):
    model = Seq2Seq(SMALL).double()
    return model if to is None else swap_positional_encoding(model, to, **options)


def shifted(target):
    """What the decoder reads: begin, then the target without its end."""
    return torch.cat([torch.ones_like(target[:, :1]), target[:, :-1]], 1)


# ---- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rope", "rope_scaled_offset"])
def test_golden_rope(name):
    case = CASES[name]
    p = case.params
    config = Seq2SeqConfig(9, 2 * p["head_dim"], 1, 2)
    model = swap_positional_encoding(Seq2Seq(config), "rope", base=p["theta"], scaling_factor=p["scaling_factor"])
    q, n = case.inputs["q"], case.inputs["q"].shape[2]
    turned, _ = model.encodings("decoder")[0].rotate(q, q, torch.arange(p["offset"], p["offset"] + n))
    close(turned, case.outputs["q_rot"], SINGLE)  # rotated in float32 there
    assert torch.equal(turned[..., p["rotary_dim"] :], q[..., p["rotary_dim"] :])


@pytest.mark.parametrize("name", ["alibi_sym", "alibi_asym"])
def test_golden_alibi(name):
    case = CASES[name]
    p = case.params
    heads, n = p["heads"], p["n"]
    close(alibi_slopes(heads), case.outputs["slopes"], DOUBLE)
    model = swap_positional_encoding(
        Seq2Seq(Seq2SeqConfig(9, 4 * heads, 1, heads)), "alibi", asymmetrical=p["asymmetrical"]
    )
    i = torch.arange(n).double()
    encoding = model.encodings("encoder")[0]
    got = encoding.bias(i[:, None], i, encoding.slope[:, None, None])
    close(got, case.outputs["bias"], DOUBLE)
    slope = alibi_slopes(heads)[:, None, None]
    upper = torch.ones(n, n, dtype=torch.bool).triu(1)
    discount = 0.5 if p["asymmetrical"] else 0.0
    want = (discount * slope).expand_as(got)[:, upper]
    assert (got - got.mT)[:, upper].sub(want).abs().max() < 1e-12


# ---- the model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", [None, "rope", "alibi", "none"])
@pytest.mark.parametrize("sizes", [(), (4, 3)])
def test_decoding_is_the_forward_pass(to, sizes, data):
    source, target = data
    model = made(to)
    valid = torch.ones_like(source, dtype=torch.bool)
    valid[1, 7:] = False
    memory = model.encode(source, valid)
    read = shifted(target)
    whole = model.decode(read, memory)
    cache, parts, start = model.cache(), [], 0
    for size in [*sizes, *[1] * (11 - sum(sizes))]:
        parts.append(model.decode(read[:, start : start + size], memory, cache=cache))
        start += size
    close(torch.cat(parts, 1), whole)
    close(model(source, read, valid), whole)
    close(model(source[1:2, :7], read[1:2]), whole[1:2])  # the row alone, without its padding


def test_greedy_translation_takes_the_likeliest_token(data):
    source, _ = data
    model = made("rope")
    out = model.translate(source, begin=1, end=2, max_length=6)
    logits = model(source, torch.cat([torch.ones(3, 1, dtype=torch.long), out], 1))
    for row in range(3):
        for t, token in enumerate(out[row].tolist()):
            assert token == int(logits[row, t].argmax())
            if token == 2:
                assert (out[row, t:] == 2).all()
                break


def test_beam_search_finds_no_worse_translations(data):
    source, _ = data
    model = made("rope")

    def score(out):
        """Mean log-likelihood of a token, up to the end."""
        logits = model(source, torch.cat([torch.ones(3, 1, dtype=torch.long), out[:, :-1]], 1)).log_softmax(-1)
        told = logits.gather(-1, out[..., None])[..., 0]
        live = torch.cat([torch.ones(3, 1), (out[:, :-1] != 2).cumprod(1)], 1)
        return (told * live).sum(1) / live.sum(1)

    greedy, beam = (score(model.translate(source, begin=1, end=2, max_length=5, beams=n)) for n in (1, 16 * 16))
    assert bool((beam >= greedy - 1e-9).all())


def test_sinusoids_are_those_of_translation_models(data):
    i = torch.arange(16).double()
    w = 10_000 ** (-i / 15)
    angles = (torch.arange(5).double() + 2)[:, None] * w
    want = torch.cat([angles.sin(), angles.cos()], -1)
    close(made().added.embed(torch.zeros(1, 5, 32, dtype=torch.float64))[0], want)


# ---- the swap --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["rope", "alibi", "none"])
def test_a_swap_copies_everything_and_adds_nothing(to, data):
    source, target = data
    before, after = made(), made(to)
    assert {n: p.shape for n, p in before.named_parameters()} == {n: p.shape for n, p in after.named_parameters()}
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))
    differ(before(source, shifted(target)), after(source, shifted(target)))
    x = torch.randn(1, 4, 32, dtype=torch.float64)
    assert after.added.embed(x) is x


def test_without_positions_an_encoder_knows_no_order(data):
    source, target = data
    order = torch.randperm(10, generator=torch.Generator().manual_seed(1))
    for to, same in (("none", True), ("rope", False), ("alibi", False), (None, False)):
        model = made(to)
        a, b = model(source, shifted(target)), model(source[:, order], shifted(target))
        if same:
            close(a, b)
        else:
            differ(a, b)


def test_rope_turns_half_of_each_head():
    (encoding, _) = made("rope").encodings("encoder")
    assert isinstance(encoding, PartialRoPE) and encoding.pairing == "interleaved"
    assert encoding.inv_freq.tolist() == [1.0, 10_000**-0.5]
    with pytest.raises(rw.ConfigError, match="multiple of 4"):
        swap_positional_encoding(Seq2Seq(Seq2SeqConfig(9, 12, 1, 2)), "rope")
    with pytest.raises(rw.ConfigError, match="Did you mean 'rope'"):
        made("rop")


def test_transfer_says_what_is_copied():
    from ropewalk.lab.model import Decoder, ModelConfig

    config = {"vocab_size": 20, "hidden_size": 32, "num_heads": 4}
    old, new = (Decoder(ModelConfig(encodings=(e,), **config), seed=s) for e, s in (("t5", 0), ("fox", 1)))
    done = transfer(old, new)
    assert torch.equal(new.embedding.weight, old.embedding.weight)
    assert done.dropped and all(".encoding." in n for n in done.dropped)
    assert done.fresh and all(".encoding." in n for n in done.fresh)
    assert len(done.copied) + len(done.fresh) == len(list(new.named_parameters()))
    with pytest.raises(rw.ConfigError, match="more than the encoding"):
        transfer(Decoder(ModelConfig(**{**config, "vocab_size": 21})), new)


# ---- LoRA ------------------------------------------------------------------------------------------------------------


def test_lora_starts_as_the_model_and_ends_in_its_weights(data):
    source, target = data
    model = made("rope")
    want = model(source, shifted(target))
    trained = add_lora(model, ("k", "v"), rank=3, alpha=6, dropout=0.1)
    assert len(trained) == 2 * 2 * 6 and all(
        "lora_" in name for name in trained
    )  # A and B of k and v in six attentions
    model.eval()
    assert torch.equal(model(source, shifted(target)), want)
    model.train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.5)
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    for _ in range(2):  # A has no gradient while B is zero
        torch.nn.functional.cross_entropy(model(source, shifted(target)).flatten(0, 1), target.flatten()).backward()
        optimizer.step()
    assert all(torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen)
    model.eval()
    tuned = model(source, shifted(target))
    differ(tuned, want)
    names = [n for n, _ in made().named_parameters()]
    merge_lora(model)
    assert [n for n, _ in model.named_parameters()] == names
    close(model(source, shifted(target)), tuned)
    with pytest.raises(rw.ConfigError, match="is called"):
        add_lora(model, ("key",))


def test_scale_of_lora():
    from ropewalk.lab.tuning.lora import LoRA

    base = torch.nn.Linear(5, 7, bias=False)
    assert LoRA(base, 4, 8).scale == 2 and LoRA(base, 4, 8, rank_scaled=True).scale == 4
    with pytest.raises(rw.ConfigError, match="dropout"):
        LoRA(base, dropout=1.0)


def test_synthetic_pairs():
    source, target = chunk_pairs(19, 5, 11, torch.Generator().manual_seed(3))
    assert source.shape == (5, 13) and target.shape == (5, 12) and (target[:, -1] == 2).all()
    assert (source[:, 0] == 1).all() and (source[:, -1] == 2).all()
    source = source[:, 1:-1]
    assert source.min() >= 3 and target[:, :-1].min() >= 3
    table = {}
    for row in range(5):
        order = [2, 1, 0, 5, 4, 3, 8, 7, 6, 10, 9]
        for t, i in enumerate(order):
            assert table.setdefault(int(source[row, i]), int(target[row, t])) == int(target[row, t])
    assert len(set(table.values())) == len(table)


# ---- the published direction, on a desk ------------------------------------------------------------------------------


@pytest.mark.slow
def test_rope_recovers_and_no_positions_do_not():
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)

    def train(model, steps, lr):
        optimizer = torch.optim.AdamW(model.parameters(), lr)
        for _ in range(steps):
            length = int(torch.randint(4, 13, (), generator=draw))
            source, target = chunk_pairs(11, 32, length, draw)
            loss = torch.nn.functional.cross_entropy(model(source, shifted(target)).flatten(0, 1), target.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    @torch.no_grad()
    def accuracy(model):
        source, target = chunk_pairs(11, 64, 12, torch.Generator().manual_seed(9))
        return float((model(source, shifted(target)).argmax(-1) == target).double().mean())

    trained = Seq2Seq(Seq2SeqConfig(vocab_size=11, hidden_size=32, num_layers=2, num_heads=4))
    train(trained, 500, 4e-3)
    assert accuracy(trained) > 0.9
    found = {}
    for to in ("rope", "none"):
        model = swap_positional_encoding(copy.deepcopy(trained), to)
        before = accuracy(model)
        train(model, 900, 4e-3)
        found[to] = (before, accuracy(model))
    assert all(before < 0.4 for before, _ in found.values())
    assert found["rope"][1] > 0.9 > found["none"][1] + 0.1
