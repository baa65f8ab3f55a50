"""Our own questions to the runs of mukhoti2020: what the step, the weight decay and the last stage decide."""

from dataclasses import replace

import numpy as np
import torch

from tests.papers.test_mukhoti2020_verdicts import CE, FL3, networks_with, swapped
from tests.train.small import SMALL
from trueup import data as sources
from trueup.papers.mukhoti2020 import checks, claims
from trueup.papers.mukhoti2020.grid import DATASETS
from trueup.papers.mukhoti2020.settings import alike
from trueup.papers.reproduction import FAILS, HOLDS, UNCLEAR, UNTESTED
from trueup.train import fit


def test_another_step_does_not_decide_the_verdict_but_is_told(setting):
    other = replace(swapped(setting), step="mean, not clipped")
    assert claims.judged(claims.CLAIMS[0], [other])[0].verdict == UNTESTED
    finding = claims.judged(claims.CLAIMS[0], [setting, other])[0]
    assert (finding.verdict, finding.others[0][1]) == (HOLDS, FAILS)
    assert checks.step_decides([setting], "cifar10").verdict == UNTESTED
    assert checks.step_decides([setting, other], "sst").verdict == UNTESTED
    told = checks.step_decides([setting, other], "cifar10")
    assert told.verdict == HOLDS
    assert "summed, clipped at 2: yes" in told.evidence
    assert "mean, not clipped: no" in told.evidence
    assert checks.step_decides([setting, replace(setting, step="mean, not clipped")], "cifar10").verdict == FAILS


def test_steps_are_compared_on_the_losses_and_seeds_that_all_have(setting):
    more = networks_with(setting, CE, 0.05, 0.01)
    other = replace(setting, step="mean, not clipped", networks={CE: more, FL3: setting.networks[FL3]})
    first, second = alike([setting, other])
    assert set(first.networks) == set(second.networks) == {CE, FL3}
    assert second.seeds(CE) == "seed 0"
    told = checks.step_decides([setting, other], "cifar10")
    assert "CE 5.00" in told.evidence
    assert "FLSD-53" not in told.evidence
    apart = replace(other, networks={CE: more[1:], FL3: setting.networks[FL3]})
    assert checks.step_decides([setting, apart], "cifar10").verdict == UNTESTED


def test_on_which_side_of_the_truth_focal_loss_ends_is_told_of_each_step(setting, monkeypatch):
    other = replace(setting, step="mean, not clipped")
    gaps = {setting.step: 0.02, other.step: -0.05}
    monkeypatch.setattr(type(setting), "figure", lambda self, loss, quantity: gaps[self.step])
    assert checks.sign_decides([setting], "cifar10").verdict == UNTESTED
    told = checks.sign_decides([setting, other], "cifar10")
    assert told.verdict == HOLDS
    assert "summed, clipped at 2: +2.00 points" in told.evidence
    assert "mean, not clipped: -5.00 points" in told.evidence
    gaps[other.step] = 0.05
    assert checks.sign_decides([setting, other], "cifar10").verdict == FAILS
    gaps[other.step] = 1e-4
    assert checks.sign_decides([setting, other], "cifar10").verdict == UNCLEAR


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
    assert told.verdict == HOLDS
    assert "-7.00 points" in told.evidence
    assert "+1.00" in told.evidence
    assert "seed 0" in told.evidence
    gaps[weak.step] = -0.05
    assert checks.decay_decides([setting, mean, weak], "cifar10").verdict == FAILS
    gaps[weak.step] = 1e-4
    assert checks.decay_decides([setting, mean, weak], "cifar10").verdict == UNCLEAR
    longer = replace(weak, schedule="mukhoti2020")
    assert checks.decay_decides([setting, mean, longer], "cifar10").verdict == UNTESTED


def test_the_verdict_may_change_within_the_last_stage(setting, monkeypatch):
    begin, focal = setting.drops(CE)[1], {}

    def followed(self, loss, *keys):
        return np.concatenate([np.ones(begin), [0.05, 0.05] if loss == CE else focal["ece"]])

    monkeypatch.setattr(type(setting), "followed", followed)
    focal["ece"] = [0.015, 0.01]
    assert checks.stopping_decides([setting]).verdict == FAILS
    focal["ece"] = [0.01, 0.026]
    assert checks.stopping_decides([setting]).verdict == UNCLEAR
    focal["ece"] = [0.01, 0.04]
    told = checks.stopping_decides([setting])
    assert told.verdict == HOLDS
    assert "1.2 to 5.0 times FL-3's" in told.evidence
    assert checks.stopping_decides([]).verdict == UNTESTED


def test_whether_the_larger_net_is_worse_is_told_with_the_errors_on_train(setting):
    def net(model, error):
        of = {CE: networks_with(setting, CE, error, quantity="error")}
        return replace(setting, model=model, networks=of)

    for large, verdict in ((0.04, HOLDS), (0.05, UNCLEAR), (0.06, FAILS)):
        told = checks.short_schedule([net("resnet50", large), net("resnet18", 0.05)])
        assert told.verdict == verdict
    assert "CE 6.00 and 5.00 (0.00 and 0.00) (ResNet-50: seed 0; ResNet-18: seed 0)" in told.evidence
    large = net("resnet50", 0.05)
    assert checks.short_schedule([large]).verdict == UNTESTED


def test_data_sets_without_a_network_are_named():
    (found,) = checks.not_run({"cifar10", "cifar100", "sst"})
    assert (found.verdict, found.evidence) == (UNTESTED, "no runs of ours on 20 Newsgroups, Tiny-ImageNet")
    assert checks.not_run(set(DATASETS)) == []
