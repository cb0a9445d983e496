# SPDX-License-Identifier: MIT
"""Draws what compare.py measured: per cent of the machine's limit, for every row and library.

usage: plot.py FILE.json [PICTURE.svg or .png]
"""

import json
import pathlib
import re
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from report import TITLES

COLOURS = {
    "headwave": "#0b5fa5",
    "torch": "#e8743b",
    "onnxruntime": "#f2b84b",
    "openblas": "#4a9d7c",
    "eigen": "#b07aa1",
    "numpy": "#9a9a9a",
}
SECTIONS = {
    "attention": "Attention: % of the FMA peak",
    "layer": "Whole layers: % of the FMA peak",
    "linear": "Projections: % of the FMA peak",
    "memory": "Bound by memory: % of its bandwidth",
}
BAR, GAP = 1.0, 1.1  # heights; a gap stands between rows


def section_of(row):
    return row["kind"] if row["limit"]["of"] == "fma" else "memory"


def grouped(result, threads):
    """The rows of each section, in the order in which they were measured."""
    sections = {name: [] for name in SECTIONS}
    for row in result["rows"]:
        if row["threads"] == threads:
            sections[section_of(row)].append(row)
    return {name: rows for name, rows in sections.items() if rows}


def bars_of(row):
    return [name for name in TITLES if name in row["peers"]]


def height_of(rows):
    return sum(len(bars_of(row)) * BAR + GAP for row in rows) + GAP


def draw_section(axes, rows, title, names_shown):
    top = GAP
    ticks = []
    for row in rows:
        bars = bars_of(row)
        for i, name in enumerate(bars):
            per_cent = row["peers"][name]["median_per_cent"]
            axes.barh(top + (i + 0.5) * BAR, per_cent, BAR, color=COLOURS[name], linewidth=0)
            if name == "headwave":
                axes.text(per_cent + 0.8, top + (i + 0.5) * BAR, f"{per_cent:.0f}", va="center", fontsize=7)
        bottom = top + len(bars) * BAR
        if row["goal"]:
            axes.plot([row["goal"]] * 2, [top, bottom], color="black", linewidth=1.2, solid_capstyle="butt")
        ticks.append((top + bottom) / 2)
        top = bottom + GAP
    axes.set_ylim(top, 0)
    axes.set_yticks(ticks, [re.sub("^(projection|layer) ", "", row["row"]) for row in rows] if names_shown else [])
    axes.set_title(title, loc="left", fontsize=9, fontweight="bold", pad=3)
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.tick_params(axis="x", labelsize=7, length=2)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def draw(result, target):
    counts = sorted({row["threads"] for row in result["rows"]})
    columns = [grouped(result, threads) for threads in counts]
    names = [name for name in SECTIONS if any(name in column for column in columns)]
    heights = [max(height_of(column.get(name, [])) for column in columns) for name in names]
    extra = 0.42 * len(names) + 1.1  # inches for titles, axes and the legend
    tall = 0.088 * sum(heights) + extra
    figure, grid = plt.subplots(
        len(names), len(counts), figsize=(2.6 + 4.4 * len(counts), tall), squeeze=False, height_ratios=heights
    )
    for r, name in enumerate(names):
        rows = [row for column in columns for row in column.get(name, [])]
        widest = max(bar["median_per_cent"] for row in rows for bar in row["peers"].values())
        for c, (threads, column) in enumerate(zip(counts, columns)):
            axes = grid[r][c]
            axes.set_xlim(0, max(100, widest) + 5)
            if name in column:
                many = f", {threads} thread" + "s" * (threads > 1)
                draw_section(axes, column[name], SECTIONS[name] + many, c == 0)
            else:
                axes.axis("off")
    present = [name for name in TITLES if any(name in row["peers"] for row in result["rows"])]
    handles = [matplotlib.patches.Patch(color=COLOURS[name], label=TITLES[name]) for name in present]
    handles.append(matplotlib.lines.Line2D([], [], color="black", linewidth=1.2, label="our goal"))
    figure.legend(handles=handles, ncols=len(handles), loc="upper center", frameon=False, fontsize=8, handlelength=1.2)
    where = f"{result['machine']['cpu']}; headwave {result['commit']}, {result['date']}"
    figure.text(0.5, 0.004, where, ha="center", va="bottom", fontsize=7, color="#666666")
    figure.tight_layout(rect=(0, 0.2 / tall, 1, 1 - 0.35 / tall), h_pad=0.8)
    figure.savefig(target, dpi=150, metadata={"Date": None} if target.suffix == ".svg" else None)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    source = pathlib.Path(sys.argv[1])
    target = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else source.with_suffix(".svg")
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "headwave", "font.family": "sans-serif"})
    draw(json.loads(source.read_text(encoding="utf-8")), target)
    print(target)


if __name__ == "__main__":
    main()
