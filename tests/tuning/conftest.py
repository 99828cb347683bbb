"""Pipelines that are not there: their rates are known, and a turn takes no time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from tfpipe.errors import DataError
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.tuning.paired_benchmark import Turn
from tfpipe.tuning.pipeline_process import Start
from tfpipe.tuning.trials import Job

Rate = Callable[[PipelineConfig], float]
"""Images a second of a config; what it raises, its pipeline raises."""


class Runner:
    """Takes turns at a rate that scatters, or exactly at it.

    Args:
        rate: Images a second.
        scatter: Standard deviation of its logarithm.
        spoiled: Share of the turns of which other work takes a third.
        rng: Where chance comes from.
    """

    def __init__(self, rate: float, scatter: float = 0.0, spoiled: float = 0.0, rng: Any = random) -> None:
        self.rate, self.scatter, self.spoiled, self.rng = rate, scatter, spoiled, rng
        self.start = Start(0.5, rate)
        self.start_s = 3.0
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


class FakeJob(Job):
    """A job whose contestants are runners; `made` holds them with their configs, in order."""

    @classmethod
    def of(cls, rate: Rate, records: int | None = None, step_s: float = 1e-9) -> FakeJob:
        job = cls(None, None, Accelerator(step_s, 100))  # type: ignore[arg-type]
        vars(job).update(rate=rate, records=records, made=[])
        return job

    def contestant(self, config: PipelineConfig, tick: Any = None) -> Any:
        if tick:
            tick()
        runner = Runner(vars(self)["rate"](config))
        vars(self)["made"].append((config, runner))
        return runner

    def steps_to_fill(self, config: PipelineConfig) -> int:
        return 0 if config.cache == "none" else math.ceil((vars(self)["records"] or 0) / 100)

    @property
    def runners(self) -> list[tuple[PipelineConfig, Runner]]:
        return list(vars(self)["made"])


@pytest.fixture
def runner() -> type[Runner]:
    return Runner


@pytest.fixture
def job_of() -> Callable[..., FakeJob]:
    return FakeJob.of
