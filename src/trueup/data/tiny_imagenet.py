"""Tiny-ImageNet (Stanford's course CS231n): 100 000 + 10 000 colour images of 64 x 64, of 200 classes.

    train/n01443537/images/*.JPEG   a folder for each class
    val/images/*.JPEG               val/val_annotations.txt: the file and the class of each
    words.txt                       the names of the classes, where it is there

Its own test images have no labels and are not read. The others are decoded once (see :mod:`trueup.data.cache`): 1.4 GB.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from trueup.data import folders
from trueup.data.cache import cached
from trueup.data.dataset import Dataset, assemble, check_split, select, split_rows
from trueup.data.decode import cores
from trueup.data.folders import PathLike
from trueup.data.texts import lines
from trueup.inputs import InputError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's, which mukhoti2020's code takes."""
FOLDERS = ("tiny-imagenet", "tiny-imagenet-200", "tiny_imagenet")
SIZE = 64
ANNOTATIONS = "val_annotations.txt"
VAL_IS_TEST = (
    "val and test are the same images, as in the authors' code: calibrators are fitted on the images they are judged on"
)


def tiny_imagenet(data_dir: PathLike | None = None, *, split: str = "seeded", seed: int = 0) -> Dataset:
    """Tiny-ImageNet: 90 000 / 10 000 / 10 000 images (3, 64, 64) of 200 classes. It is not downloaded.

    The images under val test. With ``split="mukhoti2020"`` all 100 000 train, and the images under val validate as well
    as test, as in the authors' code: what is fitted on val has then seen the test set.
    """
    check_split(split, seed)
    folder = folders.find(FOLDERS, data_dir, lambda place: (place / "train").is_dir() and (place / "val").is_dir())
    if folder is None:
        origin = "Unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip."
        raise folders.missing("tiny-imagenet", "folders train and val of it", FOLDERS, data_dir, origin)
    classes = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    files = {"train": _train(folder, classes), "test": _val(folder, classes)}
    listed = [path for of_part in files.values() for path in of_part]
    annotations = folder / "val" / ANNOTATIONS
    arrays = cached("tiny-imagenet", [annotations], lambda: _decoded(files, classes), listed=listed)
    test = select(arrays["test_images"], arrays["test_labels"], slice(None))
    notes: tuple[str, ...] = ()
    if split == "mukhoti2020":
        notes = (VAL_IS_TEST,)
        train, val = select(arrays["train_images"], arrays["train_labels"], slice(None)), test
    else:
        rows = split_rows(len(arrays["train_labels"]), split, seed)
        train, val = (select(arrays["train_images"], arrays["train_labels"], of) for of in rows)
    return assemble(
        "tiny-imagenet",
        train=train,
        val=val,
        test=test,
        class_names=_names(folder, classes),
        mean=MEAN,
        std=STD,
        notes=notes,
    )


Labelled = dict[Path, str]
"""The class of each file."""


def _train(folder: Path, classes: Sequence[str]) -> Labelled:
    found: Labelled = {}
    for name in classes:
        images = sorted((folder / "train" / name / "images").glob("*.JPEG"))
        if not images:
            raise InputError(f"{folder / 'train' / name / 'images'}: no .JPEG in it; unpack the archive again")
        found |= dict.fromkeys(images, name)
    if len(classes) < 2:
        raise InputError(f"{folder / 'train'}: {len(classes)} folders of classes; at least two are needed")
    return found


def _val(folder: Path, classes: Sequence[str]) -> Labelled:
    """The images in the order of the annotations; each has one, and each annotation an image and a class."""
    path, images = folder / "val" / ANNOTATIONS, folder / "val" / "images"
    known = set(classes)
    found: Labelled = {}
    for number, line in lines(path):
        name, *rest = line.split("\t")
        if not rest:
            raise InputError(f"{path}: line {number}: expected a file and its class, divided by a tab, got {line!r}")
        if not (images / name).is_file():
            raise InputError(f"{path}: line {number}: there is no {images / name}")
        if rest[0] not in known:
            raise InputError(f"{path}: line {number}: {rest[0]!r} is none of the classes of {folder / 'train'}")
        if images / name in found:
            raise InputError(f"{path}: line {number}: a second annotation of {name}")
        found[images / name] = rest[0]
    for image in sorted(images.glob("*.JPEG")):
        if image not in found:
            raise InputError(f"{image}: has no annotation in {path}")
    if not found:
        raise InputError(f"{path}: the file is empty")
    return found


def _names(folder: Path, classes: Sequence[str]) -> tuple[str, ...]:
    """What words.txt calls the classes first, where it tells all of them apart; else their folders."""
    path = folder / "words.txt"
    if not path.is_file():
        return tuple(classes)
    called = dict(line.split("\t", 1) for _, line in lines(path) if "\t" in line)
    names = [called.get(name, name).split(",")[0].strip() for name in classes]
    return tuple(names) if len(set(names)) == len(names) else tuple(classes)


def _decoded(files: dict[str, Labelled], classes: Sequence[str]) -> dict[str, np.ndarray]:
    """``train_images`` (N, 3, 64, 64) uint8, ``train_labels`` (N,) int64, and so on: what the cache holds."""
    try:
        from PIL import Image
    except ImportError:
        raise InputError("tiny-imagenet: needs pillow; install trueup[data]") from None
    index = {name: number for number, name in enumerate(classes)}
    arrays = {}
    for part, labelled in files.items():
        images = np.empty((len(labelled), 3, SIZE, SIZE), np.uint8)
        with warnings.catch_warnings(), ThreadPoolExecutor(cores()) as pool:
            warnings.simplefilter("error", Image.DecompressionBombWarning)  # set here: the threads share the filters
            for i, pixels in enumerate(pool.map(_pixels, labelled, chunksize=100)):
                images[i] = pixels
        arrays[f"{part}_images"] = images
        arrays[f"{part}_labels"] = np.array([index[name] for name in labelled.values()], np.int64)
    return arrays


def _pixels(path: Path) -> np.ndarray:
    """(3, 64, 64) uint8; the grey ones among the images have three equal channels."""
    from PIL import Image

    try:
        with Image.open(path, formats=("JPEG",)) as image:
            if image.size != (SIZE, SIZE):
                raise ValueError(f"expected {SIZE} x {SIZE} pixels, got {image.width} x {image.height}")
            return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(f"{path}: the image cannot be decoded ({error}); unpack the archive again") from None
