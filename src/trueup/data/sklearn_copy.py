"""The copy of 20 Newsgroups that scikit-learn keeps once it has fetched it: a pickle, read for its plain data alone.

Nothing in it is executed: besides lists, numbers and texts only NumPy's arrays are allowed, as in torch's weights_only.
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


_MAKE_ARRAY: Any = np.empty(0).__reduce__()[0]
_MAKE_SCALAR: Any = np.int64(0).__reduce__()[0]

_ALLOWED: dict[tuple[str, str], Any] = {
    ("sklearn.utils", "Bunch"): _Bunch,
    ("sklearn.utils._bunch", "Bunch"): _Bunch,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _MAKE_ARRAY,
    ("numpy._core.multiarray", "_reconstruct"): _MAKE_ARRAY,
    ("numpy.core.multiarray", "scalar"): _MAKE_SCALAR,
    ("numpy._core.multiarray", "scalar"): _MAKE_SCALAR,
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
            (str(part["target_names"][int(label)]), text)
            for part in parts
            for label, text in zip(part["target"], part["data"], strict=True)
            if isinstance(text, str) or _not_text(text)
        ]
    except Exception as error:  # damaged pickles fail in many ways
        reason = str(error) or type(error).__name__
        raise InputError(f"{path}: not scikit-learn's copy of 20 Newsgroups ({reason}); fetch it again") from None


def _not_text(found: Any) -> bool:
    raise TypeError(f"an article is {type(found).__name__}, not text")
