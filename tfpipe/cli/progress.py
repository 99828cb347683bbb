"""A live line on a terminal; now and then a plain line in a log."""

import sys
import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from tfpipe.cli.values import counted
from tfpipe.quantities import human_bytes

if TYPE_CHECKING:
    from beam_jobs.plan import Plan
    from beam_jobs.progress import Progress

_LOG_EVERY_S = 10.0
_RATE_OVER_S = 15.0


class ProgressDisplay:
    """Shows `Progress` on standard error: images, rate, bad ones and the time left."""

    def __init__(self) -> None:
        self._live: Any = None
        self._task: Any = None
        self._recent: deque[tuple[float, int, int]] = deque()
        self._last: Progress | None = None
        self._next_line = time.monotonic() + _LOG_EVERY_S

    def __enter__(self) -> "ProgressDisplay":
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
            self._task = self._live.add_task("Listing images", total=None, line="")
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def plan(self, plan: "Plan") -> None:
        """Says what is about to be done."""
        splits = ", ".join(dict.fromkeys(shard.split for shard in plan.shards))
        shards = f"{counted(len(plan.shards), 'shard')} ({splits})"
        line = f"{counted(plan.num_images, 'image')}, {human_bytes(plan.num_bytes)}, {shards}"
        if self._live is not None:
            self._live.console.print(line, highlight=False, markup=False)
            self._live.update(self._task, description="Sharding", total=plan.num_images)
        else:
            click.echo(line, err=True)

    def update(self, progress: "Progress") -> None:
        """Called from another thread about twice a second."""
        self._last = progress
        now = time.monotonic()
        self._recent.append((now, progress.images, progress.bytes))
        while now - self._recent[0][0] > _RATE_OVER_S:
            self._recent.popleft()
        if self._live is not None:
            self._live.update(self._task, completed=progress.images, line=self._line(progress))
        elif now >= self._next_line:
            self._next_line = now + _LOG_EVERY_S
            click.echo(self._line(progress), err=True)

    def interrupted(self) -> None:
        """Says what is kept and how to go on."""
        if self._live is not None:
            self._live.stop()
        done = f"{self._last.shards} of {self._last.num_shards} shards are finished. " if self._last else ""
        click.echo(f"Interrupted. {done}Run the same command again to go on.", err=True)

    def _line(self, progress: "Progress") -> str:
        since, images, num_bytes = self._recent[0]
        elapsed = max(self._recent[-1][0] - since, 1e-3)
        rate = (progress.images - images) / elapsed
        speed = (progress.bytes - num_bytes) / elapsed
        left = (progress.num_images - progress.images) / rate if rate > 0 else None
        return (
            f"{progress.images:,}/{progress.num_images:,} images  {rate:,.0f} images/s  {human_bytes(speed)}/s  "
            f"{progress.bad} bad  {_duration(left)} left"
        )


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
