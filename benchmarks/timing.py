"""How the benchmarks measure: one thread, processor time, the best of several runs, ratios within one process."""

from __future__ import annotations

import io
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
# Without these, arrays of some 32 MiB are sometimes mapped anew for every operation, and timings have two modes.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "268435456",
}


def prepare() -> None:
    """One thread, and an allocator that keeps its memory; starts the process again where that is not so yet."""
    wanted = ALLOCATOR | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | wanted)
    torch.set_num_threads(1)


def seconds(work: Callable[[], Any], repeats: int = 5) -> float:
    """The least processor time of several runs."""
    best = float("inf")
    for _ in range(repeats):
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
    return best


def where() -> str:
    """The machine, the versions and the day, for the foot of a table."""
    with open("/proc/cpuinfo") as file:
        models = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    cpu = models[0] if models else platform.processor()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{cpu}, one thread; {versions}; {datetime.now(UTC):%Y-%m-%d}"


@contextmanager
def recorded(name: str) -> Iterator[None]:
    """What is printed within goes to results/NAME, too."""
    RESULTS.mkdir(exist_ok=True)
    with open(RESULTS / name, "w") as file, redirect_stdout(_Tee(sys.stdout, file)):
        yield


class _Tee(io.TextIOBase):
    """Writes to several files at once."""

    def __init__(self, *files: Any) -> None:
        self.files = files

    def write(self, text: str) -> int:
        for file in self.files:
            file.write(text)
        return len(text)

    def flush(self) -> None:
        for file in self.files:
            file.flush()
