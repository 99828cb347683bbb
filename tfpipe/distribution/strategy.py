"""Which devices train: one strategy for a TPU, several workers, GPUs or the CPU.

A TPU that somebody named is either used or an error: nobody should learn from the bill that a run meant for a
TPU took place on a CPU.
"""

from __future__ import annotations

import logging

import tensorflow as tf

from tfpipe.distribution.devices import device_kind, worker_addresses, workers
from tfpipe.distribution.tpu import tpu_strategy
from tfpipe.errors import ConfigError

logger = logging.getLogger(__name__)


def resolve_strategy(tpu: str | None = None) -> tf.distribute.Strategy:
    """Chooses what this process trains on: a TPU, else the workers of `TF_CONFIG`, else GPUs, else the CPU.

    Call it before anything else touches TensorFlow: a TPU and a cluster of workers must be set up first.

    Args:
        tpu: "local" for the TPU of this machine, the name of a TPU node, or "grpc://address:port". By default the
            one that `TPU_NAME` (or what else TensorFlow's resolver reads) names, else the one TensorFlow sees on
            this machine; looking for that takes no time beyond what TensorFlow needs to list its devices.

    Returns:
        `TPUStrategy`, `MultiWorkerMirroredStrategy`, `MirroredStrategy` over all GPUs or all logical CPU devices, or
        `OneDeviceStrategy`.

    Raises:
        ConfigError: A TPU was asked for or found and does not answer, or `TF_CONFIG` cannot be used.
    """
    strategy = tpu_strategy(tpu) or _workers_strategy() or _local_strategy()
    logger.info("%s", describe_strategy(strategy))
    return strategy


def describe_strategy(strategy: tf.distribute.Strategy) -> str:
    """One line: the devices, how many replicas in how many processes, and why these.

    For example "CPU: 4 replicas in 1 process (MirroredStrategy); no TPU and no GPU were found".
    """
    kind, cluster = device_kind(strategy), workers(strategy)
    processes = len(cluster) or 1
    replicas = strategy.num_replicas_in_sync
    gpus = len(tf.config.list_physical_devices("GPU"))
    if kind == "TPU":
        reason = "a TPU answered"
    elif cluster:
        resolver = strategy.cluster_resolver
        reason = f"TF_CONFIG names {processes} workers, and this is {resolver.task_type} {resolver.task_id}"
    elif kind == "GPU":
        reason = f"no TPU was found, and {_count(gpus, 'GPU')}"
    else:
        reason = f"{_count(gpus, 'GPU')} not used" if gpus else "no TPU and no GPU were found"
    # Some classes bear another name inside TensorFlow than the one they are known by.
    public = ("TPUStrategy", "MultiWorkerMirroredStrategy")
    name = next(
        (name for name in public if isinstance(strategy, getattr(tf.distribute, name))), type(strategy).__name__
    )
    return f"{kind}: {_count(replicas, 'replica')} in {_count(processes, 'process', 'processes')} ({name}); {reason}"


def _workers_strategy() -> tf.distribute.Strategy | None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    try:
        cluster = resolver.cluster_spec().as_dict()
        task_type, task_id = resolver.task_type, resolver.task_id
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"TF_CONFIG in the environment cannot be read ({error}); mend or unset it.") from error
    if "ps" in cluster:
        raise ConfigError("TF_CONFIG must name workers only, got parameter servers; remove `ps` from its cluster.")
    workers = worker_addresses(cluster)
    if len(workers) < 2 or task_type == "evaluator":  # an evaluator stands beside the cluster
        return None
    if task_type not in cluster or task_id is None or task_id >= len(cluster[task_type]):
        raise ConfigError(
            f"TF_CONFIG must say which of its {len(workers)} workers this process is, got task {task_type} {task_id}; "
            'set `task` to {"type": "worker", "index": 0} for the first.'
        )
    logger.info("TF_CONFIG names %d workers; waiting for all of them.", len(workers))
    return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)


def _local_strategy() -> tf.distribute.Strategy:
    """All GPUs, else all logical CPU devices; no replicas to keep alike where there is one device."""
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    devices = [f"/{kind}:{i}" for i in range(len(tf.config.list_logical_devices(kind)))]
    return tf.distribute.MirroredStrategy(devices) if len(devices) > 1 else tf.distribute.OneDeviceStrategy(devices[0])


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
