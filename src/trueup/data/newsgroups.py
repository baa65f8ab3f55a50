"""20 Newsgroups (Lang 1995): 19 997 articles, a thousand from each of twenty groups.

They are taken in one of three forms: lines of JSON (``group`` and ``text``), packed with gzip or not; the folder of the
original archive, a folder for each group and a file for each article; or the copy that scikit-learn keeps, which is the
later edition "by date" with fewer articles and fewer headers. A folder with more than one of them is refused: whether
they are parts of one set, or the same set twice, is not to be seen.

They are prepared as by the code that mukhoti2020 adapted, which is that of a Keras example: the body after the first
blank line, lower case, punctuation to spaces, the 19 999 most frequent words, others left out, the last 1000 of them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from trueup.data import folders
from trueup.data.cache import cached
from trueup.data.dataset import Dataset, assemble, check_split, select, split_rows
from trueup.data.folders import PathLike
from trueup.data.sklearn_copy import COPY, articles_of_copy, sklearn_home
from trueup.data.texts import lines, word_array, words_of
from trueup.data.vectors import notes_on, vectors_of
from trueup.inputs import InputError

FOLDERS = ("20newsgroups", "20_newsgroups", "20_newsgroup", "20news-19997")
GROUPS = (
    "alt.atheism", "comp.graphics", "comp.os.ms-windows.misc", "comp.sys.ibm.pc.hardware", "comp.sys.mac.hardware",
    "comp.windows.x", "misc.forsale", "rec.autos", "rec.motorcycles", "rec.sport.baseball", "rec.sport.hockey",
    "sci.crypt", "sci.electronics", "sci.med", "sci.space", "soc.religion.christian", "talk.politics.guns",
    "talk.politics.mideast", "talk.politics.misc", "talk.religion.misc",
)  # fmt: skip
LENGTH, MOST_FREQUENT = 1000, 19_999
TEST_SHARE, VALIDATION_SHARE = 0.2, 900 / 15_998

_SPACES = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))
"""Keras's filters: the apostrophe stays."""
_BLANK_LINE = re.compile("\n\r?\n")
_HALF = re.compile("[\ud800-\udfff]")
"""What JSON can write and UTF-8 cannot."""


class Article(NamedTuple):
    group: str
    text: str
    place: str
    """Where it was read, for a message."""


def newsgroups(
    data_dir: PathLike | None = None, *, split: str = "seeded", seed: int = 0, vectors: str = "auto"
) -> Dataset:
    """20 Newsgroups: 15 098 / 900 / 3 999 articles (1000,) of 20 classes. It is not downloaded.

    Tokens are numbered by frequency from 1, padded in front with 0. The authors shuffle without a seed, so their split
    is not to be had: here the fifth that tests is the same for every seed, and of the rest the seed draws train and
    val. ``vectors`` is a file of word vectors, or its name in the folder glove.
    """
    check_split(split, seed)
    sources, listed = _files(data_dir)
    arrays = cached("20newsgroups", sources, lambda: prepared(_articles(sources, listed)), listed=listed)
    tokens, labels, vocabulary = arrays["tokens"], arrays["labels"], words_of(arrays["words"])
    found = vectors_of(vocabulary, vectors, data_dir, name="20newsgroups", sources=sources, listed=listed)
    rest, test = split_rows(len(labels), "seeded", 0, TEST_SHARE)
    train, val = split_rows(len(rest), split, seed, VALIDATION_SHARE)
    empty = int((tokens[:, -1] == 0).sum())
    notes = notes_on(tokens, found, vocabulary)
    if empty:
        notes += (f"{empty} article{'s hold' if empty > 1 else ' holds'} none of the most frequent words",)
    return assemble(
        "20newsgroups",
        train=select(tokens, labels, rest[train]),
        val=select(tokens, labels, rest[val]),
        test=select(tokens, labels, test),
        class_names=GROUPS,
        words=torch.from_numpy(found.table),
        notes=notes,
    )


# ---------------------------------------------------------------------- the articles


def _files(data_dir: PathLike | None) -> tuple[list[Path], list[Path]]:
    """The file of lines or scikit-learn's copy, and none listed; or none, and the articles of a folder of groups."""
    folder = folders.find(FOLDERS, data_dir, lambda place: bool(_packed_forms(place)) or (place / GROUPS[0]).is_dir())
    if folder is None and data_dir is None and (sklearn_home() / COPY).is_file():
        return [sklearn_home() / COPY], []
    if folder is None:
        wanted = f"articles (*.jsonl, *.jsonl.gz, {COPY}, or a folder for each group)"
        origin = "Unpack 20_newsgroups.tar.gz from https://kdd.ics.uci.edu/databases/20newsgroups."
        raise folders.missing("20newsgroups", wanted, FOLDERS, data_dir, origin)
    packed = _packed_forms(folder)
    forms = [path.name for path in packed] + ["folders of groups"] * (folder / GROUPS[0]).is_dir()
    if len(forms) > 1:
        raise InputError(f"{folder}: holds {' and '.join(forms)}; leave the one that is meant, or join its parts")
    if packed:
        return packed[:1], []
    files = [path for group in GROUPS for path in sorted((folder / group).glob("*")) if path.name.isdigit()]
    if not files:
        raise InputError(f"{folder / GROUPS[0]}: no articles in it, which are files named by numbers")
    return [], files


def _packed_forms(folder: Path) -> list[Path]:
    return [path for pattern in ("*.jsonl", "*.jsonl.gz", COPY) for path in sorted(folder.glob(pattern))]


def _articles(sources: Sequence[Path], listed: Sequence[Path]) -> list[Article]:
    """All articles, checked, those of a group together."""
    if listed:
        found = [Article(path.parent.name, _latin(path), str(path)) for path in listed]
    elif sources[0].name == COPY:
        pairs = enumerate(articles_of_copy(sources[0]))
        found = [Article(group, text, f"{sources[0]}: article {i}") for i, (group, text) in pairs]
    else:
        found = [_of_line(line, f"{sources[0]}: line {number}") for number, line in lines(sources[0])]
    for article in found:
        if article.group not in GROUPS:
            raise InputError(f"{article.place}: {article.group!r} is none of the twenty groups")
        if not article.text.strip():
            raise InputError(f"{article.place}: the article is empty")
        if "\0" in article.text:
            raise InputError(f"{article.place}: holds a zero byte; it is no text")
        if _HALF.search(article.text):
            raise InputError(f"{article.place}: holds half of a character (a lone surrogate); it is no text")
    missing = set(GROUPS) - {article.group for article in found}
    if missing:
        where = listed[0].parents[1] if listed else sources[0]
        raise InputError(f"{where}: no article of {sorted(missing)[0]}; it may be half unpacked or half downloaded")
    return sorted(found, key=lambda article: article.group)


def _latin(path: Path) -> str:
    try:
        return path.read_bytes().decode("latin-1")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def _of_line(line: str, place: str) -> Article:
    try:
        content = json.loads(line)
        group, text = content["group"], content["text"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{place}: expected an object with group and text ({error!r})") from None
    if not isinstance(group, str) or not isinstance(text, str):
        raise InputError(f"{place}: group and text have to be texts")
    return Article(group, text, place)


# ---------------------------------------------------------------------- to numbers


def prepared(articles: Iterable[Article]) -> dict[str, np.ndarray]:
    """``tokens`` (N, 1000) int32, ``labels`` (N,) int64, and the ``words`` of the tokens: what is cached."""
    articles = list(articles)
    texts = [tokenised(article.text) for article in articles]
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    vocabulary = [word for word, _ in counts.most_common(MOST_FREQUENT)]
    if not vocabulary:
        raise InputError("20newsgroups: no article holds a word after its header")
    index = {word: number for number, word in enumerate(vocabulary, 1)}
    tokens = np.zeros((len(texts), LENGTH), np.int32)
    for row, text in zip(tokens, texts, strict=True):
        numbers = [index[word] for word in text if word in index][-LENGTH:]
        row[LENGTH - len(numbers) :] = numbers
    labels = np.array([GROUPS.index(article.group) for article in articles], np.int64)
    return {"tokens": tokens, "labels": labels, "words": word_array(vocabulary)}


def tokenised(text: str) -> list[str]:
    """The words of an article after its header.

    >>> tokenised("From: me\\nLines: 1\\n\\nIt's not (quite) so.\\n")
    ["it's", 'not', 'quite', 'so']
    """
    if "\n" not in text.replace("\r\n", ""):  # the archive's one article that mixes line ends stays as it was
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    blank = _BLANK_LINE.search(text)
    body = text[blank.end() :] if blank and blank.start() else text
    return [word for word in body.lower().translate(_SPACES).split(" ") if word]
