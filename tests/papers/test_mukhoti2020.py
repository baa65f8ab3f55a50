"""mukhoti2020: the authors' figures, the linear model, and verdicts that can turn."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import trueup
from tests.conftest import LOGITS, needs_logits
from tests.papers.conftest import RESULTS
from tests.papers.test_mukhoti2020_verdicts import swapped
from tests.train.small import SMALL
from trueup import losses
from trueup.inputs import InputError
from trueup.papers.judged import Figures, figures
from trueup.papers.mukhoti2020 import authors, checks, claims, images, our_runs, sheets
from trueup.papers.mukhoti2020.gist import gist
from trueup.papers.mukhoti2020.grid import METHODS, PLAIN, STEPS, beside_run, differences, grid, step_of
from trueup.papers.mukhoti2020.linear import RATE, linear_model
from trueup.papers.reproduction import FAILS, HOLDS
from trueup.papers.stored import load_runs, store
from trueup.train import named, train

FOLDER = RESULTS / "mukhoti2020"
CE, FL3, FLSD = claims.CE, claims.FL3, claims.FLSD


# ---------------------------------------------------------------------- the authors' networks


def test_the_authors_networks_give_the_printed_figures():
    first, confident = checks.printed_figures(authors.stored(FOLDER))
    assert first.verdict == HOLDS
    assert first.evidence == "63 of 63 to the last printed digit"
    assert confident.verdict == FAILS
    assert "46.31 (ours 60.33)" in confident.evidence


@needs_logits
def test_the_stored_figures_come_from_the_logits():
    stored = {author.name: author for author in authors.stored(FOLDER)}
    author = stored["cifar10_wrn26_10_flsd53_mukhoti"]
    val, test = (trueup.load(LOGITS / author.name / f"{part}.npz") for part in ("val", "test"))
    made = figures(val, test, resamples=author.figures.resamples)
    for name, state in made.states.items():
        for quantity, measure in state.measures.items():
            assert measure.value == pytest.approx(author.figures.states[name][quantity], abs=1e-9), quantity


def test_a_damaged_file_of_figures_is_named(tmp_path):
    with pytest.raises(InputError, match=r"authors.json: missing"):
        authors.stored(tmp_path)
    for content in ("{", '{"networks": {}}', "[]"):
        (tmp_path / "authors.json").write_text(content)
        with pytest.raises(InputError, match=r"authors.json: damaged"):
            authors.stored(tmp_path)


def test_figures_survive_json():
    author = authors.stored(FOLDER)[0]
    again = Figures.from_dict(json.loads(json.dumps(author.figures.to_dict())))
    assert again == author.figures
    with pytest.raises(InputError, match="not the figures of a network"):
        Figures.from_dict({})


# ---------------------------------------------------------------------- the grid


def test_every_step_of_the_grid_has_its_title():
    study = grid()["recipe study"].values()
    assert [step_of(recipe) for recipe in study] == [step for step in STEPS for _ in range(3)]
    assert step_of(named("mukhoti2020-short", loss="brier")) == next(iter(STEPS))
    assert step_of(named("mukhoti2020-short", batch=64)) == "batch 64"
    assert step_of(named("mukhoti2020-sst")) == "mean, not clipped"
    assert step_of(named("mukhoti2020-sst", precision="bf16")) == "mean, not clipped"
    assert differences(named("mukhoti2020-sst", precision="bf16")) == []
    for part in grid().values():
        assert {step_of(recipe) for recipe in part.values()} <= set(STEPS)


def test_a_run_is_put_beside_its_row():
    assert beside_run(named("mukhoti2020", model="densenet121", loss="focal:3"))["ece", "after"].value == "1.26"
    assert beside_run(named("mukhoti2020", model="resnet18"))["ece", "before"].value == "4.35"
    assert differences(named("mukhoti2020")) == []
    assert differences(named("mukhoti2020", model="resnet18", epochs=9)) == [
        "model resnet18, not resnet50", "epochs 9, not 350",
    ]  # fmt: skip


# ---------------------------------------------------------------------- sheets


def test_the_overview_has_every_row_of_table_1_and_says_what_is_not_run(setting):
    sheet = sheets.overview([setting])
    printed = {row[:2]: row[3:] for row in sheet.rows if row[2] == "printed"}
    assert len(printed) == 10 + 1  # Table 1, Tiny-ImageNet
    (ours,) = (row for row in sheet.rows if row[2] == "ours")
    assert ours[:2] == ("CIFAR-10", "ResNet-18")
    assert ours[3].startswith(f"{100 * setting.figure(CE, 'ece'):.2f} → ")
    assert ours[4] == "not run"
    assert printed["CIFAR-10", "ResNet-50"][:2] == ("4.35 → 1.35 (2.5)", "1.82 → 1.08 (1.1)")
    assert printed["SST Binary", "Tree-LSTM"][3] == "16.05 → 1.78 (0.5)"
    assert printed["Tiny-ImageNet", "ResNet-50"][0] == "15.32 → 5.48 (1.4) [recall]"
    assert "without a line of ours is not run" in sheet.note


def test_the_step_is_shown_for_every_data_set_that_has_two_and_a_run(setting, reproductions):
    (shown,) = sheets.step_sheets([network for of in setting.networks.values() for network in of])
    assert shown.title == "What the step decides: ResNet-18, CIFAR-10, 105 epochs, seed 0"
    assert [row[2] == "not run" for row in shown.rows] == [False] * 3 + [True] * 9
    assert "arithmetic" not in shown.note
    whole = [sheet for sheet in reproductions["mukhoti2020"].sheets if sheet.title.startswith("What the step decides")]
    assert [len(sheet.rows) for sheet in whole] == [12, 6, 6, 12]
    assert "20 Newsgroups" in whole[1].title
    assert whole[1].note.endswith(
        "Bf16 autocast on a GPU: mean, not clipped; float32 on a CPU: summed, clipped at 2 (CE, FL-3); "
        "bf16 autocast on a CPU: summed, clipped at 2 (FLSD-53)."
    )


def test_the_grid_has_every_method_on_texts_and_the_authors_normalisation_on_cifar100():
    parts = grid()
    for data in ("20 Newsgroups", "SST Binary"):
        made = list(parts[data].values())
        assert len(made) == (11 + 3 + 1) * 3
        assert {METHODS[recipe.loss] for recipe in made[:11]} == set(METHODS.values())
        assert all(recipe.keep == "best-val" for recipe in made)
    hundred = [recipe for title, part in parts.items() if title.startswith("CIFAR-100") for recipe in part.values()]
    assert {recipe.normalisation for recipe in hundred} == {"imagenet-test"}
    assert len({recipe.digest for recipe in hundred}) == 12 + 9 + 8 + 4
    both = {(recipe.data, recipe.loss) for part in parts.values() for recipe in part.values() if "mmce" in recipe.loss}
    assert {data for data, loss in both if loss in PLAIN} == {"cifar10", "20newsgroups", "sst"}
    assert {data for data, loss in both if loss in METHODS} == {"cifar10", "cifar100", "20newsgroups", "sst"}


def test_the_spread_is_that_of_the_seeds(setting):
    assert sheets.spread_sheet(setting) is None
    both = (*setting.networks[FL3], *setting.networks[FLSD])
    sheet = sheets.spread_sheet(replace(setting, networks={FL3: both}))
    errors = [100 * network.figures.before["error"] for network in both]
    assert sheet.rows[0][:3] == ("FL-3", "2", f"{np.mean(errors):.2f} ± {np.std(errors, ddof=1):.2f}")


def test_the_images_are_right_or_wrong_for_all(setting):
    sheet = images.images_sheet(setting)
    assert [row[0] for row in sheet.rows] == ["right"] * 4 + ["wrong"] * 4
    for kind, index, label, *answers in sheet.rows:
        assert (
            setting.networks[CE][0].run.test.class_names[setting.networks[CE][0].run.test.labels[int(index)]] == label
        )
        assert {answer.split()[0] == label for answer in answers} == {kind == "right"}
    assert images.images_sheet(replace(setting, networks={CE: setting.networks[CE]})) is None


def test_what_is_other_than_the_authors_code_is_said_of_texts_too(setting):
    runs = load_runs(FOLDER)
    told = {
        name: sheets.otherwise(run)
        for name, run in runs.items()
        if ("text-cnn_cross" in name and "_adam_seed" in name) or "lstm_cross-entropy_adagrad_seed" in name
    }
    assert told
    for name, found in told.items():
        assert found[0].startswith("word vectors of 100 dimensions")
        assert ("not 300" in found[0]) == name.startswith("sst")
        assert "have no vector" in found[1]
        assert found[-1].startswith("our own code, in float32" if name.startswith("sst") else "bf16")
    assert sheets.otherwise(setting.networks[CE][0].run)[-1] == "bf16 autocast on a GPU, not float32"


def test_a_sheet_names_the_networks_that_computed_otherwise(reproductions):
    found = {sheet.title: sheet.note for sheet in reproductions["mukhoti2020"].sheets}
    texts = found["CNN, 20 Newsgroups, 50 epochs, mean, not clipped"]
    (images,) = (
        note for title, note in found.items() if title == "ResNet-18, CIFAR-10, 105 epochs, summed, clipped at 2"
    )
    assert "bf16 autocast on a GPU, not float32; but " in texts
    assert "float32 on a CPU: LS-0.05, seed 0" in texts
    assert images.endswith("bf16 autocast on a GPU, not float32.")


def test_what_it_comes_to_is_said_of_what_was_trained_only(setting, reproductions):
    assert gist([]) == ()
    whole = reproductions["mukhoti2020"].gist
    assert 5 <= len(whole) <= 9
    assert whole[1].told.startswith("Why is ResNet-50")
    assert "ResNet-50 and of ResNet-18" in whole[1].details[0]
    assert whole[2].told.startswith("Why is focal loss under-confident on SST")
    assert {"CE", "FL-2", "FL-3", "FLSD-53"} <= {row[0] for row in whole[2].sheet.rows}
    assert whole[3].details[0].startswith("CIFAR-10: yes")
    news = next(row for row in whole[0].sheet.rows if row[0] == "CNN, 20 Newsgroups")
    assert news[1] == "3"
    first, *rest = gist([setting])
    (row,) = first.sheet.rows
    assert row[1:4] == ("1", *(f"{100 * setting.figure(loss, 'ece'):.2f}" for loss in (CE, FL3)))
    assert row[4:6] == ("yes", "yes")
    assert not any("weight decay" in str(point) for point in rest)
    other = replace(swapped(setting), step="mean, not clipped")
    assert gist([setting, other])[1].details == ("CIFAR-10: yes",)
    assert gist([setting, replace(setting, step="mean, not clipped")])[1].details == ("CIFAR-10: no",)


def test_a_run_of_a_recipe_or_loss_that_the_paper_has_not_is_refused(tmp_path):
    recipe = SMALL.changed({"epochs": 1, "milestones": (), "factors": ()})
    train(recipe, tmp_path / "run", device="cpu", half=True)
    store([tmp_path / "run"], tmp_path)
    with pytest.raises(InputError, match=r"recipe.json: recipe 'custom' is none of this paper's"):
        our_runs(tmp_path)


# ---------------------------------------------------------------------- the linear model


def test_the_linear_model_descends_the_gradient_of_our_losses():
    model, steps = linear_model(seed=3, steps=3), 3
    rng = np.random.default_rng(3)
    from trueup.papers.mukhoti2020 import linear

    points, labels = map(torch.from_numpy, linear._sampled(linear.POINTS, rng))
    for k, spec in enumerate(("cross-entropy", "focal:1")):
        w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        for _ in range(steps):
            z = points @ w
            loss = losses.parse(spec)(torch.stack([torch.zeros_like(z), z], 1), labels)
            (gradient,) = torch.autograd.grad(loss, w)
            w = (w - RATE * gradient).detach().requires_grad_()
        np.testing.assert_allclose(model.weights[:, k], w.detach().numpy(), rtol=1e-12)


def test_the_linear_model_is_judged(reproductions):
    told = {finding.where: finding.verdict for finding in reproductions["mukhoti2020"].findings}
    assert told["Appendix G, Figure 5"] == told["Appendix G, Figure 6b, c"] == HOLDS
    assert told["Appendix G, Figure 6a"] == FAILS
