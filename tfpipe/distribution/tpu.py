"""Finds the TPU and connects to it, or fails within a time limit if it does not answer."""

from __future__ import annotations

import importlib.util
import logging
import queue
import socket
import threading
from collections.abc import Callable
from json import JSONDecodeError
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfpipe.errors import ConfigError

logger = logging.getLogger(__name__)

# TensorFlow itself waits forever, both for a name that does not resolve and for an address that refuses.
_RESOLVE_S = 10.0
_PORT_S = 3.0
_CONNECT_S = 60.0


def connect_tpu(tpu: str | None) -> tf.distribute.Strategy | None:
    """Connects to the TPU that `tpu` or the environment names or that this machine has; returns None without one.

    Raises:
        ConfigError: The TPU does not answer.
    """
    if tpu:
        return _connect(tpu, tpu, f"the TPU {tpu!r} that was asked for")
    if name := _read_environment():
        # The resolver reads the rest (project, zone) from the environment too, so it is not given the name.
        return _connect(name, None, f"the TPU {name!r} that the environment names")
    if tf.config.list_physical_devices("TPU") or tf.config.list_physical_devices("TPU_SYSTEM"):
        return _connect("local", None, "the TPU that TensorFlow sees on this machine")
    if any(Path("/dev").glob("accel[0-9]*")) or importlib.util.find_spec("libtpu") is not None:
        # The plain `tensorflow` package has no TPU in it, whatever the machine.
        logger.warning(
            "This machine seems made for a TPU, but TensorFlow sees none. If there is one, install tensorflow-tpu."
        )
    return None


def _read_environment() -> str | None:
    """Reads the TPU that `TPU_NAME`, `TPU_CONFIG` or Kubernetes names, as TensorFlow's resolver does."""
    try:
        # A project and a zone, never used, keep the resolver from asking the metadata server for them.
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(project="-", zone="-")
    except (JSONDecodeError, AttributeError) as error:
        raise ConfigError(
            "TPU_CONFIG in the environment must be JSON with `tpu_node_name`; mend or unset it."
        ) from error
    except ValueError:  # nothing is named
        return None
    name: str = resolver._tpu  # no public attribute has it without a call to the Cloud API
    return name or None


def _connect(name: str, tpu: str | None, description: str) -> tf.distribute.Strategy:
    """Starts the TPU system.

    Args:
        name: "local", or the name of the TPU.
        tpu: The resolver's argument where `name` is not "local"; None lets it read the environment.
        description: The TPU and the place that names it, for the message that it does not answer.

    Raises:
        ConfigError: The TPU does not answer in time, or the address has none.
    """
    logger.info("Connecting to %s.", description)
    try:
        resolver = _run_within(_RESOLVE_S, "finding its address", lambda: _make_resolver(name, tpu))
        if name != "local":
            addresses = _run_within(_RESOLVE_S, "finding its address", lambda: _list_addresses(resolver))
            for address in addresses:
                host, _, port = address.rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), timeout=_PORT_S).close()
        _run_within(_CONNECT_S, "connecting", lambda: tf.config.experimental_connect_to_cluster(resolver))
        # Without a limit: a large slice takes minutes, and a TPU that answered up to here is alive.
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    # The resolver, sockets, Cloud API and runtime each raise different errors.
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        cause = lines[0].partition(" Failed in initialization")[0][:200].rstrip(". ")
        raise ConfigError(
            f"{description[0].upper()}{description[1:]} does not answer ({cause}); "
            "check that it is up and not in use by another process."
        ) from error


def _make_resolver(name: str, tpu: str | None) -> Any:
    return tf.distribute.cluster_resolver.TPUClusterResolver("local" if name == "local" else tpu)


def _list_addresses(resolver: Any) -> list[str]:
    return [address for addresses in resolver.cluster_spec().as_dict().values() for address in addresses]


def _run_within(seconds: float, action: str, function: Callable[[], Any]) -> Any:
    """Returns the result of `function`, or raises TimeoutError. A hanging thread does not delay the exit."""
    answers: queue.Queue[tuple[Any, Exception | None]] = queue.Queue()

    def run() -> None:
        try:
            answers.put((function(), None))
        except Exception as error:
            answers.put((None, error))

    threading.Thread(target=run, name="tfpipe-tpu", daemon=True).start()
    try:
        value, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"{action} took more than {seconds:g} s") from None
    if error is not None:
        raise error
    return value
