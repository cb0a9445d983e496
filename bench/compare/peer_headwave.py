# SPDX-License-Identifier: MIT
"""headwave, and what the machine can do at best."""

import ctypes

from native import Library, boolean, floats, integer, pointer, size, text
from variant import aligned_empty


class Peer:
    def __init__(self, threads):
        self.threads = threads
        self.library = Library("headwave")

    def facts(self):
        return {"kernels": self.library.function("instruction_set", text)().decode()}

    def cold_bytes(self):
        return self.library.function("cold_bytes", size)()

    def limit(self, kind, bytes_written):
        """GFLOP/s or GB/s."""
        if kind == "write":
            return self.library.function("write_bandwidth", ctypes.c_double, size, integer)(bytes_written, self.threads)
        name = {"fma": "fma_peak", "read": "read_bandwidth"}[kind]
        return self.library.function(name, ctypes.c_double, integer)(self.threads)

    def variants(self, task):
        yield "headwave", lambda: getattr(self, task["kind"])(task["shape"], task["arrays"], task["copies"])

    def attention(self, s, given, copies):
        make = self.library.maker("make_attention", *[size] * 6, boolean, *[floats] * 4, size, integer)
        out = aligned_empty(given["query"].shape)
        lengths = (s["batch"], s["query_length"], s["key_length"], s["heads"], s["kv_heads"], s["head_dim"])
        arrays = [pointer(array) for array in (given["query"], given["key"], given["value"], out)]
        return self.library.variant(make(*lengths, s["causal"], *arrays, copies, self.threads), out, given)

    def linear(self, s, given, copies):
        make = self.library.maker("make_linear", *[size] * 3, *[floats] * 4, size, integer)
        out = aligned_empty((s["rows"], s["out_features"]))
        arrays = [pointer(array) for array in (given["x"], given["weight"], given["bias"], out)]
        handle = make(s["rows"], s["in_features"], s["out_features"], *arrays, copies, self.threads)
        return self.library.variant(handle, out, given)

    def layer(self, s, given, copies):
        make = self.library.maker("make_layer", *[size] * 3, *[floats] * 6, size, integer)
        out = aligned_empty(given["x"].shape)
        names = ("x", "in_weight", "in_bias", "out_weight", "out_bias")
        arrays = [*(pointer(given[name]) for name in names), pointer(out)]
        handle = make(s["length"], s["d_model"], s["heads"], *arrays, copies, self.threads)
        return self.library.variant(handle, out, given)

    def table(self, s, given, copies):
        make = self.library.maker("make_table", size, size, floats, integer)
        out = aligned_empty((s["length"], s["d_model"]))
        return self.library.variant(make(s["length"], s["d_model"], pointer(out), self.threads), out, given)
