"""The displays of long jobs: a bar on a terminal, a line now and then in a log."""

import sys
import time
import unicodedata
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from beam_jobs.runners.base import ShardObserver
from tfpipe.cli.shared.console import clean_text, echo
from tfpipe.system.progress import Observer, Progress
from tfpipe.system.units import human_bytes, human_count

if TYPE_CHECKING:
    from beam_jobs.plan.plan import Plan
    from beam_jobs.runners.base import SubmittedJob

_Self = TypeVar("_Self", bound="_Display")
_LOG_EVERY_S = 10.0
_RATE_OVER_S = 15.0


def find_twins(names: Sequence[str]) -> list[list[str]]:
    """Returns the names that differ only in case, white space or Unicode form, one list for those that are alike."""
    alike = defaultdict[str, list[str]](list)
    for name in names:
        alike[unicodedata.normalize("NFC", "".join(name.split()).casefold())].append(name)
    return [twins for twins in alike.values() if len(twins) > 1]


class _Display(Observer):
    """The common part of the displays: a bar with a line on a terminal, a line every ten seconds in a log."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._live: Any = None
        self._task: Any = None
        self._recent: deque[tuple[float, int, int]] = deque()
        self._next_line = time.monotonic() + _LOG_EVERY_S

    def __enter__(self: _Self) -> _Self:
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
            self._task = self._live.add_task(self._title, total=None, line="")
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def _show(self, count: int, num_bytes: int, done: int, format_line: Callable[[], str]) -> None:
        """Shows the progress of the job. `format_line` is called only if the line is shown now."""
        now = time.monotonic()
        self._recent.append((now, count, num_bytes))
        while now - self._recent[0][0] > _RATE_OVER_S:
            self._recent.popleft()
        if self._live is not None:
            self._live.update(self._task, completed=done, line=format_line())
        elif now >= self._next_line:
            self._next_line = now + _LOG_EVERY_S
            echo(format_line(), err=True)

    def _rates(self) -> tuple[float, float]:
        """Returns the count and the bytes per second over the last seconds."""
        (since, first_count, first_bytes), (now, count, num_bytes) = self._recent[0], self._recent[-1]
        elapsed = max(now - since, 1e-3)
        return (count - first_count) / elapsed, (num_bytes - first_bytes) / elapsed


class ShardDisplay(_Display, ShardObserver):
    """A display of a shard job on standard error: images, rates, bad images and the time left."""

    def __init__(self) -> None:
        super().__init__("Listing images")
        self._last: Progress | None = None
        self._job: SubmittedJob | None = None

    def plan(self, plan: "Plan") -> None:
        """Says what is about to be written."""
        self._recent.clear()  # until here it counted the images that were listed
        splits = ", ".join(dict.fromkeys(shard.split for shard in plan.shards))
        shards = f"{human_count(len(plan.shards), 'shard')} ({splits})"
        self.note(f"{human_count(plan.num_images, 'image')}, {human_bytes(plan.num_bytes)}, {shards}")
        if twins := find_twins(plan.listing.label_names):
            more = f" There are {len(twins) - 1:,} more such." if len(twins) > 1 else ""
            looks_same = len({unicodedata.normalize("NFC", name) for name in twins[0]}) == 1
            names = " and ".join(map(ascii if looks_same else repr, twins[0]))
            self.note(f"Classes {names} differ only in case, white space or Unicode form.{more}")
        if self._live is not None:
            self._live.update(self._task, description="Sharding", total=plan.num_images)

    def submitted(self, job: "SubmittedJob") -> None:
        """Says where a browser shows the job."""
        self._job = job
        self.note(f"Dataflow job {job.id}: {job.page}")

    def progress(self, progress: Progress) -> None:
        """Shows how far the job is."""
        if progress.total is None:
            line = f"{progress.done:,} images listed"
            self._show(progress.done, 0, 0, lambda: f"{line}  {self._rates()[0]:,.0f} images/s")
            return
        self._last = progress
        self._show(progress.done, progress.bytes, progress.done, lambda: self._format(progress, progress.total or 0))

    def interrupted(self) -> None:
        """Says what is kept after an interruption, and how to go on."""
        if self._live is not None:
            self._live.stop()
        if self._job is not None:
            echo(
                f"Interrupted. The job goes on without this command; end it with: {self._job.cancel_command}\n"
                "When it has ended, run the same command again: finished shards are kept.",
                err=True,
            )
            return
        done = f"{self._last.shards} of {self._last.num_shards} shards are finished. " if self._last else ""
        echo(f"Interrupted. {done}Run the same command again to go on.", err=True)

    def note(self, text: str) -> None:
        """Prints a sentence."""
        if self._live is not None:
            self._live.console.print(clean_text(text), highlight=False, markup=False, soft_wrap=True)
        else:
            echo(text, err=True)

    def _format(self, progress: Progress, total: int) -> str:
        rate, bytes_per_s = self._rates()
        left_s = (total - progress.done) / rate if rate > 0 else None
        return (
            f"{progress.done:,}/{total:,} images  {rate:,.0f} images/s  {human_bytes(bytes_per_s)}/s  "
            f"{progress.bad} bad  {format_duration(left_s)} left"
        )


class ScanDisplay(_Display):
    """A display of a reading of files on standard error: bytes, records, rates, damages and the time left."""

    def __init__(self, title: str, *, counts_damage: bool = True) -> None:
        super().__init__(title)
        self._counts_damage = counts_damage

    def progress(self, progress: Progress) -> None:
        """Shows how far the reading is."""
        if self._live is not None:
            self._live.update(self._task, total=progress.total)
        self._show(progress.records, progress.bytes, progress.bytes, lambda: self._format(progress))

    def _format(self, progress: Progress) -> str:
        rate, bytes_per_s = self._rates()
        total = progress.total or 0
        left_s = max(total - progress.bytes, 0) / bytes_per_s if bytes_per_s > 0 else None
        damaged = f"{progress.bad:,} damaged  " if self._counts_damage else ""
        return (
            f"{human_bytes(progress.bytes)} of {human_bytes(total)}  {human_bytes(bytes_per_s)}/s  "
            f"{rate:,.0f} records/s  {damaged}{format_duration(left_s)} left"
        )


def format_duration(seconds: float | None) -> str:
    """Formats a duration as in `1:02:03` or `4:05`; None is an unknown one."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
