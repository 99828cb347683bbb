"""A cache of decoded images in files on a local disk, which outlives the process."""
