"""ServiceConfig: the workers of this machine, their ports, and what they may open."""

from __future__ import annotations

from dataclasses import dataclass

from tfpipe.errors import ConfigError
from tfpipe.system.options import Count, Names, Text, check_options, option

token = ""  # for services whose options name no `token_file`; the command line sets it


def read_token(path: str | None = None) -> str:
    """Returns the token in a file, else that of the command line; one that gRPC cannot send would end the process."""
    found = (token if path is None else read_file("token_file", path).decode("latin-1")).strip()
    if not (found.isascii() and found.isprintable()):
        raise ConfigError(f"{path or 'TFPIPE_SERVICE_TOKEN'} must hold a token of printable ASCII in one line, no BOM.")
    return found


def read_file(option: str, path: str) -> bytes:
    """Reads a file that an option names; a `certificate` and a `key` must be in PEM."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ConfigError(f"`{option}` must be a file that can be read, got {path}: {error.strerror}.") from None
    if option != "token_file" and f"{option.upper()}-----".encode() not in data:
        raise ConfigError(f"`{option}` must be a file in PEM that holds a {option}, got {path}.")
    return data


@dataclass(frozen=True, kw_only=True)
class ServiceConfig:
    """The options of the workers on this machine.

    Attributes:
        root: A folder or URL below which datasets lie, or several. Workers open no others, whatever a trainer asks
            for. At least one. Default: ().
        port: The port of the first worker; the next workers take the next ports. 0: any free ports. From 0 to 65535.
            Default: 5050.
        workers: The number of worker processes. One uses all cores, so more help only on machines with many of them.
            At least 1. Default: 1.
        host: The name or address of the interface on which the workers listen. 0.0.0.0: all interfaces. Any but this
            machine's own makes trainers bring a token. Default: "127.0.0.1".
        threads: The number of threads with which each worker decodes. None: one for each core. At least 1.
            Default: None.
        certificate: The file of the workers' TLS certificate, in PEM, with those between it and an authority that
            trainers know. It needs a `key`. None: connections are not encrypted. Default: None.
        key: The file of the certificate's private key, in PEM. Default: None.

    Raises:
        ConfigError: A value cannot be used.
    """

    root: tuple[str, ...] = option(Names(), (), metavar="DIR")
    port: int = option(Count(0, 65535), 5050)
    workers: int = option(Count(1), 1)
    host: str = option(Text(), "127.0.0.1", metavar="NAME")
    threads: int | None = option(Count(1), None)
    certificate: str | None = option(Text(), None, metavar="FILE")
    key: str | None = option(Text(), None, metavar="FILE")

    def __post_init__(self) -> None:
        check_options(self)
        if not self.root:
            raise ConfigError("`root` must name a folder or URL below which the datasets lie, such as /data.")
        if self.port > (most := 65536 - self.workers):
            raise ConfigError(f"`port` must be at most {most}, so that all workers have one.")
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("`certificate` and `key` belong together. Give both, or none.")

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the workers."""
        return self.host in ("localhost", "127.0.0.1", "::1")
