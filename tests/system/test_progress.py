"""Observers, and the thread that tells them how far a job is."""

import pytest

from tests.beam_jobs.commands import wait_for
from tests.observers import Recorder
from tfpipe.system.progress import Observer, Progress, poll_progress


def test_progress_is_told_while_the_block_runs_and_at_its_end() -> None:
    observer, counts = Recorder(), iter(range(1000))
    with poll_progress(lambda: Progress(next(counts), 1000), observer, every_s=0.001):
        wait_for(lambda: len(observer.progresses) >= 3)
    number = len(observer.progresses)
    assert [progress.done for progress in observer.progresses] == list(range(number))
    assert next(counts) == number  # the thread has ended


def test_the_last_progress_is_told_when_the_block_fails_unless_it_is_unknown() -> None:
    for progress, told in ((Progress(7), [Progress(7)]), (None, [])):
        observer = Recorder()
        with pytest.raises(KeyError), poll_progress(lambda progress=progress: progress, observer):
            raise KeyError
        assert observer.progresses == told


def test_nothing_is_read_for_an_observer_that_ignores_progress() -> None:
    def read() -> Progress:
        raise AssertionError("nobody listens")

    class Notes(Observer):
        def note(self, text: str) -> None:
            raise AssertionError(text)

    for observer in (Observer(), Notes()):
        with poll_progress(read, observer, every_s=0.001):
            pass
