"""The displays of long jobs: a line with rates and the time left on a terminal, and now and then in a log."""

import time
import unicodedata
from collections import defaultdict, deque
from typing import TYPE_CHECKING

from beam_jobs.runners.base import ShardObserver
from tfpipe.cli.shared.console import Display, echo
from tfpipe.system.progress import Progress
from tfpipe.system.units import human_bytes, human_count

if TYPE_CHECKING:
    from beam_jobs.plan.plan import Plan
    from beam_jobs.runners.base import SubmittedJob

_LOG_EVERY_S = 10.0
_RATE_OVER_S = 15.0


class _JobDisplay(Display):
    def __init__(self, title: str) -> None:
        super().__init__(title)
        self._recent: deque[tuple[float, Progress]] = deque()
        self._next_line = time.monotonic() + _LOG_EVERY_S

    def progress(self, progress: Progress) -> None:
        """Shows how far the job is."""
        now = time.monotonic()
        self._recent.append((now, progress))
        while now - self._recent[0][0] > _RATE_OVER_S:
            self._recent.popleft()
        line = self._format(progress)
        self.show(line, progress.done, progress.total)
        if self._live is None and now >= self._next_line:
            self._next_line = now + _LOG_EVERY_S
            echo(line, err=True)

    def _rate(self, what: str) -> float:
        """Returns the recent rate per second of a field of `Progress`, such as "bytes"."""
        (since, first), (now, last) = self._recent[0], self._recent[-1]
        return float(getattr(last, what) - getattr(first, what)) / max(now - since, 1e-3)

    def _left(self, progress: Progress) -> str:
        left, rate = max((progress.total or 0) - progress.done, 0), self._rate("done")
        return f"{format_duration(left / rate if rate > 0 else None)} left"

    def _format(self, progress: Progress) -> str:
        raise NotImplementedError


class ShardDisplay(_JobDisplay, ShardObserver):
    """A display of a shard job on standard error: images, rates, bad images and the time left."""

    def __init__(self) -> None:
        super().__init__("Listing images")
        self._job: SubmittedJob | None = None

    def plan(self, plan: "Plan") -> None:
        """Says what is about to be written."""
        self._recent.clear()  # until here it counted the images that were listed
        splits = ", ".join(dict.fromkeys(shard.split for shard in plan.shards))
        shards = f"{human_count(len(plan.shards), 'shard')} ({splits})"
        self.note(f"{human_count(plan.num_images, 'image')}, {human_bytes(plan.num_bytes)}, {shards}")
        alike = defaultdict[str, list[str]](list)
        for name in plan.listing.label_names:
            alike[unicodedata.normalize("NFC", "".join(name.split()).casefold())].append(name)
        if twins := [names for names in alike.values() if len(names) > 1]:
            more = f" There are {len(twins) - 1:,} more such." if len(twins) > 1 else ""
            looks_same = len({unicodedata.normalize("NFC", name) for name in twins[0]}) == 1
            listed = " and ".join(map(ascii if looks_same else repr, twins[0]))
            self.note(f"Classes {listed} differ only in case, white space or Unicode form.{more}")

    def submitted(self, job: "SubmittedJob") -> None:
        """Says where a browser shows the job."""
        self._job = job
        self.note(f"Dataflow job {job.id}: {job.page}")

    def __exit__(self, kind: object = None, *_: object) -> None:
        """Says after an interruption what is kept, and how to go on."""
        super().__exit__()
        if kind is not KeyboardInterrupt:
            return
        if self._job is not None:
            self.note(
                f"Interrupted. The job goes on without this command; end it with: {self._job.cancel_command}\n"
                "When it has ended, run the same command again: finished shards are kept."
            )
            return
        last = self._recent[-1][1] if self._recent else None
        done = f"{last.shards} of {last.num_shards} shards are finished. " if last and last.num_shards else ""
        self.note(f"Interrupted. {done}Run the same command again to go on.")

    def _format(self, progress: Progress) -> str:
        rate = f"{self._rate('done'):,.0f} images/s"
        if progress.total is None:
            return f"{progress.done:,} images listed  {rate}"
        done, bytes_rate = f"{progress.done:,}/{progress.total:,} images", human_bytes(self._rate("bytes"))
        return f"{done}  {self._left(progress)}  {rate}  {bytes_rate}/s  {progress.bad} bad"


class ScanDisplay(_JobDisplay):
    """A display of a job that reads files, on standard error: bytes, records, rates, damages and the time left."""

    def __init__(self, title: str, *, counts_damage: bool = True) -> None:
        super().__init__(title)
        self._counts_damage = counts_damage

    def _format(self, progress: Progress) -> str:
        done = f"{human_bytes(progress.bytes)} of {human_bytes(progress.total or 0)}"
        rates = f"{human_bytes(self._rate('bytes'))}/s  {self._rate('records'):,.0f} records/s"
        return f"{done}  {self._left(progress)}  {rates}" + f"  {progress.bad:,} damaged" * self._counts_damage


def format_duration(seconds: float | None) -> str:
    """Formats a duration as in `1:02:03` or `4:05`; None is an unknown one, formatted as `-:--`."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
