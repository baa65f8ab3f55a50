"""Fits on several threads: the same digits, nothing left behind, and no waiting for a busy machine."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import trueup
from tests import cases
from trueup.calibrators import threads

FITTED = ("temperature", "focal-temperature", "softplus", "bias-temperature", "vector", "matrix", "auto")


@pytest.fixture
def with_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def large(classes=30, seed=0):
    probs, labels = cases.drawn(400_000 // classes, classes, seed, temperature=2)
    return np.log(probs), labels


@pytest.mark.parametrize("name", FITTED)
def test_a_map_is_the_same_to_the_last_digit_for_any_number_of_threads(with_threads, name):
    z, y = large()
    found = []
    for count in (1, 2, 5):
        with_threads(count)
        found.append(trueup.CALIBRATORS[name]().fit(z, y).to_dict())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("criterion", ["ece", "brier"])
def test_a_grid_is_the_same_for_any_number_of_threads(with_threads, criterion):
    z, y = large(classes=3)
    found = []
    for count in (1, 3):
        with_threads(count)
        found.append(trueup.Temperature(criterion=criterion).fit(z, y).to_dict())
    assert found[0] == found[1]


@pytest.mark.parametrize("rows", [300, 40_000])
def test_an_operation_takes_one_thread_and_the_others_are_given_back(with_threads, monkeypatch, rows):
    z, y = (np.asarray(part) for part in cases.drawn(rows, 3, 0))
    seen = []
    fit = trueup.Identity.fit_checked

    def watched(*arguments):
        seen.append(torch.get_num_threads())
        seen.extend(threads.in_order(lambda _: torch.get_num_threads(), range(4)))
        return fit(*arguments)

    monkeypatch.setattr(trueup.Identity, "fit_checked", watched)
    with_threads(2)
    trueup.Identity().fit(np.log(z), y)
    assert seen == [1] * 5
    assert torch.get_num_threads() == 2
    monkeypatch.setattr(trueup.Identity, "fit_checked", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trueup.Identity().fit(np.log(z), y)
    assert torch.get_num_threads() == 2
    assert threads._pool.get() is None


def test_what_fails_in_a_thread_fails_in_the_call_and_nothing_goes_on(with_threads):
    with_threads(2)
    done = []

    def task(number):
        done.append(number)
        assert not torch.is_grad_enabled()
        if number == 3:
            raise KeyError("third")

    with torch.no_grad(), pytest.raises(KeyError, match="third"), threads.sharing(torch.zeros(100_000, 1)):
        list(threads.in_order(task, range(10_000)))
    assert len(done) < 10_000


def test_blocks_come_in_their_order_whichever_is_ready_first(with_threads):
    with_threads(4)
    x = torch.arange(100_000.0)[:, None]

    def first(rows, block):
        time.sleep(0.02 if rows.start == 0 else 0)
        return float(block[0, 0])

    with threads.sharing(x):
        assert list(threads.each_block(first, x, 10_000)) == [10_000.0 * i for i in range(10)]
    out = threads.fill(torch.empty(100_000, 2), lambda block: block * torch.tensor([1.0, 2.0]), x)
    assert torch.equal(out, torch.cat([x, 2 * x], 1))


FIT = """
import time, numpy as np, torch, trueup
from tests import cases
torch.set_num_threads({count})
probs, labels = cases.drawn(10_000, 100, 0, temperature=2)
z = np.log(probs).astype(np.float32)
settings = trueup.CALIBRATORS["{name}"]()
settings.fit(z[:100], labels[:100])
start = time.perf_counter()
settings.fit(z, labels)
print(time.perf_counter() - start)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["focal-temperature", "matrix"])
def test_a_fit_does_not_wait_for_what_else_runs(name):
    """A busy program a core: with the threads of PyTorch and of SciPy's BLAS the fits take 130 and 17 times as long as
    with one."""
    cores = len(os.sched_getaffinity(0))
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        seconds = []
        for count in (1, max(2, cores)):
            own = {"OPENBLAS_NUM_THREADS": str(count), "OMP_NUM_THREADS": str(count)}
            command = [sys.executable, "-c", FIT.format(count=count, name=name)]
            done = subprocess.run(command, capture_output=True, check=True, env=os.environ | own)
            seconds.append(float(done.stdout))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert seconds[1] < 5 * seconds[0]
