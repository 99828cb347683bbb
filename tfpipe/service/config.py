"""ServiceConfig: the workers of this machine and their ports.

ServiceConfig(port=5050, workers=2)     # they listen on 5050 and 5051
"""

from __future__ import annotations

from dataclasses import dataclass

from tfpipe.errors import ConfigError
from tfpipe.system.options import Count, Text, check_options, option

MAX_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class ServiceConfig:
    """The options of the workers on this machine.

    Attributes:
        port: The port of the first worker; the next workers take the next ports. 0: any free ports. From 0 to 65535.
            Default: 5050.
        workers: The number of worker processes. One uses all cores, so more help only on machines with many of them.
            At least 1. Default: 1.
        host: The name or address of the interface on which the workers listen, such as 127.0.0.1. None: all interfaces.
            Default: None.
        threads: The number of threads with which each worker decodes. None: one for each core. At least 1.
            Default: None.

    Raises:
        ConfigError: A value cannot be used.
    """

    port: int = option(Count(0, MAX_PORT), 5050)
    workers: int = option(Count(1), 1)
    host: str | None = option(Text(), None, metavar="NAME")
    threads: int | None = option(Count(1), None)

    def __post_init__(self) -> None:
        check_options(self)
        if self.port + self.workers - 1 > MAX_PORT:
            raise ConfigError(f"`port` must be at most {MAX_PORT - self.workers + 1}, so that all workers have one.")
