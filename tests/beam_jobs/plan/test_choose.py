"""Who makes the plan, and the reason that is given."""

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.recognize import recognize
from beam_jobs.plan.choose import choose_planner
from tests.beam_jobs.images import write_files
from tfpipe.errors import ConfigError


def choose(source: Path, **options: Any) -> str:
    return str(choose_planner(recognize(ShardConfig(str(source), "/out", **options))))


def test_tables_are_chosen_by_their_rows(tmp_path: Path) -> None:
    for k in range(20):
        table = pyarrow.table({"image": [f"{k:02d}-{i:02d}.jpg" for i in range(50)]})
        pyarrow.parquet.write_table(table, tmp_path / f"t-{k:02d}.parquet")
    pattern = tmp_path / "t-*.parquet"
    assert choose(pattern, plan_engine_from=900) == (
        "The engine makes the plan: the table has about 1,000 rows, not less than `plan_engine_from` 900."
    )
    assert choose(pattern) == (
        "The launcher makes the plan: the table has about 1,000 rows, fewer than `plan_engine_from` 20,000,000."
    )
    (tmp_path / "t.csv").write_text("image\n" + "1.jpg\n" * 99)
    assert "the table has about 100 rows" in choose(tmp_path / "t.csv")


def test_archives_are_chosen_by_their_bytes(tmp_path: Path) -> None:
    write_files(tmp_path / "in", {"a.tar": bytes(400_000), "b.zip": bytes(200_000), "c/1.jpg": b"1"})
    assert choose(tmp_path / "in", plan_engine_from=6) == (
        "The engine makes the plan: archives of 600,000 bytes hold about 6 images, not less than `plan_engine_from` 6."
    )
    assert "about 4 images, fewer than" in choose(tmp_path / "in" / "a.tar")


def test_other_inputs_are_for_the_launcher(tmp_path: Path) -> None:
    write_files(tmp_path / "in", {"c/1.jpg": b"1"})
    assert choose(tmp_path / "in", plan_engine_from=1) == (
        "The launcher makes the plan: the images of a folder are counted only by listing them."
    )
    assert choose(tmp_path / "in", shuffle=False) == (
        "The launcher makes the plan: only shuffled images can be sorted in pieces."
    )
    assert choose(tmp_path / "in", plan="launcher") == "The launcher makes the plan: `plan` says so."
    assert choose(tmp_path / "in", plan="engine") == "The engine makes the plan: `plan` says so."


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"shuffle": False}, "only shuffled images can be sorted in pieces"),
        ({"datasets": ("/a",)}, "the records of finished datasets are planned by their indexes"),
    ],
)
def test_the_engine_is_refused_where_it_cannot_plan(options: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(tmp_path, plan="engine", **options)
    assert str(caught.value) == f"`plan` engine cannot be used: {reason}. Leave it out."
