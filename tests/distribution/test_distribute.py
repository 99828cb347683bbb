"""Datasets that strategies distribute: on made-up devices, and in processes that train."""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import tfpipe
from tests.distribution.test_mesh import check_mesh
from tests.refusals import refusal
from tfpipe.engine.order import Order
from tfpipe.errors import ConfigError

CONFIG = tfpipe.PipelineConfig(batch_size=16, image_size=8)


@pytest.fixture
def manifest(shades: Path) -> tfpipe.Manifest:
    return tfpipe.load_manifest(str(shades))


class Handed(Exception):
    """The options that reach TensorFlow."""


def made_up(monkeypatch, kind: str, job: str = "localhost", replicas: int = 8, hosts: int = 1):
    """A strategy whose devices this machine does not have."""
    devices = tuple(f"/job:{job}/replica:0/task:0/device:{kind}:{i}" for i in range(replicas))

    def refuse(function: object, options: object) -> None:
        raise Handed(options)

    class Strategy:
        num_replicas_in_sync = replicas
        extended = SimpleNamespace(worker_devices=devices, num_hosts=hosts)
        distribute_datasets_from_function = staticmethod(refuse)

    if kind == "TPU":
        monkeypatch.setattr(tf.distribute, "TPUStrategy", Strategy)
    return Strategy()


def hand_over(strategy, manifest, config: tfpipe.PipelineConfig = CONFIG, **more: object):
    """Returns the options that reach TensorFlow."""
    with pytest.raises(Handed) as caught:
        tfpipe.distribute_dataset(strategy, manifest, "train", config, **more)
    return caught.value.args[0]


def refused(strategy, manifest, config: tfpipe.PipelineConfig, **more: object) -> str:
    return refusal(ConfigError, tfpipe.distribute_dataset, strategy, manifest, "train", config, **more)


def test_a_remote_tpu_reads_no_files_of_this_machine(monkeypatch, manifest, shades: Path) -> None:
    remote = made_up(monkeypatch, "TPU", job="worker")
    assert refused(remote, manifest, CONFIG) == (
        f"The hosts of a remote TPU cannot read files of this machine, got 'train' of {shades}. Copy the dataset to "
        "gs:// and load it from there."
    )
    bucket = replace(manifest, directory="gs://bucket/shades")
    assert refused(remote, bucket, replace(CONFIG, cache="bytes", cache_dir="/mnt/cache")) == (
        "The hosts of a remote TPU cannot read a cache on this machine, got `cache_dir` '/mnt/cache'. Leave it out."
    )
    hand_over(remote, bucket)


def test_a_tpu_of_this_machine_reads_its_files_and_takes_no_text(monkeypatch, manifest) -> None:
    tpu, config = made_up(monkeypatch, "TPU"), replace(CONFIG, extra_features=("image/height", "image/filename"))
    assert hand_over(tpu, manifest).experimental_fetch_to_device
    assert refused(tpu, manifest, config) == (
        "`extra_features` must not name text for a TPU, which holds numbers only, got image/filename. Leave it "
        "out; or give `options` with experimental_fetch_to_device=False, and keep it out of `strategy.run`."
    )
    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    assert hand_over(tpu, manifest, config, options=options) is options


@pytest.mark.parametrize(("kind", "fetched"), [("GPU", False), ("CPU", True)])
def test_text_stays_on_the_host_of_gpus(monkeypatch, manifest, kind: str, fetched: bool) -> None:
    strategy = made_up(monkeypatch, kind)
    assert hand_over(strategy, manifest).experimental_fetch_to_device
    config = replace(CONFIG, extra_features=("image/filename",))
    assert hand_over(strategy, manifest, config).experimental_fetch_to_device is fetched


@pytest.mark.parametrize(
    ("replicas", "hosts", "sentence"),
    [
        (6, 1, "`batch_size` 16 must be divisible by 6 replicas; use 12 or 18."),
        (8, 3, "Every host must have as many replicas as the others, got 8 replicas for host 0 of 3."),
    ],
)
def test_replicas_and_hosts_that_do_not_divide(monkeypatch, manifest, tmp_path, replicas, hosts, sentence):
    strategy = made_up(monkeypatch, "TPU", replicas=replicas, hosts=hosts)
    cached = replace(CONFIG, cache="bytes", cache_dir=str(tmp_path / "cache"))
    assert refused(strategy, manifest, cached).startswith(sentence)
    assert not list(tmp_path.iterdir())  # before a cache is filled


def test_one_device_gets_whole_batches_and_counts_steps(manifest, shades: Path) -> None:
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    train = tfpipe.distribute_dataset(strategy, manifest, "train", replace(CONFIG, as_supervised=True, one_hot=True))
    images, labels = next(iter(train))
    assert (images.shape, labels.shape) == ((16, 8, 8, 3), (16, 5))
    assert int(train.cardinality) == 250 // 16
    evaluation = replace(CONFIG, training=False, as_supervised=True)
    batches = list(tfpipe.distribute_dataset(strategy, shades, "validation", evaluation))  # a path is as good
    assert len(batches) == tfpipe.steps_per_epoch(str(shades), "validation", evaluation, strategy) == 16
    assert sum(float(tf.reduce_sum(mask)) for _, _, mask in batches) == 250


def test_files_that_nobody_counted(shades: Path) -> None:
    source = tfpipe.tfrecord_files(str(shades / "train-*"))
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    config = replace(CONFIG, tf_data=tfpipe.TfDataOptions(shuffle_buffer_size=64))
    assert next(iter(tfpipe.distribute_dataset(strategy, source, None, config)))["image"].shape == (16, 8, 8, 3)
    assert refusal(ConfigError, tfpipe.steps_per_epoch, source, None, CONFIG) == (
        f"The steps of an epoch need the number of records, which is unknown for {source.name}. Choose a number "
        "of steps yourself."
    )


def test_the_strategy_in_scope_counts(manifest) -> None:
    config = tfpipe.PipelineConfig(batch_size=16)
    assert tfpipe.steps_per_epoch(manifest, "train", config) == 15
    with tf.distribute.OneDeviceStrategy("/CPU:0").scope():
        assert tfpipe.steps_per_epoch(manifest, "train", config) == 15
    with pytest.raises(ConfigError, match="at most the 250 records of an epoch, got 256"):
        tfpipe.steps_per_epoch(manifest, "train", replace(CONFIG, batch_size=256))


BATCH, EPOCH = 16, 15  # records of a global batch, steps of an epoch
LAST_START, STEPS = 30, 34  # two epochs, and as many steps more as a resumed run is followed
EVALUATED, STEPS_OF_EVALUATION = 250, 4

Train = Callable[..., list[dict]]


def expected_right(directory: Path) -> int:
    """What a plain loop counts for the guess that `replicas.py` makes."""
    records = tfpipe.data_source(directory, "validation")
    assert len(records) == EVALUATED
    return sum(record.image[0, 0, 0] // 40 == record.label for record in records)


def joined(parts: list[list]) -> list:
    """Names and checksums of global batches, from those of each host's part."""
    return [[list(chain(*column)) for column in zip(*step, strict=True)] for step in zip(*parts, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(("cpus", "workers"), [(1, 1), (4, 1), (1, 2)], ids=["one", "four", "two-workers"])
def test_the_order_is_the_same_and_an_evaluation_counts_each_image_once(train, shades, cpus, workers, rng):
    starts = rng.sample(range(LAST_START + 1), 5)
    tasks = [f"order:{STEPS}", resume := "resume:" + ",".join(map(str, starts)), "evaluate", "bfloat16", "devices"]
    processes = train(cpus, *tasks, *["mesh"] * (cpus == 4), workers=workers)
    steps = joined([process[tasks[0]] for process in processes])
    names = [names for names, _ in steps]
    stored = [record.name for record in tfpipe.data_source(shades, "train")]
    order = Order(len(stored), BATCH, 4, seed=7)
    assert names == [[stored[i] for i in order.list_numbers(*order.locate(step))] for step in range(STEPS)]
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
