"""Several trainings on one GPU: the service is started for the children, stopped after them, renewed when broken."""

import io
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.train.small import SMALL, but_for_seconds
from trueup.train import load_run, sharing, train, worker
from trueup.train.sharing import CONTROL, PIPES, shared_gpu
from trueup.train.watch import StudyView


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
    assert calls() == [["-d", folder], ["quit", "-t", "5", folder]]
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


def test_one_that_hangs_is_not_waited_for(calls, monkeypatch):
    monkeypatch.setattr(sharing, "PATIENCE", 0.2)
    begin = time.monotonic()
    with shared_gpu():
        script = Path(shutil.which(CONTROL))
        script.write_text("#!/bin/sh\nexec sleep 60\n")
    assert time.monotonic() - begin < 30


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


HANGS_WITH_THE_DEAD = f"""
import os, pathlib, signal, time
from trueup.train import worker
real = worker.train
def train(recipe, folder, **options):
    service = pathlib.Path(os.environ["{PIPES}"])
    def progress(done):
        options["progress"](done)
        (service / f"began-{{recipe.seed}}").touch()
        if recipe.seed == 0 and done >= 1:
            while not (service / "began-1").exists():
                time.sleep(0.01)
            (service / "broken").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        waited = time.monotonic()
        while (service / "broken").exists() or (recipe.seed == 1 and not (service / "began-2").exists()):
            time.sleep(0.01)
            if time.monotonic() - waited > 60:
                os._exit(3)  # for ever
    own = {{"device": "cpu", "progress": progress, "checkpoint_seconds": 0}}
    return real(recipe, folder, **(options | own))
worker.train = train
worker.main()
"""
"""Seed 0 breaks the service in its second epoch: from then on whoever works under it waits for ever. Seed 1 is under
way with it, and is not done before seed 2 is under way too: so under the next service both are."""


def tasks_of(folder, seeds, **options):
    recipes = [replace(SMALL, seed=seed) for seed in range(seeds)]
    return [worker.Task(f"{r.seed}", r, folder / f"{r.seed}", options) for r in recipes]


def test_a_process_that_is_killed_takes_only_its_own_run_with_it(calls, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "COMMAND", (sys.executable, "-c", HANGS_WITH_THE_DEAD))
    tasks, seen = tasks_of(tmp_path, 3, device="cuda"), []
    failed = worker.run_all(tasks, 2, tmp_path, lambda event: seen.append((event.task.name, event.kind)))
    assert list(failed) == ["0"]
    assert "killed by signal 9" in failed["0"]
    for task in tasks[1:]:
        alone = train(task.recipe, tmp_path / "alone" / task.name, device="cpu")
        assert but_for_seconds(load_run(task.folder).history) == but_for_seconds(alone.history)
    assert [seen.count((name, kind)) for name in "012" for kind in ("begin", "done")] == [1, 0, 1, 1, 1, 1]
    starts = [call[-1] for call in calls() if call[0] == "-d"]
    assert len(set(starts)) == len(starts) == 2


FAKE_WORKER = """
import json, os, sys, time
for task in sys.stdin:
    print(json.dumps({"kind": "further", "epochs_done": 1}), flush=True)
    time.sleep(SECONDS)
    print(json.dumps({"kind": "failed", "message": str(os.getpid()), "broken": BROKEN}), flush=True)
"""


def faked(monkeypatch, **settings):
    code = FAKE_WORKER
    for name, value in settings.items():
        code = code.replace(name, repr(value))
    monkeypatch.setattr(worker, "COMMAND", (sys.executable, "-c", code))


@pytest.mark.parametrize("broken", [True, False])
def test_the_run_after_an_error_nobody_foresaw_has_another_process(tmp_path, monkeypatch, broken):
    faked(monkeypatch, SECONDS=0, BROKEN=broken)
    failed = worker.run_all(tasks_of(tmp_path, 3), 1, tmp_path)
    assert len(set(failed.values())) == (3 if broken else 1)


def test_where_no_process_can_be_started_each_run_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "COMMAND", (str(tmp_path / "python"),))
    tasks, shown = tasks_of(tmp_path, 3), io.StringIO()
    with StudyView(Console(file=shown)) as view:
        view(tasks, None)
        failed = worker.run_all(tasks, 2, tmp_path, lambda event: view(tasks, event))
    assert failed == dict.fromkeys("012", f"{tmp_path / 'python'}: No such file or directory")
    assert shown.getvalue().count("failed: ") == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_of_who_watches_ends_the_processes_and_is_his(tmp_path, monkeypatch, error):
    faked(monkeypatch, SECONDS=600, BROKEN=False)
    started = []
    popen = worker.subprocess.Popen
    monkeypatch.setattr(worker.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])

    def watch(event):
        if event.kind == "further":
            raise error

    with pytest.raises(error):
        worker.run_all(tasks_of(tmp_path, 2), 2, tmp_path, watch)
    assert all(process.poll() is not None for process in started)
