"""The trainer's end of a tf.data service: the pipeline runs on the workers of a dispatcher, batches come back.

    batches = distribute(batches, "grpc://10.0.0.5:5050", training=True)

Start the other end with `tfpipe serve`. The workers open the shards themselves, so these must lie under the same
paths or URLs there, and their TensorFlow should be the trainer's version.
"""

from __future__ import annotations

import re
import socket
import threading
from typing import TYPE_CHECKING, Literal

from tfpipe.errors import ConfigError

if TYPE_CHECKING:
    import tensorflow as tf

Compression = Literal["AUTO", "SNAPPY"]

_ANSWER_S = 3.0
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # with empty settings
_SETTINGS_FRAME = 4
_FRAME_HEADER_BYTES = 9


def distribute(
    dataset: tf.data.Dataset,
    address: str,
    *,
    training: bool,
    job_name: str | None = None,
    compression: Compression | None = None,
) -> tf.data.Dataset:
    """Moves all stages before it to the workers of a tf.data service; put only a prefetch behind it.

    In training each element of the dataset's *source* goes to one worker: TensorFlow's DYNAMIC sharding, also known
    as "distributed_epoch", which works for endless datasets too. Our pipelines begin with the numbers of epochs, so
    a worker takes a whole epoch, in an order and with crops of its own. With sharding OFF ("parallel_epochs") each
    worker would yield the whole sequence: all have the same seeds, so every image would come once from each of them,
    cropped alike. A worker that dies takes the rest of its epoch with it; the others go on.

    In evaluation one worker makes the whole pass, so each batch comes exactly once and in order. Sharding its source
    would tear pairs of sources apart (`zip`) and give each worker padding and a last batch of its own.

    Where the cardinality of the dataset is known, what comes back is checked against it: a pass from which a lost
    worker took batches ends with an error, not with a figure that is a little wrong.

    Args:
        dataset: The finished batches. Options that are to hold on the workers must be set on it already.
        address: The address of the dispatcher, "grpc://host:port".
        training: Whether the dataset goes on for ever; else it is one pass.
        job_name: The name of a job that several trainers share: each batch goes to one of them. They must ask with
            equal datasets, and the name must be new to this dispatcher. None: a job of this dataset's own.
        compression: The compression of what the workers send. None: nothing is compressed. "AUTO", TensorFlow's own
            default, is Snappy: decoded uint8 images became 16 % smaller, and came at 0.25 instead of 0.8 GB/s over
            loopback, for about 15 ms more of a core at each end per batch of 10 MB. So it can pay on networks below
            2 Gbit/s only.

    Returns:
        The dataset of the batches, in no certain order in training. TensorFlow chooses how many it asks for at once
        (AUTOTUNE): as many as there are workers, and more where memory allows.

    Raises:
        ConfigError: The dispatcher does not answer.
    """
    import tensorflow as tf

    check_address(address)
    count = dataset.cardinality()
    # A source of one element is dealt to one worker.
    whole = dataset if training else tf.data.Dataset.range(1).flat_map(lambda _: dataset)
    service = tf.data.experimental.service
    batches = whole.apply(
        service.distribute(service.ShardingPolicy.DYNAMIC, address, job_name=job_name, compression=compression)
    )
    if job_name is not None or count == tf.data.UNKNOWN_CARDINALITY:
        return batches
    return batches.apply(tf.data.experimental.assert_cardinality(count))


def check_address(address: str, option: str = "`service`") -> None:
    """Makes sure that a dispatcher answers; TensorFlow itself would ask again and again.

    Takes a few milliseconds, and at most about 3 s.

    Args:
        address: The address, "grpc://host:port".
        option: The option that gave the address, for the message.

    Raises:
        ConfigError: The address is not a valid one, or nothing there speaks gRPC.
    """
    host, port = split_address(address, option)
    # In a thread, because no timeout holds for the lookup of a name.
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(_greet(host, port)), name="tfpipe-greet", daemon=True)
    thread.start()
    thread.join(_ANSWER_S + 1)
    trouble = answers[0] if answers else f"no answer within {_ANSWER_S:g} s"
    if trouble:
        raise ConfigError(
            f"{option} must name a running dispatcher, got {address}, which does not answer ({trouble}). "
            "Start one with: tfpipe serve"
        )


def split_address(address: str, option: str = "`service`") -> tuple[str, int]:
    """Splits "grpc://host:port" into host and port; an IPv6 address stands in brackets.

    Raises:
        ConfigError: It has another form.
    """
    match = re.fullmatch(r"grpc://(\[[0-9A-Fa-f:.%]+\]|[^:/\s\[\]]+):([0-9]{1,5})", address)
    if not match or not 1 <= int(match[2]) <= 65535:
        raise ConfigError(f"{option} must be like grpc://host:5050, got {address!r}.")
    return match[1].strip("[]"), int(match[2])


def _greet(host: str, port: int) -> str:
    """Says what is wrong with a server; returns "" if it answers as gRPC does.

    To connect is not enough: a stopped process still accepts connections.
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
