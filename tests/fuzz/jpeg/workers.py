"""Processes that compare files in turn, and what they found."""

import multiprocessing
import os
import queue
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from tests.fuzz.jpeg import native

_POLL_S = 0.2

Found = tuple[int, str, str, bytes]
"""The number of a file, what is wrong, more about it, and the file."""


class Run:
    """Processes that compare files in turn, and what they found."""

    def __init__(
        self, library: Path, cases: int, seed: int, processes: int, keep_going: bool, files: tuple[Path, ...]
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._results: Any = context.Queue()
        self._stop = context.Event()
        self._current = [context.Value("q", -1) for _ in range(processes)]
        self._keep_going = keep_going
        self._workers = [
            context.Process(
                target=_compare,
                args=(
                    k,
                    str(library),
                    -(-cases // processes),
                    seed + k,
                    processes,
                    keep_going,
                    files,
                    self._current[k],
                    self._stop,
                    self._results,
                ),
            )
            for k in range(processes)
        ]

    def wait(self) -> tuple[Counter[str], list[Found]]:
        for worker in self._workers:
            worker.start()
        counts: Counter[str] = Counter()
        found: list[Found] = []
        open_workers = set(range(len(self._workers)))
        while open_workers:
            try:
                k, counted, mismatches = self._results.get(timeout=_POLL_S)
                counts += counted
                found += mismatches
                open_workers.discard(k)
                continue
            except queue.Empty:
                pass
            for k in list(open_workers):
                if not self._workers[k].is_alive() and self._results.empty():
                    number, code = self._current[k].value, self._workers[k].exitcode
                    found.append((number, f"the process ended with {code}", "", b""))
                    open_workers.discard(k)
                    self._stop.set()
        for worker in self._workers:
            worker.join()
        return counts, found


def _compare(
    k: int,
    library: str,
    cases: int,
    first: int,
    step: int,
    keep_going: bool,
    files: tuple[Path, ...],
    current: Any,
    stop: Any,
    results: Any,
) -> None:
    """Compares every `step`-th file from number `first` on, in a process of its own."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libjpeg writes a line for each damaged file
    import tensorflow as tf

    from tests.fuzz.jpeg.compare import Mismatch, compare_file

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    functions = native.Native(Path(library))
    counts: Counter[str] = Counter()
    found: list[Found] = []
    number = first
    while counts["crops"] < cases and not stop.is_set():
        current.value = number
        try:
            compare_file(functions, number, files, counts)
        except Mismatch as error:
            details = f"{error.details}; {error.crop}; {error.file.family}: {error.file.description}"
            found.append((number, f"{error.what} ({error.file.family})", details[:3000], error.data))
        except Exception:
            found.append((number, "the comparison failed", traceback.format_exc(), b""))
        if found and not keep_going:
            stop.set()
        number += step
    results.put((k, counts, found))
