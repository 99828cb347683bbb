"""The records of the hosts of one training, and the comparison of them, as plain frozen values. Pure.

    HostRecord ...    what each host's `IdleMonitor` wrote while it trained     -> lateness, step by step
    HostProfile ...   what `tfpipe profile --host I/N --json` said on each      -> the slow stage and its fix
    HostsReport       both together

In synchronous training all hosts end a step together. So a host whose batch comes late makes every other host wait,
and this wait looks like a longer step there: no host can see it alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HostsMethod = Literal["monitor", "simulated"]
"""The ways to compare hosts: by the steps that they trained together, or by profiles with a simulated accelerator."""


@dataclass(frozen=True)
class HostCall:
    """One call of a host's train function.

    Attributes:
        step: The number of its last step since the training began.
        steps: The number of steps in it.
        images: The number of images that this host took.
        wall_s: The time from its beginning to its end.
        wait_s: The time in which it waited for its batches.
    """

    step: int
    steps: int
    images: int
    wall_s: float
    wait_s: float


@dataclass(frozen=True)
class HostUsage:
    """The use of a host's cores.

    Attributes:
        cores: The number of cores that the process may use.
        cpu_fraction: The processor time of the process, as a share of all cores' time.
        other_cpu_fraction: The share of the cores that other processes took; 0 if that is unknown.
    """

    cores: int
    cpu_fraction: float
    other_cpu_fraction: float


@dataclass(frozen=True)
class HostRecord:
    """The last steps of one host, as its monitor saw them.

    Attributes:
        index: The number of the host, from 0.
        num_hosts: The number of hosts that train together.
        name: The host's name in the network.
        calls: The calls of the train function, in order.
        compute_s: The compute time of a step on the device; None if the device is idle exactly while the host waits.
        usage: The use of the host's cores.
    """

    index: int
    num_hosts: int
    name: str
    calls: tuple[HostCall, ...]
    compute_s: float | None
    usage: HostUsage


@dataclass(frozen=True)
class HostFix:
    """The first fix of a host's own profile.

    Attributes:
        text: The options to set, or the sentence that says what to do.
        reason: A sentence that says why it helps.
        images_per_second: The predicted rate of this host.
    """

    text: str
    reason: str
    images_per_second: float


@dataclass(frozen=True)
class HostProfile:
    """The conclusions of `tfpipe profile` on one host.

    Attributes:
        index: The number of the host, from 0.
        num_hosts: The number of hosts that train together.
        images_per_step: The number of images that this host gives to a step.
        images_per_second: The rate of its pipeline.
        idle_fraction: The share of time in which its accelerator waited for its own pipeline.
        input_wait_fraction: The share of time in which its trainer waited for a batch.
        stage: The stage or resource that limits its rate.
        reason: A sentence with the numbers that prove it.
        fix: The first fix of its pipeline; None if none is known.
        usage: The use of the host's cores.
    """

    index: int
    num_hosts: int
    images_per_step: int
    images_per_second: float
    idle_fraction: float
    input_wait_fraction: float
    stage: str
    reason: str
    fix: HostFix | None
    usage: HostUsage


@dataclass(frozen=True)
class HostLine:
    """One host in the report.

    Attributes:
        index: The number of the host, from 0.
        name: The host's name; empty if it is unknown.
        idle_fraction: The share of time in which its accelerator waits for its own batches.
        input_wait_fraction: The share of time in which its trainer waits for its own batches.
        waits_for_others_fraction: The share of time in which its batch is there and that of a later host is not.
        images_per_second: The images that it trains on.
        usage: The use of the host's cores.
        stage: The stage or resource that limits it; None if no profile of it says so.
        reason: A sentence about what limits it; empty if nothing does.
        fix: The change that helps; None if none is known.
    """

    index: int
    name: str
    idle_fraction: float
    input_wait_fraction: float
    waits_for_others_fraction: float
    images_per_second: float
    usage: HostUsage
    stage: str | None = None
    reason: str = ""
    fix: HostFix | None = None


@dataclass(frozen=True)
class HostsReport:
    """The comparison of the hosts of one training.

    Attributes:
        method: The way in which they were compared.
        num_hosts: The number of hosts that train together.
        missing: The numbers of the hosts of which nothing is known.
        hosts: A line for each host, by number.
        late: The numbers of the late hosts, the latest first; empty if none is, or if most wait alike.
        late_in_turns: Whether in each step another host is the last.
        slowest_wait_fraction: The share of time in which the last batch of a step is missing.
        lost_fraction: The share of time that all others lose because they wait for the late hosts.
        images_per_second: The rate of all hosts together.
        images_per_second_without_late: The rate if the late hosts waited no longer than the others.
        steps: The number of steps that were compared; 0 for profiles.
    """

    method: HostsMethod
    num_hosts: int
    missing: tuple[int, ...]
    hosts: tuple[HostLine, ...]
    late: tuple[int, ...]
    late_in_turns: bool
    slowest_wait_fraction: float
    lost_fraction: float
    images_per_second: float
    images_per_second_without_late: float
    steps: int
