"""What is kept of a run: both epochs, both normalisations, and the figures alone where predictions are too large."""

import json
import shutil
from dataclasses import replace

import pytest

from tests.data.layouts import write_cifar
from tests.train.small import SMALL
from trueup.inputs import InputError
from trueup.metrics import error, nll, score, score_logits
from trueup.papers import open_runs
from trueup.papers.kimura2024 import networks as kimura
from trueup.papers.mukhoti2020 import questions
from trueup.papers.mukhoti2020.settings import Network
from trueup.papers.reproduction import UNTESTED
from trueup.papers.stored import checked_run, keeps_predictions, kept_entry, load_runs, run_name, store
from trueup.papers.summary import Summary, stored_summary, summarise, summary_of
from trueup.train import load_run, named, train


@pytest.fixture(scope="module")
def best(tmp_path_factory):
    """A stored run of which the best epoch is kept, and not the last."""
    recipe = replace(SMALL, keep="best-val", lr=1.0, epochs=8, milestones=(), factors=())
    place = tmp_path_factory.mktemp("best")
    train(recipe, place / "work", device="cpu", half=True)
    (folder,) = store([place / "work"], place)
    return checked_run(folder)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A run on a small CIFAR-100 whose test images are normalised as in the authors' code, and the run as stored."""
    place = tmp_path_factory.mktemp("images")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRUEUP_CACHE", str(place / "cache"))
        write_cifar(place / "data" / "cifar100", ("fine_label", "coarse_label"), train=(200,), test=(60,))
        settings = {"epochs": 2, "milestones": (1,), "factors": (0.1,), "normalisation": "imagenet-test"}
        recipe = named("mukhoti2020-short", data="cifar100", model="linear", **settings)
        run = train(recipe, place / "work", device="cpu", half=True, data_dir=place / "data")
    (folder,) = store([place / "work"], place / "results" / "mukhoti2020")
    return run, checked_run(folder)


def test_both_epochs_are_kept_and_compared(best):
    assert best.info["kept_epoch"] < 7
    assert kept_entry(best)["epoch"] == best.info["kept_epoch"]
    summary = stored_summary(best)
    again = Summary.from_dict(json.loads(json.dumps(summarise(best).to_dict())))
    assert summary.to_dict() == again.to_dict()  # as dicts, where what is no number is equal to itself
    last = best.beside("last-test")
    scores = {name: score_logits(each.logits, each.labels) for name, each in (("own", best.test), ("last", last))}
    assert summary.last.figures.before["error"] == error(scores["last"])
    assert summary.last.less["nll"].value == pytest.approx(nll(scores["own"]) - nll(scores["last"]))
    assert summary.usual is None


def test_the_maps_are_judged_on_test(best):
    found = summary_of(best).calibrated
    from trueup.calibrators import calibrator

    made = calibrator("focal-temperature").fit(best.val.logits, best.val.labels)
    assert found["focal-temperature"].metrics["nll"] == pytest.approx(
        nll(score(made(best.test.logits), best.test.labels))
    )
    difference = found["auto"].metrics["nll"] - found["temperature"].metrics["nll"]
    assert found["auto"].less["nll"].value == pytest.approx(difference, abs=1e-12)
    assert found["auto"].note


def test_more_resamples_than_are_stored_are_computed(best, monkeypatch):
    monkeypatch.setattr("trueup.papers.summary.summarise", lambda run, resamples: resamples)
    assert summary_of(best, resamples=301) == 301
    assert summary_of(best, resamples=300).to_dict() == stored_summary(best).to_dict()


def test_predictions_are_held_to_the_epoch_that_was_kept(best, tmp_path):
    folder = tmp_path / best.folder.name

    def fresh():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(best.folder, folder)
        return folder

    checked_run(fresh())
    shutil.copyfile(folder / "last-test.safetensors", folder / "test.safetensors")
    with pytest.raises(
        InputError, match=rf"{folder.name}/test.safetensors: changed; .* at epoch {kept_entry(best)['epoch']}"
    ):
        checked_run(folder)
    shutil.copyfile(fresh() / "val.safetensors", folder / "last-val.safetensors")
    with pytest.raises(InputError, match=r"last-val.safetensors: changed; .* at epoch 7"):
        checked_run(folder)
    info = json.loads((fresh() / "run.json").read_text()) | {"kept_epoch": 7}
    (folder / "run.json").write_text(json.dumps(info))
    with pytest.raises(
        InputError, match=r"run.json: epoch 7 was kept, where the history has the lowest error on val at"
    ):
        checked_run(folder)
    content = json.loads((fresh() / "figures.json").read_text())
    content["figures"]["states"]["before"]["metrics"]["nll"]["value"] += 0.5
    (folder / "figures.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"figures.json: changed; error"):
        checked_run(folder)
    for text in ("{", json.dumps({"digest": best.recipe.digest})):
        (folder / "figures.json").write_text(text)
        with pytest.raises(InputError, match=r"figures.json: (damaged|not the summary)"):
            checked_run(folder)


def test_a_large_run_is_kept_as_its_figures(images, tmp_path):
    run, kept = images
    results = kept.folder.parents[2]
    assert not keeps_predictions(run.recipe)
    assert sorted(path.name for path in kept.folder.iterdir()) == [
        "figures.json", "history.jsonl.gz", "recipe.json", "run.json",
    ]  # fmt: skip
    assert load_runs(results / "mukhoti2020") == {}
    assert set(load_runs(results / "mukhoti2020", tables=True)) == {run_name(run.recipe)}
    assert open_runs({run_name(run.recipe): run.recipe}, results) == {}
    assert summary_of(kept, resamples=10_000).resamples == 300  # it cannot be computed anew
    copy = tmp_path / "tables" / kept.folder.name
    shutil.copytree(kept.folder, copy)
    (copy / "figures.json").unlink()
    with pytest.raises(InputError, match=r"figures.json: missing; a stored run has recipe.json"):
        load_runs(tmp_path, tables=True)


def test_test_images_are_scored_both_ways(images):
    run, kept = images
    usual = summary_of(kept).usual
    scores = [score_logits(each.logits, each.labels) for each in (run.test, run.beside("usual-test"))]
    assert usual.less["error"].value == pytest.approx(error(scores[0]) - error(scores[1]))
    assert usual.figures.before["nll"] == pytest.approx(nll(scores[1]))
    assert usual.less["ece_after"].low <= usual.less["ece_after"].value <= usual.less["ece_after"].high


def test_which_predictions_are_kept():
    short = {"data": "cifar100", "normalisation": "imagenet-test", "model": "resnet18"}
    assert keeps_predictions(named("mukhoti2020-short", **short))
    assert not keeps_predictions(named("mukhoti2020-short", seed=1, **short))
    assert not keeps_predictions(named("mukhoti2020-short", reduction="mean", **short))
    assert not keeps_predictions(named("mukhoti2020-short", loss="brier", **short))
    assert keeps_predictions(named("mukhoti2020-20newsgroups", loss="brier"))
    assert keeps_predictions(named("mukhoti2020-20newsgroups", precision="bf16"))
    assert not keeps_predictions(named("mukhoti2020-20newsgroups", seed=2))
    assert not keeps_predictions(named("mukhoti2020-20newsgroups", reduction="sum", clip=2.0))
    assert keeps_predictions(named("mukhoti2020-sst", seed=2))


# ---------------------------------------------------------------------- the questions


def as_if(run, recipe):
    """A network of the paper with these figures."""
    return Network("some", replace(run, recipe=recipe), summary_of(run))


def test_every_question_is_answered_as_soon_as_there_is_a_run(best, images):
    assert {finding.verdict for finding in questions.findings([])} == {UNTESTED}
    assert all(sheet.rows[0][0] == "not run" for sheet in questions.sheets([]))
    text = as_if(best, named("mukhoti2020-sst", loss="focal:3"))
    image = as_if(images[1], images[1].recipe)
    sheets = questions.sheets([text, image])
    assert [len(sheet.rows) for sheet in sheets] == [1, 1, 2]
    told = [
        (finding.claim.split()[0], finding.on)
        for finding in questions.findings([text, image])
        if finding.verdict != UNTESTED
    ]
    assert told == [
        ("Normalising", "1 networks, CIFAR-100"), ("It", "1 networks, SST Binary"),
        *((name, on) for name in ("focal-temperature", "focal-temperature", "auto", "auto")
          for on in ("1 networks, CIFAR-100, 100 classes", "1 networks, SST Binary, 3 classes")),
    ]  # fmt: skip


def test_a_verdict_on_the_epoch_turns_with_the_numbers(best):
    network = as_if(best, named("mukhoti2020-sst"))

    def changed(value, low, high):
        less = {
            name: change._replace(value=value, low=low, high=high) for name, change in network.summary.last.less.items()
        }
        last = replace(network.summary.last, figures=network.figures, less=less)
        return replace(network, summary=replace(network.summary, last=last))

    assert questions.kept_epoch([changed(0, -1, 1)], "sst").verdict == "does not hold"
    assert questions.kept_epoch([changed(2, 1, 3)], "sst").verdict == "holds"
    assert questions.kept_epoch([network], "20newsgroups").verdict == UNTESTED


def test_a_stored_run_can_be_stored_again_and_elsewhere(best, images, tmp_path):
    for run in (best, images[1]):
        before = (run.folder / "figures.json").read_bytes()
        for place in (run.folder.parents[1], tmp_path):
            (folder,) = store([run.folder], place)
            assert folder == place / run.folder.parent.name / run.folder.name
            assert (folder / "figures.json").read_bytes() == before
            assert load_run(folder).info == run.info
    assert len(load_runs(tmp_path, tables=True)) == 2


def test_what_kimura2024_asks_of_a_run_is_the_same_with_and_without_its_predictions(images):
    whole, kept = images
    (samples, classes, gap), (*again, stored) = kimura._predicted(whole), kimura._predicted(kept)
    assert [samples, classes] == again == [len(whole.val), 100]
    assert gap == pytest.approx(stored)
