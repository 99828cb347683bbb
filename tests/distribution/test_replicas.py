"""Trainers on one replica, on four and in two processes read, learn and count the same."""

import io
from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.distribution.test_mesh import check_mesh
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.order import Order
from tfpipe.engine.record_reader import RecordReader

BATCH, EPOCH = 16, 15  # records of a global batch, steps of an epoch
LAST_START, STEPS = 30, 34  # two epochs, and as many steps more as a resumed run is followed
EVALUATED, STEPS_OF_EVALUATION = 250, 4
STARTS = 5  # places to resume at

pytest.importorskip("tensorflow")

Train = Callable[..., list[dict]]


@lru_cache
def expected_names(directory: Path) -> list[list[str]]:
    """Names of the images of every global batch, without TensorFlow."""
    manifest = load_manifest(str(directory))
    with RecordReader(str(directory), manifest, "train") as reader:
        names = [reader[i]["image/filename"][0].decode() for i in range(len(reader))]
    order = Order(len(names), BATCH, 4, seed=7)
    return [[names[i] for i in order.list_numbers(*order.locate(step))] for step in range(STEPS)]


def expected_right(directory: Path) -> int:
    """What a plain loop counts for the guess that `replicas.py` makes."""
    with RecordReader(str(directory), load_manifest(str(directory)), "validation") as reader:
        records = list(reader)
    assert len(records) == EVALUATED
    pixels = [Image.open(io.BytesIO(record["image/encoded"][0])).getpixel((0, 0)) for record in records]
    labels = [int(record["image/class/label"][0]) for record in records]
    return sum(pixel[0] // 40 == label for pixel, label in zip(pixels, labels, strict=True))


def joined(parts: list[list]) -> list:
    """Names and checksums of global batches, from those of each host's part."""
    return [[list(chain(*column)) for column in zip(*step, strict=True)] for step in zip(*parts, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(("cpus", "workers"), [(1, 1), (4, 1), (1, 2)], ids=["one", "four", "two-workers"])
def test_the_order_is_the_same_and_an_evaluation_counts_each_image_once(train, shades, cpus, workers, rng):
    starts = rng.sample(range(LAST_START + 1), STARTS)
    tasks = [f"order:{STEPS}", resume := "resume:" + ",".join(map(str, starts)), "evaluate", "bfloat16", "devices"]
    processes = train(cpus, *tasks, *["mesh"] * (cpus == 4), workers=workers)
    steps = joined([process[tasks[0]] for process in processes])
    names = [names for names, _ in steps]
    assert names == expected_names(shades)
    for epoch in (0, 1):  # no record twice; 10 of 250 are left out
        seen = list(chain(*names[epoch * EPOCH : (epoch + 1) * EPOCH]))
        assert len(set(seen)) == len(seen) == 240
    for i, start in enumerate(starts):  # with the very pixels
        assert joined([process[resume][i] for process in processes]) == steps[start : start + 4]
    replicas = cpus * workers
    for process in processes:
        strategy, devices, total = process["devices"]
        assert strategy.startswith(f"CPU: {replicas} replica")
        assert devices == [f"CPU:{cpu}" for cpu in range(cpus)]
        assert total == sum(range(replicas))
        if cpus == 4:
            assert strategy == "CPU: 4 replicas in 1 process (MirroredStrategy); no TPU and no GPU were found"
        right = expected_right(shades)
        assert process["evaluate"] == {"right": right, "count": EVALUATED, "steps": STEPS_OF_EVALUATION}
        local = BATCH // replicas
        assert process["bfloat16"] == [["bfloat16", [local, 8, 8, 3], f"CPU:{cpu}"] for cpu in range(cpus)]
    if cpus == 4:
        check_mesh([process["mesh"]], shades, [sums for _, sums in steps])


@pytest.mark.slow
def test_replicas_learn_the_same_and_keras_counts_each_image_once(train: Train, shades: Path) -> None:
    tasks = ["loop:5", "keras_evaluate"]
    (one,), (four,) = train(1, *tasks), train(4, *tasks)
    assert one["loop:5"] == pytest.approx(four["loop:5"], rel=1e-4)
    assert one["loop:5"][0] == pytest.approx(np.log(5), rel=1e-4)
    accuracy = expected_right(shades) / EVALUATED
    for results in (one, four):
        assert results["keras_evaluate"]["accuracies"] == pytest.approx([accuracy] * 3)
        assert results["keras_evaluate"]["steps"] == STEPS_OF_EVALUATION


@pytest.mark.slow
@pytest.mark.parametrize("where", ["host", "device"])
def test_keras_fits_the_same_on_replicas(train: Train, where: str) -> None:
    task = f"fit:{where}"
    (one,), (four,) = train(1, task), train(4, task)
    assert one[task]["iterations"] == 2 * EPOCH
    assert np.isfinite(one[task]["val_loss"]).all()
    for name, values in one[task].items():
        # On replicas it counts padding.
        filled = -(-EVALUATED // BATCH) * BATCH / EVALUATED if name == "val_loss" else 1.0
        assert values == pytest.approx(np.multiply(four[task][name], filled), rel=1e-3), name
