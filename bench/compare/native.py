# SPDX-License-Identifier: MIT
"""C++ libraries with the interface of problem.hpp, called through ctypes."""

import ctypes

import build
from variant import Variant, aligned_empty

size = ctypes.c_size_t
integer = ctypes.c_int
boolean = ctypes.c_bool
text = ctypes.c_char_p
floats = ctypes.c_void_p


def pointer(array):
    return array.ctypes.data


class Library:
    def __init__(self, name):
        self.shared = ctypes.CDLL(str(build.OUTPUT / f"{name}.so"))
        self.run = self.function("run_problem", None, ctypes.c_void_p)
        self.release = self.function("release_problem", None, ctypes.c_void_p)

    def function(self, name, result, *arguments):
        found = getattr(self.shared, name)
        found.restype, found.argtypes = result, arguments
        return found

    def maker(self, name, *arguments):
        return self.function(name, ctypes.c_void_p, *arguments)

    def variant(self, handle, out, inputs):
        """The call of a problem, which goes through its copies by itself. It keeps the inputs that it points to."""
        if not handle:
            raise RuntimeError("the library refused the shape")
        call = Call(self, handle, (out, inputs))
        return Variant([call], lambda _: out)


class Call:
    def __init__(self, library, handle, keep):
        self.run, self.release = library.run, library.release
        self.handle, self.keep = ctypes.c_void_p(handle), keep

    def __call__(self):
        self.run(self.handle)

    def __del__(self):
        self.release(self.handle)


def blas_like_variants(library, threads, task):
    """The projections of a library that offers several ways to compute them."""
    ways = library.function("projection_ways", ctypes.POINTER(text), boolean)
    make = library.maker("make_linear", integer, size, size, size, *[floats] * 4, size, integer)
    if task["kind"] != "linear":
        return
    s, given = task["shape"], task["arrays"]

    def made(way):
        out = aligned_empty((s["rows"], s["out_features"]))
        dimensions = (s["rows"], s["in_features"], s["out_features"])
        arrays = [pointer(array) for array in (given["x"], given["weight"], given["bias"], out)]
        return library.variant(make(way, *dimensions, *arrays, task["copies"], threads), out, given)

    names = ways(s["rows"] == 1)
    way = 0
    while names[way]:
        yield names[way].decode(), lambda way=way: made(way)
        way += 1
