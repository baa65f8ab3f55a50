"""The results of this clone, judged once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from trueup import papers
from trueup.papers.mukhoti2020.settings import Network, settings_of
from trueup.papers.stored import load_runs
from trueup.papers.summary import summary_of

RESULTS = Path(__file__).parents[2] / "results"
collect_ignore_glob = [] if RESULTS.is_dir() else ["test_*.py"]  # a source archive comes without


@pytest.fixture(scope="session")
def reproductions():
    return {name: module.reproduce(RESULTS) for name, module in papers.chosen("all").items()}


@pytest.fixture(scope="module")
def setting():
    """ResNet-18 with the authors' step, seed 0 of each loss, without histograms of training samples."""
    names = [f"cifar10_resnet18_{loss}_short_seed0" for loss in ("cross-entropy", "focal-3", "flsd-53")]
    runs = load_runs(RESULTS / "mukhoti2020")
    for name in names:
        for entry in runs[name].history:
            entry.pop("train_histograms", None)
    (found,) = settings_of([Network(n, runs[n], summary_of(runs[n], resamples=50)) for n in names])
    return found
