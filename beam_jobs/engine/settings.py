"""The settings that the tasks of the engine share, and what a process does before its first task. Loads no Beam."""

from dataclasses import dataclass

from beam_jobs.engine.list_step import EngineConfig
from beam_jobs.shards.worker_check import check_versions
from beam_jobs.storage import filesystem


@dataclass(frozen=True)
class PlanSettings:
    """The settings that all steps share. Beam pickles them and sends them to the workers.

    Attributes:
        engine: The settings of the tasks.
        workers: The number of processes that each Beam worker starts. 0: the Beam worker does the tasks itself.
        file_options: The Beam arguments that the file systems need.
        versions: The version of each package that a worker must have.
    """

    engine: EngineConfig
    workers: int = 0
    file_options: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()

    def configure(self) -> None:
        """Prepares this process for tasks.

        Raises:
            DataError: It has another version of a package.
        """
        if self.file_options and filesystem.get_options() != self.file_options:
            filesystem.configure(self.file_options)
        check_versions(dict(self.versions))

    def open(self) -> EngineConfig:
        """Prepares this process as `configure` does, and returns the settings of the tasks."""
        self.configure()
        return self.engine
