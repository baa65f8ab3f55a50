"""Our networks, grouped by what they share: data, net, schedule and step. A claim compares losses within a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trueup.papers.chance import Error
from trueup.papers.judged import Figures
from trueup.papers.mukhoti2020.grid import (
    DATASETS,
    METHODS,
    MODELS,
    PLAIN,
    label,
    other_form,
    step_of,
    steps_of,
    weighted,
)
from trueup.papers.stored import SCHEDULES, kept_entry
from trueup.papers.summary import Summary
from trueup.train import Run

TITLES = {
    "resnet18": "ResNet-18", "resnet50": "ResNet-50", "resnet110-bottleneck": "ResNet-110",
    "wrn26-10": "Wide ResNet 26-10", "densenet121": "DenseNet-121", "text-cnn": "CNN", "tree-lstm": "Tree-LSTM",
    "resnet50-tiny": "ResNet-50",
}  # fmt: skip
PAPER_STAGES = (0, 150, 250, 350)
"""The paper's epochs at which the learning rate is set, and its last."""
HISTOGRAMS = "train_histograms"
"""The key of a history's entry under which :func:`trueup.train.measure.histograms` is kept."""


@dataclass(frozen=True)
class Network:
    """One of our runs and what its predictions say."""

    name: str
    run: Run
    summary: Summary

    @property
    def figures(self) -> Figures:
        return self.summary.figures

    @property
    def kept(self) -> dict[str, Any]:
        """The history's entry of the epoch whose weights were kept."""
        return kept_entry(self.run)


@dataclass(frozen=True)
class Setting:
    """The networks of one data set, net, schedule and step, by loss; several of a loss differ in their seed."""

    data: str
    model: str
    schedule: str
    step: str
    networks: dict[str, tuple[Network, ...]]
    beside: tuple[Setting, ...] = ()
    """Where to look for how much a loss varies over seeds, if here it has one."""

    @property
    def title(self) -> str:
        return f"{TITLES.get(self.model, self.model)}, {DATASETS[self.data]}, {self.epochs} epochs, {self.step}"

    @property
    def epochs(self) -> int:
        return self.all_networks[0].run.recipe.epochs

    def seeds(self, *losses: str) -> str:
        """Those of these losses, as "seed 0" or "seeds 0, 1"; a loss that has others than the first is named."""
        found: dict[tuple[int, ...], list[str]] = {}
        for loss in losses:
            of_loss = tuple(sorted(network.run.recipe.seed for network in self.networks[loss]))
            found.setdefault(of_loss, []).append(label(loss))
        texts = [f"seed{'s' if len(of) > 1 else ''} {', '.join(map(str, of))}" for of in found]
        named = (f"{', '.join(names)}: {told}" for told, names in zip(texts[1:], list(found.values())[1:], strict=True))
        return "; ".join([texts[0], *named])

    def in_short(self, *losses: str, without: Sequence[str] = ()) -> str:
        """The data set, the net, how many seeds each of these losses has at the least, and what is missing."""
        seeds = min(len(self.networks[loss]) for loss in losses)
        net = TITLES.get(self.model, self.model)
        lacking = f", without {' and '.join(without)}" if without else ""
        return f"{DATASETS[self.data]} ({net}, {seeds} seed{'s' if seeds > 1 else ''}{lacking})"

    @property
    def as_published(self) -> bool:
        """Whether the step is that of the authors' code."""
        return self.step == next(iter(steps_of(self.schedule)))

    @property
    def staged(self) -> bool:
        """Whether the learning rate falls twice, as in the paper's figures."""
        return all(len(network.run.recipe.milestones) == 2 for of in self.networks.values() for network in of)

    @property
    def all_networks(self) -> list[Network]:
        return [network for networks in self.networks.values() for network in networks]

    def trained(self, loss: str) -> str:
        """The loss of a method as it is trained here: MMCE weighs more on texts; where the authors' form of it is not
        run, it is the plain one, if that is."""
        loss, other = weighted(loss, self.data), weighted(other_form(loss), self.data)
        return other if loss not in self.networks and other in self.networks else loss

    def figure(self, loss: str, quantity: str, state: str = "before") -> float:
        """A figure of a loss, the mean over its seeds."""
        return float(np.mean(self._values(loss, quantity, state)))

    def temperatures(self, loss: str) -> list[float]:
        """By the paper's grid, one a seed."""
        return [network.figures.after.temperature for network in self.networks[loss]]

    def followed(self, loss: str, *keys: str) -> np.ndarray:
        """(epochs,) a quantity of the history, the mean over the seeds; NaN where a group of samples was empty. Of
        counts (epochs, bins)."""
        return np.mean([series(network.run.history, *keys) for network in self.networks[loss]], axis=0)

    def error_of(self, loss: str, quantity: str, state: str = "before") -> Error:
        """That of :meth:`figure`: over the seeds, or over test samples (from the 95 % interval of each network; all
        see the same samples, so that more seeds do not lower it), whichever reaches further.

        With fewer than three seeds a loss is taken to vary as it does here and beside, or, where fewer than three say
        that too, as all losses do.
        """
        own = self._values(loss, quantity, state)
        of_samples = (_over_samples(network.figures, quantity, state) for network in self.networks[loss])
        over_samples = Error(float(np.mean([error.value for error in of_samples])))
        around = [
            (other, setting._values(other, quantity, state))
            for setting in self.beside or (self,)
            for other in setting.networks
        ]
        alike = [values for other, values in around if other == loss]
        known_from = next((of for of in ([own], alike) if _freedom(of) >= 2), [values for _, values in around])
        freedom = _freedom(known_from)
        if not freedom:
            return over_samples
        variance = sum((len(values) - 1) * float(np.var(values, ddof=1)) for values in known_from if len(values) > 1)
        over_seeds = Error((variance / freedom / len(own)) ** 0.5, freedom)
        return max(over_samples, over_seeds, key=lambda error: error.reach)

    def _values(self, loss: str, quantity: str, state: str) -> list[float]:
        return [network.figures.states[state][quantity] for network in self.networks[loss]]

    def with_histograms(self) -> Setting:
        """The same of only those networks whose history has histograms of training samples, from its first epoch on."""
        kept = {
            loss: tuple(n for n in networks if all(HISTOGRAMS in entry for entry in n.run.history))
            for loss, networks in self.networks.items()
        }
        return replace(self, networks={loss: networks for loss, networks in kept.items() if networks})

    def scaled(self, epochs: tuple[int, ...]) -> list[int]:
        """How many epochs of this schedule are most like these of the paper's, stage by stage of the learning rate.

        In the first stage both trainings are the same, so that it is the same epoch; where ours is shorter, its last.
        In the later stages it is the epoch as far along in the stage. A short schedule of (45, 75, 105) has 10 for
        10, 45 for 100, 60 for 200 and 90 for 300.
        """
        own = (0, *self.all_networks[0].run.recipe.milestones, self.epochs)
        found = []
        for epoch in epochs:
            stage = next(i for i in range(3) if epoch <= PAPER_STAGES[i + 1])
            into, whole = epoch - PAPER_STAGES[stage], PAPER_STAGES[stage + 1] - PAPER_STAGES[stage]
            length = own[stage + 1] - own[stage]
            found.append(own[stage] + (min(into, length) if stage == 0 else round(length * into / whole)))
        return found

    def histogram(self, loss: str, quantity: str, epochs: tuple[int, ...]) -> np.ndarray:
        """(len(epochs), bins) how many training samples are in each bin as far along as after these of the paper's
        epochs, the mean over the seeds."""
        return self.followed(loss, HISTOGRAMS, quantity)[[epoch - 1 for epoch in self.scaled(epochs)]]

    def drops(self, loss: str) -> tuple[int, int]:
        """The epochs at which the learning rate falls."""
        first, second = self.networks[loss][0].run.recipe.milestones
        return first, second


def _freedom(groups: list[list[float]]) -> int:
    """The degrees of freedom of the variance within groups."""
    return sum(len(values) - 1 for values in groups)


def _over_samples(figures: Figures, quantity: str, state: str) -> Error:
    """From the 95 % interval, or that of a share where there is none."""
    measure = figures.states[state].measures[quantity]
    if quantity == "s99":
        return Error.of_share(measure.value, figures.n_test)
    return Error.of_interval(measure.low, measure.high)


def alike(settings: list[Setting]) -> list[Setting]:
    """The same settings with only those losses and seeds that all of them have."""
    pairs = [{(loss, n.run.recipe.seed) for loss, of in s.networks.items() for n in of} for s in settings]
    common = set.intersection(*pairs)
    kept = []
    for setting in settings:
        networks = {
            loss: tuple(n for n in of if (loss, n.run.recipe.seed) in common) for loss, of in setting.networks.items()
        }
        kept.append(
            replace(setting, networks={loss: of for loss, of in networks.items() if of}, beside=tuple(settings))
        )
    return kept


def series(history: list[dict[str, Any]], *keys: str) -> np.ndarray:
    """(epochs,) one quantity over the epochs, as in ``series(history, "test", "wrong", "nll")``; of counts
    (epochs, bins)."""
    found = []
    for entry in history:
        value: Any = entry
        for key in keys:
            value = value[key]
        found.append(np.nan if value is None else value)
    return np.array(found, dtype=float)


def settings_of(networks: list[Network]) -> list[Setting]:
    """The groups, those most like the paper first: its step, its nets, its schedule."""
    groups: dict[tuple[str, str, str, str], dict[str, tuple[Network, ...]]] = {}
    order = [*METHODS, *PLAIN]
    for network in sorted(networks, key=lambda network: (order.index(network.run.recipe.loss), network.name)):
        recipe = network.run.recipe
        key = (recipe.data, recipe.model, recipe.name, step_of(recipe))
        of_loss = groups.setdefault(key, {})
        of_loss[recipe.loss] = (*of_loss.get(recipe.loss, ()), network)
    made = [Setting(*key, of_loss) for key, of_loss in groups.items()]
    schedules, datasets = list(SCHEDULES), list(DATASETS)

    def place(value: str, known: list[str]) -> int:
        return known.index(value) if value in known else len(known)

    def likeness(setting: Setting) -> tuple[Any, ...]:
        step, data = place(setting.step, list(steps_of(setting.schedule))), place(setting.data, datasets)
        return step, data, setting.model not in MODELS, setting.model, place(setting.schedule, schedules)

    return sorted(made, key=likeness)
