"""The job as a plain Beam command, for who starts jobs by a scheduler: the options of the job, then Beam's own.

    python -m beam_jobs.shard_job --input=gs://in --output=gs://out --num_shards=64 --runner=DataflowRunner ...

An option is a field of `ShardConfig` or `ImageForm` and says what is described there. What is a mapping is JSON; what
is several is given several times.
"""

import argparse
import json
import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, get_type_hints

from beam_jobs.config import ShardConfig
from beam_jobs.runners.base import ShardObserver, SubmittedJob
from tfpipe.errors import TfpipeError
from tfpipe.format.image_form import Encoding, ImageForm

_logger = logging.getLogger(__name__)
_INTERRUPTED = 130
_NAMES = {"labels": "labels_file"}  # --labels are Beam's: those of a job on Google Cloud


def command_line(config: ShardConfig, beam_args: Sequence[str]) -> str:
    """What to type into a shell; options that are as by default are left out."""
    words = ["python", "-m", "beam_jobs.shard_job"]
    for owner, values in ((ShardConfig, config), (ImageForm, config.form)):
        for one in _options(owner):
            words += _words(one, getattr(values, one.name))
    return shlex.join([*words, *beam_args])


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the job that a command line describes; exits as `tfpipe` does."""
    parser = _parser()
    given, beam_args = parser.parse_known_args(arguments)
    logging.basicConfig(format="%(message)s")
    _logger.setLevel(logging.INFO)
    try:
        config = _config(vars(given))
        from beam_jobs import shard_job

        result = shard_job.run(config, beam_args, _Log())
    except TfpipeError as error:
        parser.exit(error.exit_code, f"Error: {error}\n")
    except KeyboardInterrupt:
        parser.exit(_INTERRUPTED, "Interrupted. Run the same command again to go on.\n")
    records = sum(split.records for split in result.manifest.splits.values())
    _logger.info("%s is complete: %d records, %.1f s", config.output, records, result.seconds)


class _Log(ShardObserver):
    """An observer that logs where a job runs that a service has taken over."""

    def submitted(self, job: SubmittedJob) -> None:
        _logger.info(
            "Dataflow job %s: %s\nIt goes on without this command; end it with: %s",
            job.id,
            job.page,
            job.cancel_command,
        )


def _options(owner: type) -> Iterator[Field[Any]]:
    return (one for one in fields(owner) if one.name != "form")


def _name(one: Field[Any]) -> str:
    return _NAMES.get(one.name, one.name)


def _words(one: Field[Any], value: Any) -> list[str]:
    """An option as it is typed; nothing where it has its default."""
    default = one.default_factory() if one.default_factory is not MISSING else one.default
    if value == default:
        return []
    if isinstance(value, bool):
        return [f"--{'' if value else 'no-'}{_name(one)}"]
    if isinstance(value, tuple):
        return [f"--{_name(one)}={part}" for part in value]
    return [f"--{_name(one)}={json.dumps(dict(value)) if isinstance(value, Mapping) else value}"]


def number(text: str) -> int | float:
    """`25` or `0.01`; argparse names this function where the text is neither."""
    return float(text) if "." in text else int(text)


def json_object(text: str) -> dict[str, Any]:
    """`{"train": 0.9, "test": 0.1}`; likewise."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


_READERS: dict[Any, Callable[[str], Any]] = {
    str: str,
    str | None: str,
    Encoding: str,
    int: int,
    int | None: int,
    int | float | None: number,
    Mapping[str, float]: json_object,
    Mapping[str, Any]: json_object,
}
"""How the text of an option becomes a value of its field's type."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m beam_jobs.shard_job",
        description="Writes images as TFRecord shards. Other options go to Apache Beam.",
        epilog="The options are described in beam_jobs.config.ShardConfig and tfpipe.format.image_form.ImageForm.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    for owner in (ShardConfig, ImageForm):
        hints = get_type_hints(owner)
        for one in _options(owner):
            name, required = f"--{_name(one)}", one.default is MISSING and one.default_factory is MISSING
            if hints[one.name] is bool:
                parser.add_argument(name, dest=one.name, action=argparse.BooleanOptionalAction)
            elif hints[one.name] == tuple[str, ...]:
                parser.add_argument(name, dest=one.name, action="append")
            else:
                parser.add_argument(name, dest=one.name, type=_READERS[hints[one.name]], required=required)
    return parser


def _config(given: dict[str, Any]) -> ShardConfig:
    form = {name: given.pop(name) for name in ImageForm.__dataclass_fields__ if name in given}
    several = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    return ShardConfig(**{**given, **several}, form=ImageForm(**form))
