# SPDX-License-Identifier: MIT
"""The peers as processes, of which one runs at a time, and the rounds in which they are timed in turn."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import numpy

import build
import rows
from worker import median

OURS = "headwave"
TOLERANCE = 1e-2  # a peer's way with a larger error is no answer; ours must keep OUR_TOLERANCE
OUR_TOLERANCE = 1e-4
# Settings of the machine's owner that would keep a peer from choosing its own best kernels.
FORGOTTEN = (
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_DEBUG_CPU_TYPE",
    "ATEN_CPU_CAPABILITY",
)
FORGOTTEN += ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "NPY_DISABLE_CPU_FEATURES", "OMP_PROC_BIND", "OMP_PLACES")


class PeerFailed(Exception):
    """A peer that cannot be loaded, or that could not do what it was asked."""


class Process:
    """A worker, which stands still (SIGSTOP) except while it answers: no thread of it spins in another's turn."""

    def __init__(self, name, threads, cores):
        self.name = name
        self.log = build.OUTPUT / f"{name}.log"
        environment = {key: value for key, value in os.environ.items() if key not in FORGOTTEN}
        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            environment[variable] = str(threads)
        script = pathlib.Path(__file__).with_name("worker.py")
        self.process = subprocess.Popen(
            [sys.executable, "-u", str(script), name, str(threads), *map(str, cores)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            env=environment,
            text=True,
        )

    def ask(self, command, **arguments):
        self.process.send_signal(signal.SIGCONT)
        try:
            self.process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerFailed(f"its process ended; see {self.log.relative_to(build.ROOT)}")
        self.process.send_signal(signal.SIGSTOP)
        answer = json.loads(line)
        if "error" in answer:
            raise PeerFailed(answer["error"])
        return answer["answer"]

    def end(self):
        self.process.kill()
        self.process.wait()


def saved(folder, name, array):
    path = os.path.join(folder, f"{name}.npy")
    numpy.save(path, array)
    return path


@dataclasses.dataclass
class Settings:
    repetitions: int
    turn: float  # seconds


class Session:
    """All peers, started for a number of threads and pinned to as many cores."""

    def __init__(self, names, threads, settings):
        self.settings = settings
        self.threads = threads
        allowed = sorted(os.sched_getaffinity(0))
        self.cores = allowed[-threads:]
        self.processes, self.facts, self.missing = {}, {}, {}
        for name in names:
            self.start(name)

    def start(self, name):
        process = None
        try:
            if name in build.FLAGS:
                build.build(name)
            process = Process(name, self.threads, self.cores)
            self.facts[name] = process.ask("facts")
            self.processes[name] = process
        except (PeerFailed, RuntimeError) as reason:
            self.missing[name] = str(reason)
            if process:
                process.end()

    def end(self):
        for process in self.processes.values():
            process.end()

    def compare(self, row):
        """One row of the result: times, per cent of the limit, and ratios of every peer that can do it."""
        peers = self.prepare(row)
        others = [name for name in peers if name != OURS]
        limits, times = [self.limit(row)], {name: [] for name in others}
        ours, ratios = [], {name: [] for name in others}
        for _ in range(self.settings.repetitions):
            ours.append([self.time(OURS)])
            for name in others:
                times[name].append(self.time(name))
                ours[-1].append(self.time(OURS))
                # Ours just before and just after.
                ratios[name].append(2 * times[name][-1] / (ours[-1][-2] + ours[-1][-1]))
            limits.append(self.limit(row))
        times[OURS] = [median(turns) for turns in ours]
        for name, peer in peers.items():
            self.processes[name].ask("release")
            peer["seconds"] = times[name]
            peer["median_seconds"] = median(times[name])
            peer["per_cent"] = [
                100 * 1e-9 * row.amount / seconds / max(before, after)
                for seconds, before, after in zip(times[name], limits, limits[1:])
            ]
            peer["median_per_cent"] = median(peer["per_cent"])
            if name in ratios:
                peer["ratios"] = ratios[name]
                peer["median_ratio"] = median(ratios[name])
        return {
            "row": row.name,
            "kind": row.kind,
            "shape": row.shape,
            "threads": self.threads,
            "limit": {"of": row.limit, "unit": "GFLOP/s" if row.limit == "fma" else "GB/s", "values": limits},
            "amount": row.amount,
            "goal": row.goal,
            "peers": peers,
        }

    def prepare(self, row):
        """What each peer that can do the row says of the way that it has chosen."""
        given = rows.inputs(row)
        copies = 1
        if row.cold:
            copies = self.processes[OURS].ask("cold_bytes") // int(row.amount) + 1
        peers = {}
        with tempfile.TemporaryDirectory(dir=build.OUTPUT) as folder:
            arrays = {name: saved(folder, name, array) for name, array in given.items()}
            exact = saved(folder, "exact", rows.exact(row, given))
            task = {"kind": row.kind, "shape": row.shape, "arrays": arrays, "copies": copies}
            for name, process in self.processes.items():
                tolerance = OUR_TOLERANCE if name == OURS else TOLERANCE
                told = process.ask("prepare", task=task, exact=exact, turn=self.settings.turn, tolerance=tolerance)
                if "variant" in told:
                    peers[name] = told
                elif name == OURS:
                    raise PeerFailed(f"{row.name}: {told['failed']}")
        return peers

    def time(self, name):
        return self.processes[name].ask("time", turn=self.settings.turn)

    def limit(self, row):
        return self.processes[OURS].ask("limit", kind=row.limit, size=int(row.amount))
