"""Images in a Parquet file of the hub's layout to pixels.

It is a script as well, which :func:`decode_files` starts several times: ``decode.py FILE COLUMN START STOP`` writes the
pixels of these rows to its output. It imports nothing of trueup and so starts in a third of a second, and it needs no
guard in the program that loads the data, as the workers of multiprocessing would.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import numpy as np

SIZE = 32
ROWS_A_WORKER = 10_000
"""One second's work; fewer images than that are decoded in the process itself."""
FORMATS = ("PNG", "WEBP")
_AGAIN = "; it may be damaged or half downloaded: fetch it again"


class UnreadableError(ValueError):
    """The message names the file, and the row where there is one."""


def read_column(path: str | os.PathLike[str], column: str) -> Any:
    """A column of a Parquet file as an Arrow array in chunks."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            if column not in file.schema_arrow.names:
                raise UnreadableError(f"{path}: no column {column!r}; it has {', '.join(file.schema_arrow.names)}")
            return file.read(columns=[column]).column(0)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UnreadableError(f"{path}: not readable as Parquet ({reason}){_AGAIN}") from None


def decode_rows(path: str | os.PathLike[str], column: str, start: int, stop: int) -> np.ndarray:
    """(stop - start, 3, 32, 32) uint8, the images of these rows."""
    import pyarrow

    images = read_column(path, column)
    if not pyarrow.types.is_struct(images.type) or images.type.get_field_index("bytes") < 0:
        raise UnreadableError(f"{path}: column {column!r} holds {images.type}, not images (a struct with bytes)")
    encoded = [chunk.field("bytes") for chunk in images.slice(start, stop - start).chunks]
    pixels = np.empty((stop - start, SIZE, SIZE, 3), np.uint8)
    for i, image in enumerate(chain.from_iterable(encoded)):
        try:
            pixels[i] = decode_image(image.as_py())
        except (OSError, SyntaxError, ValueError, TypeError) as error:
            raise UnreadableError(f"{path}: row {start + i}: the image cannot be decoded ({error}){_AGAIN}") from None
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


def decode_image(encoded: bytes | None) -> np.ndarray:
    """(32, 32, 3) uint8. The size is looked at before a pixel is decoded; a huge one PIL itself refuses."""
    from PIL import Image

    if not encoded:
        raise ValueError("there are no bytes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(encoded), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(str(error)) from None
    with image:
        if image.size != (SIZE, SIZE) or image.mode != "RGB":
            wanted = f"{SIZE} x {SIZE} RGB"
            raise ValueError(f"expected {wanted}, got {image.width} x {image.height} {image.mode}")
        return np.asarray(image)


def decode_files(paths: Sequence[str | os.PathLike[str]], column: str, rows: Sequence[int]) -> list[np.ndarray]:
    """The images of each file, given how many rows each has; by a process a core when there are many."""
    if sum(rows) <= ROWS_A_WORKER:
        return [decode_rows(path, column, 0, count) for path, count in zip(paths, rows, strict=True)]
    pieces = [
        (file, start, min(start + ROWS_A_WORKER, count))
        for file, count in enumerate(rows)
        for start in range(0, count, ROWS_A_WORKER)
    ]
    found = [np.empty((count, 3, SIZE, SIZE), np.uint8) for count in rows]
    with ThreadPoolExecutor(cores()) as pool:
        done = pool.map(lambda piece: _in_worker(paths[piece[0]], column, *piece[1:]), pieces)
        for (file, start, stop), pixels in zip(pieces, done, strict=True):
            found[file][start:stop] = pixels
    return found


def _in_worker(path: str | os.PathLike[str], column: str, start: int, stop: int) -> np.ndarray:
    # -P: the folder of this file, whose names could hide others, does not go onto the worker's path
    command = [sys.executable, "-P", __file__, os.fspath(path), column, str(start), str(stop)]
    worker = subprocess.run(command, capture_output=True, check=False)
    if worker.returncode != 0 or len(worker.stdout) != (stop - start) * 3 * SIZE * SIZE:
        said = worker.stderr.decode(errors="replace").strip().splitlines()
        reason = said[-1] if said else f"the worker ended with {worker.returncode}"
        raise UnreadableError(reason if os.fspath(path) in reason else f"{path}: cannot be decoded ({reason})")
    return np.frombuffer(worker.stdout, np.uint8).reshape(-1, 3, SIZE, SIZE)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    try:
        sys.stdout.buffer.write(decode_rows(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])).data)
    except UnreadableError as unreadable:
        sys.exit(str(unreadable))
