"""Records and profiles of hosts with figures that are easy to follow by hand."""

from __future__ import annotations

from collections.abc import Sequence

from tfpipe.profiler.hosts.types import HostCall, HostFix, HostProfile, HostRecord, HostUsage

USAGE = HostUsage(cores=8, cpu_fraction=0.5, other_cpu_fraction=0.0)


def make_records(*waits_s: Sequence[float], compute_s: float | None = None, step_s: float = 0.1) -> list[HostRecord]:
    """Returns the records of hosts that train together on 10 images each: a step waits for the last of them.

    Args:
        waits_s: The wait of each step, in seconds, for each host.
        compute_s: The compute time that the probes of all hosts found; None on CPUs.
        step_s: The compute time of a step.
    """
    walls = [step_s + max(waits) for waits in zip(*waits_s, strict=True)]
    return [
        HostRecord(
            index,
            len(waits_s),
            f"worker-{index}",
            tuple(HostCall(11 + k, 1, 10, walls[k], wait) for k, wait in enumerate(waits)),
            compute_s,
            USAGE,
        )
        for index, waits in enumerate(waits_s)
    ]


def make_host_profile(index: int, images_per_second: float, required: float = 400.0) -> HostProfile:
    """Returns the profile of one of 3 hosts, each of which gives 10 images to a step."""
    idle = 1 - images_per_second / required
    return HostProfile(
        index=index,
        num_hosts=3,
        images_per_step=10,
        images_per_second=images_per_second,
        idle_fraction=idle,
        input_wait_fraction=idle,
        stage="accelerator" if not idle else "read",
        reason="It waits." if idle else "It is never idle.",
        fix=HostFix('cache = "bytes"', "Nothing is read.", 390.0) if idle else None,
        usage=USAGE,
    )
