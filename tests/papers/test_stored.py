"""Stored runs: their names, what is refused, and that a run can be kept, read and trained again."""

import gzip
import json
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.papers.conftest import RESULTS
from tests.train.small import SMALL
from trueup import papers
from trueup.files import Content, read, write
from trueup.inputs import InputError
from trueup.papers import chosen, named_so, open_runs, retrain, stored
from trueup.papers.stored import changes, command_of, load_runs, origin, run_name, store
from trueup.predictions import Predictions, load
from trueup.train import load_run, named, train, worker

RUN = "cifar10_resnet18_focal-3_short_seed0"
GRIDS = {name: module.recipes() for name, module in chosen("all").items()}


@pytest.mark.parametrize("paper", GRIDS)
def test_a_name_tells_every_recipe_from_the_others(paper):
    recipes = GRIDS[paper]
    assert len({recipe.digest for recipe in recipes.values()}) == len(recipes)
    assert all(run_name(recipe) == name for name, recipe in recipes.items())


def test_a_change_of_any_setting_changes_the_name():
    base = named("mukhoti2020-short")
    others = [base.changed({k: v}) for k, v in {"lr": 0.2, "batch": 64, "clip": None, "milestones": (1, 2)}.items()]
    assert len({run_name(recipe) for recipe in (base, *others)}) == 5
    assert changes(base) == {}
    assert changes(named("mukhoti2020-short", loss="brier")) == {}  # the authors' code averages that one


def test_the_same_training_in_another_precision_is_the_same_run_to_a_grid():
    usual, halves = (named("mukhoti2020-sst", precision=precision) for precision in ("float32", "bf16"))
    assert run_name(halves) == run_name(usual)
    assert command_of(halves).endswith("--set precision=bf16")  # what is trained again is the very same
    assert halves.digest != usual.digest


@pytest.mark.parametrize("paper", GRIDS)
def test_the_printed_command_is_the_recipe(paper):
    for recipe in GRIDS[paper].values():
        words = shlex.split(command_of(recipe))
        assert words[:2] == ["trueup", "train"]
        options = list(zip(words[2::2], words[3::2], strict=True))
        settings = {name[2:]: value for name, value in options if name not in ("--recipe", "--set")}
        settings |= dict(value.split("=", 1) for name, value in options if name == "--set")
        settings["seed"] = int(settings["seed"])
        assert named(dict(options)["--recipe"], **settings).digest == recipe.digest


@pytest.fixture
def copy(tmp_path):
    """A results folder with one real run in it."""
    shutil.copytree(RESULTS / "mukhoti2020" / "runs" / RUN, tmp_path / "runs" / RUN)
    store([tmp_path / "runs" / RUN], tmp_path)
    return tmp_path


def test_a_stored_run_is_read_without_its_weights(copy):
    (run,) = load_runs(copy).values()
    assert len(run.test) == 10_000
    assert len(run.history) == 105
    assert not (run.folder / "weights.safetensors").exists()
    assert "H200" in origin(run)


@pytest.mark.parametrize("name", ["test.safetensors", "history.jsonl.gz", "recipe.json", "run.json"])
def test_a_file_that_is_missing_or_changed_is_named(copy, name):
    path = copy / "runs" / RUN / name
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InputError, match=f"{name}: changed; its SHA-256"):
        load_runs(copy)
    path.unlink()
    with pytest.raises(InputError, match=f"{name}: missing"):
        load_runs(copy)
    (copy / "SHA256SUMS").unlink()
    with pytest.raises(InputError, match=f"{name.removesuffix('.gz')}: missing"):
        load_runs(copy)


def test_a_run_without_sums_is_held_to_its_own_history(copy):
    (copy / "SHA256SUMS").unlink()
    folder = copy / "runs" / RUN
    assert set(load_runs(copy)) == {RUN}
    other = RESULTS / "mukhoti2020" / "runs" / "cifar10_resnet18_cross-entropy_short_seed0"
    shutil.copyfile(other / "test.safetensors", folder / "test.safetensors")
    with pytest.raises(InputError, match=r"test.safetensors: of another recipe than"):
        load_runs(copy)


def test_predictions_that_do_not_give_the_history_are_refused(copy):
    (copy / "SHA256SUMS").unlink()
    path = copy / "runs" / RUN / "history.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    path.write_bytes(gzip.compress(("\n".join([*lines[1:], lines[0]]) + "\n").encode()))
    with pytest.raises(InputError, match=r"val.safetensors: changed; error .* where the history has"):
        load_runs(copy)
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    with pytest.raises(InputError, match=r"history.jsonl: 104 epochs, where the recipe has 105"):
        load_runs(copy)
    path.write_bytes(b"no gzip")
    with pytest.raises(InputError, match=r"history.jsonl.gz: damaged"):
        load_runs(copy)


def test_a_run_of_another_recipe_is_named(copy):
    (copy / "SHA256SUMS").unlink()
    (copy / "runs" / RUN).rename(copy / "runs" / "cifar10_resnet50_focal-3_short_seed0")
    with pytest.raises(InputError, match=f"recipe.json: a run of another recipe; its folder would be named {RUN}"):
        load_runs(copy)


def test_a_grid_is_retrained_kept_and_not_trained_again(tmp_path):
    small = SMALL.changed({"epochs": 2, "milestones": (1,), "factors": (0.1,)})
    recipes = {run_name(recipe): recipe for recipe in (small, small.changed({"seed": 1}))}
    results, work = tmp_path / "results", tmp_path / "work"
    first = next(iter(recipes))
    train(small, work / first, device="cpu", half=True)  # as if stopped between the two
    assert open_runs(recipes, results) == recipes
    assert retrain(recipes, results / "paper", work, device="cpu") == {}
    assert set(load_runs(results / "paper")) == set(recipes)
    assert open_runs(recipes, results) == {}
    second = {k: v for k, v in recipes.items() if v.seed == 1}
    assert named_so({"paper": recipes, "other": {}}, "*seed1*") == {"paper": second, "other": {}}
    with pytest.raises(InputError, match="--only none: no run of the grid is named so"):
        named_so({"paper": recipes, "other": {}}, "none")


COPIES = """
import json, shutil, sys
for line in sys.stdin:
    task = json.loads(line)
    shutil.copytree(f"READY/{task['recipe']['seed']}", task["folder"])
    print(json.dumps({"kind": "done"}), flush=True)
"""


def test_a_run_is_kept_before_the_next_begins_and_one_that_cannot_be_kept_stops_no_other(tmp_path, monkeypatch):
    small = SMALL.changed({"epochs": 1, "milestones": (), "factors": ()})
    recipes = {run_name(recipe): recipe for recipe in (small.changed({"seed": seed}) for seed in range(3))}
    for recipe in recipes.values():
        train(recipe, tmp_path / "ready" / f"{recipe.seed}", device="cpu")
    path = tmp_path / "ready" / "1" / "test.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    monkeypatch.setattr(worker, "COMMAND", (sys.executable, "-c", COPIES.replace("READY", f"{tmp_path / 'ready'}")))
    kept = []

    def watch(tasks, event):
        if event is not None and event.kind == "begin":
            kept.append([load_run(path.parent).recipe.seed for path in sorted(tmp_path.glob("kept/runs/*/run.json"))])

    failed = retrain(recipes, tmp_path / "kept", tmp_path / "work", device="cpu", watch=watch)
    assert kept == [[], [0], [0]]
    ((name, message),) = failed.items()
    assert "seed1" in name
    assert f"{tmp_path / 'work' / name / 'test.safetensors'}: " in message
    assert {run.recipe.seed for run in load_runs(tmp_path / "kept").values()} == {0, 2}


def test_what_a_killed_storing_left_goes_with_the_next_and_two_at_once_lose_no_sums(copy, tmp_path):
    kept = tmp_path / "kept"
    (kept / ".storing-killed" / "runs" / RUN).mkdir(parents=True)
    store([copy / "runs" / RUN], kept)
    assert [path.name for path in kept.glob(".storing-*/")] == []
    program = """
import sys
from pathlib import Path
from trueup.papers import stored
folder, name = Path(sys.argv[1]), sys.argv[2]
for i in range(20):
    path = folder / f"{name}{i}"
    path.write_text(name)
    with stored.alone_in(folder):
        stored.write_sums(folder, [path])
"""
    both = [subprocess.Popen([sys.executable, "-c", program, str(kept), name]) for name in ("a", "b")]
    assert [process.wait(120) for process in both] == [0, 0]
    assert {f"{name}{i}" for name in "ab" for i in range(20)} <= set(stored.read_sums(kept))
    load_runs(kept)


def test_a_storing_that_is_stopped_anywhere_leaves_nothing_by_half(tmp_path, monkeypatch, copy):
    def stopping(function, left):
        def call(*args, **kwargs):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return function(*args, **kwargs)

        return call

    source, steps = copy / "runs" / RUN, 0
    while not (tmp_path / "kept" / "runs" / RUN).exists():
        steps += 1
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            left = [steps]
            for owner, name in ((shutil, "copyfile"), (stored, "write_whole"), (stored, "write")):
                patch.setattr(owner, name, stopping(getattr(owner, name), left))
            store([source], tmp_path / "kept")
        runs = load_runs(tmp_path / "kept")
        assert not runs or len(runs[RUN].test) == 10_000
        assert not list((tmp_path / "kept").glob(".storing*/"))
    assert steps >= 5


def test_only_runs_of_the_grid_are_taken_in_and_nothing_is_written_else(tmp_path):
    run = train(
        SMALL.changed({"epochs": 1, "milestones": (), "factors": ()}), tmp_path / "run", device="cpu", half=True
    )
    for name in ("mukhoti2020", "lossfunctions", "kimura2024"):
        with pytest.raises(InputError, match=rf"is no run of {name}'s grid; nothing was stored"):
            papers.take_in(papers.chosen(name), tmp_path / "results", [run.folder], False, None)
    assert not (tmp_path / "results").exists()
    papers.take_in(papers.chosen("komisarenko2024"), tmp_path / "results", [run.folder], False, None)
    assert (tmp_path / "results" / "komisarenko2024" / "SHA256SUMS").is_file()


def test_a_folder_of_the_same_name_does_not_hide_the_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    assert papers.results_folder() == RESULTS
    (tmp_path / "results" / "kimura2024").mkdir()
    assert papers.results_folder() == Path("results")
    with pytest.raises(InputError, match="nope: no such folder"):
        papers.results_folder(Path("nope"))
    assert papers.results_folder(Path("nope"), new=True) == Path("nope")


def test_a_curvature_of_other_samples_is_not_kept(tmp_path):
    folder = shutil.copytree(
        RESULTS / "kimura2024" / "runs" / "digits_mlp_cross-entropy_digits_seed0", tmp_path / "run"
    )
    store([folder], tmp_path / "good")
    text = (folder / "curvature.json").read_text()
    for changed in (text.replace('"val"', '"test"'), re.sub(r'"samples": \d+', '"samples": 5', text)):
        (folder / "curvature.json").write_text(changed)
        with pytest.raises(InputError, match=r"curvature.json: of \d+ samples of (test|val), where all of val is kept"):
            store([folder], tmp_path / "other")


def rewritten(path, change):
    """A JSON file, or a history's, with its first object changed."""
    packed = path.suffix == ".gz"
    first, *rest = (gzip.decompress(path.read_bytes()) if packed else path.read_bytes()).split(
        b"\n" if packed else b"\0"
    )
    content = json.loads(first)
    change(content)
    text = b"\n".join([json.dumps(content).encode(), *rest])
    path.write_bytes(gzip.compress(text) if packed else text)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        (
            "history.jsonl.gz",
            lambda entry: entry["test"].pop("ece"),
            "history.jsonl: damaged; line 1: test.ece is missing",
        ),
        ("history.jsonl.gz", lambda entry: entry["val"].update(wrong=3), "line 1: val.wrong.an object is missing"),
        ("run.json", lambda info: info.pop("hardware"), "run.json: damaged; hardware is missing"),
        ("run.json", lambda info: info["versions"].pop("torch"), "run.json: damaged; versions.torch is missing"),
        ("recipe.json", lambda content: content["recipe"].update(epochs="x"), "recipe.json: epochs: expected a whole"),
        ("recipe.json", lambda content: content["recipe"].update(lr=-0.1), "recipe.json: lr: expected a number"),
    ],
)
def test_a_run_without_a_sum_is_held_to_what_is_read_of_it(copy, name, change, says):
    (copy / "SHA256SUMS").unlink()
    rewritten(copy / "runs" / RUN / name, change)
    with pytest.raises(InputError, match=re.escape(says)):
        load_runs(copy)


def test_sums_that_are_no_text_are_told(copy):
    (copy / "SHA256SUMS").write_bytes(b"\xff\xfe  x\n")
    with pytest.raises(InputError, match="SHA256SUMS: damaged"):
        load_runs(copy)


def test_predictions_are_kept_in_half_the_bytes_where_they_fit(tmp_path):
    recipe = SMALL.changed({"epochs": 1, "milestones": (), "factors": ()})
    run = train(recipe, tmp_path / "run", device="cpu")
    (kept,) = store([tmp_path / "run"], tmp_path)
    assert np.asarray(read(kept / "test.safetensors").values).dtype == np.float16
    assert np.asarray(read(kept / "test.safetensors").labels).dtype == np.int16
    np.testing.assert_allclose(load_run(kept).test.logits.float(), run.test.logits, rtol=1e-3, atol=1e-6)
    assert load_run(kept).test.meta | {"file": ""} == run.test.meta | {"file": ""}
    large = Predictions(logits=np.array([[1e5, 0.0], [0.0, 2.0]], np.float32), labels=[0, 1])
    large.save(tmp_path / "large.safetensors")
    stored._halve(tmp_path / "large.safetensors")
    assert float(load(tmp_path / "large.safetensors").logits.max()) == 1e5
    assert np.asarray(read(tmp_path / "large.safetensors").labels).dtype == np.int16
    many = Content("logits", np.ones((2, 2), np.float32), np.array([0, 40_000]), (), {})
    write(tmp_path / "many.safetensors", many)
    stored._halve(tmp_path / "many.safetensors")
    kept = read(tmp_path / "many.safetensors")
    assert (np.asarray(kept.values).dtype, np.asarray(kept.labels).tolist()) == (np.float16, [0, 40_000])
