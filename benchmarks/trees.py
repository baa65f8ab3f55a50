"""The Tree-LSTM level by level beside the plain recursion, node by node, in one run.

    python -m benchmarks.trees [--batches 8] [--device cuda]

Training steps on SST (TRUEUP_DATA): batches of 25 trees, a loss at every node, forward and backward. Both are given the
same net and the same trees, and take turns; the ratio is the median over the batches. On a CPU it is processor time on
one thread, on a GPU wall-clock time. The recursion is given its trees as they are to be walked, and looks up all words
of a batch and takes its loss at once, as no plain code does. An epoch has 277 batches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from tests.models.recursion import nested, node_logits
from torch import Tensor

from benchmarks.timing import prepare, recorded, where
from trueup import data, models

BATCH, STEPS = 25, 277


def level_by_level(net: Any, trees: Tensor, targets: Tensor) -> Tensor:
    """The loss of a batch; ``targets`` of all nodes in its order."""
    return F.cross_entropy(net.of_nodes(trees), targets, reduction="sum") / len(trees)


def node_by_node(net: Any, trees: list[Any], targets: Tensor) -> Tensor:
    return F.cross_entropy(node_logits(net, trees), targets, reduction="sum") / len(trees)


def timed(work: Callable[[], Tensor], net: Any, device: str) -> float:
    clock = time.process_time if device == "cpu" else time.perf_counter
    net.zero_grad(set_to_none=True)
    if device != "cpu":
        torch.cuda.synchronize()
    begin = clock()
    work().backward()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - begin


def measure(batches: int, device: str) -> None:
    found = data.load("sst")
    torch.manual_seed(0)
    net = models.build("tree-lstm", found.classes, found.input_shape, found.words).to(device)
    rows = torch.randperm(len(found.train), generator=torch.Generator().manual_seed(0))[: BATCH * (batches + 2)]
    fast, slow = [], []
    for chosen in rows.split(BATCH):
        trees, targets = found.train.inputs[chosen], found.train.targets[chosen]  # type: ignore[index]
        read = [nested(tree) for tree in trees]
        trees, targets = trees.to(device), targets[targets >= 0].to(device)
        fast.append(timed(partial(level_by_level, net, trees, targets), net, device))
        slow.append(timed(partial(node_by_node, net, read, targets), net, device))
    fast, slow = fast[2:], slow[2:]  # the first ones warm up
    ratios = [b / a for a, b in zip(fast, slow, strict=True)]
    print("# The Tree-LSTM on SST: a training step of 25 trees\n")
    print("| | ms a step | s an epoch |\n|---|---:|---:|")
    for name, of_batches in (("level by level", fast), ("node by node", slow)):
        seconds = statistics.median(of_batches)
        print(f"| {name} | {1000 * seconds:.1f} | {STEPS * seconds:.1f} |")
    print(f"\nRatio {statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f} over {batches} batches).\n")
    print(where() if device == "cpu" else f"{torch.cuda.get_device_name()}; torch {torch.__version__}; {date.today()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    prepare()
    with recorded("trees.md" if options.device == "cpu" else "trees_gpu.md"):
        measure(options.batches, options.device)


if __name__ == "__main__":
    main()
