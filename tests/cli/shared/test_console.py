"""Text that is safe to print, and the display of a job's progress."""

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from beam_jobs.plan.image_table import ImageTable
from beam_jobs.plan.listing import Listing
from beam_jobs.plan.plan import Plan
from beam_jobs.runners.base import SubmittedJob
from beam_jobs.shards.work_dir import PlannedShard
from tests.beam_jobs.commands import run_python
from tests.conftest import ROOT, Tfpipe
from tfpipe.cli.shared import progress
from tfpipe.cli.shared.console import clean_line, clean_text
from tfpipe.cli.shared.progress import ScanDisplay, ShardDisplay
from tfpipe.system.progress import Progress


def test_file_names_cannot_control_the_terminal() -> None:
    assert clean_line("a\x1b[31mb\nc\tü") == "a\ufffd[31mb\ufffdc\ufffdü"
    assert clean_text("a\x9b31m\n- b\r\u202e") == "a\ufffd31m\n- b\ufffd\ufffd"


def test_errors_cannot_control_the_terminal(tfpipe: Tfpipe, tmp_path: Path) -> None:
    odd = f"{tmp_path}/a\x1b]0;owned\x07"
    shown = f"{tmp_path}/a\ufffd]0;owned\ufffd"
    done = tfpipe("shard", odd, f"{tmp_path}/out")
    assert done.code == 1
    assert done.err.endswith(f" archive; {shown} does not exist.\n")
    done = tfpipe("inspect", "--\x1b[31m")
    assert done.code == 2
    assert "\x1b" not in done.err


CODE = """
import time
from tfpipe.cli.shared.console import Display
with Display("Starting") as status:
    status.note("Kept.")
    status.phase("Best so far 1,116 images/s; trying cycle_length = 16, num_parallel_calls = auto")
    time.sleep(0.3)
"""


def test_a_long_text_leaves_the_clock_alone() -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": "60", "TERM": "xterm"}
    process = subprocess.Popen([sys.executable, "-c", CODE], cwd=ROOT, env=env, stderr=theirs)
    os.close(theirs)
    written = b""
    with contextlib.suppress(OSError):  # as Linux says that nobody writes any more
        while part := os.read(ours, 4096):
            written += part
    os.close(ours)
    assert process.wait(20) == 0
    text = written.decode()
    assert "0:00:0" in text
    assert "Best so far 1,116 images/s; trying" in text
    assert "num_parallel_calls = auto" not in text
    assert "\r\x1b[2KKept.\r\n" in text  # above the line
    done = run_python("-c", CODE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "Kept.\n")  # in a log


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def _at(images: int) -> Progress:
    return Progress(images, 1000, bytes=images * 10_000, bad=2, shards=images // 250, num_shards=4)


def test_a_log_gets_a_line_now_and_then(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with ShardDisplay() as display:
        for seconds, images in ((1, 0), (6, 250), (11, 500), (16, 700), (22, 1000)):
            clock[0] = 100 + seconds
            display.progress(_at(images))
    assert capsys.readouterr().err.splitlines() == [
        "500/1,000 images  0:10 left  50 images/s  500.0 KB/s  2 bad",
        "1,000/1,000 images  0:00 left  45 images/s  454.5 KB/s  2 bad",  # what is known of the last 15 s
    ]


def test_a_scan_gets_lines_too(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with ScanDisplay("Verifying") as display:
        for seconds, done in ((1, 0), (6, 250), (11, 500)):
            clock[0] = 100 + seconds
            display.progress(Progress(done * 1000, 1_000_000, "bytes", bytes=done * 1000, records=done, bad=2))
    assert capsys.readouterr().err == "500.0 KB of 1.0 MB  0:10 left  50.0 KB/s  50 records/s  2 damaged\n"


def test_listing_has_a_rate_and_its_count_is_forgotten(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    named = (("train", 0, 2, 2), ("train", 1, 2, 1), ("test", 0, 1, 1))
    shards = tuple(PlannedShard(*shard, begin=0, end=0) for shard in named)
    images = ImageTable.make_empty()
    plan = Plan(Listing("x", "/x"), images, np.zeros(0, np.int64), shards, (70, 30, 5), {}, "")
    with ShardDisplay() as display:
        for seconds, images in ((1, 1000), (11, 501_000)):
            clock[0] = 100 + seconds
            display.progress(Progress(images))
        display.plan(plan)
        display.note("All images lie in [a].")
        for seconds, images in ((12, 0), (22, 500)):
            clock[0] = 100 + seconds
            display.progress(_at(images))
    assert capsys.readouterr().err.splitlines() == [
        "501,000 images listed  50,000 images/s",
        "4 images, 105 B, 3 shards (train, test)",
        "All images lie in [a].",
        "500/1,000 images  0:10 left  50 images/s  500.0 KB/s  2 bad",
    ]


def test_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    display = ShardDisplay()
    display.progress(_at(600))
    display.__exit__(KeyboardInterrupt)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "Interrupted. 2 of 4 shards are finished. Run the same command again to go on."


def test_interrupted_while_a_service_works(capsys: pytest.CaptureFixture[str]) -> None:
    display = ShardDisplay()
    display.submitted(SubmittedJob("2026-1", "p", "europe-west4"))
    display.__exit__(KeyboardInterrupt)
    assert capsys.readouterr().err.splitlines() == [
        "Dataflow job 2026-1: https://console.cloud.google.com/dataflow/jobs/europe-west4/2026-1?project=p",
        "Interrupted. The job goes on without this command; end it with: "
        "gcloud dataflow jobs cancel 2026-1 --project=p --region=europe-west4",
        "When it has ended, run the same command again: finished shards are kept.",
    ]


def test_durations() -> None:
    texts = {None: "-:--", 0.4: "0:00", 65: "1:05", 3599.6: "1:00:00", 7325: "2:02:05"}
    assert {seconds: progress.format_duration(seconds) for seconds in texts} == texts
