# SPDX-License-Identifier: MIT
"""What a peer offers for a task, and the arrays that it is given."""

import dataclasses
import typing

import numpy as np


@dataclasses.dataclass
class Variant:
    """One way to do a task, ready to be called."""

    calls: list[typing.Callable[[], typing.Any]]  # the same computation on each copy of the data
    result: typing.Callable[[typing.Any], np.ndarray]  # what a call returned, in the shape of rows.exact


def aligned_empty(shape, dtype=np.float32, to=64):
    """An array at the start of a cache line, as the peers' own allocators would have it."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + to, np.uint8)
    start = -memory.ctypes.data % to
    return memory[start : start + size].view(dtype).reshape(shape)


def aligned(array):
    """A copy at the start of a cache line."""
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy
