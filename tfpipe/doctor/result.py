"""One line of the doctor's report, and the accelerator of the run. It loads no TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tfpipe.errors import SENTENCE_END
from tfpipe.system.options import Count, Number, check_options, option

Status = Literal["ok", "warning", "failure", "skipped"]

_THIS_MACHINE = re.compile(r"local|(grpc://)?(localhost|127(\.\d+){3}|\[::1\])(:\d+)?")


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: The name of the check, such as "shard size".
        status: The verdict.
        found: A sentence with the finding.
        advice: A sentence that says what to do; empty if there is nothing to do.
    """

    name: str
    status: Status
    found: str
    advice: str = ""

    def to_json(self) -> Mapping[str, str]:
        """Returns plain values for JSON."""
        return {"name": self.name, "status": self.status, "found": self.found, "advice": self.advice}


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """The accelerator that the pipeline feeds.

    Attributes:
        tpu: The TPU: "local" for the one of this machine, the name of a TPU node, or "grpc://address:port". None: there
            is no TPU. Default: None.
        num_replicas: The number of replicas of all hosts together. None: one on each accelerator of this machine, on
            each host. At least 1. Default: None.
        num_hosts: The number of hosts that read. None: one. At least 1. Default: None.
        images_per_second: The rate that all replicas together consume. None: it does not matter. Above 0.
            Default: None.
        tpu_variables: The variables about a TPU in the environment that trains: pairs of a name and a value.
            Default: ().

    Raises:
        ConfigError: A number is too low.
    """

    tpu: str | None = None
    num_replicas: int | None = option(Count(1), None)
    num_hosts: int | None = option(Count(1), None)
    images_per_second: float | None = option(Number(above=0), None)
    tpu_variables: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def elsewhere(self) -> bool:
        """Whether the run is planned for other machines."""
        return self.tpu_elsewhere or (self.num_replicas, self.num_hosts) != (None, None)

    @property
    def tpu_elsewhere(self) -> bool:
        """Whether the TPU has a name or an address, so that other hosts read the files for it."""
        return self.tpu is not None and not _THIS_MACHINE.fullmatch(self.tpu)


def fail_check(name: str, error: BaseException) -> Check:
    """Returns a failed check for an error. The error's first sentence is the finding, the rest is the advice."""
    finding, *advice = SENTENCE_END.split(str(error).strip(), maxsplit=1)
    return Check(name, "failure", finding, *advice)
