"""The package tfpipe-kernels, which decodes JPEGs and reads records natively and which nobody needs to install."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

from tfpipe.errors import MissingDependencyError
from tfpipe.system import versions

DISTRIBUTION = "tfpipe-kernels"
"""The name of the package for pip."""


@functools.cache
def explain_missing_kernels() -> str | None:
    """Returns the reason why tfpipe-kernels cannot be used; None if it can."""
    try:
        import tfpipe_kernels  # noqa: F401
    except (ImportError, OSError) as error:
        return "it is not installed" if isinstance(error, ModuleNotFoundError) else str(error).rstrip(".")
    return None


def has_kernels() -> bool:
    """Returns whether tfpipe-kernels is installed and can be loaded."""
    return explain_missing_kernels() is None


def get_version() -> str | None:
    """Returns the version of the installed package, whether or not it can be loaded; None without one."""
    return versions.get_version(DISTRIBUTION)


def load_native_records() -> ModuleType | None:
    """Loads the part of tfpipe-kernels that reads records; None if it cannot be used, or is of an older release."""
    return _load_part("records")


def load_native_batches() -> ModuleType | None:
    """Loads the part of tfpipe-kernels that makes batches; None if it cannot be used, or is of an older release."""
    return _load_part("batches")


def _load_part(name: str) -> ModuleType | None:
    if not has_kernels():
        return None
    try:
        return importlib.import_module(f"tfpipe_kernels.{name}")
    except ImportError:
        return None


def check_kernels(user: str) -> None:
    """Checks that tfpipe-kernels can be used.

    Args:
        user: The subject of the sentence: what needs the package.

    Raises:
        MissingDependencyError: It is not installed, or cannot be loaded.
    """
    reason = explain_missing_kernels()
    if reason is not None:
        raise MissingDependencyError(
            f"{user} needs tfpipe-kernels, and {reason}. Install it from a checkout with: pip install ./kernels.",
            page="docs/start/install.md#the-native-decoder",
        )
