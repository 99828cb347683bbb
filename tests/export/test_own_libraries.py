"""WebDataset, Hugging Face's `datasets` and Grain read what `tfpipe export` wrote."""

import hashlib
import json
from pathlib import Path

import pytest

from tests.beam_jobs.datasets import read_payloads, read_records
from tests.other_libraries import other_libraries as other_libraries
from tests.other_libraries import run_script
from tfpipe.export.run import ExportConfig, Format, export

SCRIPT = """
import glob, hashlib, json, sys
import datasets, grain, webdataset

folder = sys.argv[1]
samples = webdataset.WebDataset(sorted(glob.glob(folder + "/webdataset/train-*.tar")), shardshuffle=False).decode()
by_webdataset = [(sample["json"]["image/sha256"], sample["cls"], sample["txt"]) for sample in samples]
rows = datasets.load_dataset("parquet", data_files=folder + "/parquet/train-*.parquet", split="train")
by_datasets = [(row["image/sha256"], row["label"], row["views"], list(row["image"].size)) for row in rows]
source = grain.sources.ArrayRecordDataSource(sorted(glob.glob(folder + "/arrayrecord/train-*.array_record")))
by_grain = [hashlib.sha256(source[k]).hexdigest() for k in range(len(source))]
print(json.dumps([by_webdataset, by_datasets, rows.features["label"].names, by_grain]))
"""


@pytest.mark.slow
def test_other_libraries_read_the_same(photos: Path, tmp_path: Path, other_libraries: dict[str, str]) -> None:
    formats: tuple[Format, ...] = ("webdataset", "parquet", "arrayrecord")
    for to in formats:
        export(ExportConfig(str(photos), str(tmp_path / to), to, workers=0))
    printed = run_script(SCRIPT, {**other_libraries, "HF_HOME": str(tmp_path / "home")}, tmp_path, tmp_path)
    by_webdataset, by_datasets, names, by_grain = json.loads(printed)
    records = [
        (
            features["image/sha256"][0].decode(),
            int(features["image/class/label"][0]),
            features["caption"][0].decode(),
            int(features["views"][0]),
        )
        for features in read_records(photos)
    ]
    assert by_webdataset == [[digest, label, caption] for digest, label, caption, _ in records]
    assert by_datasets == [[digest, label, views, [24, 16]] for digest, label, _, views in records]
    assert names == ["owl", "cat", "dog"]
    assert by_grain == [hashlib.sha256(payload).hexdigest() for payload in read_payloads(photos)]
