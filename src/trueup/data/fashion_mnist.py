"""Fashion-MNIST (Xiao et al. 2017): 60 000 + 10 000 grey images of 28 x 28, in idx files, packed with gzip or not."""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from math import prod
from pathlib import Path

import numpy as np

from trueup.data import folders
from trueup.data.dataset import Dataset, assemble, check_split, select, split_rows
from trueup.data.folders import PathLike
from trueup.inputs import InputError

MEAN, STD = (0.2860,), (0.3530,)
CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
FOLDERS = ("fashion-mnist", "fashion_mnist", "FashionMNIST/raw")
"""Ours, the underscore of the hub, and where torchvision puts them."""
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

_LIMIT = 1 << 30
"""Bytes. A header that promises more is taken for damage before memory is asked for."""


def fashion_mnist(data_dir: PathLike | None = None, *, split: str = "seeded", seed: int = 0) -> Dataset:
    """Fashion-MNIST: 54 000 / 6 000 / 10 000 images (1, 28, 28) of 10 classes. It is not downloaded."""
    check_split(split, seed)
    folder = folders.find(FOLDERS, data_dir, lambda place: any(_file(place, name) for name in FILES))
    if folder is None:
        origin = "Fetch the four files from https://github.com/zalandoresearch/fashion-mnist."
        raise folders.missing("fashion-mnist", f"idx files ({FILES[0]}.gz and so on)", FOLDERS, data_dir, origin)
    images, labels = _pair(folder, *FILES[:2])
    test_images, test_labels = _pair(folder, *FILES[2:])
    train, val = split_rows(len(labels), split, seed)
    return assemble(
        "fashion-mnist",
        train=select(images, labels, train),
        val=select(images, labels, val),
        test=select(test_images, test_labels, slice(None)),
        class_names=CLASSES,
        mean=MEAN,
        std=STD,
    )


def _file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _pair(folder: Path, images_name: str, labels_name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 1, 28, 28) and labels (N,), checked against each other."""
    paths = []
    for name in (images_name, labels_name):
        path = _file(folder, name)
        if path is None:
            raise InputError(f"{folder / name}: no such file, nor with .gz")
        paths.append(path)
    images, labels = read_idx(paths[0], 3), read_idx(paths[1], 1)
    if images.shape[1:] != (28, 28) or len(images) == 0:
        raise InputError(f"{paths[0]}: {len(images)} images of {images.shape[1:]}; expected some of (28, 28)")
    if len(images) != len(labels):
        raise InputError(f"{paths[1]}: {len(labels)} labels for {len(images)} images")
    if labels.max() >= len(CLASSES):
        row = int(np.argmax(labels >= len(CLASSES)))
        raise InputError(f"{paths[1]}: row {row} is {labels[row]}, outside 0 to {len(CLASSES) - 1}")
    return images[:, None], labels.astype(np.int64)


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The uint8 array of an idx file: two zeros, 8 for uint8, the number of dimensions, each size, the entries."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            return _parse(file, dimensions, path)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({error}); it may be damaged or half downloaded") from None


def _parse(file: io.BufferedIOBase | gzip.GzipFile, dimensions: int, path: Path) -> np.ndarray:
    header = file.read(4 + 4 * dimensions)
    if len(header) < 4 + 4 * dimensions or header[:4] != bytes((0, 0, 8, dimensions)):
        raise InputError(f"{path}: not an idx file of uint8 in {dimensions} dimensions (begins {header[:4].hex(' ')})")
    shape = struct.unpack(f">{dimensions}I", header[4:])
    if prod(shape) > _LIMIT:
        raise InputError(f"{path}: its header promises {shape}, more than {_LIMIT} bytes; it is damaged")
    content = file.read(prod(shape) + 1)
    if len(content) != prod(shape):
        held = "more" if len(content) > prod(shape) else len(content)
        raise InputError(f"{path}: its header promises {prod(shape)} bytes, it holds {held}; it may be half downloaded")
    return np.frombuffer(bytearray(content), np.uint8).reshape(shape)
