"""The Stanford Sentiment Treebank (Socher et al. 2013): 11 855 sentences as trees, 0 to 4 at each node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from trueup.data import folders, trees
from trueup.data.cache import cached
from trueup.data.dataset import Dataset, Split, assemble, check_split
from trueup.data.folders import PathLike
from trueup.data.texts import lines, word_array, words_of
from trueup.data.vectors import notes_on, vectors_of
from trueup.inputs import InputError

FOLDERS = ("sst", "sst/trees", "trees", "trainDevTestTrees_PTB/trees")
FILES = {"train": "train.txt", "val": "dev.txt", "test": "test.txt"}
CLASSES = ("negative", "positive")
SENTIMENTS = np.array([0, 0, 2, 1, 1])
"""0 to 4 as negative, positive and, beyond the classes, neutral."""
STAND_INS = {
    "-lrb-": "(", "-rrb-": ")", "-lcb-": "{", "-rcb-": "}", "-lsb-": "[", "-rsb-": "]", "``": '"', "''": '"',
    "--": "-", "n't": "not", "ca": "can", "wo": "will", "'re": "are", "'ve": "have", "'ll": "will", "'m": "am",
}  # fmt: skip
"""How the Penn Treebank writes brackets, quotes and what is left of a contraction, where GloVe has no vector for it."""


def sst(data_dir: PathLike | None = None, *, split: str = "seeded", seed: int = 0, vectors: str = "auto") -> Dataset:
    """SST with two classes: 6 920 / 872 / 1 821 trees (M, 2), without those of a neutral root. It is not downloaded.

    The three parts are those of its authors: ``split`` and ``seed`` have no effect. Words are in lower case. Every node
    has a target: negative, positive, or 2 for neutral; the label of a tree is that of its root. ``vectors`` is a file
    of word vectors, or its name in the folder glove.
    """
    check_split(split, seed)
    folder = folders.find(FOLDERS, data_dir, lambda place: any(_file(place, name) for name in FILES.values()))
    if folder is None:
        origin = "Fetch trainDevTestTrees_PTB.zip from https://nlp.stanford.edu/sentiment."
        raise folders.missing("sst", "trees (train.txt, dev.txt, test.txt, or with .gz)", FOLDERS, data_dir, origin)
    paths = {part: _path(folder, name) for part, name in FILES.items()}
    arrays = cached("sst", list(paths.values()), lambda: _read(paths))
    vocabulary = words_of(arrays["words"])
    train, val, test = (_split(arrays[f"{part}_nodes"], arrays[f"{part}_labels"]) for part in FILES)
    found = vectors_of(vocabulary, vectors, data_dir, name="sst", sources=list(paths.values()), stand_ins=STAND_INS)
    tokens = np.concatenate([part.inputs[..., 0].numpy().ravel() for part in (train, val, test)])
    return assemble(
        "sst",
        train=train,
        val=val,
        test=test,
        class_names=CLASSES,
        words=torch.from_numpy(found.table),
        notes=notes_on(tokens, found, vocabulary),
    )


def _file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _path(folder: Path, name: str) -> Path:
    path = _file(folder, name)
    if path is None:
        raise InputError(f"{folder / name}: no such file, nor with .gz")
    return path


def _read(paths: dict[str, Path]) -> dict[str, np.ndarray]:
    """``words``, and for each part ``_nodes`` (N, M, 2) int32 and ``_labels`` (N, M) int64, 0 to 4: what is cached."""
    packed = {part: [_packed(line, path, number) for number, line in lines(path)] for part, path in paths.items()}
    for part, path in paths.items():
        if not packed[part]:
            raise InputError(f"{path}: the file is empty")
        if all(SENTIMENTS[tree.labels[0]] >= len(CLASSES) for tree in packed[part]):
            raise InputError(f"{path}: every tree has a neutral root (2), and those are left out; none remains")
    everything = [tree for part in packed.values() for tree in part]
    vocabulary, nodes = trees.vocabulary(everything), max(len(tree.words) for tree in everything)
    index = {word: number for number, word in enumerate(vocabulary, 1)}
    found = {"words": word_array(vocabulary)}
    for part, of_part in packed.items():
        found[f"{part}_nodes"], found[f"{part}_labels"] = trees.arrays(of_part, index, nodes)
    return found


def _packed(line: str, path: Path, number: int) -> trees.Packed:
    if "\0" in line:
        raise InputError(f"{path}: line {number}: holds a zero byte; it is no text")
    try:
        return trees.pack(trees.parse(line.lower()))
    except InputError as error:
        raise InputError(f"{path}: line {number}: {error}") from None


def _split(nodes: np.ndarray, labels: np.ndarray) -> Split:
    kept = SENTIMENTS[labels[:, 0]] < len(CLASSES)
    targets = np.where(labels[kept] == trees.NOTHING, trees.NOTHING, SENTIMENTS[labels[kept].clip(0)])
    inputs, found = torch.from_numpy(nodes[kept]), torch.from_numpy(targets)
    return Split(inputs, found[:, 0].contiguous(), targets=found)
