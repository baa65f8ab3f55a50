"""Processes that train: each takes one run after another, and one that dies takes only its own run with it.

A worker reads tasks from stdin and writes events to stdout, a line of JSON each; what libraries print goes to its log.
Importing torch takes longer than a small run, so a worker stays for the next; but not after an exception that nobody
foresaw: an error of the GPU stays with its process, and every run after it would fail likewise.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from trueup.files import fault
from trueup.inputs import InputError
from trueup.train.recipe import Recipe
from trueup.train.run import train
from trueup.train.sharing import shared_gpu

COMMAND = (sys.executable, "-c", "from trueup.train.worker import main; main()")


@dataclass(frozen=True)
class Task:
    """A recipe, its folder, and the other arguments of ``train``."""

    name: str
    recipe: Recipe
    folder: Path
    options: dict[str, Any]

    def line(self) -> str:
        content = {"recipe": self.recipe.to_dict(), "folder": str(self.folder), "options": self.options}
        return json.dumps(content) + "\n"


@dataclass(frozen=True)
class Event:
    """Something happened to a run: it began, it has got further, it is done, it failed."""

    kind: str
    task: Task
    epochs_done: float = 0
    message: str = ""
    broken: bool = False
    """Whether its process has ended in the middle of it, or is good for nothing any more."""

    @property
    def is_end(self) -> bool:
        return self.kind in ("done", "failed")


def run_all(
    tasks: Sequence[Task], jobs: int, logs: Path, watch: Callable[[Event], None] | None = None
) -> dict[str, str]:
    """Runs the tasks, ``jobs`` side by side; the names of those that failed, and why. Ctrl-C ends the workers.

    Several on one GPU share it as ``shared_gpu`` says. When a process is killed there in the middle of its work, the
    others wait for the GPU for ever, and no error tells it; and an error of the GPU is one of all. So they are ended
    with it, and their runs go on from their checkpoints in new processes under a new service: what one that dies takes
    from the others is some seconds. It is its end that is looked for, and no lack of progress, for nobody knows how
    long an epoch may take. Its own run has failed and is not tried again, so that there is an end to this.
    """
    failed: dict[str, str] = {}
    begun: set[str] = set()

    def tell(event: Event) -> None:
        if event.kind == "begin" and event.task.name in begun:
            return  # it goes on
        begun.add(event.task.name)
        if event.kind == "failed":
            failed[event.task.name] = event.message
        if watch is not None:
            watch(event)

    left = list(tasks)
    while left:
        on_gpu = any(task.options.get("device", "").startswith("cuda") for task in left)
        with shared_gpu() if on_gpu and min(jobs, len(left)) > 1 else nullcontext(False) as shared:
            left = _serve_all(left, jobs, logs, tell, together=shared)
    return failed


def _serve_all(
    tasks: Sequence[Task], jobs: int, logs: Path, tell: Callable[[Event], None], *, together: bool
) -> list[Task]:
    """Runs the tasks; which are left, where all processes end ``together`` as soon as one is broken."""
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    left = {task.name: task for task in tasks}
    servers = [_Server(waiting, events.put, logs / f"worker-{i}.log", jobs) for i in range(min(jobs, len(tasks)))]
    try:
        for server in servers:
            server.thread.start()
        while left:
            event = events.get()
            if event.is_end:
                del left[event.task.name]
            tell(event)
            if event.broken and together:
                break
    finally:
        for server in servers:
            server.stop()
        for server in servers:
            server.thread.join(10)
    return list(left.values())


class _Server:
    """Hands tasks to a worker process of its own, and starts another when that is broken."""

    def __init__(self, waiting: Any, tell: Callable[[Event], None], log: Path, jobs: int) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.waiting, self.tell, self.log, self.jobs = waiting, tell, log, jobs
        self.process: subprocess.Popen[str] | None = None
        self.stopping = False

    def _run(self) -> None:
        while not self.stopping:
            try:
                task = self.waiting.get_nowait()
            except queue.Empty:
                break
            try:
                end = self._serve(task)
            except Exception as error:  # no process could be started, or no log written: nobody may wait for its end
                message = fault(error) if isinstance(error, OSError) else repr(error)
                end = Event("failed", task, message=message, broken=True)
            if end is None or end.broken:
                self._end()
            if end is not None:
                self.tell(end)
        self._end()

    def stop(self) -> None:
        self.stopping = True
        process = self.process
        if process is not None:
            process.terminate()

    def _serve(self, task: Task) -> Event | None:
        """How the run ended; None where it was stopped."""
        self.tell(Event("begin", task))
        if self.process is None:
            self.process = self._worker()
        if self.stopping:
            return None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        done = 0.0
        try:
            self.process.stdin.write(task.line())
            self.process.stdin.flush()
            for line in self.process.stdout:
                event = json.loads(line)
                done = event.get("epochs_done", done)
                heard = Event(event["kind"], task, done, event.get("message", ""), event.get("broken", False))
                if heard.is_end:
                    return heard
                self.tell(heard)
        except (BrokenPipeError, ValueError):
            pass
        if self.stopping:
            return None
        code = self.process.wait()
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        message = f"its process ended ({how})\n{_last_lines(self.log)}".rstrip()
        return Event("failed", task, done, message, broken=True)

    def _worker(self) -> subprocess.Popen[str]:
        # of jobs, not of those under way: a run that goes on with other threads would not end in the same bits
        threads = str(max(1, (os.cpu_count() or 1) // self.jobs))
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for us alone; we end the workers
                env={"OMP_NUM_THREADS": threads} | os.environ,
            )

    def _end(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            try:
                if pipe is not None:
                    pipe.close()  # at the end of its input a worker ends itself
            except OSError:
                pass
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _last_lines(log: Path, lines: int = 6) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


# ---------------------------------------------------------------------- within the process


def main() -> None:
    """Takes tasks until stdin ends; that it ended in the middle of a run means that nobody waits for it any more."""
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    tasks: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(tasks,), daemon=True).start()
    while True:
        _work(json.loads(tasks.get()), events)


def _listen(tasks: Any) -> None:
    for line in sys.stdin:
        tasks.put(line)
    os._exit(0)


def _work(task: dict[str, Any], events: IO[str]) -> None:
    def tell(kind: str, **content: Any) -> None:
        events.write(json.dumps({"kind": kind, **content}) + "\n")

    try:
        recipe = Recipe.from_dict(task["recipe"])
        train(
            recipe,
            task["folder"],
            progress=lambda done: tell("further", epochs_done=done),
            **task["options"],
        )
        tell("done", epochs_done=recipe.epochs)
    except (InputError, OSError) as error:
        tell("failed", message=fault(error))
    except Exception:  # whatever a run throws, the next one is tried
        traceback.print_exc()
        tell("failed", message="\n".join(traceback.format_exc().splitlines()[-6:]), broken=True)


if __name__ == "__main__":
    main()
