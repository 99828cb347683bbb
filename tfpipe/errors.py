"""Every error that tfpipe raises on purpose.

```
TfpipeError
├─ ConfigError             (also ValueError)   a wrong option                              exit 2
├─ FormatError             (also ValueError)   a bad record, a manifest that is too new    exit 1
├─ DataError                                   nothing found, too many bad images          exit 1
└─ MissingDependencyError  (also ImportError)  which extra to install                      exit 1
```

A message has one or two sentences: what must hold, what came, what to do.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

SENTENCE_END = re.compile(r"(?<=[.)])\s+(?=[A-Z`])")
_NODES = re.compile(
    r"\{\{.*?\}\} ?| ?\[Op:.*| ?\[\[.*?\]\]|Error in user-defined function passed to .*? with iterator: [^ ]+: "
)
_OWN = re.compile(r"\b(ConfigError|DataError|FormatError): (.+?)(?=\nTraceback|\Z)", re.DOTALL)
_PASSWORD = re.compile(r"(https?://|://(?=[^\s/@]*:))[^\s/@'\"]*@", re.IGNORECASE)
_QUERY = re.compile(r"(https?://[^\s?'\"]+|://[^\s?'\"]+(?=\?[^\s'\"]*=))\?[^\s'\"]*[^\s'\".,;:)]", re.IGNORECASE)
_ASSERTION = re.compile(r"assertion failed: \[(.*?)\]", re.DOTALL)


class TfpipeError(Exception):
    """The base of all errors that tfpipe raises.

    Args:
        args: The message.
        page: The place in the documentation that explains the error, as "symptoms#memory-grows"; empty if there
            is none. It stands where the error is raised, and nowhere else.

    Attributes:
        exit_code: The exit code of the command line.
        page: The place in the documentation.
    """

    exit_code = 1
    page = ""

    def __init__(self, *args: object, page: str = "") -> None:
        super().__init__(*(hide_secrets(arg) if isinstance(arg, str) else arg for arg in args))
        if page:
            self.page = page


class ConfigError(TfpipeError, ValueError):
    """An option has a value that cannot be used."""

    exit_code = 2


class FormatError(TfpipeError, ValueError):
    """A file on disk does not have the format that it must have."""


class DataError(TfpipeError):
    """The user's data does not allow the work to go on."""


class MissingDependencyError(TfpipeError, ImportError):
    """An optional package is needed and is not installed."""

    def __str__(self) -> str:
        """Returns the message that `args` has now; an `ImportError` would show the one that it was made with."""
        return Exception.__str__(self)


def hide_secrets(text: str) -> str:
    """Cuts passwords and queries out of the addresses in a text: a signed address lets whoever reads it fetch the file.

    A `?` of a pattern such as `gs://data/train-????` stays; only with a `=` behind it does it begin a query there.
    """
    if "://" not in text:
        return text
    return _QUERY.sub(r"\1?...", _PASSWORD.sub(r"\1...@", text))


@contextmanager
def naming(function: str) -> Iterator[None]:
    """Says in a sentence that the user's function, which runs in the block, raises an error."""
    try:
        yield
    except Exception as error:
        raise ConfigError(f"{function} raises {type(error).__name__}: {error}") from error


def explain_pipeline_error(error: BaseException) -> TfpipeError:
    """Returns the error that ended a pipeline: an error of tfpipe unchanged, any other as a sentence."""
    if isinstance(error, TfpipeError):
        return error
    if own := _OWN.search(str(getattr(error, "message", None) or error)):  # raised within a call of tf.data
        return {kind.__name__: kind for kind in (ConfigError, DataError, FormatError)}[own[1]](own[2])
    is_operation = type(error).__module__.startswith("tensorflow.") and not _ASSERTION.search(str(error))
    hint = " If it is a record or an image, `tfpipe verify` names it." if is_operation else ""
    return DataError(f"The pipeline failed: {first_line(error)}.{hint}")


def first_line(error: BaseException) -> str:
    """Returns the first line of a library's error, without the names of graph nodes before it."""
    text = str(getattr(error, "message", None) or error)
    if assertion := _ASSERTION.search(text):
        text = SENTENCE_END.split(assertion[1])[0]
    elif own := _OWN.search(text):
        text = own[2]
    lines = [line.strip() for line in _NODES.sub("", text).splitlines() if line.strip()]
    if lines[:1] == ["in user code:"]:  # AutoGraph puts the lines of the code first and the error last
        lines = lines[-1:]
    first = (lines or [""])[0].rstrip(".")[:300]
    # The text of a KeyError is only the key, and some errors have no text at all.
    return f"{type(error).__name__}: {first}".removesuffix(": ") if isinstance(error, KeyError) or not first else first
