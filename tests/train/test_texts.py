"""Documents and trees: every loss, the optimisers by hand, and runs that are stopped."""

import json
import os
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from tests.data.test_texts import TREES, articles, as_lines, write_glove, write_npz, write_trees
from tests.models.recursion import nested, node_logits
from tests.train.small import but_for_seconds
from tests.train.test_run import KILLED, Stopped, assert_same_run, stop_at
from trueup import data as sources
from trueup import models
from trueup.cli import app
from trueup.data import Split, assemble, trees
from trueup.inputs import InputError
from trueup.losses.spec import examples
from trueup.train import fit, load_run, loop, named, recipe_for, run, study_named, train
from trueup.train.batches import seed_of
from trueup.train.recipe import BY_DATA

NEWS = replace(named("mukhoti2020-20newsgroups"), epochs=2, batch=16)
SST = replace(named("mukhoti2020-sst"), epochs=2, batch=5)
CPU = torch.device("cpu")


def words():
    found = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    found[0] = 0
    return found


def documents(many=24):
    """Short ones of three classes, padded in front."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 20, (many, 30), generator=generator, dtype=torch.int32)
    tokens *= torch.arange(30) >= torch.randint(0, 30, (many, 1), generator=generator)
    split = Split(tokens, torch.arange(many) % 3)
    return assemble("texts", train=split, val=split, test=split, class_names=("a", "b", "c"), words=words())


def sentences(many=12):
    """Trees of five leaves in several shapes, with labels from their words."""
    generator = torch.Generator().manual_seed(2)
    packed = []
    for _ in range(many):
        numbers = torch.randint(1, 20, (5,), generator=generator).tolist()
        parts = [trees.Leaf(n % 3, f"{n}") for n in numbers]
        while len(parts) > 1:
            i = int(torch.randint(len(parts) - 1, (1,), generator=generator))
            node = trees.Node((parts[i].label + parts[i + 1].label) % 3, parts[i], parts[i + 1])
            parts[i : i + 2] = [node]
        packed.append(trees.pack(parts[0]._replace(label=numbers[0] % 2)))
    nodes, labels = trees.arrays(packed, {f"{n}": n for n in range(1, 20)}, 11)
    targets = torch.from_numpy(labels)
    split = Split(torch.from_numpy(nodes), targets[:, 0].contiguous(), targets=targets)
    return assemble("trees", train=split, val=split, test=split, class_names=("no", "yes"), words=words())


@pytest.mark.parametrize("loss", examples())
@pytest.mark.parametrize(("recipe", "made"), [(NEWS, documents), (SST, sentences)], ids=["documents", "trees"])
def test_every_loss_works(recipe, made, loss):
    data = made()
    fitted = fit(replace(recipe, loss=loss), data, device="cpu")
    assert fitted.test_logits.shape == (len(data.test), data.classes)
    of_trees = {"outputs-val", "outputs-test"} if recipe is SST else set()
    assert set(fitted.beside) == {"last-val", "last-test"} | of_trees
    for name in of_trees:  # one output more, for what is of no class
        assert torch.equal(fitted.beside[name][:, :2], fitted.test_logits)
        assert fitted.beside[name].shape == (len(data.test), data.classes + 1)
    assert all(entry["gradient_norm"]["mean"] > 0 for entry in fitted.history)


def sst_by_hand(recipe, data):
    """An epoch node by node: AdaGrad on the net, plain SGD on the vectors, the sum over nodes, the mean over trees."""
    torch.manual_seed(seed_of(recipe.seed, 0, "weights"))
    net = models.build("tree-lstm", 2, data.input_shape, data.words)
    net.dropout.p = 0.0
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed_of(recipe.seed, 0, "samples")))
    parameters = dict(net.named_parameters())
    sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for rows in order.split(recipe.batch):
        targets = data.train.targets[rows]
        logits = node_logits(net, [nested(tree) for tree in data.train.inputs[rows]])
        loss = F.cross_entropy(logits, targets[targets != -100], reduction="sum") / len(rows)
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        with torch.no_grad():
            for (name, p), g in zip(parameters.items(), gradients, strict=True):
                if name == "words.weight":
                    p -= recipe.embedding_lr * g
                else:
                    g = g + recipe.weight_decay * p
                    sums[name] += g**2
                    p -= recipe.lr * g / (sums[name].sqrt() + 1e-10)
    return net


def test_an_epoch_of_trees_is_what_it_is_by_hand(monkeypatch):
    monkeypatch.setattr("trueup.models.tree_lstm.DROPOUT", 0.0)
    recipe, data = replace(SST, epochs=1, weight_decay=0.01), sentences()
    ours, expected = fit(recipe, data, device="cpu").model, sst_by_hand(recipe, data)
    for (name, a), b in zip(ours.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize(("recipe", "made"), [(NEWS, documents), (SST, sentences)], ids=["documents", "trees"])
def test_word_vectors_are_trained_as_the_recipe_says(recipe, made):
    data = made()
    moved = {}
    for lr in (0.0, 0.1, None):
        net = fit(replace(recipe, embedding_lr=lr, keep="last"), data, device="cpu").model
        moved[lr] = float((models.word_vectors(net)[0] - data.words).detach().norm())
    assert moved[0.0] == 0
    assert moved[0.1] > 0
    assert moved[None] > 0
    assert moved[0.1] != moved[None]


def test_for_one_label_a_sample_per_sample_is_refused_as_it_is_the_mean():
    with pytest.raises(InputError, match="per-sample is for trees"):
        fit(replace(NEWS, reduction="per-sample"), documents(), device="cpu")


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_corner_of_the_images_works_on_trees(reduction):
    fitted = fit(replace(SST, reduction=reduction, clip=2.0), sentences(), device="cpu")
    assert fitted.test_logits.isfinite().all()


@pytest.mark.parametrize(("recipe", "made"), [(NEWS, documents), (SST, sentences)], ids=["documents", "trees"])
def test_it_goes_on_from_a_saved_state_bit_for_bit(recipe, made):
    data, kept = made(), []
    whole = fit(recipe, data, device="cpu", after_epoch=lambda state, at: kept.append((state.copy(), deepcopy(at))))
    for saved in kept:
        resumed = fit(recipe, data, device="cpu", saved=deepcopy(saved))
        for name in ("last-val", "last-test"):
            assert torch.equal(whole.beside[name], resumed.beside[name])
        assert torch.equal(whole.test_logits, resumed.test_logits)
        assert whole.kept_epoch == resumed.kept_epoch
        assert but_for_seconds(whole.history) == but_for_seconds(resumed.history)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Small files in the real layouts."""
    place = tmp_path / "files"
    as_lines(place / "20newsgroups", articles(2))
    write_trees(place / "sst", TREES | {"train": TREES["train"] * 6, "dev": TREES["dev"] * 2})
    write_npz(place / "glove")
    monkeypatch.setenv("TRUEUP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TRUEUP_DATA", str(place))
    return place


@pytest.mark.parametrize("recipe", [NEWS, SST], ids=["documents", "trees"])
def test_a_run_stopped_anywhere_ends_as_if_it_had_not_been(tmp_path, folder, monkeypatch, recipe):
    whole = train(recipe, tmp_path / "whole", device="cpu")
    assert [note for note in whole.info["data_notes"] if "have no vector in some.npz" in note]
    assert not (tmp_path / "whole" / "posteriors.safetensors").exists()
    for i, (owner, name, call) in enumerate(((loop, "step", 4), (loop, "measured", 5), (run, "write_predictions", 3))):
        with monkeypatch.context() as patch:
            stop_at(patch, owner, name, call)
            with pytest.raises(Stopped):
                train(recipe, tmp_path / f"{i}", device="cpu", checkpoint_seconds=0)
        train(recipe, tmp_path / f"{i}", device="cpu")
        (tmp_path / f"{i}" / "posteriors.safetensors").touch()
        (tmp_path / "whole" / "posteriors.safetensors").touch()
        assert_same_run(tmp_path / f"{i}", tmp_path / "whole")


def test_kill_9(tmp_path, folder):
    command = [sys.executable, "-c", KILLED, tmp_path / "killed", "loop", "step", "6", json.dumps(SST.to_dict())]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, check=False)
    assert done.returncode == -9, done.stderr.decode()
    assert (tmp_path / "killed" / "checkpoint.safetensors").exists()
    whole, killed = (train(SST, tmp_path / name, device="cpu") for name in ("whole", "killed"))
    assert torch.equal(whole.test.logits, killed.test.logits)
    assert torch.equal(whole.beside("last-test").logits, killed.beside("last-test").logits)


def test_other_word_vectors_are_other_data(tmp_path, folder, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at(patch, loop, "step", 6)
        with pytest.raises(Stopped):
            train(SST, tmp_path / "run", device="cpu", checkpoint_seconds=0)
    write_npz(folder / "glove", {"the": (5.0, 5.0), "cat": (1.0, 1.0)})
    with pytest.raises(InputError, match="sst has changed since"):
        train(SST, tmp_path / "run", device="cpu")
    write_glove(folder / "glove")
    assert sources.load("sst:vectors=glove.6B.2d").checksum != sources.load("sst").checksum


def test_words_are_refused_where_images_are_meant(folder, tmp_path):
    with pytest.raises(InputError, match=r"resnet18.*cannot read words"):
        train(replace(SST, model="resnet18"), tmp_path / "a", device="cpu")
    with pytest.raises(InputError, match=r"tree-lstm.*reads words, and these data have none"):
        train(replace(SST, data="digits"), tmp_path / "b", device="cpu")
    with pytest.raises(InputError, match="crop-flip is for images"):
        train(replace(NEWS, augmentation="crop-flip"), tmp_path / "c", device="cpu")


BROKEN = {
    "an unbalanced tree": ("sst/dev.txt", b"(1 (2 the) (0 zebra)\n", "dev.txt: line 1: 1 bracket never closed"),
    "another label": ("sst/train.txt", b"(3 cat)\n(7 cat)\n", "train.txt: line 2: the label '7'"),
    "no text": ("sst/test.txt", b"(3 c\xffat)\n", "test.txt: line 1: not text in UTF-8"),
    "an empty article": (
        "20newsgroups/x.jsonl",
        b'{"group": "sci.med", "text": ""}\n',
        "x.jsonl: line 1: the article is",
    ),
    "a torn vector": ("glove/glove.txt", b"the 1 2\ncat 3\n", "glove.txt: line 2: a word and 1 numbers"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_on_the_command_line_it_is_exit_code_two_and_no_traceback(case, folder, tmp_path):
    path, content, message = BROKEN[case]
    (folder / "glove" / "some.npz").unlink()
    write_glove(folder / "glove", name="glove.txt")
    for other in (folder / path).parent.glob("*.jsonl*"):
        other.unlink()
    (folder / path).write_bytes(content)
    recipe = "mukhoti2020-20newsgroups" if path.startswith("20") else "mukhoti2020-sst"
    arguments = ["train", "--recipe", recipe, "--data-dir", folder, "--out", tmp_path / "run", "--device", "cpu"]
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
    assert done.stdout == ""


@pytest.mark.parametrize(("name", "model"), [("sst", "tree-lstm"), ("20newsgroups", "text-cnn")])
def test_a_study_of_texts_as_a_user_runs_it(folder, tmp_path, monkeypatch, caplog, name, model):
    monkeypatch.chdir(tmp_path)
    options = ["--data", name, "--set", "epochs=1", "--set", "batch=5", "--seeds", "0", "--resamples", "50"]
    losses = ["--losses", "cross-entropy cross-entropy+mmce:8", "--jobs", "1", "--device", "cpu"]
    done = CliRunner().invoke(app, ["study", *options, *losses, "--json"])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["study"], found["folder"]) == (name, f"studies/{name}")
    assert {row["loss"] for row in found["rows"]} == {"cross-entropy", "cross-entropy+mmce:8"}
    assert {row["model"] for row in found["rows"]} == {model}
    assert "have no vector in some.npz" in found["notes"][name]
    assert not caplog.records  # it is told once
    again = CliRunner().invoke(app, ["study", *options, *losses])
    (note,) = [line for line in again.stdout.splitlines() if line.startswith(f"{name}: ")]
    assert "have no vector in some.npz" in note


def test_the_study_of_a_data_set_has_its_own_recipe_and_losses():
    for data in ("sst", "20newsgroups"):
        study = study_named(data=(data,))
        assert (study.name, study.recipe) == (data, f"mukhoti2020-{data}")
        assert "cross-entropy+mmce:8" in study.losses
        assert "cross-entropy+mmce:2" not in study.losses
    assert study_named().name == study_named(data=("digits",)).name == "digits"
    other = study_named(data=("cifar10",))  # as that of digits, in a folder of its own
    assert (other.name, other.recipe, other.losses) == ("cifar10", "digits", study_named().losses)
    assert study_named(data=("tiny-imagenet",)).recipe == recipe_for("tiny-imagenet") == "mukhoti2020-tiny"
    with pytest.raises(InputError, match="one study at a time: sst with mukhoti2020-sst, 20newsgroups with"):
        study_named(data=("sst", "20newsgroups"))
    both = study_named(data=("sst", "20newsgroups"), recipe="mukhoti2020-sst")
    assert (both.name, both.recipe) == ("sst-20newsgroups", "mukhoti2020-sst")


def test_every_named_recipe_of_a_data_set_is_for_it():
    for data, recipe in BY_DATA.items():
        assert named(recipe).data == data


def test_training_says_what_is_to_be_known_of_the_data(folder, tmp_path, caplog):
    options = ["--data", "sst", "--set", "epochs=2", "--set", "batch=5", "--device", "cpu"]  # which has a recipe
    done = CliRunner().invoke(app, ["train", *options, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.stderr
    made = load_run(tmp_path / "run")
    assert made.recipe.name == "mukhoti2020-sst"
    assert f"{made.info['kept_epoch']}, kept" in done.stdout
    (shown,) = [line.split() for line in done.stdout.splitlines() if line.startswith("NLL")]
    kept, last = (made.history[epoch]["test"]["nll"] for epoch in (made.info["kept_epoch"], -1))
    assert [float(number) for number in shown[1:]] == pytest.approx([kept, last], abs=1e-4)
    assert [line for line in done.stdout.splitlines() if line.startswith("sst: ") and "tokens" in line]
    assert not caplog.records  # it is told once
