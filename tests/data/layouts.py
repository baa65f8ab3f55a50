"""Small files in the real layouts, and programs that load data in a process of their own."""

from __future__ import annotations

import gzip
import io
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

CLASSES = {"label": 10, "fine_label": 100, "coarse_label": 20}


def pixels(count, seed, size=32):
    """(count, size, size, 3) uint8."""
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def encoded(image, kind="PNG"):
    out = io.BytesIO()
    Image.fromarray(image).save(out, kind, lossless=True)
    return out.getvalue()


def claiming(png, size):
    """The PNG, whose header says another width and height."""
    header = png[12:16] + struct.pack(">II", size, size) + png[24:29]
    return png[:12] + header + struct.pack(">I", zlib.crc32(header)) + png[33:]


def labels(count, seed, classes=10):
    return np.random.default_rng(seed + 1000).integers(0, classes, count)


def write_piece(path, images, columns, kind="PNG"):
    """A Parquet file as the hub has it: img {bytes, path}, and the labels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"bytes": x if isinstance(x, bytes) else encoded(x, kind), "path": None} for x in images]
    img = pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    pq.write_table(pa.table({"img": img} | columns), path)


def write_cifar(folder, columns=("label",), train=(30, 25), test=(20,), kind="PNG", seed=0):
    """The whole of a small CIFAR. Gives {part: (images (N, 3, 32, 32), {column: labels})}."""
    found = {}
    for part, sizes in (("train", train), ("test", test)):
        images = [pixels(size, seed + 10 * i + len(part)) for i, size in enumerate(sizes)]
        targets = [{c: labels(size, seed + i, CLASSES[c]) for c in columns} for i, size in enumerate(sizes)]
        for i, (x, y) in enumerate(zip(images, targets, strict=True)):
            write_piece(Path(folder) / f"{part}-{i:05d}-of-{len(sizes):05d}.parquet", x, y, kind)
        together = {c: np.concatenate([y[c] for y in targets]) for c in columns}
        found[part] = (np.concatenate(images).transpose(0, 3, 1, 2), together)
    return found


def idx(array):
    """The bytes of an idx file."""
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_fashion(folder, train=50, test=20, packed=True):
    """The four files of a small Fashion-MNIST. Gives {name: array}."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for part, size in (("train", train), ("t10k", test)):
        arrays[f"{part}-images-idx3-ubyte"] = pixels(size, len(part), 28)[..., 0]
        arrays[f"{part}-labels-idx1-ubyte"] = labels(size, len(part))
    for name, array in arrays.items():
        content = idx(array)
        (folder / f"{name}.gz" if packed else folder / name).write_bytes(gzip.compress(content) if packed else content)
    return arrays


VECTORS = {"the": (1.0, 2.0), "cat": (0.5, -1.0), "sat": (3.0, 0.0), "not": (0.25, 4.0), ")": (7.0, 8.0)}


def write_npz(folder, content=VECTORS):
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "some.npz", vectors=np.array(list(content.values()), np.float16), words="\n".join(content))


def write_glove(folder, content=VECTORS, name="glove.6B.2d.txt"):
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in content.items())
    (folder / name).write_text(text)


def program(code, *arguments, cache):
    """A Python of its own that runs the code, with its output to read."""
    environment = os.environ | {"TRUEUP_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
