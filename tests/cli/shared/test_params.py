"""Options that are more than a number or a word."""

from typing import Any

import click
import pytest

from tfpipe.cli.shared.config_option import CountOrShare, Shares, Size


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Size(), "128MiB", 128 * 2**20),
        (Size(), "2GB", 2 * 10**9),
        (Size(), "1.5 kb", 1500),
        (Size(), "4096", 4096),
        (Size(), "7B", 7),
        (CountOrShare(), "25", 25),
        (CountOrShare(), "1%", 0.01),
        (CountOrShare(), "0.25", 0.25),
        (CountOrShare(), "0", 0),
        (Shares(), "train=0.9, validation=0.1", {"train": 0.9, "validation": 0.1}),
    ],
)
def test_value(kind: click.ParamType, text: str, value: Any) -> None:
    converted = kind.convert(text, None, None)
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (Size(), "big", "must be a size such as 128MiB or 2GB, got 'big'."),
        (Size(), "-1MB", "must be a size such as 128MiB or 2GB, got '-1MB'."),
        (CountOrShare(), "some", "must be a count such as 25 or a share such as 1%, got 'some'."),
        (Shares(), "train", "must be like train=0.9,validation=0.1, got 'train'."),
        (Shares(), "a=0.5,a=0.5", "must name each split once, got 'a' twice."),
    ],
)
def test_wrong_value(kind: click.ParamType, text: str, message: str) -> None:
    with pytest.raises(click.BadParameter) as error:
        kind.convert(text, None, None)
    assert error.value.message == message
