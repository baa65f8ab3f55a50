"""Verdicts on mukhoti2020: each can turn, says what is noise, and is of runs that are alike."""

from dataclasses import replace

import numpy as np
import pytest

from tests.papers.conftest import RESULTS
from trueup.papers.chance import Error
from trueup.papers.figures import on_page
from trueup.papers.mukhoti2020 import checks, claims, drawing, epochs, images
from trueup.papers.reproduction import FAILS, HOLDS, UNCLEAR, UNTESTED
from trueup.train import named
from trueup.train.measure import GRADIENT_EDGES

FOLDER = RESULTS / "mukhoti2020"
CE, FL3, FLSD = claims.CE, claims.FL3, claims.FLSD


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
    turned = judge(swapped(setting))[0]
    assert turned is not None
    assert not turned


def test_the_claim_of_figure_8_is_judged_on_all_images_that_both_get_right_or_wrong(setting):
    _, told = images.unsure_of_mistakes(setting)
    tests = [setting.networks[loss][0].run.test for loss in (CE, FLSD)]
    right = [test.logits.argmax(1) == test.labels for test in tests]
    assert f"the {int((right[0] & right[1]).sum())} images that both get right" in told
    assert f"{int((~right[0] & ~right[1]).sum())} wrong" in told
    assert images.unsure_of_mistakes(swapped(setting))[0] is False
    itself = replace(setting, networks={CE: setting.networks[CE], FLSD: setting.networks[CE]})
    assert images.unsure_of_mistakes(itself)[0] is None


def test_curves_of_a_loss_that_does_not_overfit_do_not_pass_for_those_of_cross_entropy(setting):
    focal = replace(setting, networks={CE: setting.networks[FL3]})
    assert epochs.overfits_on_the_wrong(setting)[0]
    assert not epochs.overfits_on_the_wrong(focal)[0]
    assert not epochs.ece_rises(focal)[0]


@pytest.mark.parametrize(
    ("thirds", "end", "holds"),
    [
        ((0.02, 0.01, 0.02), 0.0, True), ((0.02, 0.01, 0.02), 1e-4, True),  # of 10 000 samples
        ((0.02, 0.01, 0.02), 1e-3, False), ((0.02, 0.01, 0.011), 0.0, None), ((0.03, 0.02, 0.01), 0.0, False),
    ],
)  # fmt: skip
def test_the_train_error_of_figure_1_falls_rises_and_is_0(setting, monkeypatch, thirds, end, holds):
    first, second = setting.drops(CE)
    values = np.r_[np.full(first, 0.2), np.repeat(thirds, (second - first) // 3), np.full(setting.epochs - second, end)]
    values[second - 1] += 1e-3  # a single epoch is no rise
    monkeypatch.setattr(type(setting), "followed", lambda *_: values)
    assert epochs.train_error(setting)[0] is holds


def networks_with(setting, loss, *values, quantity="ece", width=0.001):
    """A network for each value, of another seed, with that figure before T and a 95 % interval of that half width."""
    (network,) = setting.networks[loss]
    made = []
    for seed, value in enumerate(values):
        before = network.figures.before
        measures = before.measures | {quantity: replace(before.measures[quantity], value=value, low=value - width,
                                                        high=value + width)}  # fmt: skip
        figures = replace(
            network.figures, states=network.figures.states | {"before": replace(before, measures=measures)}
        )
        run = replace(network.run, recipe=replace(network.run.recipe, seed=seed))
        made.append(replace(network, run=run, summary=replace(network.summary, figures=figures)))
    return tuple(made)


def test_a_loss_with_one_seed_is_taken_to_vary_as_the_others_do(setting):
    steady, restless = (
        replace(setting, networks={CE: networks_with(setting, CE, *of_ce), FL3: networks_with(setting, FL3, 0.02)})
        for of_ce in ((0.050, 0.0501, 0.0499), (0.03, 0.05, 0.07))
    )
    assert steady.error_of(FL3, "ece").value == pytest.approx(0.001 / 1.96)
    assert restless.error_of(FL3, "ece") == Error(pytest.approx(0.02), 2)
    assert restless.error_of(CE, "ece") == Error(pytest.approx(0.02 / 3**0.5), 2)
    assert claims.lower(steady, FL3, CE, "ece") is True
    assert claims.lower(restless, FL3, CE, "ece") is None
    assert claims.lower_ece("before")(restless)[0] is None


def test_with_two_seeds_a_loss_is_taken_to_vary_as_with_all_steps(setting):
    """By Student's factor for one degree of freedom a second seed would tell less than none."""
    authors, other = (
        replace(setting, networks={FL3: networks_with(setting, FL3, *of)}) for of in ((0.02, 0.04, 0.03), (0.06, 0.08))
    )
    judged = replace(other, beside=(authors, other)).error_of(FL3, "ece")
    variance = (2 * 1e-4 + 1 * 2e-4) / 3
    assert judged == Error(pytest.approx((variance / 2) ** 0.5), 3)
    assert other.error_of(FL3, "ece") == Error(pytest.approx(1e-4**0.5), 1)


def test_a_step_with_one_seed_is_judged_by_how_the_loss_varies_over_seeds_with_the_other(setting):
    def with_gaps(*gaps):
        of = {loss: networks_with(setting, loss, 0.05) for loss in (CE, FL3)}
        return replace(setting, networks=of | {FL3: networks_with(setting, FL3, *gaps, quantity="overconfidence")})

    other = replace(with_gaps(-0.06), step="mean, not clipped")
    assert checks.sign_decides([with_gaps(0.04, 0.041, 0.039), other], "cifar10").verdict == HOLDS
    assert checks.sign_decides([with_gaps(0.04, -0.04, -0.01), other], "cifar10").verdict == UNCLEAR


def test_a_share_without_an_interval_has_the_error_of_a_share(setting):
    (network,) = setting.networks[CE]
    share, n = network.figures.before["s99"], network.figures.n_test
    assert setting.error_of(CE, "s99").value == pytest.approx((share * (1 - share) / n) ** 0.5)
    itself = replace(setting, networks={CE: setting.networks[CE], FLSD: setting.networks[CE]})
    assert claims.confident_after(itself)[0] is None


def test_the_seeds_of_every_loss_that_the_evidence_names_are_told(setting):
    of = {CE: networks_with(setting, CE, 0.05, 0.05), FL3: networks_with(setting, FL3, 0.01)}
    found, *_ = claims.judged(claims.CLAIMS[0], [replace(setting, networks=of)])
    assert found.evidence.endswith("%; FLSD-53 is not run (seeds 0, 1; FL-3: seed 0)")
    assert found.subject == "CIFAR-10 (ResNet-18, 1 seed, without FLSD-53)"


def test_what_is_within_noise_cannot_be_told(setting):
    def judged(ce, focal, **interval):
        made = {loss: networks_with(setting, loss, *values, **interval) for loss, values in ((CE, ce), (FL3, focal))}
        return claims.half_the_ece(replace(setting, networks=made))[0]

    assert judged([0.05], [0.02]) is True
    assert judged([0.03], [0.02]) is False
    assert judged([0.05], [0.02], width=0.02) is None  # over test samples
    assert judged([0.05, 0.05, 0.05], [0.001, 0.02, 0.039]) is None  # over seeds
    assert judged([0.05, 0.05, 0.05], [0.019, 0.02, 0.021]) is True
    told = claims.judged(claims.CLAIMS[0], [replace(setting, networks=setting.networks | {
        CE: networks_with(setting, CE, 0.03, width=0.02)})])[0]  # fmt: skip
    assert told.verdict == UNCLEAR
    assert told.evidence.endswith("(seed 0)")


def test_a_smaller_gradient_reaches_the_weights_by_sgd_alone_and_unless_it_is_clipped(setting, monkeypatch):
    def judged(mean, largest, **recipe):
        def followed(self, loss, group, name):
            return np.full(self.epochs, (mean if name == "mean" else largest) * (1 if loss == CE else 0.9))

        monkeypatch.setattr(type(setting), "followed", followed)
        networks = {
            loss: (replace(n, run=replace(n.run, recipe=n.run.recipe.changed(recipe))),)
            for loss, (n,) in setting.networks.items()
        }
        return epochs.gradients_reach_the_weights(replace(setting, networks=networks))

    assert judged(100.0, 150.0)[0] is False  # most batches have to be above 2
    assert judged(0.5, 3.0)[0] is True  # few can be
    assert judged(1.5, 30.0)[0] is None
    assert judged(100.0, 150.0, clip=None)[0] is True
    for optimiser in ("adam", "adagrad"):
        holds, told = judged(0.5, 3.0, optimiser=optimiser, clip=None)
        assert holds is None
        assert "divides a gradient by the size that it had so far" in told


def test_the_bounds_of_the_clipped_share_hold_and_can_be_reached():
    rng = np.random.default_rng(0)
    norms = rng.lognormal(sigma=2, size=(200, 50))
    least, most = epochs.clipped_share(norms.mean(1), norms.max(1), 2.0)
    share = (norms > 2).mean(1)
    assert ((least <= share + 1e-12) & (share <= most + 1e-12)).all()
    two = np.array([2.0, 2.0, 2.0, 10.0])
    assert epochs.clipped_share(two.mean(keepdims=True), two.max(keepdims=True), 2.0)[0] == pytest.approx(0.25)


def test_a_claim_without_its_runs_is_not_tested(setting):
    found = claims.judged(claims.CLAIMS[0], [replace(setting, networks={CE: setting.networks[CE]})])
    assert [finding.verdict for finding in found] == [UNTESTED] * 3
    assert [finding.on for finding in found] == ["CIFAR-10", "CIFAR-100", "20 Newsgroups"]
    assert all("focal:3" in finding.evidence for finding in found)


def test_a_claim_without_all_of_its_runs_names_those_that_are_missing_and_tells_of_the_others(setting):
    claim = next(claim for claim in claims.CLAIMS if "Brier and MMCE before" in claim.text)
    of_two = replace(setting, networks={loss: setting.networks[loss] for loss in (CE, FLSD)})
    finding = claims.judged(claim, [of_two])[0]
    assert finding.verdict == UNTESTED
    assert finding.evidence.startswith(f"{setting.title} lacks runs of brier, {claims.MMCE}; ECE of the others")
    assert f"FLSD-53 {100 * setting.figure(FLSD, 'ece'):.2f}, after" in finding.evidence
    none = claims.judged(claim, [replace(setting, networks={FL3: setting.networks[FL3]})])[0]
    assert none.evidence == f"it needs runs of {CE}, brier, {claims.MMCE}, {FLSD} with the authors' step"


def test_a_claim_has_a_verdict_for_each_data_set(setting):
    news = replace(swapped(setting), data="20newsgroups", step="mean, not clipped", schedule="mukhoti2020-20newsgroups")
    first, second, third = claims.judged(claims.CLAIMS[0], [setting, news])
    assert (first.verdict, second.verdict, third.verdict) == (HOLDS, UNTESTED, FAILS)
    assert "20 Newsgroups" in third.on
    assert [finding.subject for finding in (first, second, third)] == [
        "CIFAR-10 (ResNet-18, 1 seed)", "CIFAR-100", "20 Newsgroups (ResNet-18, 1 seed)"
    ]  # fmt: skip
    assert first.others == ()
    sst = replace(setting, data="sst", step="mean, not clipped", schedule="mukhoti2020-sst")
    first, *_ = claims.judged(claims.CLAIMS[0], [setting, sst])
    assert [(on.split(", ")[1], verdict) for on, verdict, _ in first.others] == [
        ("SST Binary", HOLDS)
    ]  # the paper's is not so
    assert not claims.under_confident(sst)[0]


def test_what_is_said_of_the_falls_of_the_learning_rate_needs_them(setting):
    (network,) = setting.networks[CE]
    steady = replace(network.run, recipe=network.run.recipe.changed({"milestones": (), "factors": ()}))
    other = replace(setting, networks={loss: (replace(network, run=steady),) for loss in setting.networks})
    assert any(claim.staged for claim in epochs.CLAIMS)
    for claim in epochs.CLAIMS:
        if claim.staged:
            assert [finding.verdict for finding in claims.judged(claim, [other])] == [UNTESTED]


def test_the_choice_of_t_is_judged_by_the_mean_and_the_majority(setting):
    (network,) = setting.networks[CE]

    def with_gain(value):
        interval = network.figures.grid_less_nll._replace(value=value, low=value, high=value)
        changed = replace(network.figures, grid_less_nll=interval)
        return replace(network, summary=replace(network.summary, figures=changed))

    def judged(*networks):
        return [finding.verdict for finding in checks.grid_or_nll((), list(networks))]

    better, worse = with_gain(-0.01), with_gain(0.03)
    assert judged(better, better, worse) == [UNCLEAR]
    assert judged(better, better, better, worse, better) == [UNCLEAR]  # within its error
    assert judged(*[better] * 30, worse) == [HOLDS]
    assert judged(*[worse] * 30, better) == [FAILS]
    assert judged() == [UNTESTED]
    other = replace(worse, run=replace(worse.run, recipe=replace(worse.run.recipe, data="sst")))
    assert judged(*[better] * 30, *[other] * 9) == [HOLDS, FAILS]  # each data set by itself


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
    first, similar, slower = judged_by_histograms(of_histograms(setting))
    assert (first.verdict, similar.verdict, slower.verdict) == (HOLDS, HOLDS, HOLDS)
    assert first.evidence == (
        "after 45 / 60 / 90 / 105 epochs for the paper's 100 / 200 / 300 / 350 (seed 1) in the highest bin: "
        "54.50 / 56.00 / 59.00 / 60.50 %; accuracy on train: 96.50 / 98.00 / 100.00 / 100.00 %"
    )
    assert similar.evidence.endswith("for the paper's 10 (seed 1): CE 0.075, FL-3 0.075")  # the middle of the bin
    assert slower.evidence.endswith("CE 0.075 / 0.075 / 0.075, FL-3 0.075 / 0.0237 / 0.0133")


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
    assert setting.scaled(epochs.OF_CONFIDENCES) == [45, 60, 90, 105]
    assert setting.scaled(epochs.OF_GRADIENTS) == [10, 45, 60]  # the first stage is the same training
    every = setting.scaled(tuple(range(1, 351)))
    assert every == sorted(every)
    assert every[:45] == list(range(1, 46))
    assert [every[end - 1] for end in (150, 250, 350)] == [45, 75, 105]
    (network,) = setting.networks[CE]
    whole = replace(network.run, recipe=named("mukhoti2020"))
    assert replace(setting, networks={CE: (replace(network, run=whole),)}).scaled((10, 100, 200, 350)) == [
        10, 100, 200, 350,
    ]  # fmt: skip


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
