"""Stand-ins for pipelines: their rates are known, and a turn takes no time."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import DataError
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.tuning.paired_benchmark import Turn
from tfpipe.tuning.pipeline_process import PipelineProcess, Start, TimeIsUpError
from tfpipe.tuning.trials import PipelineJob

Rate = Callable[[PipelineConfig], float]
"""Returns the images per second of a config; an error that it raises is the pipeline's."""


class Runner:
    """A pipeline that takes turns at a rate that scatters, or exactly at it.

    Args:
        rate: Images per second.
        scatter: Standard deviation of the rate's logarithm.
        spoiled: Share of the turns of which other work takes a third.
        rng: The source of chance.
    """

    def __init__(self, rate: float, scatter: float = 0.0, spoiled: float = 0.0, rng: Any = random) -> None:
        self.rate, self.scatter, self.spoiled, self.rng = rate, scatter, spoiled, rng
        self.start = Start(0.5, rate)
        self.start_s = 3.0
        self.deadline = math.inf
        self.is_alive = True
        self.closed = False
        self.turns = 0
        self.dies_in_turn = math.inf

    def turn(self, seconds: float) -> Turn:
        self.turns += 1
        if self.turns >= self.dies_in_turn:
            self.is_alive = False
        if not self.is_alive:
            raise DataError("It died.")
        rate = self.rate * math.exp(self.rng.gauss(0, self.scatter)) if self.scatter else self.rate
        if self.spoiled and self.rng.random() < self.spoiled:
            rate *= 2 / 3
        return Turn(round(rate * seconds * 1000), seconds * 1000, seconds * 1500, 10**8)

    def close(self) -> None:
        self.is_alive, self.closed = False, True

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class FakeJob(PipelineJob):
    """A job whose processes are runners.

    Attributes:
        rate: The rate of each config.
        records: Records of the data.
        cache_bytes: The `cache_bytes` of every cache; None if it fits as a whole.
        runners: The runners with their configs, in the order of their starts.
    """

    rate: Rate = lambda _: 1.0
    records: int = 0
    cache_bytes: str | None = None
    runners: list[tuple[PipelineConfig, Runner]] = field(default_factory=list)

    def start_process(self, config: PipelineConfig, deadline: float = math.inf) -> PipelineProcess:
        if time.monotonic() > deadline:
            raise TimeIsUpError
        runner = Runner(self.rate(config))
        self.runners.append((config, runner))
        return cast("PipelineProcess", runner)

    def find_cache_bytes(self, config: PipelineConfig, free_bytes: int) -> str | None:
        return self.cache_bytes if config.cache != "none" and config.cache_bytes is None else None

    def count_steps_to_fill(self, config: PipelineConfig) -> int:
        return 0 if config.cache == "none" else math.ceil(self.records / 100)


def job_without_data(step_s: float = 1e-9) -> PipelineJob:
    """Returns a job for tests that never open its data."""
    return PipelineJob(cast("Any", None), None, Accelerator(step_s, 100))


@pytest.fixture
def runner() -> type[Runner]:
    return Runner


@pytest.fixture
def fake_job() -> Callable[..., FakeJob]:
    """Builds jobs from the rate of a config, and the number of records."""

    def build(rate: Rate, records: int = 0) -> FakeJob:
        return FakeJob(cast("Any", None), None, Accelerator(1e-9, 100), rate=rate, records=records)

    return build
