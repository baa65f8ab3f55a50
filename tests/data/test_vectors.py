"""Word vectors from archives and texts; what is wrong is named."""

import re

import numpy as np
import pytest

from tests.data.layouts import write_glove, write_npz
from trueup import InputError
from trueup.data import vectors


@pytest.mark.parametrize("write", [write_npz, write_glove])
def test_vectors_of_a_vocabulary(tmp_path, write):
    write(tmp_path / "glove")
    found = vectors.vectors_of(
        ["cat", "dog", "n't", "the"], "auto", tmp_path, name="x", sources=[], stand_ins={"n't": "not", "the": "cat"}
    )
    assert found.known.tolist() == [False, True, False, True, True]
    assert found.table.tolist() == [[0, 0], [0.5, -1], [0, 0], [0.25, 4], [1, 2]]
    assert found.table.dtype == np.float32
    (said,) = vectors.unknown_tokens(np.array([[0, 0, 1, 2], [2, 2, 3, 4]]), found, ["cat", "dog", "n't", "the"])
    assert said.startswith("3 of 6 tokens (50.0 %) have no vector in ")
    assert said.endswith("and are zero, most often dog")
    assert vectors.unknown_tokens(np.array([[0, 1], [3, 4]]), found, ["cat", "dog", "n't", "the"]) == ()


def test_words_with_spaces_and_repeated_words(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2\n. . . 3 4\nat name@domain.com 5 6\nthe 9 9\n\x85 7 8\n1 2 3\n")
    table, known = vectors.read_text(path, {"the": 1, ". . .": 2, "at name@domain.com": 3, "\x85": 4, "1": 5})
    assert table.tolist() == [[0, 0], [1, 2], [3, 4], [5, 6], [7, 8], [2, 3]]
    assert known.tolist() == [False, True, True, True, True, True]


def test_the_last_line_needs_no_newline(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2\ncat 3 4")
    assert vectors.read_text(path, {"cat": 1})[0].tolist() == [[0, 0], [3, 4]]
    found = vectors.vectors_of(["cat"], str(path), None, name="x", sources=[])
    (note,) = vectors.notes_on(np.array([1]), found, ["cat"])
    assert note.startswith("glove.txt does not end in a newline, as GloVe's files do: it may be cut off")
    path.write_text("the 1 2\ncat 3 4\n")
    assert vectors.notes_on(np.array([1]), found, ["cat"]) == ()


BAD_VECTORS = {
    "a torn line": ("the 1 2\ncat 3\nsat 1 1\n", "line 2: a word and 1 numbers, where line 1 has 2"),
    "two lines torn into one": (
        "the 1 2\nca 1 fails 1 2\nsat 1 1\n",
        "line 2: a word and 4 numbers, where line 1 has 2",
    ),
    "two torn inside a number": ("the 1 2\nca 1 0.fails 1 2\n", "line 2: a word and 4 numbers"),
    "cut before the last number": ("the 1 2\nrare 3 ", "line 2: the vector of 'rare': could not convert"),
    "cut inside the last number": ("the 1 2\nrare 3 -", "line 2: the vector of 'rare': could not convert"),
    "a torn last line": ("the 1 2\ncat 3", "line 2: a word and 1 numbers"),
    "another width": ("the 1 2\ncat 3 4 5\n", "line 2: a word and 3 numbers, where line 1 has 2"),
    "a word alone": ("the\ncat 1\n", "line 1: a word and 0 numbers, where line 1 has none"),
    "no number": ("the 1 2\ncat 3 x\n", "line 2: the vector of 'cat': could not convert"),
    "not finite": ("the 1 2\ncat 3 nan\n", "line 2: the vector of 'cat' is not finite"),
    "beyond float32": ("the 1 2\ncat 3 1e60\n", "line 2: the vector of 'cat' is not finite"),
    "of none of the words": ("Les 1 2\nChats 3 4\n", "holds vectors (2 wide), but of none of the 2 words of x"),
    "no text": (b"the 1 2\nc\xfft 3 4\n", "line 2: not text in UTF-8"),
    "empty": ("", "the file is empty"),
}


@pytest.mark.parametrize("case", BAD_VECTORS)
def test_a_bad_line_of_vectors_is_named_and_nothing_is_cached(tmp_path, cache, case):
    content, message = BAD_VECTORS[case]
    path = tmp_path / "glove.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=re.escape(f"glove.txt: {message}")):
        vectors.vectors_of(["the", "cat"], str(path), None, name="x", sources=[])
    assert [found for found in cache.rglob("*") if found.suffix != ".lock"] == []


def test_bad_npz_vectors_are_named(tmp_path):
    path = tmp_path / "v.npz"
    for arrays, message in [
        ({"vectors": np.ones((2, 3)), "words": "a\nb\nc"}, "3 words for vectors of float64"),
        ({"vectors": np.ones(3), "words": "a\nb\nc"}, "3 words for vectors"),
        ({"vectors": np.array([[1.0], [np.inf]]), "words": "a\nb"}, "line 2: the vector of 'b' is not finite"),
        ({"vectors": np.array([[1e60]]), "words": "a"}, "line 1: the vector of 'a' is not finite"),
        ({"vectors": np.ones((1, 1))}, "no word vectors"),
    ]:
        np.savez(path, **arrays)
        with pytest.raises(InputError, match=message):
            vectors.read_npz(path, {"a": 1})
    path.write_bytes(b"no zip")
    with pytest.raises(InputError, match="no word vectors"):
        vectors.read_npz(path, {"a": 1})


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_with_one_wrong_byte_is_refused_or_read_as_it_was(tmp_path, save):
    path = tmp_path / "v.npz"
    save(path, vectors=np.arange(6, dtype=np.float16).reshape(3, 2), words="a\nb\nc")
    whole, refused = path.read_bytes(), []
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            assert vectors.read_npz(path, {"b": 1})[0].tolist() == [[0, 0], [2, 3]]
        except InputError as error:
            refused.append(str(error))
    assert len(whole) / 4 < len(refused) < len(whole)
    assert all(message.startswith(f"{path}: no word vectors") for message in refused)


def test_vectors_are_chosen_by_name(tmp_path):
    write_glove(tmp_path / "glove", name="glove.a.txt")
    write_glove(tmp_path / "glove", name="glove.b.txt")
    assert vectors.vector_file("auto", tmp_path, "x").name == "glove.a.txt"
    assert vectors.vector_file("glove.b", tmp_path, "x").name == "glove.b.txt"
    write_npz(tmp_path / "glove")
    assert vectors.vector_file("auto", tmp_path, "x").name == "some.npz"
    with pytest.raises(InputError, match=r"'glove.c' is no file, nor one of those in .*: some.npz, glove.a.txt"):
        vectors.vector_file("glove.c", tmp_path, "x")
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="x: no word vectors"):
        vectors.vector_file("auto", tmp_path / "none", "x")
