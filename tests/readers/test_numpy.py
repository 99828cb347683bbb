"""The reader without a framework."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.readers.numpy import NumpyBatches

OPTIONS = {"image_size": 8, "batch_size": 4, "seed": 3}


def make(folder: Path, **options: object) -> NumpyBatches:
    """Opens twelve images for training and three for evaluation."""
    return NumpyBatches(folder, "train", PipelineConfig(**{**OPTIONS, **options}))


def test_forms_of_a_batch_and_a_step_that_is_not_there(small_dataset: Path) -> None:
    image, label = next(iter(make(small_dataset, as_supervised=True, one_hot=True)))
    assert (image.dtype, image.shape, label.dtype, label.shape) == (np.uint8, (4, 8, 8, 3), np.float32, (4, 3))
    bits = next(iter(make(small_dataset, image_dtype="bfloat16")))["image"]
    floats = next(iter(make(small_dataset, image_dtype="float32")))["image"]
    assert (bits.dtype, floats.dtype) == (np.uint16, np.float32)
    np.testing.assert_allclose((bits.astype(np.uint32) << 16).view(np.float32), floats, rtol=2**-8)
    evaluation = NumpyBatches(
        small_dataset, "validation", PipelineConfig(**OPTIONS, training=False, as_supervised=True)
    )
    assert [(image.shape, mask.tolist()) for image, _, mask in evaluation] == [((3, 8, 8, 3), [1.0] * 3)]
    assert [mask.tolist() for _, _, mask in evaluation] == [[1.0] * 3]  # each pass is whole
    shared = NumpyBatches(small_dataset, "validation", evaluation.config, rank=(0, 2))
    assert [mask.tolist() for _, _, mask in shared] == [[1.0, 0.0]]
    with pytest.raises(ConfigError, match=r"^`step` must be at least 0, got -1\.$"):
        make(small_dataset).read(-1)


def test_a_script_without_a_framework_takes_one_batch_and_ends_at_once(small_dataset: Path) -> None:
    """So do the readers of single records, and those for Grain, without Grain."""
    code = (
        "import sys, tfpipe; sys.modules['grain'] = None\n"
        "import tfpipe.readers.grain; from tfpipe.readers.numpy import NumpyBatches\n"
        "records = tfpipe.data_source(sys.argv[1], 'train'); records[0].image; records.with_label('dog')\n"
        "batches = NumpyBatches(sys.argv[1], 'train', tfpipe.PipelineConfig(batch_size=4, image_size=8))\n"
        "print(next(iter(batches))['image'].shape)\n"
        "print(sorted({'tensorflow', 'jax', 'torch', 'apache_beam', 'keras', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, small_dataset], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("(4, 8, 8, 3)\n[]\n", "")
