"""The loop: one step by hand, the schedule, the hooks, what the history holds, and the same seed the same weights."""

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.train.small import SMALL, but_for_seconds
from trueup import data as sources
from trueup import losses, models
from trueup.data import Dataset, Split
from trueup.inputs import InputError
from trueup.metrics import ece, error, nll, outcomes, score_logits
from trueup.train import fit
from trueup.train.batches import Batches, normalisers, seed_of
from trueup.train.loop import chosen_device, chosen_mode
from trueup.train.measure import GRADIENT_EDGES, Diverged
from trueup.train.step import GradientNorms, State, step

CPU = torch.device("cpu")


def data_of(recipe):
    return sources.load(recipe.data, split=recipe.split, seed=recipe.split_seed)


def pictures():
    """18 images of noise in three classes."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (18, 3, 32, 32), generator=generator, dtype=torch.uint8)
    split = Split(pixels, torch.arange(18) % 3)
    return Dataset("noise", split, split, split, ("a", "b", "c"), "", (0.5,) * 3, (0.25,) * 3)


def same(first, second):
    return all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


def by_hand(recipe, data, steps):
    """Plain PyTorch: autograd, the clip and SGD with momentum written out."""
    torch.manual_seed(seed_of(recipe.seed, 0, "weights"))
    model = models.build(recipe.model, data.classes, data.input_shape)
    batches = Batches(data.train, normalisers(recipe, data, CPU)[0], recipe, CPU)
    batches.draw(0)
    parameters = list(model.parameters())
    momenta = [torch.zeros_like(p) for p in parameters]
    norms = []
    for size in steps:
        inputs, labels = batches.next(size)
        log_p = model(inputs).log_softmax(1)[torch.arange(size), labels]
        loss = -((1 - log_p.exp()) ** 3 * log_p)
        gradients = torch.autograd.grad(loss.sum() if recipe.reduction == "sum" else loss.mean(), parameters)
        norms.append(sum(float((g.double() ** 2).sum()) for g in gradients) ** 0.5)
        shrink = min(1.0, recipe.clip / norms[-1]) if recipe.clip else 1.0
        with torch.no_grad():
            for p, g, m in zip(parameters, gradients, momenta, strict=True):
                m.mul_(recipe.momentum).add_(g * shrink + recipe.weight_decay * p)
                p -= recipe.lr * m
    return model, norms


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("clip", [None, 2.0, 0.05])
def test_an_epoch_is_what_it_is_by_hand(reduction, clip):
    recipe = replace(
        SMALL, loss="focal:3", epochs=1, milestones=(), factors=(), reduction=reduction, clip=clip, lr=0.01
    )
    data = data_of(recipe)
    fitted = fit(recipe, data, device="cpu")
    expected, norms = by_hand(recipe, data, (32, 32, 26))
    for a, b in zip(fitted.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=2e-5)
    assert fitted.history[0]["gradient_norm"] == pytest.approx({"mean": np.mean(norms), "max": max(norms)}, rel=1e-4)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    data = data_of(SMALL)
    first, second = (fit(SMALL, data, device="cpu") for _ in range(2))
    assert same(first.model, second.model)
    assert but_for_seconds(first.history) == but_for_seconds(second.history)
    assert not same(first.model, fit(replace(SMALL, seed=1), data, device="cpu").model)


def test_steps_that_are_taken_back_leave_no_trace():
    """What the warm-up before a capture relies on, with batch norm, momenta and a scheduled loss."""
    data = pictures()
    recipe = replace(SMALL, model="resnet32", augmentation="crop-flip", batch=8)
    state = State(models.build("resnet32", 3, (3, 32, 32)), losses.parse(recipe.loss), recipe, CPU)
    batches, norms = Batches(data.train, normalisers(recipe, data, CPU)[0], recipe, CPU), GradientNorms(CPU)
    state.lr.fill_(0.1)
    before = state.copy()
    places = {name: tensor.data_ptr() for name, tensor in state.tensors().items()}
    assert any(name.endswith("momentum_buffer") for name in before)
    assert any(name.endswith("running_mean") for name in before)
    for _ in range(2):
        step(state.model, 8, state, batches, norms, 2.0, nullcontext)
    assert sum(not torch.equal(tensor, before[name]) for name, tensor in state.tensors().items()) > len(before) / 2
    state.restore(before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in state.tensors().items())
    assert places == {name: tensor.data_ptr() for name, tensor in state.tensors().items()}
    with pytest.raises(InputError, match="does not fit this net"):
        state.restore({"model.x": torch.zeros(1)})


def test_a_net_with_batch_norm_goes_on_from_a_saved_state_bit_for_bit():
    data, kept = pictures(), []
    recipe = replace(SMALL, model="resnet32", augmentation="crop-flip", batch=8, epochs=2, milestones=(), factors=())

    def keep(state, progress):
        kept.append((state.copy(), deepcopy(progress)))

    whole = fit(recipe, data, device="cpu", after_epoch=keep)
    resumed = fit(recipe, data, device="cpu", saved=kept[0])
    assert same(whole.model, resumed.model)
    assert torch.equal(whole.test_logits, resumed.test_logits)


def test_training_leaves_the_callers_random_numbers_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    fit(replace(SMALL, epochs=1, milestones=(), factors=()), data_of(SMALL), device="cpu")
    assert torch.equal(torch.rand(3), expected)


def test_the_history_has_every_quantity_and_they_are_right():
    data = data_of(SMALL)
    fitted = fit(SMALL, data, device="cpu")
    last = fitted.history[-1]
    assert [entry["lr"] for entry in fitted.history] == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    assert [entry["epoch"] for entry in fitted.history] == list(range(6))
    assert set(last) == {
        "epoch", "lr", "gradient_norm", "weight_norm", "train", "val", "test", "train_histograms", "seconds",
        "seconds_measuring",
    }  # fmt: skip
    scores = score_logits(fitted.test_logits, data.test.labels)
    parts = outcomes(scores)
    test = last["test"]
    assert [test["nll"], test["error"], test["ece"]] == [nll(scores), error(scores), ece(scores)]
    assert test["entropy"] == parts.all.entropy
    assert test["correct"] == parts.correct._asdict()
    assert test["wrong"] == parts.wrong._asdict()
    assert set(last["train"]) == set(last["val"]) == set(test)
    assert last["weight_norm"] == pytest.approx(models.last_layer(fitted.model).weight.norm().item())
    with torch.no_grad():
        torch.testing.assert_close(fitted.model(data.test.inputs), fitted.test_logits)


@pytest.mark.parametrize("loss", ["focal:3", "cross-entropy+mmce:2"])
def test_the_histograms_of_train_are_those_of_each_sample_on_its_own(loss):
    data = data_of(SMALL)
    fitted = fit(replace(SMALL, loss=loss), data, device="cpu")
    found = fitted.history[-1]["train_histograms"]
    weight = models.last_layer(fitted.model).weight
    criterion = losses.parse(loss.partition("+")[0])
    confidence, correct, gradients = [0] * 25, [0] * 25, []
    for x, y in zip(data.train.inputs, data.train.labels, strict=True):
        logits = fitted.model(x[None])
        top = logits.softmax(1).max().item()
        place = next(i for i in range(25) if top <= (i + 1) / 25)
        confidence[place] += 1
        correct[place] += int(logits.argmax() == y)
        gradients.append(torch.autograd.grad(criterion(logits, y[None]), weight)[0].norm().item())
    assert (found["confidence"], found["correct"]) == (confidence, correct)
    below = [sum(norm <= edge for norm in gradients) for edge in GRADIENT_EDGES]
    assert np.abs(np.cumsum(found["gradient_norm"])[:-1] - below).max() <= 1  # one may lie at an edge
    assert sum(found["gradient_norm"]) == len(data.train)
    assert np.count_nonzero(found["gradient_norm"]) > 3


class Watched(losses.CrossEntropy):
    """Cross-entropy that notes which hooks are called, and when."""

    calls: list

    def set_progress(self, fraction):
        self.calls.append(("progress", fraction))

    def observe_validation(self, probs, labels):
        assert probs.shape == (30, 3)
        torch.testing.assert_close(probs.sum(1), torch.ones(30))
        self.calls.append(("validation", len(labels)))

    def penalty(self, model, inputs, labels):
        self.calls.append(("penalty", len(labels)))
        return 0.0 * sum(p.sum() for p in model.parameters()) + 0.0 * inputs.sum()


def test_hooks_are_called_at_their_times(monkeypatch):
    loss = Watched()
    loss.calls = []
    monkeypatch.setattr(losses, "parse", lambda spec, **_: loss)
    fit(replace(SMALL, epochs=2, milestones=(), factors=()), data_of(SMALL), device="cpu")
    steps = [("penalty", 32), ("penalty", 32), ("penalty", 26)]
    epochs = ([("progress", share), *steps, ("validation", 30)] for share in (0.0, 0.5))
    assert loss.calls == [call for epoch in epochs for call in epoch]


def test_the_best_epoch_on_val_is_kept():
    recipe = replace(SMALL, keep="best-val", lr=1.0, epochs=8, milestones=(), factors=())
    data = data_of(recipe)
    fitted = fit(recipe, data, device="cpu")
    errors = [entry["val"]["error"] for entry in fitted.history]
    best = errors.index(min(errors))
    assert best < 7
    assert error(score_logits(fitted.val_logits, data.val.labels)) == errors[best]
    assert error(score_logits(fitted.test_logits, data.test.labels)) == fitted.history[best]["test"]["error"]


def test_test_images_that_are_normalised_otherwise_are_scored_both_ways():
    recipe = replace(SMALL, model="linear", loss="brier", epochs=1, milestones=(), factors=(), clip=None)
    usual, other = (fit(replace(recipe, normalisation=n), pictures(), device="cpu") for n in ("data", "imagenet-test"))
    assert same(usual.model, other.model)
    assert torch.equal(usual.val_logits, other.val_logits)
    assert not torch.equal(usual.test_logits, other.test_logits)
    assert usual.beside == {}
    assert list(other.beside) == ["usual-test"]
    assert torch.equal(other.beside["usual-test"], usual.test_logits)


@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw", "adagrad"])
def test_every_optimiser_learns(optimiser):
    recipe = replace(SMALL, optimiser=optimiser, loss="cross-entropy", lr=0.02, reduction="mean", epochs=10)
    history = fit(recipe, data_of(recipe), device="cpu").history
    assert history[-1]["train"]["nll"] < 0.9 * np.log(3)


def test_a_training_that_diverges_says_so():
    recipe = replace(SMALL, loss="cross-entropy", lr=1e30, clip=None, milestones=(), factors=())
    with pytest.raises(Diverged, match=r"epoch 0: .* not finite"):
        fit(recipe, data_of(recipe), device="cpu")


def test_devices_and_modes_that_are_not_there():
    with pytest.raises(InputError, match="'xpu' is not supported"):
        chosen_device("xpu")
    with pytest.raises(InputError, match="'gpu' is none"):
        chosen_device("gpu")
    with pytest.raises(InputError, match="mode: 'graph' needs a GPU"):
        chosen_mode("graph", CPU, SMALL, 90)
    with pytest.raises(InputError, match="mode: expected one of auto, eager"):
        chosen_mode("fast", CPU, SMALL, 90)
    cuda = torch.device("cuda")
    assert chosen_mode("auto", cuda, SMALL, 90) == "graph"
    for recipe, trees, what in ((SMALL, True, "trees"), (replace(SMALL, optimiser="adagrad"), False, "adagrad")):
        assert chosen_mode("auto", cuda, recipe, 90, trees=trees) == "eager"
        with pytest.raises(InputError, match=f"mode: 'graph' cannot be had with {what}; eager can"):
            chosen_mode("graph", cuda, recipe, 90, trees=trees)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="'cuda' was asked for, but torch sees no GPU"):
            chosen_device("cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # compiling float32 advises it
@pytest.mark.parametrize("mode", ["graph", "compiled-graph"])
def test_a_captured_step_trains_as_the_plain_one(mode):
    recipe = replace(SMALL, precision="float32", lr=0.01)
    data = data_of(recipe)
    plain, fast = (fit(recipe, data, device="cuda", mode=m).model for m in ("eager", mode))
    for a, b in zip(plain.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)
