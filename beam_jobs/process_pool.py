"""The job's worker processes.

Beam's own multi-process mode was slower in every trial (it deals work out in advance and each worker imports Beam)
and waits for ever when a worker is killed; `concurrent.futures` says so within seconds.
"""

import contextlib
import os
import threading
import time

from tfpipe.system.process_pool import Workers, kill_all

__all__ = ["die_with", "kill_all", "map_unordered", "start_early"]

_LOOK_EVERY_S = 0.5
_WORKERS = Workers(
    preload=["beam_jobs.shards.write_shard"],
    death="A worker process died: it was killed, or memory ran out. Finished shards are kept; run the same command "
    "again to go on, with fewer --workers if memory was short.",
)
start_early, map_unordered = _WORKERS.start_early, _WORKERS.map_unordered


def die_with(pid: int) -> None:
    """Ends this process soon after the process `pid` of this machine, which need not be its parent."""

    def watch() -> None:
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(pid, 0)
                time.sleep(_LOOK_EVERY_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
