#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What including headwave costs: processor seconds of the compiler and bytes of code, beside other headers.

    python3 bench/inclusion.py [--compiler g++] [--repetitions 5]

Programs are compiled in turn, and the shortest time of each counts. Eigen and nlohmann-json are left out where they are
not installed."""

import argparse
import os
import resource
import subprocess
import tempfile

INCLUDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "include")
LAYER = """#include <headwave/headwave.hpp>
int main() {
  headwave::multi_head_attention<float> mha({.d_model = 512, .heads = 8});
  mha.init_xavier(42);
  headwave::tensor<float, 3> x({1, 16, 512});
  return mha(x)(0, 0, 0) > 1;
}
"""
EIGEN = """#include <Eigen/Dense>
int main() {
  const Eigen::MatrixXf a = Eigen::MatrixXf::Random(100, 100), b = Eigen::MatrixXf::Random(100, 100);
  const Eigen::MatrixXf c = a * b;
  return c(0, 0) > 1;
}
"""
MAIN = "int main() {}\n"
PROGRAMS = [
    ("include `<headwave/headwave.hpp>`", "#include <headwave/headwave.hpp>\n" + MAIN, []),
    ("include `<Eigen/Dense>`", "#include <Eigen/Dense>\n" + MAIN, []),
    ("include `<regex>`", "#include <regex>\n" + MAIN, []),
    ("include `<nlohmann/json.hpp>`", "#include <nlohmann/json.hpp>\n" + MAIN, []),
    ("Eigen: a product of 100 x 100", EIGEN, []),
    ("one layer", LAYER, []),
    ("one layer, `HEADWAVE_NO_AVX512`", LAYER, ["-DHEADWAVE_NO_AVX512"]),
    ("one layer, `HEADWAVE_STATIC_ISA`, `-march=x86-64-v3`", LAYER, ["-DHEADWAVE_STATIC_ISA", "-march=x86-64-v3"]),
    ("one layer, `HEADWAVE_EXTERN_KERNELS`", LAYER, ["-DHEADWAVE_EXTERN_KERNELS"]),
]


def compile_once(compiler, source, flags, folder):
    """(seconds, bytes of code), or None if it does not compile."""
    path, target = os.path.join(folder, "program.cpp"), os.path.join(folder, "program.o")
    with open(path, "w", encoding="utf-8") as file:
        file.write(source)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [compiler, "-std=c++20", "-O2", "-I", INCLUDE, "-I", "/usr/include/eigen3", *flags, "-c", path, "-o", target]
    if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode != 0:
        return None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    size = subprocess.run(["size", target], capture_output=True, text=True, check=True).stdout.split("\n")[1].split()[0]
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, int(size)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.repetitions):
            for name, source, flags in PROGRAMS:
                result = compile_once(options.compiler, source, flags, folder)
                if result:
                    results[name] = min(result, results.get(name, result))
    print("| program | seconds | KiB of code |\n|---|---|---|")
    for name, _, _ in PROGRAMS:
        if name in results:
            print(f"| {name} | {results[name][0]:.1f} | {results[name][1] / 1024:.0f} |")


if __name__ == "__main__":
    main()
