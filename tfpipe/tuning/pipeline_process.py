"""A pipeline in a separate process that can be halted between two turns.

Pipelines are compared on a machine that others use too, so they must run in turns, seconds apart. A pipeline that
merely waits for its consumer goes on filling its buffers in the other's turn, and then delivers these batches at no
cost. A halted process (SIGSTOP) does neither: its buffers, threads and caches are in the next turn as they were in the
last. Each process also has separate memory, so a pipeline that takes too much does not end the others.

No process may be left behind. Ctrl-C does not reach these processes, which are in separate process groups; their
parent ends them. When the parent is killed, Linux ends the child (PR_SET_PDEATHSIG). Elsewhere a group whose parent is
gone and that has a halted process gets SIGHUP (POSIX, `_exit`), and a running process finds its pipe closed.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import DataError, explain_pipeline_error
from tfpipe.profiler.measure.simulated_accelerator import Accelerator, drive, is_settled
from tfpipe.profiler.types import Step
from tfpipe.system import host_limits
from tfpipe.system.child_process import die_with_direct_parent, hold_interrupts, silence_stderr
from tfpipe.tuning.paired_benchmark import Turn

MAX_WARM_UP_S = 5.0
"""The seconds after which a pipeline counts as warm, where nobody knows better."""

_POLL_S = 0.1

# How much longer than its time a turn may take: a batch that has begun is waited for.
_GRACE_S = 60.0

MakeDataset = Callable[[], Any]
"""Builds a dataset that never ends. It is pickled, so it must be a module's function, or a `partial` of one."""


class TimeIsUpError(Exception):
    """The deadline of a wait has passed."""


@dataclass(frozen=True)
class Start:
    """The start of a pipeline.

    Attributes:
        first_batch_s: The seconds until the first batch, the building of the pipeline included.
        images_per_second: The rate at the end of the warm-up.
    """

    first_batch_s: float
    images_per_second: float


def build_endless_dataset(data: Any, split: str | None, config: PipelineConfig, customize: Any = None) -> Any:
    """Builds the dataset of a manifest's split or of foreign files; an evaluation is repeated without end.

    Args:
        data: The manifest, or the source of the files.
        split: The name of the split; None for foreign files.
        config: The options.
        customize: A function that changes the stages first; None leaves them as they are.
    """
    from tfpipe.pipeline.build import build_stages

    dataset = build_stages(data, split, config, customize=customize).dataset()
    return dataset if config.training else dataset.repeat()


class PipelineProcess:
    """A process that runs one pipeline, halted except in its turns.

    Use it in a `with` block, or the process stays until this one ends. The thread that creates it must live as long:
    Linux takes the thread's end for the parent's.

    Args:
        make_dataset: The function that builds the dataset, in the other process.
        accelerator: The accelerator that takes the batches. With a step time near 0 the pipeline runs at its full rate.
        steps_to_fill: The steps before the warm-up, which fill a cache: until then the rate is unknown.
        max_warm_up_s: The seconds after which the rate counts as settled, see `simulated_accelerator.is_settled`.
        deadline: A time of `time.monotonic`. A wait for the process ends then with `TimeIsUpError`.

    Attributes:
        start: The first batch and the rate of the pipeline.
        start_s: The seconds until it was warm, the start of its process included.
        deadline: The argument; it may be moved between turns.

    Raises:
        DataError: The pipeline cannot be built or ended with an error, or the process was killed.
        TimeIsUpError: The deadline has passed.
    """

    def __init__(
        self,
        make_dataset: MakeDataset,
        accelerator: Accelerator,
        steps_to_fill: int = 0,
        deadline: float = math.inf,
        max_warm_up_s: float = MAX_WARM_UP_S,
    ) -> None:
        began = time.monotonic()
        context = multiprocessing.get_context("spawn")  # TensorFlow's threads do not survive a fork
        self._pipe, child_pipe = context.Pipe()
        self.deadline = deadline
        self._process = context.Process(
            target=_serve,
            args=(child_pipe, os.getpid(), make_dataset, accelerator, (steps_to_fill, max_warm_up_s)),
            daemon=True,
        )
        with hold_interrupts(), silence_stderr():  # TensorFlow's libraries log there; errors come through the pipe
            self._process.start()
            # Before multiprocessing's own end, which would wait forever for a halted process to obey SIGTERM.
            atexit.register(self._process.kill)
        child_pipe.close()
        with self._close_on_error():
            self.start: Start = self._receive(None)
            self._signal(signal.SIGSTOP)
        self.start_s = time.monotonic() - began

    @property
    def is_alive(self) -> bool:
        """Whether the pipeline can have another turn."""
        return self._process.is_alive()

    def turn(self, seconds: float) -> Turn:
        """Runs on for this time, and halts again. An error in a turn ends the process.

        Raises:
            DataError: The pipeline ended with an error, or the process was killed.
            TimeIsUpError: The deadline has passed.
        """
        with self._close_on_error():
            self._signal(signal.SIGCONT)
            self._pipe.send(seconds)
            turn: Turn = self._receive(seconds + _GRACE_S)
            self._signal(signal.SIGSTOP)
        return turn

    def close(self) -> None:
        """Ends the process at once, halted or not."""
        self._process.kill()
        self._process.join()
        self._pipe.close()
        atexit.unregister(self._process.kill)

    def __enter__(self) -> PipelineProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    @contextlib.contextmanager
    def _close_on_error(self) -> Iterator[None]:
        """Closes the process after any error, since a late answer would be taken for the next one."""
        try:
            yield
        except (BrokenPipeError, ConnectionResetError):  # the process has ended
            error = self._explain_end()
            self.close()
            raise error from None
        except BaseException:
            self.close()
            raise

    def _signal(self, number: int) -> None:
        if not self._process.is_alive() or self._process.pid is None:
            raise self._explain_end()
        os.kill(self._process.pid, number)

    def _receive(self, max_s: float | None) -> Any:
        give_up_at = math.inf if max_s is None else time.monotonic() + max_s
        while not self._pipe.poll(_POLL_S):
            now = time.monotonic()
            if now > self.deadline:
                raise TimeIsUpError
            if now > give_up_at:
                raise DataError(f"A pipeline gave no batch for {_GRACE_S:.0f} s. Look whether its storage answers.")
        try:
            answer = self._pipe.recv()
        except EOFError:
            raise self._explain_end() from None
        if isinstance(answer, str):
            raise DataError(answer)
        return answer

    def _explain_end(self) -> DataError:
        self._process.join(1.0)
        code = self._process.exitcode or 0
        if code < 0:
            return DataError(
                f"A process that ran a pipeline was ended by {signal.Signals(-code).name}; most often memory ran out. "
                "Try a smaller cache or shuffle buffer."
            )
        return DataError(
            f"A process that was to run a pipeline ended with exit code {code} and did not say why. A script that "
            "starts one must do so below `if __name__ == '__main__':`."
        )


def _serve(
    pipe: Connection, parent_pid: int, make_dataset: MakeDataset, accelerator: Accelerator, warm_up: tuple[int, float]
) -> None:
    """Runs in the other process: warms up, then makes one turn for each number of seconds that it is sent."""
    die_with_direct_parent(parent_pid)
    os.setpgid(0, 0)  # a terminal's signals to a group, Ctrl-Z and `fg` too, are for the parent
    try:
        steps, start = _warm_up(make_dataset, accelerator, *warm_up)
        pipe.send(start)
        while True:
            pipe.send(_take_turn(steps, accelerator, pipe.recv()))
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:  # whatever the pipeline raised goes to the parent
        with contextlib.suppress(OSError):
            pipe.send(str(explain_pipeline_error(error)))


def _warm_up(
    make_dataset: MakeDataset, accelerator: Accelerator, steps_to_fill: int, max_s: float
) -> tuple[Iterator[Step], Start]:
    started, first_batch_at = time.perf_counter(), 0.0
    steps = drive(iter(make_dataset()), accelerator)
    begins: list[float] = []
    for number, step in enumerate(steps):
        first_batch_at = first_batch_at or step.begins_s
        if number < steps_to_fill:
            continue
        begins.append(step.begins_s)
        if len(begins) > 1 and (begins[-1] - begins[0] >= max_s or is_settled(begins)):
            late = begins[len(begins) // 2 - 1 :]
            rate = (len(late) - 1) * accelerator.images_per_step / (late[-1] - late[0])
            return steps, Start(first_batch_at - started, rate)
    raise DataError("A pipeline that is compared must not end. Does the dataset hold a whole batch?")


def _take_turn(steps: Iterator[Step], accelerator: Accelerator, seconds: float) -> Turn:
    """Measures from the first step after the halt on, since the time before it belongs to the halt."""
    first = last = next(steps)
    cpu_s, count = time.process_time(), 0
    while last.begins_s - first.begins_s < seconds or count == 0:
        last, count = next(steps), count + 1
    return Turn(
        images=count * accelerator.images_per_step,
        wall_s=last.begins_s - first.begins_s,
        cpu_s=time.process_time() - cpu_s,
        peak_memory_bytes=host_limits.peak_memory_bytes(),
    )
