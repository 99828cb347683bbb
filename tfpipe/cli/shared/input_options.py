"""The options that `shard` and `advise` share: what the input means, and what any form of its images keeps."""

import click

from beam_jobs.config import ShardConfig
from tfpipe.cli.shared.config_option import config_option
from tfpipe.cli.shared.params import Shares, all_options
from tfpipe.format.image_form import ImageForm

input_options = all_options(
    config_option(
        ShardConfig,
        "input_format",
        "What folders and archives mean. tree: folders are classes. pairs: tars hold images beside KEY.txt, KEY.json "
        "and KEY.cls, as WebDataset and img2dataset write them. parquet: Parquet files hold the images, as Hugging "
        "Face's do. coco, voc: boxes in `annotations/instances_*.json`, or in `Annotations/*.xml`. auto: look at the "
        "folder.",
    ),
    click.option(
        "--annotations",
        multiple=True,
        metavar="FILE",
        help="Boxes or captions of the images in the folder INPUT, in COCO's form. Repeat it for several files. "
        "Without it `annotations/instances_*.json` and `captions_*.json` in INPUT count, if there are such.",
    ),
    all_options(
        *(
            click.option(f"--{name}-column", metavar="COLUMN", help=f"{text}  [default: {default}]")
            for name, text, default in (
                ("image", "Column of the images in a table or in Parquet files with images.", "image"),
                ("label", "Column of the classes.", "label"),
                ("split", "Column of the splits.", "split"),
                ("caption", "Column of the captions.", "caption"),
            )
        )
    ),
    click.option(
        "--label-separator",
        metavar="TEXT",
        help="Text between the classes of an image with several, such as ';'. They become the list `labels`.",
    ),
    click.option(
        "--target-column",
        metavar="COLUMN",
        help="Column of the target of a regression, a number. It becomes the feature `target`.",
    ),
    click.option(
        "--mask-column",
        metavar="COLUMN",
        help="Column of the masks in a table or in Parquet files with images.  [default: mask, or what looks like one]",
    ),
    click.option(
        "--tensor",
        "tensors",
        multiple=True,
        metavar="COLUMN=DTYPE[SHAPE]",
        help="Type of a column of Parquet files without images, as latents=float16[4,64,64] or tokens=int32[?]. "
        "Without it the type is that of the column. Repeat it for several.",
    ),
    config_option(
        ShardConfig,
        "segmentation_masks",
        "Draw the segmentations in COCO's annotations as the masks of the images. Class 0 is the background.",
    ),
    click.option("--split", help="Name of the split, if there is only one.  [default: train]"),
    click.option(
        "--splits",
        type=Shares(),
        default={},
        help="Splits and their shares, as train=0.9,validation=0.1. A hash of an image's path chooses its split.",
    ),
    click.option(
        "--group-by",
        metavar="COLUMN",
        help="With --splits: keep images with the same value in this column in one split.",
    ),
    click.option(
        "--labels",
        metavar="FILE",
        help="File with the class names, one per line, in the order of their labels.  [default: sorted names]",
    ),
    config_option(ShardConfig, "allow_missing", "Go on if a table or annotations name files that do not exist."),
    config_option(
        ShardConfig, "requests_per_host", "Images that each worker fetches at once from one host of the web."
    ),
    config_option(
        ShardConfig, "allow_private_hosts", "Fetch images from hosts of private networks too, if the table names them."
    ),
)
"""Adds the options to a command."""

KEPT_FORM = ("quality", "reencode_progressive", "max_pixels")
"""The fields of `ImageForm` that `advise` takes. The others make the forms that it compares."""

kept_form_options = all_options(
    config_option(ImageForm, "quality", "JPEG quality of images that have to be re-encoded."),
    config_option(
        ImageForm,
        "reencode_progressive",
        "Convert progressive JPEGs to baseline JPEGs, which are larger and faster to decode.",
    ),
    config_option(ImageForm, "max_pixels", "Quarantine images with more pixels than this."),
)
"""Adds the options for them to a command."""
