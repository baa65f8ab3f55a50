"""Tiny-ImageNet from a small folder in the real layout."""

import io
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.layouts import pixels
from trueup import InputError
from trueup.data import load

CLASSES = ("n01443537", "n01629819", "n02058221")
WORDS = "n01443537\tgoldfish, Carassius auratus\nn01629819\tEuropean fire salamander\nn02058221\talbatross, mollymawk\n"


def jpeg(image):
    out = io.BytesIO()
    Image.fromarray(image).save(out, "JPEG", quality=95)
    return out.getvalue()


def read(content):
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).transpose(2, 0, 1)


def write(folder, train=4, val=5):
    """Gives the bytes of each file, and the class of those under val."""
    files, annotations = {}, []
    for number, name in enumerate(CLASSES):
        for i, image in enumerate(pixels(train, number, 64)):
            grey = number == 1 and i == 2
            files[f"train/{name}/images/{name}_{i}.JPEG"] = jpeg(image[..., 0] if grey else image)
    for i, image in enumerate(pixels(val, 9, 64)):
        files[f"val/images/val_{i}.JPEG"] = jpeg(image)
        annotations.append(f"val_{i}.JPEG\t{CLASSES[i % 3]}\t0\t32\t44\t62\n")
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    (folder / "val" / "val_annotations.txt").write_text("".join(annotations))
    (folder / "words.txt").write_text(WORDS)
    (folder / "train" / "n01443537" / "n01443537_boxes.txt").write_text("n01443537_0.JPEG\t0\t10\t63\t58\n")
    return files


@pytest.mark.parametrize("folder", ["tiny-imagenet-200", "data/tiny-imagenet", "."])
def test_images_are_what_the_files_hold(tmp_path, folder):
    files = write(tmp_path / folder)
    data = load("tiny-imagenet", tmp_path)
    assert [len(split) for split in data.splits().values()] == [11, 1, 5]
    assert data.class_names == ("goldfish", "European fire salamander", "albatross")
    assert data.input_shape == (3, 64, 64)
    assert data.test.labels.tolist() == [0, 1, 2, 0, 1]
    for i in range(5):
        assert np.array_equal(data.test.inputs[i], read(files[f"val/images/val_{i}.JPEG"]))
    rest = torch.cat([data.train.inputs, data.val.inputs]).flatten(1).tolist()
    expected = [read(files[path]).ravel().tolist() for path in files if path.startswith("train")]
    assert sorted(rest) == sorted(expected)
    assert load("tiny-imagenet", tmp_path).checksum == data.checksum


def test_the_authors_split_tests_on_what_it_validates_on(tmp_path):
    write(tmp_path)
    data = load("tiny-imagenet", tmp_path, split="mukhoti2020")
    assert len(data.train) == 12
    assert torch.equal(data.val.inputs, data.test.inputs)
    assert "calibrators are fitted on the images they are judged on" in "".join(data.notes)
    assert load("tiny-imagenet", tmp_path).notes == ()


def test_an_image_that_changed_is_decoded_again(tmp_path):
    write(tmp_path)
    before = load("tiny-imagenet", tmp_path).checksum
    (tmp_path / "val" / "images" / "val_3.JPEG").write_bytes(jpeg(pixels(1, 77, 64)[0]))
    assert load("tiny-imagenet", tmp_path).checksum != before


def claiming(content, size):
    """The JPEG, whose header says another height and width."""
    frame = content.index(b"\xff\xc0")
    return content[: frame + 5] + struct.pack(">HH", size, size) + content[frame + 9 :]


def edit(path, change):
    return lambda folder: (folder / path).write_bytes(change((folder / path).read_bytes()))


ANNOTATIONS, IMAGE = "val/val_annotations.txt", "train/n01629819/images/n01629819_1.JPEG"
BAD = {
    "a missing annotation": (
        edit(ANNOTATIONS, lambda b: b"".join(b.splitlines(True)[:-1])),
        "val_4.JPEG: has no annot",
    ),
    "a missing image": (
        lambda f: (f / "val/images/val_2.JPEG").unlink(),
        "val_annotations.txt: line 3: there is no .*val_2",
    ),
    "another class": (
        edit(ANNOTATIONS, lambda b: b.replace(b"n02058221", b"n0")),
        "line 3: 'n0' is none of the classes",
    ),
    "no class": (edit(ANNOTATIONS, lambda b: b.replace(b"n02058221", b"")), "line 3: '' is none of the classes"),
    "the folder above": (edit(ANNOTATIONS, lambda b: b.replace(b"n02058221", b"..")), "line 3: '..' is none of"),
    "a torn annotation": (edit(ANNOTATIONS, lambda b: b[:60] + b"\nval_9"), "val_annotations.txt: line 3: "),
    "two annotations": (edit(ANNOTATIONS, lambda b: b + b.splitlines(True)[0]), "line 6: a second annotation of val_0"),
    "no text": (edit(ANNOTATIONS, lambda b: b"\xff" + b), "line 1: not text"),
    "no annotations": (lambda f: (f / ANNOTATIONS).unlink(), "val_annotations.txt: no such file$"),
    "a broken image": (edit(IMAGE, lambda b: b[: len(b) // 2]), "n01629819_1.JPEG: the image cannot be decoded"),
    "no image": (edit(IMAGE, lambda b: b"hello"), "n01629819_1.JPEG: the image cannot be decoded"),
    "a large image": (edit(IMAGE, lambda b: jpeg(pixels(1, 0, 32)[0])), "n01629819_1.JPEG: .*64 x 64 pixels, got 32"),
    "a huge image": (edit(IMAGE, lambda b: claiming(b, 60_000)), "n01629819_1.JPEG: the image cannot be .*limit"),
    "an image too large": (edit(IMAGE, lambda b: claiming(b, 10_000)), "n01629819_1.JPEG: the image cannot be .*limit"),
    "an empty class": (lambda f: [p.unlink() for p in (f / IMAGE).parent.iterdir()], "n01629819/images: no .JPEG"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_named_and_nothing_is_cached(tmp_path, cache, case):
    spoil, message = BAD[case]
    write(tmp_path)
    spoil(tmp_path)
    with pytest.raises(InputError, match=message):
        load("tiny-imagenet", tmp_path)
    assert [found for found in cache.rglob("*") if found.suffix != ".lock"] == []


def test_it_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"tiny-imagenet: no folders train and val.*tiny-imagenet-200.zip"):
        load("tiny-imagenet", tmp_path)
