# SPDX-License-Identifier: MIT
"""Compiles the C++ libraries that are compared into build/compare, when they or what they include has changed."""

import os
import pathlib
import shlex
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
OUTPUT = ROOT / "build" / "compare"

# headwave is compiled as its README tells users to; -fopenmp is for the threads that a caller lends it, and for the
# limits of several cores. Eigen chooses its kernels when it is compiled, hence -march=native for it; OpenBLAS chooses
# them when it runs.
COMMON = ["-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-shared", "-I", "include"]
FLAGS = {
    "headwave": ["-fopenmp", "bench/compare/ours.cpp", "-lbenchmark", "-lpthread"],
    "openblas": ["bench/compare/openblas.cpp", "-lopenblas"],
    "eigen": ["-march=native", "-fopenmp", "-isystem", "/usr/include/eigen3", "bench/compare/eigen.cpp"],
}


def compiler():
    return shlex.split(os.environ.get("CXX", "g++"))


def command(name):
    return [*compiler(), *COMMON, *FLAGS[name]]


def sources():
    for folder in ("include", "bench", "tests/support"):
        yield from (path for path in (ROOT / folder).rglob("*") if path.suffix in (".hpp", ".inl", ".cpp"))


def is_current(library, stamp, text):
    if not library.exists() or not stamp.exists() or stamp.read_text() != text:
        return False
    return library.stat().st_mtime > max(path.stat().st_mtime for path in sources())


def build(name):
    """The shared library's path. Raises RuntimeError with the compiler's first words if it cannot be built."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT.parent / ".gitignore").write_text("*\n")  # a checkout stays clean, as with CMake
    library = OUTPUT / f"{name}.so"
    stamp = library.with_suffix(".command")
    text = shlex.join(command(name))
    if is_current(library, stamp, text):
        return library
    try:
        done = subprocess.run([*command(name), "-o", str(library)], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        raise RuntimeError(f"there is no compiler {compiler()[0]}") from None
    if done.returncode != 0:
        reasons = [line for line in done.stderr.splitlines() if "error" in line or "cannot find" in line]
        raise RuntimeError(reasons[0] if reasons else done.stderr[:500] or f"{compiler()[0]} failed")
    stamp.write_text(text)
    return library


def compiler_version():
    done = subprocess.run([*compiler(), "--version"], capture_output=True, text=True)
    return done.stdout.splitlines()[0] if done.stdout else "unknown"
