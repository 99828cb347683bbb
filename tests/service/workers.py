"""Workers of the service in threads of this process."""

import socket
import threading

from tfpipe.service.server import Server


def start_workers(count: int) -> tuple[str, ...]:
    """Starts workers, which run until the process ends, and returns their addresses."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    for listener in listeners:
        threading.Thread(target=Server(1).serve, args=(listener,), daemon=True).start()
    return tuple(f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners)
