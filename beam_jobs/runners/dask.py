"""The runner for Dask: on a cluster that is there, or on worker processes of this machine.

Beam's runner for Dask runs each partition as one task, and Dask gives the tasks of a killed worker to another one. But

- it ignores `Reshuffle`, so the graph must name every shard;
- it drops the elements that a bundle yields at its end, so a worker writes shards one by one;
- it groups by thousands of tasks (15 s for 128 partitions), so the written shards come back to the launcher;
- it has no metrics, and waits forever for a cluster without workers.
"""

import contextlib
import logging
import math
from collections.abc import Iterator
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs.config import ShardConfig
from beam_jobs.runners.base import Job, Runner
from beam_jobs.runners.beam_errors import GO_ON, find_error
from tfpipe.errors import ConfigError, DataError, first_line
from tfpipe.system.child_process import hold_interrupts
from tfpipe.system.extras import importing
from tfpipe.system.host_limits import usable_cpus

_CONNECT_WITHIN_S = 10
_WORKERS_WITHIN_S = 30
_LOOK_EVERY_S = 5
_MAX_PARTITIONS = 10_000  # a task costs the scheduler about a millisecond


def load_dask_options() -> None:
    """Imports Dask's runner, which registers its options with Beam.

    Raises:
        MissingDependencyError: Dask is not installed.
    """
    with importing("The runner for Dask", "Dask", "tfpipe[dask]"):
        import dask.distributed  # noqa: F401
        from apache_beam.runners.dask import dask_runner  # noqa: F401


class DaskRunner(Runner):
    """A job on a Dask cluster. The launcher finishes the dataset from the shards that come back."""

    runs_whole_graph = False

    def __init__(self, options: PipelineOptions) -> None:
        super().__init__(options)
        from apache_beam.runners.dask.dask_runner import DaskOptions

        self._dask_options: Any = options.view_as(DaskOptions)

    @property
    def _cluster(self) -> str | None:
        """The address or the file that names a running cluster; None for a cluster of this machine."""
        cluster: str | None = self._dask_options.address or self._dask_options.scheduler_file
        return cluster

    def check(self, config: ShardConfig) -> None:
        """Checks that the cluster answers and has a worker with tfpipe.

        Raises:
            ConfigError: `workers` is given, but the cluster brings its own workers, or they cannot reach the output.
            DataError: The cluster cannot be reached, has no worker, or a worker cannot import tfpipe.
        """
        cluster = self._cluster
        if not cluster:
            return
        self.check_shared(config)
        if config.workers:
            raise ConfigError("`workers` are processes of this machine; a Dask cluster has its own. Leave it out.")
        from dask.distributed import Client

        try:
            with Client(
                self._dask_options.address,
                scheduler_file=self._dask_options.scheduler_file,
                timeout=_CONNECT_WITHIN_S,
                set_as_default=False,
            ) as client:
                client.wait_for_workers(1, timeout=_WORKERS_WITHIN_S)
                client.run(_import_this_module)  # a worker that cannot take a task ends itself without a message
        except TimeoutError as error:
            raise DataError(
                f"The Dask cluster at {cluster} has no worker; start one with `dask worker {cluster}`."
            ) from error
        except (OSError, ValueError) as error:
            raise DataError(
                f"No Dask scheduler answers at {cluster}: {first_line(error)}. Start one with `dask scheduler`."
            ) from error
        except Exception as error:  # Dask has no special error for a worker that cannot find the function
            raise (find_error(str(error)) or error) from error

    @contextlib.contextmanager
    def prepare(self, job: Job) -> Iterator[None]:
        """Sets the number of partitions. If no cluster is named, the block has one of this machine."""
        self._set_partitions(job.num_tasks)
        if self._cluster:
            yield
            return
        from dask.distributed import LocalCluster

        with hold_interrupts():
            local_cluster = LocalCluster(
                n_workers=job.config.workers or usable_cpus(),
                threads_per_worker=1,
                processes=True,
                dashboard_address="127.0.0.1:0",  # None would be a fixed port, open to the network
                silence_logs=logging.CRITICAL,
            )
        with local_cluster:
            self._dask_options.address = local_cluster.scheduler_address
            yield

    def make_beam_runner(self, job: Job) -> Any:
        """Returns Beam's runner for Dask, which Beam finds by the whole path of its class only."""
        from apache_beam.runners.dask import dask_runner

        return dask_runner.DaskRunner()

    def wait(self) -> list[Any]:
        """Waits for the end of the job, and ends it when this process is interrupted.

        Returns:
            The results of all tasks.

        Raises:
            DataError: A task killed several workers, or the scheduler or all workers are gone.
            Exception: A worker raised it.
        """
        from concurrent.futures import CancelledError

        from dask import distributed

        result = self._result
        try:
            while not _is_over(result):
                if not result.client.scheduler_info(n_workers=-1)["workers"]:
                    _wait_for_worker(result.client)
            result.wait_until_finish()
            return [element for future in result.futures for element in future.result()]
        except distributed.scheduler.KilledWorker as error:
            raise DataError(
                f"Several Dask workers died over the same shards: they were killed, or memory ran out. {GO_ON}"
            ) from error
        except (CancelledError, distributed.comm.CommClosedError, OSError) as error:
            raise DataError(f"The connection to the Dask scheduler was lost. {GO_ON}") from error
        finally:
            with contextlib.suppress(Exception):  # the scheduler may be gone
                result.client.cancel(result.futures)
                result.client.close()

    def _set_partitions(self, num_tasks: int) -> None:
        options = self._dask_options
        if not (options.npartitions or options.partition_size):
            options.npartitions = min(num_tasks, _MAX_PARTITIONS)
        if options.npartitions:
            # Dask makes partitions of equal size, the last one smaller. This number leaves none of them empty.
            options.npartitions = math.ceil(num_tasks / math.ceil(num_tasks / options.npartitions))


def _import_this_module() -> None:
    """Does nothing. A worker can call it only if this module and its imports are installed there."""


def _is_over(result: Any) -> bool:
    from dask.distributed import wait

    with contextlib.suppress(TimeoutError):
        wait(result.futures, timeout=_LOOK_EVERY_S)
        return True
    return False


def _wait_for_worker(client: Any) -> None:
    try:
        client.wait_for_workers(1, timeout=_WORKERS_WITHIN_S)
    except TimeoutError as error:
        raise DataError(f"The Dask cluster has no worker any more. {GO_ON}") from error
