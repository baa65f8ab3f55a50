"""Files of text: lines that can be named when they are wrong, and lists of words as arrays."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from trueup.inputs import InputError


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file, packed with gzip or not, with their numbers from 1. Only a newline ends one."""
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                yield number, line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: line {number}: not text in UTF-8 ({error.reason} at byte {error.start})") from None
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{path}: cannot be read beyond line {number} ({error}); it may be damaged or half downloaded"
        ) from None


def word_array(words: list[str]) -> np.ndarray:
    """Words as the bytes of their lines, which a cache can hold."""
    return np.frombuffer("\n".join(words).encode(), np.uint8)


def words_of(array: np.ndarray) -> list[str]:
    """The words of :func:`word_array`."""
    return array.tobytes().decode().split("\n")
