"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50 000 + 10 000 colour images of 32 x 32, in their original order.

The files are Parquet in the layout of the Hugging Face hub, ``train-00000-of-00001.parquet`` and so on, in as many
pieces as there are: a column ``img`` with PNG or WebP bytes, and the labels. They are taken from a folder where there
is one, else downloaded, and decoded once (see :mod:`trueup.data.cache`). Decoding takes about
12 s of processor time, shared among the cores; loading from the cache a quarter of a second, half of it the checksum.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trueup.data import decode, folders
from trueup.data.cache import cached
from trueup.data.dataset import Dataset, Split, assemble, check_split, select, split_rows
from trueup.data.folders import PathLike
from trueup.inputs import InputError

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
"""What the published recipes normalise both sets with (mukhoti2020's code, and others before it)."""

_PIECE = re.compile(r"(train|test)-(\d{5})-of-(\d{5})\.parquet")


@dataclass(frozen=True)
class Layout:
    """Where the hub keeps a set, and the classes of each of its columns of labels."""

    name: str
    repository: str
    folder: str
    labels: dict[str, tuple[str, ...]]


CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_FINE = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
_COARSE = """
aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices household_furniture
insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores
medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1 vehicles_2
"""
CIFAR100_FINE, CIFAR100_COARSE = tuple(_FINE.split()), tuple(_COARSE.split())

CIFAR10 = Layout("cifar10", "uoft-cs/cifar10", "plain_text", {"label": CIFAR10_CLASSES})
CIFAR100 = Layout(
    "cifar100", "uoft-cs/cifar100", "cifar100", {"fine_label": CIFAR100_FINE, "coarse_label": CIFAR100_COARSE}
)


def cifar10(data_dir: PathLike | None = None, *, split: str = "seeded", seed: int = 0) -> Dataset:
    """CIFAR-10: 45 000 / 5 000 / 10 000 images (3, 32, 32) of 10 classes."""
    return _dataset(CIFAR10, "label", data_dir, split, seed)


def cifar100(
    data_dir: PathLike | None = None, *, split: str = "seeded", seed: int = 0, labels: str = "fine"
) -> Dataset:
    """CIFAR-100: the same for 100 classes, or with ``labels="coarse"`` for the 20 groups they form."""
    if labels not in ("fine", "coarse"):
        raise InputError(f"labels: expected fine or coarse, got {labels!r}")
    return _dataset(CIFAR100, f"{labels}_label", data_dir, split, seed)


def _dataset(layout: Layout, column: str, data_dir: PathLike | None, split: str, seed: int) -> Dataset:
    train, val, test = splits(layout, column, data_dir, split, seed)
    names = layout.labels[column]
    return assemble(layout.name, train=train, val=val, test=test, class_names=names, mean=MEAN, std=STD)


def splits(layout: Layout, column: str, data_dir: PathLike | None, split: str, seed: int) -> tuple[Split, Split, Split]:
    """Train, val and test with the labels of a column."""
    check_split(split, seed)
    files = pieces(source_folder(layout, data_dir))
    arrays = cached(layout.name, [*files["train"], *files["test"]], lambda: _decoded(layout, files))
    images, labels = arrays["train_img"], arrays[f"train_{column}"]
    train, val = split_rows(len(labels), split, seed)
    test = select(arrays["test_img"], arrays[f"test_{column}"], slice(None))
    return select(images, labels, train), select(images, labels, val), test


# ---------------------------------------------------------------------- the files


def source_folder(layout: Layout, data_dir: PathLike | None) -> Path:
    """The folder with the Parquet files: one that is here, else the hub's, downloaded."""
    names = [f"{layout.name}/{layout.folder}", layout.name, layout.folder]
    folder = folders.find(names, data_dir, lambda place: bool(_piece_names(place)))
    if folder is None and data_dir is not None:
        wanted = "Parquet files (train-00000-of-00001.parquet and so on)"
        origin = f"Fetch them from https://huggingface.co/datasets/{layout.repository}, or leave data_dir out."
        raise folders.missing(layout.name, wanted, names, data_dir, origin)
    return folder or download(layout)


def download(layout: Layout) -> Path:
    """The hub's folder in huggingface_hub's own cache; the network is asked only when it is not there whole."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(f"{layout.name}: to download it, install trueup[data]; or set TRUEUP_DATA") from None
    with suppress(Exception):  # it is not there, or not whole
        return _snapshot(layout, snapshot_download, local=True)
    try:
        return _snapshot(layout, snapshot_download, local=False)
    except Exception as error:  # of the hub, its transport or the disk: what they raise changes with their versions
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"{layout.name}: in no folder (TRUEUP_DATA), and the download of {layout.repository} failed: {reason}"
        ) from error


def _snapshot(layout: Layout, snapshot_download: Callable[..., str], *, local: bool) -> Path:
    patterns = [f"{layout.folder}/*.parquet"]
    root = snapshot_download(layout.repository, repo_type="dataset", allow_patterns=patterns, local_files_only=local)
    pieces(Path(root) / layout.folder)
    return Path(root) / layout.folder


def pieces(folder: Path) -> dict[str, list[Path]]:
    """The files of train and test in their order, all of them, or an InputError that names one that is not there."""
    found: dict[str, list[Path]] = {}
    for part in ("train", "test"):
        matches = [match for match in map(_PIECE.fullmatch, _piece_names(folder)) if match and match[1] == part]
        totals = {int(match[3]) for match in matches}
        if len(totals) > 1:
            raise InputError(f"{folder}: pieces of different sets, {matches[0][0]} and {matches[-1][0]}; keep one set")
        total = max(totals, default=1)
        found[part] = [folder / f"{part}-{i:05d}-of-{total:05d}.parquet" for i in range(total)]
        for path in found[part]:
            if not path.is_file():
                raise InputError(f"{path}: no such file; the folder has {', '.join(_piece_names(folder)) or 'none'}")
    return found


def _piece_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.parquet") if _PIECE.fullmatch(path.name))


def _decoded(layout: Layout, files: dict[str, list[Path]]) -> dict[str, np.ndarray]:
    """``train_img`` (N, 3, 32, 32) uint8, ``train_label`` (N,) int64, and so on: what the cache holds."""
    try:
        import PIL.Image  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise InputError(f"{layout.name}: needs {error.name}; install trueup[data]") from None
    paths = [path for part in files.values() for path in part]
    try:
        columns = {
            column: [_labels(path, column, len(classes)) for path in paths] for column, classes in layout.labels.items()
        }
        columns["img"] = decode.decode_files(paths, "img", [len(labels) for labels in next(iter(columns.values()))])
    except decode.UnreadableError as error:
        raise InputError(str(error)) from None
    first_of_test = len(files["train"])
    arrays = {}
    for column, found in columns.items():
        arrays[f"train_{column}"] = np.concatenate(found[:first_of_test])
        arrays[f"test_{column}"] = np.concatenate(found[first_of_test:])
    return arrays


def _labels(path: Path, column: str, classes: int) -> np.ndarray:
    """(N,) int64 from 0 to classes - 1."""
    found = decode.read_column(path, column)
    if found.null_count or not str(found.type).startswith(("int", "uint")):
        raise InputError(
            f"{path}: column {column!r} holds {found.type} with {found.null_count} empty; expected integers"
        )
    labels = found.to_numpy().astype(np.int64)
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        row = int(wrong[0])
        raise InputError(f"{path}: row {row}: {column} is {labels[row]}, outside 0 to {classes - 1}")
    return labels
