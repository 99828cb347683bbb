"""The trainer's end of a tf.data service: the pipeline runs on the workers of a dispatcher, batches come back.

    batches = distribute(batches, "grpc://10.0.0.5:5050", training=True)

Start the other end with `tfpipe serve`. The workers open the shards themselves, so these must lie under the same
paths or URLs there, and their TensorFlow should be the trainer's version.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from tfpipe._version import __version__
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.format.protobuf_wire import Budget, fields
from tfpipe.system import host_limits

if TYPE_CHECKING:
    import tensorflow as tf

Compression = Literal["AUTO", "SNAPPY"]

_ADDRESS = re.compile(r"grpc://(\[[0-9A-Fa-f:.%]+\]|[^:/\s\[\]]+):([0-9]{1,5})")
_WORKERS_ID, _JOURNAL_ID, _NATIVE_ID = "tfpipe-workers", "tfpipe-journal", "tfpipe-native"
_LIST_WORKERS = "/tensorflow.data.DispatcherService/GetWorkers"
_ANSWER_S = 3.0
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # with empty settings
_SETTINGS_FRAME = 4
_FRAME_HEADER_BYTES = 9


def distribute(
    dataset: tf.data.Dataset,
    address: str,
    *,
    training: bool,
    limit_s: int,
    job_name: str | None = None,
    compression: Compression | None = None,
) -> tf.data.Dataset:
    """Moves all stages before it to the workers of a tf.data service; put only a prefetch behind it.

    In training each element of the dataset's *source* goes to one worker: TensorFlow's DYNAMIC sharding, also called
    "distributed_epoch", which works for endless datasets too. The source holds the numbers of epochs, so a worker takes
    a whole epoch with its order and its crops. With sharding OFF ("parallel_epochs") each worker would yield the whole
    sequence with the same seeds: every image would come once from each worker, cropped alike. If a worker dies, the
    rest of its epoch is lost; the others go on.

    In evaluation one worker makes the whole pass, so each batch comes exactly once and in order. Sharding its source
    would separate the two sources of a `zip`, and each worker would add padding and a last batch.

    If the cardinality of the dataset is known, the number of batches is checked against it. So if a lost worker took
    batches with it, the pass ends with an error and not with a slightly wrong figure.

    Args:
        dataset: The finished batches. Options that are to hold on the workers must be set on it already.
        address: The address of the dispatcher, "grpc://host:port".
        training: Whether the dataset repeats without end; otherwise it is one pass.
        limit_s: The seconds to wait for a batch, as `service_timeout_s` says. Then an error ends the dataset.
            TensorFlow itself asks a worker that is gone again without end.
        job_name: The name of a job that several trainers share: each batch goes to one of them. Their datasets must be
            equal, and the name must be new to this dispatcher. None: a job for this dataset alone.
        compression: The compression of the batches that workers send. None: no compression. "AUTO", TensorFlow's
            default, is Snappy. It made decoded uint8 images 16 % smaller, and cost each end about 15 ms of a core for a
            batch of 10 MB. Over loopback the rate fell from 0.8 to 0.25 GB/s, so it can pay only on networks below 2
            Gbit/s.

    Returns:
        The dataset of the batches; their order is not fixed in training. TensorFlow (AUTOTUNE) chooses how many it
        requests at once: one for each worker, and more if memory allows.

    Raises:
        ConfigError: The dispatcher does not answer.
    """
    import tensorflow as tf

    from tfpipe.pipeline.service_limit import limit_wait

    check_address(address)
    count = dataset.cardinality()
    # A source of one element goes to one worker.
    whole = dataset if training else tf.data.Dataset.range(1).flat_map(lambda _: dataset)
    service = tf.data.experimental.service
    batches = whole.apply(
        service.distribute(service.ShardingPolicy.DYNAMIC, address, job_name=job_name, compression=compression)
    )
    batches = limit_wait(batches, limit_s, lambda _: tf.constant(_explain_silence(address, limit_s)))
    if job_name is not None or count == tf.data.UNKNOWN_CARDINALITY:
        return batches
    return batches.apply(tf.data.experimental.assert_cardinality(count))


def _explain_silence(address: str, limit_s: int) -> str:
    return (
        f"The tf.data service {address} must give a batch within {limit_s} s (`service_timeout_s`), and gave none: "
        "find the worker that is gone with tfpipe serve --check, start it again, then run the same command."
    )


def announce_workers(address: str, workers: Sequence[str]) -> None:
    """Tells the trainers of a dispatcher the addresses of its workers, in the order of their numbers.

    A dispatcher has no call for this. But it keeps the structure of a dataset, and gives it without asking a worker: so
    the addresses are the names of features of a dataset that nobody reads.

    Raises:
        TfpipeError: The dispatcher's journal knows other workers.
    """
    import tensorflow as tf

    names = {f"{number:05d} {worker}": tf.constant(0) for number, worker in enumerate(workers)}
    try:
        tf.data.experimental.service.register_dataset(
            address, tf.data.Dataset.from_tensors(names), dataset_id=_WORKERS_ID
        )
    except tf.errors.OpError as error:
        raise TfpipeError(
            f"A dispatcher that goes on from a journal must have the same workers, and got {', '.join(workers)}. Start "
            "it with the same ports, or with another folder for the journal."
        ) from error


def find_workers(address: str) -> tuple[str, ...]:
    """Finds the fixed workers of a dispatcher, in the order of their numbers; none if it has no such list.

    Raises:
        ConfigError: The dispatcher does not answer.
    """
    import tensorflow as tf

    check_address(address)
    try:
        spec = tf.data.experimental.service.from_dataset_id("parallel_epochs", address, _WORKERS_ID).element_spec
    except ValueError:  # no such dataset
        return ()
    return tuple(name.partition(" ")[2] for name in sorted(spec))


def announce_journal(address: str) -> None:
    """Tells others that a dispatcher keeps a journal. A dispatcher without one forgets this when it ends."""
    import tensorflow as tf

    tf.data.experimental.service.register_dataset(address, tf.data.Dataset.range(1), dataset_id=_JOURNAL_ID)


def keeps_journal(address: str) -> bool:
    """Returns whether a dispatcher that answers keeps a journal."""
    import tensorflow as tf

    try:
        tf.data.experimental.service.from_dataset_id("parallel_epochs", address, _JOURNAL_ID)
    except ValueError:  # no such dataset
        return False
    return True


def announce_native_library(address: str, worker: str) -> None:
    """Tells trainers that a worker has the native library, of which release, and how many cores it has.

    The first number of cores stays, if the dispatcher knows the worker from its journal.
    """
    import tensorflow as tf

    cores = {str(host_limits.usable_cpus()): tf.constant(0)}
    with contextlib.suppress(tf.errors.InvalidArgumentError):  # another number is known
        tf.data.experimental.service.register_dataset(
            address, tf.data.Dataset.from_tensors(cores), dataset_id=_name_native(worker)
        )


def count_native_cpus(address: str) -> int | None:
    """Returns the cores of the largest worker; None unless every fixed worker has this release's native library.

    One question for each worker, about a millisecond, and none for a dispatcher without fixed workers.
    """
    import tensorflow as tf

    cores: list[int] = []
    for worker in find_workers(address):
        try:
            spec = tf.data.experimental.service.from_dataset_id(
                "parallel_epochs", address, _name_native(worker)
            ).element_spec
        except ValueError:  # no such dataset
            return None
        cores += map(int, spec)
    return max(cores, default=None)


def _name_native(worker: str) -> str:
    return f"{_NATIVE_ID} {__version__} {worker}"


def list_live_workers(address: str) -> tuple[str, ...]:
    """Returns the addresses of the workers that joined a dispatcher, sorted; also of those that it did not know before.

    TensorFlow has no function for this, only its dispatcher's own protocol. Each worker there begins with its address.

    Raises:
        TfpipeError: The dispatcher gives no list.
    """
    import grpc

    host_and_port = address.removeprefix("grpc://")
    with grpc.insecure_channel(host_and_port) as channel:
        try:
            answer: bytes = channel.unary_unary(_LIST_WORKERS)(b"", timeout=_ANSWER_S)
        except grpc.RpcError as error:
            raise TfpipeError(
                f"The dispatcher {address} must list its workers, and does not ({error.code()})."
            ) from error
    workers = _read_first_fields(answer)
    return tuple(sorted(address.decode() for worker in workers for address in _read_first_fields(worker)))


def list_workers(address: str) -> tuple[str, ...]:
    """Returns the fixed workers of a dispatcher, in the order of their numbers.

    Raises:
        ConfigError: The dispatcher does not answer, or does not know its workers.
    """
    workers = find_workers(address)
    if not workers:
        raise ConfigError(
            f"`order` exact by a `service` needs a dispatcher that knows its workers, and {address} does not. Start it "
            "with: tfpipe serve --workers N, and name the workers of other machines with --worker-address."
        )
    return workers


def check_address(address: str, option: str = "`service`") -> None:
    """Checks that a dispatcher answers, because TensorFlow itself would ask again without end.

    Takes a few milliseconds, and at most about 3 s.

    Args:
        address: The address, "grpc://host:port".
        option: The option that gave the address, for the message.

    Raises:
        ConfigError: The address is not a valid one, or nothing there speaks gRPC.
    """
    if trouble := find_trouble(*split_address(address, option)):
        raise ConfigError(
            f"{option} must name a running dispatcher, got {address}, which does not answer ({trouble}). "
            "Start one with: tfpipe serve"
        )


def find_trouble(host: str, port: int) -> str:
    """Returns the trouble with a server, such as "connection refused"; "" if it answers as gRPC does."""
    # In a thread, because no timeout holds for the lookup of a name.
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(_greet(host, port)), name="tfpipe-greet", daemon=True)
    thread.start()
    thread.join(_ANSWER_S + 1)
    return answers[0] if answers else f"no answer within {_ANSWER_S:g} s"


def split_address(address: str, option: str = "`service`") -> tuple[str, int]:
    """Splits "grpc://host:port" into host and port. An IPv6 address must be in brackets.

    Raises:
        ConfigError: The address has another form.
    """
    match = _ADDRESS.fullmatch(address)
    if not match or not is_address(address):
        raise ConfigError(f"{option} must be like grpc://host:5050, got {address!r}.")
    return match[1].strip("[]"), int(match[2])


def is_address(address: str) -> bool:
    """Returns whether a text is like grpc://host:5050."""
    match = _ADDRESS.fullmatch(address)
    return match is not None and 1 <= int(match[2]) <= 65535


def _read_first_fields(message: bytes) -> list[bytes]:
    """Reads each field 1 of a message in protobuf's wire format."""
    found = fields(message, 0, len(message), Budget())
    return [message[start:stop] for number, _, start, stop in found if number == 1]


def _greet(host: str, port: int) -> str:
    """Returns the trouble with a server, or "" if it answers as gRPC does.

    A connection alone proves nothing, because a stopped process still accepts connections.
    """
    try:
        with socket.create_connection((host, port), _ANSWER_S) as connection:
            connection.settimeout(_ANSWER_S)
            connection.sendall(_GREETING)
            answer = b""
            while len(answer) < _FRAME_HEADER_BYTES and (part := connection.recv(_FRAME_HEADER_BYTES)):
                answer += part
    except TimeoutError:
        return f"no answer within {_ANSWER_S:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    except UnicodeError:  # the name cannot be that of a host
        return "no such host"
    return "" if answer[3:4] == bytes([_SETTINGS_FRAME]) else "something else than gRPC listens there"
