"""Data sets as tensors: ``load(name)``, one file a source, every source the same frozen Dataset."""

from trueup.data.dataset import SPLITS, Dataset, Split, assemble, checksum, split_rows
from trueup.data.registry import SOURCES, load

__all__ = [
    # what a source gives
    "Dataset",
    "Split",
    "assemble",
    "checksum",
    # the sources
    "SOURCES",
    "load",
    # train and validation
    "SPLITS",
    "split_rows",
]
