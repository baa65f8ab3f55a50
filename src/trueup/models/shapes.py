"""What a net can be fed with, checked once when it is built."""

from __future__ import annotations

from collections.abc import Callable

from trueup.inputs import InputError


def square_image(net: str, input_shape: tuple[int, ...], wanted: str, fits: Callable[[int], bool]) -> tuple[int, int]:
    """(channels, side) of a (C, S, S) image whose side ``fits``, which ``wanted`` puts in words."""
    if len(input_shape) == 3 and input_shape[1] == input_shape[2] and fits(input_shape[1]):
        return input_shape[0], input_shape[1]
    raise InputError(
        f"input_shape: {net} takes images (C, H, W) with {wanted}, got {input_shape}; "
        "cnn takes images of any size from 8 x 8 on, mlp takes anything"
    )
