"""Focal temperature scaling, answered: the bounds, the line, the rivals, the shelf, the verdicts."""

import json
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import trueup
from tests import cases
from tests.papers.conftest import RESULTS
from tests.train.small import SMALL
from trueup.cli import app
from trueup.inputs import InputError
from trueup.papers import page
from trueup.papers.komisarenko2024 import (
    bounds,
    claims,
    gathering,
    line,
    measure,
    networks,
    reproduce,
    rivals,
    sheets,
    shift,
)  # fmt: skip
from trueup.papers.komisarenko2024.networks import Shelf, training_gamma
from trueup.papers.reproduction import FAILS, HOLDS, UNTESTED
from trueup.papers.stored import store, write_sums
from trueup.train import named, train

PAGE = RESULTS.parent / "docs" / "focal-temperature.md"


def predictions(classes, seed, count=300, temperature=1.6):
    probs, labels = cases.drawn(count, classes, seed, temperature=temperature)
    return np.log(probs), labels


@pytest.fixture
def place(tmp_path):
    """A results folder without runs, and a data folder with the logits of two small networks."""
    (tmp_path / "results").mkdir()
    for name, classes in (("toy_net_flsd53_us", 3), ("toy_other_us", 4)):
        folder = tmp_path / "data" / "logits" / name
        folder.mkdir(parents=True)
        for part, seed in (("val", 1), ("test", 2)):
            z, y = predictions(classes, seed)
            np.savez(folder / f"{part}.npz", logits=z.astype(np.float32), labels=y)
    return tmp_path


# ---------------------------------------------------------------------- question 1


@pytest.mark.parametrize("gamma", [0.25, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("classes", [2, 3, 4, 10, 100])
def test_every_prediction_lies_within_the_derived_bounds(classes, gamma):
    generator = torch.Generator().manual_seed(classes)
    spread = torch.tensor([0.3, 2.0, 6.0], dtype=torch.float64).repeat(100)[:, None]
    q = (spread * torch.randn(300, classes, generator=generator, dtype=torch.float64)).log_softmax(1)
    temperatures = 1 / bounds.inverse_temperature(q, gamma)
    assert float(temperatures.min()) > 1 / (1 + gamma)
    assert float(temperatures.max()) <= bounds.highest_temperature(classes, gamma) + 1e-9


def test_the_temperature_gives_the_top_probability_of_the_map():
    q = torch.randn(50, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).mul(2).log_softmax(1)
    for gamma in (0.5, 3.0):
        b = bounds.inverse_temperature(q, gamma)[:, None]
        assert torch.allclose((b * q).softmax(1).amax(1), trueup.focal_map(q, gamma).exp().amax(1), atol=1e-12)


def test_descent_comes_near_to_what_was_derived_and_never_beyond():
    for classes, gamma in ((2, 1.0), (4, 1.0), (10, 3.0), (100, 3.0)):
        found = bounds.bounds(classes, gamma)
        assert found.low < found.found_low < 1.01 * found.low
        assert 0.999 * found.high < found.found_high <= found.high + 1e-9
        assert found.found_low <= found.sampled_low <= found.sampled_high <= found.found_high


def test_the_theorem_of_two_classes_does_not_hold_for_three():
    assert bounds.highest_temperature(2, 3.0) < float(trueup.temperature_bounds(3.0)[1])
    assert [bounds.highest_temperature(3, gamma) for gamma in (0.25, 3.0, 10.0)] == [1.0, 1.0, 1.0]
    assert bounds.highest_temperature(4, 1.4) > 1 == bounds.highest_temperature(4, 1.5)  # gamma*(1/3) = 1.43


# ---------------------------------------------------------------------- question 2


def test_the_slope_of_the_line_is_known_without_labels():
    z, y = (torch.from_numpy(x) for x in predictions(3, 3, count=4000))
    found = line.fitted_line(z, y)
    assert found.predicted == pytest.approx(found.tangent, rel=0.05)
    assert found.worst < 0.15


def test_the_error_of_the_slope_is_what_samples_show():
    slopes = []
    for seed in range(12):
        z, y = (torch.from_numpy(x) for x in predictions(3, seed, count=300))
        slopes.append(line.fitted_line(z, y))
    spread = np.std([each.slope for each in slopes], ddof=1)
    assert np.mean([each.slope_error for each in slopes]) == pytest.approx(spread, rel=0.6)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_limits_of_the_slope_are_those_of_small_and_large_margins(classes):
    small, large = line.limit_slopes(classes)
    near = large - (1 + np.log(classes - 1)) / 30  # the limit is approached like one over the margin
    noise = torch.randn(500, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert line.relative_slope(1e-3 * noise, 1.0) == pytest.approx(small, abs=1e-3)
    top = torch.nn.functional.one_hot(torch.arange(500) % classes, classes).double()
    assert line.relative_slope(30 * top + 1e-3 * noise, 1.0) == pytest.approx(near, abs=5e-3)


def test_a_search_along_the_line_is_between_one_parameter_and_two():
    z, y = (torch.from_numpy(x) for x in predictions(10, 5, count=2000, temperature=2.0))
    one = measure.nll_of(z, y, line.along_the_line(z, y))
    two, plain = (each.fit(z, y).fit_report.after for each in (trueup.FocalTemperature(), trueup.Temperature()))
    assert two <= one + 1e-9 <= plain + 1e-6


# ---------------------------------------------------------------------- question 3


def test_the_ensemble_contains_temperature_scaling():
    z, y = (torch.from_numpy(x) for x in predictions(5, 0, count=1000))
    log_probs = rivals.ensemble(z, y)(z)
    assert torch.allclose(log_probs.exp().sum(1), torch.ones(1000, dtype=torch.float64))
    own = -float(log_probs.gather(1, y[:, None]).mean())
    assert own <= trueup.Temperature().fit(z, y).fit_report.after + 1e-4


def test_with_fewer_samples_than_classes_the_fallback_is_told(monkeypatch):
    monkeypatch.setattr(rivals, "SIZES", (100,))
    monkeypatch.setattr(rivals, "NAMES", ("none", "temperature", "vector"))
    z, y = predictions(120, 0, count=150)
    found = rivals.rivals(*[trueup.Predictions(logits=z, labels=y)] * 2)
    assert [(each["calibrator"], each["few"]) for each in found] == [("none", True), ("temperature", True)]
    assert all(each["converged"] for each in found)
    note = trueup.Auto().fit(z[:100], y[:100]).fit_report.note
    assert "100 samples for 120 classes: maps with parameters for each class were left out" in note


def test_auto_stakes_nothing_on_a_few_samples_that_are_all_right():
    """NLL alone would take T to its lower bound, and a single error later would cost millions."""
    z, y = predictions(10, 0, count=4000, temperature=1.0)
    right = z.argmax(1) == y
    few = np.flatnonzero(right)[:60]
    made = trueup.Auto().fit(z[few], y[few])
    assert trueup.nll(made(z), y) < 2 * trueup.nll(np.exp(z), y)


# ---------------------------------------------------------------------- networks, and what is known of them


def test_names_of_public_logits_and_gammas_of_losses(place):
    found, notes = networks.public_logits(place / "data")
    assert [(each.data, each.model, each.loss) for each in found] == [
        ("toy", "net", "flsd-53"), ("toy", "other", "not stated"),
    ]  # fmt: skip
    assert notes == []
    assert [training_gamma(loss) for loss in ("focal:2.5", "cross-entropy", "adafocal", "dual-focal:5")] == [
        2.5, 0.0, None, None,
    ]  # fmt: skip


def test_a_network_without_a_validation_split_is_named_and_skipped(place):
    (place / "data" / "logits" / "toy_other_us" / "val.npz").unlink()
    found, notes = networks.public_logits(place / "data")
    assert [each.name for each in found] == ["toy_net_flsd53_us"]
    assert notes == ["toy_other_us: skipped, it has no val.npz; a map is fitted on the one and judged on the other"]


def test_a_network_whose_halves_differ_in_classes_is_an_error(place):
    z, y = predictions(5, 0)
    np.savez(place / "data" / "logits" / "toy_other_us" / "test.npz", logits=z, labels=y)
    network = networks.public_logits(place / "data")[0][1]
    with pytest.raises(InputError, match=r"test.npz: 5 classes, where .*val.npz has 4"):
        network.predictions()


def test_without_any_network_there_is_nothing_to_judge(tmp_path):
    with pytest.raises(InputError, match="no network: no stored run with enough samples, no stored figures"):
        gathering.gather(tmp_path, data_dir=tmp_path)


def test_what_is_on_the_shelf_is_fresh_or_not(tmp_path):
    shelf = Shelf(tmp_path, 1)
    shelf.put("a", {"resamples": 100, "x": 1 / 3}, {"val": "1"})
    assert shelf.fresh("a", {"val": "1"}, 100)["x"] == pytest.approx(1 / 3)
    assert shelf.fresh("a", {"val": "1"}, 101) is None
    assert shelf.fresh("a", {"val": "2"}) is None
    assert Shelf(tmp_path, 2).fresh("a", {"val": "1"}) is None
    path = tmp_path / "a.json"
    path.write_text(path.read_text().replace("0.3333333", "0.4444444"))
    with pytest.raises(InputError, match=r"a.json: damaged \(changed since it was written\); remove it"):
        shelf.stored("a")


@pytest.fixture
def quick(monkeypatch):
    """Bounds of one case, and rivals that take no time."""
    monkeypatch.setattr(gathering, "_cores", lambda: 1)
    monkeypatch.setattr(bounds, "CLASSES", (2, 3, 1000))
    monkeypatch.setattr(bounds, "GAMMAS", (1.0,))
    monkeypatch.setattr(bounds, "bounds", lambda k, g: bounds.Bounds(k, g, 0.5, 1.0, 0.51, 0.99, 0.6, 0.9, 0.6))
    monkeypatch.setattr(rivals, "NAMES", ("none", "temperature", "focal-temperature"))


def test_figures_are_computed_once_and_outlive_the_logits(place, quick, monkeypatch):
    options = {"resamples": 20, "workers": 1}
    first = gathering.gather(place / "results", data_dir=place / "data", **options)
    assert [entry["name"] for entry in first.networks] == ["toy_net_flsd53_us", "toy_other_us"]
    for entry in first.networks:
        assert entry["criteria"]["nll"]["focal-temperature"]["val_nll"] <= (
            entry["criteria"]["nll"]["temperature"]["val_nll"] + 1e-9
        )
        assert entry["criteria"]["nll"]["focal-temperature"]["test"]["error"] == entry["before"]["error"]
    monkeypatch.setattr(gathering, "_compute", None)  # nothing may be computed again
    assert gathering.gather(place / "results", data_dir=place / "data", **options).networks == first.networks
    shutil.rmtree(place / "data" / "logits" / "toy_other_us")
    again = gathering.gather(place / "results", data_dir=place / "data", **options)
    assert again.networks == first.networks
    assert again.notes == ["1 sets of public logits: figures as stored, the logits are not here"]


def test_the_grid_criteria_are_those_of_the_calibrator(place):
    """Both parameters by adaptive ECE: the same point of the paper's grid as FocalTemperature finds."""
    val = networks.public_logits(place / "data")[0][0].predictions()[0]
    focal = measure.fits(val)["adaptive_ece"][1]
    own = trueup.FocalTemperature(criterion="mukhoti2020_adaptive_ece").fit(val.logits, val.labels)
    assert (focal.temperature, focal.gamma) == pytest.approx((own.temperature, own.gamma))


def test_the_confidences_of_the_grid_are_those_of_the_map():
    z = torch.randn(30, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).mul(6)
    z[:10] *= 100  # at T = 0.05 all but the largest class underflow
    found = measure.confidences(z)
    for i, gamma in enumerate(measure.FOCAL_GAMMAS):
        for j in (0, 19, 99):
            made = measure.FocalTemperatureMap(7, float(measure.FOCAL_TEMPERATURES[j]), float(gamma))
            np.testing.assert_allclose(found[i, j], made(z).amax(1), rtol=2e-6)


def test_processes_that_are_started_have_one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    with gathering._single_threaded():
        assert {os.environ[name] for name in gathering.THREADS} == {"1"}
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


def test_a_whole_reproduction_prints_and_is_json(place, quick):
    found = reproduce(place / "results", resamples=20, data_dir=place / "data")
    assert {finding.verdict for finding in found.findings} <= {HOLDS, FAILS, UNTESTED}
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert len(content["networks"]) == 2
    assert [each["question"][:15] for each in content["answers"][1:5]] == [f"Open question {i}" for i in (1, 2, 3, 4)]
    assert "Open question 2" in str(found)
    assert all(f"### {each.question}\n" in found.markdown() for each in found.answers)


# ---------------------------------------------------------------------- verdicts


def entry(difference, criterion="nll", metric="nll"):
    return {"criteria": {criterion: {"difference": {metric: difference}}}}


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([[-0.2, -0.3, -0.1]] * 8 + [[0.1, -0.1, 0.2]] * 2, HOLDS),
        ([[-0.2, -0.3, -0.1]] * 4 + [[0.1, -0.1, 0.2]] + [[0.0, 0.0, 0.0]] * 5, HOLDS),
        ([[-0.2, -0.3, -0.1]] * 7 + [[0.1, -0.1, 0.2]] * 3, FAILS),
        ([[-0.2, -0.3, -0.1]] * 9 + [[0.2, 0.1, 0.3]], HOLDS),  # one of ten, as chance may have it
        ([[-0.2, -0.3, -0.1]] * 8 + [[0.2, 0.1, 0.3]] * 2, FAILS),
    ],
)
def test_consistently_means_most_networks_and_no_more_harm_than_chance_does(differences, verdict):
    found = claims.consistently(SimpleNamespace(networks=[entry(each) for each in differences]), "nll", "nll")
    assert found.verdict == verdict


def test_counts_tell_clear_changes_from_open_ones():
    found = sheets.counted([entry([-1.0, -2.0, -0.5]), entry([1.0, 0.5, 2.0]), entry([0.0, 0.0, 0.0])], "nll", "nll")
    assert (found.lower, found.clearly_lower, found.clearly_higher, found.same) == (1, 1, 1, 1)
    assert (found.mean, found.low, found.high) == (0.0, -0.5, 0.5)


def test_what_needs_no_network():
    assert claims.decomposition().verdict == HOLDS
    raised = claims.raises_confidence()
    assert raised.verdict == FAILS
    assert "it falls from K = 4 on" in raised.evidence


# ---------------------------------------------------------------------- which networks


def test_no_two_networks_have_the_same_title():
    shelf = Shelf(RESULTS / "komisarenko2024" / "networks", measure.VERSION)
    titles = [sheets.named(shelf.stored(name)) for name in shelf.names()]
    assert len(titles) > 50
    assert len(set(titles)) == len(titles)


def test_each_recipe_counts_once_and_test_images_are_normalised_as_vals(tmp_path):
    recipe = SMALL.changed({"epochs": 1, "milestones": (), "factors": ()})
    for seed in (0, 1):
        train(recipe.changed({"seed": seed}), tmp_path / str(seed), device="cpu", half=True)
    store([tmp_path / "0", tmp_path / "1"], tmp_path / "results" / "toy")
    (found,) = networks.stored_runs(tmp_path / "results")
    assert "_seed0" in found.name
    assert found.test.name == "test.safetensors"
    shutil.copyfile(found.test, found.test.with_name("usual-test.safetensors"))
    write_sums(tmp_path / "results" / "toy", [found.test.with_name("usual-test.safetensors")])
    (found,) = networks.stored_runs(tmp_path / "results")
    assert found.test.name == "usual-test.safetensors"


# ---------------------------------------------------------------------- shift, and the command


def test_a_run_with_weights_is_scored_on_corrupted_images(tmp_path):
    pytest.importorskip("PIL")
    pytest.importorskip("sklearn")
    recipe = named("digits", loss="focal:3", epochs=4, milestones=(3,), factors=(0.1,))
    run = train(recipe, tmp_path / "run", device="cpu")
    name = shift.score_run(run.folder, tmp_path / "results", device="cpu", resamples=20)
    (found,) = shift.stored(tmp_path / "results")
    assert (found["name"], found["gamma"], len(found["cells"])) == (name, 3.0, 26)
    clean = found["cells"][0]
    assert clean["maps"]["none"]["nll"] == pytest.approx(trueup.nll(run.test.probs, run.test.labels), rel=1e-5)
    hard = [cell["error"] for cell in found["cells"] if (cell["kind"], cell["severity"]) == ("contrast", 5)]
    assert hard[0] > clean["error"]
    assert found["confidence"]["train"]["after"] > found["confidence"]["train"]["before"]
    (run.folder / "weights.safetensors").unlink()
    with pytest.raises(InputError, match="the run was kept without its weights"):
        shift.score_run(run.folder, tmp_path / "results", device="cpu")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["komisarenko2024", "--results", "nowhere"], "nowhere: no such folder"),
        (["mukhoti2020", "--shift", "run"], "--shift: it is komisarenko2024 that asks for corrupted images"),
        (["komisarenko2024", "--shift", "run"], "run: no complete run is in it"),
    ],
)
def test_what_the_user_can_mend_is_told_in_one_line(arguments, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["reproduce", *arguments])
    assert done.exit_code == 2
    assert says in done.stderr


def test_the_page_is_what_the_command_writes(reproductions):
    written = page(list(reproductions.values()), "focal-temperature.md")
    assert PAGE.read_text() == written, "run: trueup reproduce all --docs docs"
