"""One line of the doctor's report, and what a run is meant for. No TensorFlow here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tfpipe.errors import SENTENCE_END, ConfigError

Status = Literal["ok", "warning", "failure", "skipped"]

_THIS_MACHINE = re.compile(r"local|(grpc://)?(localhost|127(\.\d+){3}|\[::1\])(:\d+)?")


@dataclass(frozen=True)
class Check:
    """What one check found."""

    name: str
    status: Status
    found: str
    """A sentence."""
    advice: str = ""
    """What to do, where there is something to do."""

    def to_json(self) -> Mapping[str, str]:
        """As `--json` prints it."""
        return {"name": self.name, "status": self.status, "found": self.found, "advice": self.advice}


@dataclass(frozen=True, kw_only=True)
class Target:
    """What the pipeline shall feed.

    Raises:
        ConfigError: A number is not above 0.
    """

    tpu: str | None = None
    """"local" for a TPU of this machine, the name of a TPU node, or "grpc://address:port"; None for no TPU."""
    num_replicas: int | None = None
    """Of all hosts. None: as many as this machine has accelerators, on each host."""
    num_hosts: int | None = None
    """None: one."""
    images_per_second: float | None = None
    """What all replicas together consume; None: not asked."""

    def __post_init__(self) -> None:
        for name in ("num_replicas", "num_hosts", "images_per_second"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"`{name}` must be above 0, got {value}.")

    @property
    def elsewhere(self) -> bool:
        """Whether the run is planned for other machines than this one."""
        return self.tpu_elsewhere or (self.num_replicas, self.num_hosts) != (None, None)

    @property
    def tpu_elsewhere(self) -> bool:
        """Whether the TPU is known by a name or an address, so that it reads files on hosts of its own."""
        return self.tpu is not None and not _THIS_MACHINE.fullmatch(self.tpu)


def failure_of(name: str, error: BaseException) -> Check:
    """The check that an error ends: its first sentence is what was found, the rest what to do."""
    found, *advice = SENTENCE_END.split(str(error).strip(), maxsplit=1)
    return Check(name, "failure", found, *advice)


def counted(number: int, noun: str) -> str:
    """`1 shard`, `2,000 shards`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
