"""Running the graph on Dask: a cluster that is there, or one of worker processes on this machine.

Beam's runner for Dask runs each partition as one task. It puts a killed worker's tasks on another one, passes over
`Reshuffle`, drops what a bundle yields at its end, groups by thousands of tasks (15 s for 128 partitions), has no
metrics, and waits for ever for a cluster without workers. So it gets one task for each shard, and the rows come back
to the launcher.
"""

import contextlib
import logging
import math
from collections.abc import Iterator
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from beam_jobs.config import ShardConfig
from beam_jobs.shards.worker_check import not_installed
from tfpipe.errors import ConfigError, DataError, first_line
from tfpipe.system.child_process import hold_interrupts
from tfpipe.system.extras import importing
from tfpipe.system.host_limits import usable_cpus

_RUNNER = "DaskRunner"
_CONNECT_WITHIN_S = 10
_WORKERS_WITHIN_S = 30
_LOOK_EVERY_S = 5
_MOST_PARTITIONS = 10_000  # a task costs the scheduler about a millisecond
_GO_ON = "Finished shards are kept; run the same command again to go on."


def names_dask(runner: str | None) -> bool:
    """Whether Beam's `--runner` is the one for Dask, by its name or its whole path."""
    return runner is not None and runner.rpartition(".")[2] == _RUNNER


def is_dask(options: PipelineOptions) -> bool:
    """Whether the graph is to run on Dask."""
    return names_dask(options.view_as(StandardOptions).runner)


def load_options() -> None:
    """Makes the runner's options known to Beam, which knows them once the runner is imported.

    Raises:
        MissingDependencyError: Dask is not installed.
    """
    with importing("The runner for Dask", "Dask", "tfpipe[dask]"):
        import dask.distributed  # noqa: F401
        from apache_beam.runners.dask import dask_runner  # noqa: F401


def check_options(config: ShardConfig, options: PipelineOptions) -> None:
    """Looks whether there is a cluster, before anything is listed.

    Raises:
        ConfigError: --workers is given, but the cluster has workers of its own.
        DataError: The cluster is not reached, has no worker, or one without tfpipe.
    """
    cluster = _dask_options(options)
    if not (cluster.address or cluster.scheduler_file):
        return
    if config.workers:
        raise ConfigError("--workers are processes of this machine; a Dask cluster has its own. Leave it out.")
    from dask.distributed import Client

    where = cluster.address or cluster.scheduler_file
    try:
        with Client(
            cluster.address, scheduler_file=cluster.scheduler_file, timeout=_CONNECT_WITHIN_S, set_as_default=False
        ) as client:
            client.wait_for_workers(1, timeout=_WORKERS_WITHIN_S)
            client.run(_import_this)  # a worker that cannot take a task ends itself, and nobody learns why
    except TimeoutError as error:
        raise DataError(f"The Dask cluster at {where} has no worker; start one with `dask worker {where}`.") from error
    except (OSError, ValueError) as error:
        raise DataError(
            f"No Dask scheduler answers at {where}: {first_line(error)}. Start one with `dask scheduler`."
        ) from error
    except Exception as error:  # so Dask hands on what a worker says that cannot find the function
        raise (not_installed(str(error)) or error) from error


@contextlib.contextmanager
def prepared(options: PipelineOptions, workers: int, num_shards: int) -> Iterator[None]:
    """Completes the options; without an address, the block has a cluster of this machine.

    Args:
        options: Beam's, changed in place.
        workers: Processes of that cluster; 0: one for each core.
        num_shards: In the plan.
    """
    cluster = _dask_options(options)
    if not (cluster.npartitions or cluster.partition_size):
        cluster.npartitions = min(num_shards, _MOST_PARTITIONS)
    if cluster.npartitions:
        # As Dask counts them: parts of equal size, the last one smaller, and none empty.
        cluster.npartitions = math.ceil(num_shards / math.ceil(num_shards / cluster.npartitions))
    if cluster.address or cluster.scheduler_file:
        yield
        return
    from dask.distributed import LocalCluster

    with hold_interrupts():
        local = LocalCluster(
            n_workers=workers or usable_cpus(),
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",  # None would be a fixed port, open to the network
            silence_logs=logging.CRITICAL,
        )
    with local:
        cluster.address = local.scheduler_address
        yield


def new_runner() -> Any:
    """Beam's runner; Beam itself knows it by its whole path only."""
    from apache_beam.runners.dask.dask_runner import DaskRunner

    return DaskRunner()


def wait(result: Any) -> list[Any]:
    """Waits for the job's end, and ends it when this process is interrupted.

    Args:
        result: What Beam's `run` returned.

    Returns:
        What came out of the graph's last step.

    Raises:
        DataError: A task killed several workers, or the scheduler or all workers are gone.
        Exception: Whatever a worker raised.
    """
    from concurrent.futures import CancelledError

    from dask import distributed

    try:
        while not _is_over(result):
            if not result.client.scheduler_info(n_workers=-1)["workers"]:
                _wait_for_a_worker(result.client)
        result.wait_until_finish()
        return [element for future in result.futures for element in future.result()]
    except distributed.scheduler.KilledWorker as error:
        raise DataError(
            "Several Dask workers died over the same shards: they were killed, or memory ran out. " + _GO_ON
        ) from error
    except (CancelledError, distributed.comm.CommClosedError, OSError) as error:
        raise DataError("The connection to the Dask scheduler was lost. " + _GO_ON) from error
    finally:
        with contextlib.suppress(Exception):  # of a scheduler that is gone
            result.client.cancel(result.futures)
            result.client.close()


def _import_this() -> None:
    """Does nothing, but can be called only where this module and what it needs are installed."""


def _dask_options(options: PipelineOptions) -> Any:
    from apache_beam.runners.dask.dask_runner import DaskOptions

    return options.view_as(DaskOptions)


def _is_over(result: Any) -> bool:
    from dask.distributed import wait as wait_for

    with contextlib.suppress(TimeoutError):
        wait_for(result.futures, timeout=_LOOK_EVERY_S)
        return True
    return False


def _wait_for_a_worker(client: Any) -> None:
    try:
        client.wait_for_workers(1, timeout=_WORKERS_WITHIN_S)
    except TimeoutError as error:
        raise DataError("The Dask cluster has no worker any more. " + _GO_ON) from error
