"""A live line on a terminal; now and then a plain line in a log."""

import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tfpipe.cli.shared.params import counted
from tfpipe.system.units import human_bytes

if TYPE_CHECKING:
    from beam_jobs.plan.split_and_shard import Plan
    from beam_jobs.runners.base import SubmittedJob
    from beam_jobs.shards.progress import Progress
    from tfpipe.integrity.progress import Progress as ScanProgress

_Any = TypeVar("_Any", bound="_Display")
_LOG_EVERY_S = 10.0
_RATE_OVER_S = 15.0


class _Display:
    """What every display of progress does: on a terminal a bar with a line, in a log a line every ten seconds."""

    first = ""
    """What stands on a terminal before anything is known."""

    def __init__(self) -> None:
        self._live: Any = None
        self._task: Any = None
        self._recent: deque[tuple[float, int, int]] = deque()
        self._next_line = time.monotonic() + _LOG_EVERY_S

    def __enter__(self: _Any) -> _Any:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

            self._live = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=30),
                TextColumn("{task.fields[line]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._live.add_task(self.first, total=None, line="")
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def _show(self, count: int, num_bytes: int, done: int, line: Callable[[], str]) -> None:
        """Takes in how far the work is; `line` is called where it is shown."""
        now = time.monotonic()
        self._recent.append((now, count, num_bytes))
        while now - self._recent[0][0] > _RATE_OVER_S:
            self._recent.popleft()
        if self._live is not None:
            self._live.update(self._task, completed=done, line=line())
        elif now >= self._next_line:
            self._next_line = now + _LOG_EVERY_S
            click.echo(line(), err=True)

    def _rates(self) -> tuple[float, float]:
        """Of the count and the bytes, per second, lately."""
        (since, first_count, first_bytes), (now, count, num_bytes) = self._recent[0], self._recent[-1]
        elapsed = max(now - since, 1e-3)
        return (count - first_count) / elapsed, (num_bytes - first_bytes) / elapsed


class ProgressDisplay(_Display):
    """Shows `Progress` on standard error: images, rate, bad ones and the time left."""

    first = "Listing images"

    def __init__(self) -> None:
        super().__init__()
        self._last: Progress | None = None
        self._job: SubmittedJob | None = None

    def listed(self, images: int) -> None:
        """How many images were found so far; the planning has no other number to show."""
        self._show(images, 0, 0, lambda: f"{images:,} images listed  {self._rates()[0]:,.0f} images/s")

    def plan(self, plan: "Plan") -> None:
        """Says what is about to be done."""
        self._recent.clear()  # from here on other things are counted
        splits = ", ".join(dict.fromkeys(shard.split for shard in plan.shards))
        shards = f"{counted(len(plan.shards), 'shard')} ({splits})"
        line = f"{counted(plan.num_images, 'image')}, {human_bytes(plan.num_bytes)}, {shards}"
        self._say(line)
        if self._live is not None:
            self._live.update(self._task, description="Sharding", total=plan.num_images)

    def submitted(self, job: "SubmittedJob") -> None:
        """Says where a job that runs elsewhere can be watched."""
        self._job = job
        self._say(f"Dataflow job {job.id}: {job.page}")

    def update(self, progress: "Progress") -> None:
        """Called from another thread about twice a second."""
        self._last = progress
        self._show(progress.images, progress.bytes, progress.images, lambda: self._line(progress))

    def interrupted(self) -> None:
        """Says what is kept and how to go on."""
        if self._live is not None:
            self._live.stop()
        if self._job is not None:
            click.echo(
                f"Interrupted. The job goes on without this command; end it with: {self._job.cancel_command}\n"
                "When it has ended, run the same command again: finished shards are kept.",
                err=True,
            )
            return
        done = f"{self._last.shards} of {self._last.num_shards} shards are finished. " if self._last else ""
        click.echo(f"Interrupted. {done}Run the same command again to go on.", err=True)

    def _say(self, line: str) -> None:
        if self._live is not None:
            self._live.console.print(line, highlight=False, markup=False, soft_wrap=True)
        else:
            click.echo(line, err=True)

    def _line(self, progress: "Progress") -> str:
        rate, speed = self._rates()
        left = (progress.num_images - progress.images) / rate if rate > 0 else None
        return (
            f"{progress.images:,}/{progress.num_images:,} images  {rate:,.0f} images/s  {human_bytes(speed)}/s  "
            f"{progress.bad} bad  {duration(left)} left"
        )


class ScanDisplay(_Display):
    """Shows how far files are read: bytes, records, rates, damages and the time left.

    Args:
        what: Such as "Verifying".
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self.first = what

    def update(self, progress: "ScanProgress") -> None:
        """Called from another thread about twice a second."""
        if self._live is not None:
            self._live.update(self._task, total=progress.num_bytes)
        self._show(progress.records, progress.bytes, progress.bytes, lambda: self._line(progress))

    def _line(self, progress: "ScanProgress") -> str:
        rate, speed = self._rates()
        left = max(progress.num_bytes - progress.bytes, 0) / speed if speed > 0 else None
        return (
            f"{human_bytes(progress.bytes)} of {human_bytes(progress.num_bytes)}  {human_bytes(speed)}/s  "
            f"{rate:,.0f} records/s  {progress.damaged:,} damaged  {duration(left)} left"
        )


def duration(seconds: float | None) -> str:
    """As in `1:02:03` or `4:05`; None: not known."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
