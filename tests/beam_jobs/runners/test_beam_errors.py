"""Errors on their way out of Beam."""

import pytest

from beam_jobs.runners.beam_errors import find_error, remove_graph_place, unwrap_errors
from tfpipe.errors import ConfigError, DataError, FormatError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Traceback\n  x\ntfpipe.errors.DataError: A [b]. [while running 'Write/x']\n\nmore", DataError("A [b].")),
        ("tfpipe.errors.FormatError: bad", FormatError("bad")),
        ("tfpipe.errors.Unheard: bad", DataError("bad")),
        ("ValueError: bad", None),
        ("", None),
    ],
)
def test_errors_that_come_as_text(text: str, expected: Exception | None) -> None:
    error = find_error(text)
    assert (type(error), str(error)) == (type(expected), str(expected))


@pytest.mark.parametrize("form", ["{0}: {1}", "Exception: {0}({1!r})", "Traceback\n{0}: {1}\nand so on"])
def test_a_module_that_a_worker_lacks_is_named(form: str) -> None:
    error = find_error(form.format("ModuleNotFoundError", "No module named 'beam_jobs'"))
    assert isinstance(error, DataError)
    assert str(error) == (
        "A worker of the cluster could not import beam_jobs. Install the same tfpipe on all of its machines, with the "
        "same extras as here."
    )


def test_errors_come_out_of_beam_as_they_went_in() -> None:
    with pytest.raises(KeyboardInterrupt), unwrap_errors():
        raise RuntimeError("KeyboardInterrupt [while running 'Write shards/Write shard']")
    error = remove_graph_place(ConfigError("Wrong [really]. [while running 'Write shards/Write shard']"))
    assert (type(error), str(error)) == (ConfigError, "Wrong [really].")
    with pytest.raises(RuntimeError, match=r"^a bug$"), unwrap_errors():
        raise RuntimeError("a bug")
