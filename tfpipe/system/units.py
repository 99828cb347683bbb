"""Sizes as people write them (`128MiB`, `2GB`), and sizes, rates and shares as people read them (`1.2 GB`, `26 %`)."""

import re

from tfpipe.errors import ConfigError

A_SIZE = "a size such as 128MiB or 2GB"
"""The words for a message about what `parse_bytes` accepts."""

_SHORT = 60

_UNITS = {
    **{"": 1, "B": 1},
    **{"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
    **{"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40},
}
# Numbers are bounded so that no text becomes an integer of thousands of digits.
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([KMGT]i?B|B)?", re.IGNORECASE)


def parse_bytes(size: str | int, name: str = "size") -> int:
    """Converts `128MiB`, `2GB` (powers of 1000), `4096` or a number of bytes; an error names the option `name`."""
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if match is None:
        raise ConfigError(f"`{name}` must be {A_SIZE}, got {size!r}.")
    number, factor = match[1], _UNITS[(match[2] or "").upper()]
    return int(float(number) * factor) if "." in number else int(number) * factor


def human_bytes(count: float) -> str:
    """Formats bytes as `1.2 GB`, in decimal units as disks and networks count."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_mebibytes(count: float) -> str:
    """Formats bytes as `812MiB`, rounded down but at least 1, in the form that `parse_bytes` reads."""
    return f"{max(int(count // 2**20), 1)}MiB"


def human_rate(per_second: float) -> str:
    """Formats a rate as `1,059`; as `8.2` below 10, where a whole number says too little; "any rate" for no limit."""
    if per_second == float("inf"):
        return "any rate"
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"


def human_share(share: float) -> str:
    """Formats a share as `26 %`, in whole numbers; one above 0 that rounds to 0 becomes "under 1 %"."""
    return "under 1 %" if 0 < share < 0.01 else f"{share * 100:.0f} %"


def shorten(value: object) -> str:
    """Returns a wrong value as an error message shows it: its `repr` if that is short, else its type."""
    text = repr(value)
    return text if len(text) <= _SHORT else f"a value of the type {type(value).__name__}"


def human_text(value: str | bytes) -> str:
    r"""Returns a text that every program reads: a byte that is not UTF-8 becomes `\udce9` or the like, as in JSON."""
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def human_count(count: int, noun: str, plural: str | None = None) -> str:
    """Formats a count with its noun: `1 shard`, `2,000 shards`; a plural that does not end in -s must be given."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
