"""The reference trainer in PyTorch: one call makes a finished model from a dataset.

    config = TrainConfig(pipeline=PipelineConfig(batch_size=256), framework="torch", output="runs/flowers")
    with join_processes() as place:
        result = train(tfpipe.load_manifest("flowers"), config, place)

```
train.py        this file: sets up and starts the run; a model's steps on one device for each process
processes.py    the processes and their devices
models.py       the model;  export.py  the finished model as an ExportedProgram
```

```
train ─▶ logits of this process' rows ─▶ gradients, averaged over processes (DistributedDataParallel) ─▶ new weights
         sums of loss, correct images, ... ─▶ added up over processes ─▶ returned
```
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tfpipe.errors import DataError, TfpipeError, first_line
from tfpipe.format.manifest import Manifest
from tfpipe.profiler.live.step_monitor import Devices
from tfpipe.readers.torch import ShardLoader, TorchBatches, data_loader
from tfpipe.system.hash_permutation import DROPOUT, key_of
from tfpipe.training.checkpoints import State
from tfpipe.training.config import MOMENTUM, TrainConfig
from tfpipe.training.learner import TOP, Learner, RunFacts, SingleSteps, Steps
from tfpipe.training.results import TrainObserver, TrainResult
from tfpipe.training.run import check_dataset, hold_layer, run_training
from tfpipe.training.run_dir import MODEL, RunDir
from tfpipe.training.torch.models import BuildModel, build_model
from tfpipe.training.torch.processes import Place

Batch = dict[str, torch.Tensor]

_COMPILER = ("torch._dynamo", "torch._inductor")  # the modules of the errors of `torch.compile`
_BLOB = "torch"


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
    held = hold_layer(manifest, config.output, config.split)
    manifest = manifest if held is None else held.manifest
    check_dataset(manifest, config)
    torch.use_deterministic_algorithms(config.deterministic)
    pipeline = config.training_pipeline
    steps = len(TorchBatches(manifest, config.split, pipeline))
    facts = RunFacts(manifest, config, pipeline.batch_size, steps, (place.rank, place.num_ranks), held)
    return run_training(facts, lambda: TorchLearner(facts, place, build), observer or TrainObserver(), stop)


class TorchLearner(Learner):
    """A PyTorch model, with one replica in each process."""

    def __init__(self, facts: RunFacts, place: Place, build: BuildModel | None = None) -> None:
        """Builds model and optimizer, with the same weights in every process.

        Raises:
            ConfigError: The model cannot be built.
        """
        super().__init__(facts)
        config = facts.config
        self._place, self._device, self._step = place, place.device, 0
        self._dtype = _choose_dtype(config.precision, place)
        torch.manual_seed(config.pipeline.seed % 2**63)
        self.model = build_model(config.model, facts.num_classes, config.evaluation_pipeline, build)
        self.model.to(self._device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimizer = _make_optimizer(self.model, config.weight_decay)
        replica: Any = self.model
        if place.num_ranks > 1:
            device_ids = [self._device] if self._device.type == "cuda" else None
            replica = DistributedDataParallel(self.model, device_ids)
        self._replica = torch.compile(replica) if config.compile else replica
        self._evaluation_loader: ShardLoader | None = None

    def open_steps(self, start_step: int, run_dir: RunDir) -> Steps:
        """Opens the training data at a global step of the run."""
        config, self._step = self.facts.config, start_step
        images = TorchBatches(self.facts.manifest, config.split, config.training_pipeline, start_step)
        monitor = self.facts.make_monitor(self._describe_devices(), run_dir)
        return SingleSteps(_Readable(data_loader(images, config.workers)), self._train, monitor)

    def evaluate(self, split: str) -> Iterator[NDArray[np.float64]]:
        """Yields the sums of each evaluation batch over all processes, float64 [4]."""
        if self._evaluation_loader is None:
            split_images = TorchBatches(self.facts.manifest, split, self.facts.config.evaluation_pipeline)
            self._evaluation_loader = data_loader(split_images, self.facts.config.workers)
        if self._place.num_ranks > 1:
            # Moving averages differ between processes until the next step of training. A checkpoint has those of the
            # first, so all evaluate with them: a run that goes on there finds the same numbers.
            for buffer in self.model.buffers():
                torch.distributed.broadcast(buffer, 0)
        self.model.eval()
        try:
            for batch in _Readable(self._evaluation_loader):
                with torch.inference_mode(), self._compute():
                    images, label, mask = (self._move(batch[name]) for name in ("image", "label", "mask"))
                    logits = self.model(images)
                losses = nn.functional.cross_entropy(logits, label, reduction="none")
                yield self.read_sums(self._count(losses, logits, label, mask))
        finally:
            self.model.train()

    def read_sums(self, result: torch.Tensor) -> NDArray[np.float64]:
        """Returns the sums of a step over all processes: float64 [4]."""
        sums: NDArray[np.float64] = result.cpu().numpy()
        return sums

    def read_losses(self, losses: torch.Tensor) -> NDArray[np.float32]:
        """Returns the losses of a step: float32 [batch]."""
        rows: NDArray[np.float32] = losses.cpu().numpy()
        return rows

    def any_process(self, flag: bool) -> bool:
        """Returns whether `flag` is True in any process."""
        flags = torch.tensor(float(flag), device=self._device)
        torch.distributed.all_reduce(flags)
        return bool(flags > 0)

    def get_state(self) -> State:
        """Returns all arrays as one text of bytes, which `torch.load` opens: PyTorch has dtypes that NumPy lacks."""
        buffer = io.BytesIO()
        torch.save({"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}, buffer)
        return {_BLOB: np.frombuffer(buffer.getvalue(), np.uint8)}

    def set_state(self, state: State) -> None:
        """Takes the arrays of a checkpoint."""
        data = io.BytesIO(state[_BLOB].tobytes())
        loaded = torch.load(data, map_location=self._device, weights_only=True)
        self.model.load_state_dict(loaded["model"])
        self._optimizer.load_state_dict(loaded["optimizer"])

    def export(self, run_dir: RunDir) -> None:
        """Writes the model to serve."""
        from tfpipe.training.torch.export import export_model

        export_model(self.model, self.facts.config.evaluation_pipeline, self.facts.manifest, run_dir.file(MODEL))

    def _train(self, batch: Batch) -> Any:
        """Makes one step on this process' rows. Returns its result over all processes, with sums float64 [4]."""
        # Each step has a seed of its own, so a run that goes on draws what it would have drawn (dropout).
        config = self.facts.config
        torch.manual_seed(key_of(DROPOUT, config.pipeline.seed, self._step, self._place.rank))
        for group in self._optimizer.param_groups:
            group["lr"] = self.rates.get(self._step)
        images, label = self._move(batch["image"]), self._move(batch["label"])
        with _explained_compiler():
            with self._compute():
                logits = self._replica(images)
            losses = nn.functional.cross_entropy(
                logits, label, reduction="none", label_smoothing=config.label_smoothing
            )
            self._optimizer.zero_grad()
            # The mean over this process; DistributedDataParallel takes the mean over processes of equal shares.
            losses.mean().backward()
        self._optimizer.step()
        self._step += 1
        sums = self._count(losses.detach(), logits.detach(), label, torch.ones_like(label, dtype=torch.bool))
        return (sums, self._gather(losses.detach().float())) if config.record_losses else sums

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, non_blocking=True)

    @contextmanager
    def _compute(self) -> Iterator[None]:
        """Computes in bfloat16 what gains by it, if that is the precision."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._dtype == torch.bfloat16):
            yield

    def _count(
        self, losses: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Returns the sums over the images of all processes, float64 [4]; see `SUM_NAMES`."""
        label_logit = logits.gather(1, labels[:, None])
        # As in TensorFlow's step, an equal logit of a lower number ranks before that of the label.
        has_lower_number = torch.arange(logits.shape[1], device=logits.device)[None] < labels[:, None]
        rank = ((logits > label_logit) | ((logits == label_logit) & has_lower_number)).sum(1)
        counts = label_logit[:, 0].isfinite()
        rows = torch.stack([losses.double(), (rank < 1) & counts, (rank < TOP) & counts, mask])
        sums = torch.where(mask, rows, 0.0).sum(1)  # a padded row may have any loss
        if self._place.num_ranks > 1:
            torch.distributed.all_reduce(sums)
        return sums

    def _gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns the rows of all processes, in the order of the batch."""
        if self._place.num_ranks == 1:
            return rows
        parts = [torch.empty_like(rows) for _ in range(self._place.num_ranks)]
        torch.distributed.all_gather(parts, rows)
        return torch.cat(parts)

    def _describe_devices(self) -> Devices:
        is_cuda = self._device.type == "cuda"
        return Devices(
            is_synchronous=not is_cuda,
            block_until_done=lambda _: torch.cuda.synchronize(self._device) if is_cuda else None,
            count_images=lambda batch: len(batch["label"]),
        )


class _Readable:
    """A loader whose errors are one sentence, although a worker raised them."""

    def __init__(self, loader: ShardLoader) -> None:
        """Sets the loader."""
        self._loader = loader

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches of a pass."""
        try:
            yield from self._loader
        except TfpipeError as error:
            # A worker's error comes with its traceback, whose last line names the error and says its sentence.
            _, _, sentence = str(error).rstrip().rpartition(f".{type(error).__name__}: ")
            raise type(error)(sentence) from error


@contextmanager
def _explained_compiler() -> Iterator[None]:
    """Makes one sentence of an error of `torch.compile`, which compiles in the first step.

    Raises:
        DataError: The model cannot be compiled here.
    """
    try:
        yield
    except RuntimeError as error:
        if not type(error).__module__.startswith(_COMPILER):
            raise
        cause = getattr(error, "inner_exception", error)  # the first line of the error around it names no cause
        raise DataError(
            f"torch.compile cannot compile the model here: {first_line(cause)}. Mend that, or leave `compile` out."
        ) from error


def _choose_dtype(precision: str, place: Place) -> torch.dtype:
    if precision == "auto":
        precision = "bfloat16" if place.has_bfloat16 else "float32"
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def _make_optimizer(model: nn.Module, weight_decay: float) -> torch.optim.Optimizer:
    """Makes SGD with Nesterov's momentum. Biases and the scales of normalization do not decay."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in weights if weight.ndim > 1], "weight_decay": weight_decay},
        {"params": [weight for weight in weights if weight.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.SGD([group for group in groups if group["params"]], lr=0.0, momentum=MOMENTUM, nesterov=True)
