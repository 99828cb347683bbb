"""The options of `shard` and `append` that say what the input means."""

from beam_jobs.config import ShardConfig
from tfpipe.cli.shared.config_option import config_option
from tfpipe.cli.shared.params import Shares, all_options

input_options = all_options(
    config_option(
        ShardConfig,
        "input_format",
        "What folders and archives mean. tree: folders are classes. pairs: tars hold images beside KEY.txt, KEY.json "
        "and KEY.cls, as WebDataset and img2dataset write them. parquet: Parquet files hold the images, as Hugging "
        "Face's do. coco, voc: boxes in `annotations/instances_*.json`, or in `Annotations/*.xml`. auto: look at the "
        "folder.",
    ),
    config_option(
        ShardConfig,
        "annotations",
        "Boxes or captions of the images in the folder INPUT, in COCO's form. Repeat it for several files. Without it "
        "`annotations/instances_*.json` and `captions_*.json` in INPUT count, if there are such.",
        metavar="FILE",
    ),
    config_option(ShardConfig, "image_column", metavar="COLUMN", default="image"),
    config_option(ShardConfig, "label_column", metavar="COLUMN", default="label"),
    config_option(ShardConfig, "split_column", metavar="COLUMN", default="split"),
    config_option(ShardConfig, "caption_column", metavar="COLUMN", default="caption"),
    config_option(ShardConfig, "label_separator", metavar="TEXT"),
    config_option(ShardConfig, "target_column", metavar="COLUMN"),
    config_option(ShardConfig, "mask_column", metavar="COLUMN", default="mask, or what looks like one"),
    config_option(ShardConfig, "box_label_column", metavar="COLUMN", default="box_label"),
    config_option(
        ShardConfig,
        "tensors",
        "Type of a column of Parquet files without images, as latents=float16[4,64,64] or tokens=int32[?]. Without it "
        "the type is that of the column. Repeat it for several.",
        flag="--tensor",
        metavar="COLUMN=DTYPE[SHAPE]",
    ),
    config_option(
        ShardConfig,
        "segmentation_masks",
        "Draw the segmentations in COCO's annotations as the masks of the images. Class 0 is the background.",
    ),
    config_option(
        ShardConfig, "split", "The name of the split, if there is only one.", metavar="NAME", default="train"
    ),
    config_option(
        ShardConfig,
        "splits",
        "Splits and their shares, as train=0.9,validation=0.1. A hash of an image's path chooses its split.",
        kind=Shares(),
    ),
    config_option(
        ShardConfig, "group_by", "With --splits: images with one value in this column stay together.", metavar="COLUMN"
    ),
    config_option(ShardConfig, "labels", metavar="FILE", default="sorted names"),
    config_option(ShardConfig, "allow_missing", "Go on if a table or annotations name files that do not exist."),
)
"""Adds the options to a command."""
