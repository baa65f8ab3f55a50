"""The cache: once, whole or not at all, whoever kills, crowds, fills or damages."""

import json
import logging
import os
import signal
import stat

import numpy as np
import pytest
import torch

from tests.data.layouts import program, write_cifar
from trueup import InputError
from trueup.data import cache as module
from trueup.data import cifar, load

LOAD = "import sys; from trueup.data import load; print(load('cifar10', sys.argv[1]).checksum)"


def entries(folder):
    """What is in the cache, lock files aside."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


@pytest.fixture
def decoded(monkeypatch):
    """Counts how often files are decoded in this process."""
    calls = []
    monkeypatch.setattr(cifar, "_decoded", lambda *a, run=cifar._decoded: calls.append(1) or run(*a))
    return calls


@pytest.fixture
def folder(tmp_path):
    write_cifar(tmp_path / "data")
    return tmp_path / "data"


def test_files_are_decoded_once_and_mapped_after(folder, cache, decoded):
    first, again = load("cifar10", folder), load("cifar10", folder, seed=1)
    assert len(decoded) == 1
    assert first.checksum != again.checksum
    assert torch.equal(first.test.inputs, again.test.inputs)
    again.test.inputs.zero_()  # private to the tensor: neither the file nor another load sees it
    assert torch.equal(load("cifar10", folder).test.inputs, first.test.inputs)
    assert first.test.inputs.any()
    assert len(decoded) == 1
    assert stat.S_IMODE((cache / entries(cache)[0]).stat().st_mode) == 0o777 & ~module_umask()


def module_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_other_source_files_make_another_entry(folder, cache, decoded):
    before = load("cifar10", folder)
    write_cifar(folder, seed=5)
    after = load("cifar10", folder)
    assert before.checksum != after.checksum
    times = (folder / "test-00000-of-00001.parquet").stat()
    os.utime(folder / "test-00000-of-00001.parquet", ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert load("cifar10", folder).checksum == after.checksum
    assert len(entries(cache)) == len(decoded) == 3


def test_a_table_of_contents_that_changes_under_the_same_size_and_time_is_seen(tmp_path):
    path = tmp_path / "a.parquet"
    keys = set()
    for last in (b"1", b"2"):
        path.write_bytes(bytes(1000) + last)
        os.utime(path, ns=(0, 0))
        keys.add(module._key([path]))
    assert len(keys) == 2


DAMAGES = {
    "a byte": lambda entry: flip(entry / "train_img.npy", -100),
    "a label": lambda entry: flip(entry / "test_label.npy", -8),
    "a header": lambda entry: flip(entry / "train_img.npy", 0),
    "a header without its end": lambda entry: unclosed(entry / "train_img.npy"),
    "truncated": lambda entry: os.truncate(entry / "train_img.npy", 5000),
    "emptied": lambda entry: os.truncate(entry / "train_img.npy", 0),
    "an array missing": lambda entry: (entry / "test_img.npy").unlink(),
    "no checksums": lambda entry: (entry / "checksums.json").unlink(),
    "checksums of nothing": lambda entry: (entry / "checksums.json").write_text("[]"),
    "checksums that are no JSON": lambda entry: (entry / "checksums.json").write_bytes(b"\xff{"),
    "another checksum": lambda entry: other_checksum(entry / "checksums.json"),
    "a pickle": lambda entry: np.save(entry / "train_img.npy", np.array([{}], object), allow_pickle=True),
}


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def unclosed(path):
    path.write_bytes(path.read_bytes().replace(b"}", b" ", 1))


def other_checksum(path):
    content = json.loads(path.read_text())
    content["arrays"]["train_img"]["crc32"] ^= 1
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_entry_is_noticed_and_made_again(folder, cache, decoded, caplog, case):
    good = load("cifar10", folder).checksum
    (name,) = entries(cache)
    DAMAGES[case](cache / name)
    with caplog.at_level(logging.WARNING):
        assert load("cifar10", folder).checksum == good
    assert caplog.text.count(f"{name}: damaged") == 1
    assert (len(decoded), entries(cache)) == (2, [name])
    assert "damaged" not in os.listdir(cache / name)
    load("cifar10", folder)
    assert len(decoded) == 2


def test_two_processes_at_once_decode_once_and_agree(folder, cache, tmp_path):
    code = (
        "import os, sys, time; from trueup.data import cifar\n"
        "run = cifar._decoded\n"
        "def counted(*a):\n"
        "    open(f'{sys.argv[2]}/{os.getpid()}', 'w').close(); time.sleep(1); return run(*a)\n"
        "cifar._decoded = counted\n"
        "print('ready', flush=True)\n"
        "while not os.path.exists(sys.argv[2] + '/go'): time.sleep(0.001)\n"
    ) + LOAD
    marks = tmp_path / "marks"
    marks.mkdir()
    workers = [program(code, folder, marks, cache=cache) for _ in range(2)]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    (marks / "go").touch()
    said = [worker.communicate(timeout=60) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], said
    assert len({out for out, _ in said}) == 1
    assert len(os.listdir(marks)) == 2, said  # go, and the one that decoded
    assert len(entries(cache)) == 1


STOPS = {
    "while decoding": "cifar._decoded = stop",
    "in the middle of an array": (
        "def half(path, array):\n    open(path, 'wb').write(array.tobytes()[:99])\n    stop()\ncache._write = half"
    ),
    "before the rename": "cache.Path.rename = stop",
}


@pytest.mark.parametrize("stop", STOPS)
def test_a_process_killed_in_the_middle_leaves_nothing_that_passes_for_an_entry(folder, cache, stop):
    code = (
        "import time; from trueup.data import cache, cifar\n"
        "def stop(*a, **k):\n    print('here', flush=True); time.sleep(60)\n"
    ) + f"{STOPS[stop]}\n{LOAD}"
    victim = program(code, folder, cache=cache)
    assert victim.stdout.readline() == "here\n"
    os.kill(victim.pid, signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL
    victim.communicate()
    left = entries(cache)
    assert [name for name in left if not name.startswith(".")] == []
    assert bool(left) == (stop != "while decoding")
    data = load("cifar10", folder)
    assert len(data.test) == 20
    assert [name.startswith("cifar10-") for name in entries(cache)] == [True]


def test_a_process_killed_while_it_mends_an_entry_leaves_it_to_the_next(folder, cache):
    good = load("cifar10", folder).checksum
    (name,) = entries(cache)
    flip(cache / name / "train_img.npy", -1)
    code = (
        "import os; from trueup.data import cache\n"
        "rename = cache.Path.rename\n"
        "def once(path, to):\n    rename(path, to); os.kill(os.getpid(), 9)\n"
        "cache.Path.rename = once\n"
    ) + LOAD
    victim = program(code, folder, cache=cache)
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    assert not (cache / name).exists()
    assert load("cifar10", folder).checksum == good
    assert entries(cache) == [name]


def test_a_full_disk_is_reported_and_leaves_nothing(folder, cache):
    """The operating system itself refuses, by a limit on the size of a file."""
    code = (
        "import resource; from trueup import InputError; from trueup.data import load; import sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: load('cifar10', sys.argv[1])\n"
        "except InputError as error: print(error)\n"
    )
    out, err = program(code, folder, cache=cache).communicate(timeout=60)
    assert "cache/cifar10-" in out, err
    assert "cannot be written (File too large); make room there, or set TRUEUP_CACHE" in out
    assert entries(cache) == []
    assert len(load("cifar10", folder).test) == 20


@pytest.mark.parametrize("call", ["mkdir", "rename", "write_text"])
def test_every_failing_step_is_reported_and_leaves_nothing(folder, cache, monkeypatch, call):
    def full(self, *args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module.Path, call, full)
        with pytest.raises(InputError, match=r"cifar10-\w+: cannot be written \(No space left on device\)"):
            load("cifar10", folder)
    assert not cache.exists() or entries(cache) == []
    assert len(load("cifar10", folder).test) == 20


def test_a_cache_folder_that_is_a_file_is_reported(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRUEUP_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"file/cifar10-\w+: cannot be written .*TRUEUP_CACHE"):
        load("cifar10", folder)


def test_ctrl_c_leaves_nothing(folder, cache, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load("cifar10", folder)
    assert entries(cache) == []
    assert len(load("cifar10", folder).test) == 20  # the lock is free


def test_a_disk_that_gives_back_something_else_is_reported(folder, monkeypatch):
    monkeypatch.setattr(module, "_write", lambda path, array: np.save(path, array[::-1]))
    with pytest.raises(InputError, match=r"reads back wrongly .*is the disk sound"):
        load("cifar10", folder)


def test_the_cache_is_in_the_home_folder_unless_told(tmp_path, monkeypatch):
    monkeypatch.delenv("TRUEUP_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert module.cache_dir() == tmp_path / ".cache" / "trueup"
