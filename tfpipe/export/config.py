"""The options of an export; loads none of the libraries that write."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from tfpipe.system.options import Choice, Count, Unchecked, check_options, option

Format: TypeAlias = Literal["webdataset", "parquet", "arrayrecord"]


@dataclass(frozen=True)
class ExportConfig:
    """The options of `export`.

    Attributes:
        dataset: The directory of the dataset, or its URL in a bucket. Required.
        output: The directory that appears when everything in it is complete, or a URL, where export.json appears then.
            Required.
        to: The format that is written. "webdataset", "parquet" or "arrayrecord". Required.
        splits: A split to write. Empty: all. Default: ().
        workers: The number of worker processes. 0: this process does the work. None: one for each core. At least 0.
            Default: None.

    Raises:
        ConfigError: A value cannot be used.
    """

    dataset: str
    output: str
    to: Format = option(Choice(get_args(Format)))
    splits: tuple[str, ...] = option(Unchecked(), (), flag="--split", metavar="NAME")
    workers: int | None = option(Count(0), None)

    def __post_init__(self) -> None:
        check_options(self)
