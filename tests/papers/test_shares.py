"""The softmax over one output more than there are classes, and what it does to the confidence."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.papers.conftest import RESULTS
from tests.train.test_texts import SST, folder  # noqa: F401 - a fixture
from trueup.audit import Measure
from trueup.metrics import ece, score_logits
from trueup.papers.mukhoti2020 import claims, neutral
from trueup.papers.mukhoti2020.settings import Network, settings_of
from trueup.papers.reproduction import FAILS, HOLDS, UNTESTED
from trueup.papers.shares import Shared, scores_of_classes, shared
from trueup.papers.stored import checked_run, load_runs, store
from trueup.papers.summary import Summary, stored_summary, summary_of
from trueup.predictions import Predictions, load
from trueup.train import train

CE, FL3, FLSD = claims.CE, claims.FL3, claims.FLSD


def outputs(seed=0, rest=0.0, many=400):
    """Logits of two classes and of none of them, and labels that agree with the first two."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(many, 3, generator=generator, dtype=torch.float64) * 2
    logits[:, 2] += rest
    labels = torch.distributions.Categorical(logits=logits[:, :2]).sample()
    return Predictions(logits=logits.numpy(), labels=labels.numpy())


def test_the_confidence_is_the_share_of_the_likeliest_class_among_all_outputs():
    of = outputs()
    p = np.exp(of.logits.numpy()) / np.exp(of.logits.numpy()).sum(1, keepdims=True)
    found = scores_of_classes(of)
    np.testing.assert_allclose(found.confidence, p[:, :2].max(1), rtol=1e-12)
    assert np.array_equal(found.correct, p[:, :2].argmax(1) == of.labels.numpy())
    assert (p.argmax(1) == 2).any()  # where the last output is the largest the likeliest class is judged all the same


def test_an_output_without_a_share_changes_nothing():
    of = outputs(rest=-1e4)
    found, alone = scores_of_classes(of), score_logits(of.logits[:, :2], of.labels)
    np.testing.assert_allclose(found.confidence, alone.confidence, rtol=1e-12)
    assert ece(found) == pytest.approx(ece(alone), rel=1e-12)


def test_the_temperature_is_the_first_of_the_grid_with_the_least_ece_on_val():
    val, test = outputs(1, rest=-3.0), outputs(2, rest=-3.0)
    found = shared(val, test, resamples=50)
    grid = [k / 10 for k in range(1, 101)]
    errors = [ece(scores_of_classes(val, t)) for t in grid]
    assert found.temperature == pytest.approx(grid[int(np.argmin(errors))])
    assert found.temperature < 1  # what the last output has is missing from the confidence
    assert found.before["overconfidence"].value < 0 < found.rest < 1
    assert found.before["ece"].value == ece(scores_of_classes(test))
    assert found.after["ece"].value == ece(scores_of_classes(test, found.temperature))
    assert Shared.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_a_run_on_trees_keeps_the_output_for_what_is_of_no_class(tmp_path, folder):  # noqa: F811
    train(SST, tmp_path / "run", device="cpu")
    (kept,) = store([tmp_path / "run"], tmp_path / "results" / "mukhoti2020")
    run = checked_run(kept)
    for part in ("val", "test"):
        of_all, own = load(kept / f"outputs-{part}.safetensors"), load(kept / f"{part}.safetensors")
        assert torch.equal(of_all.logits[:, :2], own.logits)
        assert of_all.class_names == ("negative", "positive", "none of these")
    summary = stored_summary(run)
    assert summary.shared == shared(run.beside("outputs-val"), run.beside("outputs-test"))
    assert Summary.from_dict(json.loads(json.dumps(summary.to_dict()))).to_dict() == summary.to_dict()
    for part in ("val", "test"):  # a run that was stored before it was scored
        (kept / f"outputs-{part}.safetensors").unlink()
    (kept / "figures.json").write_text(json.dumps({"version": 2, **replace(summary, shared=None).to_dict()}))
    (kept,) = store([tmp_path / "run"], tmp_path / "results" / "mukhoti2020")
    assert stored_summary(checked_run(kept)).shared == summary.shared


# ---------------------------------------------------------------------- the neutral class of SST


@pytest.fixture(scope="module")
def trees():
    """The runs on SST with the authors' step, seed 0."""
    runs = load_runs(RESULTS / "mukhoti2020")
    names = [f"sst_tree-lstm_{loss}_adagrad_seed0" for loss in ("cross-entropy", "focal-3", "flsd-53")]
    (found,) = settings_of([Network(n, runs[n], summary_of(runs[n], resamples=50)) for n in names])
    return found


def with_shares(setting, **of_loss):
    """(ECE, confidence less accuracy, T) of a loss, with the neutral class in the softmax."""
    networks = dict(setting.networks)
    for loss, (error, gap, t) in zip((CE, FL3, FLSD), of_loss.values(), strict=True):
        figures = {"ece": Measure(error, error, error), "overconfidence": Measure(gap, gap, gap)}
        made = Shared(t, figures, figures, 0.2)
        (network,) = networks[loss]
        networks[loss] = (replace(network, summary=replace(network.summary, shared=made)),)
    return replace(setting, networks=networks)


def test_the_neutral_class_explains_what_is_there_with_it_and_not_without(trees):
    there = with_shares(trees, ce=(0.05, 0.01, 1.4), fl3=(0.16, -0.16, 0.5), flsd=(0.1, -0.1, 0.7))
    found = neutral.explains([there])
    assert (found.verdict, found.ours) == (HOLDS, True)
    assert "FL-3 16.00 (-16.00 points, T 0.5)" in found.evidence
    assert "printed: 7.37 (T 1.80), 16.05 (T 0.50), 9.19 (T 0.70)" in found.evidence
    calm = with_shares(trees, ce=(0.05, 0.01, 1.4), fl3=(0.06, -0.06, 0.8), flsd=(0.1, -0.1, 0.7))
    assert neutral.explains([calm]).verdict == FAILS  # not twice cross-entropy's
    over = with_shares(trees, ce=(0.05, 0.01, 1.4), fl3=(0.16, 0.16, 1.5), flsd=(0.1, -0.1, 0.7))
    assert neutral.explains([over]).verdict == FAILS
    (row,) = [row for row in neutral.in_short(there).rows if row[0] == "FL-3"]
    assert row[:6] == ("FL-3", "1", "16.05 (0.50)", "16.00", "0.5", "-16.00")
    (sheet,) = neutral.sheets([there])
    assert sheet.rows[1][0] == "FL-3, seed 0"
    assert sheet.rows[1][2].endswith("· 16.05")


def test_without_the_third_output_it_is_not_tested(trees):
    none = {loss: tuple(replace(n, summary=replace(n.summary, shared=None)) for n in of)
            for loss, of in trees.networks.items()}  # fmt: skip
    bare = replace(trees, networks=none)
    assert neutral.explains([bare]).verdict == UNTESTED
    assert neutral.sheets([bare]) == []
