"""The worker processes of the job: what they load, and the error for one that dies.

Beam's own multi-process mode was slower in every trial: it distributes the work in advance, and each worker imports
Beam. It also waits forever when a worker is killed. `concurrent.futures` reports a dead worker within seconds.
"""

from tfpipe.system.process_pool import Workers, kill_all

__all__ = ["kill_all", "map_unordered", "start_early"]

_WORKERS = Workers(
    preload=["beam_jobs.shards.job"],
    death="A worker process died: it was killed, or memory ran out. Finished shards are kept; run the same command "
    "again to go on, with fewer --workers if memory was short.",
)
start_early, map_unordered = _WORKERS.start_early, _WORKERS.map_unordered
