"""Fits on several threads: the same digits, nothing left behind, and no waiting for a busy machine."""

import contextvars
import os
import subprocess
import sys
import threading
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


@pytest.mark.parametrize(("rows", "expected"), [(300, [1] * 5), (40_000, [2] + [1] * 4)])
def test_an_operation_takes_one_thread_and_the_others_are_given_back(with_threads, monkeypatch, rows, expected):
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
    assert seen == expected
    assert torch.get_num_threads() == 2
    monkeypatch.setattr(trueup.Identity, "fit_checked", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trueup.Identity().fit(np.log(z), y)
    assert torch.get_num_threads() == 2
    assert threads._pool() is None


def test_a_thread_that_begins_meanwhile_has_all_of_its_own(with_threads):
    """PyTorch gives to a new thread what was set last, in whatever thread."""
    with_threads(2)
    z, y = large()
    seen = []
    other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    trueup.Temperature(criterion="ece").fit(z, y, progress=lambda _: other.ident or other.start())
    other.join()
    assert seen == [2]


@pytest.mark.parametrize("name", [name for name in trueup.CALIBRATORS if name != "focal-map"])
def test_maps_are_fitted_and_applied_in_inference_mode(with_threads, name):
    z, y = large()
    with_threads(2)
    expected = trueup.CALIBRATORS[name]().fit(z, y)
    with torch.inference_mode():
        made = trueup.CALIBRATORS[name]().fit(torch.from_numpy(z), torch.as_tensor(y))
        assert made.to_dict() == expected.to_dict()
        given = made(torch.from_numpy(z))
    assert np.array_equal(given.numpy(), expected(z))


@pytest.mark.parametrize("when", ["threading.Thread(target=both).start()", "atexit.register(both)"])
def test_a_fit_while_the_interpreter_ends(when):
    program = f"""
import atexit, threading, time, numpy as np, torch, trueup
from tests.calibrators.test_threads import large
torch.set_num_threads(2)
z, y = large()
def both():
    time.sleep(0.3)
    print(trueup.Temperature().fit(z, y)(z).shape)
{when}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "(13333, 30)\n"
    assert done.stderr == ""


def test_a_context_that_was_copied_during_a_fit_serves_after_it(with_threads):
    with_threads(2)
    z, y = large()
    copies = []
    made = trueup.Temperature(criterion="ece").fit(z, y, progress=lambda _: copies.append(contextvars.copy_context()))
    for rows in (10, len(z)):
        assert np.array_equal(copies[0].run(made, z[:rows]), made(z[:rows]))


def test_hooks_are_called_in_order_and_autocast_is_for_all_rows(with_threads):
    with_threads(2)
    z, y = large()
    made = trueup.Matrix().fit(z, y)
    seen = []
    handle = made.register_forward_hook(lambda _, given, __: seen.append((len(given[0]), threading.get_ident())))
    made(z)
    assert len(seen) > 1
    assert {ident for _, ident in seen} == {threading.get_ident()}
    handle.remove()
    float32 = torch.from_numpy(z).float()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(made(float32)[:100], made(float32[:100]))


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
    """A busy program a core: on the threads of PyTorch and of SciPy's BLAS the fits would take many times as long."""
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
