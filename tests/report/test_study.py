"""The page of a study: its words, its numbers, and that it opens."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from tests.report.browser import CHROMIUM, HOW_TO_GET_IT, Browser
from tests.report.cases import at, embedded, stored
from trueup.cli import app
from trueup.inputs import InputError

pytest.importorskip("jinja2")
pytest.importorskip("sklearn")
pytest.importorskip("vl_convert")

from trueup import report
from trueup.report.study import headline


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("study")
    options = ["--losses", "cross-entropy focal:2", "--seeds", "0 1", "--set", "epochs=3", "--set", "milestones="]
    options += ["--set", "factors=", "--resamples", "20", "--device", "cpu", "--jobs", "2", "--out", str(made)]
    done = CliRunner().invoke(app, ["study", "digits", *options])
    assert done.exit_code == 0, done.output
    assert f"{made / 'report.html'} shows all of it" in " ".join(done.stdout.split())
    return made


def test_it_holds_every_loss_seed_and_curve(folder):
    html = (folder / "report.html").read_text()
    found, rows = embedded(html), json.loads((folder / "table.json").read_text())["rows"]
    setting = found["study"]["settings"][0]
    assert setting["losses"] == ["cross-entropy", "focal:2"]
    assert setting["calibrators"] == ["none", "temperature", "focal-temperature", "focal-map"]
    for shown, row in zip(setting["rows"], rows, strict=True):
        for column, cell in zip(found["study"]["columns"], shown["cells"], strict=True):
            assert cell["seeds"] == row["metrics"][column["name"]]["values"]
    assert setting["curves"]["focal:2"]["ece"]["epoch"] == [1, 2, 3]
    assert [each["name"] for each in found["sets"]] == [
        f"{loss}, seed {seed}" for loss in ("cross-entropy", "focal:2") for seed in (0, 1)
    ]
    mistakes = found["sets"][0]["mistakes"]
    assert mistakes
    assert all(each["image"].startswith("data:image/png") for each in mistakes)


def test_the_same_page_is_made_from_the_folder_alone(folder, tmp_path):
    done = CliRunner().invoke(app, ["report", str(folder), "--html", str(tmp_path / "again.html")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "again.html").read_text() == (folder / "report.html").read_text()
    run = next(folder.glob("*seed0*"))
    done = CliRunner().invoke(app, ["report", str(run), "--method", "none", "--resamples", "0"])
    assert done.exit_code == 0, done.output
    assert (run / "report.html").exists()


def test_it_holds_no_run_of_other_settings_and_does_without_those_that_failed(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "study")
    first, second = sorted((tmp_path / "study").glob("*cross-entropy_seed*"))
    (second / "recipe.json").write_text("{}")
    options = ["--losses", "cross-entropy", "--seeds", "0 1", "--set", "epochs=3", "--set", "milestones="]
    options += ["--set", "factors=", "--resamples", "20", "--device", "cpu", "--jobs", "1"]
    done = CliRunner().invoke(app, ["study", "digits", *options, "--out", str(tmp_path / "study"), "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["page"]
    _, runs = report.read_study(tmp_path / "study")
    assert [run.folder for run in runs] == [first]
    options[options.index("epochs=3")] = "epochs=2"
    done = CliRunner().invoke(app, ["study", "digits", *options, "--out", str(tmp_path / "study")])
    assert done.exit_code == 0, done.output
    _, runs = report.read_study(tmp_path / "study")
    assert [(run.recipe.epochs, run.recipe.seed) for run in runs] == [(2, 0), (2, 1)]


def test_the_headline_counts_what_the_intervals_tell():
    def row(loss, low, high):
        against = None if low is None else {"value": low, "low": low, "high": high}
        cell = {"mean": 0.02, "sd": 0.001, "against": against}
        return {"loss": loss, "calibrator": "none", "metrics": {"ece": cell}}

    plain = row("cross-entropy", None, None)
    worse, same, better = row("a", 0.01, 0.02), row("b", -0.01, 0.01), row("c", -0.02, -0.01)
    assert headline([plain, same], "none") == (
        "As trained, none of 1 loss can be told from cross-entropy by its ECE."
    )  # fmt: skip
    assert headline([plain, worse, same], "none") == (
        "As trained, 1 of 2 losses is worse calibrated than cross-entropy."
    )
    both = headline([plain, worse, better, worse], "none")
    assert "2 of 3 losses are worse" in both
    assert "1 of 3 losses is better" in both
    assert headline([plain], "none") == "As trained, cross-entropy has the lowest ECE: 2.00 ± 0.10 %."


def test_a_folder_without_a_study_or_with_a_damaged_one_is_told(tmp_path):
    with pytest.raises(InputError, match="no study is in it"):
        report.read_study(tmp_path)
    (tmp_path / "table.json").write_text('{"rows": [{}]}')
    with pytest.raises(InputError, match=r"table.json: damaged"):
        report.read_study(tmp_path)
    with pytest.raises(InputError, match="no run is complete"):
        report.of_study({"study": "digits", "rows": []}, [])


@pytest.mark.skipif(CHROMIUM is None, reason=HOW_TO_GET_IT)
def test_any_run_can_be_looked_into(folder, tmp_path):
    path = folder / "report.html"
    browser = Browser()
    try:
        for name, width in (("desktop", 1200), ("phone", 390)):
            browser.size(width, phone=name == "phone")
            browser.open(path)
            browser.run(
                "const runs = document.getElementById('set'); runs.value = 3; runs.dispatchEvent(new Event('change'))"
            )
            browser.run("document.getElementById('to-fitted').click()")
            of = embedded(path.read_text())["sets"][3]["live"]
            expected = at(*stored(of, 10), of["fitted"]["temperature"], of["fitted"]["gamma"])
            found = browser.run("Number(document.getElementById('nll-now').dataset.value)")
            assert found == pytest.approx(expected["nll"], abs=1e-6)
            assert browser.run("document.querySelectorAll('#curves figure svg').length") == 2
            assert browser.run("document.documentElement.scrollWidth") <= width
            browser.screenshot(tmp_path / f"{name}.png")
            assert browser.complaints == []
            assert [url for url in browser.requests if not url.startswith("data:")] == [path.as_uri()]
    finally:
        browser.close()
