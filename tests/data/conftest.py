"""No test touches the user's cache or reads the user's environment."""

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("TRUEUP_CACHE", str(folder))
    monkeypatch.delenv("TRUEUP_DATA", raising=False)
    return folder
