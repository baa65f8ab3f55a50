"""Published figures that come out of the authors' own logits, to the printed digit."""

import pytest

import trueup
from tests.conftest import LOGITS, needs_logits

# mukhoti2020, Tables 1 and 2: ECE and AdaECE in %, before and after the temperature chosen on the same measure.
TABLES = {
    "cifar100_resnet50_brier": ((6.52, 3.64, 1.1), (6.52, 3.69, 1.2), 23.39),
    "cifar10_resnet50_brier": ((1.82, 1.08, 1.1), (1.74, 1.23, 1.1), 5.00),
    "cifar10_resnet50_flsd53": ((1.55, 0.95, 1.1), (1.56, 1.26, 1.1), 4.98),
    "cifar10_wrn26_10_brier": ((1.25, 1.25, 1.0), (1.70, 1.63, 0.9), 4.08),
    "cifar10_wrn26_10_flsd53": ((1.56, 0.84, 0.9), (1.52, 1.38, 0.9), 4.01),
    "cifar10_densenet121_brier": ((1.53, 1.53, 1.0), (2.03, 2.18, 0.9), 5.11),
    "cifar10_densenet121_flsd53": ((1.22, 1.22, 1.0), (1.42, 1.42, 1.0), 5.46),
}


@needs_logits
@pytest.mark.parametrize("name", TABLES)
def test_mukhoti2020(name):
    val, test = (trueup.load(LOGITS / f"{name}_mukhoti" / f"{part}.npz") for part in ("val", "test"))
    by_ece, by_adaptive, error = TABLES[name]

    def ece(probs):
        return trueup.ece(probs, test.labels)

    def adaptive_ece(probs):
        return trueup.adaptive_ece(probs, test.labels, edges="mukhoti2020")

    for criterion, measure, (before, after, temperature) in [
        ("ece", ece, by_ece),
        ("mukhoti2020_adaptive_ece", adaptive_ece, by_adaptive),
    ]:
        made = trueup.Temperature(criterion=criterion).fit(val.logits, val.labels)
        assert f"{100 * measure(test.probs):.2f}" == f"{before:.2f}"
        assert f"{100 * measure(made(test.logits)):.2f}" == f"{after:.2f}"
        assert made.temperature == pytest.approx(temperature)
    assert f"{100 * trueup.error(test.probs, test.labels):.2f}" == f"{error:.2f}"


@needs_logits
def test_kull2019():
    val, test = (trueup.load(LOGITS / "cifar10_resnet110_kull" / f"{part}.npz") for part in ("val", "test"))
    made = trueup.Temperature().fit(val.logits, val.labels)
    assert trueup.nll(test.probs, test.labels) == pytest.approx(0.358274, abs=1e-6)
    assert trueup.nll(made(test.logits), test.labels) == pytest.approx(0.209261, abs=1e-6)
    assert trueup.ece(test.probs, test.labels) == pytest.approx(0.047503, abs=1e-6)
    assert trueup.error(test.probs, test.labels) == 0.0644
