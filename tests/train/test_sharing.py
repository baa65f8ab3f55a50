"""Several trainings on one GPU: the service is started for the children, and stopped after them."""

import os

import pytest

from trueup.train.sharing import CONTROL, PIPES, shared_gpu


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """A service that writes down how it is called."""
    log = tmp_path / "calls"
    script = tmp_path / CONTROL
    script.write_text(f'#!/bin/sh\n[ "$1" = -d ] || read line\necho "$1 $line ${PIPES}" >> {log}\nexit ${{FAILS:-0}}\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv(PIPES, raising=False)
    return lambda: [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def test_it_is_started_for_the_children_and_stopped_after_them(calls):
    with shared_gpu() as shared:
        assert shared
        folder = os.environ[PIPES]
        assert calls() == [["-d", folder]]
    assert calls() == [["-d", folder], ["quit", folder]]
    assert PIPES not in os.environ
    assert not os.path.exists(folder)


def test_it_is_stopped_when_the_work_fails(calls):
    with pytest.raises(KeyboardInterrupt), shared_gpu():
        raise KeyboardInterrupt
    assert [call[0] for call in calls()] == ["-d", "quit"]


def test_one_that_does_not_start_is_done_without(calls, monkeypatch):
    monkeypatch.setenv("FAILS", "1")
    with shared_gpu() as shared:
        assert not shared
        assert PIPES not in os.environ


def test_the_users_own_is_left_alone(calls, monkeypatch):
    monkeypatch.setenv(PIPES, "/theirs")
    with shared_gpu() as shared:
        assert shared
        assert os.environ[PIPES] == "/theirs"
    assert calls() == []


def test_a_machine_without_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(PIPES, raising=False)
    with shared_gpu() as shared:
        assert not shared
