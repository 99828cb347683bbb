"""`tfpipe predict`: classifies image files with an exported model."""

import glob
import json
import os

import click

from tfpipe.cli.shared.command import command
from tfpipe.cli.shared.console import clean_line
from tfpipe.cli.shared.inputs import quiet_start
from tfpipe.errors import ConfigError
from tfpipe.system.units import human_count

_TOP, _BATCH = "Number of classes to print for each image.", "Number of images to classify at once."


@command(example='tfpipe predict runs/flowers "photos/*.jpg"')
@click.argument("run")
@click.argument("images", nargs=-1, metavar="IMAGE...")
@click.option("--top", type=click.IntRange(min=1), default=3, show_default=True, metavar="K", help=_TOP)
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True, metavar="N", help=_BATCH)
def predict(run: str, top: int, batch_size: int, as_json: bool, images: tuple[str, ...] = ()) -> None:
    """Classify each IMAGE with the model of RUN, and print its likeliest classes.

    RUN is the folder of a run of `tfpipe train`, or a model that such a run exported. IMAGE is a file, a folder (all
    images below it) or a pattern such as "photos/*.jpg". Files are decoded as in `tfpipe shard`. Exit code 1 if an
    image cannot be decoded.
    """
    files = find_images(images)
    # The model takes only as much GPU memory as it needs: a training may run on the same GPU.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    with quiet_start():
        from tfpipe.training.predict import Classifier

        classifier = Classifier(run)
    predictions, failed = [], []
    for result in classifier.classify(files, batch_size, top):
        if "reason" in result:
            failed.append(result)
            click.echo(clean_line(f"{result['file']}: {result['reason']}"), err=True)
            continue
        predictions.append({"file": result["file"], **result["top"][0], "top": result["top"]})
        if not as_json:
            guesses = ", ".join(f"{guess['label_name']} {guess['probability']:.1%}" for guess in result["top"])
            click.echo(clean_line(f"{result['file']}: {guesses}"))
    if as_json:
        click.echo(json.dumps({"version": 1, "predictions": predictions, "failed": failed}))
    if failed:
        click.echo(f"{len(failed):,} of {human_count(len(files), 'image')} could not be classified.", err=True)
        raise SystemExit(1)


def find_images(arguments: tuple[str, ...]) -> list[str]:
    """Lists the files that arguments name, in their order; in a folder those that `tfpipe shard` would take."""
    from tfpipe.images.skip_by_name import get_skip_reason
    from tfpipe.storage import file_io

    if not arguments:
        raise ConfigError("Name the images to classify: files, folders or patterns.")
    files: list[str] = []
    for argument in arguments:
        is_pattern = glob.has_magic(argument) and not os.path.exists(argument)
        images = file_io.find(argument) if is_pattern else [argument]
        if os.path.isdir(argument):
            walked = os.walk(argument, followlinks=True)
            paths = (os.path.join(root, name) for root, _, names in walked for name in names)
            images = sorted(path for path in paths if not get_skip_reason(os.path.relpath(path, argument)))
        if not images:
            raise ConfigError(f"{argument} must hold or match at least one image, and there is none.")
        files += images
    return files
