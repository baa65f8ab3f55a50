"""A run's folder: complete or resumable at any moment, bit for bit, and refused where it is not this recipe's."""

import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import trueup
from tests.train.small import SMALL, but_for_seconds
from trueup.inputs import InputError
from trueup.train import checkpoint, load_run, run, train
from trueup.train import loop as training_loop
from trueup.train.loop import Progress

FILES = [
    "history.jsonl", "posteriors.safetensors", "recipe.json", "run.json",
    "test.safetensors", "val.safetensors", "weights.safetensors",
]  # fmt: skip
LAST = ["last-test.safetensors", "last-val.safetensors"]
OUTPUTS = ["outputs-test.safetensors", "outputs-val.safetensors"]


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def assert_same_run(one, other):
    recipe = load_run(one).recipe
    more = [*(LAST if recipe.keep == "best-val" else ()), *(OUTPUTS if recipe.reduction == "per-sample" else ())]
    assert names(one) == names(other) == sorted({*FILES, *more})
    first, second = (load_file(folder / "weights.safetensors") for folder in (one, other))
    assert set(first) == set(second)
    assert all(torch.equal(first[name], second[name]) for name in first)
    a, b = load_run(one), load_run(other)
    assert but_for_seconds(a.history) == but_for_seconds(b.history)
    for file in (*one.glob("*val.safetensors"), *one.glob("*test.safetensors")):
        assert torch.equal(trueup.load(file).logits, trueup.load(other / file.name).logits)
    assert a.recipe == b.recipe


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    train(SMALL, folder, device="cpu")
    return folder


def test_a_run_ends_in_one_folder(whole):
    assert names(whole) == FILES
    made = load_run(whole)
    assert made.recipe == SMALL
    assert made.info["complete"]
    assert made.info["digest"] == SMALL.digest == json.loads((whole / "recipe.json").read_text())["digest"]
    assert made.info["versions"]["torch"] == torch.__version__
    assert made.info["seconds"] >= sum(entry["seconds"] for entry in made.history)
    assert len(made.test) == 60
    assert made.test_posteriors is not None
    assert trueup.nll(made.test_posteriors, made.test.labels) < trueup.nll(made.test.probs, made.test.labels)
    assert made.test.meta["digest"] == SMALL.digest
    assert trueup.nll(made.test.probs, made.test.labels) == pytest.approx(made.history[-1]["test"]["nll"], rel=1e-5)


def test_a_complete_run_is_only_read(whole):
    before = {file.name: file.stat().st_mtime_ns for file in whole.iterdir()}
    assert train(SMALL, whole).info == load_run(whole).info
    assert before == {file.name: file.stat().st_mtime_ns for file in whole.iterdir()}


def test_half_precision_predictions_are_half_the_size_and_can_be_read(whole, tmp_path):
    made = train(SMALL, tmp_path, device="cpu", half=True)
    assert load_file(tmp_path / "test.safetensors")["logits"].dtype == torch.float16
    torch.testing.assert_close(made.test.logits, load_run(whole).test.logits, atol=2e-3, rtol=1e-3)


def test_what_else_was_scored_is_beside_the_predictions(tmp_path, whole):
    made = train(replace(SMALL, keep="best-val", lr=1.0, milestones=(), factors=()), tmp_path, device="cpu")
    errors = [entry["val"]["error"] for entry in made.history]
    assert made.info["kept_epoch"] == errors.index(min(errors)) < SMALL.epochs - 1
    for part in ("val", "test"):
        kept, last = getattr(made, part), made.beside(f"last-{part}")
        assert torch.equal(kept.labels, last.labels)
        assert trueup.error(kept.probs, kept.labels) == made.history[made.info["kept_epoch"]][part]["error"]
        assert trueup.error(last.probs, last.labels) == made.history[-1][part]["error"]
    assert load_run(whole).info["kept_epoch"] == SMALL.epochs - 1
    assert load_run(whole).last is None
    (tmp_path / "last-val.safetensors").unlink()
    assert not run.is_complete(tmp_path, made.recipe)
    with pytest.raises(InputError, match=r"last-val.safetensors: no such file; keep=best-val gives"):
        load_run(whole).beside("last-val")


class Stopped(BaseException):
    """As sudden as a signal."""


def stop_at(monkeypatch, owner, name, call):
    """Makes the given call of a function end the training in its middle."""
    original, calls = getattr(owner, name), [0]

    def sudden(*args, **kwargs):
        calls[0] += 1
        if calls[0] == call:
            raise Stopped
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, sudden)


@pytest.mark.parametrize("keep", ["last", "best-val"])
@pytest.mark.parametrize(
    ("owner", "name", "calls"),
    [
        (training_loop, "step", (1, 8, 18)),
        (training_loop, "measured", (2, 9)),
        (run, "write_whole", (1, 2, 4)),
        (checkpoint, "write_whole", (1, 4)),
        (run, "write_checkpoint", (1, 5)),
        (run, "write_predictions", (1, 2)),
    ],
)
def test_a_run_stopped_anywhere_ends_as_if_it_had_not_been(tmp_path, monkeypatch, owner, name, calls, keep):
    recipe = replace(SMALL, keep=keep)
    train(recipe, tmp_path / "whole", device="cpu")
    for call in calls:
        with monkeypatch.context() as patch:
            stop_at(patch, owner, name, call)
            with pytest.raises(Stopped):
                train(recipe, tmp_path / f"{call}", device="cpu", checkpoint_seconds=0)
        train(recipe, tmp_path / f"{call}", device="cpu")
        assert_same_run(tmp_path / f"{call}", tmp_path / "whole")


def test_a_run_that_lost_a_file_is_trained_anew_and_a_kept_one_is_not(tmp_path):
    first = train(SMALL, tmp_path, device="cpu")
    for name in ("test.safetensors", "weights.safetensors"):
        (tmp_path / name).unlink()
        assert not run.is_complete(tmp_path, SMALL)
        again = train(SMALL, tmp_path, device="cpu")
        assert torch.equal(again.test.logits, first.test.logits)
        assert run.is_complete(tmp_path, SMALL)
    for name in ("weights.safetensors", "history.jsonl"):
        (tmp_path / name).unlink()
    (tmp_path / "history.jsonl.gz").write_bytes(gzip.compress(b""))
    assert train(SMALL, tmp_path, device="cpu").info == again.info  # it is only read


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"date": 1}'])
def test_a_damaged_run_json_is_told(tmp_path, content):
    train(SMALL, tmp_path, device="cpu")
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match=r"run\.json: damaged"):
        run.load_run(tmp_path)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_told_with_the_file(tmp_path, monkeypatch):
    (tmp_path / "history.jsonl").symlink_to("/dev/full")
    monkeypatch.setattr(run, "write_whole", lambda path, content: None)
    keeper = run._Keeper(tmp_path, SMALL, "", 1e9, {})
    with pytest.raises(OSError, match="No space left") as told:
        keeper.after_epoch(None, Progress([{"epoch": 0}]))  # type: ignore[arg-type]
    assert told.value.filename == str(tmp_path / "history.jsonl")


KILLED = """
import json, os, signal, sys
import torch
from trueup.train import Recipe, loop, run, train
torch.set_num_threads(1)
owner, name, call = {"loop": loop, "run": run, "os": os}[sys.argv[2]], sys.argv[3], int(sys.argv[4])
original, calls = getattr(owner, name), 0
def deadly(*args, **kwargs):
    global calls
    calls += 1
    if calls == call:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
setattr(owner, name, deadly)
train(Recipe.from_dict(json.loads(sys.argv[5])), sys.argv[1], device="cpu", checkpoint_seconds=0)
"""


def test_kill_9_in_an_epoch_in_a_checkpoint_and_in_the_last_file(tmp_path, whole):
    """The same run, killed three times by the real signal, each time further on."""
    for owner, name, call, leaves in (
        ("loop", "step", 5, "checkpoint.safetensors"),  # in the second epoch
        ("os", "fsync", 3, ".checkpoint.safetensors."),  # written, not yet renamed
        ("run", "write_predictions", 2, "val.safetensors"),
    ):
        command = [sys.executable, "-c", KILLED, tmp_path, owner, name, str(call), json.dumps(SMALL.to_dict())]
        done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, check=False)
        assert done.returncode == -9, done.stderr.decode()
        assert any(file.startswith(leaves) for file in names(tmp_path))
        assert "run.json" not in names(tmp_path)
    train(SMALL, tmp_path, device="cpu")
    assert_same_run(tmp_path, whole)


def interrupted(folder, monkeypatch, recipe=SMALL):
    """A folder whose checkpoint is three epochs old, and whose history goes on for another."""
    with monkeypatch.context() as patch:
        stop_at(patch, run, "write_checkpoint", 4)
        with pytest.raises(Stopped):
            train(recipe, folder, device="cpu", checkpoint_seconds=0)
    assert len(run.read_history(folder)) == 4
    return folder


def test_a_history_that_is_ahead_or_cut_in_a_line_is_mended(tmp_path, monkeypatch, whole):
    interrupted(tmp_path, monkeypatch)
    with open(tmp_path / "history.jsonl", "a") as file:
        file.write('{"epoch": 4, "lr')
    assert len(run.read_history(tmp_path)) == 4
    train(SMALL, tmp_path, device="cpu")
    assert_same_run(tmp_path, whole)


@pytest.mark.parametrize("damage", ["cut", "one bit", "no safetensors", "empty"])
def test_a_damaged_checkpoint_is_refused_and_kept(tmp_path, monkeypatch, whole, damage):
    path = interrupted(tmp_path, monkeypatch) / run.CHECKPOINT
    content = bytearray(path.read_bytes())
    content[-5] ^= 4
    path.write_bytes({"cut": content[:-7], "one bit": content, "no safetensors": b"x" * 99, "empty": b""}[damage])
    before = names(tmp_path)
    with pytest.raises(InputError, match=r"checkpoint.safetensors: damaged .* remove it"):
        train(SMALL, tmp_path, device="cpu")
    assert names(tmp_path) == before
    path.unlink()
    train(SMALL, tmp_path, device="cpu")
    assert_same_run(tmp_path, whole)


def test_another_recipe_is_refused(tmp_path, monkeypatch, whole):
    interrupted(tmp_path, monkeypatch)
    with pytest.raises(InputError, match=r"another recipe \(lr 0.1, not 0.3; seed 0, not 7\)|\(seed 0, not 7; lr"):
        train(replace(SMALL, lr=0.3, seed=7), tmp_path, device="cpu")
    with pytest.raises(InputError, match="another recipe"):
        train(replace(SMALL, epochs=7), whole, device="cpu")
    other = replace(SMALL, seed=1)
    train(other, tmp_path / "other", device="cpu")
    for name in ("recipe.json", "history.jsonl"):
        (tmp_path / "mixed").mkdir(exist_ok=True)
        shutil.copy(tmp_path / "other" / name, tmp_path / "mixed" / name)
    shutil.copy(tmp_path / run.CHECKPOINT, tmp_path / "mixed" / run.CHECKPOINT)
    with pytest.raises(InputError, match=rf"of another recipe \({SMALL.digest}, not {other.digest}\)"):
        train(other, tmp_path / "mixed", device="cpu")


def test_data_that_changed_are_refused(tmp_path, monkeypatch):
    interrupted(tmp_path, monkeypatch)
    load = run.sources.load
    changed = lambda *args, **kwargs: replace(load(*args, **kwargs), checksum="0")  # noqa: E731
    monkeypatch.setattr(run.sources, "load", changed)
    with pytest.raises(InputError, match="has changed since"):
        train(SMALL, tmp_path, device="cpu")


def test_a_run_that_goes_on_elsewhere_tells_of_both_places_but_in_one_arithmetic(tmp_path, monkeypatch, whole):
    here = run.where("cpu")
    gpu = {**here, "hardware": {**here["hardware"], "gpu": "a GPU"}}
    older = {**here, "versions": {**here["versions"], "torch": "2.11"}}
    for name, place in {"older": older, "gpu": gpu}.items():
        with monkeypatch.context() as patch:
            patch.setattr(run, "where", lambda device, place=place: place)
            interrupted(tmp_path / name, patch)
    made = train(SMALL, tmp_path / "older", device="cpu")
    assert made.info["earlier"] == [older]
    assert made.info["versions"] == here["versions"]
    assert "earlier" not in load_run(whole).info
    assert_same_run(tmp_path / "older", whole)
    with pytest.raises(InputError, match="came so far in bf16, and here it would go on in float32"):
        train(SMALL, tmp_path / "gpu", device="cpu")
    (tmp_path / "gpu" / run.CHECKPOINT).unlink()
    assert "earlier" not in train(SMALL, tmp_path / "gpu", device="cpu").info


@pytest.mark.parametrize("content", ["", "{", "[]", '{"recipe": {}, "digest": "x"}', '{"recipe": {"lr": 1}}'])
def test_a_recipe_that_cannot_be_read_is_refused(tmp_path, content):
    (tmp_path / "recipe.json").write_text(content)
    with pytest.raises(InputError, match=r"recipe"):
        train(SMALL, tmp_path, device="cpu")


def test_two_processes_do_not_share_a_folder(tmp_path):
    with run._alone_in(tmp_path), pytest.raises(InputError, match="another process is training in it"):
        train(SMALL, tmp_path, device="cpu")
    train(SMALL, tmp_path, device="cpu")


def test_a_full_disk_loses_nothing(tmp_path, whole):
    """No file may grow beyond some thousand bytes: the first checkpoints fit, later ones do not."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            train(SMALL, tmp_path, device="cpu", checkpoint_seconds=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(tmp_path) == ["checkpoint.safetensors", "history.jsonl", "recipe.json"]
    train(SMALL, tmp_path, device="cpu")
    assert_same_run(tmp_path, whole)


def test_a_complete_run_is_on_the_disk_before_it_is_called_so(tmp_path, monkeypatch):
    """As where the power fails: what was written and not forced to the disk is lost, whatever its name."""
    forced, fsync = set(), os.fsync

    def force(handle):
        forced.add(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", force)
    train(SMALL, tmp_path, device="cpu", checkpoint_seconds=0)
    assert names(tmp_path) == FILES
    assert {file.name for file in tmp_path.iterdir() if file.stat().st_ino not in forced} == set()


def test_out_of_memory_says_what_to_do(tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 ...")

    monkeypatch.setattr(run, "fit", full)
    with pytest.raises(
        InputError, match=r"out of GPU memory with mlp:8, batch 32 \(CUDA out of memory\); nothing is lost"
    ):
        train(SMALL, tmp_path, device="cpu")


def test_a_refused_run_leaves_nothing_and_its_folder_takes_another_recipe(tmp_path):
    with pytest.raises(InputError, match="crop-flip is for images"):
        train(replace(SMALL, augmentation="crop-flip"), tmp_path / "new", device="cpu")
    assert names(tmp_path) == []
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").touch()
    with pytest.raises(InputError, match="crop-flip is for images"):
        train(replace(SMALL, augmentation="crop-flip"), tmp_path / "there", device="cpu")
    assert names(tmp_path / "there") == ["mine.txt"]


def test_what_a_killed_process_left_goes_and_what_is_not_ours_stays(tmp_path):
    mine = [".gitlab-ci.yml", ".recipe.json", "notes.txt"]
    left = [".checkpoint.safetensors.123", ".val.safetensors.x7.safetensors", ".history.jsonl.9"]
    for name in mine + left:
        (tmp_path / name).touch()
    train(SMALL, tmp_path, device="cpu")
    assert names(tmp_path) == sorted(mine + FILES)


def test_an_error_in_a_run_that_has_begun_takes_nothing_away(tmp_path, monkeypatch, whole):
    interrupted(tmp_path, monkeypatch)
    before = names(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(run, "fit", lambda *_args, **_kwargs: (_ for _ in ()).throw(InputError("full")))
        with pytest.raises(InputError, match="full"):
            train(SMALL, tmp_path, device="cpu")
    assert names(tmp_path) == before
    train(SMALL, tmp_path, device="cpu")
    assert_same_run(tmp_path, whole)


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"reduction": "per-sample"}, "per-sample is for trees"), ({"embedding_lr": 0.1}, "mlp:8 has none")],
)
def test_a_setting_without_effect_is_refused(tmp_path, changes, says):
    with pytest.raises(InputError, match=says):
        train(replace(SMALL, **changes), tmp_path / "new", device="cpu")


def test_the_processor_is_told_by_its_model(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text(
        "processor\t: 0\nmodel name\t: Some  CPU @ 3 GHz\nprocessor\t: 1\nmodel name\t: Some  CPU @ 3 GHz\n"
    )
    assert run._cpu(info) == "Some CPU @ 3 GHz"
    info.write_text("processor : 0\n")
    assert run._cpu(info) == run._cpu(tmp_path / "none") != ""


def test_no_gpu_is_told_before_a_folder_is_made(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(InputError, match="torch sees no GPU"):
        train(SMALL, tmp_path / "new", device="cuda")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("bad", [{"model": "resnet19"}, {"data": "mnits"}, {"loss": "focus:3"}])
def test_an_unknown_name_is_told_before_a_folder_is_made(tmp_path, bad):
    with pytest.raises(InputError, match=r"unknown|names no"):
        train(replace(SMALL, **bad), tmp_path / "new", device="cpu")
    assert names(tmp_path) == []


def test_a_folder_where_nothing_was_done_yet_takes_another_recipe(tmp_path, whole):
    with pytest.raises(InputError, match="cnn takes images"):
        train(replace(SMALL, model="cnn"), tmp_path, device="cpu")
    train(SMALL, tmp_path, device="cpu")
    assert_same_run(tmp_path, whole)
