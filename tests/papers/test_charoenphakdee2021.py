"""The slides' table, the regions, and posteriors: exact, drawn, and given by people."""

import numpy as np
import pytest
import torch

from tests import cases
from trueup.inputs import InputError
from trueup.papers import charoenphakdee2021 as paper
from trueup.papers import votes as human
from trueup.papers.komisarenko2024 import networks
from trueup.papers.reproduction import FAILS, HOLDS, UNTESTED


def test_the_slides_table_and_its_erratum():
    assert [finding.verdict for finding in paper.slides()] == [FAILS, HOLDS, HOLDS]
    rows = {row[0]: row[1:] for row in paper.table().rows}
    assert rows["1"] == (".78/.22", ".77443/.22557", "0.9051", ".9000/.1000")
    assert all(row[-1] == ".9000/.1000" for row in rows.values())


def test_what_needs_no_network():
    assert (paper.exact().verdict, paper.classes_kept().verdict, paper.regions_finding().verdict) == (HOLDS,) * 3
    rows = {row[0]: row[1:] for row in paper.regions().rows}
    assert rows["1"][:3] == ("0.1353", "0.3679", "nowhere")
    assert rows["1"][-1] == "up to 0.364, by 0.017"


def test_that_accuracy_is_kept_is_judged_on_any_report(monkeypatch):
    assert paper.accuracy_kept().verdict == HOLDS
    monkeypatch.setattr(paper, "focal_map", lambda q, gamma: -q)
    assert paper.accuracy_kept().verdict == FAILS


def gaussian(low, high, train="10000", classes="10"):
    ends = {"change_low": str(low), "change_high": str(high)}
    data = f"gaussians:classes={classes},train={train},test=2000"
    return {"data": data} | {f"{q}_{k}": v for q in ("confidence_error", "excess_nll") for k, v in ends.items()}


def test_the_verdict_on_known_posteriors_follows_the_table():
    assert paper.on_gaussians([gaussian(-2, -1), gaussian(-1, 1)]).verdict == HOLDS
    found = paper.on_gaussians([gaussian(-2, -1), gaussian(1, 2, train="200")])
    assert found.verdict == FAILS
    assert "falls in 1, rises in 1, neither in 0" in found.evidence
    assert paper.on_gaussians([]).verdict == UNTESTED


def test_distances_to_votes():
    votes = torch.tensor([[0.5, 0.5], [1.0, 0.0]], dtype=torch.float64)
    p = torch.tensor([[0.5, 0.5], [0.75, 0.25]], dtype=torch.float64)
    found = human.distances(p.log(), votes)
    np.testing.assert_allclose(found["kl"], [0, -np.log(0.75)], atol=1e-12)
    np.testing.assert_allclose(found["tv"], [0, 0.25])
    np.testing.assert_allclose(found["nll"], [np.log(2), -np.log(0.75)])


@pytest.fixture
def place(tmp_path):
    """A focal network of ten classes, and votes on its test images."""
    (tmp_path / "results").mkdir()
    folder = tmp_path / "data" / "logits" / "cifar10_net_flsd53_us"
    folder.mkdir(parents=True)
    for part, seed in (("val", 1), ("test", 2)):
        probs, labels = cases.drawn(400, 10, seed)
        np.savez(folder / f"{part}.npz", logits=np.log(probs), labels=labels)
    votes = np.full((400, 10), 1) + 50 * np.eye(10, dtype=int)[labels]
    (tmp_path / "data" / "cifar10h").mkdir()
    np.savez(tmp_path / "data" / "cifar10h" / "counts.npz", counts=votes)
    return tmp_path


def test_votes_are_compared_once_and_outlive_the_data(place):
    entries, notes = paper.against_votes(place / "results", place / "data")
    (found,) = entries
    assert (found["gamma"], found["n"], notes) == (3.0, 400, [])
    softmax, psi = (found["maps"][name]["kl"] for name in ("softmax", "focal map"))
    assert psi["less_softmax"][0] == pytest.approx(psi["value"] - softmax["value"], abs=1e-6)
    assert {finding.verdict for finding in paper.on_votes(entries)} <= {HOLDS, FAILS}
    (place / "nothing").mkdir()
    stored, notes = paper.against_votes(place / "results", place / "nothing")
    assert stored == entries
    assert any("as they were stored" in note for note in notes)


def test_votes_that_do_not_line_up_are_told(place):
    path = place / "data" / "cifar10h" / "counts.npz"
    (network,) = networks.public_logits(place / "data")[0]
    votes = np.load(path)["counts"]
    np.savez(path, counts=np.roll(votes, 7, axis=0))
    with pytest.raises(InputError, match="the votes and the images are not in the same order"):
        human.compared(network, path)
    np.savez(path, counts=votes[:300])
    entries, notes = paper.against_votes(place / "results", place / "data")
    assert entries == []
    assert notes == [
        "left out against the votes, expected votes of shape (400, 10), got int64 (300, 10): cifar10_net_flsd53_us"
    ]
    assert [finding.verdict for finding in paper.on_votes(entries)] == [UNTESTED, UNTESTED]
