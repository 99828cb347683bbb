"""Profiles of loaders, written by hand."""

from dataclasses import replace
from typing import Any

from tfpipe.profiler.loader.types import BatchFacts, Drive, LoaderProfile, ProcessUse

BATCH = BatchFacts(10, 10 * 150_528, "uint8", (10, 224, 224, 3))
OPTIONS = {"num_workers": 2, "prefetch_factor": 2, "persistent_workers": True, "pin_memory": False, "in_order": True}


def make_use(pid: int = 1, **facts: Any) -> ProcessUse:
    """Returns a worker that computes for all of 10 s, in a function of the user, and makes 50 images."""
    use = ProcessUse(
        pid,
        10.0,
        cpu_s=10.0,
        seconds={"functions": 8.0, "decoding": 2.0},
        functions=(("train.py:7 blur", "functions", 8.0), ("train.py:5 load", "decoding", 2.0)),
        record_s=(0.2,) * 50,
    )
    return replace(use, **facts)


def make_profile(*workers: ProcessUse, **facts: Any) -> LoaderProfile:
    """Returns the profile of a DataLoader with two busy workers on two cores: 10 images/s, and 20 needed."""
    drive = Drive(10, 10.0, 9.0)
    profile = LoaderProfile(
        "PyTorch DataLoader",
        OPTIONS,
        BATCH,
        0.5,
        "sleeps",
        1.0,
        drive,
        drive,
        workers or (make_use(1), make_use(2)),
        ProcessUse(3, 10.0, cpu_s=0.1, seconds={"handing over": 0.1, "idle": 9.9}),
        steps_per_epoch=100,
        cores=2.0,
        num_cores=2,
        copy_s=0.001,
        records=1000,
        free_memory_bytes=10**10,
    )
    return replace(profile, **facts)
