"""Word vectors for a vocabulary, from a ``.npz`` or from a ``glove.*.txt`` (Pennington et al. 2014).

A ``.npz`` holds ``vectors`` (V, D) and ``words``, V of them joined by newlines. A line of a text file is a word and D
numbers, divided by spaces; a few words of the large files hold spaces themselves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trueup.data import folders
from trueup.data.cache import cached
from trueup.data.folders import PathLike
from trueup.data.texts import lines
from trueup.inputs import InputError

FOLDERS = ("glove", "glove.6B", "glove.840B.300d", "glove.42B.300d")
PATTERNS = ("*.npz", "glove*.txt", "glove*.txt.gz")
AUTO = "auto"


class Vectors(NamedTuple):
    """For a vocabulary of V words."""

    table: np.ndarray
    """(V + 1, D) float32: zero, which is that of padding, then those of the words, zero where one has none."""
    known: np.ndarray
    """(V + 1,) bool."""
    path: Path


def vectors_of(
    vocabulary: Sequence[str],
    choice: str,
    data_dir: PathLike | None,
    *,
    name: str,
    sources: Sequence[Path],
    listed: Sequence[Path] = (),
    stand_ins: Mapping[str, str] | None = None,
) -> Vectors:
    """The vectors of a vocabulary, which comes from the ``sources``; read once and cached.

    ``choice`` is a file, or its name in the folder ``glove``, or "auto": the first there. A word without a vector takes
    that of its stand-in.
    """
    path = vector_file(choice, data_dir, name)

    def read() -> dict[str, np.ndarray]:
        wanted = {word: number for number, word in enumerate(vocabulary, 1)}
        for word in (stand_ins or {}).values():
            wanted.setdefault(word, len(wanted) + 1)
        table, known = (read_npz if path.suffix == ".npz" else read_text)(path, wanted)
        for word, stand_in in (stand_ins or {}).items():
            if word in wanted and not known[wanted[word]]:
                table[wanted[word]], known[wanted[word]] = table[wanted[stand_in]], known[wanted[stand_in]]
        if not known[: len(vocabulary) + 1].any():
            raise InputError(
                f"{path}: holds vectors ({table.shape[1]} wide), but of none of the {len(vocabulary)} words of {name}, "
                f"which are in lower case; name another file, as in --data {name}:vectors=FILE"
            )
        return {"table": table[: len(vocabulary) + 1], "known": known[: len(vocabulary) + 1]}

    found = cached(f"{name}-vectors", [*sources, path], read, listed=listed)
    return Vectors(found["table"], found["known"], path)


def vector_file(choice: str, data_dir: PathLike | None, name: str) -> Path:
    """The file that is meant."""
    if choice != AUTO and Path(choice).expanduser().is_file():
        return Path(choice).expanduser()
    folder = folders.find(FOLDERS, data_dir, lambda place: bool(_files(place)))
    if folder is None:
        origin = "Fetch glove.6B.zip from https://nlp.stanford.edu/projects/glove and unpack it into glove/."
        raise folders.missing(name, f"word vectors ({', '.join(PATTERNS)})", FOLDERS, data_dir, origin)
    for path in _files(folder):
        if choice in (AUTO, path.name, path.stem):
            return path
    there = ", ".join(path.name for path in _files(folder))
    raise InputError(f"vectors: {choice!r} is no file, nor one of those in {folder}: {there}")


def _files(folder: Path) -> list[Path]:
    return [path for pattern in PATTERNS for path in sorted(folder.glob(pattern))]


def read_npz(path: Path, wanted: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """(table, known) with the wanted words at their numbers, from an .npz."""
    try:
        with open(path, "rb") as source, np.load(source, allow_pickle=False) as file:
            numbers, words = np.asarray(file["vectors"]), str(file["words"]).split("\n")
    except Exception as error:  # damaged archives fail in many ways
        reason = str(error) or type(error).__name__
        raise InputError(f"{path}: no word vectors; expected arrays vectors and words ({reason})") from None
    if numbers.ndim != 2 or numbers.dtype.kind != "f" or len(numbers) != len(words):
        raise InputError(f"{path}: {len(words)} words for vectors of {numbers.dtype} {numbers.shape}")
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, which is told
        strange = np.flatnonzero(~np.isfinite(numbers.astype(np.float32, copy=False)).all(1))
    if len(strange):
        raise InputError(f"{path}: line {strange[0] + 1}: the vector of {words[strange[0]]!r} is not finite")
    table, known = _empty(wanted, numbers.shape[1])
    pairs = np.array([(wanted[word], row) for row, word in enumerate(words) if word in wanted]).reshape(-1, 2)
    table[pairs[:, 0]] = numbers[pairs[:, 1]]
    known[pairs[:, 0]] = True
    return table, known


def read_text(path: Path, wanted: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """The same from a text; every line is held to the width of the first.

    The numbers of the wanted lines alone are read, and those of the last one, where a file is cut off. That line needs
    no newline, which many programs leave out: all of its numbers have to be there, and ``notes_on`` tells that it has
    none.
    """
    table, known, width = np.empty(0), np.empty(0), 0
    number, word, parts = 0, "", [""]
    for number, line in lines(path):
        if not width:
            width = line.count(" ")
            table, known = _empty(wanted, width)
        word, *parts = line.rsplit(" ", width)
        if len(parts) != width or not word or not width or _holds_a_number(word):
            found = line.count(" ")
            raise InputError(f"{path}: line {number}: a word and {found} numbers, where line 1 has {width or 'none'}")
        if word not in wanted or known[wanted[word]]:
            continue
        table[wanted[word]], known[wanted[word]] = _vector(parts, word, path, number), True
    if not width:
        raise InputError(f"{path}: the file is empty")
    _vector(parts, word, path, number)
    return table, known


def _vector(parts: Sequence[str], word: str, path: Path, number: int) -> np.ndarray:
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, which is told
            vector = np.array(parts, np.float32)
    except ValueError as error:
        raise InputError(f"{path}: line {number}: the vector of {word!r}: {error}") from None
    if not np.isfinite(vector).all():
        raise InputError(f"{path}: line {number}: the vector of {word!r} is not finite")
    return vector


def _empty(wanted: Mapping[str, int], width: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((len(wanted) + 1, width), np.float32), np.zeros(len(wanted) + 1, bool)


def _holds_a_number(word: str) -> bool:
    """Whether what is left of a line has a number after its beginning: the line has too many, or is two torn into one.

    The words with spaces of the large files, as ". . ." and "at name@domain.com", have none.
    """
    return any(map(_is_number, word.split(" ")[1:]))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def notes_on(tokens: np.ndarray, found: Vectors, vocabulary: Sequence[str]) -> tuple[str, ...]:
    """What whoever reads the results has to know: tokens without a vector, and a file that may be cut off."""
    return unknown_tokens(tokens, found, vocabulary) + _without_an_end(found.path)


def _without_an_end(path: Path) -> tuple[str, ...]:
    """A file that is cut off inside its last number cannot be told from a whole one but by the newline. One that is
    packed with gzip has an end of its own, and so have archives."""
    if path.suffix in (".npz", ".gz"):
        return ()
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        ends = file.read() == b"\n"
    if ends:
        return ()
    return (f"{path.name} does not end in a newline, as GloVe's files do: it may be cut off, and lack words",)


def unknown_tokens(tokens: np.ndarray, found: Vectors, vocabulary: Sequence[str]) -> tuple[str, ...]:
    """A note of how many tokens have no vector, with the most frequent of them; none where all have one."""
    counts = np.bincount(tokens.ravel(), minlength=len(found.known))
    counts[0] = 0
    total, unknown = int(counts.sum()), np.where(found.known, 0, counts)
    if not unknown.any():
        return ()
    often = [vocabulary[int(i) - 1] for i in np.argsort(-unknown, kind="stable")[:5] if unknown[i]]
    return (
        f"{unknown.sum()} of {total} tokens ({100 * unknown.sum() / total:.1f} %) have no vector in {found.path.name} "
        f"({found.table.shape[1]} wide) and are zero, most often {', '.join(often)}",
    )
