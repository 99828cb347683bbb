"""Measures the service of a pipeline: the images of each worker while all of them make as many as they can."""

from __future__ import annotations

from typing import Literal

from tfpipe.engine.open_maker import open_maker
from tfpipe.engine.plan import BatchPlan
from tfpipe.profiler.measure.host_usage import HostTime
from tfpipe.profiler.types import ServiceUse, Spread, StageTiming, StepTiming, WorkerTiming
from tfpipe.service.measure import ServiceRates, measure_rates
from tfpipe.service.remote import RemoteMaker

_MEASURE_S = 3.0


def measure_service(plan: BatchPlan, timing: StepTiming) -> ServiceUse:
    """Measures the service after a run.

    Raises:
        ConfigError: No worker answers.
        TfpipeError: No worker gave a batch in time.
    """
    rates = measure_rates(RemoteMaker(open_maker(plan)), _MEASURE_S)
    return describe_service(rates, timing, plan.config.service.share)


def describe_service(rates: ServiceRates, timing: StepTiming, local_share: float | Literal["auto"]) -> ServiceUse:
    """Puts together what was measured. Pure.

    Args:
        rates: The rates of the service, asked for as much as it gives.
        timing: The figures of the run.
        local_share: The option `share` of the service. Only the share of "auto" must be measured.
    """
    images = timing.images_per_step
    remote = sum(worker.batches_per_second for worker in rates.workers)
    local = max(1 - remote / rates.batches_per_second, 0.0) if local_share == "auto" else local_share
    return ServiceUse(
        workers=tuple(
            WorkerTiming(worker.address, worker.batches_per_second * images, worker.busy_fraction)
            for worker in rates.workers
        ),
        local_fraction=local,
        batch_bytes=rates.batch_bytes,
        wire_bytes_per_second=timing.steps / timing.wall_s * (1 - local) * rates.batch_bytes,
    )


def time_taking(before: HostTime, after: HostTime, timing: StepTiming, use: ServiceUse) -> StageTiming:
    """Returns the figures of the stage that takes batches from a service.

    All processor time of this process counts: tf.data's counters take the wait for a worker for work.
    """
    images = timing.steps * timing.images_per_step
    cpu_us = (after.process - before.process) / images * 1e6
    image_bytes = use.batch_bytes / timing.images_per_step
    return StageTiming("prefetch", Spread(cpu_us, cpu_us, cpu_us), bytes_out_per_image=image_bytes)
