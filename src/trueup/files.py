"""Predictions on disk: .npz, .safetensors, .parquet, .csv and .tsv. Nothing from a file is ever executed.

Arrays and tensors are named ``logits`` or ``probs``, ``labels``, ``class_names``, ``meta``. Tables have a column
``label`` and one ``logit_NAME`` or ``prob_NAME`` for each class; NAME counts 0, 1, 2, ... or is the class's name.
"""

from __future__ import annotations

import csv
import errno
import json
import os
import shlex
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from trueup import inputs
from trueup.inputs import InputError, brief

FORMAT, VERSION = "trueup-predictions", "1"
_SINGULAR = {"logits": "logit", "probs": "prob", "scores": "score"}


class Content(NamedTuple):
    """What a file holds, not yet checked."""

    given: str
    """"logits" or "probs", or "scores" where one column does not say which."""
    values: np.ndarray
    labels: Any
    class_names: tuple[str, ...] | None
    meta: dict[str, Any]


def read(path: str | os.PathLike[str], *, binary: bool = False, ignore: tuple[str, ...] = ()) -> Content:
    """The content of a file, by the ending of its name."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: a folder, not a file")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    reader = _by_ending(path, READERS)
    if path.stat().st_size == 0:
        raise InputError(f"{path}: the file is empty")
    return reader(path, binary, ignore)


def write(path: str | os.PathLike[str], content: Content) -> None:
    """Writes the content under a temporary name first, so that a file is there whole or not at all."""
    path = inputs.writable(path)
    writer = _by_ending(path, WRITERS)
    with told_as(path):
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
        os.close(handle)
        try:
            writer(Path(temporary), content)
            with open(temporary, "rb+") as file:  # what takes its place has to be on the disk
                os.fsync(file.fileno())
            mask = os.umask(0)  # it can only be read by setting it
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def write_whole(path: Path, content: bytes) -> None:
    """The file is there whole or not at all, whatever happens to the process or the machine meanwhile."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with told_as(path):
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def told_as(path: Path) -> Iterator[None]:
    """What cannot be written is told under the name that was asked for: a full disk names no file, and a folder that
    is read-only the temporary one."""
    try:
        yield
    except SafetensorError as error:  # its way to say that the disk is full
        raise OSError(errno.EIO, str(error), str(path)) from None
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def fault(error: InputError | OSError) -> str:
    """What went wrong with which file, for people."""
    if isinstance(error, InputError):
        return str(error)
    where = error.filename2 or error.filename
    return f"{where}: {error.strerror or error}" if where else str(error)


def _by_ending(path: Path, table: dict[str, Callable]) -> Callable:
    if path.suffix.lower() not in table:
        raise InputError(f"{path}: unknown ending {path.suffix!r}; known: {', '.join(table)}")
    return table[path.suffix.lower()]


# ---------------------------------------------------------------------- arrays by name


def _from_arrays(
    path: Path, names: Sequence[str], get: Callable[[str], np.ndarray], ignore: tuple[str, ...]
) -> tuple[str, np.ndarray, np.ndarray]:
    """The values and labels among named arrays, every one of which has to be known or ignored."""
    names = [name for name in names if name not in ignore]
    given = [name for name in names if name in _SINGULAR]
    unknown = set(names) - set(given) - {"labels", "class_names", "meta"}
    if unknown:
        raise InputError(
            f"{path}: unknown array {brief(sorted(unknown)[0])}; expected logits or probs, labels, class_names, meta "
            f"({_left_out(sorted(unknown)[0])})"
        )
    if len(given) != 1 or "labels" not in names:
        raise InputError(
            f"{path}: expected logits or probs, and labels; it has {', '.join(sorted(names)) or 'nothing'}"
        )
    return given[0], get(given[0]), get("labels")


def _left_out(name: str) -> str:
    return f"--ignore {brief(shlex.quote(name), str)} leaves it out, in Python ignore=[{brief(name)}]"


def _read_npz(path: Path, binary: bool, ignore: tuple[str, ...]) -> Content:
    try:
        with open(path, "rb") as file:  # numpy leaves a damaged file open that it has opened itself
            arrays = np.load(file, allow_pickle=False)
            if isinstance(arrays, np.ndarray):
                raise InputError(f"{path}: a single array; expected an .npz with logits or probs, and labels")
            given, values, labels = _from_arrays(path, arrays.files, arrays.__getitem__, ignore)
            names, meta = (
                arrays[name] if name in arrays.files and name not in ignore else None
                for name in ("class_names", "meta")
            )
    except InputError:
        raise
    except Exception as error:  # what NumPy raises depends on what is in the headers
        raise InputError(f"{path}: {_npz_fault(path, error)}") from None
    return Content(given, values, labels, _names(path, names), _meta(path, None if meta is None else str(meta)))


def _npz_fault(path: Path, error: Exception) -> str:
    """NumPy takes all that it does not know for a pickle, and advises to load it unsafely."""
    if "pickle" not in str(error).lower():
        return f"not a whole .npz of plain arrays ({error!s:.200})"
    if not zipfile.is_zipfile(path) and path.read_bytes()[:1] != b"\x80":
        return "not an .npz file, nor anything else that NumPy wrote"
    return (
        "it holds pickled objects, which are never loaded; save plain arrays, as in "
        f"np.savez({path.name!r}, logits=logits, labels=labels), and names as np.array(names, dtype=str)"
    )


def _names(path: Path, names: Any) -> tuple[str, ...] | None:
    if names is None:
        return None
    names = names.tolist() if isinstance(names, np.ndarray) else names
    if not isinstance(names, list) or not all(isinstance(name, str | bytes | int | float) for name in names):
        raise InputError(f"{path}: class_names: expected a list of names, got {brief(names)}")
    return tuple(map(str, names))


def _meta(path: Path, text: str | None) -> dict[str, Any]:
    """Where the predictions came from, as JSON; none at all is nothing known."""
    try:
        meta = json.loads(text or "{}")
    except (json.JSONDecodeError, RecursionError):
        meta = None
    if not isinstance(meta, dict):
        raise InputError(f"{path}: meta: expected the text of a JSON object, got {brief(text)}")
    return meta


def _write_npz(path: Path, content: Content) -> None:
    arrays: dict[str, Any] = {content.given: content.values, "labels": content.labels}
    if content.class_names is not None:
        arrays["class_names"] = np.array(content.class_names)
    if content.meta:
        arrays["meta"] = np.array(json.dumps(content.meta))
    with open(path, "wb") as file:
        np.savez(file, **arrays)


def _read_safetensors(path: Path, binary: bool, ignore: tuple[str, ...]) -> Content:
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if about.get("format") == FORMAT and about.get("version") != VERSION:
                raise InputError(f"{path}: format version {about.get('version')!r}; this release reads {VERSION}")
            given, values, labels = _from_arrays(path, list(file.keys()), file.get_tensor, ignore)
        names = json.loads(about.get("class_names", "null"))
    except (SafetensorError, OSError, json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not a whole .safetensors file ({error})") from None
    return Content(given, values, labels, _names(path, names), _meta(path, about.get("meta")))


def _write_safetensors(path: Path, content: Content) -> None:
    tensors = {content.given: torch.from_numpy(content.values), "labels": torch.from_numpy(content.labels)}
    about = {"format": FORMAT, "version": VERSION, "meta": json.dumps(content.meta)}
    if content.class_names is not None:
        about["class_names"] = json.dumps(content.class_names)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata=about)


# ---------------------------------------------------------------------- tables


def _columns(
    path: Path, header: Sequence[str], binary: bool, ignore: tuple[str, ...]
) -> tuple[str, list[str], tuple[str, ...] | None]:
    """What the value columns hold, their names in the order of the classes, and the names of the classes."""
    header = [name for name in header if name not in ignore]
    if "label" not in header:
        raise InputError(
            f"{path}: no column 'label'; the first line names the columns, and here it is {brief(', '.join(header))}"
        )
    values = [name for name in header if name != "label"]
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise InputError(f"{path}: two columns have the same name, {brief(twice)}")
    if binary:
        kinds = {single: given for given, single in _SINGULAR.items()}
        if len(values) != 1 or values[0] not in kinds:
            raise InputError(f"{path}: a binary table has the columns 'label' and one of {', '.join(kinds)}")
        return kinds[values[0]], values, None
    prefixes = {"logit_": "logits", "prob_": "probs"}
    kind = {prefix for prefix in prefixes if any(name.startswith(prefix) for name in values)}
    unknown = [name for name in values if not name.startswith(tuple(prefixes))]
    if unknown:
        raise InputError(
            f"{path}: unknown column {brief(unknown[0])}; expected label and logit_* or prob_* "
            f"({_left_out(unknown[0])}; a single score needs --binary, in Python binary=True)"
        )
    if len(kind) != 1:
        raise InputError(f"{path}: expected columns logit_* or prob_*, one kind of them")
    prefix = kind.pop()
    suffixes = [name.removeprefix(prefix) for name in values]
    if sorted(suffixes) == sorted(str(k) for k in range(len(suffixes))):
        return prefixes[prefix], [f"{prefix}{k}" for k in range(len(suffixes))], None
    return prefixes[prefix], values, tuple(suffixes)


def _read_text(path: Path, binary: bool, ignore: tuple[str, ...]) -> Content:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            header = [name.strip() for name in next(csv.reader(file, delimiter=delimiter), [])]
        if not any(header):
            raise InputError(f"{path}: the file is empty, or its first line, which names the columns")
        given, wanted, names = _columns(path, header, binary, ignore)
        values, labels = _parsed(path, delimiter, header, wanted)
    except InputError:
        raise
    except (ValueError, UnicodeDecodeError, csv.Error, OSError) as error:
        raise InputError(
            f"{path}: not a table of numbers ({_fault(path, delimiter, ignore) or error!s:.200})"
        ) from None
    return Content(given, values, np.char.strip(labels), names, {})


def _parsed(path: Path, delimiter: str, header: list[str], wanted: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """The wanted columns as numbers and the labels as text, in one pass over all columns: a line that has more cells
    than the first is then an error, too."""
    runs = [(number, list(run)) for number, run in groupby(header, set(wanted).__contains__)]
    fields = [(str(i), float if number else object, (len(run),)) for i, (number, run) in enumerate(runs)]
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # a header alone is an empty table
        rows = np.loadtxt(
            path, dtype=fields, ndmin=1, delimiter=delimiter, skiprows=1, comments=None, quotechar='"',
            encoding="utf-8-sig",
        )  # fmt: skip
    column = {name: rows[str(i)][:, j] for i, (_, run) in enumerate(runs) for j, name in enumerate(run)}
    return np.stack([column[name] for name in wanted], axis=1), column["label"].astype(str)


def _fault(path: Path, delimiter: str, ignore: tuple[str, ...]) -> str:
    """The first faulty line of a table, counted as an editor counts; empty where none is found."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, delimiter=delimiter)
            header = [name.strip() for name in next(rows)]
            for row in rows:
                if row and len(row) != len(header):
                    return f"line {rows.line_num} has {len(row)} cells, where the first has {len(header)}"
                for name, cell in zip(header, row, strict=False):
                    if name != "label" and name not in ignore and not inputs.is_number(cell):
                        return f"line {rows.line_num}, column {name}: {brief(cell)} is no number"
    except UnicodeDecodeError:
        return _not_utf8(path)
    except (csv.Error, StopIteration, OSError):
        pass
    return ""


def _not_utf8(path: Path) -> str:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return f"line {number} is not UTF-8: {error.reason}, byte {line[error.start]:#04x}"
    return ""


def _write_text(path: Path, content: Content) -> None:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    names, labels = _table_names(content)
    for name in content.class_names or ():
        if name != name.strip() or "\n" in name or "\r" in name:
            raise InputError(
                f"class_names: {brief(name)} begins or ends with a space, or holds a line break, which a text table "
                "does not keep; save as .npz, .safetensors or .parquet"
            )
    digits = 9 if content.values.dtype.itemsize <= 4 else 17  # enough to read the same number back
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        writer.writerow([*names, "label"])
        for row, label in zip(content.values.tolist(), labels, strict=True):
            writer.writerow([*(f"{value:.{digits}g}" for value in row), label])


def _read_parquet(path: Path, binary: bool, ignore: tuple[str, ...]) -> Content:
    parquet, arrow = _pyarrow(path)
    try:
        table = parquet.read_table(path)
        given, wanted, names = _columns(path, table.column_names, binary, ignore)
        values = np.stack([table.column(name).to_numpy() for name in wanted], axis=1)
        labels = table.column("label").to_numpy()
        if labels.dtype.kind in "iuf" and names:
            labels = labels.astype(str)  # as in a text table: classes may be named by numbers, as in prob_3 and prob_8
        about = (table.schema.metadata or {}).get(b"trueup", b"").decode()
    except (arrow.ArrowException, OSError, TypeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a whole Parquet file of numbers ({error})") from None
    return Content(given, values, labels, names, _meta(path, about))


def _write_parquet(path: Path, content: Content) -> None:
    parquet, arrow = _pyarrow(path)
    names, labels = _table_names(content)
    columns = {name: content.values[:, k] for k, name in enumerate(names)}
    table = arrow.table({**columns, "label": labels})
    parquet.write_table(table.replace_schema_metadata({"trueup": json.dumps(content.meta)}), path)


def _table_names(content: Content) -> tuple[list[str], list[Any]]:
    """The columns of the values, and the labels: class names where there are some."""
    names = content.class_names or [str(k) for k in range(content.values.shape[1])]
    columns = [f"{_SINGULAR[content.given]}_{name}" for name in names]
    labels = content.labels.tolist()
    return columns, [content.class_names[k] for k in labels] if content.class_names else labels


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"{path}: Parquet needs pyarrow; install trueup[data], or use .npz") from None
    return pyarrow.parquet, pyarrow


READERS: dict[str, Callable[[Path, bool, tuple[str, ...]], Content]] = {
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
    ".parquet": _read_parquet,
    ".csv": _read_text,
    ".tsv": _read_text,
}
WRITERS: dict[str, Callable[[Path, Content], None]] = {
    ".npz": _write_npz,
    ".safetensors": _write_safetensors,
    ".parquet": _write_parquet,
    ".csv": _write_text,
    ".tsv": _write_text,
}
