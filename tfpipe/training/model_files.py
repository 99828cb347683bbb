"""The files of an exported model that are the same for all frameworks: the names of classes, and notes.

```
RUN/model/
  saved_model.pb (TensorFlow), model.pt2 (PyTorch), model.jax (JAX)
  labels.txt    names of classes, one on each line, in the order of their numbers
  tfpipe.json   for `tfpipe predict`: how the dataset's images were stored
```
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tfpipe._version import __version__
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import DataError, first_line
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest
from tfpipe.system import file_io

PROGRAMS = {"tensorflow": "saved_model.pb", "torch": "model.pt2", "jax": "model.jax"}
"""The file of each framework without which a folder is not a model. It is written last."""

LABELS_FILE = "labels.txt"
NOTES_FILE = "tfpipe.json"
NOTES_VERSION = 1


def read_form(manifest: Manifest) -> ImageForm:
    """Returns the form in which a dataset stores its images; the default one for files of other tools."""
    return ImageForm.recorded(manifest.image) if manifest.foreign is None else ImageForm()


def encode_notes(config: PipelineConfig, label_names: Sequence[str], form: ImageForm) -> dict[str, bytes]:
    """Returns the content of both files by name.

    Args:
        config: The options of the evaluation pipeline.
        label_names: The names of all classes.
        form: The form in which the dataset stores its images.
    """
    notes = {
        "version": NOTES_VERSION,
        "tfpipe": __version__,
        "image_size": list(config.size),
        "classes": len(label_names),
        "form": form.to_json(),
    }
    labels = "".join(f"{name}\n" for name in label_names)
    return {LABELS_FILE: labels.encode(), NOTES_FILE: (json.dumps(notes, indent=2) + "\n").encode()}


def write_model(directory: str, program: tuple[str, bytes], config: PipelineConfig, manifest: Manifest) -> None:
    """Writes a model of one file, which appears last and complete, in place of an earlier one.

    Args:
        directory: A local folder, or a URL.
        program: The name and the content of the file.
        config: The options of the evaluation pipeline.
        manifest: The dataset.

    Raises:
        DataError: The model cannot be written.
    """
    name, data = program
    files = {**encode_notes(config, manifest.label_names, read_form(manifest)), name: data}
    try:
        file_io.make_folder(directory)
        for file, content in files.items():
            file_io.write_anywhere(file_io.join(directory, file), content)
    except OSError as error:
        raise DataError(f"The model cannot be written to {directory}: {first_line(error)}.") from error
