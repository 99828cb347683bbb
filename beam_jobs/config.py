"""ShardConfig: the options of the job that writes shards. Frozen, validated, without Beam."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfpipe.errors import ConfigError
from tfpipe.format.file_names import name_split
from tfpipe.format.image_form import ImageForm
from tfpipe.format.tensors.tensor_type import TensorType
from tfpipe.system.options import (
    Choice,
    Count,
    CountOrShare,
    Flag,
    Nested,
    Seed,
    Shares,
    Unchecked,
    check_options,
    get_options,
    option,
    show_options,
)

DEFAULT_MAX_BAD_SHARE = 0.01
DEFAULT_MAX_BAD_AT_LEAST = 10


_INPUT, _SPLITS, _RECORDS, _OUTPUT = "Input", "Splits", "Records", "Output"


def _column(rare: bool = False) -> Any:
    return option(Unchecked(), None, group=_INPUT, rare=rare, metavar="COLUMN")


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table that the user names.

    Attributes:
        image_column: The column of a table that holds the images: their paths or URLs, or the images themselves in
            Parquet files. None: `image` or `images`, and in Parquet files with images the only column that has some.
            Default: None.
        label_column: The column of a table that holds the class. None: `label`, and in Parquet files with images the
            only column of the type `ClassLabel`. Default: None.
        split_column: The column of a table that holds the split. None: "split". Default: None.
        caption_column: The column of a table that holds the caption. None: `caption`. Default: None.
        target_column: The column of a table whose number is the target of a regression. It becomes the feature
            `target`, a float. Default: None.
        mask_column: The column of a table that holds masks: paths, or the masks themselves in Parquet files that hold
            the images. None: `mask`, and in such Parquet files also `annotation`, `label`, `segmentation` and
            `segmentation_mask`, if their values are images. Default: None.
        box_label_column: The column of a table that holds the classes of boxes: numbers, or names. Names are sorted,
            unless `labels` gives their order. None: `box_label`. Default: None.

    Raises:
        ConfigError: Two options name one column.
    """

    image_column: str | None = _column()
    label_column: str | None = _column()
    split_column: str | None = _column()
    caption_column: str | None = _column(rare=True)
    target_column: str | None = _column(rare=True)
    mask_column: str | None = _column(rare=True)
    box_label_column: str | None = _column(rare=True)

    __repr__ = show_options

    def __post_init__(self) -> None:
        column, count = Counter(self.named.values()).most_common(1)[0] if self.named else ("", 0)
        if count > 1:
            raise ConfigError(f"Each column must have one meaning, but two options name {column!r}.")

    @property
    def named(self) -> dict[str, str]:
        """The columns that the user names, by their content: "image", "label" and so on."""
        values = {name.removesuffix("_column"): getattr(self, name) for name in get_options(self)}
        return {name: column for name, column in values.items() if column is not None}

    def check(self, path: str, found: Collection[str]) -> None:
        """Checks that a table has the columns."""
        for name, column in self.named.items():
            if column not in found:
                listed = ", ".join(map(str, found))
                raise ConfigError(f"`{name}_column` must name a column of {path} ({listed}), got {column!r}.")


USUAL_COLUMNS = TableColumns()


@dataclass(frozen=True)
class ShardConfig:
    """The options of one job: the input, the output, and the way from one to the other.

    Attributes:
        input: The input: a folder, a CSV, JSONL or Parquet manifest, or a tar or zip archive; a path or URL.
            A manifest may be many files: a folder whose name ends like a manifest's, or a pattern with `*`. Required.
        output: The dataset directory to write; a path or URL. Required.
        input_format: The meaning of folders and archives. `tree`: folders are classes. `pairs`: tar files hold images
            beside their captions, as WebDataset's do. `parquet`: a folder of Parquet files that hold the images, as
            Hugging Face's do. `coco` and `voc`: a folder of images beside `annotations/instances_*.json`, or one with
            `Annotations`, `JPEGImages` and `ImageSets`. `auto` looks at the folder. "auto", "tree", "pairs", "parquet",
            "coco" or "voc". Default: "auto".
        annotations: The files with boxes or captions in COCO's form, for the images in the folder `input`. Without them
            `annotations/instances_*.json` and `annotations/captions_*.json` in it count, or `_annotations.coco.json` in
            it or in its folders of splits. Default: ().
        columns: The columns of a table by what they hold. Default: TableColumns().
        image_root: The folder, as a path or URL, from which the paths in a table start, and in which all its images and
            masks must lie. None: the folder of the table. Default: None.
        label_separator: The text between the classes of an image that has several in one cell, as in "red;round". The
            classes become the feature `labels`, a list that `multi_hot` takes. Lists in JSONL and Parquet become it
            without a separator too. None: a text is one class. Default: None.
        tensors: The dtype and the shape of columns of Parquet files without images, such as "latents=float16[4,64,64]".
            `?` is a size that differs between records. Bytes need it, numbers are converted, and flat lists get the
            shape. Default: ().
        segmentation_masks: Whether the segmentations in COCO's annotations become masks. Class 0 is the background; the
            class of a box counts from 1 there. Default: False.
        split: The name of the one split. None: `train`, unless the input names splits or `splits` is given.
            Default: None.
        splits: The share of each split. Images are assigned by a stable hash of their path. Shares above 0 that add up
            to 1. Default: {}.
        group_by: The column of the input's manifest, or of its pairs, whose equal values must come into one split.
            Default: None.
        labels: The file with one class name per line, which fixes the labels. None: the names in sorted order.
            Default: None.
        known_labels: The names of classes that keep the numbers 0, 1, ..., whether images have them or not. New ones
            follow them. Default: ().
        known_images: The dataset whose images `drop_duplicates` leaves out as well. Empty: none. Default: "".
        num_shards: The number of shards of every split, but never more than its images. None: as many as
            `shard_size_bytes` gives. At least 1. Default: None.
        shard_size_bytes: The size of a shard, unless `num_shards` gives their number. 128 MiB is large enough that
            opening a file costs little beside reading it, and small enough that a dataset like ImageNet has more than a
            thousand shards; the guide of tf.data asks for 100 MB and more. At least 1. Default: 128 * 2**20.
        shuffle: Whether all images of a split are mixed; else they keep the order of their paths, or of their datasets.
            Default: True.
        seed: The seed of the shuffle. From -2**63 to 2**63 - 1. Default: 0.
        form: The form of the stored images. Default: ImageForm().
        max_bad: The number of images, such as 25, or the share of images, such as 0.01, that may be quarantined. None:
            1 %, but at least 10 images, or a third of fewer than 30, and at least one. A whole number, or a share from
            0.0 to 1.0. Default: None.
        allow_missing: Whether a table, or annotations of COCO or Pascal VOC, may name images or masks that do not
            exist. Such images are quarantined and do not count for `max_bad`. Default: False.
        keep_quarantined: Whether the bytes of quarantined images are stored too. A file that does not begin like an
            image is never stored. Default: False.
        drop_duplicates: Whether only one of the images with equal bytes is kept. Default: False.
        overwrite: Whether another dataset in `output` is replaced once the new one is complete. Default: False.
        workers: The number of processes that read, check and write. 0: one per core, or for up to 1,000 JPEGs and PNGs
            of 40 MiB together a thread per core, which is there sooner. At least 0. Default: 0.
        datasets: The finished datasets whose records go in, united, instead of the images in `input`. They bring their
            own splits, labels and image form. `input` then is only their name in messages. Default: ().
        form_changes: The fields of `ImageForm` to change in the images of `datasets`. Empty: they stay as they are.
            Default: {}.
        drop_features: The features that the records of a dataset lose; the image and its class stay. Default: ().
        refuse_nan: Whether a tensor with NaN is an error. The manifests of `datasets` count them, so the error comes
            before anything is written. Default: False.

    Raises:
        ConfigError: A value cannot be used, or two options exclude each other.
    """

    input: str
    output: str
    input_format: str = option(
        Choice(("auto", "tree", "pairs", "parquet", "coco", "voc")), "auto", group=_INPUT, rare=True
    )
    annotations: tuple[str, ...] = option(Unchecked(), (), group=_INPUT, rare=True, metavar="FILE")
    columns: TableColumns = option(Nested(TableColumns), default_factory=TableColumns)
    image_root: str | None = option(Unchecked(), None, group=_INPUT, rare=True, metavar="FOLDER")
    label_separator: str | None = option(Unchecked(), None, group=_INPUT, rare=True)
    tensors: tuple[str, ...] = option(
        Unchecked(), (), group=_INPUT, rare=True, flag="--tensor", metavar="COLUMN=DTYPE[SHAPE]"
    )
    segmentation_masks: bool = option(Flag(), False, group=_INPUT, rare=True)
    split: str | None = option(Unchecked(), None, group=_SPLITS, metavar="NAME")
    splits: Mapping[str, float] = option(Shares(), default_factory=dict, group=_SPLITS)
    group_by: str | None = option(Unchecked(), None, group=_SPLITS, rare=True, metavar="COLUMN")
    labels: str | None = option(Unchecked(), None, group=_INPUT, metavar="FILE")
    known_labels: tuple[str, ...] = ()
    known_images: str = ""
    num_shards: int | None = option(Count(1), None, group=_OUTPUT)
    shard_size_bytes: int = option(Count(1), 128 * 2**20, group=_OUTPUT, flag="--shard-size", metavar="SIZE")
    shuffle: bool = option(Flag(), True, group=_OUTPUT)
    seed: int = option(Seed(signed=True), 0, group=_OUTPUT, rare=True)
    form: ImageForm = option(Nested(ImageForm), default_factory=ImageForm)
    max_bad: int | float | None = option(CountOrShare(), None, group=_RECORDS, metavar="N|SHARE")
    allow_missing: bool = option(Flag(), False, group=_INPUT, rare=True)
    keep_quarantined: bool = option(Flag(), False, group=_RECORDS, rare=True)
    drop_duplicates: bool = option(Flag(), False, group=_RECORDS)
    overwrite: bool = option(Flag(), False, group=_OUTPUT)
    workers: int = option(Count(0, zero="all cores"), 0, group="Running")
    datasets: tuple[str, ...] = ()
    form_changes: Mapping[str, Any] = field(default_factory=dict)
    drop_features: tuple[str, ...] = option(Unchecked(), (), group=_RECORDS, flag="--drop-feature", metavar="NAME")
    refuse_nan: bool = option(Flag(), False, group=_RECORDS, rare=True)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The paths or URLs to read from."""
        return self.datasets or (self.input,)

    @property
    def tensor_types(self) -> dict[str, TensorType]:
        """The dtype and shape of each column that `tensors` names."""
        types: dict[str, TensorType] = {}
        for text in self.tensors:
            name, _, kind = text.partition("=")
            if not name or name in types:
                raise ConfigError(
                    f"`tensors` must name each column once, as in latents=float16[4,64,64], got {text!r}."
                )
            types[name] = TensorType.parse(kind)
        return types

    __repr__ = show_options

    def __post_init__(self) -> None:
        if self.split is not None and self.splits:
            raise ConfigError("`split` and `splits` exclude each other. Leave one of them out.")
        check_options(self)
        # Each split gets its usual name, as `validation` for `val`, and shares of one name are added up.
        if self.split is not None:
            if "=" in self.split:
                raise ConfigError(f"`split` must be one name, got {self.split!r}. Give shares as `splits`.")
            object.__setattr__(self, "split", name_split(self.split))
        splits: dict[str, float] = {}
        for split, share in self.splits.items():
            splits[name_split(split)] = splits.get(name_split(split), 0) + share
        object.__setattr__(self, "splits", splits)
        _ = self.tensor_types  # raises an error for a wrong type
        if self.group_by and not self.splits:
            raise ConfigError("`group_by` needs `splits`, between which it keeps groups together. Give both.")
        if self.form_changes and not self.datasets:
            raise ConfigError("`form_changes` are for `datasets`; the form of images is `form`.")
        if self.drop_features and not self.datasets:
            raise ConfigError("`drop_features` are features of `datasets`; leave columns out of the table instead.")
        if self.label_separator == "":
            raise ConfigError("`label_separator` must be a text such as ';', got ''.")

    def max_bad_images(self, num_images: int) -> int:
        """Returns the number of images, out of `num_images`, that may be quarantined."""
        if self.max_bad is None:
            at_least = min(DEFAULT_MAX_BAD_AT_LEAST, num_images // 3)
            return max(1, at_least, int(num_images * DEFAULT_MAX_BAD_SHARE))
        return self.max_bad if isinstance(self.max_bad, int) else int(num_images * self.max_bad)
