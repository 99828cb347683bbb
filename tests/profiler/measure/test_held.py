"""The memory that stages hold, by their buffers."""

import pytest
import tensorflow as tf

from tests.profiler.profiles import make_profile
from tfpipe.profiler.measure.datasets import BuiltStage
from tfpipe.profiler.measure.facts import find_held


@pytest.mark.parametrize(("training", "number"), [(True, 2000), (False, 400)])
def test_a_shuffle_of_images_holds_several_epochs_of_a_training(training: bool, number: int) -> None:
    """400 records are repeated in front of it in a training, and read once in an evaluation."""
    source = tf.data.Dataset.range(400)
    built = [BuiltStage("mix", source, source.shuffle(2000))]
    profile = make_profile(dataset={"records": 400}, config={"training": training, "prefetch_batches": 0})
    (held,) = find_held(profile, built, {"mix": 150_000.0})
    assert (held.stage, held.what, held.number, held.num_bytes) == ("mix", "elements", number, number * 150_000)
