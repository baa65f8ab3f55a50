"""The data sets by name, and the text form of a choice."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from trueup.data.cifar import cifar10, cifar100
from trueup.data.cifar10h import cifar10h
from trueup.data.dataset import Dataset
from trueup.data.digits import digits
from trueup.data.fashion_mnist import fashion_mnist
from trueup.data.folders import PathLike
from trueup.data.gaussians import gaussians
from trueup.data.newsgroups import newsgroups
from trueup.data.sst import sst
from trueup.data.tiny_imagenet import tiny_imagenet
from trueup.inputs import InputError

SOURCES: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "gaussians": gaussians,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "fashion-mnist": fashion_mnist,
    "cifar10h": cifar10h,
    "tiny-imagenet": tiny_imagenet,
    "20newsgroups": newsgroups,
    "sst": sst,
}
"""Each is called with (data_dir, split=..., seed=...) and options of its own, which have defaults."""

log = logging.getLogger(__name__)

_KINDS = {int: "a whole number", float: "a number", str: "a word"}


def load(
    name: str, data_dir: PathLike | None = None, *, split: str = "seeded", seed: int = 0, **options: Any
) -> Dataset:
    """The data set of a name, which may carry options: ``cifar100:labels=coarse``, ``digits:seed=3``.

    ``data_dir``, else the environment's TRUEUP_DATA, is where files are looked for. ``split`` is one of
    :data:`trueup.data.SPLITS`.

    >>> load("gaussians:classes=3,dimension=2,train=50", test=100).test
    Split(100 of (2,), posteriors known)
    """
    source, in_name = parse(name)
    known = options_of(source)
    given = {"split": split, "seed": seed}
    for option, value in (given | options).items():
        if option not in known:
            raise InputError(f"{source} has no option {option!r}; known: {', '.join(known)}")
        unsaid = option in given and value == known[option]
        if option in in_name and not unsaid and in_name[option] != value:
            raise InputError(f"{option}: {name!r} and {option}={value!r} say different things; give it once")
    found = SOURCES[source](data_dir, **(given | options | in_name))
    for note in found.notes:
        log.warning("%s: %s", source, note)
    return found


def parse(spec: str) -> tuple[str, dict[str, Any]]:
    """The source and the options that a text names.

    >>> parse("gaussians:classes=3,separation=2")
    ('gaussians', {'classes': 3, 'separation': 2.0})
    """
    source, colon, text = spec.partition(":")
    if source not in SOURCES:
        raise InputError(f"unknown data set {source!r}; known: {', '.join(SOURCES)}")
    known = options_of(source)
    options: dict[str, Any] = {}
    for pair in text.split(",") if colon else ():
        option, equals, value = (part.strip() for part in pair.partition("="))
        if not equals:
            raise InputError(f"data {spec!r}: expected option=value after the colon, got {pair!r}")
        if option not in known:
            raise InputError(f"data {spec!r}: {source} has no option {option!r}; known: {', '.join(known)}")
        if option in options:
            raise InputError(f"data {spec!r}: {option} is given twice")
        kind = type(known[option])
        try:
            options[option] = kind(value)
        except ValueError:
            raise InputError(f"data {spec!r}: {option} is {value!r}; expected {_KINDS[kind]}") from None
    return source, options


def options_of(source: str) -> dict[str, Any]:
    """The options of a source with their defaults, from its signature."""
    parameters = inspect.signature(SOURCES[source]).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
