# SPDX-License-Identifier: MIT
"""OpenBLAS as the distribution ships it, called by openblas.cpp."""

import native


class Peer:
    def __init__(self, threads):
        self.threads = threads
        self.library = native.Library("openblas")

    def facts(self):
        config = self.library.function("version", native.text)().decode()
        kernels = self.library.function("kernels", native.text)().decode()
        return {"version": config.split()[1], "kernels": kernels, "configuration": config}

    def variants(self, task):
        return native.blas_like_variants(self.library, self.threads, task)
