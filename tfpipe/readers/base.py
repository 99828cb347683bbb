"""The base of all readers: the opening of the engine, the options, the repr, and the position in a checkpoint.

The trainer's own functions run in the threads that make batches, and their errors reach the trainer unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Set
from functools import cached_property, partial
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfpipe.dataset.load import load_if_path
from tfpipe.engine.ahead import Passes, list_positions, make_ahead
from tfpipe.engine.batch import Batch, Maker, Transform, leave_out_masked, make_pair
from tfpipe.engine.clocks import Clocks
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.host import Host
from tfpipe.engine.mixture import Mixture
from tfpipe.engine.open_maker import open_maker, open_mixture
from tfpipe.engine.plan import AnyPlan, check_start_step, has_true_size, plan_batches
from tfpipe.engine.position import Position, Split, check_layers, find_position, get_layer, number_data, read_state
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.service import serve_remotely
from tfpipe.system import notebook
from tfpipe.system.arguments import check_count, check_function
from tfpipe.system.options import get_options
from tfpipe.system.units import human_count

Data: TypeAlias = Manifest | Mixture | str | os.PathLike[str]
"""What a reader opens: a manifest, a dataset's directory or URL, or several datasets from `tfpipe.mix`."""

ImageTransform: TypeAlias = Callable[[Any, "np.random.Generator"], NDArray[Any]]
"""A function from a whole Pillow image and random numbers to an array, all of one shape and dtype."""

BatchTransform: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
"""A function from a finished batch to the one that the trainer gets."""


def seed_transform(transform: ImageTransform | None) -> Transform | None:
    """Wraps a transform so that the engine calls it with a random generator that the record seeds."""
    check_function("transform", transform)
    return None if transform is None else partial(_call_seeded, transform)


def _call_seeded(transform: ImageTransform, image: Any, seed: int) -> NDArray[Any]:
    return transform(image, np.random.default_rng(seed))


Convert: TypeAlias = Callable[[Batch, Set[str]], Batch]
"""A function from a batch of NumPy arrays, and the names of those that hold bfloat16 as its bits, to a framework's."""


class Finish:
    """A callable that turns batches of the engine into the trainer's form. Threads may share it.

    `convert` makes a framework's arrays before the trainer's function runs, and `put` puts them on its devices after
    that. Without both the arrays are NumPy's. `library` names the module whose arrays a transform returns.
    """

    def __init__(
        self,
        maker: Maker,
        batch_transform: BatchTransform | None = None,
        convert: Convert | None = None,
        put: Callable[[Batch], Batch] | None = None,
        library: str = "numpy",
        *,
        fills_up: bool = False,
    ) -> None:
        check_function("batch_transform", batch_transform)
        plan, config = maker.plan, maker.plan.config
        self._maker, self._transform, self._convert, self._put = maker, batch_transform, convert, put
        self._library, self._config = library, config
        self._leaves_out_padding = has_true_size(config, plan.batch_size) and not fills_up
        self._has_images = plan.plans[0].source.has_images
        tensors = ((feature.name, feature.spec.tensor) for feature in plan.features)
        self._bfloat16 = {name for name, tensor in tensors if tensor is not None and tensor.dtype == "bfloat16"}
        if config.image_dtype == "bfloat16" and self._has_images:
            self._bfloat16.add("image")

    def __call__(self, batch: Batch) -> Any:
        """Returns the batch in the trainer's form: a dictionary, or (inputs, label[, mask]) with `as_supervised`."""
        config = self._config
        if self._has_images and isinstance(batch["image"], list):
            batch = {**batch, "image": self._stack(batch["image"])}
        if config.as_supervised and "mask" in batch:
            batch = {**batch, "mask": batch["mask"].astype(np.float32)}  # Keras takes it as sample weights
        if self._convert is not None:
            batch = self._convert(batch, self._bfloat16)
        if self._leaves_out_padding:
            batch = leave_out_masked(batch)
        if self._transform is not None:
            with self._maker.clocks.measure("batch_transform"):
                batch = self._transform(batch)
            if not isinstance(batch, dict):
                raise ConfigError(f"`batch_transform` must return a dictionary, got {type(batch).__name__}.")
            lacks = {"image", "label", *config.extra_features} - set(batch) if config.as_supervised else set()
            if lacks:
                raise ConfigError(
                    f"`batch_transform` must return {', '.join(sorted(lacks))} too, of which `as_supervised` makes a "
                    f"pair, got {', '.join(map(str, batch)) or 'nothing'}."
                )
        if self._put is not None:
            batch = self._put(batch)
        return make_pair(batch, config) if config.as_supervised else batch

    def _stack(self, images: list[Any]) -> Any:
        """Stacks a transform's results, and zeros in rows of padding."""
        library, plan = import_module(self._library), self._maker.plan
        # A host may have fewer records to evaluate than others, and none for its last batch.
        examples, kind = images or [self._maker.make_example_image()], type(library.zeros(0))
        wrong = next((image for image in examples if not isinstance(image, kind)), None)
        forms = sorted({f"{image.dtype} {tuple(image.shape)}" for image in examples}) if wrong is None else []
        if len(forms) != 1:
            got = type(wrong).__name__ if wrong is not None else " and ".join(forms)
            raise ConfigError(f"`transform` must return {kind.__name__}s of one shape and dtype, got {got}.")
        filled = plan.batch_size * (plan.num_images or 1) - len(images)
        stacked = library.stack([*images, *[library.zeros_like(examples[0])] * filled])
        return stacked if plan.num_images is None else stacked.reshape(-1, plan.num_images, *stacked.shape[1:])


class Batches:
    """The base of a reader: its plan, its options, and its repr, which a notebook shows with images."""

    position: Position
    _maker: Maker

    @property
    def plan(self) -> AnyPlan:
        """The plan of the batches."""
        return self._maker.plan

    @property
    def config(self) -> PipelineConfig:
        """The options of the pipeline."""
        return self.plan.config

    def __len__(self) -> int:
        """Returns the number of batches in a whole epoch."""
        return self.plan.steps_per_epoch

    def __repr__(self) -> str:
        data = " and ".join(f"{split!r} of {manifest.address}" for manifest, split in list_splits(self.plan))
        batches = f"{human_count(len(self), 'batch', 'batches')} of {self.config.batch_size}"
        return f"<{type(self).__name__}: {batches} from {data}, {self._describe_position()}>"

    def _repr_html_(self) -> str | None:
        return notebook.show(self)

    def _describe_position(self) -> str:
        epoch, step = self.position
        return f"epoch {epoch}, step {step}"


class Resumable(Batches):
    """A reader that resumes at the position in a checkpoint."""

    def set_epoch(self, epoch: int) -> None:
        """Lets the next pass begin with this epoch; each pass of an evaluation begins at 0."""
        self.position = find_position(check_count("epoch", epoch) * len(self) * self.config.training, len(self))

    def state_dict(self) -> dict[str, int]:
        """Returns what a checkpoint keeps: "seed", "epoch" and "step" of the batch that comes next.

        "order" is the version of the order, `tfpipe.engine.order.ORDER_VERSION`; "data" a number that stands for the
        records; "layer" the layer of the dataset, where it has grown. In a mixture "layer" is that of the first
        dataset, "layer_2" that of the second.
        """
        layers = [get_layer(manifest) for manifest, _ in list_splits(self.plan)]
        return self.position.state(self.config.seed, self._data_number, layers)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes on from the position in a state, with the same data and config, on any number of processes."""
        manifests = [manifest for manifest, _ in list_splits(self.plan)]
        check_layers(state, manifests)
        position = read_state(state, self.config.seed, len(self))
        if state["data"] != self._data_number:
            addresses = " and ".join(manifest.address for manifest in manifests)
            raise ConfigError(
                f"The position is of other records than those of {addresses}, or of the same in another order. Open "
                "the dataset or view as it was when the position was saved, or begin a new run."
            )
        check_start_step(position.epoch * len(self) + position.step, self.config, "state")
        self.position = position

    @cached_property
    def _data_number(self) -> int:
        return number_data(list_splits(self.plan))


class EpochBatches(Resumable):
    """The batches of one process, as an iterable of epochs; in threads, `finish` puts each into the trainer's form."""

    def __init__(self, maker: Maker, start_step: int, num_threads: int | None, finish: Callable[[Batch], Any]) -> None:
        self._maker = maker
        self._threads = self.config.max_threads if num_threads is None else num_threads
        check_count("num_threads", self._threads, 1)
        start = partial(_make_on_host, maker, self._threads, finish)  # must not refer to this object
        self._passes = Passes(start, len(self), locate(maker, start_step), self.config.training)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._passes)

    @property
    def clocks(self) -> Clocks:
        """The time that this process spent on batches, by phase."""
        return self._maker.clocks

    @property
    def position(self) -> Position:
        """The position of the batch that comes next."""
        return self._passes.position

    @position.setter
    def position(self, position: Position) -> None:
        self._passes.position = position


def open_data(data: Data, split: str, config: PipelineConfig, host: Host, transform: Transform | None = None) -> Maker:
    """Opens the maker of one process's batches for a reader."""
    for name, option in get_options(config).items():
        value = getattr(config, name)
        if option.without_tensorflow is not None and value not in option.without_tensorflow:
            raise ConfigError(
                f"`{name}` {value!r} is for the TensorFlow pipeline only: here records are read one by one, in exact "
                "order. Leave it out."
            )
    if transform is not None and config.service.workers:
        raise ConfigError("A `transform` runs in this process, and a `service` makes batches elsewhere. Leave one out.")
    opened: Manifest | Mixture = load_if_path(data, Manifest, Mixture)
    if isinstance(opened, Mixture):
        return serve_remotely(open_mixture(opened, split, config, host, transform))
    return serve_remotely(open_maker(plan_batches(Source.from_manifest(opened, split), config, host), transform))


def locate(maker: Maker, start_step: int) -> Position:
    """Converts a global step of a run to an epoch and the step in it."""
    start_step = check_count("start_step", start_step)
    check_start_step(start_step, maker.plan.config)
    return find_position(start_step, maker.plan.steps_per_epoch)


def list_splits(plan: AnyPlan) -> list[Split]:
    """Lists the splits that a plan reads: one, or one of each dataset of a mixture."""
    read = [(each.source.manifest, each.source.split) for each in plan.plans]
    return [(manifest, split) for manifest, split in read if manifest and split]


def _make_on_host(maker: Maker, threads: int, finish: Callable[[Batch], Any], begin: Position) -> Generator[Any]:
    """Returns a generator of batches from a position on, which threads make ahead; in training it has no end."""
    config = maker.plan.config
    positions = list_positions(begin, maker.plan.steps_per_epoch, config.training)
    return make_ahead(maker, positions, threads, finish, config.prefetch_batches)
