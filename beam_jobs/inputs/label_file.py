"""Puts classes into the order of a file with one name per line (`--labels`)."""

from collections.abc import Mapping, Sequence

from beam_jobs.config import ShardConfig
from tfpipe.errors import DataError
from tfpipe.storage import file_io

Labels = Mapping[str | None, str | None]


def rename_labels(
    path: str, labels: Labels, label_names: Sequence[str], *, is_numeric: bool
) -> tuple[dict[str | None, str | None], tuple[str, ...]]:
    """Returns the class of each label of the input, and all class names in their order.

    Args:
        path: The file.
        labels: The class of each label of the input. If classes are numbers, they are positions in the file.
        label_names: The names of the classes until now.
        is_numeric: Whether the classes are numbers.

    Raises:
        DataError: The file cannot be read, or does not name every class once.
    """
    names = _read_names(path)
    if is_numeric:
        return name_numbers(path, labels, label_names, names), names
    missing = sorted(set(label_names) - set(names))
    if missing:
        raise DataError(f"{path} must name every class, but {missing[0]!r} is not in it.")
    return dict(labels), names


def put_known_first(
    config: ShardConfig, labels: Labels, label_names: Sequence[str], *, is_numeric: bool
) -> tuple[dict[str | None, str | None], tuple[str, ...]]:
    """Returns the class of each label, and the class names with those first whose numbers must stay.

    Args:
        config: The configuration of the job, which knows these classes.
        labels: The class of each label of the input.
        label_names: The names of the classes until now; empty without labels.
        is_numeric: Whether the classes are numbers, which then are those of the known classes.

    Raises:
        DataError: A number is that of no class, where the classes have names.
    """
    known = config.known_labels
    if known and label_names and is_numeric and known != tuple(map(str, range(len(known)))):
        return name_numbers("The dataset", labels, label_names, known), known
    return dict(labels), tuple(dict.fromkeys((*known, *label_names))) if label_names else ()


def name_numbers(
    path: str, labels: Labels, label_names: Sequence[str], names: Sequence[str]
) -> dict[str | None, str | None]:
    """Returns the class of each label of the input, where classes are numbers.

    Args:
        path: The file that gives the names, for the message.
        labels: The number of the class of each label.
        label_names: The numbers of all classes until now.
        names: The names of class 0, 1, ...

    Raises:
        DataError: There are more classes than names.
    """
    if len(label_names) > len(names):
        raise DataError(f"{path} names {len(names)} classes, but label {len(label_names) - 1} occurs.")
    return {label: names[int(number or 0)] for label, number in labels.items()}


def _read_names(path: str) -> tuple[str, ...]:
    names = tuple(line.strip() for line in read_lines(path) if line.strip())
    if len(set(names)) < len(names):
        raise DataError(f"{path} must name every class once.")
    return names


def read_lines(path: str) -> list[str]:
    """Returns the lines of a text in UTF-8.

    Raises:
        DataError: The file cannot be read, or is not such a text.
    """
    try:
        with file_io.explain_os_errors(f"read {path}"):
            return file_io.read_whole(path).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text in UTF-8 ({error}).") from error
