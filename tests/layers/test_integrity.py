"""`tfpipe verify` names what is wrong with a layer; `tfpipe repair` writes what can be seen as one layer."""

import shutil
from pathlib import Path

import pytest

import tfpipe as library
from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import make_jpeg, write_files
from tests.flipped_bit import flip_bit
from tests.layers.growth import add_view, append, find_part, list_names
from tests.refusals import refusal
from tfpipe.errors import ConfigError
from tfpipe.integrity.repair import repair
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.layers.delete import delete_records

HERE = VerifyConfig(workers=0)


@pytest.fixture(scope="module")
def layered_once(grown_once: Path, tmp_path_factory) -> Path:
    grown = str(shutil.copytree(grown_once, tmp_path_factory.mktemp("layered") / "pets"))
    add_view(grown, "owls", "label = 'owl'")
    delete_records(grown, [list_names(grown)[k] for k in (1, 14)])
    library.add_column(grown, "index", lambda record: record.index, library.fields.Values("int64"))
    return Path(grown)


@pytest.fixture
def layered(layered_once: Path, tmp_path: Path) -> str:
    """The dataset with appended records, two hidden ones, a view and a column, to be changed."""
    return str(shutil.copytree(layered_once, tmp_path / "layered"))


def list_damage(dataset: str) -> list[tuple[str, str]]:
    return [(damage.file, damage.kind) for damage in verify(dataset, HERE).damaged]


def test_whole_layers_have_no_damage_and_damaged_files_are_named(layered: str) -> None:
    report = verify(layered, HERE)
    assert report.damaged == []
    assert (report.files, report.records) == (14, 21)  # 4 shards, 3 of layer 2, and as many of the column
    shard = f"{find_part(layered, 'append')}/train-00001-of-00002.tfrecord"
    flip_bit(Path(layered, shard), 300)
    assert [file for file, _ in list_damage(layered)] == [shard]
    Path(layered, shard).unlink()
    assert (shard, "missing") in list_damage(layered)
    value = f"{find_part(layered, 'column')}/train-00000-of-00002.tfrecord"
    Path(layered, value).unlink()
    assert (value, "missing") in list_damage(layered)


def test_an_image_in_splits_of_two_layers_is_named(grown: str, tmp_path: Path) -> None:
    images = {"validation/owl/again.jpg": make_jpeg(500, (30, 20)), "train/owl/again.jpg": make_jpeg(500, (30, 20))}
    append(grown, write_files(tmp_path / "again", images))
    place = list_names(f"{grown}@2").index("train/owl/7.jpg")
    shards = library.load_manifest(grown).splits["train"].shards
    begins = [sum(shard.records for shard in shards[:k]) for k in range(len(shards))]
    number = max(k for k, begin in enumerate(begins) if begin <= place)
    (damage,) = verify(grown, HERE).damaged
    assert damage.file == f"{find_part(grown, 'append')}/validation-00000-of-00001.tfrecord"
    assert (damage.kind, damage.record) == ("duplicate", 0)
    assert damage.detail == (f"it is record {place - begins[number]} of {shards[number].file} too, in split 'train'")
    assert verify(grown, VerifyConfig(workers=0, allow_duplicates=True)).damaged == []
    delete_records(grown, ["validation/owl/again.jpg"])
    assert verify(grown, HERE).damaged == []


def test_names_may_repeat_in_a_layer_and_between_layers(tmp_path: Path) -> None:
    table = b"image,label\na.jpg,cat\na.jpg,dog\n"
    first = write_files(tmp_path / "first", {"a.jpg": make_jpeg(1), "t.csv": table})
    make_dataset(first / "t.csv", tmp_path / "pets")
    assert (list_names(tmp_path / "pets"), list_damage(str(tmp_path / "pets"))) == (["a.jpg", "a.jpg"], [])
    table = b"image,label,split\na.jpg,cat,train\nb.jpg,cat,validation\n"
    more = write_files(tmp_path / "more", {"a.jpg": make_jpeg(2), "b.jpg": make_jpeg(3), "t.csv": table})
    append(tmp_path / "pets", more / "t.csv", num_shards=1)
    table = b"image,label,split\na.jpg,cat,validation\n"
    last = write_files(tmp_path / "last", {"a.jpg": make_jpeg(4), "t.csv": table})
    append(tmp_path / "pets", last / "t.csv", num_shards=1)
    names = [list_names(tmp_path / "pets", split) for split in ("train", "validation")]
    assert (names, list_damage(str(tmp_path / "pets"))) == ([["a.jpg"] * 3, ["b.jpg", "a.jpg"]], [])


def test_a_damaged_catalog_is_named(layered: str) -> None:
    catalog = Path(layered, "catalog")
    catalog.write_bytes(catalog.read_bytes()[:-2])
    damage = verify(layered, HERE).damaged
    assert [(one.file, one.kind) for one in damage] == [("catalog", "layer")]
    assert damage[0].detail.startswith(f"{layered}/catalog is damaged: its bytes have another checksum")


@pytest.mark.parametrize("name", ["layers/4", "columns/index", "views/owls.view"])
def test_what_the_catalog_does_not_name_is_named(layered: str, name: str) -> None:
    shutil.copytree(Path(layered, find_part(layered, "append")), Path(layered, name))
    assert list_damage(layered) == [(name, "extra")]


def test_records_under_an_entry_of_others_are_named(layered: str) -> None:
    shutil.rmtree(Path(layered, find_part(layered, "append")))
    (damage,) = verify(layered, HERE).damaged
    assert (damage.file, damage.kind) == ("catalog", "layer")
    assert damage.detail.startswith("The records of layer 2 are missing: ")


def test_a_repair_writes_what_can_be_seen(layered: str, tmp_path: Path) -> None:
    names = list_names(layered)
    result = repair(layered, str(tmp_path / "clean"), workers=0)
    assert (result.records, result.lost) == (19, [])
    assert list_names(tmp_path / "clean") == names
    manifest = library.load_manifest(str(tmp_path / "clean"))
    assert (manifest.layer, manifest.columns, manifest.label_names[-1]) == (1, (), "ant")
    assert "index" in manifest.schema
    assert manifest.splits["train"].class_counts == library.load_manifest(layered).splits["train"].class_counts
    assert verify(str(tmp_path / "clean"), HERE).damaged == []


def test_a_repair_never_brings_a_hidden_record_back(layered: str, tmp_path: Path) -> None:
    hidden = set(list_names(f"{layered}@2")) - set(list_names(layered))
    part = find_part(layered, "append")
    for name in ("index/train-00000-of-00002.idx", f"{part}/index/train-00000-of-00002.idx"):
        Path(layered, name).unlink()
    for name in ("train-00000-of-00002.tfrecord", f"{part}/train-00000-of-00002.tfrecord"):
        flip_bit(Path(layered, name), 2)
    shutil.rmtree(Path(layered, "columns"))
    repair(layered, str(tmp_path / "clean"), workers=0)
    assert not hidden & set(list_names(tmp_path / "clean"))
    assert not any(name in Path(tmp_path, "clean", "repair.json").read_text() for name in hidden)


def test_a_repair_asks_for_the_layer_if_the_catalog_is_damaged(layered: str, tmp_path: Path) -> None:
    flip_bit(Path(layered, "catalog"), 300)
    assert refusal(ConfigError, repair, layered, str(tmp_path / "clean"), workers=0).endswith(
        f"Nobody knows which records it hides, so say which layer to write: tfpipe repair {layered}@1 OUTPUT"
    )
    assert repair(f"{layered}@1", str(tmp_path / "clean"), workers=0).records == 15
    with pytest.raises(ConfigError, match=r"^A repair writes all records that can be seen, got the view 'owls'\. "):
        repair(f"{layered}@owls", str(tmp_path / "other"), workers=0)
