"""The copy of 20 Newsgroups that scikit-learn keeps once it has fetched it: a pickle, read for its plain data alone.

Nothing in it is executed. NumPy's own functions are not called either, for a forged dtype makes them take bytes for
pointers: its arrays of numbers and of texts become lists, and nothing else is allowed.
"""

from __future__ import annotations

import io
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from trueup.inputs import InputError

COPY = "20news-bydate_py3.pkz"


class _Bunch(dict):
    """In place of scikit-learn's own."""

    def __setstate__(self, state: Any) -> None:
        """Its attributes are its items."""


class _Dtype:
    """In place of NumPy's: of numbers and texts alone."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.plain = np.dtype(str(code))
        if self.plain.kind not in "biufSU":
            raise pickle.UnpicklingError(f"it holds an array of {self.plain}, which plain data do not")

    def __setstate__(self, state: Any) -> None:
        """(version, byte order, ...)."""
        self.plain = self.plain.newbyteorder(state[1])


class _Array(list):
    """In place of NumPy's."""

    def __setstate__(self, state: Any) -> None:
        """(version, shape, dtype, whether columns come first, bytes)."""
        _, shape, dtype, columns_first, content = state
        self[:] = _listed(content, dtype, shape, "F" if columns_first else "C")


def _listed(content: Any, dtype: _Dtype, shape: tuple[int, ...], order: Any = "C") -> list[Any]:
    return np.ndarray(shape, dtype.plain, content, order=order).tolist()


def _empty_array(*_: Any) -> _Array:
    return _Array()


def _scalar(dtype: _Dtype, content: Any) -> Any:
    return _listed(content, dtype, (1,))[0]


_ALLOWED: dict[tuple[str, str], Any] = {
    ("sklearn.utils", "Bunch"): _Bunch,
    ("sklearn.utils._bunch", "Bunch"): _Bunch,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy.core.numeric", "_frombuffer"): _listed,  # of protocol 5, which is that of Python 3.14
    ("numpy._core.numeric", "_frombuffer"): _listed,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
}


class _PlainData(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it holds {module}.{name}, which plain data do not")
        return _ALLOWED[module, name]


def sklearn_home() -> Path:
    """Where scikit-learn keeps what it fetches."""
    return Path(os.environ.get("SCIKIT_LEARN_DATA") or Path.home() / "scikit_learn_data").expanduser()


def articles_of_copy(path: Path) -> list[tuple[str, str]]:
    """(group, text) of each article, those of its training part first."""
    try:
        content = _PlainData(io.BytesIO(zlib.decompress(path.read_bytes()))).load()
        parts = [content[part] for part in ("train", "test")]
        return [
            (_group(part["target_names"], label), text)
            for part in parts
            for label, text in zip(part["target"], part["data"], strict=True)
            if isinstance(text, str) or _not_text(text)
        ]
    except Exception as error:  # damaged pickles fail in many ways
        reason = str(error) or type(error).__name__
        raise InputError(f"{path}: not scikit-learn's copy of 20 Newsgroups ({reason}); fetch it again") from None


def _group(names: Any, label: Any) -> str:
    if label not in range(len(names)):
        raise ValueError(f"a target is {label!r}, where there are {len(names)} groups")
    return str(names[int(label)])


def _not_text(found: Any) -> bool:
    raise TypeError(f"an article is {type(found).__name__}, not text")
