"""ServiceOptions: the workers that make the batches in place of a trainer's host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tfpipe.errors import ConfigError
from tfpipe.system.options import Addresses, Count, Number, Text, check_options, option, show_options


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """The options of a trainer whose batches come from workers.

    Attributes:
        workers: The addresses of the workers, started by `tfpipe serve`: ("host1:5050", "host2:5050"). Any of them
            makes any step, so the batches are those of this host alone, for any number of workers, and one may end at
            any time. They must reach the dataset under the same path or URL. Without any, this host makes the batches.
            Like host:5050, one or several. Default: ().
        share: The share of the steps that this host makes itself, on cores that would be idle. "auto": it makes a step
            when all workers have as many requests as they take. The batches are equal wherever they are made.
            At least 0 and below 1, or "auto". Default: 0.0.
        token_file: The file that holds the token of the workers, which `tfpipe serve` prints unless they serve their
            own machine alone. None: the command line takes TFPIPE_SERVICE_TOKEN from the environment. Default: None.
        certificate: The file of the certificate, in PEM, of the authority that signed those of the workers, or of the
            workers themselves. Connections are then encrypted. None: they are not. Default: None.
        timeout_s: The seconds that this host waits for the batch of a step by the service. Then an error names the
            workers. At least 1. Default: 300.

    Raises:
        ConfigError: A value cannot be used.
    """

    workers: tuple[str, ...] = option(Addresses(), ())
    share: float | Literal["auto"] = option(Number(at_least=0, below=1, word="auto"), 0.0, affects="speed")
    token_file: str | None = option(Text(), None, metavar="FILE")
    certificate: str | None = option(Text(), None, metavar="FILE")
    timeout_s: int = option(Count(1), 300)

    __repr__ = show_options

    def __post_init__(self) -> None:
        given: object = self.workers
        if isinstance(given, list):
            object.__setattr__(self, "workers", tuple(given))  # a list has no hash
        check_options(self)
        for name in ("share", "token_file", "certificate"):
            if (value := getattr(self, name)) and not self.workers:
                raise ConfigError(f"`{name}` of a service needs `workers`, got {value!r} without.")
