# SPDX-License-Identifier: MIT
"""Eigen as the distribution ships it, compiled for this machine in eigen.cpp."""

import native


class Peer:
    def __init__(self, threads):
        self.threads = threads
        self.library = native.Library("eigen")

    def facts(self):
        version = self.library.function("version", native.text)().decode()
        return {"version": version, "kernels": self.library.function("kernels", native.text)().decode()}

    def variants(self, task):
        return native.blas_like_variants(self.library, self.threads, task)
