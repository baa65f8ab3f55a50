"""What kimura2024 claims, judged without a network, and the curvature of stored runs."""

import json

import pytest

from trueup.papers import kimura2024
from trueup.papers.reproduction import FAILS, HOLDS, UNTESTED


def test_the_grid_has_every_gamma_and_every_tau_once():
    grid = kimura2024.recipes()
    assert len(grid) == 2 * 8 + 2 * 5 + 5 * 3
    losses = [recipe.loss for recipe in grid.values() if recipe.model == "resnet18"]
    assert losses == ["cross-entropy", *(f"focal:{g}" for g in (1, 2, 3, 4, 5, 7, 10))]
    assert sum("hessian-trace" in recipe.loss for recipe in grid.values()) == 12


def test_what_needs_no_network():
    lemma, sharpness, constraint, bound = kimura2024.analysis()
    assert lemma.verdict == HOLDS
    assert sharpness.verdict == FAILS
    assert "gamma 3: larger for p in (0.078, 0.562), negative below" in sharpness.evidence
    assert constraint.verdict == FAILS
    assert bound.verdict == UNTESTED


def test_figure_1_has_cross_entropy_at_gamma_0():
    rows = {row[0]: row[1:] for row in kimura2024.figure_1().rows}
    assert rows["0"][1] == "0.6931, -2.0000"
    assert rows["1"][1] == "0.3466, -1.6931"


def point(loss, top, ece, trace, lr=0.1, epochs=105, net="resnet18"):
    def measured(value):
        return {"lambda_max": {"value": value}, "trace": {"value": trace, "stderr": 0.1}}

    recipe = {"loss": loss, "lr": lr, "epochs": epochs, "model": net}
    return {"recipe": recipe, "error": 0.05, "ece": ece, "own": measured(top), "cross-entropy": measured(1 - top)}


def test_verdicts_follow_the_numbers():
    points = [point("cross-entropy", 0.9, 0.04, 9), point("focal:1", 0.5, 0.03, 8), point("focal:10", 0.2, 0.01, 7)]
    own, plain = kimura2024.by_gamma(points)
    assert (own.verdict, plain.verdict) == (HOLDS, FAILS)
    assert "0.9, 0.5, 0.2" in own.evidence
    small = {"epochs": 30, "net": "mlp"}
    points = [
        point("cross-entropy", 1, 0.02, 9, **small), point("cross-entropy+hessian-trace:0.1", 1, 0.03, 2, **small)
    ]  # fmt: skip
    trace, ece = kimura2024.by_tau(points)
    assert (trace.verdict, ece.verdict) == (HOLDS, FAILS)


def test_without_runs_all_is_missing_and_it_still_prints(tmp_path):
    found = kimura2024.reproduce(tmp_path)
    assert len(found.missing) == len(kimura2024.recipes())
    assert "not run" in str(found)
    assert json.dumps(found.to_dict())
    assert "Figure 1" in found.markdown()


def test_figure_1_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    (path,) = kimura2024.draw(tmp_path, tmp_path / "figures")
    assert path.stat().st_size > 1000
