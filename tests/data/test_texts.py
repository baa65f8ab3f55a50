"""20 Newsgroups and SST: from every form, against slow loops, and what is wrong is named."""

import gzip
import json
import os
import pickle
import zlib

import numpy as np
import pytest
import torch

from tests.conftest import SHARED
from tests.data.layouts import write_glove, write_npz
from trueup import InputError
from trueup.data import load, newsgroups, sklearn_copy
from trueup.data.newsgroups import GROUPS
from trueup.data.texts import lines

needs_texts = pytest.mark.skipif(not (SHARED / "data" / "sst").is_dir(), reason="the real texts are not here")

# ---------------------------------------------------------------------- 20 Newsgroups

BODIES = ["The cat sat; the cat's (mat)!", "sat_the\tdog-cat", "", "THE the The"]


def articles(many=6):
    """Some for each group, the header first."""
    return [
        {"group": group, "id": str(100 + i), "text": f"From: someone\nLines: 1\n\n{BODIES[(g + i) % 4]}\n"}
        for g, group in enumerate(GROUPS)
        for i in range(many)
    ]


def as_lines(folder, content, packed=True):
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in content).encode()
    (folder / ("x.jsonl.gz" if packed else "x.jsonl")).write_bytes(gzip.compress(text) if packed else text)


def as_folders(folder, content):
    for article in content:
        place = folder / article["group"] / article["id"]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(article["text"].encode("latin-1"))


def as_sklearn_copy(folder, content, protocol=None, targets=None):
    from sklearn.utils import Bunch

    folder.mkdir(parents=True, exist_ok=True)
    whole = Bunch(
        data=[article["text"] for article in content],
        target=np.array(targets or [GROUPS.index(article["group"]) for article in content]),
        target_names=list(GROUPS),
        filenames=np.array([article["id"] for article in content]),
    )
    none = Bunch(data=[], target=np.array([], int), target_names=list(GROUPS), filenames=np.array([]))
    made = zlib.compress(pickle.dumps({"train": whole, "test": none}, protocol))
    (folder / sklearn_copy.COPY).write_bytes(made)


def test_every_form_gives_the_same(tmp_path, monkeypatch):
    forms = {
        "gzip": lambda place: as_lines(place / "20newsgroups", articles()),
        "lines": lambda place: as_lines(place / "data" / "20newsgroups", articles(), packed=False),
        "folders": lambda place: as_folders(place / "20_newsgroups", articles()),
        "sklearn": lambda place: as_sklearn_copy(place, articles()),
        "protocol 5": lambda place: as_sklearn_copy(place, articles(), 5),  # Python 3.14 pickles with it
        "protocol 4": lambda place: as_sklearn_copy(place, articles(), 4),
    }
    found = {}
    for form, write in forms.items():
        write_npz(tmp_path / form / "glove")
        write(tmp_path / form)
        found[form] = load("20newsgroups", tmp_path / form)
        assert load("20newsgroups", tmp_path / form).checksum == found[form].checksum
    assert len({data.checksum for data in found.values()}) == 1
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "sklearn"))
    monkeypatch.setenv("TRUEUP_DATA", str(tmp_path / "elsewhere"))
    write_npz(tmp_path / "elsewhere" / "glove")
    assert load("20newsgroups").checksum == found["gzip"].checksum


def test_articles_become_numbers_as_in_a_slow_loop(tmp_path):
    as_lines(tmp_path, articles())
    write_npz(tmp_path / "glove")
    data = load("20newsgroups", tmp_path)
    assert [len(split) for split in data.splits().values()] == [91, 5, 24]
    assert data.class_names == GROUPS
    words = [w for a in articles() for w in newsgroups.tokenised(a["text"])]
    assert set(words) == {"the", "cat", "sat", "cat's", "mat", "dog"}
    counts = {w: words.count(w) for w in dict.fromkeys(words)}
    order = sorted(counts, key=lambda w: -counts[w])
    rows = torch.cat([split.inputs for split in data.splits().values()])
    labels = torch.cat([split.labels for split in data.splits().values()])
    expected = []
    for article in articles():
        numbers = [order.index(w) + 1 for w in newsgroups.tokenised(article["text"])]
        expected.append((GROUPS.index(article["group"]), *[0] * (1000 - len(numbers)), *numbers))
    made = [(int(label), *row.tolist()) for label, row in zip(labels, rows, strict=True)]
    assert sorted(made) == sorted(expected)
    assert data.words[order.index("cat") + 1].tolist() == [0.5, -1.0]
    assert not data.words[[0, order.index("mat") + 1]].any()
    assert data.notes[0].startswith("90 of 390 tokens (23.1 %) have no vector in some.npz (2 wide)")
    assert data.notes[1] == "30 articles hold none of the most frequent words"


def test_nothing_is_noted_where_all_words_have_vectors(tmp_path):
    as_lines(tmp_path / "20newsgroups", [article | {"text": "x: y\n\nthe cat"} for article in articles()])
    write_trees(tmp_path / "sst", {part: ["(3 (2 the) (4 cat))"] for part in TREES})
    write_npz(tmp_path / "glove")
    assert load("20newsgroups", tmp_path).notes == load("sst", tmp_path).notes == ()


def test_the_seed_moves_validation_and_leaves_the_test_set(tmp_path):
    as_lines(tmp_path, articles())
    write_npz(tmp_path / "glove")
    first, again, other = (load("20newsgroups", tmp_path, seed=seed) for seed in (0, 0, 1))
    papers = load("20newsgroups", tmp_path, split="mukhoti2020")
    assert first.checksum == again.checksum
    assert len({first.checksum, other.checksum, papers.checksum}) == 3
    assert torch.equal(first.test.inputs, other.test.inputs)
    assert torch.equal(first.test.labels, papers.test.labels)


def test_a_long_article_keeps_its_end_and_rare_words_are_left_out(monkeypatch):
    monkeypatch.setattr(newsgroups, "MOST_FREQUENT", 2)
    long = " ".join(["rare", *["a"] * 700, *["b"] * 800])
    made = newsgroups.prepared([newsgroups.Article("sci.med", long, ""), newsgroups.Article("sci.space", "b", "")])
    assert made["tokens"][0].tolist() == [2] * 200 + [1] * 800
    assert made["tokens"][1].tolist() == [0] * 999 + [1]


def spoilt(row, **changes):
    content = articles()
    content[row] = content[row] | changes
    return content


BAD_ARTICLES = {
    "an empty article": (spoilt(4, text="  \n"), "line 5: the article is empty"),
    "a zero byte": (spoilt(7, text="From: x\n\na\0b"), "line 8: holds a zero byte"),
    "half a character": (spoilt(7, text="From: x\n\na\ud800b"), "line 8: holds half of a character"),
    "another group": (spoilt(2, group="alt.swine"), "line 3: 'alt.swine' is none of the twenty groups"),
    "a number": (spoilt(3, text=5), "line 4: group and text have to be texts"),
    "no text": ([*articles(), {"group": "sci.med"}], r"line 121: expected an object .*KeyError\('text'\)"),
    "a list": ([*articles(), []], "line 121: expected an object"),
    "brackets without end": ([*articles(), "[" * 100_000], "line 121: expected an object .*RecursionError"),
    "a group is missing": ([a for a in articles() if a["group"] != "sci.med"], "no article of sci.med"),
    "no article": ([], "no article of alt.atheism"),
}


@pytest.mark.parametrize("case", BAD_ARTICLES)
def test_a_bad_article_is_named_and_nothing_is_cached(tmp_path, cache, case):
    content, message = BAD_ARTICLES[case]
    as_lines(tmp_path, content)
    with pytest.raises(InputError, match=f"x.jsonl.gz: {message}"):
        load("20newsgroups", tmp_path)
    assert [found for found in cache.rglob("*") if found.suffix != ".lock"] == []


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"no gzip", lambda b: gzip.compress(b"{\n")])
def test_a_damaged_file_of_articles_is_named(tmp_path, damage):
    as_lines(tmp_path, articles())
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=r"x.jsonl.gz: (cannot be read|line 1: expected an object)"):
        load("20newsgroups", tmp_path)


def test_bad_files_of_a_folder_are_named(tmp_path):
    (tmp_path / "alt.atheism").mkdir()
    with pytest.raises(InputError, match=r"alt.atheism: no articles in it"):
        load("20newsgroups", tmp_path)
    as_folders(tmp_path, articles())
    (tmp_path / "sci.med" / "102").write_bytes(b"")
    with pytest.raises(InputError, match=r"sci.med/102: the article is empty"):
        load("20newsgroups", tmp_path)
    (tmp_path / "sci.med" / "102").write_bytes(b"From: x\n\n\x00\x01\x02")
    with pytest.raises(InputError, match=r"sci.med/102: holds a zero byte; it is no text"):
        load("20newsgroups", tmp_path)


def test_of_several_files_none_is_taken_silently(tmp_path):
    half = [a for a in articles() if a["id"] < "103"]
    as_lines(tmp_path, half)
    as_lines(tmp_path, [a for a in articles() if a not in half], packed=False)
    with pytest.raises(InputError, match=r"holds x.jsonl and x.jsonl.gz; leave the one that is meant"):
        load("20newsgroups", tmp_path)
    (tmp_path / "x.jsonl").unlink()
    as_folders(tmp_path, half)
    with pytest.raises(InputError, match=r"holds x.jsonl.gz and folders of groups"):
        load("20newsgroups", tmp_path)


@pytest.mark.parametrize("end", ["\r\n", "\r", "\n"])
def test_the_header_ends_at_the_first_blank_line_whatever_ends_lines(end):
    text = "Newsgroups: sci.med\nLines: 2\n\nIt works.\n\nWell\n".replace("\n", end)
    assert newsgroups.tokenised(text) == ["it", "works", "well"]
    assert newsgroups.tokenised("Newsgroups: sci.med\r\n\r\nIt works.\n") == ["it", "works"]


class Evil:
    def __reduce__(self):
        return exec, ("raise SystemExit(3)",)


def test_nothing_in_scikit_learns_copy_is_executed(tmp_path):
    path = tmp_path / sklearn_copy.COPY
    for content in (Evil(), {"train": {"data": [Evil()]}}, {"train": 3}, {"train": {"target": [0], "data": [b"x"]}}):
        path.write_bytes(zlib.compress(pickle.dumps(content)))
        with pytest.raises(InputError, match="not scikit-learn's copy"):
            load("20newsgroups", tmp_path)
    path.write_bytes(b"junk")
    with pytest.raises(InputError, match="not scikit-learn's copy"):
        load("20newsgroups", tmp_path)


class Call:
    """What its reconstruction calls, and with what."""

    def __init__(self, *what):
        self.what = what

    def __reduce__(self):
        return self.what


@pytest.mark.parametrize("protocol", [4, 5])
def test_neither_other_functions_nor_forged_arrays_are_let_in(tmp_path, protocol):
    path = tmp_path / sklearn_copy.COPY
    forged = np.array([0], object).__reduce__()
    for content, says in (
        (Call(os.system, ("exit 3",)), r"(posix|nt).system, which plain data do not"),
        (Call(np.ndarray, ((1,), np.dtype(object), b"\1" * 8)), "an array of object"),
        (Call(forged[0], forged[1], (1, (1,), np.dtype(object), False, b"\1" * 8)), "an array of object"),
        (Call(np.ndarray, ((9,), np.dtype("i8"), b"short")), "not scikit-learn's copy"),
    ):
        path.write_bytes(zlib.compress(pickle.dumps({"train": content}, protocol)))
        with pytest.raises(InputError, match=says):
            load("20newsgroups", tmp_path)


@pytest.mark.parametrize("target", [-1, 20])
def test_a_target_that_is_no_group_is_refused(tmp_path, target):
    as_sklearn_copy(tmp_path, articles(1), targets=[target, *range(1, 20)])
    with pytest.raises(InputError, match=f"a target is {target}, where there are 20 groups"):
        load("20newsgroups", tmp_path)


def test_texts_that_are_not_there_say_where_was_looked(tmp_path, monkeypatch):
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    for name, message in (("20newsgroups", "no articles .*20_newsgroups"), ("sst", "no trees .*trainDevTestTrees")):
        with pytest.raises(InputError, match=f"{name}: {message}"):
            load(name, tmp_path)
        with pytest.raises(InputError, match="TRUEUP_DATA"):
            load(name)
    as_lines(tmp_path, articles())
    with pytest.raises(InputError, match=r"20newsgroups: no word vectors.*glove.6B.zip"):
        load("20newsgroups", tmp_path)


# ---------------------------------------------------------------------- SST

TREES = {
    "train": ["(3 (2 The) (4 (2 Cat) (3 sat)))", "(2 (2 The) (2 -LRB-))", "(0 (1 n't) (2 8\N{NO-BREAK SPACE}1/2))"],
    "dev": ["(1 (2 the) (0 zebra))"],
    "test": ["(4 cat)", "(2 cat)"],
}


def write_trees(folder, content=TREES, packed=False):
    folder.mkdir(parents=True, exist_ok=True)
    for part, some in content.items():
        text = "".join(tree + "\n" for tree in some).encode()
        (folder / f"{part}.txt{'.gz' * packed}").write_bytes(gzip.compress(text) if packed else text)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("folder", ["sst", "data/sst", "trainDevTestTrees_PTB/trees", "."])
def test_trees_are_what_the_files_hold(tmp_path, folder, packed):
    write_trees(tmp_path / folder, packed=packed)
    write_glove(tmp_path / "glove")
    data = load("sst", tmp_path)
    assert [len(split) for split in data.splits().values()] == [2, 1, 1]  # without the neutral roots
    assert data.input_shape == (5, 2)
    assert data.class_names == ("negative", "positive")
    words = {"the": 1, "cat": 2, "sat": 3, "-lrb-": 4, "n't": 5, "8\N{NO-BREAK SPACE}1/2": 6, "zebra": 7}
    assert data.train.inputs.tolist() == [
        [[0, 0], [words["the"], 1], [0, 1], [words["cat"], 2], [words["sat"], 2]],
        [[0, 0], [words["n't"], 1], [words["8\N{NO-BREAK SPACE}1/2"], 1], [0, -1], [0, -1]],
    ]
    assert data.train.labels.tolist() == [1, 0]
    assert data.train.targets.tolist() == [[1, 2, 1, 2, 1], [0, 0, 2, -100, -100]]
    assert data.val.targets.tolist() == [[0, 2, 0, -100, -100]]
    assert data.test.inputs[0].tolist() == [[words["cat"], 0], [0, -1], [0, -1], [0, -1], [0, -1]]
    assert data.words[words["n't"]].tolist() == [0.25, 4.0]  # that of "not"
    assert not data.words[[0, words["-lrb-"], words["zebra"]]].any()
    assert "2 of 8 tokens (25.0 %) have no vector in glove.6B.2d.txt (2 wide)" in data.notes[0]


BAD_TREES = {
    "unbalanced": ("(3 (2 It) (4 works)", "1 bracket never closed"),
    "a label too large": ("(3 (2 It) (5 works))", "the label '5' is not one of 0, 1, 2, 3, 4"),
    "an empty line": ("", "there is no tree"),
    "a zero byte": ("(3 (2 It) (4 wor\0ks))", "holds a zero byte; it is no text"),
    "three parts": ("(3 (2 a) (2 b) (2 c))", "expected a label and a word, or a label and two trees"),
}


@pytest.mark.parametrize("case", BAD_TREES)
def test_a_bad_tree_is_named_and_nothing_is_cached(tmp_path, cache, case):
    line, message = BAD_TREES[case]
    write_trees(tmp_path, TREES | {"dev": [*TREES["dev"], line]})
    with pytest.raises(InputError, match=f"dev.txt: line 2: {message}"):
        load("sst", tmp_path)
    assert [found for found in cache.rglob("*") if found.suffix != ".lock"] == []


def test_other_bad_files_of_trees_are_named(tmp_path):
    write_trees(tmp_path)
    (tmp_path / "test.txt").write_bytes(b"(4 cat)\n(4 \xff)\n")
    with pytest.raises(InputError, match=r"test.txt: line 2: not text in UTF-8"):
        load("sst", tmp_path)
    (tmp_path / "test.txt").write_bytes(b"(2 cat)\n(2 (4 a) (0 cat))\n")
    with pytest.raises(InputError, match=r"test.txt: every tree has a neutral root"):
        load("sst", tmp_path)
    (tmp_path / "test.txt").write_bytes(b"")
    with pytest.raises(InputError, match=r"test.txt: the file is empty"):
        load("sst", tmp_path)
    (tmp_path / "test.txt").unlink()
    with pytest.raises(InputError, match=r"test.txt: no such file, nor with .gz"):
        load("sst", tmp_path)


# ---------------------------------------------------------------------- the real ones


@needs_texts
def test_the_real_trees(tmp_path):
    data = load("sst", SHARED)
    assert [len(split) for split in data.splits().values()] == [6920, 872, 1821]
    nodes = data.train.inputs[..., 1] >= 0
    leaves = (data.train.inputs[..., 0] > 0).sum(1)
    assert torch.equal(nodes.sum(1), 2 * leaves - 1)
    assert torch.equal(nodes, data.train.targets != -100)
    assert "12595 of 185621 tokens (6.8 %)" in data.notes[0]
    path = SHARED / "data" / "sst" / "train.txt.gz"
    assert sum("\N{NO-BREAK SPACE}" in line for _, line in lines(path)) > 0


@needs_texts
def test_the_real_newsgroups():
    data = load("20newsgroups", SHARED)
    assert [len(split) for split in data.splits().values()] == [15_098, 900, 3999]
    assert data.words.shape == (20_000, 100)
    assert data.notes[1].startswith("44 articles")
    assert sum(split.labels.bincount() for split in data.splits().values()).tolist() == [1000] * 15 + [997] + [1000] * 4
