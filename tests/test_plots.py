"""Figures: the numbers behind them against slow loops, and every figure drawn, on our own Axes and on a caller's."""

import builtins
import io

import numpy as np
import pytest
import torch

import trueup
from trueup import diagrams
from trueup.example import example_predictions
from trueup.inputs import InputError
from trueup.metrics import score

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

from trueup import plots

TEST = example_predictions()["test"]
LOGITS, LABELS, PROBS = TEST.logits[:400], TEST.labels[:400], TEST.probs[:400]
FEW = {"temperatures": [0.5, 1, 2, 4], "gammas": [-0.5, 0, 2]}


def history(seed, epochs=12):
    rng = np.random.default_rng(seed)
    return [
        {"epoch": i, "weight_norm": 1.0 + i, "test": {"ece": rng.random(), "nll": 1.0, "wrong": {"nll": None}}}
        for i in range(epochs)
    ]


HISTORIES = {"focal:3": [history(0), history(1)], "cross-entropy": [history(2)]}
DRAWN = {
    "reliability": lambda **given: plots.reliability_diagram(PROBS, LABELS, **given),
    "reliability, mass": lambda **given: plots.reliability_diagram(PROBS, LABELS, scheme="mass", **given),
    "histogram": lambda **given: plots.confidence_histogram(PROBS, LABELS, **given),
    "landscape": lambda **given: plots.calibration_landscape(LOGITS, LABELS, "ece", **FEW, **given),
    "curves": lambda **given: plots.training_curves(HISTORIES, "test.ece", **given),
}


def size_of(axes, kind="png"):
    buffer = io.BytesIO()
    axes.get_figure().savefig(buffer, format=kind)
    return len(buffer.getvalue())


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_of_our_own_is_a_column_wide(name, tmp_path):
    axes = DRAWN[name](title="a title")
    assert axes.get_figure().get_size_inches()[0] == plots.COLUMN
    assert axes.get_title() == "a title"
    assert axes.title.get_fontsize() == plots.STYLE["axes.titlesize"]
    for again in range(2):
        plots.save(DRAWN[name](), tmp_path / f"{again}.svg")
    assert (tmp_path / "0.svg").read_bytes() == (tmp_path / "1.svg").read_bytes()
    assert size_of(axes) > 5000


@pytest.mark.parametrize("name", DRAWN)
def test_it_draws_where_the_caller_says_and_nowhere_else(name):
    figure = Figure(figsize=(6, 3))
    mine, other = figure.subplots(1, 2)
    assert DRAWN[name](ax=mine) is mine
    assert len(figure.axes) == 2
    assert not other.has_data()
    assert mine.has_data()
    assert size_of(mine) > 5000


def test_bins_of_the_reliability_diagram_are_those_of_a_slow_loop():
    found = diagrams.reliability(PROBS, LABELS, bins=10)
    confidence, predicted = PROBS.max(1).values.double().numpy(), PROBS.argmax(1)
    right = (predicted == LABELS).numpy()
    rows = []
    for i in range(10):
        inside = (confidence > i / 10) & (confidence <= (i + 1) / 10)
        if inside.any():
            rows.append((i / 10, confidence[inside].mean(), right[inside].mean(), inside.mean()))
    ours = np.stack([found.edges[:, 0], found.confidence, found.accuracy, found.share], 1)
    assert ours == pytest.approx(np.array(rows), abs=1e-6)
    assert found.ece == pytest.approx(trueup.ece(PROBS, LABELS, bins=10))
    assert found.histogram.sum() == pytest.approx(1)
    mass = diagrams.reliability(PROBS, LABELS, bins=10, scheme="mass")
    assert mass.share == pytest.approx(np.full(10, 0.1))
    assert mass.ece == pytest.approx(trueup.adaptive_ece(PROBS, LABELS, bins=10))


def test_no_point_lies_on_the_words_below_it():
    """A bin without a right prediction lies on the line that the words stand under."""
    axes = plots.reliability_diagram([[0.75, 0.25]] * 8 + [[0.55, 0.45]] * 8, [0] * 8 + [1] * 8)
    axes.get_figure().draw_without_rendering()
    (words,) = (text.get_window_extent() for text in axes.texts if text.get_text().startswith("share of samples"))
    (points,) = (line for line in axes.lines if line.get_linestyle() == "None" and 0 in line.get_ydata())
    reach = points.get_markersize() / 2 * axes.get_figure().dpi / 72
    assert words.y1 < axes.transData.transform((0.55, 0))[1] - 1.5 * reach  # with some air


def test_the_band_holds_a_calibrated_model_and_not_an_overconfident_one():
    probs = PROBS.double().numpy().repeat(10, 0)
    rng, inside, bins = np.random.default_rng(0), 0, 0
    for _ in range(40):
        drawn = (probs.cumsum(1) > rng.random((len(probs), 1))).argmax(1)
        found = diagrams.reliability(probs, drawn, resamples=300)
        inside += np.count_nonzero((found.accuracy >= found.low) & (found.accuracy <= found.high))
        bins += len(found.accuracy)
    assert 0.93 < inside / bins < 0.99
    off = diagrams.reliability(TEST.probs, TEST.labels)
    assert np.count_nonzero(off.accuracy < off.low) >= 8


def test_confidences_add_up_to_one_with_the_first_and_last_included():
    found = diagrams.confidences([[0.0, 1.0], [0.5, 0.5], [0.6, 0.4]], [1, 1, 0], bins=4)
    assert found.right.tolist() == pytest.approx([0, 0, 1 / 3, 1 / 3])
    assert found.wrong.tolist() == pytest.approx([0, 0, 1 / 3, 0])
    assert (found.mean, found.accuracy) == pytest.approx((0.7, 2 / 3))


def test_the_landscape_is_that_of_the_metrics_and_marks_its_lowest_point():
    for metric in ("nll", "ece"):
        found = diagrams.landscape(LOGITS, LABELS, metric, **FEW)
        for i, gamma in enumerate(found.gammas):
            for j, temperature in enumerate(found.temperatures):
                probs = trueup.focal_map(LOGITS.double() / temperature, gamma).exp()
                assert found.values[i, j] == pytest.approx(trueup.METRICS[metric](probs, LABELS), abs=1e-9)
        temperature, gamma, least = found.best
        assert least == found.values.min()
        assert found.values[list(found.gammas).index(gamma), list(found.temperatures).index(temperature)] == least


def test_a_landscape_has_no_gamma_below_minus_1():
    with pytest.raises(trueup.InputError, match="gammas: -2 is not valid"):
        diagrams.landscape(LOGITS, LABELS, temperatures=[1.0], gammas=[0.0, -2.0])


def test_curves_are_over_runs_and_stop_with_the_shortest():
    runs = [history(0), history(1)[:7]]
    curve = diagrams.curves({"a": runs}, "test.ece")["a"]
    values = np.array([[entry["test"]["ece"] for entry in run[:7]] for run in runs])
    assert np.array_equal(curve.mean, values.mean(0))
    assert np.array_equal(curve.high, values.max(0))
    assert np.isnan(diagrams.curves({"a": runs}, "test.wrong.nll")["a"].mean).all()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: diagrams.curves(HISTORIES, "test.acc"), "'test.acc' is not in the history; at 'acc' there is ece"),
        (lambda: diagrams.curves({"a": []}), "histories: 'a' has none"),
        (lambda: diagrams.landscape(LOGITS, LABELS, "brier"), 'metric: expected "nll" or "ece"'),
        (lambda: plots.calibration_landscape(LOGITS), "labels: missing"),
        (lambda: plots.reliability_diagram(LOGITS, LABELS), "If these are logits, apply softmax first"),
        (lambda: plots.reliability_diagram(PROBS, LABELS, scheme="size"), 'scheme: expected "mass" or "width"'),
        (lambda: plots.save(DRAWN["histogram"](), "a.doc"), "a.doc: a figure is written as"),
    ],
)
def test_what_cannot_be_drawn_is_told(call, says):
    with pytest.raises(InputError, match=says):
        call()


@pytest.mark.parametrize(
    ("probs", "labels"),
    [
        (np.eye(3), [0, 1, 2]),  # always right, always certain
        (np.full((20, 2), 0.5), [1] * 20),  # one confidence, one label
        (np.full((5, 1000), 0.001), list(range(5))),
        ([[0.7, 0.3]], [1]),
    ],
)
def test_strange_predictions_are_drawn_without_a_warning(probs, labels):
    for scheme in ("width", "mass"):
        assert size_of(plots.reliability_diagram(probs, labels, scheme=scheme)) > 3000
    assert size_of(plots.confidence_histogram(score(probs, labels))) > 3000
    logits = torch.tensor(np.log(np.asarray(probs) + 1e-6))
    assert size_of(plots.calibration_landscape(logits, labels, **FEW)) > 3000


def test_curves_without_a_finite_value_are_drawn_without_a_warning():
    assert size_of(plots.training_curves(HISTORIES, "test.wrong.nll")) > 3000
    assert size_of(plots.training_curves({"one": [history(0, epochs=1)]}, "weight_norm")) > 3000


def test_without_matplotlib_it_is_said_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"figures need matplotlib; install trueup\[plots\]"):
        plots.reliability_diagram(PROBS, LABELS)
