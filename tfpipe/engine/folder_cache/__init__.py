"""A cache in files on a local disk, which outlives the process and serves every framework."""
