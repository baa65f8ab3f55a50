"""One thread an operation, and blocks of rows that threads of our own share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from trueup import inputs

_SMALL_ELEMENTS = 1 << 16  # twice what PyTorch gives to one thread at the least
_TEMPORARIES = 16 << 20
"""Bytes. glibc hands freed memory back at once and then faults in every page of the next block, which is most of a
pass, until as large a piece as the blocks together has been freed."""

_own = threading.local()
"""Of a thread that is in a fit: ``pool``, its helpers."""
Task = TypeVar("Task")
Result = TypeVar("Result")


@contextmanager
def sharing(z: Tensor) -> Iterator[None]:
    """Inside, :func:`in_order` shares its tasks among as many threads as PyTorch would use, each of which takes its
    operations alone. A small problem stays on one thread.

    PyTorch's own threads share each operation and wait for each other at its end, busily. Where another program wants
    one of the cores, that is a time slice an operation: a fit of half a second takes a minute. Ours wait for nobody.
    """
    threads = torch.get_num_threads()
    small = z.numel() <= _SMALL_ELEMENTS
    if z.device.type != "cpu":
        yield
        return
    if not small:
        torch.empty(_TEMPORARIES, dtype=torch.uint8)
    if small and threads > 1:
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
    elif small or threads == 1 or _pool() is not None or torch.is_autocast_enabled("cpu"):  # a thread has its own
        yield
    else:
        with _helpers(min(threads, z.numel() // _SMALL_ELEMENTS + 1)):
            yield


def _pool() -> ThreadPoolExecutor | None:
    return getattr(_own, "pool", None)


@contextmanager
def _helpers(count: int) -> Iterator[None]:
    """A pool of threads whose operations take one thread.

    To set that in a thread sets it for all threads that PyTorch has not seen yet, too: they all begin now, and what
    the caller has is set again at once.
    """
    before, ready = torch.get_num_threads(), threading.Barrier(count + 1)

    def begin() -> None:
        torch.get_num_threads()  # the first look takes what is set for all, the next line counts from then on
        torch.set_num_threads(1)
        ready.wait()

    pool = ThreadPoolExecutor(count)
    try:
        try:
            for _ in range(count):
                pool.submit(begin)
            ready.wait()
            _own.pool = pool
        except RuntimeError:  # no thread can be begun, as at the end of the interpreter: the caller does it all
            pass
        finally:
            ready.abort()  # after an interrupt nobody waits for the rest
            torch.set_num_threads(before)
        yield
    finally:
        _own.pool = None
        pool.shutdown(cancel_futures=True)


def in_order(function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
    """What ``function`` gives for each task, in their order whichever thread was first, so that a sum over them has the
    same digits for any number of threads."""
    pool, inference, work = _pool(), torch.is_inference_mode_enabled(), list(tasks)

    def alone(task: Task) -> Result:
        with torch.inference_mode(inference), torch.no_grad():
            return function(task)

    try:
        return map(function, work) if pool is None else pool.map(alone, work)
    except RuntimeError:  # the interpreter has begun to end, and takes no more tasks
        return map(function, work)


def each_block(
    function: Callable[[slice, Tensor], Result], x: Tensor, elements: int = inputs.BLOCK_ELEMENTS
) -> Iterator[Result]:
    """What ``function`` gives for (rows, block) of ``inputs.row_blocks``."""
    return in_order(lambda task: function(*task), inputs.row_blocks(x, elements))


def fill(out: Tensor, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``out``, whose rows become those that ``function`` gives for the rows of ``x``."""

    def one(rows: slice, block: Tensor) -> None:
        out[rows] = function(block)

    for _ in each_block(one, x):
        pass
    return out
