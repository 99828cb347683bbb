"""The options of a column; loads neither DuckDB nor PyArrow."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from tfpipe.errors import ConfigError
from tfpipe.format.file_names import is_column_name
from tfpipe.system.options import Choice, Flag, Unchecked, check_options, option

On = Literal["name", "number", "digest"]
"""The value that identifies a record: a row of a table repeats it, so that the two can be joined."""
Missing = Literal["error", "default", "view"]
"""The treatment of records that have no value."""


@dataclass(frozen=True)
class ColumnConfig:
    """The options of a column.

    Attributes:
        name: The name of the column, which its folder gets. Required.
        missing: The treatment of records without a value: nothing is written, they get the default value, or they are
            left out of a view with the column's name. "error", "default" or "view". Default: "error".
        default: The value of each feature in records without one. A feature that is not named gets 0, an empty text, an
            empty list or zeros. Default: {}.
        replace: Whether the column takes the place of one with its name, whose features are gone then. Default: False.

    Raises:
        ConfigError: A value cannot be used.
    """

    name: str = option(Unchecked(), metavar="NAME")
    missing: Missing = option(Choice(get_args(Missing)), "error")
    default: Mapping[str, Any] = field(default_factory=dict)
    replace: bool = option(Flag(), False)

    def __post_init__(self) -> None:
        check_options(self)
        if not is_column_name(self.name):
            raise ConfigError(
                "A column's name must have at most 64 letters, digits, dashes and underscores, and begin with a letter "
                f"or a digit, got {self.name!r}."
            )
        if self.default and self.missing != "default":
            raise ConfigError(f"`default` goes with `missing` default, got {self.missing!r}. Leave one of them out.")


@dataclass(frozen=True)
class TableConfig(ColumnConfig):
    """The options of a column that comes out of a table.

    Attributes:
        on: The value that joins a row with its record: the record's name, its number in the split, from 0, or the
            digest of its original. "name", "number" or "digest". Default: "name".
        key: The column of the table that holds that value. None: the one that is called as `on` says. Default: None.
        features: The columns of the table that become features. Empty: all but the key and `split`. Default: ().

    Raises:
        ConfigError: A value cannot be used.
    """

    on: On = option(Choice(get_args(On)), "name")
    key: str | None = option(Unchecked(), None, metavar="COLUMN")
    features: tuple[str, ...] = option(Unchecked(), (), flag="--feature", metavar="COLUMN")
