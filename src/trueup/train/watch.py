"""How a study goes, for people: a bar for the whole and one for each run that is under way."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from trueup.tables import EPOCHS
from trueup.train.worker import Event, Task


class StudyView:
    """Called with the tasks, then with each event. Bars on a terminal; elsewhere a line for each run that ends."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn(EPOCHS), TimeElapsedColumn(),
            TimeRemainingColumn(), console=console, transient=True, speed_estimate_period=60,
            disable=not console.is_terminal,
        )  # fmt: skip
        self.whole = self.bars.add_task("study", total=None, visible=False)
        self.of_run: dict[str, TaskID] = {}
        self.done_before: dict[str, float] = {}
        self.begun: dict[str, float] = {}
        self.ended = 0

    def __enter__(self) -> StudyView:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def __call__(self, tasks: Sequence[Task], event: Event | None) -> None:
        if event is None:
            self.bars.update(self.whole, total=sum(task.recipe.epochs for task in tasks), visible=bool(tasks))
            return
        name, epochs = event.task.name, event.task.recipe.epochs
        if event.kind == "begin":
            self.of_run[name] = self.bars.add_task(_short(event.task), total=epochs)
            self.begun[name] = time.monotonic()
            return
        done = epochs if event.kind == "failed" else event.epochs_done  # nothing is left to do of a failed run
        self.bars.update(self.of_run[name], completed=done)
        if event.kind == "failed" or name not in self.done_before:
            self._leap(done - self.done_before.get(name, 0))
        else:
            self.bars.advance(self.whole, done - self.done_before[name])
        self.done_before[name] = done
        if event.kind in ("done", "failed"):
            self.ended += 1
            self.bars.remove_task(self.of_run.pop(name))
            seconds = time.monotonic() - self.begun[name]
            if event.kind == "failed":
                first = (event.message.splitlines() or [""])[0]
                line = f"failed: {_short(event.task)}: {first}"
                self.console.print(line, highlight=False, markup=False, soft_wrap=True)
            elif not self.console.is_terminal:
                line = f"{self.ended}/{len(tasks)} {_short(event.task)}: {seconds:.1f} s"
                self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _leap(self, epochs: float) -> None:
        """Epochs that nobody has waited for, those before a run went on and those a failed one leaves out, tell nothing
        of how long the others take."""
        next(bar for bar in self.bars.tasks if bar.id == self.whole).completed += epochs


def _short(task: Task) -> str:
    return f"{task.recipe.data} {task.recipe.model} {task.recipe.loss} seed {task.recipe.seed}"
