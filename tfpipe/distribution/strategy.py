"""The strategy that trains: on a TPU, several workers, GPUs or the CPU.

A TPU that the user named is either used or an error: nobody should learn from the bill that a run meant for a
TPU took place on a CPU.
"""

from __future__ import annotations

import logging

import tensorflow as tf

from tfpipe.distribution.devices import get_device_kind, list_cluster_workers, list_workers
from tfpipe.distribution.tpu import connect_tpu
from tfpipe.errors import ConfigError

logger = logging.getLogger(__name__)


def resolve_strategy(tpu: str | None = None) -> tf.distribute.Strategy:
    """Chooses the devices that this process trains on: a TPU, else the workers of `TF_CONFIG`, else GPUs, else the CPU.

    Call it before anything else touches TensorFlow: a TPU and a cluster of workers must be set up first.

    Args:
        tpu: The TPU: "local" for the one of this machine, the name of a TPU node, or "grpc://address:port". The default
            is the TPU that `TPU_NAME` or another variable of TensorFlow's resolver names, else the one that TensorFlow
            sees on this machine. The search takes no longer than a list of TensorFlow's devices.

    Returns:
        `TPUStrategy`, `MultiWorkerMirroredStrategy`, `MirroredStrategy` over all GPUs or all logical CPU devices, or
        `OneDeviceStrategy`.

    Raises:
        ConfigError: A TPU was named or found and does not answer, or `TF_CONFIG` cannot be used.
    """
    strategy = connect_tpu(tpu) or _make_workers_strategy() or _make_local_strategy()
    logger.info("%s", describe_strategy(strategy))
    return strategy


def describe_strategy(strategy: tf.distribute.Strategy) -> str:
    """Describes a strategy in one line: the devices, the replicas and processes, and the reason for these.

    For example "CPU: 4 replicas in 1 process (MirroredStrategy); no TPU and no GPU were found".
    """
    kind, cluster = get_device_kind(strategy), list_workers(strategy)
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
    # Some classes have another name inside TensorFlow than in public.
    public = ("TPUStrategy", "MultiWorkerMirroredStrategy")
    name = next(
        (name for name in public if isinstance(strategy, getattr(tf.distribute, name))), type(strategy).__name__
    )
    return f"{kind}: {_count(replicas, 'replica')} in {_count(processes, 'process', 'processes')} ({name}); {reason}"


def _make_workers_strategy() -> tf.distribute.Strategy | None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    try:
        cluster = resolver.cluster_spec().as_dict()
        task_type, task_id = resolver.task_type, resolver.task_id
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"TF_CONFIG in the environment cannot be read ({error}); mend or unset it.") from error
    if "ps" in cluster:
        raise ConfigError("TF_CONFIG must name workers only, got parameter servers; remove `ps` from its cluster.")
    workers = list_cluster_workers(cluster)
    if len(workers) < 2 or task_type == "evaluator":  # an evaluator stands beside the cluster
        return None
    if task_type not in cluster or task_id is None or task_id >= len(cluster[task_type]):
        raise ConfigError(
            f"TF_CONFIG must say which of its {len(workers)} workers this process is, got task {task_type} {task_id}; "
            'set `task` to {"type": "worker", "index": 0} for the first.'
        )
    logger.info("TF_CONFIG names %d workers; waiting for all of them.", len(workers))
    return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)


def _make_local_strategy() -> tf.distribute.Strategy:
    """Makes a strategy of all GPUs, else of all logical CPU devices; one device needs no replicas."""
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    devices = [f"/{kind}:{i}" for i in range(len(tf.config.list_logical_devices(kind)))]
    return tf.distribute.MirroredStrategy(devices) if len(devices) > 1 else tf.distribute.OneDeviceStrategy(devices[0])


def _count(number: int, singular: str, plural: str | None = None) -> str:
    return f"{number} {singular if number == 1 else plural or singular + 's'}"
