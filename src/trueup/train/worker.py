"""Processes that train: each takes one run after another, and one that dies takes only its own run with it.

A worker reads tasks from stdin and writes events to stdout, a line of JSON each; what libraries print goes to its log.
Importing torch takes longer than a small run, so a worker stays for the next.
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
from trueup.train.loop import chosen_device
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


def run_all(
    tasks: Sequence[Task], jobs: int, logs: Path, watch: Callable[[Event], None] | None = None
) -> dict[str, str]:
    """Runs the tasks, ``jobs`` side by side; the names of those that failed, and why. Ctrl-C ends the workers.

    Several on one GPU share it as ``shared_gpu`` says.
    """
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    failed: dict[str, str] = {}
    lock = threading.Lock()

    def tell(event: Event) -> None:
        with lock:
            if event.kind == "failed":
                failed[event.task.name] = event.message
            if watch is not None:
                watch(event)

    servers = [_Server(waiting, tell, logs / f"worker-{i}.log", jobs) for i in range(min(jobs, len(tasks)))]
    on_gpu = any(chosen_device(task.options.get("device", "auto")).type == "cuda" for task in tasks)
    with shared_gpu() if on_gpu and len(servers) > 1 else nullcontext():
        try:
            for server in servers:
                server.thread.start()
            for server in servers:
                while server.thread.is_alive():
                    server.thread.join(0.2)  # in short waits, so that Ctrl-C is heard
        finally:
            for server in servers:
                server.stop()
    return failed


class _Server:
    """Hands tasks to a worker process of its own, and starts another when that dies."""

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
                self._serve(task)
            except OSError as error:  # no process could be started, or no log written
                self.tell(Event("failed", task, message=fault(error)))
        self._end()

    def stop(self) -> None:
        self.stopping = True
        if self.process is not None:
            self.process.terminate()
        if self.thread.is_alive():
            self.thread.join(10)

    def _serve(self, task: Task) -> None:
        if self.process is None:
            self.process = self._worker()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.tell(Event("begin", task))
        done = 0.0
        try:
            self.process.stdin.write(task.line())
            self.process.stdin.flush()
            for line in self.process.stdout:
                event = json.loads(line)
                done = event.get("epochs_done", done)
                self.tell(Event(event["kind"], task, done, event.get("message", "")))
                if event["kind"] in ("done", "failed"):
                    return
        except (BrokenPipeError, ValueError):
            pass
        if not self.stopping:
            code = self.process.wait()
            how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            self.tell(Event("failed", task, done, f"its process ended ({how})\n{_last_lines(self.log)}".rstrip()))
        self._end()

    def _worker(self) -> subprocess.Popen[str]:
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
    except InputError as error:
        tell("failed", message=str(error))
    except OSError as error:
        tell("failed", message=fault(error))
    except Exception:  # whatever a run throws, the next one is tried
        traceback.print_exc()
        tell("failed", message="\n".join(traceback.format_exc().splitlines()[-6:]))


if __name__ == "__main__":
    main()
