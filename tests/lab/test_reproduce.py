"""`ropewalk reproduce`: the rule, the experiments as they are written, and one of them run from end to end."""

import gc
import json
import math
import subprocess
import sys
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from small import Here, texts
from typer.testing import CliRunner

import ropewalk as rw
from ropewalk.catalog import RECORDS, parse
from ropewalk.cli import app
from ropewalk.core.errors import ConfigError, UnknownNameError
from ropewalk.lab import reproduce_command
from ropewalk.lab.batch import IGNORE, Batch
from ropewalk.lab.compare import plan, shape_of
from ropewalk.lab.errors import RunError
from ropewalk.lab.experiments import EXPERIMENTS, experiment, experiments
from ropewalk.lab.experiments import evidence as written
from ropewalk.lab.experiments.evidence import EvidenceError
from ropewalk.lab.experiments.experiment import Contrast, Experiment
from ropewalk.lab.experiments.perform import perform
from ropewalk.lab.experiments.verdict import BEYOND, FAILS, HOLDS, UNSEEN, judge, verdict
from ropewalk.lab.filled import Filled
from ropewalk.lab.measured import Results
from ropewalk.lab.model import Decoder, expand_layers, load, with_encodings
from ropewalk.lab.settings import Settings
from ropewalk.lab.student import student_quantile
from ropewalk.lab.tasks import PLACED, task
from ropewalk.lab.tasks.task import stream
from ropewalk.lab.trial import Measured, Spec, run, starting_point
from ropewalk.lab.workloads import Seen, corpus_of, make_workload, resolved, seen_by

# Sheets whose systems are in the catalog so far.
SHEETS = {
    5,
    6,
    10,
    12,
    13,
    14,
    18,
    19,
    20,
    22,
    25,
    27,
    30,
    45,
    48,
    50,
    52,
    53,
    56,
    59,
    61,
    62,
    63,
    66,
    72,
    73,
    78,
    82,
    85,
    101,
    106,
}
SHEETS |= {108, 116, 121}

ALL = list(experiments())
each = pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)


# ---- the rule ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("want", "low", "high", "says"),
    [
        ("lower", -2.0, -1.0, HOLDS),
        ("lower", 1.0, 2.0, FAILS),
        ("lower", -1.0, 1.0, UNSEEN),
        ("lower", -1.0, 0.0, UNSEEN),  # what touches zero does not rule it out
        ("lower", 0.0, 0.0, UNSEEN),
        ("lower", -1.0, -1.0, HOLDS),  # all samples equal, and on one side
        ("higher", 1.0, 2.0, HOLDS),
        ("higher", -2.0, -1.0, FAILS),
        ("higher", 0.0, 1.0, UNSEEN),
        ("higher", None, None, UNSEEN),
    ],
)
def test_an_interval_is_judged_by_where_it_lies(want, low, high, says):
    assert judge(want, low, high, seeds=3) == says


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (-0.1, 0.1, HOLDS),
        (0.3, 0.4, FAILS),
        (-0.4, -0.3, FAILS),
        (0.1, 0.3, UNSEEN),
        (-0.2, 0.1, UNSEEN),
        (-1, 1, UNSEEN),
    ],
)
def test_equality_is_being_within_a_margin(low, high, says):
    assert judge("within", low, high, seeds=3, margin=0.2) == says


def test_one_seed_shows_nothing():
    assert judge("lower", -2.0, -1.0, seeds=1) == UNSEEN


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: judge("better", -2.0, -1.0, 3),
        lambda: judge("lower", 1.0, -1.0, 3),
        lambda: judge("lower", math.nan, 1.0, 3),
        lambda: judge("within", -1.0, 1.0, 3),
        lambda: judge("lower", -2.0, -1.0, 3, margin=0.1),
        lambda: verdict([]),
    ],
)
def test_what_cannot_be_judged_is_an_error(wrong):
    with pytest.raises(ConfigError):
        wrong()


def test_every_deciding_comparison_has_to_hold_and_one_failure_is_enough():
    assert verdict([HOLDS, HOLDS]) == HOLDS
    assert verdict([HOLDS, UNSEEN]) == UNSEEN
    assert verdict([HOLDS, UNSEEN, FAILS]) == FAILS
    assert verdict([HOLDS], out_of_reach="it takes ImageNet") == BEYOND
    assert verdict([], out_of_reach="it takes ImageNet") == BEYOND


# ---- the experiments ---------------------------------------------------------------------------------------------------


def test_every_sheet_of_the_catalog_has_an_experiment():
    about = {slug: one.name for one in ALL for slug in one.slugs}
    assert {r.sheet for r in RECORDS if r.slug in about} >= SHEETS
    for record in RECORDS:
        if record.sheet in SHEETS:
            assert record.slug in about, f"no experiment is about {record.slug}"
            assert record.evidence == f"evidence/{about[record.slug]}.json"
        elif record.evidence is not None:
            assert record.evidence == f"evidence/{about[record.slug]}.json"


def test_names_are_found_by_experiment_and_by_encoding():
    assert experiment("PoPE").name == "pope"
    assert experiment("bipe-alibi").name == "bipe"
    with pytest.raises(UnknownNameError, match="pope"):
        experiment("pop")


@each
def test_an_experiment_can_be_asked_for(one):
    assert one.name in EXPERIMENTS and all(slug in {r.slug for r in RECORDS} for slug in one.slugs)
    assert "arXiv" in one.source and one.limits and one.expected and one.seconds <= 240
    for full in (False, True):
        settings, before = one.asked(full=full), one.asked_before(full=full)
        assert settings.seeds >= 3 and (before is None or before.seeds == settings.seeds)
        for contrast in one.contrasts:
            assert {contrast.ours, contrast.other} <= {*settings.encodings, *one.drop_in, *one.altered}
            assert set(contrast.sizes) <= set(settings.eval_lengths)
        kept = resolved(replace(settings, train_length=settings.train_length))
        if settings.task != "text":
            workload = make_workload(kept, None)
            assert all(size in workload.sizes for contrast in one.contrasts for size in contrast.sizes)
    for name in (*one.settings["encodings"], *one.drop_in):
        for part in expand_layers(name):
            assert list(parse(part).records())


@each
@pytest.mark.parametrize("full", [False, True], ids=["default", "full"])
def test_the_command_of_an_experiment_parses(one, full, monkeypatch):
    asked = []
    monkeypatch.setattr(
        reproduce_command, "_run", lambda queue, request, *_: asked.append((queue, request)) or ([], False, [])
    )
    program, *arguments = one.command(full=full, seeds=5).split()
    assert program == "ropewalk"
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    ((queue, request),) = asked
    assert queue == [one] and request.full == full and request.seeds == 5 and request.as_written


@each
def test_a_step_of_every_encoding_can_be_trained(one):
    """Models are built as the experiment builds them, and learn from two batches; texts stand in for text."""
    settings = resolved(replace(one.asked(), seeds=1, batch_size=2))
    if settings.task == "text":
        pytest.skip("the same encodings train on text in every comparison")
    workload = make_workload(settings, None)
    for spec in plan(settings, shape_of(settings, workload), workload):
        spec = replace(spec, steps=2)
        losses = [e for e in run(replace(spec, measure=False), workload) if isinstance(e, Measured)]
        (curve,) = losses[0].records
        assert all(math.isfinite(v) for v in curve["loss"])


ALTERED = [(one, name) for one in ALL for name in one.altered]


@pytest.mark.parametrize(("one", "name"), ALTERED, ids=[f"{one.name}: {name}" for one, name in ALTERED])
def test_what_is_altered_by_hand_stays_altered(one, name, tmp_path):
    """Or the model would be measured as it was, and a difference of exactly 0 would look like a finding."""
    settings = resolved(replace(one.asked(), seeds=1))
    corpus = None
    if settings.task == "text":
        short = {"train_length": 32, "eval_lengths": (32, 64), "windows": 4}
        settings = resolved(replace(settings, data=(texts(tmp_path / "texts"),), **short))
        corpus = corpus_of(settings)
    of, path = one.altered[name]
    workload = make_workload(settings, corpus)
    model = Decoder(with_encodings(shape_of(settings, workload), expand_layers(of)))
    batches = [workload.batch(0, 2, 0), *shown(workload)]
    before = [model(batch.tokens, batch.where()).detach() for batch in batches]
    module, _, function = path.partition(":")
    getattr(import_module(module), function)(model, workload)
    gc.collect()  # what was put into the model and is held by nobody is gone now
    after = [model(batch.tokens, batch.where()) for batch in batches]
    # far above float32's noise, and below what rounding q and k does to a model that was not trained
    assert not all(torch.allclose(a, b, rtol=0, atol=5e-6) for a, b in zip(after, before, strict=True))


def shown(workload):
    """Return the first examples that a workload of its own scores, where they are of another kind than those of training."""
    return [workload._scored(workload.sizes[0], 2)] if isinstance(workload, Filled) else []


WRONG = [
    ({"settings": {"encodings": ("rope", "nope"), "eval_lengths": (8,), "seeds": 2}}, "at least 3 seeds"),
    ({"contrasts": (Contrast("rope", "nope", "lower", (8,), decides=False),)}, "no contrast decides"),
    ({"contrasts": (Contrast("rope", "alibi", "lower", (8,)),)}, "'alibi' is compared"),
    ({"contrasts": (Contrast("rope", "nope", "lower", (9,)),)}, "not all in eval_lengths"),
    (
        {
            "settings": {"encodings": ("rope", "nope"), "eval_lengths": (8, 9), "task": "text"},
            "contrasts": (Contrast("rope", "nope", "lower", (8, 9)),),
        },
        "do not make a mean",
    ),
    ({"drop_in": {"xpos": "alibi"}}, "which nobody trains"),
    ({"altered": {"xpos": ("alibi", "a:b")}}, "there are none"),
    ({"before": {"encodings": ("rope",)}}, "belong together"),
    ({"before": {"encodings": ("rope",)}, "start": {"rope": "rope"}}, "for every encoding"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_no_experiment_is_an_error(changes, message):
    given = {
        "name": "one",
        "slugs": ("rope",),
        "claim": "c",
        "source": "s",
        "expected": "e",
        "settings": {"encodings": ("rope", "nope"), "eval_lengths": (8,)},
        "contrasts": (Contrast("rope", "nope", "lower", (8,)),),
        "seconds": 1,
        "limits": "l",
    }
    Experiment(**given)
    with pytest.raises(ConfigError, match=message):
        Experiment(**{**given, **changes})


def test_listing_experiments_needs_no_torch():
    code = "import sys; from ropewalk.cli import main\ntry: main(['reproduce', '--list'])\nexcept SystemExit: pass\n"
    code += "assert 'torch' not in sys.modules"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr
    assert all(f"\n{name} " in listed.stdout for name in EXPERIMENTS)


# ---- tasks that experiments brought ------------------------------------------------------------------------------------

OPTIONS = [
    *((name, {}) for name in PLACED),
    ("marked_cell", {"offset": "diagonal"}),
    ("views", {"turned": False}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=[f"{name}{options or ''}" for name, options in OPTIONS])
def test_answers_follow_from_prompts(name, options):
    made = task(name, **options)
    for size in {made.min_size, made.train_size, made.eval_sizes[-1]}:
        for test in (False, True):
            drawn = made.examples(stream("check", size, int(test)), size, 40, test=test)
            assert drawn.tokens.shape[1] - 1 <= made.length(size)
            for tokens, answer in zip(drawn.tokens.tolist(), drawn.answer.tolist(), strict=True):
                first, count = answer.index(True), sum(answer)
                assert made.solve(tokens[:first]) == tokens[first : first + count] and all(answer[first:])
                assert max(tokens) < made.vocab_size


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=[f"{name}{options or ''}" for name, options in OPTIONS])
def test_there_are_as_many_examples_as_a_task_says_or_more(name, options):
    made = task(name, **options)
    drawn = made.draw(stream("space", name), made.min_size, 4000, test=False)
    found = len({tuple(row) for row in drawn.tokens.tolist()})
    assert found >= min(made.space(made.min_size), 4000) / 2  # of 4000 examples that there are, 2528 are drawn


def test_cells_are_placed_by_row_and_column_whatever_the_padding():
    made = task("marked_cell")
    batch = made.train_batch(0, 16, seed=0, max_size=5, bidirectional=True)
    for tokens, places, valid in zip(
        batch.tokens.tolist(), batch.positions.tolist(), batch.valid.tolist(), strict=True
    ):
        side = math.isqrt(sum(valid) - 2)
        cells = [[row + 1, column + 1] for row in range(side) for column in range(side)]
        assert places == [[0, 0], *cells, *[[0, 0]] * (len(tokens) - 1 - side * side)]


def test_views_turn_what_is_seen_into_the_asking_camera():
    """The answer is where the direction lands that the se3 blocks of GTA bring over."""
    made = task("views", landmarks=3)
    batch = made.eval_batch(3, 20, seed=0, bidirectional=True)
    cameras = batch.columns["extrinsics"]
    for row in range(20):
        tokens = batch.tokens[row].tolist()
        asked = tokens[-1] - made.landmark
        there = next(
            i for i, t in enumerate(tokens) if t >= made.sight and (t - made.sight) // made.directions == asked
        )
        angle = (tokens[there] - made.sight) % made.directions * 2 * math.pi / made.directions
        seen = torch.tensor([math.cos(angle), math.sin(angle), 0, 0], dtype=torch.float64)
        here = cameras[row, -1] @ cameras[row, there].inverse() @ seen
        answer = torch.atan2(here[1], here[0]) * made.directions / (2 * math.pi)
        assert round(float(answer)) % made.directions == int(batch.targets[row, -1]) - made.direction


def test_encodings_of_sequences_see_the_order_and_others_the_places():
    settings = resolved(
        Settings(encodings=("nope",), task="marked_cell", encoder=True, train_length=4, eval_lengths=(4,))
    )
    workload = make_workload(settings, None)
    assert seen_by(workload, ["pape(axes=2)", "rope"]) is workload
    ordered = seen_by(workload, ["rope"])
    assert isinstance(ordered, Seen)
    assert ordered.batch(0, 2, 0).positions is None and workload.batch(0, 2, 0).positions.shape[-1] == 2
    placed, counted = workload.batch(0, 2, 0), ordered.batch(0, 2, 0)
    assert torch.equal(placed.tokens, counted.tokens) and torch.equal(placed.valid, counted.valid)
    shapes = []
    (measure,) = ordered.measures()
    measure.run(lambda batch: shapes.append(batch.positions) or torch.zeros(*batch.tokens.shape, ordered.vocab_size))
    assert shapes and all(shape is None for shape in shapes)


def test_encodings_of_segments_see_the_lines_of_text(tmp_path):
    (tmp_path / "text").mkdir()
    for i in range(30):
        (tmp_path / "text" / f"{i}.txt").write_text("".join(f"{i} line\n{'x' * (n % 7)}\n" for n in range(40)))
    data = (str(tmp_path / "text"),)
    settings = resolved(Settings(encodings=("bipe_rope",), data=data, train_length=16, eval_lengths=(16,), windows=4))
    workload = make_workload(settings, corpus_of(settings))
    assert seen_by(workload, ["rope"]) is workload
    batch = seen_by(workload, ["bipe_rope"]).batch(0, 4, 0)
    model = Decoder(with_encodings(shape_of(settings, workload), ("bipe_rope(max_intra=8)",)))
    # The segments order every layer; the places inside them are added before the first.
    assert all("RoPE" in repr(encoding) for encoding in model.encodings)
    assert torch.isfinite(model(batch.tokens, batch.where())).all()
    for row in range(4):
        line, place, document = 0, 0, None
        documents = [0] * 16 if batch.documents is None else batch.documents[row].tolist()
        for i, token in enumerate(batch.tokens[row].tolist()):
            if documents[i] != document:
                line, place, document = 0, 0, documents[i]
            assert batch.positions[row, i].tolist() == [line, place]
            line, place = (line + 1, 0) if token == ord("\n") else (line, place + 1)


def test_a_batch_keeps_its_columns():
    facts = {"extrinsics": torch.eye(4, dtype=torch.float64).repeat(3, 2, 1, 1)}
    tokens = torch.zeros(3, 2, dtype=torch.long)
    batch = Batch(tokens, torch.full((3, 2), IGNORE), positions=torch.zeros(3, 2, 2), columns=facts)
    assert batch.rows(1, 3).where().query.columns["extrinsics"].shape == (2, 2, 4, 4)
    assert batch.in_order().where().query.columns.keys() == {"position"}


# ---- from end to end ---------------------------------------------------------------------------------------------------

SMALL = {"hidden_size": 16, "num_layers": 1, "num_heads": 2}
DEAF = "nope, deaf"


def deafen(model, workload):
    """Let a model hear nothing: every layer adds nothing, and every token is answered with the first of equals."""
    with torch.no_grad():
        model.embedding.weight.zero_()


TRY = Experiment(
    name="try",
    slugs=("xpos",),
    claim="A far key fades.",
    source="Nobody. arXiv 0000.00000, 2026",
    expected="Half of the trained models find it.",
    settings={
        "task": "needle",
        "encodings": ("rope(pairing=half)", "nope"),
        "train_length": 8,
        "eval_lengths": (6, 12),
        "shape": SMALL,
        "tokens": 8 * 8 * 12,
        "batch_size": 8,
        "windows": 8,
    },
    drop_in={"string_shifted(shift=4, local=2)": "rope(pairing=half)"},
    altered={DEAF: ("nope", f"{__name__}:deafen")},
    before={
        "task": "needle",
        "encodings": ("alibi",),
        "train_length": 6,
        "eval_lengths": (6,),
        "shape": SMALL,
        "tokens": 400,
        "batch_size": 8,
        "windows": 4,
    },
    start={"rope(pairing=half)": "alibi", "nope": "alibi"},
    contrasts=(
        Contrast("string_shifted(shift=4, local=2)", "rope(pairing=half)", "higher", (6, 12)),
        Contrast("rope(pairing=half)", "nope", "within", (6,), margin=0.5, decides=False),
        Contrast(DEAF, "nope", "lower", (6,), decides=False),
    ),
    seconds=5,
    limits="everything",
)


def here(folder, settings):
    return Here(folder, settings)


@pytest.fixture(scope="module")
def untimed():
    """Timing a model takes longer than training it here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ropewalk.lab.costs.speed", lambda *_: [])
        yield


@pytest.fixture(scope="module")
def performed(tmp_path_factory, untimed):
    folder = tmp_path_factory.mktemp("runs") / "reproduce-try"
    done = perform(TRY, folder, runner=here, command="ropewalk reproduce try")
    return folder, done, Results.read(folder)


def gathered(performed):
    _, done, results = performed
    return written.gather(TRY, results, command="ropewalk reproduce try", commit=None, seconds=done.seconds)


def test_a_run_gives_evidence_that_follows_from_its_numbers(performed, tmp_path):
    _, done, results = performed
    assert not done.failed and done.seconds > 0
    found = gathered(performed)
    assert found["seeds"] == [0, 1, 2] and len(found["measurements"]) == 4 * 2 * 3
    first = found["contrasts"][0]
    exact = {(r["encoding"], r["size"], r["seed"]): r["exact"] for r in results.of("exact")}
    ours, other = first["ours"], first["other"]
    by_seed = [sum(exact[ours, n, s] - exact[other, n, s] for n in (6, 12)) / 2 for s in range(3)]
    assert first["by_seed"] == pytest.approx(by_seed) and first["mean"] == pytest.approx(sum(by_seed) / 3)
    assert found["verdict"] == verdict([judge("higher", first["low"], first["high"], 3)])
    file = written.write(found, tmp_path)
    assert written.read(file) == json.loads(json.dumps(found))
    assert written.answers(found, TRY) == [] and written.disagreements(found, found) == []
    assert written.answers(found, replace(TRY, claim="Another.", slugs=("rope",))) == ["claim", "encodings"]


def test_a_stage_begins_with_the_models_of_the_one_before_and_drop_ins_with_trained_ones(performed):
    folder, _, results = performed
    before = load(folder.with_name("reproduce-try-before") / "models" / "alibi-s1")
    trained = {p.name.split("-")[0]: load(p) for p in (folder / "models").iterdir() if p.name.endswith("-s1")}
    rope, string = (next(m for n, m in trained.items() if n.startswith(k)) for k in ("rope", "string"))
    assert torch.equal(rope.embedding.weight, string.embedding.weight)
    assert not torch.equal(before.embedding.weight, rope.embedding.weight)
    assert {r["exact"] for r in results.of("exact", encoding=DEAF)} == {0.0}  # the first token is no digit
    first = starting_point(before)
    settings = resolved(TRY.asked())
    workload = make_workload(settings, None)
    spec = Spec("x", "nope", with_encodings(before.config, ("nope",)), seed=1, lr=0.0, steps=1, batch_size=8)
    (*_, finished) = run(replace(spec, measure=False), workload, checkpoint=first)
    again = Decoder(finished.config)
    again.from_bytes(finished.model)
    assert torch.equal(again.embedding.weight, before.embedding.weight)
    assert {r["trial"] for r in results.of("curve")} == {p.name for p in (folder / "models").iterdir()}


def test_a_complete_run_is_not_run_again_nor_counted_twice(performed):
    folder, done, _ = performed

    def nobody(folder, settings):
        class Nobody:
            def run(self, jobs):
                raise AssertionError(f"{len(jobs)} trials are run again")

        return Nobody()

    again = perform(TRY, folder, runner=nobody)
    assert again.seconds == done.seconds and not again.failed


def test_an_interrupted_run_goes_on_to_the_same_numbers(performed, tmp_path):
    folder = tmp_path / "reproduce-try"
    with pytest.raises(KeyboardInterrupt):
        perform(TRY, folder, runner=lambda f, s: Here(f, s, stop_after=40))
    done = perform(TRY, folder, runner=here)
    found = written.gather(TRY, Results.read(folder), command="", commit=None, seconds=done.seconds)
    assert found["measurements"] == gathered(performed)["measurements"]


def test_a_given_model_is_measured_and_not_trained(performed, tmp_path):
    folder, _, _ = performed
    path = next(p for p in (folder / "models").iterdir() if p.name.startswith("nope"))
    alone = replace(
        TRY,
        before=None,
        start={},
        altered={},
        contrasts=TRY.contrasts[:2],
        settings={**TRY.settings, "encodings": ("rope(pairing=half)", "nope")},
    )
    done = perform(alone, tmp_path / "given", model=path, runner=here)
    results = Results.read(done.folder)
    assert not done.failed and {r["seed"] for r in results.of("exact")} == {0}
    (nope,) = results.of("exact", encoding="nope", size=6)
    (was,) = (r for r in Results.read(folder).of("exact", encoding="nope", size=6) if r["trial"] == path.name)
    assert nope["items"] == was["items"]
    with pytest.raises(ConfigError, match="drop in"):
        perform(
            replace(
                alone,
                drop_in={},
                contrasts=alone.contrasts[1:] and (Contrast("nope", "rope(pairing=half)", "lower", (6,)),),
            ),
            tmp_path / "no",
            model=path,
        )
    other = replace(alone, settings={**alone.settings, "task": "copy"})
    with pytest.raises(ConfigError, match="tokens"):
        perform(other, tmp_path / "other", model=path, runner=here)


def test_failed_trials_give_no_evidence(performed, tmp_path):
    class Fails(Here):
        def run(self, jobs):
            from ropewalk.lab.compare import Failure

            for job in jobs:
                yield job.spec, Failure("out of luck")

    done = perform(replace(TRY, before=None, start={}), tmp_path / "fails", runner=lambda f, s: Fails(f, s))
    assert len(done.failed) == 6
    with pytest.raises(EvidenceError, match="out of luck"):
        written.gather(TRY, Results.read(tmp_path / "fails"), command="", commit=None, seconds=1.0)


TAMPERED = {
    "another verdict": lambda e: e.update(verdict=HOLDS if e["verdict"] != HOLDS else FAILS),
    "another judgement": lambda e: e["contrasts"][0].update(
        judgement=HOLDS if e["contrasts"][0]["judgement"] != HOLDS else FAILS
    ),
    "another mean": lambda e: e["contrasts"][0].update(mean=e["contrasts"][0]["mean"] + 0.01),
    "a shifted interval": lambda e: e["contrasts"][0].update(low=0.5, high=0.75, judgement=HOLDS),
    "another seed's value": lambda e: (
        e["contrasts"][0]["by_seed"].reverse() or e["contrasts"][0]["by_seed"].append(0.0)
    ),
    "a measurement changed": lambda e: e["measurements"][0].update(value=e["measurements"][0]["value"] + 1),
    "a measurement gone": lambda e: e["measurements"].pop(0),
    "two seeds": lambda e: e["seeds"].pop(),
    "a field gone": lambda e: e.pop("limits"),
    "a field more": lambda e: e.update(remark="fine"),
    "a wrong type": lambda e: e.update(seconds="fast"),
    "not a number": lambda e: e.update(seconds=math.nan),
    "reach": lambda e: e.update(out_of_reach="the stars"),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_evidence_that_does_not_follow_from_its_numbers_is_found_out(performed, how):
    found = json.loads(json.dumps(gathered(performed)))
    written.check(found)
    TAMPERED[how](found)
    with pytest.raises(EvidenceError):
        written.check(found)


def test_an_interval_is_no_narrower_than_the_seeds_alone_make_it(performed):
    found = json.loads(json.dumps(gathered(performed)))
    values = {(m["encoding"], m["size"], m["seed"]): m for m in found["measurements"]}
    first = found["contrasts"][0]
    for seed, value in enumerate((0.1, 0.2, 0.3)):
        for size in (6, 12):
            values[first["ours"], size, seed]["value"] = value
            values[first["other"], size, seed]["value"] = 0.0
    first.update(by_seed=[0.1, 0.2, 0.3], mean=0.2, judgement=UNSEEN)
    half = student_quantile(0.975, 2) * 0.1 / math.sqrt(3)
    first.update(low=0.2 - half, high=0.2 + half)
    found["verdict"] = UNSEEN
    second = found["contrasts"][1]
    fixed = [values[second["ours"], 6, s]["value"] - values[second["other"], 6, s]["value"] for s in range(3)]
    second.update(by_seed=fixed, mean=sum(fixed) / 3, low=sum(fixed) / 3 - 2, high=sum(fixed) / 3 + 2, judgement=UNSEEN)
    written.check(found)
    first.update(low=0.1, high=0.3, judgement=HOLDS)
    found["verdict"] = HOLDS
    with pytest.raises(EvidenceError, match="no interval"):
        written.check(found)


# ---- the commands ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"), [("3h", 10800), ("90m", 5400), ("1h30m", 5400), ("600s", 600), ("600", 600), ("0.5h", 1800)]
)
def test_durations(text, seconds):
    assert reproduce_command.seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "3d", "-1h", "3 h 2"])
def test_what_is_no_duration_is_an_error(text):
    with pytest.raises(ConfigError, match="3h"):
        reproduce_command.seconds_of(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--all"),
        (["pope", "--all"], "--all"),
        (["pope", "--budget", "3h"], "go with --all"),
        (["pope", "--seeds", "0"], "at least 1"),
        (["nobody"], "no experiment"),
    ],
)
def test_bad_input_says_what_is_wrong(arguments, message):
    with pytest.raises((ConfigError, UnknownNameError), match=message):
        CliRunner().invoke(app, ["reproduce", *arguments], catch_exceptions=False)


@pytest.fixture
def only_try(monkeypatch, performed):
    """The commands know one experiment, and run it in this process."""
    for module in (reproduce_command,):
        monkeypatch.setattr(module, "experiment", lambda name: TRY)
        monkeypatch.setattr(module, "experiments", lambda: iter([TRY]))
    monkeypatch.setattr(
        "ropewalk.lab.local.LocalRunner", lambda folder, settings, device, at_once: Here(folder, settings)
    )
    return performed


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False, env={"COLUMNS": "200"})


def test_reproduce_writes_evidence_and_a_report_and_evidence_shows_it(only_try, tmp_path):
    folder, _, _ = only_try
    where = ["--out", folder.parent, "--evidence", tmp_path / "evidence", "--quiet"]
    said = invoke("reproduce", "try", *where)
    found = written.read(tmp_path / "evidence" / "try.json")
    assert said.exit_code == 0 and f"try: {found['verdict']}" in said.output and (folder / "report.html").exists()
    assert found["command"] == "ropewalk reproduce try"
    report = (folder / "report.html").read_text()
    assert f"<h1>try: {found['verdict']}</h1>" in report
    assert report.index(TRY.claim) < report.index(TRY.expected) < report.index(TRY.limits) < report.index("<nav")
    table = invoke("evidence", "--evidence", tmp_path / "evidence")
    assert found["verdict"] in table.output and rw.__version__ in table.output
    shown = json.loads(invoke("evidence", "--evidence", tmp_path / "evidence", "--json").stdout)
    assert shown == {"try": found}
    listed = json.loads(invoke("reproduce", "--list", "--json", "--evidence", tmp_path / "evidence").stdout)
    assert [one["verdict"] for one in listed] == [found["verdict"]]
    again = invoke("reproduce", "--all", *where)
    assert again.exit_code == 0 and again.output.strip() == ""  # nothing is waiting
    late = invoke("reproduce", "--all", "--again", "--budget", "4s", *where)
    assert "no time left for try" in " ".join(late.output.split())


def test_what_runs_otherwise_than_defined_gives_no_evidence(only_try, tmp_path):
    where = ["--out", tmp_path, "--evidence", tmp_path / "evidence", "--json"]
    said = invoke("reproduce", "try", "--tokens", 300, "--seeds", 2, *where)
    assert said.exit_code == 0 and not (tmp_path / "evidence").exists()
    (found,) = json.loads(said.stdout)
    assert found["seeds"] == [0, 1] and (tmp_path / "reproduce-try-s2-t300" / "report.html").exists()


def test_a_queue_goes_on_after_a_failure(only_try, tmp_path):
    (tmp_path / "reproduce-try").write_text("a file, and no folder")
    where = ["--out", tmp_path, "--evidence", tmp_path / "evidence", "--quiet"]
    with pytest.raises(RunError, match="is a file"):
        invoke("reproduce", "try", *where)
    both = invoke("reproduce", "try", "try", *where)
    assert both.exit_code == 1 and both.output.count("try: ") == 2 and not (tmp_path / "evidence").exists()
