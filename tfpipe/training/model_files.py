"""The files beside an exported model: the names of classes, and notes.

```
RUN/model/
  saved_model.pb, variables/
  labels.txt    names of classes, one on each line, in the order of their numbers
  tfpipe.json   for `tfpipe predict`: how the dataset's images were stored
```
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tfpipe._version import __version__
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import DataError, FormatError
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest
from tfpipe.storage import file_io
from tfpipe.training.run_dir import MODEL, RUN

PROGRAM = "saved_model.pb"
"""The file without which a folder is not a model. It is written last."""

LABELS_FILE = "labels.txt"
NOTES_FILE = "tfpipe.json"
NOTES_VERSION = 1

_MAX_NOTES_BYTES = 1 << 20
_MAX_LABELS_BYTES = 1 << 28


def get_form(manifest: Manifest) -> ImageForm:
    """Returns the form in which a dataset stores its images; the default one for files of other tools."""
    return ImageForm.recorded(manifest.image) if manifest.foreign is None else ImageForm()


def encode_notes(config: PipelineConfig, label_names: Sequence[str], form: ImageForm) -> dict[str, bytes]:
    """Returns the content of both files by name."""
    notes = {
        "version": NOTES_VERSION,
        "tfpipe": __version__,
        "image_size": list(config.size),
        "classes": len(label_names),
        "crop_fraction": config.augment_options.crop_fraction if config.augment != "none" else None,
        "antialias": config.augment_options.antialias,
        "form": form.to_json(),
    }
    labels = "".join(f"{name}\n" for name in label_names)
    return {LABELS_FILE: labels.encode(), NOTES_FILE: (json.dumps(notes, indent=2) + "\n").encode()}


def find_model(path: str) -> str:
    """Returns the folder of a run's model, or the path itself where it is a model.

    Raises:
        DataError: There is no model, or the folder cannot be read.
    """
    for directory in (path, file_io.join(path, MODEL)):
        if file_io.exists(file_io.join(directory, PROGRAM)):
            return directory
    if file_io.exists(file_io.join(path, RUN)):
        raise DataError(
            f"{path} has no model yet. Run the same `tfpipe train` command again: it goes on, and exports one in the "
            "end."
        )
    state = "holds neither" if file_io.exists(path) else "does not exist"
    raise DataError(f"{path} must be the folder of a run of `tfpipe train`, or a model from one, and {state}.")


def read_form(directory: str) -> ImageForm:
    """Reads the form in which the dataset of a model stores its images.

    Raises:
        DataError: They are missing, or cannot be read.
        FormatError: They are damaged, or of another version.
    """
    path = file_io.join(directory, NOTES_FILE)
    text = _read(path, _MAX_NOTES_BYTES)
    try:
        notes = json.loads(text)
        version, form = notes["version"], dict(notes["form"])
    except (ValueError, TypeError, KeyError):
        raise FormatError(f"{path} is damaged. Export the model again.") from None
    if version != NOTES_VERSION:
        raise FormatError(f"{path} has version {version}, and this tfpipe reads {NOTES_VERSION}.")
    return ImageForm.recorded(form)


def read_labels(directory: str) -> tuple[str, ...]:
    """Reads the names of a model's classes; raises the errors of `read_form`."""
    names = _read(file_io.join(directory, LABELS_FILE), _MAX_LABELS_BYTES)
    return tuple(names.decode().removesuffix("\n").split("\n"))


def _read(path: str, max_bytes: int) -> bytes:
    try:
        return file_io.read_bytes(path, max_bytes)
    except FileNotFoundError:
        raise DataError(f"{path} is missing. Name a complete model that tfpipe exported.") from None
