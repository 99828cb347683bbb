"""The processes and devices that train together in JAX: one process for each host, with all of its devices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tfpipe.errors import ConfigError, first_line

_BFLOAT16_CAPABILITY = 8.0  # of Ampere, the first GPUs that multiply bfloat16 faster than float32


@dataclass(frozen=True)
class Place:
    """The devices of all processes.

    Attributes:
        mesh: The devices along an axis `data`, process after process.
    """

    mesh: Mesh

    @property
    def rows(self) -> NamedSharding:
        """The sharding of a batch: its rows over all devices."""
        return NamedSharding(self.mesh, PartitionSpec("data"))

    @property
    def whole(self) -> NamedSharding:
        """The sharding of the parameters: whole on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def process(self) -> tuple[int, int]:
        """The number of this process, from 0, and the number of processes."""
        return jax.process_index(), jax.process_count()

    @property
    def has_bfloat16(self) -> bool:
        """Whether the devices are built for bfloat16."""
        device = jax.local_devices()[0]
        if device.platform == "gpu":
            return float(getattr(device, "compute_capability", 0)) >= _BFLOAT16_CAPABILITY
        return bool(device.platform == "tpu")

    def describe(self) -> str:
        """Describes the devices in one line, for example "CPU: 4 devices in 2 processes (JAX 0.10.2)"."""
        devices, (_, processes) = self.mesh.size, self.process
        count = f"{devices} device{'s' * (devices > 1)} in {processes} process{'es' * (processes > 1)}"
        return f"{jax.devices()[0].platform.upper()}: {count} (JAX {jax.__version__})"


@contextlib.contextmanager
def join_processes(
    coordinator: str | None = None, num_processes: int | None = None, index: int | None = None, *, is_tpu: bool = False
) -> Iterator[Place]:
    """Joins the processes that train together, and leaves them when the block ends.

    Args:
        coordinator: The address and port of the first process. None: this process trains alone, unless `is_tpu`.
        num_processes: The number of processes.
        index: The number of this process, from 0.
        is_tpu: Whether this is a TPU VM, where JAX finds the other hosts of the slice by itself.

    Raises:
        ConfigError: The processes do not find each other, or there is no TPU.
    """
    joins = coordinator is not None or is_tpu
    if joins:
        try:
            jax.distributed.initialize(coordinator, num_processes, index)
        except (RuntimeError, ValueError, TypeError) as error:
            if coordinator is None:
                raise ConfigError(
                    f"JAX finds no TPU on this machine: {first_line(error)}. Run on the TPU VM, with pip install "
                    "'jax[tpu]'."
                ) from error
            raise ConfigError(
                f"The processes do not find each other: {first_line(error)}. Set JAX_COORDINATOR_ADDRESS, "
                "JAX_NUM_PROCESSES and JAX_PROCESS_ID."
            ) from error
    try:
        platform = jax.default_backend()
        if is_tpu and platform != "tpu":
            raise ConfigError(f"JAX must see a TPU, got {platform}. Install it with: pip install 'jax[tpu]'.")
        devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
        yield Place(Mesh(np.array(devices), ("data",)))
    finally:
        if joins:
            jax.distributed.shutdown()
