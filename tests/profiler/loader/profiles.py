"""Profiles of loaders, written by hand."""

from dataclasses import replace
from typing import Any

from tests.profiler.profiles import make_spread
from tfpipe.profiler.types import BatchInfo, Drive, HostUse, LoaderProfile, ProcessUse, StepTiming

BATCH = BatchInfo(10, 10 * 150_528, "uint8", (10, 224, 224, 3))
OPTIONS = {"num_workers": 2, "prefetch_factor": 2, "persistent_workers": True, "in_order": True}


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
    """Returns the profile of a DataLoader with two busy workers on two cores: 10 images/s, and 20 needed.

    A step takes `step_s`, and `paced_s` is the time of ten. Other programs take `others_cores`.
    """
    uses = facts.get("workers", workers or (make_use(1), make_use(2)))
    main = facts.get("main", ProcessUse(3, 10.0, cpu_s=0.1, seconds={"handing over": 0.1, "idle": 9.9}))
    step_s, wall_s = facts.pop("step_s", 0.5), facts.pop("paced_s", 10.0)
    wait = make_spread(0.9)
    timing = StepTiming("loop" if step_s else "none", 10, 10, make_spread(step_s), wall_s, make_spread(1.0), wait)
    free = facts.get("free", Drive(10, 10.0))
    used_s = sum(use.cpu_s for use in (*uses, main))
    other = facts.pop("others_cores", 0.0) / 2
    profile = LoaderProfile(
        step=timing,
        host=HostUse(2, used_s / free.wall_s / 2, 10**9, 16 * 10**9, 0.0, other_cpu_fraction=other),
        images_per_second=100 / wall_s,
        first_batch_s=1.0,
        kind="PyTorch DataLoader",
        options=OPTIONS,
        batch=BATCH,
        free=free,
        workers=uses,
        main=main,
        restart_s=0.0,
        steps_per_epoch=100,
        cores=2.0,
    )
    return replace(profile, **facts)
