"""CIFAR-10, CIFAR-100 and CIFAR-10H: small files in the hub's layout, and the real ones where they are."""

import inspect
import shutil
import time

import huggingface_hub
import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.conftest import SHARED
from tests.data.layouts import claiming, encoded, labels, pixels, write_cifar, write_piece
from trueup import InputError
from trueup.data import cifar, cifar10h, decode, load

needs_cifar = pytest.mark.skipif(not (SHARED / "data" / "cifar10").is_dir(), reason="CIFAR is not here (TRUEUP_DATA)")


REAL = inspect.signature(huggingface_hub.snapshot_download)


def check(data, expected, column="label"):
    """The data set is what the files hold, test in order, train and val by the authors' split."""
    images, targets = expected["train"][0], expected["train"][1][column]
    order = np.arange(len(images))
    np.random.RandomState(1).shuffle(order)
    val = round(len(order) / 10)
    for split, rows in ((data.val, order[:val]), (data.train, order[val:])):
        assert np.array_equal(split.inputs, images[rows])
        assert np.array_equal(split.labels, targets[rows])
    assert np.array_equal(data.test.inputs, expected["test"][0])
    assert np.array_equal(data.test.labels, expected["test"][1][column])


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize("folder", ["cifar10", "data/cifar10", ".", "cifar10/plain_text", "plain_text"])
def test_cifar10_is_what_the_files_hold(tmp_path, monkeypatch, folder, kind):
    expected = write_cifar(tmp_path / folder, kind=kind)
    check(load("cifar10", tmp_path, split="mukhoti2020"), expected)
    monkeypatch.setenv("TRUEUP_DATA", str(tmp_path))
    again = load("cifar10", split="mukhoti2020")
    check(again, expected)
    assert again.class_names[3] == "cat"
    assert (again.mean, again.std) == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


@pytest.mark.parametrize(("option", "column", "classes"), [("fine", "fine_label", 100), ("coarse", "coarse_label", 20)])
def test_cifar100_has_fine_and_coarse_labels(tmp_path, option, column, classes):
    expected = write_cifar(tmp_path / "cifar100", ("fine_label", "coarse_label"))
    data = load(f"cifar100:labels={option}", tmp_path, split="mukhoti2020")
    check(data, expected, column)
    assert data.classes == len(set(data.class_names)) == classes
    default = load("cifar100", tmp_path, split="mukhoti2020")
    assert (default.checksum == data.checksum) == (option == "fine")


def test_workers_decode_what_one_process_does(tmp_path, monkeypatch):
    expected = write_cifar(tmp_path, train=(30, 25), test=(20,))
    monkeypatch.setattr(decode, "ROWS_A_WORKER", 22)
    in_workers = []
    monkeypatch.setattr(decode, "_in_worker", lambda *a, run=decode._in_worker: in_workers.append(a[2:]) or run(*a))
    check(load("cifar10", tmp_path, split="mukhoti2020"), expected)
    assert sorted(in_workers) == [(0, 20), (0, 22), (0, 22), (22, 25), (22, 30)]


# ---------------------------------------------------------------------- the hub


def fake_hub(monkeypatch, origin, arrived):
    """A snapshot_download that copies files; what was asked of it has to suit the real one."""
    asked = []

    def snapshot_download(*args, **kwargs):
        request = REAL.bind(*args, **kwargs).arguments
        asked.append((request["repo_id"], request["repo_type"], request["local_files_only"]))
        if not request["local_files_only"]:
            for pattern in request["allow_patterns"]:
                for path in origin.glob(pattern):
                    (arrived / path.parent.name).mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, arrived / path.parent.name)
        elif not arrived.is_dir():
            raise huggingface_hub.errors.LocalEntryNotFoundError("not here")
        return str(arrived)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


@pytest.mark.parametrize("layout", [cifar.CIFAR10, cifar.CIFAR100])
def test_what_no_folder_has_is_downloaded_once(tmp_path, monkeypatch, layout):
    expected = write_cifar(tmp_path / "origin" / layout.folder, tuple(layout.labels))
    asked = fake_hub(monkeypatch, tmp_path / "origin", tmp_path / "hub")
    for _ in range(2):
        check(load(layout.name, split="mukhoti2020"), expected, next(iter(layout.labels)))
    repository = f"uoft-cs/{layout.name}"
    assert asked == [(repository, "dataset", local) for local in (True, False, True)]


def test_a_half_finished_download_is_finished(tmp_path, monkeypatch):
    expected = write_cifar(tmp_path / "origin" / "plain_text")
    asked = fake_hub(monkeypatch, tmp_path / "origin", tmp_path / "hub")
    (tmp_path / "hub" / "plain_text").mkdir(parents=True)
    piece = "train-00001-of-00002.parquet"
    shutil.copy2(tmp_path / "origin" / "plain_text" / piece, tmp_path / "hub" / "plain_text")
    check(load("cifar10", split="mukhoti2020"), expected)
    assert [local for *_, local in asked] == [True, False]


def test_a_download_that_fails_says_so(tmp_path, monkeypatch):
    def unreachable(*args, **kwargs):
        raise ConnectionError("no network\nand a long story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(InputError, match=r"cifar10: in no folder.*download of uoft-cs/cifar10 failed: no network$"):
        load("cifar10")
    fake_hub(monkeypatch, tmp_path, tmp_path / "hub")
    with pytest.raises(InputError, match=r"failed: .*train-00000-of-00001.parquet: no such file"):
        load("cifar10")


def test_a_folder_that_was_named_is_never_replaced_by_a_download(tmp_path, monkeypatch):
    asked = fake_hub(monkeypatch, tmp_path, tmp_path)
    with pytest.raises(InputError, match=r"cifar10: no Parquet files.*looked in .*data/cifar10.*uoft-cs/cifar10"):
        load("cifar10", tmp_path)
    with pytest.raises(InputError, match=r"data_dir: .*absent is not a folder"):
        load("cifar10", tmp_path / "absent")
    assert asked == []


# ---------------------------------------------------------------------- bad files

FIRST = "train-00000-of-00002.parquet"
IMAGES, LABELS = pixels(30, 1), {"label": labels(30, 1)}


def replaced(row, value):
    return [value if i == row else image for i, image in enumerate(IMAGES)]


def rewrite(images, columns):
    return lambda path: write_piece(path, images, columns)


def damage(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


BAD_FILES = {
    "no Parquet": (damage(lambda b: b"not a parquet file at all"), "not readable as Parquet"),
    "empty": (damage(lambda b: b""), "not readable as Parquet"),
    "truncated": (damage(lambda b: b[: len(b) // 2]), "not readable as Parquet.*fetch it again"),
    "zeros in the middle": (damage(lambda b: b[:2000] + bytes(20_000) + b[22_000:]), "(not readable|decoded)"),
    "a footer of zeros": (damage(lambda b: b[:-600] + bytes(590) + b[-10:]), "not readable as Parquet"),
    "no labels": (rewrite(IMAGES, {"fine_label": LABELS["label"]}), "no column 'label'; it has img, fine_label"),
    "labels of text": (rewrite(IMAGES, {"label": ["cat"] * 30}), "'label' holds string"),
    "an empty label": (rewrite(IMAGES, {"label": pa.array([1] * 29 + [None])}), "with 1 empty"),
    "a label of ten": (rewrite(IMAGES, {"label": [0] * 4 + [10] * 26}), "row 4: label is 10, outside 0 to 9"),
    "a label below zero": (rewrite(IMAGES, {"label": [-1] * 30}), "row 0: label is -1"),
    "no image": (rewrite(replaced(7, b""), LABELS), "row 7: .*there are no bytes"),
    "a broken image": (rewrite(replaced(7, encoded(IMAGES[7])[:200]), LABELS), "row 7: the image cannot be decoded"),
    "text for an image": (rewrite(replaced(29, b"hello"), LABELS), "row 29: the image cannot be decoded"),
    "a large image": (rewrite(replaced(0, encoded(pixels(1, 0, 64)[0])), LABELS), "row 0: .*32 x 32 RGB, got 64 x 64"),
    "a huge image": (rewrite(replaced(3, claiming(encoded(IMAGES[3]), 50_000)), LABELS), "row 3: .*decoded .*limit"),
    "an image too large": (
        rewrite(replaced(3, claiming(encoded(IMAGES[3]), 10_000)), LABELS),
        "row 3: .*decoded .*lim",
    ),
    "a grey image": (rewrite(replaced(0, encoded(IMAGES[0][..., 0])), LABELS), "row 0: .*32 x 32 L"),
    "another kind": (rewrite(replaced(0, encoded(IMAGES[0], "BMP")), LABELS), "row 0: the image cannot be decoded"),
    "missing": (lambda path: path.unlink(), "no such file; the folder has test-00000-of-00001.parquet, train-00001"),
}


@pytest.mark.parametrize(
    ("case", "workers"), [(c, False) for c in BAD_FILES] + [("a broken image", True), ("a huge image", True)]
)
def test_a_bad_file_is_named_and_nothing_stays_in_the_cache(tmp_path, cache, monkeypatch, case, workers):
    if workers:
        monkeypatch.setattr(decode, "ROWS_A_WORKER", 30)
        monkeypatch.setattr(decode, "cores", lambda: 1)
    write_cifar(tmp_path)
    spoil, message = BAD_FILES[case]
    spoil(tmp_path / FIRST)
    with pytest.raises(InputError, match=f"{FIRST}: .*{message}"):
        load("cifar10", tmp_path)
    assert [path for path in cache.rglob("*") if path.suffix != ".lock"] == []
    write_cifar(tmp_path)
    assert len(load("cifar10", tmp_path).test) == 20


def test_pieces_of_two_sets_are_refused(tmp_path):
    write_cifar(tmp_path, train=(10, 10))
    write_cifar(tmp_path, train=(20,))
    with pytest.raises(
        InputError, match=r"pieces of different sets, train-00000-of-00001.parquet and train-00001-of-00002"
    ):
        load("cifar10", tmp_path)


def test_images_that_are_no_images(tmp_path):
    write_cifar(tmp_path)
    pa.parquet.write_table(pa.table({"img": ["a"] * 30, "label": [1] * 30}), tmp_path / FIRST)
    with pytest.raises(InputError, match=r"column 'img' holds string, not images \(a struct with bytes\)"):
        load("cifar10", tmp_path)


def test_a_worker_that_dies_is_reported(tmp_path, monkeypatch):
    write_cifar(tmp_path)
    monkeypatch.setattr(decode, "ROWS_A_WORKER", 30)
    monkeypatch.setattr(decode.sys, "executable", shutil.which("false"))
    with pytest.raises(InputError, match=r"00002.parquet: cannot be decoded \(the worker ended with 1\)"):
        load("cifar10", tmp_path)


# ---------------------------------------------------------------------- human votes


def write_votes(folder, true, form="counts.npz", **changes):
    folder.mkdir(parents=True, exist_ok=True)
    counts = np.random.default_rng(0).integers(0, 10, (len(true), 10)).astype(np.uint8)
    counts[np.arange(len(true)), true] += 40
    counts = changes.get("change", lambda c: c)(counts)
    if form == "counts.npz":
        np.savez(folder / form, **{changes.get("name", "counts"): counts})
    else:
        np.save(folder / form, counts / counts.sum(1, keepdims=True) if "probs" in form else counts)
    return counts


@pytest.mark.parametrize("form", ["counts.npz", "cifar10h-counts.npy", "cifar10h-probs.npy"])
def test_cifar10h_is_cifar10_with_the_votes_of_people(tmp_path, form):
    true = write_cifar(tmp_path / "cifar10")["test"][1]["label"]
    counts = write_votes(tmp_path / "cifar10h", true, form)
    data, images = load("cifar10h", tmp_path, seed=3), load("cifar10", tmp_path, seed=3)
    np.testing.assert_allclose(data.test.posteriors, counts / counts.sum(1, keepdims=True), rtol=1e-15)
    assert torch.equal(data.test.inputs, images.test.inputs)
    assert torch.equal(data.val.inputs, images.val.inputs)
    assert data.val.posteriors is None
    assert data.checksum != images.checksum


BAD_VOTES = {
    "another order": ({"change": lambda c: np.roll(c, 1, 0)}, "not in the same order"),
    "another order of classes": ({"change": lambda c: np.roll(c, 1, 1)}, "not in the same order"),
    "too few": ({"change": lambda c: c[:-1]}, r"expected votes of shape \(20, 10\), got uint8 \(19, 10\)"),
    "nobody": ({"change": lambda c: c * (np.arange(20) != 6)[:, None]}, "row 6 holds no votes"),
    "negative": ({"change": lambda c: c - 60.0 * (np.arange(20) == 5)[:, None]}, "row 5 holds no votes, or a negative"),
    "text": ({"change": lambda c: c.astype(str)}, "expected votes"),
    "objects": ({"change": lambda c: c.astype(object)}, "not an array of votes"),
    "another name": ({"name": "votes"}, "not an array of votes"),
}


@pytest.mark.parametrize("case", BAD_VOTES)
def test_bad_votes_are_refused(tmp_path, case):
    changes, message = BAD_VOTES[case]
    true = write_cifar(tmp_path / "cifar10")["test"][1]["label"]
    write_votes(tmp_path / "cifar10h", true, **changes)
    with pytest.raises(InputError, match=f"counts.npz: .*{message}"):
        load("cifar10h", tmp_path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_votes_with_one_wrong_byte_are_refused_or_read_as_they_were(tmp_path, save):
    path = tmp_path / "counts.npz"
    save(path, counts=np.eye(3))
    whole, refused = path.read_bytes(), []
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            assert np.array_equal(cifar10h.votes(path, np.arange(3), 3), np.eye(3))
        except InputError as error:
            refused.append(str(error))
    assert len(whole) / 4 < len(refused) < len(whole)
    assert all(message.startswith(f"{path}: not an array of votes") for message in refused)


def test_votes_that_are_not_there(tmp_path):
    write_cifar(tmp_path / "cifar10")
    with pytest.raises(InputError, match=r"cifar10h: no votes.*jcpeterson/cifar-10h"):
        load("cifar10h", tmp_path)
    (tmp_path / "counts.npz").write_bytes(b"PK\3\4 no archive")
    with pytest.raises(InputError, match=r"counts.npz: not an array of votes"):
        load("cifar10h", tmp_path)


# ---------------------------------------------------------------------- the real ones


@needs_cifar
def test_the_real_files_decode_to_known_pictures():
    """The first labels of CIFAR-10's test set, the same number of each class, and the groups of CIFAR-100."""
    folder = SHARED / "data"
    ten = decode.read_column(folder / "cifar10" / "test-00000-of-00001.parquet", "label").to_numpy()
    assert ten[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert np.bincount(ten).tolist() == [1000] * 10
    pictures = decode.decode_rows(folder / "cifar10" / "test-00000-of-00001.parquet", "img", 0, 2)
    assert pictures[0, :, 0, 0].tolist() == [158, 112, 49]  # the cat's upper left corner
    path = folder / "cifar100" / "test-00000-of-00001.parquet"
    fine, coarse = (decode.read_column(path, f"{name}_label").to_numpy() for name in ("fine", "coarse"))
    groups = {}
    for pair in set(zip(fine.tolist(), coarse.tolist(), strict=True)):
        groups.setdefault(cifar.CIFAR100_COARSE[pair[1]], set()).add(cifar.CIFAR100_FINE[pair[0]])
    assert sorted(map(len, groups.values())) == [5] * 20
    assert groups["fruit_and_vegetables"] == {"apple", "mushroom", "orange", "pear", "sweet_pepper"}
    assert groups["vehicles_2"] == {"lawn_mower", "rocket", "streetcar", "tank", "tractor"}
    assert groups["people"] == {"baby", "boy", "girl", "man", "woman"}


@needs_cifar
@pytest.mark.slow
def test_the_whole_of_cifar10_has_the_known_mean_and_loads_fast_from_the_cache():
    load("cifar10h", SHARED)
    began = time.process_time()
    data = load("cifar10h", SHARED, split="mukhoti2020")
    assert time.process_time() - began < 0.7
    assert [len(split) for split in data.splits().values()] == [45_000, 5_000, 10_000]
    train = torch.cat([data.train.inputs, data.val.inputs]).double() / 255
    torch.testing.assert_close(train.mean((0, 2, 3)).tolist(), list(data.mean), atol=1e-4, rtol=0)
    assert torch.cat([data.train.labels, data.val.labels]).bincount().tolist() == [5000] * 10
    agreed = (data.test.posteriors.argmax(1) == data.test.labels).double().mean()
    assert float(agreed) == pytest.approx(0.9921, abs=2e-4)
