"""The kinds of values that a record can hold: `tfpipe.write` and `tfpipe.add_column` take them by their names.

schema = {"image": tfpipe.fields.Image(), "label": tfpipe.fields.Label(("cat", "dog")), "caption": tfpipe.fields.Text()}
"""

from dataclasses import dataclass
from typing import TypeAlias

from tfpipe.format.schema import DType
from tfpipe.format.tensors.tensor_type import TensorDType


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


@dataclass(frozen=True)
class Labels:
    """Several classes of one record, or none. A record gives a list of their names, or of their numbers from 0.

    They are stored as numbers, and batches have them under their own name; `pad_to` and `multi_hot` give them one
    shape. A record may have several entries of this kind.

    Attributes:
        names: The names of the classes, in the order of their numbers.
        count: The number of classes that every record has; None if records may have different numbers.
        doc: The meaning of the classes, for people.
    """

    names: tuple[str, ...]
    count: int | None = None
    doc: str = ""


@dataclass(frozen=True)
class Image:
    """An image. A record gives the bytes of a file, or its pixels: uint8 [height, width, 3] or [height, width].

    It is stored as `tfpipe shard` stores one, and batches have it as "image".
    """


@dataclass(frozen=True)
class Images:
    """Several images of one record. A record gives a list of them, each as for `Image`; batches have them as "image".

    Attributes:
        number: The number of images in every record, from 1 to 1,024; None if records may have different numbers, at
            least 1.
    """

    number: int | None = None


@dataclass(frozen=True)
class Mask:
    """The class of each pixel of the image, which the schema must have too. It is stored as "image/mask".

    A record gives a PNG with one channel, whose values or palette indices are the classes, or an array of whole numbers
    from 0 to 65,535 [height, width]. Its size is that of the image in its file, before EXIF turns it.
    """


Field: TypeAlias = Tensor | Text | Values | Label | Labels | Image | Images | Mask
