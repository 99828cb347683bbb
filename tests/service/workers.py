"""Workers of the service in threads of this process."""

import atexit
from typing import Any

from tfpipe.service.server import Server


def start_workers(count: int, **options: Any) -> tuple[str, ...]:
    """Starts workers, which run until the process ends, and returns their addresses."""
    servers = [Server("grpc://127.0.0.1:0", ("/",), 1, **options) for _ in range(count)]
    for server in servers:
        atexit.register(server.shutdown)
    return tuple(f"127.0.0.1:{server.port}" for server in servers)
