#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How far results of headwave and of PyTorch are from float64, over whole results; see README.md beside this file."""

import importlib
import sys

import numpy as np

import build
from rows import ROWS, attention, exact, inputs, layer
from variant import aligned

UNIT = 2.0**-24  # of roundoff

TASKS = [
    attention("L512 H12 d64", 1, 512, 512, 12, 12, 64),
    attention("L1024 H32/8 d128 causal", 1, 1024, 1024, 32, 8, 128, causal=True),
    attention("decode 1 x 4096 H32/8 d128", 1, 1, 4096, 32, 8, 128),
    layer(128, 768, 12),
    layer(512, 512, 8),
]

# What becomes of inputs that are about normal with variance 1. Weights and biases of layers stay as they are.
KINDS = {
    "normal": {},
    "large scores": {"query": 30, "x": 30},
    "tiny": {"query": 1e-18, "key": 1e-18, "value": 1e-18, "x": 1e-18},
    "denormal values": {"value": 1e-40},
    "equal keys": {"key": "first"},
    "values far from 0": {"value": "shifted"},
}


def changed(array, change):
    if change == "first":
        array = np.broadcast_to(array[:, :1], array.shape)
    elif change == "shifted":
        array = array + np.float32(1000)
    else:
        array = array * np.float32(change)
    return aligned(np.ascontiguousarray(array, np.float32))


def spread(errors):
    """Median, 99th per cent and largest."""
    return " / ".join(f"{value:.2f}" for value in np.quantile(errors, [0.5, 0.99, 1.0]))


def results(peer, row, given):
    """What each way of a peer gives."""
    task = {"kind": row.kind, "shape": row.shape, "arrays": given, "copies": 1}
    for _, make in peer.variants(task):
        try:
            variant = make()
            yield np.array(variant.result(variant.calls[0]()), dtype=float)
        except Exception:  # a way that this version of the peer does not have
            continue


def main():
    try:
        build.build("headwave")
        peers = {name: importlib.import_module(f"peer_{name}").Peer(1) for name in ("headwave", "torch")}
    except (ImportError, RuntimeError) as reason:
        sys.exit(f"accuracy.py: {reason}")
    print("| row | inputs | result up to | headwave | the best way of PyTorch | its plain call |")
    print("|---|---|" + "---:|" * 4)
    for row in TASKS:
        for kind, changes in KINDS.items():
            given = {name: aligned(array) for name, array in inputs(row).items()}
            applied = {name: change for name, change in changes.items() if name in given}
            if changes and not applied:
                continue
            given |= {name: changed(given[name], change) for name, change in applied.items()}
            expected = exact(row, given)
            # An output is a mean of values, so it is their size that rounding goes by.
            size = np.abs(given["value"]).max() if row.kind == "attention" else np.abs(expected).max()
            unit = UNIT * float(size)
            errors = {
                name: [np.abs(result - expected) / unit for result in results(peer, row, given)]
                for name, peer in peers.items()
            }
            best = min(errors["torch"], key=lambda of_way: of_way.max())
            spreads = [spread(of_way) for of_way in (errors["headwave"][0], best, errors["torch"][0])]
            print("|", " | ".join([row.name, kind, f"{np.abs(expected).max():.1e}", *spreads]), "|", flush=True)


if __name__ == "__main__":
    main()
