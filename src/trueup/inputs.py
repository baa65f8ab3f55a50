"""The edge: anything array-like in, clean tensors out, or an InputError that names the argument and the row.

Everything behind this module assumes what it promises: two-dimensional floating-point logits or probabilities, whole
labels within range, no NaN. Rows are visited in blocks that fit into the processor's cache, so that a check and the
computation that follows it read the memory once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

BLOCK_ELEMENTS = 1 << 18  # 1 MiB of float32: what a core's own cache holds beside its temporaries

Array = Any
"""What the public functions accept: a tensor, an array, nested lists, or a DataFrame."""

_BINARY = "Predictions.from_binary; for a file load(..., binary=True), --binary on the command line"


class InputError(ValueError):
    """What was passed cannot be used. The message names the argument, the row where there is one, and the remedy."""


def as_tensor(value: Array, name: str) -> Tensor:
    """``value`` as a tensor of its own dtype, without a copy where its memory can be shared."""
    if isinstance(value, Tensor):
        return _known(value.detach(), name)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: not a rectangular array of numbers ({error})") from None
    if array.dtype == np.dtype(object):
        array = _unboxed(array, name)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name}: expected numbers, got {array.dtype.name} ({brief(array.ravel()[:1].tolist())})")
    if array.dtype.itemsize > 8 or (array.dtype.kind == "u" and array.dtype.itemsize > 1):
        array = array.astype(np.float64)
    if array.dtype.byteorder not in "=|" or any(step < 0 for step in array.strides) or not array.flags.writeable:
        array = array.astype(array.dtype.newbyteorder("="), copy=True)  # memory that torch cannot share
    return torch.from_numpy(array)


def _known(x: Tensor, name: str) -> Tensor:
    """A tensor of a dtype that torch computes with: wide unsigned integers become floats, exotic ones are refused."""
    if x.dtype in (torch.uint16, torch.uint32, torch.uint64):
        return x.double()
    if x.dtype.is_complex or x.is_quantized or (x.dtype.is_floating_point and x.dtype.itemsize < 2):
        kind = str(x.dtype).removeprefix("torch.")
        raise InputError(f"{name}: expected numbers, got {kind}; convert them to float32 first")
    return x


def _unboxed(array: np.ndarray, name: str) -> np.ndarray:
    """A column of boxed numbers (a DataFrame with missing values, say) as floats, None as NaN."""
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name}: not a rectangular array of numbers") from None


def like(result: Tensor, original: Array) -> Array:
    """``result`` in the kind of ``original``: tensor, DataFrame or Series, nested lists, else an array."""
    if isinstance(original, Tensor):
        return result.to(original.device)
    array = result.detach().cpu().numpy()
    if hasattr(original, "iloc"):
        axes = {"columns": original.columns} if array.ndim == 2 else {"name": original.name}
        return type(original)(array, index=original.index, **axes)
    if isinstance(original, list | tuple):
        return array.tolist()
    return array


def logits(value: Array, name: str = "logits", *, masked: bool = False, classes: int | None = None) -> Tensor:
    """Checked (N, K) logits, float32 or float64. ``masked`` admits -inf, a class that cannot occur.

    Rows that all lie within [0, 1] and sum to one are taken for probabilities and refused. One row alone is no
    evidence: the logits of a single sample may happen to be such numbers, as 0 and 1 are.
    """
    x = matrix(value, name, classes)
    normalised = len(x) > 1
    for rows, block in row_blocks(x):
        _require_finite(block, rows.start, name, masked)
        if normalised:  # one row that is no distribution settles that these are logits
            normalised = bool((block >= 0).all()) and _sum_error(block) <= sum_tolerance(x)
    if normalised:
        raise InputError(
            f"{name}: every row lies within [0, 1] and sums to one, so these are probabilities, not logits. "
            "Pass them as probs, or take their logarithm first."
        )
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def probabilities(value: Array, name: str = "probs") -> Tensor:
    """Checked (N, K) probabilities, float32 or float64."""
    x = matrix(value, name)
    confidences(x, name)
    return x.to(working_dtype(x))


def confidences(x: Tensor, name: str = "probs") -> Tensor:
    """(N,) the largest entry of each row of an (N, K) matrix, which is checked in the same pass to hold distributions.

    A NaN or an infinity makes the sum of its row one too, so the sums and the smallest entry see every fault.
    """
    top, sums = (x.new_empty(len(x), dtype=working_dtype(x)) for _ in range(2))
    nonnegative = _maxima_by_bits(x, top, sums) or _maxima(x, top, sums) >= 0
    if not (nonnegative and float((sums - 1).abs().max()) <= sum_tolerance(x)):
        for rows, block in row_blocks(x):
            distributions(block, name, rows.start)
    return top


def _maxima(x: Tensor, top: Tensor, sums: Tensor) -> float:
    """Fills the row maxima and the row sums; the smallest entry of all."""
    ones, lowest = x.new_ones(x.shape[1], dtype=top.dtype), torch.inf
    for rows, block in row_blocks(x):
        block = block.to(top.dtype)
        torch.amax(block, 1, out=top[rows])
        torch.mv(block, ones, out=sums[rows])
        lowest = min(lowest, float(block.min()))
    return lowest


def _maxima_by_bits(x: Tensor, top: Tensor, sums: Tensor) -> bool:
    """The same for long rows, without a pass for the smallest entry; False where an entry may be negative.

    Floats that are not negative order as their bits do, and a sign bit makes an unsigned integer larger than any of
    them. NumPy reduces long rows of integers at the speed of the memory (and short ones slowly).
    """
    if x.device.type != "cpu" or x.dtype != top.dtype or x.shape[1] < 64 or x.stride(1) != 1:
        return False
    unsigned = np.uint32 if x.dtype == torch.float32 else np.uint64
    bits, maxima = x.numpy().view(unsigned), top.numpy().view(unsigned)
    ones = x.new_ones(x.shape[1])
    for rows, block in row_blocks(x):
        np.maximum.reduce(bits[rows], axis=1, out=maxima[rows])
        torch.mv(block, ones, out=sums[rows])
    return bool(maxima.max() < np.array(np.inf, x.numpy().dtype).view(unsigned))


def labels(value: Array, of: Tensor, name: str = "labels") -> Tensor:
    """Checked (N,) labels of the rows of an (N, K) matrix as int64, whole numbers from 0 to K - 1, on its device."""
    rows, classes = of.shape
    y = as_tensor(value, name)
    if y.ndim != 1:
        raise InputError(f"{name}: expected one label a row, shape ({rows},), got {tuple(y.shape)}")
    if len(y) != rows:
        raise InputError(f"{name}: {len(y)} labels for {rows} rows; each row needs one")
    if y.dtype.is_floating_point:
        whole = y == y.round()  # False for NaN; an infinity fails the range below
        if not bool(whole.all()):
            row = int(torch.nonzero(~whole)[0])
            raise InputError(
                f"{name}: row {row} is {float(y[row]):g}; a label is a whole number from 0 to {classes - 1}"
            )
    low, high = (float(v) for v in torch.aminmax(y.double() if y.dtype.is_floating_point else y.long()))
    if low < 0 or high >= classes:
        row = int(torch.nonzero((y < 0) | (y >= classes))[0])
        raise InputError(
            f"{name}: row {row} is {float(y[row]):g}, outside 0 to {classes - 1} ({classes} classes, counted from 0)"
        )
    return y.to(of.device, torch.int64)


def row_blocks(x: Tensor, elements: int = BLOCK_ELEMENTS) -> Iterator[tuple[slice, Tensor]]:
    """(rows, block) over consecutive rows; one block on an accelerator, where every block would cost a wait."""
    size = len(x) if x.device.type != "cpu" else max(1, elements // x.shape[1])
    for start in range(0, len(x), size):
        rows = slice(start, min(start + size, len(x)))
        yield rows, x[rows]


def working_dtype(x: Tensor) -> torch.dtype:
    """float32 for the half precisions, else the dtype itself."""
    return x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32


def sum_tolerance(x: Tensor) -> float:
    """How far a row of (..., K) may miss a sum of one: K roundings of its dtype, and never less than 1e-3."""
    return max(1e-3, x.shape[-1] * torch.finfo(x.dtype).eps)


def positive(value: float, name: str) -> float:
    """A finite number above zero."""
    if not (isinstance(value, int | float) and 0 < value < float("inf")):
        raise InputError(f"{name}: expected a number above 0, got {value!r}")
    return float(value)


def between_0_and_1(value: float, name: str) -> float:
    """A number above 0 and below 1."""
    if not (isinstance(value, int | float | np.floating) and 0 < value < 1):
        raise InputError(f"{name}: expected a number between 0 and 1, got {value!r}")
    return float(value)


def count(value: int, name: str, least: int = 1) -> int:
    """A whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return int(value)


def brief(value: Any, written: Callable[[Any], str] = repr) -> str:
    """How a value is written in Python, cut to what a message can hold."""
    text = written(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def is_number(text: str) -> bool:
    """Whether a text can be read as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def writable(path: str | os.PathLike[str]) -> Path:
    """A path that a file can be written to, as far as can be told before."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: a folder; expected the name of a file in it")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist")
    return path


def matrix(value: Array, name: str, classes: int | None = None) -> Tensor:
    """``value`` as an (N, K) floating-point tensor whose entries are not looked at yet."""
    x = as_tensor(value, name)
    if x.ndim != 2:
        hint = f" (a single score a row: {_BINARY})" if x.ndim == 1 else ""
        raise InputError(f"{name}: expected two dimensions, (samples, classes), got shape {tuple(x.shape)}{hint}")
    if len(x) == 0:
        raise InputError(f"{name}: empty; at least one row is needed")
    if x.shape[1] < 2:
        raise InputError(f"{name}: {x.shape[1]} class; at least two are needed (a single score: {_BINARY})")
    if classes is not None and x.shape[1] != classes:
        raise InputError(f"{name}: {x.shape[1]} classes where {classes} are expected")
    return x if x.dtype.is_floating_point else x.double()


def possible_rows(x: Tensor, name: str) -> Tensor:
    """(..., K) logits as they came, each row with a finite one and the rest finite or -inf, a masked class. Compiled or
    batched code, and an accelerator, where looking would cost a wait, are left alone."""
    if x.ndim == 0 or x.shape[-1] == 0:
        raise InputError(f"{name}: expected shape (..., classes), got {tuple(x.shape)}")
    if can_look(x):
        _require_finite(x.detach().reshape(-1, x.shape[-1]), 0, name, masked=True)
    return x


def can_look(x: Tensor) -> bool:
    """Whether the values of a tensor can be read at no cost: eager code on the CPU, not under ``vmap``."""
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return False
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    while functorch.is_gradtrackingtensor(x):
        x = functorch.get_unwrapped(x)
    return not functorch.is_batchedtensor(x)


def _sum_error(block: Tensor) -> float:
    return float((block.to(working_dtype(block)).sum(1) - 1).abs().max())


def _require_finite(block: Tensor, first: int, name: str, masked: bool) -> None:
    if bool(torch.isfinite(block.to(working_dtype(block)).sum())):  # a NaN or an infinity spoils the sum of all
        return
    bad = torch.isnan(block) | (block == torch.inf) if masked else ~torch.isfinite(block)
    if bool(bad.any()):
        row, column = (int(v) for v in torch.nonzero(bad)[0])
        allowed = "finite, or -inf for a masked class" if masked else "finite"
        raise InputError(
            f"{name}: row {first + row}, class {column} is {float(block[row, column])}; it must be {allowed}"
        )
    if masked and bool((block == -torch.inf).all(1).any()):
        row = int(torch.nonzero((block == -torch.inf).all(1))[0])
        raise InputError(f"{name}: row {first + row} is -inf in every class; at least one class must be possible")


def distributions(block: Tensor, name: str, first: int = 0) -> None:
    """Raises for the first faulty entry of rows of probabilities, which are counted from ``first``, if it has one."""
    _require_finite(block, first, name, masked=False)
    hint = "If these are logits, apply softmax first, or pass them where logits are asked for."
    negative = torch.nonzero(block < 0)
    if len(negative):
        row, column = (int(v) for v in negative[0])
        value = float(block[row, column])
        raise InputError(f"{name}: row {first + row}, class {column} is {value:g}; no probability is negative. {hint}")
    total, tolerance = block.to(working_dtype(block)).sum(1), sum_tolerance(block)
    missed = torch.nonzero((total - 1).abs() > tolerance)
    if len(missed):
        row = int(missed[0])
        off = f"sums to {float(total[row]):.6g}, not to one (allowed: {tolerance:.2g} off)"
        raise InputError(f"{name}: row {first + row} {off}. {hint}")
