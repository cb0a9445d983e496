# SPDX-License-Identifier: MIT
"""What a peer offers for a task."""

import dataclasses
import typing

import numpy as np


@dataclasses.dataclass
class Variant:
    """One way to do a task, ready to be called."""

    calls: list[typing.Callable[[], typing.Any]]  # the same computation on each copy of the data
    result: typing.Callable[[typing.Any], np.ndarray]  # what a call returned, in the shape of rows.exact
