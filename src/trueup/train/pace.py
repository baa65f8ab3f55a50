"""How far a training is, told while an epoch of minutes goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

TELL_SECONDS = 0.2
"""No more often than this, so that telling costs next to nothing."""

STEP_COST = 3
"""A sample in a step (forward, and a backward of twice that) costs about this many times one that is only measured."""


class Pace:
    """Tells ``watch`` how many epochs are done, as in 3.25, and never less than before.

    A GPU is behind the host that hands it its work, and is not waited for: an event, which the host can ask without a
    wait, says how far it is. Where the host is never held up, as in epochs of a second, only their ends are told.
    """

    def __init__(self, watch: Callable[[float], None] | None, place: torch.device, work: int) -> None:
        """``work``: of an epoch, in samples that are only measured."""
        self.watch, self.work = watch, work
        self.marker = torch.cuda.Event() if place.type == "cuda" and watch is not None else None

    def begin(self, epoch: int) -> None:
        self.epoch, self.handed_over = epoch, 0
        self.marked: int | None = None
        self._tell(0)

    def add(self, work: int) -> None:
        """So much more was done, or handed to the GPU."""
        self.handed_over += work
        if self.watch is None or time.perf_counter() - self.asked < TELL_SECONDS:
            return
        if self.marker is None:
            self._tell(self.handed_over)
            return
        self.asked = time.perf_counter()
        if self.marked is None or self.marker.query():
            if self.marked is not None:
                self._tell(self.marked)
            self.marker.record()
            self.marked = self.handed_over

    def _tell(self, done: int) -> None:
        self.asked = time.perf_counter()
        if self.watch is not None:
            self.watch(self.epoch + done / self.work)
