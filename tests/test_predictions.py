"""Predictions in memory and on disk."""

import pickle
import stat
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import save_file
from scipy.special import softmax

import trueup
from tests import cases
from trueup import InputError, Predictions

ENDINGS = [".npz", ".safetensors", ".parquet", ".csv", ".tsv"]
NAMES = ("cat", 'a "quoted", name', "Hund & Katze", "ünïcode 🐈")


def made(given_as="logits", dtype=np.float32, class_names=NAMES, n=30):
    values = np.random.default_rng(0).normal(0, 3, (n, 4))
    values = (softmax(values, axis=1) if given_as == "probs" else values).astype(dtype)
    meta = {"net": "resnet50", "epochs": 350, "seeds": [1, 2]}
    return Predictions(**{given_as: values}, labels=np.arange(n) % 4, class_names=class_names, meta=meta)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("given_as", ["logits", "probs"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("class_names", [NAMES, None])
def test_saved_and_loaded_is_the_same(tmp_path, ending, given_as, dtype, class_names):
    before = made(given_as, dtype, class_names)
    before.save(tmp_path / f"p{ending}")
    after = trueup.load(tmp_path / f"p{ending}")
    assert after.given == given_as
    assert torch.equal(getattr(after, given_as).to(before.logits.dtype), getattr(before, given_as))
    assert torch.equal(after.labels, before.labels)
    assert after.class_names == class_names
    if ending not in (".csv", ".tsv"):
        assert after.meta == {"file": str(tmp_path / f"p{ending}"), **before.meta}


@given(
    st.lists(
        st.text(min_size=1, alphabet=st.characters(exclude_categories=["C", "Z"])), min_size=2, max_size=5, unique=True
    )
)
def test_class_names_survive_a_table(tmp_path_factory, names):
    path = tmp_path_factory.mktemp("names") / "p.csv"
    numbered = sorted(names) == [str(k) for k in range(len(names))]
    Predictions(logits=np.eye(len(names)) * 3, labels=range(len(names)), class_names=names).save(path)
    after = trueup.load(path)
    assert after.labels.tolist() == list(range(len(names))) or numbered
    assert after.class_names == (None if numbered else tuple(names))


def test_each_gives_the_other():
    p = made("probs", np.float64)
    np.testing.assert_allclose(torch.softmax(p.logits, 1), p.probs)
    q = made("logits", np.float64)
    np.testing.assert_allclose(torch.softmax(q.logits, 1), q.probs)
    zero = Predictions(probs=[[1.0, 0.0], [0.0, 1.0]], labels=[0, 1])
    assert torch.isfinite(zero.logits).all()


def test_predictions_cannot_be_changed():
    with pytest.raises(AttributeError, match="cannot be changed"):
        made().labels = torch.zeros(30)


def test_labels_may_be_names():
    p = Predictions(logits=np.eye(3) * 2, labels=["b", "c", "a"], class_names=["a", "b", "c"])
    assert p.labels.tolist() == [1, 2, 0]
    with pytest.raises(InputError, match="row 1 is 'd'"):
        Predictions(logits=np.eye(3) * 2, labels=["b", "d", "a"], class_names=["a", "b", "c"])
    with pytest.raises(InputError, match="no class names"):
        Predictions(logits=np.eye(3) * 2, labels=["b", "c", "a"])


def test_class_names_have_to_fit():
    with pytest.raises(InputError, match="2 names for 3 classes"):
        Predictions(logits=np.eye(3) * 2, labels=[0, 1, 2], class_names=["a", "b"])
    with pytest.raises(InputError, match="the same name"):
        Predictions(logits=np.eye(3) * 2, labels=[0, 1, 2], class_names=["a", "b", "a"])


def test_it_is_either_logits_or_probabilities():
    with pytest.raises(InputError, match="either"):
        Predictions(labels=[0])
    with pytest.raises(InputError, match="either"):
        Predictions(logits=[[1.0, 2.0]], probs=[[0.5, 0.5]], labels=[0])


def test_a_single_score_is_a_logit_or_says_that_it_is_a_probability():
    scores = np.array([-2.0, 0.5, 3.0])
    p = Predictions.from_binary(scores, [0, 1, 1])
    np.testing.assert_allclose(p.probs[:, 1], 1 / (1 + np.exp(-scores)), rtol=1e-6)
    q = Predictions.from_binary([0.2, 0.9, 0.6], [0, 1, 1], kind="probability")
    np.testing.assert_allclose(q.probs[:, 1], [0.2, 0.9, 0.6])
    one = Predictions.from_binary([1.0, 1.0], [0, 1], kind="logit")
    np.testing.assert_allclose(one.probs[:, 1], 1 / (1 + np.exp(-1)))
    for call, says in [
        (lambda: Predictions.from_binary([0.2, 0.9], [0, 1]), "could be"),
        (lambda: Predictions.from_binary([0.2, 1.9], [0, 1], kind="probability"), "row 1 is 1.9"),
        (lambda: Predictions.from_binary([0.2, np.nan], [0, 1]), "row 1 is nan"),
        (lambda: Predictions.from_binary([[0.2, 2.0]], [0]), "one number"),
        (lambda: Predictions.from_binary([2.0, 3.0], [0, 2]), "row 1 is 2"),
        (lambda: Predictions.from_binary([2.0, 3.0], [0, 1], kind="odds"), "kind"),
    ]:
        with pytest.raises(InputError, match=says):
            call()


@pytest.mark.parametrize("column", ["logit", "prob", "score"])
def test_a_table_of_single_scores(tmp_path, column):
    path = tmp_path / "p.csv"
    values = [0.25, 0.75] if column == "prob" else [-1.5, 2.5]
    path.write_text(f"{column},label\n{values[0]},0\n{values[1]},1\n")
    p = trueup.load(path, binary=True)
    expected = values if column == "prob" else 1 / (1 + np.exp(-np.array(values)))
    np.testing.assert_allclose(p.probs[:, 1], expected)
    with pytest.raises(InputError, match="--binary"):
        trueup.load(path)


def test_an_array_of_single_scores(tmp_path):
    np.savez(tmp_path / "p.npz", probs=[0.25, 0.75], labels=[0, 1])
    assert trueup.load(tmp_path / "p.npz", binary=True).probs.tolist() == [[0.75, 0.25], [0.25, 0.75]]
    with pytest.raises(InputError, match="from_binary"):
        trueup.load(tmp_path / "p.npz")


def test_columns_in_any_order_and_labels_by_number_or_name(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("label, logit_1, logit_0, logit_2\n2, 1.0, 0.5, 3.0\n0,2.0,4.0,1.0\n")
    p = trueup.load(path)
    assert p.logits.tolist() == [[0.5, 1.0, 3.0], [4.0, 2.0, 1.0]]
    assert p.class_names is None
    path.write_text("logit_dog,logit_cat,label\n1.0,0.5,cat\n2.0,4.0,dog\n")
    assert trueup.load(path).labels.tolist() == [1, 0]
    path.write_text("logit_dog,logit_cat,label\n1.0,0.5,1\n2.0,4.0,0\n")
    assert trueup.load(path).labels.tolist() == [1, 0]


def test_the_file_is_the_one_that_was_opened_and_where_it_came_from_is_kept(tmp_path):
    first, second, third = (tmp_path / f"{name}.npz" for name in ("first", "second", "third"))
    made().save(first)
    trueup.load(first).calibrated(made("probs").probs, calibrated_by="temperature").save(second)
    trueup.load(second).save(third)
    after = trueup.load(third).meta
    assert after["file"] == str(third)
    assert after["made_from"] == [str(first), str(second)]
    assert after["calibrated_by"] == "temperature"
    assert "made_from" not in trueup.load(first).meta


def test_classes_that_are_named_by_numbers_are_never_taken_for_positions(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("logit_3,logit_8,label\n1.0,0.5,8\n2.0,4.0,3\n")
    assert trueup.load(path).labels.tolist() == [1, 0]
    path.write_text("logit_0,logit_2,label\n1.0,0.5,0\n2.0,4.0,1\n")  # logit_1 is missing
    with pytest.raises(InputError, match="row 1 is '1', and the classes are 0, 2"):
        trueup.load(path)
    pandas = pytest.importorskip("pandas")
    columns = {"logit_1": [1.0, 2.0], "logit_2": [0.5, 4.0], "logit_7": [0.0, 1.0]}
    for ending, write in ((".parquet", "to_parquet"), (".csv", "to_csv")):
        path = tmp_path / f"q{ending}"

        def load(labels, path=path, write=write):
            getattr(pandas.DataFrame({**columns, "label": labels}), write)(path, index=False)
            return trueup.load(path).labels.tolist()

        assert load([7, 1]) == load([7.0, 1.0]) == load(["7", "1"]) == [2, 0]
        for label, says in ((1.5, "1.5"), (np.nan, ""), (0.0, "0")):
            with pytest.raises(InputError, match=f"row 1 is '{says}.*', and the classes are 1, 2, 7"):
                load([1.0, label])


def test_the_row_of_a_label_that_is_no_number_is_named(tmp_path):
    (tmp_path / "p.csv").write_text("logit_0,logit_1,label\n1.0,0.5,0\n2.0,4.0,\n")
    with pytest.raises(InputError, match="row 1 is ''"):
        trueup.load(tmp_path / "p.csv")


def test_any_array_can_be_ignored_and_what_is_needed_cannot(tmp_path):
    path = tmp_path / "p.npz"
    np.savez(path, logits=np.eye(3) * 2, labels=[0, 1, 2], weights=[1, 2, 3], meta="no JSON")
    with pytest.raises(InputError, match=r"--ignore weights .* ignore=\['weights'\]"):
        trueup.load(path)
    assert len(trueup.load(path, ignore=["weights", "meta"])) == 3
    with pytest.raises(InputError, match="and labels"):
        trueup.load(path, ignore=["weights", "meta", "labels"])


def test_pickled_objects_are_refused_without_advice_to_load_them(tmp_path):
    path = tmp_path / "p.npz"
    np.savez(path, logits=np.eye(2) * 3, labels=np.array(["a", "b"], dtype=object))
    with pytest.raises(InputError, match="holds pickled objects, which are never loaded; save plain arrays") as caught:
        trueup.load(path)
    assert "allow_pickle" not in str(caught.value)
    path.write_bytes(pickle.dumps({"logits": 1}))
    with pytest.raises(InputError, match="holds pickled objects, which are never loaded; save plain arrays") as caught:
        trueup.load(path)
    assert "allow_pickle" not in str(caught.value)
    path.write_text("logits, labels")
    with pytest.raises(InputError, match=r"not an \.npz file"):
        trueup.load(path)


@pytest.mark.parametrize(("name", "quoted"), [("id", "id"), ("", "''"), ("my id", "'my id'")])
def test_a_column_can_be_ignored(tmp_path, name, quoted):
    (tmp_path / "p.csv").write_text(f"{name},logit_0,logit_1,label\nx,1.0,0.5,0\ny,2.0,4.0,1\n")
    with pytest.raises(InputError, match=f"unknown column '{name}'; .*--ignore {quoted} leaves it out"):
        trueup.load(tmp_path / "p.csv")
    assert len(trueup.load(tmp_path / "p.csv", ignore=[name])) == 2


@pytest.mark.parametrize("name", [" a", "b ", "a\nb", "a\rb"])
def test_a_name_that_a_text_table_does_not_keep_is_not_written_to_one(tmp_path, name):
    before = Predictions(logits=np.eye(2) * 3, labels=[0, 1], class_names=[name, "c"])
    for ending in (".csv", ".tsv"):
        with pytest.raises(InputError, match="a text table does not keep"):
            before.save(tmp_path / f"p{ending}")
    before.save(tmp_path / "p.parquet")
    assert [file.name for file in tmp_path.iterdir()] == ["p.parquet"]
    after = trueup.load(tmp_path / "p.parquet")
    assert (after.class_names, after.labels.tolist()) == ((name, "c"), [0, 1])


@pytest.mark.parametrize(
    "text", ["logit_0,logit_1,label\n1,{},0\n", "logit_0,logit_1,label\n1,2,{}\n", "{}\n", "{},label\n1,0\n"]
)
def test_no_message_repeats_a_huge_cell(tmp_path, text):
    (tmp_path / "p.csv").write_text(text.format("x" * 100_000))
    with pytest.raises(InputError, match="xxx") as caught:
        trueup.load(tmp_path / "p.csv")
    assert len(str(caught.value)) < len(str(tmp_path)) + 500


@pytest.mark.parametrize("shape", ["(1000000000000, 10)", "(99999999999999999999999, 2)", "(" * 300])
def test_a_header_may_promise_anything(tmp_path, shape):
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    with zipfile.ZipFile(tmp_path / "p.npz", "w") as file:
        file.writestr("logits.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        file.writestr("labels.npy", b"")
    with pytest.raises(InputError, match="not a whole"):
        trueup.load(tmp_path / "p.npz")


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"class_names": '[["a"], "b"]'}, r"class_names: expected a list of names, got \[\['a'\], 'b'\]"),
        ({"class_names": '{"a": 1}'}, "class_names: expected a list of names"),
        ({"class_names": "[" * 100_000}, "not a whole .safetensors"),
        ({"meta": '{"a":' * 100_000}, "meta: expected"),
    ],
)
def test_what_safetensors_say_beside_their_tensors_is_checked(tmp_path, about, says):
    save_file({"logits": torch.eye(2) * 3, "labels": torch.arange(2)}, tmp_path / "p.safetensors", metadata=about)
    with pytest.raises(InputError, match=says):
        trueup.load(tmp_path / "p.safetensors")


class Trap:
    """What a pickle could do."""

    def __reduce__(self):
        return (open, ("/nonexistent/trap", "w"))


def damaged(tmp_path):
    """name -> (file, what the message says)."""
    good = {ending: tmp_path / f"good{ending}" for ending in ENDINGS}
    for path in good.values():
        made().save(path)
    found = {"missing": (tmp_path / "nothing.npz", "no such file")}
    for ending, path in good.items():
        short = tmp_path / f"short{ending}"
        content = path.read_bytes()
        short.write_bytes(content[: len(content) // 2 + 3])
        found[f"truncated {ending}"] = (short, "short")
        empty = tmp_path / f"empty{ending}"
        empty.write_bytes(b"")
        found[f"empty {ending}"] = (empty, "empty")
        noise = tmp_path / f"noise{ending}"
        noise.write_bytes(bytes(range(256)) * 4)
        found[f"noise {ending}"] = (noise, "noise")
    pickled = tmp_path / "pickled.npz"
    pickled.write_bytes(pickle.dumps(Trap()))
    found["a pickle"] = (pickled, "pickle")
    objects = tmp_path / "objects.npz"
    np.savez(objects, logits=np.array([Trap()], dtype=object), labels=[0])
    found["an array of objects"] = (objects, "pickle")
    extra = tmp_path / "extra.npz"
    np.savez(extra, logits=np.eye(3) * 2, labels=[0, 1, 2], weights=[1, 2, 3])
    found["an unknown array"] = (extra, "unknown array 'weights'")
    neither = tmp_path / "neither.npz"
    np.savez(neither, labels=[0, 1, 2])
    found["no logits"] = (neither, "expected logits or probs")
    single = tmp_path / "single.npz"
    with open(single, "wb") as file:
        np.save(file, np.eye(3))
    found["one array"] = (single, "single array")
    folder = tmp_path / "folder.npz"
    folder.mkdir()
    found["a folder"] = (folder, "a folder, not a file")
    for name, arrays, says in [
        ("meta that is no JSON", {"meta": "x"}, "meta: expected"),
        ("meta that is a list", {"meta": "[1]"}, "meta: expected"),
        ("class_names that is one", {"class_names": "cat"}, "class_names: expected"),
    ]:
        path = tmp_path / f"{name}.npz"
        np.savez(path, logits=np.eye(3) * 2, labels=[0, 1, 2], **arrays)
        found[name] = (path, says)
    squeezed = tmp_path / "squeezed.npz"
    np.savez_compressed(squeezed, logits=np.random.default_rng(0).normal(size=(500, 3)), labels=np.arange(500) % 3)
    content = bytearray(squeezed.read_bytes())
    content[2000:2040] = bytes(40)
    squeezed.write_bytes(content)
    found["damaged within"] = (squeezed, "not a whole .npz")
    for name, text, says in [
        ("no label", "logit_0,logit_1\n1,2\n", "no column 'label'"),
        ("unknown column", "logit_0,logit_1,lable,label\n1,2,0,0\n", "unknown column 'lable'"),
        ("both kinds", "logit_0,prob_0,label\n1,2,0\n", "one kind"),
        ("twice the same", "logit_0,logit_0,label\n1,2,0\n", "same name, 'logit_0'"),
        ("a word for a number", "logit_0,logit_1,label\n3,4,0\n1,x,0\n", "line 3, column logit_1: 'x' is no number"),
        ("a short row", "logit_0,logit_1,label\n1,2,0\n1,2\n", "line 3 has 2 cells"),
        ("only a byte order mark", "\ufeff", "the file is empty"),
        ("only a header", "logit_0,logit_1,label\n", "empty"),
        ("an empty cell", "logit_0,logit_1,label\n1,,0\n", "line 2, column logit_1: ''"),
        ("a NaN", "logit_0,logit_1,label\n1,2,0\n1,nan,0\n", "row 1, class 1 is nan"),
        ("a bad label", "logit_0,logit_1,label\n1,2,5\n", "row 0 is 5"),
    ]:
        path = tmp_path / f"{name}.csv"
        path.write_text(text)
        found[name] = (path, says)
    (tmp_path / "p.pkl").write_bytes(b"anything")
    found["another ending"] = (tmp_path / "p.pkl", "unknown ending")
    found["a folder with a slip"] = (tmp_path / "studies" / "digts", "no such file")
    return found


def test_damaged_files_are_refused_by_name(tmp_path):
    for name, (path, says) in damaged(tmp_path).items():
        with pytest.raises(InputError) as caught:
            trueup.load(path)
        assert path.name in str(caught.value), name
        assert says in str(caught.value), name


def test_a_table_cut_between_rows_is_a_shorter_table_and_cut_within_is_refused(tmp_path):
    made().save(tmp_path / "p.csv")
    lines = (tmp_path / "p.csv").read_text().splitlines(keepends=True)
    (tmp_path / "q.csv").write_text("".join(lines[:11]))
    assert len(trueup.load(tmp_path / "q.csv")) == 10


def test_a_future_format_is_refused(tmp_path):
    tensors = {"logits": torch.eye(3) * 2, "labels": torch.arange(3)}
    save_file(tensors, tmp_path / "p.safetensors", metadata={"format": "trueup-predictions", "version": "99"})
    with pytest.raises(InputError, match="version '99'"):
        trueup.load(tmp_path / "p.safetensors")


def test_saving_is_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "p.csv"
    made().save(path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(trueup.files.WRITERS, ".csv", full)
    with pytest.raises(OSError, match="No space") as told:
        made(n=40).save(path)
    assert told.value.filename == str(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["p.csv"]
    with pytest.raises(InputError, match="does not exist"):
        made().save(tmp_path / "nowhere" / "p.npz")


@pytest.mark.parametrize(
    "fault",
    [
        SafetensorError("I/O error: No space left on device (os error 28)"),
        OSError(28, "No space left on device"),
        PermissionError(13, "Permission denied", "/tmp/.p.safetensors.x7a"),
    ],
)
def test_what_cannot_be_written_is_told_under_its_own_name(tmp_path, monkeypatch, fault):
    def failing(*_):
        raise fault

    path = tmp_path / "p.safetensors"
    monkeypatch.setitem(trueup.files.WRITERS, ".safetensors", failing)
    with pytest.raises(OSError, match=r"No space left|Permission") as told:
        made().save(path)
    assert trueup.files.fault(told.value).startswith(f"{path}: ")


def test_a_saved_file_has_the_permissions_of_any_new_file(tmp_path):
    made().save(tmp_path / "p.npz")
    (tmp_path / "other").write_text("")
    assert stat.S_IMODE((tmp_path / "p.npz").stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


def test_half_precision_files_are_read_as_float32(tmp_path):
    np.savez(tmp_path / "p.npz", logits=np.eye(3, dtype=np.float16) * 3, labels=[0, 1, 2])
    assert trueup.load(tmp_path / "p.npz").logits.dtype == torch.float32


@given(cases.predictions())
def test_any_predictions_survive_npz(tmp_path_factory, predictions):
    path = tmp_path_factory.mktemp("any") / "p.npz"
    Predictions(probs=predictions[0], labels=predictions[1]).save(path)
    np.testing.assert_array_equal(trueup.load(path).probs, predictions[0])
