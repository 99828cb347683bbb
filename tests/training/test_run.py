"""Checks before a run of several processes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tfpipe.errors import ConfigError
from tfpipe.training.run import check_shared_folder
from tfpipe.training.run_dir import RunDir


@dataclass
class Facts:
    process: tuple[int, int]

    @property
    def num_processes(self) -> int:
        return self.process[1]


class Learner:
    """Stands for one of several processes, of which another sees a checkpoint."""

    def __init__(self, process: tuple[int, int]) -> None:
        self.facts: Any = Facts(process)

    def any_process(self, flag: bool) -> bool:
        assert self.facts.num_processes > 1, "a process that is alone has nobody to ask"
        return True


def test_a_process_that_sees_no_checkpoint_is_refused(tmp_path: Path) -> None:
    run_dir = RunDir(str(tmp_path))
    check_shared_folder(Learner((0, 1)), run_dir, sees_checkpoint=False)
    check_shared_folder(Learner((0, 2)), run_dir, sees_checkpoint=True)
    with pytest.raises(ConfigError) as caught:
        check_shared_folder(Learner((1, 2)), run_dir, sees_checkpoint=False)
    assert str(caught.value) == (
        f"All processes must see the same checkpoints, and process 1 sees none in {tmp_path}. Use a folder that all "
        "hosts share."
    )
