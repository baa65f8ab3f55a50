"""Ours, the floor and the peers on the same arrays, in one run: ``make bench``.

The floor is the least that NumPy or PyTorch would take for the core of the work, without any check of the input.
Ratios are to the floor; the bound is what we promise. Values are compared too: a fast wrong number is no number.
What is printed is written to benchmarks/results/peers.md as well.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

from benchmarks.timing import prepare, recorded, seconds, where

prepare()

import numpy as np  # noqa: E402
import torch  # noqa: E402

import trueup  # noqa: E402

warnings.filterwarnings("ignore")
failures: list[str] = []


def row(
    name: str, time: float, floor: float, value: float | None, expected: float | None, bound: float | None = None
) -> None:
    verdict = ""
    if bound is not None:
        verdict = f"at most {bound:g}" + ("" if time <= bound * floor else "  MISSED")
    if value is not None and expected is not None and abs(value - expected) > 1e-6 * max(1, abs(expected)):
        verdict += f"  value {value:.6g}, not {expected:.6g}"
    if "MISSED" in verdict or (bound is not None and "value" in verdict):
        failures.append(name)
    print(f"| {name} | {1e3 * time:.1f} | {time / floor:.2f} | {verdict} |", flush=True)


def head(title: str) -> None:
    print(f"\n### {title}\n\n| | ms | ratio | |\n|---|---:|---:|---|")


def optional(name: str, work: Callable[[], Any]) -> Any:
    """What a peer gives, or None where it is not installed or fails."""
    try:
        with redirect_stdout(io.StringIO()):  # some talk, in the middle of our table
            return work()
    except Exception as error:  # a peer may fail in any way
        print(f"| {name} | | | {type(error).__name__}: {str(error)[:60]} |")
        return None


def probabilities(n: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    powers = np.exp(rng.standard_normal((n, classes), dtype=np.float32) * 3)
    return powers / powers.sum(1, keepdims=True), rng.integers(0, classes, n)


def numpy_ece(p: np.ndarray, y: np.ndarray) -> float:
    """The floor: argmax and bincount."""
    top = p.argmax(1)
    confidence, right = p[np.arange(len(y)), top], top == y
    index = np.clip(np.ceil(confidence * 15).astype(int) - 1, 0, 14)
    return float(np.abs(np.bincount(index, confidence, 15) - np.bincount(index, right, 15)).sum() / len(y))


def metrics(n: int, classes: int, bound: float, bound_all: float) -> None:
    p, y = probabilities(n, classes)
    tensor, labels = torch.from_numpy(p), torch.from_numpy(y)
    head(f"ECE, {n} x {classes}, float32")
    floor = seconds(lambda: numpy_ece(p, y), 9)
    expected = trueup.ece(p, y)
    row("NumPy argmax + bincount (the floor)", floor, floor, numpy_ece(p, y), expected)
    row("trueup.ece, input checked", seconds(lambda: trueup.ece(p, y), 9), floor, expected, expected, bound)

    def all_metrics() -> None:
        scores = trueup.score(p, y)
        for metric in trueup.METRICS.values():
            metric(scores)
        trueup.brier_decomposition(scores)
        trueup.confident_share(scores)

    row("trueup, every metric of the audit", seconds(all_metrics, 5), floor, None, None, bound_all)
    try:
        from torchmetrics.functional.classification import multiclass_calibration_error
    except ImportError:
        pass
    else:
        theirs = lambda: float(multiclass_calibration_error(tensor, labels, num_classes=classes, n_bins=15))  # noqa: E731
        row("torchmetrics", seconds(theirs, 3), floor, theirs(), expected)
    try:
        from netcal.metrics import ECE
    except ImportError:
        pass
    else:
        theirs = lambda: float(ECE(15).measure(p, y))  # noqa: E731
        row("netcal", seconds(theirs, 3), floor, optional("netcal", theirs), expected)


def hand_written_newton(z: torch.Tensor, y: torch.Tensor) -> float:
    """The floor: Newton's method in 1/T over chunks of 256 rows."""
    b = 1.0
    for _ in range(50):
        slope = curvature = 0.0
        for start in range(0, len(z), 256):
            rows = slice(start, start + 256)
            block = z[rows]
            p = torch.softmax(block * b, 1)
            weighted = p * block
            mean = weighted.sum(1)
            slope += float((mean - block.gather(1, y[rows, None])[:, 0]).sum())
            curvature += float(((weighted * block).sum(1) - mean * mean).sum())
        b -= slope / curvature
        if abs(slope / curvature) < 1e-6 * b:
            break
    return 1 / b


def network_logits(n: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits as an over-confident network gives them: a signal for the label, a rival, and noise."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, classes, (n,), generator=generator)
    z = torch.randn(n, classes, generator=generator) * 2
    rows = torch.arange(n)
    z[rows, y] += torch.randn(n, generator=generator) * 4 + 9
    z[rows, torch.randint(0, classes, (n,), generator=generator)] += torch.randn(n, generator=generator).abs() * 4
    return z * 1.3, y


def exact_nll(z: torch.Tensor, y: torch.Tensor, temperature: float) -> float:
    total = 0.0
    for start in range(0, len(z), 1000):
        rows = slice(start, start + 1000)
        total += float(torch.nn.functional.cross_entropy(z[rows].double() / temperature, y[rows], reduction="sum"))
    return total / len(z)


def temperature() -> None:
    z, y = network_logits(50_000, 1000)
    head("Temperature by NLL, 50000 x 1000, float32")
    floor = seconds(lambda: hand_written_newton(z, y), 3)
    row("Newton in 1/T, written by hand (the floor)", floor, floor, None, None)
    ours = trueup.Temperature()
    made = ours.fit(z, y)
    row("trueup, temperature", seconds(lambda: ours.fit(z, y), 3), floor, None, None, 1.3)
    best = min(exact_nll(z, y, made.temperature * (1 + e)) for e in (-1e-5, 1e-5))
    gap = exact_nll(z, y, made.temperature) - best
    print(f"| its NLL is below that of its neighbours at T (1 ± 1e-5) by {-gap:.1e} | | | |")
    if gap > 0:
        failures.append("temperature optimum")
    row("trueup, focal-temperature", seconds(lambda: trueup.FocalTemperature().fit(z, y), 2), floor, None, None, 15)
    try:
        from probmetrics.calibrators import get_calibrator
    except ImportError:
        return
    p = torch.softmax(z, 1).numpy()
    theirs = lambda: get_calibrator("temp-scaling").fit(p, y.numpy())  # noqa: E731
    row("probmetrics, temp-scaling", seconds(theirs, 1), floor, None, None)
    try:
        from netcal.scaling import TemperatureScaling
    except ImportError:
        return
    some = slice(0, 5000)  # the whole takes a quarter of a minute and gigabytes
    fit = optional(
        "netcal", lambda: seconds(lambda: TemperatureScaling().fit(p[some].astype(np.float64), y[some].numpy()), 1)
    )
    if fit:
        row("netcal, temperature, a tenth of the rows", fit, floor / 10, None, None)


def searches() -> None:
    z, y = network_logits(5000, 100)
    head("Searches, 5000 x 100 (seconds are the promise, the ratio is to one second)")
    for name, settings, bound in (
        ("temperature by the ECE grid", trueup.Temperature(criterion="ece"), 1),
        ("focal-temperature by the adaptive ECE grid", trueup.FocalTemperature(criterion="adaptive_ece"), 25),
        ("auto", trueup.Auto(), 15),
    ):
        row(name, seconds(lambda settings=settings: settings.fit(z, y), 1), 1.0, None, None, bound)
    z, y = network_logits(10_000, 10)
    predictions = trueup.Predictions(logits=z, labels=y)
    row("audit with 1000 resamples, 10000 x 10", seconds(lambda: trueup.audit(predictions), 2), 1.0, None, None, 2)


def memory() -> None:
    """Peak memory of a fit over that of the logits, read from the kernel in a process of its own."""
    import subprocess

    head("Memory beside the logits, 50000 x 1000 float32 (190 MiB), as a share of them")
    for name, work, bound in (
        ("ece", "trueup.ece(p, y)", 1.05),
        ("meter", "m = trueup.Meter(1000); m.update(p, y); m.compute()", 1.05),
        ("temperature", "trueup.Temperature().fit(z, y)", 1.05),
        ("focal-temperature", "trueup.FocalTemperature().fit(z, y)", 1.05),
        # The result is the one copy; the rest is what the allocator adds.
        ("a map applied", "trueup.calibrators.focal.FocalTemperatureMap(1000, 2., .5)(z)", 1.1),
    ):
        code = (
            "import re, torch, trueup; torch.set_num_threads(1)\n"
            "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
            "z = torch.empty(50_000, 1000).normal_(); y = torch.randint(0, 1000, (50_000,))\n"
            + ("p = z.exp_(); p /= p.sum(1, keepdim=True)\n" if "p, y" in work else "")  # in place
            + "trueup.ece(torch.eye(3), [0, 1, 2])\n"
            "before = peak()\n"
            f"{work}\n"
            "print((peak() - before) / (50_000 * 1000 * 4 / 1024))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        share = float(done.stdout)
        print(f"| {name} | | {share:.2f} | at most {bound:g}{'  MISSED' if share > bound else ''} |")
        if share > bound:
            failures.append(f"memory of {name}")


def main() -> int:
    print("# Ours, the floor and the peers")
    metrics(1_000_000, 10, bound=1.1, bound_all=8)
    metrics(50_000, 1000, bound=2, bound_all=25)
    temperature()
    searches()
    memory()
    print(f"\n{'missed: ' + ', '.join(failures) if failures else 'Every bound is kept.'}")
    print(f"\n`make bench` on {where()}.")
    return 1 if failures else 0


if __name__ == "__main__":
    with recorded("peers.md"):
        status = main()
    sys.exit(status)
