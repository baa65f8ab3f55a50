"""mukhoti2020: the authors' figures, the linear model, and verdicts that can turn."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import trueup
from tests.conftest import LOGITS, needs_logits
from tests.papers.conftest import RESULTS
from tests.train.small import SMALL
from trueup import data as sources
from trueup import losses
from trueup.inputs import InputError
from trueup.papers.figures import on_page
from trueup.papers.judged import Figures, figures
from trueup.papers.mukhoti2020 import authors, checks, claims, drawing, epochs, our_runs, sheets
from trueup.papers.mukhoti2020.grid import DATASETS, METHODS, STEPS, beside_run, differences, grid, step_of
from trueup.papers.mukhoti2020.linear import RATE, linear_model
from trueup.papers.mukhoti2020.settings import Network, settings_of
from trueup.papers.reproduction import FAILS, HOLDS, UNTESTED
from trueup.papers.stored import load_runs, store
from trueup.papers.summary import summary_of
from trueup.train import fit, named, train
from trueup.train.measure import GRADIENT_EDGES

FOLDER = RESULTS / "mukhoti2020"
CE, FL3, FLSD = claims.CE, claims.FL3, claims.FLSD


@pytest.fixture(scope="module")
def setting():
    """ResNet-18 with the authors' step, seed 0 of each loss, without histograms of training samples."""
    names = [f"cifar10_resnet18_{loss}_short_seed0" for loss in ("cross-entropy", "focal-3", "flsd-53")]
    runs = load_runs(FOLDER)
    for name in names:
        for entry in runs[name].history:
            entry.pop("train_histograms", None)
    (found,) = settings_of([Network(n, runs[n], summary_of(runs[n], resamples=50)) for n in names])
    return found


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
    for part in grid().values():
        assert {step_of(recipe) for recipe in part.values()} <= set(STEPS)


def test_a_run_is_put_beside_its_row():
    assert beside_run(named("mukhoti2020", model="densenet121", loss="focal:3"))["ece", "after"].value == "1.26"
    assert beside_run(named("mukhoti2020", model="resnet18"))["ece", "before"].value == "4.35"
    assert differences(named("mukhoti2020")) == []
    assert differences(named("mukhoti2020", model="resnet18", epochs=9)) == [
        "model resnet18, not resnet50", "epochs 9, not 350",
    ]  # fmt: skip


# ---------------------------------------------------------------------- verdicts


def swapped(setting):
    """Cross-entropy under the name of the focal losses, and the other way round."""
    networks = setting.networks
    return replace(setting, networks={CE: networks[FL3], FL3: networks[CE], FLSD: networks[CE]})


TURNING = (
    claims.half_the_ece, claims.temperatures, claims.lower_nll, claims.confident_after, epochs.milder_rise,
    epochs.less_sure_of_mistakes, epochs.true_probabilities, epochs.gradient_norms,
)  # fmt: skip


@pytest.mark.parametrize("judge", TURNING, ids=lambda judge: judge.__name__)
def test_a_verdict_turns_when_the_losses_change_places(judge, setting):
    assert judge(setting)[0]
    assert not judge(swapped(setting))[0]


def test_curves_of_a_loss_that_does_not_overfit_do_not_pass_for_those_of_cross_entropy(setting):
    focal = replace(setting, networks={CE: setting.networks[FL3]})
    assert epochs.overfits_on_the_wrong(setting)[0]
    assert not epochs.overfits_on_the_wrong(focal)[0]
    assert not epochs.ece_rises(focal)[0]
    assert not epochs.train_error(focal)[0]


def test_a_claim_without_its_runs_is_not_tested(setting):
    found = claims.judged(claims.CLAIMS[0], [replace(setting, networks={CE: setting.networks[CE]})])
    assert [finding.verdict for finding in found] == [UNTESTED] * 3
    assert [finding.on for finding in found] == ["CIFAR-10", "CIFAR-100", "20 Newsgroups"]
    assert all("focal:3" in finding.evidence for finding in found)


def test_a_claim_has_a_verdict_for_each_data_set(setting):
    news = replace(swapped(setting), data="20newsgroups", step="mean, not clipped", schedule="mukhoti2020-20newsgroups")
    first, second, third = claims.judged(claims.CLAIMS[0], [setting, news])
    assert (first.verdict, second.verdict, third.verdict) == (HOLDS, UNTESTED, FAILS)
    assert "20newsgroups" in third.on
    assert first.others == ()
    sst = replace(setting, data="sst", step="mean, not clipped", schedule="mukhoti2020-sst")
    first, *_ = claims.judged(claims.CLAIMS[0], [setting, sst])
    assert [(on.split(", ")[1], verdict) for on, verdict, _ in first.others] == [
        ("sst", HOLDS)
    ]  # the paper's is not so
    assert not claims.under_confident(sst)[0]


def test_the_weight_of_mmce_is_that_of_the_data():
    lowest = next(claim for claim in claims.CLAIMS if "after T" in claim.text and "MMCE" in claim.text)
    found = {finding.on: finding.evidence for finding in claims.judged(lowest, [])}
    assert "cross-entropy+mmce:2" in found["CIFAR-10"]
    assert "cross-entropy+mmce:8" in found["SST Binary"]


def test_what_is_said_of_the_falls_of_the_learning_rate_needs_them(setting):
    (network,) = setting.networks[CE]
    steady = replace(network.run, recipe=network.run.recipe.changed({"milestones": (), "factors": ()}))
    other = replace(setting, networks={loss: (replace(network, run=steady),) for loss in setting.networks})
    assert any(claim.staged for claim in epochs.CLAIMS)
    for claim in epochs.CLAIMS:
        if claim.staged:
            assert [finding.verdict for finding in claims.judged(claim, [other])] == [UNTESTED]


def test_another_step_does_not_decide_the_verdict_but_is_told(setting):
    other = replace(swapped(setting), step="mean, not clipped")
    assert claims.judged(claims.CLAIMS[0], [other])[0].verdict == UNTESTED
    finding = claims.judged(claims.CLAIMS[0], [setting, other])[0]
    assert (finding.verdict, finding.others[0][1]) == (HOLDS, FAILS)
    assert checks.step_decides([setting], "cifar10").verdict == UNTESTED
    assert checks.step_decides([setting, other], "sst").verdict == UNTESTED
    told = checks.step_decides([setting, other], "cifar10")
    assert told.verdict == FAILS
    assert "summed, clipped at 2: yes" in told.evidence
    assert "mean, not clipped: no" in told.evidence
    assert checks.step_decides([setting, replace(setting, step="mean, not clipped")], "cifar10").verdict == HOLDS


def test_the_sum_at_a_lower_rate_is_the_mean_with_a_weaker_decay():
    recipe = SMALL.changed({"batch": 30, "loss": "focal:3", "epochs": 2, "milestones": (), "factors": (), "clip": None})
    mean = recipe.changed({"reduction": "mean", "lr": 0.3, "weight_decay": 0.01})
    summed = recipe.changed({"reduction": "sum", "lr": 0.01, "weight_decay": 0.3})
    data = sources.load(recipe.data)
    assert len(data.train) % 30 == 0
    first, second = (fit(each, data, device="cpu").test_logits for each in (mean, summed))
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-4)


def test_whether_weight_decay_decides_is_told_with_its_numbers(setting, monkeypatch):
    mean, weak = (replace(setting, step=step) for step in ("mean, not clipped", "summed, lr 0.1/128, not clipped"))
    gaps = {mean.step: -0.07, weak.step: 0.01}
    monkeypatch.setattr(type(setting), "figure", lambda self, loss, quantity: gaps[self.step])
    assert checks.decay_decides([setting, mean], "cifar10").verdict == UNTESTED
    told = checks.decay_decides([setting, mean, weak], "cifar10")
    assert told.verdict == FAILS
    assert "-7.00 points" in told.evidence
    assert "+1.00" in told.evidence
    gaps[weak.step] = -0.05
    assert checks.decay_decides([setting, mean, weak], "cifar10").verdict == HOLDS


def test_the_verdict_may_change_within_the_last_stage(setting, monkeypatch):
    begin, focal = setting.drops(CE)[1], {}

    def followed(self, loss, *keys):
        return np.concatenate([np.ones(begin), [0.05, 0.05] if loss == CE else focal["ece"]])

    monkeypatch.setattr(type(setting), "followed", followed)
    focal["ece"] = [0.02, 0.01]
    assert checks.stopping_decides([setting]).verdict == HOLDS
    focal["ece"] = [0.01, 0.03]
    told = checks.stopping_decides([setting])
    assert told.verdict == FAILS
    assert "1.7 to 5.0 times FL-3's" in told.evidence
    assert checks.stopping_decides([]).verdict == UNTESTED


def test_a_larger_net_that_is_worse_was_not_trained_to_its_end(setting):
    large = replace(setting, model="resnet50", schedule="mukhoti2020-short", data="cifar10")
    small = replace(large, model="resnet18")
    assert checks.short_schedule([large, small]).verdict == HOLDS  # the same errors
    assert checks.short_schedule([large]).verdict == UNTESTED


def test_data_sets_without_a_network_are_named():
    (found,) = checks.not_run({"cifar10", "cifar100", "sst"})
    assert (found.verdict, found.evidence) == (UNTESTED, "no runs of ours on 20 Newsgroups, Tiny-ImageNet")
    assert checks.not_run(set(DATASETS)) == []


def test_the_choice_of_t_is_judged_by_the_mean_and_the_majority(setting):
    (network,) = setting.networks[CE]

    def with_gain(value):
        interval = network.figures.grid_less_nll._replace(value=value, low=value, high=value)
        changed = replace(network.figures, grid_less_nll=interval)
        return replace(network, summary=replace(network.summary, figures=changed))

    better, worse = with_gain(-0.01), with_gain(0.03)
    assert checks.grid_or_nll((), [better, better, worse]).verdict == FAILS
    assert checks.grid_or_nll((), [better, better, better, worse, better]).verdict == FAILS  # within its error
    assert checks.grid_or_nll((), [*[better] * 30, worse]).verdict == HOLDS
    assert checks.grid_or_nll((), []).verdict == UNTESTED


# ---------------------------------------------------------------------- histograms of training samples


def counted(network, *, top=lambda n: 500 + n, right=lambda n: 1000 - max(0, 80 - n), place=lambda n: 20, seed=1):
    """The network, with histograms of 1000 training samples in its history: after n epochs how many are in the highest
    bin (the others in the lowest), how many are right, and in which bin all the gradients' norms are."""

    def entry(n):
        confidence = [1000 - top(n), *[0] * 23, top(n)]
        correct = [right(n) - min(top(n), right(n)), *[0] * 23, min(top(n), right(n))]
        norms = [1000 * (i == place(n)) for i in range(len(GRADIENT_EDGES) + 1)]
        return {"train_histograms": {"confidence": confidence, "correct": correct, "gradient_norm": norms}}

    run = replace(network.run, recipe=replace(network.run.recipe, seed=seed))
    run.__dict__["history"] = [old | entry(i + 1) for i, old in enumerate(network.run.history)]
    return replace(network, run=run)


def of_histograms(setting, **of_ce):
    """The setting with an old run, and one that has histograms, of cross-entropy and FL-3."""
    made = {CE: of_ce, FL3: {"place": lambda n: 20 - n // 20}}
    both = {loss: (setting.networks[loss][0], counted(setting.networks[loss][0], **made[loss])) for loss in made}
    return replace(setting, networks=both | {FLSD: setting.networks[FLSD]})


def judged_by_histograms(setting):
    return [claims.judged(claim, [setting])[0] for claim in epochs.CLAIMS if claim.histograms]


def test_claims_of_training_samples_are_not_tested_by_runs_without_histograms(setting):
    found = judged_by_histograms(setting)
    assert [finding.verdict for finding in found] == [UNTESTED] * 3
    assert all("histograms of training samples" in finding.evidence for finding in found)
    (old,) = setting.networks[CE]
    late = counted(old)
    late.run.__dict__["history"][0] = old.run.history[0]  # begun before there were histograms, and gone on
    assert replace(setting, networks={CE: (old, late)}).with_histograms().networks == {}


def test_claims_of_training_samples_use_the_runs_that_have_histograms(setting):
    first, alike, slower = judged_by_histograms(of_histograms(setting))
    assert (first.verdict, alike.verdict, slower.verdict) == (HOLDS, HOLDS, HOLDS)
    assert first.evidence == (
        "after 30 / 60 / 90 / 105 epochs (seed 1) in the highest bin: 53.00 / 56.00 / 59.00 / 60.50 %; "
        "accuracy on train: 95.00 / 98.00 / 100.00 / 100.00 %"
    )
    assert alike.evidence == "median norm after 3 epochs (seed 1): CE 0.075, FL-3 0.075"  # the middle of the bin
    assert slower.evidence.endswith("CE 0.075 / 0.075 / 0.075, FL-3 0.075 / 0.0422 / 0.0133")


@pytest.mark.parametrize(
    ("of_ce", "turned"),
    [
        ({"top": lambda n: 500 + min(n, 90)}, 0),  # no longer after accuracy is perfect
        ({"right": lambda n: 990}, 0),  # never perfect
        ({"place": lambda n: 22}, 1),
        ({"place": lambda n: 20 - n // 10}, 2),
    ],
)
def test_a_verdict_on_training_samples_can_turn(setting, of_ce, turned):
    found = judged_by_histograms(of_histograms(setting, **of_ce))
    assert [finding.verdict == FAILS for finding in found] == [i == turned for i in range(3)]


def test_the_median_of_a_histogram_is_that_of_the_samples_to_a_part_of_a_bin():
    for scale in (1e-4, 1.0, 30.0):
        norms = scale * np.exp(np.random.default_rng(0).normal(size=20_001))
        counts = np.bincount(np.searchsorted(GRADIENT_EDGES, norms), minlength=len(GRADIENT_EDGES) + 1)
        assert epochs.median_norm(counts) == pytest.approx(np.median(norms), rel=0.05)
    ends = np.eye(len(GRADIENT_EDGES) + 1)[[0, -1]]
    assert [epochs.median_norm(end) for end in ends] == pytest.approx(GRADIENT_EDGES[[0, -1]])
    assert epochs._norm(epochs.median_norm(ends[0])) == "below 1e-06"


def test_epochs_are_scaled_to_the_schedule(setting):
    assert setting.scaled(epochs.OF_CONFIDENCES) == [30, 60, 90, 105]
    assert setting.scaled(epochs.OF_GRADIENTS) == [3, 30, 60]


def test_figures_of_training_samples_are_drawn_from_the_runs_that_have_them(setting):
    without = {picture.name: picture for picture in drawing.pictures([setting])}
    assert (len(without["figure2"].panels), len(without["figure4"].panels)) == (0, 1)
    assert without["figure2"].told.startswith("Figure 2 is not drawn: no stored run")
    assert "b to d are not drawn" in without["figure4"].told
    assert dict(on_page(without.values()))[without["figure2"].told] == ""
    found = {picture.name: picture for picture in drawing.pictures([setting, of_histograms(setting)])}
    top, below = found["figure2"].panels[1], found["figure2"].panels[5]
    assert top.title == "after 60 epochs (paper: 200)\naccuracy 98.00 %"
    assert below.title == "56.0 % in the highest bin"
    accuracy, share = top.stairs["accuracy"][1], below.stairs["share"][1]
    np.testing.assert_allclose(accuracy[[0, -1]], [420 / 440, 1])
    assert np.isnan(accuracy[1:-1]).all()  # empty bins
    assert share.sum() == pytest.approx(100)
    last = found["figure4"].panels[3]
    assert last.title == "d: after 60 epochs (paper: 200)"
    for name, median in (("CE", 20), ("FL-3", 17)):
        edges, heights = last.stairs[name]
        assert (heights.argmax(), heights.sum(), len(edges)) == (median, 100, len(heights) + 1)
    assert "seed 1" in found["figure2"].told
    assert "1 000 training samples" in found["figure2"].told


# ---------------------------------------------------------------------- sheets


def test_the_overview_has_every_row_of_table_1_and_says_what_is_not_run(setting):
    sheet = sheets.overview([setting])
    assert len(sheet.rows) == 10 + 1 + 2  # Table 1, Tiny-ImageNet, ResNet-18 on two data sets
    rows = {row[:2]: row[2:] for row in sheet.rows}
    ours = rows["CIFAR-10", "ResNet-18"]
    assert ours[0].endswith(" · 4.35 → 1.35 (2.5)")
    assert ours[0].startswith(f"{100 * setting.figure(CE, 'ece'):.2f} → ")
    assert ours[1] == "not run · 1.82 → 1.08 (1.1)"
    assert rows["SST Binary", "Tree-LSTM"][3] == "not run · 16.05 → 1.78 (0.5)"


def test_the_step_is_shown_for_every_data_set_that_has_two(setting):
    shown = sheets.step_sheets([network for of in setting.networks.values() for network in of])
    titles = [sheet.title.removeprefix("What the step decides: ") for sheet in shown]
    assert titles == [
        "ResNet-18, CIFAR-10, 105 epochs, seed 0", "ResNet-18, CIFAR-10, 350 epochs, seed 0",
        "CNN, 20 Newsgroups, 50 epochs, seed 0", "Tree-LSTM, SST Binary, 25 epochs, seed 0",
        "ResNet-18, CIFAR-100, 105 epochs, seed 0",
    ]  # fmt: skip
    assert [len(sheet.rows) for sheet in shown] == [12, 6, 4, 4, 12]
    assert [row[2] == "not run" for row in shown[0].rows] == [False] * 3 + [True] * 9


def test_the_grid_has_every_method_on_texts_and_the_authors_normalisation_on_cifar100():
    parts = grid()
    for data in ("20 Newsgroups", "SST Binary"):
        made = list(parts[data].values())
        assert len(made) == 11 * 3 + 2
        assert {METHODS[recipe.loss] for recipe in made[:11]} == set(METHODS.values())
        assert all(recipe.keep == "best-val" for recipe in made)
    hundred = [recipe for title, part in parts.items() if title.startswith("CIFAR-100") for recipe in part.values()]
    assert {recipe.normalisation for recipe in hundred} == {"imagenet-test"}
    assert len({recipe.digest for recipe in hundred}) == 12 + 9 + 8 + 4


def test_the_spread_is_that_of_the_seeds(setting):
    assert sheets.spread_sheet(setting) is None
    both = (*setting.networks[FL3], *setting.networks[FLSD])
    sheet = sheets.spread_sheet(replace(setting, networks={FL3: both}))
    errors = [100 * network.figures.before["error"] for network in both]
    assert sheet.rows[0][:3] == ("FL-3", "2", f"{np.mean(errors):.2f} ± {np.std(errors, ddof=1):.2f}")


def test_the_images_are_right_or_wrong_for_all(setting):
    sheet = sheets.images_sheet(setting)
    assert [row[0] for row in sheet.rows] == ["right"] * 4 + ["wrong"] * 4
    for kind, index, label, *answers in sheet.rows:
        assert (
            setting.networks[CE][0].run.test.class_names[setting.networks[CE][0].run.test.labels[int(index)]] == label
        )
        assert {answer.split()[0] == label for answer in answers} == {kind == "right"}
    assert sheets.images_sheet(replace(setting, networks={CE: setting.networks[CE]})) is None


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
