# SPDX-License-Identifier: MIT
"""The table, which is Markdown, and the lines around it. python3 report.py FILE.json prints a file's table again."""

import json
import sys

TITLES = {
    "headwave": "headwave",
    "torch": "PyTorch",
    "onnxruntime": "ONNX Runtime",
    "openblas": "OpenBLAS",
    "eigen": "Eigen",
    "numpy": "NumPy",
}
INSTALL = {
    "headwave": "apt-get install g++ libbenchmark-dev",
    "torch": "pip install torch",
    "onnxruntime": "pip install onnxruntime onnx",
    "openblas": "apt-get install libopenblas-dev",
    "eigen": "apt-get install libeigen3-dev",
    "numpy": "pip install numpy",
}
NAME_WIDTH, CELL_WIDTH = 30, 15


def header_lines(result):
    machine, settings = result["machine"], result["settings"]
    yield f"headwave {result['commit']}, {result['date']}"
    yield f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}"
    yield f"{result['build']['compiler']}"
    for name, command in result["build"]["commands"].items():
        yield f"  {TITLES[name]}: {command}"
    for name, facts in result["peers"].items():
        if "missing" in facts:
            yield f"{TITLES[name]}: MISSING, so not compared ({facts['missing']}). Try: {INSTALL[name]}"
        else:
            yield f"{TITLES[name]}: " + ", ".join(f"{key} {value}" for key, value in facts.items())
    yield f"{settings['repetitions']} rounds of turns of {settings['turn']:g} s; medians"
    yield ""
    yield "Cells: peer's time / ours (above 1 we are faster), and the peer's largest error against float64."


def compared(result):
    return [name for name, facts in result["peers"].items() if "missing" not in facts and name != "headwave"]


def columns(result):
    fixed = [("row", -NAME_WIDTH), ("threads", 7), ("time", 9), ("%", 6), ("goal", 4), ("our error", 9)]
    return fixed + [(TITLES[name], CELL_WIDTH) for name in compared(result)]


def line(cells, widths):
    padded = [cell.ljust(-width) if width < 0 else cell.rjust(width) for cell, width in zip(cells, widths)]
    return "| " + " | ".join(padded) + " |"


def head(result):
    titles, widths = zip(*columns(result))
    rule = "|" + "|".join("-" * (abs(width) + 1) + ("-" if width < 0 else ":") for width in widths) + "|"
    return line(titles, widths) + "\n" + rule


def time_text(seconds):
    return f"{1e6 * seconds:.2f} us" if seconds < 1e-3 else f"{1e3 * seconds:.2f} ms"


def row_line(result, row):
    ours = row["peers"]["headwave"]
    goal = "-" if row["goal"] is None else str(row["goal"])
    cells = [row["row"], str(row["threads"]), time_text(ours["median_seconds"]), f"{ours['median_per_cent']:.1f}", goal]
    cells.append(f"{ours['max_error']:.1e}")
    for name in compared(result):
        peer = row["peers"].get(name)
        cells.append(f"{peer['median_ratio']:.2f}  {peer['max_error']:.1e}" if peer else "")
    return line(cells, [width for _, width in columns(result)])


def larger_errors(result):
    """Rows in which we are further from float64 than PyTorch's first way, the plain call of its users."""
    for row in result["rows"]:
        if "torch" in row["peers"]:
            ours = row["peers"]["headwave"]["max_error"]
            name, plain = next(iter(row["peers"]["torch"]["tried"].items()))
            if ours > plain["max_error"]:
                yield f"  {ours:.1e} > {plain['max_error']:.1e}  {row['row']}, {threads_text(row)}: {name}"


def threads_text(row):
    return f"{row['threads']} thread" + "s" * (row["threads"] > 1)


def summary_lines(result):
    pairs = [(row, name) for row in result["rows"] for name in row["peers"] if name != "headwave"]

    def ratio(pair):
        return pair[0]["peers"][pair[1]]["median_ratio"]

    behind = sorted((pair for pair in pairs if ratio(pair) < 1), key=ratio)
    yield f"Ahead in {len(pairs) - len(behind)} of {len(pairs)} comparisons."
    if behind:
        yield "Behind, peer's time / ours:"
    for row, name in behind:
        way = row["peers"][name]["variant"]
        yield f"  {ratio((row, name)):.2f}  {row['row']}, {threads_text(row)}: {TITLES[name]} ({way})"
    larger = list(larger_errors(result))
    if larger:
        yield "Largest error above that of PyTorch's plain call:"
    yield from larger


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        result = json.load(file)
    print("\n".join(header_lines(result)), head(result), sep="\n")
    for row in result["rows"]:
        print(row_line(result, row))
    print("", *summary_lines(result), sep="\n")


if __name__ == "__main__":
    main()
