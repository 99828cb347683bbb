"""The base of all readers: the engine behind them, their options, their text, and the position in a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from functools import cached_property, partial
from typing import Any

from tfpipe.dataset.load import load_if_path
from tfpipe.engine.ahead import Passes, list_positions, make_ahead
from tfpipe.engine.batch import Batch, Maker, Transform
from tfpipe.engine.clocks import Clocks
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.host import Host
from tfpipe.engine.mixture import Mixture
from tfpipe.engine.open_maker import open_maker, open_mixture
from tfpipe.engine.plan import AnyPlan, check_start_step, plan_batches
from tfpipe.engine.position import Position, Split, check_layers, get_layer, number_data, read_state
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.service import serve_remotely
from tfpipe.system import notebook
from tfpipe.system.arguments import check_count, check_function
from tfpipe.system.options import get_options
from tfpipe.system.units import human_count


class Batches:
    """The plan and the options of a reader, and its text, which a notebook shows with images."""

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
        """Lets the next pass begin with this epoch."""
        self.position = Position(epoch, 0)

    def state_dict(self) -> dict[str, int]:
        """Returns what a checkpoint keeps: "seed", "epoch" and "step" of the batch that comes next.

        "order" is the version of the order, `tfpipe.engine.order.ORDER_VERSION`; "data" a number that stands for the
        records; "layer" the layer of the dataset, where it has grown. In a mixture "layer" is that of the first
        dataset, "layer_2" that of the second.
        """
        layers = [get_layer(manifest) for manifest, _ in list_splits(self.plan)]
        return self.position.state(self.config.seed, self._data_number, layers)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes on where `state_dict` was called, with the same data and config, on any number of processes."""
        manifests = [manifest for manifest, _ in list_splits(self.plan)]
        check_layers(state, manifests)
        position = read_state(state, self.config.seed, len(self))
        if state["data"] != self._data_number:
            addresses = " and ".join(manifest.address for manifest in manifests)
            raise ConfigError(
                f"The position is of other records than those of {addresses}, or of the same in another order. Open "
                "the dataset or view as it was when the position was saved, or begin a new run."
            )
        self.position = position

    @cached_property
    def _data_number(self) -> int:
        return number_data(list_splits(self.plan))


class EpochBatches(Resumable):
    """The batches of one process, as an iterable of epochs; `finish` puts each into the trainer's form in a thread."""

    def __init__(self, maker: Maker, start_step: int, num_threads: int | None, finish: Callable[[Batch], Any]) -> None:
        self._maker = maker
        start = partial(_make_on_host, maker, num_threads, finish)  # which must not hold this object
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


def open_data(
    data: Manifest | Mixture | str | os.PathLike[str],
    split: str,
    config: PipelineConfig,
    host: Host,
    transform: Transform | None = None,
) -> Maker:
    """Opens a split for a reader: the maker of the batches of one process."""
    _check_config(config)
    check_function("transform", transform)
    if transform is not None and config.service.workers:
        raise ConfigError("A `transform` runs in this process, and a `service` makes batches elsewhere. Leave one out.")
    opened: Manifest | Mixture = load_if_path(data, Manifest, Mixture)
    if isinstance(opened, Mixture):
        return serve_remotely(open_mixture(opened, split, config, host, transform))
    plan = plan_batches(Source.from_manifest(opened, split), config, host)
    return serve_remotely(open_maker(plan, transform))


def locate(maker: Maker, start_step: int) -> Position:
    """Returns the position of a global step of a run."""
    check_count("start_step", start_step)
    check_start_step(start_step, maker.plan.config)
    return Position(*divmod(start_step, maker.plan.steps_per_epoch))


def list_splits(plan: AnyPlan) -> list[Split]:
    """Lists the splits that a plan reads: one, or one of each dataset of a mixture."""
    read = [(part.source.manifest, part.source.split) for part in plan.parts]
    return [(manifest, split) for manifest, split in read if manifest and split]


def _check_config(config: PipelineConfig) -> None:
    for name, option in get_options(config).items():
        value = getattr(config, name)
        if option.without_tensorflow is not None and value not in option.without_tensorflow:
            raise ConfigError(
                f"`{name}` {value!r} is for the TensorFlow pipeline only: here records are read one by one, in exact "
                "order. Leave it out."
            )


def _make_on_host(
    maker: Maker, num_threads: int | None, finish: Callable[[Batch], Any], begin: Position
) -> Generator[Any]:
    """Begins to make batches at a position, without end in training."""
    config = maker.plan.config
    threads = config.max_threads if num_threads is None else num_threads
    check_count("num_threads", threads, 1)
    positions = list_positions(begin, maker.plan.steps_per_epoch, config.training)
    return make_ahead(maker, positions, threads, finish, config.prefetch_batches)
