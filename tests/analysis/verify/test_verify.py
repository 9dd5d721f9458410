import json
import math
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import ropewalk as rw
from ropewalk.analysis.verify import read_dump
from ropewalk.analysis.verify.measure import frequencies, locate
from ropewalk.analysis.verify.reference import axes_of_planes
from ropewalk.cli import app, main
from ropewalk.core.errors import ConfigError, PositionError, ShapeError

CONFIG = {"model_type": "llama", "head_dim": 32, "rope_theta": 10000.0, "max_position_embeddings": 2048}


def dump(
    config=CONFIG, positions=None, dim=32, heads=(4, 2), pairing="half", base=10000.0, dtype=torch.float32, seq=24
):
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, h, seq, dim, generator=g).to(dtype) for h in heads)
    positions = torch.arange(seq) if positions is None else positions
    cos, sin = rw.functional.rotary_tables(positions, head_dim=dim, base=base)
    turned = [rw.functional.apply_rotary(x, cos, sin, pairing) for x in (q, k)]
    return {"q": q, "k": k, "q_rot": turned[0], "k_rot": turned[1], "positions": positions}


# ---- measuring ---------------------------------------------------------------------------------------------------------


def test_frequencies_are_read_from_gains_whatever_turns_are_lost():
    omega = 500_000.0 ** (-torch.arange(32, dtype=torch.float64) / 32)
    p = torch.tensor([3.0, 4, 5, 9, 20, 21, 180, 1000, 1001, 4000], dtype=torch.float64)
    found, phase, hold = frequencies(torch.exp(1j * (omega * p[:, None] + 0.3)), p)
    torch.testing.assert_close(found, omega, atol=1e-12, rtol=1e-9)
    assert (phase - 0.3).abs().max() < 1e-6
    assert hold.min() > 1 - 1e-9


def test_positions_are_read_from_gains():
    omega = 10_000.0 ** (-torch.arange(16, dtype=torch.float64) / 16)
    p = torch.tensor([0.0, 1, 17, 1234, 4095, -3, 12.5], dtype=torch.float64)
    torch.testing.assert_close(
        locate(torch.exp(1j * omega * p[:, None]), omega[None], torch.zeros(7, dtype=torch.float64))[0], p
    )


def test_axes_of_planes_as_published():
    assert axes_of_planes((2, 3, 3), interleaved=False) == (0, 0, 1, 1, 1, 2, 2, 2)
    dealt = axes_of_planes((24, 20, 20), interleaved=True)
    assert [dealt.count(a) for a in range(3)] == [24, 20, 20]
    assert dealt[:6] == (0, 1, 2, 0, 1, 2)
    assert set(dealt[60:]) == {0}


# ---- tensors -----------------------------------------------------------------------------------------------------------


def test_a_right_rotation_passes_and_is_measured():
    verdict = rw.verify(dump(), reference=CONFIG)
    assert verdict.same
    assert verdict.measured.pairing == "half"
    assert verdict.measured.base == pytest.approx(10_000)
    assert verdict.measured.attention_factor_q == pytest.approx(1.0, abs=1e-6)


def test_the_sentences_name_what_is_wrong():
    assert "pairs are interleaved" in rw.verify(dump(pairing="interleaved"), reference=CONFIG).findings[0].sentence
    doubled = dump() | {"positions": torch.arange(24)}
    doubled |= {n: dump(positions=2 * torch.arange(24))[n] for n in ("q_rot", "k_rot")}
    finding = rw.verify(doubled, reference=CONFIG).findings[0]
    assert finding.sentence == "positions are multiplied by 2"
    assert "frequencies multiplied by 2" in finding.same_as
    yarn = CONFIG | {
        "max_position_embeddings": 8192,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
    }
    spectrum = rw.geometric(32).yarn(4.0, 2048).inv_freq
    cos, sin = rw.functional.rotary_tables(torch.arange(24), inv_freq=torch.tensor(spectrum, dtype=torch.float64))
    lost = dump()
    lost |= {f"{n}_rot": rw.functional.apply_rotary(lost[n], cos, sin, "half") for n in "qk"}
    finding = rw.verify(lost, reference=yarn).findings[0]
    assert "attention factor 1, yarn with factor 4 wants 1.139" in finding.sentence


def test_a_lost_decode_offset_in_a_sentence():
    given = torch.arange(600)
    lost = dump(positions=given, seq=600)
    lost |= {n: dump(positions=given % 512, seq=600)[n] for n in ("q_rot", "k_rot")}
    finding = rw.verify(lost, reference=CONFIG).findings[0]
    assert finding.sentence == "position restarts at 0 after 512 tokens: decode offset lost"
    assert "offset" in finding.fix


def test_swapped_axes_in_a_sentence():
    t = dump()
    by_head = torch.arange(24)
    cos, sin = rw.functional.rotary_tables(by_head, head_dim=32)
    for n in "qk":
        wrong = t[n].transpose(1, 2)
        heads = wrong.shape[2]
        t[f"{n}_rot"] = rw.functional.apply_rotary(wrong, cos[:heads], sin[:heads], "half").transpose(1, 2)
    assert rw.verify(t, reference=CONFIG).findings[0].sentence.startswith("sequence and head axes are swapped")


def test_ignored_sections_in_a_sentence():
    config = CONFIG | {"rope_scaling": {"rope_type": "default", "mrope_section": [4, 6, 6]}}
    cells = torch.arange(24)
    ids = torch.stack((cells // 12, cells % 12 // 4, cells % 4), -1)
    t = dump(positions=ids[:, 0]) | {"positions": ids}
    finding = rw.verify(t, reference=config).findings[0]
    assert finding.sentence.startswith("M-RoPE sections are ignored: text is fine, images are wrong")


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_a_width_that_nobody_expects_is_found_in_a_long_sequence(pairing):
    tensors = dump(pairing=pairing, seq=1500)
    cos, sin = rw.functional.rotary_tables(torch.arange(1500), head_dim=20)
    for name in ("q", "k"):
        x = tensors[name]
        tensors[f"{name}_rot"] = torch.cat(
            (rw.functional.apply_rotary(x[..., :20], cos, sin, pairing), x[..., 20:]), -1
        )
    verdict = rw.verify(tensors, reference=CONFIG, pairing=pairing)
    assert verdict.errors[0].cause == "width"
    assert verdict.measured.width == 20
    assert "20 channels" in verdict.errors[0].sentence


def test_noise_is_no_known_fault_and_names_none():
    tensors = dump()
    g = torch.Generator().manual_seed(1)
    for name in ("q_rot", "k_rot"):
        tensors[name] = tensors[name] + torch.randn(tensors[name].shape, generator=g)
    verdict = rw.verify(tensors, reference=CONFIG)
    assert not verdict.same
    assert "precision" not in {f.cause for f in verdict.errors}


def test_angles_in_bf16_grow_with_position():
    positions = torch.cat((torch.arange(24), torch.arange(1840, 1864)))
    right = dump(positions=positions, seq=48)
    omega = 10_000.0 ** (-torch.arange(16, dtype=torch.float64) / 16)
    angle = (positions[:, None].float() * omega.float()).bfloat16().double()
    wrong = right | {f"{n}_rot": rw.functional.apply_rotary(right[n], angle.cos(), angle.sin(), "half") for n in "qk"}
    finding = rw.verify(wrong, reference=CONFIG).findings[0]
    assert finding.cause == "precision"
    assert "look computed in bf16: the error grows with position" in finding.sentence


def test_float32_angles_are_a_note_at_far_positions():
    positions = torch.arange(100_000, 100_024)
    far = dump(positions=positions)
    omega = 10_000.0 ** (-torch.arange(16, dtype=torch.float64) / 16)
    angle = (positions[:, None].float() * omega.float()).double()
    far |= {f"{n}_rot": rw.functional.apply_rotary(far[n], angle.cos(), angle.sin(), "half") for n in "qk"}
    verdict = rw.verify(far, reference=CONFIG)
    assert verdict.same
    assert [f.cause for f in verdict.findings] == ["float32-tables"]


def test_one_token_cannot_tell_scale_from_offset_and_says_so():
    one = dump(positions=torch.tensor([10]), seq=1)
    one |= {n: dump(positions=torch.tensor([20]), seq=1)[n] for n in ("q_rot", "k_rot")}
    finding = rw.verify(one, reference=CONFIG).findings[0]
    assert finding.cause in ("position-offset", "position-scale")
    assert finding.same_as or finding.or_else


def test_layouts_and_positions_of_any_form():
    t = dump()
    other = {n: x.transpose(1, 2) if n != "positions" else x[None] for n, x in t.items()}
    assert rw.verify(other, reference=CONFIG).same
    assert rw.verify({n: x[0] if n != "positions" else x for n, x in t.items()}, reference=CONFIG).same
    assert rw.verify({n: t[n] for n in ("q", "q_rot")}, reference=CONFIG).same


def test_every_kind_of_reference():
    t = dump(pairing="interleaved")
    for reference in (rw.RoPE(32), rw.geometric(32)):
        assert rw.verify(t, reference=reference, pairing="interleaved").same
    grid = rw.grid_positions(3, 4).query.coordinates()
    axial = rw.AxialRoPE(32)
    q, k = t["q"][..., :12, :], t["k"][..., :12, :]
    cos, sin = axial.angles(grid.double()).cos(), axial.angles(grid.double()).sin()
    turned = [rw.functional.apply_rotary(x, cos, sin) for x in (q, k)]
    tensors = {"q": q, "k": k, "q_rot": turned[0], "k_rot": turned[1], "positions": grid}
    assert rw.verify(tensors, reference=axial).same
    flipped = tensors | {"positions": grid.flip(-1)}
    assert rw.verify(flipped, reference=axial).errors[0].cause in ("axis-order", "sections")


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"q_rot": None}, ShapeError, "no q_rot"),
        ({"q": torch.randn(4, 24)}, ShapeError, "batch, heads, seq"),
        (
            {"k": torch.randn(1, 2, 23, 32), "k_rot": torch.randn(1, 2, 23, 32)},
            ShapeError,
            "as long as the positions|are one",
        ),
        ({"positions": torch.full((24,), math.nan)}, PositionError, "NaN"),
        ({"positions": torch.ones(24, dtype=torch.bool)}, PositionError, "bool"),
        ({"positions": torch.arange(7)}, ShapeError, "one position a token"),
        ({"q": torch.full((1, 4, 24, 32), math.inf)}, ShapeError, "infinity before"),
        ({"q": torch.ones(1, 4, 24, 32, dtype=torch.int64)}, ShapeError, "int64"),
    ],
)
def test_bad_tensors_are_errors(change, error, words):
    with pytest.raises(error, match=words):
        rw.verify({**dump(), **change}, reference=CONFIG)


def test_nan_in_the_result_is_a_finding():
    t = dump()
    t["q_rot"] = t["q_rot"].clone()
    t["q_rot"][0, 1, 5, 3] = math.nan
    verdict = rw.verify(t, reference=CONFIG)
    assert [f.cause for f in verdict.errors] == ["not-finite"]
    assert "head 1, token 5, channel 3" in verdict.errors[0].evidence
    json.dumps(verdict.as_dict(), allow_nan=False)


def test_a_reference_of_another_width_is_an_error():
    with pytest.raises(ShapeError, match="32 channels"):
        rw.verify(dump(), reference=CONFIG | {"head_dim": 64})


# ---- functions ---------------------------------------------------------------------------------------------------------

OMEGA = 10_000.0 ** (-torch.arange(16, dtype=torch.float64) / 16)


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def hf(q, k, cos, sin, position_ids=None, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def by_positions(query, key, position_ids):
    angle = (position_ids.double()[..., None] * OMEGA)[:, None]
    cos, sin = (torch.cat((t, t), -1).to(query.dtype) for t in (angle.cos(), angle.sin()))
    return query * cos + rotate_half(query) * sin, key * cos + rotate_half(key) * sin


def alone(x):
    angle = torch.arange(x.shape[-2]).double()[:, None] * OMEGA
    cos, sin = (torch.cat((t, t), -1).to(x.dtype) for t in (angle.cos(), angle.sin()))
    return x * cos + rotate_half(x) * sin


def along_the_wrong_axis(x):
    return alone(x.transpose(1, 2)).transpose(1, 2)


def meta(xq, xk, freqs_cis):
    assert freqs_cis.shape == (xq.shape[1], xq.shape[-1] // 2)
    cis = freqs_cis[None, :, None]

    def turn(x):
        return torch.view_as_real(torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * cis).flatten(-2).type_as(x)

    return turn(xq), turn(xk)


def nameless(a, b, c):
    return by_positions(a, b, c)


def positions_first(positions, query, key):
    return by_positions(query, key, positions)


def with_offset(x, offset=0):
    angle = (torch.arange(x.shape[-2]) + offset).double()[:, None] * OMEGA
    cos, sin = (torch.cat((t, t), -1).to(x.dtype) for t in (angle.cos(), angle.sin()))
    return x * cos + rotate_half(x) * sin


def in_place(q, k, position_ids):
    a, b = by_positions(q, k, position_ids)
    q.copy_(a)
    k.copy_(b)


class Tables(torch.nn.Module):
    def forward(self, x, position_ids):
        angle = position_ids.double()[..., None] * OMEGA
        angle = torch.cat((angle, angle), -1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


@pytest.mark.parametrize(
    "fn",
    [hf, by_positions, alone, nameless, positions_first, with_offset, in_place, Tables()],
    ids=lambda f: getattr(f, "__name__", "module"),
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_functions_are_called_as_they_like(fn, dtype):
    verdict = rw.verify(fn, reference=CONFIG, dtype=dtype)
    assert verdict.same, str(verdict)


def test_complex_tables_in_the_layout_of_their_convention():
    verdict = rw.verify(meta, reference=CONFIG, pairing="interleaved")
    assert verdict.same, str(verdict)
    assert rw.verify(meta, reference=CONFIG).errors[0].cause == "pairing"


def test_a_swapped_axis_is_named():
    assert rw.verify(along_the_wrong_axis, reference=CONFIG).errors[0].cause == "axes"


def test_what_cannot_be_called_says_how_to_say():
    def odd(alpha, beta, gamma, delta, epsilon):
        raise RuntimeError("no")

    with pytest.raises(ConfigError, match="--call"):
        rw.verify(odd, reference=CONFIG)
    assert rw.verify(lambda u, v: alone(u) if v == "yes" else None, reference=CONFIG, call="x,v='yes'").same
    with pytest.raises(ConfigError, match="Did you mean 'positions'"):
        rw.verify(alone, reference=CONFIG, call="x,position")


# ---- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for name, pairing in (("right", "half"), ("wrong", "interleaved")):
        save_file(dump(pairing=pairing, dtype=torch.bfloat16), tmp_path / f"{name}.safetensors")
    return tmp_path


def test_status_of_the_command(files):
    run = CliRunner().invoke
    right = run(app, ["verify", str(files / "right.safetensors"), "--like", str(files / "config.json")])
    assert right.exit_code == 0, right.output
    wrong = run(app, ["verify", str(files / "wrong.safetensors"), "--like", str(files), "--json"])
    assert wrong.exit_code == 1
    said = json.loads(wrong.output)
    assert said["same"] is False
    assert said["findings"][0]["cause"] == "pairing"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["x.npz"],
        ["nothing.npz", "--like", "config.json"],
        ["os:sep", "--like", "config.json"],
        ["no.such:thing", "--like", "config.json"],
    ],
)
def test_bad_input_ends_with_two(files, arguments, monkeypatch, capsys):
    monkeypatch.chdir(files)
    with pytest.raises(SystemExit) as stop:
        main(["verify", *arguments])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("ropewalk: ")


def test_a_function_of_a_file(files, monkeypatch, capsys):
    (files / "port.py").write_text("import torch\n\ndef apply_rope(q, k, cos, sin):\n    return q, k\n")
    monkeypatch.chdir(files)
    with pytest.raises(SystemExit) as stop:
        main(["verify", "port.py:apply_rope", "--like", "config.json"])
    assert stop.value.code == 1
    assert "not rotated" in capsys.readouterr().out


# ---- files -------------------------------------------------------------------------------------------------------------


def test_dumps_of_both_kinds(files):
    np = pytest.importorskip("numpy")
    t = dump()
    np.savez(files / "d.npz", **{n: x.numpy() for n, x in t.items()})
    for name in ("d.npz", "right.safetensors"):
        assert set(read_dump(files / name)) == {"q", "k", "q_rot", "k_rot", "positions"}
    assert rw.verify(files / "d.npz", reference=CONFIG).same


def test_hostile_files_are_errors(files):
    np = pytest.importorskip("numpy")
    whole = (files / "right.safetensors").read_bytes()
    (files / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    (files / "text.npz").write_text("no archive")
    np.savez(files / "pickled.npz", q=np.array([{"a": 1}], dtype=object), q_rot=np.zeros(1))
    np.savez(files / "good.npz", q=np.zeros((1, 1, 4, 8)))
    archive = (files / "good.npz").read_bytes()
    (files / "cut.npz").write_bytes(archive[:-30])
    (files / "huge.safetensors").write_bytes((2**40).to_bytes(8, "little") + b"{}")
    for name in ("cut.safetensors", "text.npz", "pickled.npz", "cut.npz", "huge.safetensors"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_dump(files / name)
    with pytest.raises(ConfigError, match="no dump"):
        read_dump(files / "x.pt")


def test_importing_the_command_needs_no_torch():
    code = "import sys, ropewalk.integrations.verify_command; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
