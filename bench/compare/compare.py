#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times headwave and other libraries on the same inputs, in turn, in one session; see README.md beside this file."""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys

try:
    import numpy  # noqa: F401, for a clear message before anything else
except ImportError:
    sys.exit("compare.py needs NumPy: pip install numpy (Debian: apt-get install python3-numpy)")

import build
import report
from rows import ROWS
from session import OURS, PeerFailed, Session, Settings

PEERS = ["torch", "onnxruntime", "openblas", "eigen", "numpy"]
SMOKE_OPERATIONS = 2e8  # rows with more are left out of a smoke run


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", metavar="REGEX", help="only rows whose name matches")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N", help="default: 1 2")
    parser.add_argument("--repetitions", type=int, default=20, metavar="N", help="rounds of each row; default: 20")
    parser.add_argument(
        "--turn", type=float, default=0.1, metavar="SECONDS", help="of one peer in a round; default: 0.1"
    )
    parser.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS, help="default: all")
    parser.add_argument("--json", type=pathlib.Path, default=build.OUTPUT / "compare.json", metavar="FILE")
    parser.add_argument("--require-all", action="store_true", help="stop if a peer is missing, instead of going on")
    parser.add_argument("--list", action="store_true", help="print the names of the rows, and stop")
    parser.add_argument(
        "--smoke", action="store_true", help="small rows once, one thread: checks results, times nothing"
    )
    chosen = parser.parse_args()
    if chosen.smoke:
        chosen.repetitions, chosen.turn, chosen.threads = 1, 0.001, [1]
    return chosen


def chosen_rows(chosen):
    rows = [row for row in ROWS if re.search(chosen.rows, row.name)]
    if chosen.smoke:
        rows = [row for row in rows if row.limit != "fma" or row.amount <= SMOKE_OPERATIONS]
    if not rows:
        sys.exit(f"no row matches {chosen.rows!r}; --list prints them all")
    return rows


def cpu_model():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        fields = dict(re.findall(r"^(.*?)\s*: (.*)$", file.read().split("\n\n")[0], re.MULTILINE))
    parts = [f"{key} {fields[key]}" for key in ("cpu family", "model") if key in fields]
    return fields.get("model name", platform.machine()) + (f" ({', '.join(parts)})" if parts else "")


def commit():
    try:
        command = ["git", "-C", str(build.ROOT), "describe", "--always", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "of unknown commit"


def described(chosen, session):
    built = [name for name in (OURS, *chosen.peers) if name in build.FLAGS and name not in session.missing]
    peers = {name: session.facts.get(name, {}) for name in (OURS, *chosen.peers)}
    peers |= {name: {"missing": reason} for name, reason in session.missing.items()}
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "system": f"{platform.system()} {platform.release()}"},
        "build": {
            "compiler": build.compiler_version(),
            "commands": {name: shlex.join(build.command(name)) for name in built},
        },
        "settings": {"repetitions": chosen.repetitions, "turn": chosen.turn, "threads": chosen.threads},
        "peers": peers,
        "rows": [],
    }


def write(result, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def run(chosen):
    rows, result = chosen_rows(chosen), None
    for threads in chosen.threads:
        session = Session([OURS, *chosen.peers], threads, Settings(chosen.repetitions, chosen.turn))
        try:
            if OURS in session.missing:
                sys.exit(f"headwave cannot be built: {session.missing[OURS]}. Try: {report.INSTALL[OURS]}")
            if chosen.require_all and session.missing:
                sys.exit("\n".join(f"{report.TITLES[n]} is missing: {why}" for n, why in session.missing.items()))
            if result is None:
                result = described(chosen, session)
                print("\n".join(report.header_lines(result)), report.head(result), sep="\n", flush=True)
            if len(session.cores) < threads:
                print(f"CAUTION: {threads} threads share {len(session.cores)} core: these figures mean nothing.")
            for row in rows:
                result["rows"].append(session.compare(row))
                print(report.row_line(result, result["rows"][-1]), flush=True)
                write(result, chosen.json)
        finally:
            session.end()
    if chosen.smoke:
        print("", "Results agree with float64. The times of a smoke run mean nothing.", sep="\n")
        return
    print("", *report.summary_lines(result), "", f"All figures: {chosen.json}", sep="\n")


def main():
    chosen = arguments()
    if chosen.list:
        print("\n".join(row.name for row in ROWS))
        return
    try:
        run(chosen)
    except PeerFailed as reason:
        sys.exit(f"failed: {reason}")


if __name__ == "__main__":
    main()
