"""Exact order by a tf.data service in real processes: equal to a local run, through kills; and what the order costs.

    python tests/benchmarks/service_order.py DATASET --check 200 --kills 10 --seed 1
    python tests/benchmarks/service_order.py DATASET --rates 40 --workers 1 2 3

Each check compares two host processes with one local run, by the SHA-256 of every host's part of every global batch. A
kill takes a random worker when a host has reached a random step; its seed is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from tfpipe.data_service import Service, ServiceConfig
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.open_dataset import load_manifest

ROOT = Path(__file__).resolve().parents[2]
HOSTS = 2
EARLY_STEPS = 30  # what was made before the first step, and buffers


@dataclass(frozen=True)
class Host:
    """A host among others, as `tf.distribute` describes it."""

    num_input_pipelines: int
    input_pipeline_id: int
    num_replicas_in_sync: int


def main() -> None:
    """Runs what the command line asks for; ends with 1 if a sequence differs."""
    arguments = read_arguments()
    if arguments.host is not None:
        print_digests(arguments)
    elif arguments.rates:
        measure_rates(arguments)
    else:
        sys.exit(0 if check(arguments) else 1)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--check", type=int, default=200, metavar="STEPS")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rates", type=int, default=0, metavar="STEPS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--decoder", choices=("auto", "tensorflow"), default="auto")
    for name in ("host", "hosts", "start"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--service", help=argparse.SUPPRESS)
    return parser.parse_args()


def make_config(arguments: argparse.Namespace, **options: Any) -> PipelineConfig:
    return PipelineConfig(
        **{
            "global_batch_size": arguments.batch,
            "image_size": arguments.size,
            "decoder": arguments.decoder,
            "order": "exact",
            **options,
        }
    )


def print_digests(arguments: argparse.Namespace) -> None:
    """Prints a digest of each step; a run of one host prints the parts that `HOSTS` hosts would have."""
    from tfpipe.pipeline.build import build_dataset

    host = Host(arguments.hosts, arguments.host, arguments.hosts)
    config = make_config(arguments, service=arguments.service)
    parts = HOSTS // arguments.hosts
    for batch in build_dataset(load_manifest(arguments.dataset), "train", config, host, arguments.start).take(
        arguments.check
    ):
        arrays = [batch[name].numpy() for name in sorted(batch)]
        size = len(arrays[0]) // parts
        print(
            *(digest(array[part * size : (part + 1) * size] for array in arrays) for part in range(parts)), flush=True
        )


def digest(arrays: Iterator[Any]) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def start_host(arguments: argparse.Namespace, host: int, hosts: int, start: int, service: str | None) -> Any:
    command = [sys.executable, __file__, arguments.dataset, "--check", str(arguments.check), "--batch"]
    command += [str(arguments.batch), "--size", str(arguments.size), "--decoder", arguments.decoder]
    command += ["--host", str(host), "--hosts", str(hosts), "--start", str(start)]
    command += ["--service", service] if service else []
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT)


@contextmanager
def serve(workers: int) -> Iterator[Service]:
    """Runs a service whose lost workers start again."""
    with Service(ServiceConfig(host="127.0.0.1", port=0, workers=workers)) as service:
        stop = threading.Event()
        starter = threading.Thread(target=service.run_until, args=(stop,))
        starter.start()
        try:
            yield service
        finally:
            stop.set()
            starter.join()


def check(arguments: argparse.Namespace) -> bool:
    """Compares served runs with a local one: undisturbed, with kills, and resumed with more workers."""
    local = [line.split() for line in start_host(arguments, 0, 1, 0, None).communicate()[0].splitlines()]
    assert len(local) == arguments.check
    later = [line.split() for line in start_host(arguments, 0, 1, 77, None).communicate()[0].splitlines()]
    equal = []
    with serve(3) as service:
        equal.append(compare("3 workers", run_hosts(arguments, service, 0, None), local))
        for kill in range(arguments.kills):
            seed = arguments.seed + kill
            equal.append(compare(f"seed {seed}", run_hosts(arguments, service, 0, random.Random(seed)), local))
    with serve(5) as service:
        equal.append(compare("5 workers from step 77", run_hosts(arguments, service, 77, None), later))
    return all(equal)


def compare(name: str, hosts: list[list[str]], local: list[list[str]]) -> bool:
    served = [list(step) for step in zip(*hosts, strict=False)]
    total = hashlib.sha256(json.dumps(served).encode()).hexdigest()
    print(f"{name}: {len(served)} steps, {total[:16]}, {'equal' if served == local else 'DIFFERENT'}", flush=True)
    return served == local


def run_hosts(
    arguments: argparse.Namespace, service: Service, start: int, draw: random.Random | None
) -> list[list[str]]:
    """Runs the hosts and returns the digests of each; kills a worker at a random step."""
    hosts = [start_host(arguments, host, HOSTS, start, service.dispatcher) for host in range(HOSTS)]
    digests: list[list[str]] = [[] for _ in hosts]
    kill_at = draw.randrange(arguments.check) if draw else None
    victim = draw.randrange(len(service.workers)) if draw else 0

    def read(host: int) -> None:
        for line in hosts[host].stdout:
            digests[host].append(line.strip())
            if host == 0 and len(digests[0]) - 1 == kill_at:
                os.kill(service.workers[victim].pid or 0, signal.SIGKILL)
                print(f"  killed worker {victim} at step {kill_at}", flush=True)

    readers = [threading.Thread(target=read, args=(host,)) for host in range(HOSTS)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return digests


def measure_rates(arguments: argparse.Namespace) -> None:
    """Measures exact order beside a service without order, in turns; and how long a ready batch takes to be had.

    The ratios are of runs of one round, since the speed of a shared machine changes from minute to minute. Processor
    time is that of the workers and of this process, which is the trainer and the dispatcher.
    """
    from tfpipe.pipeline.build import build_dataset

    manifest = load_manifest(arguments.dataset)
    for workers in arguments.workers:
        with Service(ServiceConfig(host="127.0.0.1", port=0, workers=workers)) as service:
            rates: dict[str, list[float]] = {"exact": [], "throughput": []}
            cpu_rates: dict[str, list[float]] = {"exact": [], "throughput": []}
            waits: dict[str, list[float]] = {"exact": [], "throughput": []}
            processes = [psutil.Process(), *(psutil.Process(worker.pid) for worker in service.workers)]
            for _ in range(arguments.rounds):
                for order in rates:
                    config = replace(make_config(arguments, order=order), service=service.dispatcher)
                    batches = iter(build_dataset(manifest, "train", config))
                    for _ in range(EARLY_STEPS):
                        next(batches)
                    begin, begin_cpu = time.perf_counter(), read_cpu_s(processes)
                    for _ in range(arguments.rates):
                        next(batches)
                    images = arguments.rates * arguments.batch
                    rates[order].append(images / (time.perf_counter() - begin))
                    cpu_rates[order].append(images / (read_cpu_s(processes) - begin_cpu))
                    waits[order] += [measure_wait(batches) for _ in range(2)]
                    del batches
            exact_ms, throughput_ms = (statistics.median(waits[order]) * 1e3 for order in rates)
            print(
                f"{workers} workers: images/s {compare_rates(rates)}; per CPU-second {compare_rates(cpu_rates)}; a "
                f"ready batch is had in {exact_ms:.2f} ms, without order in {throughput_ms:.2f} ms",
                flush=True,
            )


def compare_rates(rates: dict[str, list[float]]) -> str:
    """Returns the medians of both orders, and of the ratio in each round, with the ratios."""
    ratios = [exact / other for exact, other in zip(rates["exact"], rates["throughput"], strict=True)]
    exact, other = (statistics.median(rates[order]) for order in ("exact", "throughput"))
    rounds = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"exact {exact:,.0f}, without order {other:,.0f}, {statistics.median(ratios):.2f} of it ({rounds})"


def read_cpu_s(processes: list[psutil.Process]) -> float:
    """Returns the seconds of a core that processes have taken."""
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)


def measure_wait(batches: Iterator[Any]) -> float:
    """Returns the seconds until a batch is had that had the time to be made."""
    time.sleep(1.5)
    begin = time.perf_counter()
    next(batches)
    return time.perf_counter() - begin


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
