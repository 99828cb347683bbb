"""Finds the classes of labels, in the order of a file with one name per line (`--labels`), or of the labels."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import pairwise

from beam_jobs.config import ShardConfig
from beam_jobs.plan.image_table import ImageTable
from tfpipe.errors import DataError
from tfpipe.storage import file_io

Labels = Mapping[str | None, str | None]
"""The class of each label."""

Numbered = tuple[Labels, tuple[str, ...], bool]
"""The class of each label, the names of the classes, and whether labels are numbers."""

_MAX_NUMBER = 100_000
_MAX_DIGITS = 1000

_NO_CLASS = re.compile(r"[-+][0-9]+|[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|nan|NaN|<NA>")
OF_PANDAS = "pandas writes 1.0 and nan where classes are missing: give every row a whole number or a name."


def check_label(label: str, where: str = "") -> None:
    """Checks that a label is no number such as -1, 1.5 or nan, and has no white space around it."""
    if _NO_CLASS.fullmatch(label):
        is_whole = label.lower() in ("nan", "<na>") or label.rstrip("0").endswith(".")
        advice = f" {OF_PANDAS}" if is_whole else ""
        raise DataError(
            f"{where}'label' must be a name or a number from 0, got {label!r}.{advice} If it is a name, give a file "
            "with all names as `labels`."
        )
    if label != label.strip():
        raise DataError(f"{where}'label' must have no white space around it, got {label!r}.")


def number_labels(counts: Mapping[str | None, int], config: ShardConfig, unlabeled: str = "") -> Numbered:
    """Returns the class of each label, the class names in the order of their labels, and whether labels are numbers.

    If all numbers are below `_MAX_NUMBER`, and none has leading zeros, each number up to the highest is a class.
    Otherwise they are mere names.
    """
    num_images, missing = sum(counts.values()), counts.get(None, 0)
    if missing == num_images:
        return {}, (), False
    if missing:
        raise DataError(
            f"{config.input}: every row must have a 'label' or none may, but {missing} of {num_images} have "
            f"none, such as {unlabeled}. Give them one, or take these rows out."
        )
    names = sorted(map(str, counts))
    known = read_known_names(config)
    for name in sorted({*names} - known):
        check_label(name, f"{config.input}: ")
    if not all(name.isdecimal() and name.isascii() and len(name) < _MAX_DIGITS for name in names):
        return {name: name for name in names}, tuple(names), False
    names.sort(key=int)
    for one, other in pairwise(names):
        if int(one) == int(other) and not known.issuperset((one, other)):
            raise DataError(
                f"{config.input}: labels must be different numbers or the same text, got {one!r} and {other!r}."
            )
    highest = int(names[-1])
    if highest < _MAX_NUMBER and all(name == str(int(name)) for name in names):
        label_names = tuple(map(str, range(highest + 1)))
    else:
        label_names = tuple(names)
    return {name: name for name in names}, label_names, True


def set_classes(images: ImageTable, labels: Labels, splits: Mapping[str, str] | None = None) -> ImageTable:
    """Replaces the labels of images by their classes; a label that is not in `labels` is its own class.

    `splits`, if given, has the split of each label, where labels are folders.
    """
    codes, texts = images.get_codes("label")
    if splits is not None:
        images = images.replace_texts("split", codes, [splits.get(str(text), "") for text in texts])
    classes = [labels.get(text, text) for text in texts]
    return images if classes == texts else images.replace_texts("label", codes, classes)


def read_known_names(config: ShardConfig) -> frozenset[str]:
    """Returns the names of classes that the user or the dataset gives."""
    return frozenset((*config.known_labels, *(_read_names(config.labels) if config.labels else ())))


def order_classes(
    config: ShardConfig, labels: Labels, label_names: Sequence[str], is_numeric: bool, *, by_number: bool = False
) -> tuple[Labels, tuple[str, ...]]:
    """Returns the class of each label, and all class names: the known ones, then those of the file or of the labels.

    Labels that are numbers are names of classes, or else class numbers; with `by_number` they are line numbers of the
    file from 0, even if they are names as well.
    """
    known = config.known_labels
    if config.labels:
        if is_numeric:
            names = _read_names(config.labels)
            labels = (name_numbers if by_number else _match_numbers)(config.labels, labels, names)
        label_names = names if is_numeric else order_names(config, label_names)
    elif known and label_names and is_numeric and not (_are_counted(known) and _are_counted(label_names)):
        labels = _match_numbers("The dataset", labels, known, may_add=True)
        label_names = (*known, *sorted(set(map(str, labels.values())) - {*known}, key=int))
    return labels, tuple(dict.fromkeys((*known, *label_names))) if label_names else ()


def _are_counted(names: Sequence[str]) -> bool:
    return [*names] == [*map(str, range(len(names)))]


def order_names(config: ShardConfig, label_names: Sequence[str]) -> Sequence[str]:
    """Returns the names in the file of class names, which must have all of `label_names`; without a file these."""
    if not config.labels:
        return label_names
    path, names = config.labels, _read_names(config.labels)
    missing = sorted(set(label_names) - set(names))
    if missing:
        form = unicodedata.normalize("NFC", missing[0])
        is_there = form in (unicodedata.normalize("NFC", name) for name in names)
        hint = " It has the name in another Unicode form: NFC and NFD differ in letters such as é." if is_there else ""
        raise DataError(f"{path} must name every class, but {missing[0]!r} is not in it.{hint}")
    return names


def _match_numbers(source: str, labels: Labels, names: Sequence[str], *, may_add: bool = False) -> Labels:
    """Returns the class of each label that is a number: the class of this name, or else the class of this number.

    With `may_add`, labels that are neither may be new classes.
    """
    texts = sorted(map(str, labels), key=lambda text: (int(text), text))
    numbers = {int(name): name for name in names if name.isdecimal() and name.isascii()}
    unknown = next((text for text in texts if text not in names), None)
    has_number, has_other = int(texts[-1]) < len(names), any(numbers.get(int(text), text) != text for text in texts)
    if unknown is None or (may_add and numbers and not has_number and not has_other):
        return {label: label for label in labels}
    is_like_names = may_add or any(int(text) in numbers for text in texts)
    if numbers and is_like_names and not _are_counted(names):
        number = int(unknown)
        meant = [repr(name) for name in (numbers.get(number), *names[number : number + 1]) if name is not None]
        could = f", and could mean {' or '.join(meant)}" if meant else ""
        raise DataError(
            f"{source} names classes by numbers, so each label must be one of these names; {unknown!r} is none{could}. "
            "Write the labels as the classes are named, or give a file with all names, new ones too, as `labels`."
        )
    return name_numbers(source, labels, names)


def name_numbers(path: str, labels: Labels, names: Sequence[str]) -> Labels:
    """Returns the class of each label of an input whose labels are class numbers."""
    highest = max((int(str(label)) for label in labels), default=0)
    if highest >= len(names):
        raise DataError(f"{path} names {len(names)} classes, but label {highest} occurs.")
    return {label: names[int(str(label))] for label in labels}


def _read_names(path: str) -> tuple[str, ...]:
    names = tuple(line.strip() for line in read_lines(path) if line.strip())
    if len(set(names)) < len(names):
        raise DataError(f"{path} must name every class once.")
    return names


def read_lines(path: str) -> list[str]:
    """Returns the lines of a text in UTF-8; other bytes, as in file names of another encoding, are kept."""
    with file_io.explain_os_errors(f"read {path}"):
        text = file_io.read_whole(path).decode("utf-8-sig", "surrogateescape")
    if "\0" in text:
        raise DataError(f"{path} must be a text in UTF-8, but has zeros. Save it anew with this encoding.")
    return text.splitlines()
