"""Workers of the service in threads of this process."""

import atexit
import json
from typing import Any

from tfpipe.engine.batch import Maker
from tfpipe.engine.plan import AnyPlan
from tfpipe.service.messages import RELEASE, Ticket, describe_plan
from tfpipe.service.server import Server


def start_workers(count: int, **options: Any) -> tuple[str, ...]:
    """Starts workers, which run until the process ends, and returns their addresses."""
    servers = [Server("grpc://127.0.0.1:0", ("/",), 1, **options) for _ in range(count)]
    for server in servers:
        atexit.register(server.shutdown)
    return tuple(f"127.0.0.1:{server.port}" for server in servers)


def open_as_worker(plan: AnyPlan) -> Maker:
    """Opens the maker of a trainer's plan as a worker does."""
    ticket = {"release": RELEASE, "plan": describe_plan(plan), "epoch": 0, "step": 0, "rows": [0, plan.batch_size]}
    return Ticket(json.dumps(ticket).encode()).open(("/",))
