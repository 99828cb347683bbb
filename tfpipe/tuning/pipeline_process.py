"""A pipeline in a process of its own that can be halted between two turns.

Pipelines are compared on a machine that others use too, so they must run in turns, seconds apart. One that merely is
not asked for batches goes on filling its buffers, in the other's turn, and hands them out for nothing in its own. A
halted process does neither (SIGSTOP): its buffers, threads and caches are in the next turn as they were in the last.
A process also has a memory of its own, so that one pipeline that takes too much does not end the others.

Nobody may be left behind. Ctrl-C reaches no contestant, since it is in a process group of its own; its parent ends it.
When the parent is killed, Linux ends the child (PR_SET_PDEATHSIG). Elsewhere a group whose parent is gone and that has
a halted process gets SIGHUP (POSIX, `_exit`), and a running one finds its pipe closed.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from tfpipe.errors import DataError, pipeline_error
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.profiler.measure import host_usage
from tfpipe.profiler.measure.simulated_accelerator import Accelerator, drive, is_settled
from tfpipe.profiler.types import Step
from tfpipe.system.child_process import die_with_direct_parent, hold_interrupts
from tfpipe.tuning.paired_benchmark import Turn

_POLL_S = 0.1
_GRACE_S = 60.0
"""How much longer than a turn's time a turn may take: a batch that has begun is waited for."""

Make = Callable[[], Any]
"""Builds a dataset that never ends. Pickled, so at the top of a module, or a `partial` of what is."""
Tick = Callable[[], None]
"""Called about ten times a second while one waits; what it raises ends the waiting, and the contestant."""


@dataclass(frozen=True)
class WarmUp:
    """What a pipeline does before its first turn."""

    max_s: float
    """After which its rate counts as settled, see `accelerator.is_settled`."""
    steps_to_fill: int = 0
    """First of all so many: a cache must be full before one knows what it gives."""


@dataclass(frozen=True)
class Start:
    """How a pipeline began."""

    first_batch_s: float
    """Building it included."""
    images_per_second: float
    """At the end of its warm-up."""


def pipeline_of(data: Any, split: str | None, config: PipelineConfig, customize: Any = None) -> Any:
    """The dataset of a manifest's split or of foreign files, with own stages or without; evaluation never ends."""
    from tfpipe.pipeline.build import build_stages
    from tfpipe.pipeline.stage import customize_stages

    dataset = customize_stages(build_stages(data, split, config), customize).dataset()
    return dataset if config.training else dataset.repeat()


class Contestant:
    """One pipeline, halted except in its turns. Use it in a `with` block, or the process stays until this one ends.

    The thread that makes it must live as long: Linux takes its end for the parent's.

    Args:
        make: Builds the dataset, in the other process.
        accelerator: What takes the batches; with a step time of next to nothing the rate is all that the pipeline has.
        warm_up: How long it runs before its first turn.
        tick: Called while this process waits for the other.

    Attributes:
        start: How the pipeline began.
        start_s: How long it took until it was warm, the start of its process included.

    Raises:
        DataError: The pipeline cannot be built or ended with an error, or the process was killed.
    """

    def __init__(self, make: Make, accelerator: Accelerator, warm_up: WarmUp, tick: Tick | None = None) -> None:
        began = time.monotonic()
        context = multiprocessing.get_context("spawn")  # TensorFlow's threads do not survive a fork
        self._pipe, theirs = context.Pipe()
        self._tick = tick
        self._process = context.Process(
            target=_serve, args=(theirs, os.getpid(), make, accelerator, warm_up), daemon=True
        )
        with hold_interrupts():
            self._process.start()
            # Before multiprocessing's own end, which would wait for ever for a halted process to obey SIGTERM.
            atexit.register(self._process.kill)
        theirs.close()
        with self._or_close():
            self.start: Start = self._receive(None)
            self._signal(signal.SIGSTOP)
        self.start_s = time.monotonic() - began

    @property
    def is_alive(self) -> bool:
        """Whether it can have another turn."""
        return self._process.is_alive()

    def turn(self, seconds: float) -> Turn:
        """Runs on for so long, and halts again. What goes wrong in a turn ends the contestant.

        Raises:
            DataError: The pipeline ended with an error, or the process was killed.
        """
        with self._or_close():
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

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    @contextlib.contextmanager
    def _or_close(self) -> Iterator[None]:
        """An answer that nobody waits for any more would be taken for the next one."""
        try:
            yield
        except (BrokenPipeError, ConnectionResetError):  # the process has ended
            error = self._died()
            self.close()
            raise error from None
        except BaseException:
            self.close()
            raise

    def _signal(self, number: int) -> None:
        if not self._process.is_alive() or self._process.pid is None:
            raise self._died()
        os.kill(self._process.pid, number)

    def _receive(self, seconds: float | None) -> Any:
        until = None if seconds is None else time.monotonic() + seconds
        while not self._pipe.poll(_POLL_S):
            if self._tick:
                self._tick()
            if until is not None and time.monotonic() > until:
                raise DataError(
                    f"A pipeline gave no batch for {_GRACE_S:.0f} s. Look at its storage with `tfpipe doctor`."
                )
        try:
            answer = self._pipe.recv()
        except EOFError:
            raise self._died() from None
        if isinstance(answer, str):
            raise DataError(answer)
        return answer

    def _died(self) -> DataError:
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


def _serve(pipe: Connection, parent: int, make: Make, accelerator: Accelerator, warm_up: WarmUp) -> None:
    """The other process: warms up, then one turn for each number of seconds that it is sent."""
    die_with_direct_parent(parent)
    os.setpgid(0, 0)  # what a terminal sends to a group, Ctrl-Z and `fg` too, is for the parent
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what TensorFlow's libraries log; errors go through the pipe
    try:
        run, start = _warm(make, accelerator, warm_up)
        pipe.send(start)
        while True:
            pipe.send(_turn(run, accelerator, pipe.recv()))
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:  # of the pipeline, whatever it is: it goes to who asked
        with contextlib.suppress(OSError):
            pipe.send(str(pipeline_error(error)))


def _warm(make: Make, accelerator: Accelerator, warm_up: WarmUp) -> tuple[Iterator[Step], Start]:
    started, first = time.perf_counter(), 0.0
    run = drive(iter(make()), accelerator)
    begins: list[float] = []
    for number, step in enumerate(run):
        first = first or step.begins_s
        if number < warm_up.steps_to_fill:
            continue
        begins.append(step.begins_s)
        if len(begins) > 1 and (begins[-1] - begins[0] >= warm_up.max_s or is_settled(begins)):
            late = begins[len(begins) // 2 - 1 :]
            return run, Start(first - started, (len(late) - 1) * accelerator.images_per_step / (late[-1] - late[0]))
    raise DataError("A pipeline that is compared must not end. Does the dataset hold a whole batch?")


def _turn(run: Iterator[Step], accelerator: Accelerator, seconds: float) -> Turn:
    """From the first step after the halt on: the time before belongs to the halt."""
    first = last = next(run)
    cpu_s, steps = time.process_time(), 0
    while last.begins_s - first.begins_s < seconds or steps == 0:
        last, steps = next(run), steps + 1
    return Turn(
        images=steps * accelerator.images_per_step,
        wall_s=last.begins_s - first.begins_s,
        cpu_s=time.process_time() - cpu_s,
        peak_memory_bytes=host_usage.peak_memory_bytes(),
    )
