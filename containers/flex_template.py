"""The program that Dataflow's launcher runs for the Flex Template: `tfpipe shard`, with the template's parameters.

The launcher gives `--input=gs://in --output=gs://out --square=224` beside options of Beam's. The parameters are those
of flex_template.json; whatever else comes is for Beam.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path


def make_command(arguments: Sequence[str]) -> list[str]:
    """Returns the words after `python -m beam_jobs` for the launcher's arguments.

    Args:
        arguments: Words such as `--square=224` and `--project=my-project`.
    """
    metadata = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    names = [parameter["name"] for parameter in metadata["parameters"]]
    given, beam = {}, []
    for argument in arguments:
        name, _, value = argument.removeprefix("--").partition("=")
        if name in names:
            given[name] = value
        else:
            beam.append(argument)
    if any(argument.startswith("--sdk_container_image=") for argument in beam):
        beam.append("--sdk_location=container")  # the image holds tfpipe, so nothing is staged or installed
    folders = [given.pop(name, "") for name in ("input", "output")]
    options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value]
    return ["shard", *folders, *options, "--", *beam]


def main() -> None:
    """Writes the job's plan and its graph; the service then runs the graph."""
    from beam_jobs.__main__ import jobs
    from tfpipe.cli.main import main as run

    sys.argv[1:] = make_command(sys.argv[1:])
    run(jobs, "tfpipe")


if __name__ == "__main__":
    main()
