"""The commands train and study, as a shell sees them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.train.small import SMALL
from trueup.cli import app
from trueup.train import load_run

DATA = ["--set", f"data={SMALL.data}", "--set", "milestones=", "--set", "factors="]
SMALL_RUN = ["--recipe", "gaussians", "--model", "mlp:8", *DATA, "--set", "epochs=4", "--device", "cpu"]


def command(*arguments):
    return [sys.executable, "-m", "trueup", *map(str, arguments)]


def run(*arguments, cwd=None):
    environment = os.environ | {"COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, cwd=cwd, timeout=120, env=environment, check=False
    )


def inside(*arguments):
    """Within this process: a start of Python costs more than what is asked here."""
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_train_as_json_then_again(tmp_path):
    done = inside("train", *SMALL_RUN, "--loss", "focal:2", "--seed", 3, "--out", tmp_path / "run", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    made = load_run(tmp_path / "run")
    assert found["test"] == made.history[-1]["test"]
    assert found["run"] == made.info
    assert (made.recipe.loss, made.recipe.seed, made.recipe.epochs) == ("focal:2", 3, 4)
    assert done.stderr == f"training; {tmp_path / 'run' / 'history.jsonl'} gets a line for each epoch that is done\n"
    again = inside("train", *SMALL_RUN, "--loss", "focal:2", "--seed", 3, "--out", tmp_path / "run")
    assert (again.exit_code, again.stderr) == (0, "")
    for word in ("ECE", "error", "NLL", "focal:2, seed 3"):
        assert word in again.stdout


def test_without_data_no_folder_stays(tmp_path):
    (tmp_path / "there").mkdir()
    for name in ("new", "there"):
        assert inside("train", "--data", "cifar10", "--data-dir", tmp_path, "--out", tmp_path / name).exit_code == 2
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "there").is_dir()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "--recipe", "digit"], "unknown recipe 'digit'; known: mukhoti2020"),
        (["train", "--set", "epoch=3"], "unknown setting 'epoch'; a recipe has"),
        (["train", "--set", "epochs"], "--set epochs: expected KEY=VALUE"),
        (["train", "--loss", "focus"], "'focus' names no loss"),
        (["train", "--model", "list"], "unknown model 'list'; known: linear, mlp"),  # as the help says
        (["study", "--losses", "list"], "good ones are cross-entropy, brier"),
        (["train", "--loss", "brier", "--set", "loss=focal:3"], "and --set loss=focal:3: give one of them"),
        (["study", "--data", ""], "--data: none is named"),
        (["study", "--resamples", "-1"], "Invalid value for '--resamples'"),
        (["reproduce", "kimura2024", "--resamples", "0"], "Invalid value for '--resamples'"),
        (["train", "--data", "cifar10", "--data-dir", "nowhere"], "nowhere"),
        (["study", "digit"], "unknown study 'digit'"),
        (["study", "--seeds", "one"], "seeds: 'one' is not a whole number"),
        (["study", "--jobs", "0"], "jobs: expected a whole number of at least 1"),
        pytest.param(
            ["train", "--device", "cuda"], "torch sees no GPU here",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)  # fmt: skip
def test_faults_end_with_one_line_and_exit_code_2(tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    done = inside(*arguments)
    assert done.exit_code == 2
    assert says in re.sub(r"\s+", " ", done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_study_ends_with_a_table_and_its_files(tmp_path):
    small = ["--recipe", "gaussians", "--models", "mlp:8", "--data", SMALL.data, *DATA[2:], "--set", "epochs=2"]
    grid = ["--losses", "cross-entropy focal:2", "--seeds", "0,1", "--jobs", 2, "--device", "cpu", "--resamples", 20]
    done = run("study", *small, *grid, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4/4" in done.stderr
    assert "focal-map" in done.stdout
    again = inside("study", *small, *grid, "--out", tmp_path, "--json")
    rows = json.loads(again.stdout)["rows"]
    assert again.stderr == ""
    assert rows == json.loads((tmp_path / "table.json").read_text())["rows"]
    assert len(rows) == 7


def children(pid):
    """Of all its threads."""
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def hears_ctrl_c():
    """A job in the background of a shell ignores SIGINT, and so do its children; a handler is not passed on."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("hears_ctrl_c")
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_a_stopped_study_leaves_no_worker_behind(tmp_path, how):
    long = ["--losses", "cross-entropy", "--seeds", 0, "--set", "epochs=100000", *DATA[2:], "--jobs", 1]
    study = subprocess.Popen(
        command("study", *long, "--out", tmp_path, "--device", "cpu"),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        # the history is written first: between the two there is nothing yet to go on from
        wait_until(lambda: any(tmp_path.glob("*/checkpoint.safetensors")))
        workers = [pid for pid in children(study.pid) if b"worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(workers) == 1
        study.send_signal(how)
        out, err = study.communicate(timeout=60)
        wait_until(lambda: gone(workers[0]), 20)
        assert out == ""
        if how != signal.SIGKILL:
            assert study.returncode == 130
            assert f"stopped; what is done is in {tmp_path}, and the same command goes on from there" in err
            assert "Traceback" not in err
        assert len(list(tmp_path.glob("*/checkpoint.safetensors"))) == 1
    finally:
        study.kill()
        study.communicate()
