"""The reference trainer in PyTorch: one call makes a finished model from a dataset.

    config = TrainConfig(pipeline=PipelineConfig(batch_size=256), framework="torch", output="runs/flowers")
    with join_processes() as place:
        result = train(tfpipe.load_manifest("flowers"), config, place)

```
train.py        this file: sets up, and starts the run
processes.py    the processes and their devices
learner.py      one step
models.py       the model;  checkpoints.py  its checkpoints;  export.py  the finished model as an ExportedProgram
```
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tfpipe.format.manifest import Manifest
from tfpipe.readers.torch import TorchBatches
from tfpipe.training.config import TrainConfig
from tfpipe.training.learner import RunFacts
from tfpipe.training.results import TrainObserver, TrainResult
from tfpipe.training.run import check_dataset, run_training
from tfpipe.training.torch.learner import TorchLearner
from tfpipe.training.torch.models import BuildModel
from tfpipe.training.torch.processes import Place


def train(
    manifest: Manifest,
    config: TrainConfig,
    place: Place,
    build: BuildModel | None = None,
    observer: TrainObserver | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> TrainResult:
    """Trains, evaluates after each epoch, and exports; or goes on with the run in `config.output`.

    It sets the random seed of this process, and with `deterministic` PyTorch's deterministic algorithms. A run may go
    on with another number of processes, if the global batch stays the same.

    Args:
        manifest: A dataset, from `load_manifest`.
        config: The options of the training.
        place: This process and its device, from `join_processes`.
        build: A function that builds the user's own model.
        observer: An object that gets the progress of the training.
        stop: A function that is called after each step. Once it returns True, the run is saved and ends.

    Raises:
        ConfigError: The options do not fit the dataset or the processes, or the folder holds another run.
        DataError: The dataset has no labels or cannot be read, the folder cannot be written, or the loss is not a
            number.
        FormatError: The dataset or the folder is damaged.
    """
    check_dataset(manifest, config)
    torch.use_deterministic_algorithms(config.deterministic)
    pipeline = config.training_pipeline
    steps = len(TorchBatches(manifest, config.split, pipeline))
    facts = RunFacts(manifest, config, pipeline.batch_size, steps, (place.rank, place.num_ranks))
    return run_training(facts, lambda: TorchLearner(facts, place, build), observer or TrainObserver(), stop)
