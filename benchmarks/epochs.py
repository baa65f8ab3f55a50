"""Seconds an epoch of training takes on a GPU, by net and by how a step runs.

``python -m benchmarks.epochs OUT.json NET ...``

CIFAR-10's 45 000 training images, batch 128, bf16, crop and flip; steady state: the median of the epochs after the
first. ``eager`` is the plain loop, ``graph`` the whole step in a CUDA graph, ``compiled-graph`` that over the compiled
net; ``3`` is three processes of the latter side by side, seconds for each net and epoch in aggregate.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from trueup import data
from trueup.train.loop import fit
from trueup.train.recipe import named

EPOCHS = {"eager": 2, "graph": 4, "compiled-graph": 5}


def measure(net: str, mode: str, epochs: int, data_dir: str | None = None) -> dict[str, float]:
    """Seconds of a steady epoch, of measuring after it, and from the start to the end of the first epoch."""
    recipe = named("mukhoti2020-short", model=net, milestones=(), factors=(), epochs=epochs)
    images = data.load(recipe.data, data_dir, split=recipe.split)
    begin = time.perf_counter()
    history = fit(recipe, images, device="cuda", mode=mode).history
    steady = history[1:] if len(history) > 1 else history
    return {
        "seconds": statistics.median(entry["seconds"] for entry in steady),
        "measuring": statistics.median(entry["seconds_measuring"] for entry in steady),
        "begin": time.perf_counter()
        - begin
        - sum(e["seconds"] + e["seconds_measuring"] for e in history[1:])
        - history[0]["seconds"],
        "memory": torch.cuda.max_memory_allocated() / 2**30,
    }


def at_once(net: str, processes: int = 3, epochs: int = 8) -> float:
    """Seconds for each net and epoch, where several train side by side."""
    code = (
        "import sys, json; from benchmarks.epochs import *\n"
        f"recipe = named('mukhoti2020-short', model={net!r}, milestones=(), factors=(), epochs={epochs})\n"
        "images = data.load(recipe.data, None, split=recipe.split)\n"
        "tell = lambda state, progress: print(time.time(), flush=True)\n"
        "fit(recipe, images, device='cuda', mode='compiled-graph', after_epoch=tell)\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    ends = [[float(line) for line in process.communicate()[0].split()] for process in running]
    begin, end = max(each[0] for each in ends), min(each[-1] for each in ends)  # while all of them train
    done = sum(sum(begin < at <= end for at in each) for each in ends)
    return (end - begin) / done


def main() -> None:
    out, *nets = sys.argv[1:]
    rows = []
    for net in nets:
        net, _, wanted = net.partition(":")
        row: dict[str, object] = {"net": net}
        for mode in wanted.split(",") if wanted else [*EPOCHS, "3"]:
            begin = time.perf_counter()
            try:
                row[mode] = at_once(net) if mode == "3" else measure(net, mode, EPOCHS[mode])
            except Exception as error:
                row[mode] = f"{type(error).__name__}: {error}"
            torch.cuda.empty_cache()
            print(net, mode, row[mode], f"({time.perf_counter() - begin:.0f} s in all)", flush=True)
        rows.append(row)
        write(Path(out), rows)


def write(place: Path, rows: list[dict[str, object]]) -> None:
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    place.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
