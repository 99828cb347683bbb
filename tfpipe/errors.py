"""Every error that tfpipe raises on purpose.

```
TfpipeError
├─ ConfigError             (also ValueError)   a wrong option                              exit 2
├─ FormatError             (also ValueError)   a bad record, a manifest that is too new    exit 1
├─ DataError                                   nothing found, too many bad images          exit 1
└─ MissingDependencyError  (also ImportError)  which extra to install                      exit 1
```

A message is one sentence or two: what must hold, what came, what to do.
"""

import re

SENTENCE_END = re.compile(r"(?<=[.)])\s+(?=[A-Z`])")
_NODES = re.compile(r"\{\{.*?\}\} ?| ?\[Op:.*| ?\[\[.*?\]\]")
_ASSERTION = re.compile(r"assertion failed: \[(.*?)\]", re.DOTALL)


class TfpipeError(Exception):
    """Base of all errors raised by tfpipe; `exit_code` is what the command line returns for it."""

    exit_code = 1


class ConfigError(TfpipeError, ValueError):
    """An option has a value that cannot be used."""

    exit_code = 2


class FormatError(TfpipeError, ValueError):
    """Bytes on disk are not what the format says they must be."""


class DataError(TfpipeError):
    """The user's data does not allow the work to go on."""


class MissingDependencyError(TfpipeError, ImportError):
    """An optional package is needed and is not installed."""


def pipeline_error(error: BaseException) -> TfpipeError:
    """What a pipeline ended with: an error of ours as it is, another one in a sentence."""
    if isinstance(error, TfpipeError):
        return error
    operation = type(error).__module__.startswith("tensorflow.") and not _ASSERTION.search(str(error))
    hint = " If it is a record or an image, `tfpipe verify` names it." if operation else ""
    return DataError(f"The pipeline failed: {first_line(error)}.{hint}")


def first_line(error: BaseException) -> str:
    """What a library's error says, without the pages that follow, and without the names of graph nodes before it."""
    text = str(getattr(error, "message", None) or error)
    if said := _ASSERTION.search(text):
        text = SENTENCE_END.split(said[1])[0]
    lines = [line.strip() for line in _NODES.sub("", text).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0].rstrip(".")[:300]
