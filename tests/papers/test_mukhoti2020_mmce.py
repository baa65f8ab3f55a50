"""MMCE, which the authors' code trains in another form than its formula, and not with one weight."""

from dataclasses import replace

from tests.papers.test_mukhoti2020_verdicts import CE, FL3, FLSD, networks_with
from trueup.papers.mukhoti2020 import claims
from trueup.papers.mukhoti2020.grid import beside_run
from trueup.papers.reproduction import FAILS, HOLDS, UNTESTED
from trueup.train import named


def test_the_weight_of_mmce_is_that_of_the_data():
    lowest = next(claim for claim in claims.CLAIMS if "after T" in claim.text and "MMCE" in claim.text)
    found = {finding.on: finding.evidence for finding in claims.judged(lowest, [])}
    assert "cross-entropy+mmce-mukhoti2020:2" in found["CIFAR-10"]
    assert "cross-entropy+mmce-mukhoti2020:1" in found["SST Binary"]


def test_mmce_is_that_of_the_authors_code_and_else_as_it_is_defined(setting):
    """Both stand beside the same printed rows; where both are trained, a claim is of what the authors trained."""
    lowest = next(claim for claim in claims.CLAIMS if "Brier and MMCE before" in claim.text)
    own, authors = "cross-entropy+mmce:2", claims.MMCE
    networks = {CE: 0.05, FLSD: 0.02, "brier": 0.03, own: 0.01, authors: 0.04}
    values = {loss: networks_with(replace(setting, networks={loss: setting.networks[CE]}), loss, ece)
              for loss, ece in networks.items()}  # fmt: skip
    both, defined = (
        replace(setting, networks={loss: of for loss, of in values.items() if loss not in without})
        for without in ((), (authors,))
    )
    (of_both, _), (of_one, _) = (claims.judged(lowest, [group])[:2] for group in (both, defined))
    assert (of_both.verdict, of_one.verdict) == (HOLDS, FAILS)
    assert "MMCE 4.00 %" in of_both.evidence
    assert "plain MMCE 1.00 %" in of_one.evidence
    recipes = [named("mukhoti2020-short", loss=loss) for loss in (own, authors)]
    assert beside_run(recipes[0]) == beside_run(recipes[1]) != {}


def test_the_two_forms_of_mmce_are_compared_where_both_are_trained(setting):
    claim = next(claim for claim in claims.CLAIMS if "By its plain formula" in claim.text)
    made = {loss: networks_with(replace(setting, networks={loss: setting.networks[CE]}), loss, ece)
            for loss, ece in ((claims.PLAIN_MMCE, 0.01), (claims.MMCE, 0.04))}  # fmt: skip
    both = claims.judged(claim, [replace(setting, networks=made)])[0]
    assert (both.verdict, both.ours) == (HOLDS, True)
    assert "MMCE 4.00, plain MMCE 1.00 %" in both.evidence
    assert claims.judged(claim, [replace(setting, networks=dict(reversed(made.items())))])[0].verdict == HOLDS
    one = replace(setting, networks={claims.PLAIN_MMCE: made[claims.PLAIN_MMCE]})
    finding = claims.judged(claim, [one])[0]
    assert finding.verdict == UNTESTED
    assert finding.evidence.startswith(f"{setting.title} lacks runs of {claims.MMCE}; ")


def test_a_label_within_another_is_not_taken_for_a_loss_of_its_own(setting):
    losses = [CE, claims.MMCE, claims.PLAIN_MMCE]
    assert claims.named_in("CE 1.00, plain MMCE 2.00 %", losses) == [CE, claims.PLAIN_MMCE]
    assert claims.named_in("MMCE 1.00, plain MMCE 2.00 %", losses) == losses[1:]
    of_ce = replace(setting, networks=dict.fromkeys(setting.networks, setting.networks[CE]))
    values = {CE: (0.05,), "brier": (0.03,), claims.MMCE: (0.04, 0.04), claims.PLAIN_MMCE: (0.04,), FLSD: (0.02,)}
    made = {loss: networks_with(of_ce, FL3, *of_loss) for loss, of_loss in values.items()}
    lowest = next(claim for claim in claims.CLAIMS if "Brier and MMCE before" in claim.text)
    assert "(seed 0; MMCE: seeds 0, 1)" in claims.judged(lowest, [replace(setting, networks=made)])[0].evidence
