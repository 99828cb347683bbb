"""The reference trainer in JAX: one call makes a finished model from a dataset. It loads no TensorFlow.

    config = TrainConfig(pipeline=PipelineConfig(batch_size=256), framework="jax", output="runs/flowers")
    with join_processes() as place:
        result = train(tfpipe.load_manifest("flowers"), config, place)

```
train.py        this file: sets up and starts the run; a model's step, compiled over the devices of all processes
processes.py    the processes and the mesh of their devices
models.py       the model;  export.py  the finished model as StableHLO
```

```
train ─▶ gradients of the mean loss of the global batch, whose rows lie on all devices ─▶ new parameters, whole on each
         sums of loss, correct images, ...                                             ─▶ returned
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from numpy.typing import NDArray

from tfpipe.format.manifest import Manifest
from tfpipe.profiler.live.step_monitor import Devices
from tfpipe.readers.jax import JaxBatches, normalize
from tfpipe.training.checkpoints import State
from tfpipe.training.config import MOMENTUM, TrainConfig
from tfpipe.training.jax.models import Parameters, apply_small_cnn, init_small_cnn
from tfpipe.training.jax.processes import Place
from tfpipe.training.learner import TOP, Learner, RunFacts, SingleSteps, Steps
from tfpipe.training.results import TrainObserver, TrainResult
from tfpipe.training.run import check_dataset, hold_layer, run_training
from tfpipe.training.run_dir import MODEL, RunDir

Batch = dict[str, jax.Array]


def train(
    manifest: Manifest,
    config: TrainConfig,
    place: Place,
    observer: TrainObserver | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> TrainResult:
    """Trains, evaluates after each epoch, and exports; or goes on with the run in `config.output`.

    A run may go on with another number of devices and processes, if the global batch stays the same.

    Args:
        manifest: A dataset, from `load_manifest`.
        config: The options of the training.
        place: The devices, from `join_processes`.
        observer: An object that gets the progress of the training.
        stop: A function that is called after each step. Once it returns True, the run is saved and ends.

    Raises:
        ConfigError: The options do not fit the dataset or the devices, or the folder holds another run.
        DataError: The dataset has no labels or cannot be read, the folder cannot be written, or the loss is not a
            number.
        FormatError: The dataset or the folder is damaged.
    """
    held = hold_layer(manifest, config.output, config.split)
    manifest = manifest if held is None else held.manifest
    check_dataset(manifest, config)
    pipeline = config.training_pipeline
    steps = len(JaxBatches(manifest, config.split, pipeline, sharding=place.rows))
    facts = RunFacts(manifest, config, pipeline.batch_size, steps, place.process, held)
    return run_training(facts, lambda: JaxLearner(facts, place), observer or TrainObserver(), stop)


class JaxLearner(Learner):
    """A model in JAX, whose parameters lie whole on every device."""

    def __init__(self, facts: RunFacts, place: Place) -> None:
        """Draws the parameters, which are the same on any number of devices."""
        super().__init__(facts)
        config = facts.config
        self._place, self._step = place, 0
        is_bfloat16 = config.precision == "bfloat16" or (config.precision == "auto" and place.has_bfloat16)
        self._dtype = jnp.bfloat16 if is_bfloat16 else jnp.float32
        self._train_once = jax.jit(self._compute_step, out_shardings=place.whole, donate_argnums=0)
        self._evaluate_once = jax.jit(self._compute_evaluation, out_shardings=place.whole)
        self._last: Any = None
        self._state = jax.jit(self._init_state, out_shardings=place.whole)()
        self._evaluation_batches: JaxBatches | None = None

    @property
    def parameters(self) -> Parameters:
        """The parameters of the model."""
        parameters: Parameters = self._state["parameters"]
        return parameters

    def open_steps(self, start_step: int, run_dir: RunDir) -> Steps:
        """Opens the training data at a global step of the run."""
        config, self._step = self.facts.config, start_step
        batches = self._open(config.split, config.training_pipeline, start_step)
        return SingleSteps(batches, self._train, self.facts.make_monitor(self._describe_devices(), run_dir))

    def evaluate(self, split: str) -> Iterator[NDArray[np.float64]]:
        """Yields the sums of each evaluation batch over all processes, float64 [4]."""
        if self._evaluation_batches is None:
            self._evaluation_batches = self._open(split, self.facts.config.evaluation_pipeline)
        for batch in self._evaluation_batches:
            yield self.read_sums(self._evaluate_once(self._state["parameters"], batch))

    def any_process(self, flag: bool) -> bool:
        """Returns whether `flag` is True in any process."""
        return bool(np.any(multihost_utils.process_allgather(np.array(flag))))

    def get_state(self) -> State:
        """Returns copies of the parameters and of their velocities."""
        leaves, _ = jax.tree_util.tree_flatten_with_path(self._state)
        return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}

    def set_state(self, state: State) -> None:
        """Takes the arrays of a checkpoint on all devices of this process.

        Raises:
            LookupError: An array is missing.
            ValueError: An array has another shape.
        """

        def place(path: Any, own: jax.Array) -> jax.Array:
            values = state[jax.tree_util.keystr(path)]
            if values.shape != own.shape:
                raise ValueError(f"{jax.tree_util.keystr(path)} has shape {values.shape} and not {own.shape}")
            return jax.make_array_from_callback(own.shape, self._place.whole, lambda index: values[index])

        self._state = jax.tree_util.tree_map_with_path(place, self._state)

    def export(self, run_dir: RunDir) -> None:
        """Writes the model to serve."""
        from tfpipe.training.jax.export import export_model

        parameters = jax.tree.map(np.asarray, self.parameters)
        export_model(parameters, self.facts.config.evaluation_pipeline, self.facts.manifest, run_dir.file(MODEL))

    def _open(self, split: str, pipeline: Any, start_step: int = 0) -> JaxBatches:
        threads = self.facts.config.workers or None
        return JaxBatches(self.facts.manifest, split, pipeline, start_step, self._place.rows, threads)

    def _train(self, batch: Batch) -> Any:
        """Makes one step. Returns its result, with sums float32 [4], which the devices may still compute."""
        rate = np.float32(self.rates.get(self._step))
        self._state, self._last = self._train_once(self._state, batch, rate)
        self._step += 1
        return self._last

    # Functions of arrays alone, which are compiled.

    def _init_state(self) -> dict[str, Parameters]:
        key = jax.random.key(self.facts.config.pipeline.seed % 2**32)
        parameters = init_small_cnn(key, self.facts.num_classes)
        return {"parameters": parameters, "velocity": jax.tree.map(jnp.zeros_like, parameters)}

    def _compute_step(
        self, state: dict[str, Parameters], batch: Batch, rate: jax.Array
    ) -> tuple[dict[str, Parameters], Any]:
        """Computes the gradients, and applies SGD with Nesterov's momentum as Keras does."""
        config = self.facts.config

        def get_loss(parameters: Parameters) -> tuple[jax.Array, Any]:
            logits = self._compute_logits(parameters, batch["image"])
            losses = _compute_losses(logits, batch["label"], config.label_smoothing)
            return losses.mean(), (losses, logits)

        parameters = state["parameters"]
        (_, (losses, logits)), gradients = jax.value_and_grad(get_loss, has_aux=True)(parameters)
        decay = config.weight_decay
        gradients = jax.tree.map(lambda g, w: g + decay * w if w.ndim > 1 else g, gradients, parameters)
        velocity = jax.tree.map(lambda v, g: MOMENTUM * v - rate * g, state["velocity"], gradients)
        parameters = jax.tree.map(lambda w, v, g: w + MOMENTUM * v - rate * g, parameters, velocity, gradients)
        sums = _count(losses, logits, batch["label"], jnp.ones_like(batch["label"], bool))
        result = (sums, losses) if config.record_losses else sums
        return {"parameters": parameters, "velocity": velocity}, result

    def _compute_evaluation(self, parameters: Parameters, batch: Batch) -> jax.Array:
        logits = self._compute_logits(parameters, batch["image"])
        return _count(_compute_losses(logits, batch["label"], 0.0), logits, batch["label"], batch["mask"])

    def _compute_logits(self, parameters: Parameters, images: jax.Array) -> jax.Array:
        if images.dtype == jnp.uint8:
            images = normalize(images, options=self.facts.config.pipeline.augment_options)
        return apply_small_cnn(parameters, images, self._dtype)

    def _describe_devices(self) -> Devices:
        return Devices(
            is_synchronous=False,  # a call returns when its work is given to the devices, on CPUs too
            block_until_done=lambda result: jax.block_until_ready(self._last if result is None else result),
            count_images=lambda batch: len(batch["label"]) // self.facts.num_processes,
        )


def _compute_losses(logits: jax.Array, labels: jax.Array, smoothing: float) -> jax.Array:
    """Returns the cross-entropy of each image, float32 [batch]."""
    log_probabilities = jax.nn.log_softmax(logits)
    losses = -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1)[:, 0]
    return (1.0 - smoothing) * losses - smoothing * log_probabilities.mean(axis=1) if smoothing else losses


def _count(losses: jax.Array, logits: jax.Array, labels: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the sums over the images of a batch, float32 [4]; see `SUM_NAMES`."""
    label_logit = jnp.take_along_axis(logits, labels[:, None], axis=1)
    # As in TensorFlow's step, an equal logit of a lower number ranks before that of the label.
    has_lower_number = jnp.arange(logits.shape[1])[None] < labels[:, None]
    rank = ((logits > label_logit) | ((logits == label_logit) & has_lower_number)).sum(axis=1)
    counts = jnp.isfinite(label_logit[:, 0])
    rows = jnp.stack([losses, (rank < 1) & counts, (rank < TOP) & counts, mask])
    return jnp.where(mask, rows, 0.0).sum(axis=1)  # a padded row may have any loss
