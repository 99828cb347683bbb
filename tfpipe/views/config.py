"""The options of a view; loads neither DuckDB nor PyArrow."""

from dataclasses import dataclass

from tfpipe.format.view import check_view_name
from tfpipe.system.options import Count, Share, Unchecked, check_options, option

CLASS_BALANCED = "class_balanced"


@dataclass(frozen=True)
class ViewConfig:
    """The options of a view.

    Attributes:
        name: The name of the view, as in `flowers@large`. Required.
        where: The condition of the records to read, as after SQL's WHERE. Its columns are `split`, `name`, `label`,
            `height`, `width`, `bytes`, `duplicate` and others that the dataset has. Empty: all records. Default: "".
        sample: The share of the records that fulfill the condition, such as 10% or 0.1. 1.0: all. In (0, 1].
            Default: 1.0.
        seed: The seed of the sample. At least 0. Default: 0.
        without: The names of records to leave out. Default: ().
        weights: The number of times that an epoch of training reads each record: "class_balanced", or a column of
            numbers from 0 to 1,000. None: once. Default: None.

    Raises:
        ConfigError: A value cannot be used.
    """

    name: str = option(Unchecked(), metavar="NAME")
    where: str = ""
    sample: float = option(Share(), 1.0, metavar="SHARE")
    seed: int = option(Count(0), 0)
    without: tuple[str, ...] = ()
    weights: str | None = option(Unchecked(), None, metavar="COLUMN")

    def __post_init__(self) -> None:
        check_options(self)
        check_view_name(self.name)
