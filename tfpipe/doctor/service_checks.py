"""The checks of a tf.data service: does it answer, which workers has it, do they run and read what a trainer sends.

for check in check_service("grpc://10.0.0.5:5050", source):
    print(check.status, check.name, check.found, check.advice)
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import tensorflow as tf

from tfpipe.doctor import data_checks
from tfpipe.doctor.result import Check, fail_check
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError, TfpipeError, first_line
from tfpipe.pipeline import service_client, service_measure, service_steps
from tfpipe.pipeline.build import build_stages
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import Customize, customize_stages
from tfpipe.system.units import human_bytes, human_count

_FILES = 4
_ANSWER_S = 20.0
_ANY_WORKER = -1
_NOTHING = ""


class ProbeAnswers(NamedTuple):
    """The answers of workers to a small pipeline.

    Attributes:
        ran: The workers that ran it, by their numbers; a worker without a number is one more `None`.
        failed: The paths whose first record a worker did not read as this machine does, each with the worker.
        error: The first line of TensorFlow's error; None if there was none.
    """

    ran: tuple[int | None, ...]
    failed: tuple[tuple[int | None, str], ...]
    error: str | None


def check_service(address: str, source: Source | None, option: str = "`service`") -> Iterator[Check]:
    """Checks a service as a trainer sees it.

    Args:
        address: The address of the dispatcher, "grpc://host:port".
        source: The data that the workers must read; None if this is not to be checked.
        option: The option that gave the address, for messages.

    Yields:
        The checks "dispatcher", "workers", "versions", "journal" and "reads", as far as they can be made.
    """
    try:
        service_client.check_address(address, option)
    except ConfigError as error:
        yield fail_check("dispatcher", error)
        return
    yield Check("dispatcher", "ok", f"{address} answers.")
    known, alive = service_client.find_workers(address), service_client.list_live_workers(address)
    missing = {worker: trouble for worker in known or alive if (trouble := _find_trouble(worker))}
    yield describe_workers(address, known, alive, missing)
    answering = [worker for worker in known or alive if worker not in missing]
    if answering:
        compression = "" if source is None else source.compression
        answers = _probe(address, known, len(answering), _choose_files(source), compression)
        yield describe_versions(tf.__version__, answers, answering, known)
    yield describe_journal(service_client.keeps_journal(address))
    if source is None:
        yield Check("reads", "skipped", "Not asked.", "Name a dataset to learn whether the workers can read it.")
    elif answering:
        yield describe_reads(answers, known, len(_choose_files(source)))


def describe_workers(address: str, known: Sequence[str], alive: Sequence[str], missing: dict[str, str]) -> Check:
    """Says which workers there are.

    Args:
        address: The address of the dispatcher.
        known: The workers that the dispatcher knows; none if it takes any.
        alive: The workers that joined.
        missing: The workers that do not answer, each with the trouble.
    """
    workers = known or alive
    if not workers:
        advice = f"Start one with: tfpipe serve --dispatcher {address}"
        return Check("workers", "failure", "No worker has joined the dispatcher.", advice)
    if missing:
        listed = ", ".join(f"{worker} ({trouble})" for worker, trouble in missing.items())
        answering = len(workers) - len(missing)
        finding = f"{answering} of {human_count(len(workers), 'worker')} answer; missing: {listed}."
        advice = f"Start it again under its address, with: tfpipe serve --dispatcher {address} --worker-port PORT"
        return Check("workers", "failure", finding, advice)
    finding = f"{human_count(len(workers), 'worker')} answer{'s' if len(workers) == 1 else ''}: {', '.join(workers)}."
    if known:
        return Check("workers", "ok", f"{finding} The dispatcher knows them by address, as exact order needs.")
    advice = "Name the workers with --worker-address where the dispatcher starts, to get exact order."
    return Check("workers", "warning", f"{finding} Any worker may join, so there is no exact order.", advice)


def describe_versions(version: str, answers: ProbeAnswers, workers: Sequence[str], known: Sequence[str]) -> Check:
    """Says whether the workers run what this TensorFlow sends.

    Args:
        version: The version of this TensorFlow.
        answers: The answers of the workers.
        workers: The workers that should have answered.
        known: The workers that the dispatcher knows, by their numbers.
    """
    advice = f"Install TensorFlow {version} there, and the same release of tfpipe."
    if answers.error is not None:
        found = f"A pipeline of TensorFlow {version} failed in the service: {answers.error}."
        return Check("versions", "failure", found, advice)
    late = [worker for worker in workers if worker in known and known.index(worker) not in answers.ran]
    count = len(late) if known else len(workers) - len(answers.ran)
    if count:
        whose = ", ".join(late) or f"{count} of {human_count(len(workers), 'worker')}"
        finding = f"{whose} did not run a small pipeline of TensorFlow {version} within {_ANSWER_S:g} s."
        return Check("versions", "failure", finding, advice)
    return Check("versions", "ok", f"Every worker runs a pipeline of this TensorFlow, {version}.")


def describe_journal(keeps_journal: bool) -> Check:
    """Says whether the dispatcher can start again."""
    if keeps_journal:
        return Check("journal", "ok", "The dispatcher keeps a journal, and goes on with its jobs after a restart.")
    advice = "Start the dispatcher with --work-dir DIR, in a folder that outlives it."
    return Check("journal", "warning", "The dispatcher keeps no journal, so its jobs end with it.", advice)


def describe_reads(answers: ProbeAnswers, known: Sequence[str], files: int) -> Check:
    """Says whether the workers read the dataset.

    Args:
        answers: The answers of the workers.
        known: The workers that the dispatcher knows, by their numbers.
        files: The number of files that each worker was asked for.
    """
    if answers.failed:
        worker, path = answers.failed[0]
        whose = "A worker" if worker is None else known[worker]
        more = f" ({len(answers.failed)} such answers in all)" if len(answers.failed) > 1 else ""
        finding = f"{whose} must read the first record of {path} as this machine does, and does not{more}."
        advice = "The shards must lie under the same path or URL on every worker, and be the same files."
        return Check("reads", "failure", finding, advice)
    if not answers.ran:
        return Check("reads", "skipped", "Not reached: see versions.")
    finding = (
        f"Every worker that ran the pipeline read {human_count(files, 'file')} of the dataset as this machine does."
    )
    return Check("reads", "ok", finding)


def check_delivery(source: Source, config: PipelineConfig, customize: Customize | None = None) -> Iterator[Check]:
    """Measures each worker by itself, all at once, and what their batches take on the wire.

    Args:
        source: The data to read.
        config: The options of the pipeline, with a `service`.
        customize: A function that changes the pipeline's stages; None leaves them as they are.

    Yields:
        The checks "speed" and "wire"; one that is skipped without exact order, which alone names the worker of a batch.
    """
    try:
        plan = ReadPlan.for_host(source, config, None, 0)
        if not plan.by_steps:
            yield Check("speed", "skipped", "Workers are measured where `order` is exact.")
            return
        stages = customize_stages(build_stages(source, None, config), customize, config).until("batch")
        datasets = service_steps.split_by_worker(plan, stages)
        named = service_measure.name_workers(datasets)
        batches = service_measure.measure_rates(named, config.service_timeout_s).values()
        rates = dict(zip(datasets, (rate * plan.host_batch_size for rate in batches), strict=True))
        yield describe_speed(rates)
        compression = service_measure.measure_compression(next(iter(datasets.values())))
        yield describe_wire(
            sum(batches) * compression.batch_bytes, compression.compressed_fraction, compression.compress_s
        )
    except TfpipeError as error:
        yield fail_check("speed", error)
    except tf.errors.OpError as error:
        yield Check("speed", "failure", f"{first_line(error)}.")


def check_decoder(plan: ReadPlan) -> Check:
    """Tells who decodes the images on the workers.

    Args:
        plan: The read plan, whose config has a `service`.
    """
    assert plan.config.service is not None
    try:
        service_client.check_address(plan.config.service)
    except ConfigError:
        return Check("decoder", "skipped", "Not reached: see dispatcher.")
    cpus = service_client.count_native_cpus(plan.config.service)
    fits = replace(plan, worker_cpus=1).decoder == "native"
    missing = "not every worker of the `service` has the release of this machine" if fits and cpus is None else None
    return data_checks.check_decoder(replace(plan, worker_cpus=cpus).decoder, missing)


def describe_speed(rates: Mapping[str, float]) -> Check:
    """Says which worker is late.

    Args:
        rates: The images that each worker makes in a second while all of them work, by its address.
    """
    total, slowest = sum(rates.values()), service_measure.find_late_worker(rates)
    finding = f"The workers make {total:,.0f} images/s: " + ", ".join(
        f"{worker} {rate:,.0f}" for worker, rate in rates.items()
    )
    if slowest is None:
        return Check("speed", "ok", f"{finding}.")
    in_turn = rates[slowest] * len(rates)
    advice = "Give it as many free cores and as near a dataset as the others have, or leave it out."
    return Check(
        "speed",
        "warning",
        f"{finding}. {slowest} is late, and exact order waits for it: {in_turn:,.0f} images/s come.",
        advice,
    )


def describe_wire(bytes_s: float, packed_share: float, seconds: float) -> Check:
    """Says what goes over the network, and what compression would change.

    Args:
        bytes_s: The bytes of batches that leave all workers in a second.
        packed_share: The size of a compressed batch by the size of the batch.
        seconds: The processor time to compress a batch.
    """
    change = f"{1 - packed_share:.0%} smaller" if packed_share < 1 else "no smaller"
    finding = f"{human_bytes(bytes_s)} a second, not compressed. Snappy would make a batch {change} for "
    finding += f"{seconds * 1e3:.0f} ms of a core."
    return Check("wire", "ok", finding)


def _find_trouble(worker: str) -> str:
    return service_client.find_trouble(*service_client.split_address(f"grpc://{worker}", "the worker"))


def _choose_files(source: Source | None) -> list[str]:
    """Chooses a few files of the dataset that hold records, the first and the last among them."""
    counts = None if source is None else source.shard_records
    files = [] if source is None else [path for k, path in enumerate(source.files) if counts is None or counts[k]]
    last = len(files) - 1
    return [files[place] for place in sorted({round(last * k / (_FILES - 1)) for k in range(_FILES)})] if files else []


def _probe(address: str, known: Sequence[str], count: int, files: Sequence[str], compression: str = "") -> ProbeAnswers:
    """Sends a small pipeline to all workers, and waits for `count` of them, but not without end.

    Each worker reads the first record of each file. The hash of a record is enough to compare it.
    """
    paths = tf.constant([_NOTHING, *files])  # the first entry is for the answer itself

    def read(place: tf.Tensor) -> tf.data.Dataset:
        # A file that cannot be opened gives its error again and again, and a `zip` ends with its first part.
        one = tf.data.Dataset.zip((tf.data.Dataset.range(1), tf.data.TFRecordDataset(paths[place], compression)))
        nothing = tf.data.Dataset.from_tensors((tf.constant(0, tf.int64), _NOTHING))
        first = one.ignore_errors().concatenate(nothing).take(1)
        return first.map(lambda _, record: (place, tf.strings.to_hash_bucket_fast(record, 2**62)))

    places = tf.data.Dataset.range(len(files) + 1)
    expected = {int(place): int(digest) for place, digest in places.flat_map(read)}
    service = tf.data.experimental.service
    if known:
        hint = tf.data.experimental.SHARD_HINT
        workers, policy = tf.data.Dataset.range(len(known)).shard(hint, hint), service.ShardingPolicy.HINT
    else:
        workers, policy = tf.data.Dataset.from_tensors(tf.constant(_ANY_WORKER, tf.int64)), service.ShardingPolicy.OFF
    answers = workers.flat_map(lambda worker: places.flat_map(read).map(lambda *read: (worker, *read)))
    answers = answers.apply(service.distribute(policy, address, compression=None)).take(count * len(expected))
    rows, error = _collect(answers)
    ran = tuple(None if worker == _ANY_WORKER else worker for worker, place, _ in rows if place == 0)
    failed = tuple(
        (None if worker == _ANY_WORKER else worker, files[place - 1])
        for worker, place, digest in rows
        if digest != expected[place] or (place and digest == expected[0])  # as of nothing
    )
    return ProbeAnswers(ran, failed, error)


def _collect(answers: tf.data.Dataset) -> tuple[list[tuple[int, int, int]], str | None]:
    """Collects what comes within some seconds, and the first line of an error."""
    rows: list[tuple[int, int, int]] = []
    errors: list[str] = []

    def read() -> None:
        try:
            for answer in answers.as_numpy_iterator():
                rows.append(tuple(map(int, answer)))  # type: ignore[arg-type]
        except tf.errors.OpError as error:
            errors.append(first_line(error))

    # A worker that hangs would hold up the iterator without end.
    thread = threading.Thread(target=read, name="tfpipe-probe", daemon=True)
    thread.start()
    thread.join(_ANSWER_S)
    return list(rows), next(iter(errors), None)
