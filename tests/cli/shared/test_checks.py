"""Checks that are made of errors."""

from tfpipe.cli.shared.checks import Check, fail_check
from tfpipe.errors import ConfigError


def test_an_error_is_what_was_found_and_what_to_do() -> None:
    error = ConfigError("`num_hosts` must be 8, got 2.5 (v1.2). Use num_hosts=8. Or not.")
    assert fail_check("batch", error) == Check(
        "batch", "failure", "`num_hosts` must be 8, got 2.5 (v1.2).", "Use num_hosts=8. Or not."
    )
    assert fail_check("batch", ConfigError("Bad.")) == Check("batch", "failure", "Bad.")
