"""Studies: the grid, runs that fail beside runs that do not, nothing run twice, and a table that is right."""

import csv
import io
import json
import runpy
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

import trueup
from tests.train.small import SMALL
from trueup.data import registry as sources
from trueup.inputs import InputError
from trueup.metrics import METRICS, bootstrap, score
from trueup.report.study import of_study
from trueup.train import STUDIES, Study, StudyRuns, fit, judge, loop, named, run_study, study_named, train, worker
from trueup.train.figures import draw_figures
from trueup.train.judge import COMPARED, JUDGED, against_truth, calibrated_scores, pooled
from trueup.train.watch import StudyView

SETTINGS = {k: v for k, v in SMALL.to_dict().items() if k not in ("data", "model", "loss", "seed", "name")}
SETTINGS |= {"milestones": (2,), "factors": (0.1,), "epochs": 3}
TINY = Study(
    "tiny",
    recipe="gaussians",
    losses=("cross-entropy", "focal:2"),
    data=(SMALL.data,),
    models=("mlp:8",),
    settings=SETTINGS,
)

FAULTY_WORKER = """
import os, signal
from trueup.train import worker
real = worker.train
def train(recipe, folder, **options):
    print("this is for the log")
    if recipe.seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if recipe.seed == 2:
        raise RuntimeError("a bug in the net")
    return real(recipe, folder, **options)
worker.train = train
worker.main()
"""


@pytest.mark.parametrize("name", STUDIES)
def test_named_studies_are_valid(name):
    study = STUDIES[name]
    recipes = study.recipes()
    axes = (study.data or (None,), study.models or (None,), study.losses, study.seeds)
    assert len(recipes) == np.prod([len(axis) for axis in axes])
    assert len({recipe.digest for recipe in recipes.values()}) == len(recipes)
    assert study.name == name
    assert "cross-entropy" in study.losses


def test_the_default_study_is_what_is_promised():
    assert len(STUDIES["digits"].recipes()) == 36
    assert STUDIES["digits"].calibrators_of("focal:3") == {
        "none": "none",
        "temperature": "temperature",
        "focal-temperature": "focal-temperature",
        "focal-map": "focal-map:3",
    }
    for loss in ("flsd-53", "cross-entropy", "focal-schedule:5,3,2", "dual-focal:5"):
        assert "focal-map" not in STUDIES["digits"].calibrators_of(loss)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"losses": ("cross-entropy", "focus")}, "'focus' names no loss"),
        ({"losses": ()}, "losses: none is named"),
        ({"seeds": (1, 1)}, "seeds: 1, 1 names one twice"),
        ({"calibrators": ("magic",)}, "unknown calibrator 'magic'"),
        ({"models": ("resnet19",)}, "unknown model 'resnet19'"),
        ({"data": ("mnits",)}, "unknown data set 'mnits'"),
        ({"settings": {"epoch": 3}}, "unknown setting 'epoch'"),
        ({"recipe": "none"}, "unknown recipe 'none'"),
    ],
)
def test_a_bad_study_is_told_before_a_folder_is_made(tmp_path, change, says):
    with pytest.raises(InputError, match=says):
        run_study(study_named("digits", **change), tmp_path / "new", jobs=1)
    assert not (tmp_path / "new").exists()
    with pytest.raises(InputError, match="unknown study 'digit'; known: digits"):
        study_named("digit")


def test_failed_runs_stop_no_other_and_complete_ones_are_not_run_again(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(worker, "COMMAND", (sys.executable, "-c", FAULTY_WORKER))
        found = run_study(TINY, tmp_path, jobs=1, device="cpu")
    assert [run.recipe.seed for run in found.runs] == [0, 0]
    assert len(found.failed) == 4
    for name, message in found.failed.items():
        assert ("killed by signal 9" if "seed1" in name else "RuntimeError: a bug in the net") in message
        assert ("this is for the log" in message) == ("seed1" in name)
    table = judge(found, resamples=20)
    assert "killed by signal 9" in str(table)
    assert {row.seeds for row in table.rows} == {(0,)}
    assert table.rows[0].metrics["ece"].sd is None

    events = []
    again = run_study(TINY, tmp_path, jobs=1, device="cpu", watch=lambda _, event: events.append(event))
    assert sorted(event.task.recipe.seed for event in events[1:] if event.kind == "begin") == [1, 1, 2, 2]
    assert not again.failed
    assert [(run.recipe.loss, run.recipe.seed) for run in again.runs] == [
        (loss, seed) for loss in TINY.losses for seed in (0, 1, 2)
    ]
    assert run_study(TINY, tmp_path, jobs=2, device="cpu").runs == again.runs


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    runs = (train(recipe, folder / name, device="cpu") for name, recipe in TINY.recipes().items())
    return StudyRuns(TINY, tuple(runs), {})


@pytest.mark.parametrize(
    ("change", "says"),
    [({"data": ("cifar10",), "models": ("cnn",)}, "cifar10"), ({"models": ("tree-lstm",)}, "tree-lstm")],
)
def test_data_that_is_not_there_and_a_net_that_does_not_fit_are_told_once(tmp_path, change, says):
    with pytest.raises(InputError, match=says):
        run_study(study_named(**change), tmp_path / "study", device="cpu", data_dir=tmp_path)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(("mode", "says"), [("fast", "expected one of auto"), ("graph", "needs a GPU")])
def test_a_mode_that_no_run_could_have_is_told_once(tmp_path, mode, says):
    with pytest.raises(InputError, match=says):
        run_study(TINY, tmp_path / "study", device="cpu", mode=mode)
    assert not (tmp_path / "study").exists()


def test_a_run_that_was_damaged_later_costs_no_other_its_row(tmp_path):
    study = replace(TINY, seeds=(0,))
    first = run_study(study, tmp_path, jobs=1, device="cpu")
    path = first.runs[0].folder / "test.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    again = run_study(study, tmp_path, jobs=1, device="cpu")
    assert [run.recipe.loss for run in again.runs] == ["focal:2"]
    (message,) = again.failed.values()
    assert str(path) in message
    assert "the same command trains the run anew" in message


def test_a_run_of_data_that_have_changed_since_is_not_put_beside_the_others(tmp_path):
    study = replace(TINY, seeds=(0, 1))
    for name, recipe in study.recipes().items():
        train(recipe, tmp_path / name, device="cpu")
    old = next(iter(study.recipes()))
    path = tmp_path / old / "run.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps(info | {"data_checksum": "0", "date": "2020-01-01T00:00:00+00:00"}))
    found = run_study(study, tmp_path, jobs=1, device="cpu")
    assert [run.folder.name for run in found.runs] == list(study.recipes())[1:]
    ((name, message),) = found.failed.items()
    assert name == old
    assert "has changed since it was trained" in message
    assert f"remove {tmp_path / old}" in message


def test_the_table_holds_means_deviations_and_paired_differences(found):
    table = judge(found, resamples=100, seed=3)
    assert [(row.loss, row.calibrator) for row in table.rows] == [
        *(("cross-entropy", c) for c in ("none", "temperature", "focal-temperature")),
        *(("focal:2", c) for c in ("none", "temperature", "focal-temperature", "focal-map")),
    ]
    row = table.rows[4]
    of_focal, of_base = (
        [run for run in found.runs if run.recipe.loss == loss] for loss in ("focal:2", "cross-entropy")
    )
    scores = [calibrated_scores(run, "temperature") for run in of_focal]
    for name in JUDGED:
        cell = row.metrics[name]
        values = [METRICS[name](s) for s in scores]
        assert list(cell.values) == values
        assert [cell.mean, cell.sd] == pytest.approx([np.mean(values), np.std(values, ddof=1)])
        assert (cell.against is not None) == (name in COMPARED)
    base = pooled([calibrated_scores(run, "temperature") for run in of_base])
    assert row.metrics["ece"].against == bootstrap(trueup.ece, pooled(scores), other=base, resamples=100, seed=3)
    assert all(cell.against is None for cell in table.rows[0].metrics.values())


def test_the_focal_map_is_that_of_the_training_gamma_and_put_beside_plain_cross_entropy(found):
    row = judge(found, resamples=50).rows[-1]
    run = next(run for run in found.runs if run.recipe.loss == "focal:2")
    probs = trueup.FocalMap(2).fit(run.val.logits, run.val.labels)(run.test.logits)
    assert row.metrics["nll"].values[0] == pytest.approx(trueup.nll(probs, run.test.labels))
    plain = pooled([calibrated_scores(r, "none") for r in found.runs if r.recipe.loss == "cross-entropy"])
    mine = pooled([calibrated_scores(r, "focal-map:2") for r in found.runs if r.recipe.loss == "focal:2"])
    assert row.metrics["nll"].against == bootstrap(trueup.nll, mine, other=plain, resamples=50)


def test_the_truth_is_at_no_distance_from_itself_and_the_excess_is_that_of_the_expected_nll(found):
    run = found.runs[0]
    truth = run.test_posteriors
    at_home = against_truth(score(truth, run.test.labels), truth)
    assert at_home == pytest.approx({"confidence_error": 0, "excess_nll": 0}, abs=1e-12)
    scores = calibrated_scores(run, "none")
    far = against_truth(scores, truth)
    log_p = run.test.logits.double().log_softmax(1)
    expected = -(truth * log_p).sum(1).mean() + (truth * truth.log()).sum(1).mean()
    assert far["excess_nll"] == pytest.approx(expected.item(), rel=1e-5)
    row = judge(found, resamples=0).rows[0]
    assert row.metrics["excess_nll"].values[0] == far["excess_nll"]
    gaps = [abs(p.max() - t[p.argmax()]) for p, t in zip(scores.probs.double(), truth, strict=True)]
    assert far["confidence_error"] == pytest.approx(np.mean(gaps))


@pytest.mark.parametrize("terminal", [True, False])
def test_people_can_follow_a_study(tmp_path, terminal):
    tasks = [worker.Task(name, recipe, tmp_path, {}) for name, recipe in list(TINY.recipes().items())[:2]]
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    with StudyView(console) as view:
        view(tasks, None)
        for task in tasks:
            view(tasks, worker.Event("begin", task))
        view(tasks, worker.Event("further", tasks[0], 0.25))
        view(tasks, worker.Event("further", tasks[0], 1.5))
        assert view.bars.tasks[0].completed == 1.5
        assert view.bars.tasks[0].total == 6
        view(tasks, worker.Event("failed", tasks[0], 1, "out of memory\nmore"))
        view(tasks, worker.Event("done", tasks[1], 3))
        assert view.bars.tasks[0].completed == 6
    shown = console.file.getvalue()
    assert "cross-entropy seed 0: out of memory" in shown
    assert ("2/2" in shown) == (not terminal)
    assert ("6.00/6 epochs" in shown) == terminal


def test_the_time_left_is_told_by_the_epochs_that_were_waited_for(tmp_path):
    """Three runs of 100 epochs: one begins anew, one goes on from 90, and one fails; each epoch takes a second."""
    study = replace(TINY, losses=("brier",), seeds=(0, 1, 2), settings=TINY.settings | {"epochs": 100})
    tasks = [worker.Task(name, recipe, tmp_path, {}) for name, recipe in study.recipes().items()]
    view, now = StudyView(Console(file=io.StringIO(), force_terminal=True)), [0.0]
    view.bars.get_time = lambda: now[0]
    view(tasks, None)
    for task in tasks:
        view(tasks, worker.Event("begin", task))
    for second in range(11):
        now[0] = float(second)
        view(tasks, worker.Event("further", tasks[0], second))
        if second == 5:
            view(tasks, worker.Event("further", tasks[1], 90))
            view(tasks, worker.Event("failed", tasks[2], 0, "out of memory"))
    whole = view.bars.tasks[0]
    assert whole.completed == 10 + 90 + 100
    assert whole.time_remaining == pytest.approx(100, abs=1)


def test_pooled_scores_are_those_of_all_samples(found):
    parts = [calibrated_scores(run, "none") for run in found.runs[:2]]
    both = pooled(parts)
    for metric in (trueup.nll, trueup.error, trueup.brier):
        assert metric(both) == pytest.approx(np.mean([metric(part) for part in parts]))


def test_csv_json_and_print_say_the_same(found, tmp_path):
    table = judge(found, resamples=20)
    files = table.save(tmp_path)
    as_json = json.loads(files["json"].read_text())["rows"]
    as_csv = list(csv.DictReader(io.StringIO(files["csv"].read_text())))
    assert len(as_json) == len(as_csv) == len(table.rows)
    for row, plain, line in zip(table.rows, as_json, as_csv, strict=True):
        for metric in JUDGED:
            assert plain["metrics"][metric]["mean"] == float(line[f"{metric}_mean"]) == row.metrics[metric].mean
        against = plain["metrics"]["ece"]["against"]
        assert (against is None) == (line["ece_low"] == "")
        if against is not None:
            assert [against["low"], against["high"]] == [float(line["ece_low"]), float(line["ece_high"])]
    for width in (80, 120):
        lines = trueup.tables.text(table, width=width).splitlines()
        assert max(map(len, lines)) <= width
        assert sum("temperature" in line and "focal" not in line for line in lines) == 2
        mean = f"{100 * table.rows[3].metrics['ece'].mean:.2f}"
        assert any(line.startswith("  none") and mean in line for line in lines)


def test_where_the_best_epoch_is_kept_the_table_tells_which_and_the_last_beside_it(tmp_path):
    settings = SETTINGS | {"keep": "best-val", "lr": 1.0, "milestones": (), "factors": (), "epochs": 4}
    study = replace(TINY, seeds=(0, 1), calibrators=("none", "temperature"), settings=settings)
    runs = tuple(train(recipe, tmp_path / name, device="cpu") for name, recipe in study.recipes().items())
    table = judge(StudyRuns(study, runs, {}), resamples=0)
    lines = list(csv.DictReader(io.StringIO(table.to_csv())))
    for row, line, plain in zip(table.rows, lines, table.to_list(), strict=True):
        of = [run for run in runs if run.recipe.loss == row.loss]
        assert row.kept_epochs == tuple(run.info["kept_epoch"] for run in of)
        assert line["kept_epochs"] == " ".join(map(str, row.kept_epochs))
        assert plain["last_epoch"]["ece"]["mean"] == float(line["ece_last_mean"]) == row.last_epoch["ece"].mean
        for metric in ("error", "nll", "ece") if row.calibrator == "none" else ("error",):
            assert row.last_epoch[metric].values == pytest.approx([run.history[-1]["test"][metric] for run in of])
    assert table.rows[1].last_epoch["nll"].mean < table.rows[0].last_epoch["nll"].mean  # fitted to its own val
    for width in (80, 120):
        text = trueup.tables.text(table, width=width)
        assert max(map(len, text.splitlines())) <= width
        assert text.count("  last epoch") == 2
        told = " ".join(f"{run.info['kept_epoch']}" for run in runs[2:])
        assert f"focal:2 {told}." in " ".join(text.split())
    content = of_study({"study": "x", "rows": table.to_list()}, runs)["study"]["settings"][0]
    assert [row["calibrator"] for row in content["rows"][:2]] == ["none", "none, last epoch"]
    assert content["kept"].startswith(f"cross-entropy {runs[0].info['kept_epoch'] + 1} ")


def test_a_study_without_cross_entropy_has_a_table_without_differences(found):
    only = StudyRuns(TINY, tuple(run for run in found.runs if run.recipe.loss != "cross-entropy"), {})
    rows = judge(only, resamples=20).rows
    assert len(rows) == 4
    assert all(cell.against is None for row in rows for cell in row.metrics.values())


def test_a_change_by_a_calibrator_is_over_the_seeds_of_the_same_runs(found):
    rows = judge(found, resamples=0).rows
    plain, mapped = (next(r for r in rows if (r.loss, r.calibrator) == ("focal:2", c)) for c in ("none", "focal-map"))
    differences = np.subtract(mapped.metrics["excess_nll"].values, plain.metrics["excess_nll"].values)
    tested = stats.ttest_1samp(differences, 0).confidence_interval()
    assert mapped.metrics["excess_nll"].change == pytest.approx((differences.mean(), tested.low, tested.high))
    assert plain.metrics["excess_nll"].change is None
    two = StudyRuns(TINY, tuple(run for run in found.runs if run.recipe.seed < 2), {})
    assert all(cell.change is None for row in judge(two, resamples=0).rows for cell in row.metrics.values())


def test_the_table_says_what_made_it(found, tmp_path):
    files = judge(found, resamples=0).save(tmp_path)
    made_by = json.loads(files["json"].read_text())["made_by"]
    assert made_by["settings"]["losses"] == list(TINY.losses)
    assert made_by["runs"] == 6
    assert made_by["versions"]["torch"]
    assert made_by["hardware"]["cpu"]
    assert made_by["dates"][0] <= made_by["dates"][1]


def test_redrawn_data_differ_by_seed_and_settings_by_data():
    own = {name: value for name, value in SETTINGS.items() if name != "split_seed"}
    study = replace(TINY, redraw=True, settings=own, by_data={SMALL.data: {"batch": 7, "epochs": 99}})
    recipes = list(study.recipes().values())
    assert {recipe.split_seed == recipe.seed for recipe in recipes} == {True}
    assert {(recipe.batch, recipe.epochs) for recipe in recipes} == {(SETTINGS["batch"], SETTINGS["epochs"])}
    freed = replace(study, settings={})
    assert {(recipe.batch, recipe.epochs) for recipe in freed.recipes().values()} == {(7, 99)}


def test_settings_are_added_to_the_studys_own_unless_the_recipe_is_another():
    own = STUDIES["gaussians"]
    assert study_named("gaussians", settings={"clip": 2}).settings == own.settings | {"clip": 2}
    assert study_named("gaussians").settings == own.settings
    other = study_named("gaussians", recipe="digits", settings={"clip": 2})
    assert (other.settings, other.by_data) == ({"clip": 2}, {})


def test_the_gaussians_take_the_same_number_of_steps_whatever_the_samples():
    for recipe in STUDIES["gaussians"].recipes().values():
        samples = sources.parse(recipe.data)[1]["train"]
        assert recipe.epochs * samples / recipe.batch == 400


def test_figures_are_drawn_for_every_net_and_without_matplotlib_it_is_told(found, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    drawn = draw_figures(found, tmp_path)
    assert sorted(drawn) == ["reliability-none", "reliability-temperature", "training-ece", "training-nll"]
    assert all(path.stat().st_size > 5000 for path in drawn.values())
    other = [replace(run, recipe=replace(run.recipe, model="mlp:9")) for run in found.runs]
    assert len(draw_figures(StudyRuns(TINY, (*found.runs, *other), {}), tmp_path)) == 8
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="figures need matplotlib"):
        draw_figures(found, tmp_path)


@pytest.mark.parametrize("settings", [{"model": "mlp"}, {"model": "cnn", "augmentation": "crop-flip"}])
def test_the_data_path_takes_a_small_share_of_the_processors_time_in_the_steps(monkeypatch, settings):
    """With -s it prints the share."""
    seconds = {"data": 0.0, "steps": 0.0}

    def timed(what, function):
        def call(*args, **kwargs):
            begin = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                seconds[what] += time.process_time() - begin

        return call

    monkeypatch.setattr(loop.Batches, "next", timed("data", loop.Batches.next))
    monkeypatch.setattr(loop, "step", timed("steps", loop.step))
    recipe = named("digits", epochs=4, milestones=(), factors=(), **settings)
    fit(recipe, sources.load(recipe.data), device="cpu")
    share = seconds["data"] / seconds["steps"]
    print(f"\n{recipe.data}, {recipe.model}, {recipe.augmentation}: data path {100 * share:.1f} % of the steps")
    assert share < 0.25


def test_the_page_on_gaussians_says_what_was_stored():
    script = Path(__file__).parents[2] / "docs" / "figures" / "gaussians.py"
    page = runpy.run_path(str(script))
    text = page["PAGE"].read_text()
    assert page["filled"](text, page["tables"](page["stored"]())) == text
    assert json.loads((page["STORED"] / "made_by.json").read_text())["settings"] == json.loads(
        json.dumps(asdict(STUDIES["gaussians"]))
    )
