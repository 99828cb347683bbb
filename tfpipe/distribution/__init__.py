"""The devices that train, the part that each host reads for them, and the batch of each replica."""

from tfpipe.distribution.distribute import distribute_dataset, steps_per_epoch
from tfpipe.distribution.mesh import MeshBatches, distribute_over_mesh
from tfpipe.distribution.strategy import Precision, describe_strategy, resolve_strategy, set_precision

__all__ = [
    "MeshBatches",
    "Precision",
    "describe_strategy",
    "distribute_dataset",
    "distribute_over_mesh",
    "resolve_strategy",
    "set_precision",
    "steps_per_epoch",
]
