"""Chooses where the steps of a plan run: in this process, or as tasks of the engine on the runner of the job."""

from typing import NamedTuple

from beam_jobs.inputs.recognize import Input
from tfpipe.errors import ConfigError


class Choice(NamedTuple):
    """The choice of who makes the plan.

    Attributes:
        is_engine: Whether tasks on the runner make the plan.
        reason: The reason, as a part of a sentence.
    """

    is_engine: bool
    reason: str

    def __str__(self) -> str:
        return f"The {'engine' if self.is_engine else 'launcher'} makes the plan: {self.reason}."


def choose_planner(source: Input) -> Choice:
    """Returns who makes the plan. Reads the sizes of files, and of a table a few rows.

    Raises:
        ConfigError: The engine is requested, but it cannot make this plan.
        DataError: The input is missing or empty.
    """
    config = source.config
    if config.plan == "launcher":
        return Choice(False, "`plan` says so")
    obstacle = source.obstacle or ("" if config.shuffle else "only shuffled images can be sorted in pieces")
    if config.plan == "engine":
        if obstacle:
            raise ConfigError(f"`plan` engine cannot be used: {obstacle}. Leave it out.")
        return Choice(True, "`plan` says so")
    if obstacle:
        return Choice(False, obstacle)
    count, what = source.estimate()
    if count is None:
        return Choice(False, what)
    limit = f"`plan_engine_from` {config.plan_engine_from:,}"
    if count < config.plan_engine_from:
        return Choice(False, f"{what}, fewer than {limit}")
    return Choice(True, f"{what}, not less than {limit}")
