"""One thread an operation, and blocks of rows that threads of our own share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor

from trueup import inputs

_SMALL_ELEMENTS = 1 << 16  # twice what PyTorch gives to one thread at the least
_TEMPORARIES = 24 << 20
"""Bytes. glibc hands freed memory back at once and then faults in every page of the next block, which is most of a
pass, until as large a piece as the blocks together has been freed."""

_pool: ContextVar[ThreadPoolExecutor | None] = ContextVar("pool", default=None)
Task = TypeVar("Task")
Result = TypeVar("Result")


@contextmanager
def sharing(z: Tensor) -> Iterator[None]:
    """Inside, an operation on the CPU takes one thread, and :func:`in_order` shares its tasks among as many as PyTorch
    would use. A small problem stays on one.

    PyTorch's own threads share each operation and wait for each other at its end, busily. Where another program wants
    one of the cores, that is a time slice an operation: a fit of half a second takes a minute. Ours wait for nobody.
    """
    threads = torch.get_num_threads()
    if z.device.type == "cpu" and z.numel() > _SMALL_ELEMENTS:
        torch.empty(_TEMPORARIES, dtype=torch.uint8)
    if z.device.type != "cpu" or threads == 1:
        yield
        return
    torch.set_num_threads(1)  # new threads take it over
    try:
        if z.numel() <= _SMALL_ELEMENTS:
            yield
        else:
            with _own_pool(threads):
                yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _own_pool(threads: int) -> Iterator[None]:
    pool = ThreadPoolExecutor(threads, initializer=torch.set_grad_enabled, initargs=(False,))
    token = _pool.set(pool)
    try:
        yield
    finally:
        _pool.reset(token)
        pool.shutdown(cancel_futures=True)


def in_order(function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
    """What ``function`` gives for each task, in their order whichever thread was first, so that a sum over them has the
    same digits for any number of threads."""
    pool = _pool.get()
    return map(function, tasks) if pool is None else pool.map(function, tasks)


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
