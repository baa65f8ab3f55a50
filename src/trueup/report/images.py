"""Thumbnails: small pictures as the text of PNG files, which a page and a file of predictions can carry."""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from trueup.inputs import Array, InputError, as_tensor
from trueup.predictions import Predictions

_KINDS = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}
_COLOURS = {1: 0, 3: 2, 4: 6}
"""Channels -> the colour type of PNG."""


def thumbnails(images: Array) -> list[str]:
    """Each of the uint8 ``images`` (N, H, W), (N, H, W, C) or (N, C, H, W) as a PNG in base64.

    ``Predictions(..., meta={"thumbnails": thumbnails(images)})`` shows them beside the mistakes, and keeps them in
    the file.

    >>> import numpy as np
    >>> thumbnails(np.zeros((1, 2, 2), np.uint8))[0][:8]
    'iVBORw0K'
    """
    pixels = as_tensor(images, "images").cpu().numpy()
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    elif pixels.ndim == 4 and pixels.shape[3] not in _COLOURS and pixels.shape[1] in _COLOURS:
        pixels = np.moveaxis(pixels, 1, 3)
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] not in _COLOURS or 0 in pixels.shape[1:]:
        raise InputError(f"images: expected uint8 (N, H, W), (N, H, W, C) or (N, C, H, W), got {_kind(images)}")
    return [base64.b64encode(_png(each)).decode() for each in pixels]


def carried(predictions: Predictions) -> Callable[[int], str | None]:
    """The thumbnail of a row as a data URI, where ``meta["thumbnails"]`` has one."""
    found = predictions.meta.get("thumbnails")
    if found is None:
        return lambda row: None
    if not isinstance(found, list) or len(found) != len(predictions):
        raise InputError(f"meta: thumbnails: expected a list of {len(predictions)}, one a sample")
    return lambda row: None if found[row] is None else _data_uri(found[row], row)


def _data_uri(text: Any, row: int) -> str:
    """Only what is a picture by its first bytes goes into the page."""
    try:
        content = base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        content = b""
    for begin, kind in _KINDS.items():
        if content.startswith(begin):
            return f"data:image/{kind};base64,{text}"
    raise InputError(f"meta: thumbnails: row {row} is no PNG, JPEG or GIF in base64")


def _png(pixels: np.ndarray) -> bytes:
    """(H, W, C) as the smallest valid PNG: a header, the rows, each after the number of its filter (none), an end."""
    height, width, channels = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], 1)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )


def _kind(images: Array) -> str:
    return f"{getattr(images, 'dtype', type(images).__name__)} {tuple(getattr(images, 'shape', ()))}"
