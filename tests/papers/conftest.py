"""The results of this clone, judged once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from trueup import papers

RESULTS = Path(__file__).parents[2] / "results"
collect_ignore_glob = [] if RESULTS.is_dir() else ["test_*.py"]  # a source archive comes without


@pytest.fixture(scope="session")
def reproductions():
    return {name: module.reproduce(RESULTS) for name, module in papers.chosen("all").items()}
