"""trueup curvature RUN, as a shell sees it."""

import json
import re
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from tests.curvature.cases import written_out
from tests.train.small import SMALL
from trueup import losses
from trueup.cli import app
from trueup.papers.kimura2024.measure import measured_losses, stored_net
from trueup.train import load_run, train

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning"
)  # torch's own, at its first forward mode


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(SMALL, tmp_path_factory.mktemp("runs") / "run", device="cpu")


def inside(*arguments):
    return CliRunner().invoke(app, ["curvature", *map(str, arguments), "--device", "cpu"])


def test_both_losses_against_the_dense_hessian(run):
    done = inside(run.folder, "--json", "--relative", 0.02)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads((run.folder / "curvature.json").read_text())
    assert (found["split"], found["samples"]) == ("val", 30)
    model, batches = stored_net(run, "val", None, 500, "cpu", None)
    model, batches = model.double(), [(x.double(), y) for x, y in batches]
    assert set(found["losses"]) == {"focal-schedule:5,3,2", "cross-entropy"}
    for name, loss in measured_losses(run.recipe).items():
        dense = written_out(model, loss, batches)
        of = found["losses"][name]
        assert of["lambda_max"]["value"] == pytest.approx(float(torch.linalg.eigvalsh(dense)[-1]), rel=1e-3)
        assert of["trace"]["value"] == pytest.approx(float(dense.trace()), abs=4 * of["trace"]["stderr"] + 1e-4)
        assert of["lambda_max"]["converged"]


def test_the_net_is_the_one_that_was_trained(run):
    model, batches = stored_net(run, "test", None, 7, "cpu", None)
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(x) for x, _ in batches])
    torch.testing.assert_close(logits, run.test.logits)
    assert float(measured_losses(run.recipe)[SMALL.loss].gamma.gamma) == 2


def test_for_people(run):
    done = inside(run.folder, "--samples", 10)
    assert done.exit_code == 0
    words = (
        "λ max",
        "trace",
        "exact",
        "cross-entropy",
        "10 val samples",
        "negative λ",
        " met",
        "curvature-val-10.json",
    )
    for word in words:
        assert word in re.sub(r"\s+", " ", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "file"),
    [(["--samples", 5], "curvature-val-5.json"), (["--split", "test"], "curvature-test.json"),
     (["--split", "test", "--samples", 5], "curvature-test-5.json"), (["--samples", 1000], "curvature.json")],
)  # fmt: skip
def test_no_other_measurement_takes_the_place_of_that_of_val(run, arguments, file):
    assert inside(run.folder).exit_code == 0
    of_val = json.loads((run.folder / "curvature.json").read_text())
    done = inside(run.folder, *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads((run.folder / file).read_text()) == json.loads(done.stdout)
    after = json.loads((run.folder / "curvature.json").read_text())
    assert (after["split"], after["samples"]) == (of_val["split"], of_val["samples"]) == ("val", 30)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--split", "all"], "split: expected train, val or test"), (["--relative", "0"], "would never end"),
     (["--batch", "0"], "batch: expected a whole number")],
)  # fmt: skip
def test_faults(run, arguments, says):
    done = inside(run.folder, *arguments)
    assert done.exit_code == 2
    assert says in done.stderr


def test_a_run_without_weights_says_so(run, tmp_path):
    for path in run.folder.iterdir():
        if path.name != "weights.safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    done = inside(tmp_path)
    assert done.exit_code == 2
    assert "kept without its weights" in re.sub(r"\s+", " ", done.stderr)
    assert inside(tmp_path / "nowhere").exit_code == 2


def test_a_training_against_the_trace(tmp_path):
    plain = replace(SMALL, loss="cross-entropy", reduction="mean", clip=None)
    found = {}
    for loss in ("cross-entropy", "cross-entropy+hessian-trace:0.1", "cross-entropy+ggn-trace:0.1"):
        made = train(replace(plain, loss=loss), tmp_path / loss.replace(":", "-"), device="cpu")
        model, batches = stored_net(load_run(made.folder), "val", None, 500, "cpu", None)
        found[loss] = float(written_out(model, losses.CrossEntropy(), batches).trace())
    assert max(found.values()) == found["cross-entropy"]
    again = train(replace(plain, loss="cross-entropy+hessian-trace:0.1"), tmp_path / "again", device="cpu")
    first = load_run(tmp_path / "cross-entropy+hessian-trace-0.1")
    assert torch.equal(again.test.logits, first.test.logits)
