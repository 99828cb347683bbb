"""The first steps of commands that run a pipeline: open the data, read the options, start TensorFlow."""

import glob
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tfpipe.cli.shared.config_option import BATCH_SIZE
from tfpipe.errors import ConfigError, DataError
from tfpipe.format import file_names
from tfpipe.storage.file_io import is_url
from tfpipe.system.child_process import silence_stderr

if TYPE_CHECKING:
    from tfpipe.engine.config.pipeline_config import PipelineConfig
    from tfpipe.engine.source import Source
    from tfpipe.format.manifest import Manifest
    from tfpipe.pipeline.stage import Customize

_RECORDS = re.compile(r"\.tfrecords?(\.gz)?(-|$)", re.IGNORECASE)


@contextmanager
def quiet_start() -> Iterator[None]:
    """Drops what TensorFlow's libraries log as they start, which no log level suppresses; not with --debug."""
    if "--debug" in sys.argv:
        yield
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # a fatal error comes as an exception, too
    with silence_stderr():
        yield


def read_config(
    path: str | None, given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> "PipelineConfig":
    """Reads the options in a file; those of the command line replace the file's, and the file's replace `defaults`."""
    from tfpipe.engine.config import toml_json
    from tfpipe.engine.config.pipeline_config import PipelineConfig

    table = {} if path is None else toml_json.read(path)
    table = {"batch_size": BATCH_SIZE, **(defaults or {}), **table, **given}
    return PipelineConfig(**table) if path is None else toml_json.build(PipelineConfig, table, path)


def open_data(dataset: str, split: str | None) -> "tuple[Manifest | Source, str | None]":
    """Opens a dataset and one of its splits, or files of another tool without a split."""
    if (glob.has_magic(dataset) and not os.path.isdir(dataset)) or os.path.isfile(dataset):
        from tfpipe.engine.source import tfrecord_files

        files = tfrecord_files(dataset)
        if split is not None:
            raise ConfigError(f"Files found by a pattern have no splits, got --split {split}. Leave it out.")
        return files, None
    from tfpipe.dataset.load import load_manifest

    data = load_manifest(dataset)
    names = list(data.splits)
    if split is None:
        split = "train" if "train" in names or len(names) != 1 else names[0]
    if split not in names:
        raise ConfigError(f"The dataset has no split {split!r}; it has {', '.join(names)}. Choose one with --split.")
    return data, split


def refuse_records(command: str, path: str) -> None:
    """Refuses a finished dataset, or TFRecords, as the input of a command that takes images."""
    if is_url(path) or not os.path.exists(path):
        return
    names = os.listdir(path) if os.path.isdir(path) else [os.path.basename(path)]
    has_records = any(_RECORDS.search(name) for name in names)
    if has_records and file_names.MANIFEST in names:
        ways = "`tfpipe reshard` writes it in another form, `tfpipe merge` joins it with others, `tfpipe inspect` shows"
        raise DataError(f"`tfpipe {command}` takes images, and {path} is a dataset. {ways} it.")
    if has_records and all(_RECORDS.search(name) or name.startswith(".") for name in names):
        raise DataError(f"`tfpipe {command}` takes images, and {path} holds TFRecords: `tfpipe index` describes them.")


def read_names(path: str) -> list[str]:
    """Reads the names of records, one in each line."""
    try:
        with open(path, encoding="utf-8") as file:
            return [line.rstrip("\n") for line in file if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not a text in UTF-8" if isinstance(error, ValueError) else error.strerror
        raise DataError(f"{path} cannot be read: {reason}.") from None


def load_stages(stages: str | None) -> "Customize | None":
    """Returns the function that --stages names; None without one.

    TensorFlow is loaded first, without its log: the user's module would load it with the log of its libraries.
    """
    if stages is None:
        return None
    with quiet_start():
        import tfpipe.pipeline.stage  # noqa: F401
    customize: Customize = load_function(stages, "--stages")
    return customize


def load_function(text: str, option: str) -> Any:
    """Returns the function that `module:function` or `file.py:function` names."""
    function = _load(text, option)
    if not callable(function):
        raise ConfigError(f"{option}: {text} is no function, but a {type(function).__name__}.")
    return function


def load_loader(text: str) -> Callable[[], Any]:
    """Returns the function named by `text`, which makes a loader; if `text` names a loader, a function returning it."""
    found = _load(text, "--loader")
    return found if callable(found) else lambda: found


def _load(text: str, option: str) -> Any:
    """Returns the object that `module:name` or `folder/file.py:name` names, also from the current directory."""
    module_name, colon, name = text.rpartition(":")
    if not (module_name and colon and name.isidentifier()):
        raise ConfigError(f"{option} must be module:function, got {text!r}.")
    folder = ""  # an installed command does not look for modules in the current directory
    if module_name.endswith(".py"):  # as with `python file.py`, the modules beside the file are found too
        folder, module_name = os.path.split(module_name.removesuffix(".py"))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{option}: {module_name} imports {error.name}, which is not installed.") from error
        advice = "Run the command in the folder of the module, or install it."
        raise ConfigError(f"{option}: there is no module {module_name}. {advice}") from None
    except Exception as error:
        raise ConfigError(f"{option}: {module_name} cannot be imported: {type(error).__name__}: {error}") from error
    file, loaded = text.rpartition(":")[0], getattr(module, "__file__", None) or "Python"
    if file.endswith(".py") and os.path.realpath(loaded) != os.path.realpath(file):
        raise ConfigError(f"{option}: {file} cannot be loaded: {loaded} has a module of this name. Rename the file.")
    try:
        return getattr(module, name)
    except AttributeError:
        raise ConfigError(f"{option}: {module_name} has no function {name}.") from None
