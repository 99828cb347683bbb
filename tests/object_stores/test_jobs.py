"""Jobs from and to object stores make the dataset of this disk; with stores that fail, and changes at once, killed."""

import csv
import io
import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

import pytest

from beam_jobs.config import ShardConfig
from beam_jobs.shard_job import plan_shards
from tests.beam_jobs.commands import check_no_orphans, start_command, wait_for
from tests.beam_jobs.datasets import join_datasets, make_dataset, read_tree
from tests.beam_jobs.images import make_jpeg, make_photos, make_tar, write_files, write_zip
from tests.beam_jobs.records import write as write_records
from tests.layers.changer import Model, check_rounds
from tests.layers.growth import list_names
from tests.object_stores.conftest import Amazon, Cloud, Google
from tests.object_stores.proxy import now_and_then
from tests.refusals import refusal
from tfpipe import ConfigError, add_column, data_source, load_manifest
from tfpipe.columns.add import load_for_column
from tfpipe.errors import DataError
from tfpipe.fields import Values
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.readers.data_source import Record
from tfpipe.storage import file_io, stores
from tfpipe.storage import store as object_store
from tfpipe.storage.buckets import StoreOptions
from tfpipe.storage.failures import RetryConfig
from tfpipe.storage.file_store import split_url
from tfpipe.storage.store import Store

# Is it done? Its lines of the plan; the shard, its index, facts, digests and row; the digests again, which tell
# duplicates.
# Google's store also removes one by one the two files of the working folder.
REQUESTS_PER_SHARD = {"gs": 10, "s3": 8}


@pytest.fixture(scope="module")
def photos() -> Mapping[str, bytes]:
    return {**make_photos({"cat": 4, "dog": 3}), "cat/[odd] *?.jpg": make_jpeg(99), "dog/läufer.jpg": make_jpeg(98)}


@pytest.fixture(scope="module")
def local(photos: Mapping[str, bytes], tmp_path_factory) -> Mapping[str, bytes]:
    folder = tmp_path_factory.mktemp("local")
    make_dataset(write_files(folder / "photos", photos), folder / "out", num_shards=4)
    return read_tree(folder / "out")


def test_a_job_from_and_to_a_store_makes_the_local_dataset(each_cloud, photos, local, tmp_path):
    cloud = each_cloud
    source, output = cloud.put(f"{cloud.new()}/photos", photos), f"{cloud.new()}/out"
    make_dataset(source, output, num_shards=4)
    files = cloud.tree(output)
    assert files == local  # the working folder is gone, too
    back = write_files(tmp_path / "back", files)
    assert load_manifest(str(back)).splits["train"].records == 9
    assert not verify(str(back), VerifyConfig(workers=1)).damaged
    assert len(data_source(str(back), "train")) == 9


def test_a_pipeline_of_records_writes_to_a_store(cloud: Cloud, tmp_path: Path) -> None:
    write_records(tmp_path / "out", range(9))
    output = f"{cloud.new()}/nested/out"
    write_records(output, range(9))
    assert cloud.tree(output) == read_tree(tmp_path / "out")  # the working folder is gone, too
    message = f"{output} must be empty or not exist yet, and holds dataset_info.json. Choose another directory."
    assert refusal(ConfigError, write_records, output, range(9)) == message


def test_tables_and_archives_are_read_in_place(cloud: Cloud, photos: Mapping[str, bytes], tmp_path: Path) -> None:
    """A member of an archive costs one ranged request."""
    rows = io.StringIO()
    csv.writer(rows).writerows([("image", "label"), *((name, name.split("/")[0]) for name in photos)])
    inputs = {
        "table/all.csv": rows.getvalue().encode(),
        **{f"table/{name}": data for name, data in photos.items()},
        "archives/photos.tar": make_tar(photos),
        "archives/packed.tar.gz": make_tar(photos, "w:gz"),
        "archives/photos.zip": write_zip(tmp_path / "photos.zip", photos).read_bytes(),
    }
    write_files(tmp_path, inputs)
    base = cloud.put(cloud.new(), inputs)
    for name in ("table/all.csv", *(name for name in inputs if name.startswith("archives/"))):
        make_dataset(tmp_path / name, tmp_path / "out" / name, num_shards=1)
        output = f"{cloud.new()}/out"
        make_dataset(f"{base}/{name}", output, num_shards=1)
        assert cloud.tree(output) == read_tree(tmp_path / "out" / name), name


def test_tars_of_pairs_are_read_in_place(cloud: Cloud, tmp_path: Path) -> None:
    pairs = {k: v for i in range(3) for k, v in ((f"{i}.jpg", make_jpeg(i)), (f"{i}.txt", b"caption %d" % i))}
    inputs = {"train/0.tar": make_tar(pairs), "test/0.tar.gz": make_tar(pairs, "w:gz"), "train/0.parquet": b"x"}
    write_files(tmp_path / "in", inputs)
    manifest = make_dataset(tmp_path / "in", tmp_path / "out", num_shards=1)
    output = f"{cloud.new()}/out"
    make_dataset(cloud.put(f"{cloud.new()}/in", inputs), output, num_shards=1)
    assert cloud.tree(output) == read_tree(tmp_path / "out")
    assert (sorted(manifest.splits), manifest.skipped) == (["test", "train"], {"*.parquet": 1})
    assert manifest.schema["caption"].kind == "text"


@pytest.mark.slow
def test_reshard_and_overwrite_work_in_a_bucket(cloud: Cloud, local: Mapping[str, bytes], tmp_path: Path) -> None:
    join_datasets([write_files(tmp_path / "in", local)], tmp_path / "out", num_shards=2)
    source, output = cloud.put(f"{cloud.new()}/in", local), f"{cloud.new()}/out"
    join_datasets([source], output, num_shards=3)
    join_datasets([source], output, num_shards=2, overwrite=True)
    assert cloud.tree(output) == read_tree(tmp_path / "out")
    assert not any(name.startswith(f"{split_url(output)[1]}.") for name in cloud.names())


def test_an_image_costs_one_request(cloud: Cloud, photos: Mapping[str, bytes]) -> None:
    """The input costs one listing, whatever its folders, after a look for tars of pairs at its top.

    A shard costs the same for any number of images.
    """
    source, output = cloud.put(f"{cloud.new()}/photos", photos), f"{cloud.new()}/out"
    make_dataset(source, output, num_shards=1)
    of_source = [seen for seen in cloud.proxy.log if split_url(source)[1] in unquote(seen.path)]
    images = [seen for seen in of_source if ".jpg" in unquote(seen.path)]
    assert len(images) == len({seen.path for seen in images}) == len(photos)
    assert {seen.method for seen in images} == {"GET"}
    assert len(of_source) - len(images) == 3  # that the bucket is there, the look, and the listing
    small = len(cloud.proxy.log) - len(images)
    cloud.proxy.log.clear()
    make_dataset(source, f"{cloud.new()}/out", num_shards=3)
    more = len(cloud.proxy.log) - len(images) - small
    assert more == 2 * REQUESTS_PER_SHARD[cloud.scheme], [f"{seen.method} {seen.path}" for seen in cloud.proxy.log]


def test_a_table_costs_one_listing_for_each_folder(cloud: Cloud, photos: Mapping[str, bytes]) -> None:
    base = cloud.put(cloud.new(), photos)
    rows = ["image,label", *(f'"{name}",x' for name in photos)]
    table = cloud.put(base, {"all.csv": "\n".join(rows).encode()}) + "/all.csv"
    cloud.proxy.log.clear()
    plan_shards(ShardConfig(table, f"{base}/out"))
    assert not any(".jpg" in unquote(seen.path) for seen in cloud.proxy.log)
    assert len([seen for seen in cloud.proxy.log if "delimiter=" in seen.path and "/cat/" in unquote(seen.path)]) == 1


@pytest.mark.slow
def test_options_for_the_store_reach_every_process(amazon, photos: Mapping[str, bytes], local: Mapping[str, bytes]):
    """A wrong option after -- shows at once, and so does a missing one."""
    source, output = amazon.put(f"{amazon.new()}/photos", photos), f"{amazon.new()}/out"
    more = "--", f"--s3_endpoint_url={amazon.proxy.url}", "--s3_access_key_id=key", "--s3_secret_access_key=secret"
    amazon.environment, before = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_ENDPOINT_URL": ""}, amazon.environment
    try:
        amazon.run("shard", source, output, "--num-shards", 4, "--workers", 2, *more)
    finally:
        amazon.environment = before
    assert amazon.tree(output) == local


@pytest.mark.slow
def test_a_killed_command_can_go_on(cloud: Cloud, local: Mapping[str, bytes], photos: Mapping[str, bytes]) -> None:
    """Finished shards are kept, and the working folder in the bucket is removed at the end."""
    source, output = cloud.put(f"{cloud.new()}/photos", photos), f"{cloud.new()}/out"
    cloud.proxy.harm = lambda seen: 0.2  # slow enough to be caught in the middle
    rows = f"{split_url(output)[1]}/.tfpipe/rows/"
    args = source, output, "--num-shards", 4, "--workers", 1
    process = start_command(*args, env={**os.environ, **cloud.environment})
    wait_for(lambda: [name for name in cloud.names() if name.startswith(rows)], 60)
    process.kill()
    process.communicate()
    check_no_orphans(process)
    assert not any(name.endswith("manifest.json") for name in cloud.tree(output))
    cloud.proxy.reset()
    assert "finished before" in cloud.run("shard", *args).stdout
    assert cloud.tree(output) == local


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
    none = f"{cloud.scheme}://none"
    for places in ((f"{none}/in", f"{cloud.new()}/out"), (source, f"{none}/out")):
        message = refusal(DataError, make_dataset, *places)
        assert message == f"There is no bucket {none}. Create it, or check the name."
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


FOLDERS = 6


def draw_folders(folder: Path) -> dict[str, frozenset[str]]:
    """Draws folders of two images each, and returns the names of theirs."""
    names = {k: (f"train/cat/{k}.jpg", f"train/dog/{k}.jpg") for k in range(100, 100 + FOLDERS)}
    for k, two in names.items():
        write_files(folder / str(k), {name: make_jpeg(k + at * 50, (20, 20)) for at, name in enumerate(two)})
    return {str(folder / str(k)): frozenset(two) for k, two in names.items()}


def make_model(dataset: Path) -> Model:
    return Model((frozenset(name for split in ("train", "validation") for name in list_names(dataset, split)),))


@pytest.fixture
def bucket(cloud: Cloud, small_dataset: Path) -> str:
    stores.configure()
    return cloud.put(cloud.new(), read_tree(small_dataset))


def test_the_second_of_two_changes_is_refused(bucket: str) -> None:
    def add_beside(record: Record) -> int:
        if not load_manifest(bucket).columns:
            add_column(bucket, "first", lambda other: other.index, Values("int64"))
        return record.index

    message = f"Another process changed {bucket} meanwhile, so this change is not made. Run the same command again."
    assert refusal(DataError, add_column, bucket, "second", add_beside, Values("int64")) == message
    assert [column.name for column in load_manifest(bucket).columns] == ["first"]
    add_column(bucket, "second", add_beside, Values("int64"))
    assert [column.name for column in load_for_column(bucket).columns] == ["first", "second"]
    assert verify(bucket, VerifyConfig(workers=0)).damaged == []


@pytest.mark.slow
def test_processes_change_it_at_once_and_are_killed(
    bucket: str, cloud: Cloud, rng: random.Random, small_dataset: Path, tmp_path: Path
) -> None:
    check_rounds(bucket, make_model(small_dataset), draw_folders(tmp_path / "images"), rng, 4, cloud.environment)


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_on_a_disk(rng: random.Random, pets: str, tmp_path: Path, rounds: int) -> None:
    check_rounds(pets, make_model(Path(pets)), draw_folders(tmp_path / "images"), rng, rounds, {})
    assert verify(pets, VerifyConfig(workers=0)).damaged == []
