"""The numbers by which the images of a record are chosen and seeded, where records have several. Loads no TensorFlow.

`tfpipe.pipeline.image_choice` uses them with TensorFlow's operations, `tfpipe.engine.numpy_crops` without.
"""

import numpy as np
from numpy.typing import NDArray

CHOICE_KEY = (0x13198A2E, 0x03707344)
"""The key under which images are drawn. The key of flips is the first digits of pi, and these are further ones."""

_STEP = 0x9E3779B1  # odd, so that each image changes the seed in another way


def list_image_words(count: int) -> NDArray[np.int32]:
    """Lists what changes the first word of a record's seed into that of each of its images: int32 [count]."""
    words = np.arange(count, dtype=np.uint64) * np.uint64(_STEP) & np.uint64(2**32 - 1)
    result: NDArray[np.int32] = words.astype(np.uint32).view(np.int32)
    return result
