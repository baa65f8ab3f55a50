"""The training loop, from the first weights to the last epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trueup import losses, models
from trueup.audit import finite
from trueup.data import Dataset
from trueup.data import registry as sources
from trueup.inputs import InputError
from trueup.train.batches import Batches, normalisers, on_device, seed_of
from trueup.train.measure import Diverged, feature_norms, histograms, logits_of, measured
from trueup.train.pace import STEP_COST, Pace
from trueup.train.recipe import Recipe
from trueup.train.step import GradientNorms, State, captured, step

MODES = ("auto", "eager", "graph", "compiled-graph")
"""How a step runs: plainly; as a CUDA graph; as a CUDA graph of the compiled net. auto: plainly on a CPU."""

TRAIN_SAMPLES = 10_000
"""So many training samples, the same in every epoch, are measured in eval mode after it."""

COMPILING_PAYS = 20_000
"""From so many steps on, auto compiles the net: below, compiling takes longer than it saves."""


BESIDE = ("last-val", "last-test", "usual-test", "outputs-val", "outputs-test")
"""What else may be scored, see :class:`Fitted`."""

NO_CLASS = "none of these"
"""The name of an output for what is of no class."""


@dataclass
class Progress:
    """Where a training stands: what a checkpoint holds beside the state."""

    history: list[dict[str, Any]] = field(default_factory=list)
    best_error: float | None = None
    best: dict[str, Tensor] | None = None
    """The kept weights, where not the last are kept."""

    @property
    def epoch(self) -> int:
        """How many epochs are done."""
        return len(self.history)


@dataclass(frozen=True)
class Fitted:
    """A trained net and what it says of val and test, (N, K) float32 on the CPU."""

    model: nn.Module
    val_logits: Tensor
    test_logits: Tensor
    history: list[dict[str, Any]]
    kept_epoch: int
    """The epoch whose weights these are."""
    beside: dict[str, Tensor] = field(default_factory=dict)
    """Other logits by name: where the best epoch is kept, "last-val" and "last-test"; where test images are normalised
    otherwise than the rest, "usual-test" as the rest; where the net has an output for what is of no class, with it as
    the last of (N, K + 1), "outputs-val" and "outputs-test"."""


def fit(
    recipe: Recipe,
    data: Dataset,
    *,
    device: str = "auto",
    mode: str = "auto",
    saved: tuple[dict[str, Tensor], Progress] | None = None,
    after_epoch: Callable[[State, Progress], None] | None = None,
    watch: Callable[[float], None] | None = None,
) -> Fitted:
    """Trains as the recipe says. ``saved`` is a state to go on from; ``after_epoch`` sees the state after each epoch,
    ``watch`` how many epochs are done, as in 3.25, now and then.

    The smaller batch that is left at the end of an epoch, which the papers' code keeps, always runs plainly.
    One entry of the history is one epoch: learning rate, seconds, gradient norms before clipping, the L2 norm of the
    last layer's weights, and for train (the first 10 000 samples, or all where there are fewer), val and test what
    ``measured`` gives, and of train ``histograms``. All are measured in eval mode with the weights at the end of the
    epoch.
    """
    place = chosen_device(device)
    mode = chosen_mode(mode, place, recipe, len(data.train), trees=data.train.targets is not None)
    bf16 = in_bf16(recipe, on_gpu=place.type == "cuda")
    autocast = partial(torch.autocast, place.type, torch.bfloat16, cache_enabled=False) if bf16 else nullcontext
    with _random_numbers_of_our_own(place), _fast_kernels(place, bf16):
        # the samples
        normaliser, test_normaliser = normalisers(recipe, data, place)
        batches = Batches(data.train, normaliser, recipe, place)
        some = slice(TRAIN_SAMPLES)
        shown = {
            "train": (on_device(data.train.inputs[some], place), data.train.labels[some], normaliser),
            "val": (on_device(data.val.inputs, place), data.val.labels, normaliser),
            "test": (on_device(data.test.inputs, place), data.test.labels, test_normaliser),
        }

        # the net, the loss, the optimiser
        torch.manual_seed(seed_of(recipe.seed, 0, "weights"))
        model = models.build(recipe.model, data.classes, data.input_shape, data.words).to(place)
        if place.type == "cuda":
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        criterion: Any = losses.parse(recipe.loss, reduction=recipe.loss_reduction).to(place)
        own_loss = getattr(criterion, "loss", criterion)  # without its penalties
        every_node = data.train.targets is not None
        _check_effect(recipe, model, every_node)
        state, progress = State(model.train(), criterion, recipe, place, every_node=every_node), Progress()
        if saved is not None:
            state.restore(saved[0])
            progress = saved[1]

        # the step
        norms = GradientNorms(place)
        full_batches, rest = divmod(len(data.train), recipe.batch)
        if progress.epoch < recipe.epochs:
            batches.draw(progress.epoch)
        one = partial(step, state=state, batches=batches, norms=norms, clip=recipe.clip, autocast=autocast)
        net = torch.compile(state.trained, dynamic=False) if mode == "compiled-graph" else state.trained
        full_step = partial(one, net, recipe.batch)
        if mode != "eager" and full_batches and progress.epoch < recipe.epochs:
            full_step = captured(full_step, state, batches)

        work = STEP_COST * len(data.train) + sum(len(labels) for _, labels, _ in shown.values())
        pace = Pace(watch, place, work)
        pace.begin(progress.epoch)
        for epoch in range(progress.epoch, recipe.epochs):
            begin = time.perf_counter()
            torch.manual_seed(seed_of(recipe.seed, epoch, "dropout"))
            state.lr.fill_(recipe.lr_at(epoch))
            if hasattr(criterion, "set_progress"):
                criterion.set_progress(epoch / recipe.epochs)
            norms.clear()
            batches.draw(epoch)
            for _ in range(full_batches):
                full_step()
                pace.add(STEP_COST * recipe.batch)
            if rest > 1:  # batch norm cannot take a single sample
                one(state.trained, rest)
                pace.add(STEP_COST * rest)
            gradient_norm = norms.summary()  # waits for the device
            trained = time.perf_counter()

            with feature_norms(models.last_layer(model)) as features:
                logits = _all_logits(model, shown, autocast, epoch, pace.add)
            of_train = torch.cat(features)[: len(logits["train"])]  # the first of the shown
            if hasattr(criterion, "observe_validation"):
                criterion.observe_validation(logits["val"].softmax(1), data.val.labels.to(place))
            entry = {
                "epoch": epoch,
                "lr": recipe.lr_at(epoch),
                "gradient_norm": gradient_norm,
                "weight_norm": float(models.last_layer(model).weight.detach().float().norm()),
                **{name: measured(logits[name], labels) for name, (_, labels, _) in shown.items()},
                "train_histograms": histograms(logits["train"], shown["train"][1], of_train, own_loss),
                "seconds": trained - begin,
                "seconds_measuring": time.perf_counter() - trained,
            }
            progress.history.append(finite(entry))
            if recipe.keep == "best-val" and (
                progress.best_error is None or entry["val"]["error"] < progress.best_error
            ):
                progress.best_error = entry["val"]["error"]
                progress.best = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            if after_epoch is not None:
                after_epoch(state, progress)
            pace.begin(epoch + 1)

        # the result
        del shown["train"]
        kept, beside = recipe.epochs - 1, {}
        if progress.best is not None:
            last = _all_logits(model, shown, autocast, kept)
            beside = {f"last-{name}": logits.cpu() for name, logits in last.items()}
            errors = [entry["val"]["error"] for entry in progress.history]
            kept = errors.index(min(errors))
            model.load_state_dict(progress.best)
        if test_normaliser is not normaliser:
            shown["usual-test"] = (*shown["test"][:2], normaliser)
        logits = {name: found.cpu() for name, found in _all_logits(model, shown, autocast, kept).items()}
        if every_node:
            every_output = _all_logits(models.EveryOutput(model), shown, autocast, kept)
            beside |= {f"outputs-{name}": found.cpu() for name, found in every_output.items()}
        val, test = logits.pop("val"), logits.pop("test")
        return Fitted(model.eval().cpu(), val, test, progress.history, kept, beside | logits)


def _check_effect(recipe: Recipe, model: nn.Module, every_node: bool) -> None:
    """A setting that would change nothing but the digest is refused."""
    if recipe.reduction == "per-sample" and not every_node:
        raise InputError("reduction: per-sample is for trees, whose nodes are summed; these data have none: take mean")
    if recipe.embedding_lr is not None and not models.word_vectors(model):
        raise InputError(f"embedding_lr: is for word vectors, and {recipe.model} has none; leave it at none")


def check_names(recipe: Recipe) -> None:
    """A data set, net or loss that is not known is told before all work."""
    sources.parse(recipe.data)
    losses.parse(recipe.loss)
    if recipe.model.partition(":")[0] not in models.MODELS:
        raise InputError(f"unknown model {recipe.model!r}; known: {', '.join(models.MODELS)}")


def in_bf16(recipe: Recipe, *, on_gpu: bool) -> bool:
    """Whether a training computes under bf16 autocast, or all in float32."""
    return recipe.precision == "bf16" or (recipe.precision == "auto" and on_gpu)


def chosen_device(device: str) -> torch.device:
    """ "auto" is the GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError:
        raise InputError(f'device: {device!r} is none; try "auto", "cpu", "cuda" or "cuda:0"') from None
    if place.type not in ("cpu", "cuda"):
        raise InputError(f'device: {device!r} is not supported; "cpu" and "cuda" are')
    if place.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f'device: {device!r} was asked for, but torch sees no GPU here; "cpu" runs everywhere')
    if place.index is not None and place.type == "cuda" and place.index >= torch.cuda.device_count():
        raise InputError(f"device: {device!r} was asked for, but there are {torch.cuda.device_count()} GPUs")
    return place


def check_mode(mode: str, place: torch.device) -> None:
    """As far as can be told without a recipe."""
    if mode not in MODES:
        raise InputError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
    if place.type != "cuda" and mode not in ("auto", "eager"):
        raise InputError(f"mode: {mode!r} needs a GPU; a CPU runs eager")


def chosen_mode(mode: str, place: torch.device, recipe: Recipe, samples: int, *, trees: bool = False) -> str:
    """What auto means here. A graph needs a GPU and steps of one shape, which trees do not have; a penalty that
    differentiates twice, and AdaGrad, which reads its learning rate as a number, are not captured."""
    check_mode(mode, place)
    if place.type != "cuda":
        return "eager"
    uncapturable = "trees" if trees else "adagrad" if recipe.optimiser == "adagrad" else None
    if mode not in ("auto", "eager") and uncapturable:
        raise InputError(f"mode: {mode!r} cannot be had with {uncapturable}; eager can")
    if mode != "auto":
        return mode
    if uncapturable or hasattr(losses.parse(recipe.loss), "penalty"):
        return "eager"
    return "compiled-graph" if recipe.epochs * (samples // recipe.batch) >= COMPILING_PAYS else "graph"


def _all_logits(
    model: nn.Module,
    shown: dict[str, Any],
    autocast: Any,
    epoch: int,
    after_block: Callable[[int], None] | None = None,
) -> dict[str, Tensor]:
    try:
        return {
            name: logits_of(model, inputs, normaliser, autocast, after_block)
            for name, (inputs, _, normaliser) in shown.items()
        }
    except Diverged as error:
        raise Diverged(f"epoch {epoch}: {error}") from None


@contextmanager
def _random_numbers_of_our_own(place: torch.device) -> Iterator[None]:
    """Seeds set within do not reach the caller."""
    with torch.random.fork_rng([place] if place.type == "cuda" else [], device_type="cuda"):
        yield


@contextmanager
def _fast_kernels(place: torch.device, bf16: bool) -> Iterator[None]:
    """cuDNN tries its kernels once and keeps the fastest; beside bf16, what is left in float32 may be TF32."""
    if place.type != "cuda":
        yield
        return
    benchmark, precision = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    torch.backends.cudnn.benchmark = True
    if bf16:
        torch.set_float32_matmul_precision("high")
    try:
        with torch.cuda.device(place):
            yield
    finally:
        torch.backends.cudnn.benchmark = benchmark
        torch.set_float32_matmul_precision(precision)
