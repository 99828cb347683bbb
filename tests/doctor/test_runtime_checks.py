"""Versions, machine and batch, with numbers written by hand."""

import pytest

from tfpipe.doctor.result import Check, TargetConfig
from tfpipe.doctor.runtime_checks import (
    BatchFacts,
    CacheFacts,
    TensorFact,
    check_batch,
    check_cache,
    check_cpu,
    check_file_access,
    check_memory,
    check_shapes,
    check_tuned,
    check_versions,
    check_xla,
)

HERE, LOCAL_TPU, REMOTE_TPU = TargetConfig(), TargetConfig(tpu="local"), TargetConfig(tpu="my-tpu")
PLAIN = {"tensorflow": "2.20.0", "keras": "3.10.0"}
FOR_TPU = {"tensorflow-tpu": "2.20.0", "libtpu": "0.0.21", "keras": "3.10.0"}


@pytest.mark.parametrize(
    ("tensorflow", "installed", "target", "expected"),
    [
        ("2.20.0", PLAIN, HERE, Check("versions", "ok", "TensorFlow 2.20.0, Keras 3.10.0.")),
        ("2.18.0rc1", PLAIN, HERE, Check("versions", "ok", "TensorFlow 2.18.0rc1, Keras 3.10.0.")),
        (
            "2.20.0",
            FOR_TPU,
            LOCAL_TPU,
            Check("versions", "ok", "TensorFlow 2.20.0, Keras 3.10.0, libtpu 0.0.21."),
        ),
        (
            "2.20.0",
            FOR_TPU,
            REMOTE_TPU,
            Check(
                "versions",
                "ok",
                "TensorFlow 2.20.0, Keras 3.10.0, libtpu 0.0.21.",
                "It must be TensorFlow 2.20.0 on 'my-tpu' too, which cannot be seen from here.",
            ),
        ),
        (
            "2.20.0",
            PLAIN,
            REMOTE_TPU,
            Check(
                "versions",
                "warning",
                "TensorFlow 2.20.0, Keras 3.10.0, no libtpu on this machine.",
                "It must be TensorFlow 2.20.0 on 'my-tpu' too, which cannot be seen from here.",
            ),
        ),
        (
            "2.20.0",
            {**FOR_TPU, "tensorflow": "2.21.0"},
            HERE,
            Check(
                "versions",
                "failure",
                "tensorflow 2.21.0 and tensorflow-tpu 2.20.0 are both installed, each over files of the other.",
                "pip uninstall -y tensorflow tensorflow-tpu; then install one: tensorflow-tpu for a TPU.",
            ),
        ),
        (
            "2.17.1",
            PLAIN,
            HERE,
            Check("versions", "failure", "TensorFlow must be 2.18 or newer, got 2.17.1.", "Install a newer one."),
        ),
        (
            "2.20.0",
            {**PLAIN, "keras": "2.15.0"},
            HERE,
            Check("versions", "failure", "Keras must be 3 or newer, got 2.15.0.", "pip install -U keras."),
        ),
        (
            "2.20.0",
            PLAIN,
            LOCAL_TPU,
            Check(
                "versions",
                "failure",
                "TensorFlow 2.20.0, Keras 3.10.0, but no libtpu, without which no TPU can be used.",
                "pip install tensorflow-tpu, which brings it, in place of tensorflow.",
            ),
        ),
        (
            "2.20.0",
            {**PLAIN, "libtpu": "0.0.21"},
            LOCAL_TPU,
            Check(
                "versions",
                "warning",
                "TensorFlow 2.20.0, Keras 3.10.0, libtpu 0.0.21, but a TensorFlow that may have no TPU in it.",
                "If the TPU is not found, install tensorflow-tpu in place of tensorflow.",
            ),
        ),
    ],
)
def test_versions(tensorflow: str, installed: dict[str, str], target: TargetConfig, expected: Check) -> None:
    assert check_versions(tensorflow, installed, target) == expected


@pytest.mark.parametrize(
    ("path", "target", "expected"),
    [
        ("gs://b/pets", REMOTE_TPU, Check("file access", "ok", "gs://b/pets can be read from any host.")),
        ("/data/pets", HERE, Check("file access", "ok", "/data/pets is on this machine.")),
        ("/data/pets", LOCAL_TPU, Check("file access", "ok", "/data/pets is on this machine.")),
        (
            "/data/pets",
            REMOTE_TPU,
            Check(
                "file access",
                "failure",
                "The TPU 'my-tpu' reads on its own hosts, which cannot see /data/pets of this machine.",
                "Copy the dataset to an object store the TPU can read, such as gs://, or run on the TPU's own "
                "machine with `tpu` local.",
            ),
        ),
        (
            "/data/pets",
            TargetConfig(num_hosts=4),
            Check(
                "file access",
                "warning",
                "Each of 4 hosts must see /data/pets, which is a local path.",
                "Mount it on all of them under this path, or use an object store.",
            ),
        ),
    ],
)
def test_file_access(path: str, target: TargetConfig, expected: Check) -> None:
    assert check_file_access(path, target) == expected


def test_a_store_that_only_tensorflow_reads() -> None:
    assert check_file_access("gs://b/pets", HERE, lacks_client=True) == Check(
        "file access",
        "warning",
        "gs://b/pets can be read from any host, but here by TensorFlow alone, in throughput order.",
        "Install tfpipe[cloud] for the exact order.",
    )


@pytest.mark.parametrize(
    ("facts", "target", "expected"),
    [
        (
            BatchFacts(1024, 128, 8, 2, 8, 1251),
            LOCAL_TPU,
            Check(
                "batch",
                "ok",
                "1,024 images: 128 for each of 8 replicas on 2 hosts, read in blocks of 8 records; 1,251 steps an "
                "epoch.",
            ),
        ),
        (
            BatchFacts(12, 12, 1, 1, None, None),
            HERE,
            Check("batch", "ok", "12 images: 12 for each of 1 replica on 1 host."),
        ),
        (
            BatchFacts(12, 12, 1, 1, None, None),
            LOCAL_TPU,
            Check(
                "batch",
                "warning",
                "12 images: 12 for each of 1 replica on 1 host. A TPU fills up each replica's batch to a multiple "
                "of 8.",
                "Use 8 or 16 for each replica.",
            ),
        ),
        (
            BatchFacts(128, 128, 1, 1, None, 1, replicas_known=False),
            REMOTE_TPU,
            Check(
                "batch",
                "warning",
                "128 images: 128 for each of 1 replica on 1 host; 1 step an epoch. How many replicas 'my-tpu' has is "
                "not known here.",
                "Say how many there are with `num_replicas` and `num_hosts`.",
            ),
        ),
    ],
)
def test_batch(facts: BatchFacts, target: TargetConfig, expected: Check) -> None:
    assert check_batch(facts, target) == expected


IMAGE = TensorFact("image", "uint8", (8, 224, 224, 3))


@pytest.mark.parametrize(
    ("tensors", "target", "expected"),
    [
        (
            [IMAGE, TensorFact("seed", "int64", (8, 2))],
            LOCAL_TPU,
            Check("shapes", "ok", "image uint8 [8, 224, 224, 3], seed int64 [8, 2]."),
        ),
        (
            [TensorFact("image", "uint8", (8, None, 224, 3)), TensorFact("box", "float32", None)],
            HERE,
            Check(
                "shapes",
                "failure",
                "The shape must be static, and that of image, box is not.",
                "XLA compiles for one shape: give the feature a size in `pad_to` or in the schema, or leave it out of "
                "`extra_features`.",
            ),
        ),
        (
            [IMAGE, TensorFact("name", "string", (8,))],
            LOCAL_TPU,
            Check(
                "shapes",
                "failure",
                "The batch has text in it: name.",
                "Leave it out of `extra_features` for training: strings stay on the host, and no compiled step "
                "takes them.",
            ),
        ),
        (
            [IMAGE, TensorFact("name", "string", (8,))],
            HERE,
            Check(
                "shapes",
                "warning",
                "The batch has text in it: name.",
                "Leave it out of `extra_features` for training: strings stay on the host, and no compiled step "
                "takes them.",
            ),
        ),
        (
            [IMAGE, TensorFact("depth", "float64", (8,))],
            LOCAL_TPU,
            Check("shapes", "failure", "A TPU does not take depth float64.", "Cast it on the host, or leave it out."),
        ),
    ],
)
def test_shapes(tensors: list[TensorFact], target: TargetConfig, expected: Check) -> None:
    assert check_shapes(tensors, target) == expected


def test_xla() -> None:
    assert check_xla(None, 1.26, 128) == Check(
        "xla", "ok", "A step on a batch of 128 images compiled and ran in 1.3 s."
    )
    assert check_xla("Detected unsupported operations", 0.1, 128) == Check(
        "xla",
        "failure",
        "XLA does not compile a step on this batch: Detected unsupported operations.",
        "A TPU runs only what XLA compiles: look for strings and open shapes in the batch, above.",
    )


@pytest.mark.parametrize(("needed", "status"), [(5e9, "ok"), (5.1e9, "warning"), (10.1e9, "failure")])
def test_memory(needed: float, status: str) -> None:
    advice = "Lower `block_records`."
    found = check_memory("the cache and finished batches", needed, 10**9, 10**10, advice)
    assert (found.status, found.found) == (
        status,
        f"The cache and finished batches take about {needed / 1e9:.1f} GB, with the program {needed / 1e9 + 1:.1f} GB. "
        "10.0 GB are free.",
    )
    assert found.advice == ("" if status == "ok" else advice)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (CacheFacts("none", None, 0, 0), Check("cache", "ok", "No cache was asked for.")),
        (
            CacheFacts("bytes", None, 9 * 10**9, 10**10),
            Check("cache", "ok", "The cache of records takes 9.0 GB of memory, and 10.0 GB are free."),
        ),
        (
            CacheFacts("decoded", None, 91 * 10**8, 10**10),
            Check(
                "cache",
                "failure",
                "The cache of decoded images takes 9.1 GB of memory, and 10.0 GB are free, of which a cache may take "
                "90 %.",
                "Use a smaller `decoded_size`, or no cache.",
            ),
        ),
        (
            CacheFacts("bytes", None, 91 * 10**8, 10**10),
            Check(
                "cache",
                "failure",
                "The cache of records takes 9.1 GB of memory, and 10.0 GB are free, of which a cache may take 90 %.",
                "Use no cache.",
            ),
        ),
        (
            CacheFacts("bytes", None, 91 * 10**8, 10**10, may_keep_part=True),
            Check(
                "cache",
                "failure",
                "The cache of records takes 9.1 GB of memory, and 10.0 GB are free, of which a cache may take 90 %.",
                "Set `cache_bytes` to keep what fits, use a `cache_dir`, or no cache.",
            ),
        ),
        (
            CacheFacts("bytes", "/ssd", 10**10, 10**10),
            Check("cache", "ok", "The cache of records takes 10.0 GB in /ssd, and 10.0 GB are free."),
        ),
        (
            CacheFacts("bytes", "/ssd", 2 * 10**10, 10**10),
            Check(
                "cache",
                "failure",
                "The cache of records takes 20.0 GB in /ssd, and 10.0 GB are free there.",
                "Use another `cache_dir`, or no cache.",
            ),
        ),
        (
            CacheFacts("bytes", "/ssd", 2 * 10**10, 10**10, filled=True),
            Check("cache", "ok", "/ssd has a cache of this split already."),
        ),
        (
            CacheFacts("decoded", None, None, 10**10),
            Check(
                "cache",
                "warning",
                "How much the cache of decoded images takes is not known: its records were never counted.",
                "Watch the memory in the first epoch, or write the data as a tfpipe dataset.",
            ),
        ),
    ],
)
def test_cache(facts: CacheFacts, expected: Check) -> None:
    assert check_cache(facts) == expected


@pytest.mark.parametrize(
    ("measured", "hosts", "target", "expected"),
    [
        (
            None,
            1,
            HERE,
            Check("cpu", "skipped", "Not asked.", "Give `images_per_second` to learn whether the hosts keep up."),
        ),
        (
            1200.0,
            1,
            TargetConfig(images_per_second=1000),
            Check("cpu", "ok", "This host makes 1,200 images/s with 4 cores; 1,000 are wanted."),
        ),
        (
            1100.0,
            1,
            TargetConfig(images_per_second=1000),
            Check(
                "cpu",
                "warning",
                "This host makes 1,100 images/s with 4 cores; 1,000 are wanted.",
                "Use hosts with 5 such cores, a cache, augment='device', or images stored smaller.",
            ),
        ),
        (
            400.0,
            1,
            TargetConfig(images_per_second=1000),
            Check(
                "cpu",
                "failure",
                "This host makes 400 images/s with 4 cores; 1,000 are wanted. The accelerator would wait 60% of the "
                "time.",
                "Use hosts with 12 such cores, a cache, augment='device', or images stored smaller.",
            ),
        ),
        (
            400.0,
            2,
            TargetConfig(images_per_second=1000, num_hosts=2),
            Check(
                "cpu",
                "warning",
                "This host makes 400 images/s with 4 cores; 500 are wanted of each of 2 hosts. The accelerator would "
                "wait 20% of the time.",
                "Use hosts with 6 such cores, a cache, augment='device', or images stored smaller.",
            ),
        ),
    ],
    ids=["not asked", "enough", "just enough", "too slow", "too slow here, but planned elsewhere"],
)
def test_cpu(measured: float | None, hosts: int, target: TargetConfig, expected: Check) -> None:
    assert check_cpu(measured, 4, hosts, target) == expected


NOTED = {"key": "a", "at": "2026-11-21T15:57:54+00:00", "processor": "A", "cores": 8, "split": "train"} | {
    "fingerprint": "f",
    "dataset": "'train' of pets",
}


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (NOTED, Check("tuned", "ok", "The options were tuned on this host and these data, on 2026-11-21.")),
        ({**NOTED, "key": "b", "cores": 2}, "another host (A, 8 cores)"),
        ({**NOTED, "key": "b", "split": "validation"}, "other data ('train' of pets)"),
        (
            {**NOTED, "key": "b", "cores": 2, "fingerprint": "g"},
            "another host (A, 8 cores) and other data ('train' of pets)",
        ),
        ({**NOTED, "key": "b"}, "another host or other data"),
    ],
    ids=["here", "host", "data", "both", "unknown"],
)
def test_where_options_were_tuned(here: dict[str, object], expected: Check | str) -> None:
    if isinstance(expected, str):
        expected = Check(
            "tuned", "warning", f"The options were tuned on {expected}.", "Run `tfpipe tune` here, for this data."
        )
    assert check_tuned(NOTED, here) == expected


def test_records_without_images_are_called_records() -> None:
    check = check_cpu(1000.0, 4, 1, TargetConfig(images_per_second=100), "records")
    assert check.found == "This host makes 1,000 records/s with 4 cores; 100 are wanted."
