"""Seconds an epoch of training takes on a GPU, by net and by how a step runs.

``python -m benchmarks.epochs OUT.md NET[:MODE,...] ...``; every mode where none is named. What is measured is kept in
OUT.json beside OUT.md, and nets measured before stay in the table.

CIFAR-10's 45 000 training images, batch 128, bf16, crop and flip; steady state: the median of the epochs after the
first. ``eager`` is the plain loop, ``graph`` the whole step in a CUDA graph, ``compiled-graph`` that over the compiled
net. ``begin`` is the time from the call to the first step of a compiled graph, with nothing compiled before; behind
"<" it was taken while other work ran beside it, every take, and is an upper bound. A net named as NET/8 is timed on an
eighth of the images, and the seconds are multiplied by eight.

``3`` is three processes of compiled graphs side by side, seconds for each net and epoch in aggregate, and ``alone`` one
of them, both with what is measured after an epoch. Those marked (1/8) are of an eighth of the images, where what an
epoch costs once (its plan, the smaller last batch outside of the graph, starting to measure) counts eight times: they
are to be compared with each other only.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from trueup import data
from trueup.data import Dataset, Split
from trueup.train.loop import fit
from trueup.train.recipe import Recipe, named
from trueup.train.sharing import shared_gpu

EPOCHS = {"eager": 2, "graph": 3, "compiled-graph": 4}
BOUNDS = {"resnet18": 1.1, "resnet50": 3.2, "wrn26-10": 4.5}
"""Seconds that we promise at most."""
SIDE_BY_SIDE = 3


def recipe_of(net: str, epochs: int) -> Recipe:
    return named("mukhoti2020-short", model=net, milestones=(), factors=(), epochs=epochs)


def images_of(recipe: Recipe, part: int = 1) -> Dataset:
    """CIFAR-10, or every so many-th of its images, those that are measured after an epoch included."""
    found = data.load(recipe.data, None, split=recipe.split)
    fewer = {
        name: Split(split.inputs[: len(split) // part], split.labels[: len(split) // part])
        for name, split in found.splits().items()
    }
    return replace(found, **fewer)


def measure(net: str, part: int, mode: str) -> dict[str, float]:
    """Seconds of a steady epoch, of measuring after it, from the call to the first step, and GiB of memory."""
    recipe = recipe_of(net, EPOCHS[mode])
    images = images_of(recipe, part)
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    history = fit(recipe, images, device="cuda", mode=mode).history
    whole = time.perf_counter() - begin
    steady = history[1:]
    return {
        "seconds": part * statistics.median(entry["seconds"] for entry in steady),
        "measuring": statistics.median(entry["seconds_measuring"] for entry in steady),
        "begin": whole - sum(entry["seconds"] + entry["seconds_measuring"] for entry in history),
        "memory": torch.cuda.max_memory_allocated() / 2**30,
    }


class Waiting:
    """A process that trains ``net`` and waits after its first epoch, with all compiled and captured, to be told how
    many more to train."""

    def __init__(self, net: str, part: int) -> None:
        code = f"from benchmarks.epochs import train_when_told; train_when_told({net!r}, {part})"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.told, self.tells = self.process.stdin, self.process.stdout

    def ready(self) -> None:
        self._end_of_an_epoch()

    def go(self, epochs: int) -> None:
        self.told.write(f"{epochs}\n")

    def ends(self, epochs: int) -> list[float]:
        """When it began, and when it ended each epoch."""
        return [self._end_of_an_epoch() for _ in range(epochs + 1)]

    def _end_of_an_epoch(self) -> float:
        line = self.tells.readline()
        if not line:
            raise RuntimeError(f"the process ended (exit code {self.process.wait()})")
        return float(line)

    def stop(self) -> None:
        self.told.close()
        self.process.wait()


def train_when_told(net: str, part: int) -> None:
    """What ``Waiting`` runs: prints the time after the first epoch, when it is told to go on, and after each epoch."""
    left = 0

    def after_epoch(state: Any, progress: Any) -> None:
        nonlocal left
        print(time.time(), flush=True)
        left -= 1
        if left <= 0:
            line = sys.stdin.readline()
            if not line:
                os._exit(0)
            left = int(line)
            print(time.time(), flush=True)

    recipe = recipe_of(net, 10_000)
    fit(recipe, images_of(recipe, part), device="cuda", mode="compiled-graph", after_epoch=after_epoch)


def side_by_side(processes: list[Waiting], part: int, epochs: int) -> float:
    """Seconds for each net and epoch, measuring included, while all of them train."""
    for process in processes:
        process.go(epochs)
    times = [process.ends(epochs) for process in processes]
    begin, end = max(each[0] for each in times), min(each[-1] for each in times)
    done = sum(sum(begin < at <= end for at in each) for each in times)
    return part * (end - begin) / done


def at_once(nets: dict[str, int], epochs: int = 6) -> dict[str, dict[str, float]]:
    """By net: seconds for each net and epoch where several train side by side, and of one alone.

    The processes of all nets (net -> part) start together, which hides most of the time that compiling takes; then one
    net after the other is timed, while the rest wait.
    """
    with shared_gpu() as shared:
        started = {net: [Waiting(net, part) for _ in range(SIDE_BY_SIDE)] for net, part in nets.items()}
        for processes in started.values():
            for process in processes:
                process.ready()
        found = {}
        for net, processes in started.items():
            alone = side_by_side(processes[:1], nets[net], epochs)
            found[net] = {
                "alone": alone, "seconds": side_by_side(processes, nets[net], epochs), "shared": float(shared)
            }  # fmt: skip
            for process in processes:
                process.stop()
    return found


def begins(nets: dict[str, int], cache: str) -> dict[str, dict[str, Any]]:
    """By net: seconds from the call to the first step, where all of them begin together with nothing compiled before;
    what they compile stays in the folder ``cache``."""
    code = "import benchmarks.epochs as b; b.measure_and_tell({!r}, {}, ['compiled-graph'])"
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache}
    running = {
        net: subprocess.Popen(
            [sys.executable, "-c", code.format(net, part)], env=environment, stdout=subprocess.PIPE, text=True
        )
        for net, part in nets.items()
    }
    told = {net: process.communicate()[0] for net, process in running.items()}
    beside = f"the beginnings of {len(nets)} nets at once"
    return {net: {"takes": [json.loads(line)["begin"]], "beside": beside} for net, line in told.items() if line}


def in_a_process(net: str, part: int, modes: list[str]) -> dict[str, dict[str, float]]:
    """``measure`` by mode, in a fresh process with nothing compiled before.

    With TORCHINDUCTOR_CACHE_DIR set what was compiled before is used, and the time to the first step is left out.
    """
    code = f"import benchmarks.epochs as b; b.measure_and_tell({net!r}, {part}, {modes!r})"
    known = "TORCHINDUCTOR_CACHE_DIR" in os.environ
    with tempfile.TemporaryDirectory() as folder:
        fresh = {} if known else {"TORCHINDUCTOR_CACHE_DIR": folder}
        done = subprocess.run([sys.executable, "-c", code], env=os.environ | fresh, capture_output=True, text=True)
    found = {mode: json.loads(line) for mode, line in zip(modes, done.stdout.splitlines(), strict=False)}
    if known:
        for row in found.values():
            row.pop("begin", None)
    missing = {"failed": (done.stderr.strip() or "no result").splitlines()[-1][:200]}
    return {mode: found.get(mode, missing) for mode in modes}


def measure_and_tell(net: str, part: int, modes: list[str]) -> None:
    """Prints one line of JSON a mode."""
    for mode in modes:
        print(json.dumps(measure(net, part, mode)), flush=True)
        torch.compiler.reset()
        torch.cuda.empty_cache()


def main() -> None:
    out, *nets = sys.argv[1:]
    place = Path(out)
    kept = place.with_suffix(".json")
    rows: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    wanted = {}
    for each in nets:
        each, _, modes = each.partition(":")
        net, _, divisor = each.partition("/")
        wanted[net] = int(divisor or 1), modes.split(",") if modes else [*EPOCHS, "3"]

    def with_mode(mode: str) -> dict[str, int]:
        return {net: part for net, (part, modes) in wanted.items() if mode in modes}

    def keep(net: str, found: dict[str, dict[str, Any]]) -> None:
        on = f"{torch.cuda.get_device_name()}; torch {torch.__version__}"
        part = {"part": wanted[net][0], "date": f"{datetime.now(UTC):%Y-%m-%d}", "on": on}
        rows.setdefault(net, {}).update({mode: result | part for mode, result in found.items()})
        print(net, found, flush=True)
        kept.write_text(json.dumps(rows, indent=1) + "\n")
        place.write_text(markdown(rows))

    for net, (part, modes) in wanted.items():
        keep(net, in_a_process(net, part, [mode for mode in modes if mode in EPOCHS]))
    with tempfile.TemporaryDirectory() as cache:
        for net, found in begins(with_mode("begin"), cache).items():
            keep(net, {"begin": found})
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", cache)
        for net, found in at_once(with_mode("3")).items():
            keep(net, {"3": found})


def markdown(rows: dict[str, Any]) -> str:
    lines = [
        "# Seconds an epoch takes on a GPU",
        "",
        *[" ".join(text.split()) for text in (__doc__ or "").split("\n\n")[2:]],
        "",
        "| net | eager | graph | compiled graph | promised | eager / best | begin | GiB | alone | 3 at once | gain |",
        "|---|" + "---:|" * 10,
    ]
    for net, row in rows.items():
        times = {mode: row.get(mode, {}).get("seconds") for mode in EPOCHS}
        best, three, compiled = min(t for t in times.values() if t), row.get("3", {}), row.get("compiled-graph", {})
        parts = max(row[mode].get("part", 1) for mode in EPOCHS if mode in row)
        loaded = "< " + ", ".join(str(math.ceil(t)) for t in row["begin"]["takes"]) if "begin" in row else ""
        mark = f" (1/{three['part']})" if three.get("part", 1) > 1 else ""
        cells = [
            net + (f" (1/{parts} of the images)" if parts > 1 else ""),
            *(_number(times[mode]) for mode in EPOCHS),
            _number(BOUNDS.get(net)),
            _number(times["eager"] and times["eager"] / best),
            ", ".join(filter(None, (_number(compiled.get("begin"), 0), loaded))),
            _number(compiled.get("memory"), 1),
            _number(three.get("alone")) + mark,
            _number(three.get("seconds")) + mark,
            _number(three.get("seconds") and three["alone"] / three["seconds"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    found = [cell for row in rows.values() for cell in row.values()]
    about = ["; ".join(sorted({cell["on"] for cell in found})), " and ".join(sorted({cell["date"] for cell in found}))]
    beside = sorted({cell["beside"] for cell in found if "beside" in cell})
    return "\n".join([*lines, "", ", ".join(about), *(f"Bounds of begin: taken beside {it}." for it in beside), ""])


def _number(value: float | None, digits: int = 2) -> str:
    return "" if not value else f"{value:.{digits}f}"


if __name__ == "__main__":
    main()
