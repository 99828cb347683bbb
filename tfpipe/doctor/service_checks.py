"""The checks of a service: do its workers answer, do they make the batches that this host makes, and how many.

for check in check_service(("10.0.0.6:5050", "10.0.0.7:5050"), manifest, "train"):
    print(check.status, check.name, check.found, check.advice)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tfpipe.doctor.result import Check, fail_check
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.config.service_options import ServiceOptions
from tfpipe.engine.open_maker import open_maker
from tfpipe.engine.plan import plan_batches
from tfpipe.engine.source import Source, get_source
from tfpipe.errors import TfpipeError
from tfpipe.format.manifest import Manifest
from tfpipe.service.client import Workers
from tfpipe.service.measure import ServiceRates, measure_rates
from tfpipe.service.remote import RemoteMaker
from tfpipe.system.units import human_bytes, human_count

_MEASURE_S = 3.0
_ANSWER_S = 60


def check_service(workers: tuple[str, ...], data: Manifest | Source | None, split: str | None) -> Iterator[Check]:
    """Checks a service as a trainer sees it.

    Args:
        workers: The addresses of the workers.
        data: The data that the workers must read; None if this is not to be checked.
        split: The name of a split.

    Yields:
        The checks "workers" and "reads".
    """
    service = ServiceOptions(workers=workers, timeout_s=_ANSWER_S)
    config = PipelineConfig(batch_size=1, training=False, service=service)
    missing = Workers(workers, 1).call_all()
    yield describe_workers(workers, missing)
    if data is None:
        yield Check("reads", "skipped", "Not asked.", "Name a dataset to learn whether the workers can read it.")
    elif len(missing) < len(workers):
        yield _check_reads(get_source(data, split), config, [one for one in workers if one not in missing])


def describe_workers(workers: Sequence[str], missing: Mapping[str, str]) -> Check:
    """Says which workers answer.

    Args:
        workers: The workers.
        missing: The workers that cannot be used, each with the trouble.
    """
    if missing:
        listed = ", ".join(f"{worker} ({trouble})" for worker, trouble in missing.items())
        finding = f"{len(workers) - len(missing)} of {human_count(len(workers), 'worker')} answer; missing: {listed}."
        advice = "Start it on its machine with: tfpipe serve. All machines need the same release of tfpipe."
        return Check("workers", "failure", finding, advice)
    count = human_count(len(workers), "worker")
    return Check("workers", "ok", f"{count} answer{'s' if len(workers) == 1 else ''}: {', '.join(workers)}.")


def check_speed(data: Manifest | Source, split: str | None, config: PipelineConfig) -> Iterator[Check]:
    """Measures how many images the workers give while they are asked for as many as they can make.

    Yields:
        The check "speed".
    """
    try:
        plan = plan_batches(get_source(data, split), config)
        rates = measure_rates(RemoteMaker(open_maker(plan)), _MEASURE_S)
        yield describe_speed(rates, plan.config.batch_size)
    except TfpipeError as error:
        yield fail_check("speed", error)


def describe_speed(rates: ServiceRates, images: int) -> Check:
    """Says what the workers give, in batches of so many images."""
    total = sum(worker.batches_per_second for worker in rates.workers)
    listed = ", ".join(f"{worker.address} {worker.batches_per_second * images:,.0f}" for worker in rates.workers)
    finding = f"The workers give {total * images:,.0f} images/s, {human_bytes(total * rates.batch_bytes)}/s: {listed}."
    return Check("speed", "ok", finding)


def _check_reads(source: Source, config: PipelineConfig, workers: Sequence[str]) -> Check:
    """Says whether each worker makes the batches of the first and the last record as this machine does."""
    try:
        local = open_maker(plan_batches(source, replace(config, service=ServiceOptions())))
        steps = (0, local.plan.steps_per_epoch - 1)
        expected = [local.make(0, step) for step in steps]
        for worker in workers:
            one = replace(config, service=replace(config.service, workers=(worker,)))
            maker = RemoteMaker(open_maker(plan_batches(source, one)))
            for step, batch in zip(steps, expected, strict=True):
                given = maker.make(0, step)
                if any(not np.array_equal(values, given[name]) for name, values in batch.items()):
                    advice = "All machines need the same release of tfpipe, and the same kind of processor."
                    return Check("reads", "failure", f"{worker} makes step {step} with other values.", advice)
    except TfpipeError as error:
        return fail_check("reads", error)
    count = human_count(len(workers), "worker")
    return Check("reads", "ok", f"{count} made the first and the last record of {source.name} as this machine does.")
