"""The kinds of values that a record can hold, as the user of `tfpipe.write` names them.

schema = {"latents": Tensor("bfloat16", (4, 64, 64)), "caption": Text(), "class": Label(("cat", "dog"))}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tfpipe.errors import ConfigError
from tfpipe.format.example import FeatureLike
from tfpipe.format.schema import CLASS_LABEL, CLASS_TEXT, RESERVED, DType, FeatureSpec, Schema, check_names
from tfpipe.format.tensors.tensor_proto import TensorDType
from tfpipe.format.tensors.tensor_type import TensorType


@dataclass(frozen=True)
class Tensor:
    """An array of one dtype.

    Attributes:
        dtype: The type of the values: "bool", "int8" to "int64", "uint8" to "uint32", "float16", "bfloat16", "float32"
            or "float64".
        shape: The size of each axis. None for an axis whose size differs between records; such axes come first.
        doc: The meaning of the values, for people.
    """

    dtype: TensorDType
    shape: tuple[int | None, ...]
    doc: str = ""


@dataclass(frozen=True)
class Text:
    """A text, stored as UTF-8. A record gives str, or bytes that are UTF-8.

    Attributes:
        doc: The meaning of the text, for people.
    """

    doc: str = ""


@dataclass(frozen=True)
class Values:
    """A column as other readers of `tf.train.Example` expect it: numbers or bytes in a list of their own.

    Attributes:
        dtype: The type of the values: "int64", "float" or "bytes".
        shape: The shape: `()` for one value, `(n,)` for exactly n values, None for a list of any length.
        doc: The meaning of the values, for people.
    """

    dtype: DType
    shape: tuple[int, ...] | None = ()
    doc: str = ""


@dataclass(frozen=True)
class Label:
    """A class. A record gives its number, counted from 0, or its name. Batches have it as "label".

    Attributes:
        names: The names of the classes, in the order of their numbers.
    """

    names: tuple[str, ...]


Field: TypeAlias = Tensor | Text | Values | Label


class RecordForm:
    """The form of the records: the schema that is stored, and how a user's record becomes one of it.

    Attributes:
        schema: The features of a stored record.
        label_names: The names of the classes; empty without labels.

    Args:
        fields: The kind of each value by its name.

    Raises:
        ConfigError: A name or a kind cannot be stored, or there are two labels.
    """

    def __init__(self, fields: Mapping[str, Field]) -> None:
        labels = {name: field for name, field in fields.items() if isinstance(field, Label)}
        if len(labels) > 1:
            raise ConfigError(f"A record must have at most one Label, got {', '.join(map(repr, labels))}.")
        self._label = next(iter(labels), None)
        self.label_names = labels[self._label].names if self._label is not None else ()
        if len(set(self.label_names)) < len(self.label_names) or (labels and not self.label_names):
            raise ConfigError("The names of a Label must be different, and at least one.")
        self._numbers = {name: number for number, name in enumerate(self.label_names)}
        specs = [spec for name, field in fields.items() for spec in _make_specs(name, field)]
        if not specs:
            raise ConfigError("`schema` must name the values of a record, got none.")
        others = [spec for spec in specs if spec.name not in (CLASS_LABEL, CLASS_TEXT)]
        check_names(others)
        for spec in others:
            if spec.name in RESERVED:
                raise ConfigError(f"A value must not be named {spec.name!r}: a batch has something else of that name.")
        self.schema = Schema(tuple(specs))

    def check(self, record: Any) -> dict[str, FeatureLike]:
        """Returns a record in the form that `encode_example` takes.

        Raises:
            ConfigError: The record is not a mapping, or a value is missing or does not fit.
        """
        if not isinstance(record, Mapping):
            raise ConfigError(f"A record must be a mapping from names to values, got a {type(record).__name__}.")
        if self._label is None or self._label not in record:
            return self.schema.check(record)
        values = dict(record)
        number = self._find_class(values.pop(self._label))
        return self.schema.check(values | {CLASS_LABEL: number, CLASS_TEXT: self.label_names[number]})

    def _find_class(self, label: Any) -> int:
        number = self._numbers.get(label) if isinstance(label, str) else label
        try:
            if number is not None and 0 <= int(number) == number < len(self.label_names):
                return int(number)
        except (TypeError, ValueError):
            pass
        raise ConfigError(
            f"Label {self._label!r} must be a class from 0 to {len(self.label_names) - 1} or its name, got {label!r}."
        )


def _make_specs(name: str, field: Field) -> list[FeatureSpec]:
    if isinstance(field, Label):
        text = FeatureSpec(CLASS_TEXT, "bytes", (), "name of the class")
        return [FeatureSpec(CLASS_LABEL, "int64", (), "class, counted from 0"), text]
    if isinstance(field, Text):
        return [FeatureSpec.make_text(name, field.doc)]
    if isinstance(field, Values):
        return [FeatureSpec(name, field.dtype, field.shape, field.doc)]
    if not isinstance(field, Tensor):
        raise ConfigError(f"The kind of {name!r} must be a Tensor, a Text, Values or a Label, got {field!r:.80}.")
    try:
        tensor = TensorType(field.dtype, tuple(field.shape))
    except ConfigError as error:
        raise ConfigError(f"{name!r}: {error}") from None
    if not tensor.needs_sizes:
        return [FeatureSpec.make_tensor(name, tensor, field.doc)]
    tensor = TensorType(tensor.dtype, tensor.shape, sizes=f"{name}.sizes")
    sizes = FeatureSpec(f"{name}.sizes", "int64", (tensor.num_unknown,), f"sizes of the unknown axes of {name}")
    return [FeatureSpec.make_tensor(name, tensor, field.doc), sizes]
