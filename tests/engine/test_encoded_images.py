"""Windows and flips, held to what TensorFlow draws."""

import numpy as np
import pytest
import tensorflow as tf

from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.encoded_images import center_boxes
from tfpipe.native.batches import draw_crops
from tfpipe.pipeline.stages import center_crop_box, sample_crop_box, sample_flip
from tfpipe.system.hash_permutation import make_seeds

SEED = 20261121
COUNT = 600

OPTIONS = (
    AugmentOptions(),
    AugmentOptions(scale=(0.5, 0.6), ratio=(1.0, 1.0)),
    AugmentOptions(scale=(1.0, 1.0), ratio=(0.2, 5.0)),  # hardly any attempt fits
)


def drawn() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seeds, and sizes of originals and of what is stored; a fifth of the originals are narrow."""
    random = np.random.default_rng(SEED)
    print(f"seed {SEED}")
    seeds = random.integers(-(2**31), 2**31, (COUNT, 2)).astype(np.int32)
    originals = random.integers(1, 900, (COUNT, 2)).astype(np.int32)
    originals[::5, 1] = random.integers(1, 9, len(originals[::5]))
    return seeds, originals, random.integers(1, 300, (COUNT, 2)).astype(np.int32)


def in_graph(function, elements, dtype) -> np.ndarray:
    dataset = tf.data.Dataset.from_tensor_slices(elements)
    each = tf.autograph.experimental.do_not_convert(function)
    found = dataset.map(lambda *element: each(element if len(element) > 1 else element[0]))
    assert found.element_spec.dtype == dtype
    return np.stack(list(found.as_numpy_iterator()))


@pytest.mark.parametrize("options", OPTIONS, ids=["default", "narrow", "unlikely"])
@pytest.mark.parametrize("stored", [None, (64, 48), (3, 700)], ids=str)
def test_windows_are_those_of_the_pipeline(options: AugmentOptions, stored: tuple[int, int] | None) -> None:
    seeds, originals, _ = drawn()

    def draw(element):
        seed, original = element
        return sample_crop_box(seed, tf.unstack(original), stored, options)

    expected = in_graph(draw, (seeds, originals), tf.int32)
    windows, _ = draw_crops(seeds, originals, stored, scale=options.scale, ratio=options.ratio)
    assert windows.tolist() == expected.tolist()
    assert (windows[:, 2:] >= 1).all()


@pytest.mark.parametrize("squeezed", [False, True])
def test_centres_are_those_of_the_pipeline(squeezed: bool) -> None:
    _, originals, stored = drawn()

    def center(element):
        original, size = element
        return center_crop_box(tf.unstack(original), tf.unstack(size) if squeezed else None, (224, 192), 0.875)

    expected = in_graph(center, (originals, stored), tf.int32)
    sizes, extents = np.array(originals, np.int64), np.array(stored if squeezed else originals, np.int64)
    assert center_boxes(sizes, extents, (224, 192), 0.875).tolist() == expected.tolist()
    (wide, squeezed_wide) = center_boxes(np.array([[256, 512]] * 2), np.array([[256, 512], [256, 256]]), (9, 9), 0.875)
    assert (wide.tolist(), squeezed_wide.tolist()) == ([16, 144, 224, 224], [16, 72, 224, 112])


def test_flips_are_those_of_the_pipeline() -> None:
    seeds = drawn()[0]
    expected = in_graph(sample_flip, seeds, tf.bool)
    assert draw_crops(seeds, np.full((COUNT, 2), 9), scale=(0.1, 1), ratio=(1, 1))[1].tolist() == expected.tolist()
    assert 0.4 < expected.mean() < 0.6


def test_an_image_without_a_pixel_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^Image height and width must be positive\.$"):
        draw_crops(np.zeros((1, 2)), [[0, 5]], scale=(0.1, 1), ratio=(1, 1))


LAST = [[-2028599962, -1654217683], [-1998279288, 1073243213], [-1244060082, -312543455], [-629983102, 303794963]]


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (0, [[251938774, -582426185], [-1125115304, -1327506308], [-1501680793, -1686273359], [607459124, 1572314130]]),
        (7, [[1566614838, 359000652], [1183475991, 1775225086], [-1498478012, -487491567], [-1968280972, 70482787]]),
        (-1, LAST),
        (2**64 - 1, LAST),
    ],
)
def test_seeds_stay_the_same(seed: int, expected: list[list[int]]) -> None:
    """Another value here would change every crop of every run."""
    assert make_seeds(seed, 5, np.array([0, 1, 2**40 + 3, 17], np.int64)).tolist() == expected
