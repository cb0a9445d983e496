# SPDX-License-Identifier: MIT
"""The process of one peer: usage: worker.py PEER THREADS CORE...

compare.py writes a command to its input as one line of JSON, and reads one line as the answer. The process pins itself
to its cores before it loads the peer, and dies with compare.py.
"""

import contextlib
import ctypes
import gc
import importlib
import itertools
import json
import os
import signal
import sys
import time

WARM_UP = 0.25  # share of a turn that is run before the clock starts
SAMPLE = 1e-3  # seconds that one sample takes at least; shorter calls are timed by the batch


def pin(cores):
    os.sched_setaffinity(0, cores)
    parent_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)


def median(values):
    ascending = sorted(values)
    middle = len(ascending) // 2
    return ascending[middle] if len(ascending) % 2 else (ascending[middle - 1] + ascending[middle]) / 2


def seconds_per_call(call, turn):
    """Median of the samples of one turn, which is longer than asked for if a call is."""
    clock = time.perf_counter
    start = clock()
    calls = 0
    while True:
        call()
        calls += 1
        elapsed = clock() - start
        if elapsed >= WARM_UP * turn:
            break
    batch = max(1, round(SAMPLE * calls / elapsed))
    samples = []
    begin = clock()
    while not samples or clock() - begin < (1 - WARM_UP) * turn:
        first = clock()
        for _ in range(batch):
            call()
        samples.append((clock() - first) / batch)
    return median(samples)


class Worker:
    def __init__(self, name, threads):
        self.peer = importlib.import_module(f"peer_{name}").Peer(threads)
        self.call = None

    def facts(self):
        return self.peer.facts()

    def prepare(self, task, exact, turn, tolerance):
        """Tries each way in which the peer can do the task, and keeps the fastest whose result is right."""
        import numpy

        from variant import aligned

        self.release()
        task["arrays"] = {name: aligned(numpy.load(path)) for name, path in task["arrays"].items()}
        expected = numpy.load(exact)
        tried, failed, kept = {}, {}, {}
        for name, make in self.peer.variants(task):
            try:
                variant = make()
                error = largest_difference(variant.result(variant.calls[0]()), expected)
                if not error <= tolerance:
                    raise ValueError(f"its result is off by {error:.1e}")
                call = rotating(variant.calls)
                seconds = min(seconds_per_call(call, turn) for _ in range(3))
            except Exception as error:  # a way that this version of the peer does not have
                failed[name] = f"{type(error).__name__}: {error}"[:300]
                continue
            if all(seconds < other["seconds"] for other in tried.values()):
                self.call, kept = call, {"variant": name, "max_error": error}
            tried[name] = {"seconds": seconds, "max_error": error}
            variant = call = None
        gc.collect()
        return {**kept, "tried": tried, "failed": failed}

    def time(self, turn):
        return seconds_per_call(self.call, turn)

    def release(self):
        self.call = None
        gc.collect()

    def limit(self, kind, size):
        return self.peer.limit(kind, size)

    def cold_bytes(self):
        return self.peer.cold_bytes()


def largest_difference(actual, expected):
    if actual.shape != expected.shape:
        raise ValueError(f"its result has the shape {actual.shape}, not {expected.shape}")
    return float(abs(actual - expected).max())


def rotating(calls):
    if len(calls) == 1:
        return calls[0]
    following = itertools.cycle(calls)
    return lambda: next(following)()


def serve(name, threads, commands, answers):
    worker = None
    for line in commands:
        request = json.loads(line)
        try:
            worker = worker or Worker(name, threads)
            answer = {"answer": getattr(worker, request.pop("command"))(**request)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main():
    name, threads, *cores = sys.argv[1:]
    pin({int(core) for core in cores})
    # What libraries print must not be taken for answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    gc.disable()
    with contextlib.suppress(KeyboardInterrupt):
        serve(name, int(threads), sys.stdin, answers)


if __name__ == "__main__":
    main()
