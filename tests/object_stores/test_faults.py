"""Stores that refuse, stay silent or break connections, for a while or for good."""

import time
from collections.abc import Mapping
from urllib.parse import unquote

import pytest

from tests.beam_jobs.datasets import make_dataset, read_tree
from tests.beam_jobs.images import make_photos, write_files
from tests.object_stores.conftest import Amazon, Cloud, Google
from tests.object_stores.proxy import now_and_then
from tests.refusals import refusal
from tfpipe.errors import DataError
from tfpipe.storage import file_io
from tfpipe.storage import store as object_store
from tfpipe.storage.buckets import StoreOptions
from tfpipe.storage.failures import RetryConfig
from tfpipe.storage.file_store import split_url
from tfpipe.storage.store import Store

HASTY = RetryConfig(
    first_s=0.2, retry_s=0.2, first_attempts=2, attempts=4, connect_s=5.0, read_s=5.0, first_pause_s=0.02
)
WILLING = RetryConfig(
    first_s=10.0, retry_s=20.0, first_attempts=4, attempts=6, connect_s=0.5, read_s=0.5, first_pause_s=0.02
)


@pytest.fixture
def hasty(monkeypatch) -> None:
    """Clients that give up after a few attempts, not after minutes."""
    monkeypatch.setattr(Store.__init__, "__defaults__", (StoreOptions(), HASTY))


@pytest.fixture
def willing(monkeypatch) -> None:
    """Clients that soon take silence for a failure, but try again."""
    monkeypatch.setattr(Store.__init__, "__defaults__", (StoreOptions(), WILLING))


@pytest.fixture(scope="module")
def photos() -> Mapping[str, bytes]:
    return make_photos({"cat": 5, "dog": 4})


@pytest.fixture
def source(cloud: Cloud, photos: Mapping[str, bytes]) -> str:
    return cloud.put(f"{cloud.new()}/photos", photos)


@pytest.mark.usefixtures("willing")
@pytest.mark.parametrize(
    "faults",
    [(429, 503, "drop", "cut"), *(pytest.param((fault,), marks=pytest.mark.slow) for fault in (429, "lost", 0.7))],
    ids=str,
)
def test_faults_that_pass_are_survived(cloud, source, photos, tmp_path, faults):
    """Every fifth request of every kind fails; the bytes are those of a dataset on this disk."""
    strike = now_and_then(*faults, every=5)
    output = f"{cloud.new()}/out"
    make_dataset(write_files(tmp_path / "photos", photos), tmp_path / "out", num_shards=2)
    cloud.proxy.harm = strike
    make_dataset(source, output, num_shards=2)
    assert sum(seen.fault is not None for seen in cloud.proxy.log) > 5
    assert cloud.tree(output) == read_tree(tmp_path / "out")


@pytest.mark.usefixtures("willing")
def test_large_objects_survive_faults(cloud: Cloud, monkeypatch) -> None:
    """The shard is sent in several parts."""
    monkeypatch.setattr(object_store, "PART_BYTES", 5 * 2**20)
    data = bytes(range(256)) * (17 * 2**20 // 256)
    url = f"{cloud.new()}/large"
    cloud.proxy.harm = now_and_then(503, "drop", "lost", every=3)
    with file_io.create(url, makes_folders=True) as file:
        for begin in range(0, len(data), 2**20):
            file.write(data[begin : begin + 2**20])
    cloud.proxy.harm = now_and_then("cut", every=2)
    assert file_io.read_whole(url) == data


def test_an_error_leaves_no_object(cloud: Cloud, monkeypatch) -> None:
    """Neither the sent bytes nor the buffered ones become an object."""
    import gc

    monkeypatch.setattr(object_store, "PART_BYTES", 2**18)
    url = f"{cloud.new()}/half"

    def fail() -> None:
        with file_io.create(url, makes_folders=True) as file:
            file.write(bytes(5 * 2**17))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    gc.collect()
    assert split_url(url)[1] not in cloud.names()
    assert cloud.unfinished() == 0


@pytest.mark.usefixtures("hasty")
def test_a_store_that_always_fails_is_one_sentence(cloud: Cloud, source: str) -> None:
    cloud.proxy.harm = lambda _: 503
    before, began = cloud.names(), time.monotonic()
    message = refusal(DataError, make_dataset, source, f"{cloud.new()}/out")
    assert message.startswith(f"{cloud.scheme}://data cannot be reached: HTTP status 503")
    assert message.endswith("Check the network and the store's endpoint.")
    assert time.monotonic() - began < 10
    assert cloud.names() == before


@pytest.mark.usefixtures("hasty")
def test_a_store_that_fails_in_the_middle_quarantines_no_image(cloud: Cloud, source: str, photos: Mapping[str, bytes]):
    """Nothing is half written either, and the same command goes on."""
    output = f"{cloud.new()}/out"
    cloud.proxy.harm = lambda seen: 503 if ".jpg" in unquote(seen.path) and seen.number > 20 else None
    message = refusal(DataError, make_dataset, source, output, num_shards=4)
    assert message.startswith(f"{cloud.scheme}://data failed again and again, at last with: HTTP status 503")
    assert message.endswith("; one that writes shards goes on with those that are missing.")
    left = cloud.tree(output)
    assert "manifest.json" not in left
    assert not any(name.startswith("quarantine") for name in left)
    finished = [name for name in left if name.endswith(".tfrecord") and not name.startswith(".tfpipe")]
    cloud.proxy.reset()
    assert make_dataset(source, output, num_shards=4).quarantined == 0
    written = [unquote(seen.path) for seen in cloud.proxy.log if seen.method in ("PUT", "POST")]
    assert not any(name in path and "index" not in path and "rows" not in path for name in finished for path in written)
    assert all(cloud.tree(output)[name] == left[name] for name in finished)


def test_a_missing_object_is_told_before_anything_is_written(cloud: Cloud, photos: Mapping[str, bytes]) -> None:
    rows = "".join(f"{name},x\n" for name in (*photos, "cat/gone.jpg"))
    base = cloud.put(cloud.new(), {**photos, "all.csv": f"image,label\n{rows}".encode()})
    output = f"{cloud.new()}/out"
    with pytest.raises(DataError, match=r"names 10 images, and 1 of their files does not exist: .*/cat/gone\.jpg\."):
        make_dataset(f"{base}/all.csv", output)
    assert make_dataset(f"{base}/all.csv", output, allow_missing=True).quarantined == 1
    assert b"cannot be read: No such file or directory" in cloud.tree(output)["quarantine/quarantined.jsonl"]


def test_a_missing_or_denied_bucket_is_one_sentence(cloud: Cloud, source: str) -> None:
    there_is_none = rf"^There is no bucket {cloud.scheme}://none\. Create it, or check the name\.$"
    with pytest.raises(DataError, match=there_is_none):
        make_dataset(f"{cloud.scheme}://none/in", f"{cloud.new()}/out")
    with pytest.raises(DataError, match=there_is_none):
        make_dataset(source, f"{cloud.scheme}://none/out")
    cloud.proxy.harm = lambda _: 403
    with pytest.raises(DataError, match=rf"^{cloud.scheme}://data must let these credentials list and read it, but"):
        make_dataset(source, f"{cloud.new()}/out")


def test_a_denied_object_is_an_image_that_cannot_be_read(cloud: Cloud, source: str) -> None:
    cloud.proxy.harm = lambda seen: 403 if unquote(seen.path).endswith("cat/003.jpg") else None
    output = f"{cloud.new()}/out"
    assert make_dataset(source, output, max_bad=1).quarantined == 1
    reason = b"cannot be read: Permission denied, the store says: HTTP status 403"
    assert reason in cloud.tree(output)["quarantine/quarantined.jsonl"]


def test_missing_credentials_for_google_are_one_sentence(google: Google, monkeypatch, tmp_path: object) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setenv("NO_GCE_CHECK", "true")  # a machine of Google's has credentials
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(DataError, match=r"^gs:// needs credentials, and none were found\. Log in with `gcloud auth"):
        make_dataset("gs://data/in", f"{google.new()}/out")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/none.json")
    with pytest.raises(DataError, match=r"^Google's credentials cannot be used: File /none\.json was not found\.$"):
        make_dataset("gs://data/in", f"{google.new()}/out")


@pytest.mark.slow
def test_a_command_ends_in_one_sentence(cloud: Cloud, source: str) -> None:
    """The patience is the one of real jobs: six attempts, and 15 s."""
    cloud.proxy.harm = lambda _: 503
    began = time.monotonic()
    done = cloud.run("shard", source, f"{cloud.new()}/out", code=1)
    assert done.stderr.startswith(f"Error: {cloud.scheme}://data cannot be reached: HTTP status 503")
    assert done.stderr.count("\n") == 1
    assert time.monotonic() - began < 60


def test_missing_credentials_for_amazon_are_one_sentence(amazon: Amazon, monkeypatch, tmp_path: object) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(DataError, match=r"^s3:// needs credentials, and none were found\. Set AWS_ACCESS_KEY_ID and"):
        make_dataset(f"{amazon.new()}/in", f"{amazon.new()}/out")


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("host", ["http://127.0.0.1:9", "http://no-such-host.invalid"])
def test_a_missing_host_is_one_sentence(cloud: Cloud, source: str, monkeypatch, host: str) -> None:
    for name in ("STORAGE_EMULATOR_HOST", "AWS_ENDPOINT_URL"):
        monkeypatch.setenv(name, host)
    message = refusal(DataError, make_dataset, source, f"{cloud.new()}/out")
    assert message.startswith(f"{cloud.scheme}://data cannot be reached: ")
    assert "\n" not in message
