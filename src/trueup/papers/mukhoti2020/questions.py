"""What the paper leaves open, asked of our networks: the normalisation of test images, the epoch that is kept, and
whether more than a temperature helps with few and with many classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from trueup.metrics import Interval
from trueup.papers.mukhoti2020.claims import over_networks
from trueup.papers.mukhoti2020.grid import DATASETS, STUDIED_DATA, TEXTS, label, step_of
from trueup.papers.mukhoti2020.settings import TITLES, Network
from trueup.papers.mukhoti2020.sheets import ABSENT
from trueup.papers.reproduction import FAILS, HOLDS, UNTESTED, Finding, Sheet, verdict
from trueup.papers.summary import Beside, Calibrated

STEADY = 0.1
"""Temperatures this near, one step of the paper's grid, count as the same."""


def sheets(networks: Sequence[Network]) -> list[Sheet]:
    """One for each question; without networks it says so."""
    return [normalisation_sheet(networks), epochs_sheet(networks), calibrators_sheet(networks)]


def findings(networks: Sequence[Network]) -> list[Finding]:
    """A verdict on each question and data set."""
    return [
        normalisation(networks),
        *(kept_epoch(networks, data) for data in TEXTS),
        *(
            more_than_temperature(networks, data, calibrator, quantity)
            for calibrator in ("focal-temperature", "auto")
            for quantity in ("nll", "ece")
            for data in STUDIED_DATA
        ),
    ]


def _with(networks: Sequence[Network], of: Callable[[Network], Beside | None]) -> list[tuple[Network, Beside]]:
    return [(network, beside) for network in networks if (beside := of(network)) is not None]


def _title(network: Network) -> str:
    """What tells a network from the others of its data."""
    recipe = network.run.recipe
    net = TITLES.get(recipe.model, recipe.model)
    return f"{net}, {label(recipe.loss)}, {step_of(recipe)}, seed {recipe.seed}"


def _change(interval: Interval) -> str:
    return f"{100 * interval.value:+.2f} [{100 * interval.low:+.2f}, {100 * interval.high:+.2f}]"


def _clear(interval: Interval) -> bool:
    """Whether 0 is outside."""
    return interval.low > 0 or interval.high < 0


# ---------------------------------------------------------------------- the normalisation of CIFAR-100's test images


def normalisation_sheet(networks: Sequence[Network]) -> Sheet:
    rows = []
    for network, usual in _with(networks, lambda network: network.summary.usual):
        own = network.figures
        rows.append((
            _title(network),
            *(f"{100 * own.before[q]:.2f} / {100 * usual.figures.before[q]:.2f}" for q in ("error", "ece")),
            f"{100 * own.after['ece']:.2f} / {100 * usual.figures.after['ece']:.2f}",
            *(_change(usual.less[q]) for q in ("error", "ece", "ece_after")),
        ))  # fmt: skip
    columns = ("network", "error", "ECE before T", "ECE after T", "change of error", "of ECE before", "of ECE after")
    note = (
        "In %. The authors' code normalises CIFAR-100's test images with ImageNet's mean and deviation, those of train "
        "and val with CIFAR's. As there / as val; the change is the first less the second, with a paired 95 % interval."
    )
    return _sheet("CIFAR-100: test images normalised as in the authors' code, and as val", columns, rows, note)


def normalisation(networks: Sequence[Network]) -> Finding:
    text = "Normalising CIFAR-100's test images otherwise than those of val changes error or ECE."
    where, found = "the authors' code", _with(networks, lambda network: network.summary.usual)
    if not found:
        return Finding(text, where, UNTESTED, "CIFAR-100", "it needs runs that are scored both ways", ours=True)
    told, moved = [], 0
    for quantity, title in (("error", "error"), ("ece", "ECE before T"), ("ece_after", "ECE after T")):
        changes = [usual.less[quantity] for _, usual in found]
        clear = sum(map(_clear, changes))
        moved += clear
        told.append(f"{title} {_span(changes)} points, {clear} of {len(changes)} intervals without 0")
    on = f"{len(found)} networks, CIFAR-100"
    return Finding(text, where, HOLDS if moved else FAILS, on, "; ".join(told), ours=True)


def _span(changes: Sequence[Interval]) -> str:
    values = [100 * change.value for change in changes]
    return f"{min(values):+.2f} to {max(values):+.2f} (mean {np.mean(values):+.2f})"


# ---------------------------------------------------------------------- the epoch that is kept


def epochs_sheet(networks: Sequence[Network]) -> Sheet:
    rows = []
    for network, last in _with(networks, lambda network: network.summary.last):
        own = network.figures
        rows.append((
            DATASETS[network.run.recipe.data], _title(network), str(network.kept["epoch"]),
            *(f"{100 * own.before[q]:.2f} / {100 * last.figures.before[q]:.2f}" for q in ("error", "ece")),
            f"{100 * own.after['ece']:.2f} / {100 * last.figures.after['ece']:.2f}",
            f"{own.after.temperature:.1f} / {last.figures.after.temperature:.1f}", _change(last.less["ece"]),
        ))  # fmt: skip
    columns = ("data", "network", "epoch", "error", "ECE before T", "ECE after T", "T", "change of ECE before")
    note = (
        "In %. Epoch of the best accuracy on val, counted from 0 / last epoch; the change is the first less the "
        "second, with a paired 95 % interval."
    )
    return _sheet("The epoch that is kept: best on val, or last", columns, rows, note)


def kept_epoch(networks: Sequence[Network], data: str) -> Finding:
    text = "It matters to ECE before T, or to T, whether the best epoch on val is kept or the last."
    where = "Appendix D, the choice by accuracy on val"
    mine = [network for network in networks if network.run.recipe.data == data]
    found = _with(mine, lambda network: network.summary.last)
    if not found:
        return Finding(
            text, where, UNTESTED, DATASETS[data], "it needs runs of which both epochs are scored", ours=True
        )
    changes = [last.less["ece"] for _, last in found]
    pairs = [(network.figures.after.temperature, last.figures.after.temperature) for network, last in found]
    apart = sum(abs(best - last) > STEADY + 1e-9 for best, last in pairs)
    clear = sum(map(_clear, changes))
    evidence = (
        f"ECE with the best less ECE with the last: {_span(changes)} points, {clear} of {len(changes)} intervals "
        f"without 0; T moves by more than {STEADY} on {apart} of {len(pairs)}, by "
        f"{max(abs(best - last) for best, last in pairs):.1f} at the most"
    )
    moved = HOLDS if clear or apart else FAILS
    return Finding(text, where, moved, f"{len(found)} networks, {DATASETS[data]}", evidence, ours=True)


# ---------------------------------------------------------------------- more than a temperature


def calibrators_sheet(networks: Sequence[Network]) -> Sheet:
    rows = []
    for network in networks:
        of = network.summary.calibrated
        if of:
            first, focal, auto = (of[name] for name in ("temperature", "focal-temperature", "auto"))
            rows.append((
                f"{DATASETS[network.run.recipe.data]}, {_title(network)}", str(network.summary.classes),
                *_pair("nll", first, focal, auto), *_pair("ece", first, focal, auto), auto.note,
            ))  # fmt: skip
    columns = ("network", "classes", "NLL: T", "focal T, change", "auto, change", "ECE: T", "focal T, change",
               "auto, change", "auto chose")  # fmt: skip
    note = (
        "In %. Temperature, focal temperature and auto, each fitted by NLL on val; changes against temperature on "
        "test, with paired 95 % intervals. Test images are normalised as those of val."
    )
    return _sheet("More than a temperature, by the number of classes", columns, rows, note)


def _pair(quantity: str, first: Calibrated, *others: Calibrated) -> tuple[str, ...]:
    return f"{100 * first.metrics[quantity]:.2f}", *(_change(other.less[quantity]) for other in others)


def more_than_temperature(networks: Sequence[Network], data: str, calibrator: str, quantity: str) -> Finding:
    text = f"{calibrator} has a lower {quantity.upper()} on test than temperature scaling."
    where = "a calibrator of ours" if calibrator == "auto" else "the calibrator of komisarenko2024"
    mine = [network for network in networks if network.run.recipe.data == data]
    found = [network.summary.calibrated[calibrator].less[quantity] for network in mine if network.summary.calibrated]
    if not found:
        return Finding(text, where, UNTESTED, DATASETS[data], "there are no networks", ours=True)
    holds, evidence = over_networks(found)
    on = f"{len(found)} networks, {DATASETS[data]}, {mine[0].summary.classes} classes"
    return Finding(text, where, verdict(holds), on, evidence, ours=True)


def _sheet(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]], note: str) -> Sheet:
    """What is not run is said."""
    return Sheet(title, columns, tuple(rows) or ((ABSENT, *[""] * (len(columns) - 1)),), note)
