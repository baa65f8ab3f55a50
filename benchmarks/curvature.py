"""λ max to 0.1 % and the trace to 1 %: ours beside curvlinops with SciPy's eigsh and its Hutch++, in one run.

    python -m benchmarks.curvature [--repeats 3] [--samples 2048]
    python -m benchmarks.curvature --device cuda --run RUN --samples 5000

On a CPU: a CNN of 0.1 million parameters, trained for some epochs on 2 048 images of digits (16 x 16 pixels). Times are
medians of processor time over the repeats, on one thread. Our trace is exact for this net; it is measured by probes
too, which is what a net of a hundred classes gets. Hutch++ of curvlinops states no error: it gets 48, 192, 384
products, until its root mean square error over the repeats is 1 %, which nobody could know beforehand.

On a GPU: the same for the net of a run, which must have its weights, on its validation images; wall-clock time, ours
alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import trueup
from benchmarks.timing import prepare, recorded, where
from trueup.curvature import curvature, top_eigenvalues, trace, trace_of
from trueup.papers.kimura2024.measure import stored_net
from trueup.train import load_run

BUDGETS = (48, 192, 384)


def net_and_batches(samples: int, batch: int = 256) -> tuple[nn.Module, list[Any]]:
    from sklearn.datasets import load_digits

    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    x = F.interpolate(images.float().reshape(-1, 1, 8, 8) / 8 - 1, scale_factor=2, mode="bilinear")
    x, y = torch.cat([x, x.roll(1, 3)])[:samples], torch.cat([labels, labels])[:samples]
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 182), nn.ReLU(), nn.Linear(182, 10),
    )  # fmt: skip
    optimiser, loss = torch.optim.SGD(net.parameters(), 0.1, 0.9), trueup.CrossEntropy()
    for _ in range(3):
        for rows in torch.randperm(len(x)).split(128):
            optimiser.zero_grad()
            loss(net(x[rows]), y[rows]).backward()
            optimiser.step()
    return net.eval(), list(zip(x.split(batch), y.split(batch), strict=True))


def timed(run: Callable[[int], Any], repeats: int, clock: Callable[[], float] = time.process_time) -> Any:
    """The median of the seconds, and what came out each time."""
    seconds, found = [], []
    for seed in range(repeats):
        begin = clock()
        found.append(run(seed))
        seconds.append(clock() - begin)
    return statistics.median(seconds), found


def counted_eigsh(operator: Any, size: int, seed: int) -> tuple[float, int]:
    """SciPy's largest eigenvalue, and how many products it took."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    used, product = 0, operator.to_scipy()

    def counted(vector: np.ndarray) -> np.ndarray:
        nonlocal used
        used += 1
        return product.matvec(vector)

    start = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    wrapped = LinearOperator(product.shape, matvec=counted, dtype=product.dtype)  # pyright: ignore
    found = eigsh(wrapped, 1, which="LA", tol=1e-3, v0=start, return_eigenvectors=False)  # pyright: ignore
    return float(found[0]), used


def on_cpu(samples: int, repeats: int) -> None:
    from curvlinops import HessianLinearOperator, hutchpp_trace

    net, batches = net_and_batches(samples)
    loss, size = trueup.CrossEntropy(), sum(p.numel() for p in net.parameters())
    theirs = HessianLinearOperator(
        net, nn.CrossEntropyLoss(), list(net.parameters()), batches, check_deterministic=False
    )
    print(f"# Curvature of a CNN with {size} parameters over {samples} samples\n")
    print("Processor time on one thread; how much longer than ours in the last column. Written by")
    print("`python -m benchmarks.curvature` (`make bench-curvature`), whose docstring says what is measured.\n")
    print("| what | who | seconds | products | value | times as long |\n|---|---|---:|---:|---:|---:|", flush=True)

    def row(what: str, who: str, seconds: float, products: float, value: str, ours: float) -> None:
        print(f"| {what} | {who} | {seconds:.1f} | {products:.0f} | {value} | {seconds / ours:.1f} |", flush=True)

    ours, found = timed(lambda seed: top_eigenvalues(net, loss, batches, tolerance=1e-3, seed=seed), repeats)
    what = "λ max to 0.1 %"
    row(what, "trueup", ours, found[0].products, f"{float(found[0].value[0]):.4f}", ours)
    peer, values = timed(lambda seed: counted_eigsh(theirs, size, seed), repeats)
    row(what, "curvlinops and eigsh", peer, values[0][1], f"{values[0][0]:.4f}", ours)

    ours, found = timed(lambda seed: trace(net, loss, batches, relative=0.01, seed=seed), repeats)
    true, what = found[0].value, "trace to 1 %"
    row(what, "trueup, exact", ours, found[0].products, f"{true:.3f}", ours)
    matrix = curvature(net, loss, batches)
    probed, values = timed(lambda seed: trace_of(matrix, relative=0.01, seed=seed), 1)
    row(what, "trueup, by probes", probed, values[0].products, f"{values[0].value:.3f} ± {values[0].stderr:.3f}", ours)
    for many in BUDGETS:

        def hutch(seed: int, many: int = many) -> float:
            torch.manual_seed(seed)
            return float(hutchpp_trace(theirs, many))

        peer, values = timed(hutch, repeats)
        off = statistics.fmean((value / true - 1) ** 2 for value in values) ** 0.5
        who = f"curvlinops, Hutch++ (off by {100 * off:.1f} %)"
        row(what, who, peer, many, f"{statistics.mean(values):.3f}", ours)
        if off <= 0.01:
            break
    print(f"\n{where()}; curvlinops {_version('curvlinops-for-pytorch')}")


def on_gpu(folder: Path, samples: int, repeats: int) -> None:
    run = load_run(folder)
    net, batches = stored_net(run, "val", samples, 500, "cuda", None)
    name, size = run.recipe.model, sum(p.numel() for p in net.parameters())
    samples = sum(len(labels) for _, labels in batches)
    print(f"# Curvature of {name} with {size} parameters over {samples} images\n")
    print(f"{run.recipe.data}, trained for {run.recipe.epochs} epochs with {run.recipe.loss}.")
    print("Wall-clock time. Written by `python -m benchmarks.curvature --device cuda --run RUN`.\n")
    print("| what | seconds | products | value | peak memory, GiB |\n|---|---:|---:|---:|---:|", flush=True)

    def finished(work: Callable[[], Any]) -> Any:
        found = work()
        torch.cuda.synchronize()
        return found

    def row(what: str, work: Callable[[int], Any], value: Callable[[Any], str]) -> None:
        torch.cuda.reset_peak_memory_stats()
        seconds, found = timed(lambda seed: finished(lambda: work(seed)), repeats, time.perf_counter)
        peak = torch.cuda.max_memory_allocated() / 2**30
        told = f"{value(found[0])}{'' if found[0].converged else ' (not converged)'}"
        print(f"| {what} | {seconds:.1f} | {found[0].products} | {told} | {peak:.1f} |", flush=True)

    for title, loss in (("cross-entropy", trueup.CrossEntropy()), ("focal:3", trueup.Focal(3))):
        row(f"λ max to 0.1 %, {title}", lambda seed, of=loss: top_eigenvalues(net, of, batches, seed=seed),
            lambda found: f"{float(found.value[0]):.5g}")  # fmt: skip
        row(f"trace to 2 %, {title}", lambda seed, of=loss: trace(net, of, batches, relative=0.02, seed=seed),
            lambda found: f"{found.value:.5g} ± {found.stderr:.1g}")  # fmt: skip
    print(f"\n{torch.cuda.get_device_name()}; torch {torch.__version__}; {time.strftime('%Y-%m-%d', time.gmtime())}")


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--run", type=Path)
    chosen = parser.parse_args()
    if chosen.device == "cpu":
        prepare()
    warnings.simplefilter("ignore")
    with recorded("curvature.md" if chosen.device == "cpu" else "curvature_gpu.md"):
        if chosen.device == "cpu":
            on_cpu(chosen.samples, chosen.repeats)
        else:
            on_gpu(chosen.run, chosen.samples, chosen.repeats)


if __name__ == "__main__":
    main()
