"""The streaming meter gives the numbers of the functions, in any split of the stream, over any number of processes."""

import copy
import pickle
import socket

import numpy as np
import pytest
import torch
import torch.multiprocessing as multiprocessing
from hypothesis import given
from hypothesis import strategies as st

import trueup
from tests import cases
from trueup.metrics import meter as meters

SAME = ["nll", "brier", "error", "ece", "mce", "classwise_ece"]


def metered(probs, labels, sizes, bins=15):
    meter = trueup.Meter(probs.shape[1], bins=bins)
    for rows in np.split(np.arange(len(labels)), np.cumsum(sizes)[:-1]):
        if len(rows):
            meter.update(probs[rows], labels[rows])
    return meter


@pytest.mark.parametrize("case", cases.PREDICTIONS)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_the_meter_gives_what_the_functions_give(case, size):
    probs, labels = (part[:400] for part in cases.PREDICTIONS[case]())
    sizes = [size] * (len(labels) // size) + [len(labels) % size]
    found = metered(probs, labels, sizes).compute()
    for name in SAME:
        assert found[name] == pytest.approx(trueup.METRICS[name](probs, labels), abs=1e-12)
    assert found["adaptive_ece"] == pytest.approx(trueup.adaptive_ece(probs, labels), abs=1e-4)
    assert found["confident_share"] == pytest.approx(trueup.confident_share(probs, labels), nan_ok=True)


@pytest.mark.parametrize("temperature", [0.2, 1.0, 4.0])
def test_adaptive_ece_is_close_where_confidences_crowd_at_one(temperature):
    probs, labels = cases.drawn(20_000, 10, 0, scale=8, temperature=temperature)
    meter = trueup.Meter(10)
    meter.update(probs.astype(np.float32), labels)
    exact = trueup.adaptive_ece(probs.astype(np.float32), labels)
    assert meter.compute()["adaptive_ece"] == pytest.approx(exact, abs=1e-4)


def test_adaptive_ece_is_off_by_at_most_half_of_what_lies_in_cells_that_are_cut():
    """By much, then, only where most confidences are a few values that share a cell."""
    rng, worst = np.random.default_rng(0), 0.0
    for values, n in [([0.6, 0.600001], 1000), *((rng.uniform(0.5, 1, k), 200) for k in (2, 50, 200)), ([0.7], 30)]:
        confidence = np.sort(rng.choice(values, n)).astype(np.float32)
        probs, labels = np.stack([confidence, 1 - confidence], 1), (np.arange(n) < n / 2).astype(int)
        cell = meters._fine_cell(confidence)
        cut = np.unique(cell[np.minimum(np.arange(1, 15) * n // 15, n - 1)])
        mixed = [c for c in cut if len(np.unique(confidence[cell == c])) > 1]
        off = abs(metered(probs, labels, [n]).compute()["adaptive_ece"] - trueup.adaptive_ece(probs, labels))
        assert off <= np.isin(cell, mixed).mean() / 2 + 1e-5
        worst = max(worst, off)
    assert worst > 0.1


@given(st.integers(0, 40), st.integers(0, 40))
def test_merge_is_one_pass_and_associative(first, second):
    probs, labels = cases.drawn(100, 3, 0)
    cuts = sorted((first, second + 40))
    a, b, c = (
        metered(*part, [len(part[1])]) for part in zip(*(np.split(x, cuts) for x in (probs, labels)), strict=True)
    )
    left = copy.deepcopy(a).merge(copy.deepcopy(b)).merge(c).compute()
    right = a.merge(b.merge(c)).compute()
    whole = metered(probs, labels, [100]).compute()
    for name in [*SAME, "adaptive_ece"]:
        assert left[name] == pytest.approx(right[name], abs=1e-12)
        assert left[name] == pytest.approx(whole[name], abs=1e-12)


def test_it_stays_exact_beyond_2_to_the_24():
    """A float32 counter stops at 16 777 216."""
    meter = trueup.Meter(2)
    probs, labels = cases.constant(1 << 20, 2, 0.75)
    batch = trueup.Meter(2)
    batch.update(probs, labels)
    for _ in range(20):
        meter.merge(batch)
    assert meter.n == 20 << 20
    for name in SAME:
        assert meter.compute()[name] == pytest.approx(batch.compute()[name], abs=1e-12)


def test_reset_forgets_and_pickle_remembers():
    probs, labels = cases.drawn(50, 3, 0)
    meter = trueup.Meter(3)
    meter.update(probs, labels)
    assert pickle.loads(pickle.dumps(meter)).compute() == meter.compute()
    meter.reset()
    with pytest.raises(trueup.InputError, match="no batch"):
        meter.compute()


def test_a_meter_refuses_other_classes_and_other_meters():
    meter = trueup.Meter(3)
    with pytest.raises(trueup.InputError, match="4 classes"):
        meter.update(*cases.drawn(10, 4, 0))
    with pytest.raises(trueup.InputError, match="differ"):
        meter.merge(trueup.Meter(4))
    with pytest.raises(trueup.InputError, match="another meter"):
        meter.merge({"n": 3})
    assert meter.n == 0


def _process(rank, port, results):
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    probs, labels = cases.PREDICTIONS["golden"]()
    meter = trueup.Meter(10)
    rows = slice(0, 300) if rank == 0 else slice(300, None)
    meter.update(probs[rows], labels[rows])
    results[rank] = meter.compute()
    assert meter.n == (300 if rank == 0 else 700)  # the meter itself keeps what this process saw
    torch.distributed.destroy_process_group()


def test_two_processes_compute_the_whole():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with multiprocessing.get_context("spawn").Manager() as manager:
        results = manager.dict()
        multiprocessing.spawn(_process, (port, results), nprocs=2)
        both = [results[0], results[1]]
    whole = metered(*cases.PREDICTIONS["golden"](), [1000]).compute()
    for found in both:
        for name in [*SAME, "adaptive_ece"]:
            assert found[name] == pytest.approx(whole[name], abs=1e-12)


@pytest.mark.parametrize("threshold", [0.0, -0.1, 1.1, float("nan"), "x", None, True])
def test_a_threshold_is_a_confidence(threshold):
    for call in (
        lambda: trueup.confident_share([[0.5, 0.5]], [0], threshold),
        lambda: trueup.Meter(2, threshold=threshold),
    ):
        with pytest.raises(trueup.InputError, match="threshold"):
            call()
