# SPDX-License-Identifier: MIT
"""NumPy, for the encoding: the code that is usually written, in float32."""

import numpy as np

from variant import Variant


class Peer:
    def __init__(self, threads):
        del threads  # NumPy's sines use one

    def facts(self):
        return {"version": np.__version__}

    def variants(self, task):
        if task["kind"] != "table":
            return
        length, d_model = task["shape"]["length"], task["shape"]["d_model"]

        def angles():
            position = np.arange(length, dtype=np.float32)[:, None]
            return position * np.exp(np.arange(0, d_model, 2, dtype=np.float32) * np.float32(-np.log(1e4) / d_model))

        def strided():
            out = np.empty((length, d_model), np.float32)
            angle = angles()
            out[:, 0::2] = np.sin(angle)
            out[:, 1::2] = np.cos(angle)
            return out

        def into_strided():
            out = np.empty((length, d_model), np.float32)
            angle = angles()
            np.sin(angle, out=out[:, 0::2])
            np.cos(angle, out=out[:, 1::2])
            return out

        def stacked():
            angle = angles()
            return np.stack((np.sin(angle), np.cos(angle)), axis=-1).reshape(length, d_model)

        for way in (strided, into_strided, stacked):
            yield way.__name__.replace("_", " "), lambda way=way: Variant([way], lambda out: out)
