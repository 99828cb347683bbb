"""Text that is safe to print."""

from tfpipe.cli.shared.console import clean_line


def test_file_names_cannot_control_the_terminal() -> None:
    assert clean_line("a\x1b[31mb\nc\tü") == "a\ufffd[31mb\ufffdc\ufffdü"
