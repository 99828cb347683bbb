"""Checks whether an optional package is installed, without loading it."""

from tfpipe.system.extras import check_installed


def require_tensorflow(command: str) -> None:
    """Checks that TensorFlow is installed."""
    check_installed("tensorflow", f"`tfpipe {command}`", "TensorFlow", "tfpipe[tensorflow]")


def require_beam(what: str) -> None:
    """Checks that Apache Beam is installed.

    Args:
        what: The option that needs it, as the subject of a sentence.
    """
    check_installed("apache_beam", what, "Apache Beam", "tfpipe[beam]")
